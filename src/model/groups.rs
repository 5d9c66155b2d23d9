//! Models of groups as a file: the keys, their order and all models under one checksum.
//!
//! The file is laid out as that of one model (`file.rs`): the mark of Parquet, the payload, a table for other programs, the mark.
//! The payload has the head of `wire.rs`, with a magic of its own, and [`Groups`] as postcard encodes them. Only the payload is
//! read. Readers of Parquet and IPC may end the process at wrong bytes, so they do not see a payload.
//!
//! Files that were written before this payload are Parquet tables without a checksum of all: see [`Groups::old`].

use std::collections::BTreeSet;
use std::io::Cursor;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use serde::{Deserialize, Serialize};

use super::file::{read, with_table};
use super::invalid;
use super::wire::{self, Encoded, FIRST_FORMAT, Head};
use crate::base::error::Result;
#[cfg(feature = "python")]
use crate::base::memory;

/// Encoded models of groups.
pub(super) const GROUPS: Encoded = Encoded { magic: *b"kmeans-groups", class: "KMeansModels", newest: FIRST_FORMAT };
/// The key of the JSON in the metadata of the table.
const KEY: &str = "polars-kmeans-groups";

/// The groups of a fit, in their order.
#[doc(hidden)]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Groups<'a> {
    /// The columns of keys.
    #[serde(borrow)]
    pub keys: Vec<Keys<'a>>,
    /// The model of each group, as `KMeansModel::to_saved_wire` gives it. `None`: it has too few rows.
    pub models: Vec<Option<&'a [u8]>>,
}

/// A column of keys. A type of Polars is a name, and texts that belong to it: units, a time zone, categories.
#[doc(hidden)]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Keys<'a> {
    pub name: &'a str,
    pub dtype: &'a str,
    pub of: Vec<&'a str>,
    #[serde(borrow)]
    pub values: Vec<Key<'a>>,
}

/// A key as Polars stores it. Categories are their texts.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Key<'a> {
    Null,
    Boolean(bool),
    /// Whole numbers, dates and times. Unsigned ones of 128 bits have the same bits.
    Integer(i128),
    /// All float types: float64 holds them exactly.
    Float(f64),
    Text(&'a str),
    Bytes(&'a [u8]),
}

impl<'a> Groups<'a> {
    /// The bytes of a file with these groups, and with this table for other programs.
    ///
    /// # Errors
    /// [`KMeansError::InvalidModel`](crate::KMeansError::InvalidModel) if the groups could not be read again.
    pub fn to_bytes(&self, schema: &SchemaRef, table: &[RecordBatch]) -> Result<Vec<u8>> {
        self.check()?;
        let body = postcard::to_stdvec(self).map_err(|error| invalid("models that can be encoded", error))?;
        let payload = [Head::of(FIRST_FORMAT, &body).bytes(&GROUPS), body].concat();
        let by: Vec<&str> = self.keys.iter().map(|keys| keys.name).collect();
        let creator = concat!("polars-kmeans ", env!("CARGO_PKG_VERSION"));
        let facts = serde_json::json!({"creator": creator, "by": by, "groups": self.models.len()});
        with_table(&payload, schema, table, (KEY, &facts))
    }

    /// The body of a file whose marks and checksum are right.
    ///
    /// # Errors
    /// As `KMeansModel::from_bytes`.
    pub fn body(file: &[u8]) -> Result<Vec<u8>> {
        Ok(read(&mut Cursor::new(file), &GROUPS, |error| invalid("bytes that can be read", error))?.1)
    }

    /// The groups of a body. Memory is in proportion to its length: postcard takes no length on trust.
    ///
    /// # Errors
    /// [`KMeansError::InvalidModel`](crate::KMeansError::InvalidModel).
    pub fn of_body(body: &'a [u8]) -> Result<Self> {
        match postcard::take_from_bytes::<Self>(body) {
            Ok((groups, [])) => groups.check().map(|()| groups),
            Ok((_, rest)) => Err(invalid("nothing after the groups", format!("{} bytes", rest.len()))),
            Err(error) => Err(invalid("whole groups", error)),
        }
    }

    /// Refuses groups that no fit makes. Whether keys are different is for Polars to say.
    fn check(&self) -> Result<()> {
        let names: BTreeSet<_> = self.keys.iter().map(|keys| keys.name).collect();
        if names.is_empty() || names.len() < self.keys.len() || names.iter().any(|name| name.contains('\0')) {
            return Err(invalid("different names of keys", format!("{names:?}")));
        }
        if let Some(keys) = self.keys.iter().find(|keys| keys.values.len() != self.models.len()) {
            let expected = format!("{} keys, one for each model", self.models.len());
            return Err(invalid(&expected, keys.values.len()));
        }
        self.models.iter().flatten().try_for_each(|model| wire::check(model))
    }

    /// The table of a file that an older version wrote: keys, and the file of each model, in the last column. `None` for anything
    /// else.
    ///
    /// Such a file has a checksum for each model, and none for keys. The reader is that of arrow-rs, which checks what it reads
    /// and panics at worst: the caller catches that. The most rows are bounded here. A page may claim 2 GiB of memory, which the
    /// reader reserves and does not touch.
    ///
    /// # Errors
    /// [`KMeansError::InvalidModel`](crate::KMeansError::InvalidModel) if the table cannot be read.
    #[cfg(feature = "python")]
    pub fn old(file: &[u8]) -> Result<Option<RecordBatch>> {
        use arrow::compute::concat_batches;
        use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
        /// The most groups for each byte of a file. Groups without a model take less than a byte, if their keys are regular.
        const MOST: u64 = 64;
        let ours = |what: &Encoded| file.get(4..).is_some_and(|rest| rest.starts_with(&what.magic));
        if !file.starts_with(b"PAR1") || ours(&wire::MODEL) || ours(&GROUPS) {
            return Ok(None);
        }
        drop(memory::with_room::<u8>(i32::MAX as usize, "a page of a file of an older version")?);
        let unreadable = |error: &dyn std::fmt::Display| invalid("a table of models of groups", format!("{error:.200}"));
        let reader = ParquetRecordBatchReaderBuilder::try_new(bytes::Bytes::copy_from_slice(file));
        let reader = reader.map_err(|error| unreadable(&error))?;
        let facts = reader.metadata().file_metadata();
        let said = facts.key_value_metadata().and_then(|pairs| pairs.iter().find(|pair| pair.key == KEY)?.value.as_deref());
        let Some(said) = said else { return Ok(None) };
        let said: serde_json::Value = serde_json::from_str(said).map_err(|error| unreadable(&error))?;
        let names = reader.schema().fields().iter().map(|field| field.name().as_str().into());
        let names = names.collect::<Vec<serde_json::Value>>();
        if said["format"] != 1 || said["by"].as_array().map(Vec::as_slice) != names.split_last().map(|(_, by)| by) {
            return Err(unreadable(&format!("{said} and columns {names:?}")));
        }
        if !u64::try_from(facts.num_rows()).is_ok_and(|rows| rows <= MOST * file.len() as u64) {
            return Err(unreadable(&format!("{} rows in {} bytes", facts.num_rows(), file.len())));
        }
        let schema = reader.schema().clone();
        let batches = reader.build().and_then(|batches| Ok(batches.collect::<std::result::Result<Vec<_>, _>>()?));
        let table = batches.and_then(|batches| Ok(concat_batches(&schema, &batches)?));
        table.map(Some).map_err(|error| unreadable(&error))
    }
}

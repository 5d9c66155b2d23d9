//! A tree as a file: its bytes, and the table of its nodes for other programs. `model/file.rs` says how such a file is read.

use std::io::Cursor;
use std::path::Path;

use super::KMeansTree;
use crate::base::error::Result;
use crate::base::parallel::FloatEnvironment;
use crate::model::file::{FileMetadata, read, read_file, replace, with_table};
use crate::model::invalid;
use crate::model::wire::TREES;

/// The key of the JSON in the metadata of the table.
const KEY: &str = "polars-kmeans-tree";

impl KMeansTree {
    /// Writes the tree to a file. See [`KMeansModel::save`](crate::KMeansModel::save).
    ///
    /// # Errors
    /// As [`KMeansModel::save`](crate::KMeansModel::save).
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        replace(path.as_ref(), &self.to_bytes()?)
    }

    /// Reads a tree from a file that [`KMeansTree::save`] wrote. The table of the file is not read.
    ///
    /// # Errors
    /// As [`KMeansModel::load`](crate::KMeansModel::load).
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        read_file(path.as_ref(), &TREES, |_, body| Self::decoded(body))
    }

    /// The bytes of the file that [`KMeansTree::save`] writes. Equal trees give equal bytes.
    ///
    /// # Errors
    /// As [`KMeansModel::to_bytes`](crate::KMeansModel::to_bytes).
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let _environment = FloatEnvironment::default_rounding();
        let (flat, table) = (self.flat()?, self.nodes_batch()?);
        with_table(&self.encoded(&flat.to_saved_wire()?)?, &table.schema(), &[table], (KEY, &FileMetadata::of(flat)))
    }

    /// A tree from the bytes of a file.
    ///
    /// # Errors
    /// As [`KMeansModel::from_bytes`](crate::KMeansModel::from_bytes).
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let (_, body) = read(&mut Cursor::new(bytes), &TREES, |error| invalid("bytes that can be read", error))?;
        Self::decoded(&body)
    }
}

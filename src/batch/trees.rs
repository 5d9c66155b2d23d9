//! Trees of record batches: fits, predictions and the table of nodes.

use std::sync::Arc;

use arrow::array::{ArrayRef, LargeListArray, RecordBatch, UInt32Array, UInt64Array};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, Schema};

use super::columns::{Arrays, frame_error};
use super::{NAMES, TABLE, arrays, label_array, split};
use crate::base::error::Result;
use crate::base::memory;
use crate::base::params::Device;
use crate::tree::{BisectingKMeans, HierarchicalKMeans, KMeansTree, Search, TreeEstimator};

/// A fitted tree, and the leaves of the batches that it was fitted to.
#[derive(Debug, Clone)]
pub struct BatchTreeFit {
    pub tree: KMeansTree,
    /// One array per batch. Null if `null_policy="skip"` left the row out.
    pub labels: Vec<UInt32Array>,
}

/// Declares the fits of record batches.
macro_rules! fits_batches {
    ($($type:ident = $variant:ident),*) => {$(
        impl $type {
            /// Fits a tree to the named columns of record batches: see [`KMeans::fit_batches`](crate::KMeans::fit_batches).
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($type), "::fit_features`], and those of columns that cannot be used.")]
            pub fn fit_batches(
                &self,
                batches: &[RecordBatch],
                columns: impl IntoIterator<Item = impl AsRef<str>>,
                weight: Option<&str>,
            ) -> Result<BatchTreeFit> {
                let names = columns.into_iter().map(|name| memory::text(format_args!("{}", name.as_ref()), NAMES));
                TreeEstimator::$variant(self.clone()).fit_batches(batches, &memory::try_collected(names, NAMES)?, weight)
            }
        }
    )*};
}
fits_batches!(HierarchicalKMeans = Levels, BisectingKMeans = Bisecting);

impl TreeEstimator {
    fn fit_batches(&self, batches: &[RecordBatch], names: &[String], weight: Option<&str>) -> Result<BatchTreeFit> {
        let weights = weight.map(|name| Arrays::of(batches, name)).transpose()?;
        let (tree, labels) = self.fit_source(&arrays(batches, names)?, weights.as_ref(), false)?;
        Ok(BatchTreeFit { tree, labels: split(labels, batches.iter().map(RecordBatch::num_rows))? })
    }
}

impl KMeansTree {
    /// The leaf of every row of a batch that has the tree's columns. Null if a value is null or not finite. An exact search runs on the
    /// device.
    ///
    /// # Errors
    /// As [`KMeansModel::predict_batch`](crate::KMeansModel::predict_batch).
    pub fn predict_batch(&self, batch: &RecordBatch, search: Search, device: Device) -> Result<UInt32Array> {
        let flat = self.flat()?;
        match search {
            Search::Exact => flat.on(device).predict_batch(batch),
            Search::Tree => Ok(label_array(self.descended(&arrays(std::slice::from_ref(batch), flat.columns_to_find()?)?)?)),
        }
    }

    /// A table of all nodes, with the columns of `KMeansTree::nodes`.
    ///
    /// # Errors
    /// [`KMeansError::Frame`](crate::KMeansError::Frame) if arrow refuses.
    pub fn nodes_batch(&self) -> Result<RecordBatch> {
        let (batch, nodes) = (self.every_node()?.centroids_batch()?, self.tree_nodes());
        let (offsets, values) = self.paths()?;
        let item = Arc::new(Field::new("item", DataType::UInt32, false));
        let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
        let paths = LargeListArray::try_new(item, offsets, Arc::new(UInt32Array::from(values)), None).map_err(frame_error)?;
        let new: [(&str, ArrayRef); 5] = [
            ("parent", Arc::new(UInt32Array::from(memory::collected(nodes.iter().map(|node| node.parent), TABLE)?))),
            ("level", Arc::new(UInt32Array::from(memory::collected(nodes.iter().map(|node| node.level), TABLE)?))),
            ("path", Arc::new(paths)),
            ("seed", Arc::new(UInt64Array::from(memory::collected(nodes.iter().map(|node| node.seed), TABLE)?))),
            ("leaf", Arc::new(UInt32Array::from(memory::collected(nodes.iter().map(|node| node.leaf), TABLE)?))),
        ];
        let (mut fields, mut columns) = (batch.schema().fields().to_vec(), batch.columns().to_vec());
        fields[0] = Arc::new(Field::new("node", DataType::UInt32, false));
        for (at, (name, column)) in new.into_iter().enumerate() {
            let nullable = matches!(name, "parent" | "leaf");
            fields.insert(at + 1, Arc::new(Field::new(name, column.data_type().clone(), nullable)));
            columns.insert(at + 1, column);
        }
        RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).map_err(frame_error)
    }
}

//! The table of the nodes of a tree.

use std::sync::Arc;

use arrow::array::{ArrayRef, LargeListArray, RecordBatch, UInt32Array, UInt64Array};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, Schema};

use super::TABLE;
use super::columns::frame_error;
use crate::base::error::Result;
use crate::base::memory;
use crate::tree::KMeansTree;

impl KMeansTree {
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

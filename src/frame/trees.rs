//! Trees of frames: fits, predictions and the frame of nodes.

use polars::prelude::*;
use polars_arrow::array::{ListArray, PrimitiveArray};
use polars_arrow::datatypes::ArrowDataType;

use super::{CLUSTER, label_column, select};
#[cfg(doc)]
use crate::base::error::KMeansError;
use crate::base::error::Result;
use crate::base::memory;
use crate::base::params::Device;
use crate::tree::{BisectingKMeans, HierarchicalKMeans, KMeansTree, Search, TreeEstimator};

/// How errors call the frame of nodes.
const NODES: &str = "the frame of the nodes";

/// A fitted tree, and the leaves of the rows that it was fitted to.
#[derive(Debug, Clone)]
pub struct TreeFit {
    pub tree: KMeansTree,
    /// `UInt32`, one per row of the frame. Null if `null_policy="skip"` left the row out.
    pub labels: UInt32Chunked,
}

impl HierarchicalKMeans {
    /// Fits a tree to the named columns of a frame: see [`KMeans::fit`](crate::KMeans::fit).
    ///
    /// ```
    /// use polars::prelude::*;
    /// use polars_kmeans::KMeans;
    /// use polars_kmeans::tree::{HierarchicalKMeans, Search};
    ///
    /// let df = df!("x" => [1.0, 1.2, 2.0, 8.0, 8.2, 9.9])?;
    /// let tree = HierarchicalKMeans::of_levels(KMeans::new(1), vec![2, 2]).fit(&df, ["x"])?;
    /// assert_eq!(tree.nodes()?.height(), 7);
    /// assert_eq!(tree.predict(&df, Search::Tree)?.to_vec(), tree.predict(&df, Search::Exact)?.to_vec());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`HierarchicalKMeans::fit_features`], and those of columns that cannot be used.
    pub fn fit(&self, df: &DataFrame, columns: impl IntoIterator<Item = impl AsRef<str>>) -> Result<KMeansTree> {
        Ok(self.fit_columns(&select(df, columns)?, None)?.tree)
    }

    /// Fits a tree to columns, with one weight per row if weights are given. Also returns the leaves of the rows.
    ///
    /// # Errors
    /// As [`HierarchicalKMeans::fit`].
    pub fn fit_columns(&self, columns: &[Column], weights: Option<&Column>) -> Result<TreeFit> {
        TreeEstimator::Levels(self.clone()).fit_columns(columns, weights, false)
    }
}

impl BisectingKMeans {
    /// Fits a tree to the named columns of a frame: see [`KMeans::fit`](crate::KMeans::fit).
    ///
    /// # Errors
    /// As [`BisectingKMeans::fit_features`], and those of columns that cannot be used.
    pub fn fit(&self, df: &DataFrame, columns: impl IntoIterator<Item = impl AsRef<str>>) -> Result<KMeansTree> {
        Ok(self.fit_columns(&select(df, columns)?, None)?.tree)
    }

    /// As [`HierarchicalKMeans::fit_columns`].
    ///
    /// # Errors
    /// As [`BisectingKMeans::fit`].
    pub fn fit_columns(&self, columns: &[Column], weights: Option<&Column>) -> Result<TreeFit> {
        TreeEstimator::Bisecting(self.clone()).fit_columns(columns, weights, false)
    }
}

impl TreeEstimator {
    /// `computed`: whether the columns were computed by expressions.
    pub(crate) fn fit_columns(&self, columns: &[Column], weights: Option<&Column>, computed: bool) -> Result<TreeFit> {
        let (tree, labels) = self.fit_source(columns, weights, computed)?;
        Ok(TreeFit { tree, labels: label_column(labels)? })
    }
}

impl KMeansTree {
    /// A frame of all nodes: `node` (UInt32: breadth first by path, the root is 0), `parent` (UInt32, null for the root), `level` (UInt32),
    /// `path` (List of UInt32: the numbers of clusters on the way from the root), `seed` (UInt64), `leaf` (UInt32, null for other
    /// nodes), `size` (UInt64: rows of positive weight), `inertia` (Float64), then the features as in [`crate::KMeansModel::centroids`].
    ///
    /// # Errors
    /// [`KMeansError::Frame`] if Polars refuses, [`KMeansError::NoMemory`].
    pub fn nodes(&self) -> Result<DataFrame> {
        let (mut frame, nodes) = (self.every_node()?.centroids()?, self.tree_nodes());
        frame.rename(CLUSTER, "node".into())?;
        let optional = |name: &str, values: Vec<Option<u32>>| UInt32Chunked::from_slice_options(name.into(), &values);
        let (offsets, values) = self.paths()?;
        let numbers = PrimitiveArray::from_vec(values).boxed();
        let lists = ListArray::<i64>::default_datatype(ArrowDataType::UInt32);
        let paths = ListArray::<i64>::try_new(lists, offsets.try_into()?, numbers, None)?;
        let columns = [
            optional("parent", memory::collected(nodes.iter().map(|node| node.parent), NODES)?).into_column(),
            UInt32Chunked::from_vec("level".into(), memory::collected(nodes.iter().map(|node| node.level), NODES)?)
                .into_column(),
            ListChunked::with_chunk("path".into(), paths).into_column(),
            UInt64Chunked::from_vec("seed".into(), memory::collected(nodes.iter().map(|node| node.seed), NODES)?).into_column(),
            optional("leaf", memory::collected(nodes.iter().map(|node| node.leaf), NODES)?).into_column(),
        ];
        for (at, column) in columns.into_iter().enumerate() {
            frame.insert_column(at + 1, column)?;
        }
        Ok(frame)
    }

    /// The leaf of every row of a frame that has the tree's columns. Null if a value is null or not finite. This runs on the CPU.
    ///
    /// # Errors
    /// [`KMeansError::MissingColumn`], [`KMeansError::UnsupportedDtype`] or [`KMeansError::WidthMismatch`].
    pub fn predict(&self, df: &DataFrame, search: Search) -> Result<UInt32Chunked> {
        self.predict_columns(&select(df, self.flat()?.columns_to_find()?)?, search, Device::Cpu)
    }

    /// As [`KMeansTree::predict`], with columns in the order of the features. An exact search runs on the device.
    ///
    /// # Errors
    /// As [`KMeansTree::predict`], and a device that was demanded and cannot be used.
    pub fn predict_columns(&self, columns: &[Column], search: Search, device: Device) -> Result<UInt32Chunked> {
        match search {
            Search::Exact => self.flat()?.on(device).predict_columns(columns),
            Search::Tree => label_column(self.descended(columns)?),
        }
    }

    /// Minus the inertia of a frame's rows around the leaves that the search finds: see [`crate::KMeansModel::score`].
    ///
    /// # Errors
    /// As [`KMeansTree::predict`].
    pub fn score(&self, df: &DataFrame, search: Search) -> Result<f64> {
        self.score_columns(&select(df, self.flat()?.columns_to_find()?)?, None, search)
    }

    /// As [`KMeansTree::score`], with columns in the order of the features and one weight per row.
    ///
    /// # Errors
    /// As [`KMeansTree::score`], and those of the weights.
    pub fn score_columns(&self, columns: &[Column], weights: Option<&Column>, search: Search) -> Result<f64> {
        match search {
            Search::Exact => self.flat()?.score_columns(columns, weights),
            Search::Tree => self.descended_score(columns, weights),
        }
    }

    /// For each leaf of a column, its node on each level: structs of `level_1`, ... (UInt32, null below the leaf), for so many levels.
    ///
    /// # Errors
    /// [`KMeansError::Frame`] if Polars refuses, [`KMeansError::NoMemory`].
    #[cfg(feature = "python")]
    pub(crate) fn level_nodes(&self, leaves: &UInt32Chunked, depth: usize) -> Result<StructChunked> {
        let mut levels = memory::try_collected((0..depth).map(|_| memory::with_room(leaves.len(), NODES)), NODES)?;
        let mut above = memory::filled(depth, None, NODES)?;
        for leaf in leaves.iter() {
            match leaf.filter(|leaf| (*leaf as usize) < self.leaves().len()) {
                Some(leaf) => self.nodes_above(leaf, &mut above),
                None => above.fill(None),
            }
            levels.iter_mut().zip(&above).for_each(|(level, node)| level.push(*node));
        }
        let columns = (1..)
            .zip(&levels)
            .map(|(level, nodes)| Ok(UInt32Chunked::from_slice_options(format!("level_{level}").into(), nodes).into_column()));
        Ok(DataFrame::new(leaves.len(), memory::try_collected(columns, NODES)?)?.into_struct("path".into()))
    }
}

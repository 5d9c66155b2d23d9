//! Bisecting k-means: again and again, one leaf is split in two.
//!
//! The leaf of most inertia is split, or that of most rows. Which rows its children get depends on its own rows alone. So small leaves
//! that may be split soon are split ahead, side by side.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::nodes::{Child, Growing, ToSplit, refused};
use super::{FittedTree, TREE};
use crate::base::error::{KMeansError, Result};
use crate::base::memory;
use crate::base::parallel::workers_for;
use crate::base::params::declare::words;
use crate::base::params::{KMeans, TooFew};
use crate::fit::engine::Engine;
use crate::input::features::{Column, Features};

words! {
    /// Which leaf is split next.
    pub enum Split("split") {
        /// That of most inertia.
        #[default]
        Inertia = "inertia",
        /// That of most rows of positive weight.
        Size = "size",
    }
}

/// A bisecting k-means to be fitted: a tree of as many leaves as the estimator has clusters. Every other option is that of the
/// estimator, for each fit of two clusters.
///
/// ```
/// use polars_kmeans::tree::BisectingKMeans;
/// use polars_kmeans::{Features, KMeans};
///
/// let x = [0.0f64, 0.1, 5.0, 5.1, 9.0, 9.1, 9.2];
/// let fit = BisectingKMeans::new(KMeans::new(3)).fit_features(&Features::from_rows(&x, 1)?, None)?;
/// assert_eq!((fit.tree.n_leaves(), fit.tree.nodes().len()), (3, 5));
/// # Ok::<(), polars_kmeans::KMeansError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct BisectingKMeans {
    pub(crate) estimator: KMeans,
    split: Split,
    max_size: Option<u64>,
}

impl BisectingKMeans {
    /// The estimator says how many leaves there are.
    pub fn new(estimator: KMeans) -> Self {
        Self { estimator, split: Split::default(), max_size: None }
    }

    /// Which leaf is split next. Ties go to the smaller path.
    pub fn split(self, split: Split) -> Self {
        Self { split, ..self }
    }

    /// Splits leaves with more rows of positive weight than this, also beyond the number of clusters. Equal rows are then cut in the
    /// order of the table, and both parts have the same centroid. A prediction gives such rows the smaller leaf.
    pub fn max_size(self, rows: u64) -> Self {
        Self { max_size: Some(rows), ..self }
    }

    /// Fits the tree to rows, with one weight per row if weights are given.
    ///
    /// # Errors
    /// Those of a fit of all rows. [`KMeansError::TooFewDistinct`] if no leaf can be split before there are as many as clusters, unless
    /// the estimator takes fewer.
    pub fn fit_features<T: Engine>(
        &self,
        features: &Features<'_, T>,
        weights: Option<&Column<'_, f64>>,
    ) -> Result<FittedTree<T>> {
        let k = self.estimator.k;
        self.estimator.check_clusters(k)?;
        if self.max_size == Some(0) {
            return Err(refused("max_size", "at least one row", 0));
        }
        let mut tree = Splits { tree: Growing::new(&self.estimator, features, weights)?, ahead: HashMap::new() };
        let mut leaves = 1;
        let key = |tree: &Growing<'_, '_, T>, node: u32| match self.split {
            Split::Inertia => (Some(tree.total(node)), 0),
            Split::Size => (None, tree.node(node).size),
        };
        let mut waiting = OpenLeaves::new();
        let add = |waiting: &mut OpenLeaves<_>, tree: &Growing<'_, '_, T>, node: u32| {
            if tree.node(node).inertia > 0.0 {
                push(waiting, (key(tree, node), Reverse(tree.start(node)), node))
            } else {
                Ok(())
            }
        };
        add(&mut waiting, &tree.tree, 0)?;
        while leaves < k {
            let Some(node) = tree.next(&mut waiting, k - leaves)? else { break };
            if let Some(children) = tree.split_of(node) {
                tree.tree.attach(node, children)?.try_for_each(|child| add(&mut waiting, &tree.tree, child))?;
                leaves += 1;
            }
        }
        if leaves < k && self.estimator.output.too_few != TooFew::Fewer {
            return Err(KMeansError::TooFewDistinct { k, rows: leaves as u64 });
        }
        if let Some(most) = self.max_size {
            tree.bound(most)?;
        }
        tree.tree.finish(0)
    }
}

/// The leaves that may be split: the next one is the greatest. Smaller paths have smaller starts.
type OpenLeaves<K> = BinaryHeap<(K, Reverse<usize>, u32)>;

/// Adds a leaf, if there is memory for it.
fn push<K: Ord>(leaves: &mut OpenLeaves<K>, leaf: (K, Reverse<usize>, u32)) -> Result<()> {
    let bytes = (leaves.len() + 1) * size_of_val(&leaf);
    leaves.try_reserve(1).map_err(|_| memory::no_memory(TREE, bytes as u128))?;
    leaves.push(leaf);
    Ok(())
}

/// A tree, and the splits of leaves that were made ahead: none if a leaf cannot be split.
struct Splits<'f, 'a, T> {
    tree: Growing<'f, 'a, T>,
    ahead: HashMap<u32, Option<Vec<Child<T>>>>,
}

impl<T: Engine> Splits<'_, '_, T> {
    /// The next leaf. Its split is made, and those of some leaves behind it: at most so many together.
    fn next<K: Ord>(&mut self, waiting: &mut OpenLeaves<K>, most: usize) -> Result<Option<u32>> {
        let Some(first) = waiting.pop() else { return Ok(None) };
        let node = first.2;
        if self.ahead.contains_key(&node) {
            return Ok(Some(node));
        }
        let mut nodes = Vec::new();
        memory::push(&mut nodes, node, TREE)?;
        if !self.tree.is_large(node) {
            let mut kept = Vec::new();
            while nodes.len() < most.min(workers_for(self.tree.threads(), usize::MAX)) {
                let Some(other) = waiting.pop() else { break };
                if !self.ahead.contains_key(&other.2) {
                    memory::push(&mut nodes, other.2, TREE)?;
                }
                memory::push(&mut kept, other, TREE)?;
            }
            waiting.extend(kept);
        }
        let found = if node == 0 {
            vec![self.split_root()?]
        } else {
            let split = |node: &u32| ToSplit { node: *node, k: 2, fewer: false, last: false };
            let splits = memory::collected(nodes.iter().map(split), TREE)?;
            self.tree.split(&splits)?
        };
        let bytes = (self.ahead.len() + nodes.len()) * size_of::<(u32, Option<Vec<Child<T>>>)>();
        self.ahead.try_reserve(nodes.len()).map_err(|_| memory::no_memory(TREE, bytes as u128))?;
        let found = nodes.into_iter().zip(found);
        self.ahead.extend(found.map(|(node, children)| (node, Some(children).filter(|children| !children.is_empty()))));
        Ok(Some(node))
    }

    /// The children of the root: none if it cannot be split.
    fn split_root(&mut self) -> Result<Vec<Child<T>>> {
        match self.tree.split_root(2) {
            Ok(children) if children.len() == 2 => Ok(children),
            Err(error) if !error.is_too_few() => Err(error),
            _ => Ok(Vec::new()),
        }
    }

    /// The children of a leaf, if it can be split.
    fn split_of(&mut self, node: u32) -> Option<Vec<Child<T>>> {
        // The entry stays: a leaf that cannot be split is asked for again if it has too many rows.
        self.ahead.get_mut(&node).and_then(Option::take)
    }

    /// Splits leaves that have more rows than this.
    fn bound(&mut self, most: u64) -> Result<()> {
        let large = |tree: &Growing<'_, '_, T>, node: u32| {
            let of = tree.node(node);
            (of.children.is_empty() && of.size > most).then(|| (of.size, Reverse(tree.start(node)), node))
        };
        let mut waiting = OpenLeaves::<u64>::new();
        (0..self.tree.len() as u32).filter_map(|node| large(&self.tree, node)).try_for_each(|leaf| push(&mut waiting, leaf))?;
        while let Some(node) = self.next(&mut waiting, usize::MAX)? {
            let children = match self.split_of(node) {
                Some(children) => children,
                None => self.tree.halves(node)?,
            };
            let children = self.tree.attach(node, children)?;
            children.filter_map(|child| large(&self.tree, child)).try_for_each(|leaf| push(&mut waiting, leaf))?;
        }
        Ok(())
    }
}

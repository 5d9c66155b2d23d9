//! The fit of a tree, level by level.
//!
//! ```text
//! the root: a fit of all rows, which settles nulls and the factors of the columns
//! level by level: rows lie node by node
//!   each node: the fit of its rows; large nodes one after the other by all threads, small ones side by side
//!   rows are put in the order of the children
//! ```

use std::ops::Range;
use std::sync::Arc;

use super::{KMeansTree, TREE, TreeNode};
use crate::backend::answers::Labels;
use crate::backend::cpu::split_off;
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::base::names::Names;
use crate::base::parallel::{for_each_task, workers_for};
use crate::base::params::{Device, Init, KMeans, Scale, SizeLimit, Sizes, TooFew, Wanted};
use crate::exact::reference;
use crate::exact::rng::{DrawPurpose, draw_u64};
use crate::fit::engine::Engine;
use crate::input::features::{Column, Features};
use crate::input::tile::{RowBlock, Selection, Tile};
use crate::input::transform::RowTransform;
use crate::model::Fitted;

/// Rows that are read at a time.
const READ: usize = 1_024;
/// All threads fit a node together if it has more than 1 / LARGE of the rows that a thread has in the mean.
const LARGE: usize = 2;

/// A tree, and the leaf of each row that it was fitted to.
#[derive(Debug, Clone)]
pub struct FittedTree<T> {
    pub tree: KMeansTree<T>,
    /// For each kept row, the number of its leaf.
    pub labels: Vec<u32>,
    selection: Vec<(Selection, usize)>,
}

impl<T> FittedTree<T> {
    /// One entry per row of the input. A row that `null_policy="skip"` left out has no leaf.
    ///
    /// # Errors
    /// [`KMeansError::NoMemory`].
    pub fn expand(&self) -> Result<Labels> {
        Labels::of_kept(&self.labels, &self.selection)
    }
}

/// The seed of the fit of a node's child, from that of the node.
fn child_seed(seed: u64, cluster: u32) -> u64 {
    draw_u64(seed, DrawPurpose::Child, cluster, 0, 0)
}

/// Fits a tree with so many clusters for each node of a level. Every other parameter is that of the estimator; its `k` does not count.
///
/// A node's fit is the fit of its rows alone, with the factors of the root and a seed of its own: the first number of Philox with the
/// seed of its parent and its number there. A node stays a leaf if it has fewer distinct rows than clusters.
///
/// ```
/// use polars_kmeans::tree::{Search, fit_levels};
/// use polars_kmeans::{Features, KMeans};
///
/// let x: Vec<f32> = (0..60).map(|i| (i % 6) as f32 + 100.0 * (i % 2) as f32).collect();
/// let features = Features::from_rows(&x, 1)?;
/// let fit = fit_levels(&KMeans::new(1).seed(1), &[2, 3], &features, None)?;
/// assert_eq!((fit.tree.nodes().len(), fit.tree.n_leaves()), (9, 6));
/// let labels = fit.tree.predict(&features, Search::Tree)?;
/// assert_eq!(labels.values(), fit.labels);
/// assert_eq!(fit.tree.path(fit.tree.leaves()[0]).len(), 2);
/// # Ok::<(), polars_kmeans::KMeansError>(())
/// ```
///
/// # Errors
/// Those of a fit of all rows, and [`KMeansError::InvalidOption`] for given centroids and for bounds on sizes.
pub fn fit_levels<T: Engine>(
    estimator: &KMeans,
    levels: &[usize],
    features: &Features<'_, T>,
    weights: Option<&Column<'_, f64>>,
) -> Result<FittedTree<T>> {
    let first = *check(estimator, levels)?;
    let mut of_node = KMeans { k: first, ..estimator.clone() };
    let fit = of_node.fit_with(features, weights, Wanted::Labels)?;
    let root = root(&of_node, features, weights)?;
    of_node.output.too_few = TooFew::Raise;
    of_node.execution.device = Device::Cpu;
    of_node.observer = None;
    if let Some(scaling) = fit.model.scaling() {
        let names = (0..features.n_features()).filter_map(|f| fit.model.names().get(f));
        of_node.space.scale = Scale::Factors(names.zip(scaling.factors().iter().copied()).collect());
    }
    let nodes = NodeFits { estimator: of_node, names: fit.model.names().clone(), row_transform: fit.model.row_transform()? };
    let mut rows = NodeRows::new(features, weights, &fit)?;
    let all_rows = 0..rows.numbers.len();
    let (mut tree, mut level) = (Grown::new(root, all_rows.clone()), vec![(0, all_rows)]);
    for (depth, &k) in levels.iter().enumerate() {
        let mut tasks = rows.tasks(&level, &tree.nodes)?;
        if depth == 0 {
            tasks[0].children = nodes.split(&fit, &mut tasks[0].rows)?;
            if tasks[0].children.len() < 2 {
                return Err(KMeansError::TooFewDistinct { k, rows: tasks[0].children.len() as u64 });
            }
        } else {
            nodes.fit_level(k, &mut tasks)?;
        }
        let children = memory::collected(tasks.into_iter().map(|task| task.children), TREE)?;
        level = tree.attach(&level, children)?;
    }
    let Grown { nodes, ranges, centroids } = tree;
    let tree = KMeansTree::new(nodes, centroids, fit.model)?;
    let mut labels = memory::zeroed(rows.numbers.len(), TREE)?;
    for (node, range) in tree.nodes.iter().zip(ranges) {
        if let Some(leaf) = node.leaf {
            rows.numbers[range].iter().for_each(|row| labels[*row] = leaf);
        }
    }
    Ok(FittedTree { tree, labels, selection: fit.selection })
}

/// Refuses what trees do not have. Returns the clusters of the root.
fn check<'l>(estimator: &KMeans, levels: &'l [usize]) -> Result<&'l usize> {
    let refused = |option: &'static str, expected: &str, got: &str| {
        Err(KMeansError::InvalidOption { option, expected: expected.into(), got: got.into() })
    };
    if matches!(estimator.seeding.init, Init::Given(_)) {
        return refused("init", "a way to find starting centroids, since each node has others", "centroids");
    }
    let Sizes { min_size, max_size, balanced } = estimator.sizes;
    if balanced || [min_size, max_size] != [SizeLimit::None; 2] {
        return refused("max_size", "no bounds on sizes in a tree", "bounds");
    }
    levels.first().map_or_else(|| refused("levels", "at least one level", "none"), Ok)
}

/// The root, as the only cluster of a fit of all rows, and its centroid.
fn root<T: Engine>(
    estimator: &KMeans,
    features: &Features<'_, T>,
    weights: Option<&Column<'_, f64>>,
) -> Result<(TreeNode, Vec<T>)> {
    let mut of_all = KMeans { k: 1, observer: None, ..estimator.clone() };
    of_all.stopping.max_iter = 1;
    let all = of_all.fit_with(features, weights, Wanted::Nothing)?.model;
    let (seed, size, inertia) = (estimator.seeding.seed, all.sizes()[0], all.inertia());
    let node = TreeNode { parent: None, cluster: 0, level: 0, seed, size, inertia, leaf: None, children: 0..0 };
    Ok((node, memory::copied(all.centroids(), TREE)?))
}

/// A cluster of a node's fit that has rows of positive weight.
struct Child<T> {
    cluster: u32,
    size: u64,
    inertia: f64,
    centroid: Vec<T>,
    /// All of its rows.
    rows: usize,
}

/// The nodes that there are so far.
struct Grown<T> {
    nodes: Vec<TreeNode>,
    /// For each node, where its rows are.
    ranges: Vec<Range<usize>>,
    centroids: Vec<T>,
}

impl<T: Float> Grown<T> {
    fn new((root, centroid): (TreeNode, Vec<T>), rows: Range<usize>) -> Self {
        Self { nodes: vec![root], ranges: vec![rows], centroids: centroid }
    }

    /// Gives the nodes of a level their children. Returns these, with their rows.
    fn attach(&mut self, level: &[(u32, Range<usize>)], children: Vec<Vec<Child<T>>>) -> Result<Vec<(u32, Range<usize>)>> {
        let mut below = Vec::new();
        for ((parent, range), children) in level.iter().zip(children) {
            let first = self.nodes.len() as u32;
            let TreeNode { level, seed, .. } = self.nodes[*parent as usize];
            let mut start = range.start;
            for child in children {
                let Child { cluster, size, inertia, centroid, rows } = child;
                let (node, seed, level) = (self.nodes.len() as u32, child_seed(seed, cluster), level + 1);
                let node_of =
                    TreeNode { parent: Some(*parent), cluster, level, seed, size, inertia, leaf: None, children: 0..0 };
                memory::push(&mut self.nodes, node_of, TREE)?;
                memory::push(&mut self.ranges, start..start + rows, TREE)?;
                memory::extend(&mut self.centroids, &centroid, TREE)?;
                memory::push(&mut below, (node, start..start + rows), TREE)?;
                start += rows;
            }
            self.nodes[*parent as usize].children = first..self.nodes.len() as u32;
        }
        Ok(below)
    }
}

/// The kept rows, node by node.
struct NodeRows<T> {
    d: usize,
    /// `(n, d)`: the values as they are given.
    values: Vec<T>,
    /// Empty without weights.
    weights: Vec<f64>,
    /// The numbers of the rows among the kept rows.
    numbers: Vec<usize>,
}

impl<T: Float> NodeRows<T> {
    /// The rows that a fit has kept.
    fn new(features: &Features<'_, T>, weights: Option<&Column<'_, f64>>, fit: &Fitted<T>) -> Result<Self> {
        let (d, n) = (features.n_features(), fit.labels.len());
        let mut part = RowBlock::new(features.clone(), weights.cloned());
        part.selection = fit.selection[0].0.clone();
        let (mut tile, mut values) = (Tile::new(d, READ)?, memory::with_room(n.saturating_mul(d), TREE)?);
        let mut of_rows = memory::with_room(if weights.is_some() { n } else { 0 }, TREE)?;
        for first in (0..features.n_rows()).step_by(READ) {
            tile.load(&part, None, first..features.n_rows().min(first + READ));
            for row in 0..tile.rows {
                values.extend((0..d).map(|f| tile.column(f)[row]));
            }
            if weights.is_some() {
                of_rows.extend_from_slice(&tile.weights[..tile.rows]);
            }
        }
        Ok(Self { d, values, weights: of_rows, numbers: memory::collected(0..n, TREE)? })
    }

    /// The rows of these nodes, which are in order.
    fn tasks<'r>(&'r mut self, level: &[(u32, Range<usize>)], nodes: &[TreeNode]) -> Result<Vec<NodeTask<'r, T>>> {
        let Self { d, values, weights, numbers } = self;
        let (d, mut at) = (*d, 0);
        let (mut values, mut weights, mut numbers) = (&mut values[..], &mut weights[..], &mut numbers[..]);
        let mut tasks = memory::with_room(level.len(), TREE)?;
        for (node, range) in level {
            let (skipped, count) = (range.start - at, range.len());
            at = range.end;
            split_off(&mut values, skipped * d);
            split_off(&mut numbers, skipped);
            // Without weights, none are taken.
            split_off(&mut weights, skipped);
            let rows = RowsOfNode {
                values: split_off(&mut values, count * d),
                weights: split_off(&mut weights, count),
                numbers: split_off(&mut numbers, count),
            };
            tasks.push(NodeTask { seed: nodes[*node as usize].seed, rows, children: Vec::new() });
        }
        Ok(tasks)
    }
}

/// The rows of one node.
struct RowsOfNode<'r, T> {
    values: &'r mut [T],
    weights: &'r mut [f64],
    numbers: &'r mut [usize],
}

impl<T: Float> RowsOfNode<'_, T> {
    /// Puts the rows in this order.
    fn arrange(&mut self, order: &[usize]) -> Result<()> {
        let d = self.values.len() / order.len().max(1);
        let mut values = memory::with_room(self.values.len(), TREE)?;
        order.iter().for_each(|row| values.extend_from_slice(&self.values[row * d..][..d]));
        self.values.copy_from_slice(&values);
        let numbers = memory::collected(order.iter().map(|row| self.numbers[*row]), TREE)?;
        self.numbers.copy_from_slice(&numbers);
        if !self.weights.is_empty() {
            let weights = memory::collected(order.iter().map(|row| self.weights[*row]), TREE)?;
            self.weights.copy_from_slice(&weights);
        }
        Ok(())
    }
}

/// A node to fit, and its children then: none if it is a leaf.
struct NodeTask<'r, T> {
    seed: u64,
    rows: RowsOfNode<'r, T>,
    children: Vec<Child<T>>,
}

/// How nodes below the root are fitted.
struct NodeFits {
    estimator: KMeans,
    names: Names,
    row_transform: Option<Arc<RowTransform>>,
}

impl NodeFits {
    /// Fits the nodes of a level.
    fn fit_level<T: Engine>(&self, k: usize, tasks: &mut [NodeTask<'_, T>]) -> Result<()> {
        let threads = self.estimator.execution.threads;
        let count = workers_for(threads, tasks.len());
        let all: usize = tasks.iter().map(|task| task.rows.numbers.len()).sum();
        let is_large = |task: &NodeTask<'_, T>| task.rows.numbers.len().saturating_mul(LARGE * count) > all;
        for task in tasks.iter_mut().filter(|task| is_large(task)) {
            self.fit_node(k, threads, task)?;
        }
        let mut results = memory::try_collected((0..count).map(|_| Ok(Ok(()))), TREE)?;
        let small = tasks.iter_mut().filter(|task| !is_large(task));
        for_each_task(&mut results, small, |result: &mut Result<()>, task| {
            if result.is_ok() {
                *result = self.fit_node(k, 1, task);
            }
        })?;
        results.into_iter().collect()
    }

    /// Fits one node. It stays a leaf if it has too few distinct rows.
    fn fit_node<T: Engine>(&self, k: usize, threads: usize, task: &mut NodeTask<'_, T>) -> Result<()> {
        let mut estimator = KMeans { k, ..self.estimator.clone() };
        (estimator.seeding.seed, estimator.execution.threads) = (task.seed, threads);
        let features = Features::from_rows(task.rows.values, self.names.len())?.with_names(self.names.clone())?;
        let weights = (!task.rows.weights.is_empty()).then(|| Column::from_slice(task.rows.weights));
        match estimator.fit_with(&features, weights.as_ref(), Wanted::Labels) {
            Ok(fit) => {
                let children = self.split(&fit, &mut task.rows)?;
                if children.len() > 1 {
                    task.children = children;
                }
                Ok(())
            }
            Err(error) if error.is_too_few() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The clusters that have rows of positive weight. The rows are put in their order.
    fn split<T: Float>(&self, fit: &Fitted<T>, rows: &mut RowsOfNode<'_, T>) -> Result<Vec<Child<T>>> {
        let (model, d) = (&fit.model, self.names.len());
        let (sizes, mut labels) = (model.sizes(), memory::copied(&fit.labels, TREE)?);
        let centroid = |cluster: u32| &model.centroids()[cluster as usize * d..][..d];
        // A row of weight 0 may be in a cluster of such rows alone. It goes to the nearest of the others.
        let lost = memory::collected((0..labels.len()).filter(|row| sizes[labels[*row] as usize] == 0), TREE)?;
        for row in lost {
            let given = Features::from_rows(&rows.values[row * d..][..d], d)?.transformed_by(self.row_transform.clone());
            let mut tile = Tile::new(d, 1)?;
            tile.load(&RowBlock::new(given, None), None, 0..1);
            let others = (0u32..).zip(sizes).filter(|(_, size)| **size > 0);
            let distances = others.map(|(cluster, _)| (reference::distance(&tile.x, centroid(cluster)), cluster));
            labels[row] = distances.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))).map_or(0, |(_, cluster)| cluster);
        }
        let mut counts = memory::zeroed::<usize>(sizes.len(), TREE)?;
        labels.iter().for_each(|label| counts[*label as usize] += 1);
        let mut order = memory::collected(0..labels.len(), TREE)?;
        order.sort_unstable_by_key(|row| (labels[*row], *row));
        rows.arrange(&order)?;
        let existing = (0u32..).zip(sizes).filter(|(_, size)| **size > 0);
        let child = |(cluster, size): (u32, &u64)| {
            let (rows, inertia) = (counts[cluster as usize], model.inertias()[cluster as usize]);
            Ok(Child { cluster, size: *size, inertia, centroid: memory::copied(centroid(cluster), TREE)?, rows })
        };
        memory::try_collected(existing.map(child), TREE)
    }
}

//! A tree that grows: its nodes, their rows, and the fits of nodes.
//!
//! ```text
//! a fit of all rows with one cluster: the root, which settles nulls and the factors of the columns
//! splits of some nodes: a fit of the rows of each; large ones one after the other by all threads, small ones side by side
//!   rows are put in the order of the children
//! children are attached, and have consecutive rows
//! ```

use std::ops::Range;
use std::sync::Arc;

use super::rows::{NodeRows, RowsOfNode};
use super::{FittedTree, Search, TREE, Tree, TreeNode, equal_rows, flat_model, number_leaves};
use crate::backend::select::Place;
use crate::base::error::{KMeansError, Result};
use crate::base::memory;
use crate::base::names::Names;
use crate::base::parallel::{for_each_task, workers_for};
use crate::base::params::{Device, Init, KMeans, Output, Scale, SizeLimit, Sizes, SortBy, Stopping, TooFew, Wanted};
use crate::exact::distances::{DistanceSum, ExactSum};
use crate::exact::reference;
use crate::exact::rng::{DrawPurpose, draw_u64};
use crate::fit::engine::Engine;
use crate::input::features::{Column, Features};
use crate::input::tile::{RowBlock, Selection, Tile};
use crate::input::transform::RowTransform;
use crate::model::{Fitted, Model};
use crate::simd::InstructionSet;

/// A node is fitted on the GPU of the root if it has so much work: rows times clusters times features. On a GPU, nodes are fitted one after
/// the other. With 10,000 rows x 128 features x 100 clusters, one H200 and 16 cores took the same time.
const GPU_WORK: u128 = 1 << 27;
/// All threads fit a node together if it has more than 1 / LARGE of the rows that a thread has in the mean.
const LARGE: usize = 2;

/// The seed of the fit of a node's child, from that of the node.
pub(super) fn child_seed(seed: u64, cluster: u32) -> u64 {
    draw_u64(seed, DrawPurpose::Child, cluster, 0, 0)
}

/// The error for an option that trees do not have, or not so.
pub(super) fn refused(option: &'static str, expected: &str, got: impl std::fmt::Display) -> KMeansError {
    KMeansError::InvalidOption { option, expected: expected.into(), got: got.to_string() }
}

/// A cluster of a node's fit that has rows of positive weight.
pub(super) struct Child<T> {
    cluster: u32,
    size: u64,
    inertia: f64,
    total: DistanceSum,
    centroid: Vec<T>,
    /// All of its rows.
    rows: usize,
}

/// A node to split in `k` clusters. With `fewer`, a node with fewer distinct rows is split in as many clusters as it has such rows.
/// Without it, such a node stays a leaf. `last`: the children will not be split.
#[derive(Clone, Copy)]
pub(super) struct ToSplit {
    pub node: u32,
    pub k: usize,
    pub fewer: bool,
    pub last: bool,
}

/// A tree that grows. Its nodes are in the order in which they were attached.
pub(super) struct Growing<'f, 'a, T> {
    features: &'f Features<'a, T>,
    weights: Option<&'f Column<'a, f64>>,
    estimator: &'f KMeans,
    fits: NodeFits,
    /// Empty until the root is split. The rows are then read in the order of its children.
    rows: NodeRows<T>,
    nodes: Vec<TreeNode>,
    /// For each node, where its rows are.
    ranges: Vec<Range<usize>>,
    centroids: Vec<T>,
    /// The inertia of each node.
    totals: Vec<DistanceSum>,
    /// The model of the root.
    of_all: Model<T>,
    selection: Vec<(Selection, usize)>,
    /// Of all rows.
    kept: Selection,
}

impl<'f, 'a, T: Engine> Growing<'f, 'a, T> {
    /// The root of a tree.
    pub fn new(estimator: &'f KMeans, features: &'f Features<'a, T>, weights: Option<&'f Column<'a, f64>>) -> Result<Self> {
        check(estimator)?;
        if features.gpu().is_some() {
            return Err(refused("device", "rows on the host for a tree", "rows on a GPU"));
        }
        let stopping = Stopping { max_iter: 1, ..estimator.stopping };
        let output = Output { sort_by: SortBy::None, ..estimator.output.clone() };
        let of_all = KMeans { k: 1, stopping, output, observer: None, ..estimator.clone() };
        let mut fit = of_all.fit_with(features, weights, Wanted::Labels)?;
        fit.model.settings.max_iter = estimator.stopping.max_iter;
        fit.model.settings.sort_by = estimator.output.sort_by.word().map(Into::into);
        let (seed, size, inertia) = (estimator.seeding.seed, fit.model.sizes()[0], fit.model.inertia());
        let node = TreeNode { parent: None, cluster: 0, level: 0, seed, size, inertia, leaf: None, children: 0..0 };
        let all_rows = 0..fit.labels.len();
        Ok(Self {
            features,
            weights,
            estimator,
            fits: NodeFits::new(estimator, &fit, features)?,
            nodes: vec![node],
            ranges: memory::collected(std::iter::once(all_rows), TREE)?,
            rows: NodeRows { d: features.n_features(), values: Vec::new(), weights: Vec::new(), numbers: Vec::new() },
            centroids: memory::copied(fit.model.centroids(), TREE)?,
            totals: fit.totals,
            of_all: fit.model,
            kept: Selection::joined(&fit.selection)?,
            selection: fit.selection,
        })
    }

    /// A node, by its number in the order in which nodes were attached.
    pub fn node(&self, node: u32) -> &TreeNode {
        &self.nodes[node as usize]
    }

    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The threads that were asked for.
    pub fn threads(&self) -> usize {
        self.estimator.execution.threads
    }

    /// Where the rows of a node begin. The rows of a smaller path begin before those of a larger one.
    pub fn start(&self, node: u32) -> usize {
        self.ranges[node as usize].start
    }

    /// The inertia of a node.
    pub fn total(&self, node: u32) -> ExactSum {
        [&self.totals[node as usize]].into_iter().collect()
    }

    /// Whether all threads split this node together, rather than several nodes side by side.
    pub fn is_large(&self, node: u32) -> bool {
        let workers = workers_for(self.threads(), usize::MAX);
        self.ranges[node as usize].len().saturating_mul(LARGE * workers) > self.ranges[0].len()
    }

    /// Reads the rows, in the order of labels below `k`.
    fn read(&mut self, labels: &[u32], k: usize) -> Result<()> {
        self.rows = NodeRows::new(self.features, self.weights, &self.kept, (labels, k), self.threads())?;
        Ok(())
    }

    /// Reads the rows in the order of the table, if they were not read.
    fn read_in_order(&mut self) -> Result<()> {
        let labels = memory::zeroed(self.ranges[0].len(), TREE)?;
        if self.rows.numbers.is_empty() { self.read(&labels, 1) } else { Ok(()) }
    }

    /// Fits the root, on the device of the estimator. Its error is that of the fit.
    pub fn split_root(&mut self, k: usize) -> Result<Vec<Child<T>>> {
        let root = KMeans { k, observer: None, ..self.estimator.clone() };
        let fit = root.fit_with(self.features, self.weights, Wanted::Labels)?;
        if fit.choice.place != Place::Cpu {
            self.fits.gpu = Some(self.estimator.execution.device);
        }
        if fit.model.sizes().contains(&0) {
            self.read_in_order()?;
            let all = self.ranges[0].clone();
            return self.fits.split(&fit, &mut self.rows.lend(std::iter::once(all))?[0], false);
        }
        self.read(&fit.labels, fit.model.n_clusters())?;
        self.fits.children(&fit, &fit.labels)
    }

    /// Fits nodes, which have no children yet, and returns the children of each: none if it stays a leaf. The rows of a node are put
    /// in the order of its children.
    pub fn split(&mut self, nodes: &[ToSplit]) -> Result<Vec<Vec<Child<T>>>> {
        // Rows are lent in their order.
        let mut order = memory::collected(0..nodes.len(), TREE)?;
        order.sort_unstable_by_key(|i| self.start(nodes[*i].node));
        let lent = self.rows.lend(order.iter().map(|i| self.ranges[nodes[*i].node as usize].clone()))?;
        let task = |(i, rows): (&usize, _)| {
            let ToSplit { node, k, fewer, last } = nodes[*i];
            NodeTask { k, fewer, last, seed: self.nodes[node as usize].seed, rows, children: Vec::new() }
        };
        let mut tasks = memory::collected(order.iter().zip(lent).map(task), TREE)?;
        self.fits.fit_all(&mut tasks)?;
        let mut splits = memory::collected(nodes.iter().map(|_| Vec::new()), TREE)?;
        order.into_iter().zip(tasks).for_each(|(i, task)| splits[i] = task.children);
        Ok(splits)
    }

    /// Cuts the rows of a node that cannot be fitted in two halves of rows of positive weight. Both have the centroid of the node.
    pub fn halves(&mut self, node: u32) -> Result<Vec<Child<T>>> {
        self.read_in_order()?;
        let (d, range) = (self.rows.d, self.ranges[node as usize].clone());
        let half = self.nodes[node as usize].size.div_ceil(2);
        let is_positive = |row: &usize| self.rows.weights.get(*row).is_none_or(|weight| *weight > 0.0);
        // A row of weight 0 behind the last one of the first half belongs to the second.
        let last = range.clone().filter(is_positive).nth(half as usize - 1).map_or(range.end, |last| last + 1);
        let centroid = &self.centroids[node as usize * d..][..d];
        let fixed: Vec<f64> = memory::collected(centroid.iter().map(|c| c.to_f64()), TREE)?;
        let alone = KMeans { k: 1, ..self.fits.estimator.clone() };
        let child = |(cluster, rows): (u32, Range<usize>)| {
            let given = Features::from_rows(&self.rows.values[rows.start * d..rows.end * d], d)?;
            let given = given.with_names(self.fits.names.clone())?.transformed_by(self.fits.row_transform.clone());
            let weights = (!self.rows.weights.is_empty()).then(|| Column::from_slice(&self.rows.weights[rows.clone()]));
            let part = vec![RowBlock::new(given, weights)];
            let fit = T::fits(&alone, &[1], Some(&fixed), part, InstructionSet::detect(), Wanted::Nothing)?.remove(0)?;
            let (size, inertia, total) = (fit.model.sizes()[0], fit.model.inertia(), fit.totals[0]);
            Ok(Child { cluster, size, inertia, total, centroid: memory::copied(centroid, TREE)?, rows: rows.len() })
        };
        memory::try_collected([(0, range.start..last), (1, last..range.end)].into_iter().map(child), TREE)
    }

    /// Gives a node children, in the order of its rows. Returns their numbers.
    pub fn attach(&mut self, parent: u32, children: Vec<Child<T>>) -> Result<Range<u32>> {
        let first = self.nodes.len() as u32;
        let TreeNode { level, seed, .. } = self.nodes[parent as usize];
        let mut start = self.ranges[parent as usize].start;
        for Child { cluster, size, inertia, total, centroid, rows } in children {
            let (seed, level) = (child_seed(seed, cluster), level + 1);
            let node = TreeNode { parent: Some(parent), cluster, level, seed, size, inertia, leaf: None, children: 0..0 };
            memory::push(&mut self.nodes, node, TREE)?;
            memory::push(&mut self.ranges, start..start + rows, TREE)?;
            memory::push(&mut self.totals, total, TREE)?;
            memory::extend(&mut self.centroids, &centroid, TREE)?;
            start += rows;
        }
        self.nodes[parent as usize].children = first..self.nodes.len() as u32;
        Ok(self.nodes[parent as usize].children.clone())
    }

    /// The tree. Its leaves move for so many iterations of a flat fit.
    pub fn finish(self, refine: u32) -> Result<FittedTree<T>> {
        let (d, count) = (self.rows.d, self.nodes.len());
        // Breadth first: the nodes of a level by their paths, which is the order of their rows.
        let mut order = memory::collected(0..count as u32, TREE)?;
        order.sort_by_key(|node| (self.nodes[*node as usize].level, self.start(*node)));
        let mut numbers = memory::zeroed(count, TREE)?;
        (0u32..).zip(&order).for_each(|(new, old)| numbers[*old as usize] = new);
        let (mut nodes, mut centroids) = (memory::with_room(count, TREE)?, memory::with_room(count * d, TREE)?);
        for old in order.iter().map(|old| *old as usize) {
            let TreeNode { parent, children, .. } = self.nodes[old].clone();
            let parent = parent.map(|parent| numbers[parent as usize]);
            let first = if children.is_empty() { 0 } else { numbers[children.start as usize] };
            nodes.push(TreeNode { parent, children: first..first + children.len() as u32, ..self.nodes[old].clone() });
            centroids.extend_from_slice(&self.centroids[old * d..][..d]);
        }
        let leaves = number_leaves(&mut nodes)?;
        let old_leaves = || leaves.iter().map(|leaf| order[*leaf as usize] as usize);
        let inertia: ExactSum = old_leaves().map(|old| &self.totals[old]).collect();
        let mut of_leaves = memory::with_room(leaves.len() * d, TREE)?;
        leaves.iter().for_each(|leaf| of_leaves.extend_from_slice(&centroids[*leaf as usize * d..][..d]));
        let flat = flat_model(&self.of_all, || leaves.iter().map(|leaf| &nodes[*leaf as usize]), of_leaves, inertia.to_f64())?;
        let mut labels = memory::zeroed(self.ranges[0].len(), TREE)?;
        // A root that is a leaf has no rows that were read.
        for (leaf, old) in (0u32..).zip(old_leaves()).filter(|_| count > 1) {
            self.rows.numbers[self.ranges[old].clone()].iter().for_each(|row| labels[*row] = leaf);
        }
        let Self { features, weights, estimator, selection, .. } = self;
        let fitted = FittedTree { tree: Tree { nodes, centroids, leaves, flat, search: Search::Tree }, labels, selection };
        if refine == 0 { Ok(fitted) } else { refined(fitted, refine, estimator, features, weights) }
    }
}

/// The same tree with the leaves of a flat fit that starts from them.
fn refined<T: Engine>(
    fitted: FittedTree<T>,
    max_iter: u32,
    estimator: &KMeans,
    features: &Features<'_, T>,
    weights: Option<&Column<'_, f64>>,
) -> Result<FittedTree<T>> {
    let FittedTree { tree: Tree { mut nodes, mut centroids, leaves, flat, .. }, .. } = fitted;
    let (d, start) = (flat.n_features(), flat.centroids_in_units()?);
    if let Some((one, other)) = equal_rows(&start, d)? {
        return Err(refused("refine", "leaves with different centroids", format!("leaves {one} and {other}")));
    }
    let mut refining = KMeans { k: leaves.len(), observer: None, ..estimator.clone() };
    refining.seeding.init = Init::Given(memory::collected(start.iter().map(|c| c.to_f64()), TREE)?);
    (refining.stopping.max_iter, refining.stopping.tol) = (max_iter, 0.0);
    refining.output.sort_by = SortBy::None;
    refining.output.too_few = TooFew::Raise;
    let Fitted { model: flat, labels, selection, .. } = refining.fit_with(features, weights, Wanted::Labels)?;
    for (leaf, node) in leaves.iter().map(|node| *node as usize).enumerate() {
        (nodes[node].size, nodes[node].inertia) = (flat.sizes()[leaf], flat.inertias()[leaf]);
        centroids[node * d..][..d].copy_from_slice(&flat.centroids()[leaf * d..][..d]);
    }
    Ok(FittedTree { tree: Tree { nodes, centroids, leaves, flat, search: Search::Exact }, labels, selection })
}

/// Refuses what trees do not have.
fn check(estimator: &KMeans) -> Result<()> {
    if matches!(estimator.seeding.init, Init::Given(_)) {
        return Err(refused("init", "a way to find starting centroids, since each node has others", "centroids"));
    }
    let Sizes { min_size, max_size, balanced } = estimator.sizes;
    if balanced || [min_size, max_size] != [SizeLimit::None; 2] {
        return Err(refused("max_size", "no bounds on sizes in the fits of nodes", "bounds"));
    }
    if let SortBy::Numbering(_) = estimator.output.sort_by {
        return Err(refused("sort_by", "\"size\" or the name of a feature in a tree", "a model"));
    }
    if estimator.output.keep_sums || estimator.output.extents != Output::default().extents {
        return Err(refused("keep_sums", "no sums in a tree", "keep_sums or extents"));
    }
    Ok(())
}

/// A node to fit, and its children then: none if it is a leaf.
struct NodeTask<'r, T> {
    k: usize,
    fewer: bool,
    last: bool,
    seed: u64,
    rows: RowsOfNode<'r, T>,
    children: Vec<Child<T>>,
}

/// How nodes below the root are fitted.
struct NodeFits {
    /// On the CPU.
    estimator: KMeans,
    /// The device of the root, if that is a GPU.
    gpu: Option<Device>,
    names: Names,
    row_transform: Option<Arc<RowTransform>>,
}

impl NodeFits {
    /// `fit`: of all rows.
    fn new<T: Engine>(estimator: &KMeans, fit: &Fitted<T>, features: &Features<'_, T>) -> Result<Self> {
        let mut estimator = KMeans { observer: None, ..estimator.clone() };
        estimator.output.too_few = TooFew::Raise;
        estimator.execution.device = Device::Cpu;
        if let Some(scaling) = fit.model.scaling() {
            let names = (0..features.n_features()).filter_map(|f| fit.model.names().get(f));
            estimator.space.scale = Scale::Factors(names.zip(scaling.factors().iter().copied()).collect());
        }
        Ok(Self { estimator, gpu: None, names: fit.model.names().clone(), row_transform: fit.model.row_transform()? })
    }

    /// Whether a node is fitted on the GPU.
    fn is_on_gpu<T>(&self, task: &NodeTask<'_, T>) -> bool {
        self.gpu.is_some() && task.rows.values.len() as u128 * task.k as u128 >= GPU_WORK
    }

    /// Fits nodes: large ones one after the other, small ones side by side.
    fn fit_all<T: Engine>(&self, tasks: &mut [NodeTask<'_, T>]) -> Result<()> {
        let threads = self.estimator.execution.threads;
        let count = workers_for(threads, tasks.len());
        let all: usize = tasks.iter().map(|task| task.rows.numbers.len()).sum();
        let is_large =
            |task: &NodeTask<'_, T>| self.is_on_gpu(task) || task.rows.numbers.len().saturating_mul(LARGE * count) > all;
        for task in tasks.iter_mut().filter(|task| is_large(task)) {
            self.fit(threads, task)?;
        }
        let mut results = memory::try_collected((0..count).map(|_| Ok(Ok(()))), TREE)?;
        let small = tasks.iter_mut().filter(|task| !is_large(task));
        for_each_task(&mut results, small, |result: &mut Result<()>, task| {
            if result.is_ok() {
                *result = self.fit(1, task);
            }
        })?;
        results.into_iter().collect()
    }

    /// Fits one node. A node with too few distinct rows has no children then.
    fn fit<T: Engine>(&self, threads: usize, task: &mut NodeTask<'_, T>) -> Result<()> {
        let mut estimator = KMeans { k: task.k, ..self.estimator.clone() };
        estimator.execution.threads = threads;
        if let Some(device) = self.gpu.filter(|_| self.is_on_gpu(task)) {
            estimator.execution.device = device;
        }
        estimator.seeding.seed = task.seed;
        loop {
            let features = Features::from_rows(task.rows.values, self.names.len())?.with_names(self.names.clone())?;
            let weights = (!task.rows.weights.is_empty()).then(|| Column::from_slice(task.rows.weights));
            match estimator.fit_with(&features, weights.as_ref(), Wanted::Labels) {
                Ok(fit) => {
                    let children = self.split(&fit, &mut task.rows, task.last)?;
                    if children.len() > 1 {
                        task.children = children;
                    }
                    return Ok(());
                }
                Err(KMeansError::TooFewDistinct { rows, .. }) if task.fewer && 1 < rows && rows < estimator.k as u64 => {
                    estimator.k = rows as usize;
                }
                Err(error) if error.is_too_few() => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// The clusters that have rows of positive weight. The rows are put in their order, or only the numbers of `last` ones.
    fn split<T: Engine>(&self, fit: &Fitted<T>, rows: &mut RowsOfNode<'_, T>, last: bool) -> Result<Vec<Child<T>>> {
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
        let mut order = memory::collected(0..labels.len(), TREE)?;
        order.sort_unstable_by_key(|row| (labels[*row], *row));
        if last {
            rows.number(&order)?
        } else {
            rows.arrange(order)?
        }
        self.children(fit, &labels)
    }

    /// The clusters that have rows of positive weight. Each row has the label of one of them.
    fn children<T: Engine>(&self, fit: &Fitted<T>, labels: &[u32]) -> Result<Vec<Child<T>>> {
        let (model, sizes, d) = (&fit.model, fit.model.sizes(), self.names.len());
        let centroid = |cluster: u32| &model.centroids()[cluster as usize * d..][..d];
        let mut counts = memory::zeroed::<usize>(sizes.len(), TREE)?;
        labels.iter().for_each(|label| counts[*label as usize] += 1);
        let existing = (0u32..).zip(sizes).filter(|(_, size)| **size > 0);
        let child = |(cluster, size): (u32, &u64)| {
            let (at, size) = (cluster as usize, *size);
            let (rows, inertia, total) = (counts[at], model.inertias()[at], fit.totals[at]);
            Ok(Child { cluster, size, inertia, total, centroid: memory::copied(centroid(cluster), TREE)?, rows })
        };
        memory::try_collected(existing.map(child), TREE)
    }
}

//! Trees of clusters: a cluster is fitted again, and again, until its leaves are as many as wanted.
//!
//! ```text
//! nodes: the fit of a node is that of its rows alone, with a seed of its own                           tree/nodes.rs
//! rows: those of a node lie side by side                                                               tree/rows.rs
//! levels: every node of a level has so many clusters, or its share of the leaves                       tree/levels.rs
//! bisecting: the leaf of most inertia, or of most rows, is split in two                                tree/bisecting.rs
//! tree: nodes breadth first, leaves depth first                                                        this file
//! search: the leaf below the nearest child, or the nearest leaf of all                                 tree/search.rs
//! named: a tree over named columns, as bytes and as a file                  tree/named.rs, tree/wire.rs, tree/file.rs
//! ```
//! A node has the rows that its parent's fit gives to one cluster, and the centroid of this cluster. A cluster without rows of
//! positive weight is no node. The leaves together are a flat model. Hierarchical k-means: D. Nister & H. Stewenius, "Scalable
//! recognition with a vocabulary tree", CVPR 2006. Bisecting k-means: M. Steinbach, G. Karypis & V. Kumar, "A comparison of document
//! clustering techniques", KDD Workshop on Text Mining 2000.

mod bisecting;
#[cfg(feature = "arrow")]
mod file;
mod levels;
#[cfg(any(feature = "arrow", feature = "polars"))]
mod named;
mod nodes;
mod rows;
mod search;
#[cfg(any(feature = "arrow", feature = "polars"))]
mod wire;

use std::ops::Range;
use std::sync::Arc;

pub use self::bisecting::{BisectingKMeans, Split};
pub use self::levels::HierarchicalKMeans;
#[cfg(any(feature = "arrow", feature = "polars"))]
pub(crate) use self::named::TreeEstimator;
#[cfg(any(feature = "arrow", feature = "polars"))]
pub use self::named::{AnyTree, KMeansTree};
pub use self::search::Search;
use crate::backend::answers::Labels;
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::input::tile::Selection;
use crate::model::{Derived, Model, Settings};

/// What errors call the memory of trees.
const TREE: &str = "a tree of clusters";

/// A node of a tree: a cluster of its parent's fit. The root has all rows.
#[derive(Debug, Clone, PartialEq)]
pub struct TreeNode {
    /// None for the root.
    pub parent: Option<u32>,
    /// Its number among the clusters of its parent's fit.
    pub cluster: u32,
    /// 0 for the root.
    pub level: u32,
    /// The seed of its own fit.
    pub seed: u64,
    /// Rows of positive weight.
    pub size: u64,
    /// The inertia of its rows around its centroid.
    pub inertia: f64,
    /// Its number among the leaves, if it is one.
    pub leaf: Option<u32>,
    children: Range<u32>,
}

/// Nodes of clusters within clusters, breadth first by their paths. The root is node 0.
#[derive(Debug, Clone, PartialEq)]
pub struct Tree<T> {
    nodes: Vec<TreeNode>,
    /// `(nodes, d)`, in the units of transformed rows.
    centroids: Vec<T>,
    /// The node of each leaf.
    leaves: Vec<u32>,
    /// The leaves, as clusters.
    flat: Model<T>,
    /// The search that gives the rows of the fit their labels.
    search: Search,
}

/// A tree, and the leaf of each row that it was fitted to.
#[derive(Debug, Clone)]
pub struct FittedTree<T> {
    pub tree: Tree<T>,
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

/// Numbers the leaves, depth first, and returns the node of each. The children of a node lie side by side.
fn number_leaves(nodes: &mut [TreeNode]) -> Result<Vec<u32>> {
    let (mut leaves, mut waiting) = (Vec::new(), vec![0u32]);
    while let Some(node) = waiting.pop() {
        let children = nodes[node as usize].children.clone();
        if children.is_empty() {
            nodes[node as usize].leaf = Some(leaves.len() as u32);
            memory::push(&mut leaves, node, TREE)?;
        }
        memory::reserve(&mut waiting, children.len(), TREE)?;
        waiting.extend(children.rev());
    }
    Ok(leaves)
}

/// Two rows that are equal, if there are some.
fn equal_rows<T: Float>(rows: &[T], d: usize) -> Result<Option<(usize, usize)>> {
    let row = |i: &usize| &rows[i * d..][..d];
    let mut order = memory::collected(0..rows.len() / d, TREE)?;
    order.sort_unstable_by(|a, b| row(a).partial_cmp(row(b)).unwrap_or(std::cmp::Ordering::Equal).then(a.cmp(b)));
    Ok(order.windows(2).find(|pair| row(&pair[0]) == row(&pair[1])).map(|pair| (pair[0], pair[1])))
}

impl<T: Float> Tree<T> {
    pub fn nodes(&self) -> &[TreeNode] {
        &self.nodes
    }

    /// The leaves as clusters of one model. Two leaves may have equal centroids. Its inertia is the exact sum of those of the leaves,
    /// rounded once.
    pub fn flat(&self) -> &Model<T> {
        &self.flat
    }

    pub fn n_leaves(&self) -> usize {
        self.leaves.len()
    }

    /// The node of each leaf.
    pub fn leaves(&self) -> &[u32] {
        &self.leaves
    }

    /// The search that gives the rows of the fit their labels: the exact one if the leaves were refined. Rows that a bound on sizes
    /// cut apart are an exception: see [`BisectingKMeans::max_size`].
    pub fn search(&self) -> Search {
        self.search
    }

    /// The centroid of a node, in the units of transformed rows.
    pub fn centroid(&self, node: u32) -> &[T] {
        let d = self.flat.names().len();
        &self.centroids[node as usize * d..][..d]
    }

    /// The numbers of the clusters on the way from the root to a node.
    pub fn path(&self, mut node: u32) -> Vec<u32> {
        let mut path = Vec::new();
        while let Some(parent) = self.nodes[node as usize].parent {
            path.push(self.nodes[node as usize].cluster);
            node = parent;
        }
        path.reverse();
        path
    }

    /// The node of a level above a leaf. The leaf's own node if that is no deeper.
    fn ancestor(&self, leaf: u32, level: u32) -> u32 {
        let mut node = self.leaves[leaf as usize];
        while let TreeNode { level: own, parent: Some(parent), .. } = self.nodes[node as usize]
            && own > level
        {
            node = parent;
        }
        node
    }

    /// A flat model of the nodes of a level, and of the leaves above it, in the order of their paths.
    ///
    /// # Errors
    /// [`KMeansError::InvalidOption`] if two of them have equal centroids.
    pub fn cut(&self, level: u32) -> Result<Model<T>> {
        let mut chosen = memory::with_room(self.leaves.len(), TREE)?;
        chosen.extend((0..self.leaves.len() as u32).map(|leaf| self.ancestor(leaf, level)));
        chosen.dedup();
        let d = self.flat.names().len();
        let mut centroids = memory::with_room(chosen.len() * d, TREE)?;
        chosen.iter().for_each(|node| centroids.extend_from_slice(self.centroid(*node)));
        if let Some((one, other)) = equal_rows(&centroids, d)? {
            let got = format!("nodes {} and {}", chosen[one], chosen[other]);
            return Err(KMeansError::InvalidOption { option: "level", expected: "nodes with different centroids".into(), got });
        }
        if chosen == self.leaves {
            return Ok(self.flat.clone());
        }
        let nodes = || chosen.iter().map(|node| &self.nodes[*node as usize]);
        flat_model(&self.flat, nodes, centroids, nodes().map(|node| node.inertia).sum())
    }
}

#[cfg(any(feature = "arrow", feature = "polars"))]
impl Tree<f32> {
    /// The same tree in float64. Float64 rows are compared with it.
    fn widened(&self) -> Result<Tree<f64>> {
        Ok(Tree {
            nodes: memory::collected(self.nodes.iter().cloned(), TREE)?,
            centroids: memory::collected(self.centroids.iter().map(|c| f64::from(*c)), TREE)?,
            leaves: memory::copied(&self.leaves, TREE)?,
            flat: self.flat.widened()?,
            search: self.search,
        })
    }
}

/// A model of some nodes with these centroids. What else it says is that of another model.
fn flat_model<'n, T: Float, I: Iterator<Item = &'n TreeNode>>(
    other: &Model<T>,
    nodes: impl Fn() -> I,
    centroids: Vec<T>,
    inertia: f64,
) -> Result<Model<T>> {
    let sizes = memory::collected(nodes().map(|node| node.size), TREE)?;
    Ok(Model {
        d: other.d,
        names: other.names.clone(),
        centroids,
        inertias: memory::collected(nodes().map(|node| node.inertia), TREE)?,
        inertia,
        n_iter: 0,
        history: Vec::new(),
        settings: Settings { k: sizes.len() as u64, ..other.settings.clone() },
        sizes,
        stopped: false,
        scaling: other.scaling.clone(),
        living: Arc::default(),
        table: Derived::default(),
    })
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;
    use crate::base::params::KMeans;
    use crate::base::random::Random;
    use crate::exact::reference;
    use crate::fit::engine::Engine;
    use crate::input::features::Features;

    /// A tree of two or three levels whose centroids are of one sort, also equal ones in several subtrees.
    fn tree<T: Engine>(d: usize, sort: u64, random: &mut Random) -> Tree<T> {
        let node =
            |parent, level| TreeNode { parent, cluster: 0, level, seed: 0, size: 1, inertia: 0.0, leaf: None, children: 0..0 };
        let (mut nodes, mut at) = (vec![node(None, 0)], 0);
        while at < nodes.len() {
            let level = nodes[at].level;
            if level == 0 || level < 3 && random.below(3) > 0 {
                let first = nodes.len() as u32;
                nodes.extend((0..2 + random.below(5)).map(|_| node(Some(at as u32), level + 1)));
                nodes[at].children = first..nodes.len() as u32;
            }
            at += 1;
        }
        let centroids: Vec<T> = (0..nodes.len() * d).map(|_| random.value(sort)).collect();
        let row = vec![T::from_f64(1.0); d];
        let of_root = KMeans::new(1).fit_features(&Features::from_rows(&row, d).unwrap(), None).unwrap().model;
        let leaves = number_leaves(&mut nodes).unwrap();
        let of_leaves = leaves.iter().flat_map(|leaf| centroids[*leaf as usize * d..][..d].to_vec()).collect();
        let flat = flat_model(&of_root, || leaves.iter().map(|leaf| &nodes[*leaf as usize]), of_leaves, 0.0).unwrap();
        Tree { nodes, centroids, leaves, flat, search: Search::Tree }
    }

    fn attack<T: Engine>() {
        let random = &mut Random(91);
        let mut ties = 0;
        for case in 0..6_000 {
            let (d, sort) = ([1, 2, 3, 7][case % 4], random.below(8));
            let tree = tree::<T>(d, sort, random);
            let leaves: Vec<T> = tree.leaves.iter().flat_map(|node| tree.centroid(*node).to_vec()).collect();
            let mut rows: Vec<T> = (0..20 * d).map(|_| random.value(sort)).collect();
            for _ in 0..10 {
                // Midway between two leaves.
                let [a, b] = [0, 1].map(|_| tree.centroid(tree.leaves[random.index(tree.leaves.len())]));
                rows.extend(a.iter().zip(b).map(|(a, b)| T::from_f64(0.5 * a.to_f64() + 0.5 * b.to_f64())));
            }
            let features = Features::from_rows(&rows, d).unwrap();
            let found = tree.predict(&features, Search::Exact).unwrap();
            let descended = tree.predict(&features, Search::Tree).unwrap();
            for (row, x) in rows.chunks_exact(d).enumerate() {
                let nearest = reference::nearest(x, &leaves);
                ties += u32::from(nearest.second == nearest.distance);
                assert_eq!(found.get(row), Some(nearest.label), "case {case}, sort {sort}: row {row} of {d} features");
                let mut node = 0;
                while tree.nodes[node].leaf.is_none() {
                    let children = tree.nodes[node].children.clone();
                    let centroids = &tree.centroids[children.start as usize * d..children.end as usize * d];
                    node = (children.start + reference::nearest(x, centroids).label) as usize;
                }
                assert_eq!(descended.get(row), tree.nodes[node].leaf, "case {case}, sort {sort}: row {row} of {d} features");
            }
        }
        assert!(ties > 10_000, "{ties} ties");
    }

    unit_test!(both_searches_find_what_reference_distances_say);
    fn both_searches_find_what_reference_distances_say() {
        attack::<f32>();
        attack::<f64>();
    }
}

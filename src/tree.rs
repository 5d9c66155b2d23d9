//! Trees of clusters: a cluster is fitted again, and again, until its leaves are as many as wanted.
//!
//! ```text
//! fit: the fit of a node is that of its rows alone, with a seed of its own                     tree/fit.rs
//! tree: nodes breadth first, leaves depth first                                                this file
//! search: the leaf below the nearest child, or the nearest leaf of all                         tree/search.rs
//! ```
//! A node has the rows that its parent's fit gives to one cluster, and the centroid of this cluster. A cluster without rows of
//! positive weight is no node. The leaves together are a flat model. Hierarchical k-means: D. Nister & H. Stewenius, "Scalable
//! recognition with a vocabulary tree", CVPR 2006.

mod fit;
mod search;

use std::ops::Range;
use std::sync::Arc;

pub use self::fit::{FittedTree, fit_levels};
pub use self::search::Search;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::model::{Derived, Model};

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
#[derive(Debug, Clone)]
pub struct KMeansTree<T> {
    nodes: Vec<TreeNode>,
    /// `(nodes, d)`, in the units of transformed rows.
    centroids: Vec<T>,
    /// The node of each leaf.
    leaves: Vec<u32>,
    /// The leaves, as clusters.
    flat: Model<T>,
}

impl<T: Float> KMeansTree<T> {
    /// Numbers the leaves. `of_root`: the model of the root's fit.
    fn new(mut nodes: Vec<TreeNode>, centroids: Vec<T>, of_root: Model<T>) -> Result<Self> {
        let d = of_root.names().len();
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
        let of_leaves = || leaves.iter().map(|leaf| &nodes[*leaf as usize]);
        let mut flat = memory::with_room(leaves.len() * d, TREE)?;
        leaves.iter().for_each(|leaf| flat.extend_from_slice(&centroids[*leaf as usize * d..][..d]));
        let flat = Model {
            centroids: flat,
            sizes: memory::collected(of_leaves().map(|leaf| leaf.size), TREE)?,
            inertias: memory::collected(of_leaves().map(|leaf| leaf.inertia), TREE)?,
            inertia: of_leaves().map(|leaf| leaf.inertia).sum(),
            n_iter: 0,
            history: Vec::new(),
            living: Arc::default(),
            table: Derived::default(),
            ..of_root
        };
        Ok(Self { nodes, centroids, leaves, flat })
    }

    pub fn nodes(&self) -> &[TreeNode] {
        &self.nodes
    }

    /// The leaves as clusters of one model. Two leaves may have equal centroids. The inertia of the model is the sum of those of the
    /// leaves in float64.
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
    fn tree<T: Engine>(d: usize, sort: u64, random: &mut Random) -> KMeansTree<T> {
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
        let centroids = (0..nodes.len() * d).map(|_| random.value(sort)).collect();
        let row = vec![T::from_f64(1.0); d];
        let of_root = KMeans::new(1).fit_features(&Features::from_rows(&row, d).unwrap(), None).unwrap().model;
        KMeansTree::new(nodes, centroids, of_root).unwrap()
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
            for (row, x) in rows.chunks_exact(d).enumerate() {
                let nearest = reference::nearest(x, &leaves);
                ties += u32::from(nearest.second == nearest.distance);
                assert_eq!(found.get(row), Some(nearest.label), "case {case}, sort {sort}: row {row} of {d} features");
            }
        }
        assert!(ties > 10_000, "{ties} ties");
    }

    unit_test!(the_nearest_of_all_leaves_is_found);
    fn the_nearest_of_all_leaves_is_found() {
        attack::<f32>();
        attack::<f64>();
    }
}

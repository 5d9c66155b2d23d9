//! Trees of levels: each node of a level has so many clusters, or its share of the leaves.

use super::nodes::{Growing, ToSplit, refused};
use super::{FittedTree, TREE};
use crate::base::error::{KMeansError, Result};
use crate::base::memory;
use crate::base::params::{KMeans, TooFew};
use crate::fit::engine::Engine;
use crate::input::features::{Column, Features};

/// A tree to be fitted, level by level. Every option is that of the estimator; its `k` does not count.
///
/// A node's fit is the fit of its rows alone, with the factors of the root and a seed of its own: the first number of Philox with the
/// seed of its parent and its number there. The root and large nodes are fitted on the device of the estimator, small nodes on the CPU,
/// side by side.
///
/// ```
/// use polars_kmeans::tree::HierarchicalKMeans;
/// use polars_kmeans::{Features, KMeans};
///
/// let x: Vec<f32> = (0..60).map(|i| (i % 6) as f32 + 100.0 * (i % 2) as f32).collect();
/// let features = Features::from_rows(&x, 1)?;
/// let fit = HierarchicalKMeans::of_levels(KMeans::new(1).seed(1), vec![2, 3]).fit_features(&features, None)?;
/// assert_eq!((fit.tree.nodes().len(), fit.tree.n_leaves()), (9, 6));
/// let labels = fit.tree.predict(&features, fit.tree.search())?;
/// assert_eq!(labels.values(), fit.labels);
/// assert_eq!(fit.tree.path(fit.tree.leaves()[0]).len(), 2);
/// # Ok::<(), polars_kmeans::KMeansError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct HierarchicalKMeans {
    pub(crate) estimator: KMeans,
    width: Width,
    refine: u32,
}

/// How many clusters nodes have.
#[derive(Debug, Clone, PartialEq)]
enum Width {
    /// For each level, the clusters of each of its nodes.
    Levels(Vec<usize>),
    /// So many leaves in two levels.
    Leaves(usize),
}

impl HierarchicalKMeans {
    /// So many clusters for each node of a level. A node with fewer distinct rows than that stays a leaf, and below the
    /// root a node of one cluster does.
    pub fn of_levels(estimator: KMeans, levels: Vec<usize>) -> Self {
        Self { estimator, width: Width::Levels(levels), refine: 0 }
    }

    /// So many leaves, in two levels. The root has `ceil(sqrt(leaves))` children, and each of them leaves in proportion to its rows of
    /// positive weight. There are fewer if nodes have fewer distinct rows.
    pub fn of_leaves(estimator: KMeans, leaves: usize) -> Self {
        Self { estimator, width: Width::Leaves(leaves), refine: 0 }
    }

    /// Moves the leaves by so many iterations of a flat fit that starts from them. The search of the tree is then the exact one.
    pub fn refine(self, iterations: u32) -> Self {
        Self { refine: iterations, ..self }
    }

    /// Fits the tree to rows, with one weight per row if weights are given.
    ///
    /// # Errors
    /// Those of a fit of all rows. [`KMeansError::InvalidOption`] for given centroids and other options that trees do not have, and
    /// if leaves with equal centroids are to be refined.
    pub fn fit_features<T: Engine>(
        &self,
        features: &Features<'_, T>,
        weights: Option<&Column<'_, f64>>,
    ) -> Result<FittedTree<T>> {
        let first = self.check()?;
        let mut tree = Growing::new(&self.estimator, features, weights)?;
        let children = tree.split_root(first)?;
        if children.len() < 2 && first > 1 {
            if self.estimator.output.too_few == TooFew::Fewer {
                return tree.finish(self.refine);
            }
            return Err(KMeansError::TooFewDistinct { k: first, rows: children.len() as u64 });
        }
        let mut level = tree.attach(0, children)?;
        match &self.width {
            Width::Levels(levels) => {
                for (at, &k) in levels.iter().enumerate().skip(1) {
                    let last = at + 1 == levels.len();
                    let nodes = memory::collected(level.clone().map(|node| ToSplit { node, k, fewer: false, last }), TREE)?;
                    level = level.end..level.end;
                    for (ToSplit { node, .. }, children) in nodes.iter().zip(tree.split(&nodes)?) {
                        level.end = tree.attach(*node, children)?.end;
                    }
                }
            }
            Width::Leaves(leaves) => {
                let sizes = memory::collected(level.clone().map(|node| tree.node(node).size), TREE)?;
                let quotas = level.zip(quotas(*leaves as u64, &sizes)?).filter(|(_, quota)| *quota > 1);
                let nodes = quotas.map(|(node, quota)| {
                    let k = quota.min(tree.node(node).size) as usize;
                    ToSplit { node, k, fewer: true, last: true }
                });
                let nodes = memory::collected(nodes.filter(|node| node.k > 1), TREE)?;
                for (ToSplit { node, .. }, children) in nodes.iter().zip(tree.split(&nodes)?) {
                    tree.attach(*node, children)?;
                }
            }
        }
        tree.finish(self.refine)
    }

    /// Refuses numbers of clusters that no tree has. Returns that of the root.
    fn check(&self) -> Result<usize> {
        match &self.width {
            Width::Levels(levels) => {
                levels.iter().try_for_each(|k| self.estimator.check_clusters(*k))?;
                let leaves = levels.iter().try_fold(1usize, |leaves, k| leaves.checked_mul(*k));
                let most = leaves.filter(|leaves| u32::try_from(*leaves).is_ok());
                most.ok_or_else(|| refused("levels", "at most 2^32 - 1 leaves", format!("{levels:?}")))?;
                levels.first().copied().ok_or_else(|| refused("levels", "at least one level", "none"))
            }
            Width::Leaves(leaves) => {
                self.estimator.check_clusters(*leaves)?;
                let root = leaves.isqrt();
                Ok(root + usize::from(root * root < *leaves))
            }
        }
    }
}

/// Shares of so many leaves in proportion to the sizes of nodes: largest remainders first, smaller paths on ties. No share is 0, so
/// there are no fewer leaves than nodes.
fn quotas(leaves: u64, sizes: &[u64]) -> Result<Vec<u64>> {
    let n: u128 = sizes.iter().map(|size| u128::from(*size)).sum();
    let product = |size: &u64| u128::from(leaves) * u128::from(*size);
    let mut quotas = memory::collected(sizes.iter().map(|size| (product(size) / n) as u64), TREE)?;
    let mut order = memory::collected(0..sizes.len(), TREE)?;
    order.sort_by_key(|i| std::cmp::Reverse(product(&sizes[*i]) % n));
    let left = leaves - quotas.iter().sum::<u64>();
    order.iter().take(left as usize).for_each(|i| quotas[*i] += 1);
    while let Some(none) = quotas.iter().position(|quota| *quota == 0) {
        let largest = (0..quotas.len()).rev().max_by_key(|i| quotas[*i]).unwrap_or(none);
        (quotas[largest], quotas[none]) = (quotas[largest] - 1, 1);
    }
    Ok(quotas)
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;
    use crate::base::random::Random;

    unit_test!(leaves_are_shared_in_proportion_to_rows);
    fn leaves_are_shared_in_proportion_to_rows() {
        assert_eq!(quotas(7, &[50, 30, 20]).unwrap(), [4, 2, 1]); // 3.5, 2.1, 1.4
        assert_eq!(quotas(4, &[1, 1, 1]).unwrap(), [2, 1, 1]);
        assert_eq!(quotas(3, &[1_000, 1, 1]).unwrap(), [1, 1, 1]);
        assert_eq!(quotas(6, &[500, 500, 1, 1]).unwrap(), [2, 2, 1, 1]);
        assert_eq!(quotas(u64::from(u32::MAX), &[u64::MAX >> 1; 2]).unwrap(), [1 << 31, (1 << 31) - 1]);
        let random = &mut Random(5);
        for _ in 0..2_000 {
            let mut size = || 1 + (random.below(1 << 30) >> random.below(30));
            let sizes: Vec<u64> = (0..12).map(|_| size()).collect();
            let leaves = 12 + random.below(100);
            let quotas = quotas(leaves, &sizes).unwrap();
            assert!(quotas.iter().sum::<u64>() == leaves && quotas.iter().all(|quota| *quota > 0), "{sizes:?}: {quotas:?}");
        }
    }
}

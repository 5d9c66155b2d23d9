//! A tree of either float type over named columns. Frames, record batches and files all use this type.

use super::{BisectingKMeans, FittedTree, HierarchicalKMeans, Search, TREE, Tree, TreeNode, flat_model};
use crate::backend::answers::Labels;
use crate::base::error::{KMeansError, Result};
use crate::base::memory;
use crate::base::names::FeatureLayout;
use crate::base::parallel::FloatEnvironment;
use crate::base::params::KMeans;
use crate::fit::engine::Engine;
use crate::input::features::{Column, Features};
use crate::model::{AnyFeatures, Derived, KMeansModel};

/// A tree in the float type of the features that it was fitted to.
#[derive(Debug, Clone, PartialEq)]
pub enum AnyTree {
    F32(Tree<f32>),
    F64(Tree<f64>),
}

impl From<Tree<f32>> for AnyTree {
    fn from(tree: Tree<f32>) -> Self {
        Self::F32(tree)
    }
}

impl From<Tree<f64>> for AnyTree {
    fn from(tree: Tree<f64>) -> Self {
        Self::F64(tree)
    }
}

/// A tree of clusters over named columns.
#[derive(Debug, Clone)]
pub struct KMeansTree {
    layout: FeatureLayout,
    tree: AnyTree,
    /// Whether the features were computed by expressions. Columns with their names may then hold other values.
    computed: bool,
    /// The leaves.
    flat: Derived<KMeansModel>,
    /// A float32 tree in float64, for float64 rows.
    widened: Derived<Tree<f64>>,
}

impl PartialEq for KMeansTree {
    fn eq(&self, other: &Self) -> bool {
        self.layout == other.layout && self.tree == other.tree && self.computed == other.computed
    }
}

/// Evaluates the expression with the tree of either type.
macro_rules! either {
    ($self:expr, $tree:ident => $body:expr) => {
        match &$self.tree {
            AnyTree::F32($tree) => $body,
            AnyTree::F64($tree) => $body,
        }
    };
}

impl KMeansTree {
    pub(crate) fn new(layout: FeatureLayout, tree: AnyTree, computed: bool) -> Self {
        Self { layout, tree, computed, flat: Derived::default(), widened: Derived::default() }
    }

    /// The tree in its own float type.
    pub fn as_any(&self) -> &AnyTree {
        &self.tree
    }

    /// How the features were stored in the frame.
    pub fn layout(&self) -> &FeatureLayout {
        &self.layout
    }

    /// The nodes, breadth first by their paths. The root is node 0.
    pub fn tree_nodes(&self) -> &[TreeNode] {
        either!(self, tree => tree.nodes())
    }

    /// The node of each leaf.
    pub fn leaves(&self) -> &[u32] {
        either!(self, tree => tree.leaves())
    }

    /// The search that gives the rows of the fit their labels: see [`Tree::search`].
    pub fn search(&self) -> Search {
        either!(self, tree => tree.search())
    }

    /// The numbers of the clusters on the way from the root to a node.
    pub fn path(&self, node: u32) -> Vec<u32> {
        either!(self, tree => tree.path(node))
    }

    /// The paths of all nodes, one behind the other, and where each begins.
    pub(crate) fn paths(&self) -> Result<(Vec<i64>, Vec<u32>)> {
        let nodes = self.tree_nodes();
        let (mut offsets, mut values) = (memory::with_room(nodes.len() + 1, TREE)?, Vec::new());
        offsets.push(0);
        for node in 0..nodes.len() as u32 {
            memory::extend(&mut values, &self.path(node), TREE)?;
            offsets.push(values.len() as i64);
        }
        Ok((offsets, values))
    }

    /// The number of levels below the root.
    pub fn depth(&self) -> u32 {
        self.tree_nodes().last().map_or(0, |node| node.level)
    }

    /// For each level below the root, the node on the way to a leaf. None on levels below the leaf.
    #[cfg(feature = "python")]
    pub(crate) fn nodes_above(&self, leaf: u32, into: &mut [Option<u32>]) {
        let nodes = self.tree_nodes();
        let mut node = self.leaves()[leaf as usize];
        into.fill(None);
        while let TreeNode { level, parent: Some(parent), .. } = nodes[node as usize] {
            into[level as usize - 1] = Some(node);
            node = parent;
        }
    }

    /// The leaves as clusters of one model: for exact predictions, distances and the nearest leaves, on every device. It is made once.
    ///
    /// # Errors
    /// [`KMeansError::NoMemory`].
    pub fn flat(&self) -> Result<&KMeansModel> {
        self.flat.get(|| either!(self, tree => self.model(tree.flat().clone().into())))
    }

    /// A flat model of the nodes of a level: see [`Tree::cut`].
    ///
    /// # Errors
    /// As [`Tree::cut`].
    pub fn cut(&self, level: u32) -> Result<KMeansModel> {
        either!(self, tree => self.model(tree.cut(level)?.into()))
    }

    /// All nodes as clusters, for tables of them.
    pub(crate) fn every_node(&self) -> Result<KMeansModel> {
        either!(self, tree => {
            let centroids = memory::copied(&tree.centroids, TREE)?;
            self.model(flat_model(tree.flat(), || tree.nodes().iter(), centroids, tree.flat().inertia())?.into())
        })
    }

    fn model(&self, model: crate::model::AnyModel) -> Result<KMeansModel> {
        let mut model = KMeansModel::new(self.layout.copy()?, model);
        model.computed = self.computed;
        Ok(model)
    }

    /// The leaf below the nearest child of the nearest child, and so on. Features are taken in the wider of the tree's type and their own.
    pub(crate) fn descend_any(&self, features: &AnyFeatures<'_>) -> Result<Labels> {
        self.ask(features, |tree, x| tree.predict(x, Search::Tree), |tree, x| tree.predict(x, Search::Tree))
    }

    /// Minus the inertia around the leaves that a descent finds.
    #[cfg(feature = "polars")]
    pub(crate) fn score_any(&self, features: &AnyFeatures<'_>, weights: Option<&Column<'_, f64>>) -> Result<f64> {
        let device = crate::base::params::Device::Cpu;
        self.ask(
            features,
            |tree, x| tree.score(x, weights, Search::Tree, device),
            |tree, x| tree.score(x, weights, Search::Tree, device),
        )
    }

    fn ask<A>(
        &self,
        features: &AnyFeatures<'_>,
        float32: impl FnOnce(&Tree<f32>, &Features<'_, f32>) -> Result<A>,
        float64: impl FnOnce(&Tree<f64>, &Features<'_, f64>) -> Result<A>,
    ) -> Result<A> {
        let _environment = FloatEnvironment::default_rounding();
        match (&self.tree, features) {
            (AnyTree::F32(tree), AnyFeatures::F32(x)) => float32(tree, x),
            (AnyTree::F32(tree), AnyFeatures::F64(x)) => float64(self.widened.get(|| tree.widened())?, x),
            (AnyTree::F64(tree), AnyFeatures::F64(x)) => float64(tree, x),
            (AnyTree::F64(_), AnyFeatures::F32(_)) => Err(KMeansError::UnsupportedDtype {
                column: self.layout.columns()[0].clone(),
                got: "float32 for a float64 tree".into(),
            }),
        }
    }
}

/// An estimator of trees.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum TreeEstimator {
    Levels(HierarchicalKMeans),
    Bisecting(BisectingKMeans),
}

impl TreeEstimator {
    /// The estimator of the nodes.
    pub fn of_nodes(&self) -> &KMeans {
        match self {
            Self::Levels(HierarchicalKMeans { estimator, .. }) | Self::Bisecting(BisectingKMeans { estimator, .. }) => {
                estimator
            }
        }
    }

    /// The tree of features of either type, and the leaf of each row.
    pub fn fit_any(
        &self,
        layout: &FeatureLayout,
        features: &AnyFeatures<'_>,
        weights: Option<&Column<'_, f64>>,
        computed: bool,
    ) -> Result<(KMeansTree, Labels)> {
        macro_rules! fitted {
            ($x:expr) => {{
                let fit = self.fit_features($x, weights)?;
                let labels = fit.expand()?;
                Ok((KMeansTree::new(layout.copy()?, fit.tree.into(), computed), labels))
            }};
        }
        match features {
            AnyFeatures::F32(x) => fitted!(x),
            AnyFeatures::F64(x) => fitted!(x),
        }
    }

    /// As [`HierarchicalKMeans::fit_features`] and [`BisectingKMeans::fit_features`].
    fn fit_features<T: Engine>(&self, x: &Features<'_, T>, weights: Option<&Column<'_, f64>>) -> Result<FittedTree<T>> {
        match self {
            Self::Levels(estimator) => estimator.fit_features(x, weights),
            Self::Bisecting(estimator) => estimator.fit_features(x, weights),
        }
    }
}

//! A tree as bytes: for expressions, and in files.
//!
//! The bytes have the head of models (`model/wire.rs`) with a magic of their own, so one checksum covers all. Only what cannot be
//! computed is written. The rest is rebuilt, so the two cannot contradict each other.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::nodes::child_seed;
use super::{AnyTree, KMeansTree, Search, TREE, Tree, TreeNode, number_leaves};
#[cfg(doc)]
use crate::base::error::KMeansError;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::model::wire::{Cache, Head, TREES};
use crate::model::{AnyModel, KMeansModel, Model, invalid, wire};
use crate::statistics::check_centroid_magnitude;

/// The trees that were decoded last.
static DECODED: Cache<KMeansTree> = Cache::new();

/// What is written of a tree.
#[derive(Serialize, Deserialize)]
struct Written<'a> {
    /// The leaves: an encoded model.
    flat: &'a [u8],
    /// Whether the search of the tree is the exact one.
    exact: bool,
    /// The seed of the root.
    seed: u64,
    /// For each node, how many children it has. Nodes are in their order.
    children: Vec<u32>,
    /// For each node but the root, its number among the clusters of its parent's fit.
    clusters: Vec<u32>,
    /// Rows, inertia and centroid of each node that is no leaf.
    sizes: Vec<u64>,
    inertias: Vec<f64>,
    centroids: Centroids,
}

#[derive(Serialize, Deserialize)]
enum Centroids {
    F32(Vec<f32>),
    F64(Vec<f64>),
}

impl<T: Float> Tree<T> {
    fn inner(&self) -> impl Iterator<Item = (u32, &TreeNode)> {
        (0u32..).zip(&self.nodes).filter(|(_, node)| node.leaf.is_none())
    }

    fn written<'a>(&self, flat: &'a [u8], wrap: fn(Vec<T>) -> Centroids) -> Result<Written<'a>> {
        let count = self.nodes.len() - self.leaves.len();
        let mut centroids = memory::with_room(count * self.flat.n_features(), TREE)?;
        self.inner().for_each(|(node, _)| centroids.extend_from_slice(self.centroid(node)));
        Ok(Written {
            flat,
            exact: self.search == Search::Exact,
            seed: self.nodes[0].seed,
            children: memory::collected(self.nodes.iter().map(|node| node.children.len() as u32), TREE)?,
            clusters: memory::collected(self.nodes[1..].iter().map(|node| node.cluster), TREE)?,
            sizes: memory::collected(self.inner().map(|(_, node)| node.size), TREE)?,
            inertias: memory::collected(self.inner().map(|(_, node)| node.inertia), TREE)?,
            centroids: wrap(centroids),
        })
    }

    /// The tree of what was written.
    fn rebuilt(written: &Written<'_>, of_inner: &[T], flat: Model<T>) -> Result<Self> {
        let Written { exact, seed, children, clusters, sizes, inertias, .. } = written;
        let (count, d) = (children.len(), flat.n_features());
        let shape = || invalid("nodes of one tree that fit its leaves", "others");
        let inner = children.iter().filter(|count| **count > 0).count();
        let fits = u32::try_from(count).is_ok()
            && count.checked_sub(1) == Some(clusters.len())
            && count - inner == flat.n_clusters()
            && [sizes.len(), inertias.len()] == [inner; 2]
            && inner.checked_mul(d) == Some(of_inner.len())
            && flat.inertias().len() == flat.n_clusters()
            && inertias.iter().all(|inertia| *inertia >= 0.0 && inertia.is_finite())
            && of_inner.iter().all(|c| c.to_f64().is_finite())
            && check_centroid_magnitude::<T>("centroids", of_inner.iter().fold(0.0, |m, c| c.to_f64().abs().max(m))).is_ok();
        if !fits {
            return Err(shape());
        }
        let node = |parent, cluster, level, seed| TreeNode {
            parent,
            cluster,
            level,
            seed,
            size: 0,
            inertia: 0.0,
            leaf: None,
            children: 0..0,
        };
        let mut nodes = memory::with_room(count, TREE)?;
        nodes.push(node(None, 0, 0, *seed));
        for (parent, &more) in children.iter().enumerate() {
            let first = nodes.len();
            let own = clusters.get(first - 1..).and_then(|own| own.get(..more as usize)).ok_or_else(shape)?;
            // Only the root may have one child. A chain of single children would have paths far longer than its bytes.
            if parent >= first || !own.is_sorted_by(|a, b| a < b) || more == 1 && parent > 0 {
                return Err(shape());
            }
            let TreeNode { level, seed, .. } = nodes[parent];
            nodes.extend(own.iter().map(|&c| node(Some(parent as u32), c, level + 1, child_seed(seed, c))));
            if more > 0 {
                nodes[parent].children = first as u32..nodes.len() as u32;
            }
        }
        if nodes.len() != count {
            return Err(shape());
        }
        let leaves = number_leaves(&mut nodes)?;
        let mut centroids = memory::with_room(count * d, TREE)?;
        let mut of_inner = sizes.iter().zip(inertias).zip(of_inner.chunks_exact(d));
        for node in &mut nodes {
            let (size, inertia, centroid) = match node.leaf.map(|leaf| leaf as usize) {
                Some(leaf) => (flat.sizes()[leaf], flat.inertias()[leaf], &flat.centroids()[leaf * d..][..d]),
                None => of_inner.next().map(|((size, inertia), of)| (*size, *inertia, of)).ok_or_else(shape)?,
            };
            (node.size, node.inertia) = (size, inertia);
            centroids.extend_from_slice(centroid);
        }
        Ok(Self { nodes, centroids, leaves, flat, search: if *exact { Search::Exact } else { Search::Tree } })
    }
}

impl KMeansTree {
    /// The tree as bytes. `flat`: its leaves, encoded.
    pub(super) fn encoded(&self, flat: &[u8]) -> Result<Vec<u8>> {
        let refused = |error| invalid("a tree that can be encoded", error);
        let written = match self.as_any() {
            AnyTree::F32(tree) => tree.written(flat, Centroids::F32)?,
            AnyTree::F64(tree) => tree.written(flat, Centroids::F64)?,
        };
        let length = postcard::experimental::serialized_size(&written).map_err(refused)?;
        let mut bytes = memory::with_room(Head::BYTES + length, wire::BYTES)?;
        bytes.extend([0; Head::BYTES]);
        let mut bytes: Vec<u8> = postcard::to_extend(&written, bytes).map_err(refused)?;
        let (head, body) = bytes.split_at_mut(Head::BYTES);
        head.copy_from_slice(&Head::of(wire::FIRST_FORMAT, body).bytes(&TREES));
        Ok(bytes)
    }

    /// The tree of a body that was checked.
    pub(super) fn decoded(body: &[u8]) -> Result<Self> {
        let (mut written, rest) =
            postcard::take_from_bytes::<Written<'_>>(body).map_err(|error| invalid("a whole tree", error))?;
        if !rest.is_empty() {
            return Err(invalid("nothing after the tree", format!("{} bytes", rest.len())));
        }
        let flat = Arc::unwrap_or_clone(KMeansModel::from_wire(written.flat)?);
        let centroids = std::mem::replace(&mut written.centroids, Centroids::F32(Vec::new()));
        let tree = match (flat.model, centroids) {
            (AnyModel::F32(model), Centroids::F32(inner)) => Tree::rebuilt(&written, &inner, model)?.into(),
            (AnyModel::F64(model), Centroids::F64(inner)) => Tree::rebuilt(&written, &inner, model)?.into(),
            _ => return Err(invalid("nodes of the type of the leaves", "another type")),
        };
        flat.layout.check_in_tree().map_err(|error| invalid("columns that a table of nodes can have", error))?;
        Ok(Self::new(flat.layout, tree, flat.computed))
    }

    /// The tree as the bytes that an expression receives.
    ///
    /// # Errors
    /// [`KMeansError::InvalidModel`] if it cannot be encoded, [`KMeansError::NoMemory`].
    #[doc(hidden)]
    pub fn to_wire(&self) -> Result<Vec<u8>> {
        self.encoded(&self.flat()?.to_wire()?)
    }

    /// As [`KMeansTree::to_wire`]. The tree goes to a cache, so that it is not decoded again.
    ///
    /// # Errors
    /// As [`KMeansTree::to_wire`].
    #[doc(hidden)]
    pub fn into_wire(self) -> Result<Vec<u8>> {
        let bytes = self.to_wire()?;
        DECODED.take(&bytes, &TREES, self)?;
        Ok(bytes)
    }

    /// A tree from the bytes of [`KMeansTree::to_wire`]. A tree that was decoded recently comes from the cache.
    ///
    /// # Errors
    /// [`KMeansError::InvalidModel`] for anything else.
    #[doc(hidden)]
    pub fn from_wire(bytes: &[u8]) -> Result<Arc<Self>> {
        DECODED.get(bytes, &TREES, |_, body| Self::decoded(body))
    }
}

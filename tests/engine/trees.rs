//! Trees: nodes are the fits of their rows, and searches find the leaves that searches through all of them find.

use polars_kmeans::exact::reference;
use polars_kmeans::exact::rng::philox;
use polars_kmeans::tree::{BisectingKMeans, FittedTree, HierarchicalKMeans, Search, Split, Tree};
use polars_kmeans::{
    Column, Device, Engine, Features, Fitted, Init, KMeans, KMeansError, Metric, NullPolicy, Result, Scale, SortBy, TooFew,
};

use crate::data::{self, Random, rounds};

const KINDS: [&str; 9] = [
    "lattice",
    "duplicates",
    "uniform",
    "blobs",
    "sentinel",
    "denormals",
    "tight blobs far apart",
    "offset 1e6",
    "mixed scales",
];

/// The fit, unless there are too few distinct rows.
fn unless_too_few<F>(fit: Result<F>) -> Option<F> {
    match fit {
        Ok(fit) => Some(fit),
        Err(error) if error.is_too_few() => None,
        Err(error) => panic!("{error}"),
    }
}

fn fitted<T: Engine>(
    estimator: &KMeans,
    levels: &[usize],
    x: &[T],
    d: usize,
    weights: Option<&[f64]>,
) -> Option<FittedTree<T>> {
    let tree = HierarchicalKMeans::of_levels(estimator.clone(), levels.to_vec());
    let weights = weights.map(Column::from_slice);
    unless_too_few(tree.fit_features(&Features::from_rows(x, d).unwrap(), weights.as_ref()))
}

/// The fit of some rows alone.
fn fit_of<T: Engine>(
    estimator: &KMeans,
    k: usize,
    seed: u64,
    (x, d): (&[T], usize),
    weights: Option<&[f64]>,
    rows: &[usize],
) -> Result<Fitted<T>> {
    let own: Vec<T> = rows.iter().flat_map(|row| x[row * d..][..d].to_vec()).collect();
    let weights: Option<Vec<f64>> = weights.map(|weights| rows.iter().map(|row| weights[*row]).collect());
    let mut estimator = estimator.clone().seed(seed);
    estimator.set("k", Some(&(k as i128).into())).unwrap();
    estimator.fit_features(&Features::from_rows(&own, d).unwrap(), weights.as_deref().map(Column::from_slice).as_ref())
}

/// Whether two sums of distances differ by no more than the roundings of their quanta.
fn is_close(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-9 * one.max(other)
}

/// The seed of a child.
fn child_seed(seed: u64, cluster: u32) -> u64 {
    let words = philox([7, cluster, 0, 0], [seed as u32, (seed >> 32) as u32]);
    u64::from(words[0]) | u64::from(words[1]) << 32
}

/// The ancestors of a leaf, from the root on, and the leaf.
fn ancestors<T: Engine>(tree: &Tree<T>, leaf: u32) -> Vec<u32> {
    let nodes = std::iter::successors(Some(tree.leaves()[leaf as usize]), |node| tree.nodes()[*node as usize].parent);
    let mut nodes: Vec<u32> = nodes.collect();
    nodes.reverse();
    nodes
}

fn nodes_are_fits<T: Engine>(seed: u64) {
    for round in 0..rounds(40) as u64 {
        let random = &mut Random(seed + round);
        let kind = KINDS[round as usize % KINDS.len()];
        let (n, d) = (200 + random.below(3_000), 1 + random.below(6));
        let levels = [vec![4, 3], vec![5, 2, 3], vec![7], vec![2, 2, 2, 2]][round as usize % 4].clone();
        let x: Vec<T> = data::rows(kind, n, d, random);
        let weights: Option<Vec<f64>> = (round % 3 == 1).then(|| (0..n).map(|_| random.below(3) as f64).collect());
        let estimator = KMeans::new(1).seed(random.next()).max_iter(10);
        let estimator = if round % 5 == 4 { estimator.scale(Scale::Standard) } else { estimator };
        let what = format!("{round}: {kind} {n} x {d}, {levels:?}");
        let Some(fit) = fitted(&estimator.clone().threads(1), &levels, &x, d, weights.as_deref()) else { continue };
        let (tree, nodes) = (&fit.tree, fit.tree.nodes());
        assert_eq!(fit.labels.len(), n);
        let rows =
            |node: u32| -> Vec<usize> { (0..n).filter(|row| ancestors(tree, fit.labels[*row]).contains(&node)).collect() };
        // The factors of the root hold for all nodes.
        let features = Features::from_rows(&x, d).unwrap();
        let column = weights.as_deref().map(Column::from_slice);
        let root = {
            let mut root = estimator.clone();
            root.set("k", Some(&(levels[0] as i128).into())).unwrap();
            root.fit_features(&features, column.as_ref()).unwrap()
        };
        let mut alone = estimator.clone();
        if let Some(scaling) = root.model.scaling() {
            let factors = (0..d).map(|f| (format!("column_{f}"), scaling.factors()[f])).collect();
            alone = alone.scale(Scale::Factors(factors));
        }
        for (number, node) in nodes.iter().enumerate().filter(|(_, node)| (node.level as usize) < levels.len()) {
            let k = levels[node.level as usize];
            let expected = fit_of(&alone, k, node.seed, (&x, d), weights.as_deref(), &rows(number as u32));
            let children: Vec<u32> =
                (0..nodes.len() as u32).filter(|j| nodes[*j as usize].parent == Some(number as u32)).collect();
            let model = match expected {
                Ok(fit) => fit.model,
                Err(error) => {
                    assert!(error.is_too_few() && children.is_empty(), "{what}: node {number}, {error}");
                    continue;
                }
            };
            let existing: Vec<u32> = (0..model.n_clusters() as u32).filter(|c| model.sizes()[*c as usize] > 0).collect();
            if existing.len() < 2 {
                assert!(children.is_empty(), "{what}: node {number}");
                continue;
            }
            let clusters: Vec<u32> = children.iter().map(|child| nodes[*child as usize].cluster).collect();
            assert_eq!(clusters, existing, "{what}: node {number}");
            for (child, c) in children.iter().zip(existing) {
                let of = &nodes[*child as usize];
                assert_eq!(of.seed, child_seed(node.seed, c), "{what}");
                assert_eq!((of.size, of.inertia), (model.sizes()[c as usize], model.inertias()[c as usize]), "{what}");
                assert_eq!(tree.centroid(*child), &model.centroids()[c as usize * d..][..d], "{what}: node {child}");
            }
        }
        // Leaves are numbered by path, nodes breadth first.
        let paths: Vec<Vec<u32>> = tree.leaves().iter().map(|node| tree.path(*node)).collect();
        assert!(paths.is_sorted() && nodes.is_sorted_by_key(|node| node.level), "{what}");
        // Threads and devices do not matter, and the tree gives the rows of the fit their leaves.
        for estimator in data::here_and_on_gpu(&estimator.threads(3)) {
            let again = fitted(&estimator, &levels, &x, d, weights.as_deref()).unwrap();
            assert!(again.labels == fit.labels && again.tree == *tree, "{what}");
        }
        let found = tree.predict(&features, Search::Tree).unwrap();
        assert_eq!(found.values(), fit.labels, "{what}");
        // The inertia of the tree is that of its rows. Each node's fit has quanta of its own, finer than those of a score.
        let score = tree.score(&features, column.as_ref(), Search::Tree, Device::Cpu).unwrap();
        assert!(is_close(-score, tree.flat().inertia()), "{what}");
        if levels.len() == 1 {
            // Both searches find the same leaf.
            assert_eq!(tree.score(&features, column.as_ref(), Search::Exact, Device::Cpu).unwrap(), score, "{what}");
        }
        assert!(tree.score(&features, column.as_ref(), Search::Exact, Device::Cpu).unwrap() >= score, "{what}");
        check_exact(tree, &x, d, &what);
    }
}
in_both_types!(nodes_of_trees_are_fits_of_their_rows, T, seed in [3, 4_003] => nodes_are_fits::<T>(seed));

/// The exact search against one through all leaves, for trees without factors.
fn check_exact<T: Engine>(tree: &Tree<T>, x: &[T], d: usize, what: &str) {
    let features = Features::from_rows(x, d).unwrap();
    let found = tree.predict(&features, Search::Exact).unwrap();
    if tree.flat().scaling().is_some() {
        return;
    }
    let leaves: Vec<T> = tree.leaves().iter().flat_map(|node| tree.centroid(*node).to_vec()).collect();
    for (row, x) in x.chunks_exact(d).enumerate() {
        assert_eq!(found.get(row), Some(reference::nearest(x, &leaves).label), "{what}: row {row}");
    }
}

/// Rows that no fit has seen: midway between leaves, far out, tiny and huge.
fn strange_rows<T: Engine>(seed: u64) {
    let mut trees = 0;
    for round in 0..rounds(60) as u64 {
        let random = &mut Random(seed + round);
        let kind = KINDS[round as usize % KINDS.len()];
        let (n, d) = (400 + random.below(1_500), 1 + random.below(5));
        let scale =
            [1.0, 2f64.powi(if T::IS_F32 { -60 } else { -360 }), if T::IS_F32 { 1e12 } else { 1e180 }][round as usize % 3];
        let x: Vec<T> = data::rows::<T>(kind, n, d, random).iter().map(|x| T::from_f64(x.to_f64() * scale)).collect();
        let features = Features::from_rows(&x, d).unwrap();
        // Values may be too large or too small for a fit.
        let tree = HierarchicalKMeans::of_levels(KMeans::new(1).seed(round).max_iter(3), vec![12, 9]);
        let Ok(fit) = tree.fit_features(&features, None) else { continue };
        trees += 1;
        let tree = &fit.tree;
        let mut rows: Vec<T> = Vec::new();
        for _ in 0..600 {
            let [a, b] = [0, 1].map(|_| tree.centroid(tree.leaves()[random.below(tree.n_leaves())]));
            let share = [0.5, 0.5, 0.25, 1.5, 30.0][random.below(5)];
            rows.extend(a.iter().zip(b).map(|(a, b)| T::from_f64(a.to_f64() + share * (b.to_f64() - a.to_f64()))));
        }
        let [tiny, huge] = if T::IS_F32 { [2f64.powi(-140), 1e38] } else { [2f64.powi(-540), 1e200] };
        rows.extend((0..200 * d).map(|_| T::from_f64([tiny, huge, 1.0][random.below(3)] * (random.below(7) as f64 - 3.0))));
        rows.iter_mut().for_each(|x| *x = if x.is_finite() { *x } else { T::from_f64(1.0) });
        check_exact(tree, &rows, d, &format!("{round}: {kind} {n} x {d}"));
    }
    assert!(trees > rounds(60) / 3, "{trees} trees");
}
in_both_types!(the_nearest_leaf_of_strange_rows_is_found, T, seed in [31, 8_031] => strange_rows::<T>(seed));

#[test]
fn rows_without_a_value_have_no_leaf_and_cosines_are_transformed() {
    let random = &mut Random(6);
    let mut x: Vec<f32> = data::rows("blobs", 3_000, 4, random);
    x[4 * 17] = f32::NAN;
    let estimator = KMeans::new(1).null_policy(NullPolicy::Skip).metric(Metric::Cosine).seed(4);
    let fit = fitted(&estimator, &[6, 4], &x, 4, None).unwrap();
    let all = fit.expand().unwrap();
    assert_eq!((all.len(), all.get(17), fit.labels.len()), (3_000, None, 2_999));
    let found = fit.tree.predict(&Features::from_rows(&x, 4).unwrap(), Search::Tree).unwrap();
    assert!(found.iter().eq(all.iter()));
}

/// With `leaves`, nodes have shares of them; refined leaves are those of the flat fit.
fn shares_and_refined_leaves<T: Engine>(seed: u64) {
    let mut refined_trees = 0;
    for round in 0..rounds(30) as u64 {
        let random = &mut Random(seed + round);
        let kind = KINDS[round as usize % KINDS.len()];
        let (n, d, leaves) = (200 + random.below(2_000), 1 + random.below(5), 1 + random.below(60));
        let x: Vec<T> = data::rows(kind, n, d, random);
        let weights: Option<Vec<f64>> = (round % 3 == 1).then(|| (0..n).map(|_| random.below(3) as f64).collect());
        let column = weights.as_deref().map(Column::from_slice);
        let mut estimator = KMeans::new(1).seed(random.next()).max_iter(8);
        if round % 5 == 4 {
            estimator = estimator.sort_by(SortBy::Size).scale(Scale::Standard);
        }
        let what = format!("{round}: {kind} {n} x {d}, {leaves} leaves");
        let features = Features::from_rows(&x, d).unwrap();
        let of_leaves = HierarchicalKMeans::of_leaves(estimator.clone(), leaves);
        let Some(fit) = unless_too_few(of_leaves.fit_features(&features, column.as_ref())) else { continue };
        let (tree, nodes) = (&fit.tree, fit.tree.nodes());
        let root = nodes.iter().filter(|node| node.level == 1).count();
        let expected = (1..).find(|a| a * a >= leaves).unwrap();
        assert!(root == expected && nodes.iter().all(|node| node.level <= 2) && tree.n_leaves() <= leaves, "{what}");
        assert_eq!(tree.predict(&features, Search::Tree).unwrap().values(), fit.labels, "{what}");
        let distinct: std::collections::BTreeSet<Vec<u64>> =
            x.chunks_exact(d).map(|x| x.iter().map(|x| x.to_f64().to_bits()).collect()).collect();
        if distinct.len() == n && weights.is_none() {
            assert_eq!(tree.n_leaves(), leaves, "{what}");
        }
        // A child of the root has its share of the leaves, or as many as there are distinct rows.
        let kept: u64 = nodes[0].size;
        for (number, node) in nodes.iter().enumerate().filter(|(_, node)| node.level == 1) {
            let below = nodes.iter().filter(|child| child.parent == Some(number as u32)).count().max(1) as f64;
            let share = leaves as f64 * node.size as f64 / kept as f64;
            assert!(below <= share.max(0.0) + 1.0, "{what}: {below} leaves for {share}");
        }
        let refined = match of_leaves.refine(2).fit_features(&features, column.as_ref()) {
            Ok(fit) => fit,
            Err(KMeansError::InvalidOption { option: "refine", .. }) => continue,
            Err(error) => panic!("{what}: {error}"),
        };
        refined_trees += 1;
        let start = tree.flat().centroids_in_units().unwrap().iter().map(|c| c.to_f64()).collect();
        let mut flat = estimator.clone().init(Init::Given(start)).max_iter(2).tol(0.0).sort_by(SortBy::None);
        flat.set("k", Some(&(tree.n_leaves() as i128).into())).unwrap();
        let flat = flat.fit_features(&features, column.as_ref()).unwrap();
        assert!(refined.labels == flat.labels && refined.tree.flat().centroids() == flat.model.centroids(), "{what}");
        assert_eq!(refined.tree.flat().inertia(), flat.model.inertia(), "{what}");
        assert_eq!(refined.tree.search(), Search::Exact);
        for (leaf, node) in refined.tree.leaves().iter().enumerate() {
            assert_eq!(refined.tree.centroid(*node), &flat.model.centroids()[leaf * d..][..d], "{what}");
            assert_eq!(refined.tree.nodes()[*node as usize].size, flat.model.sizes()[leaf], "{what}");
        }
        assert_eq!(refined.tree.predict(&features, Search::Exact).unwrap().values(), refined.labels, "{what}");
    }
    assert!(refined_trees > rounds(30) / 2, "{refined_trees} trees");
}
in_both_types!(shares_of_leaves_and_refined_leaves, T, seed in [71, 4_071] => shares_and_refined_leaves::<T>(seed));

/// A leaf of a bisecting k-means, one step after the other.
#[derive(Clone)]
struct Leaf {
    path: Vec<u32>,
    rows: Vec<usize>,
    size: u64,
    inertia: f64,
    seed: u64,
    failed: bool,
}

/// The leaves of the definition, in order. None: there are too few rows.
fn bisected<T: Engine>(
    estimator: &KMeans,
    k: usize,
    split: Split,
    most: Option<u64>,
    (x, d): (&[T], usize),
    weights: Option<&[f64]>,
) -> Option<Vec<Leaf>> {
    let positive = |row: &usize| weights.is_none_or(|weights| weights[*row] > 0.0);
    let all: Vec<usize> = (0..x.len() / d).collect();
    let root = unless_too_few(fit_of(estimator, 1, 0, (x, d), weights, &all))?;
    let (size, inertia, seed) = (root.model.sizes()[0], root.model.inertia(), 5);
    let mut leaves = vec![Leaf { path: Vec::new(), rows: all, size, inertia, seed, failed: false }];
    loop {
        leaves.sort_by(|a, b| a.path.cmp(&b.path));
        let key = |leaf: &Leaf| if split == Split::Size { leaf.size as f64 } else { leaf.inertia };
        let next = if leaves.len() < k {
            let open = (0..leaves.len()).rev().filter(|i| leaves[*i].inertia > 0.0 && !leaves[*i].failed);
            open.max_by(|a, b| key(&leaves[*a]).total_cmp(&key(&leaves[*b])))
        } else {
            None
        };
        if leaves.len() < k && next.is_none() && estimator.clone().too_few(TooFew::Raise) == *estimator {
            return None;
        }
        let too_large = (0..leaves.len()).rev().filter(|i| most.is_some_and(|most| leaves[*i].size > most));
        let Some(at) = next.or(too_large.max_by_key(|i| leaves[*i].size)) else { return Some(leaves) };
        let leaf = leaves[at].clone();
        let child = |cluster: u32, rows: Vec<usize>, inertia: f64| {
            let (path, seed) = ([&leaf.path[..], &[cluster]].concat(), child_seed(leaf.seed, cluster));
            Leaf { path, size: rows.iter().filter(|row| positive(row)).count() as u64, rows, inertia, seed, failed: false }
        };
        let raising = estimator.clone().too_few(TooFew::Raise);
        let fit = unless_too_few(fit_of(&raising, 2, leaf.seed, (x, d), weights, &leaf.rows));
        if let Some(fit) = fit.filter(|fit| fit.model.sizes().iter().all(|size| *size > 0)) {
            leaves.remove(at);
            for cluster in 0..2u32 {
                let rows =
                    leaf.rows.iter().zip(&fit.labels).filter(|(_, label)| **label == cluster).map(|(row, _)| *row).collect();
                leaves.push(child(cluster, rows, fit.model.inertias()[cluster as usize]));
            }
        } else if next.is_some() {
            leaves[at].failed = true;
        } else {
            let half = leaf.size.div_ceil(2) as usize;
            let last = leaf.rows.iter().filter(|row| positive(row)).nth(half - 1).copied().unwrap();
            let (first, second) = leaf.rows.iter().copied().partition(|row| *row <= last);
            leaves.remove(at);
            leaves.extend([child(0, first, f64::NAN), child(1, second, f64::NAN)]);
        }
    }
}

fn bisecting<T: Engine>(seed: u64) {
    let (mut trees, mut cut) = (0, 0);
    for round in 0..rounds(60) as u64 {
        let random = &mut Random(seed + round);
        let kind = KINDS[round as usize % KINDS.len()];
        let (n, d, k) = (20 + random.below(600), 1 + random.below(4), 1 + random.below(40));
        let split = [Split::Inertia, Split::Size][round as usize % 2];
        let mut x: Vec<T> = data::rows(kind, n, d, random);
        if round % 4 == 3 {
            // Many equal rows.
            let (row, count) = (x[..d].to_vec(), n / 2);
            (0..count).for_each(|i| x[i * d..][..d].copy_from_slice(&row));
        }
        let weights: Option<Vec<f64>> = (round % 3 == 1).then(|| (0..n).map(|_| random.below(3) as f64).collect());
        let most = (round % 2 == 1).then(|| 1 + random.below(n / 3 + 1) as u64);
        let mut estimator = KMeans::new(k).seed(5).max_iter(10);
        if random.below(2) == 0 {
            estimator = estimator.too_few(TooFew::Fewer);
        }
        let what = format!("{round}: {kind} {n} x {d} into {k}, {split:?}, {most:?}");
        let (features, column) = (Features::from_rows(&x, d).unwrap(), weights.as_deref().map(Column::from_slice));
        let mut tree = BisectingKMeans::new(estimator.clone().threads(1 + random.below(4))).split(split);
        if let Some(most) = most {
            tree = tree.max_size(most);
        }
        let fit = unless_too_few(tree.fit_features(&features, column.as_ref()));
        let expected = bisected(&estimator, k, split, most, (&x, d), weights.as_deref());
        let (Some(fit), Some(expected)) = (&fit, &expected) else {
            assert!(fit.is_none() && expected.is_none(), "{what}: {}, {}", fit.is_some(), expected.is_some());
            continue;
        };
        trees += 1;
        let (tree, nodes) = (&fit.tree, fit.tree.nodes());
        assert_eq!(tree.n_leaves(), expected.len(), "{what}");
        let mut is_cut = false;
        for (number, leaf) in expected.iter().enumerate() {
            let node = tree.leaves()[number];
            assert_eq!(tree.path(node), leaf.path, "{what}");
            let own = &nodes[node as usize];
            assert_eq!((own.size, own.seed), (leaf.size, leaf.seed), "{what}: leaf {number}");
            is_cut |= leaf.inertia.is_nan();
            assert!(leaf.inertia.is_nan() || own.inertia == leaf.inertia, "{what}: leaf {number}");
            assert!(leaf.rows.iter().all(|row| fit.labels[*row] == number as u32), "{what}: leaf {number}");
            assert!(most.is_none_or(|most| own.size <= most), "{what}");
        }
        cut += u32::from(is_cut);
        let levels: Vec<u32> = nodes.iter().map(|node| node.level).collect();
        assert!(levels.is_sorted(), "{what}: nodes are breadth first");
        if !is_cut {
            assert_eq!(tree.predict(&features, Search::Tree).unwrap().values(), fit.labels, "{what}");
            let score = tree.score(&features, column.as_ref(), Search::Tree, Device::Cpu).unwrap();
            assert!(is_close(-score, tree.flat().inertia()), "{what}");
        }
    }
    assert!(trees > rounds(60) / 3 && (cut > 0 || rounds(60) < 60), "{trees} trees, {cut} with rows that were cut");
}
in_both_types!(bisecting_is_its_definition, T, seed in [17, 6_017] => bisecting::<T>(seed));

#[test]
fn equal_rows_are_cut_by_a_bound_on_sizes() {
    let x = vec![0.5f64; 100_000];
    let features = Features::from_rows(&x, 1).unwrap();
    let tree = BisectingKMeans::new(KMeans::new(1)).max_size(999);
    let fit = tree.fit_features(&features, None).unwrap();
    assert_eq!(fit.tree.n_leaves(), 128);
    assert!(fit.labels.is_sorted() && fit.tree.flat().sizes().iter().all(|size| (781..=782).contains(size)));
    assert!(fit.tree.flat().inertia() == 0.0);
    let labels = fit.tree.predict(&features, Search::Tree).unwrap();
    assert!(labels.values().iter().all(|label| *label == 0));
}

#[test]
fn levels_are_flat_models() {
    let random = &mut Random(8);
    let x: Vec<f64> = data::rows("blobs", 4_000, 3, random);
    let fit = fitted(&KMeans::new(1).seed(2), &[4, 5, 3], &x, 3, None).unwrap();
    let features = Features::from_rows(&x, 3).unwrap();
    for level in 0..4 {
        let cut = fit.tree.cut(level).unwrap();
        let nodes = fit.tree.nodes();
        let of_level: Vec<u32> = (0..nodes.len() as u32).filter(|node| nodes[*node as usize].level == level).collect();
        assert_eq!(cut.n_clusters(), of_level.len());
        assert_eq!(cut.sizes().iter().sum::<u64>(), 4_000);
        assert_eq!(cut.settings().k as usize, of_level.len());
        assert_eq!(cut.predict(&features).unwrap().len(), 4_000);
    }
    assert_eq!(fit.tree.cut(9).unwrap(), *fit.tree.flat());
}

#[test]
fn what_trees_do_not_have_is_refused() {
    let x = [0.0f64, 1.0, 2.0, 5.0];
    let features = Features::from_rows(&x, 1).unwrap();
    let message = |estimator: KMeans, levels: &[usize]| {
        HierarchicalKMeans::of_levels(estimator, levels.to_vec()).fit_features(&features, None).unwrap_err()
    };
    let option = |error: KMeansError| match error {
        KMeansError::InvalidOption { option, .. } => option,
        error => panic!("{error}"),
    };
    let plain = || KMeans::new(2);
    assert_eq!(option(message(plain(), &[])), "levels");
    assert_eq!(option(message(plain(), &[100_000, 100_000])), "levels");
    assert_eq!(option(message(plain(), &[2, 0])), "k");
    assert_eq!(option(message(plain().balanced(true), &[2])), "max_size");
    assert_eq!(option(message(plain().init(Init::Given(vec![0.0, 1.0])), &[2])), "init");
    assert_eq!(option(message(plain().keep_sums(true), &[2])), "keep_sums");
    assert!(message(plain(), &[5, 2]).is_too_few());
    let bisecting = |estimator: KMeans| BisectingKMeans::new(estimator).fit_features(&features, None).unwrap_err();
    assert!(bisecting(KMeans::new(5)).is_too_few());
    assert_eq!(option(bisecting(KMeans::new(0))), "k");
    let none = BisectingKMeans::new(plain()).max_size(0).fit_features(&features, None).unwrap_err();
    assert_eq!(option(none), "max_size");
    let fewer = BisectingKMeans::new(KMeans::new(9).too_few(TooFew::Fewer)).fit_features(&features, None).unwrap();
    assert_eq!(fewer.tree.n_leaves(), 4);
}

//! Trees: nodes are the fits of their rows, and searches find the leaves that searches through all of them find.

use polars_kmeans::exact::reference;
use polars_kmeans::exact::rng::philox;
use polars_kmeans::tree::{FittedTree, KMeansTree, Search, fit_levels};
use polars_kmeans::{Column, Engine, Features, Init, KMeans, KMeansError, Metric, NullPolicy, Scale};

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

fn fitted<T: Engine>(
    estimator: &KMeans,
    levels: &[usize],
    x: &[T],
    d: usize,
    weights: Option<&[f64]>,
) -> Option<FittedTree<T>> {
    let features = Features::from_rows(x, d).unwrap();
    match fit_levels(estimator, levels, &features, weights.map(Column::from_slice).as_ref()) {
        Ok(fit) => Some(fit),
        Err(error) if error.is_too_few() => None,
        Err(error) => panic!("{error}"),
    }
}

/// The ancestors of a leaf, from the root on, and the leaf.
fn ancestors<T: Engine>(tree: &KMeansTree<T>, leaf: u32) -> Vec<u32> {
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
        let root = {
            let mut root = estimator.clone();
            root.set("k", Some(&(levels[0] as i128).into())).unwrap();
            root.fit_features(&features, weights.as_deref().map(Column::from_slice).as_ref()).unwrap()
        };
        for (number, node) in nodes.iter().enumerate().filter(|(_, node)| (node.level as usize) < levels.len()) {
            let kept = rows(number as u32);
            let own: Vec<T> = kept.iter().flat_map(|row| x[row * d..][..d].to_vec()).collect();
            let own_weights: Option<Vec<f64>> = weights.as_ref().map(|weights| kept.iter().map(|row| weights[*row]).collect());
            let mut alone = estimator.clone().seed(node.seed);
            alone.set("k", Some(&(levels[node.level as usize] as i128).into())).unwrap();
            if let Some(scaling) = root.model.scaling() {
                let factors = (0..d).map(|f| (format!("column_{f}"), scaling.factors()[f])).collect();
                alone = alone.scale(Scale::Factors(factors));
            }
            let own_features = Features::from_rows(&own, d).unwrap();
            let expected = alone.fit_features(&own_features, own_weights.as_deref().map(Column::from_slice).as_ref());
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
                let words = philox([7, c, 0, 0], [node.seed as u32, (node.seed >> 32) as u32]);
                assert_eq!(of.seed, u64::from(words[0]) | u64::from(words[1]) << 32, "{what}");
                assert_eq!((of.size, of.inertia), (model.sizes()[c as usize], model.inertias()[c as usize]), "{what}");
                assert_eq!(tree.centroid(*child), &model.centroids()[c as usize * d..][..d], "{what}: node {child}");
            }
        }
        // Leaves are numbered by path, nodes breadth first.
        let paths: Vec<Vec<u32>> = tree.leaves().iter().map(|node| tree.path(*node)).collect();
        assert!(paths.is_sorted() && nodes.is_sorted_by_key(|node| node.level), "{what}");
        // Threads do not matter, and the tree gives the rows of the fit their leaves.
        let again = fitted(&estimator.threads(3), &levels, &x, d, weights.as_deref()).unwrap();
        assert!(again.labels == fit.labels && again.tree.nodes() == nodes, "{what}");
        let found = tree.predict(&features, Search::Tree).unwrap();
        assert_eq!(found.values(), fit.labels, "{what}");
        check_exact(tree, &x, d, &what);
    }
}
in_both_types!(nodes_of_trees_are_fits_of_their_rows, T, seed in [3, 4_003] => nodes_are_fits::<T>(seed));

/// The exact search against one through all leaves, for trees without factors.
fn check_exact<T: Engine>(tree: &KMeansTree<T>, x: &[T], d: usize, what: &str) {
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
        let Ok(fit) = fit_levels(&KMeans::new(1).seed(round).max_iter(3), &[12, 9], &features, None) else { continue };
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

#[test]
fn what_trees_do_not_have_is_refused() {
    let x = [0.0f64, 1.0, 2.0, 5.0];
    let features = Features::from_rows(&x, 1).unwrap();
    let message = |estimator: KMeans, levels: &[usize]| fit_levels(&estimator, levels, &features, None).unwrap_err();
    assert!(matches!(message(KMeans::new(1), &[]), KMeansError::InvalidOption { option: "levels", .. }));
    assert!(matches!(message(KMeans::new(1).balanced(true), &[2]), KMeansError::InvalidOption { option: "max_size", .. }));
    let given = KMeans::new(2).init(Init::Given(vec![0.0, 1.0]));
    assert!(matches!(message(given, &[2]), KMeansError::InvalidOption { option: "init", .. }));
    assert!(message(KMeans::new(1), &[5, 2]).is_too_few());
}

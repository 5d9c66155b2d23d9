//! Trees as bytes and files.

use polars_kmeans::tree::{BisectingKMeans, HierarchicalKMeans, Search, Split};
use polars_kmeans::{Device, KMeans, KMeansError, KMeansModel, KMeansTree, Scale};
use xxhash_rust::xxh3::xxh3_128;

use super::{batch, float64};

const HEAD: usize = 13 + 1 + 8 + 16;

/// Trees of both kinds, float64.
fn trees() -> Vec<KMeansTree> {
    let rows = batch([
        ("x", float64(&(0..60).map(|i| f64::from(i * 7919 % 101)).collect::<Vec<_>>())),
        ("y", float64(&(0..60).map(|i| f64::from(i * i % 37)).collect::<Vec<_>>())),
    ]);
    let (rows, columns) = (&[rows], ["x", "y"]);
    let estimator = KMeans::new(7).seed(3);
    let levels = HierarchicalKMeans::of_levels(estimator.clone().scale(Scale::Standard), vec![3, 2, 2]);
    let leaves = HierarchicalKMeans::of_leaves(estimator.clone(), 12).refine(2);
    let bisecting = BisectingKMeans::new(estimator).split(Split::Size).max_size(6);
    [
        levels.fit_batches(rows, columns, None),
        leaves.fit_batches(rows, columns, None),
        bisecting.fit_batches(rows, columns, None),
    ]
    .map(|fit| fit.unwrap())
    .map(|fit| {
        assert_eq!(fit.labels[0], fit.tree.predict_batch(&rows[0], fit.tree.search(), Device::Cpu).unwrap());
        fit.tree
    })
    .into()
}

#[test]
fn bytes_give_the_tree_back() {
    for tree in trees() {
        let wire = tree.to_wire().unwrap();
        assert_eq!(*KMeansTree::from_wire(&wire).unwrap(), tree);
        let file = tree.to_bytes().unwrap();
        let read = KMeansTree::from_bytes(&file).unwrap();
        assert_eq!(read.tree_nodes(), tree.tree_nodes());
        assert_eq!(read.to_bytes().unwrap(), file);
        // Wall times are not saved. Only refined leaves have some.
        assert!(read == tree || tree.search() == Search::Exact);
        assert!(matches!(KMeansModel::from_wire(&wire), Err(KMeansError::InvalidModel { .. })));
        let table = tree.nodes_batch().unwrap();
        assert_eq!((table.num_rows(), table.num_columns()), (tree.tree_nodes().len(), 10));
    }
}

#[test]
fn files_are_read_back_and_named_in_errors() {
    let folder = tempfile::tempdir().unwrap();
    let (path, tree) = (folder.path().join("tree.parquet"), &trees()[0]);
    tree.save(&path).unwrap();
    assert_eq!(KMeansTree::load(&path).unwrap(), *tree);
    let refused = KMeansModel::load(&path).unwrap_err().to_string();
    assert!(refused.contains("KMeansTree.load reads it") && refused.contains("tree.parquet"), "{refused}");
    assert!(matches!(KMeansTree::load(folder.path().join("none")), Err(KMeansError::File { .. })));
}

/// Bodies that were altered and have a checksum that fits: what is read is a whole tree, or an error.
#[test]
fn altered_bodies_are_refused_or_give_whole_trees() {
    let mut read = [0u32; 2];
    for tree in trees() {
        let wire = tree.to_wire().unwrap();
        let rows = batch([("x", float64(&[0.0, 50.0])), ("y", float64(&[9.0, -3.0]))]);
        for case in 0..20_000usize {
            let mut bytes = wire.clone();
            let at = HEAD + case * 7919 % (wire.len() - HEAD);
            bytes[at] ^= 1 << (case % 8);
            if case % 3 == 0 {
                let other = HEAD + case * 104_729 % (wire.len() - HEAD);
                bytes[other] = bytes[other].wrapping_add(1);
            }
            let hash = xxh3_128(&bytes[HEAD..]).to_le_bytes();
            bytes[HEAD - 16..HEAD].copy_from_slice(&hash);
            match KMeansTree::from_wire(&bytes) {
                Ok(altered) => {
                    read[0] += 1;
                    let leaves = altered.leaves().len() as u32;
                    for search in [Search::Tree, Search::Exact] {
                        let labels = altered.predict_batch(&rows, search, Device::Cpu).unwrap();
                        assert!(labels.values().iter().all(|leaf| *leaf < leaves));
                    }
                    assert_eq!(altered.nodes_batch().unwrap().num_rows(), altered.tree_nodes().len());
                }
                Err(KMeansError::InvalidModel { .. }) => read[1] += 1,
                Err(error) => panic!("{error:?}"),
            }
        }
    }
    assert!(read[0] > 1_000 && read[1] > 1_000, "{read:?}");
}

//! Searches in trees beside searches among all centroids.

use super::{CentroidTree, TreeSearch, Visits, Waiting};
use crate::backend::cpu::centroids::CentroidTable;
use crate::backend::cpu::filter::Filter;
use crate::base::float::Float;
use crate::base::random::Random;
use crate::exact::reference::{self, Nearest};
use crate::input::tile::FeatureValues;
use crate::simd::InstructionSet;

/// Searches for the nearest centroids of `x`, `(d, n)`, from these labels.
fn search<T: Float>(table: &CentroidTable<T>, x: &[T], before: &[u32], set: InstructionSet) -> (Vec<u32>, Vec<Nearest>, usize) {
    let n = x.len() / table.d;
    let (mut labels, mut own, mut second) = (vec![0; n], vec![0.0; n], vec![0.0; n]);
    let Filter::Tree(tree) = &table.filter else { panic!("a tree") };
    let (values, mut waiting) = (FeatureValues::new(x, n), Waiting::default());
    let (waiting, distances) = (&mut waiting, [&mut own[..], &mut second[..]]);
    set.run(TreeSearch::<_, _, true> { tree, table, values, before, waiting, labels: &mut labels, distances });
    let two = (0..n).map(|r| Nearest { label: labels[r], distance: own[r], second: second[r] }).collect();
    let distances = [&mut [][..], &mut [][..]];
    let visits = set.run(TreeSearch::<_, _, false> { tree, table, values, before, waiting, labels: &mut labels, distances });
    (labels, two, visits)
}

/// Rows and centroids of every sort, many of them equal: the two nearest are those of a search among all.
fn attack<T: Float>(d: usize, k: usize, seed: u64) {
    let random = &mut Random(seed + (d * 10_000 + k) as u64);
    for sort in 0..8 {
        let mut value = || {
            let other = random.below(7);
            random.value::<T>(if sort == 7 { other } else { sort })
        };
        let mut centroids: Vec<T> = (0..k * d).map(|_| value()).collect();
        let n = 40;
        let mut x: Vec<T> = (0..d * n).map(|_| value()).collect();
        // Equal centroids, rows at centroids, and rows between two of them.
        for i in 0..k / 3 {
            let from = random.below(k as u64) as usize * d;
            centroids.copy_within(from..from + d, i * 3 * d);
        }
        for r in 0..n / 2 {
            let [a, b] = [0; 2].map(|_| random.below(k as u64) as usize * d);
            for f in 0..d {
                let [a, b] = [a, b].map(|c| centroids[c + f].to_f64());
                x[f * n + r] = T::from_f64(if r % 2 == 0 { a } else { 0.5 * a + 0.5 * b });
            }
        }
        let mut table = CentroidTable::by_tree(&centroids, d, InstructionSet::detect(), 1).unwrap();
        for step in 0..3 {
            let row = |r: usize| (0..d).map(|f| x[f * n + r]).collect::<Vec<T>>();
            let expected: Vec<Nearest> = (0..n).map(|r| reference::nearest(&row(r), &centroids)).collect();
            let right: Vec<u32> = expected.iter().map(|nearest| nearest.label).collect();
            let before: Vec<u32> = (0..n).map(|r| [right[r], u32::MAX, (r % k) as u32][r % 3]).collect();
            for set in InstructionSet::ALL {
                for before in [&before[..], &before[..n / 3], &[]] {
                    let (labels, two, _) = search(&table, &x, before, set);
                    assert_eq!((&labels, &two), (&right, &expected), "{set:?} d {d} k {k} sort {sort} step {step}");
                }
            }
            // Some centroids move, a little or far.
            for _ in 0..k.div_ceil(3) {
                let (from, to) = (random.below(k as u64) as usize, random.below(k as u64) as usize);
                let far = step == 1;
                for f in 0..d {
                    let c = centroids[to * d + f].to_f64();
                    centroids[to * d + f] = if far { centroids[from * d + f] } else { T::from_f64(c * (1.0 + T::UNIT)) };
                }
            }
            assert!(table.replace(&centroids, &[], f64::NAN, &[], 1).unwrap());
        }
    }
}

unit_test!(a_tree_finds_what_a_search_among_all_finds);
fn a_tree_finds_what_a_search_among_all_finds() {
    for d in [1, 2, 3, 4, 7, 8] {
        for k in [1, 2, 15, 16, 17, 33, 255, 256, 257, 700] {
            attack::<f32>(d, k, 1);
            attack::<f64>(d, k, 2);
        }
    }
    attack::<f32>(1, 4_097, 3);
    attack::<f64>(2, 4_500, 4);
}

unit_test!(ties_are_found_without_a_look_at_each);
/// All centroids are equally far by rounding, or equal: the smallest number is found in one way down the tree.
fn ties_are_found_without_a_look_at_each() {
    let k = 20_000;
    let numbers = |j: usize| (j * 7_919 % k) as f64;
    let by_rounding: Vec<f64> = (0..k).map(|j| numbers(j) * 1e-6).collect();
    // One run of equal distances begins and ends within the range.
    let in_part: Vec<f64> = (0..k).map(|j| numbers(j) * 1e12).collect();
    for (centroids, x) in [(by_rounding, -1e17), (vec![3.0; k], 5.0), (in_part, -1e17)] {
        let table = CentroidTable::by_tree(&centroids, 1, InstructionSet::detect(), 1).unwrap();
        let expected = reference::nearest(&[x], &centroids).label;
        for before in [0, 1, k as u32 / 2, expected] {
            let (labels, _, visits) = search(&table, &[x], &[before], InstructionSet::detect());
            assert_eq!(labels, [expected]);
            assert!(visits <= 60, "{visits} visits");
        }
    }
}

unit_test!(few_boxes_are_looked_at);
fn few_boxes_are_looked_at() {
    let random = &mut Random(5);
    for (d, most) in [(1, 6), (2, 7), (3, 10), (4, 16)] {
        let mut values = |count: usize| (0..count * d).map(|_| random.unit() as f32).collect::<Vec<f32>>();
        let (centroids, rows) = (values(20_000), values(500));
        let tree = CentroidTree::new(&centroids, d).unwrap();
        let visits = InstructionSet::detect().run(Visits { tree: &tree, centroids: &centroids, rows: &rows });
        assert!(visits <= most * 500, "{d}: {visits} visits");
    }
}

//! Rows and centroids that try to break the bound of the product filter. What reference distances find must be in reach.

use super::super::filter::{Filter, Weight};
use super::*;
pub use crate::base::random::Random;
use crate::bounds::Expanded;
use crate::exact::reference;
use crate::input::features::Features;
use crate::input::tile::{RowBlock, Tile};
use crate::simd::{InstructionSet, Task};

/// About `x`, a few units in the last place of `T` away.
fn near<T: Float>(x: f64, random: &mut Random) -> f64 {
    T::from_f64(x * (1.0 + (random.index(9) as f64 - 4.0) * T::UNIT)).to_f64()
}

/// The centroids that attacks are made of.
pub const KINDS: [&str; 7] =
    ["uniform", "one far out", "in one line", "one far out in one line", "scales", "nearly equal", "far from the centre"];

pub struct Case<T> {
    pub d: usize,
    pub k: usize,
    pub centroids: Vec<T>,
    pub rows: Vec<T>,
    pub centre: Vec<f64>,
}

impl<T: Float> Case<T> {
    /// For each row, its reference distances to all centroids.
    pub fn distances(&self) -> Vec<Vec<f64>> {
        let of = |x| self.centroids.chunks_exact(self.d).map(|c| reference::distance(x, c)).collect();
        self.rows.chunks_exact(self.d).map(of).collect()
    }
}

pub fn case<T: Float>(kind: &str, d: usize, k: usize, random: &mut Random) -> Case<T> {
    let line: Vec<f64> = (0..d).map(|_| random.sign()).collect();
    let mut centroids: Vec<f64> = (0..k * d)
        .map(|i| match kind {
            "in one line" | "one far out in one line" => line[i % d] * (1 + i / d) as f64,
            "nearly equal" => line[i % d] * (1.0 + random.sign() * 1e-5),
            "far from the centre" => 1e3 * line[i % d] + random.sign(),
            "scales" => random.sign() * [1e-30, 1e30, 1.0, 1e15][i % d % 4],
            _ => random.sign(),
        })
        .collect();
    if kind.starts_with("one far out") {
        let far = random.index(k);
        centroids[far * d..][..d].iter_mut().for_each(|c| *c *= 2f64.powi(20));
    }
    let rows: Vec<f64> = (0..ROWS)
        .flat_map(|r| {
            let (a, b) = (random.index(k), random.index(k));
            let size = [1.0, 1.0, 2f64.powi(20), 2f64.powi(-20), 2f64.powi(6)][r % 5];
            (0..d)
                .map(|f| {
                    let (a, b) = (centroids[a * d + f], centroids[b * d + f]);
                    match r % 6 {
                        0 => a,
                        1 => near::<T>(0.5 * (a + b), random),
                        2 => 0.5 * (a + b),
                        3 => near::<T>(a * size, random),
                        4 => line[f] * size,
                        _ => random.sign() * size * a,
                    }
                })
                .collect::<Vec<_>>()
        })
        .collect();
    let origin: Vec<f64> = match random.index(3) {
        0 => vec![0.0; d],
        1 => centroids[..d].to_vec(),
        _ => line,
    };
    let of = |values: Vec<f64>| values.into_iter().map(T::from_f64).collect();
    Case { d, k, centroids: of(centroids), rows: of(rows), centre: origin }
}

/// The centroids in reach of every row, for a tile of this weight.
struct RowsInReach<'t, T, const TWO: bool> {
    tile: &'t Tile<T>,
    table: &'t ProductTable,
    k: usize,
    weight: Weight,
}

impl<T: Float, const TWO: bool> Task for RowsInReach<'_, T, TWO> {
    type Output = Vec<Option<Vec<u32>>>;

    #[inline(always)]
    fn run<V: Vector>(self) -> Self::Output {
        let mut scratch = ProductScratch::new(self.k).unwrap();
        scratch.weight = self.weight;
        let Self { tile, table, k, .. } = self;
        let (product, values, rows, next) = (&mut scratch, tile.values(), 0..tile.rows.min(ROWS), PrefetchNext::Nothing);
        FindNear::<T, _, TWO> { product, values, rows, table, k, listed: None, next, taker: None }.run::<V>();
        (0..self.tile.rows).map(|r| scratch.candidates(r).map(<[u32]>::to_vec)).collect()
    }
}

/// Returns how many rows had one centroid in reach, and how many rows there were.
fn attack<T: Float>(case: &Case<T>, weights: &[i32], what: &str) -> [usize; 2] {
    let Case { d, k, centroids, rows, centre } = case;
    let Filter::Product(table) = Filter::product(centroids, *d, centre, &[], InstructionSet::detect(), 1).unwrap() else {
        return [0, 0];
    };
    let mut tile = Tile::new(*d, ROWS).unwrap();
    tile.load(&RowBlock::new(Features::from_rows(rows, *d).unwrap(), None), None, 0..ROWS);
    let distances = case.distances();
    let mut certain = [0, 0];
    for (set, weight) in [InstructionSet::Portable, InstructionSet::Neon, InstructionSet::Avx2, InstructionSet::Avx512]
        .into_iter()
        .flat_map(|set| weights.iter().map(move |weight| (set, *weight)))
    {
        let (tile, table, k, of) = (&tile, &table, *k, Weight(weight));
        let one = set.run(RowsInReach::<T, false> { tile, table, k, weight: of });
        let two = set.run(RowsInReach::<T, true> { tile, table, k, weight: of });
        for (r, distances) in distances.iter().enumerate() {
            let mut sorted = distances.clone();
            sorted.sort_by(f64::total_cmp);
            for (found, limit) in [(&one[r], sorted[0]), (&two[r], sorted[1.min(k - 1)])] {
                let Some(found) = found else { continue };
                let all = (0..k as u32).filter(|j| distances[*j as usize] <= limit);
                for j in all {
                    assert!(found.contains(&j), "{what}, {set:?}, weight {weight}, row {r}: {j} is not in {found:?}");
                }
            }
            certain[0] += usize::from(one[r].as_ref().is_some_and(|found| found.len() == 1));
            certain[1] += 1;
        }
    }
    certain
}

fn attacks<T: Float>() {
    let random = &mut Random(11);
    for kind in KINDS {
        let mut certain = [0, 0];
        for number in 0..40 {
            let d = [1, 2, 3, 9, 16, 31, 64, 65, 150][random.index(9)];
            let k = [1, 2, 3, 7, 40][random.index(5)];
            let weights = [-4, Expanded::WEIGHTS[random.index(6)], 6];
            let found = attack(&case::<T>(kind, d, k, random), &weights, &format!("{kind} {number}: d {d}, k {k}"));
            (0..2).for_each(|i| certain[i] += found[i]);
        }
        println!("{kind}: {} of {} rows have one centroid in reach", certain[0], certain[1]);
        assert!(certain[0] > 0 && certain[0] < certain[1], "{kind}: {certain:?}");
    }
    // More centroids than are scored together, and than one panel has, of one panel of features and of several.
    for (d, k) in [(3, 1_100), (64, 300), (65, 253), (150, 300), (130, 1_100)] {
        for kind in KINDS {
            attack(&case::<T>(kind, d, k, random), &[0], &format!("{kind}, many centroids: d {d}, k {k}"));
        }
    }
}

unit_test!(what_reference_distances_find_is_in_reach);
fn what_reference_distances_find_is_in_reach() {
    attacks::<f32>();
    attacks::<f64>();
}

unit_test!(a_centroid_far_out_leaves_no_doubt);
/// One centroid a million times farther out than the others leaves the other rows certain.
fn a_centroid_far_out_leaves_no_doubt() {
    let (random, d, k) = (&mut Random(3), 16, 30);
    let mut ordinary = case::<f32>("uniform", d, k, random);
    ordinary.rows.iter_mut().for_each(|x| *x = random.sign() as f32);
    let mut far = Case { centroids: ordinary.centroids.clone(), rows: ordinary.rows.clone(), centre: vec![0.0; d], ..ordinary };
    far.centroids[7 * d..][..d].fill(2f32.powi(20));
    for weight in [0, 2] {
        let [certain, rows] = attack(&far, &[weight], "far");
        assert!(certain * 20 > rows * 19, "{certain} of {rows}");
    }
}

unit_test!(both_sides_have_the_same_centre);
/// m is rounded to the feature type once, for rows and centroids alike: with 2^24 + 0.75 for the row and 2^24 for the centroids,
/// this tie would certify label 1.
fn both_sides_have_the_same_centre() {
    let at = 2f32.powi(24);
    let (centroids, rows) = (vec![at + 4.0, at], vec![at + 2.0; ROWS]);
    let case = Case { d: 1, k: 2, centroids, rows, centre: vec![f64::from(at) + 0.75] };
    assert_eq!(attack(&case, &Expanded::WEIGHTS, "a tie")[0], 0);
}

unit_test!(weights_follow_the_rows);
/// Weights follow the sizes of rows and centroids, and a few rows far out do not matter.
fn weights_follow_the_rows() {
    let Filter::Product(table) =
        Filter::product(&[8.0f32, 0.0, 0.0, 8.0], 2, &[0.0, 0.0], &[], InstructionSet::detect(), 1).unwrap()
    else {
        unreachable!()
    };
    // The scaled centroids have half the unit as their norm.
    for (square, weight) in [(0.25f32, 0), (4.0, -2), (2f32.powi(-10), 4), (1e30, -4), (0.0, 6), (f32::INFINITY, 0)] {
        assert_eq!(table.weight_of(&[square; 9], &[0, 1, 0, 1, 0, 1, 0, 1, 0]), Weight(weight), "{square}");
    }
    let mut squares = [0.25f32; 64];
    squares[9] = 1e20;
    assert_eq!(table.weight_of(&squares, &[0; 64]), Weight(0));
}

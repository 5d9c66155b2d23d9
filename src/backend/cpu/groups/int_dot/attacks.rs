//! Attacks on the lists that integer copies and the closer look leave: what the reference distance picks is on them.

use super::*;
use crate::backend::cpu::centroids::CentroidTable;
use crate::backend::cpu::filter::{Filter, ProductTable};
use crate::backend::cpu::product::attacks::{Case, KINDS, Random, case};
use crate::backend::cpu::product::{DotBlock, ProductScratch, ROWS};

/// The centroids in reach of every row: those that the copies leave, and those that a closer look leaves.
struct CandidatesOfRows<'t, T> {
    block: DotBlock<'t>,
    names: &'t ProductTable,
    centroids: &'t CentroidTable<T>,
    values: &'t [T],
}

impl<T: Float> Task for CandidatesOfRows<'_, T> {
    type Output = [Vec<Option<Vec<u32>>>; 2];

    #[inline(always)]
    fn run<V: Vector>(self) -> Self::Output {
        let Self { block, names, centroids, values } = self;
        let mut scratch = ProductScratch::new(centroids.k).unwrap();
        scratch.find_candidates_by_int_dot::<V>(&block, names);
        let lists = |scratch: &ProductScratch| (0..ROWS).map(|r| scratch.candidates(r).map(<[u32]>::to_vec)).collect();
        let by_copies = lists(&scratch);
        scratch.look_closer::<V, T>(ROWS, centroids, |r| Some(&values[r * centroids.d..][..centroids.d]));
        [by_copies, lists(&scratch)]
    }
}

/// Returns how many rows had one centroid in reach by their copies, how many after a closer look, and how many rows there were.
fn attack<T: Float>(case: &Case<T>, off: i32, what: &str) -> [usize; 3] {
    let Case { d, k, centroids, rows: values, centre } = case;
    let mut groups = Partition::new(centroids, *d, 1, InstructionSet::detect(), 1).unwrap();
    groups.points = centre.iter().map(|m| T::from_f64(*m)).collect();
    let Filter::Product(names) = Filter::product(centroids, *d, centre, &groups.order, InstructionSet::detect(), 1).unwrap()
    else {
        return [0; 3];
    };
    let step = GroupStep::new(&groups, centroids, false, None, InstructionSet::detect(), 1).unwrap();
    let all = values.iter().chain(centroids).zip(centre.iter().cycle());
    let largest = all.fold(0.0f64, |most, (x, m)| most.max((x.to_f64() - m).abs()));
    // A scale that does not suit costs certainty, not labels.
    let exponent = unit_exponent(largest) + off;
    let x: Vec<T> = (0..d * ROWS).map(|i| values[i % ROWS * d + i / ROWS]).collect();
    let distances = case.distances();
    let centroid_table = CentroidTable::new(centroids, *d, centre, largest, InstructionSet::detect(), 1).unwrap();
    let mut certain = [0; 3];
    let emulated =
        [DotUnit::Emulated, DotUnit::EmulatedTiles, DotUnit::EmulatedWords].map(|unit| (InstructionSet::Portable, unit));
    let hardware = DotUnit::HARDWARE.map(|unit| (InstructionSet::detect(), unit.or_emulated()));
    for (set, unit) in emulated.into_iter().chain(hardware) {
        let mut by_copies = ByCopies::new(Copies { unit, exponent }, 1).unwrap();
        assert!(by_copies.copy_centroids(&step, centroids, &[], &[f64::INFINITY], set, 1).unwrap());
        let mut copies = IntegerRows::new(ROWS, unit.lanes(*d), 1).unwrap();
        copies.fill(0, &x, ROWS, &groups, 0, &by_copies.copies);
        let (table, listed) = (&by_copies.tables[0], step.listed(0, f64::INFINITY, None));
        let block = DotBlock { rows: copies.block(0), count: ROWS, table, listed, unit };
        let found = set.run(CandidatesOfRows { block, names: &names, centroids: &centroid_table, values });
        for (r, distances) in distances.iter().enumerate() {
            certain[2] += 1;
            let least = distances.iter().fold(f64::INFINITY, |least, s| least.min(*s));
            for (found, certain) in found.iter().zip(&mut certain) {
                let Some(found) = &found[r] else { continue };
                for j in (0..*k as u32).filter(|j| distances[*j as usize] <= least) {
                    assert!(found.contains(&j), "{what}, {unit:?}, row {r}: {j} is not in {found:?}");
                }
                *certain += usize::from(found.len() == 1);
            }
        }
    }
    certain
}

fn attacks<T: Float>() {
    let random = &mut Random(12);
    for kind in KINDS {
        let mut certain = [0; 3];
        for number in 0..120 {
            let d = [1, 2, 3, 9, 16, 31, 64, 65, 127, 129, 300][random.index(11)];
            let k = [1, 2, 3, 7, 40][random.index(5)];
            let off = [0, 0, 1, -3, -40, 60][random.index(6)];
            let found = attack(&case::<T>(kind, d, k, random), off, &format!("{kind} {number}: d {d}, k {k}, off {off}"));
            (0..3).for_each(|i| certain[i] += found[i]);
        }
        assert!(certain[0] > 0 && certain[0] < certain[1] && certain[1] < certain[2], "{kind}: {certain:?}");
    }
}

unit_test!(what_reference_distances_find_is_in_reach);
fn what_reference_distances_find_is_in_reach() {
    attacks::<f32>();
    attacks::<f64>();
}

unit_test!(residuals_in_one_direction);
/// Rows halfway between two centroids. Their copies are wrong by as much as a copy can be, all in the direction from one to the
/// other.
fn residuals_in_one_direction() {
    let random = &mut Random(13);
    for number in 0..600 {
        let d = [1, 2, 16, 65, 300][number % 5];
        let apart = [1.0, 0.5, 2.0, 0.1][random.index(4)];
        // Just above a number halfway between two integers, or just below. The first number makes the step 1.
        let up: Vec<bool> = (0..d).map(|_| random.index(2) == 0).collect();
        let x: Vec<f32> = (0..d)
            .map(|f| {
                let middle = (0.5 + random.index(127) as f32) * if random.index(2) == 0 { 1.0 } else { -1.0 };
                let last = (1 + random.index(3)) as f32 * 2f32.powi(-12);
                if f == 0 { 127.0 } else { middle + if up[f] { last } else { -last } }
            })
            .collect();
        let size = x.iter().map(|x| x.abs()).sum::<f32>() / d as f32 * apart;
        // `copy - x` has this sign.
        let towards = |f: usize| if up[f] { size } else { -size };
        let side = |sign: f32| (0..d).map(move |f| sign * towards(f)).zip(&x).map(|(t, x)| x + t);
        let centroids: Vec<f32> =
            if number % 2 == 0 { side(1.0).chain(side(-1.0)).collect() } else { side(-1.0).chain(side(1.0)).collect() };
        let rows = (0..ROWS).flat_map(|r| {
            let moved = random.index(d);
            let x = &x;
            (0..d).map(move |f| match (r % 3, f == moved) {
                (1, true) => x[f].next_up(),
                (2, true) => x[f].next_down(),
                _ => x[f],
            })
        });
        let rows = rows.collect();
        assert!(attack(&Case { d, k: 2, centroids, rows, centre: vec![0.0; d] }, 0, "in one direction")[2] > 0);
    }
}

unit_test!(many_centroids);
/// More centroids than scores are held at a time, and a number that fills neither a panel nor a tile.
fn many_centroids() {
    for (d, k) in [(3, 1_003), (17, 1_950)] {
        let [certain, _, rows] = attack(&case::<f32>("uniform", d, k, &mut Random(14)), 0, "many centroids");
        assert!(certain < rows);
    }
}

unit_test!(the_most_features);
/// As many features as there may be, all of one size: the integer sums are as large as they can be.
fn the_most_features() {
    let d = MOST_FEATURES;
    let centroids = [-1.0f32, 1.0, 0.999].iter().flat_map(|c| vec![*c; d]).collect();
    let rows = (0..ROWS).flat_map(|r| vec![[1.0f32, -1.0, 0.9995, 0.5][r % 4]; d]).collect();
    let [certain, ..] = attack(&Case { d, k: 3, centroids, rows, centre: vec![0.0; d] }, 0, "the most features");
    assert!(certain > 0);
}

unit_test!(rows_far_below_the_scale);
/// Rows whose numbers are far below those that the scale is made for, down to rows without a step.
fn rows_far_below_the_scale() {
    for (d, exponent) in [(2, -40), (129, -48), (300, -49), (2, -50), (129, -51), (300, -100)] {
        let small = 2f32.powi(exponent);
        let mut centroids = vec![0.0f32; 2 * d];
        centroids[d..].fill(small);
        let case = Case { d, k: 2, centroids, rows: vec![small; ROWS * d], centre: vec![0.0; d] };
        // The scale is that of rows of size 1.
        let off = -unit_exponent(f64::from(small));
        assert!(attack(&case, off, "far below")[2] > 0);
    }
}

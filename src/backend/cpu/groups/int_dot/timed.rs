//! Times the comparison of rows and centroids by integer copies. For benches (feature `bench`).

use std::time::Instant;

use super::*;
use crate::backend::cpu::filter::{Filter, ProductTable};
use crate::backend::cpu::product::{DotBlock, ProductScratch, ROWS};

/// Number of measurements. The least one counts, because other programs may take part of the machine.
const MEASURED: usize = 10;

/// Compares all blocks some times.
struct Repeat<'t> {
    rows: &'t IntegerRows,
    blocks: usize,
    times: usize,
    /// What every block is compared with.
    block: DotBlock<'t>,
    names: &'t ProductTable,
    scratch: &'t mut ProductScratch,
}

impl Task for Repeat<'_> {
    type Output = f64;

    #[inline(always)]
    fn run<V: Vector>(self) -> f64 {
        let mut least = f64::INFINITY;
        for _ in 0..MEASURED {
            let begin = Instant::now();
            for block in (0..self.times).flat_map(|_| 0..self.blocks) {
                let block = DotBlock { rows: self.rows.block(block * ROWS), ..self.block };
                self.scratch.find_candidates_by_int_dot::<V>(&block, self.names);
            }
            least = least.min(begin.elapsed().as_secs_f64());
        }
        least
    }
}

/// Seconds in which one thread compares a row with a centroid, both of `d` uniform features, on average. There are `k` centroids
/// and so many blocks of 64 rows. All blocks are compared `times` times in each measurement.
///
/// # Errors
/// [`KMeansError::NoMemory`](crate::KMeansError).
pub fn seconds_a_score(unit: DotUnit, [d, k, blocks]: [usize; 3], times: usize) -> Result<f64> {
    let mut state = 1u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    let centroids: Vec<f32> = memory::collected((0..k * d).map(|_| 0.4 + 0.2 * uniform()), GROUPS)?;
    let set = InstructionSet::detect();
    let groups = Partition::new(&centroids, d, 1, set, 1)?;
    let centre: Vec<f64> = memory::collected(groups.point(0).iter().map(|m| f64::from(*m)), GROUPS)?;
    let Filter::Product(names) = Filter::product(&centroids, d, &centre, &groups.order, set, 1)? else { return Ok(0.0) };
    let step = GroupStep::new(&groups, &centroids, false, None, set, 1)?;
    let mut by_copies = ByCopies::new(Copies { unit, exponent: unit_exponent(1.0) }, 1)?;
    by_copies.copy_centroids(&step, &centroids, &[], &[f64::INFINITY], set, 1)?;
    let mut rows = IntegerRows::new(blocks * ROWS, unit.lanes(d), 1)?;
    let mut x: Vec<f32> = memory::zeroed(d * ROWS, GROUPS)?;
    for block in 0..blocks {
        x.iter_mut().for_each(|x| *x = uniform());
        rows.fill(block * ROWS, &x, ROWS, &groups, 0, &by_copies.copies);
    }
    let (listed, table) = (step.listed(0, f64::INFINITY, None), &by_copies.tables[0]);
    let mut scratch = ProductScratch::new(k)?;
    let (rows, names, scratch) = (&rows, &names, &mut scratch);
    let block = DotBlock { rows: rows.block(0), count: ROWS, table, listed, unit };
    let seconds = set.run(Repeat { rows, blocks, times, block, names, scratch });
    Ok(seconds / (times * blocks * ROWS * k) as f64)
}

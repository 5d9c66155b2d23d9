//! Chooses the strategy of a fit on a GPU if the caller names none. The choice depends only on the shape and on one table of
//! measurements.
//!
//! ```text
//! time of a candidate = time(n) + (rows beyond the largest n measured one by one) * rate
//! rate                = time of one row, measured with very many rows
//! time(n)             = between the measured times of the next smaller and the next larger n:
//!                       2,000 rows, and 1 to 8 rounds (a round is one tile of 128 rows for each SM)
//!                       registers: on the straight line between the two times
//!                       tiles, which come in whole rounds: halfway between that line and the larger of the two times
//! between shapes      = straight lines of ln time over ln k, and then over ln d
//! ```
//! A candidate is asked for the time of the work that it really does ([`work`]). The candidates are all strategies that were
//! fastest for some measured shape. Of the papers' systems, `luigi-v4` and `lutz-fused` came closest: for 4 clusters of up to
//! 12 features they took 1.3 to 3.2 times and 1.4 to 3.5 times as long as the best. So they are not candidates. (For 10,000
//! rows of 2 features in 8 clusters, launches take most of the time. There `luigi-v4` is 5 % faster.) The choice ignores
//! weights, because fits with weights were not measured.

mod table;

use self::table::{PROCESSORS, Table};
use super::plan::{MOST_WITH_PANELS, PANELS_FROM, REGISTER_DIMENSIONS};
use crate::strategy::Strategy;

/// What the choice depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub n: usize,
    pub d: usize,
    pub k: usize,
    pub float64: bool,
    /// Bytes of shared memory that a block may have.
    pub shared: usize,
    /// Multiprocessors (SMs) of the GPU.
    pub processors: usize,
}

/// The strategies that the default chooses from.
pub const CANDIDATES: [Strategy; 7] = [
    Strategy::RegistersSingle,
    Strategy::RegistersGroups8,
    Strategy::RegistersGroups16,
    Strategy::Tiled32,
    Strategy::Tiled64,
    Strategy::Tiled128,
    Strategy::Tiled128Panels,
];
/// The first candidates use registers. They allow at most this many features.
const REGISTERS: usize = 3;
const LARGEST_REGISTERS: usize = REGISTER_DIMENSIONS[REGISTER_DIMENSIONS.len() - 1];

/// The strategy that a name stands for: the fastest of all candidates, or the fastest of a family. Any other name stands for
/// itself.
pub fn choose(strategy: Strategy, shape: &Shape) -> Strategy {
    let family = match strategy {
        Strategy::Default => 0..CANDIDATES.len(),
        Strategy::Registers => 0..REGISTERS,
        Strategy::Tiled => REGISTERS..CANDIDATES.len(),
        named => return named,
    };
    let panels = shape.shared >= PANELS_FROM && shape.k <= MOST_WITH_PANELS;
    let can = |&candidate: &usize| CANDIDATES[candidate] != Strategy::Tiled128Panels || panels;
    let times = family.filter(can).map(|candidate| (time(candidate, shape), CANDIDATES[candidate]));
    let least = times.min_by(|a, b| a.0.total_cmp(&b.0)).filter(|(time, _)| time.is_finite());
    // If no candidate can do the shape, the name of the family goes on. The error then shows this name.
    least.map_or(strategy, |(_, candidate)| candidate)
}

/// The predicted time of an iteration, in microseconds, on the GPU that was measured. If this GPU has more or fewer SMs, `n` is
/// scaled so that each SM has the same amount of work.
fn time(candidate: usize, &Shape { n, d, k, float64, processors, .. }: &Shape) -> f64 {
    if !is_tiled(candidate) && d > LARGEST_REGISTERS {
        return f64::INFINITY;
    }
    let n = n * PROCESSORS / processors.max(1);
    let table = Table::get();
    let rate = |float64| table.rate(candidate, float64, d, k);
    // Small numbers of rows were measured with float32 only. The time beyond the rate hardly depends on the type.
    let (few, rows) = table.of_few(candidate, n, d, k);
    let of_type = if float64 { rows as f64 * (rate(true) - rate(false)) } else { 0.0 };
    few + of_type + (n.saturating_sub(rows)) as f64 * rate(float64)
}

fn is_tiled(candidate: usize) -> bool {
    candidate >= REGISTERS
}

/// The features and clusters that a candidate really works on. Registers use the next larger width that they are compiled for.
/// But the largest width depends on the actual `d`. Tiles round `k` up.
fn work(candidate: usize, d: usize, k: usize) -> (usize, usize) {
    let compiled = || REGISTER_DIMENSIONS.into_iter().find(|&width| width >= d);
    match CANDIDATES[candidate] {
        Strategy::Tiled32 => (d, k.next_multiple_of(32)),
        Strategy::Tiled64 => (d, k.next_multiple_of(64)),
        Strategy::Tiled128 | Strategy::Tiled128Panels => (d, k.next_multiple_of(128)),
        _ => (compiled().filter(|&width| width < LARGEST_REGISTERS).unwrap_or(d), k),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(n: usize, d: usize, k: usize) -> Shape {
        Shape { n, d, k, float64: false, shared: 227 << 10, processors: PROCESSORS }
    }

    #[test]
    fn choices_fit_their_shapes() {
        for n in [1, 1_000, 100_000, 100_000_000] {
            for d in [1, 5, 12, 13, 20, 1_000, 100_000] {
                for k in [1, 2, 7, 33, 200, 5_000, 1_000_000] {
                    for shared in [99 << 10, 227 << 10] {
                        let shape = Shape { shared, ..shape(n, d, k) };
                        let default = choose(Strategy::Default, &shape);
                        let at = CANDIDATES.iter().position(|&candidate| candidate == default).unwrap();
                        assert!((d <= 12 || at >= REGISTERS) && (shared > 100 << 10 || default != Strategy::Tiled128Panels));
                        let registers = choose(Strategy::Registers, &shape);
                        assert_eq!(registers == Strategy::Registers, d > 12, "{d} {k}");
                    }
                }
            }
        }
        assert_eq!(choose(Strategy::Default, &shape(10_000_000, 4, 16)), Strategy::RegistersSingle);
        assert_eq!(choose(Strategy::Default, &shape(10_000, 2, 1_000)), Strategy::Tiled128);
        assert_eq!(choose(Strategy::Default, &shape(10_000_000, 2, 1_000)), Strategy::RegistersGroups16);
        assert_eq!(choose(Strategy::Default, &shape(300_000, 408, 5_000)), Strategy::Tiled128Panels);
        assert_eq!(choose(Strategy::Zechner, &shape(1, 1, 1)), Strategy::Zechner);
    }
}

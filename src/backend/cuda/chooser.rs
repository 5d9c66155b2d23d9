//! Which strategy a fit on a GPU takes by default: a pure function of its shape, over one table of measurements.
//!
//! ```text
//! time of a candidate = excess(n) + n * rate of many rows
//! excess              = what 2,000, 10,000 and 80,000 rows took longer than that, and straight lines between; that of 80,000 beyond;
//!                       below 2,000 a block or two to a multiprocessor take as long however few the rows
//! rate                = straight lines between measured neighbours, ln time over ln k, then over ln d
//! ```
//! A candidate is asked about the work that it does: registers about the next width that they are compiled for, tiles about k
//! filled up to whole tiles. Candidates are what ever was the fastest: of the papers' systems `luigi-v4` and `lutz-fused` came
//! closest, at 1.3 to 3.2 and 1.4 to 3.5 times the best for 4 clusters of up to 12 features, and are not among them (10,000 rows of 2
//! features in 8 clusters, where launches are most of it, are 5 % faster with `luigi-v4`). Weights are not in it: they were not
//! measured.

mod measured;

use self::measured::{FEW, FEW_ROWS, FEWEST, FEWEST_ROWS, MANY, Row, SOME, SOME_ROWS};
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
}

/// What the default may take.
pub const CANDIDATES: [Strategy; 7] = [
    Strategy::RegistersSingle,
    Strategy::RegistersGroups8,
    Strategy::RegistersGroups16,
    Strategy::Tiled32,
    Strategy::Tiled64,
    Strategy::Tiled128,
    Strategy::Tiled128Panels,
];
/// Tables of so many rows, in their order; beyond them [`MANY`].
const TABLES: [(f64, &[Row]); 3] = [(FEWEST_ROWS, FEWEST), (FEW_ROWS, FEW), (SOME_ROWS, SOME)];
/// Registers come first.
const REGISTERS: usize = 3;

/// The strategy that a name stands for: the fastest of all, or of a family; others stand for themselves.
pub fn choose(strategy: Strategy, shape: &Shape) -> Strategy {
    let family = match strategy {
        Strategy::Default => 0..CANDIDATES.len(),
        Strategy::Registers => 0..REGISTERS,
        Strategy::Tiled => REGISTERS..CANDIDATES.len(),
        named => return named,
    };
    let panels = shape.shared >= PANELS_FROM && shape.k <= MOST_WITH_PANELS;
    let can = |&candidate: &usize| CANDIDATES[candidate] != Strategy::Tiled128Panels || panels;
    let times = family.filter(can).map(|candidate| (seconds(candidate, shape), CANDIDATES[candidate]));
    let least = times.min_by(|a, b| a.0.total_cmp(&b.0)).filter(|(time, _)| time.is_finite());
    // Registers that cannot do the shape are refused by their family's name.
    least.map_or(strategy, |(_, candidate)| candidate)
}

/// The predicted time of an iteration.
fn seconds(candidate: usize, &Shape { n, d, k, float64, .. }: &Shape) -> f64 {
    let rate = |table, float64| rate(table, candidate, float64, d, k);
    let many = rate(MANY, float64);
    if many == f64::INFINITY {
        return many;
    }
    // Of fewer rows, float32 alone was measured: the excess hardly depends on the type.
    let excess = TABLES.map(|(rows, table)| (rows, rows * (rate(table, false) - rate(MANY, false)).max(0.0)));
    let n = (n as f64).max(TABLES[0].0);
    let after = excess.iter().position(|(rows, _)| n < *rows);
    let excess = match after {
        Some(after) => {
            let ((low, from), (high, to)) = (excess[after - 1], excess[after]);
            from + (n - low) / (high - low) * (to - from)
        }
        None => excess[excess.len() - 1].1,
    };
    1e-12 * (excess + n * many)
}

/// Features and clusters that a candidate works on.
fn work(candidate: usize, d: usize, k: usize) -> (usize, usize) {
    match CANDIDATES[candidate] {
        Strategy::Tiled32 => (d, k.next_multiple_of(32)),
        Strategy::Tiled64 => (d, k.next_multiple_of(64)),
        Strategy::Tiled128 | Strategy::Tiled128Panels => (d, k.next_multiple_of(128)),
        _ => (REGISTER_DIMENSIONS.into_iter().find(|&width| width >= d).unwrap_or(d), k),
    }
}

/// Picoseconds a row.
fn rate(table: &[Row], candidate: usize, float64: bool, d: usize, k: usize) -> f64 {
    let (width, filled) = work(candidate, d, k);
    let rows = || table.iter().filter(|row| row.2 == float64);
    let of_width = |width: usize| {
        let times = || rows().filter(|row| row.0 == width).map(|row| (row.1, f64::from(row.3[candidate]).ln()));
        let as_full = |&(other, _): &(usize, f64)| work(candidate, d, other).1 == filled;
        // Of those that fill the same tiles, the nearest.
        let nearest = times().filter(as_full).min_by_key(|(other, _)| other.abs_diff(k));
        nearest
            .map_or_else(|| between(times().map(|(other, time)| (work(candidate, d, other).1, time)), filled), |(_, time)| time)
    };
    // At most the two measured widths around this one are looked at.
    let below = rows().map(|row| row.0).filter(|&other| other <= width).max();
    let above = rows().map(|row| row.0).filter(|&other| other >= width).min();
    between([below, above].into_iter().flatten().map(|width| (width, of_width(width))), width).exp()
}

/// The value at `x` on the straight line, over ln x, between the points around it; below all of them that of the first; beyond them
/// the time grows with the work: the last one's plus the logarithm of how much more it is.
fn between(points: impl Iterator<Item = (usize, f64)>, x: usize) -> f64 {
    let (mut below, mut above) = (None::<(usize, f64)>, None::<(usize, f64)>);
    for point in points {
        if point.0 <= x && below.is_none_or(|below| point.0 >= below.0) {
            below = Some(point);
        }
        if point.0 >= x && above.is_none_or(|above| point.0 < above.0) {
            above = Some(point);
        }
    }
    match (below, above) {
        (Some(below), Some(above)) if above.0 > below.0 => {
            let ln = |x: usize| (x as f64).ln();
            let share = (ln(x) - ln(below.0)) / (ln(above.0) - ln(below.0));
            // What cannot be done on one side is not done in between.
            if below.1.is_finite() && above.1.is_finite() { below.1 + share * (above.1 - below.1) } else { f64::INFINITY }
        }
        (Some((last, value)), None) => value + (x as f64 / last as f64).ln(),
        (Some((_, value)), _) | (None, Some((_, value))) => value,
        (None, None) => f64::INFINITY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(n: usize, d: usize, k: usize) -> Shape {
        Shape { n, d, k, float64: false, shared: 227 << 10 }
    }

    /// Measured shapes get what was the fastest there, or what was hardly slower.
    #[test]
    fn the_choice_loses_little_where_it_was_measured() {
        for (table, n) in [(FEWEST, 2_000), (FEW, 10_000), (SOME, 80_000), (MANY, 4_000_000)] {
            for &(d, k, float64, times) in table {
                let chosen = choose(Strategy::Default, &Shape { float64, ..shape(n, d, k) });
                let at = CANDIDATES.iter().position(|&candidate| candidate == chosen).unwrap();
                let best = times.iter().copied().fold(f32::INFINITY, f32::min);
                assert!(times[at] <= 1.06 * best, "n {n}, d {d}, k {k}, {float64}: {chosen} {} against {best}", times[at]);
            }
        }
    }

    #[test]
    fn lines_go_through_their_points() {
        let points = || [(1, 0.0), (4, 2.0), (16, f64::INFINITY)].into_iter();
        assert_eq!(
            [1, 2, 4, 8, 16, 99].map(|x| between(points(), x)),
            [0.0, 1.0, 2.0, f64::INFINITY, f64::INFINITY, f64::INFINITY]
        );
        assert_eq!(between([(3, 5.0)].into_iter(), 1), 5.0);
        assert_eq!(between([(3, 5.0)].into_iter(), 6), 5.0 + 2.0f64.ln());
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

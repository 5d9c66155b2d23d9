//! The measurements behind the choice, and what lies between them.
//!
//! `h200.csv`: microseconds an iteration of each of [`CANDIDATES`], on one H200, of ten blobs (Lutz et al. 2018, section 6.1) that
//! start from rows of theirs: the mean of all iterations but the first, the fastest of some fits. `cargo bench --no-default-features
//! --features cuda --bench gpu -- --choose NxDxKxITERATIONS ...` prints such rows; 21 November 2026.

use std::sync::OnceLock;

use super::super::plan::{centroids_fit, group_of};
use super::{CANDIDATES, work};

const H200: &str = include_str!("h200.csv");
/// Its multiprocessors.
pub const PROCESSORS: usize = 132;
/// Rows of a tile of each multiprocessor, and the most such rounds that were measured one by one.
pub const ROUND: usize = 128 * PROCESSORS;
const ROUNDS: usize = 8;

/// The times of the candidates at so many features and clusters, as logarithms; infinite for one that cannot do the shape.
struct Row {
    d: usize,
    k: usize,
    ln_times: [f64; CANDIDATES.len()],
}

/// Numbers of rows, in their order, and what was measured of each.
pub struct Table {
    levels: Vec<(usize, Vec<Row>)>,
    /// Of very many rows, a row; float32 and float64.
    rates: [Vec<Row>; 2],
}

impl Table {
    pub fn get() -> &'static Self {
        static TABLE: OnceLock<Table> = OnceLock::new();
        TABLE.get_or_init(|| Self::parse(H200))
    }

    fn parse(text: &str) -> Self {
        let mut table = Self { levels: Vec::new(), rates: [Vec::new(), Vec::new()] };
        for line in text.lines().skip(1) {
            let mut fields = line.split(',');
            let mut field = || fields.next().unwrap_or_default();
            let mut number = || field().parse::<usize>().expect("a whole number");
            let (n, d, k) = (number(), number(), number());
            let float64 = field() == "Float64";
            let mut ln_times = [0; CANDIDATES.len()].map(|_: u8| field().parse::<f64>().map_or(f64::INFINITY, f64::ln));
            if n > ROUNDS * ROUND {
                ln_times.iter_mut().for_each(|time| *time -= (n as f64).ln());
                table.rates[usize::from(float64)].push(Row { d, k, ln_times });
            } else {
                if table.levels.last().is_none_or(|(last, _)| *last != n) {
                    table.levels.push((n, Vec::new()));
                }
                table.levels.last_mut().expect("one was added").1.push(Row { d, k, ln_times });
            }
        }
        table
    }

    /// Microseconds of an iteration of many rows, a row.
    pub fn rate(&self, candidate: usize, float64: bool, d: usize, k: usize) -> f64 {
        time(&self.rates[usize::from(float64)], candidate, d, k)
    }

    /// Microseconds of an iteration of so few float32 rows, and how many rows that are: at most those that were measured.
    pub fn of_few(&self, candidate: usize, n: usize, d: usize, k: usize) -> (f64, usize) {
        let time = |level: usize| time(&self.levels[level].1, candidate, d, k);
        let last = self.levels.len() - 1;
        let n = n.clamp(self.levels[0].0, self.levels[last].0);
        let above = self.levels.partition_point(|(rows, _)| *rows < n);
        if self.levels[above].0 == n {
            return (time(above), n);
        }
        let ((low, high), (from, to)) = ((self.levels[above - 1].0, self.levels[above].0), (time(above - 1), time(above)));
        let line = from + (n - low) as f64 / (high - low) as f64 * (to - from);
        // Tiles come in whole rounds, what follows them does not.
        let steps = super::is_tiled(candidate) && high > ROUND;
        (if steps { 0.5 * (line + from.max(to)) } else { line }, n)
    }
}

/// What lies between the rows around a shape.
fn time(rows: &[Row], candidate: usize, d: usize, k: usize) -> f64 {
    let (width, filled) = work(candidate, d, k);
    let of_width = |width: usize| {
        let times = || rows.iter().filter(|row| row.d == width).map(|row| (row.k, row.ln_times[candidate]));
        if super::is_tiled(candidate) {
            // Of those that fill the same tiles, the nearest that is not smaller.
            let full = times().filter(|&(other, _)| work(candidate, d, other).1 == filled);
            let nearest = full.min_by_key(|&(other, _)| (other < k, other.abs_diff(k)));
            return nearest.map_or_else(
                || between(times().map(|(other, time)| (work(candidate, d, other).1, time)), filled),
                |(_, time)| time,
            );
        }
        // Of those whose centroids go where these go, if there are any.
        let group = group_of(CANDIDATES[candidate]);
        let fit = centroids_fit(d, k, group);
        let alike = || times().filter(|&(other, _)| centroids_fit(width, other, group) == fit);
        if alike().next().is_some() { between(alike(), k) } else { between(times(), k) }
    };
    // At most the two measured widths around this one are looked at.
    let can = || rows.iter().filter(|row| row.ln_times[candidate].is_finite()).map(|row| row.d);
    let below = can().filter(|&other| other <= width).max();
    let above = can().filter(|&other| other >= width).min();
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
            below.1 + (ln(x) - ln(below.0)) / (ln(above.0) - ln(below.0)) * (above.1 - below.1)
        }
        (Some((last, value)), None) => value + (x as f64 / last as f64).ln(),
        (Some((_, value)), _) | (None, Some((_, value))) => value,
        (None, None) => f64::INFINITY,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Shape, choose};
    use super::*;
    use crate::strategy::Strategy;

    #[test]
    fn columns_are_the_candidates() {
        let head = H200.lines().next().unwrap();
        assert_eq!(head.split(',').skip(4).collect::<Vec<_>>(), CANDIDATES.map(Strategy::name));
    }

    /// Measured shapes get what was the fastest there, or what was hardly slower.
    #[test]
    fn the_choice_loses_little_where_it_was_measured() {
        let table = Table::get();
        assert_eq!(table.levels.iter().map(|level| level.0).collect::<Vec<_>>()[..3], [2_000, ROUND, 2 * ROUND]);
        let levels = table.levels.iter().map(|(n, rows)| (*n, false, rows));
        let rates = [false, true].map(|float64| (10_000_000, float64, &table.rates[usize::from(float64)]));
        for (n, float64, rows) in levels.chain(rates) {
            assert!(rows.len() > 70);
            for &Row { d, k, ln_times } in rows {
                let shape = Shape { n, d, k, float64, shared: 227 << 10, processors: PROCESSORS };
                let chosen = choose(Strategy::Default, &shape);
                let at = CANDIDATES.iter().position(|&candidate| candidate == chosen).unwrap();
                let best = ln_times.iter().copied().fold(f64::INFINITY, f64::min);
                assert!(ln_times[at] <= best + 0.06, "{shape:?}: {chosen} {} against {best}", ln_times[at]);
            }
        }
    }

    #[test]
    fn lines_go_through_their_points() {
        let points = || [(1, 0.0), (4, 2.0)].into_iter();
        assert_eq!([1, 2, 4].map(|x| between(points(), x)), [0.0, 1.0, 2.0]);
        assert_eq!(between([(3, 5.0)].into_iter(), 1), 5.0);
        assert_eq!(between([(3, 5.0)].into_iter(), 6), 5.0 + 2.0f64.ln());
        assert_eq!(between([].into_iter(), 6), f64::INFINITY);
    }
}

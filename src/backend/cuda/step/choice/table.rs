//! The measurements behind the choice, and the interpolation between them.
//!
//! `h200.csv`: microseconds for one iteration of each candidate on one H200. The head names the candidates. The data are ten
//! blobs (Lutz et al. 2018, section 6.1), and the fits start from rows of the data. The time is the mean of all iterations but
//! the first, in the fastest of several fits. `cargo bench --no-default-features --features bench,papers --bench kmeans --
//! gpu --choose NxDxKxITERATIONS ...` prints such rows. Measured on 21 November 2026. Rows are left out where their neighbours
//! give these times within a few percent.

use std::sync::OnceLock;

use crate::backend::cuda::step::TimeScaling;
use crate::base::strategy::Strategy;

const H200: &str = include_str!("h200.csv");
/// Multiprocessors (SMs) of the H200.
pub const PROCESSORS: usize = 132;
/// The rows of one round: one tile for each SM. And the largest number of rounds that was measured separately.
pub const ROUND: usize = 128 * PROCESSORS;
const ROUNDS: usize = 8;

/// The times of all candidates for these features and clusters, as logarithms. The time is infinite if the candidate cannot do
/// the shape.
struct ShapeTimes {
    d: usize,
    k: usize,
    ln_times: Vec<f64>,
}

/// The measured numbers of rows, in ascending order, with their times.
pub struct TimeTable {
    /// The names of the candidates.
    columns: Vec<&'static str>,
    levels: Vec<(usize, Vec<ShapeTimes>)>,
    /// The time of one row, measured with very many rows: for float32 and for float64.
    rates: [Vec<ShapeTimes>; 2],
}

impl TimeTable {
    pub fn get() -> &'static Self {
        static TABLE: OnceLock<TimeTable> = OnceLock::new();
        TABLE.get_or_init(|| Self::parse(H200))
    }

    /// The names of the candidates that were measured.
    pub fn columns(&self) -> &[&'static str] {
        &self.columns
    }

    /// The column of a candidate, if it was measured.
    pub fn column(&self, strategy: Strategy) -> Option<usize> {
        self.columns.iter().position(|name| *name == strategy.name())
    }

    fn parse(text: &'static str) -> Self {
        let columns: Vec<_> = text.lines().next().unwrap_or_default().split(',').skip(4).collect();
        let count = columns.len();
        let mut table = Self { columns, levels: Vec::new(), rates: [Vec::new(), Vec::new()] };
        for line in text.lines().skip(1) {
            let mut fields = line.split(',');
            let mut field = || fields.next().unwrap_or_default();
            let mut number = || field().parse::<usize>().expect("a whole number");
            let (n, d, k) = (number(), number(), number());
            let float64 = field() == "Float64";
            let mut ln_times: Vec<f64> = (0..count).map(|_| field().parse::<f64>().map_or(f64::INFINITY, f64::ln)).collect();
            if n > ROUNDS * ROUND {
                ln_times.iter_mut().for_each(|time| *time -= (n as f64).ln());
                table.rates[usize::from(float64)].push(ShapeTimes { d, k, ln_times });
            } else {
                if table.levels.last().is_none_or(|(last, _)| *last != n) {
                    table.levels.push((n, Vec::new()));
                }
                table.levels.last_mut().expect("one was added").1.push(ShapeTimes { d, k, ln_times });
            }
        }
        table
    }

    /// Microseconds for one row of an iteration over many rows.
    pub fn rate(&self, column: usize, work: &dyn TimeScaling, float64: bool, d: usize, k: usize) -> f64 {
        time(&self.rates[usize::from(float64)], column, work, d, k)
    }

    /// Microseconds for an iteration over `n` float32 rows, but at most as many rows as were measured. Also returns that number
    /// of rows.
    pub fn of_few(&self, column: usize, work: &dyn TimeScaling, n: usize, d: usize, k: usize) -> (f64, usize) {
        let time = |level: usize| time(&self.levels[level].1, column, work, d, k);
        let last = self.levels.len() - 1;
        let n = n.clamp(self.levels[0].0, self.levels[last].0);
        let above = self.levels.partition_point(|(rows, _)| *rows < n);
        if self.levels[above].0 == n {
            return (time(above), n);
        }
        let ((low, high), (from, to)) = ((self.levels[above - 1].0, self.levels[above].0), (time(above - 1), time(above)));
        let line = from + (n - low) as f64 / (high - low) as f64 * (to - from);
        // Tiles come in whole rounds, but the kernels after the assign do not.
        let steps = work.in_rounds() && high > ROUND;
        (if steps { 0.5 * (line + from.max(to)) } else { line }, n)
    }
}

/// The time for a shape, interpolated between the measured shapes around it.
fn time(rows: &[ShapeTimes], column: usize, work: &dyn TimeScaling, d: usize, k: usize) -> f64 {
    let (width, filled) = work.filled(d, k);
    let of_width = |width: usize| {
        let times = || rows.iter().filter(|row| row.d == width).map(|row| (row.k, row.ln_times[column]));
        if work.in_rounds() {
            // If measured shapes fill the same tiles, take the nearest `k` among them, and prefer one that is not smaller.
            let full = times().filter(|&(other, _)| work.filled(d, other).1 == filled);
            let nearest = full.min_by_key(|&(other, _)| (other < k, other.abs_diff(k)));
            return nearest.map_or_else(
                || between(times().map(|(other, time)| (work.filled(d, other).1, time)), filled),
                |(_, time)| time,
            );
        }
        // Use shapes whose centroids are in the same memory as here (shared memory or not), if there are any.
        let fit = work.centroids_in_shared(d, k);
        let alike = || times().filter(|&(other, _)| work.centroids_in_shared(width, other) == fit);
        if alike().next().is_some() { between(alike(), k) } else { between(times(), k) }
    };
    // Only the nearest measured widths below and above this one are used.
    let can = || rows.iter().filter(|row| row.ln_times[column].is_finite()).map(|row| row.d);
    let below = can().filter(|&other| other <= width).max();
    let above = can().filter(|&other| other >= width).min();
    between([below, above].into_iter().flatten().map(|width| (width, of_width(width))), width).exp()
}

/// The value at `x` on the straight line, over ln x, between the two points around it. Below all points it is the value of the
/// first point. Above all points the time grows with the work: it is the value of the last point plus the logarithm of the
/// ratio of the work.
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

#[cfg(feature = "tests")]
mod tests {
    use super::super::choose_from;
    use super::super::tests::{H200, shape};
    use super::*;
    use crate::backend::cuda::shape::{FitShape, GpuSize};

    /// A GPU that has no candidate whose time is predicted in another way.
    const GPU: GpuSize = GpuSize { untrusted: [true; 2], ..H200 };

    unit_test!(columns_are_candidates);
    fn columns_are_candidates() {
        let names: Vec<&str> =
            crate::backend::cuda::step::list::candidates::<f32>().iter().map(|c| c.strategy().name()).collect();
        assert!(TimeTable::get().columns.iter().all(|name| names.contains(name)) && TimeTable::get().columns.len() == 7);
    }

    unit_test!(the_choice_loses_little_where_it_was_measured);
    /// For each measured shape the choice is the fastest candidate, or one that is hardly slower.
    fn the_choice_loses_little_where_it_was_measured() {
        let table = TimeTable::get();
        assert_eq!(table.levels.iter().map(|level| level.0).collect::<Vec<_>>()[..3], [2_000, ROUND, 2 * ROUND]);
        let levels = table.levels.iter().map(|(n, rows)| (*n, false, rows));
        let rates = [false, true].map(|float64| (10_000_000, float64, &table.rates[usize::from(float64)]));
        for (n, float64, rows) in levels.chain(rates) {
            assert!(rows.len() > 70);
            for ShapeTimes { d, k, ln_times } in rows {
                let shape = FitShape { float64, ..shape(n, *d, *k) };
                // The grid, which copies the rows, is not in the table.
                let chosen = choose_from::<f32>(Strategy::Default, &shape, GPU, false).unwrap().candidate.strategy();
                let at = table.column(chosen).unwrap();
                let best = ln_times.iter().copied().fold(f64::INFINITY, f64::min);
                assert!(ln_times[at] <= best + 0.06, "{shape:?}: {chosen} {} against {best}", ln_times[at]);
            }
        }
    }

    unit_test!(lines_go_through_their_points);
    fn lines_go_through_their_points() {
        let points = || [(1, 0.0), (4, 2.0)].into_iter();
        assert_eq!([1, 2, 4].map(|x| between(points(), x)), [0.0, 1.0, 2.0]);
        assert_eq!(between([(3, 5.0)].into_iter(), 1), 5.0);
        assert_eq!(between([(3, 5.0)].into_iter(), 6), 5.0 + 2.0f64.ln());
        assert_eq!(between([].into_iter(), 6), f64::INFINITY);
    }
}

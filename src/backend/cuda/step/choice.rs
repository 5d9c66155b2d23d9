//! Chooses the strategy of a fit on a GPU if the caller names none. The choice depends only on the shape and the GPU: on one
//! table of measurements, or for tensor cores and the grid on a formula ([`Candidate::predicted`]).
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
//! A candidate is asked for the time of the work that it really does ([`TimeScaling::filled`](super::TimeScaling::filled)). The table holds
//! every candidate that was fastest for at least one measured shape. Of the papers' systems, `luigi-v4` and `lutz-fused` came
//! closest: for 4 clusters of up to 12 features they took 1.3 to 3.2 times and 1.4 to 3.5 times as long as the best. So they are
//! never chosen by default. (For 10,000 rows of 2 features in 8 clusters, launches take most of the time. There `luigi-v4` is 5 %
//! faster.) The choice ignores weights, because fits with weights were not measured.

mod table;

pub use self::table::PROCESSORS;
use self::table::TimeTable;
use super::list::candidates;
#[cfg(feature = "papers")]
use super::tiled::Tiled;
use super::{Candidate, Refusal};
use crate::backend::cuda::device::Plain;
use crate::backend::cuda::shape::{FitShape, GpuSize};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::strategy::Strategy;

/// The candidate that a fit takes.
pub struct Chosen<T> {
    pub candidate: Box<dyn Candidate<T>>,
    /// The predicted time of an iteration, in microseconds. None if the candidate was named or has not been measured.
    pub microseconds: Option<f64>,
}

/// The candidate that a name stands for: the fastest of all, or the fastest of a family. Any other name stands for itself.
pub fn choose<T: Float + Plain>(strategy: Strategy, shape: &FitShape, gpu: GpuSize) -> Result<Chosen<T>> {
    choose_from(strategy, shape, gpu, true)
}

/// As [`choose`]. `copies`: whether the default may be one that copies the rows.
pub fn choose_from<T: Float + Plain>(strategy: Strategy, shape: &FitShape, gpu: GpuSize, copies: bool) -> Result<Chosen<T>> {
    let (mut best, mut least, mut refusal) = (None, f64::INFINITY, None);
    for candidate in candidates::<T>() {
        let named = candidate.strategy() == strategy;
        let known = candidate.work().is_some() || candidate.predicted(shape, gpu).is_some();
        let may = known && (strategy == Strategy::Default || candidate.family() == Some(strategy));
        if !named && !may || strategy == Strategy::Default && !copies && candidate.copies_rows() {
            continue;
        }
        let in_chunks = shape.chunk < shape.rows && !candidate.streams();
        let supported = if in_chunks { Err(Refusal::of_chunks()) } else { candidate.supports(shape, gpu) };
        if let Err(why) = supported {
            refusal.get_or_insert(why);
            continue;
        }
        if named {
            return Ok(Chosen { candidate, microseconds: None });
        }
        let time = time(candidate.as_ref(), shape, gpu);
        if time < least {
            (best, least) = (Some(candidate), time);
        }
    }
    match (best, refusal) {
        (Some(candidate), _) => Ok(Chosen { candidate, microseconds: Some(least) }),
        (None, Some(refusal)) => Err(refusal.of(strategy)),
        (None, None) => unreachable!("tiles can do any shape, and every other name has a candidate"),
    }
}

/// The fastest variant of tiles.
#[cfg(feature = "papers")]
pub fn tiled_for<T: Float + Plain>(shape: &FitShape, gpu: GpuSize) -> Tiled {
    let time = |variant: &Tiled| time::<T>(variant, shape, gpu);
    Tiled::ALL.into_iter().min_by(|a, b| time(a).total_cmp(&time(b))).unwrap_or(Tiled::WIDTH_128)
}

/// The strategies that the default chooses from, in the order of the table.
pub fn measured() -> Vec<Strategy> {
    let names = TimeTable::get().columns();
    names.iter().filter_map(|name| Strategy::ALL.iter().copied().find(|strategy| strategy.name() == *name)).collect()
}

/// The predicted time of an iteration, in microseconds, on the GPU that was measured. If this GPU has more or fewer SMs, `n` is
/// scaled so that each SM has the same amount of work. The time is infinite if the candidate was not measured.
pub fn time<T>(candidate: &dyn Candidate<T>, shape: &FitShape, gpu: GpuSize) -> f64 {
    if let Some(time) = candidate.predicted(shape, gpu) {
        return time;
    }
    let table = TimeTable::get();
    let Some((column, work)) = table.column(candidate.strategy()).zip(candidate.work()) else { return f64::INFINITY };
    let FitShape { chunk, d, k, float64, .. } = *shape;
    let n = chunk.saturating_mul(PROCESSORS) / gpu.processors.max(1);
    let rate = |float64| table.rate(column, work, float64, d, k);
    // Small numbers of rows were measured with float32 only. The time beyond the rate hardly depends on the type.
    let (few, rows) = table.of_few(column, work, n, d, k);
    let of_type = if float64 { rows as f64 * (rate(true) - rate(false)) } else { 0.0 };
    few + of_type + (n.saturating_sub(rows)) as f64 * rate(float64)
}

#[cfg(feature = "tests")]
pub mod tests {
    use super::*;

    pub fn shape(n: usize, d: usize, k: usize) -> FitShape {
        FitShape { rows: n, chunk: n, d, k, weighted: false, float64: false, half: false, limbs: 1, more_copies: false }
    }

    pub const H200: GpuSize = GpuSize { processors: PROCESSORS, shared: 227 << 10, generation: 90, untrusted: [false; 2] };

    fn chosen(strategy: Strategy, n: usize, d: usize, k: usize) -> Strategy {
        choose::<f32>(strategy, &shape(n, d, k), H200).unwrap().candidate.strategy()
    }

    unit_test!(choices_fit_their_shapes);
    fn choices_fit_their_shapes() {
        for n in [1, 1_000, 100_000, 100_000_000] {
            for d in [1, 5, 12, 13, 20, 1_000, 100_000] {
                for k in [1, 2, 7, 33, 200, 5_000, 1_000_000] {
                    for shared in [99 << 10, 227 << 10] {
                        let (shape, gpu) = (shape(n, d, k), GpuSize { shared, ..H200 });
                        let default = choose::<f32>(Strategy::Default, &shape, gpu).unwrap();
                        assert!(default.microseconds.is_some());
                        let ours = [Strategy::Columns, Strategy::Tiled, Strategy::Tensor];
                        let family = default.candidate.family().unwrap_or(default.candidate.strategy());
                        assert!(d <= 12 || ours.contains(&family));
                        assert!(family != Strategy::Grid || d <= 4);
                        assert!(family != Strategy::Columns || (9..=1_000).contains(&d) && k <= 32);
                        assert_eq!(choose::<f32>(Strategy::Registers, &shape, gpu).is_err(), d > 12, "{d} {k}");
                    }
                }
            }
        }
        assert_eq!(chosen(Strategy::Default, 10_000_000, 4, 16), Strategy::RegistersSingle);
        assert_eq!(chosen(Strategy::Default, 10_000, 2, 1_000), Strategy::Tiled128);
        assert_eq!(chosen(Strategy::Default, 10_000_000, 2, 1_000), Strategy::Grid);
        assert_ne!(chosen(Strategy::Default, 10_000_000, 2, 8), Strategy::Grid);
        let lean = choose_from::<f32>(Strategy::Default, &shape(10_000_000, 2, 1_000), H200, false).unwrap();
        assert_eq!(lean.candidate.strategy(), Strategy::RegistersGroups);
        assert_eq!(chosen(Strategy::Default, 300_000, 408, 5_000), Strategy::TensorWgmma);
        assert_eq!(chosen(Strategy::Default, 1_000_000, 128, 64), Strategy::TensorWgmma);
        assert_eq!(chosen(Strategy::Default, 1_000_000, 128, 32), Strategy::TensorWgmma);
        assert_eq!(chosen(Strategy::Default, 1_000_000, 128, 24), Strategy::Tiled32);
        assert_eq!(chosen(Strategy::Default, 160_000, 768, 32), Strategy::TensorWgmma);
        assert_eq!(chosen(Strategy::Tensor, 300_000, 408, 5_000), Strategy::TensorWgmma);
        let of = |gpu| choose::<f32>(Strategy::Default, &shape(300_000, 408, 5_000), gpu).unwrap().candidate.strategy();
        for (generation, shared) in [(80, 163 << 10), (86, 99 << 10), (89, 99 << 10), (100, 227 << 10), (120, 99 << 10)] {
            assert_eq!(of(GpuSize { generation, shared, ..H200 }), Strategy::TensorMma, "{generation}");
        }
        assert_eq!(of(GpuSize { untrusted: [true, false], ..H200 }), Strategy::TensorMma);
        assert_eq!(of(GpuSize { untrusted: [true; 2], ..H200 }), Strategy::Tiled128Panels);
        assert_eq!(chosen(Strategy::Default, 4_000_000, 48, 8), Strategy::Columns);
        assert_eq!(chosen(Strategy::Default, 20_000_000, 24, 4), Strategy::Columns);
        assert_eq!(chosen(Strategy::Tiled32, 1, 1, 1), Strategy::Tiled32);
        let in_chunks = FitShape { chunk: 1_000, ..shape(10_000_000, 2, 1_000) };
        assert_ne!(choose::<f32>(Strategy::Default, &in_chunks, H200).unwrap().candidate.strategy(), Strategy::Grid);
        for strategy in [
            Strategy::Grid,
            #[cfg(feature = "papers")]
            Strategy::Yinyang,
        ] {
            let error = choose::<f32>(strategy, &in_chunks, H200).err().unwrap().to_string();
            assert!(error.contains(&format!("rows that fit on the GPU for \"{strategy}\"")), "{error}");
        }
        let error = choose::<f32>(Strategy::Registers, &shape(1, 13, 1), H200).err().unwrap().to_string();
        assert!(error.contains("at most 12 features for \"registers\", got 13"), "{error}");
    }
}

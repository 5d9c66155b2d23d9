//! What a part does for each call.
//!
//! ```text
//! start   rows arrive                         -> passes over them
//! begin   what is known about all rows comes  -> a session over the kept rows
//! ```

use std::sync::Arc;

use super::by_values;
use super::message::{Call, Facts, Reply, SomeRows, Start, Sums, refused};
use super::part::Feed;
use crate::backend::cpu::CpuSession;
#[cfg(feature = "cuda")]
use crate::backend::cuda;
use crate::backend::select::{self, Choice, Job, Place, Request, Shape};
use crate::backend::{DrawBy, Picked, Scales, Session};
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::base::params::{Candidates, Device, Init, KMeans, Metric, Params};
use crate::base::strategy::Strategy;
use crate::exact::cluster_sums::ClusterSums;
use crate::fit::engine::Engine;
use crate::input::features::{Column, Features};
use crate::input::tile::{self, Part, WeightScale};
use crate::input::transform::RowTransform;
use crate::simd::InstructionSet;
use crate::statistics::Statistics;
use crate::statistics::given::{Given, HostRows};
use crate::statistics::passes::{HostPasses, Passes};
use crate::statistics::survey::Survey;

/// What errors call the numbers of a message.
const MESSAGE: &str = "a message of a part";

/// Answers requests with these rows.
pub fn serve<T: Engine>(
    feed: &mut Feed,
    features: &Features<'_, T>,
    weights: Option<&Column<'_, f64>>,
    set: InstructionSet,
    computed: bool,
) {
    while let Some(call) = feed.next_call() {
        match call {
            Call::Start(start) => {
                let facts = Facts {
                    names: features.names().clone(),
                    float64: !T::IS_F32,
                    rows: features.n_rows() as u64,
                    weighted: weights.is_some(),
                    computed,
                };
                let metric = if start.cosine { Metric::Cosine } else { Metric::Euclidean };
                let row_transform = RowTransform::new(start.factors.clone(), metric);
                let mut parts = [Part::new(features.transformed_by(row_transform), weights.cloned())];
                match HostRows(&parts).count().and_then(|_| place(&mut parts, &start)) {
                    Ok(place) => {
                        feed.reply(Ok(Reply::Facts(facts)));
                        if let Err(error) = started(feed, &mut parts, &start, &place, set)
                            && feed.next_call().is_some()
                        {
                            feed.reply(Err(error));
                        }
                    }
                    Err(error) => feed.reply(Err(error)),
                }
            }
            other => feed.reply(Err(out_of_turn(&other))),
        }
    }
}

/// Chooses where a part works on its rows.
fn place<T: Engine>(parts: &mut [Part<'_, T>; 1], start: &Start) -> Result<Choice> {
    if start.cosine || start.factors.is_some() {
        // Such rows have more bits.
        parts[0].features = parts[0].features.widened();
    }
    let part = &parts[0];
    let (of_round, rounds) = start.candidates;
    let shape = Shape {
        job: Job::Fit,
        rows: part.features.n_rows() as u64,
        features: part.features.n_features(),
        clusters: start.clusters,
        float64: !T::IS_F32,
        half: tile::half(&parts[..]).is_some(),
        weighted: part.weights.is_some(),
        candidates: Candidates { of_round, rounds },
    };
    // A GPU has nothing to do without rows.
    let device = if shape.rows == 0 { Device::Cpu } else { start.device.parse()? };
    let request = Request { device, strategy: Strategy::Default, limit: None, there: None };
    let choice = select::place(request, shape)?;
    // A part has one GPU. Others are for other parts.
    match choice.place {
        Place::Several(gpus) => select::place(Request { device: Device::Cuda(Some(gpus.ordinals()[0])), ..request }, shape),
        _ => Ok(choice),
    }
}

/// Goes on until rows have to arrive again. An error is the answer to the next call.
fn started<T: Engine>(
    feed: &mut Feed,
    parts: &mut [Part<'_, T>; 1],
    start: &Start,
    place: &Choice,
    set: InstructionSet,
) -> Result<()> {
    match place.place {
        #[cfg(feature = "cuda")]
        Place::Cuda(ordinal) => {
            let queue = cuda::Gpu::get(ordinal)?.queue()?.within(place.room);
            let mut passes = cuda::DevicePasses::new(&queue, parts, place.chunking);
            if answer_passes(feed, &mut passes, true, start.threads) {
                let Some(chunks) = passes.into_chunks().map(Arc::new) else { unreachable!("some rows are kept: check_some") };
                answer_sessions(feed, &parts[0], start.threads, |statistics, params| {
                    let (rows, strategy, more) = (chunks.clone(), place.strategy, place.more_copies);
                    Ok(Box::new(cuda::CudaSession::new(rows, &*parts, statistics, params, strategy, more, None)?))
                });
            }
        }
        _ => {
            if answer_passes(feed, &mut HostPasses::new(parts, start.threads), false, start.threads) {
                answer_sessions(feed, &parts[0], start.threads, |statistics, params| {
                    Ok(Box::new(CpuSession::new(parts[0].clone(), statistics, params.k, start.threads, set)?))
                });
            }
        }
    }
    Ok(())
}

/// Makes a session whenever a fit begins, and answers its calls. Gives back the first other call.
fn answer_sessions<'s, T: Engine>(
    feed: &mut Feed,
    part: &Part<'_, T>,
    threads: usize,
    session: impl Fn(&Arc<Statistics>, &Params<'_>) -> Result<Box<dyn Session<T> + 's>>,
) {
    while let Some(call) = feed.next_call() {
        let Call::Begin { known, k, starting } = call else { return feed.give_back(call) };
        let d = part.features.n_features();
        if !known.fits(d) {
            feed.reply(Err(refused("facts about other columns".into())));
            continue;
        }
        let statistics = Arc::new(Statistics::from(known));
        let mut estimator = KMeans::new(k);
        if !starting.is_empty() {
            estimator = estimator.init(Init::Given(starting));
        }
        match estimator.validate(d).and_then(|params| session(&statistics, &params)) {
            Ok(mut session) => answer_session(feed, session.as_mut(), part, statistics.weights, [k, threads]),
            Err(error) => feed.reply(Err(error)),
        }
    }
}

/// Refuses a part on a GPU whose rows are all left out: a GPU has nothing to do without rows.
fn check_some(survey: Survey, on_gpu: bool, rows: u64) -> Result<Survey> {
    if on_gpu && survey.bad == rows {
        return Err(KMeansError::Part { reason: "all rows of a part on a GPU are left out: give it other rows".into() });
    }
    Ok(survey)
}

/// Answers calls that prepare a fit. Gives back the first other call. Returns whether the rows are in place for a session.
fn answer_passes<T: Float>(feed: &mut Feed, passes: &mut dyn Passes<T>, on_gpu: bool, threads: usize) -> bool {
    // On a GPU, a survey sends the rows.
    let (mut placed, rows) = (!on_gpu, passes.given().count().unwrap_or_default());
    let d = passes.given().names().len();
    // What the last survey found, for the call after it.
    let mut surveyed = None;
    while let Some(call) = feed.next_call() {
        let reply = match call {
            Call::Start(_) => {
                feed.give_back(call);
                return false;
            }
            Call::Begin { .. } if placed => {
                feed.give_back(call);
                return true;
            }
            Call::Place if !on_gpu => Ok(Reply::Done),
            Call::Place => passes.survey().map(|survey| {
                (placed, surveyed) = (true, Some(survey));
                Reply::Done
            }),
            Call::Survey => passes.survey().map(|survey| {
                (placed, surveyed) = (true, Some(survey.clone()));
                Reply::Survey(survey)
            }),
            Call::SkipBad => {
                // A part that was made again has not surveyed its rows.
                let survey = surveyed.take().map_or_else(|| passes.survey(), Ok);
                let survey = survey.and_then(|survey| passes.skip_bad(survey));
                survey.and_then(|survey| check_some(survey, on_gpu, rows)).map(Reply::Survey)
            }
            Call::RoundWeights(scale) => passes.round_weights(scale).map(|()| Reply::Done),
            Call::WeightedExtents => passes.weighted_extents().map(Reply::Extents),
            Call::CountSmall { largest, weighted } if largest.len() == d => {
                passes.count_small(&largest, weighted).map(Reply::Counts)
            }
            Call::VarianceSums(moments) if moments.len() == d => passes.variance_sums(&moments).map(Reply::Moments),
            Call::CountDigits { prefixes, shift } if prefixes.len() == d && shift < 64 => {
                passes.given().digits(&prefixes, shift, threads).map(|counts| Reply::Digits(counts.as_flattened().to_vec()))
            }
            Call::NegativeWeight => passes.given().negative_weight().map(Reply::NegativeWeight),
            Call::BadCounts => passes.given().bad_counts().map(Reply::BadCounts),
            Call::Refused => passes.given().refused().map(Reply::Refused),
            Call::Nonzero => passes.given().nonzero().map(Reply::Nonzero),
            Call::WeightsBelow(bound) => passes.given().weights_below(bound, threads).map(Reply::Number),
            other => Err(out_of_turn(&other)),
        };
        feed.reply(reply);
    }
    false
}

/// Answers calls of seeding and of the loop. Gives back the first call that needs other passes or another session.
fn answer_session<T: Float>(
    feed: &mut Feed,
    session: &mut dyn Session<T>,
    part: &Part<'_, T>,
    weights: Option<WeightScale>,
    [k, threads]: [usize; 2],
) {
    feed.reply(Ok(Reply::Began { rows: session.rows(), positive: session.positive_rows() }));
    let mut state = State { d: part.features.n_features(), k, draws: false, taken: false, assigned: false };
    while let Some(call) = feed.next_call() {
        if matches!(call, Call::Start(_) | Call::Begin { .. }) {
            return feed.give_back(call);
        }
        let reply = if state.allows(&call, session.rows()) {
            state.note(&call);
            match &call {
                Call::ValueDigits(beginning) => by_values::digits(part, beginning, weights, threads),
                Call::ValueRows(beginning) => by_values::rows(part, beginning, weights, threads),
                _ => answer_call(session, call, part),
            }
        } else {
            Err(out_of_turn(&call))
        };
        feed.reply(reply);
    }
}

/// What has happened to a session: enough to refuse calls that it is not ready for.
struct State {
    d: usize,
    k: usize,
    draws: bool,
    taken: bool,
    assigned: bool,
}

impl State {
    /// Whether a session over so many rows can do a call.
    fn allows(&self, call: &Call, rows: u64) -> bool {
        let whole = |values: &[f64]| values.len().is_multiple_of(self.d);
        let all = |values: &[f64]| values.len() == self.k * self.d;
        match call {
            Call::StartDraws | Call::AllRows | Call::EndDraws | Call::Reset | Call::Labels | Call::Selection => true,
            Call::ValueDigits(beginning) | Call::ValueRows(beginning) => beginning.fits(self.d),
            Call::Row(row) => *row < rows,
            Call::Draw(_) => self.draws,
            Call::TakeSeeds { centroids, .. } => self.draws && whole(centroids),
            Call::Gains(candidates) => self.taken && whole(candidates),
            Call::Pick { by: DrawBy::Distance, .. } => self.taken,
            Call::Pick { .. } => true,
            Call::Sample(_) => self.taken,
            Call::Masses(candidates) => !candidates.is_empty() && whole(candidates),
            Call::Assign { centroids, .. } | Call::Nearest(centroids) => all(centroids),
            Call::Farthest { donors, .. } => self.assigned && donors.len() == self.k,
            Call::Relocate(moves) => self.assigned && moves.iter().all(|one| one.row < rows && (one.to as usize) < self.k),
            Call::Inertia(scales) => self.assigned && (scales.len() == 1 || scales.len() == self.k),
            _ => false,
        }
    }

    fn note(&mut self, call: &Call) {
        match call {
            Call::StartDraws => (self.draws, self.taken) = (true, false),
            Call::TakeSeeds { .. } => self.taken = true,
            Call::EndDraws => (self.draws, self.taken) = (false, false),
            Call::Reset => self.assigned = false,
            Call::Assign { .. } => self.assigned = true,
            _ => {}
        }
    }
}

fn answer_call<T: Float>(session: &mut dyn Session<T>, call: Call, part: &Part<'_, T>) -> Result<Reply> {
    Ok(match call {
        Call::Selection => Reply::Selection(part.selection.words().map(<[u64]>::to_vec)),
        Call::Row(row) => some_rows(vec![row], &session.row(row)?, Vec::new())?,
        Call::StartDraws => Reply::Total(session.start_draws()?),
        Call::Draw(targets) => {
            let (mut rows, mut values) = (Vec::new(), Vec::new());
            for target in targets {
                let row = session.draw(target)?;
                memory::push(&mut rows, row, MESSAGE)?;
                memory::extend(&mut values, &session.row(row)?, MESSAGE)?;
            }
            some_rows(rows, &values, Vec::new())?
        }
        Call::TakeSeeds { centroids, scale } => Reply::Total(session.take_seeds(&typed::<T>(&centroids)?, scale)?),
        Call::Gains(candidates) => Reply::Totals(session.gains(&typed::<T>(&candidates)?)?),
        Call::Pick { by, targets } => {
            let Picked { rows, values, weights } = session.pick(by, &targets)?;
            some_rows(rows, &values, weights)?
        }
        Call::AllRows => {
            let (values, weights) = session.all_rows()?;
            some_rows(Vec::new(), &values, weights)?
        }
        Call::Sample(sample) => {
            let sampled = session.sample(&sample)?;
            some_rows(sampled.rows, &sampled.values, Vec::new())?
        }
        Call::Masses(candidates) => Reply::Totals(session.masses(&typed::<T>(&candidates)?)?),
        Call::EndDraws => {
            session.end_draws();
            Reply::Done
        }
        Call::Reset => {
            session.reset()?;
            Reply::Done
        }
        Call::Assign { centroids, want_inertia } => {
            let assigned = session.assign(&typed::<T>(&centroids)?, want_inertia)?;
            let sums = sums(session.cluster_sums()?)?;
            Reply::Assigned { changed: assigned.changed, inertia: assigned.inertia, work_counts: assigned.work_counts, sums }
        }
        Call::Farthest { count, donors } => Reply::Far(session.farthest(count.min(session.rows() as usize), &donors)?),
        Call::Relocate(moves) => {
            session.relocate(&moves)?;
            Reply::Sums(sums(session.cluster_sums()?)?)
        }
        Call::Inertia(scales) => Reply::Totals(match scales[..] {
            [scale] => session.inertia(Scales::Same(scale))?,
            _ => session.inertia(Scales::Each(&scales))?,
        }),
        Call::Labels => Reply::Labels(session.labels()?),
        Call::Nearest(centroids) => {
            let (labels, distances) = session.nearest(&typed::<T>(&centroids)?)?;
            Reply::Nearest { labels, nearest: distances.nearest, second: distances.second }
        }
        other => return Err(out_of_turn(&other)),
    })
}

fn some_rows<T: Float>(rows: Vec<u64>, values: &[T], weights: Vec<f64>) -> Result<Reply> {
    Ok(Reply::Rows(SomeRows { rows, values: memory::collected(values.iter().map(|x| x.to_f64()), MESSAGE)?, weights }))
}

fn sums(cluster_sums: &ClusterSums) -> Result<Sums> {
    Ok(Sums {
        sums: memory::copied(&cluster_sums.sums, MESSAGE)?,
        mass: memory::copied(&cluster_sums.mass, MESSAGE)?,
        rows: memory::copied(&cluster_sums.rows, MESSAGE)?,
    })
}

/// Values in the type of the features, which had them before they travelled.
fn typed<T: Float>(values: &[f64]) -> Result<Vec<T>> {
    memory::collected(values.iter().map(|value| T::from_f64(*value)), MESSAGE)
}

/// The error for a call that does not fit what came before it.
fn out_of_turn(call: &Call) -> KMeansError {
    let name = format!("{call:?}");
    let name = name.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
    refused(format!("the call {name:?} out of turn"))
}

//! What a worker does for each call.
//!
//! ```text
//! start   rows arrive                         -> passes over them
//! begin   what is known about all rows comes  -> a session over the kept rows
//! ```

use std::sync::Arc;

use super::by_values;
use super::message::{Call, Facts, Reply, Start, converted};
use super::worker::{Feed, Server};
use crate::backend::Session;
use crate::backend::call::{self, out_of_turn};
use crate::backend::cpu::CpuSession;
#[cfg(feature = "cuda")]
use crate::backend::cuda;
use crate::backend::select::{self, Choice, DeviceRequest, Place};
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::params::{Device, DrawnCandidates, Init, KMeans, Metric, Params};
use crate::base::strategy::Strategy;
use crate::fit::engine::Engine;
use crate::fit::rows;
use crate::input::features::{Column, Features};
use crate::input::tile::{RowBlock, WeightScale};
use crate::input::transform::RowTransform;
use crate::simd::InstructionSet;
use crate::statistics::Statistics;
use crate::statistics::given::{Given, HostRows};
use crate::statistics::passes::{HostPasses, Passes};

/// Answers requests with these rows.
pub fn serve<T: Engine>(server: Server<'_>, features: &Features<'_, T>, weights: Option<&Column<'_, f64>>) {
    let Server { feed, set, computed } = server;
    while let Some(asked) = feed.next_call() {
        let call = &asked.call;
        let Call::Start(start) = call else {
            feed.reply(call, Err(out_of_turn(call)));
            continue;
        };
        let facts = Facts {
            names: features.names().clone(),
            float64: !T::IS_F32,
            rows: features.n_rows() as u64,
            weighted: weights.is_some(),
            computed,
        };
        let row_transform = RowTransform::new(start.factors.clone(), start.metric);
        let mut parts = [RowBlock::new(features.transformed_by(row_transform), weights.cloned())];
        match HostRows(&parts).count().and_then(|_| place(&mut parts, start)) {
            Ok(place) => {
                feed.reply(call, Ok((Reply::Facts(facts), Vec::new())));
                if let Err(error) = started(feed, &mut parts, start, &place, set)
                    && let Some(asked) = feed.next_call()
                {
                    feed.reply(&asked.call, Err(error));
                }
            }
            Err(error) => feed.reply(call, Err(error)),
        }
    }
}

/// Chooses where a part works on its rows.
fn place<T: Engine>(parts: &mut [RowBlock<'_, T>; 1], start: &Start) -> Result<Choice> {
    if start.metric == Metric::Cosine || start.factors.is_some() {
        // Such rows have more bits.
        parts[0].features = parts[0].features.widened();
    }
    let (of_round, rounds) = start.candidates;
    let shape = rows::shape(&parts[..], start.clusters, DrawnCandidates { of_round, rounds, steps: 0 });
    // A GPU has nothing to do without rows.
    let device = if shape.rows == 0 { Device::Cpu } else { start.device.parse()? };
    let request = DeviceRequest { device, strategy: Strategy::Default, limit: None, there: None };
    let choice = select::place(request, shape)?;
    // A part has one GPU. Others are for other parts.
    match choice.place {
        Place::Several(gpus) => {
            select::place(DeviceRequest { device: Device::Cuda(Some(gpus.ordinals()[0])), ..request }, shape)
        }
        _ => Ok(choice),
    }
}

/// Goes on until rows have to arrive again. An error is the answer to the next call.
fn started<T: Engine>(
    feed: &mut Feed,
    parts: &mut [RowBlock<'_, T>; 1],
    start: &Start,
    place: &Choice,
    set: InstructionSet,
) -> Result<()> {
    match place.place {
        #[cfg(feature = "cuda")]
        Place::Cuda(ordinal) => {
            let queue = cuda::Gpu::get(ordinal)?.queue()?.within(place.plan.room);
            let mut passes = cuda::DevicePasses::new(&queue, parts, place.plan.chunking);
            if answer_passes(feed, &mut passes, true, start.threads) {
                let Some(chunks) = passes.into_chunks().map(Arc::new) else {
                    unreachable!("some rows are kept, or SkipBad refuses them")
                };
                answer_sessions(feed, &parts[0], start.threads, |statistics, params| {
                    let (rows, strategy, more) = (chunks.clone(), place.plan.strategy, place.plan.more_copies);
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
    part: &RowBlock<'_, T>,
    threads: usize,
    session: impl Fn(&Arc<Statistics>, &Params<'_>) -> Result<Box<dyn Session<T> + 's>>,
) {
    while let Some(asked) = feed.next_call() {
        let Call::Begin(statistics, k) = &asked.call else { return feed.give_back(asked) };
        let (d, statistics) = (part.features.n_features(), Arc::new(statistics.clone()));
        let mut estimator = KMeans::new(*k);
        if !asked.values.is_empty() {
            estimator = estimator.init(Init::Given(asked.values.clone()));
        }
        match estimator.validate(d).and_then(|params| session(&statistics, &params)) {
            Ok(mut session) => {
                let began = Reply::Began([session.rows(), session.positive_rows()]);
                feed.reply(&asked.call, Ok((began, Vec::new())));
                answer_session(feed, session.as_mut(), part, statistics.weights, threads);
            }
            Err(error) => feed.reply(&asked.call, Err(error)),
        }
    }
}

/// Answers calls that prepare a fit. Gives back the first other call. Returns whether the rows are in place for a session.
fn answer_passes<T: Float>(feed: &mut Feed, passes: &mut dyn Passes<T>, on_gpu: bool, threads: usize) -> bool {
    let rows = passes.given().count().unwrap_or_default();
    // What the last survey found, for the call after it.
    let mut surveyed = None;
    while let Some(asked) = feed.next_call() {
        let call = &asked.call;
        let reply = match call {
            Call::Start(_) | Call::Begin(..) => {
                let begins = matches!(call, Call::Begin(..));
                feed.give_back(asked);
                return begins;
            }
            // On a GPU, a survey sends the rows.
            Call::Place if on_gpu => passes.survey().map(|survey| {
                surveyed = Some(survey);
                Reply::Done
            }),
            Call::Place => Ok(Reply::Done),
            Call::Survey => passes.survey().map(|survey| {
                surveyed = Some(survey.clone());
                Reply::Survey(survey)
            }),
            Call::SkipBad => {
                // A worker that was made again has not surveyed its rows.
                let survey = surveyed.take().map_or_else(|| passes.survey(), Ok);
                match survey.and_then(|survey| passes.skip_bad(survey)) {
                    // A GPU has nothing to do without rows.
                    Ok(survey) if on_gpu && survey.bad == rows => {
                        Err(KMeansError::Part { reason: "all rows of a part on a GPU are left out: give it other rows".into() })
                    }
                    survey => survey.map(Reply::Survey),
                }
            }
            Call::RoundWeights(scale) => passes.round_weights(*scale).map(|()| Reply::Done),
            Call::WeightedExtents => passes.weighted_extents().map(Reply::Extents),
            Call::CountSmall(largest, weighted) => passes.count_small(largest, *weighted).map(Reply::Counts),
            Call::VarianceSums(moments) => passes.variance_sums(moments).map(Reply::Moments),
            Call::CountDigits(prefixes, shift) => {
                passes.given().digits(prefixes, *shift, threads).map(|counts| Reply::Digits(counts.as_flattened().to_vec()))
            }
            Call::NegativeWeight => passes.given().negative_weight().map(Reply::NegativeWeight),
            Call::BadCounts => passes.given().bad_counts().map(Reply::Counts),
            Call::Refused => passes.given().refused().map(Reply::Refused),
            Call::Nonzero => passes.given().nonzero().map(Reply::Nonzero),
            Call::WeightsBelow(bound) => passes.given().weights_below(*bound, threads).map(Reply::Number),
            other => Err(out_of_turn(other)),
        };
        feed.reply(call, reply.map(|reply| (reply, Vec::new())));
    }
    false
}

/// Answers calls of seeding and of the loop. Gives back the first call that needs other passes or another session.
fn answer_session<T: Float>(
    feed: &mut Feed,
    session: &mut dyn Session<T>,
    part: &RowBlock<'_, T>,
    weights: Option<WeightScale>,
    threads: usize,
) {
    while let Some(asked) = feed.next_call() {
        let reply = match &asked.call {
            Call::Start(_) | Call::Begin(..) => return feed.give_back(asked),
            Call::Selection => Ok((Reply::Selection(part.selection.words().map(<[u64]>::to_vec)), Vec::new())),
            Call::ValueDigits(beginning) => by_values::digits(part, beginning, weights, threads),
            Call::ValueRows(beginning) => by_values::rows(part, beginning, weights, threads),
            call => converted(&asked.values)
                .and_then(|values: Vec<T>| call::answer(session, call, &values))
                .and_then(|(reply, found)| Ok((reply, converted(&found)?))),
        };
        feed.reply(&asked.call, reply);
    }
}

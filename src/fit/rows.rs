//! From the caller's rows to a session: they are transformed, put in order, and are prepared where the fit runs.
//!
//! ```text
//! parameters are checked; a device is chosen, before anything is computed or sent
//! rows are transformed (src/input/transform.rs) and sorted (src/fit/order.rs), if asked
//! rows are prepared once, and a session is made for each number of clusters
//! too few distinct rows, and too_few="fewer": they are found (src/seeding/distinct.rs), and the fit starts again with them
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::fitted;
use crate::backend::cpu::CpuSession;
#[cfg(feature = "cuda")]
use crate::backend::cuda;
use crate::backend::select::{self, Choice, Job, Place, Request, Shape, There};
use crate::backend::{Session, Sessions, Sharded};
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::interrupt::Scope;
use crate::base::memory;
use crate::base::names::Names;
use crate::base::parallel::{FloatEnvironment, PoolShare};
use crate::base::params::Wanted;
use crate::base::params::{KMeans, Metric, Params, RowOrder, Scale, TooFew};
use crate::base::progress::Watch;
use crate::fit::factors::factors;
use crate::fit::order;
use crate::fit::sort_by::Key;
use crate::input::tile::{self, Part, Selection};
use crate::input::transform::RowTransform;
use crate::model::{Fitted, Scaling};
use crate::seeding;
use crate::simd::InstructionSet;
#[cfg(feature = "cuda")]
use crate::statistics::gather_by;
use crate::statistics::{Statistics, gather};

/// Rows that are transformed, and all that their fits have in common.
struct Rows<'r, 'a, 'e, T> {
    parts: Vec<Part<'a, T>>,
    params: &'r Params<'e>,
    request: Request,
    shape: Shape,
    set: InstructionSet,
}

/// The whole fit.
pub(crate) fn fit<T: Float>(
    estimator: &KMeans,
    parts: Vec<Part<'_, T>>,
    set: InstructionSet,
    wanted: Wanted,
) -> Result<Fitted<T>> {
    transformed(estimator, &[estimator.k], parts, set, wanted, |rows, choice, watch| rows.fit(choice, watch))
}

/// The fits for several numbers of clusters.
pub(crate) fn fit_each<T: Float>(
    estimator: &KMeans,
    k: &[usize],
    parts: Vec<Part<'_, T>>,
    set: InstructionSet,
) -> Result<Vec<Result<Fitted<T>>>> {
    if k.is_empty() {
        return Ok(Vec::new());
    }
    transformed(estimator, k, parts, set, Wanted::Nothing, |rows, choice, watch| rows.fit_each(choice, k, watch))
}

/// Transforms rows, and calls `work` with them and with the choice for the most clusters.
fn transformed<T: Float, R>(
    estimator: &KMeans,
    k: &[usize],
    mut parts: Vec<Part<'_, T>>,
    set: InstructionSet,
    wanted: Wanted,
    work: impl FnOnce(&Rows<'_, '_, '_, T>, &Choice, &mut Watch<'_>) -> Result<R>,
) -> Result<R> {
    let _environment = FloatEnvironment::default_rounding();
    let _share = PoolShare::enter();
    let _scope = Scope::enter(estimator.cancel.as_ref());
    let mut watch = Watch::new(estimator.observer.as_ref());
    let d = parts[0].features.n_features();
    let most = k.iter().copied().max().unwrap_or(estimator.k);
    let params = Params { wanted, k: most, ..estimator.validate(d)? };
    k.iter().try_for_each(|k| estimator.check_clusters(*k))?;
    Key::of(&params.output.sort_by, parts[0].features.names())?;
    if !params.keeps_halves() {
        parts.iter_mut().for_each(|part| part.features = part.features.widened());
    }
    let shape = Shape {
        job: Job::Fit,
        rows: parts.iter().map(|part| part.features.n_rows() as u64).sum(),
        features: d,
        clusters: params.k,
        float64: !T::IS_F32,
        half: tile::half(&parts).is_some(),
        weighted: parts[0].weights.is_some(),
        candidates: params.seeding.candidates(params.k),
    };
    let execution = &params.execution;
    let request = Request {
        device: execution.device,
        strategy: execution.strategy,
        limit: execution.device_memory_limit,
        there: there(&mut parts, &params)?,
    };
    let choice = select::place(request, shape)?;
    // Whether there are enough rows is asked later, for each fit.
    let later = k.len() > 1 || params.output.too_few == TooFew::Fewer;
    let factors = factors(&mut parts, &Params { k: if later { 1 } else { params.k }, ..params.clone() })?;
    let row_transform = RowTransform::new(factors, params.space.metric);
    let seeding = match &row_transform {
        Some(row_transform) => row_transform.seeding::<T>(params.seeding, parts[0].features.names())?,
        None => None,
    };
    let params = Params { seeding: seeding.as_ref().unwrap_or(params.seeding), ..params };
    for part in &mut parts {
        part.features = part.features.transformed_by(row_transform.clone());
    }
    work(&Rows { parts, params: &params, request, shape, set }, &choice, &mut watch)
}

impl<'a, T: Float> Rows<'_, 'a, '_, T> {
    /// The fit of these rows.
    fn fit(&self, choice: &Choice, watch: &mut Watch<'_>) -> Result<Fitted<T>> {
        let ties = order::only_decides_ties(self.params).then(|| Arc::new(AtomicBool::new(false)));
        let fitted = match &ties {
            // The rows as given, until their order matters.
            Some(found) => match self.fit_at(choice, self.parts.clone(), self.params, ties.clone(), watch) {
                fitted if !found.load(Ordering::Relaxed) => fitted,
                _ => self.in_order(|rows| self.fit_at(choice, rows, self.params, None, watch)),
            },
            None => self.in_order(|rows| self.fit_at(choice, rows, self.params, None, watch)),
        };
        self.or_fewer(fitted, watch)
    }

    /// The fits of these rows for several numbers of clusters. Their place is that for the most clusters.
    fn fit_each(&self, choice: &Choice, k: &[usize], watch: &mut Watch<'_>) -> Result<Vec<Result<Fitted<T>>>> {
        let each: Vec<Params<'_>> = k.iter().map(|&k| Params { k, ..self.params.clone() }).collect();
        let arranged = order::arranged(&self.parts, self.params)?;
        let rows = match &arranged {
            Some(arranged) => vec![arranged.part(&self.parts[0].features)?],
            None => self.parts.clone(),
        };
        let fits = with_sessions(choice, rows, &each, self.set, None, |session, params, statistics, rows| {
            *watch = watch.again();
            fitted(session, params, statistics, rows, choice.clone(), watch)
        })?;
        let given = |fit: Result<Fitted<T>>| match (&arranged, fit) {
            (Some(arranged), Ok(fitted)) => arranged.as_given(fitted),
            (_, fit) => fit,
        };
        Ok(fits.into_iter().map(|fit| self.or_fewer(given(fit), watch)).collect())
    }

    /// The fit, or, if there are too few distinct rows and the parameters ask for it, the fit in which these rows are the
    /// centroids.
    fn or_fewer(&self, fit: Result<Fitted<T>>, watch: &mut Watch<'_>) -> Result<Fitted<T>> {
        let (k, rows) = match fit {
            Err(KMeansError::TooFewDistinct { k, rows }) if self.params.output.too_few == TooFew::Fewer => (k, rows),
            fit => return fit,
        };
        let place = |clusters: usize| select::place(self.request, Shape { clusters, ..self.shape });
        // Rows that are numbered by their values are sorted, so that the first of them are the same for every order.
        self.in_order(|parts| {
            let most = [Params { k: k.min(usize::try_from(rows).unwrap_or(k)), ..self.params.clone() }];
            let find = |mut session: Box<dyn Session<T> + '_>, params: &Params<'_>, statistics: &Statistics, _| {
                seeding::distinct_rows(session.as_mut(), params, statistics)
            };
            let found = with_sessions(&place(most[0].k)?, parts.clone(), &most, self.set, None, find)?;
            let distinct = memory::try_collected(found, seeding::CENTROIDS)?.concat();
            let settled: Vec<f64> = memory::collected(distinct.iter().map(|c| c.to_f64()), seeding::CENTROIDS)?;
            let params = Params { k: settled.len() / self.shape.features, settled: Some(&settled), ..self.params.clone() };
            self.fit_at(&place(params.k)?, parts, &params, None, watch)
        })
    }

    /// Fits the rows in the order that the parameters ask for. What it says of the rows is in the order as given.
    fn in_order(&self, fit: impl FnOnce(Vec<Part<'_, T>>) -> Result<Fitted<T>>) -> Result<Fitted<T>> {
        match order::arranged(&self.parts, self.params)? {
            Some(arranged) => arranged.as_given(fit(vec![arranged.part(&self.parts[0].features)?])?),
            None => fit(self.parts.clone()),
        }
    }

    /// Fits rows that are in order, where the choice says. `ties` becomes true if their order matters for rows that move to empty
    /// clusters.
    fn fit_at(
        &self,
        choice: &Choice,
        parts: Vec<Part<'_, T>>,
        params: &Params<'_>,
        ties: Option<Arc<AtomicBool>>,
        watch: &mut Watch<'_>,
    ) -> Result<Fitted<T>> {
        let run = |session: Box<dyn Session<T> + '_>, params: &Params<'_>, statistics: &Statistics, rows| {
            fitted(session, params, statistics, rows, choice.clone(), watch)
        };
        let mut one = with_sessions(choice, parts, std::slice::from_ref(params), self.set, ties, run)?;
        one.pop().unwrap_or(Err(KMeansError::NoFeatures))
    }
}

/// Prepares rows where the choice says, and works with a session for each of these parameters, which differ in k only.
fn with_sessions<T: Float, R>(
    choice: &Choice,
    mut parts: Vec<Part<'_, T>>,
    each: &[Params<'_>],
    set: InstructionSet,
    ties: Option<Arc<AtomicBool>>,
    mut work: impl FnMut(Box<dyn Session<T> + '_>, &Params<'_>, &Statistics, Origin) -> Result<R>,
) -> Result<Vec<Result<R>>> {
    let [first, rest @ ..] = each else { return Ok(Vec::new()) };
    // A fit that has too few rows does not keep the other fits from theirs.
    let common = &Params { k: if rest.is_empty() { first.k } else { 1 }, ..first.clone() };
    let mut found = memory::with_room(each.len(), "the fits")?;
    match choice.place {
        Place::Cpu => {
            let statistics = Arc::new(Statistics { ties, ..gather(&mut parts, common)? });
            for params in each {
                let mut fit = || {
                    enough(params, statistics.n_positive)?;
                    let mut sessions: Vec<Box<dyn Session<T> + '_>> = Vec::with_capacity(parts.len());
                    for part in &parts {
                        let session = CpuSession::new(part.clone(), &statistics, params.k, params.execution.threads, set)?;
                        sessions.push(Box::new(session));
                    }
                    let session = match sessions.len() {
                        1 => sessions.remove(0),
                        _ => Box::new(Sharded::new(Sessions::new(sessions), &statistics, params.execution.threads)?),
                    };
                    work(session, params, &statistics, Origin::of(&parts, params)?)
                };
                found.push(fit());
            }
        }
        #[cfg(feature = "cuda")]
        Place::Cuda(ordinal) => {
            let queue = cuda::Gpu::get(ordinal)?.queue()?.within(choice.room);
            let mut passes = cuda::DevicePasses::new(&queue, &mut parts, choice.chunking);
            let statistics = Arc::new(Statistics { ties, ..gather_by(&mut passes, common)? });
            let Some(chunks) = passes.into_chunks().map(Arc::new) else { unreachable!("rows are prepared") };
            for params in each {
                let mut fit = || {
                    enough(params, statistics.n_positive)?;
                    let (strategy, more) = (choice.strategy, choice.more_copies);
                    let session = cuda::CudaSession::new(chunks.clone(), &parts, &statistics, params, strategy, more, None)?;
                    work(Box::new(session), params, &statistics, Origin::of(&parts, params)?)
                };
                found.push(fit());
            }
        }
        #[cfg(feature = "cuda")]
        Place::Several(_) => return super::gpus::with_sessions(choice, &parts, each, common, ties, work),
        #[cfg(not(feature = "cuda"))]
        _ => unreachable!("without the feature there is no GPU to choose"),
    }
    Ok(found)
}

/// Whether there are enough rows of positive weight.
pub(super) fn enough(params: &Params<'_>, rows: u64) -> Result<()> {
    if params.k as u64 > rows { Err(KMeansError::TooFewDistinct { k: params.k, rows }) } else { Ok(()) }
}

/// The GPU that the rows are on, if they are on one. Weights are brought to the rows.
fn there<T: Float>(parts: &mut [Part<'_, T>], params: &Params) -> Result<Option<There>> {
    let gpu = parts[0].features.gpu();
    for part in parts.iter_mut() {
        if part.features.gpu() != gpu {
            let expected = "rows in one place".into();
            return Err(KMeansError::InvalidOption { option: "device", expected, got: "rows in several".into() });
        }
        let weights = part.weights.as_ref().filter(|weights| weights.gpu().is_some() && weights.gpu() != gpu);
        if let Some(weights) = weights {
            part.weights = Some(weights.on_host()?);
        }
    }
    let unchanged = params.space.scale == Scale::None && params.space.metric == Metric::Euclidean;
    let as_they_are = unchanged && params.rows.row_order == RowOrder::Given;
    let in_place = parts.len() == 1 && as_they_are && parts[0].features.is_read_in_place();
    Ok(gpu.map(|ordinal| There { ordinal, in_place }))
}

/// Where the kept rows were in the input.
pub(crate) struct Origin {
    pub names: Names,
    pub selection: Vec<(Selection, usize)>,
    pub scaling: Option<Scaling>,
}

impl Origin {
    pub(super) fn of<T: Float>(parts: &[Part<'_, T>], params: &Params) -> Result<Self> {
        let selection = parts.iter().map(|part| (part.selection.clone(), part.features.n_rows())).collect();
        let scaling = Scaling::new(parts[0].features.row_transform(), params)?;
        Ok(Self { names: parts[0].features.names().clone(), selection, scaling })
    }
}

//! A fit of rows in parts: the way of `fit.rs`, with every pass over the rows done by the parts.

use std::sync::Arc;

use super::Executor;
use super::link::Link;
use super::message::{Call, Facts, Start, taken};
use super::passes::RemotePasses;
use super::shards::Parts;
use crate::backend::select::Choice;
use crate::backend::{Session, Sharded};
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::base::params::{Init, KMeans, Metric, Params, RowOrder, TooFew, Wanted};
use crate::base::units::FACTORS;
use crate::fit::order::only_decides_ties;
use crate::fit::{Origin, PreparedRows, Running, Task, rows};
use crate::input::tile::Selection;
use crate::model::{AnyFitted, Fitted, Scaling};
use crate::statistics::{Statistics, gather_by};

/// Fits the rows of all parts of an executor, in the order of the parts. The result has the bits of a fit of all rows at once.
///
/// ```
/// use std::sync::Arc;
/// use polars_kmeans::distributed::{AnyFitted, Executor, OwnedRows, Worker, fit};
/// use polars_kmeans::{Features, KMeans, KMeansError, Result, Wanted};
///
/// /// Parts in this process. An executor for other machines sends the same bytes there.
/// struct Here(Vec<Worker>);
///
/// impl Executor for Here {
///     fn parts(&self) -> usize {
///         self.0.len()
///     }
///     fn ask(&mut self, requests: &[(usize, Arc<[u8]>)]) -> Result<Vec<Vec<u8>>> {
///         Ok(requests.iter().map(|(part, request)| self.0[*part].answer(request)).collect())
///     }
/// }
///
/// let x = [0.0f64, 0.2, 5.0, 5.1, 9.0];
/// let part = |rows: &[f64]| Worker::new(OwnedRows::new(rows.to_vec(), 1));
/// let AnyFitted::F64(fitted) = fit(&KMeans::new(2), &mut Here(vec![part(&x[..2])?, part(&x[2..])?]), Wanted::Labels)? else {
///     unreachable!("the rows are float64")
/// };
/// let whole = KMeans::new(2).fit_features(&Features::from_rows(&x, 1)?, None)?;
/// assert_eq!(fitted.model.centroids(), whole.model.centroids());
/// assert_eq!(fitted.labels, whole.labels);
/// # Ok::<(), KMeansError>(())
/// ```
///
/// # Errors
/// As [`KMeans::fit_features`], errors of the executor, and [`KMeansError::Part`] if parts do not fit together. With
/// `row_order="values"`, [`KMeansError::InvalidOption`] where the order of all rows would matter.
pub fn fit(estimator: &KMeans, executor: &mut dyn Executor, wanted: Wanted) -> Result<AnyFitted> {
    let _running = Running::enter(estimator);
    let candidates = estimator.seeding.candidates(estimator.k);
    let start = Start {
        factors: None,
        metric: Metric::Euclidean,
        device: estimator.execution.device.to_string(),
        clusters: estimator.k,
        candidates: (candidates.of_round, candidates.rounds),
        threads: estimator.execution.threads,
    };
    let link = Link::new(executor, &start)?;
    match link.facts[0].float64 {
        true => fit_typed(estimator, link, start, wanted).map(AnyFitted::F64),
        false => fit_typed(estimator, link, start, wanted).map(AnyFitted::F32),
    }
}

/// What the parts of an executor say about their rows.
///
/// # Errors
/// Errors of the executor, and [`KMeansError::Part`] if parts do not fit together.
pub fn facts(executor: &mut dyn Executor) -> Result<Vec<Facts>> {
    let start =
        Start { factors: None, metric: Metric::Euclidean, device: "cpu".into(), clusters: 1, candidates: (0, 0), threads: 0 };
    Ok(Link::new(executor, &start)?.facts)
}

fn fit_typed<T: Float>(estimator: &KMeans, mut link: Link<'_>, start: Start, wanted: Wanted) -> Result<Fitted<T>> {
    let clusters = [estimator.k];
    let task = Task::new(estimator, &clusters, &link.facts[0].names, wanted)?;
    check_order(&task.params)?;
    if task.params.has_sizes() {
        let expected = "rows in one place, since clusters have bounds on their sizes".into();
        return Err(KMeansError::InvalidOption { option: "max_size", expected, got: "rows in parts".into() });
    }
    let (row_transform, seeding) = rows::transform_by::<T>(&mut RemotePasses(&link), &task.to_prepare())?;
    let mut task = task.with_seeding(seeding.as_ref());
    if let Some(row_transform) = row_transform {
        let factors = Some(row_transform.factors()).filter(|factors| !factors.is_empty());
        let factors = factors.map(|factors| memory::copied(factors, FACTORS)).transpose()?;
        link.restart(&Start { factors, metric: task.params.space.metric, ..start }, Some(row_transform))?;
    }
    let by_values = task.params.rows.row_order == RowOrder::Values;
    let statistics = gather_by::<T>(&mut RemotePasses(&link), &task.to_prepare())?;
    let statistics = Arc::new(Statistics { ties: by_values.then(Arc::default), ..statistics });
    let fit = task.fit_each::<T>(&PreparedParts { link: &link, statistics: statistics.clone() })?.remove(0);
    if statistics.had_ties() {
        return Err(not_sorted("where rows that are equally far may move to an empty cluster"));
    }
    match fit {
        Err(KMeansError::TooFewDistinct { .. }) if by_values && task.params.output.too_few == TooFew::Fewer => {
            Err(not_sorted("with too_few=\"fewer\", whose clusters are in the order of the rows"))
        }
        fit => fit,
    }
}

/// The prepared rows of all parts.
struct PreparedParts<'l, 'e> {
    link: &'l Link<'e>,
    statistics: Arc<Statistics>,
}

impl<T: Float> PreparedRows<T> for PreparedParts<'_, '_> {
    fn statistics(&self) -> &Arc<Statistics> {
        &self.statistics
    }

    fn session(&self, params: &Params<'_>) -> Result<Box<dyn Session<T> + '_>> {
        let parts = Parts::new(self.link, &self.statistics, params)?;
        Ok(Box::new(Sharded::new(parts, &self.statistics, params.execution.threads)?))
    }

    fn origin(&self, params: &Params<'_>) -> Result<Origin> {
        let (link, parts) = (self.link, self.link.facts.len());
        let selection = match params.wanted {
            // The parts keep what belongs to their rows.
            Wanted::Nothing => Vec::new(),
            _ => {
                let selections = link.ask_all(Call::Selection, taken!(Selection))?.into_iter();
                let rows = link.facts.iter().map(|facts| facts.rows as usize);
                selections.map(|bits| bits.map_or_else(Selection::default, Selection::from_bits)).zip(rows).collect()
            }
        };
        Ok(Origin {
            names: link.facts[0].names.clone(),
            selection,
            scaling: Scaling::new(link.row_transform.as_deref(), params)?,
            choice: Choice::cpu(format!("rows are in {parts} part{}", if parts == 1 { "" } else { "s" })),
        })
    }
}

/// Refuses an order for which all rows would have to be sorted as a whole.
fn check_order(params: &Params) -> Result<()> {
    let parallel = params.seeding.init == Init::KMeansParallel && params.seeding.init_sample.is_none();
    if params.rows.row_order == RowOrder::Given || only_decides_ties(params) || parallel {
        return Ok(());
    }
    Err(not_sorted("with a seeding that draws many rows in their order (init=\"kmeans-parallel\" and given centroids do not)"))
}

pub fn not_sorted(why: &str) -> KMeansError {
    let expected = format!("\"given\" for rows in parts {why}, because parts are not sorted as a whole");
    KMeansError::InvalidOption { option: "row_order", expected, got: "\"values\"".into() }
}

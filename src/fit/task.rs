//! What all fits of the same rows have in common, wherever the rows are: guards, checked parameters, and the fits one by one.

use super::{PreparedRows, fit_or_fewer};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::interrupt::Scope;
use crate::base::memory;
use crate::base::names::Names;
use crate::base::parallel::{FloatEnvironment, PoolShare};
use crate::base::params::{KMeans, Params, Seeding, TooFew, Wanted};
use crate::base::progress::Watch;
use crate::fit::sort_by::SortKey;
use crate::model::Fitted;

/// What errors call the list of fits.
const FITS: &str = "the fits";

/// Guards for the time of a fit: float arithmetic, a share of the threads, and the calls that can stop it.
pub(crate) struct Running {
    _environment: FloatEnvironment,
    _share: PoolShare,
    _scope: Scope,
}

impl Running {
    pub fn enter(estimator: &KMeans) -> Self {
        let (environment, share) = (FloatEnvironment::default_rounding(), PoolShare::enter());
        Self { _environment: environment, _share: share, _scope: Scope::enter(estimator.cancel.as_ref()) }
    }
}

/// Fits of the same rows, one for each number of clusters.
pub(crate) struct Task<'e> {
    /// The checked parameters, with the largest of the numbers of clusters.
    pub params: Params<'e>,
    clusters: &'e [usize],
    watches: Vec<Watch<'e>>,
}

impl<'e> Task<'e> {
    /// Checks the parameters for features of these names. There is at least one number of clusters.
    pub fn new(estimator: &'e KMeans, clusters: &'e [usize], names: &Names, wanted: Wanted) -> Result<Self> {
        let watches = memory::collected(clusters.iter().map(|_| Watch::new(estimator.observer.as_ref())), FITS)?;
        let k = clusters.iter().copied().max().unwrap_or(estimator.k);
        let params = Params { wanted, k, ..estimator.validate(names.len())? };
        clusters.iter().try_for_each(|k| estimator.check_clusters(*k))?;
        SortKey::of(&params, names, &[])?;
        Ok(Self { params, clusters, watches })
    }

    /// The parameters to prepare rows with. Preparation refuses fewer rows than clusters. Several fits, and one that may have
    /// fewer clusters, do that by themselves.
    pub fn to_prepare(&self) -> Params<'e> {
        let later = self.clusters.len() > 1 || self.params.output.too_few == TooFew::Fewer || self.params.may_be_empty;
        Params { k: if later { 1 } else { self.params.k }, ..self.params.clone() }
    }

    /// The same task. The centroids are these, and clusters may stay empty.
    pub fn with_fixed<'s>(self, centroids: &'s [f64]) -> Task<'s>
    where
        'e: 's,
    {
        Task { params: Params { fixed: Some(centroids), may_be_empty: true, ..self.params }, ..self }
    }

    /// The same task. Starting centroids are found as `seeding` says, if there is one.
    pub fn with_seeding<'s>(self, seeding: Option<&'s Seeding>) -> Task<'s>
    where
        'e: 's,
    {
        let seeding = seeding.unwrap_or(self.params.seeding);
        Task { params: Params { seeding, ..self.params }, ..self }
    }

    /// The fits of prepared rows. One that fails by itself has its error in the list.
    pub fn fit_each<T: Float>(&mut self, rows: &dyn PreparedRows<T>) -> Result<Vec<Result<Fitted<T>>>> {
        let Self { params, clusters, watches } = self;
        let fits = clusters.iter().zip(watches).map(|(&k, watch)| {
            if clusters.len() > 1 {
                watch.begin();
            }
            fit_or_fewer(rows, &Params { k, ..params.clone() }, watch)
        });
        memory::collected(fits, FITS)
    }
}

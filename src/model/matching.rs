//! Which clusters of two models are the same.

use super::KMeansModel;
use crate::base::error::Result;
use crate::base::memory;
use crate::base::names::Names;
use crate::base::params::{Like, SortBy};
use crate::exact::matching::match_centroids;
use crate::exact::reference;

const WHAT: &str = "the clusters of another model";

/// A cluster of one model, and the cluster of another that it matches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Match {
    pub cluster: u32,
    /// `None` if the other model has fewer clusters.
    pub matched: Option<u32>,
    /// The distance of their centroids, in the other model's scaled units.
    pub distance: Option<f64>,
}

impl KMeansModel {
    /// The clusters of this model, for [`KMeans::sort_by`](crate::KMeans::sort_by): a fit then gives its clusters the numbers of
    /// those that they match.
    ///
    /// # Errors
    /// [`KMeansError::NoMemory`](crate::KMeansError).
    pub fn like(&self) -> Result<SortBy> {
        Ok(SortBy::Like(self.clusters()?.into()))
    }

    fn clusters(&self) -> Result<Like> {
        let d = self.n_features();
        let names = self.feature_names()?;
        Ok(Like {
            names: memory::collected((0..d).filter_map(|f| names.get(f)), WHAT)?,
            metric: self.metric(),
            factors: memory::copied(self.scaling().map_or(&[], |scaling| scaling.factors()), WHAT)?,
            centroids: self.centroid_values()?,
            float32: self.is_f32(),
        })
    }

    fn feature_names(&self) -> Result<Names> {
        self.layout().feature_names(self.n_features())
    }

    /// The clusters of this model in the order of those that they match in another one, then those without a match. The sum of
    /// the squared distances of matched centroids is the least that there is, and of several such matchings it is the one whose
    /// list of partners is the smallest.
    ///
    /// # Errors
    /// [`KMeansError::InvalidOption`](crate::KMeansError) for a model of other features or of another metric, and for more than
    /// 4,096 clusters.
    pub fn match_with(&self, other: &Self) -> Result<Vec<Match>> {
        let (old, d) = (other.clusters()?, self.n_features());
        old.check(&self.feature_names()?, self.metric(), self.n_clusters())?;
        let own = old.scaled(self.centroid_values()?, self.is_f32())?;
        let theirs = old.scaled(old.centroids.iter().copied(), self.is_f32())?;
        let mut matches = memory::with_room(self.n_clusters(), WHAT)?;
        let mut seen = memory::filled(self.n_clusters(), false, WHAT)?;
        for (matched, cluster) in (0u32..).zip(match_centroids(&theirs, &own, d)?).filter_map(|(i, j)| Some((i, j?))) {
            let row = |all: &[f64], j: u32| all[j as usize * d..][..d].to_vec();
            let s = reference::distance(&row(&own, cluster), &row(&theirs, matched));
            matches.push(Match { cluster, matched: Some(matched), distance: Some(s.sqrt()) });
            seen[cluster as usize] = true;
        }
        let alone = (0u32..).zip(&seen).filter(|(_, seen)| !**seen);
        matches.extend(alone.map(|(cluster, _)| Match { cluster, matched: None, distance: None }));
        Ok(matches)
    }
}

//! Which clusters of two models are the same.

use super::KMeansModel;
use crate::base::error::Result;
use crate::base::memory;
use crate::base::params::{Numbering, SortBy};
use crate::exact::matching::match_centroids;
use crate::exact::reference;

const WHAT: &str = "the clusters of another model";

/// A cluster, the cluster of another model that it matches, and the distance of their centroids in that model's scaled units. `None`
/// if the other model has fewer clusters.
pub type Match = (u32, Option<u32>, Option<f64>);

impl KMeansModel {
    /// The clusters of this model, for [`KMeans::sort_by`](crate::KMeans::sort_by): a fit then gives its clusters the numbers of
    /// those that they match.
    ///
    /// # Errors
    /// [`KMeansError::NoMemory`](crate::KMeansError).
    pub fn numbering(&self) -> Result<SortBy> {
        Ok(SortBy::Numbering(self.clusters()?.into()))
    }

    fn clusters(&self) -> Result<Numbering> {
        let d = self.n_features();
        let names = self.layout().feature_names(d)?;
        Ok(Numbering {
            names: memory::collected((0..d).filter_map(|f| names.get(f)), WHAT)?,
            metric: self.metric(),
            factors: memory::copied(self.scaling().map_or(&[], |scaling| scaling.factors()), WHAT)?,
            centroids: self.centroid_values()?,
            float32: self.is_f32(),
        })
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
        old.check(&self.layout().feature_names(d)?, self.metric(), self.n_clusters())?;
        let own = old.scaled(self.centroid_values()?, self.is_f32())?;
        let theirs = old.scaled(old.centroids.iter().copied(), self.is_f32())?;
        let mut matches = memory::with_room(self.n_clusters(), WHAT)?;
        let mut seen = memory::filled(self.n_clusters(), false, WHAT)?;
        for (matched, cluster) in (0u32..).zip(match_centroids(&theirs, &own, d)?).filter_map(|(i, j)| Some((i, j?))) {
            let s = reference::distance(&own[cluster as usize * d..][..d], &theirs[matched as usize * d..][..d]);
            matches.push((cluster, Some(matched), Some(s.sqrt())));
            seen[cluster as usize] = true;
        }
        matches.extend((0u32..).zip(&seen).filter(|(_, seen)| !**seen).map(|(cluster, _)| (cluster, None, None)));
        Ok(matches)
    }
}

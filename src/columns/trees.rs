//! Trees of columns, and what they say of columns.

use super::calls::FitTable;
use super::{FeatureTable, Source, view_weights};
use crate::backend::answers::Labels;
use crate::base::error::Result;
use crate::base::names::FeatureLayout;
use crate::model::KMeansModel;
use crate::tree::{KMeansTree, TreeEstimator};

impl TreeEstimator {
    /// The tree of columns, and the leaf of each row.
    pub(crate) fn fit_source<S: Source>(
        &self,
        columns: &[S],
        weights: Option<&S>,
        computed: bool,
    ) -> Result<(KMeansTree, Labels)> {
        let FitTable { table, weights, .. } = self.of_nodes().cast(columns, weights, FeatureLayout::check_in_tree)?;
        let weights = weights.as_ref().map(view_weights).transpose()?;
        self.fit_any(&table.layout, &table.view()?, weights.as_ref(), computed)
    }
}

impl KMeansTree {
    fn table<S: Source>(&self, columns: &[S]) -> Result<Option<FeatureTable<S>>> {
        KMeansModel::table(self.flat()?, columns)
    }

    /// The leaf that a descent finds for each row.
    pub(crate) fn descended<S: Source>(&self, columns: &[S]) -> Result<Labels> {
        match self.table(columns)? {
            Some(table) => self.descend_any(&table.view()?),
            None => Labels::none(columns[0].rows()),
        }
    }

    /// Minus the inertia of rows around these leaves.
    #[cfg(feature = "polars")]
    pub(crate) fn descended_score<S: Source>(&self, columns: &[S], weights: Option<&S>) -> Result<f64> {
        let weights = weights.map(super::weights).transpose()?;
        let weights = weights.as_ref().map(view_weights).transpose()?;
        match self.table(columns)? {
            Some(table) => self.score_any(&table.view()?, weights.as_ref()),
            None => Ok(0.0),
        }
    }
}

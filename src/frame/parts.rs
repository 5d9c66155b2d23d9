//! Columns of a frame as the rows of a part.

use polars::prelude::*;

use super::batches::FitColumns;
use super::select;
use crate::base::error::{KMeansError, Result};
use crate::columns::{self, FeatureTable};
use crate::distributed::{Owner, Server};
use crate::model::AnyFeatures;

/// Columns of a frame for a [`crate::distributed::Worker`], with the rules of [`crate::KMeans::fit`].
#[derive(Debug, Clone)]
pub struct FrameRows {
    rows: FitColumns,
    computed: bool,
}

impl FrameRows {
    /// The named columns of a frame, with the weight of every row in another column if one is named.
    ///
    /// # Errors
    /// [`KMeansError::MissingColumn`].
    pub fn new(df: &DataFrame, names: impl IntoIterator<Item = impl AsRef<str>>, weight: Option<&str>) -> Result<Self> {
        let weights = weight.map(|weight| select(df, [weight])).transpose()?.and_then(|mut columns| columns.pop());
        Ok(Self { rows: FitColumns { features: select(df, names)?, weights, in_file: false }, computed: false })
    }

    /// These columns.
    #[cfg(feature = "python")]
    pub(crate) fn of(rows: FitColumns, computed: bool) -> Self {
        Self { rows, computed }
    }
}

impl Owner for FrameRows {
    fn serve(&self, server: Server<'_>) -> Result<()> {
        let table = FeatureTable::new(&self.rows.features, false, None)?;
        if table.all_null {
            let reason = format!("column {:?}: expected lists of a known width in each part", self.rows.features[0].name());
            return Err(KMeansError::Part { reason });
        }
        let weights = self.rows.weights.as_ref().map(columns::weights).transpose()?;
        let weights = weights.as_ref().map(columns::view_weights).transpose()?;
        match table.view()? {
            AnyFeatures::F32(features) => server.run(&features, weights.as_ref()),
            AnyFeatures::F64(features) => server.run(&features, weights.as_ref()),
        }
        Ok(())
    }

    fn computed(&self) -> bool {
        self.computed
    }
}

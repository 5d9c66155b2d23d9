//! The inputs of a call.

use polars::prelude::*;

use super::options::{Answer, FitOptions, TooFew};
use crate::base::error::{KMeansError, Result};
use crate::base::memory;
use crate::base::params::{KMeans, Wanted};
use crate::model::KMeansModel;

/// Columns of one length. A column of length 1 (a literal, an aggregate) next to longer ones is repeated, as Polars does.
pub fn columns(inputs: &[Series]) -> Result<Vec<Column>> {
    let n = inputs.iter().map(|series| series.len()).find(|&n| n != 1).unwrap_or(1);
    let repeat = |series: &Series| if series.len() == 1 && n != 1 { series.new_from_index(0, n) } else { series.clone() };
    memory::collected(inputs.iter().map(|series| repeat(series).into_column()), "the list of columns")
}

/// The inputs of a fitting call.
pub struct Call {
    pub features: Vec<Column>,
    pub weights: Option<Column>,
    /// Whether the values are in a mapped file, because memory may not hold them.
    pub in_file: bool,
}

impl Call {
    /// The call from features and, if there are any, weights as the last input.
    pub fn new(inputs: &[Series], weighted: bool) -> Result<Self> {
        let mut features = columns(inputs)?;
        let weights = if weighted { features.pop().map(|weights| weights.with_name("weight".into())) } else { None };
        if features.is_empty() {
            return Err(KMeansError::NoFeatures);
        }
        Ok(Self { features, weights, in_file: false })
    }

    /// The call from inputs that are the fields of one struct.
    pub fn of_struct(inputs: &[Series], weighted: bool) -> Result<Self> {
        let [inputs] = inputs else { return Err(KMeansError::NoFeatures) };
        Self::new(&inputs.struct_()?.fields_as_series(), weighted)
    }

    /// The labels of a fit, or structs of label and distances. `None` if there are too few distinct rows and the options ask for
    /// nulls in that case.
    pub fn fit(&self, options: &FitOptions) -> Result<Option<Series>> {
        let (features, weights) = (&self.features, self.weights.as_ref());
        unless_too_few(options, || {
            let wanted = if options.results().output == Answer::Struct { Wanted::Distances } else { Wanted::Labels };
            options.estimator(features)?.answers_of_fit(features, weights, wanted)
        })
    }

    /// As [`Call::fit`], with the model and nothing of the rows.
    pub fn fit_model(&self, options: &FitOptions, watched: impl FnOnce(KMeans) -> KMeans) -> Result<Option<KMeansModel>> {
        let fit = || watched(self.estimator(options)?).fit_model(&self.features, self.weights.as_ref());
        unless_too_few(options, fit)
    }

    /// The estimator for these columns.
    fn estimator(&self, options: &FitOptions) -> Result<KMeans> {
        let estimator = options.estimator(&self.features)?;
        if self.in_file {
            estimator.check_rows_in_file()?;
        }
        Ok(estimator)
    }

    /// The models for these numbers of clusters.
    pub fn fit_models(&self, options: &FitOptions, k: &[usize]) -> Result<Vec<Result<KMeansModel>>> {
        self.estimator(options)?.models_of_fits(k, &self.features, self.weights.as_ref())
    }
}

/// The result of a fit. `None` if there are too few distinct rows and the options ask for nulls in that case.
pub fn unless_too_few<F>(options: &FitOptions, fit: impl FnOnce() -> Result<F>) -> Result<Option<F>> {
    let too_few = options.results().too_few;
    match fit() {
        Ok(fit) => Ok(Some(fit)),
        Err(error) if error.is_too_few() && too_few == TooFew::Null => Ok(None),
        Err(error) => Err(error),
    }
}

/// As an expression answers: with `too_few="fewer"`, no rows have no clusters, which is no error.
pub fn or_none<F>(options: &FitOptions, fit: Result<Option<F>>) -> Result<Option<F>> {
    match fit {
        Err(error) if error.is_too_few() && options.results().too_few == TooFew::Fewer => Ok(None),
        fit => fit,
    }
}

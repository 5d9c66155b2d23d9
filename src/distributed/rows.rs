//! Rows in lists of numbers, for parts of the Rust API.

use super::worker::{Owner, Server};
use crate::base::error::Result;
use crate::base::names::Names;
use crate::fit::engine::Engine;
use crate::input::features::{Column, Features};

/// Rows that a part owns: `(n, d)`, row-major.
#[derive(Debug, Clone)]
pub struct OwnedRows<T> {
    values: Vec<T>,
    d: usize,
    weights: Option<Vec<f64>>,
    names: Option<Names>,
}

impl<T: Engine> OwnedRows<T> {
    /// Rows of `d` features.
    pub fn new(values: Vec<T>, d: usize) -> Self {
        Self { values, d, weights: None, names: None }
    }

    /// The same rows with one weight each.
    #[must_use]
    pub fn weighted(self, weights: Vec<f64>) -> Self {
        Self { weights: Some(weights), ..self }
    }

    /// The same rows with names of their features.
    #[must_use]
    pub fn named(self, names: impl Into<Names>) -> Self {
        Self { names: Some(names.into()), ..self }
    }
}

impl<T: Engine> Owner for OwnedRows<T> {
    fn serve(&self, server: Server<'_>) -> Result<()> {
        let mut features = Features::from_rows(&self.values, self.d)?;
        if let Some(names) = &self.names {
            features = features.with_names(names.clone())?;
        }
        server.run(&features, self.weights.as_ref().map(|weights| Column::from_slice(weights)).as_ref());
        Ok(())
    }
}

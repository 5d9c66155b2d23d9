//! A session: all that a fit calls.

use super::draws::Draws;
use super::iterate::Iterate;
use crate::base::float::Float;

/// The rows of one fit on one backend: all that a fit calls.
pub trait Session<T: Float>: Draws<T> + Iterate<T> {}

impl<T: Float, S: Draws<T> + Iterate<T>> Session<T> for S {}

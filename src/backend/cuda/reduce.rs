//! What happens between the step and the update: the sums of all devices of a fit become one.
//!
//! Pending sums are words that wrap around, and integers. So a plain sum over the devices is exact, in any order. Then every
//! device can run the same update and gets the same bits.

use super::device::Plain;
use super::state::State;
use crate::error::Result;

/// Adds up the pending sums of the devices of a fit.
pub trait Reduce<T>: Send {
    /// Queued after the last chunk of a step. Afterwards the pending sums of this device, and the number of changed rows in its
    /// control, are those of the whole fit. A fit on several devices must not fold its sums before, as a fit of very many rows does.
    fn sum(&self, state: &State<T>) -> Result<()>;
}

/// A fit on one device: its sums are already those of the whole fit.
pub struct Alone;

impl<T: Plain> Reduce<T> for Alone {
    fn sum(&self, _state: &State<T>) -> Result<()> {
        Ok(())
    }
}

//! Which strategy a fit on a GPU takes by default: a pure function of its shape.

use crate::strategy::Strategy;

/// What the choice depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub n: usize,
    pub d: usize,
    pub k: usize,
    pub float64: bool,
    pub weighted: bool,
    /// Bytes of shared memory that a block may have.
    pub shared: usize,
}

/// Fewer clusters than this are swept one by one: five instructions a score, but no second look at a group. From the second number
/// on, groups of 16.
const GROUPS_OF_8_FROM: usize = 21;
const GROUPS_OF_16_FROM: usize = 200;

/// The strategy that a name stands for: the fastest of all, or of a family; others stand for themselves.
pub fn choose(strategy: Strategy, shape: &Shape) -> Strategy {
    match strategy {
        Strategy::Default if shape.d <= 12 => choose(Strategy::Registers, shape),
        Strategy::Default => Strategy::Tiled,
        Strategy::Registers if shape.d > 12 => Strategy::Registers,
        Strategy::Registers if shape.k >= GROUPS_OF_16_FROM => Strategy::RegistersGroups16,
        Strategy::Registers if shape.k >= GROUPS_OF_8_FROM => Strategy::RegistersGroups8,
        Strategy::Registers => Strategy::RegistersSingle,
        named => named,
    }
}

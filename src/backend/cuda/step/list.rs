//! The list of candidates.

use super::Candidate;
use super::columns::Columns;
use super::grid::Grid;
use super::registers::Registers;
use super::tensor::Tensor;
use super::tensor::unit::TensorUnit;
use super::tiled::Tiled;
use crate::backend::cuda::device::Plain;
#[cfg(feature = "papers")]
use crate::backend::cuda::papers;
use crate::base::float::Float;

/// All candidates. The first ones are ours; then come the systems of the papers.
pub fn candidates<T: Float + Plain>() -> Vec<Box<dyn Candidate<T>>> {
    let mut all: Vec<Box<dyn Candidate<T>>> = Vec::new();
    all.extend(Registers::ALL.map(|variant| Box::new(variant) as Box<dyn Candidate<T>>));
    all.push(Box::new(Grid));
    all.push(Box::new(Columns));
    all.extend(Tiled::ALL.map(|variant| Box::new(variant) as Box<dyn Candidate<T>>));
    // The last one first: if a GPU has neither, the error is about the one with fewer limits.
    all.extend(TensorUnit::ALL.iter().rev().map(|&unit| Box::new(Tensor(unit)) as Box<dyn Candidate<T>>));
    #[cfg(feature = "papers")]
    all.extend(papers::candidates());
    all
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;
    use crate::base::strategy::Strategy;

    unit_test!(every_named_kernel_has_one_candidate);
    fn every_named_kernel_has_one_candidate() {
        let families = [Strategy::Default, Strategy::Registers, Strategy::Tiled, Strategy::Tensor];
        for &strategy in Strategy::ALL {
            let count = candidates::<f32>().iter().filter(|candidate| candidate.strategy() == strategy).count();
            assert_eq!(count, usize::from(!families.contains(&strategy)), "{strategy}");
        }
    }
}

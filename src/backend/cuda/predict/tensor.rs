//! Labels of a model's batches by tensor cores (`step/tensor/`), where they are predicted to be faster than float32 products.
//!
//! ```text
//! once a model:  centres of groups of rows, from the centroids (again for batches of so few rows that they have fewer groups)
//! per batch:     groups of its rows, copies of the rows, copies of the centroids near each group; products; settling
//! ```
//! A batch has no labels before: its rows go to the group whose centre is near. Rows that are not finite go to none, and get no
//! label. The copies are optional memory. Where there is no ample room for them, float32 products need less.

use std::sync::{Arc, Mutex, PoisonError};

use crate::backend::cuda::arguments::AssignArgument;
use crate::backend::cuda::device::{Plain, Queue};
use crate::backend::cuda::shape::{FitShape, GpuSize};
use crate::backend::cuda::step::Candidate;
use crate::backend::cuda::step::choice::time;
use crate::backend::cuda::step::tensor::Tensor;
use crate::backend::cuda::step::tensor::centres::Centres;
use crate::backend::cuda::step::tensor::labels::{GroupCentres, TensorLabels, bytes_of_batch, centres_of_model};
use crate::backend::cuda::step::tensor::products::TensorProducts;
use crate::backend::cuda::step::tensor::sizes::TensorSizes;
use crate::backend::cuda::step::tensor::unit::TensorUnit;
use crate::backend::cuda::step::tiled::Tiled;
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::strategy::Strategy;

/// What a model keeps for tensor cores.
#[derive(Default)]
pub struct TensorTable<T> {
    /// Made for the first batch that may have so many groups.
    centres: Mutex<Vec<Fixed<T>>>,
}

/// Centres of groups: how many there may be for a batch, how many there are, and the centres.
type Fixed<T> = (usize, usize, Arc<Centres<T>>);

/// The instruction that labels a batch faster than `tiled` does, or that the strategy names. None: `tiled` labels it.
fn unit<T: Float + Plain>(strategy: Strategy, tiled: Tiled, shape: &FitShape, gpu: GpuSize) -> Option<TensorUnit> {
    let named = |unit: TensorUnit| [Strategy::Default, Strategy::Tensor, unit.strategy()].contains(&strategy);
    let able = |unit: &TensorUnit| named(*unit) && Candidate::<T>::supports(&Tensor(*unit), shape, gpu).is_ok();
    let timed = |unit| (Tensor(unit).predicted_once(shape, gpu), unit);
    let (least, unit) = TensorUnit::ALL.into_iter().filter(able).map(timed).min_by(|a, b| a.0.total_cmp(&b.0))?;
    (strategy != Strategy::Default || least < time::<T>(&tiled, shape, gpu)).then_some(unit)
}

/// What the kernels of a batch use.
pub type TensorBatch<T> = (TensorLabels<T>, TensorProducts<T>);

impl<T: Float + Plain> TensorTable<T> {
    /// Labels the rows of the argument, if tensor cores do it faster than `tiled`, or if the strategy names them. Returns what
    /// the kernels use: it must live until they are done.
    ///
    /// # Safety
    /// All addresses of the argument are live, but for the list of rows in doubt, as [`TensorLabels::begin`] demands. No row has
    /// a label. The argument has the shape, and always the same centroids.
    pub unsafe fn label(
        &self,
        (strategy, tiled): (Strategy, Tiled),
        shape: &FitShape,
        queue: &Queue,
        assign: &AssignArgument<T>,
    ) -> Result<Option<TensorBatch<T>>> {
        let Some(unit) = unit::<T>(strategy, tiled, shape, queue.gpu.size()) else { return Ok(None) };
        let sizes = TensorSizes::new(shape);
        if !queue.has_room(bytes_of_batch::<T>(&sizes))? || !unit.is_trusted(&queue.gpu)? {
            return Ok(None);
        }
        // SAFETY: the caller promises the centroids and the counters.
        let made = unsafe { self.centres(unit, &sizes, queue, assign) }.and_then(|(_, groups, centres)| {
            TensorLabels::new(unit, sizes.of_model(groups), shape.half, GroupCentres::Fixed(centres), queue)
        });
        let mut labels = match made {
            // Another program was faster.
            Err(KMeansError::NoMemory { .. }) => return Ok(None),
            made => made?,
        };
        let assign = AssignArgument { in_doubt: labels.in_doubt(), ..*assign };
        let made_for = labels.unit_and_sizes();
        // SAFETY: the caller promises the addresses. The list of rows in doubt is the right one now. The centres' queue was
        // waited for. The labels are new, so this pass groups the rows.
        let pass = unsafe { labels.begin(queue, &assign, 0) }.group_by_fixed_centres()?;
        // The device is busy meanwhile.
        let mut products = match TensorProducts::new(made_for, shape.half, queue) {
            Err(KMeansError::NoMemory { .. }) => return Ok(None),
            products => products?,
        };
        pass.label(&mut products, None)?;
        Ok(Some((labels, products)))
    }

    /// The centres. The first of several threads makes them. The other threads wait for it.
    ///
    /// # Safety
    /// The addresses of the centroids and of the counters are live.
    unsafe fn centres(
        &self,
        unit: TensorUnit,
        sizes: &TensorSizes,
        queue: &Queue,
        assign: &AssignArgument<T>,
    ) -> Result<Fixed<T>> {
        let mut all = self.centres.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.iter().find(|(most, ..)| *most == sizes.groups) {
            return Ok(known.clone());
        }
        // SAFETY: the caller promises it.
        let (centres, groups) = unsafe { centres_of_model(unit, sizes, queue, assign)? };
        let made = (sizes.groups, groups, Arc::new(centres));
        all.push(made.clone());
        Ok(made)
    }
}

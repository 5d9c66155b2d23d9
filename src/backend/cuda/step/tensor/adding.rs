//! How the tensor cores of each device add up products. Each instruction of each device is asked once a process.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use super::Refusal;
use super::sizes::{CHUNK, TILE_CENTROIDS, TILE_ROWS};
use super::unit::TensorUnit;
use crate::backend::cuda::arguments::{self, ProbeTensorArgument};
use crate::backend::cuda::device::Gpu;
use crate::backend::select::{Choice, Place};
use crate::base::error::Result;
use crate::base::strategy::Strategy;
use crate::bounds::fp16::adding::{self, Added, Vectors};

impl TensorUnit {
    /// How this device's tensor cores add up.
    pub(super) fn added(self, gpu: &Arc<Gpu>) -> Result<Added> {
        self.found(gpu)?.ok_or_else(|| untrusted_unit().of(self.strategy()))
    }

    /// Whether this device's sums are within a bound.
    pub fn is_trusted(self, gpu: &Arc<Gpu>) -> Result<bool> {
        Ok(self.found(gpu)?.is_some())
    }

    /// How the tensor cores of this GPU add up. None if their sums are outside of every bound.
    fn found(self, gpu: &Arc<Gpu>) -> Result<Option<Added>> {
        let known = answers().get(&(gpu.ordinal, self)).copied();
        if let Some(known) = known {
            return Ok(known);
        }
        let found = self.ask(gpu)?;
        answers().insert((gpu.ordinal, self), found);
        Ok(found)
    }

    /// Lets the device add up, and looks at the sums.
    fn ask(self, gpu: &Arc<Gpu>) -> Result<Option<Added>> {
        const WHAT: &str = "asking how tensor cores add up";
        let entry = match self {
            Self::Wgmma => arguments::probe_tensor_wgmma(),
            Self::Mma => arguments::probe_tensor_mma(),
        };
        let (vectors, queue) = (Vectors::given(), gpu.queue()?);
        let rows = queue.upload(&in_a_chunk(&vectors.rows), WHAT)?;
        let centroids = queue.upload(&in_a_chunk(&vectors.centroids), WHAT)?;
        let starts = queue.upload(&vectors.starts, WHAT)?;
        let sums = queue.zeros::<f32>(adding::ROWS * adding::CENTROIDS, WHAT)?;
        let launch = entry.exactly(gpu, "", 1)?;
        let argument =
            ProbeTensorArgument { rows: rows.at_of(), centroids: centroids.at_of(), starts: starts.at(), sums: sums.at() };
        // SAFETY: the buffers have the sizes that the kernel reads and writes: `Vectors` says so. `TensorUnit::is_in` was asked.
        unsafe { queue.run(&launch, &argument)? };
        let mut found = vec![0.0; sums.len()];
        sums.read(0, &mut found)?;
        Ok(vectors.added(&found))
    }
}

/// The vectors of one side as they lie in a chunk: `swizzled` of `kernels/common/tensor.cuh`.
fn in_a_chunk(vectors: &[u16]) -> Vec<u16> {
    let piece = 8;
    let source = |i: usize| {
        let (place, at) = (i / CHUNK, i % CHUNK);
        place * CHUNK + ((at / piece) ^ (place % 8)) * piece + at % piece
    };
    (0..vectors.len()).map(|i| vectors[source(i)]).collect()
}

const _: () = assert!(adding::FEATURES == CHUNK && adding::CENTROIDS == TILE_CENTROIDS && adding::ROWS == TILE_ROWS / 2);

/// What the devices have answered in this process.
type ProbeResults = HashMap<(u32, TensorUnit), Option<Added>>;

fn answers() -> MutexGuard<'static, ProbeResults> {
    static ANSWERS: LazyLock<Mutex<ProbeResults>> = LazyLock::new(Mutex::default);
    ANSWERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The instructions whose sums were outside of every bound on a device, as far as it was asked.
pub fn untrusted(ordinal: u32) -> [bool; 2] {
    let answers = answers();
    TensorUnit::ALL.map(|unit| answers.get(&(ordinal, unit)) == Some(&None))
}

/// Why such an instruction is not used.
pub(super) fn untrusted_unit() -> Refusal {
    let limit = "tensor cores whose sums are within the bounds of certified labels".into();
    Refusal {
        limit,
        hint: "",
        got: "sums that are not: this device may be broken, or it adds up in a way that is not known".into(),
    }
}

/// Whether a choice is one of tensor cores that cannot be trusted. It asks the device, and later choices know the answer.
pub fn is_untrusted(choice: &Choice) -> Result<bool> {
    let untrusted =
        |ordinal: u32, strategy: Strategy| match TensorUnit::ALL.into_iter().find(|unit| unit.strategy() == strategy) {
            Some(unit) => Ok(!unit.is_trusted(&Gpu::get(ordinal)?)?),
            None => Ok(false),
        };
    match choice.place {
        Place::Cuda(ordinal) => untrusted(ordinal, choice.plan.strategy),
        _ => choice.shares.iter().try_fold(false, |any, share| Ok(any | untrusted(share.ordinal, share.plan.strategy)?)),
    }
}

/// Each instruction that a device has, and how it adds up. For tests.
#[doc(hidden)]
pub fn how_tensor_cores_add(ordinal: u32) -> Result<Vec<(Strategy, String)>> {
    let gpu = Gpu::get(ordinal)?;
    let units = TensorUnit::ALL.into_iter().filter(|unit| unit.is_in(gpu.size().generation));
    units.map(|unit| Ok((unit.strategy(), format!("{:?}", unit.found(&gpu)?)))).collect()
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(vectors_lie_as_copies_do);
    /// Feature f of place p is in piece f / 8, which is at (f / 8) ^ (p % 8).
    fn vectors_lie_as_copies_do() {
        let vectors: Vec<u16> = (0..16 * CHUNK as u16).collect();
        let chunk = in_a_chunk(&vectors);
        assert_eq!(chunk[..CHUNK], vectors[..CHUNK]);
        for (place, f) in [(1, 0), (5, 13), (13, 63)] {
            assert_eq!(chunk[place * CHUNK + ((f / 8) ^ (place % 8)) * 8 + f % 8], vectors[place * CHUNK + f]);
        }
    }
}

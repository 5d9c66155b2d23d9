//! The update on the device: exact means, shift, whether to stop, and what the next step reads (`kernels/passes/update.cu`).

use super::arguments::{self, Control, DirectionsArgument, EndChunkArgument, Record, UpdateArgument};
use super::device::{Buffer, Launch, Plain, Queue, buffers, product};
use super::exchange::GpuGroup;
use super::shape::FitShape;
use super::state::DeviceState;
use super::step::filter::Preparation;
use crate::backend::Stop;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::params::Metric;
use crate::exact::distances::DistanceScale;
use crate::statistics::Statistics;

buffers! {
    /// The memory of an update.
    struct UpdateBuffers<T> = "the state of the loop" (shape: &FitShape, batch: usize) {
        /// One for each iteration of a batch.
        records: Record [batch],
        /// `(k, d)`: the centroids before the last update.
        before: T [product([shape.k, shape.d])],
    }
}

/// The launches of the update of one fit.
pub struct UpdateLaunches<T> {
    update: Launch<UpdateArgument<T>>,
    /// With cosine: makes the centroids, which the update then takes.
    directions: Option<Launch<DirectionsArgument>>,
    fold: Launch<UpdateArgument<T>>,
    end_chunk: Launch<EndChunkArgument>,
    preparation: Preparation<T>,
    buffers: UpdateBuffers<T>,
    shifts: DistanceScale,
}

impl<T: Float + Plain> UpdateLaunches<T> {
    /// The bytes that the update takes on the device. `batch`: the most iterations of a batch.
    pub fn bytes(shape: &FitShape, batch: usize) -> u64 {
        Preparation::<T>::bytes(shape.d, shape.k).saturating_add(UpdateBuffers::<T>::bytes(shape, batch))
    }

    /// `statistics`: has the scale of the shift, and the metric.
    /// `group`: the GPUs that exchange their sums, if the fit has several.
    pub fn new(
        queue: &Queue,
        shape: &FitShape,
        statistics: &Statistics,
        batch: usize,
        group: Option<&GpuGroup>,
    ) -> Result<Self> {
        let gpu = &queue.gpu;
        let preparation = Preparation::new(queue, shape.d, shape.k, shape.rows)?;
        let (update, directions) = match statistics.metric {
            metric if group.is_some_and(|group| group.have_clusters(shape, metric)) => (arguments::update_means::<T>(), None),
            Metric::Euclidean => (arguments::update::<T>(), None),
            Metric::Cosine => {
                let directions = arguments::directions::<T>().resident(gpu, "", shape.k)?;
                (arguments::update_directions::<T>(), Some(directions))
            }
        };
        let update = preparation.teams.launch(gpu, update)?;
        let accumulators = shape.k.saturating_mul(shape.columns());
        let fold = arguments::update_fold::<T>();
        let fold = fold.resident(gpu, "", fold.blocks_of(accumulators))?;
        let end_chunk = arguments::end_chunk().exactly(gpu, "", 1)?;
        let buffers = UpdateBuffers::allocate(queue, shape, batch)?;
        Ok(Self { update, directions, fold, end_chunk, preparation, buffers, shifts: statistics.shifts })
    }

    /// What the kernels of an iteration tell each other.
    pub fn control(&self) -> &Buffer<Control> {
        self.preparation.control()
    }

    /// Downloads it.
    pub fn read_control(&self) -> Result<Control> {
        let mut control = [Control::ZERO];
        self.control().read(0, &mut control)?;
        Ok(control[0])
    }

    /// Downloads the records of the first iterations of the last batch.
    pub fn read_records(&self, out: &mut [Record]) -> Result<()> {
        self.buffers.records.read(0, out)
    }

    /// Queues the end of a chunk after which another one comes: the counters of its kernels become zero.
    pub fn end_chunk(&self, queue: &Queue) -> Result<()> {
        // SAFETY: the control is a buffer of this object.
        unsafe { queue.run(&self.end_chunk, &EndChunkArgument { control: self.control().at() }) }
    }

    /// Prepares the next step for the centroids that were written.
    pub fn start(&self, state: &DeviceState<T>) -> Result<()> {
        let DeviceState { queue, filter, centroids, shape, .. } = state;
        self.preparation.start(queue, filter, centroids, shape.d, shape.k)
    }

    /// Queues the update of one iteration. `limit`: the most iterations of the whole fit. `first`: the number of the first
    /// iteration of the batch.
    pub fn launch(&self, state: &DeviceState<T>, stop: Stop, limit: u32, first: u32) -> Result<()> {
        let argument = UpdateArgument {
            records: self.buffers.records.at(),
            shifts: arguments::DistanceScale::from(&self.shifts),
            largest_changed: stop.changed,
            largest_shift: stop.shift,
            iterations: limit,
            first_iteration: first,
            ..self.argument(state)
        };
        if let Some(directions) = &self.directions {
            let UpdateArgument { sums, mean_exponents, centroids, previous, control, .. } = argument;
            let argument = DirectionsArgument { sums, mean_exponents, centroids, directions: previous, control };
            // SAFETY: as below. The kernel writes (k, d) centroids to the buffer of those before, which the update has not filled
            // yet.
            unsafe { state.queue.run(directions, &argument)? };
        }
        // SAFETY: the addresses are those of the state's and of this object's buffers, which have room for (k, columns, limbs)
        // sums, (k, d) centroids and one record for each iteration of the batch. The kernel begins with the wait.
        unsafe { state.queue.run_behind(&self.update, &argument) }
    }

    /// Where the update finds the new centroids, if they do not come from the sums. The centroids before the last update are lost
    /// when an exchange writes new ones.
    pub fn new_centroids(&self) -> &Buffer<T> {
        &self.buffers.before
    }

    /// Undoes the last update of the centroids.
    pub fn undo(&mut self, state: &mut DeviceState<T>) {
        std::mem::swap(&mut self.buffers.before, &mut state.centroids.now);
    }

    /// The centroids before the last update.
    #[cfg(feature = "bench")]
    pub fn centroids_before(&self) -> Result<Vec<T>> {
        self.buffers.before.to_vec()
    }

    /// Adds the pending sums to the canonical sums.
    pub fn fold(&self, state: &DeviceState<T>) -> Result<()> {
        // SAFETY: as in `launch`. This kernel touches only sums.
        unsafe { state.queue.run(&self.fold, &self.argument(state)) }
    }

    fn argument(&self, state: &DeviceState<T>) -> UpdateArgument<T> {
        UpdateArgument {
            mean_exponents: state.columns.mean_exponents.at(),
            lows: state.columns.lows.at(),
            highs: state.columns.highs.at(),
            previous: self.buffers.before.at(),
            ..self.preparation.argument(&state.filter, &state.centroids, state.sums.argument(&state.shape))
        }
    }
}

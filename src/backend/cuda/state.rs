//! The state of a fit on the device: labels, sums, centroids, and what steps and updates read besides them.

use super::arguments::{AssignArgument, Control, Factors, LabelsArgument, RowInDoubt, SumsArgument, weight_to_integer};
use super::device::{At, Buffer, Plain, Queue, buffers, bytes_of, product};
use super::exchange::{GpuGroup, Port};
use super::rows::chunks::DeviceChunk;
use super::shape::FitShape;
use super::step::filter::DeviceFilter;
use super::step::{LabelArrays, Needs};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::exact::fixed::Limbs;
use crate::statistics::Statistics;

/// Names of the allocations in errors.
const COLUMNS: &str = "the quanta and extents of the columns";
const LABELS: &str = "the labels";

/// The labels of a fit.
pub struct DeviceLabels {
    /// One array if a step changes labels in place, otherwise two. `arrays[current]` are the current labels. The other array
    /// holds the labels before them.
    arrays: Vec<Buffer<u8>>,
    current: usize,
    /// Bytes of a label.
    pub bytes: usize,
}

impl DeviceLabels {
    /// The bytes that the labels take on the device.
    pub fn memory(shape: &FitShape, arrays: LabelArrays) -> u64 {
        bytes_of::<u8>(product([shape.padded_rows(), shape.label_bytes()])).saturating_mul(arrays as u64)
    }

    fn allocate(queue: &Queue, shape: &FitShape, arrays: LabelArrays) -> Result<Self> {
        let len = product([shape.padded_rows(), shape.label_bytes()]);
        let arrays = (0..arrays as usize).map(|_| queue.alloc(len, LABELS)).collect::<Result<_>>()?;
        Ok(Self { arrays, current: 0, bytes: shape.label_bytes() })
    }

    /// The arrays of the labels before and after a step, from row `first` on.
    pub fn before_and_after(&self, first: usize) -> [LabelsArgument; 2] {
        [self.current, self.current + 1].map(|which| self.argument(which, first))
    }

    /// The current labels, from row `first` on.
    pub fn now(&self, first: usize) -> LabelsArgument {
        self.argument(self.current, first)
    }

    fn argument(&self, which: usize, first: usize) -> LabelsArgument {
        let array = &self.arrays[which % self.arrays.len()];
        LabelsArgument { at: array.at_index(first * self.bytes), bytes: self.bytes as i32 }
    }

    /// The current labels.
    pub fn array(&self) -> &Buffer<u8> {
        &self.arrays[self.current]
    }

    /// The labels before the current ones, if there are two arrays.
    #[cfg(feature = "papers")]
    pub fn array_before(&self) -> &Buffer<u8> {
        &self.arrays[(self.current + 1) % self.arrays.len()]
    }

    /// A step was queued: its new labels are the current ones.
    pub fn advance(&mut self) {
        self.current = (self.current + 1) % self.arrays.len();
    }

    /// The last `steps` steps did nothing: the labels before them are the current ones.
    pub fn go_back(&mut self, steps: u32) {
        let steps = steps as usize % self.arrays.len();
        self.current = (self.current + self.arrays.len() - steps) % self.arrays.len();
    }

    /// No row has a label.
    pub fn clear(&mut self) -> Result<()> {
        self.current = 0;
        self.arrays.iter_mut().try_for_each(|labels| labels.fill(0xff))
    }
}

buffers! {
    /// The sums of the clusters: pending ones, which kernels add to in any order, and canonical ones.
    pub struct DeviceSums = "the sums of the clusters" (shape: &FitShape) {
        /// `(k, columns, limbs, 2)`.
        pending: u64 [product([shape.accumulators(), 2])],
        /// `(k)`.
        pending_rows: i64 [shape.k],
        /// `(k, columns)`: canonical. If GPUs have clusters of their own, only the sums of these count.
        canonical: i128 [product([shape.k, shape.columns()])],
        /// `(k)`: rows of positive weight.
        rows: i64 [shape.k],
        /// `(columns)`: whether the column has one limb.
        one_limb: u8 [shape.columns()],
    }
}

impl DeviceSums {
    /// The sums as a part of a kernel's parameter.
    pub fn argument(&self, shape: &FitShape) -> SumsArgument {
        SumsArgument {
            pending: self.pending.at(),
            pending_rows: self.pending_rows.at(),
            sums: self.canonical.at(),
            rows: self.rows.at(),
            one_limb: self.one_limb.at(),
            k: shape.k as i32,
            d: shape.d as i32,
            columns: shape.columns() as i32,
            mass_column: if shape.weighted { shape.d as i32 } else { -1 },
            limbs: shape.limbs as i32,
            unused: 0,
        }
    }

    /// All sums become 0.
    pub fn clear(&mut self) -> Result<()> {
        self.pending.fill(0)?;
        self.pending_rows.fill(0)?;
        self.canonical.fill(0)?;
        self.rows.fill(0)
    }
}

buffers! {
    /// What is known about the columns.
    pub struct ColumnStatistics<T> = "the quanta and extents of the columns" (d: usize) {
        factors: Factors [d],
        /// A mean is sum / mass * 2^this.
        mean_exponents: i32 [d],
        lows: T [d],
        highs: T [d],
    }
}

buffers! {
    /// The centroids.
    pub struct Centroids<T> = "the centroids" (d: usize, k: usize) {
        /// `(k, d)`.
        now: T [product([k, d])],
        /// `(d, k)`: the same as `now`.
        columns: T [product([k, d])],
        /// `(k)`: the squared distance that each centroid moved in the last update.
        drift: f64 [k],
    }
}

/// The state of a fit on the device.
pub struct DeviceState<T> {
    pub queue: Queue,
    pub shape: FitShape,
    pub labels: DeviceLabels,
    pub sums: DeviceSums,
    /// The pending sums of the steps, if other GPUs read them.
    pub port: Option<Port>,
    pub columns: ColumnStatistics<T>,
    pub centroids: Centroids<T>,
    pub filter: DeviceFilter<T>,
    /// What the kernels of an iteration tell each other: the address of `Control`.
    pub control: At<Control>,
    /// A weight times this is an integer.
    pub mass_to_integer: f64,
}

impl<T: Float + Plain> DeviceState<T> {
    /// The bytes that the state takes on the device.
    pub fn bytes(shape: &FitShape, needs: &Needs) -> u64 {
        let FitShape { d, k, .. } = *shape;
        super::device::sum([
            DeviceLabels::memory(shape, needs.label_arrays),
            DeviceSums::bytes(shape),
            ColumnStatistics::<T>::bytes(d),
            Centroids::<T>::bytes(d, k),
            DeviceFilter::<T>::bytes(d, &needs.filter),
        ])
    }

    /// The state before the first iteration. `largest`: as for [`DeviceFilter::new`]. `group`: the GPUs that read the sums, if there
    /// are several.
    pub fn new(
        queue: &Queue,
        shape: &FitShape,
        needs: &Needs,
        statistics: &Statistics,
        largest: f64,
        control: &Buffer<Control>,
        group: Option<&GpuGroup>,
    ) -> Result<Self> {
        let mut state = Self {
            queue: queue.clone(),
            shape: *shape,
            labels: DeviceLabels::allocate(queue, shape, needs.label_arrays)?,
            sums: DeviceSums::allocate(queue, shape)?,
            port: group.map(|group| Port::new::<T>(queue, shape, statistics.metric, group)).transpose()?,
            columns: ColumnStatistics::allocate(queue, shape.d)?,
            centroids: Centroids::allocate(queue, shape.d, shape.k)?,
            filter: DeviceFilter::new(queue, needs.filter, shape.d, largest)?,
            control: control.at(),
            mass_to_integer: weight_to_integer(statistics.weights),
        };
        state.centroids.drift.fill(0)?;
        state.describe_columns(statistics)?;
        state.clear()?;
        Ok(state)
    }

    fn describe_columns(&mut self, statistics: &Statistics) -> Result<()> {
        let scales = statistics.scales.iter();
        let weight_exponent = statistics.weights.map_or(0, |scale| scale.exponent - 53);
        let mean_exponents = scales.clone().map(|scale| scale.quantum_exponent() - weight_exponent);
        let one_limb = scales.clone().map(|scale| u8::from(scale.limbs == Limbs::One)).chain(std::iter::repeat(0));
        let one_limb = memory::collected(one_limb.take(self.shape.columns()), COLUMNS)?;
        let typed = |values: &[f64]| memory::collected(values.iter().map(|&v| T::from_f64(v)), COLUMNS);
        self.sums.one_limb.write(0, &one_limb)?;
        self.columns.factors.write(0, &memory::collected(scales.map(Factors::from), COLUMNS)?)?;
        self.columns.mean_exponents.write(0, &memory::collected(mean_exponents, COLUMNS)?)?;
        self.columns.lows.write(0, &typed(&statistics.lows)?)?;
        self.columns.highs.write(0, &typed(&statistics.highs)?)
    }

    /// Forgets all labels and sums.
    pub fn clear(&mut self) -> Result<()> {
        self.labels.clear()?;
        self.port.as_mut().map_or(Ok(()), Port::clear)?;
        self.sums.clear()
    }

    /// The sums that a step adds to. If the fit has several GPUs, they are pending in the port.
    pub fn sums_of_step(&self) -> SumsArgument {
        let sums = self.sums.argument(&self.shape);
        let Some((pending, pending_rows)) = self.port.as_ref().map(Port::pending) else { return sums };
        SumsArgument { pending, pending_rows, ..sums }
    }

    /// The parameter of a kernel that labels the rows of a chunk. `in_doubt`: the address of the list of rows in doubt.
    pub fn assign_argument(&self, chunk: &DeviceChunk<'_, T>, in_doubt: At<RowInDoubt>) -> AssignArgument<T> {
        let [labels, next] = self.labels.before_and_after(chunk.first);
        AssignArgument {
            rows: chunk.rows.argument(),
            labels,
            next,
            in_doubt,
            control: self.control,
            sums: self.sums_of_step(),
            factors: self.columns.factors.at(),
            mass_to_integer: self.mass_to_integer,
            ..self.filter.assign_argument(&self.centroids, self.shape.k)
        }
    }
}

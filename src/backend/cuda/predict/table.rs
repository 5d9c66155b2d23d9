//! The centroids of one model on one GPU, and the kernels that compare rows with them.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::{Mutex, PoisonError};

use super::tensor::{TensorBatch, TensorTable};
use crate::backend::Scales;
use crate::backend::centre::middle;
use crate::backend::cuda::arguments::{
    self, AssignArgument, BlankArgument, Control, DistancesArgument, LabelsArgument, NearestArgument, NearestClustersArgument,
    RowsArgument, SumsArgument,
};
use crate::backend::cuda::device::{Argument, At, Buffer, Entry, Gpu, Plain, Queue, buffers, bytes_of, product, sum};
use crate::backend::cuda::passes::distances::{InertiaPass, InertiaSums};
use crate::backend::cuda::rows::DeviceRows;
use crate::backend::cuda::shape::{FitShape, GpuSize};
use crate::backend::cuda::state::Centroids;
use crate::backend::cuda::step::filter::{DeviceFilter, Preparation};
use crate::backend::cuda::step::shares::Shares;
use crate::backend::cuda::step::tensor::labels::bytes_of_batch;
use crate::backend::cuda::step::tensor::sizes::TensorSizes;
use crate::backend::cuda::step::tiled::{Doubt, Tiled, TiledLabels};
use crate::backend::select::{Job, Shape};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::params::DrawnCandidates;
use crate::base::strategy::Strategy;
use crate::exact::distances::DistanceScale;

/// Threads of a block of the kernels in `kernels/passes/predict.cu`. This is also the number of rows of their tiles.
pub const ROWS: u32 = 128;
/// Centroids of a tile of these kernels.
const WIDTH: usize = 16;

/// The centroids of one model on one GPU. They do not change after the upload, so all queues may read them.
pub struct DeviceTable<T> {
    pub k: usize,
    pub d: usize,
    centroids: Centroids<T>,
    filter: DeviceFilter<T>,
    /// The kernel that the filter was made for.
    tiled: Tiled,
    tensor: TensorTable<T>,
    queue: Queue,
    /// Queues of earlier calls. No work is left in them.
    idle: Mutex<Vec<Queue>>,
}

impl<T> fmt::Debug for DeviceTable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceTable {{ k: {}, d: {}, ordinal: {} }}", self.k, self.d, self.queue.gpu.ordinal)
    }
}

/// A batch of rows that are read where they are has about this many times as many rows.
const MORE_IN_PLACE: usize = 4;

/// Most queues that a table keeps for later calls.
const MOST_IDLE: usize = 32;

/// The queue of one batch of a call. It is empty when it is dropped, also after an error: so nothing reads the table after that.
/// The table then keeps it for later calls. To make a queue takes longer than to label a morsel.
pub struct CallQueue<'t> {
    queue: Queue,
    idle: &'t Mutex<Vec<Queue>>,
}

impl Deref for CallQueue<'_> {
    type Target = Queue;
    fn deref(&self) -> &Queue {
        &self.queue
    }
}

impl Drop for CallQueue<'_> {
    fn drop(&mut self) {
        // An error here means that the context no longer exists, and neither does its work.
        if self.queue.wait().is_ok() {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            if idle.len() < MOST_IDLE {
                idle.push(self.queue.clone());
            }
        }
    }
}

buffers! {
    /// The labels of a batch of rows, and the counters of the kernels that find them.
    struct LabelBuffers = "the answers for a batch of rows" (n: usize) {
        labels: u32 [n],
        control: Control [1],
    }
}

/// The labels of a batch of rows, and what their kernels use. All of it is kept until the kernels are done. If some were freed
/// before, the driver would give it to the next batch, and the upload of that batch would wait for these kernels.
pub struct BatchLabels<T> {
    buffers: LabelBuffers,
    /// Float32 products have this.
    doubt: Option<Doubt>,
    /// Tensor cores have this.
    _tensor: Option<Box<TensorBatch<T>>>,
}

impl<T> BatchLabels<T> {
    pub fn labels(&self) -> &Buffer<u32> {
        &self.buffers.labels
    }
}

buffers! {
    /// The labels of a batch of rows, and the distances to the two nearest centroids.
    pub struct NearestBuffers = "the answers for a batch of rows" (n: usize) {
        labels: u32 [n],
        distances: f64 [n],
        seconds: f64 [n],
    }
}

buffers! {
    /// The m nearest centroids of a batch of rows, and all distances, among which they are found.
    pub struct ClusterBuffers = "the answers for a batch of rows" (n: usize, m: usize) {
        clusters: u32 [product([n, m])],
        distances: f64 [product([n, m])],
    }
}

impl NearestBuffers {
    /// The parameter of the kernel that fills these buffers.
    pub fn argument<T: Plain>(&self, rows: RowsArgument, centroids: &Centroids<T>, k: usize) -> NearestArgument {
        let (labels, distances, seconds) = (self.labels.at(), self.distances.at(), self.seconds.at());
        let centroid_columns = centroids.columns.at();
        NearestArgument { rows, centroid_columns, labels, distances, seconds, k: k as i32, unused: 0 }
    }
}

impl<T: Float + Plain> DeviceTable<T> {
    /// The bytes that a table takes on the device, also while it is made.
    pub fn bytes(d: usize, k: usize, gpu: GpuSize) -> u64 {
        let filter = DeviceFilter::<T>::bytes(d, &Tiled::for_model(d, k).filter(d, k, gpu));
        sum([Centroids::<T>::bytes(d, k), filter, Preparation::<T>::bytes(d, k)])
    }

    /// The bytes that the answers for `n` rows take on the device.
    pub fn answer_bytes(job: Job, [n, d, k]: [usize; 3], gpu: GpuSize) -> u64 {
        let shares = || Shares::bytes(Tiled::for_model(d, k).tiles([n, d, k], gpu));
        let labels = || sum([LabelBuffers::bytes(n), Doubt::bytes(n), shares()]);
        match job {
            Job::Fit | Job::Labels => labels(),
            Job::Score => labels().saturating_add(InertiaSums::bytes(k)),
            Job::Nearest => NearestBuffers::bytes(n),
            Job::Distances => bytes_of::<f64>(product([n, k])),
            Job::NearestClusters => sum([bytes_of::<f64>(product([n, k])), ClusterBuffers::bytes(n, k)]),
        }
    }

    /// Uploads the centroids: `(k, d)`, row-major.
    pub fn new(ordinal: u32, centroids: &[T], d: usize) -> Result<Self> {
        let queue = Gpu::get(ordinal)?.queue()?;
        let k = centroids.len() / d;
        let centre = middle(centroids, d)?;
        let offsets = centroids.chunks_exact(d).flat_map(|row| row.iter().zip(&centre).map(|(c, m)| (c.to_f64() - m).abs()));
        // Two centroids are at most twice as far from each other as the farther one is from the centre.
        let largest = 2.0 * offsets.fold(0.0f64, f64::max);
        let tiled = Tiled::for_model(d, k);
        let mut filter = DeviceFilter::new(&queue, tiled.filter(d, k, queue.gpu.size()), d, largest)?;
        filter.centre(centroids)?;
        let centroids_here = Centroids::allocate(&queue, d, k)?;
        let table = Self {
            k,
            d,
            centroids: centroids_here,
            filter,
            tiled,
            tensor: TensorTable::default(),
            queue,
            idle: Mutex::default(),
        };
        table.centroids.now.write(0, centroids)?;
        Preparation::new(&table.queue, d, k, 0)?.start(&table.queue, &table.filter, &table.centroids, d, k)?;
        table.queue.wait()?;
        Ok(table)
    }

    pub fn gpu(&self) -> &Gpu {
        &self.queue.gpu
    }

    /// A queue for one batch. Each has its own, so several calls and several batches can run at the same time.
    pub fn queue(&self) -> Result<CallQueue<'_>> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let queue = idle.map_or_else(|| self.queue.gpu.queue(), Ok)?;
        Ok(CallQueue { queue, idle: &self.idle })
    }

    /// The ranges of rows of the batches, in order. `in_place`: whether the rows are read where they are. They take no memory
    /// then, so batches have more of them.
    pub fn batches(&self, job: Job, n: usize, in_place: bool) -> impl Iterator<Item = Range<usize>> + use<T> {
        let features = if in_place && job == Job::Labels { self.d.div_ceil(MORE_IN_PLACE) } else { self.d };
        let clusters = self.k;
        let shape = Shape {
            job,
            rows: n as u64,
            features,
            clusters,
            float64: !T::IS_F32,
            // The size of a batch does not depend on it.
            half: false,
            weighted: false,
            candidates: DrawnCandidates::NONE,
            priced: false,
        };
        shape.batches(!in_place).map(|range| range.start as usize..range.end as usize)
    }

    /// The exact labels of all finite rows, by the kernel that is predicted to be the fastest. Rows that are not finite get no
    /// label.
    pub fn assign_finite(&self, queue: &Queue, rows: &DeviceRows<T>, strategy: Strategy) -> Result<BatchLabels<T>> {
        let labels = self.assign_some(queue, rows, 0..rows.n, strategy)?;
        // Tensor cores see no rows that are not finite.
        if labels.doubt.is_some() {
            self.blank(queue, rows, Some(labels.labels()), None)?;
        }
        Ok(labels)
    }

    /// The exact labels of some of the rows. The first of them is a multiple of the tiles of all kernels. Rows that are not
    /// finite get any label, or none. `strategy`: one of tensor cores, [`Strategy::Tiled`] for float32 products, or the default:
    /// the one that is predicted to be faster.
    pub fn assign_some(
        &self,
        queue: &Queue,
        rows: &DeviceRows<T>,
        range: Range<usize>,
        strategy: Strategy,
    ) -> Result<BatchLabels<T>> {
        let n = range.len();
        let mut buffers = LabelBuffers::allocate(queue, n)?;
        // No row has a label.
        buffers.labels.fill(0xff)?;
        buffers.control.fill(0)?;
        let LabelBuffers { labels, control } = &buffers;
        let place = LabelsArgument { at: labels.at(), bytes: 4 };
        let mut argument = AssignArgument {
            rows: rows.argument_of(range),
            labels: place,
            next: place,
            control: control.at(),
            sums: SumsArgument::none(self.k, self.d),
            mass_to_integer: 1.0,
            ..self.filter.assign_argument(&self.centroids, self.k)
        };
        let shape = self.shape(n, rows.half().is_some());
        // SAFETY: no row has a label. The addresses are those of this table, of the rows and of the buffers, each with a place
        // for every row.
        let by_tensor_cores = unsafe { self.tensor.label((strategy, self.tiled), &shape, queue, &argument)? };
        if let Some(labels) = by_tensor_cores {
            return Ok(BatchLabels { buffers, doubt: None, _tensor: Some(Box::new(labels)) });
        }
        let doubt = Doubt::allocate(queue, n)?;
        argument.in_doubt = doubt.in_doubt.at();
        let kernels = TiledLabels::new(self.tiled, [n, self.d, self.k], rows.half().is_some(), queue)?;
        // SAFETY: the filter was made for this kernel, and its copies are complete. Each row has a label and a place in the list.
        // These kernels do not touch sums.
        unsafe { kernels.launch(queue, false, &argument, self.centroids.now.at())? };
        Ok(BatchLabels { buffers, doubt: Some(doubt), _tensor: None })
    }

    /// The shape of a batch of `n` rows. `half`: whether their values have 16 bits.
    fn shape(&self, n: usize, half: bool) -> FitShape {
        let Self { k, d, .. } = *self;
        FitShape { rows: n, chunk: n, d, k, weighted: false, float64: !T::IS_F32, half, limbs: 1, more_copies: false }
    }

    /// The bytes that labels of `n` rows by tensor cores take on the device.
    pub fn tensor_bytes(&self, n: usize) -> u64 {
        bytes_of_batch::<T>(&TensorSizes::new(&self.shape(n, false)))
    }

    /// The address of the centroids: `(k, d)`, row-major.
    pub fn centroids_at(&self) -> u64 {
        self.centroids.now.at()
    }

    /// The labels, and the distances to the nearest and to the second nearest centroid. Rows that are not finite get no label,
    /// and with `blank_distances` no distances.
    pub fn nearest(&self, queue: &Queue, rows: &DeviceRows<T>, blank_distances: bool) -> Result<NearestBuffers> {
        let out = NearestBuffers::allocate(queue, rows.n)?;
        let argument = out.argument(rows.argument(), &self.centroids, self.k);
        // SAFETY: the outputs have one entry for each row. Rows may be read up to the stride, which is a multiple of the tile.
        unsafe { run(queue, rows.entry(arguments::nearest::<T>()), rows.n.div_ceil(ROWS as usize), &argument)? };
        self.blank(queue, rows, Some(&out.labels), blank_distances.then_some((&out.distances, 1)))?;
        if blank_distances {
            self.blank(queue, rows, None, Some((&out.seconds, 1)))?;
        }
        Ok(out)
    }

    /// The distances to all centroids, or their squares: `(n, k)`. Rows that are not finite get none.
    pub fn distances(&self, queue: &Queue, rows: &DeviceRows<T>, squared: bool) -> Result<Buffer<f64>> {
        let out = queue.alloc(product([rows.n, self.k]), "the answers for a batch of rows")?;
        let argument = DistancesArgument {
            rows: rows.argument(),
            centroid_columns: self.centroids.columns.at(),
            out: out.at(),
            k: self.k as i32,
            squared: i32::from(squared),
        };
        let tiles = rows.n.div_ceil(ROWS as usize).saturating_mul(self.k.div_ceil(WIDTH));
        // SAFETY: the output has k entries for each row. Rows may be read up to the stride, which is a multiple of the tile.
        unsafe { run(queue, rows.entry(arguments::distances::<T>()), tiles, &argument)? };
        self.blank(queue, rows, None, Some((&out, self.k)))?;
        Ok(out)
    }

    /// The `m` nearest centroids, and all squared distances, which must live until the kernel is done. Rows that are not finite
    /// get no label.
    pub fn nearest_clusters(
        &self,
        queue: &Queue,
        rows: &DeviceRows<T>,
        m: usize,
        squared: bool,
    ) -> Result<(ClusterBuffers, Buffer<f64>)> {
        let (out, squares) = (ClusterBuffers::allocate(queue, rows.n, m)?, self.distances(queue, rows, true)?);
        let argument = NearestClustersArgument {
            squares: squares.at(),
            clusters: out.clusters.at(),
            distances: out.distances.at(),
            n: rows.n as u64,
            k: self.k as i32,
            m: m as i32,
            squared: i32::from(squared),
            unused: 0,
        };
        let blocks = rows.n.div_ceil(ROWS as usize / 32);
        // SAFETY: each row has k distances and m places in the output.
        unsafe { run(queue, arguments::nearest_clusters(), blocks, &argument)? };
        Ok((out, squares))
    }

    /// Removes the answers for rows that are not finite: their labels, or their distances, of which each row has so many.
    fn blank(
        &self,
        queue: &Queue,
        rows: &DeviceRows<T>,
        labels: Option<&Buffer<u32>>,
        distances: Option<(&Buffer<f64>, usize)>,
    ) -> Result<()> {
        let argument = BlankArgument {
            rows: rows.argument(),
            labels: labels.map_or(At::NULL, Buffer::at),
            distances: distances.map_or(At::NULL, |(distances, _)| distances.at()),
            k: distances.map_or(0, |(_, each)| each as i32),
            unused: 0,
        };
        // SAFETY: each row has a label, or as many distances as the caller says.
        unsafe { run(queue, rows.entry(arguments::blank::<T>()), rows.n.div_ceil(ROWS as usize), &argument) }
    }

    /// The sum over all rows of the integer distance to the centroid of the row's label.
    pub fn total_distance(
        &self,
        queue: &Queue,
        rows: &DeviceRows<T>,
        labels: &Buffer<u32>,
        scale: DistanceScale,
    ) -> Result<u128> {
        let mut inertia = InertiaSums::new(queue, self.k, Scales::Same(scale))?;
        let pass = InertiaPass::new::<T>(queue, rows.n, self.k, rows.half().is_some())?;
        let labels = LabelsArgument { at: labels.at(), bytes: 4 };
        // SAFETY: each row has a label below k. The table has k centroids.
        unsafe { pass.add(queue, rows.argument(), labels, self.centroids.now.at(), &mut inertia)? };
        Ok(inertia.total()?.into_iter().sum())
    }
}

/// Launches a kernel of `kernels/passes/predict.cu` with as many blocks as the device runs at once, but at most `most`.
///
/// # Safety
/// The same as for [`Queue::run`].
unsafe fn run<A: Argument>(queue: &Queue, entry: Entry<A>, most: usize, argument: &A) -> Result<()> {
    let launch = entry.resident(&queue.gpu, "", most)?;
    // SAFETY: the caller promises it.
    unsafe { queue.run(&launch, argument) }
}

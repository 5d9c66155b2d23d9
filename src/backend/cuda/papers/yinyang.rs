//! Bounds that are carried from iteration to iteration, so that most scores of later iterations need not be computed: `yinyang`.
//! `kernels/papers/yinyang_order.cu`, `yinyang_carry.cu`, `yinyang_rows.cu` and `assign_yinyang.cu`, and `settle.cu` and `deltas.cu`; the
//! proofs are in `bounds/yinyang.rs`.
//!
//! ```text
//! once a fit:     groups of centroids that start near each other (`groups.rs`)
//! after the first iteration:   a copy of the rows in the order of their centroids
//! an iteration:   how far each centroid has moved; rows whose bounds hold keep their label; other rows get a
//!                 fresh upper bound; rows whose bounds still do not hold are compared with the groups whose bounds do not hold
//! ```
//! The step keeps the centroids of its last launch and measures drifts itself. So the host or the device may set the
//! centroids. If other code has changed labels, the step begins anew. Bounds have an epoch: after the fit has stopped, launches that are still queued
//! do nothing, so only the device knows which bounds it has.

mod groups;
mod sizes;

use self::sizes::{CentroidBuffers, RowBuffers, YinyangSizes};
use crate::backend::cuda::arguments::{
    self, AssignArgument, CarriedArgument, CarriedRowsArgument, MovedRowsArgument, RowsArgument, YinyangArgument,
};
use crate::backend::cuda::device::{At, Block, Launch, Plain, Queue, sum};
use crate::backend::cuda::rows::chunks::DeviceChunk;
use crate::backend::cuda::shape::{FitShape, GpuSize};
use crate::backend::cuda::state::DeviceState;
use crate::backend::cuda::step::deltas::DeltasLaunch;
use crate::backend::cuda::step::tiled::{Doubt, SettleLaunches};
use crate::backend::cuda::step::{Candidate, LabelArrays, Needs, Step, Supported, at_most};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::strategy::Strategy;
use crate::bounds::ExpandedTerms;
use crate::bounds::yinyang::Carry;

/// The most features, clusters and rows: numbers of 30, 16 and 31 bits.
const MOST_FEATURES: usize = 1 << 20;
const MOST_CLUSTERS: usize = 1 << 16;
const MOST_ROWS: usize = 1 << 31;
/// Rows of a tile, which is a block of `yinyang_rows`.
const TILE_ROWS: usize = 128;
/// Rows that a block of `yinyang_carry` and one of `yinyang_tighten` take at a time.
const CARRIED: usize = 2_048;
const TIGHTENED: usize = 512;

/// The candidate: a row has a lower bound for each group of centroids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Yinyang;

impl<T: Float + Plain> Candidate<T> for Yinyang {
    fn strategy(&self) -> Strategy {
        Strategy::Yinyang
    }

    fn supports(&self, shape: &FitShape, _gpu: GpuSize) -> Supported {
        at_most(MOST_FEATURES, "features", shape.d)?;
        at_most(MOST_CLUSTERS, "clusters", shape.k)?;
        at_most(MOST_ROWS, "rows", shape.chunk)
    }

    fn streams(&self) -> bool {
        false
    }

    fn needs(&self, shape: &FitShape, gpu: GpuSize) -> Needs {
        let sizes = YinyangSizes::new(shape, gpu);
        let bytes = sum([RowBuffers::bytes(&sizes), CentroidBuffers::<T>::bytes(&sizes), Doubt::bytes(shape.chunk)]);
        Needs { filter: sizes.filter(), label_arrays: LabelArrays::BeforeAndAfter, bytes }
    }

    fn make(&self, shape: &FitShape, queue: &Queue) -> Result<Box<dyn Step<T>>> {
        let sizes = YinyangSizes::new(shape, queue.gpu.size());
        Ok(Box::new(YinyangStep::<T>::new(sizes, shape, queue)?))
    }
}

/// The step of one fit.
struct YinyangStep<T> {
    sizes: YinyangSizes,
    rows: RowBuffers,
    centroids: CentroidBuffers<T>,
    doubt: Doubt,
    drifts: Launch<CarriedRowsArgument<T>>,
    copies: Launch<CarriedArgument>,
    carry: Launch<CarriedArgument>,
    tighten: Launch<CarriedRowsArgument<T>>,
    order: [Launch<CarriedArgument>; 3],
    move_rows: Launch<MovedRowsArgument>,
    gather: Launch<CarriedRowsArgument<T>>,
    assign: Launch<YinyangArgument>,
    settle: SettleLaunches<T>,
    deltas: DeltasLaunch,
    /// 2 E_x over the weighted sum of squares.
    error: f64,
    /// The epoch of the bounds.
    epoch: u32,
    /// Whether a launch has labelled the rows since other code changed labels.
    known: bool,
    /// Whether the rows are in the order of their centroids.
    ordered: bool,
}

impl<T: Float + Plain> YinyangStep<T> {
    fn new(sizes: YinyangSizes, shape: &FitShape, queue: &Queue) -> Result<Self> {
        let YinyangSizes { n, d, k, .. } = sizes;
        let (gpu, half) = (&*queue.gpu, shape.half);
        let bounded = Block { threads: sizes.tile.threads(), shared: sizes.tile.partial_sums() };
        let bounded = arguments::assign_yinyang().with_block(bounded);
        let drifts = arguments::yinyang_drifts::<T>();
        let (count, places) = (arguments::yinyang_count(), arguments::yinyang_places());
        let tighten = arguments::yinyang_tighten::<T>().half_if(half);
        let move_rows = arguments::yinyang_move::<T>().half_if(half);
        let gather = arguments::yinyang_rows::<T>().half_if(half);
        let terms = ExpandedTerms::new(d, sizes.filter().chains, 0);
        let mut centroids = CentroidBuffers::<T>::allocate(queue, &sizes)?;
        centroids.largest.fill(0)?;
        // The first launch compares the centroids with zeros, and computes all scores.
        centroids.kept.fill(0)?;
        centroids.control.fill(0)?;
        Ok(Self {
            sizes,
            rows: RowBuffers::allocate(queue, &sizes)?,
            centroids,
            doubt: Doubt::allocate(queue, n)?,
            drifts: drifts.resident(gpu, "", drifts.blocks_of_warps(k))?,
            copies: arguments::yinyang_copies().resident(gpu, "", sizes.k_padded)?,
            carry: arguments::yinyang_carry().resident(gpu, "", n.div_ceil(CARRIED))?,
            tighten: tighten.resident(gpu, "", n.div_ceil(TIGHTENED))?,
            order: [
                count.resident(gpu, "", count.blocks_of(n))?,
                arguments::yinyang_starts().resident(gpu, "", 1)?,
                places.resident(gpu, "", places.blocks_of(n))?,
            ],
            move_rows: move_rows.resident(gpu, "", move_rows.blocks_of(n))?,
            gather: gather.resident(gpu, "", n.div_ceil(TILE_ROWS))?,
            assign: bounded.resident(gpu, &sizes.tile.variant(), n.div_ceil(TILE_ROWS))?,
            settle: SettleLaunches::new([n, d, k], half, true, queue)?,
            deltas: DeltasLaunch::new::<T>(shape, queue)?,
            error: Carry::error(terms.unit, terms.balance),
            epoch: 0,
            known: false,
            ordered: false,
        })
    }

    /// Writes the places of centroids: with several groups, those of each group side by side.
    fn place_centroids(&mut self, state: &DeviceState<T>) -> Result<()> {
        let YinyangSizes { d, k, k_padded, .. } = self.sizes;
        let mut order: Vec<u32> = (0..k_padded as u32).collect();
        if self.sizes.groups > 1 {
            groups::order(&mut order[..k], &state.centroids.now.to_vec()?, d, self.sizes.tile.width);
        }
        let mut places = vec![0u32; k];
        for (place, j) in (0u32..).zip(&order[..k]) {
            places[*j as usize] = place;
        }
        self.centroids.order.write(0, &order)?;
        self.centroids.places.write(0, &places)
    }

    fn carried(&self, state: &DeviceState<T>, assign: &AssignArgument<T>) -> CarriedArgument {
        let Self { sizes, rows, centroids, .. } = self;
        let Carry { low, high, underflow, .. } = Carry::new(sizes.d, state.filter.scale().to_f64(), T::IS_F32);
        let several = sizes.groups > 1;
        CarriedArgument {
            control: state.control,
            own: centroids.control.at(),
            labels: assign.labels,
            next: assign.next,
            row_of_place: if self.ordered { rows.row_of_place.at() } else { At::NULL },
            own_labels: rows.own_labels.at(),
            bounds: rows.bounds.at(),
            group_bounds: rows.group_bounds.at(),
            centroids: centroids.moved.at(),
            groups: centroids.groups_moved.at(),
            largest: centroids.largest.at(),
            order: centroids.order.at(),
            places: centroids.places.at(),
            doubtful: rows.doubtful.at(),
            listed: rows.listed.at(),
            counts: centroids.counts.at(),
            copies: assign.copies,
            half_squares: assign.half_squares,
            own_copies: if several { centroids.copies.at() } else { assign.copies },
            own_half_squares: if several { centroids.half_squares.at() } else { assign.half_squares },
            x: rows.x.at(),
            terms: rows.terms.at(),
            unions: rows.unions.at(),
            stride: sizes.stride() as u64,
            n: sizes.n as u32,
            k: sizes.k as u32,
            k_padded: sizes.k_padded as u32,
            d: sizes.d as u32,
            group_count: sizes.groups as u32,
            width: sizes.row_width() as u32,
            group_size: (sizes.tile.width * sizes.group_tiles) as u32,
            epoch: self.epoch,
            low,
            high,
            underflow,
            unused: 0,
        }
    }

    /// Puts the rows in the order of their centroids.
    fn order_rows(&mut self, state: &DeviceState<T>, assign: &AssignArgument<T>) -> Result<()> {
        self.centroids.counts.fill(0)?;
        self.ordered = true;
        let carried = self.carried(state, assign);
        let moved = MovedRowsArgument {
            rows: assign.rows,
            row_of_place: carried.row_of_place,
            x: self.rows.moved.at(),
            stride: self.sizes.stride() as u64,
        };
        // SAFETY: each row has a label below k, because the launch before has labelled all rows. The buffers have a place for
        // each row.
        unsafe {
            for launch in &self.order {
                state.queue.run(launch, &carried)?;
            }
            state.queue.run(&self.move_rows, &moved)
        }
    }
}

impl<T: Float + Plain> Step<T> for YinyangStep<T> {
    fn launch(&mut self, chunk: &DeviceChunk<'_, T>, state: &DeviceState<T>) -> Result<()> {
        let anew = !self.known || !self.ordered;
        let assign = state.assign_argument(chunk, self.doubt.in_doubt.at());
        if !self.known {
            self.place_centroids(state)?;
        } else if !self.ordered {
            self.order_rows(state, &assign)?;
        }
        // Bounds are by place, and groups are new.
        self.epoch += u32::from(anew);
        let carried = self.carried(state, &assign);
        let YinyangSizes { d, .. } = self.sizes;
        let Carry { grown, tiny, squares, .. } = Carry::new(d, state.filter.scale().to_f64(), T::IS_F32);
        let rows = CarriedRowsArgument {
            carried,
            rows: if self.ordered {
                RowsArgument { x: self.rows.moved.at(), stride: self.sizes.stride() as u64, ..assign.rows }
            } else {
                assign.rows
            },
            centroids: assign.centroids,
            kept: self.centroids.kept.at(),
            minus_centre: assign.minus_centre,
            scale: assign.scale,
            bound: assign.bound,
            grown,
            tiny,
            error: self.error,
            squares,
            panel: self.sizes.filter().chains.panel() as i32,
            unused: 0,
        };
        let bounded = YinyangArgument {
            carried,
            slacks: assign.slacks,
            bound: assign.bound,
            in_doubt: assign.in_doubt,
            tiles: self.sizes.tiles() as u32,
            group_tiles: self.sizes.group_tiles as u32,
        };
        let (queue, several) = (&state.queue, self.sizes.groups > 1);
        // SAFETY: the addresses are those of the state's buffers and of this step's, which have a place for each row, tile of
        // rows, centroid and group. If bounds are not known, the first kernel says that all rows are compared. All kernels begin
        // with the wait.
        unsafe {
            // Not behind an upload, which is no kernel.
            queue.run_behind_if(!anew, &self.drifts, &rows)?;
            if several {
                queue.run_behind(&self.copies, &carried)?;
            }
            queue.run_behind(&self.carry, &carried)?;
            queue.run_behind(&self.tighten, &rows)?;
            queue.run_behind(&self.gather, &rows)?;
            queue.run_behind(&self.assign, &bounded)?;
            self.settle.launch(queue, &assign, state.centroids.now.at(), 1)?;
        }
        self.known = true;
        self.deltas.launch(chunk, state, None)
    }

    fn counts_scores(&self) -> bool {
        true
    }

    fn forget(&mut self) {
        (self.known, self.ordered) = (false, false);
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;
    use crate::backend::cuda::step::choice::tests::{H200, shape};

    unit_test!(limits_are_errors);
    fn limits_are_errors() {
        let error = |shape| Candidate::<f32>::supports(&Yinyang, &shape, H200).err().map(|refusal| refusal.limit);
        assert_eq!(error(shape(100_000, 40, 65_536)), None);
        assert!(error(shape(100_000, 40, 65_537)).unwrap().contains("at most 65536 clusters"));
        assert!(error(shape(10, 2_000_000, 2)).unwrap().contains("features"));
    }

    unit_test!(a_default_never_takes_it);
    fn a_default_never_takes_it() {
        let candidate: &dyn Candidate<f32> = &Yinyang;
        assert!(candidate.predicted(&shape(1_000_000, 32, 1_000), H200).is_none() && candidate.work().is_none());
    }
}

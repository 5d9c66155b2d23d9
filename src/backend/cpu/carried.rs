//! Assigns that carry bounds from iteration to iteration, so that rows whose label cannot change are not looked at.
//!
//! ```text
//! for each task, by whichever worker is free:
//!   for each kept row:      U = U + drift of its centroid;  l = l - largest drift of the others;  it stays if l proves it
//!   the rows that are left fill tiles:
//!     hamerly:  U from the reference distance to their own centroid;  they stay if l proves it
//!               the others move together: label, U and l from the two nearest of all centroids (`Assigner::nearest`)
//!     yinyang:  label, U and l from the groups of centroids that may hold the label (`carried/search.rs`)
//!     rows whose label changed: as in any assign
//! ```
//! G. Hamerly, "Making k-means even faster", SDM 2010; Y. Ding et al., "Yinyang K-means", ICML 2015. `src/certify/carry.rs` derives what the bounds
//! prove. Points to note: (1) A row stays only if the *rounded* reference distance of its label is the least one for certain. So labels,
//! sums and history are those of any other strategy. (2) Whoever changes a label behind the bounds calls [`Carried::forget`]
//! or [`Carried::forget_row`]. (3) Without bounds (the first assign) all rows are looked at. (4) There are no bounds if there
//! is one cluster, or if all rows are zero, and for Yinyang if copies of the centroids overflow.

mod drifts;
mod groups;
mod search;

use std::sync::Mutex;

use self::drifts::Drifts;
pub(super) use self::groups::split;
use self::groups::{Grouping, Groups};
use self::search::Search;
use super::assign::TwoNearest;
use super::centroids::CentroidTable;
use super::distances::own_distances;
use super::pass::{TaskRows, Worker, split_off};
use super::simd::{InstructionSet, Task, Vector};
use crate::certify::carry::Carry;
use crate::error::Result;
use crate::float::Float;
use crate::memory;
use crate::parallel::for_each_task;
use crate::partial::{Partial, Quantiser};
use crate::prepare::{Prepared, unit_exponent};
use crate::strategy::Strategy;
use crate::tile::Part;

/// The name for the bounds in errors.
const BOUNDS: &str = "the bounds of the rows";
/// Exponents of the units of bounds are at most this large.
const MOST_EXPONENT: i32 = 460;

/// The bounds of the rows of a session.
pub struct Carried {
    carry: Carry,
    exponent: i32,
    grouped: bool,
    /// Whether the bounds hold for the session's labels and for the centroids of its table.
    known: bool,
    /// One per kept row: U and l. Empty before the first assign.
    upper: Vec<f32>,
    lower: Vec<f32>,
    grouping: Option<Grouping>,
    /// `(rows, groups)`: lower bounds, each with the drift that its group had so far added.
    of_groups: Vec<f32>,
    scratch: Vec<Scratch>,
    /// Scores of the last assign.
    scores: u64,
}

/// One worker's buffers.
struct Scratch {
    /// The rows that are left: their physical rows, and their places in the task.
    rows: Vec<usize>,
    places: Vec<u32>,
    /// The rows of the tile.
    labels: Vec<u32>,
    stays: Vec<bool>,
    two: TwoNearest,
    search: Search,
    scores: u64,
}

impl Carried {
    /// The bounds of a strategy that has some.
    pub fn new<T: Float>(strategy: Strategy, prepared: &Prepared, k: usize) -> Option<Self> {
        let grouped = match strategy {
            Strategy::Hamerly => false,
            Strategy::Yinyang => true,
            _ => return None,
        };
        let (extent, d) = (prepared.extent(), prepared.lows.len());
        let exponent = unit_exponent(extent);
        let possible = k > 1 && extent > 0.0 && exponent.abs() <= MOST_EXPONENT;
        possible.then(|| Self {
            carry: Carry::new(d, T::IS_F32, exponent),
            exponent,
            grouped,
            known: false,
            upper: Vec::new(),
            lower: Vec::new(),
            grouping: None,
            of_groups: Vec::new(),
            scratch: Vec::new(),
            scores: 0,
        })
    }

    /// Forgets all bounds: labels changed.
    pub fn forget(&mut self) {
        self.known = false;
    }

    /// Forgets the bounds of a row whose label changed.
    pub fn forget_row(&mut self, row: usize) {
        if self.known {
            (self.upper[row], self.lower[row]) = (f32::INFINITY, 0.0);
            let groups = self.grouping.as_ref().map_or(0, Grouping::count);
            self.of_groups[row * groups..(row + 1) * groups].fill(0.0);
        }
    }

    /// The scores that the last assign computed.
    pub fn scores(&self) -> u64 {
        self.scores
    }

    /// Prepares the bounds for an assign by these centroids. `before`: those of the last assign. None if the assign must do without bounds.
    pub fn step<T: Float>(
        &mut self,
        before: Option<&CentroidTable<T>>,
        table: &CentroidTable<T>,
        centre: &[f64],
        rows: usize,
        set: InstructionSet,
    ) -> Result<Option<Step<T>>> {
        let drifts = match before.filter(|_| self.known) {
            Some(before) => Some(Drifts::new(&self.carry, before, table, set)?),
            None => None,
        };
        self.known = false;
        if self.upper.is_empty() {
            self.upper = memory::filled(rows, f32::INFINITY, BOUNDS)?;
            self.lower = memory::zeroed(rows, BOUNDS)?;
        }
        if !self.grouped {
            return Ok(Some(Step { carry: self.carry, drifts, groups: None }));
        }
        let grouping = match (&mut self.grouping, &drifts) {
            (Some(grouping), Some(drifts)) => {
                grouping.add(&drifts.each);
                grouping
            }
            (grouping, _) => {
                let new = grouping.insert(Grouping::new(table, rows)?);
                self.of_groups.clear();
                memory::reserve(&mut self.of_groups, rows.saturating_mul(new.count()), BOUNDS)?;
                self.of_groups.resize(rows * new.count(), 0.0);
                new
            }
        };
        let groups = Groups::new(grouping, table, centre, self.exponent)?;
        Ok(groups.map(|groups| Step { carry: self.carry, drifts, groups: Some(groups) }))
    }
}

/// What all tasks of one assign share.
pub struct Step<T> {
    carry: Carry,
    /// None: there are no bounds yet.
    drifts: Option<Drifts>,
    groups: Option<Groups<T>>,
}

/// What an assign reads and writes, beside the bounds.
pub struct Session<'s, 'a, T> {
    pub part: &'s Part<'a, T>,
    pub prepared: &'s Prepared,
    pub quantiser: &'s Quantiser,
    pub set: InstructionSet,
    pub tasks: &'s [TaskRows],
    pub labels: &'s mut [u32],
    pub partial: &'s mut Partial,
    pub workers: &'s mut [Worker<T>],
    pub table: &'s CentroidTable<T>,
}

impl Carried {
    /// Labels every row, and moves the contributions of rows whose label changed.
    pub fn assign<T: Float>(&mut self, session: Session<'_, '_, T>, step: &Step<T>) -> Result<()> {
        let Session { part, prepared, quantiser, set, tasks, labels, partial, workers, table } = session;
        let (d, stride) = (table.d, workers[0].tile.stride);
        let groups = self.grouping.as_ref().map_or(0, Grouping::count);
        while self.scratch.len() < workers.len() {
            memory::push(&mut self.scratch, Scratch::new(d, stride, step)?, BOUNDS)?;
        }
        let (mut labels, mut upper, mut lower) = (labels, self.upper.as_mut_slice(), self.lower.as_mut_slice());
        let mut of_groups = self.of_groups.as_mut_slice();
        let tasks = tasks.iter().map(move |task| {
            let labels = split_off(&mut labels, task.kept);
            let bounds = Bounds {
                upper: split_off(&mut upper, task.kept),
                lower: split_off(&mut lower, task.kept),
                of_groups: split_off(&mut of_groups, task.kept * groups),
            };
            (task, labels, bounds)
        });
        let partial = Mutex::new(partial);
        let mut workers = memory::collected(workers.iter_mut().zip(&mut self.scratch), "the threads' buffers")?;
        for_each_task(&mut workers, tasks, |(worker, scratch), (task, labels, bounds)| {
            let partial = &partial;
            set.run(CarriedTask { part, prepared, quantiser, table, partial, worker, scratch, task, labels, bounds, step });
        })?;
        self.scores = self.scratch.iter_mut().map(|scratch| std::mem::take(&mut scratch.scores)).sum();
        self.known = true;
        Ok(())
    }
}

impl Scratch {
    fn new<T: Float>(d: usize, stride: usize, step: &Step<T>) -> Result<Self> {
        Ok(Self {
            rows: memory::with_room(2 * stride, BOUNDS)?,
            places: memory::with_room(2 * stride, BOUNDS)?,
            labels: memory::zeroed(stride, BOUNDS)?,
            stays: memory::zeroed(stride, BOUNDS)?,
            two: TwoNearest::new(stride)?,
            search: Search::new(stride, d, step.groups.as_ref())?,
            scores: 0,
        })
    }
}

/// The bounds of the rows of a task.
struct Bounds<'b> {
    upper: &'b mut [f32],
    lower: &'b mut [f32],
    of_groups: &'b mut [f32],
}

/// One task. It is compiled for each instruction set.
struct CarriedTask<'p, 'a, 'm, T> {
    part: &'p Part<'a, T>,
    prepared: &'p Prepared,
    quantiser: &'p Quantiser,
    table: &'p CentroidTable<T>,
    partial: &'p Mutex<&'m mut Partial>,
    worker: &'p mut Worker<T>,
    scratch: &'p mut Scratch,
    task: &'p TaskRows,
    labels: &'p mut [u32],
    bounds: Bounds<'p>,
    step: &'p Step<T>,
}

impl<T: Float> Task for CarriedTask<'_, '_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(mut self) {
        let stride = self.worker.tile.stride;
        self.scratch.rows.clear();
        self.scratch.places.clear();
        let mut at = 0;
        for start in self.task.physical.clone().step_by(stride) {
            let range = start..(start + stride).min(self.task.physical.end);
            let kept = self.part.selection.count(range.clone());
            self.leave_out::<V>(at, kept);
            let places = &self.scratch.places;
            let first = self.scratch.rows.len();
            // There is room: fewer than `stride` rows were left before.
            if self.part.selection.is_all() {
                self.scratch.rows.extend(places[first..].iter().map(|place| range.start + (*place as usize - at)));
            } else {
                let mut next = first;
                for (place, row) in (at..).zip(range.filter(|&row| self.part.selection.contains(row))) {
                    if self.scratch.places.get(next).is_some_and(|found| *found as usize == place) {
                        self.scratch.rows.push(row);
                        next += 1;
                    }
                }
            }
            at += kept;
            if self.scratch.rows.len() >= stride {
                self.tile::<V>(stride);
            }
        }
        if !self.scratch.rows.is_empty() {
            let rest = self.scratch.rows.len();
            self.tile::<V>(rest);
        }
    }
}

impl<T: Float> CarriedTask<'_, '_, '_, T> {
    /// Moves the bounds of some rows, and appends the places of those that may change their label.
    #[inline(always)]
    fn leave_out<V: Vector>(&mut self, at: usize, kept: usize) {
        let Step { carry, drifts, groups } = self.step;
        let places = &mut self.scratch.places;
        let Some(drifts) = drifts else {
            places.extend(at as u32..(at + kept) as u32);
            return;
        };
        let first = places.len();
        places.resize(first + kept, 0);
        let mut left = first;
        let rows = self.labels[at..at + kept].iter().zip(&mut self.bounds.upper[at..at + kept]);
        for (i, ((label, upper), lower)) in rows.zip(&mut self.bounds.lower[at..at + kept]).enumerate() {
            *upper = Carry::farther(*upper, drifts.each[*label as usize]);
            *lower = Carry::nearer(*lower, if *label == drifts.farthest { drifts.next } else { drifts.most });
            places[left] = (at + i) as u32;
            left += usize::from(!carry.keeps(*lower, *upper));
        }
        places.truncate(left);
        // The bounds of groups may know more than their least did.
        if let Some(groups) = groups {
            let mut kept = first;
            for i in first..left {
                let place = places[i] as usize;
                let least = groups.least::<V>(&self.bounds.of_groups[place * groups.count()..][..groups.count()]);
                self.bounds.lower[place] = self.bounds.lower[place].max(least);
                places[kept] = place as u32;
                kept += usize::from(!carry.keeps(least, self.bounds.upper[place]));
            }
            places.truncate(kept);
        }
    }

    /// Labels the first `count` rows of the list.
    #[inline(always)]
    fn tile<V: Vector>(&mut self, count: usize) {
        let Self { part, prepared, table, step, worker, scratch, labels, bounds, .. } = self;
        let Worker { tile, assigner, distances, .. } = &mut **worker;
        let rows = &scratch.rows[..count];
        match rows {
            [first, .., last] if last - first + 1 == count => tile.load(part, prepared.weights, *first..last + 1),
            rows => tile.load_list(part, prepared.weights, rows),
        }
        let places = &mut scratch.places;
        for (label, place) in scratch.labels.iter_mut().zip(&places[..count]) {
            *label = labels[*place as usize];
        }
        let mut left = count;
        if step.drifts.is_some() && step.groups.is_none() {
            own_distances(tile, table, &scratch.labels, distances);
            scratch.scores += count as u64;
            left = 0;
            for r in 0..count {
                let place = places[r] as usize;
                let upper = step.carry.upper(distances[r]);
                bounds.upper[place] = upper;
                let stays = step.carry.keeps(bounds.lower[place], upper);
                scratch.stays[r] = stays;
                if !stays {
                    (places[left], scratch.labels[left], distances[left]) = (places[r], scratch.labels[r], distances[r]);
                    left += 1;
                }
            }
            if left < count {
                tile.leave_out(&scratch.stays[..count]);
            }
        }
        if left > 0 {
            match &step.groups {
                None => {
                    assigner.nearest::<V, T>(tile, table, &mut scratch.two);
                    let two = &scratch.two;
                    for r in 0..left {
                        let place = scratch.places[r] as usize;
                        bounds.upper[place] = step.carry.upper(two.nearest[r]);
                        bounds.lower[place] = step.carry.lower(two.second[r]);
                    }
                    scratch.labels[..left].copy_from_slice(&two.labels[..left]);
                    scratch.scores += (left * table.k) as u64;
                }
                Some(groups) => {
                    let Scratch { search, labels, places, scores, .. } = &mut **scratch;
                    let known = step.drifts.is_some();
                    let mut in_doubt = 0;
                    for first in (0..left).step_by(search.rows()) {
                        let count = search.rows().min(left - first);
                        search.copy_rows(tile, first, count, groups);
                        for i in 0..count {
                            let place = places[first + i] as usize;
                            let stored = &bounds.of_groups[place * groups.count()..][..groups.count()];
                            // Without a label, all groups are open.
                            let mut limit = Some(f32::INFINITY);
                            if known {
                                let upper = search.upper::<V, T>(i, labels[first + i], groups).min(bounds.upper[place]);
                                bounds.upper[place] = upper;
                                limit = (!step.carry.keeps(bounds.lower[place], upper)).then_some(upper);
                                *scores += 1;
                            }
                            search.open::<V, T>(i, stored, groups, &step.carry, limit);
                        }
                        search.sum::<V, T>(count, groups);
                        *scores += (search.opened(count) * groups.width) as u64;
                        for i in 0..count {
                            if search.opened(i) == search.opened(i + 1) {
                                continue;
                            }
                            let r = first + i;
                            let place = places[r] as usize;
                            let stored = &mut bounds.of_groups[place * groups.count()..][..groups.count()];
                            let own = known.then_some((labels[r], bounds.upper[place]));
                            let found = search.label::<V, T>(tile, [i, r], own, groups, table, &step.carry, stored);
                            (labels[r], bounds.upper[place], bounds.lower[place]) = (found.label, found.upper, found.lower);
                            in_doubt += u64::from(found.in_doubt);
                        }
                    }
                    assigner.open.in_doubt.few += in_doubt;
                }
            }
        }
        self.take::<V>(left);
        self.scratch.rows.drain(..count);
        self.scratch.places.drain(..count);
    }

    /// Takes over the new labels of the rows of the tile.
    #[inline(always)]
    fn take<V: Vector>(&mut self, left: usize) {
        let Scratch { places, labels, .. } = &*self.scratch;
        let (places, new) = (&places[..left], &labels[..left]);
        self.worker.take_labels::<V>(self.labels, places, new, self.quantiser, self.prepared, self.partial);
    }
}

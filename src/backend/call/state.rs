//! The state of a worker, which both ends of a line keep. The worker refuses calls that its state does not allow. The driver
//! refuses replies that cannot be true, so that indices, lengths and sums in a reply are within range. `Sharded::gains` checks the
//! totals after a `Lower` that waits.

use super::{Beginning, Call, Effect, Facts, Reply, Stage};
use crate::backend::answers::Distances;
use crate::backend::{Assigned, Draw, DrawBy, Far, Move};
use crate::exact::cluster_sums::ClusterSums;
use crate::exact::fixed::{TWO_LIMB_BITS, power_of_two};
use crate::input::tile::WeightScale;
use crate::statistics::survey::{Extent, Survey};
use crate::statistics::{MAX_ROWS, Statistics};

/// Bits of the integer of a `w^`.
const WEIGHT_BITS: u32 = 53;

/// What is known of a worker: the stages that it has reached, and the shape of its rows.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// One bit for each stage.
    stages: u16,
    /// The rows that were given. Until a session begins, `rows` and `positive` equal this number, as upper bounds. Then `rows`
    /// counts the kept rows, and `positive` the rows of positive weight.
    pub given: u64,
    pub rows: u64,
    positive: u64,
    pub d: usize,
    /// The clusters of the session.
    pub k: usize,
    /// The largest magnitude of a value.
    largest: f64,
    weights: Option<WeightScale>,
    /// The total of the draw weights, when draws started and now.
    weight: u128,
    pub total: u128,
}

/// Whether these facts can be those of a worker.
pub fn are_facts(facts: &Facts) -> bool {
    facts.rows <= MAX_ROWS && (1..=u32::MAX as usize).contains(&facts.names.len())
}

/// Whether a number is finite and not negative.
fn is_size(value: f64) -> bool {
    (0.0..=f64::MAX).contains(&value)
}

impl State {
    /// Whether a stage was reached, and has not ended.
    pub fn has(&self, stage: Stage) -> bool {
        stage == Stage::Nothing || self.stages >> stage as u16 & 1 == 1
    }

    /// Notes a call that was done, with its reply.
    pub fn done(&mut self, call: &Call, reply: &Reply) {
        let before = |stage: Stage| (1u16 << stage as u16) - 1;
        self.stages = match call.effect() {
            Effect::Asks => self.stages,
            Effect::Once(stage) => self.stages | 1 << stage as u16,
            Effect::Begins(stage) | Effect::Adds(stage) => self.stages & before(stage) | 1 << stage as u16,
            Effect::Ends(stage) => self.stages & before(stage),
        };
        match (call, reply) {
            (_, Reply::Facts(facts)) => {
                (self.given, self.rows, self.positive, self.d) = (facts.rows, facts.rows, facts.rows, facts.names.len());
                self.largest = if facts.float64 { power_of_two(450) } else { f64::from(f32::MAX) };
            }
            (Call::Begin(statistics, k), Reply::Began([rows, positive])) => {
                (self.rows, self.positive, self.k, self.weights) = (*rows, *positive, *k, statistics.weights);
            }
            (Call::Weigh, Reply::Totals(totals)) => (self.weight, self.total) = (totals[0], totals[0]),
            (Call::Lower(_), Reply::Totals(totals)) => self.total = totals[0],
            _ => {}
        }
    }

    /// Whether this is the state of a worker with the same rows.
    #[cfg(feature = "parts")]
    pub fn has_rows_of(&self, other: &Self) -> bool {
        let shape = |state: &Self| (state.given, state.rows, state.positive, state.d, state.k);
        shape(self) == shape(other)
    }

    // Of calls.

    pub fn whole(&self, values: usize) -> bool {
        values.is_multiple_of(self.d)
    }

    pub fn about_columns(&self, statistics: &Statistics) -> bool {
        [statistics.lows.len(), statistics.highs.len(), statistics.scales.len()] == [self.d; 3]
    }

    pub fn moves(&self, moves: &[Move]) -> bool {
        moves.iter().all(|one| one.row < self.rows && (one.to as usize) < self.k)
    }

    // Of replies to calls of preparation.

    /// `inexact`: whether there are bad rows, whose values may be among the extents.
    pub fn surveyed(&self, survey: &Survey, inexact: bool) -> bool {
        survey.columns.len() == self.d
            && survey.bad <= self.rows
            && survey.positive <= self.rows
            && (inexact || survey.columns.iter().all(|extent| is_extent(extent, survey.positive > 0)))
            && (inexact || is_size(survey.largest_weight) && is_size(survey.largest))
            && (survey.smallest_weight > 0.0 || survey.any_negative_weight)
    }

    pub fn extents(&self, extents: &[Extent]) -> bool {
        extents.len() == self.d && extents.iter().all(|extent| is_extent(extent, true) || is_extent(extent, false))
    }

    pub fn counts(&self, counts: &[u64]) -> bool {
        counts.iter().all(|count| *count <= self.rows)
    }

    /// Whether this can be the sum of the integers of a value of so many rows.
    pub fn sum(&self, sum: i128, rows: u64) -> bool {
        sum.unsigned_abs() <= u128::from(rows) << TWO_LIMB_BITS
    }

    // Of replies of sessions.

    pub fn selects(&self, bits: Option<&[u64]>) -> bool {
        let Some(bits) = bits else { return self.rows == self.given };
        let (ones, rest) = (bits.iter().map(|word| u64::from(word.count_ones())).sum::<u64>(), self.given % 64);
        let ends = rest == 0 || bits.last().is_some_and(|last| last >> rest == 0);
        ends && bits.len() as u64 == self.given.div_ceil(64) && ones == self.rows
    }

    pub fn digits(&self, digits: &[(u32, u128, u64)]) -> bool {
        let fits = |&(digit, weight, rows): &(u32, u128, u64)| {
            digit >> Beginning::DIGIT == 0 && rows <= self.rows && weight <= u128::from(rows) << WEIGHT_BITS
        };
        digits.iter().all(fits)
    }

    /// Whether these are the values of `count` rows of the worker. Their numbers and weights may be missing.
    pub fn drawn(&self, rows: &[u64], weights: &[f64], found: &[f64], count: usize) -> bool {
        let is_weight = |weight: &f64| match self.weights {
            Some(scale) => (0.0..=scale.largest).contains(weight) && scale.round(*weight) == *weight,
            None => *weight == 1.0,
        };
        Some(found.len()) == count.checked_mul(self.d)
            && [rows.len(), weights.len()].iter().all(|len| [0, count].contains(len))
            && count as u64 <= self.rows.max(rows.len() as u64)
            && rows.iter().all(|row| *row < self.rows)
            && weights.iter().all(is_weight)
            && found.iter().all(|value| value.abs() <= self.largest)
    }

    /// Whether rows can be drawn so now.
    pub fn can_draw(&self, draw: &Draw) -> bool {
        match draw {
            Draw::Totals(by, targets) => {
                let total = match by {
                    DrawBy::Weight if self.has(Stage::Drawing) => self.weight,
                    DrawBy::Distance if self.has(Stage::Taken) => self.total,
                    DrawBy::Weight | DrawBy::Distance => 0,
                    DrawBy::Positive => u128::from(self.positive),
                };
                targets.iter().all(|target| *target < total)
            }
            Draw::Each(_) => self.has(Stage::Taken),
            Draw::All => true,
        }
    }

    /// Whether these are the rows of a draw.
    pub fn picked(&self, draw: &Draw, rows: &[u64], weights: &[f64], found: &[f64]) -> bool {
        let listed = match draw {
            Draw::Totals(_, targets) => rows.len() == targets.len(),
            Draw::Each(_) => rows.is_sorted_by(|a, b| a < b),
            Draw::All => rows.is_empty() && weights.len() as u64 == self.rows,
        };
        listed && (*draw == Draw::All || rows.len() == weights.len()) && self.drawn(rows, weights, found, weights.len())
    }

    /// Whether these can be the weights of disjoint groups of rows, together all rows.
    pub fn weighs(&self, totals: &[u128]) -> bool {
        let least = u128::from(self.positive);
        let most = least << if self.weights.is_some() { WEIGHT_BITS } else { 0 };
        let sum = totals.iter().try_fold(0u128, |sum, total| sum.checked_add(*total));
        sum.is_some_and(|sum| (least..=most).contains(&sum))
    }

    /// Whether each of these can be a sum of the integers of distances.
    pub fn totals(&self, totals: &[u128]) -> bool {
        totals.iter().all(|total| *total <= u128::from(self.positive) << TWO_LIMB_BITS)
    }

    pub fn assigned(&self, assigned: &Assigned, want_inertia: bool) -> bool {
        let inertia = match &assigned.inertia {
            Some(inertia) => want_inertia && inertia.len() == self.k && self.totals(inertia),
            None => !want_inertia,
        };
        inertia && assigned.changed <= self.positive
    }

    pub fn sums(&self, sums: &ClusterSums) -> bool {
        let (k, d) = (self.k, self.d);
        let lengths = [sums.d, sums.sums.len(), sums.mass.len(), sums.rows.len(), sums.dirty.len()];
        // The integer of a positive weight is at least 1.
        let cluster = |j: usize| {
            let (rows, mass) = (i128::from(sums.rows[j]), sums.mass[j]);
            let most = rows << if self.weights.is_some() { WEIGHT_BITS } else { 0 };
            (rows..=most).contains(&mass) && sums.sums_of(j).iter().all(|sum| self.sum(*sum, rows as u64))
        };
        let all = sums.rows.iter().try_fold(0u64, |all, rows| all.checked_add(u64::try_from(*rows).ok()?));
        lengths == [d, k * d, k, k, k] && all == Some(self.positive) && (0..k).all(cluster)
    }

    pub fn far(&self, far: &[Far], donors: &[bool]) -> bool {
        let fits = |far: &Far| far.row < self.rows && donors.get(far.cluster as usize) == Some(&true) && is_size(far.distance);
        far.iter().all(fits) && far.is_sorted_by(|a, b| a.order(b).is_lt())
    }

    pub fn labels(&self, labels: &[u32]) -> bool {
        labels.len() as u64 == self.rows && labels.iter().all(|label| (*label as usize) < self.k)
    }

    pub fn distances(&self, distances: &Distances) -> bool {
        let Distances { nearest, second } = distances;
        let second = match second {
            Some(second) => {
                self.k > 1 && second.len() == nearest.len() && second.iter().zip(nearest).all(|(b, a)| is_size(*b) && b >= a)
            }
            None => self.k == 1,
        };
        second && nearest.len() as u64 == self.rows && nearest.iter().all(|distance| is_size(*distance))
    }
}

/// Whether this can be the extent of a column, of some values or of none.
fn is_extent(extent: &Extent, some: bool) -> bool {
    let Extent { low, high, largest, smallest } = *extent;
    match some {
        true => low <= high && is_size(largest) && low.abs().max(high.abs()) <= largest && smallest > 0.0,
        false => *extent == Extent::EMPTY,
    }
}

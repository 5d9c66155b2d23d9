//! The kept rows of all parts as shards of one session: values become bytes here.
//!
//! ```text
//! rounds of messages, if no part is lost:
//! k-means++   2 a step: draw the candidates (with the centroid that the last step took), gains
//! k-means||   2 a round: sample, take; then the weights of the candidates
//! an iteration of the loop: 1
//! ```

use std::sync::Arc;

use super::by_values;
use super::fit::not_sorted;
use super::link::{Link, PARTS};
use super::message::{self, converted, refused, taken};
use crate::backend::Draw;
use crate::backend::call::{Call, Calls, Reply};
use crate::backend::sharded::{Shards, Take};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::base::params::{Init, Params, RowOrder};
use crate::statistics::Statistics;

/// The kept rows of all parts.
pub struct Parts<'l, 'e> {
    link: &'l Link<'e>,
    statistics: Arc<Statistics>,
    k: usize,
    /// The kept rows of each part, and those of positive weight.
    rows: Vec<[u64; 2]>,
    /// Whether rows count in the order of their values.
    by_values: bool,
}

impl<'l, 'e> Parts<'l, 'e> {
    /// Parts with a session for the clusters of these parameters.
    pub fn new(link: &'l Link<'e>, statistics: &Arc<Statistics>, params: &Params) -> Result<Self> {
        let k = params.k;
        let starting = match &params.seeding.init {
            Init::Given(centroids) => memory::copied(centroids, PARTS)?,
            _ => Vec::new(),
        };
        let rows = link.ask_all(message::Call::Begin { statistics: (**statistics).clone(), k, starting }, taken!(Began))?;
        let all = rows.iter().fold([0, 0], |all, own| [all[0] + own[0], all[1] + own[1]]);
        if all != [statistics.n, statistics.n_positive] {
            return Err(refused("other rows than before".into()));
        }
        let by_values = params.rows.row_order == RowOrder::Values;
        Ok(Self { link, statistics: statistics.clone(), k, rows, by_values })
    }

    /// Refuses a reply of a part that does not belong to a call. `asked` and `found`: the numbers of the values beside them.
    fn check(&self, part: usize, (call, asked): (&Call, usize), (reply, found): (&Reply, usize)) -> Result<()> {
        const LISTS: &str = "lists of other lengths";
        let (k, d, kept) = (self.k, self.statistics.lows.len(), self.rows[part][0] as usize);
        let Reply { totals, rows, weights, labels, distances, assigned, sums, .. } = reply;
        let sums_fit = sums.as_ref().is_some_and(|sums| {
            let lengths = [sums.d, sums.sums.len(), sums.mass.len(), sums.rows.len(), sums.dirty.len()];
            lengths == [d, k * d, k, k, k]
        });
        let (fits, what) = match call {
            Call::Weigh | Call::Lower(_) => (totals.len() == 1, "a reply to another call"),
            Call::EndDraws | Call::Reset | Call::Farthest { .. } => (true, ""),
            Call::Gains | Call::Masses => (totals.len() * d == asked, LISTS),
            Call::Inertia(_) => (totals.len() == k, LISTS),
            Call::Pick(draw) => {
                let number = match draw {
                    Draw::Totals(_, targets) => rows.len() == targets.len(),
                    Draw::Each(_) => rows.len() == weights.len(),
                    Draw::All => rows.is_empty(),
                };
                (number && found == weights.len() * d, "another number of rows than was asked for")
            }
            Call::Assign { want_inertia } => {
                let inertia = assigned.as_ref().map(|assigned| assigned.inertia.as_ref().map(Vec::len));
                (sums_fit && inertia == Some(want_inertia.then_some(k)), "sums of other clusters")
            }
            Call::Relocate(_) => (sums_fit, "sums of other clusters"),
            Call::Labels => (labels.len() == kept, LISTS),
            Call::Nearest => {
                let lengths = distances.as_ref().map(|all| (all.nearest.len(), all.second.as_ref().map(Vec::len)));
                (labels.len() == kept && lengths == Some((kept, (k > 1).then_some(kept))), LISTS)
            }
        };
        if fits { Ok(()) } else { Err(refused(what.into())) }
    }
}

impl<T: Float> Shards<T> for Parts<'_, '_> {
    fn rows(&self) -> Result<Vec<[u64; 2]>> {
        memory::copied(&self.rows, PARTS)
    }

    fn ask(&mut self, calls: Calls<Call>, values: &[T], take: Take<'_, T>) -> Result<()> {
        let draws = |call: &Call| matches!(call, Call::Pick(Draw::Totals(..)));
        if self.by_values && (0..self.rows.len()).any(|part| calls.of(part).is_some_and(draws)) {
            return Err(not_sorted("for a seeding that finds too few candidates and draws more rows"));
        }
        let calls = match calls {
            Calls::All(call) => Calls::All(message::Call::Session(call, converted(values)?)),
            Calls::Each(calls) => {
                let calls = calls.into_iter().map(|call| call.map(|call| message::Call::Session(call, Vec::new())));
                Calls::Each(memory::collected(calls, PARTS)?)
            }
        };
        let reply = |reply| match reply {
            message::Reply::Session(reply, values) => Some((*reply, values)),
            _ => None,
        };
        for (part, reply) in self.link.ask(&calls, reply)?.into_iter().enumerate() {
            if let (Some(message::Call::Session(call, asked)), Some((reply, values))) = (calls.of(part), reply) {
                self.check(part, (call, asked.len()), (&reply, values.len()))?;
                take(part, reply, converted(&values)?)?;
            }
        }
        Ok(())
    }

    fn later(&mut self, call: Call, values: &[T]) -> Result<()> {
        self.link.later(message::Call::Session(call, converted(values)?));
        Ok(())
    }

    fn draw_in_order(&mut self, target: u128) -> Result<Option<Vec<T>>> {
        let by_values = self.by_values;
        by_values.then(|| by_values::draw(self.link, &self.statistics, target)).transpose()
    }
}

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
use super::message::{Asked, converted, refused, taken};
use crate::backend::Draw;
use crate::backend::call::{Call, Calls};
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
    /// The kept rows of each part, and those of positive weight.
    rows: Vec<[u64; 2]>,
    /// Whether rows count in the order of their values.
    by_values: bool,
}

impl<'l, 'e> Parts<'l, 'e> {
    /// Parts with a session for the clusters of these parameters.
    pub fn new(link: &'l Link<'e>, statistics: &Arc<Statistics>, params: &Params) -> Result<Self> {
        let values = match &params.seeding.init {
            Init::Given(centroids) => memory::copied(centroids, PARTS)?,
            _ => Vec::new(),
        };
        let call = Call::Begin((**statistics).clone(), params.k);
        let rows = link.ask_all(Asked { call, values }, taken!(Began))?;
        let all = rows.iter().fold([0, 0], |all, own| [all[0] + own[0], all[1] + own[1]]);
        if all != [statistics.n, statistics.n_positive] {
            return Err(refused("other rows than before".into()));
        }
        let by_values = params.rows.row_order == RowOrder::Values;
        Ok(Self { link, statistics: statistics.clone(), rows, by_values })
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
            Calls::All(call) => Calls::All(Asked { call, values: converted(values)? }),
            Calls::Each(calls) => Calls::Each(memory::collected(calls.into_iter().map(|call| call.map(Asked::from)), PARTS)?),
        };
        for (part, reply) in self.link.ask(&calls)?.into_iter().enumerate() {
            if let Some((reply, found)) = reply {
                take(part, reply, converted(&found)?)?;
            }
        }
        Ok(())
    }

    fn later(&mut self, call: Call, values: &[T]) -> Result<()> {
        self.link.later(Asked { call, values: converted(values)? });
        Ok(())
    }

    fn draw_in_order(&mut self, target: u128) -> Result<Option<Vec<T>>> {
        let by_values = self.by_values;
        by_values.then(|| by_values::draw(self.link, &self.statistics, target)).transpose()
    }
}

//! The calls of a session as values, and its replies. So the rows of a fit may be anywhere: in several sessions of this process
//! (`sharded/sessions.rs`), or in other processes, where the values travel as bytes (`src/distributed`).

use super::{Assigned, DRAWN, Draw, Far, Move, Picked, Scales, Session};
use crate::backend::answers::{DISTANCES, Distances, LABELS};
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::exact::cluster_sums::ClusterSums;
use crate::exact::distances::DistanceScale;

/// A call of seeding or of the loop. Its centroids or candidates come beside it: `(m, d)`, row-major. Most calls have none.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "parts", derive(serde::Serialize, serde::Deserialize))]
pub enum Call {
    Weigh,
    Lower(DistanceScale),
    Gains,
    Pick(Draw),
    Masses,
    EndDraws,
    Reset,
    Assign {
        want_inertia: bool,
    },
    Farthest {
        count: usize,
        donors: Vec<bool>,
    },
    Relocate(Vec<Move>),
    /// One scale for all clusters, or one for each.
    Inertia(Vec<DistanceScale>),
    Labels,
    Nearest,
}

impl Call {
    /// Whether it is a pass over all rows that has a short reply.
    pub fn is_short_pass(&self) -> bool {
        use Call::{Assign, Farthest, Gains, Inertia, Lower, Masses, Pick, Reset, Weigh};
        let sample = matches!(self, Pick(Draw::Each(_)));
        sample || matches!(self, Weigh | Lower(_) | Gains | Masses | Reset | Assign { .. } | Farthest { .. } | Inertia(_))
    }
}

/// The reply to a call: what that call gives. The rest is empty. The values of its rows come beside it: `(rows, d)`.
#[derive(Debug, Clone, PartialEq, Default)]
#[cfg_attr(feature = "parts", derive(serde::Serialize, serde::Deserialize))]
pub struct Reply {
    /// The total of the session, or one for each candidate or cluster.
    pub totals: Vec<u128>,
    /// The numbers of rows, and their `w^`.
    pub rows: Vec<u64>,
    pub weights: Vec<f64>,
    pub far: Vec<Far>,
    pub labels: Vec<u32>,
    pub distances: Option<Distances>,
    pub assigned: Option<Assigned>,
    /// The sums of all rows after the call: absolute, so that a repeated call gives them again.
    pub sums: Option<ClusterSums>,
}

impl Reply {
    /// Adds the reply of the next shard: its rows come after those before, and its sums are added.
    pub fn append(&mut self, more: Self) -> Result<()> {
        append(&mut self.totals, more.totals, "the totals of the rows")?;
        append(&mut self.rows, more.rows, DRAWN)?;
        append(&mut self.weights, more.weights, DRAWN)?;
        append(&mut self.far, more.far, "the farthest rows")?;
        append(&mut self.labels, more.labels, LABELS)?;
        match (&mut self.distances, more.distances) {
            (Some(all), Some(more)) => {
                append(&mut all.nearest, more.nearest, DISTANCES)?;
                if let (Some(all), Some(more)) = (&mut all.second, more.second) {
                    append(all, more, DISTANCES)?;
                }
            }
            (all, more) => *all = all.take().or(more),
        }
        self.assigned = match (self.assigned.take(), more.assigned) {
            (Some(all), Some(more)) => Some(all.and(more)),
            (all, more) => all.or(more),
        };
        match (&mut self.sums, more.sums) {
            (Some(all), Some(more)) => all.merge(&more),
            (all, more) => *all = all.take().or(more),
        }
        Ok(())
    }
}

/// Appends a list to the lists before it. The first list is not copied, unless there is room for all.
pub fn append<V: Copy>(all: &mut Vec<V>, more: Vec<V>, what: &'static str) -> Result<()> {
    if all.capacity() == 0 {
        *all = more;
        return Ok(());
    }
    memory::extend(all, &more, what)
}

/// What several shards of the rows are asked.
#[derive(Debug)]
pub enum Calls<C> {
    /// All of them the same.
    All(C),
    /// Each something of its own, or nothing.
    Each(Vec<Option<C>>),
}

impl<C> Calls<C> {
    /// The call for a shard.
    pub fn of(&self, shard: usize) -> Option<&C> {
        match self {
            Self::All(call) => Some(call),
            Self::Each(calls) => calls[shard].as_ref(),
        }
    }
}

/// Answers a call with a session. `values`: the centroids or candidates of the call. Returns the reply, and the values of its
/// rows.
pub fn answer<T: Float, S: Session<T> + ?Sized>(session: &mut S, call: &Call, values: &[T]) -> Result<(Reply, Vec<T>)> {
    let (mut reply, mut found) = (Reply::default(), Vec::new());
    match call {
        Call::Weigh => reply.totals.push(session.weigh()?),
        Call::Lower(scale) => reply.totals.push(session.lower(values, *scale)?),
        Call::Gains => reply.totals = session.gains(values)?,
        Call::Pick(draw) => Picked { rows: reply.rows, values: found, weights: reply.weights } = session.pick(draw)?,
        Call::Masses => reply.totals = session.masses(values)?,
        Call::EndDraws => session.end_draws(),
        Call::Reset => session.reset()?,
        Call::Assign { want_inertia } => {
            reply.assigned = Some(session.assign(values, *want_inertia)?);
            reply.sums = Some(session.cluster_sums()?.copied()?);
        }
        Call::Farthest { count, donors } => reply.far = session.farthest((*count).min(session.rows() as usize), donors)?,
        Call::Relocate(moves) => {
            session.relocate(moves)?;
            reply.sums = Some(session.cluster_sums()?.copied()?);
        }
        Call::Inertia(scales) => match scales[..] {
            [scale] => reply.totals = session.inertia(Scales::Same(scale))?,
            _ => reply.totals = session.inertia(Scales::Each(scales))?,
        },
        Call::Labels => reply.labels = session.labels()?,
        Call::Nearest => {
            let (labels, distances) = session.nearest(values)?;
            (reply.labels, reply.distances) = (labels, Some(distances));
        }
    }
    Ok((reply, found))
}

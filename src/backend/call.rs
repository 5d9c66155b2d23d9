//! The calls of a session as values, and its replies. So the rows of a fit may be anywhere: in several sessions of this process
//! (`sharded/sessions.rs`), or in other processes, where the values travel as bytes (`src/distributed`).

use super::{Assigned, DrawBy, Far, Move, Picked, Sample, Sampled, Scales, Session};
use crate::backend::answers::Distances;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;
use crate::exact::cluster_sums::ClusterSums;
use crate::exact::distances::DistanceScale;

/// The name of drawn rows in errors.
const ROWS: &str = "the rows drawn";

/// A call of seeding or of the loop. Its centroids or candidates come beside it: `(m, d)`, row-major. Most calls have none.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "parts", derive(serde::Serialize, serde::Deserialize))]
pub enum Call {
    Row(u64),
    StartDraws,
    /// The rows that these targets draw.
    Draw(Vec<u128>),
    TakeSeeds(DistanceScale),
    Gains,
    Pick {
        by: DrawBy,
        targets: Vec<u128>,
    },
    AllRows,
    Sample(Sample),
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
        use Call::{Assign, Farthest, Gains, Inertia, Masses, Reset, Sample, StartDraws, TakeSeeds};
        matches!(
            self,
            StartDraws | TakeSeeds(_) | Gains | Sample(_) | Masses | Reset | Assign { .. } | Farthest { .. } | Inertia(_)
        )
    }
}

/// The reply to a call. The values of its rows come beside it: `(rows, d)`.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "parts", derive(serde::Serialize, serde::Deserialize))]
pub enum Reply {
    Done,
    Total(u128),
    Totals(Vec<u128>),
    /// Numbers of rows and their `w^`, as far as the call asks for them.
    Rows {
        rows: Vec<u64>,
        weights: Vec<f64>,
    },
    /// With the sums of all rows: absolute, so that a repeated call gives them again.
    Assigned(Assigned, ClusterSums),
    Sums(ClusterSums),
    Far(Vec<Far>),
    Labels(Vec<u32>),
    Nearest(Vec<u32>, Distances),
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

/// Answers a call with a session. `values`: the centroids or candidates of the call.
pub fn answer<T: Float, S: Session<T> + ?Sized>(session: &mut S, call: &Call, values: &[T]) -> Result<(Reply, Vec<T>)> {
    let rows = |rows, values, weights| Ok((Reply::Rows { rows, weights }, values));
    let reply = match call {
        Call::Row(row) => return rows(Vec::new(), session.row(*row)?, Vec::new()),
        Call::StartDraws => Reply::Total(session.start_draws()?),
        Call::Draw(targets) => {
            let (mut drawn, mut values) = (memory::with_room(targets.len(), ROWS)?, Vec::new());
            for target in targets {
                drawn.push(session.draw(*target)?);
                memory::extend(&mut values, &session.row(drawn[drawn.len() - 1])?, ROWS)?;
            }
            return rows(drawn, values, Vec::new());
        }
        Call::TakeSeeds(scale) => Reply::Total(session.take_seeds(values, *scale)?),
        Call::Gains => Reply::Totals(session.gains(values)?),
        Call::Pick { by, targets } => {
            let picked: Picked<T> = session.pick(*by, targets)?;
            return rows(picked.rows, picked.values, picked.weights);
        }
        Call::AllRows => {
            let (values, weights) = session.all_rows()?;
            return rows(Vec::new(), values, weights);
        }
        Call::Sample(sample) => {
            let sampled: Sampled<T> = session.sample(sample)?;
            return rows(sampled.rows, sampled.values, Vec::new());
        }
        Call::Masses => Reply::Totals(session.masses(values)?),
        Call::EndDraws => {
            session.end_draws();
            Reply::Done
        }
        Call::Reset => {
            session.reset()?;
            Reply::Done
        }
        Call::Assign { want_inertia } => {
            let assigned = session.assign(values, *want_inertia)?;
            Reply::Assigned(assigned, session.cluster_sums()?.copied()?)
        }
        Call::Farthest { count, donors } => Reply::Far(session.farthest((*count).min(session.rows() as usize), donors)?),
        Call::Relocate(moves) => {
            session.relocate(moves)?;
            Reply::Sums(session.cluster_sums()?.copied()?)
        }
        Call::Inertia(scales) => Reply::Totals(match scales[..] {
            [scale] => session.inertia(Scales::Same(scale))?,
            _ => session.inertia(Scales::Each(scales))?,
        }),
        Call::Labels => Reply::Labels(session.labels()?),
        Call::Nearest => {
            let (labels, distances) = session.nearest(values)?;
            Reply::Nearest(labels, distances)
        }
    };
    Ok((reply, Vec::new()))
}

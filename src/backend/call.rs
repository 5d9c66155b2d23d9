//! One language for rows that are anywhere: calls as values, and replies. The rows may be in several sessions of this process
//! (`sharded/sessions.rs`), or with workers in other processes, where calls and replies travel as bytes (`src/distributed`).
//!
//! A new call is an entry of the table below, and an arm where it is answered: in [`answer`], if a session answers it, else in
//! `src/distributed/serve.rs`. A new kind of reply is a variant of [`Reply`].

use super::{Assigned, Draw, Far, Move, Picked, Scales, Session};
use crate::backend::answers::Distances;
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::base::names::Names;
use crate::base::params::Metric;
use crate::exact::cluster_sums::ClusterSums;
use crate::exact::distances::DistanceScale;
use crate::input::tile::WeightScale;
use crate::statistics::Statistics;
use crate::statistics::refused::Refused;
use crate::statistics::survey::{Extent, Survey};
use crate::statistics::variance::Moments;

#[cfg(feature = "parts")]
mod state;

#[cfg(feature = "parts")]
pub use self::state::State;

/// How far a worker has come in a fit. Most calls need a stage, and some calls lead to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    Nothing,
    /// The transform of the rows and the device are known.
    Started,
    /// The rows are on the device.
    Placed,
    /// Bad rows are left out.
    Skipped,
    /// The weights are rounded.
    Rounded,
    /// There is a session over the kept rows.
    Begun,
    /// The rows have draw weights.
    Drawing,
    /// A centroid was taken.
    Taken,
    /// Labels and sums are empty.
    Reset,
    Assigned,
    /// Rows moved into empty clusters.
    Moved,
}

/// What a call does to the stages of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The call only asks.
    Asks,
    /// The call reaches the stage. A stage that was reached before stays as it is.
    Once(Stage),
    /// The call reaches the stage anew: later stages end.
    Begins(Stage),
    /// As `Begins`, but the calls that led to the stage stay, and this call adds to them.
    Adds(Stage),
    /// The stage and all later stages end.
    Ends(Stage),
}

/// Writes the calls: the enum, and what is known of each call. An entry is
///
/// ```text
/// Name(argument: Type, ...): stage that the call needs, if the arguments are right => effect, Reply(...) if the reply is right;
/// ```
/// The conditions read the arguments, `state` (the [`State`] of the worker before the call), `values` (how many values come with
/// the call), the parts of the reply, and `found` (the values that come with the reply).
macro_rules! calls {
    ($state:ident, $values:ident, $found:ident: $(
        $(#[$doc:meta])*
        $name:ident $(($($argument:ident: $type:ty),+))?: $needs:ident $(, if $right:expr)? =>
        $effect:expr, $reply:ident $(($($part:ident),+))? $(if $fits:expr)?;
    )+) => {
        /// A call of preparation, of seeding or of the loop. Its centroids or candidates come beside it: `(m, d)`, row-major. Most
        /// calls have none. Row numbers count the kept rows of a worker or session.
        #[derive(Debug, Clone)]
        #[cfg_attr(feature = "parts", derive(serde::Serialize, serde::Deserialize))]
        pub enum Call {
            $($(#[$doc])* $name $(($($type),+))?,)+
        }

        impl Call {
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$name { .. } => stringify!($name),)+
                }
            }

            pub fn effect(&self) -> Effect {
                use Effect::*;
                use Stage::*;
                match self {
                    $(Self::$name { .. } => $effect,)+
                }
            }
        }

        #[cfg(feature = "parts")]
        impl State {
            /// Whether a worker in this state can do a call that comes with so many values.
            #[allow(unused_variables, reason = "an entry reads only the arguments that its condition is about")]
            pub fn allows(&self, call: &Call, $values: usize) -> bool {
                let $state = self;
                match call {
                    $(Call::$name $(($($argument),+))? => self.has(Stage::$needs) $(&& $right)?,)+
                }
            }

            /// Whether a reply, with the values that come with it, can be the answer to a call with so many values.
            #[allow(unused_variables, reason = "an entry reads only the arguments that its condition is about")]
            pub fn fits(&self, call: &Call, $values: usize, reply: &Reply, $found: &[f64]) -> bool {
                let $state = self;
                match (call, reply) {
                    $((Call::$name $(($($argument),+))?, Reply::$reply $(($($part),+))?) => true $(&& $fits)?,)+
                    _ => false,
                }
            }
        }
    };
}

calls! { state, values, found:
    // Preparation: `src/statistics/passes.rs`, `src/statistics/given.rs`.

    /// Forgets all that other calls have done.
    Start(start: Start): Nothing => Begins(Started), Facts(facts) if state::are_facts(facts);
    Survey: Started => Once(Placed), Survey(survey) if state.surveyed(survey, survey.bad > 0);
    /// Brings the rows to the device, as a survey does.
    Place: Started => Once(Placed), Done;
    SkipBad: Started => Once(Skipped), Survey(survey) if state.surveyed(survey, false);
    RoundWeights(scale: WeightScale): Placed => Begins(Rounded), Done;
    WeightedExtents: Placed => Asks, Extents(extents) if state.extents(extents);
    CountSmall(largest: Vec<Option<f64>>, weighted: bool): Placed, if largest.len() == state.d => Asks,
        Counts(counts) if counts.len() == state.d && state.counts(counts.as_flattened());
    VarianceSums(moments: Vec<Moments>): Placed, if moments.len() == state.d => Asks,
        Moments(sums) if sums.len() == state.d && sums.as_flattened().iter().all(|sum| state.sum(*sum, state.rows));
    /// How many values with each prefix have each next digit of their keys: two prefixes for each column.
    CountDigits(prefixes: Vec<[u64; 2]>, shift: u32): Started, if prefixes.len() == state.d && *shift < 64 => Asks,
        Digits(counts) if counts.len() == 512 * state.d && state.counts(counts);
    NegativeWeight: Started => Asks, NegativeWeight(row) if row.is_none_or(|(row, got)| row < state.rows && got < 0.0);
    BadCounts: Started => Asks, Counts(counts) if counts.len() == state.d + 1 && state.counts(counts.as_flattened());
    Refused: Started => Asks,
        Refused(why) if why.zero_rows <= state.rows && why.overflow.is_none_or(|column| column < state.d);
    Nonzero: Started => Asks, Nonzero(columns) if columns.len() == state.d;
    WeightsBelow(bound: f64): Started => Asks, Number(rows) if *rows <= state.rows;

    // Sessions.

    /// Begins a session, with the statistics of all rows of the fit and the number of clusters. Given starting centroids come
    /// beside the call.
    Begin(statistics: Statistics, k: usize): Placed, if state.about_columns(statistics) => Begins(Begun),
        Began(rows) if rows[0] <= state.given && rows[1] <= rows[0];
    /// The bits of the rows that are kept.
    Selection: Begun => Asks, Selection(bits) if state.selects(bits.as_deref());
    /// For `row_order="values"`: `src/distributed/by_values.rs`.
    ValueDigits(beginning: Beginning): Begun, if beginning.fits(state.d) => Asks, ValueDigits(digits) if state.digits(digits);
    ValueRows(beginning: Beginning): Begun, if beginning.fits(state.d) => Asks,
        Rows(rows, weights) if state.drawn(rows, weights, found, weights.len());
    /// Begins a table of draws.
    Weigh: Begun => Begins(Drawing), Totals(totals) if totals.len() == 1 && state.weighs(totals);
    Lower(scale: DistanceScale): Drawing, if state.whole(values) => Adds(Taken),
        Totals(totals) if totals.len() == 1 && state.totals(totals);
    Gains: Taken, if state.whole(values) => Asks,
        Totals(totals) if totals.len() * state.d == values && totals.iter().all(|gain| *gain <= state.total);
    Pick(draw: Draw): Begun, if state.can_draw(draw) => Asks, Rows(rows, weights) if state.picked(draw, rows, weights, found);
    Masses: Begun, if values > 0 && state.whole(values) => Asks,
        Totals(totals) if totals.len() * state.d == values && state.weighs(totals);
    EndDraws: Begun => Ends(Drawing), Done;
    Reset: Begun => Begins(Reset), Done;
    Assign(want_inertia: bool): Begun, if values == state.k * state.d => Begins(Assigned),
        Assigned(assigned, sums) if state.assigned(assigned, *want_inertia) && state.sums(sums);
    Farthest(count: usize, donors: Vec<bool>): Assigned, if donors.len() == state.k => Asks,
        Far(far) if far.len() <= *count && state.far(far, donors);
    Relocate(moves: Vec<Move>): Assigned, if state.moves(moves) => Adds(Moved), Sums(sums) if state.sums(sums);
    /// One scale for all clusters, or one for each.
    Inertia(scales: Vec<DistanceScale>): Assigned, if scales.len() == 1 || scales.len() == state.k => Asks,
        Totals(totals) if totals.len() == state.k && state.totals(totals);
    Labels: Begun => Asks, Labels(labels) if state.labels(labels);
    Nearest: Begun, if values == state.k * state.d => Asks,
        Nearest(labels, distances) if state.labels(labels) && state.distances(distances);
}

/// How rows are transformed, and where a worker works on them.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "parts", derive(serde::Serialize, serde::Deserialize))]
pub struct Start {
    /// One factor for each feature, if values are scaled.
    pub factors: Option<Vec<f64>>,
    pub metric: Metric,
    /// The name of the device, as the option has it.
    pub device: String,
    /// For the choice of the device: the clusters, and the candidates of k-means|| (in a round, and rounds).
    pub clusters: usize,
    pub candidates: (u64, u32),
    pub threads: usize,
}

/// What a worker says about its rows before a fit.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "parts", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Facts {
    pub names: Names,
    /// Whether the features are float64. Else they are float32.
    pub float64: bool,
    /// All rows, also those that a fit will leave out.
    pub rows: u64,
    pub weighted: bool,
    /// Whether features were computed by expressions, so that columns of their names may hold something else.
    pub computed: bool,
}

/// How rows begin: the keys of their first features, and the upper bits of the next key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "parts", derive(serde::Serialize, serde::Deserialize))]
pub struct Beginning {
    pub keys: Vec<u64>,
    pub prefix: u64,
    /// Bits of the prefix that are known: fewer than those of a key.
    pub known: u32,
}

impl Beginning {
    /// Bits of a digit of a key, and of a key.
    pub const DIGIT: u32 = 16;
    pub const BITS: u32 = 64;

    /// Whether rows of `d` features can begin so, and have more digits.
    #[cfg(feature = "parts")]
    fn fits(&self, d: usize) -> bool {
        self.keys.len() < d && self.known.is_multiple_of(Self::DIGIT) && self.known < Self::BITS
    }
}

/// What a call gives. The values of its rows come beside it: `(rows, d)`.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "parts", derive(serde::Serialize, serde::Deserialize))]
pub enum Reply {
    Done,
    Facts(Facts),
    Survey(Survey),
    Extents(Vec<Extent>),
    Counts(Vec<[u64; 3]>),
    Moments(Vec<[i128; 2]>),
    /// `(2 d, 256)`.
    Digits(Vec<u64>),
    /// The row of the first negative weight, and the weight.
    NegativeWeight(Option<(u64, f64)>),
    Refused(Refused),
    Nonzero(Vec<[bool; 2]>),
    Number(u64),
    Selection(Option<Vec<u64>>),
    /// The number of kept rows, and of those with a positive weight.
    Began([u64; 2]),
    /// Each digit with the weight and the number of its rows.
    ValueDigits(Vec<(u32, u128, u64)>),
    /// The numbers of rows, if the caller does not know them, and their `w^`.
    Rows(Vec<u64>, Vec<f64>),
    /// The total of all rows, or one for each candidate or cluster.
    Totals(Vec<u128>),
    /// With the sums of all rows after the call: absolute, so that a repeated call gives them again.
    Assigned(Assigned, ClusterSums),
    Sums(ClusterSums),
    Far(Vec<Far>),
    Labels(Vec<u32>),
    Nearest(Vec<u32>, Distances),
}

/// Takes the value of one kind of reply.
#[cfg(feature = "parts")]
macro_rules! taken {
    ($kind:ident) => {
        |reply| match reply {
            $crate::backend::call::Reply::$kind(value) => Some(value),
            _ => None,
        }
    };
}
#[cfg(feature = "parts")]
pub(crate) use taken;

/// The error for a reply that does not belong to its call.
pub fn other_reply() -> KMeansError {
    KMeansError::Part { reason: "expected a reply that fits its call, got another".into() }
}

/// The error for a call that does not fit what came before it.
pub fn out_of_turn(call: &Call) -> KMeansError {
    KMeansError::Part { reason: format!("expected a call that fits those before it, got {:?}", call.name()) }
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
    let reply = match call {
        Call::Weigh => Reply::Totals(vec![session.weigh()?]),
        Call::Lower(scale) => Reply::Totals(vec![session.lower(values, *scale)?]),
        Call::Gains => Reply::Totals(session.gains(values)?),
        Call::Pick(draw) => {
            let Picked { rows, values, weights } = session.pick(draw)?;
            return Ok((Reply::Rows(rows, weights), values));
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
        Call::Assign(want_inertia) => {
            let assigned = session.assign(values, *want_inertia)?;
            Reply::Assigned(assigned, session.cluster_sums()?.copied()?)
        }
        Call::Farthest(count, donors) => Reply::Far(session.farthest((*count).min(session.rows() as usize), donors)?),
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
        // Only rows without a session answer this call.
        other => return Err(out_of_turn(other)),
    };
    Ok((reply, Vec::new()))
}

//! What the driver of a fit and its parts say to each other, as bytes.
//!
//! ```text
//! message = "pkmp" | version (u16, little-endian) | kind (1: request, 2: answer) | body (postcard)
//! ```
//! Numbers are exact: floats travel as their bits, and integers have up to 128 bits. Values of float32 travel as float64, which
//! has all of them. Another version is refused: all processes of a fit run the same version of this library.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::by_values::Beginning;
use crate::backend::{DRAWN, call};
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::base::names::Names;
use crate::base::params::Metric;
use crate::input::tile::WeightScale;
use crate::statistics::Statistics;
use crate::statistics::given::BadCounts;
use crate::statistics::quanta::Counts;
use crate::statistics::refused::Refused;
use crate::statistics::survey::{Extent, Survey};
use crate::statistics::variance::Moments;

/// The version of the messages. Any change of a type in this file, or of a type that it uses, needs another one.
pub const VERSION: u16 = 1;
const MAGIC: [u8; 4] = *b"pkmp";
/// Bytes before the body.
const HEAD: usize = MAGIC.len() + 3;

/// Kinds of messages.
pub const REQUEST: u8 = 1;
pub const ANSWER: u8 = 2;

pub fn encode(kind: u8, message: &impl Serialize) -> Result<Vec<u8>> {
    let refused = |error| refused(format!("one that cannot be encoded: {error}"));
    let length = postcard::experimental::serialized_size(message).map_err(refused)?;
    let mut bytes = memory::with_room(HEAD + length, "a message of a part")?;
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.push(kind);
    postcard::to_extend(message, bytes).map_err(refused)
}

pub fn decode<M: DeserializeOwned>(expected: u8, bytes: &[u8]) -> Result<M> {
    let Some((head, body)) = bytes.split_at_checked(HEAD).filter(|(head, _)| head.starts_with(&MAGIC)) else {
        return Err(refused(format!("{} other bytes", bytes.len())));
    };
    let (version, kind) = (u16::from_le_bytes([head[4], head[5]]), head[6]);
    if version != VERSION {
        return Err(refused(format!("one of version {version} (install one version of polars-kmeans everywhere)")));
    }
    if kind != expected {
        return Err(refused(format!("one of kind {kind} in place of kind {expected}")));
    }
    postcard::from_bytes(body).map_err(|error| refused(format!("a damaged one: {error}")))
}

/// The error for a message that cannot be read or does not fit.
pub fn refused(got: String) -> KMeansError {
    KMeansError::Part { reason: format!("expected a message of version {VERSION}, got {got}") }
}

/// Values in the type that travels, or in that of the features, which had them before they travelled.
pub fn converted<T: Float, U: Float>(values: &[T]) -> Result<Vec<U>> {
    memory::collected(values.iter().map(|value| U::from_f64(value.to_f64())), DRAWN)
}

/// What a part is asked for: calls in this order. Those who ask have references to calls, which have the same bytes.
pub type Request = (RequestStates, Vec<Call>);

/// The states of the part that belong to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestStates {
    /// The number of the fit.
    pub fit: u64,
    /// The state that the calls need, or 0 if they need none.
    pub before: u64,
    /// The state that they lead to.
    pub after: u64,
}

/// What a part answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// One reply for each call.
    Replies(Vec<Reply>),
    /// The part is not in the state that the request needs. Nothing was done.
    Lost,
    Failed(KMeansError),
}

/// How rows are transformed, and where the part works on them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// One factor for each feature, if values are scaled.
    pub factors: Option<Vec<f64>>,
    pub metric: Metric,
    /// The word of the device.
    pub device: String,
    /// For the choice of the device: the clusters, and the candidates of k-means|| (in a round, and rounds).
    pub clusters: usize,
    pub candidates: (u64, u32),
    pub threads: usize,
}

/// One call of a pass or of a session. Row numbers count the part's kept rows.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Call {
    /// Forgets all that other calls have done.
    Start(Start),
    // Preparation: `src/statistics/passes.rs`, `src/statistics/given.rs`.
    Survey,
    /// Brings rows to where the part works on them, as a survey does.
    Place,
    SkipBad,
    RoundWeights(WeightScale),
    WeightedExtents,
    CountSmall {
        largest: Vec<Option<f64>>,
        weighted: bool,
    },
    VarianceSums(Vec<Moments>),
    /// How many values with each prefix have each next digit of their keys: two prefixes for each column.
    CountDigits {
        prefixes: Vec<[u64; 2]>,
        shift: u32,
    },
    NegativeWeight,
    BadCounts,
    Refused,
    Nonzero,
    WeightsBelow(f64),
    /// The bits of the rows that are kept.
    Selection,
    // A session: `src/backend/call.rs`.
    /// With what is known about all rows of the fit, and the given starting centroids, if there are some.
    Begin {
        statistics: Statistics,
        k: usize,
        starting: Vec<f64>,
    },
    /// A call with its centroids or candidates.
    Session(call::Call, Vec<f64>),
    /// For `row_order="values"`: `by_values.rs`.
    ValueDigits(Beginning),
    ValueRows(Beginning),
}

impl Call {
    /// Whether the part is in another state afterwards.
    pub fn changes_state(&self) -> bool {
        use call::Call::{Assign, EndDraws, Relocate, Reset, StartDraws, TakeSeeds};
        match self {
            Self::Session(call, _) => {
                matches!(call, StartDraws | TakeSeeds(_) | EndDraws | Reset | Assign { .. } | Relocate(_))
            }
            Self::Start(_) | Self::Survey | Self::Place | Self::SkipBad | Self::RoundWeights(_) | Self::Begin { .. } => true,
            _ => false,
        }
    }
}

/// What a part says about its rows before a fit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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

/// What a call gives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    Done,
    Facts(Facts),
    Survey(Survey),
    Extents(Vec<Extent>),
    Counts(Vec<Counts>),
    Moments(Vec<[i128; 2]>),
    /// `(2 d, 256)`.
    Digits(Vec<u64>),
    NegativeWeight(Option<(u64, f64)>),
    BadCounts(Vec<BadCounts>),
    Refused(Refused),
    Nonzero(Vec<[bool; 2]>),
    Number(u64),
    Selection(Option<Vec<u64>>),
    /// Each digit with the weight and the number of its rows.
    ValueDigits(Vec<(u32, u128, u64)>),
    /// The values of rows, and their `w^`.
    ValueRows((Vec<f64>, Vec<f64>)),
    /// The number of kept rows, and of those with a positive weight.
    Began([u64; 2]),
    /// A reply with the values of its rows.
    Session(Box<call::Reply>, Vec<f64>),
}

/// Takes the value of one kind of reply.
macro_rules! taken {
    ($kind:ident) => {
        |reply| match reply {
            $crate::distributed::message::Reply::$kind(value) => Some(value),
            _ => None,
        }
    };
}
pub(super) use taken;

#[cfg(feature = "tests")]
mod tests {
    use super::*;
    use crate::exact::cluster_sums::ClusterSums;
    use crate::exact::distances::DistanceScale;

    unit_test!(messages_keep_every_bit);
    fn messages_keep_every_bit() {
        let numbers = [0.0, -0.0, 1.0 / 3.0, f64::MIN_POSITIVE / 8.0, f64::MAX, f64::INFINITY, f64::NEG_INFINITY];
        let calls = [
            Call::Session(call::Call::Gains, numbers.to_vec()),
            Call::Session(call::Call::Draw(vec![0, 1, u128::MAX, 1 << 127]), vec![]),
            Call::Session(call::Call::TakeSeeds(DistanceScale::new(3.7, 1.5)), vec![]),
        ];
        let request = (RequestStates { fit: u64::MAX, before: 1, after: 2 }, calls.iter().collect::<Vec<_>>());
        let back: Request = decode(REQUEST, &encode(REQUEST, &request).unwrap()).unwrap();
        assert_eq!(format!("{back:?}"), format!("{request:?}"));
        let [Call::Session(_, values), ..] = &back.1[..] else { panic!("another call") };
        assert!(values.iter().zip(numbers).all(|(a, b)| a.to_bits() == b.to_bits()));
        let sums = vec![i128::MIN, i128::MAX, -1];
        let sums = ClusterSums { d: 3, sums, mass: vec![0], rows: vec![i64::MIN], dirty: vec![true] };
        let reply = call::Reply { sums: Some(sums), ..call::Reply::default() };
        let answer = Answer::Replies(vec![Reply::Session(Box::new(reply), vec![]), Reply::Done]);
        assert_eq!(again(&answer), answer);
    }

    fn again(answer: &Answer) -> Answer {
        decode(ANSWER, &encode(ANSWER, answer).unwrap()).unwrap()
    }

    unit_test!(errors_arrive_as_they_were);
    fn errors_arrive_as_they_were() {
        let errors = [
            KMeansError::InvalidOption { option: "init", expected: "a".into(), got: "b".into() },
            KMeansError::ScaledOutOfRange { column: "x".into(), factor: 2.5, how: "overflow" },
            KMeansError::NoMemory { what: "the labels".into(), bytes: Some(7) },
            KMeansError::WidthMismatch { what: "features", expected: 1, got: 2 },
            KMeansError::Cancelled,
        ];
        for error in errors {
            let answer = Answer::Failed(error);
            assert_eq!(again(&answer), answer);
        }
    }

    unit_test!(other_versions_and_other_bytes_are_refused);
    fn other_versions_and_other_bytes_are_refused() {
        let good = encode(ANSWER, &Answer::Lost).unwrap();
        let error = |bytes: &[u8]| decode::<Answer>(ANSWER, bytes).unwrap_err().to_string();
        let mut other = good.clone();
        other[4] = 9;
        assert!(error(&other).contains("one of version 9 (install one version"), "{}", error(&other));
        assert!(error(b"hello").contains("5 other bytes"));
        assert!(error(&good[..good.len() - 1]).contains("a damaged one"));
        assert!(decode::<Request>(REQUEST, &good).unwrap_err().to_string().contains("kind 2 in place of kind 1"));
    }
}

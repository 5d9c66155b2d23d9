//! The bytes of calls and replies on their way between the driver of a fit and its workers.
//!
//! ```text
//! message = "pkmp" | version (u32, little-endian) | kind (1: request, 2: answer) | body (postcard)
//! ```
//! Numbers are exact: floats travel as their bits, and integers have up to 128 bits. Values of float32 travel as float64, which
//! has all of them. Another version is refused: all processes of a fit run the same version of this library.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::backend::DRAWN;
pub(super) use crate::backend::call::taken;
pub use crate::backend::call::{Call, Facts, Reply, Start, State};
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;

/// The version of the messages: a hash of examples of all of them (`tests/golden/messages.txt`). So two layouts never have the
/// same version. A unit test says which number is right.
pub const VERSION: u32 = 1_514_879_156;
const MAGIC: [u8; 4] = *b"pkmp";
/// Bytes before the body.
const HEAD: usize = MAGIC.len() + size_of::<u32>() + 1;

/// Kinds of messages.
pub const REQUEST: u8 = 1;
pub const ANSWER: u8 = 2;

pub fn encode(kind: u8, message: &impl Serialize) -> Result<Vec<u8>> {
    let refused = |error| refused(format!("one that cannot be encoded: {error}"));
    let length = postcard::experimental::serialized_size(message).map_err(refused)?;
    let mut bytes = memory::with_room(HEAD + length, "a message between a driver and a worker")?;
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.push(kind);
    postcard::to_extend(message, bytes).map_err(refused)
}

pub fn decode<M: DeserializeOwned>(expected: u8, bytes: &[u8]) -> Result<M> {
    let body = bytes.strip_prefix(&MAGIC).and_then(|rest| rest.split_first_chunk()).and_then(|(version, rest)| {
        let (kind, body) = rest.split_first()?;
        Some((u32::from_le_bytes(*version), *kind, body))
    });
    let Some((version, kind, body)) = body else { return Err(refused(format!("{} other bytes", bytes.len()))) };
    if version != VERSION {
        return Err(refused(format!("one of version {version} (install one version of polars-kmeans everywhere)")));
    }
    if kind != expected {
        return Err(refused(format!("one of kind {kind} in place of kind {expected}")));
    }
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(refused(format!("one with {} bytes too many", rest.len()))),
        Err(error) => Err(refused(format!("a damaged one: {error}"))),
    }
}

/// The error for a message that cannot be read or does not fit.
pub fn refused(got: String) -> KMeansError {
    KMeansError::Part { reason: format!("expected a message of version {VERSION}, got {got}") }
}

/// Values in the type that travels, or in that of the features, which had them before they travelled.
pub fn converted<T: Float, U: Float>(values: &[T]) -> Result<Vec<U>> {
    memory::collected(values.iter().map(|value| U::from_f64(value.to_f64())), DRAWN)
}

/// A call with its centroids or candidates.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Asked {
    pub call: Call,
    pub values: Vec<f64>,
}

impl From<Call> for Asked {
    fn from(call: Call) -> Self {
        Self { call, values: Vec::new() }
    }
}

/// A reply with the values of its rows.
pub type Replied = (Reply, Vec<f64>);

/// What a worker is asked: calls in this order. Those who ask have references to calls, which have the same bytes.
pub type Request = (RequestStates, Vec<Asked>);

/// The states of the worker that belong to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestStates {
    /// The number of the fit.
    pub fit: u64,
    /// The state that the calls need, or 0 if they need none.
    pub before: u64,
    /// The state that they lead to.
    pub after: u64,
}

/// What a worker answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// One reply for each call.
    Replies(Vec<Replied>),
    /// The worker is not in the state that the request needs. Nothing was done.
    Lost,
    Failed(KMeansError),
}

#[cfg(feature = "tests")]
#[path = "../../tests/unit/messages.rs"]
mod tests;

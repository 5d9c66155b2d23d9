//! A model as bytes: how it travels to an expression, as one binary literal.
//!
//! `magic and version | 16 bytes: xxh3 of the body | body (postcard)`. Every morsel of a prediction gets the bytes; the model
//! that they make is kept, under the body's hash, so that a morsel pays for no decoding.

use std::sync::{Arc, Mutex, PoisonError};

use xxhash_rust::xxh3::xxh3_128;

use super::KMeansModel;
use crate::error::{KMeansError, Result};
use crate::memory;
use crate::parallel::FirstProcess;

/// What every encoded model starts with: a name and the version of what follows.
const MAGIC: &[u8] = b"polars-kmeans\x03";
/// Bytes of the hash.
const HASH: usize = 16;
/// Models that are kept.
const KEPT: usize = 16;
/// Bytes that their bodies may have together, unless there is only one.
const KEPT_BYTES: usize = 256 << 20;

/// A model, the hash of its body and the body's length.
type Decoded = ([u8; HASH], usize, Arc<KMeansModel>);

/// The models that were used last. The latest is at the end.
static DECODED: Mutex<Vec<Decoded>> = Mutex::new(Vec::new());
/// The process that keeps them.
static OWNER: FirstProcess = FirstProcess::new();

impl KMeansModel {
    /// The model as bytes, wall times included.
    ///
    /// # Errors
    /// [`KMeansError::InvalidModel`] if it cannot be encoded, [`KMeansError::NoMemory`].
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let refused = |error| invalid("a model that can be encoded", error);
        let length = postcard::experimental::serialized_size(self).map_err(refused)?;
        let body = MAGIC.len() + HASH;
        let mut bytes = memory::with_room(body + length, "the bytes of a model")?;
        bytes.extend_from_slice(MAGIC);
        bytes.extend([0; HASH]);
        let mut bytes: Vec<u8> = postcard::to_extend(self, bytes).map_err(refused)?;
        let hash = xxh3_128(&bytes[body..]).to_le_bytes();
        bytes[MAGIC.len()..body].copy_from_slice(&hash);
        Ok(bytes)
    }

    /// A model from [`KMeansModel::to_bytes`]; one that was decoded lately is not decoded again.
    ///
    /// # Errors
    /// [`KMeansError::InvalidModel`] for anything else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Arc<Self>> {
        let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| invalid("bytes of a model of this version", "something else"))?;
        let (hash, body) = rest.split_first_chunk::<HASH>().ok_or_else(|| invalid("a whole model", "its beginning"))?;
        // Before the cache is asked, which would take altered bytes for those that had this hash.
        if xxh3_128(body).to_le_bytes() != *hash {
            return Err(invalid("a model whose bytes fit its checksum", "altered bytes"));
        }
        // A thread of the process that this one was forked from may have held the lock, and be gone.
        if !OWNER.enter() {
            return Ok(Arc::new(decode(body)?));
        }
        let same = |kept: &Decoded| kept.0 == *hash && kept.1 == body.len();
        let lock = || DECODED.lock().unwrap_or_else(PoisonError::into_inner);
        let find = |decoded: &mut Vec<Decoded>| {
            let kept = decoded.iter().position(same).map(|place| decoded.remove(place))?;
            decoded.push(kept.clone());
            Some(kept.2)
        };
        if let Some(model) = find(&mut lock()) {
            return Ok(model);
        }
        let model = Arc::new(decode(body)?);
        let mut decoded = lock();
        // Another thread may have been first.
        if let Some(model) = find(&mut decoded) {
            return Ok(model);
        }
        decoded.push((*hash, body.len(), model.clone()));
        while decoded.len() > KEPT || decoded.len() > 1 && decoded.iter().map(|kept| kept.1).sum::<usize>() > KEPT_BYTES {
            decoded.remove(0);
        }
        Ok(model)
    }
}

fn decode(body: &[u8]) -> Result<KMeansModel> {
    let model: KMeansModel = postcard::from_bytes(body).map_err(|error| invalid("a whole model", error))?;
    model.check()
}

fn invalid(expected: &str, got: impl std::fmt::Display) -> KMeansError {
    KMeansError::InvalidModel { expected: expected.into(), got: got.to_string() }
}

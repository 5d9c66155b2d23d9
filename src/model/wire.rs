//! A model as bytes: an expression receives it as one binary literal.
//!
//! The format is `magic and version | 16 bytes: xxh3 of the body | body (postcard)`. Every morsel of a prediction gets these
//! bytes. Decoded models are cached under the hash of the body, so that a morsel does not decode the model again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use xxhash_rust::xxh3::xxh3_128;

use super::KMeansModel;
use crate::error::{KMeansError, Result};
use crate::memory;
use crate::parallel::FirstProcess;

/// Every encoded model starts with this: a name, and the version of the format that follows.
const MAGIC: &[u8] = b"polars-kmeans\x05";
/// Bytes of the hash.
const HASH: usize = 16;
/// The most models that the cache holds.
const KEPT: usize = 16;
/// The most bytes that the bodies of the cached models may have together. One larger model is still cached alone.
const KEPT_BYTES: usize = 256 << 20;

/// A model, the hash of its body and the body's length.
type Decoded = ([u8; HASH], usize, Arc<KMeansModel>);

/// The models that were used last. The latest is at the end.
static DECODED: Mutex<Vec<Decoded>> = Mutex::new(Vec::new());
/// The process that owns the cache.
static OWNER: FirstProcess = FirstProcess::new();

impl KMeansModel {
    /// The model as bytes, including wall times.
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

    /// As [`KMeansModel::to_bytes`]. The model itself goes to the cache, so that nobody has to decode it again.
    ///
    /// # Errors
    /// As [`KMeansModel::to_bytes`].
    pub fn into_bytes(self) -> Result<Vec<u8>> {
        let bytes = self.to_bytes()?;
        let hash = bytes[MAGIC.len()..].first_chunk::<HASH>().copied();
        if let Some(hash) = hash.filter(|_| OWNER.enter()) {
            keep(hash, bytes.len() - MAGIC.len() - HASH, Arc::new(self));
        }
        Ok(bytes)
    }

    /// A model from the bytes of [`KMeansModel::to_bytes`]. A model that was decoded recently comes from the cache.
    ///
    /// # Errors
    /// [`KMeansError::InvalidModel`] for anything else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Arc<Self>> {
        let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| invalid("bytes of a model of this version", "something else"))?;
        let (hash, body) = rest.split_first_chunk::<HASH>().ok_or_else(|| invalid("a whole model", "its beginning"))?;
        // Check the hash before the lookup in the cache. The cache finds models by this hash and would accept altered bytes.
        if xxh3_128(body).to_le_bytes() != *hash {
            return Err(invalid("a model whose bytes fit its checksum", "altered bytes"));
        }
        // If this process was forked, a thread of the parent may have held the lock. That thread does not exist here.
        if !OWNER.enter() {
            return Ok(Arc::new(decode(body)?));
        }
        let found = find(&mut decoded_models(), hash, body.len());
        match found {
            Some(model) => Ok(model),
            None => Ok(keep(*hash, body.len(), Arc::new(decode(body)?))),
        }
    }
}

fn decoded_models() -> MutexGuard<'static, Vec<Decoded>> {
    DECODED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The cached model with this hash and this length of the body. It is now the one that was used last.
fn find(decoded: &mut Vec<Decoded>, hash: &[u8; HASH], length: usize) -> Option<Arc<KMeansModel>> {
    let place = decoded.iter().position(|kept| kept.0 == *hash && kept.1 == length)?;
    let kept = decoded.remove(place);
    decoded.push(kept.clone());
    Some(kept.2)
}

/// Puts a model into the cache, unless another thread was first. Returns the model that is there.
fn keep(hash: [u8; HASH], length: usize, model: Arc<KMeansModel>) -> Arc<KMeansModel> {
    let mut decoded = decoded_models();
    if let Some(model) = find(&mut decoded, &hash, length) {
        return model;
    }
    decoded.push((hash, length, model.clone()));
    while decoded.len() > KEPT || decoded.len() > 1 && decoded.iter().map(|kept| kept.1).sum::<usize>() > KEPT_BYTES {
        decoded.remove(0);
    }
    model
}

fn decode(body: &[u8]) -> Result<KMeansModel> {
    let model: KMeansModel = postcard::from_bytes(body).map_err(|error| invalid("a whole model", error))?;
    model.check()
}

fn invalid(expected: &str, got: impl std::fmt::Display) -> KMeansError {
    KMeansError::InvalidModel { expected: expected.into(), got: got.to_string() }
}

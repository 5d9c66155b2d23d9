//! A model as bytes. An expression receives it so, as one binary literal. A file holds it so, too: see `file.rs`.
//!
//! ```text
//! polars-kmeans                     13 bytes
//! the format                        1 byte
//! length of the body                8 bytes, little-endian
//! xxh3 of the body, with 128 bits   16 bytes, little-endian
//! the body                          the model, as postcard encodes it, and what came later: its tail
//! ```
//! The tail is nothing, or 1 byte if a fit was stopped, or as postcard encodes [`Tail`]. So models without quanta, kept sums and
//! metadata have the bytes that they always had, and files that were written before are read.
//!
//! In the second format, the body is the model, a whole tail, the costs of the iterations, and [`Later`]. It is written only for
//! models with keys of batches, factors of a decay, wider units, or weights of clusters.
//!
//! Postcard names no fields. So any change of what is encoded needs another format. A test holds the bytes of models to
//! golden hashes. A new word for an option, such as another metric, needs none: `Settings::check` refuses words that it does not
//! know, by name.
//!
//! Every morsel of a prediction gets these bytes. Decoded models are cached under the hash of the body, so that a morsel does not
//! decode the model again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use super::living::{Later, Living};
use super::{KMeansModel, invalid};
use crate::base::error::{KMeansError, Result};
use crate::base::memory;
use crate::base::parallel::FirstProcess;

/// The newest format of a model's bytes. It and those before can be read.
pub const FORMAT: u8 = 2;
/// The format of models that have nothing of [`Later`], and of models of groups.
pub(crate) const FIRST_FORMAT: u8 = 1;
/// What is encoded: a model, models of groups, or a tree.
#[derive(PartialEq)]
pub(crate) struct Encoded {
    /// How the bytes start.
    pub(super) magic: [u8; 13],
    /// Python's class that reads and writes files of it.
    #[cfg(feature = "arrow")]
    pub(super) class: &'static str,
    /// The newest format.
    pub(super) newest: u8,
}
pub(super) const MODEL: Encoded = Encoded {
    magic: *b"polars-kmeans",
    #[cfg(feature = "arrow")]
    class: "KMeansModel",
    newest: FORMAT,
};
/// A tree of clusters: `tree/wire.rs`.
pub(crate) const TREES: Encoded = Encoded {
    magic: *b"k-means-trees",
    #[cfg(feature = "arrow")]
    class: "KMeansTree",
    newest: FIRST_FORMAT,
};
/// Bytes of the length.
const LENGTH: usize = 8;
/// Bytes of the hash.
const HASH: usize = 16;
/// The tail of a model whose fit was stopped, and that has nothing else in its tail.
const STOPPED: u8 = 1;

/// What the encoded model itself does not hold.
#[derive(Serialize, Deserialize)]
struct Tail<L, M> {
    /// Whether the fit was stopped.
    stopped: bool,
    /// Quanta and kept sums.
    living: L,
    /// Texts of users.
    metadata: M,
}
/// What the history says of one iteration and the encoded model does not: `rescored`, `groups` and `passes`. The costs of all iterations
/// follow the tail, if there are any.
type Cost = (Option<f64>, Option<u32>, Option<f64>);
/// How errors name the bytes.
pub(crate) const BYTES: &str = "the bytes of a model";
/// The most models that the cache holds.
const KEPT: usize = 16;
/// The most bytes that the bodies of the cached models may have together. One larger model is still cached alone.
const KEPT_BYTES: u64 = 256 << 20;

/// The models that were used last.
static DECODED: Cache<KMeansModel> = Cache::new();
/// The process that owns the caches.
static OWNER: FirstProcess = FirstProcess::new();

impl KMeansModel {
    /// The costs of all iterations, or nothing.
    fn costs(&self) -> Result<Vec<Cost>> {
        let rows = self.history_rows();
        let has = rows.iter().any(|row| row.rescored.is_some() || row.groups.is_some() || row.passes.is_some());
        memory::collected(rows.iter().filter(|_| has).map(|row| (row.rescored, row.groups, row.passes)), BYTES)
    }

    /// The model as the bytes that an expression receives, including wall times. `to_bytes` has those of its file.
    ///
    /// # Errors
    /// [`KMeansError::InvalidModel`] if it cannot be encoded, [`KMeansError::NoMemory`].
    #[doc(hidden)]
    pub fn to_wire(&self) -> Result<Vec<u8>> {
        let refused = |error| invalid("a model that can be encoded", error);
        let tail = Tail { stopped: self.stopped(), living: self.living(), metadata: &self.metadata };
        let (costs, later) = (self.costs()?, &self.living().later);
        let length = postcard::experimental::serialized_size(&(self, &tail, &costs, later)).map_err(refused)?;
        let mut bytes = memory::with_room(Head::BYTES + length, BYTES)?;
        bytes.extend([0; Head::BYTES]);
        let mut bytes: Vec<u8> = postcard::to_extend(self, bytes).map_err(refused)?;
        let is_first = *later == Later::default();
        if is_first && self.living().is_empty() && tail.metadata.is_empty() && costs.is_empty() {
            bytes.extend(self.stopped().then_some(STOPPED));
        } else {
            bytes = postcard::to_extend(&tail, bytes).map_err(refused)?;
        }
        if !is_first || !costs.is_empty() {
            bytes = postcard::to_extend(&costs, bytes).map_err(refused)?;
        }
        if !is_first {
            bytes = postcard::to_extend(later, bytes).map_err(refused)?;
        }
        let (head, body) = bytes.split_at_mut(Head::BYTES);
        head.copy_from_slice(&Head::of(if is_first { FIRST_FORMAT } else { FORMAT }, body).bytes(&MODEL));
        Ok(bytes)
    }

    /// As [`KMeansModel::to_wire`]. The model itself goes to the cache, so that it is not decoded again.
    ///
    /// # Errors
    /// As [`KMeansModel::to_wire`].
    #[doc(hidden)]
    pub fn into_wire(self) -> Result<Vec<u8>> {
        let bytes = self.to_wire()?;
        DECODED.take(&bytes, &MODEL, self)?;
        Ok(bytes)
    }

    /// A model from the bytes of [`KMeansModel::to_wire`]. A model that was decoded recently comes from the cache.
    ///
    /// # Errors
    /// [`KMeansError::InvalidModel`] for anything else.
    #[doc(hidden)]
    pub fn from_wire(bytes: &[u8]) -> Result<Arc<Self>> {
        DECODED.get(bytes, &MODEL, decode)
    }
}

/// The head and the body of what is encoded.
fn checked<'b>(bytes: &'b [u8], what: &Encoded) -> Result<(Head, &'b [u8])> {
    let head = Head::read(bytes, what)?.ok_or_else(|| invalid("bytes of a model of this version", "something else"))?;
    let body = &bytes[Head::BYTES..];
    head.check(body)?;
    Ok((head, body))
}

/// Refuses bytes that are no model, without a look at the cache.
#[cfg(feature = "arrow")]
pub(super) fn check(bytes: &[u8]) -> Result<()> {
    let (head, body) = checked(bytes, &MODEL)?;
    decode(head, body).map(drop)
}

/// What the bytes say about the body.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Head {
    format: u8,
    pub(super) length: u64,
    hash: [u8; HASH],
}

impl Head {
    /// Bytes before the body.
    pub(crate) const BYTES: usize = MODEL.magic.len() + 1 + LENGTH + HASH;

    pub(crate) fn of(format: u8, body: &[u8]) -> Self {
        Self { format, length: body.len() as u64, hash: xxh3_128(body).to_le_bytes() }
    }

    pub(crate) fn bytes(self, what: &Encoded) -> Vec<u8> {
        [&what.magic[..], &[self.format], &self.length.to_le_bytes(), &self.hash].concat()
    }

    /// Reads the head at the beginning of these bytes. `None` if they do not start as those of `what` do.
    pub(super) fn read(bytes: &[u8], what: &Encoded) -> Result<Option<Self>> {
        let Some(rest) = bytes.strip_prefix(&what.magic) else {
            return if what.magic.starts_with(bytes) { Err(breaks_off()) } else { Ok(None) };
        };
        let (format, rest) = rest.split_first().ok_or_else(breaks_off)?;
        if !(FIRST_FORMAT..=what.newest).contains(format) {
            let version = if *format > what.newest { "a newer" } else { "an older" };
            let got = format!("format {format} of {version} version of polars-kmeans");
            let or_newer = if what.newest > FIRST_FORMAT { format!(" or {}", what.newest) } else { String::new() };
            return Err(invalid(&format!("a model of format {FIRST_FORMAT}{or_newer}"), got));
        }
        let (length, rest) = rest.split_first_chunk::<LENGTH>().ok_or_else(breaks_off)?;
        let hash = rest.first_chunk::<HASH>().ok_or_else(breaks_off)?;
        Ok(Some(Self { format: *format, length: u64::from_le_bytes(*length), hash: *hash }))
    }

    /// Refuses another body than the one that was written.
    pub(super) fn check(&self, body: &[u8]) -> Result<()> {
        match Self::of(self.format, body) {
            got if got == *self => Ok(()),
            got if got.length < self.length => Err(breaks_off()),
            _ => Err(invalid("a model that fits its checksum", "an altered one")),
        }
    }
}

/// What was decoded last, with the heads. The latest is at the end.
#[derive(Debug)]
pub(crate) struct Cache<M>(Mutex<Vec<(Head, Arc<M>)>>);

impl<M> Cache<M> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Head, Arc<M>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has this head. It is now what was used last.
    fn find(decoded: &mut Vec<(Head, Arc<M>)>, head: Head) -> Option<Arc<M>> {
        let place = decoded.iter().position(|kept| kept.0 == head)?;
        let kept = decoded.remove(place);
        decoded.push(kept.clone());
        Some(kept.1)
    }

    /// Takes a model, unless another thread was first. Returns the model that is there.
    fn keep(&self, head: Head, model: Arc<M>) -> Arc<M> {
        let mut decoded = self.lock();
        if let Some(model) = Self::find(&mut decoded, head) {
            return model;
        }
        decoded.push((head, model.clone()));
        while decoded.len() > KEPT || decoded.len() > 1 && decoded.iter().map(|kept| kept.0.length).sum::<u64>() > KEPT_BYTES {
            decoded.remove(0);
        }
        model
    }

    /// Takes what has just been encoded to these bytes.
    pub(crate) fn take(&self, bytes: &[u8], what: &Encoded, model: M) -> Result<()> {
        if let Some(head) = Head::read(bytes, what)?.filter(|_| OWNER.enter()) {
            self.keep(head, Arc::new(model));
        }
        Ok(())
    }

    /// What these bytes encode.
    pub(crate) fn get(&self, bytes: &[u8], what: &Encoded, decode: impl FnOnce(Head, &[u8]) -> Result<M>) -> Result<Arc<M>> {
        // The cache finds models by the hash and would accept altered bytes. So the body is checked before.
        let (head, body) = checked(bytes, what)?;
        // If this process was forked, a thread of the parent may have held the lock. That thread does not exist here.
        if !OWNER.enter() {
            return Ok(Arc::new(decode(head, body)?));
        }
        let found = Self::find(&mut self.lock(), head);
        match found {
            Some(model) => Ok(model),
            None => Ok(self.keep(head, Arc::new(decode(head, body)?))),
        }
    }
}

/// The model of a body that was checked.
pub(super) fn decode(head: Head, body: &[u8]) -> Result<KMeansModel> {
    let (model, rest) = part::<KMeansModel>(body)?;
    let model = match rest {
        [] if head.format == FIRST_FORMAT => model,
        [STOPPED] if head.format == FIRST_FORMAT => model.with_tail(true, Living::default(), BTreeMap::new()),
        rest => {
            let (Tail { stopped, mut living, metadata }, mut rest) = part::<Tail<Living, BTreeMap<String, String>>>(rest)?;
            let mut costs = Vec::new();
            if head.format > FIRST_FORMAT {
                (costs, rest) = part::<Vec<Cost>>(rest)?;
                (living.later, rest) = part::<Later>(rest)?;
            } else if let Ok(found) = part::<Vec<Cost>>(rest) {
                (costs, rest) = found;
            }
            if !rest.is_empty() {
                return Err(invalid("nothing after the model", format!("{} bytes", rest.len())));
            }
            model.with_tail(stopped, living, metadata).with_costs(&costs)
        }
    };
    model.check()
}

/// What the bytes begin with, and the bytes after it.
fn part<'b, P: Deserialize<'b>>(bytes: &'b [u8]) -> Result<(P, &'b [u8])> {
    postcard::take_from_bytes(bytes).map_err(|error| invalid("a whole model", error))
}

pub(super) fn breaks_off() -> KMeansError {
    invalid("a whole model", "one that breaks off")
}

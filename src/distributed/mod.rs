//! Fits of rows that are in several parts: in one process, in several, or on many machines.
//!
//! ```text
//! driver                                       a worker for each part, anywhere
//! fit: seeding, loop, relocation, restarts     rows, labels, sums
//!   passes.rs, shards.rs                       serve.rs
//!   link.rs  -- requests: bytes -->  Executor  --> worker.rs
//!            <-- answers: bytes ---            <--
//! ```
//! The driver runs the same fit as for rows in one process. Each pass over the rows is one message to every part, and the parts
//! answer with integers: sums over all their rows, never changes. So the bits do not depend on the number of parts, and a
//! repeated request does no harm.
//!
//! A worker may be lost at any time. A worker that is made again from the same rows says so when it is asked, and the driver
//! repeats what brings it back: how rows are transformed, the facts about all rows, the centroids that seeding has taken, and the
//! last centroids, which give its labels (`journal.rs`).

mod by_values;
mod fit;
mod journal;
mod link;
mod message;
mod passes;
mod rows;
mod serve;
mod shards;
mod worker;

use std::sync::Arc;

pub use self::fit::{facts, fit};
pub use self::message::{Facts, VERSION};
pub use self::rows::OwnedRows;
pub use self::worker::{Owner, Server, Worker};
use crate::base::error::Result;
pub use crate::model::AnyFitted;

/// Carries requests to parts, wherever they are.
pub trait Executor: Send {
    /// The number of parts. Their rows count in the order of the parts.
    fn parts(&self) -> usize;
    /// Sends each request to its part, all of them at the same time, and returns the answers in the order of the requests: for
    /// each the bytes that [`Worker::answer`] gave. A request that was lost on the way, with its part or without, may be sent
    /// again.
    ///
    /// # Errors
    /// What keeps an answer from coming at all. It ends the fit.
    fn ask(&mut self, requests: &[(usize, Arc<[u8]>)]) -> Result<Vec<Vec<u8>>>;
}

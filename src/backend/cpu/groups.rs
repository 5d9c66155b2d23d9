//! Assigns that compare rows only with the centroids near them. Integer copies are compared first, where the machine multiplies
//! them fast.
//!
//! ```text
//! at the first assign, and again when less is left out than before:
//!   points m among the centroids or the rows, and for each point the centroids near it          (`groups/partition.rs`)
//!   the rows of each part in the order of their groups, in blocks of 64 rows of one group               (`groups/sorted.rs`)
//!   for each block:  R = the largest distance to m
//! each assign:
//!   for each group:  all centroids, a few at a time, in the order of their distance from m             (`groups/step.rs`)
//!   for each block:  U = the largest distance to a centroid
//!     the block is compared with the centroids at most R + U from m: the first ones of the order       (`groups/task.rs`)
//!
//! where the product filter is used, and the machine multiplies small integers:                (`groups/int_dot.rs`)
//!   sorted rows are copied about m, and in each assign the centroids near each group, too
//!   a block is compared by its copies; only rows in doubt and rows whose label changes are loaded
//!   a block with much doubt is compared again in float32
//! ```
//! `groups/state.rs` has the states of a session and what changes them, `groups/plan.rs` the decision before the first assign,
//! `groups/choose.rs` the number of groups, `groups/grouped.rs` an assign and what it says of the next one, `groups/tuning.rs` all
//! constants of these decisions. The groups read a [`SessionView`], and write what [`AssignByGroups`] lends them.
//!
//! Points to note: (1) `src/bounds/groups.rs` derives what may be left out. (2) A row that changes its label stays in its block
//! until rows are put in order again: neither the row nor m has moved. (3) Before the first assign, rows take the group whose
//! point is nearest, by few features where a sample says that they are enough. Later they take that of their label, if the points
//! are means of centroids. (4) Sorted rows are kept from assign to assign where their copy is small enough. Else each assign sorts
//! some of them at a time. (5) Where differences are computed (few features), U comes from the distances to the labels so far, for
//! up to eight blocks together; else from R. (6) Where nothing can be left out, copies alone may pay. Then there is one group of
//! all centroids. (7) Where some natural clusters have no centroid yet, only points among the rows find them.
//!
//! The idea is that of the rings of Drake & Hamerly (2012) and of blocks of rows as in the tree of Kanungo et al. (2002), for
//! kernels that work on blocks.

mod choose;
mod grouped;
mod guess;
mod int_dot;
mod method;
mod partition;
mod parts;
mod plan;
mod sample;
mod scores;
mod sorted;
mod state;
mod step;
mod task;
mod tuning;
mod view;

pub use self::grouped::AssignByGroups;
#[cfg(feature = "bench")]
pub use self::int_dot::seconds_a_score;
pub use self::method::{MethodDecision, MethodExplanation, PossibleMethods};
pub use self::partition::halve;
use self::scores::GROUPS;
pub use self::scores::{BLOCK, Scores, largest};
pub use self::state::Grouping;
use self::step::GroupStep;
pub use self::tuning::MOST_GROUPS;
pub use self::view::{Forced, SessionView, UseGroups, UseIntDot};

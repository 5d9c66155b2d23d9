//! Where a job runs, and why.

use std::fmt;

use crate::backend::chunking::Chunking;
use crate::base::params::Gpus;
use crate::base::strategy::Strategy;

/// Where rows are fitted or labelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Cpu,
    /// The GPU of this number.
    Cuda(u32),
    /// Several GPUs. Each has a share of the rows.
    Several(Gpus),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
            Self::Several(gpus) => gpus.fmt(f),
        }
    }
}

/// Where a fit or a prediction runs, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    pub place: Place,
    /// A sentence for the user, with the figures that decided.
    pub reason: String,
    pub plan: Plan,
    /// What each GPU has of a fit on several GPUs. The plan above is then that of the first. Empty for all other jobs.
    pub shares: Vec<Share>,
}

impl Choice {
    /// The choice of no GPU.
    pub fn cpu(reason: String) -> Self {
        Self { place: Place::Cpu, reason, plan: Plan::within(u64::MAX), shares: Vec::new() }
    }
}

/// How a job runs on a GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    /// How the rows pass through the GPU in chunks, if they do not fit on it.
    pub chunking: Option<Chunking>,
    /// The strategy with which a fit labels rows. [`Strategy::Default`] on the CPU, and for jobs of a model.
    pub strategy: Strategy,
    /// Whether there is memory for copies of the rows that the kernel could do without.
    pub more_copies: bool,
    /// The predicted time of an iteration, if the kernel was not named by the caller.
    pub microseconds: Option<f64>,
    /// The bytes of the GPU's memory that the job may take.
    pub room: u64,
    /// The bytes that it takes there.
    pub bytes: u64,
}

impl Plan {
    /// A plan for rows that fit into so many bytes.
    pub(crate) fn within(room: u64) -> Self {
        Self { chunking: None, strategy: Strategy::Default, more_copies: false, microseconds: None, room, bytes: 0 }
    }
}

/// What one GPU has of the rows of a fit on several GPUs, and how it works on them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share {
    /// The number of the GPU.
    pub ordinal: u32,
    pub rows: u64,
    pub plan: Plan,
}

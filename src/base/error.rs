//! One typed error for every reason to refuse a fit, a prediction or a frame.
//!
//! A message says what was expected and what was got. The variants are in three groups: what the caller asked for (options,
//! shapes), what the data hold (values, ranges), and what the machine has.

use std::borrow::Cow;
use std::fmt;

use thiserror::Error;

use crate::base::figures::GroupedDigits;

/// The result of every function in this crate that can fail.
pub type Result<T> = std::result::Result<T, KMeansError>;

/// What an error about the width of starting centroids calls them.
pub(crate) const STARTING_CENTROIDS: &str = "starting centroids";

/// A word of this library. (A type of its own name, because errors that travel between processes are read into it.)
type Word = &'static str;

/// The names of all options of a fit. (A list of its own: the options import this file, so this file imports no options.)
#[cfg(feature = "parts")]
pub(crate) const OPTIONS: &str = "init n_init seed oversampling rounds chain_length init_sample max_iter tol tol_labels min_size max_size balanced \
                                  metric scale null_policy row_order sort_by keep_sums extents too_few history device device_memory_limit threads strategy";

/// Reads a word of this library. One that is not known here becomes a general one.
#[cfg(feature = "parts")]
fn known_word<'de, D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Word, D::Error> {
    let word: String = serde::Deserialize::deserialize(deserializer)?;
    let others = ["k", "features", "overflow", "vanish", "option", "float32", "float64", "m", STARTING_CENTROIDS];
    Ok(OPTIONS.split(' ').chain(others).find(|known| *known == word).unwrap_or("the fit"))
}

/// The families of errors: the names of the Python exceptions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A parameter is outside its domain or does not fit the data's shape.
    InvalidParameter,
    /// A column is missing, badly named or of a dtype that cannot be clustered.
    InvalidColumn,
    /// Values that cannot be clustered.
    InvalidData,
    /// Fewer distinct rows than clusters.
    TooFewRows,
    /// The input is not a model.
    InvalidModel,
    /// A file cannot be read or written.
    File,
    /// A file of columns that memory does not hold cannot be written.
    Spill,
    /// There is not enough memory.
    NoMemory,
    /// The caller demanded a GPU, and it cannot be used or it failed.
    Device,
    /// The user stopped the call.
    Cancelled,
    /// The process was forked from a process that had already run queries.
    Forked,
    /// A part of a fit failed, or two sides of a fit in parts do not understand each other.
    Part,
    /// Any error of the data frame library.
    Frame,
}

impl ErrorKind {
    /// The name of the Python exception.
    pub fn name(self) -> &'static str {
        match self {
            Self::InvalidParameter => "InvalidParameterError",
            Self::InvalidColumn => "InvalidColumnError",
            Self::InvalidData => "InvalidDataError",
            Self::TooFewRows => "TooFewRowsError",
            Self::InvalidModel => "InvalidModelError",
            Self::File => "ModelFileError",
            Self::Spill => "SpillError",
            Self::NoMemory => "NoMemoryError",
            Self::Device => "DeviceError",
            Self::Cancelled => "CancelledError",
            Self::Forked => "ForkedProcessError",
            Self::Part | Self::Frame => "KMeansError",
        }
    }
}

/// Why a fit, a prediction or a frame was refused.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
#[cfg_attr(feature = "parts", derive(serde::Serialize, serde::Deserialize))]
pub enum KMeansError {
    // ---- options and shapes -------------------------------------------------------------------------------
    /// An option has a value outside its domain.
    #[error("{option}: expected {expected}, got {got}")]
    InvalidOption {
        #[cfg_attr(feature = "parts", serde(deserialize_with = "known_word"))]
        option: Word,
        expected: String,
        got: String,
    },
    /// There are no feature columns.
    #[error("features: expected at least one column, got none")]
    NoFeatures,
    /// There are no rows to fit.
    #[error("rows: expected at least one row, got none{}", .skipped.map(|s| format!(" ({s} rows were skipped for nulls or \
        non-finite values)")).unwrap_or_default())]
    NoRows { skipped: Option<u64> },
    /// More rows than the fixed-point sums can hold.
    #[error("rows: expected at most 68,719,476,736, got {}: fit a sample of them", GroupedDigits(*.got))]
    TooManyRows { got: u64 },
    /// Two things must have the same length but do not.
    #[error("{what}: expected {expected} values, got {got}")]
    LengthMismatch { what: String, expected: usize, got: usize },
    /// Centroids or features do not have the width of the model or the data.
    #[error("{what}: expected {expected} features, got {got}")]
    WidthMismatch {
        #[cfg_attr(feature = "parts", serde(deserialize_with = "known_word"))]
        what: Word,
        expected: usize,
        got: usize,
    },
    /// The columns of a model are looked up by name, but the model was fitted to expressions.
    #[error(
        "model: expected the columns to use, since it was fitted to expressions named {names:?} and columns of these names may \
        hold something else: make the columns first, as in made = frame.with_columns(pl.col({0:?}).log1p()), and name them, as in \
        model.label(made, {0:?})", .names.first().map_or("", String::as_str)
    )]
    ComputedFeatures { names: Vec<String> },
    /// A column was asked for by name but does not exist.
    #[error("column {column:?}: expected one of {available:?}")]
    MissingColumn { column: String, available: Vec<String> },
    /// A feature column's dtype cannot be clustered.
    #[error("column {column:?}: expected numbers or booleans, or a single Array or List column of them, got {got}")]
    UnsupportedDtype { column: String, got: String },
    /// A feature has the same name as a column of the centroid frame.
    #[error(
        "a feature may not be named {name:?}, which is a column of the centroid frame: rename it, e.g. \
        pl.col({name:?}).alias(\"{name}_\") (the expression kmeans takes it, because it returns labels only)"
    )]
    ReservedName { name: String },
    /// A feature has no name, so it cannot be a column of the centroid frame.
    #[error(
        "a feature must have a name: give it one, e.g. pl.col(\"\").alias(\"x\") or pl.element().alias(\"x\") \
        (the expression kmeans takes it, because it returns labels only)"
    )]
    UnnamedColumn,
    /// A column's name holds a NUL. Columns travel through Arrow's C interface, where a NUL ends a name.
    #[error("column {name:?}: expected a name without NUL characters: rename it")]
    NulInName { name: String },
    /// Two features have the same name.
    #[error("feature names must differ, got {name:?} twice: rename one with .alias")]
    DuplicateName { name: String },
    /// A serialised model could not be read.
    #[error("model: expected {expected}, got {got}")]
    InvalidModel { expected: String, got: String },

    /// A data frame operation failed.
    #[error("{0}")]
    Frame(String),

    // ---- values -------------------------------------------------------------------------------------------
    /// A column holds values that have no distance (nulls, NaNs or infinities), and `null_policy` is `"raise"`.
    #[error(
        "column {column:?}: expected finite values, got nulls: {nulls}, NaNs: {nans}, infinities: {infinities} \
        (null_policy=\"skip\" leaves such rows out)"
    )]
    NotFinite { column: String, nulls: u64, nans: u64, infinities: u64 },
    /// A value is outside of the range that a function takes.
    #[error("column {column:?}: expected {expected}, got {got}")]
    OutOfRange { column: String, expected: String, got: f64 },
    /// The columns of later rows have another type than those of the fit.
    #[error("features: expected {expected}, as in the fit, got {got}: cast the columns")]
    OtherType {
        #[cfg_attr(feature = "parts", serde(deserialize_with = "known_word"))]
        expected: Word,
        #[cfg_attr(feature = "parts", serde(deserialize_with = "known_word"))]
        got: Word,
    },
    /// A later value is far larger than those that a model's quanta were made for.
    #[error(
        "column {column:?}: expected magnitudes of at most {limit:e} (16 times those of the fit, scaled and times the weight), got \
        {got:e}: {remedy}"
    )]
    BeyondExtent { column: String, got: f64, limit: f64, remedy: String },
    /// A value is so large that sums of earlier rows would lose their digits beside it.
    #[error(
        "column {column:?}: expected magnitudes of at most {limit:e}, beside which the sums of earlier rows keep their digits, got \
        a magnitude of about {got:e}: {}, or fit with extents that hold for all rows",
        if *.weight { "divide the weights by one number" } else { "leave out what stands for missing values" }
    )]
    BeyondSums { column: String, got: f64, limit: f64, weight: bool },
    /// Values have magnitudes for which distances cannot be computed.
    #[error(
        "{what}: expected a largest magnitude of {} about {}, got {got:e}: {} the values by one number{}",
        if *.got < 1.0 { "0 or at least" } else { "at most" },
        if *.got < 1.0 { "3.4e-136" } else { "2.9e135" },
        if *.got < 1.0 { "multiply" } else { "divide" },
        if *.got < 1.0 { "" } else { ", or make null what stands for missing values" }
    )]
    MagnitudeOutOfRange { what: String, got: f64 },
    /// A column's values overflow or vanish when they are scaled.
    #[error(
        "scale: expected a factor that keeps the values of column {column:?} in range, got {factor:e}, with which they {how}"
    )]
    ScaledOutOfRange {
        column: String,
        factor: f64,
        #[cfg_attr(feature = "parts", serde(deserialize_with = "known_word"))]
        how: Word,
    },
    /// Rows of zeros have no direction, and `null_policy` is `"raise"`.
    #[error(
        "rows: expected values other than zero in each (metric=\"cosine\"), got {count} rows of zeros (null_policy=\"skip\" \
        leaves such rows out)"
    )]
    ZeroRows { count: u64 },
    /// More than half of a column's values are so small compared with its largest value that they cannot be told apart.
    #[error(
        "column {column:?}: expected values that are not tiny beside the largest, {largest:e}, got more than half of the nonzero \
        ones (times their weights) below 1.4e-20 of it: if the largest stands for missing values, make it null and pass \
        null_policy=\"skip\""
    )]
    RangeTooWide { column: String, largest: f64 },
    /// A weight is negative.
    #[error("weight: expected non-negative values, got {got} in row {row}")]
    NegativeWeight { row: u64, got: f64 },
    /// No weight is positive.
    #[error("weight: expected at least one positive weight, got none")]
    NoPositiveWeight,
    /// Some weights are so small compared with the largest weight that they cannot be told apart.
    #[error(
        "weight: expected at most one in 1,000 positive weights below 1.1e-13 of the largest, {largest:e}, got {small} of \
        {positive}: make such small weights 0, or lower the largest"
    )]
    WeightRangeTooWide { largest: f64, small: u64, positive: u64 },
    /// The largest weight is out of range.
    #[error("weight: expected a largest weight from about 5.4e-20 to 1.8e19, got {got:e}: divide all weights by the largest")]
    WeightOutOfRange { got: f64 },
    /// There are fewer distinct rows than clusters.
    #[error("k: expected at most as many clusters as distinct rows, got k = {k} and {rows} rows of positive weight{} \
        (too_few=\"fewer\" makes fewer clusters)", if (*k as u64) <= *.rows { format!(", fewer than {k} of them distinct") } else { String::new() })]
    TooFewDistinct { k: usize, rows: u64 },

    /// No labels keep the bounds on the sizes of the clusters.
    #[error(
        "sizes: expected min_size k <= n <= max_size k, got min_size = {min_size}, max_size = {max_size}, k = {k} and n = {rows} rows \
        of positive weight"
    )]
    InfeasibleSizes { k: usize, rows: u64, min_size: u64, max_size: u64 },

    // ---- the machine ----------------------------------------------------------------------------------------
    /// A file cannot be read or written.
    #[error("file {path:?}: {message}")]
    File { path: String, message: String },
    /// The columns of a fit are more than memory may hold, and a file for them could not be made, written or mapped.
    #[error(
        "spill_directory {directory:?}: expected room for the columns, which memory may not hold, got an error after {} \
        bytes: {message} (choose a folder with more room, or a larger memory_limit)",
        GroupedDigits(*.written)
    )]
    Spill { directory: String, written: u64, message: String },
    /// There is not enough memory for something. `bytes` is how many bytes it needed, where that is known.
    #[error("memory: expected room for {what}{}, got none", .bytes.map(ByteSuffix).unwrap_or_default())]
    NoMemory { what: Cow<'static, str>, bytes: Option<u64> },
    /// This process is a child that was forked from a process that had run queries.
    #[error(
        "process: expected one with threads of its own, got a child that was forked after process {parent} had run queries: \
        Polars' threads stayed there, and waiting for them would take forever (start processes with \"spawn\" or \"forkserver\")"
    )]
    Forked { parent: u32 },
    /// The caller demanded a device that cannot be used.
    #[error("device={requested:?} cannot be used: {reason} (device=\"auto\" takes the CPU where no GPU can be used)")]
    DeviceNotAvailable { requested: String, reason: String },
    /// The user stopped the call.
    #[error("the call was cancelled")]
    Cancelled,
    /// A part of a fit, or what carries messages to it, failed.
    #[error("parts: {reason}")]
    Part { reason: String },
    /// A device failed during `what`, e.g. `"the upload"`.
    #[error("CUDA: {what} failed: {reason} (device=\"cpu\" does without)")]
    Device { what: String, reason: String },
}

/// A number of bytes in brackets, behind a space. By default it prints nothing.
#[derive(Default)]
struct ByteSuffix(u64);

impl fmt::Display for ByteSuffix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { Ok(()) } else { write!(f, " ({} bytes)", GroupedDigits(self.0)) }
    }
}

impl KMeansError {
    /// Whether there were fewer distinct rows of positive weight than clusters, or no such rows at all. In this case
    /// `too_few="null"` gives nulls.
    pub fn is_too_few(&self) -> bool {
        match self {
            Self::InfeasibleSizes { k, rows, min_size, .. } => u128::from(*min_size) * *k as u128 > u128::from(*rows),
            _ => matches!(self, Self::TooFewDistinct { .. } | Self::NoRows { .. } | Self::NoPositiveWeight),
        }
    }

    /// The family that the error belongs to.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::InvalidOption { .. }
            | Self::InfeasibleSizes { .. }
            | Self::LengthMismatch { .. }
            | Self::WidthMismatch { what: STARTING_CENTROIDS, .. } => ErrorKind::InvalidParameter,
            Self::NoFeatures
            | Self::WidthMismatch { .. }
            | Self::ComputedFeatures { .. }
            | Self::MissingColumn { .. }
            | Self::UnsupportedDtype { .. }
            | Self::ReservedName { .. }
            | Self::UnnamedColumn
            | Self::NulInName { .. }
            | Self::OtherType { .. }
            | Self::DuplicateName { .. } => ErrorKind::InvalidColumn,
            Self::NoRows { .. }
            | Self::TooManyRows { .. }
            | Self::NotFinite { .. }
            | Self::OutOfRange { .. }
            | Self::BeyondExtent { .. }
            | Self::BeyondSums { .. }
            | Self::MagnitudeOutOfRange { .. }
            | Self::ScaledOutOfRange { .. }
            | Self::ZeroRows { .. }
            | Self::RangeTooWide { .. }
            | Self::NegativeWeight { .. }
            | Self::NoPositiveWeight
            | Self::WeightOutOfRange { .. }
            | Self::WeightRangeTooWide { .. } => ErrorKind::InvalidData,
            Self::TooFewDistinct { .. } => ErrorKind::TooFewRows,
            Self::InvalidModel { .. } => ErrorKind::InvalidModel,
            Self::File { .. } => ErrorKind::File,
            Self::Spill { .. } => ErrorKind::Spill,
            Self::NoMemory { .. } => ErrorKind::NoMemory,
            Self::DeviceNotAvailable { .. } | Self::Device { .. } => ErrorKind::Device,
            Self::Cancelled => ErrorKind::Cancelled,
            Self::Forked { .. } => ErrorKind::Forked,
            Self::Part { .. } => ErrorKind::Part,
            Self::Frame(_) => ErrorKind::Frame,
        }
    }
}

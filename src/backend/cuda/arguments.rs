//! The parameters of the kernels. Each struct has the same fields in the same order as in `kernels/common` or in the file
//! of its kernel.

use super::device::Plain;
use super::rows::RowsArgument;
use crate::certify::ExpandedTerms;
use crate::distances::DistanceScale;
use crate::fixed::{ColumnScale, Limbs};

/// `Factors`: the quantum of a column.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Factors {
    first: f64,
    second: f64,
    low: f64,
}
// SAFETY: the struct has three numbers and no padding.
unsafe impl Plain for Factors {}

impl From<&ColumnScale> for Factors {
    fn from(scale: &ColumnScale) -> Self {
        let (first, second, low) = scale.factors();
        Self { first, second, low }
    }
}

/// `DistanceScale`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct DistanceArgument {
    factors: Factors,
    quantum_exponent: i32,
    none: i32,
}

// SAFETY: the struct has only numbers and no padding.
unsafe impl Plain for DistanceArgument {}

impl From<&DistanceScale> for DistanceArgument {
    fn from(scale: &DistanceScale) -> Self {
        match scale.column() {
            Some(column) => Self { factors: (&column).into(), quantum_exponent: column.quantum_exponent(), none: 0 },
            None => Self { factors: Factors::default(), quantum_exponent: 0, none: 1 },
        }
    }
}

/// Whether a column has one limb.
pub fn has_one_limb(scale: &ColumnScale) -> bool {
    scale.limbs == Limbs::One
}

/// `Labels`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct LabelsArgument {
    pub at: u64,
    pub bytes: i32,
}

/// `Sums`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct SumsArgument {
    pub pending: u64,
    pub pending_rows: u64,
    pub sums: u64,
    pub rows: u64,
    pub one_limb: u64,
    pub k: i32,
    pub d: i32,
    pub columns: i32,
    pub mass_column: i32,
    pub limbs: i32,
    pub unused: i32,
}

/// `Bound`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Bound {
    pub slope: f32,
    pub offset: f32,
}
// SAFETY: the struct has only numbers and no padding.
unsafe impl Plain for Bound {}

/// `Control`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Control {
    pub changed: u64,
    pub started: u64,
    pub stop: u32,
    pub iteration: u32,
    pub ticket: u32,
    pub contested: u32,
    pub pairs: u32,
    pub next_run: u32,
}
// SAFETY: the struct has only numbers and no padding.
unsafe impl Plain for Control {}

/// The bytes of `Control` from `contested` on. The kernels of one chunk use them as counters, or they are 0 between kernels.
pub const CONTROL_OF_CHUNK: std::ops::Range<usize> = std::mem::offset_of!(Control, contested)..size_of::<Control>();

/// The value of `Control::stop` if a cluster is empty. Then the host does the update.
pub const STOP_EMPTY: u32 = 2;

/// `Record`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Record {
    pub changed: u64,
    pub shift: f64,
    pub nanoseconds: u64,
    pub moved: u32,
    pub contested: u32,
}
// SAFETY: the struct has only numbers and no padding.
unsafe impl Plain for Record {}

/// `Contested`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Contested {
    pub row: u32,
    pub second: u32,
}
// SAFETY: the struct has only numbers and no padding.
unsafe impl Plain for Contested {}

/// `Assign`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Assign<T> {
    pub rows: RowsArgument,
    pub labels: LabelsArgument,
    pub next: LabelsArgument,
    pub shift: u64,
    pub scale: T,
    pub copies: u64,
    pub half_squares: u64,
    pub bound: u64,
    pub contested: u64,
    pub control: u64,
    pub k: i32,
    pub k_padded: i32,
    pub sums: SumsArgument,
    pub factors: u64,
    pub mass_to_integer: f64,
    pub table_copies: i32,
    pub portion: i32,
    pub columns: u64,
    pub run: u32,
    pub even: u32,
}

/// `SystemAssign`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct SystemAssign<T> {
    pub assign: Assign<T>,
    pub width: i32,
    pub features: i32,
    pub across: i32,
    pub points: i32,
    pub slots: i32,
    pub unused: i32,
}

/// `SystemSums`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct SystemSums {
    pub rows: RowsArgument,
    pub labels: LabelsArgument,
    pub next: LabelsArgument,
    pub sums: SumsArgument,
    pub factors: u64,
    pub mass_to_integer: f64,
    pub control: u64,
    pub scratch: u64,
    pub scratch_next: u64,
    pub tables: u32,
    pub tables_next: u32,
    pub chunk: u32,
    pub points: u32,
    pub from_pairs: u32,
    pub unused: u32,
}

/// `Settle`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Settle {
    pub rows: RowsArgument,
    pub next: LabelsArgument,
    pub columns: u64,
    pub centroids: u64,
    pub contested: u64,
    pub control: u64,
    pub k: i32,
    pub values: i32,
}

/// `Deltas`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Deltas {
    pub rows: RowsArgument,
    pub labels: LabelsArgument,
    pub next: LabelsArgument,
    pub sums: SumsArgument,
    pub factors: u64,
    pub mass_to_integer: f64,
    pub control: u64,
    pub table_copies: i32,
    pub chunk: i32,
    pub chunks: i32,
    pub few: i32,
}

/// `Part`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Part {
    shift: [u64; 2],
    largest_half_square: u64,
    largest_weighted: u64,
    moved: u32,
    empty: u32,
    not_finite: u32,
    terms: u32,
}
// SAFETY: the struct has only numbers and no padding.
unsafe impl Plain for Part {}

/// `BoundTerms`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct BoundTerms {
    pub unit: f64,
    pub half: f64,
    pub reference: f64,
    pub underflow: f64,
    pub norm_factor: f64,
    pub norm_offset: f64,
    pub panel: i32,
    pub unused: i32,
}

impl From<ExpandedTerms> for BoundTerms {
    fn from(terms: ExpandedTerms) -> Self {
        let ExpandedTerms { unit, half, reference, underflow, norm_factor, norm_offset, chains } = terms;
        Self { unit, half, reference, underflow, norm_factor, norm_offset, panel: chains.panel() as i32, unused: 0 }
    }
}

/// `Update`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Update<T> {
    pub sums: SumsArgument,
    pub mean_exponents: u64,
    pub lows: u64,
    pub highs: u64,
    pub centroids: u64,
    pub previous: u64,
    pub columns: u64,
    pub shift: u64,
    pub scale: T,
    pub copies: u64,
    pub half_squares: u64,
    pub copy_stride_j: u64,
    pub copy_stride_f: u64,
    pub half_stride: u64,
    pub terms: BoundTerms,
    pub bound: u64,
    pub control: u64,
    pub records: u64,
    pub parts: u64,
    pub distances: u64,
    pub shifts: DistanceArgument,
    pub largest_changed: f64,
    pub largest_shift: f64,
    pub iterations: u32,
    pub first_iteration: u32,
    pub team: u32,
    pub unused: u32,
}

/// `Inertia`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Inertia {
    pub rows: RowsArgument,
    pub labels: LabelsArgument,
    pub centroids: u64,
    pub scale: DistanceArgument,
    pub scales: u64,
    pub pending: u64,
    pub k: i32,
    pub table_copies: i32,
}

/// `Masked`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Masked {
    pub rows: RowsArgument,
    pub labels: LabelsArgument,
    pub centroids: u64,
    pub donors: u64,
    pub out: u64,
}

/// `Candidate`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Candidate {
    pub distance: f64,
    pub row: u64,
}
// SAFETY: the struct has only numbers and no padding.
unsafe impl Plain for Candidate {}

/// `Farthest`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Farthest {
    pub distances: u64,
    pub out: u64,
    pub after: Candidate,
    pub n: u32,
    pub unused: u32,
}

/// `Relocate`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Relocate {
    pub rows: RowsArgument,
    pub labels: LabelsArgument,
    pub sums: SumsArgument,
    pub factors: u64,
    pub mass_to_integer: f64,
    pub row: u64,
    pub to: u32,
    pub unused: u32,
}

//! The parameters of the kernels.
//!
//! Each struct has a name in quotes: the struct of `kernels/` that it mirrors, field by field. `build.rs` reads these lists. From
//! them it generates static assertions on the size and on every offset, for both compilers. So a struct that differs on one side
//! does not compile. `entries.rs` says which kernel takes which struct.

#[cfg(feature = "bench")]
mod bench;
mod bounded;
mod cells;
mod entries;
#[cfg(feature = "papers")]
mod papers;
mod passes;
mod seeding;
mod step;
mod tensor;

#[cfg(feature = "bench")]
pub use self::bench::*;
pub use self::bounded::*;
pub use self::cells::*;
pub use self::entries::*;
#[cfg(feature = "papers")]
pub use self::papers::*;
pub use self::passes::*;
pub use self::seeding::*;
pub use self::step::*;
pub use self::tensor::*;
use super::device::Plain;
use crate::distances::DistanceScale;
use crate::fixed::{ColumnScale, Limbs};

/// Declares structs with the layout of C. All fields are public.
macro_rules! arguments {
    ($( $(#[$doc:meta])* $name:ident $(<$t:ident>)? as $cuda:literal {
        $( $(#[$field_doc:meta])* $field:ident : $type:ty ),* $(,)?
    } )*) => {$(
        $(#[$doc])*
        #[doc = concat!("\n\n`", $cuda, "` of the kernels.")]
        #[repr(C)]
        #[derive(Debug, Clone, Copy)]
        pub struct $name $(<$t>)? { $( $(#[$field_doc])* pub $field: $type ),* }
        // SAFETY: the struct has the layout of C. Static assertions compare it with the struct of the kernels.
        unsafe impl $(<$t: $crate::float::Float>)? $crate::backend::cuda::device::Argument for $name $(<$t>)? {}
    )*};
}
use arguments;

/// Marks structs that kernels read and write as arrays.
macro_rules! plain {
    ($($name:ident { $($type:ty),* })*) => {$(
        const _: () = assert!(size_of::<$name>() == 0 $(+ size_of::<$type>())*, "there is no padding");
        // SAFETY: the fields are numbers, and there is no padding (asserted).
        unsafe impl Plain for $name {}
    )*};
}
use plain;

arguments! {
    /// The rows that a kernel works on.
    RowsArgument as "Rows" {
        x: u64,
        w: u64,
        stride: u64,
        n: u32,
        d: i32,
        bfloat16: i32,
        step: i32,
    }

    /// The address of labels, and the bytes of a label.
    LabelsArgument as "Labels" {
        at: u64,
        bytes: i32,
    }

    /// The pending and the canonical sums.
    SumsArgument as "Sums" {
        pending: u64,
        pending_rows: u64,
        sums: u64,
        rows: u64,
        one_limb: u64,
        k: i32,
        d: i32,
        columns: i32,
        mass_column: i32,
        limbs: i32,
        unused: i32,
    }

    /// The quantum of a column.
    Factors as "Factors" {
        first: f64,
        second: f64,
        low: f64,
    }

    /// The quantum of distances.
    DistanceArgument as "DistanceScale" {
        factors: Factors,
        quantum_exponent: i32,
        none: i32,
    }

    /// The bound of a filter that looks up no margins.
    CeilingArgument as "Ceiling" {
        slope: f32,
        rise: f32,
        offset: f32,
        by_value: i32,
    }

    /// The bound of a filter.
    Bound as "Bound" {
        ceiling: CeilingArgument,
        slope: f32,
        lower: f32,
        unused: [i32; 2],
    }

    /// A row in doubt.
    Contested as "Contested" {
        row: u32,
        second: u32,
    }

    /// What the kernels of a fit tell each other and the host.
    Control as "Control" {
        changed: u64,
        started: u64,
        settled: u64,
        scores: u64,
        stop: u32,
        iteration: u32,
        ticket: u32,
        unresolved: u32,
        contested: u32,
        pairs: u32,
        next_run: u32,
        unused: u32,
    }
}

plain! {
    Factors { f64, f64, f64 }
    DistanceArgument { Factors, i32, i32 }
    CeilingArgument { f32, f32, f32, i32 }
    Bound { CeilingArgument, f32, f32, [i32; 2] }
    Contested { u32, u32 }
    Control { u64, u64, u64, u64, u32, u32, u32, u32, u32, u32, u32, u32 }
}

/// The value of `Control::stop` if a cluster is empty. Then the host does the update.
pub const STOP_EMPTY: u32 = 2;

impl SumsArgument {
    /// For kernels that read only k and d, and no sums.
    pub fn none(k: usize, d: usize) -> Self {
        Self {
            pending: 0,
            pending_rows: 0,
            sums: 0,
            rows: 0,
            one_limb: 0,
            k: k as i32,
            d: d as i32,
            columns: d as i32,
            mass_column: -1,
            limbs: 1,
            unused: 0,
        }
    }
}

impl From<&ColumnScale> for Factors {
    fn from(scale: &ColumnScale) -> Self {
        let (first, second, low) = scale.factors();
        Self { first, second, low }
    }
}

impl From<&DistanceScale> for DistanceArgument {
    fn from(scale: &DistanceScale) -> Self {
        match scale.column() {
            Some(column) => Self { factors: (&column).into(), quantum_exponent: column.quantum_exponent(), none: 0 },
            None => Self { factors: Factors { first: 0.0, second: 0.0, low: 0.0 }, quantum_exponent: 0, none: 1 },
        }
    }
}

/// Whether a column has one limb.
pub fn has_one_limb(scale: &ColumnScale) -> bool {
    scale.limbs == Limbs::One
}

impl Control {
    /// The rows that were settled so far in this iteration.
    pub fn all_settled(&self) -> u64 {
        self.settled + u64::from(self.contested) + u64::from(self.pairs)
    }

    pub const ZERO: Self = Self {
        changed: 0,
        started: 0,
        settled: 0,
        scores: 0,
        stop: 0,
        iteration: 0,
        ticket: 0,
        unresolved: 0,
        contested: 0,
        pairs: 0,
        next_run: 0,
        unused: 0,
    };
}

/// The same layouts as in the kernels.
mod layouts {
    use super::*;

    include!(concat!(env!("OUT_DIR"), "/layouts.rs"));
}

//! Columns of data frames and of record batches as features: one rule of types and one conversion for all libraries.
//!
//! ```text
//! columns of a library    `Source`: those of Polars (src/frame/columns.rs), and of arrow-rs (src/batch/columns.rs)
//!   types are checked     columns of numbers, or one column of lists of numbers
//!   Table                 the library casts each column to the type of the fit; columns of this type are not copied
//!   AnyFeatures           a view of the chunks as they lie in memory: values and bitmaps
//! ```

mod calls;
mod trees;

use std::fmt::Display;

use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::base::names::FeatureLayout;
use crate::input::features::{Chunk, Column, Features, Validity, Values};
use crate::input::fp16::Half;
use crate::input::value_type::ValueType;
use crate::model::AnyFeatures;

/// How error messages call lists of columns and of their names.
pub(crate) const COLUMNS: &str = "the list of columns";

/// The type of the numbers of a column. `$type`: a library's enum of types, which has these names for the types. Types that match
/// `$wide` become float64 too. `None`: the column holds no numbers.
macro_rules! value_type {
    ($dtype:expr, $type:ident $(, $wide:pat)?) => {{
        use $crate::input::value_type::ValueType;
        match $dtype {
            $type::Boolean => Some(ValueType::Bit),
            $type::Int8 => Some(ValueType::Int8),
            $type::Int16 => Some(ValueType::Int16),
            $type::Int32 => Some(ValueType::Int32),
            $type::Int64 => Some(ValueType::Int64),
            $type::UInt8 => Some(ValueType::UInt8),
            $type::UInt16 => Some(ValueType::UInt16),
            $type::UInt32 => Some(ValueType::UInt32),
            $type::UInt64 => Some(ValueType::UInt64),
            $type::Float16 => Some(ValueType::Float16),
            $type::Float32 => Some(ValueType::Float32),
            $type::Float64 => Some(ValueType::Float64),
            $($wide => Some(ValueType::Float64),)?
            _ => None,
        }
    }};
}
pub(crate) use value_type;

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Numbers(ValueType),
    /// Lists of numbers, and how many each has if the type says so.
    Lists(ValueType, Option<usize>),
    /// Nothing but nulls, of no type.
    Nulls,
    Other,
}

/// The type of a library's columns.
pub trait ColumnType: Display {
    fn kind(&self) -> Kind;

    /// How to make numbers of the values of a column that has none, as the end of an error.
    fn remedy(&self, _column: &str) -> String {
        String::new()
    }
}

/// Whether columns of these types become float64. `columns`: how many there are. `nulls`: whether a column may hold nothing but
/// nulls, as that of a row of JSON does. A fit cannot use such a column. A column may have several types, one for each chunk.
pub fn become_float64<'t, D: ColumnType + 't>(
    columns: usize,
    nulls: bool,
    types: impl IntoIterator<Item = (&'t str, &'t D)>,
) -> Result<bool> {
    if columns == 0 {
        return Err(KMeansError::NoFeatures);
    }
    let mut float64 = false;
    for (name, dtype) in types {
        let unsupported =
            |remedy: &str| Err(KMeansError::UnsupportedDtype { column: name.into(), got: format!("{dtype}{remedy}") });
        float64 |= match dtype.kind() {
            Kind::Lists(_, Some(0)) => return unsupported(""),
            Kind::Lists(_, width) if columns > 1 => {
                let concat = if width.is_some() { "concat_arr" } else { "concat_list" };
                return unsupported(&format!(" beside other columns: pass it alone, or pl.{concat}(...) of all"));
            }
            Kind::Numbers(values) | Kind::Lists(values, _) => values.is_wide(),
            Kind::Nulls if nulls => false,
            Kind::Nulls | Kind::Other => return unsupported(&dtype.remedy(name)),
        };
    }
    Ok(float64)
}

/// Refuses weights that are not numbers.
pub fn check_weight(dtype: &impl ColumnType) -> Result<()> {
    if let Kind::Numbers(_) = dtype.kind() {
        return Ok(());
    }
    let (expected, got) = ("a column of numbers".into(), dtype.to_string());
    Err(KMeansError::InvalidOption { option: "weight", expected, got })
}

/// What the numbers of a column become.
#[derive(Debug, Clone, Copy)]
pub struct Cast {
    /// Float64 or float32.
    pub float64: bool,
    /// Whether numbers of Float16 stay as they are. They are then widened as they are read.
    pub keeps_float16: bool,
    /// Lists become lists of this fixed width.
    pub width: Option<usize>,
}

/// Numbers as they lie in memory.
#[derive(Debug, Clone, Copy)]
pub enum NumberSlice<'a> {
    /// Their bits.
    Float16(&'a [u16]),
    Float32(&'a [f32]),
    Float64(&'a [f64]),
}

impl<'a> NumberSlice<'a> {
    fn of_float32(self) -> Values<'a, f32> {
        match self {
            Self::Float16(bits) => Values::Half(bits, Half::Float16),
            Self::Float32(values) => Values::Same(values),
            Self::Float64(_) => unreachable!("the numbers were cast"),
        }
    }

    fn of_float64(self) -> Values<'a, f64> {
        match self {
            Self::Float16(bits) => Values::Half(bits, Half::Float16),
            Self::Float32(_) => unreachable!("the numbers were cast"),
            Self::Float64(values) => Values::Same(values),
        }
    }
}

/// A chunk of a column.
#[derive(Debug, Clone, Copy)]
pub struct ColumnPiece<'a> {
    pub numbers: NumberSlice<'a>,
    pub validity: Option<Validity<'a>>,
    /// Which lists are there, if the numbers are in lists.
    pub rows: Option<Validity<'a>>,
}

/// A column of a library, in chunks.
pub trait Source: Sized {
    type Type: ColumnType;

    fn name(&self) -> &str;

    /// The number of rows.
    fn rows(&self) -> usize;

    /// The types of the chunks.
    fn types(&self) -> impl Iterator<Item = &Self::Type>;

    /// Calls `see` with the length of each list that is not null, where the type does not say it. Returns the first error.
    fn try_for_each_length(&self, see: impl FnMut(usize) -> Result<()>) -> Result<()>;

    /// The same column in another type. What has the type already is not copied.
    fn cast_to(&self, to: Cast) -> Result<Self>;

    /// The chunks of a column that was cast.
    fn pieces(&self) -> impl Iterator<Item = ColumnPiece<'_>>;
}

/// Feature columns in one float type.
#[derive(Debug, Clone)]
pub struct FeatureTable<S> {
    pub layout: FeatureLayout,
    pub d: usize,
    float64: bool,
    pub columns: Vec<S>,
    /// Whether no row can have an answer: the only column holds lists that are all null, so their width is unknown. Or a model is
    /// asked for rows of which one column holds nothing but nulls, of no type.
    pub all_null: bool,
}

impl<S: Source> FeatureTable<S> {
    /// Takes several columns of numbers, or one column of lists of numbers. `float64` asks for float64 whatever the types are.
    /// `expected`: the number of features that a model needs.
    pub fn new(columns: &[S], float64: bool, expected: Option<usize>) -> Result<Self> {
        let types = columns.iter().flat_map(|column| column.types().map(|dtype| (column.name(), dtype)));
        let float64 = become_float64(columns.len(), expected.is_some(), types)? || float64;
        let (first, n) = (&columns[0], columns[0].rows());
        if let Some(column) = columns.iter().find(|column| column.rows() != n) {
            let what = format!("column {:?}", column.name());
            return Err(KMeansError::LengthMismatch { what, expected: n, got: column.rows() });
        }
        let all_null = columns.iter().any(is_all_null);
        let lists = first.types().any(|dtype| matches!(dtype.kind(), Kind::Lists(..)));
        let width = match columns.len() {
            1 if lists => width(first, expected)?,
            1 if all_null => None,
            columns => Some(columns),
        };
        let d = width.or(expected).unwrap_or(1);
        if let Some(expected) = expected.filter(|&expected| expected != d) {
            return Err(KMeansError::WidthMismatch { what: "features", expected, got: d });
        }
        let to = Cast { float64, keeps_float16: true, width: lists.then_some(d) };
        let names = columns.iter().map(|column| memory::text(format_args!("{}", column.name()), COLUMNS));
        let mut names = memory::try_collected(names, COLUMNS)?;
        let layout = if lists { FeatureLayout::Array(names.remove(0)) } else { FeatureLayout::Columns(names) };
        let cast = columns.iter().filter(|_| !all_null).map(|column| column.cast_to(to));
        let columns = memory::try_collected(cast, COLUMNS)?;
        Ok(Self { layout, d, float64, columns, all_null: all_null || width.is_none() })
    }

    /// The columns as features.
    pub fn view(&self) -> Result<AnyFeatures<'_>> {
        Ok(if self.float64 {
            AnyFeatures::F64(self.features(NumberSlice::of_float64)?)
        } else {
            AnyFeatures::F32(self.features(NumberSlice::of_float32)?)
        })
    }

    fn features<'a, T: Float>(&'a self, own: fn(NumberSlice<'a>) -> Values<'a, T>) -> Result<Features<'a, T>> {
        let features = match &self.layout {
            FeatureLayout::Columns(_) => {
                Features::new(memory::try_collected(self.columns.iter().map(|column| chunks(column, own)), COLUMNS)?)?
            }
            FeatureLayout::Array(_) => {
                let pieces = self.columns[0].pieces();
                Features::of_blocks(pieces.map(|piece| (own(piece.numbers), piece.rows, piece.validity)), self.d)?
            }
        };
        features.with_names(self.layout.feature_names(self.d)?)
    }
}

/// Whether a column holds nothing but nulls, of no type.
pub fn is_all_null(column: &impl Source) -> bool {
    let mut kinds = column.types().map(ColumnType::kind).peekable();
    kinds.peek().is_some() && kinds.all(|kind| kind == Kind::Nulls)
}

/// The chunks of a column, without a copy.
fn chunks<'a, T: Float>(column: &'a impl Source, own: fn(NumberSlice<'a>) -> Values<'a, T>) -> Result<Column<'a, T>> {
    Column::of(column.pieces().map(|piece| Chunk::of(own(piece.numbers), piece.validity)))
}

/// The number of values in every list that is not null. All lists must have the same number, and the expected one if there is
/// one.
fn width(column: &impl Source, expected: Option<usize>) -> Result<Option<usize>> {
    let mut width = None;
    let mut see = |len| match (expected, width) {
        (Some(expected), _) if expected != len => Err(KMeansError::WidthMismatch { what: "features", expected, got: len }),
        (_, Some(expected)) if expected != len => Err(other_width(column.name(), expected, len)),
        _ => {
            width = Some(len);
            Ok(())
        }
    };
    for dtype in column.types() {
        if let Kind::Lists(_, Some(len)) = dtype.kind() {
            see(len)?;
        }
    }
    column.try_for_each_length(see)?;
    if width == Some(0) { Err(KMeansError::NoFeatures) } else { Ok(width) }
}

/// The error for a list of another width than those before it.
pub fn other_width(column: &str, expected: usize, got: usize) -> KMeansError {
    KMeansError::LengthMismatch { what: format!("every list of column {column:?}"), expected, got }
}

/// A column of weights in float64.
pub fn weights<S: Source>(column: &S) -> Result<S> {
    column.types().try_for_each(check_weight)?;
    column.cast_to(Cast { float64: true, keeps_float16: false, width: None })
}

/// Weights as the engine takes them.
pub fn view_weights(weights: &impl Source) -> Result<Column<'_, f64>> {
    chunks(weights, NumberSlice::of_float64)
}

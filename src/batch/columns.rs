//! Columns of record batches as features: the float type of a fit, and zero-copy views of the arrays.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, GenericListArray, OffsetSizeTrait, PrimitiveArray, RecordBatch,
};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{ArrowPrimitiveType, DataType, Field, Float16Type, Float32Type, Float64Type};
use arrow::error::ArrowError;

use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::input::features::{Chunk, Column, Features, Validity};
use crate::input::fp16::Half;
use crate::model::{AnyFeatures, FeatureLayout};

/// How error messages call lists of arrays and their names.
const ARRAYS: &str = "the list of arrays";

/// The feature columns of some batches in one float type.
pub struct BatchFeatures {
    pub layout: FeatureLayout,
    /// For each column, its array in every batch: of the float type, or Float16, or fixed-size lists of either.
    columns: Vec<Vec<ArrayRef>>,
    float64: bool,
    pub d: usize,
    /// Whether the only column holds lists that are all null. Their width is then unknown.
    pub width_unknown: bool,
}

/// Whether a numeric type becomes float64, by the same rule as for Polars: integers up to 16 bits and booleans become float32,
/// and float16 counts as float32. `None` if the type is not numeric.
fn is_float64(dtype: &DataType) -> Option<bool> {
    use DataType::*;
    match dtype {
        Float16 | Float32 | Boolean | Int8 | Int16 | UInt8 | UInt16 => Some(false),
        Float64 | Int32 | Int64 | UInt32 | UInt64 => Some(true),
        Decimal32(..) | Decimal64(..) | Decimal128(..) | Decimal256(..) => Some(true),
        _ => None,
    }
}

fn element(dtype: &DataType) -> Option<&DataType> {
    match dtype {
        DataType::FixedSizeList(field, _) | DataType::List(field) | DataType::LargeList(field) => Some(field.data_type()),
        _ => None,
    }
}

fn unsupported(name: &str, dtype: &DataType) -> KMeansError {
    KMeansError::UnsupportedDtype { column: name.into(), got: dtype.to_string() }
}

/// Casts an array. A value that does not fit is an error, not a null. Arrow copies an array of another type, and ends the
/// process if there is no memory for the copy.
fn cast(array: &ArrayRef, dtype: &DataType) -> Result<ArrayRef> {
    let options = CastOptions { safe: false, ..CastOptions::default() };
    cast_with_options(array, dtype, &options).map_err(frame_error)
}

pub fn frame_error(error: ArrowError) -> KMeansError {
    KMeansError::Frame(error.to_string())
}

/// One column over all batches.
pub fn column(batches: &[RecordBatch], name: &str) -> Result<Vec<ArrayRef>> {
    let find = |batch: &RecordBatch| {
        batch.column_by_name(name).cloned().ok_or_else(|| KMeansError::MissingColumn {
            column: name.into(),
            available: batch.schema().fields().iter().map(|field| field.name().clone()).collect(),
        })
    };
    memory::try_collected(batches.iter().map(find), ARRAYS)
}

/// One column of weights over all batches.
pub fn weights(batches: &[RecordBatch], name: &str) -> Result<Vec<ArrayRef>> {
    let to_float64 = |array: ArrayRef| match is_float64(array.data_type()) {
        Some(_) => cast(&array, &DataType::Float64),
        None => Err(KMeansError::InvalidOption {
            option: "weight",
            expected: "a column of numbers".into(),
            got: array.data_type().to_string(),
        }),
    };
    memory::try_collected(column(batches, name)?.into_iter().map(to_float64), ARRAYS)
}

impl BatchFeatures {
    /// Takes the named columns of batches: several columns of numbers, or one column of lists. A column must have the same type
    /// in all batches. `float64` asks for float64 whatever the types are.
    pub fn new(batches: &[RecordBatch], names: &[String], float64: bool) -> Result<Self> {
        let columns = memory::try_collected(names.iter().map(|name| column(batches, name)), ARRAYS)?;
        let first = columns.first().ok_or(KMeansError::NoFeatures)?;
        let lists = first.first().is_some_and(|array| element(array.data_type()).is_some());
        if lists && columns.len() > 1 {
            return Err(unsupported(&names[0], first[0].data_type()));
        }
        let mut wide = float64;
        for (name, arrays) in names.iter().zip(&columns) {
            for array in arrays {
                let dtype = array.data_type();
                let number = if lists { element(dtype) } else { Some(dtype) };
                wide |= number.and_then(is_float64).ok_or_else(|| unsupported(name, dtype))?;
            }
        }
        let dtype = if wide { DataType::Float64 } else { DataType::Float32 };
        let mut width_unknown = false;
        let (layout, columns, d) = if lists {
            let width = width(&names[0], first)?;
            width_unknown = width.is_none();
            let d = width.unwrap_or(1);
            let float16 = !first.is_empty() && first.iter().all(|array| element(array.data_type()) == Some(&DataType::Float16));
            let dtype = if float16 { DataType::Float16 } else { dtype };
            let rows = memory::try_collected(first.iter().map(|a| to_rows(a, &dtype, d)), ARRAYS)?;
            (FeatureLayout::Array(names[0].clone()), vec![rows], d)
        } else {
            // Float16 is widened as it is read.
            let cast = |array: &ArrayRef| match array.data_type() {
                DataType::Float16 => Ok(array.clone()),
                _ => cast(array, &dtype),
            };
            let cast_all = |arrays: &Vec<ArrayRef>| memory::try_collected(arrays.iter().map(cast), ARRAYS);
            let columns = memory::try_collected(columns.iter().map(cast_all), ARRAYS)?;
            (FeatureLayout::Columns(memory::texts(names, ARRAYS)?), columns, names.len())
        };
        Ok(Self { layout, columns, float64: wide, d, width_unknown })
    }

    /// A view of the arrays as features.
    pub fn view(&self) -> Result<AnyFeatures<'_>> {
        Ok(if self.float64 {
            AnyFeatures::F64(self.view_as::<Float64Type>()?)
        } else {
            AnyFeatures::F32(self.view_as::<Float32Type>()?)
        })
    }

    fn view_as<P>(&self) -> Result<Features<'_, P::Native>>
    where
        P: ArrowPrimitiveType,
        P::Native: Float,
    {
        let features = match self.layout {
            FeatureLayout::Columns(_) => {
                Features::new(memory::try_collected(self.columns.iter().map(|c| feature::<P>(c)), ARRAYS)?)?
            }
            FeatureLayout::Array(_) => {
                let lists = || self.columns[0].iter().map(|array| array.as_fixed_size_list());
                if lists().any(|rows: &FixedSizeListArray| *rows.values().data_type() == DataType::Float16) {
                    let blocks = lists().map(|rows| (bits(rows.values()), validity(rows), validity(rows.values())));
                    Features::from_half_blocks(Half::Float16, blocks, self.d)?
                } else {
                    let blocks = lists().map(|rows| {
                        let values: &PrimitiveArray<P> = rows.values().as_primitive();
                        (&values.values()[..], validity(rows), validity(values))
                    });
                    Features::from_blocks(blocks, self.d)?
                }
            }
        };
        features.with_names(self.layout.feature_names(self.d)?)
    }
}

/// The number of values in every row of a column of lists. All rows that are not null must have the same number.
fn width(name: &str, arrays: &[ArrayRef]) -> Result<Option<usize>> {
    let mut width = None;
    let mut check = |len: usize| match width {
        Some(expected) if expected != len => {
            Err(KMeansError::LengthMismatch { what: format!("every list of column {name:?}"), expected, got: len })
        }
        _ => {
            width = Some(len);
            Ok(())
        }
    };
    for array in arrays {
        match array.data_type() {
            DataType::FixedSizeList(_, len) => check(usize::try_from(*len).unwrap_or(0))?,
            DataType::List(_) => list_widths(array.as_list::<i32>()).try_for_each(&mut check)?,
            _ => list_widths(array.as_list::<i64>()).try_for_each(&mut check)?,
        }
    }
    match width {
        Some(0) => Err(KMeansError::NoFeatures),
        _ => Ok(width),
    }
}

fn list_widths<O: OffsetSizeTrait>(lists: &GenericListArray<O>) -> impl Iterator<Item = usize> + '_ {
    (0..lists.len()).filter(|&i| lists.is_valid(i)).map(|i| lists.value_length(i).as_usize())
}

fn to_rows(array: &ArrayRef, dtype: &DataType, d: usize) -> Result<ArrayRef> {
    // Cast the values first, then change the shape.
    let item = Arc::new(Field::new("item", dtype.clone(), true));
    let array = &match array.data_type() {
        DataType::List(_) => cast(array, &DataType::List(item))?,
        DataType::LargeList(_) => cast(array, &DataType::LargeList(item))?,
        _ => array.clone(),
    };
    let d = i32::try_from(d).map_err(|_| KMeansError::Frame(format!("lists of {d} values are too wide")))?;
    cast(array, &DataType::FixedSizeList(Arc::new(Field::new("item", dtype.clone(), true)), d))
}

fn validity(array: &dyn Array) -> Option<Validity<'_>> {
    array.nulls().map(|nulls| Validity::new(nulls.validity(), nulls.offset()))
}

/// The bits of a Float16 array.
fn bits(array: &ArrayRef) -> &[u16] {
    array.as_primitive::<Float16Type>().values().inner().typed_data()
}

/// The arrays of a feature, without a copy.
fn feature<P>(arrays: &[ArrayRef]) -> Result<Column<'_, P::Native>>
where
    P: ArrowPrimitiveType,
    P::Native: Float,
{
    let chunk = |array| match ArrayRef::data_type(array) {
        DataType::Float16 => Chunk::from_half(Half::Float16, bits(array), validity(array)),
        _ => Chunk::new(&array.as_primitive::<P>().values()[..], validity(array)),
    };
    Column::of(arrays.iter().map(chunk))
}

/// The arrays of a column, without a copy.
pub fn view<P>(arrays: &[ArrayRef]) -> Result<Column<'_, P::Native>>
where
    P: ArrowPrimitiveType,
    P::Native: Float,
{
    let arrays = arrays.iter().map(|array| array.as_primitive::<P>());
    Column::of(arrays.map(|array| Chunk::new(&array.values()[..], validity(array))))
}

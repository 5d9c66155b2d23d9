//! The columns of record batches as the engine takes them.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, GenericListArray, OffsetSizeTrait, RecordBatch};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field, Float16Type, Float32Type, Float64Type};
use arrow::error::ArrowError;

use crate::base::error::{KMeansError, Result};
use crate::base::memory;
use crate::columns::{Cast, ColumnPiece, ColumnType, Kind, NumberSlice, Source, value_type};
use crate::input::features::Validity;

/// How error messages call lists of arrays.
const ARRAYS: &str = "the list of arrays";

/// One column over some batches.
pub struct Arrays<'n> {
    name: &'n str,
    arrays: Vec<ArrayRef>,
}

impl<'n> Arrays<'n> {
    /// The column of this name. It must have the same type in all batches.
    pub fn of(batches: &[RecordBatch], name: &'n str) -> Result<Self> {
        let find = |batch: &RecordBatch| {
            batch.column_by_name(name).cloned().ok_or_else(|| KMeansError::MissingColumn {
                column: name.into(),
                available: batch.schema().fields().iter().map(|field| field.name().clone()).collect(),
            })
        };
        Ok(Self { name, arrays: memory::try_collected(batches.iter().map(find), ARRAYS)? })
    }
}

impl ColumnType for DataType {
    fn kind(&self) -> Kind {
        use DataType::{Decimal32, Decimal64, Decimal128, Decimal256};
        let values =
            |dtype: &DataType| value_type!(dtype, DataType, Decimal32(..) | Decimal64(..) | Decimal128(..) | Decimal256(..));
        let width = match self {
            Self::FixedSizeList(_, width) => usize::try_from(*width).ok(),
            _ => None,
        };
        match element(self) {
            Some(Self::Null) => Kind::Nulls,
            None if *self == Self::Null => Kind::Nulls,
            Some(numbers) => values(numbers).map_or(Kind::Other, |values| Kind::Lists(values, width)),
            None => values(self).map_or(Kind::Other, Kind::Numbers),
        }
    }
}

/// The type of the values in lists.
fn element(dtype: &DataType) -> Option<&DataType> {
    match dtype {
        DataType::FixedSizeList(field, _) | DataType::List(field) | DataType::LargeList(field) => Some(field.data_type()),
        _ => None,
    }
}

impl Source for Arrays<'_> {
    type Type = DataType;

    fn name(&self) -> &str {
        self.name
    }

    fn rows(&self) -> usize {
        self.arrays.iter().map(|array| array.len()).sum()
    }

    fn types(&self) -> impl Iterator<Item = &DataType> {
        self.arrays.iter().map(|array| array.data_type())
    }

    fn try_for_each_length(&self, mut see: impl FnMut(usize) -> Result<()>) -> Result<()> {
        fn lengths<O: OffsetSizeTrait>(lists: &GenericListArray<O>) -> impl Iterator<Item = usize> + '_ {
            (0..lists.len()).filter(|&i| lists.is_valid(i)).map(|i| lists.value_length(i).as_usize())
        }
        self.arrays.iter().try_for_each(|array| match array.data_type() {
            DataType::List(_) => lengths(array.as_list::<i32>()).try_for_each(&mut see),
            DataType::LargeList(_) => lengths(array.as_list::<i64>()).try_for_each(&mut see),
            _ => Ok(()),
        })
    }

    fn cast_to(&self, to: Cast) -> Result<Self> {
        let float = if to.float64 { DataType::Float64 } else { DataType::Float32 };
        let is_half = |array: &ArrayRef| *element(array.data_type()).unwrap_or(array.data_type()) == DataType::Float16;
        // The values of all lists have one type.
        let halves = to.keeps_float16 && (to.width.is_none() || self.arrays.iter().all(is_half));
        let one = |array: &ArrayRef| {
            let numbers = if halves && is_half(array) { &DataType::Float16 } else { &float };
            to.width.map_or_else(|| cast(array, numbers), |width| to_rows(array, numbers, width))
        };
        Ok(Self { name: self.name, arrays: memory::try_collected(self.arrays.iter().map(one), ARRAYS)? })
    }

    fn pieces(&self) -> impl Iterator<Item = ColumnPiece<'_>> {
        self.arrays.iter().map(piece)
    }
}

/// An array of floats, or of fixed-size lists of them.
fn piece(array: &ArrayRef) -> ColumnPiece<'_> {
    let validity = array.nulls().map(|nulls| Validity::new(nulls.validity(), nulls.offset()));
    let numbers = match array.data_type() {
        DataType::FixedSizeList(..) => return ColumnPiece { rows: validity, ..piece(array.as_fixed_size_list().values()) },
        DataType::Float16 => NumberSlice::Float16(array.as_primitive::<Float16Type>().values().inner().typed_data()),
        DataType::Float32 => NumberSlice::Float32(array.as_primitive::<Float32Type>().values()),
        _ => NumberSlice::Float64(array.as_primitive::<Float64Type>().values()),
    };
    ColumnPiece { numbers, validity, rows: None }
}

/// Casts an array. A value that does not fit is an error, not a null. Arrow copies an array of another type, and ends the
/// process if there is no memory for the copy.
fn cast(array: &ArrayRef, dtype: &DataType) -> Result<ArrayRef> {
    let options = CastOptions { safe: false, ..CastOptions::default() };
    cast_with_options(array, dtype, &options).map_err(frame_error)
}

/// Casts lists to lists of fixed width: the values first, then the shape.
fn to_rows(array: &ArrayRef, numbers: &DataType, width: usize) -> Result<ArrayRef> {
    let item = Arc::new(Field::new("item", numbers.clone(), true));
    let array = &match array.data_type() {
        DataType::List(_) => cast(array, &DataType::List(item.clone()))?,
        DataType::LargeList(_) => cast(array, &DataType::LargeList(item.clone()))?,
        _ => array.clone(),
    };
    cast(array, &DataType::FixedSizeList(item, list_width(width)?))
}

/// The width of lists as arrow counts it.
pub fn list_width(width: usize) -> Result<i32> {
    i32::try_from(width).map_err(|_| KMeansError::Frame(format!("lists of {width} values are too wide")))
}

pub fn frame_error(error: ArrowError) -> KMeansError {
    KMeansError::Frame(error.to_string())
}

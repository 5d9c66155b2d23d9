//! Polars' columns as the engine takes them, and frames of starting centroids.

use polars::prelude::*;
use polars_arrow::array::{Array, FixedSizeListArray, PrimitiveArray};

use crate::base::error::{KMeansError, Result};
#[cfg(feature = "python")]
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::FloatEnvironment;
use crate::columns::{Cast, ColumnPiece, ColumnType, FeatureTable, Kind, NumberSlice, Source, value_type};
#[cfg(feature = "python")]
use crate::input::features::Features;
use crate::input::features::Validity;
use crate::model::AnyFeatures;

/// A value of Float16.
type PolarsFloat16 = <Float16Type as PolarsNumericType>::Native;

impl ColumnType for DataType {
    fn kind(&self) -> Kind {
        let values =
            |dtype: &DataType| value_type!(dtype, DataType, DataType::Int128 | DataType::UInt128 | DataType::Decimal(..));
        // Extension types are read by their storage.
        let stored = self.to_storage();
        let (numbers, width) = match &stored {
            DataType::Array(inner, width) => (&**inner, Some(*width)),
            DataType::List(inner) => (&**inner, None),
            Self::Null => return Kind::Nulls,
            dtype => return values(dtype).map_or(Kind::Other, Kind::Numbers),
        };
        match numbers {
            Self::Null => Kind::Nulls,
            numbers => values(numbers).map_or(Kind::Other, |values| Kind::Lists(values, width)),
        }
    }

    fn remedy(&self, column: &str) -> String {
        let by = |method: &str| format!(": pass pl.col({column:?}).{method}");
        match self {
            DataType::Date | DataType::Datetime(..) => by("dt.epoch(\"s\"), the seconds since 1970"),
            DataType::Duration(_) => by("dt.total_seconds()"),
            DataType::Time => by("cast(pl.Int64), the nanoseconds since midnight"),
            DataType::String | DataType::Categorical(..) | DataType::Enum(..) => {
                let (text, missing) = match self {
                    DataType::String => {
                        ("", ". If some texts stand for missing values, pass null_values=\"NA\" to pl.read_csv")
                    }
                    _ => (".cast(pl.String)", ""),
                };
                format!(
                    ": frame.to_dummies({column:?}) makes a column of 0 and 1 of each value, and \
                    pl.col({column:?}){text}.cast(pl.Float64) makes numbers of texts such as \"1.5\"{missing}"
                )
            }
            DataType::Struct(_) => by("struct.field(\"*\"), its fields"),
            DataType::Null => by("cast(pl.Float64)"),
            _ => String::new(),
        }
    }
}

impl Source for Column {
    type Type = DataType;

    fn name(&self) -> &str {
        Column::name(self)
    }

    fn rows(&self) -> usize {
        self.len()
    }

    fn types(&self) -> impl Iterator<Item = &DataType> {
        std::iter::once(self.dtype())
    }

    fn try_for_each_length(&self, mut see: impl FnMut(usize) -> Result<()>) -> Result<()> {
        let series = self.as_materialized_series().to_storage();
        let DataType::List(_) = series.dtype() else { return Ok(()) };
        for array in series.list()?.downcast_iter() {
            for (i, len) in array.offsets().lengths().enumerate() {
                if array.validity().is_none_or(|validity| validity.get_bit(i)) {
                    see(len)?;
                }
            }
        }
        Ok(())
    }

    fn cast_to(&self, to: Cast) -> Result<Self> {
        let series = self.as_materialized_series().to_storage();
        let numbers = |numbers: Series| to_float(&numbers, to);
        let cast = match (series.dtype(), to.width) {
            // Polars would join the chunks.
            (DataType::Array(inner, _), _) if stays(inner, to) => series.clone(),
            (DataType::Array(..), _) => series.array()?.apply_to_inner(&numbers)?.into_series(),
            (DataType::List(_), Some(width)) => {
                // Cast the values first. A direct cast from lists to arrays makes Polars read decimals as their unscaled
                // integers.
                let lists = series.list()?.apply_to_inner(&numbers)?;
                lists.cast(&DataType::Array(Box::new(lists.inner_dtype().clone()), width))?
            }
            _ => to_float(series, to)?,
        };
        Ok(cast.into_column())
    }

    fn pieces(&self) -> impl Iterator<Item = ColumnPiece<'_>> {
        self.as_materialized_series().chunks().iter().map(|chunk| piece(&**chunk))
    }
}

/// A chunk of floats, or of lists of them with a fixed width.
fn piece(chunk: &dyn Array) -> ColumnPiece<'_> {
    let validity = chunk.validity().map(|bitmap| {
        let (bytes, offset, _) = bitmap.as_slice();
        Validity::new(bytes, offset)
    });
    let any = chunk.as_any();
    let numbers = if let Some(lists) = any.downcast_ref::<FixedSizeListArray>() {
        return ColumnPiece { rows: validity, ..piece(&**lists.values()) };
    } else if let Some(values) = any.downcast_ref::<PrimitiveArray<f32>>() {
        NumberSlice::Float32(values.values())
    } else if let Some(values) = any.downcast_ref::<PrimitiveArray<f64>>() {
        NumberSlice::Float64(values.values())
    } else if let Some(values) = any.downcast_ref::<PrimitiveArray<PolarsFloat16>>() {
        NumberSlice::Float16(bytemuck::cast_slice(values.values()))
    } else {
        unreachable!("the column was cast")
    };
    ColumnPiece { numbers, validity, rows: None }
}

/// Whether numbers of this type are read as they are.
fn stays(dtype: &DataType, to: Cast) -> bool {
    match dtype {
        DataType::Float16 => to.keeps_float16,
        DataType::Float32 => !to.float64,
        DataType::Float64 => to.float64,
        _ => false,
    }
}

/// Casts numbers, with one rounding.
fn to_float(numbers: &Series, to: Cast) -> PolarsResult<Series> {
    let dtype = &if to.float64 { DataType::Float64 } else { DataType::Float32 };
    let (scale, power) = match numbers.dtype() {
        own if stays(own, to) => return Ok(numbers.clone()),
        DataType::Decimal(_, scale) => (*scale, 10f64.powi(*scale as i32)),
        _ => return numbers.cast(dtype),
    };
    // Polars would round twice: the integer, then the quotient. Float64 holds 15 digits exactly, and powers of ten up to 10^22.
    let float = |integer: i128| match integer.unsigned_abs() {
        0..=999_999_999_999_999 if scale <= 22 => integer as f64 / power,
        _ => format!("{integer}e-{scale}").parse().unwrap_or(f64::NAN),
    };
    let floats: Float64Chunked = numbers.decimal()?.physical().apply_nonnull_values_generic(DataType::Float64, float);
    floats.with_name(numbers.name().clone()).into_series().cast(dtype)
}

/// A copy of rows as a frame on the host. Nulls are NaN.
#[cfg(feature = "python")]
pub fn frame_of(features: &AnyFeatures<'_>) -> Result<DataFrame> {
    fn columns<P: PolarsNumericType<Native: Float>>(features: &Features<'_, P::Native>) -> Result<DataFrame> {
        const WHAT: &str = "a copy of an array";
        let (n, d) = (features.n_rows(), features.n_features());
        let mut values = memory::zeroed(n.saturating_mul(d), WHAT)?;
        if n > 0 {
            let features = features.on_host()?;
            features.copy_tile(0..n, n, &mut values);
            features.for_each_null(0..n, |f, i| values[f * n + i] = P::Native::from_f64(f64::NAN));
        }
        let column = |f: usize| {
            let name = features.names().get(f).unwrap_or_default();
            Ok(ChunkedArray::<P>::from_vec(name.into(), memory::copied(&values[f * n..(f + 1) * n], WHAT)?).into_column())
        };
        Ok(DataFrame::new(n, memory::try_collected((0..d).map(column), WHAT)?)?)
    }
    match features {
        AnyFeatures::F32(features) => columns::<Float32Type>(features),
        AnyFeatures::F64(features) => columns::<Float64Type>(features),
    }
}

/// The rows of a frame as float64, row-major. Nulls are NaN.
#[derive(Debug, Clone, PartialEq)]
pub struct RowMajor {
    pub values: Vec<f64>,
    /// The names of the columns that hold numbers.
    pub names: Vec<String>,
    /// How many values each of these columns has in a row.
    pub widths: Vec<usize>,
}

/// Reads the rows of a frame of starting centroids.
///
/// # Errors
/// [`KMeansError::Frame`] if Polars refuses.
pub fn row_major(frame: &DataFrame) -> Result<RowMajor> {
    const WHAT: &str = "the starting centroids";
    let _environment = FloatEnvironment::default_rounding();
    let k = frame.height();
    // The layout is `(d, k)`: one column after the other. A list column gives one entry for each position in its rows.
    let mut columns = Vec::new();
    let (mut names, mut widths) = (Vec::new(), Vec::new());
    for column in frame.columns() {
        let table = match FeatureTable::new(std::slice::from_ref(column), true, None) {
            Ok(table) => table,
            Err(error @ KMeansError::NoMemory { .. }) => return Err(error),
            // A column that does not hold rows of numbers is skipped. It is only needed if a feature has its name.
            Err(_) => continue,
        };
        let AnyFeatures::F64(view) = table.view()? else { continue };
        let first = columns.len();
        memory::reserve(&mut columns, table.d * k, WHAT)?;
        columns.resize(first + table.d * k, 0.0);
        if k > 0 {
            let values = &mut columns[first..];
            view.copy_tile(0..k, k, values);
            view.for_each_null(0..k, |f, i| values[f * k + i] = f64::NAN);
        }
        memory::push(&mut names, memory::text(format_args!("{}", column.name()), WHAT)?, WHAT)?;
        memory::push(&mut widths, table.d, WHAT)?;
    }
    let mut values = memory::with_room(columns.len(), WHAT)?;
    (0..k).for_each(|i| values.extend(columns.iter().skip(i).step_by(k)));
    Ok(RowMajor { values, names, widths })
}

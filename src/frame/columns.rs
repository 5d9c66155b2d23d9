//! Columns as features: the float type of a fit, and zero-copy views of the chunks.

use polars::prelude::*;

#[cfg(all(feature = "bench", feature = "cuda"))]
use crate::backend::cuda::upload_benchmark;
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::base::parallel::FloatEnvironment;
use crate::input::features::{self, Chunk, Features, Validity};
use crate::input::fp16::Half;
#[cfg(all(feature = "bench", feature = "cuda"))]
use crate::input::tile::Part;
use crate::model::{AnyFeatures, FeatureLayout};

/// The validity bitmap of an Arrow array. It is a macro because the type of the array is not in Polars' prelude.
macro_rules! validity {
    ($array:expr) => {
        $array.validity().map(|bitmap| {
            let (bytes, offset, _) = bitmap.as_slice();
            Validity::new(bytes, offset)
        })
    };
}

/// How error messages call the names of columns and lists of them.
const NAMES: &str = "the names of the columns";

/// Feature columns in one float type.
#[derive(Debug, Clone)]
pub struct FrameFeatures {
    layout: FeatureLayout,
    d: usize,
    values: Values,
    /// Whether the only column holds lists that are all null. Their width is then unknown.
    pub(super) width_unknown: bool,
}

#[derive(Debug, Clone)]
enum Values {
    F32(Pieces<Float32Chunked>),
    F64(Pieces<Float64Chunked>),
}

/// The chunks of the features: columns of numbers, or one column of rows with the values in them.
#[derive(Debug, Clone)]
enum Pieces<C> {
    Columns(Vec<Numbers<C>>),
    Rows(ArrayChunked, Numbers<C>),
}

/// Numbers of the float type of the features, or of Float16, which is widened as it is read.
#[derive(Debug, Clone)]
enum Numbers<C> {
    Same(C),
    Float16(Float16Chunked),
}

/// Whether a numeric type becomes float64. Integers up to 16 bits and booleans become float32, and Float16 counts as float32;
/// other numbers become float64. `None` if the type is not numeric.
fn number_is_float64(dtype: &DataType) -> Option<bool> {
    match dtype {
        DataType::Float32 | DataType::Float16 | DataType::Boolean => Some(false),
        DataType::Int8 | DataType::Int16 | DataType::UInt8 | DataType::UInt16 => Some(false),
        DataType::Float64 | DataType::Decimal(..) => Some(true),
        dtype if dtype.is_integer() => Some(true),
        _ => None,
    }
}

/// The element type of an Array or List column.
fn element(dtype: &DataType) -> Option<&DataType> {
    match dtype {
        DataType::Array(inner, _) | DataType::List(inner) => Some(inner),
        _ => None,
    }
}

/// How to make numbers of values that are none, as the end of an error.
fn remedy(dtype: &DataType, name: &str) -> String {
    let by = |method: &str| format!(": pass pl.col({name:?}).{method}");
    match dtype {
        DataType::Date | DataType::Datetime(..) => by("dt.epoch(\"s\"), the seconds since 1970"),
        DataType::Duration(_) => by("dt.total_seconds()"),
        DataType::Time => by("cast(pl.Int64), the nanoseconds since midnight"),
        DataType::String | DataType::Categorical(..) | DataType::Enum(..) => {
            format!(": frame.to_dummies({name:?}) makes a column of 0 and 1 of each value")
        }
        DataType::Struct(_) => by("struct.field(\"*\"), its fields"),
        DataType::Null => by("cast(pl.Float64)"),
        dtype if element(dtype).is_some_and(|inner| number_is_float64(inner).is_some()) => {
            " beside other columns: pass it alone".into()
        }
        _ => String::new(),
    }
}

/// The float type that feature columns of these dtypes have in a fit: Float32 or Float64. One float64 column makes all of them
/// float64. The columns are several columns of numbers, or exactly one Array or List column of numbers.
///
/// # Errors
/// [`KMeansError::NoFeatures`] or [`KMeansError::UnsupportedDtype`].
pub fn float_type<'f>(fields: impl ExactSizeIterator<Item = (&'f str, &'f DataType)>) -> Result<DataType> {
    let alone = fields.len() == 1;
    if fields.len() == 0 {
        return Err(KMeansError::NoFeatures);
    }
    let mut wide = false;
    for (name, dtype) in fields {
        if matches!(dtype, DataType::Array(_, 0)) {
            return Err(KMeansError::UnsupportedDtype { column: name.into(), got: dtype.to_string() });
        }
        let number = if alone { element(dtype).unwrap_or(dtype) } else { dtype };
        wide |= number_is_float64(number).ok_or_else(|| {
            let got = format!("{dtype}{}", remedy(dtype, name));
            KMeansError::UnsupportedDtype { column: name.into(), got }
        })?;
    }
    Ok(if wide { DataType::Float64 } else { DataType::Float32 })
}

impl FrameFeatures {
    /// Takes several columns of numbers, or one Array or List column of numbers. `float64` asks for float64 whatever the types
    /// are. Columns that already have the right type are not copied, nor are those of Float16.
    ///
    /// # Errors
    /// [`KMeansError::NoFeatures`], [`KMeansError::UnsupportedDtype`] or [`KMeansError::LengthMismatch`].
    pub fn new(columns: &[Column], float64: bool) -> Result<Self> {
        Self::of_width(columns, float64, None)
    }

    /// As [`FrameFeatures::new`], where `expected` is the number of features that a model needs.
    pub(super) fn of_width(columns: &[Column], float64: bool, expected: Option<usize>) -> Result<Self> {
        let dtype = float_type(columns.iter().map(|column| (column.name().as_str(), column.dtype())))?;
        let dtype = if float64 { DataType::Float64 } else { dtype };
        let n = columns[0].len();
        if let Some(column) = columns.iter().find(|column| column.len() != n) {
            let what = format!("column {:?}", column.name().as_str());
            return Err(KMeansError::LengthMismatch { what, expected: n, got: column.len() });
        }
        let (rows, width_unknown) = match element(columns[0].dtype()) {
            Some(_) => rows(&columns[0], &dtype, expected).map(|(rows, width_unknown)| (Some(rows), width_unknown))?,
            None => (None, false),
        };
        let layout = match rows {
            Some(_) => FeatureLayout::Array(columns[0].name().to_string()),
            None => {
                let names = columns.iter().map(|column| memory::text(format_args!("{}", column.name()), NAMES));
                FeatureLayout::Columns(memory::try_collected(names, NAMES)?)
            }
        };
        let d = rows.as_ref().map_or(columns.len(), ArrayChunked::width);
        if d == 0 {
            return Err(KMeansError::NoFeatures);
        }
        if let Some(expected) = expected.filter(|&expected| expected != d) {
            return Err(KMeansError::WidthMismatch { what: "features", expected, got: d });
        }
        let values = match dtype {
            DataType::Float32 => Values::F32(Pieces::new(columns, rows, &dtype, |series| Ok(series.f32()?.clone()))?),
            _ => Values::F64(Pieces::new(columns, rows, &dtype, |series| Ok(series.f64()?.clone()))?),
        };
        Ok(Self { layout, d, values, width_unknown })
    }

    /// How the features are stored in the frame.
    pub fn layout(&self) -> &FeatureLayout {
        &self.layout
    }

    pub(super) fn view(&self) -> Result<AnyFeatures<'_>> {
        let names = self.layout.feature_names(self.d)?;
        Ok(match &self.values {
            Values::F32(pieces) => AnyFeatures::F32(pieces.view()?.with_names(names)?),
            Values::F64(pieces) => AnyFeatures::F64(pieces.view()?.with_names(names)?),
        })
    }

    /// Times the upload of these features, without a fit.
    #[cfg(all(feature = "bench", feature = "cuda"))]
    pub fn upload_benchmark(&self, ordinal: u32, rounds: usize) -> Result<(u64, Vec<f64>, f64)> {
        match self.view()? {
            AnyFeatures::F32(view) => upload_benchmark(ordinal, &[Part::new(view, None)], rounds),
            AnyFeatures::F64(view) => upload_benchmark(ordinal, &[Part::new(view, None)], rounds),
        }
    }
}

impl<P> Pieces<ChunkedArray<P>>
where
    P: PolarsNumericType,
    P::Native: Float,
{
    /// `downcast` takes a series of type `dtype`.
    fn new(
        columns: &[Column],
        rows: Option<ArrayChunked>,
        dtype: &DataType,
        downcast: impl Fn(&Series) -> Result<ChunkedArray<P>>,
    ) -> Result<Self> {
        let numbers = |series: &Series| {
            Ok(match series.dtype() {
                DataType::Float16 => Numbers::Float16(series.f16()?.clone()),
                _ => Numbers::Same(downcast(series)?),
            })
        };
        if let Some(rows) = rows {
            let values = numbers(&rows.get_inner())?;
            return Ok(Self::Rows(rows, values));
        }
        let cast = |column: &Column| numbers(&to_feature(column.as_materialized_series(), dtype)?);
        Ok(Self::Columns(memory::try_collected(columns.iter().map(cast), NAMES)?))
    }

    fn view(&self) -> Result<Features<'_, P::Native>> {
        match self {
            Self::Columns(columns) => Features::new(memory::try_collected(columns.iter().map(Numbers::view), NAMES)?),
            Self::Rows(rows, Numbers::Same(values)) => {
                let blocks = rows.downcast_iter().zip(values.downcast_iter());
                let blocks = blocks.map(|(rows, values)| (values.values().as_slice(), validity!(rows), validity!(values)));
                Features::from_blocks(blocks, rows.width())
            }
            Self::Rows(rows, Numbers::Float16(values)) => {
                let blocks = rows.downcast_iter().zip(values.downcast_iter());
                let blocks = blocks.map(|(rows, values)| {
                    (bytemuck::cast_slice(values.values().as_slice()), validity!(rows), validity!(values))
                });
                Features::from_half_blocks(Half::Float16, blocks, rows.width())
            }
        }
    }
}

impl<P> Numbers<ChunkedArray<P>>
where
    P: PolarsNumericType,
    P::Native: Float,
{
    fn view(&self) -> Result<features::Column<'_, P::Native>> {
        match self {
            Self::Same(values) => view(values),
            Self::Float16(values) => {
                let chunk = |values, validity| Chunk::from_half(Half::Float16, bytemuck::cast_slice(values), validity);
                features::Column::of(values.downcast_iter().map(|array| chunk(array.values().as_slice(), validity!(array))))
            }
        }
    }
}

/// The chunks of a column, without a copy.
pub(super) fn view<P: PolarsNumericType>(column: &ChunkedArray<P>) -> Result<features::Column<'_, P::Native>> {
    let chunks = column.downcast_iter().map(|array| Chunk::new(array.values().as_slice(), validity!(array)));
    features::Column::of(chunks)
}

/// Turns an Array or List column into an Array column of this float type, or of Float16. Also returns whether its width is a
/// guess.
fn rows(column: &Column, dtype: &DataType, expected: Option<usize>) -> Result<(ArrayChunked, bool)> {
    let series = column.as_materialized_series();
    let values = |values: Series| to_feature(&values, dtype);
    if let DataType::Array(..) = series.dtype() {
        return Ok((series.array()?.apply_to_inner(&values)?, false));
    }
    // Cast the values first. A direct cast from lists to arrays makes Polars read decimals as their unscaled integers.
    let lists = series.list()?.apply_to_inner(&values)?;
    let width = list_width(&lists, expected)?;
    Ok((arrays(&lists, width.or(expected).unwrap_or(1))?, width.is_none()))
}

/// Lists of this width as an Array column of the same values.
pub(super) fn arrays(lists: &ListChunked, width: usize) -> Result<ArrayChunked> {
    let array = DataType::Array(Box::new(lists.inner_dtype().clone()), width);
    Ok(lists.cast(&array)?.array()?.clone())
}

/// The error for a list of another width than those before it.
pub(super) fn other_width(column: &str, expected: usize, got: usize) -> KMeansError {
    KMeansError::LengthMismatch { what: format!("every list of column {column:?}"), expected, got }
}

/// The numbers of a feature in this float type. Numbers of Float16 stay as they are.
pub(super) fn to_feature(numbers: &Series, dtype: &DataType) -> PolarsResult<Series> {
    if *numbers.dtype() == DataType::Float16 { Ok(numbers.clone()) } else { to_float(numbers, dtype) }
}

/// Casts numbers to this float type, with one rounding.
fn to_float(numbers: &Series, dtype: &DataType) -> PolarsResult<Series> {
    let DataType::Decimal(_, scale) = numbers.dtype() else { return numbers.cast(dtype) };
    // Polars would round twice: the integer, then the quotient. Float64 holds 15 digits exactly, and powers of ten up to 10^22.
    let (scale, power) = (*scale, 10f64.powi(*scale as i32));
    let float = |integer: i128| match integer.unsigned_abs() {
        0..=999_999_999_999_999 if scale <= 22 => integer as f64 / power,
        _ => format!("{integer}e-{scale}").parse().unwrap_or(f64::NAN),
    };
    let floats: Float64Chunked = numbers.decimal()?.physical().apply_nonnull_values_generic(DataType::Float64, float);
    floats.with_name(numbers.name().clone()).into_series().cast(dtype)
}

/// The number of values in every list that is not null. All lists must have the same number, and the expected one if there is
/// one.
pub(super) fn list_width(lists: &ListChunked, expected: Option<usize>) -> Result<Option<usize>> {
    let mut width = None;
    for array in lists.downcast_iter() {
        for (i, len) in array.offsets().lengths().enumerate() {
            if array.validity().is_none_or(|validity| validity.get_bit(i)) {
                if let Some(expected) = expected.filter(|&expected| expected != len) {
                    return Err(KMeansError::WidthMismatch { what: "features", expected, got: len });
                }
                match width {
                    Some(expected) if expected != len => return Err(other_width(lists.name(), expected, len)),
                    _ => width = Some(len),
                }
            }
        }
    }
    match width {
        Some(0) => Err(KMeansError::NoFeatures),
        _ => Ok(width),
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
        let features = match FrameFeatures::new(std::slice::from_ref(column), true) {
            Ok(features) => features,
            Err(error @ KMeansError::NoMemory { .. }) => return Err(error),
            // A column that does not hold rows of numbers is skipped. It is only needed if a feature has its name.
            Err(_) => continue,
        };
        let AnyFeatures::F64(view) = features.view()? else { continue };
        let first = columns.len();
        memory::reserve(&mut columns, features.d * k, WHAT)?;
        columns.resize(first + features.d * k, 0.0);
        if k > 0 {
            let values = &mut columns[first..];
            view.copy_tile(0..k, k, values);
            view.for_each_null(0..k, |f, i| values[f * k + i] = f64::NAN);
        }
        memory::push(&mut names, memory::text(format_args!("{}", column.name()), WHAT)?, WHAT)?;
        memory::push(&mut widths, features.d, WHAT)?;
    }
    let mut values = memory::with_room(columns.len(), WHAT)?;
    (0..k).for_each(|i| values.extend(columns.iter().skip(i).step_by(k)));
    Ok(RowMajor { values, names, widths })
}

/// Weights as float64.
pub(super) fn weights(column: &Column) -> Result<Float64Chunked> {
    check_weight(column.dtype())?;
    Ok(to_float(column.as_materialized_series(), &DataType::Float64)?.f64()?.clone())
}

/// Refuses weights that are not numbers.
///
/// # Errors
/// [`KMeansError::InvalidOption`].
pub fn check_weight(dtype: &DataType) -> Result<()> {
    number_is_float64(dtype).map(|_| ()).ok_or_else(|| KMeansError::InvalidOption {
        option: "weight",
        expected: "a column of numbers".into(),
        got: dtype.to_string(),
    })
}

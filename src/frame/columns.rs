//! Columns as features: which float type a fit has, and zero-copy views of the chunks.

use polars::prelude::*;

use crate::error::{KMeansError, Result};
use crate::features::{self, Chunk, Features, Validity};
use crate::float::Float;

/// Feature columns in one float type.
#[derive(Debug, Clone)]
pub enum FrameFeatures {
    F32 { names: Vec<String>, columns: Vec<Float32Chunked> },
    F64 { names: Vec<String>, columns: Vec<Float64Chunked> },
}

/// The float type of a column: integers up to 16 bits, booleans and Float16 become float32, other numbers float64.
fn is_float64(column: &Column) -> Result<bool> {
    match column.dtype() {
        DataType::Float32 | DataType::Float16 | DataType::Boolean => Ok(false),
        DataType::Int8 | DataType::Int16 | DataType::UInt8 | DataType::UInt16 => Ok(false),
        DataType::Float64 | DataType::Decimal(..) => Ok(true),
        dtype if dtype.is_integer() => Ok(true),
        dtype => Err(KMeansError::UnsupportedDtype { column: column.name().to_string(), got: dtype.to_string() }),
    }
}

impl FrameFeatures {
    /// Any float64 column makes all of them float64; columns of the right type are not copied.
    ///
    /// # Errors
    /// [`KMeansError::NoFeatures`], [`KMeansError::UnsupportedDtype`] or [`KMeansError::LengthMismatch`].
    pub fn new(columns: &[Column]) -> Result<Self> {
        Self::with_type(columns, false)
    }

    /// As [`FrameFeatures::new`]; `float64` asks for float64 whatever the columns are.
    ///
    /// # Errors
    /// As [`FrameFeatures::new`].
    pub fn with_type(columns: &[Column], float64: bool) -> Result<Self> {
        let n = columns.first().ok_or(KMeansError::NoFeatures)?.len();
        let mut wide = float64;
        for column in columns {
            wide |= is_float64(column)?;
            if column.len() != n {
                return Err(KMeansError::LengthMismatch {
                    what: format!("column {:?}", column.name().as_str()),
                    expected: n,
                    got: column.len(),
                });
            }
        }
        let names = columns.iter().map(|column| column.name().to_string()).collect();
        Ok(if wide {
            Self::F64 {
                names,
                columns: columns.iter().map(|c| Ok(c.cast(&DataType::Float64)?.f64()?.clone())).collect::<Result<_>>()?,
            }
        } else {
            Self::F32 {
                names,
                columns: columns.iter().map(|c| Ok(c.cast(&DataType::Float32)?.f32()?.clone())).collect::<Result<_>>()?,
            }
        })
    }

    /// The features' names.
    pub fn names(&self) -> &[String] {
        match self {
            Self::F32 { names, .. } | Self::F64 { names, .. } => names,
        }
    }

    /// Names that a centroid frame can have as columns.
    ///
    /// # Errors
    /// [`KMeansError::ReservedName`] or [`KMeansError::DuplicateName`].
    pub fn check_names(&self) -> Result<()> {
        for (i, name) in self.names().iter().enumerate() {
            if super::RESERVED_NAMES.contains(&name.as_str()) {
                return Err(KMeansError::ReservedName { name: name.clone() });
            }
            // Inside a group-by Polars passes columns without their names.
            if !name.is_empty() && self.names()[..i].contains(name) {
                return Err(KMeansError::DuplicateName { name: name.clone() });
            }
        }
        Ok(())
    }

    /// The view, if the features are float32.
    pub(super) fn view_f32(&self) -> Result<Features<'_, f32>> {
        match self {
            Self::F32 { names, columns } => view_all(columns, names),
            Self::F64 { .. } => Err(KMeansError::UnsupportedDtype { column: self.names()[0].clone(), got: "Float64".into() }),
        }
    }

    /// The view, if the features are float64.
    pub(super) fn view_f64(&self) -> Result<Features<'_, f64>> {
        match self {
            Self::F64 { names, columns } => view_all(columns, names),
            Self::F32 { .. } => Err(KMeansError::UnsupportedDtype { column: self.names()[0].clone(), got: "Float32".into() }),
        }
    }
}

fn view_all<'a, P>(columns: &'a [ChunkedArray<P>], names: &[String]) -> Result<Features<'a, P::Native>>
where
    P: PolarsNumericType,
    P::Native: Float,
{
    Features::new(columns.iter().map(view).collect::<Result<_>>()?)?.with_names(names.to_vec())
}

/// A column's chunks, as they are.
pub(super) fn view<P: PolarsNumericType>(column: &ChunkedArray<P>) -> Result<features::Column<'_, P::Native>> {
    let chunks = column.downcast_iter().map(|array| {
        let validity = array.validity().map(|bitmap| {
            let (bytes, offset, _) = bitmap.as_slice();
            Validity::new(bytes, offset)
        });
        Chunk::new(array.values().as_slice(), validity)
    });
    Ok(features::Column::new(chunks.collect::<Result<Vec<_>>>()?))
}

/// Weights as float64.
pub(super) fn weights(column: &Column) -> Result<Float64Chunked> {
    is_float64(column)?;
    Ok(column.cast(&DataType::Float64)?.f64()?.clone())
}

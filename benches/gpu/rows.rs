//! The rows of a fit, and where it starts.

use std::path::Path;

use polars_kmeans::{Engine, Half};

use super::options::{Options, Shape};
use crate::data::{blobs, scrambled, uniform};
use crate::kinds::{Kind, changed, empty, generate, normal, starting_rows};

/// Columns, and starting centroids unless they are rows at equal distances.
pub struct Rows<T> {
    pub columns: Vec<Vec<T>>,
    pub start: Option<Vec<f64>>,
}

/// The rows that the command line asks for.
pub fn rows<T: Engine>(shape: Shape, options: &Options) -> Result<Rows<T>, String> {
    let Shape { n, d, k, .. } = shape;
    let (columns, kind) = match (&options.table, options.kind) {
        (Some(path), _) => (repeated(&read(path, d)?, n, d), Kind::Blobs),
        (None, Some(kind)) => (generate(kind, n, d), kind),
        (None, None) if options.flag("--uniform") => return Ok(Rows { columns: uniform(n, d), start: None }),
        (None, None) => return Ok(Rows { columns: blobs(n, d), start: None }),
    };
    let start = Some(starting_rows(&columns, kind, k)?);
    let typed = |column: Vec<f32>| column.into_iter().map(|x| T::from_f64(f64::from(x))).collect();
    Ok(Rows { columns: columns.into_iter().map(typed).collect(), start })
}

/// The values of a file of rows of `d` features: float32, or float16 if its name ends with `.f16`. Little-endian, without a header.
fn read(path: &Path, d: usize) -> Result<Vec<f32>, String> {
    let bytes = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let half = path.extension().is_some_and(|extension| extension == "f16");
    let values: Vec<f32> = if half {
        bytes.chunks_exact(2).map(|two| Half::Float16.to_f32(u16::from_le_bytes([two[0], two[1]]))).collect()
    } else {
        bytes.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect()
    };
    if values.is_empty() || !values.len().is_multiple_of(d) || values.iter().any(|x| !x.is_finite()) {
        return Err(format!("{}: expected finite rows of {d} features, got {} values", path.display(), values.len()));
    }
    Ok(values)
}

/// `d` columns of `n` rows that repeat those of a table (row-major). The first rows are the table itself. The others differ from its rows by
/// normal noise, a tenth as long as the row.
fn repeated(table: &[f32], n: usize, d: usize) -> Vec<Vec<f32>> {
    let m = table.len() / d;
    let of_values: Vec<f32> = (0..d).flat_map(|f| (0..m).map(move |i| table[i * d + f])).collect();
    let noise: Vec<f32> =
        table.chunks_exact(d).map(|row| 0.1 * (row.iter().map(|x| x * x).sum::<f32>() / d as f32).sqrt()).collect();
    changed(empty(n, d), |row, f, _| {
        let (i, x) = (row as usize % m, of_values[f * m + row as usize % m]);
        if row < m as u64 { x } else { x + noise[i] * normal(scrambled(row * d as u64 + f as u64)) }
    })
}

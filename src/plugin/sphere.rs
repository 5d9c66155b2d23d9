//! The expressions for places on a map: degrees become points on the unit sphere, and points and distances become degrees and
//! kilometres.
//!
//! ```text
//! sphere   = (cos lat cos lon, cos lat sin lon, sin lat)
//! degrees  = atan2(z, sqrt(x^2 + y^2)), atan2(y, x)
//! km       = 2 radius asin(chord / 2)                                chord: the distance of two points on the unit sphere
//! ```
//! Sine, cosine and their inverses are those of the crate `libm`, which is plain Rust. Those of a system have other last bits on
//! other platforms.

use polars::prelude::*;
use serde::Deserialize;

use super::entry::expression;
use super::expressions::columns;
use crate::base::error::{KMeansError, Result};
use crate::base::memory;
use crate::base::parallel::FloatEnvironment;
use crate::columns::{FeatureTable, Kind, become_float64};
use crate::frame::nan_is_null;
use crate::model::AnyFeatures;

/// What errors call the values.
const WHAT: &str = "the coordinates of the rows";
/// Roundings may make a distance of opposite points longer than 2 by less than this.
const ROUNDING: f64 = 1e-6;

#[derive(Deserialize)]
struct Nothing {}

#[derive(Deserialize)]
struct Sphere {
    /// Kilometres.
    radius: f64,
}

/// Sine and cosine of degrees. They are exact at multiples of 90 degrees.
fn sin_cos(degrees: f64) -> (f64, f64) {
    let quarters = (degrees / 90.0).round();
    // At most 45 degrees. The difference is exact.
    let rest = (degrees - 90.0 * quarters).to_radians();
    let (sin, cos) = (libm::sin(rest), libm::cos(rest));
    match quarters.rem_euclid(4.0) {
        0.0 => (sin, cos),
        1.0 => (cos, -sin),
        2.0 => (-sin, -cos),
        _ => (-cos, sin),
    }
}

fn point(lat: f64, lon: f64) -> [f64; 3] {
    let ((sin_lat, cos_lat), (sin_lon, cos_lon)) = (sin_cos(lat), sin_cos(lon));
    // -0.0 + 0.0 is 0.0.
    [cos_lat * cos_lon, cos_lat * sin_lon, sin_lat].map(|x| x + 0.0)
}

/// Latitude and longitude of the direction of a point. NaN if it has none.
fn degrees([x, y, z]: [f64; 3]) -> [f64; 2] {
    let largest = [x, y, z].iter().fold(0.0, |most: f64, v| if v.abs() <= most { most } else { v.abs() });
    if !(largest > 0.0 && largest < f64::INFINITY) {
        return [f64::NAN; 2];
    }
    // Squares of such numbers neither overflow nor vanish.
    let [x, y, z] = [x / largest, y / largest, z / largest];
    let [lat, lon] = [libm::atan2(z, (x * x + y * y).sqrt()), libm::atan2(y, x)];
    [lat.to_degrees() + 0.0, lon.to_degrees() + 0.0]
}

/// Numbers of columns, or of the arrays of one column.
struct Numbers {
    /// `(d, n)`. NaN in place of nulls.
    values: Vec<f64>,
    n: usize,
    d: usize,
}

impl Numbers {
    /// `expected`: the number of values in a row, if it is known.
    fn new(inputs: &[Series], expected: Option<usize>) -> Result<Self> {
        let columns = columns(inputs)?;
        let (table, n) = (FeatureTable::new(&columns, true, expected)?, columns[0].len());
        let mut values = memory::filled(n.saturating_mul(table.d), f64::NAN, WHAT)?;
        if n > 0
            && !table.all_null
            && let AnyFeatures::F64(view) = table.view()?
        {
            view.copy_tile(0..n, n, &mut values);
            view.for_each_null(0..n, |f, i| values[f * n + i] = f64::NAN);
        }
        Ok(Self { values, n, d: table.d })
    }

    fn column(&self, f: usize) -> &[f64] {
        &self.values[f * self.n..][..self.n]
    }
}

/// Refuses numbers outside of a range. NaN is not outside.
fn check(values: &[f64], range: std::ops::RangeInclusive<f64>, column: &str, expected: &str) -> Result<()> {
    let outside = values.iter().find(|value| !value.is_nan() && !range.contains(value));
    outside.map_or(Ok(()), |got| Err(KMeansError::OutOfRange { column: column.into(), expected: expected.into(), got: *got }))
}

/// Refuses columns that hold no numbers.
fn check_types(fields: &[Field]) -> Result<()> {
    super::expressions::enter();
    become_float64(fields.len(), false, fields.iter().map(|field| (field.name().as_str(), field.dtype()))).map(drop)
}

fn arrays(width: usize) -> DataType {
    DataType::Array(Box::new(DataType::Float64), width)
}

fn sphere_field(fields: &[Field], _: &Nothing) -> PolarsResult<Field> {
    check_types(fields)?;
    Ok(Field::new("sphere".into(), arrays(3)))
}

/// Points of latitudes and longitudes. Null where one of them is null or NaN.
fn sphere(inputs: &[Series], _: &Nothing) -> PolarsResult<Series> {
    let _environment = FloatEnvironment::default_rounding();
    let numbers = Numbers::new(inputs, Some(2))?;
    let (lat, lon) = (numbers.column(0), numbers.column(1));
    let first = "(pk.sphere takes the latitude first)";
    check(lat, -90.0..=90.0, inputs[0].name(), &format!("a latitude from -90 to 90 degrees {first}"))?;
    check(lon, -180.0..=360.0, inputs[1].name(), &format!("a longitude from -180 to 360 degrees {first}"))?;
    let mut points = memory::with_room(3 * numbers.n, WHAT)?;
    for (lat, lon) in lat.iter().zip(lon) {
        points.extend(if lat.is_nan() || lon.is_nan() { [f64::NAN; 3] } else { point(*lat, *lon) });
    }
    Ok(nan_is_null("sphere", points, Some(3))?)
}

fn sphere_degrees_field(fields: &[Field], _: &Nothing) -> PolarsResult<Field> {
    check_types(fields)?;
    let field = |name: &str| Field::new(name.into(), DataType::Float64);
    Ok(Field::new("degrees".into(), DataType::Struct(vec![field("lat"), field("lon")])))
}

/// Structs of latitude and longitude. Null where a point has no direction.
fn sphere_degrees(inputs: &[Series], _: &Nothing) -> PolarsResult<Series> {
    let _environment = FloatEnvironment::default_rounding();
    let numbers = Numbers::new(inputs, Some(3))?;
    let (mut lats, mut lons) = (memory::with_room(numbers.n, WHAT)?, memory::with_room(numbers.n, WHAT)?);
    for i in 0..numbers.n {
        let [lat, lon] = degrees([0, 1, 2].map(|f| numbers.column(f)[i]));
        lats.push(lat);
        lons.push(lon);
    }
    let columns = [nan_is_null("lat", lats, None)?, nan_is_null("lon", lons, None)?];
    let validity = columns[0].f64()?.downcast_iter().next().and_then(|lat| lat.validity().cloned());
    let structs = StructChunked::from_series("degrees".into(), numbers.n, columns.iter())?;
    Ok(structs.with_outer_validity(validity).into_series())
}

fn sphere_km_field(fields: &[Field], _: &Sphere) -> PolarsResult<Field> {
    check_types(fields)?;
    let unsupported = |field: &Field| KMeansError::UnsupportedDtype {
        column: field.name().to_string(),
        got: format!("{}: pass Arrays, which have one width", field.dtype()),
    };
    let dtype = match crate::columns::ColumnType::kind(fields[0].dtype()) {
        Kind::Lists(_, Some(width)) => arrays(width),
        Kind::Lists(_, None) => return Err(unsupported(&fields[0]).into()),
        _ => DataType::Float64,
    };
    Ok(Field::new("km".into(), dtype))
}

/// Kilometres between points of the unit sphere with these distances: numbers, or arrays of them.
fn sphere_km(inputs: &[Series], kwargs: &Sphere) -> PolarsResult<Series> {
    let _environment = FloatEnvironment::default_rounding();
    let Numbers { values, n, d } = Numbers::new(inputs, None)?;
    let expected = "a distance of points on the unit sphere, from 0 to 2 (as with metric=\"cosine\")";
    check(&values, 0.0..=2.0 + ROUNDING, inputs[0].name(), expected)?;
    // NaN stays NaN.
    let km = |chord: f64| 2.0 * kwargs.radius * libm::asin(if chord > 2.0 { 1.0 } else { chord / 2.0 });
    let by_rows = (0..n).flat_map(|i| (0..d).map(move |f| f * n + i)).map(|at| km(values[at]));
    let width = matches!(inputs[0].dtype(), DataType::Array(..)).then_some(d);
    Ok(nan_is_null("km", memory::collected(by_rows, WHAT)?, width)?)
}

expression!(sphere(Nothing) -> sphere_field);
expression!(sphere_degrees(Nothing) -> sphere_degrees_field);
expression!(sphere_km(Sphere) -> sphere_km_field);

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(quarters_are_exact);
    fn quarters_are_exact() {
        assert_eq!(point(90.0, 12.5), [0.0, 0.0, 1.0]);
        assert_eq!(point(-90.0, -180.0), [0.0, 0.0, -1.0]);
        for (lon, expected) in [(0.0, [1.0, 0.0]), (90.0, [0.0, 1.0]), (-90.0, [0.0, -1.0]), (180.0, [-1.0, 0.0])] {
            for turns in [0.0, 360.0] {
                let there = point(0.0, lon + turns);
                assert_eq!(there.map(f64::to_bits), [expected[0], expected[1], 0.0].map(f64::to_bits), "{lon}");
            }
            assert_eq!(degrees([expected[0], expected[1], 0.0]), [0.0, lon]);
        }
        assert!(degrees([0.0; 3])[0].is_nan() && degrees([f64::NAN, 1.0, 1.0])[0].is_nan());
        let lengths = [1e-300, 1.0, 1e300].map(|length| degrees([length, length, 0.0]));
        assert_eq!(lengths, [[0.0, 45.0]; 3]);
    }
}

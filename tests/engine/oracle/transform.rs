//! Rows as they arrive, straight from the contract: scaled and normalised, in big integers where a sum is rounded.

use num_bigint::BigInt;
use polars_kmeans::Float;

use super::{Start, Task, decode, exponent_above, quantise, round_ratio};

/// What columns are multiplied by.
#[derive(Debug, Clone)]
pub enum Scaling {
    None,
    Factors(Vec<f64>),
    Standard,
    Robust,
}

/// The vector with the length 1, or `None` for zeros: scaled by the power of two of its largest magnitude, divided by the root of the
/// chain of its squares.
pub fn direction(values: &[f64]) -> Option<Vec<f64>> {
    let largest = values.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    if largest == 0.0 {
        return None;
    }
    let (mantissa, exponent) = decode(largest);
    let top = exponent + mantissa.bits() as i32 - 1;
    let scaled = |v: &f64| round_ratio::<f64>(&decode(*v).0, &BigInt::from(1), decode(*v).1 - top);
    let scaled: Vec<f64> = values.iter().map(scaled).collect();
    let norm = scaled.iter().fold(0.0f64, |s, y| y.mul_add(*y, s)).sqrt();
    Some(scaled.into_iter().map(|y| y / norm).collect())
}

/// The task with rows and starting centroids as they arrive, and the factors of the columns. No row may be zero with `cosine`.
pub fn transform<T: Float>(raw: &Task<T>, scaling: &Scaling) -> (Task<T>, Vec<f64>) {
    let d = raw.rows[0].len();
    let positive = |i: &usize| raw.weights.as_ref().is_none_or(|w| w[*i] > 0.0);
    let column = |f: usize, rows: &mut dyn Iterator<Item = usize>| rows.map(|i| raw.rows[i][f].to_f64()).collect::<Vec<f64>>();
    let factors: Vec<f64> = match scaling {
        Scaling::None => vec![1.0; d],
        Scaling::Factors(factors) => factors.clone(),
        Scaling::Standard => {
            let variance = |f| column_variance(&column(f, &mut (0..raw.rows.len()).filter(positive)));
            (0..d).map(variance).map(|v| if v > 0.0 { 1.0 / v.sqrt() } else { 1.0 }).collect()
        }
        Scaling::Robust => {
            let spread = |f| {
                let mut values = column(f, &mut (0..raw.rows.len()));
                values.sort_by(f64::total_cmp);
                values[3 * (values.len() - 1) / 4] - values[(values.len() - 1) / 4]
            };
            (0..d).map(spread).map(|spread| if spread > 0.0 { 1.0 / spread } else { 1.0 }).collect()
        }
    };
    let row = |row: &Vec<T>| -> Vec<T> {
        let scaled: Vec<T> = row.iter().zip(&factors).map(|(x, s)| T::from_f64(x.to_f64() * s)).collect();
        if !raw.cosine {
            return scaled;
        }
        let values: Vec<f64> = scaled.iter().map(|x| x.to_f64()).collect();
        direction(&values).expect("a row with a direction").into_iter().map(T::from_f64).collect()
    };
    let start = match &raw.start {
        Start::Given(centroids) => Start::Given(centroids.iter().map(row).collect()),
        other => other.clone(),
    };
    (Task { rows: raw.rows.iter().map(row).collect(), start, ..raw.clone() }, factors)
}

/// `max(0, m2 - m1 * m1)` of the values less the middle of their extent.
pub fn column_variance(values: &[f64]) -> f64 {
    let (low, high) = values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(*v), h.max(*v)));
    let middle = 0.5 * ((low + 0.0) + (high + 0.0));
    let t: Vec<f64> = values.iter().map(|x| x - middle).collect();
    let mean = |values: Vec<f64>| -> f64 {
        let largest = values.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        if largest == 0.0 {
            return 0.0;
        }
        let unit = exponent_above(largest) - 90;
        let sum: BigInt = values.iter().map(|v| quantise(*v, unit)).sum();
        round_ratio(&sum, &BigInt::from(values.len()), unit)
    };
    let (m1, m2) = (mean(t.clone()), mean(t.iter().map(|t| t * t).collect()));
    (m2 - m1 * m1).max(0.0)
}

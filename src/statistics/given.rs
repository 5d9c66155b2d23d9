//! The rows of a fit as they were given: what preparation asks of them beside its passes. Most of it explains an error.
//!
//! All answers but names and the like are counts, extrema or first places, so rows may be anywhere and in any number of parts.

use super::MAX_ROWS;
use super::survey::{Survey, WeightsBelow};
use super::tiles::{TILE, learn};
use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::base::names::Names;
use crate::base::units::FACTORS;
use crate::input::tile::{Piece, RowBlock, Tile, on_host, pieces};
use crate::input::transform::RowTransform;
use crate::statistics::factors::{CountDigits, DigitCounts};
use crate::statistics::refused::{Refused, for_each_scaled};

/// For a column as it was given: nulls, NaNs and infinities.
pub type BadCounts = [u64; 3];

/// Rows as they were given.
pub trait Given {
    fn names(&self) -> &Names;
    /// What happens to rows as they are read.
    fn row_transform(&self) -> Option<&RowTransform>;
    fn is_weighted(&self) -> bool;
    /// The number of all rows. An error if there are too many, or if weights have another length.
    fn count(&self) -> Result<u64>;
    /// The first negative weight in a row that has only finite values, and the number of this row.
    fn negative_weight(&self) -> Result<Option<(u64, f64)>>;
    /// The bad values of each column as it was given, then those of the weights.
    fn bad_counts(&self) -> Result<Vec<BadCounts>>;
    /// Why rows with finite values have no place.
    fn refused(&self) -> Result<Refused>;
    /// For each column, whether rows of positive weight hold a value other than zero: as it was given, and scaled.
    fn nonzero(&self) -> Result<Vec<[bool; 2]>>;
    /// The number of positive weights of kept rows that are below a bound.
    fn weights_below(&self, bound: f64, threads: usize) -> Result<u64>;
    /// For both prefixes of each column: how many values of kept rows whose key begins with the prefix have each digit at
    /// `shift`.
    fn digits(&self, prefixes: &[[u64; 2]], shift: u32, threads: usize) -> Result<Vec<DigitCounts>>;
}

/// Parts in this process.
pub struct HostRows<'p, 'a, T>(pub &'p [RowBlock<'a, T>]);

impl<T: Float> Given for HostRows<'_, '_, T> {
    fn names(&self) -> &Names {
        self.0[0].features.names()
    }

    fn row_transform(&self) -> Option<&RowTransform> {
        self.0[0].features.row_transform()
    }

    fn is_weighted(&self) -> bool {
        self.0.iter().any(|part| part.weights.is_some())
    }

    fn count(&self) -> Result<u64> {
        for part in self.0 {
            if let Some(weights) = &part.weights
                && weights.len() != part.features.n_rows()
            {
                let (expected, got) = (part.features.n_rows(), weights.len());
                return Err(KMeansError::LengthMismatch { what: "weight".into(), expected, got });
            }
        }
        checked_count(self.0.iter().map(|part| part.features.n_rows() as u64).sum())
    }

    fn negative_weight(&self) -> Result<Option<(u64, f64)>> {
        let mut tile = Tile::new(self.0[0].features.n_features(), TILE)?;
        for Piece { part, rows, first } in pieces(&on_host(self.0)?, TILE) {
            tile.load_checked(part, rows);
            if let Some((row, got)) = tile.first_negative_weight() {
                return Ok(Some(((first + row) as u64, got)));
            }
        }
        Ok(None)
    }

    fn bad_counts(&self) -> Result<Vec<BadCounts>> {
        const WHAT: &str = "the counts of nulls";
        let parts = &on_host(self.0)?[..];
        let d = parts[0].features.n_features();
        let mut counts = memory::zeroed::<BadCounts>(d + 1, WHAT)?;
        let mut tile = Tile::<T>::new(d, TILE)?;
        let mut nulls = memory::zeroed::<bool>((d + 1) * TILE, WHAT)?;
        for Piece { part, rows, .. } in pieces(parts, TILE) {
            let raw = part.features.transformed_by(None);
            nulls.fill(false);
            raw.copy_tile(rows.clone(), TILE, &mut tile.x);
            raw.for_each_null(rows.clone(), |f, i| nulls[f * TILE + i] = true);
            if let Some(weights) = &part.weights {
                weights.copy(rows.clone(), &mut tile.weights);
                weights.for_each_null(rows.clone(), |i| nulls[d * TILE + i] = true);
            }
            for (f, count) in counts.iter_mut().enumerate() {
                for i in 0..rows.len() {
                    let value = if f < d { tile.x[f * TILE + i].to_f64() } else { tile.weights[i] };
                    match value {
                        _ if nulls[f * TILE + i] => count[0] += 1,
                        v if v.is_nan() => count[1] += 1,
                        v if v.is_infinite() => count[2] += 1,
                        _ => {}
                    }
                }
            }
        }
        Ok(counts)
    }

    fn refused(&self) -> Result<Refused> {
        let mut found = Refused::default();
        for_each_scaled(self.0, false, |tile, part, _| {
            let Some(row_transform) = part.features.row_transform() else { return };
            let bad = (0..row_transform.factors().len()).find(|f| tile.column(*f).iter().any(|x| !x.is_finite()));
            found.overflow = found.overflow.or(bad);
            if row_transform.directions() {
                let zero = |r: &usize| tile.x.chunks_exact(tile.stride).all(|column| column[*r].to_f64() == 0.0);
                found.zero_rows += (0..tile.rows).filter(zero).count() as u64;
            }
        })?;
        Ok(found)
    }

    fn nonzero(&self) -> Result<Vec<[bool; 2]>> {
        let mut seen = memory::zeroed::<[bool; 2]>(self.0[0].features.n_features(), FACTORS)?;
        for_each_scaled(self.0, true, |tile, _, before| {
            for (f, [raw, after]) in seen.iter_mut().enumerate() {
                *raw |= before[f];
                *after |= tile.column(f).iter().any(|x| x.to_f64() != 0.0);
            }
        })?;
        Ok(seen)
    }

    fn weights_below(&self, bound: f64, threads: usize) -> Result<u64> {
        learn(&on_host(self.0)?, threads, &WeightsBelow(bound))
    }

    fn digits(&self, prefixes: &[[u64; 2]], shift: u32, threads: usize) -> Result<Vec<DigitCounts>> {
        learn(self.0, threads, &CountDigits { prefixes, shift })
    }
}

/// A number of rows that a fit may have.
pub fn checked_count(rows: u64) -> Result<u64> {
    if rows > MAX_ROWS { Err(KMeansError::TooManyRows { got: rows }) } else { Ok(rows) }
}

/// Refuses the first negative weight in a row that has only finite values.
pub fn check_negative(given: &dyn Given, survey: &Survey) -> Result<()> {
    let found = if survey.any_negative_weight { given.negative_weight()? } else { None };
    found.map_or(Ok(()), |(row, got)| Err(KMeansError::NegativeWeight { row, got }))
}

/// Refuses values that overflow when they are scaled. Under `null_policy="skip"` they are no reason to leave rows out.
pub fn check_overflow(given: &dyn Given) -> Result<()> {
    match given.refused()?.error(given) {
        Some(error @ KMeansError::ScaledOutOfRange { .. }) => Err(error),
        _ => Ok(()),
    }
}

/// The error that counts the bad values of the first bad column as the caller gave it. Weights come last, then rows that are
/// bad only after their transformation.
pub fn count_bad(given: &dyn Given) -> Result<KMeansError> {
    let counts = given.bad_counts()?;
    let bad = counts.iter().position(|count| *count != [0; 3]);
    if bad.is_none()
        && let Some(error) = given.refused()?.error(given)
    {
        return Ok(error);
    }
    let f = bad.unwrap_or(counts.len() - 1);
    let column = given.names().get(f).unwrap_or_else(|| "weight".into());
    let [nulls, nans, infinities] = counts[f];
    Ok(KMeansError::NotFinite { column, nulls, nans, infinities })
}

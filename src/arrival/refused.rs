//! Errors that only raw rows explain: values that overflow or vanish when they are scaled, and rows without a direction.

use crate::error::{KMeansError, Result};
use crate::float::Float;
use crate::memory;
use crate::prepare::survey::Survey;
use crate::prepare::tiles::TILE;
use crate::tile::{Part, Tile, on_host};

/// Why rows with finite values have no place: a value that overflows, or the number of rows without a direction. `None` if there
/// are no such rows.
///
/// # Errors
/// [`KMeansError::NoMemory`].
pub fn refusal<T: Float>(parts: &[Part<'_, T>]) -> Result<Option<KMeansError>> {
    let mut zero_rows = 0;
    let mut overflow = None;
    for_each_scaled(parts, false, |tile, part, _| {
        let Some(arrival) = part.features.arrival() else { return };
        let factors = arrival.factors().iter().enumerate();
        let bad =
            factors.filter(|(f, _)| tile.column(*f).iter().any(|x| !x.is_finite())).map(|(f, factor)| (f, *factor)).next();
        overflow = overflow.or(bad);
        if arrival.directions() {
            let zero = |r: &usize| tile.x.chunks_exact(tile.stride).all(|column| column[*r].to_f64() == 0.0);
            zero_rows += (0..tile.rows).filter(zero).count() as u64;
        }
    })?;
    Ok(match overflow {
        Some((f, factor)) => Some(out_of_range(parts, f, factor, "overflow")),
        None => (zero_rows > 0).then_some(KMeansError::ZeroRows { count: zero_rows }),
    })
}

/// Refuses columns that hold other values than zero, but nothing else after they were scaled. `survey` is that of the arrived rows.
///
/// # Errors
/// [`KMeansError::ScaledOutOfRange`], [`KMeansError::NoMemory`].
pub fn check_vanished<T: Float>(parts: &[Part<'_, T>], survey: &Survey) -> Result<()> {
    let d = survey.columns.len();
    let scaled = parts[0].features.arrival().is_some_and(|arrival| !arrival.factors().is_empty());
    if !scaled || survey.columns.iter().all(|column| column.largest > 0.0) {
        return Ok(());
    }
    let mut seen = memory::zeroed::<[bool; 2]>(d, super::FACTORS)?;
    for_each_scaled(parts, true, |tile, _, before| {
        for (f, [raw, after]) in seen.iter_mut().enumerate() {
            *raw |= before[f];
            *after |= tile.column(f).iter().any(|x| x.to_f64() != 0.0);
        }
    })?;
    match seen.iter().position(|[raw, after]| *raw && !after) {
        Some(f) => {
            Err(out_of_range(parts, f, parts[0].features.arrival().map_or(1.0, |arrival| arrival.factors()[f]), "vanish"))
        }
        None => Ok(()),
    }
}

fn out_of_range<T: Float>(parts: &[Part<'_, T>], f: usize, factor: f64, how: &'static str) -> KMeansError {
    let column = parts[0].features.names().get(f).unwrap_or_default();
    KMeansError::ScaledOutOfRange { column, factor, how }
}

/// Calls `visit` for tiles of all rows that have finite values, or of those among them that have a positive weight. They are
/// scaled but not normalised. The last argument says which columns held other values than zero before that.
fn for_each_scaled<T: Float>(
    parts: &[Part<'_, T>],
    positive: bool,
    mut visit: impl FnMut(&Tile<T>, &Part<'_, T>, &[bool]),
) -> Result<()> {
    let parts = &on_host(parts)?;
    let d = parts[0].features.n_features();
    let mut tile = Tile::<T>::new(d, TILE)?;
    let mut before = memory::zeroed(d, super::FACTORS)?;
    for part in parts {
        let raw = Part { features: part.features.arriving(None), ..part.clone() };
        let n = part.features.n_rows();
        for start in (0..n).step_by(TILE) {
            tile.load_checked(&raw, start..(start + TILE).min(n));
            if positive {
                tile.drop_weightless();
            }
            let (rows, stride) = (tile.rows, tile.stride);
            before.iter_mut().enumerate().for_each(|(f, any)| *any = tile.column(f).iter().any(|x| x.to_f64() != 0.0));
            if let Some(arrival) = part.features.arrival() {
                arrival.scale(rows, stride, &mut tile.x);
            }
            visit(&tile, part, &before);
        }
    }
    Ok(())
}

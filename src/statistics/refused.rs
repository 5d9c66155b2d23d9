//! Errors that only raw rows explain: values that overflow or vanish when they are scaled, and rows without a direction.

use crate::base::error::{KMeansError, Result};
use crate::base::float::Float;
use crate::base::memory;
use crate::base::units::FACTORS;
use crate::input::tile::{Piece, RowBlock, Tile, on_host, pieces};
use crate::statistics::given::Given;
use crate::statistics::survey::Survey;
use crate::statistics::tiles::TILE;

/// Why rows with finite values have no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "parts", derive(serde::Serialize, serde::Deserialize))]
pub struct Refused {
    /// A column of which a value overflows when it is scaled.
    pub overflow: Option<usize>,
    /// Rows without a direction.
    pub zero_rows: u64,
}

impl Refused {
    /// The reasons of these rows and of later ones.
    #[cfg(feature = "parts")]
    pub fn and(self, later: Self) -> Self {
        Self { overflow: self.overflow.or(later.overflow), zero_rows: self.zero_rows + later.zero_rows }
    }

    /// A value that overflows, or the number of rows without a direction. `None` if there are no such rows.
    pub fn error(self, given: &dyn Given) -> Option<KMeansError> {
        match self.overflow {
            Some(f) => Some(out_of_range(given, f, "overflow")),
            None => (self.zero_rows > 0).then_some(KMeansError::ZeroRows { count: self.zero_rows }),
        }
    }
}

/// Refuses columns that hold other values than zero, but nothing else after they were scaled. `survey` is that of the transformed
/// rows.
///
/// # Errors
/// [`KMeansError::ScaledOutOfRange`], [`KMeansError::NoMemory`].
pub fn check_vanished(given: &dyn Given, survey: &Survey) -> Result<()> {
    let scaled = given.row_transform().is_some_and(|row_transform| !row_transform.factors().is_empty());
    if !scaled || survey.columns.iter().all(|column| column.largest > 0.0) {
        return Ok(());
    }
    match given.nonzero()?.iter().position(|[raw, after]| *raw && !after) {
        Some(f) => Err(out_of_range(given, f, "vanish")),
        None => Ok(()),
    }
}

fn out_of_range(given: &dyn Given, f: usize, how: &'static str) -> KMeansError {
    let column = given.names().get(f).unwrap_or_default();
    let factor = given.row_transform().and_then(|row_transform| row_transform.factors().get(f)).copied().unwrap_or(1.0);
    KMeansError::ScaledOutOfRange { column, factor, how }
}

/// Calls `visit` for tiles of all rows that have finite values, or of those among them that have a positive weight. They are
/// scaled but not normalised. The last argument says which columns held other values than zero before that.
pub fn for_each_scaled<T: Float>(
    parts: &[RowBlock<'_, T>],
    positive: bool,
    mut visit: impl FnMut(&Tile<T>, &RowBlock<'_, T>, &[bool]),
) -> Result<()> {
    let d = parts[0].features.n_features();
    let mut tile = Tile::<T>::new(d, TILE)?;
    let mut before = memory::zeroed(d, FACTORS)?;
    for Piece { part, rows, .. } in pieces(&on_host(parts)?, TILE) {
        tile.load_checked(&RowBlock { features: part.features.transformed_by(None), ..part.clone() }, rows);
        if positive {
            tile.drop_weightless();
        }
        let (rows, stride) = (tile.rows, tile.stride);
        before.iter_mut().enumerate().for_each(|(f, any)| *any = tile.column(f).iter().any(|x| x.to_f64() != 0.0));
        if let Some(row_transform) = part.features.row_transform() {
            row_transform.scale(rows, stride, &mut tile.x);
        }
        visit(&tile, part, &before);
    }
    Ok(())
}

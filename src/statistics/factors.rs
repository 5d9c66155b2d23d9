//! The factors of the columns: given ones, or what a pass over the raw rows finds.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::base::error::{KMeansError, Result};
use crate::base::float::{Float, key, of_key};
use crate::base::memory;
use crate::base::names::Names;
use crate::base::params::{Params, Scale};
use crate::base::units::FACTORS;
use crate::exact::fixed::power_of_two;
use crate::input::tile::{RowBlock, Tile};
use crate::statistics::given::Given;
use crate::statistics::passes::Passes;
use crate::statistics::tiles::Visit;
use crate::statistics::variance::variances;
use crate::statistics::{check_column_magnitudes, survey_rows};

/// Bits of a digit of a key, and the number of its values.
const DIGIT: u32 = 8;
const VALUES: usize = 1 << DIGIT;

/// One factor per feature, by passes over rows that may be anywhere. The rows are not transformed. `None` if nothing is scaled.
///
/// # Errors
/// [`KMeansError::InvalidOption`] for a factor of no column. Any error in the rows.
pub fn factors_by<T: Float>(passes: &mut dyn Passes<T>, params: &Params) -> Result<Option<Vec<f64>>> {
    match &params.space.scale {
        Scale::None => Ok(None),
        Scale::Factors(given) => given_factors(given, passes.given().names()).map(Some),
        Scale::Standard => standard(passes, params).map(Some),
        Scale::Robust => robust(passes, params).map(Some),
    }
}

/// Features without a factor of their own have factor 1.
fn given_factors(given: &BTreeMap<String, f64>, names: &Names) -> Result<Vec<f64>> {
    by_feature(given, names, 1.0, ("scale", "factors"))
}

/// One number for each feature: its own, or `missing`. The name of an Array column stands for all of its entries. The option and
/// its numbers are named in an error.
pub fn by_feature(given: &BTreeMap<String, f64>, names: &Names, missing: f64, of: (&'static str, &str)) -> Result<Vec<f64>> {
    let mut numbers = memory::filled(names.len(), missing, FACTORS)?;
    let mut places = memory::collected((0..names.len()).filter_map(|f| names.get(f).map(|name| (name, f))), FACTORS)?;
    places.sort_unstable();
    for (name, number) in given {
        if matches!(names, Names::Entries { column, .. } if **column == *name) {
            numbers.fill(*number);
            continue;
        }
        let place = places.get(places.partition_point(|(known, _)| known < name)).filter(|(known, _)| known == name);
        let (_, place) = place.ok_or_else(|| KMeansError::InvalidOption {
            option: of.0,
            expected: format!("{} of the columns {}", of.1, shown(names)),
            got: format!("one of {name:?}"),
        })?;
        numbers[*place] = *number;
    }
    Ok(numbers)
}

/// Some of the names, for an error.
fn shown(names: &Names) -> String {
    const MOST: usize = 20;
    let some: Vec<String> = (0..names.len().min(MOST)).filter_map(|f| names.get(f)).map(|name| format!("{name:?}")).collect();
    let more = names.len().saturating_sub(MOST);
    if more > 0 { format!("{} and {more} more", some.join(", ")) } else { some.join(", ") }
}

/// 1 over the standard deviation of each column, over the rows of positive weight. 1 for a column of one value.
fn standard<T: Float>(passes: &mut dyn Passes<T>, params: &Params) -> Result<Vec<f64>> {
    let (survey, _) = survey_rows(passes, params)?;
    // The square of a larger value could overflow.
    check_column_magnitudes::<T>(passes.given().names(), &survey)?;
    let lows = memory::collected(survey.columns.iter().map(|column| column.low + 0.0), FACTORS)?;
    let highs = memory::collected(survey.columns.iter().map(|column| column.high + 0.0), FACTORS)?;
    let variances = variances(passes, &lows, &highs, survey.positive)?;
    memory::collected(variances.into_iter().map(|v| if v > 0.0 { 1.0 / v.sqrt() } else { 1.0 }), FACTORS)
}

/// 1 over the distance between the quartiles of each column, over all kept rows. 1 where they are equal. Digits are counted
/// where the rows are given.
fn robust<T: Float>(passes: &mut dyn Passes<T>, params: &Params) -> Result<Vec<f64>> {
    let (_, n) = survey_rows(passes, params)?;
    let given = passes.given();
    let ranks = [(n - 1) / 4, (n - 1) / 4 * 3 + (n - 1) % 4 * 3 / 4];
    let quartiles = order_statistics::<T>(&*given, ranks, params.execution.threads)?;
    let names = given.names();
    let factor = |(f, [low, high]): (usize, [f64; 2])| {
        let spread = high - low;
        if spread == 0.0 {
            return Ok(1.0);
        }
        if !(power_of_two(-1022)..=f64::MAX).contains(&spread) {
            let what = format!("the distance between the quartiles of column {:?}", names.get(f).unwrap_or_default());
            return Err(KMeansError::MagnitudeOutOfRange { what, got: spread });
        }
        Ok(1.0 / spread)
    };
    memory::try_collected(quartiles.into_iter().enumerate().map(factor), FACTORS)
}

/// The values of two ranks in each column, over all kept rows. Finds their keys digit by digit, in one pass over the rows for
/// each.
fn order_statistics<T: Float>(given: &dyn Given, ranks: [u64; 2], threads: usize) -> Result<Vec<[f64; 2]>> {
    let d = given.names().len();
    let digits = if T::IS_F32 { 32 } else { 64 } / DIGIT;
    let mut searches = memory::filled(d, ranks.map(|rank| Search { prefix: 0, rank }), FACTORS)?;
    for shift in (0..digits).rev().map(|digit| digit * DIGIT) {
        let prefixes = searches.iter().map(|two| two.map(|search| search.prefix));
        let counts = given.digits(&memory::collected(prefixes, FACTORS)?, shift, threads)?;
        for (searches, counts) in searches.iter_mut().zip(counts.chunks_exact(2)) {
            searches.iter_mut().zip(counts).try_for_each(|(search, counts)| search.narrow(counts))?;
        }
    }
    memory::collected(searches.iter().map(|two| two.map(|search| of_key::<T>(search.prefix).to_f64())), FACTORS)
}

/// How many values have each digit.
pub type DigitCounts = [u64; VALUES];

/// The search for the key of one rank.
#[derive(Debug, Clone, Copy)]
struct Search {
    /// The digits that are known.
    prefix: u64,
    /// The rank among the values with this prefix.
    rank: u64,
}

impl Search {
    /// Finds the next digit. `counts`: how many values with the prefix have each digit.
    fn narrow(&mut self, counts: &DigitCounts) -> Result<()> {
        for (digit, count) in (0..).zip(counts) {
            if self.rank < *count {
                self.prefix = self.prefix << DIGIT | digit;
                return Ok(());
            }
            self.rank -= count;
        }
        Err(KMeansError::Part { reason: "expected counts of all kept rows, got fewer".into() })
    }
}

/// Counts, for both searches of each column, the digit at `shift` of the values with the prefix.
pub(super) struct CountDigits<'p> {
    pub prefixes: &'p [[u64; 2]],
    pub shift: u32,
}

impl<T: Float> Visit<T> for CountDigits<'_> {
    type Learnt = Vec<[u64; VALUES]>;

    fn nothing(&self) -> Result<Self::Learnt> {
        memory::filled(2 * self.prefixes.len(), [0; VALUES], FACTORS)
    }

    #[inline(always)]
    fn visit(&self, counts: &mut Self::Learnt, tile: &mut Tile<T>, part: &RowBlock<'_, T>, range: Range<usize>) {
        tile.load(part, None, range);
        for (f, prefixes) in self.prefixes.iter().enumerate() {
            for x in tile.column(f) {
                let key = key(*x) >> self.shift;
                for (prefix, counts) in prefixes.iter().zip(&mut counts[2 * f..]) {
                    if key >> DIGIT == *prefix {
                        counts[key as usize % VALUES] += 1;
                    }
                }
            }
        }
    }
}

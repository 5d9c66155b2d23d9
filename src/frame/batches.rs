//! Fits of frames that come batch by batch, such as the result of a query that memory does not hold.
//!
//! ```text
//! each batch: cast to the type of the fit, then held in memory
//! once they take more memory than they may: all of them go to a file, and so do those that follow     spill.rs
//! ```
//! The fit sees columns of many chunks in both cases, so its result has the same bits.

use std::path::PathBuf;

use polars::prelude::*;

use super::free_memory::free_memory;
use super::spill::SpillFile;
use crate::base::error::{KMeansError, Result};
use crate::base::interrupt::{self, Scope};
use crate::base::memory;
use crate::base::names::FeatureLayout;
use crate::base::parallel::FloatEnvironment;
use crate::base::params::{KMeans, RowOrder};
use crate::columns::{self, COLUMNS, FeatureTable};
use crate::model::KMeansModel;

/// Free memory is measured again after so many bytes.
const EVERY: u64 = 64 << 20;

/// The name of the weights beside the features. No feature has it.
const WEIGHTS: &str = "\0weights";

/// How much memory the rows of a fit may take, and where they go if they take more.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Spill {
    memory_limit: Option<u64>,
    directory: Option<PathBuf>,
}

impl Spill {
    /// Rows go to a file in the system's temporary folder when less than half of the memory is free that was free before. Where
    /// the system does not say how much is free, they stay in memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Rows go to a file when their columns take more than these bytes.
    pub fn memory_limit(self, bytes: u64) -> Self {
        Self { memory_limit: Some(bytes), ..self }
    }

    /// The file is in this folder. It has no name there, and it is gone when the fit ends or the process does.
    pub fn directory(self, folder: impl Into<PathBuf>) -> Self {
        Self { directory: Some(folder.into()), ..self }
    }
}

impl KMeans {
    /// Fits the named columns of frames that follow one another, as [`KMeans::fit`] fits those of one frame: with the same bits.
    /// What memory does not hold goes to a file, as `spill` says.
    ///
    /// With Polars' features `lazy` and `new_streaming`, `lf.collect_batches(Engine::Streaming, true, None, true)?` makes such
    /// frames of a query. The query runs once.
    ///
    /// ```
    /// use polars::prelude::*;
    /// use polars_kmeans::{KMeans, Spill};
    ///
    /// let batch = |start: i32| df!("x" => (start..start + 1_000).map(|x| x as f32 * 0.5).collect::<Vec<_>>());
    /// let spill = Spill::new().memory_limit(10_000);
    /// let model = KMeans::new(3).fit_frames((0..8).map(|b| batch(1_000 * b)), ["x"], None, &spill)?;
    /// assert_eq!(model.centroids()?.column("size")?.u64()?.sum(), Some(8_000));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`KMeans::fit_weighted`], [`KMeansError::Spill`], and whatever error comes in place of a frame.
    pub fn fit_frames(
        &self,
        batches: impl IntoIterator<Item = PolarsResult<DataFrame>>,
        columns: impl IntoIterator<Item = impl AsRef<str>>,
        weight: Option<&str>,
        spill: &Spill,
    ) -> Result<KMeansModel> {
        let _scope = Scope::enter(self.cancel.as_ref());
        let names: Vec<PlSmallStr> = columns.into_iter().map(|name| name.as_ref().into()).collect();
        let mut gathered = ColumnGatherer::new(weight.is_some(), spill)?;
        for batch in batches {
            interrupt::check()?;
            gathered.push(&super::select(&batch?, names.iter().map(PlSmallStr::as_str).chain(weight))?)?;
        }
        let FitColumns { features, weights, in_file } = gathered.finish()?;
        if in_file {
            self.check_rows_in_file()?;
        }
        self.fit_model(&features, weights.as_ref())
    }

    /// Refuses options that need a copy of the rows in memory.
    pub(crate) fn check_rows_in_file(&self) -> Result<()> {
        if self.rows.row_order == RowOrder::Given {
            return Ok(());
        }
        let expected = "\"given\" for rows that memory may not hold, because sorting takes a copy of them".into();
        let got = "\"values\" (a larger memory_limit keeps the rows in memory)".into();
        Err(KMeansError::InvalidOption { option: "row_order", expected, got })
    }
}

/// The columns of a fit.
#[derive(Debug, Clone)]
pub struct FitColumns {
    pub features: Vec<Column>,
    pub weights: Option<Column>,
    /// Whether the values are in a mapped file, because memory may not hold them.
    pub in_file: bool,
}

impl FitColumns {
    /// `weighted`: the last column has weights.
    pub fn new(mut features: Vec<Column>, weighted: bool) -> Self {
        let weights = if weighted { features.pop().map(|weights| weights.with_name("weight".into())) } else { None };
        Self { features, weights, in_file: false }
    }
}

/// When rows go to a file.
enum Limit {
    Bytes(u64),
    /// When less than half of this is free. Measured last when so many bytes were held.
    Free {
        before: u64,
        measured: u64,
    },
}

impl Limit {
    fn new(bytes: Option<u64>) -> Self {
        let free = || free_memory().map_or(Self::Bytes(u64::MAX), |before| Self::Free { before, measured: 0 });
        bytes.map_or_else(free, Self::Bytes)
    }

    /// Whether so many bytes are too many. Columns may be in memory that was taken before, such as that of a frame. So by default
    /// it counts what is free, and not what is held.
    fn is_passed(&mut self, held: u64, free: impl FnOnce() -> Option<u64>) -> bool {
        match self {
            Self::Bytes(most) => held > *most,
            Self::Free { before, measured } if held >= *measured + EVERY => {
                *measured = held;
                free().is_some_and(|now| now < *before / 2)
            }
            Self::Free { .. } => false,
        }
    }
}

/// The columns of a fit, gathered batch by batch.
pub struct ColumnGatherer {
    weighted: bool,
    limit: Limit,
    directory: PathBuf,
    /// The columns of the first batch, without rows.
    first: Option<Vec<Column>>,
    /// The width of the rows of a column of lists, once there is a list that is not null. Before that, the batches wait in
    /// `lists`.
    width: Option<usize>,
    lists: Vec<DataFrame>,
    held: Vec<DataFrame>,
    bytes: u64,
    file: Option<SpillFile>,
}

impl ColumnGatherer {
    /// `weighted`: the last column of each batch has weights.
    pub fn new(weighted: bool, spill: &Spill) -> Result<Self> {
        if let Some(directory) = spill.directory.as_deref().filter(|directory| !directory.is_dir()) {
            let got = format!("{:?}", directory.display().to_string());
            return Err(KMeansError::InvalidOption { option: "spill_directory", expected: "a folder".into(), got });
        }
        Ok(Self {
            weighted,
            limit: Limit::new(spill.memory_limit),
            directory: spill.directory.clone().unwrap_or_else(std::env::temp_dir),
            first: None,
            width: None,
            lists: Vec::new(),
            held: Vec::new(),
            bytes: 0,
            file: None,
        })
    }

    /// Takes the rows that follow: features, then weights if there are any. All batches have the same columns. The first may be
    /// empty.
    pub fn push(&mut self, batch: &[Column]) -> Result<()> {
        let _environment = FloatEnvironment::default_rounding();
        if self.first.is_none() {
            let names = self.split(batch)?.0.iter().map(|column| memory::text(format_args!("{}", column.name()), COLUMNS));
            FeatureLayout::Columns(memory::try_collected(names, COLUMNS)?).check()?;
            self.first = Some(memory::collected(batch.iter().map(Column::clear), COLUMNS)?);
        }
        let (features, weights) = self.split(batch)?;
        let mut table = FeatureTable::new(features, false, None)?;
        let weights = weights.map(columns::weights).transpose()?.map(|weights| weights.with_name(WEIGHTS.into()));
        if batch[0].is_empty() {
            return Ok(());
        }
        // Features, then weights if there are any.
        let frame = |mut columns: Vec<Column>| -> Result<DataFrame> {
            weights.map_or(Ok(()), |weights| memory::push(&mut columns, weights, COLUMNS))?;
            Ok(DataFrame::new_infer_height(columns)?)
        };
        if let FeatureLayout::Array(name) = &table.layout {
            match self.width {
                Some(width) if table.all_null => table = FeatureTable::new(features, false, Some(width))?,
                Some(expected) if expected != table.d => return Err(columns::other_width(name, expected, table.d)),
                None if table.all_null => {
                    let lists = memory::collected(features.iter().cloned(), COLUMNS)?;
                    return memory::push(&mut self.lists, frame(lists)?, COLUMNS);
                }
                _ => self.width = Some(table.d),
            }
        }
        for mut lists in std::mem::take(&mut self.lists) {
            let table = FeatureTable::new(&lists.columns()[..1], false, self.width)?;
            lists.replace_column(0, table.columns[0].clone())?;
            self.take(lists)?;
        }
        self.take(frame(table.columns)?)
    }

    /// The columns of all batches.
    pub fn finish(mut self) -> Result<FitColumns> {
        let Some(first) = self.first.take() else { return Err(KMeansError::NoRows { skipped: None }) };
        let frames = if self.held.is_empty() { self.lists } else { self.held };
        let in_file = self.file.is_some();
        let columns = match self.file {
            Some(file) => file.finish()?.into_columns(),
            None => match frames.into_iter().reduce(|mut all, batch| {
                all.vstack_mut_owned_unchecked(batch);
                all
            }) {
                Some(all) => all.into_columns(),
                None => first,
            },
        };
        Ok(FitColumns { in_file, ..FitColumns::new(columns, self.weighted) })
    }

    /// Features and weights.
    fn split<'c>(&self, batch: &'c [Column]) -> Result<(&'c [Column], Option<&'c Column>)> {
        let (features, weights) = match batch.split_last() {
            Some((weights, features)) if self.weighted => (features, Some(weights)),
            _ => (batch, None),
        };
        if features.is_empty() { Err(KMeansError::NoFeatures) } else { Ok((features, weights)) }
    }

    fn take(&mut self, batch: DataFrame) -> Result<()> {
        if let Some(file) = &mut self.file {
            return file.write(&batch);
        }
        self.bytes += batch.estimated_size() as u64;
        memory::push(&mut self.held, batch, COLUMNS)?;
        if self.limit.is_passed(self.bytes, free_memory) { self.spill() } else { Ok(()) }
    }

    /// Writes all rows so far to a file, and frees their memory.
    fn spill(&mut self) -> Result<()> {
        let rows: usize = self.held.iter().map(DataFrame::height).sum();
        let row_bytes = usize::try_from(self.bytes).unwrap_or(usize::MAX) / rows.max(1);
        let mut file = SpillFile::create(&self.directory, self.held[0].clear(), row_bytes)?;
        for batch in std::mem::take(&mut self.held) {
            interrupt::check()?;
            file.write(&batch)?;
        }
        self.file = Some(file);
        Ok(())
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(rows_go_to_a_file_when_they_take_too_much);
    fn rows_go_to_a_file_when_they_take_too_much() {
        let mut bytes = Limit::new(Some(100));
        assert!(
            !bytes.is_passed(100, || unreachable!("a limit in bytes needs no measurement"))
                && bytes.is_passed(101, || unreachable!("a limit in bytes needs no measurement"))
        );
        let mut free = Limit::Free { before: 10 * EVERY, measured: 0 };
        assert!(!free.is_passed(EVERY - 1, || unreachable!("too early")));
        // Rows that were in memory before take none of it.
        assert!(!free.is_passed(20 * EVERY, || Some(9 * EVERY)));
        assert!(!free.is_passed(21 * EVERY - 1, || unreachable!("too early")));
        assert!(!free.is_passed(21 * EVERY, || Some(5 * EVERY)));
        assert!(!free.is_passed(22 * EVERY, || None));
        assert!(free.is_passed(23 * EVERY, || Some(5 * EVERY - 1)));
    }

    unit_test!(the_default_is_a_share_of_the_free_memory);
    fn the_default_is_a_share_of_the_free_memory() {
        let Limit::Free { before, .. } = Limit::new(None) else { panic!("the system says how much memory is free") };
        assert!(before > 1 << 20);
    }
}

//! Tables of exact sums as frames: one row a cluster, one Int128 column a feature.
//!
//! Columns: `cluster` (UInt32), `fingerprint` (UInt64: which models take these sums), `size` (Int64: rows of positive weight),
//! `weight` (Int128: their weight; without weights, 2^53 a row), and one Int128 a feature: its sum, in quanta of the model.
//!
//! Several rows of a cluster add up. So groups, differences and windows of such tables are tables, too.

use polars::prelude::*;

use super::{CLUSTER, select};
use crate::backend::answers::{Answered, Labels};
use crate::base::error::{KMeansError, Result};
use crate::base::memory;
use crate::base::names::Names;
use crate::columns::{view_weights, weights};
use crate::model::{KMeansModel, Sums, on_any_device};

const FINGERPRINT: &str = "fingerprint";
const SIZE: &str = "size";
const WEIGHT: &str = "weight";
/// What errors call the tables.
const WHAT: &str = "a table of sums";

/// The field of a table as one value, for features of these names.
#[cfg(feature = "python")]
pub(crate) fn sums_dtype(names: &[String]) -> Result<DataType> {
    let own =
        [(CLUSTER, DataType::UInt32), (FINGERPRINT, DataType::UInt64), (SIZE, DataType::Int64), (WEIGHT, DataType::Int128)];
    let own = own.into_iter().map(|(name, dtype)| Field::new(name.into(), dtype));
    let features = names.iter().map(|name| Ok(Field::new(checked(name)?.into(), DataType::Int128)));
    let fields = memory::try_collected(own.map(Ok).chain(features), WHAT)?;
    Ok(DataType::List(Box::new(DataType::Struct(fields))))
}

/// Refuses the name of a feature that a table has for a column of its own.
fn checked(name: &str) -> Result<&str> {
    if ![FINGERPRINT, WEIGHT].contains(&name) {
        return Ok(name);
    }
    let expected = format!("names other than {FINGERPRINT:?} and {WEIGHT:?}, which a table of sums has (rename, then fit)");
    Err(KMeansError::InvalidOption { option: "features", expected, got: format!("{name:?}") })
}

/// A table as a frame.
fn frame(sums: Sums, names: &Names) -> Result<DataFrame> {
    let Sums { fingerprint, rows, weights, sums } = sums;
    let (k, d) = (rows.len(), names.len());
    let mut columns = memory::with_room(4 + d, WHAT)?;
    columns.push(UInt32Chunked::from_vec(CLUSTER.into(), memory::collected(0..k as u32, WHAT)?).into_column());
    columns.push(UInt64Chunked::from_vec(FINGERPRINT.into(), memory::filled(k, fingerprint, WHAT)?).into_column());
    columns.push(Int64Chunked::from_vec(SIZE.into(), rows).into_column());
    columns.push(Int128Chunked::from_vec(WEIGHT.into(), weights).into_column());
    for f in 0..d {
        let name = names.get(f).unwrap_or_default();
        let values = memory::collected(sums.iter().skip(f).step_by(d).copied(), WHAT)?;
        columns.push(Int128Chunked::from_vec(checked(&name)?.into(), values).into_column());
    }
    Ok(DataFrame::new(k, columns)?)
}

/// Labels of a column of integers.
fn labels_of(column: &Column) -> Result<Labels> {
    let refused = |got: String| {
        let expected = "a column of cluster numbers, as predict gives it".into();
        KMeansError::InvalidOption { option: "labels", expected, got }
    };
    if !column.dtype().is_integer() && !column.dtype().is_null() {
        return Err(refused(column.dtype().to_string()));
    }
    let cast = column.strict_cast(&DataType::UInt32).map_err(|_| refused("negative numbers, or ones above 2^32 - 1".into()))?;
    let labels = cast.u32()?;
    let answered = Answered::collect(labels.len(), labels.iter().map(|label| label.is_some()))?;
    Ok(Labels::new(memory::collected(labels.iter().map(Option::unwrap_or_default), WHAT)?, answered))
}

on_any_device! {
    impl KMeansModel {
        /// The exact sums of a frame's rows by cluster: see [`KMeansModel::sums_columns`]. `weight` and `labels` name columns.
        ///
        /// ```
        /// use polars::prelude::*;
        /// use polars_kmeans::{KMeans, Update};
        ///
        /// let may = df!("x" => [0.0, 1.0, 9.0])?;
        /// let june = df!("x" => [10.0])?;
        /// let model = KMeans::new(2).keep_sums(true).fit(&may, ["x"])?;
        /// let sums = model.sums(&june, None, None)?;
        /// assert_eq!(sums.get_column_names(), ["cluster", "fingerprint", "size", "weight", "x"]);
        /// let sums = model.read_sums(&sums)?;
        /// let updated = model.updated(&Update { sums: Some(&sums), ..Update::default() })?;
        /// assert_eq!(updated.centroids()?.column("x")?.f64()?.max(), Some(9.5));
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ///
        /// # Errors
        /// [`KMeansError::MissingColumn`], or as [`KMeansModel::sums_columns`].
        pub fn sums(&self, df: &DataFrame, weight: Option<&str>, labels: Option<&str>) -> Result<DataFrame> {
            let others = [select(df, weight)?, select(df, labels)?];
            self.sums_columns(&select(df, self.model.columns_to_find()?)?, others[0].first(), others[1].first())
        }

        /// The exact sums of rows by cluster, one row for each cluster: `cluster` (UInt32), `fingerprint` (UInt64), `size`
        /// (Int64), `weight` (Int128) and one Int128 a feature. `labels`: integers in place of the model's own labels; rows with
        /// a null are left out.
        ///
        /// # Errors
        /// As [`Model::sums`](crate::Model::sums), [`KMeansError::OtherType`] for columns of another type than those of the fit,
        /// and errors of the columns.
        pub fn sums_columns(
            &self,
            columns: &[Column],
            weights: Option<&Column>,
            labels: Option<&Column>
        ) -> Result<DataFrame> {
            let labels = labels.map(labels_of).transpose()?;
            let weights = weights.map(self::weights).transpose()?;
            let weights = weights.as_ref().map(view_weights).transpose()?;
            let sums = self.sums_of(columns, weights.as_ref(), labels.as_ref())?;
            frame(sums, &self.model.layout().feature_names(self.model.n_features())?)
        }
    }
}

impl KMeansModel {
    /// The sums in a frame that [`KMeansModel::sums`] gave, or in one that was made of such frames. Rows of one cluster add up,
    /// and clusters that are not there have no rows.
    ///
    /// # Errors
    /// [`KMeansError::MissingColumn`], and [`KMeansError::InvalidOption`] for nulls, for sums of another model and for columns
    /// that hold no integers.
    pub fn read_sums(&self, df: &DataFrame) -> Result<Sums> {
        let (k, d) = (self.n_clusters(), self.n_features());
        let invalid = |expected: String, got: String| KMeansError::InvalidOption { option: "sums", expected, got };
        let column = |name: &str, dtype: DataType| {
            let column = &select(df, [name])?[0];
            let expected = |got: String| invalid(format!("integers that fit {dtype} in column {name:?}"), got);
            let numbers = column.dtype().is_integer() || matches!(column.dtype(), DataType::Decimal(_, 0));
            let cast = column.strict_cast(&dtype).ok().filter(|_| numbers);
            let cast = cast.ok_or_else(|| expected(column.dtype().to_string()))?;
            if cast.null_count() > 0 { Err(expected("nulls".into())) } else { Ok(cast) }
        };
        let mut total = Sums::none(self.fingerprint()?, k, d)?;
        let clusters = column(CLUSTER, DataType::UInt32)?;
        let fingerprints = column(FINGERPRINT, DataType::UInt64)?;
        let other = fingerprints.u64()?.into_no_null_iter().find(|found| *found != total.fingerprint);
        if let Some(other) = other {
            return Err(self.living().refused(total.fingerprint, other));
        }
        let clusters: Vec<usize> = memory::collected(clusters.u32()?.into_no_null_iter().map(|j| j as usize), WHAT)?;
        if let Some(j) = clusters.iter().find(|j| **j >= k) {
            return Err(invalid(format!("clusters below {k}"), j.to_string()));
        }
        let add = |name: &str, totals: &mut [i128], [first, step]: [usize; 2]| -> Result<()> {
            let values = column(name, DataType::Int128)?;
            let values = clusters.iter().zip(values.i128()?.into_no_null_iter());
            values.for_each(|(j, value)| totals[first + j * step] = totals[first + j * step].wrapping_add(value));
            Ok(())
        };
        for (j, rows) in clusters.iter().zip(column(SIZE, DataType::Int64)?.i64()?.into_no_null_iter()) {
            total.rows[*j] = total.rows[*j].wrapping_add(rows);
        }
        add(WEIGHT, &mut total.weights, [0, 1])?;
        let names = self.layout().feature_names(d)?;
        for f in 0..d {
            add(&names.get(f).unwrap_or_default(), &mut total.sums, [f, d])?;
        }
        Ok(total)
    }
}

//! Answers for rows in the form of Arrow columns: values, and one bitmap of the rows that have an answer.
//!
//! ```
//! use polars_kmeans::{Features, KMeans};
//!
//! let x = [0.0f32, 0.1, f32::NAN, 9.1];
//! let model = KMeans::new(2).seed(1).fit_features(&Features::from_columns([&[0.0f32, 9.0][..]])?, None)?.model;
//! let labels = model.predict(&Features::from_columns([&x[..]])?)?;
//! assert_eq!(labels.get(2), None);
//! assert_eq!(labels.get(0), labels.get(1));
//! assert_eq!(labels.validity(), Some(&[0b1011][..]));
//! # Ok::<(), polars_kmeans::KMeansError>(())
//! ```

use crate::base::error::Result;
use crate::base::memory::{self, Zero};
use crate::input::tile::Selection;

/// How errors call the answers.
pub(crate) const LABELS: &str = "the labels";
pub(crate) const DISTANCES: &str = "the distances";
pub(crate) const ANSWERS: &str = "the answers for all rows";

/// Which rows have an answer: a validity bitmap as Arrow has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    rows: usize,
    /// Bit `i % 8` of byte `i / 8` is set if row `i` has an answer. Bits after the last row are 0. `None` if every row has one.
    bits: Option<Vec<u8>>,
}

impl Answered {
    /// Every one of these rows has an answer.
    pub(crate) fn all(rows: usize) -> Self {
        Self { rows, bits: None }
    }

    /// None of these rows has an answer.
    #[cfg(feature = "serde")]
    pub(crate) fn none(rows: usize) -> Result<Self> {
        Ok(Self::from_bits(rows, memory::zeroed(rows.div_ceil(8), LABELS)?))
    }

    /// The rows whose bit is set. There are as many bytes as the rows need.
    pub(crate) fn from_bits(rows: usize, mut bits: Vec<u8>) -> Self {
        debug_assert_eq!(bits.len(), rows.div_ceil(8));
        let (whole, rest) = (rows / 8, rows % 8);
        if rest > 0 {
            bits[whole] &= (1 << rest) - 1;
        }
        let all =
            bits[..whole].iter().all(|byte| *byte == u8::MAX) && bits[whole..].iter().all(|byte| *byte == (1 << rest) - 1);
        Self { rows, bits: (!all).then_some(bits) }
    }

    /// Collects whether each of these rows has an answer.
    pub(crate) fn collect(rows: usize, answered: impl Iterator<Item = bool>) -> Result<Self> {
        let mut bits = memory::zeroed(rows.div_ceil(8), LABELS)?;
        for (i, answered) in answered.take(rows).enumerate() {
            bits[i / 8] |= u8::from(answered) << (i % 8);
        }
        Ok(Self::from_bits(rows, bits))
    }

    /// Whether row `i` has an answer.
    ///
    /// # Panics
    /// If there is no row `i`.
    pub fn get(&self, i: usize) -> bool {
        assert!(i < self.rows, "row {i} of {}", self.rows);
        self.bits.as_ref().is_none_or(|bits| bits[i / 8] >> (i % 8) & 1 == 1)
    }

    /// The number of rows, with or without an answer.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of rows that have an answer.
    pub fn count(&self) -> usize {
        self.bits.as_ref().map_or(self.rows, |bits| bits.iter().map(|byte| byte.count_ones() as usize).sum())
    }

    /// The bitmap. `None` if every row has an answer.
    pub fn bits(&self) -> Option<&[u8]> {
        self.bits.as_deref()
    }

    /// As [`Answered::bits`], without a copy.
    pub fn into_bits(self) -> Option<Vec<u8>> {
        self.bits
    }
}

/// A bitmap in which each of these rows has an answer. Some of them may lose theirs.
pub(crate) fn every_row(rows: usize) -> Result<Vec<u8>> {
    memory::filled(rows.div_ceil(8), u8::MAX, LABELS)
}

/// Whether each row is kept, in order.
fn kept(selections: &[(Selection, usize)]) -> impl Iterator<Item = bool> + '_ {
    selections.iter().flat_map(|(selection, rows)| (0..*rows).map(|i| selection.contains(i)))
}

/// One value per row, from the values of the kept rows. It is 0 for the other rows.
fn spread<V: Zero>(values: &[V], selections: &[(Selection, usize)], what: &'static str) -> Result<Vec<V>> {
    let mut all = memory::zeroed(selections.iter().map(|(_, rows)| rows).sum(), what)?;
    let places = all.iter_mut().zip(kept(selections)).filter(|(_, kept)| *kept);
    places.zip(values).for_each(|((place, _), value)| *place = *value);
    Ok(all)
}

/// One label per row. A row with a null or a value that is not finite has none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Labels {
    values: Vec<u32>,
    answered: Answered,
}

impl Labels {
    pub(crate) fn new(values: Vec<u32>, answered: Answered) -> Self {
        debug_assert_eq!(values.len(), answered.rows);
        Self { values, answered }
    }

    /// No row has a label.
    #[cfg(feature = "serde")]
    pub(crate) fn none(rows: usize) -> Result<Self> {
        Ok(Self::new(memory::zeroed(rows, LABELS)?, Answered::none(rows)?))
    }

    /// One label per row, from those of the rows that the selections keep.
    pub(crate) fn of_kept(labels: &[u32], selections: &[(Selection, usize)]) -> Result<Self> {
        let values = spread(labels, selections, LABELS)?;
        let answered = Answered::collect(values.len(), kept(selections))?;
        Ok(Self::new(values, answered))
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The label of row `i`.
    ///
    /// # Panics
    /// If there is no row `i`.
    pub fn get(&self, i: usize) -> Option<u32> {
        self.answered.get(i).then(|| self.values[i])
    }

    /// The labels in row order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Option<u32>> + '_ {
        (0..self.len()).map(|i| self.get(i))
    }

    /// One value per row. It is 0 for a row without a label.
    pub fn values(&self) -> &[u32] {
        &self.values
    }

    /// Which rows have a label.
    pub fn answered(&self) -> &Answered {
        &self.answered
    }

    /// The rows that have a label, as an Arrow bitmap. `None` if every row has one.
    pub fn validity(&self) -> Option<&[u8]> {
        self.answered.bits()
    }

    /// The values, and which of them are labels. Copies nothing.
    pub fn into_parts(self) -> (Vec<u32>, Answered) {
        (self.values, self.answered)
    }
}

/// The Euclidean distances of rows to the nearest and to the second nearest centroid.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "parts", derive(serde::Serialize, serde::Deserialize))]
pub struct Distances {
    pub nearest: Vec<f64>,
    /// `None` if there is one cluster.
    pub second: Option<Vec<f64>>,
}

impl Distances {
    /// Distances of 0 for this many rows, to be filled.
    pub(crate) fn zeroed(rows: usize, k: usize) -> Result<Self> {
        let second = if k > 1 { Some(memory::zeroed(rows, DISTANCES)?) } else { None };
        Ok(Self { nearest: memory::zeroed(rows, DISTANCES)?, second })
    }
}

/// The `m` nearest centroids of each row, in ascending order of (squared reference distance, number). Values are 0 for a row
/// without an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct NearestClusters {
    pub m: usize,
    /// `(n, m)`, row-major.
    pub clusters: Vec<u32>,
    /// Distances, or squared distances.
    pub distances: Vec<f64>,
    pub answered: Answered,
}

impl NearestClusters {
    /// No row has an answer.
    #[cfg(feature = "polars")]
    pub(crate) fn none(rows: usize, m: usize) -> Result<Self> {
        let (clusters, distances) = (memory::zeroed(rows * m, ANSWERS)?, memory::zeroed(rows * m, ANSWERS)?);
        Ok(Self { m, clusters, distances, answered: Answered::none(rows)? })
    }
}

/// The prediction for one row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    pub label: u32,
    /// Euclidean distance to the centroid of the label.
    pub distance: f64,
    /// Euclidean distance to the nearest other centroid. `None` if there is one cluster.
    pub second_distance: Option<f64>,
}

/// The labels of rows, and their distances to the nearest and the second nearest centroid. Values are 0 for a row without a
/// label.
#[derive(Debug, Clone, PartialEq)]
pub struct Predictions {
    labels: Labels,
    distances: Distances,
}

impl Predictions {
    pub(crate) fn new(labels: Labels, distances: Distances) -> Self {
        debug_assert!(distances.nearest.len() == labels.len());
        debug_assert!(distances.second.as_ref().is_none_or(|second| second.len() == labels.len()));
        Self { labels, distances }
    }

    /// No row has an answer.
    #[cfg(feature = "polars")]
    pub(crate) fn none(rows: usize, k: usize) -> Result<Self> {
        Ok(Self::new(Labels::none(rows)?, Distances::zeroed(rows, k)?))
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    pub fn labels(&self) -> &Labels {
        &self.labels
    }

    pub fn distances(&self) -> &Distances {
        &self.distances
    }

    /// The prediction for row `i`.
    ///
    /// # Panics
    /// If there is no row `i`.
    pub fn get(&self, i: usize) -> Option<Prediction> {
        let Distances { nearest, second } = &self.distances;
        let second_distance = second.as_ref().map(|second| second[i]);
        self.labels.get(i).map(|label| Prediction { label, distance: nearest[i], second_distance })
    }

    /// The predictions in row order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Option<Prediction>> + '_ {
        (0..self.len()).map(|i| self.get(i))
    }

    /// The labels and the distances. Copies nothing.
    pub fn into_parts(self) -> (Labels, Distances) {
        (self.labels, self.distances)
    }
}

/// What a fit says of the rows that it kept, and which rows these are.
#[derive(Debug, Clone)]
pub(crate) struct KeptRows {
    /// One label per kept row, if labels were wanted.
    pub labels: Vec<u32>,
    pub distances: Option<Distances>,
    /// The selection of each part of the rows, and the part's number of rows.
    pub selections: Vec<(Selection, usize)>,
}

impl KeptRows {
    fn all_kept(&self) -> bool {
        self.selections.iter().all(|(selection, _)| selection.is_all())
    }

    /// One label per row. If every row was kept, the values are not copied.
    pub fn into_labels(self) -> Result<Labels> {
        if self.all_kept() {
            let answered = Answered::all(self.labels.len());
            return Ok(Labels::new(self.labels, answered));
        }
        Labels::of_kept(&self.labels, &self.selections)
    }

    /// One prediction per row, if distances were wanted. If every row was kept, the values are not copied.
    pub fn into_predictions(mut self) -> Result<Option<Predictions>> {
        let Some(Distances { mut nearest, mut second }) = self.distances.take() else { return Ok(None) };
        if !self.all_kept() {
            nearest = spread(&nearest, &self.selections, DISTANCES)?;
            second = second.map(|second| spread(&second, &self.selections, DISTANCES)).transpose()?;
        }
        Ok(Some(Predictions::new(self.into_labels()?, Distances { nearest, second })))
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(a_bitmap_says_which_rows_have_an_answer);
    fn a_bitmap_says_which_rows_have_an_answer() {
        for rows in [0, 1, 7, 8, 9, 64, 65] {
            let all = Answered::from_bits(rows, vec![u8::MAX; rows.div_ceil(8)]);
            assert_eq!(all, Answered::all(rows));
            assert_eq!((all.count(), all.bits()), (rows, None));
            for gap in 0..rows {
                let mut bits = vec![u8::MAX; rows.div_ceil(8)];
                bits[gap / 8] ^= 1 << (gap % 8);
                let some = Answered::from_bits(rows, bits);
                assert_eq!(some.count(), rows - 1);
                assert!((0..rows).all(|i| some.get(i) == (i != gap)), "{gap} of {rows}");
                // Bits after the last row are 0, so equal answers have equal bytes.
                let ones: u32 = some.bits().unwrap().iter().map(|byte| byte.count_ones()).sum();
                assert_eq!(ones as usize, rows - 1);
            }
        }
    }

    unit_test!(there_is_no_answer_after_the_last_row);
    fn there_is_no_answer_after_the_last_row() {
        let panic = std::panic::catch_unwind(|| Answered::all(8).get(8)).unwrap_err();
        assert!(panic.downcast_ref::<String>().is_some_and(|words| words.contains("row 8 of 8")));
    }

    fn kept_rows(selections: Vec<(Selection, usize)>, n: u32) -> KeptRows {
        let distances = Distances { nearest: (0..n).map(f64::from).collect(), second: Some(vec![9.0; n as usize]) };
        KeptRows { labels: (10..10 + n).collect(), distances: Some(distances), selections }
    }

    unit_test!(rows_that_a_fit_left_out_have_no_answer);
    fn rows_that_a_fit_left_out_have_no_answer() {
        let selections =
            vec![(Selection::from_bits(vec![0b101]), 3), (Selection::default(), 1), (Selection::from_bits(vec![0]), 5)];
        let fit = kept_rows(selections, 3);
        let labels = fit.clone().into_labels().unwrap();
        let expected = [Some(10), None, Some(11), Some(12), None, None, None, None, None];
        assert!(labels.iter().eq(expected));
        assert_eq!(labels.values(), [10, 0, 11, 12, 0, 0, 0, 0, 0]);
        assert_eq!(labels.validity(), Some(&[0b1101, 0][..]));
        let predictions = fit.into_predictions().unwrap().unwrap();
        assert!(predictions.iter().map(|row| row.map(|p| p.label)).eq(expected));
        assert_eq!(predictions.get(3), Some(Prediction { label: 12, distance: 2.0, second_distance: Some(9.0) }));
        assert_eq!(predictions.get(1), None);
    }

    unit_test!(values_are_not_copied_if_every_row_was_kept);
    fn values_are_not_copied_if_every_row_was_kept() {
        let fit = kept_rows(vec![(Selection::default(), 2), (Selection::default(), 3)], 5);
        let at = (fit.labels.as_ptr(), fit.distances.as_ref().unwrap().nearest.as_ptr());
        let predictions = fit.into_predictions().unwrap().unwrap();
        assert_eq!((predictions.labels().values().as_ptr(), predictions.distances().nearest.as_ptr()), at);
        assert_eq!(predictions.labels().validity(), None);
    }

    unit_test!(one_cluster_has_no_second_distance);
    fn one_cluster_has_no_second_distance() {
        let labels = Labels::new(vec![0, 0], Answered::from_bits(2, vec![0b01]));
        let predictions = Predictions::new(labels, Distances::zeroed(2, 1).unwrap());
        assert!(predictions.iter().eq([Some(Prediction { label: 0, distance: 0.0, second_distance: None }), None]));
        let fit = KeptRows { labels: vec![0], distances: None, selections: vec![(Selection::default(), 1)] };
        assert_eq!(fit.into_predictions().unwrap(), None);
    }
}

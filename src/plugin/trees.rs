//! Trees for Python: their fit, the frame of nodes, flat models, files, and the expressions that descend.

use std::path::PathBuf;
use std::sync::Arc;

use polars::prelude::*;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use pyo3_polars::{PyDataFrame, PySeries};
use serde::Deserialize;

use super::arrays::{Answers, ROWS, WEIGHTS};
use super::copy_to_python;
use super::entry::expression;
use super::expressions::{feature_type, with_literal};
use super::external::ExternalArray;
use super::fit::Columns;
use super::options::FitOptions;
use super::signals::{Raised, interruptible};
use crate::base::error::{KMeansError, Result};
use crate::base::params::{Device, KMeans};
use crate::frame::{CLUSTER, TreeFit};
use crate::model::KMeansModel;
use crate::tree::{BisectingKMeans, HierarchicalKMeans, KMeansTree, Search, TreeEstimator};

/// How a tree grows.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Growth {
    levels: Option<Vec<usize>>,
    leaves: Option<usize>,
    refine: u32,
    /// Of a bisecting k-means.
    split: Option<String>,
    max_size: Option<u64>,
}

impl Growth {
    fn estimator(self, nodes: KMeans) -> Result<TreeEstimator> {
        Ok(match (self.split, self.levels) {
            (Some(split), _) => {
                let bisecting = BisectingKMeans::new(nodes).split(split.parse()?);
                TreeEstimator::Bisecting(self.max_size.into_iter().fold(bisecting, BisectingKMeans::max_size))
            }
            (None, Some(levels)) => TreeEstimator::Levels(HierarchicalKMeans::of_levels(nodes, levels).refine(self.refine)),
            (None, None) => {
                let leaves = self.leaves.unwrap_or_default();
                TreeEstimator::Levels(HierarchicalKMeans::of_leaves(nodes, leaves).refine(self.refine))
            }
        })
    }
}

/// Fits a tree to columns that a query has put there: the encoded tree, and the leaves of the rows. None if there are too few distinct
/// rows and the options ask for that.
#[pyfunction]
pub fn fit_tree<'py>(
    columns: &Columns,
    options: &Bound<'py, PyAny>,
    growth: &Bound<'py, PyAny>,
    computed: bool,
) -> PyResult<Option<(Bound<'py, PyBytes>, PySeries)>> {
    let (py, options, growth) = (options.py(), options.extract::<FitOptions>()?, growth.extract::<Growth>()?);
    let rows = columns.taken();
    let fit = || {
        let rows = rows?;
        let estimator = growth.estimator(rows.estimator(&options)?)?;
        let fit = options.unless_too_few(estimator.fit_columns(&rows.features, rows.weights.as_ref(), computed))?;
        fit.map(|TreeFit { tree, labels }| Ok((tree.into_wire()?, labels.into_series()))).transpose()
    };
    let fit = interruptible(py, &Raised::default(), fit)?;
    fit.map(|(bytes, labels)| Ok((copy_to_python(py, &bytes)?, PySeries(labels)))).transpose()
}

/// As [`fit_tree`], for an array on the host.
#[pyfunction]
pub fn fit_tree_array<'py>(
    array: &Bound<'py, PyAny>,
    weights: Option<&Bound<'py, PyAny>>,
    options: &Bound<'py, PyAny>,
    growth: &Bound<'py, PyAny>,
) -> PyResult<Option<(Bound<'py, PyBytes>, Answers)>> {
    let (py, options, growth) = (options.py(), options.extract::<FitOptions>()?, growth.extract::<Growth>()?);
    let rows = ExternalArray::of(array, ROWS, false)?;
    let weights = weights.map(|weights| ExternalArray::weights_of(weights, WEIGHTS)).transpose()?;
    let fit = || {
        let names = rows.layout.columns();
        if names.is_empty() {
            return Err(KMeansError::NoFeatures);
        }
        let weights = weights.as_ref().map(ExternalArray::weights).transpose()?;
        let estimator = growth.estimator(options.estimator(names.iter().map(String::as_str), Some(names.len()))?)?;
        let fit = options.unless_too_few(estimator.fit_any(&rows.layout, &rows.features()?, weights.as_ref(), false))?;
        fit.map(|(tree, labels)| Ok((tree.into_wire()?, Answers::labels_of(&rows, &labels)?))).transpose()
    };
    let fit = interruptible(py, &Raised::default(), fit)?;
    fit.map(|(bytes, labels)| Ok((copy_to_python(py, &bytes)?, labels))).transpose()
}

/// The frame of the nodes of an encoded tree.
#[pyfunction]
pub fn tree_nodes(tree: &[u8]) -> Result<PyDataFrame> {
    KMeansTree::from_wire(tree)?.nodes().map(PyDataFrame)
}

/// Nodes, levels below the root, and the search of an encoded tree.
#[pyfunction]
pub fn tree_facts(tree: &[u8]) -> Result<(usize, u32, &'static str)> {
    let tree = KMeansTree::from_wire(tree)?;
    Ok((tree.tree_nodes().len(), tree.depth(), tree.search().word()))
}

/// The leaves of an encoded tree as an encoded model.
#[pyfunction]
pub fn tree_flat<'py>(py: Python<'py>, tree: &[u8]) -> Result<Bound<'py, PyBytes>> {
    let flat = KMeansModel::clone(KMeansTree::from_wire(tree)?.flat()?);
    copy_to_python(py, &flat.into_wire()?)
}

/// The nodes of a level of an encoded tree as an encoded model.
#[pyfunction]
pub fn tree_cut<'py>(py: Python<'py>, tree: &[u8], level: u32) -> Result<Bound<'py, PyBytes>> {
    copy_to_python(py, &KMeansTree::from_wire(tree)?.cut(level)?.into_wire()?)
}

/// The bytes of the file of an encoded tree.
#[pyfunction]
pub fn tree_to_file<'py>(py: Python<'py>, tree: &[u8]) -> Result<Bound<'py, PyBytes>> {
    copy_to_python(py, &KMeansTree::from_wire(tree)?.to_bytes()?)
}

/// An encoded tree from the bytes of its file.
#[pyfunction]
pub fn tree_from_file<'py>(py: Python<'py>, bytes: &[u8]) -> Result<Bound<'py, PyBytes>> {
    copy_to_python(py, &KMeansTree::from_bytes(bytes)?.into_wire()?)
}

/// Writes an encoded tree to a file.
#[pyfunction]
pub fn save_tree(py: Python<'_>, tree: &[u8], path: PathBuf) -> Result<()> {
    let tree = KMeansTree::from_wire(tree)?;
    py.detach(|| tree.save(path))
}

/// Reads an encoded tree from a file.
#[pyfunction]
pub fn load_tree(py: Python<'_>, path: PathBuf) -> Result<Bound<'_, PyBytes>> {
    let bytes = py.detach(|| KMeansTree::load(path)?.into_wire())?;
    copy_to_python(py, &bytes)
}

/// What a descent is told.
#[derive(Debug, Clone, Deserialize)]
pub struct DescentOptions {
    /// Whether the last column has weights. Only of a score.
    weighted: bool,
    /// Whether rows without a leaf are refused.
    complete: bool,
    /// The levels of a path.
    depth: usize,
}

fn with_tree(inputs: &[Series]) -> Result<(Arc<KMeansTree>, Vec<Column>)> {
    with_literal(inputs, KMeansTree::from_wire)
}

fn descend_field(fields: &[Field], _: &DescentOptions) -> PolarsResult<Field> {
    feature_type(fields, 1, true)?;
    Ok(Field::new(CLUSTER.into(), DataType::UInt32))
}

/// The leaves that a descent finds for rows, row by row.
fn descend(inputs: &[Series], kwargs: &DescentOptions) -> PolarsResult<Series> {
    let (tree, columns) = with_tree(inputs)?;
    let leaves = tree.predict_columns(&columns, Search::Tree, Device::Cpu)?;
    if kwargs.complete && leaves.null_count() > 0 {
        return Err(tree.flat()?.refused_values(&columns)?.into());
    }
    Ok(leaves.into_series())
}

fn descent_score_field(fields: &[Field], kwargs: &DescentOptions) -> PolarsResult<Field> {
    feature_type(fields, 1 + usize::from(kwargs.weighted), true)?;
    Ok(Field::new("score".into(), DataType::Float64))
}

/// Minus the inertia of rows around the leaves that a descent finds.
fn descent_score(inputs: &[Series], kwargs: &DescentOptions) -> PolarsResult<Series> {
    let (tree, mut columns) = with_tree(inputs)?;
    let weights = if kwargs.weighted { columns.pop() } else { None };
    let score = tree.score_columns(&columns, weights.as_ref(), Search::Tree)?;
    Ok(Float64Chunked::from_slice("score".into(), &[score]).into_series())
}

fn tree_path_field(_: &[Field], kwargs: &DescentOptions) -> PolarsResult<Field> {
    let level = |level| Field::new(format!("level_{level}").into(), DataType::UInt32);
    Ok(Field::new("path".into(), DataType::Struct((1..=kwargs.depth).map(level).collect())))
}

/// For each leaf, its node on each level.
fn tree_path(inputs: &[Series], kwargs: &DescentOptions) -> PolarsResult<Series> {
    let (tree, columns) = with_tree(inputs)?;
    Ok(tree.level_nodes(columns[0].u32()?, kwargs.depth)?.into_series())
}

expression!(descend(DescentOptions) -> descend_field);
expression!(descent_score(DescentOptions) -> descent_score_field);
expression!(tree_path(DescentOptions) -> tree_path_field);

//! The table of options, as the Python package sees it.

use pyo3::prelude::*;

use super::options::described;
use crate::base::params::Numbers;

/// An option of the Python functions: what their signatures and documentation are written from, and how its values travel.
#[pyclass(frozen, get_all)]
pub struct OptionInfo {
    name: &'static str,
    /// What it means, in paragraphs.
    doc: Vec<String>,
    /// Type and default, as Python writes them.
    annotation: String,
    default: String,
    /// Texts that are passed on as they are.
    words: Vec<&'static str>,
    integers: bool,
    floats: bool,
    /// Whether there may be no value.
    none: bool,
    /// What an error says that it expected.
    expected: String,
}

/// Every option of the Python functions but `k`, in the order of their keywords.
#[pyfunction]
pub fn options() -> Vec<OptionInfo> {
    let described = described().into_iter().map(|info| OptionInfo {
        annotation: info.python_type(),
        name: info.name,
        doc: info.doc,
        default: info.default,
        words: info.form.words.to_vec(),
        integers: info.form.numbers == Some(Numbers::Integers),
        floats: info.form.numbers == Some(Numbers::Floats),
        none: info.form.none,
        expected: info.form.expected(),
    });
    described.collect()
}

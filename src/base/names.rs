//! Names of features.

use std::sync::Arc;

/// One name per feature. A clone shares the names.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(any(feature = "serde", feature = "parts"), derive(serde::Serialize, serde::Deserialize))]
pub enum Names {
    /// A separate name for each feature.
    Each(Arc<Vec<String>>),
    /// The entries of one column: `e[0]`, `e[1]`, ... The column's name is stored once, however many entries there are.
    Entries { column: Arc<str>, width: usize },
}

impl Names {
    /// The number of names.
    pub fn len(&self) -> usize {
        match self {
            Self::Each(names) => names.len(),
            Self::Entries { width, .. } => *width,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name of feature `f`, or `None` beyond the last feature.
    pub fn get(&self, f: usize) -> Option<String> {
        match self {
            Self::Each(names) => names.get(f).cloned(),
            Self::Entries { column, width } => (f < *width).then(|| format!("{column}[{f}]")),
        }
    }
}

impl From<Vec<String>> for Names {
    fn from(names: Vec<String>) -> Self {
        Self::Each(Arc::new(names))
    }
}

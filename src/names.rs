//! Names of features.

use std::sync::Arc;

/// One name a feature. A clone shares them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Names {
    /// A name each.
    Each(Arc<Vec<String>>),
    /// The entries of one column: `e[0]`, `e[1]`, ... Its name is held once, however many there are.
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

    /// The name of feature `f`; none beyond the last.
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

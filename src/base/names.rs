//! Names of features, and of the columns that hold them.

#[cfg(feature = "serde")]
use std::collections::HashSet;
use std::sync::Arc;

#[cfg(feature = "serde")]
use crate::base::error::KMeansError;
use crate::base::error::Result;
use crate::base::memory;

/// How error messages call the names.
const NAMES: &str = "the names of the columns";

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
    /// The names of features that have none: `column_0`, `column_1`, ...
    pub(crate) fn numbered(d: usize) -> Result<Self> {
        Ok(memory::try_collected((0..d).map(|f| memory::text(format_args!("column_{f}"), NAMES)), NAMES)?.into())
    }

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

/// Names of the columns that every centroid frame has. A feature may not have one of these names.
#[cfg(feature = "serde")]
const RESERVED_NAMES: [&str; 3] = ["cluster", "size", "inertia"];
/// Likewise, of the table of the nodes of a tree.
#[cfg(feature = "serde")]
const RESERVED_IN_TREES: [&str; 6] = ["node", "parent", "level", "path", "seed", "leaf"];

/// How the features are stored in a frame.
#[cfg(feature = "serde")]
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum FeatureLayout {
    /// One scalar column per feature, with these names.
    Columns(Vec<String>),
    /// One column of this name. Each of its rows holds all features.
    Array(String),
}

#[cfg(feature = "serde")]
impl FeatureLayout {
    /// The names of the columns.
    pub fn columns(&self) -> &[String] {
        match self {
            Self::Columns(names) => names,
            Self::Array(name) => std::slice::from_ref(name),
        }
    }

    /// One name per feature, as error messages use it.
    pub(crate) fn feature_names(&self, d: usize) -> Result<Names> {
        Ok(match self {
            Self::Columns(names) => memory::texts(names, NAMES)?.into(),
            Self::Array(name) => Names::Entries { column: name.as_str().into(), width: d },
        })
    }

    /// The layout whose features have these names.
    #[cfg(feature = "parts")]
    pub(crate) fn of_names(names: &Names) -> Result<Self> {
        Ok(match names {
            Names::Each(names) => Self::Columns(memory::texts(names, NAMES)?),
            Names::Entries { column, .. } => Self::Array(column.to_string()),
        })
    }

    /// A copy of this layout. It returns an error where there is no memory.
    pub(crate) fn copy(&self) -> Result<Self> {
        Ok(match self {
            Self::Columns(names) => Self::Columns(memory::texts(names, NAMES)?),
            Self::Array(name) => Self::Array(name.clone()),
        })
    }

    /// Checks that the names can be columns of a centroid frame.
    ///
    /// # Errors
    /// As [`FeatureLayout::check_names`], [`KMeansError::UnnamedColumn`] or [`KMeansError::ReservedName`].
    pub fn check(&self) -> Result<()> {
        self.check_names()?;
        if self.columns().iter().any(String::is_empty) {
            return Err(KMeansError::UnnamedColumn);
        }
        self.refuse_names(&RESERVED_NAMES)
    }

    /// As [`FeatureLayout::check`], for the table of the nodes of a tree.
    ///
    /// # Errors
    /// As [`FeatureLayout::check`].
    pub fn check_in_tree(&self) -> Result<()> {
        self.check()?;
        self.refuse_names(&RESERVED_IN_TREES)
    }

    fn refuse_names(&self, reserved: &[&str]) -> Result<()> {
        match self.columns().iter().find(|name| reserved.contains(&name.as_str())) {
            Some(name) => Err(KMeansError::ReservedName { name: name.clone() }),
            None => Ok(()),
        }
    }

    /// Checks that the names are different names.
    ///
    /// # Errors
    /// [`KMeansError::NulInName`] or [`KMeansError::DuplicateName`].
    pub fn check_names(&self) -> Result<()> {
        let mut seen = HashSet::new();
        let names = self.columns().len();
        // The set of names and its hash table. The estimate in bytes assumes a table that is half full.
        seen.try_reserve(names)
            .map_err(|_| memory::no_memory(NAMES, 2 * names as u128 * (1 + size_of::<&String>() as u128)))?;
        for name in self.columns() {
            if name.contains('\0') {
                return Err(KMeansError::NulInName { name: name.clone() });
            }
            if !seen.insert(name) {
                return Err(KMeansError::DuplicateName { name: name.clone() });
            }
        }
        Ok(())
    }
}

//! The named strategies of a fit: the systems of the source papers, and our own. All give the same bits.
//!
//! A name changes which kernels run and what crosses the bus, but never a bit of the result. `src/backend/cuda/papers/systems.rs`
//! says what the papers' systems consist of. `src/backend/cuda/step/choice.rs` chooses the one that [`Strategy::Default`] takes
//! on a GPU.

use std::fmt;
use std::str::FromStr;

use crate::base::error::{KMeansError, Result};

macro_rules! strategies {
    (
        ours { $($(#[$doc:meta])* $variant:ident $name:literal $source:literal,)* }
        papers { $($(#[$paper_doc:meta])* $paper:ident $paper_name:literal $paper_source:literal,)* }
    ) => {
        /// How a fit finds labels and sums.
        ///
        /// [`Strategy::Default`] runs on the CPU and on a GPU, all others on a GPU alone.
        /// The papers' systems are there with the feature `papers`. They differ in speed and in the shapes that they support. If
        /// a system does not support a shape, the error names the limit.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        #[non_exhaustive]
        pub enum Strategy {
            $($(#[$doc])* $variant,)*
            $($(#[$paper_doc])* #[cfg(feature = "papers")] $paper,)*
        }

        impl Strategy {
            /// All strategies.
            pub const ALL: &[Self] = &[$(Self::$variant,)* $(#[cfg(feature = "papers")] Self::$paper,)*];

            /// Its name, as it is parsed and printed.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                    $(#[cfg(feature = "papers")] Self::$paper => $paper_name,)*
                }
            }

            /// Whether it is a system of the papers. These read features of 32 or 64 bits alone.
            pub(crate) fn is_of_a_paper(self) -> bool {
                match self {
                    $(Self::$variant => false,)*
                    $(#[cfg(feature = "papers")] Self::$paper => true,)*
                }
            }

            /// Its source.
            pub fn source(self) -> &'static str {
                match self {
                    $(Self::$variant => $source,)*
                    $(#[cfg(feature = "papers")] Self::$paper => $paper_source,)*
                }
            }
        }
    };
}

strategies! {
    ours {
        /// The strategy that was measured to be fastest for the shape.
        #[default]
        Default "default" "ours",
        /// Keeps rows in registers. One pass finds labels and the sums of rows that changed. At most 12 features.
        Registers "registers" "ours; labels as Li et al. 2010, algorithm 3, one pass as Lutz et al. 2018, section 4",
        /// [`Strategy::Registers`] with centroids one by one.
        RegistersSingle "registers-single" "ours: a variant of registers",
        /// [`Strategy::Registers`] with centroids in groups of 8 or 16.
        RegistersGroups "registers-groups" "ours: a variant of registers",
        /// Divides space into small cells and puts the rows in their order. It compares rows only with centroids that can be nearest to a
        /// row of the cell. At most 4 features.
        Grid "grid" "ours; the filtering of Kanungo et al. 2002",
        /// Reads column by column and keeps the scores in registers. One pass finds labels and the sums of rows that changed. At
        /// most 32 clusters, at least 9 features.
        Columns "columns" "ours",
        /// Computes the product in tiles of shared memory, then the sums of rows that changed. Any number of features.
        Tiled "tiled" "ours; labels as Li et al. 2010, algorithm 4",
        /// [`Strategy::Tiled`] with 32 centroids per tile.
        Tiled32 "tiled-32" "ours: a variant of tiled",
        /// [`Strategy::Tiled`] with 64 centroids per tile.
        Tiled64 "tiled-64" "ours: a variant of tiled",
        /// [`Strategy::Tiled`] with 128 centroids per tile.
        Tiled128 "tiled-128" "ours: a variant of tiled",
        /// [`Strategy::Tiled128`] with partial sums of 128 features.
        Tiled128Panels "tiled-128-panels" "ours: a variant of tiled",
        /// Multiplies half-precision copies on tensor cores, for groups of rows near each other and the centroids near them.
        Tensor "tensor" "ours",
        /// [`Strategy::Tensor`] with products of a warpgroup. GPUs of compute capability 9.0.
        TensorWgmma "tensor-wgmma" "ours: a variant of tensor",
        /// [`Strategy::Tensor`] with products of a warp. GPUs of compute capability 8.0 and later.
        TensorMma "tensor-mma" "ours: a variant of tensor",
    }
    papers {
        /// Loads centroids into shared memory in portions. The labels go to the CPU, which adds up and divides.
        Zechner "zechner" "Zechner & Granitzer 2009; the same split: Rodinia 2009",
        /// Keeps rows in registers or tiles. Sums of groups are reduced round by round. The CPU divides.
        Li "li" "Li, Zhao, Chu & Liu 2010, algorithms 3, 4 and 6",
        /// Finds labels, then sums by cluster merge. Private histograms count the rows.
        LutzMerge "lutz-merge" "Lutz et al. 2018, section 3.1: cluster merge",
        /// Finds labels, then sums by partitioned features. Private histograms count the rows.
        LutzFeatures "lutz-features" "Lutz et al. 2018, section 3.1: partitioned features",
        /// [`Strategy::LutzFeatures`] with rows counted in one histogram for the whole device.
        LutzMassAtomic "lutz-mass-atomic" "Lutz et al. 2018, section 3.2: global atomic",
        /// [`Strategy::LutzFeatures`] with rows counted in one histogram per block, in device memory.
        LutzMassGlobal "lutz-mass-global" "Lutz et al. 2018, section 3.2: partitioned global",
        /// [`Strategy::LutzFeatures`] with rows counted in one histogram per block, in shared memory.
        LutzMassLocal "lutz-mass-local" "Lutz et al. 2018, section 3.2: partitioned local",
        /// One pass: finds labels, then sums by partitioned features while the rows are still in shared memory.
        LutzFused "lutz-fused" "Lutz et al. 2018, section 4",
        /// One pass: reads centroids through the caches, adds with shared and then global atomics. The CPU divides.
        LuigiV1 "luigi-v1" "Luigi 2025, V1",
        /// [`Strategy::LuigiV1`] in two kernels.
        LuigiV2 "luigi-v2" "Luigi 2025, V2",
        /// [`Strategy::LuigiV1`] with all centroids in shared memory.
        LuigiV3 "luigi-v3" "Luigi 2025, V3",
        /// [`Strategy::LuigiV3`] with the division on the GPU.
        LuigiV4 "luigi-v4" "Luigi 2025, V4",
        /// Loads several centroids at a time into shared memory. One thread per cluster adds what changed.
        Kmcuda "kmcuda" "kmcuda 2016, Lloyd",
        /// Keeps bounds of each row from iteration to iteration: one for its centroid and one for each group of centroids. Rows
        /// whose bounds prove that their label stays are not looked at. Other rows are compared with the groups that may hold
        /// their label.
        Yinyang "yinyang" "kmcuda 2016, Yinyang; bounds as Ding et al. 2015",
    }
}

impl FromStr for Strategy {
    type Err = KMeansError;
    fn from_str(name: &str) -> Result<Self> {
        let known = || Self::ALL.iter().map(|strategy| format!("{:?}", strategy.name())).collect::<Vec<_>>().join(", ");
        let found = Self::ALL.iter().find(|strategy| strategy.name() == name);
        found.copied().ok_or_else(|| KMeansError::InvalidOption {
            option: "strategy",
            expected: format!("one of {}", known()),
            got: format!("{name:?}"),
        })
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(names_come_back);
    fn names_come_back() {
        for strategy in Strategy::ALL {
            assert_eq!(strategy.to_string().parse::<Strategy>().unwrap(), *strategy);
            assert!(!strategy.source().is_empty());
        }
        let error = "fastest".parse::<Strategy>().unwrap_err().to_string();
        assert!(error.contains("\"tiled-128\"") && error.contains("\"fastest\""), "{error}");
    }
}

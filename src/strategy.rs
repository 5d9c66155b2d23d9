//! The named strategies of a fit on a GPU: the systems of the source papers and our own, every one with the same bits.
//!
//! A name changes which kernels run and what crosses the bus, never a bit of the result. What each is made of is in
//! `src/backend/cuda/systems.rs`; which one [`Strategy::Default`] takes, in `src/backend/cuda/chooser.rs`.

use std::fmt;
use std::str::FromStr;

use crate::error::{KMeansError, Result};

macro_rules! strategies {
    ($($(#[$doc:meta])* $variant:ident $name:literal $source:literal,)*) => {
        /// How a fit on a GPU finds labels and sums.
        ///
        /// The papers' systems differ in speed and in the shapes that they can do; what one cannot do is an error that names its
        /// limit. On the CPU there is only one way.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        #[non_exhaustive]
        pub enum Strategy {
            $($(#[$doc])* $variant,)*
        }

        impl Strategy {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Its name, as it is parsed and printed.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// Where it comes from.
            pub fn source(self) -> &'static str {
                match self { $(Self::$variant => $source),* }
            }
        }
    };
}

strategies! {
    /// Whichever was measured to be the fastest for the shape.
    #[default]
    Default "default" "ours",
    /// Rows in registers, labels and sums of what changed in one pass; at most 12 features.
    Registers "registers" "ours; labels as Li et al. 2010, algorithm 3, one pass as Lutz et al. 2018, section 4",
    /// [`Strategy::Registers`], centroids one by one.
    RegistersSingle "registers-single" "ours: a variant of registers",
    /// [`Strategy::Registers`], centroids in groups of 8.
    RegistersGroups8 "registers-groups8" "ours: a variant of registers",
    /// [`Strategy::Registers`], centroids in groups of 16.
    RegistersGroups16 "registers-groups16" "ours: a variant of registers",
    /// The product in tiles of shared memory, then sums of what changed; any number of features.
    Tiled "tiled" "ours; labels as Li et al. 2010, algorithm 4",
    /// [`Strategy::Tiled`], 32 centroids a tile.
    Tiled32 "tiled-32" "ours: a variant of tiled",
    /// [`Strategy::Tiled`], 64 centroids a tile.
    Tiled64 "tiled-64" "ours: a variant of tiled",
    /// [`Strategy::Tiled`], 128 centroids a tile.
    Tiled128 "tiled-128" "ours: a variant of tiled",
    /// [`Strategy::Tiled128`] with partial sums of 128 features.
    Tiled128Panels "tiled-128-panels" "ours: a variant of tiled",
    /// Centroids through shared memory in portions; labels to the CPU, which adds up and divides.
    Zechner "zechner" "Zechner & Granitzer 2009; the same split: Rodinia 2009",
    /// Rows in registers or tiles; sums of groups, reduced round by round; division on the CPU.
    Li "li" "Li, Zhao, Chu & Liu 2010, algorithms 3, 4 and 6",
    /// Labels, then sums by cluster merge, rows counted by private histograms.
    LutzMerge "lutz-merge" "Lutz et al. 2018, section 3.1: cluster merge",
    /// Labels, then sums by partitioned features, rows counted by private histograms.
    LutzFeatures "lutz-features" "Lutz et al. 2018, section 3.1: partitioned features",
    /// [`Strategy::LutzFeatures`], rows counted in one histogram of the device.
    LutzMassAtomic "lutz-mass-atomic" "Lutz et al. 2018, section 3.2: global atomic",
    /// [`Strategy::LutzFeatures`], rows counted in a histogram a block in device memory.
    LutzMassGlobal "lutz-mass-global" "Lutz et al. 2018, section 3.2: partitioned global",
    /// [`Strategy::LutzFeatures`], rows counted in a histogram a block in shared memory.
    LutzMassLocal "lutz-mass-local" "Lutz et al. 2018, section 3.2: partitioned local",
    /// One pass: labels, then partitioned features of the rows that are still in shared memory.
    LutzFused "lutz-fused" "Lutz et al. 2018, section 4",
    /// One pass: centroids through the caches, shared then global atomics; division on the CPU.
    LuigiV1 "luigi-v1" "Luigi 2025, V1",
    /// [`Strategy::LuigiV1`] in two kernels.
    LuigiV2 "luigi-v2" "Luigi 2025, V2",
    /// [`Strategy::LuigiV1`] with all centroids in shared memory.
    LuigiV3 "luigi-v3" "Luigi 2025, V3",
    /// [`Strategy::LuigiV3`] with the division on the GPU.
    LuigiV4 "luigi-v4" "Luigi 2025, V4",
    /// Several centroids at a time through shared memory; a thread a cluster adds what changed.
    Kmcuda "kmcuda" "kmcuda 2016, Lloyd",
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        for strategy in Strategy::ALL {
            assert_eq!(strategy.to_string().parse::<Strategy>().unwrap(), *strategy);
            assert!(!strategy.source().is_empty());
        }
        let error = "fastest".parse::<Strategy>().unwrap_err().to_string();
        assert!(error.contains("\"lutz-fused\"") && error.contains("\"fastest\""), "{error}");
    }
}

//! The systems from the papers: the parts of each system, and the sizes of its tables. All functions here depend only on the
//! shape.
//!
//! | strategy | labels | feature sums | rows counted | means |
//! |---|---|---|---|---|
//! | zechner | portions of one centroid | on the CPU | on the CPU | on the CPU |
//! | li | registers, tiles above 16 features | groups | groups | on the CPU |
//! | lutz-merge | registers, tiles above 16 features | cluster merge | private | on the GPU |
//! | lutz-features | as lutz-merge | partitioned features | private | on the GPU |
//! | lutz-mass-atomic, -global, -local | as lutz-merge | partitioned features | atomic, global, local | on the GPU |
//! | lutz-fused | one pass | partitioned features | private | on the GPU |
//! | luigi-v1, -v3 | one pass, centroids in device (v1), shared (v3) memory | shared atomics | shared atomics | on the CPU |
//! | luigi-v2 | rows in registers, or read again | shared atomics | shared atomics | on the CPU |
//! | luigi-v4 | one pass, centroids in shared memory | shared atomics | shared atomics | on the GPU |
//! | kmcuda | portions of several centroids | one thread a cluster, changed rows only | the same | on the GPU |
//!
//! In some points the papers differ from how others quote them. Luigi's V1 already is one pass, with atomics first in shared
//! memory and then in device memory. V2 splits this pass in two. Only V4 divides on the GPU. kmcuda moves only the rows that
//! changed. UV_k-Means, as Li et al. describe it, adds up parts on the GPU before the CPU adds the rest. So only Rodinia works
//! like Zechner.

use super::sizes::{FIT_BYTES, MOST_SCRATCH, SumFeatures, block_sums, entries, features, fused, table};
use crate::backend::cuda::shape::{FitShape, GpuSize};
use crate::backend::cuda::step::filter::{CopyLayout, FilterSpec};
use crate::backend::cuda::step::{Refusal, Supported};
use crate::base::strategy::Strategy;
use crate::bounds::Chains;

/// How a system finds labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabelMethod {
    /// `kernels/papers/assign_portions.cu`: a portion is up to 128 features of one centroid.
    PortionsOfOne,
    /// `kernels/papers/assign_portions.cu`: a portion has several centroids.
    Portions,
    /// `kernels/papers/assign_table.cu`, or `kernels/step/assign_tiled.cu` for more than 16 features.
    RowsOrTiles,
    /// `kernels/papers/assign_table.cu`. Centroids are in shared memory (`shared`) or are read from device memory. If `sums`, the
    /// same pass adds up the sums.
    Rows { shared: bool, sums: bool },
    /// `kernels/papers/assign_fused.cu`: one pass for labels and sums.
    Fused,
}

/// How a system adds up features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeatureSums {
    /// In the pass that finds the labels.
    InPass,
    /// `kernels/papers/sum_merge.cu`.
    Merge,
    /// `kernels/papers/sum_features.cu`.
    Features,
    /// `kernels/papers/sum_groups.cu`.
    Groups,
    /// `sum_shared` of `kernels/papers/sum_atomics.cu`.
    Atomics,
    /// `sum_adjust` of `kernels/papers/sum_atomics.cu`.
    Adjust,
    /// On the CPU.
    Host,
}

/// How a system counts the rows of each cluster (`kernels/papers/mass.cu`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mass {
    /// The kernel that adds up features also counts rows.
    WithFeatures,
    Atomic,
    Global,
    Local,
    Private,
}

/// One of the systems from the papers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct System {
    pub strategy: Strategy,
    pub labels: LabelMethod,
    pub sums: FeatureSums,
    pub mass: Mass,
    /// Whether the CPU computes the means in each iteration.
    pub host_means: bool,
}

impl System {
    /// The system with this name. None for our own strategies.
    pub fn of(strategy: Strategy) -> Option<Self> {
        use FeatureSums as S;
        use LabelMethod as L;
        use Mass as M;
        let (labels, sums, mass, host_means) = match strategy {
            Strategy::Zechner => (L::PortionsOfOne, S::Host, M::WithFeatures, true),
            Strategy::Li => (L::RowsOrTiles, S::Groups, M::WithFeatures, true),
            Strategy::LutzMerge => (L::RowsOrTiles, S::Merge, M::Private, false),
            Strategy::LutzFeatures => (L::RowsOrTiles, S::Features, M::Private, false),
            Strategy::LutzMassAtomic => (L::RowsOrTiles, S::Features, M::Atomic, false),
            Strategy::LutzMassGlobal => (L::RowsOrTiles, S::Features, M::Global, false),
            Strategy::LutzMassLocal => (L::RowsOrTiles, S::Features, M::Local, false),
            Strategy::LutzFused => (L::Fused, S::InPass, M::WithFeatures, false),
            Strategy::LuigiV1 => (L::Rows { shared: false, sums: true }, S::InPass, M::WithFeatures, true),
            Strategy::LuigiV2 => (L::Rows { shared: false, sums: false }, S::Atomics, M::WithFeatures, true),
            Strategy::LuigiV3 => (L::Rows { shared: true, sums: true }, S::InPass, M::WithFeatures, true),
            Strategy::LuigiV4 => (L::Rows { shared: true, sums: true }, S::InPass, M::WithFeatures, false),
            Strategy::Kmcuda => (L::Portions, S::Adjust, M::WithFeatures, false),
            _ => return None,
        };
        Some(Self { strategy, labels, sums, mass, host_means })
    }

    /// Whether each iteration adds up all rows again and does not use the sums of the iteration before.
    pub fn adds_all(self) -> bool {
        !matches!(self.sums, FeatureSums::Adjust | FeatureSums::Host)
    }

    /// Whether labels come from `kernels/step/assign_tiled.cu`.
    pub fn tiled(self, d: usize) -> bool {
        self.labels == LabelMethod::RowsOrTiles && d > MOST_REGISTERS
    }

    /// Checks that the tables for these sizes fit.
    pub fn check(self, shape: &FitShape, gpu: GpuSize) -> Supported {
        let (k, d) = (shape.k, shape.d);
        let kernel = match self.labels {
            LabelMethod::Rows { .. } => self.row_kernel(shape).shared,
            LabelMethod::Fused => fused(shape).0.shared,
            _ => 0,
        };
        let sums = if self.sums == FeatureSums::Atomics { block_sums(shape) } else { 0 };
        let histogram = match self.mass {
            Mass::Local => k.saturating_mul(4),
            Mass::Private => k.saturating_mul(4 * 32),
            _ => 0,
        };
        // The smallest tables in device memory: those of 32 threads (merge), of 32 groups (groups), or of one block for each
        // chunk (features).
        let scratch = match self.sums {
            FeatureSums::Merge => shape.accumulators().saturating_mul(8 * 32),
            FeatureSums::Groups => entries(shape).saturating_mul(8 * 32),
            FeatureSums::Features => {
                let SumFeatures { tables, chunk, .. } = features(shape, gpu);
                if tables.fits(gpu) { 0 } else { tables.bytes.saturating_mul(shape.columns().div_ceil(chunk)) }
            }
            _ => 0,
        };
        for (what, limit, bytes) in [
            ("tables in shared memory", gpu.shared, kernel),
            ("a block's sums in shared memory", gpu.shared, sums),
            ("a histogram in shared memory", gpu.shared, histogram),
            ("tables in device memory", MOST_SCRATCH, scratch),
        ] {
            if bytes > limit {
                return Err(Refusal {
                    limit: format!("{what} of at most {limit} bytes"),
                    hint: ": fewer clusters or features",
                    got: format!("{bytes} bytes for {k} clusters of {d} features"),
                });
            }
        }
        Ok(())
    }

    /// The kernel that finds labels. Not for systems that use `assign_tiled` ([`Self::tiled`]).
    pub fn row_kernel(self, shape: &FitShape) -> RowKernel {
        let (d, k) = (shape.d, shape.k);
        let bucket = [4, 8, MOST_REGISTERS].into_iter().find(|&width| d <= width);
        let width = bucket.unwrap_or(d.next_multiple_of(4));
        let variant = |end: &str| bucket.map_or_else(|| format!("_any{end}"), |width| format!("_d{width}{end}"));
        let kernel = |variant, width, threads, shared| RowKernel {
            variant,
            threads,
            shared,
            k_padded: k.next_multiple_of(4),
            width,
            features: d,
            across: 1,
            points: 1,
            slots: 0,
        };
        // Kernels for portions take any number of features and keep none in registers.
        let portions = |threads, shared| kernel(String::new(), d, threads, shared);
        match self.labels {
            LabelMethod::PortionsOfOne => {
                let features = d.min(ZECHNER_THREADS as usize);
                RowKernel { features, ..portions(ZECHNER_THREADS, (features + 1) * 4) }
            }
            LabelMethod::Portions => {
                let features = d.min(PORTION_BYTES / 4 - 1);
                let across = (PORTION_BYTES / 4 / (features + 1)).clamp(1, k);
                RowKernel { features, across, ..portions(256, across * (features + 1) * 4) }
            }
            LabelMethod::Fused => {
                let (tables, points, slots) = fused(shape);
                RowKernel { points, slots, ..kernel(variant(""), width, tables.threads, tables.shared) }
            }
            LabelMethod::Rows { .. } | LabelMethod::RowsOrTiles => {
                let (shared, sums) = match self.labels {
                    LabelMethod::Rows { shared, sums } => (shared, sums),
                    // Lutz et al. keep the centroids in shared memory if they fit. Li et al. do not.
                    _ => (self.strategy != Strategy::Li && table(shape, width) <= FIT_BYTES, false),
                };
                let end = match (shared, sums) {
                    (false, false) => "",
                    (true, false) => "_shared",
                    (false, true) => "_sums",
                    (true, true) => "_shared_sums",
                };
                let bytes =
                    (if shared { table(shape, width) } else { 0 }).saturating_add(if sums { block_sums(shape) } else { 0 });
                kernel(variant(end), width, 256, bytes)
            }
        }
    }
}

/// The most features of a row that are kept in registers (`kernels/papers/assign_table.cu`).
const MOST_REGISTERS: usize = 16;
/// Threads of a block, and the most features of a portion (Zechner & Granitzer 2009, section V-C).
const ZECHNER_THREADS: u32 = 128;
/// The most bytes of a portion (kmcuda 2016).
const PORTION_BYTES: usize = 48 << 10;

/// A kernel that finds labels by going through the centroids one by one, with the settings of its block and its portions.
pub struct RowKernel {
    /// The end of the kernel's name: how many features it keeps in registers, and more.
    pub variant: String,
    pub threads: u32,
    pub shared: usize,
    pub k_padded: usize,
    /// Floats of the copy of one centroid.
    pub width: usize,
    pub features: usize,
    pub across: usize,
    pub points: u32,
    pub slots: usize,
}

impl RowKernel {
    /// How it reads the copies of the centroids.
    pub fn filter(&self) -> FilterSpec {
        FilterSpec {
            k_padded: self.k_padded,
            layout: CopyLayout::ByCentroid { width: self.width, half: None },
            chains: Chains::FromHalf,
            subtracts_lower: false,
        }
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;
    use crate::backend::cuda::step::choice::tests::{self, H200};

    fn shape(d: usize, k: usize) -> FitShape {
        tests::shape(1_000_000, d, k)
    }

    unit_test!(every_name_that_is_not_ours_is_a_system);
    fn every_name_that_is_not_ours_is_a_system() {
        for &strategy in Strategy::ALL {
            let is_none = strategy.source().starts_with("ours") || strategy == Strategy::Yinyang;
            assert_eq!(System::of(strategy).is_none(), is_none, "{strategy}");
        }
    }

    unit_test!(points_and_columns_share_a_block);
    fn points_and_columns_share_a_block() {
        for d in [1, 2, 3, 4, 17, 34, 70, 300] {
            for k in [1, 4, 64, 300, 5_000] {
                let SumFeatures { tables, points, chunk } = features(&shape(d, k), H200);
                assert!(
                    points.is_power_of_two()
                        && (8..=128).contains(&points)
                        && points as usize * chunk <= tables.threads as usize
                );
                let (tables, points, slots) = fused(&shape(d, k));
                assert!(points.is_power_of_two() && slots >= d && slots >= points as usize * d, "{d} {k} {tables:?}");
            }
        }
    }

    unit_test!(limits_are_errors_that_name_them);
    fn limits_are_errors_that_name_them() {
        let check = |strategy, d, k| System::of(strategy).unwrap().check(&shape(d, k), H200);
        for &strategy in Strategy::ALL.iter().filter(|strategy| System::of(**strategy).is_some()) {
            check(strategy, 4, 64).unwrap();
            check(strategy, 70, 20).unwrap();
        }
        let error = check(Strategy::LuigiV3, 408, 5_000).unwrap_err().of(Strategy::LuigiV3).to_string();
        assert!(error.contains("232448 bytes") && error.contains("luigi-v3") && error.contains("5000 clusters"), "{error}");
        assert!(check(Strategy::LutzFused, 70, 5_000).is_err() && check(Strategy::LutzMerge, 408, 50_000).is_err());
        assert!(check(Strategy::Kmcuda, 5_000, 100_000).is_ok() && check(Strategy::Zechner, 5_000, 100_000).is_ok());
    }

    unit_test!(kernels_are_named_by_width);
    fn kernels_are_named_by_width() {
        let end = |strategy, d| System::of(strategy).unwrap().row_kernel(&shape(d, 10)).variant;
        assert_eq!(end(Strategy::LuigiV4, 2), "_d4_shared_sums");
        assert_eq!(end(Strategy::LuigiV1, 17), "_any_sums");
        assert_eq!(end(Strategy::Li, 16), "_d16");
        assert_eq!(end(Strategy::Zechner, 16), "");
        assert_eq!(end(Strategy::LutzFused, 5), "_d8");
    }
}

//! Compares the engine with an oracle that shares no code with it. It works on slices, without Polars.

/// A test in both types of features, with a value for each if there are two.
macro_rules! in_both_types {
    ($name:ident, $t:ident => $test:expr) => {
        in_both_types!($name, $t, _seed in [(), ()] => $test);
    };
    ($name:ident, $t:ident, $seed:ident in [$float32:expr, $float64:expr] => $test:expr) => {
        mod $name {
            use super::*;

            #[test]
            fn float32() {
                type $t = f32;
                let $seed = $float32;
                $test
            }
            #[test]
            fn float64() {
                type $t = f64;
                let $seed = $float64;
                $test
            }
        }
    };
}

mod allowances;
#[cfg(feature = "cuda")]
#[path = "../common/child.rs"]
mod child;
mod chunking;
mod conformance;
mod data;
mod distances;
mod distributions;
mod draws;
mod exactness;
mod far;
mod fewer;
mod fit_each;
#[cfg(unix)]
mod forked;
mod gpu;
#[cfg(feature = "cuda")]
mod gpu_tables;
mod gpus;
#[cfg(feature = "cuda")]
mod grid;
mod groups;
mod half;
mod living;
#[cfg(all(feature = "cuda", feature = "bench"))]
#[path = "../common/looped.rs"]
mod looped;
#[cfg(feature = "cuda")]
mod no_memory;
mod oracle;
#[cfg(feature = "parts")]
mod parts;
mod progress;
#[cfg(all(feature = "cuda", feature = "bench"))]
mod reference_labels;
mod refusals;
mod row_order;
mod same_bits;
mod seeding;
#[cfg(feature = "cuda")]
mod seeding_on_gpu;
mod seedings;
mod sessions;
mod sharded;
mod sizes;
mod sort_by;
#[cfg(feature = "papers")]
mod strategies;
#[cfg(feature = "cuda")]
mod streaming;
#[cfg(feature = "cuda")]
mod tensor;
#[cfg(feature = "cuda")]
mod tensor_predictions;
mod transform;
mod traps;
mod trees;
mod views;
#[cfg(feature = "papers")]
mod yinyang;

//! The compiled kernels: the name of each module in `kernels/`, and its fat binary.

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

//! The instructions that `neon.rs` takes, in plain Rust, for tests on other processors. Names and types are those of the standard
//! library.

#![allow(non_camel_case_types)]

use super::HALF;

#[derive(Clone, Copy)]
pub struct float32x4_t([f32; HALF]);
#[derive(Clone, Copy)]
pub struct float64x2_t([f32; HALF]);
#[derive(Clone, Copy)]
pub struct int32x4_t([i32; HALF]);
#[derive(Clone, Copy)]
pub struct uint32x4_t([u32; HALF]);

/// A function of lanes.
macro_rules! lanes {
    ($($name:ident($($x:ident: $t:ty),*) -> $out:ident = |$i:ident| $value:expr;)*) => { $(
        pub unsafe fn $name($($x: $t),*) -> $out {
            $out(std::array::from_fn(|$i| $value))
        }
    )* };
}

lanes! {
    vdupq_n_f32(x: f32) -> float32x4_t = |_i| x;
    vsubq_f32(a: float32x4_t, b: float32x4_t) -> float32x4_t = |i| a.0[i] - b.0[i];
    vaddq_f32(a: float32x4_t, b: float32x4_t) -> float32x4_t = |i| a.0[i] + b.0[i];
    vfmaq_f32(c: float32x4_t, a: float32x4_t, b: float32x4_t) -> float32x4_t = |i| a.0[i].mul_add(b.0[i], c.0[i]);
    vcvtq_f32_s32(a: int32x4_t) -> float32x4_t = |i| a.0[i] as f32;
    vreinterpretq_s32_f32(a: float32x4_t) -> int32x4_t = |i| a.0[i].to_bits() as i32;
    vreinterpretq_f32_s32(a: int32x4_t) -> float32x4_t = |i| f32::from_bits(a.0[i] as u32);
    vaddq_s32(a: int32x4_t, b: int32x4_t) -> int32x4_t = |i| a.0[i].wrapping_add(b.0[i]);
    vcltq_f32(a: float32x4_t, b: float32x4_t) -> uint32x4_t = |i| if a.0[i] < b.0[i] { u32::MAX } else { 0 };
    vcgtq_f32(a: float32x4_t, b: float32x4_t) -> uint32x4_t = |i| if a.0[i] > b.0[i] { u32::MAX } else { 0 };
    vmvnq_u32(a: uint32x4_t) -> uint32x4_t = |i| !a.0[i];
    vandq_u32(a: uint32x4_t, b: uint32x4_t) -> uint32x4_t = |i| a.0[i] & b.0[i];
    vbslq_f32(mask: uint32x4_t, a: float32x4_t, b: float32x4_t) -> float32x4_t =
        |i| f32::from_bits(mask.0[i] & a.0[i].to_bits() | !mask.0[i] & b.0[i].to_bits());
    vtrn1q_f32(a: float32x4_t, b: float32x4_t) -> float32x4_t = |i| if i % 2 == 0 { a.0[i] } else { b.0[i - 1] };
    vtrn2q_f32(a: float32x4_t, b: float32x4_t) -> float32x4_t = |i| if i % 2 == 0 { a.0[i + 1] } else { b.0[i] };
    vreinterpretq_f64_f32(a: float32x4_t) -> float64x2_t = |i| a.0[i];
    vreinterpretq_f32_f64(a: float64x2_t) -> float32x4_t = |i| a.0[i];
    vtrn1q_f64(a: float64x2_t, b: float64x2_t) -> float64x2_t = |i| if i < 2 { a.0[i] } else { b.0[i - 2] };
    vtrn2q_f64(a: float64x2_t, b: float64x2_t) -> float64x2_t = |i| if i < 2 { a.0[i + 2] } else { b.0[i] };
}

pub unsafe fn vaddvq_u32(a: uint32x4_t) -> u32 {
    a.0.iter().sum()
}

pub unsafe fn vld1q_f32(p: *const f32) -> float32x4_t {
    // SAFETY: the caller passes four values, as for the instruction.
    float32x4_t(unsafe { p.cast::<[f32; HALF]>().read_unaligned() })
}

pub unsafe fn vld1q_u32(p: *const u32) -> uint32x4_t {
    // SAFETY: the caller passes four values, as for the instruction.
    uint32x4_t(unsafe { p.cast::<[u32; HALF]>().read_unaligned() })
}

pub unsafe fn vst1q_f32(p: *mut f32, a: float32x4_t) {
    // SAFETY: the caller passes four values, as for the instruction.
    unsafe { p.cast::<[f32; HALF]>().write_unaligned(a.0) }
}

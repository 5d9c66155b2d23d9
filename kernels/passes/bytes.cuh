// Copies of rows and candidates in 8-bit integers, and the bound with which they rule candidates out: src/bounds/bytes.rs has the proof.
//
// A copy is of the difference to a centre, a seed near the row, times a power of two that makes the largest distance of the data at most 1.
#pragma once
#include "draws.cuh"

#define MOST_CENTRES 32
#define PLACES 32 // places that share a centre
#define NO_ROW 0xffffffffu

// 1.0 / (1 << 30), 1.0 / (1 << 20) and 2^-17: `ROUNDED`, `NORM` and `SLACK` of src/bounds/bytes.rs.
#define ROUNDED 9.31322574615478515625e-10
#define NORM 9.5367431640625e-07
#define SLACK 7.62939453125e-06f
#define LEAST 7.88860905e-31f // at least 2^-100
#define NEVER 1e30f // a row at distance 0 comes nearer to nothing

// What is known of a copy, in scaled units. step: the value of an integer of the copy. norm: that of the exact difference, rounded up.
// residual: the norm of the error of the copy, rounded up. square: of a candidate, the squared norm, rounded down; of a row, this minus the
// distance to the nearest seed, rounded down.
struct ByteFacts {
    float square, step, norm, residual;
};

// The copies. A place holds a row. The places of a centre follow each other.
template <typename T> struct ByteCopies {
    uint4* bytes; // (pieces, places): 16 features each
    ByteFacts* facts; // (places)
    T* values; // (places, d): the rows themselves
    u32* order; // (places): the row, or NO_ROW
    u32* centre_of; // (places / PLACES)
    uint4* candidate_bytes; // (centres, m, pieces)
    ByteFacts* candidate_facts; // (centres, m)
    double scale; // a power of two
    u64 places; // a multiple of PLACES
    u32 pieces;
    u32 centres; // the first ones of the seeds; 0 if there are no copies
};

// A scaled difference to a centre. It has one rounding, that of the difference.
template <typename T> __device__ __forceinline__ double scaled(T x, T centre, double scale) {
    return __dmul_rn(__dadd_rn((double)x, -(double)centre), scale);
}

// A step for differences of which this is the largest, and its inverse. With step 0 all integers are 0.
__device__ __forceinline__ float step_of(double largest, double& inverse) {
    float step = __double2float_ru(largest / 127.0);
    if (!(step > 1e-30f)) step = 0.0f;
    inverse = step > 0.0f ? 1.0 / (double)step : 0.0;
    return step;
}

// The integer of a difference. Adds the square of the error to `residual`.
__device__ __forceinline__ u32 byte_of(double t, float step, double inverse, double& residual) {
    int q = __double2int_rn(__dmul_rn(t, inverse));
    q = q < -127 ? -127 : q > 127 ? 127 : q;
    const double rest = __fma_rn(-(double)q, (double)step, t);
    residual = __fma_rn(rest, rest, residual);
    return (u32)q & 0xffu;
}

__device__ __forceinline__ float norm_up(double square) { return __double2float_ru(__dmul_ru(__dsqrt_ru(square), 1.0 + NORM)); }
__device__ __forceinline__ float residual_up(double square, float norm) {
    return __double2float_ru(__dadd_ru(__dmul_ru(__dsqrt_ru(square), 1.0 + NORM), __dmul_ru((double)norm, ROUNDED)));
}

// The squared norm of a row's copy minus its distance to the nearest seed, rounded down.
__device__ __forceinline__ float lead(double square, double nearest, double scale) {
    if (nearest == 0.0) return NEVER;
    const double scaled_down = __dmul_rd(square, 1.0 - ROUNDED), scaled_up = __dmul_ru(__dmul_ru(nearest, scale), scale);
    return __double2float_rd(__dadd_rd(scaled_down, -scaled_up));
}

// The same after the distance fell from `before` to `after`.
__device__ __forceinline__ float lead_after(float lead, double before, double after, double scale) {
    if (after == 0.0) return NEVER;
    const double gained = __dmul_rd(__dmul_rd(__dadd_rd(before, -after), scale), scale);
    return __double2float_rd(__dadd_rd((double)lead, gained));
}

// What roundings in float32 can add up to.
__device__ __forceinline__ float slack_of(const ByteFacts& row, const ByteFacts& c) {
    return __fmaf_rn(SLACK, fabsf(row.square) + __fmaf_rn(row.norm, row.norm, c.norm * c.norm), LEAST);
}

// Whether the norms alone rule a candidate out: |x - c| >= |c| - |x|.
__device__ __forceinline__ bool far_by_norms(const ByteFacts& row, const ByteFacts& c) {
    if (row.square == NEVER) return true;
    const float apart = __fmaf_rn(c.norm, 1.0f - 2.0f * SLACK, -row.norm);
    const float near = __fmaf_rn(row.norm, row.norm, -row.square);
    return apart > 0.0f && apart * apart > near + slack_of(row, c);
}

// Whether the copies rule a candidate out. product: that of the integers.
__device__ __forceinline__ bool far_by_bytes(const ByteFacts& row, const ByteFacts& c, int product) {
    const float error = __fmaf_rn(row.norm, c.residual, row.residual * (c.norm + c.residual));
    const float both = __fmaf_rn(row.step * c.step, (float)product, error);
    return __fmaf_rn(-2.0f, both, row.square + c.square) > slack_of(row, c);
}

// Copies of rows and candidates in 8-bit integers, and the bound with which they rule candidates out: src/bounds/bytes.rs has the proof.
//
// A copy is of the difference to a centre, a seed near the row, times a power of two that makes the largest distance of the data at most 1.
//
// Copies lie as the instruction takes them that multiplies 16 rows with 8 candidates over a piece of 32 features. A word has 4 features.
// Eight words of a piece are in two halves of four. Lane l gets word l % 4 of each half of rows l / 4 and l / 4 + 8, and of candidate l / 4.
#pragma once
#include "draws.cuh"

#define PLACES 32 // places of a tile: they share a centre
#define PIECE 32 // features of a piece
#define BESIDE 8 // candidates that are multiplied at once
#define QUARTER 4 // candidates that a warp of `plus_near` compares with a centre
#define NO_ROW 0xffffffffu

// 1.0 / (1 << 30), 1.0 / (1 << 20) and 2^-17: `ROUNDED`, `NORM` and `SLACK` of src/bounds/bytes.rs.
#define ROUNDED 9.31322574615478515625e-10
#define NORM 9.5367431640625e-07
#define SLACK 7.62939453125e-06f
#define LEAST 7.88860905e-31f // at least 2^-100
#define NEVER 1e30f // a row at distance 0 comes nearer to nothing
#define REACHED 0.99f
#define APART 2e-15f

// What is known of a copy, in scaled units. step: the value of an integer of the copy. norm: that of the exact difference, rounded up.
// residual: the norm of the error of the copy, rounded up. square: of a candidate, the squared norm, rounded down; of a row, this minus the
// distance to the nearest seed, rounded down.
struct ByteFacts {
    float square, step, norm, residual;
};

// The copies. A place holds a row. The places of a centre follow each other.
template <typename T> struct ByteCopies {
    uint4* bytes; // (tiles, pieces, PLACES / 16, 32): what a lane needs for 16 rows of a tile
    ByteFacts* facts; // (places)
    const T* values; // (n, d): the rows themselves, row-major
    u32* order; // (places): the row, or NO_ROW
    const u32* centre_of; // (tiles)
    u32* reaches; // (centres): no row of the centre comes nearer to what is farther from it than this. The bits of a float
    uint2* candidate_bytes; // (centres, beside, pieces, 32): what a lane needs for BESIDE candidates
    ByteFacts* candidate_facts; // (centres, m)
    u32* masks; // (centres): a byte for each QUARTER of the candidates, in which a bit says that a candidate is within reach
    double scale; // a power of two
    u64 places; // a multiple of PLACES
    u32 pieces;
    u32 centres; // the first ones of the seeds; 0 if there are no copies
    u32 beside; // candidates over BESIDE, rounded up
    u32 unused;
};

// The place of a word of a row's copy, and of a candidate's. row: in its tile.
template <typename T> __device__ __forceinline__ u64 row_word(const ByteCopies<T>& a, u64 tile, u32 row, u32 word) {
    const u32 piece = word / 8, half = word / 4 % 2, lane = row % 8 * 4 + word % 4;
    return (((tile * a.pieces + piece) * (PLACES / 16) + row / 16) * 32 + lane) * 4 + half * 2 + row / 8 % 2;
}
template <typename T> __device__ __forceinline__ u64 candidate_word(const ByteCopies<T>& a, u64 centre, u32 j, u32 word) {
    const u32 piece = word / 8, half = word / 4 % 2, lane = j % BESIDE * 4 + word % 4;
    return (((centre * a.beside + j / BESIDE) * a.pieces + piece) * 32 + lane) * 2 + half;
}

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

// How far a candidate must be from a row's centre so that the row does not come nearer to it: |x| and the distance to the nearest seed.
__device__ __forceinline__ float reach_of(float norm, double nearest, double scale) {
    if (nearest == 0.0) return 0.0f;
    return __double2float_ru(__dadd_ru((double)norm, __dsqrt_ru(__dmul_ru(__dmul_ru(nearest, scale), scale))));
}

// Whether a candidate is so far from a centre that it is beyond the reach of its rows. norm: the distance, rounded up.
__device__ __forceinline__ bool beyond_reach(float norm, float reach) {
    return __fmaf_rn(norm, REACHED, -APART) > reach && norm < NEVER;
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

// The sums of squares of a vector and of what its copy leaves, and the step of the copy.
struct CopiedBytes {
    double square, residual;
    float step;
};

// Copies x, seen from a centre, by one warp. `word(i)`: where word i of the copy lies.
template <typename T, typename Word>
__device__ __forceinline__ CopiedBytes copy_bytes(const ByteCopies<T>& a, const T* x, const T* centre, int d, const Word& word) {
    const u32 lane = threadIdx.x & 31;
    double largest = 0.0, inverse;
    CopiedBytes copied = {};
#pragma unroll 4
    for (int f = lane; f < d; f += 32) {
        const double t = scaled(x[f], centre[f], a.scale);
        largest = fmax(largest, fabs(t));
        copied.square = __fma_rn(t, t, copied.square);
    }
#pragma unroll
    for (int o = 16; o; o >>= 1) {
        largest = fmax(largest, __shfl_xor_sync(FULL_WARP, largest, o));
        copied.square += __shfl_xor_sync(FULL_WARP, copied.square, o);
    }
    copied.step = step_of(largest, inverse);
#pragma unroll 2
    for (int i = lane; i < PIECE / 4 * (int)a.pieces; i += 32) {
        u32 bytes = 0;
#pragma unroll
        for (int b = 0; b < 4; b++) {
            const int f = 4 * i + b;
            if (f < d) bytes |= byte_of(scaled(x[f], centre[f], a.scale), copied.step, inverse, copied.residual) << 8 * b;
        }
        word(i) = bytes;
    }
#pragma unroll
    for (int o = 16; o; o >>= 1) copied.residual += __shfl_xor_sync(FULL_WARP, copied.residual, o);
    return copied;
}

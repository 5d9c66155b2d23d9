// The rows of a fit and their labels: how labels are stored, and the reference distances that decide them.
#pragma once
#include "half.cuh"
#include "launch.cuh"

// The rows of a fit. x is (d, stride), column-major, and zero from row n to the stride. The stride is a multiple of 1,024.
// w holds the weights w^, or is null if there are none. S: the type of the values in memory. T: their type in arithmetic, which holds
// them exactly.
template <typename T, typename S = T> struct Rows {
    const S* x;
    const double* w;
    u64 stride;
    u32 n;
    int d;
    int bfloat16; // whether values of 16 bits are bfloat16. If not, they are float16
    int step; // values from a row to the next: 1. More if the features of a row lie side by side: only settling reads such rows

    // What a value in memory stands for.
    __device__ __forceinline__ T value(S stored) const {
        if constexpr (is_half<S>) return half_value(stored.bits, bfloat16);
        else return stored;
    }
    // The first feature of a row. The others are `stride` apart.
    __device__ __forceinline__ const S* of(u64 row) const { return x + row * (u32)step; }
    // Value i of x.
    __device__ __forceinline__ T at(u64 i) const { return value(x[i]); }
};

// Labels, as narrow as k allows: `bytes` is 1, 2 or 4. A label of all ones means that the row has none yet.
struct Labels {
    void* at;
    int bytes;
};

#define UNASSIGNED 0xffffffffu

__device__ __forceinline__ u32 widen(u32 label, int bytes) {
    return bytes == 1 ? (label == 0xffu ? UNASSIGNED : label) : bytes == 2 ? (label == 0xffffu ? UNASSIGNED : label) : label;
}
__device__ __forceinline__ u32 load_label(Labels labels, u64 row) {
    if (labels.bytes == 1) return widen(((const u8*)labels.at)[row], 1);
    if (labels.bytes == 2) return widen(((const u16*)labels.at)[row], 2);
    return ((const u32*)labels.at)[row];
}
__device__ __forceinline__ void store_label(Labels labels, u64 row, u32 label) {
    if (labels.bytes == 1) ((u8*)labels.at)[row] = (u8)label;
    else if (labels.bytes == 2) ((u16*)labels.at)[row] = (u16)label;
    else ((u32*)labels.at)[row] = label;
}

// ---- the exact label -----------------------------------------------------------------------------------------------------------

// The reference distance of row `row` to the centroid whose value f is c[f * step].
template <typename T, typename C, typename S>
__device__ __forceinline__ double reference_distance(const Rows<T, S>& rows, u64 row, const C* c, u64 step) {
    double s = 0.0;
    for (int f = 0; f < rows.d; f++) {
        double t = __dadd_rn((double)rows.at((u64)f * rows.stride + row), -(double)c[(u64)f * step]);
        s = __fma_rn(t, t, s);
    }
    return s;
}

// The centroid of least distance that a lane has seen, then that of all lanes of a warp. On ties the smallest j.
struct Closest {
    double least = infinity();
    u32 label = 0;

    // A lane must call this in ascending order of j.
    __device__ __forceinline__ void compare(u32 j, double s) {
        if (s < least) least = s, label = j;
    }
    // A lane that found nothing has label 0 and distance infinity. Every finite distance beats it, and if all are infinite the label is 0.
    // Distances are not negative, so their bits have the same order as they have.
    __device__ __forceinline__ u32 of_warp() const {
        const u64 bits = (u64)__double_as_longlong(least);
        const u32 high = __reduce_min_sync(FULL_WARP, (u32)(bits >> 32));
        const bool in = (u32)(bits >> 32) == high;
        const u32 low = __reduce_min_sync(FULL_WARP, in ? (u32)bits : 0xffffffffu);
        return __reduce_min_sync(FULL_WARP, in && (u32)bits == low ? label : 0xffffffffu);
    }
    // The same for each run of `width` lanes, a power of two.
    __device__ __forceinline__ u32 of_lanes(int width) {
#pragma unroll 1
        for (int o = width / 2; o; o >>= 1) {
            const double other = __shfl_xor_sync(FULL_WARP, least, o);
            const u32 j = __shfl_xor_sync(FULL_WARP, label, o);
            if (other < least || (other == least && j < label)) least = other, label = j;
        }
        return label;
    }
};

// The exact label of a row: the smallest j of least distance. All lanes of a warp work on it, each on every 32nd centroid.
template <typename T, typename S> __device__ __forceinline__ u32 nearest_by_warp(const Rows<T, S>& rows, u64 row, const T* centroid_columns, int k, int lane) {
    Closest closest;
#pragma unroll 1
    for (int j = lane; j < k; j += 32) {
        double s = 0.0;
#pragma unroll 1
        for (int f = 0; f < rows.d; f++) {
            double t = __dadd_rn((double)rows.at((u64)f * rows.stride + row), -(double)centroid_columns[(u64)f * k + j]);
            s = __fma_rn(t, t, s);
        }
        closest.compare(j, s);
    }
    return closest.of_warp();
}

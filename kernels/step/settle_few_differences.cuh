// Float32 differences for rows with a few candidates each, for kernels/step/settle.cu and settle_few.cu. They decide nearly all of these rows for a
// small part of what float64 takes. As in settle_differences.cuh, they are differences of the values themselves.
//
//   16 lanes take a row. Each takes every 16th feature, for some candidates at a time. Then the lanes' sums are added up
//   a row whose second sum is out of reach has its label. Reference distances decide the others
//
// A term passes through few additions, so the bound is narrower than that of a chain of all features (differences.cuh).
#pragma once
#include "../common/filter.cuh"
#include "differences.cuh"
#include "two.cuh"

#define DIFFERENCE_LANES 16

// The bound of the sums of 16 lanes.
__device__ __forceinline__ Differences bound_of_lanes(int d, float scale) {
    return Differences(d, (double)scale, (d + DIFFERENCE_LANES - 1) / DIFFERENCE_LANES + 4); // 2^4 lanes
}

// The least two sums of a row, for the 16 lanes that share it. `candidate(i)`: its candidate number i of `count`. The whole warp must call this.
template <u32 AT_A_TIME, typename S, typename C>
__device__ __forceinline__ Two least_two(const Rows<float, S>& rows, u32 row, const float* centroids, float scale, u32 count, C&& candidate) {
    const int d = rows.d, member = threadIdx.x & (DIFFERENCE_LANES - 1);
    const S* const x = rows.of(row);
    const u32 most = max(count, __shfl_xor_sync(FULL_WARP, count, DIFFERENCE_LANES));
    Two two = {infinity_f(), infinity_f(), 0};
#pragma unroll 1
    for (u32 base = 0; base < most; base += AT_A_TIME) {
        u32 j[AT_A_TIME];
        float s[AT_A_TIME];
        const float* c[AT_A_TIME];
#pragma unroll
        for (u32 i = 0; i < AT_A_TIME; i++) j[i] = candidate(min(base + i, count - 1)), c[i] = centroids + (u64)j[i] * d, s[i] = 0.0f;
#pragma unroll 8
        for (int f = member; f < d; f += DIFFERENCE_LANES) {
            const float value = __fmul_rn(rows.value(x[(u64)f * rows.stride]), scale);
#pragma unroll
            for (u32 i = 0; i < AT_A_TIME; i++) {
                const float t = __fmaf_rn(c[i][f], -scale, value); // the product is exact
                s[i] = __fmaf_rn(t, t, s[i]);
            }
        }
#pragma unroll
        for (u32 i = 0; i < AT_A_TIME; i++) {
#pragma unroll
            for (int o = DIFFERENCE_LANES / 2; o; o >>= 1) s[i] = __fadd_rn(s[i], __shfl_xor_sync(FULL_WARP, s[i], o));
            if (base + i < count) two.take(s[i], j[i]);
        }
    }
    return two;
}

// Whether a warp goes on with differences: not if they decide few of its rows, as with real ties.
struct DifferenceTrial {
    u32 tried, left;

    __device__ __forceinline__ DifferenceTrial() : tried(0), left(0) {}
    __device__ __forceinline__ bool pays() const { return 2 * left <= tried + 8; }
};

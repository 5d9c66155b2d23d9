// The least two sums of a row, for kernels/step/settle_differences.cuh and settle_few_differences.cuh.
#pragma once
#include "../common/launch.cuh"

// The least two sums of a row, and the centroid of the least.
struct Two {
    float least, second;
    u32 label;

    __device__ __forceinline__ void take(float s, u32 j) {
        second = fminf(second, fmaxf(least, s));
        label = s < least ? j : label;
        least = fminf(least, s);
    }
    __device__ __forceinline__ void merge(const Two& other) {
        label = other.least < least ? other.label : label;
        second = fminf(fminf(second, other.second), fmaxf(least, other.least));
        least = fminf(least, other.least);
    }
    __device__ __forceinline__ Two of_lane(int mask) const {
        return {__shfl_xor_sync(FULL_WARP, least, mask), __shfl_xor_sync(FULL_WARP, second, mask), __shfl_xor_sync(FULL_WARP, label, mask)};
    }
};

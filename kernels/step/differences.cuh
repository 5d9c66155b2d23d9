// The second filter: sums of squared differences between the copies of a row and of centroids. The products of the first filter have large errors
// where a row is far from the centre of the copies. A difference only has the errors of the copies. See `CopyDifference` of src/bounds/differences.rs.
#pragma once
#include "../common/launch.cuh"

struct Differences {
    float slope, of_row, offset;

    // `scale`: of the copies. `additions`: the most that a term of a sum passes through.
    __device__ __forceinline__ Differences(int d, double scale, int additions) {
        const double u = 5.9604644775390625e-8;
        slope = __double2float_ru(1.0 + 1.05 * (additions + 8) * u);
        of_row = __double2float_ru(4.1 * u * (1.0 + (d + 9) * u));
        if (d > 100000) scale = infinity(); // the bound is for fewer
        offset = __double2float_ru(2e-18 + (8.0 * 2.2227587494850775e-162) * sqrt((double)d) * scale); // 2^-537
    }
    // For sums of one chain.
    __device__ __forceinline__ Differences(int d, double scale) : Differences(d, scale, d) {}
    // The row's part of `reach`. `square`: the sum of squares of the row's copy. Infinite if no centroid may be ruled out.
    __device__ __forceinline__ float far(float square) const { return __fmaf_ru(of_row, __fsqrt_ru(square), offset); }
    // Centroids whose sums are not greater than this are in reach of a centroid whose sum is `least`. NaN is greater than nothing.
    __device__ __forceinline__ float reach(float least, float far) const {
        const float root = __fmaf_ru(__fsqrt_ru(least), slope, far);
        return __fmul_ru(root, root);
    }
    // At least `reach`, in one instruction: (a + far)^2 <= (1 + t) a^2 + (1 + 1 / t) far^2 with t = 1 / 64. It allows 30,000 features. `part`: `rough_part(far)`.
    __device__ __forceinline__ float rough_reach(float least, float part) const { return __fmaf_ru(least, 1.02f, part); }
    static __device__ __forceinline__ float rough_part(float far) { return __fmul_ru(66.0f, __fmul_ru(far, far)); }
};

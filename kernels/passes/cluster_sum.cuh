// The sums of a column of a cluster, as the kernels of the update and of the exchange read them, and their mean.
#pragma once
#include "../common/sums.cuh"

__device__ __forceinline__ double to_double(u128 v) {
    return __dadd_rn(__dmul_rn((double)(u64)(v >> 64), 18446744073709551616.0), (double)(u64)v);
}

// As `round_quotient`, but for float32 one float64 division is enough if it decides the rounding. The quotient has at most seven
// roundings, so it is within 8 units in its last place. Both round to the same float32, unless a boundary between two float32 values is
// that close.
__device__ __forceinline__ double rounded_mean(i128 numerator, u128 denominator, int exponent, float) {
    u128 magnitude = numerator < 0 ? (u128)0 - (u128)numerator : (u128)numerator;
    double q = __ddiv_rn(to_double(magnitude), to_double(denominator));
    const i64 half = 1ll << 28;
    i64 bits = __double_as_longlong(q), below = (bits & (2 * half - 1)) - half;
    int binade = (int)(bits >> 52) - 1023 + exponent;
    bool decided = (below > 16 || below < -16) && binade >= -126 && binade < 127 && exponent > -1022 && exponent < 1023;
    if (decided) {
        double value = (double)__double2float_rn(__dmul_rn(q, power_of_two(exponent)));
        return numerator < 0 ? -value : value;
    }
    return round_quotient<float>(numerator, denominator, exponent);
}
__device__ __forceinline__ double rounded_mean(i128 numerator, u128 denominator, int exponent, double) {
    return round_quotient<double>(numerator, denominator, exponent);
}

// The exact mean, rounded once and clamped to the extent of the column.
template <typename T> __device__ __forceinline__ T mean_within(i128 sum, u128 mass, int exponent, T low, T high) {
    const T mean = (T)rounded_mean(sum, mass, exponent, (T)0);
    return mean < low ? low : mean > high ? high : mean;
}

// The canonical sum of column c, and the pending words of its limbs.
__device__ __forceinline__ i128 with_pending(const Sums& s, int c, i128 all, ulonglong2 p, ulonglong2 q) {
    const bool one = s.limbs != 2 || s.one_limb[c];
    i128 hi = ((i128)(i64)p.y << 32) + (i128)p.x, lo = ((i128)(i64)q.y << 32) + (i128)q.x;
    return all + (one ? hi : (hi << (c == s.mass_column ? 27 : 45)) + lo);
}

// The pending and the canonical sum of column c of cluster j.
struct ClusterSum {
    u64* pending;
    i128* sum;

    __device__ __forceinline__ ClusterSum(const Sums& s, int j, int c) {
        const u64 accumulator = (u64)j * s.columns + c;
        pending = s.pending + accumulator * s.limbs * 2, sum = s.sums + accumulator;
    }
    // The total of both. Plain loads are enough, because nothing else touches the accumulators in this kernel.
    __device__ __forceinline__ i128 total(const Sums& s, int c) const {
        ulonglong2 p = *(const ulonglong2*)pending, q = make_ulonglong2(0, 0);
        if (s.limbs == 2) q = *(const ulonglong2*)(pending + 2);
        return with_pending(s, c, *sum, p, q);
    }
    // Makes the total canonical.
    __device__ __forceinline__ void store(const Sums& s, i128 all) const {
        *(ulonglong2*)pending = make_ulonglong2(0, 0);
        if (s.limbs == 2) *(ulonglong2*)(pending + 2) = make_ulonglong2(0, 0);
        *sum = all;
    }
};

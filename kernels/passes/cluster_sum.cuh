// The sums of a column of a cluster, as the kernels of the update read them.
#pragma once
#include "../common/sums.cuh"

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
        i128 all = *sum;
        bool one = true;
        if (s.limbs == 2) q = *(const ulonglong2*)(pending + 2), one = s.one_limb[c];
        i128 hi = ((i128)(i64)p.y << 32) + (i128)p.x, lo = ((i128)(i64)q.y << 32) + (i128)q.x;
        return all + (one ? hi : (hi << (c == s.mass_column ? 27 : 45)) + lo);
    }
    // Makes the total canonical.
    __device__ __forceinline__ void store(const Sums& s, i128 all) const {
        *(ulonglong2*)pending = make_ulonglong2(0, 0);
        if (s.limbs == 2) *(ulonglong2*)(pending + 2) = make_ulonglong2(0, 0);
        *sum = all;
    }
};

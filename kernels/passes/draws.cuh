// What kernels of seeding share: wide integers, and samples in which every row decides alone (src/backend/draws.rs).
#pragma once
#include "../common/sums.cuh"

// ---- wide integers ---------------------------------------------------------------------------------------------------

__device__ __forceinline__ u128 wide(u64 high, u64 low) { return (u128)high << 64 | low; }

__device__ __forceinline__ u128 warp_sum_wide(u128 v) {
#pragma unroll
    for (int o = 16; o; o >>= 1)
        v += wide(__shfl_xor_sync(FULL_WARP, (u64)(v >> 64), o), __shfl_xor_sync(FULL_WARP, (u64)v, o));
    return v;
}

// ---- samples ---------------------------------------------------------------------------------------------------------

// The row with number i in the whole fit and with draw weight D is in the sample if floor(u * total / 2^64) < expected * D.
struct Sample {
    u64 total_low, total_high;
    u64 expected; // at most 2^33
    u64 first; // the number of row 0 in the whole fit
    u32 key_low, key_high; // the seed
    u32 stream, restart;
};

// The 64-bit number of a row: Philox4x32-10, as in src/rng.rs.
__device__ __forceinline__ u64 number_of_row(const Sample& a, u64 row) {
    u32 c0 = a.stream, c1 = a.restart, c2 = (u32)row, c3 = (u32)(row >> 32), k0 = a.key_low, k1 = a.key_high;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const u64 p0 = 0xD2511F53ull * c0, p1 = 0xCD9E8D57ull * c2;
        c0 = (u32)(p1 >> 32) ^ c1 ^ k0;
        c1 = (u32)p1;
        c2 = (u32)(p0 >> 32) ^ c3 ^ k1;
        c3 = (u32)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (u64)c0 | (u64)c1 << 32;
}

// Whether row `row` of these rows is in the sample. A draw weight is at most 2^90, so the product is at most 2^123.
__device__ __forceinline__ bool is_drawn(const Sample& a, u64 row, u128 weight) {
    const u64 u = number_of_row(a, a.first + row);
    const u128 target = (u128)a.total_high * u + __umul64hi(a.total_low, u);
    return target < (u128)a.expected * weight;
}

// A list of row numbers. All rows are counted, but only the first `room` are kept.
struct FoundRows {
    u64* rows;
    u64* count; // must be 0 before
    u64 room;
};

__device__ __forceinline__ void add_found(const FoundRows& found, u64 row) {
    const u64 place = atomicAdd(found.count, 1ull);
    if (place < found.room) found.rows[place] = row;
}

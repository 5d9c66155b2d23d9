// What kernels of seeding share: wide integers, and samples in which every row decides alone (src/backend/seeder.rs).
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

// The sum over the lanes up to this one.
__device__ __forceinline__ u128 warp_scan_wide(u128 sum) {
    const u32 lane = threadIdx.x & 31;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        const u128 other = wide(__shfl_up_sync(FULL_WARP, (u64)(sum >> 64), o), __shfl_up_sync(FULL_WARP, (u64)sum, o));
        if (lane >= o) sum += other;
    }
    return sum;
}

// ---- random numbers ---------------------------------------------------------------------------------------------------

// The 64-bit number of a counter: Philox4x32-10, as in src/exact/rng.rs. The key is the seed.
__device__ __forceinline__ u64 philox(u32 key_low, u32 key_high, u32 c0, u32 c1, u32 c2, u32 c3) {
    u32 k0 = key_low, k1 = key_high;
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

// floor(u * total / 2^64), for a total below 2^127.
__device__ __forceinline__ u128 below(u64 u, u128 total) { return (u128)(u64)(total >> 64) * u + __umul64hi((u64)total, u); }

// ---- samples ---------------------------------------------------------------------------------------------------------

// The row with number i in the whole fit and with draw weight D is in the sample if floor(u * total / 2^64) < expected * D.
struct Sample {
    u64 total_low, total_high;
    u64 expected; // at most 2^33
    u64 first; // the number of row 0 in the whole fit
    u32 key_low, key_high; // the seed
    u32 stream, restart;
    u32 by_values; // whether rows have the hash of their values as their number
    u32 unused;
};

// The 64-bit hash of the values of a row, as in src/exact/rng.rs. Both zeros have the same.
template <typename T, typename S> __device__ __forceinline__ u64 hash_row(const Rows<T, S>& rows, u64 row) {
    u64 hash = 0x243F6A8885A308D3ull;
#pragma unroll 4
    for (int f = 0; f < rows.d; f++) {
        const double x = __dadd_rn((double)rows.at((u64)f * rows.stride + row), 0.0);
        hash = (hash ^ (u64)__double_as_longlong(x)) * 0x9E3779B97F4A7C15ull;
        hash = (hash ^ hash >> 32) * 0xD6E8FEB86659FD93ull;
        hash ^= hash >> 29;
    }
    return hash;
}

// Whether a row is in the sample. It is row `row` of these rows, and `number` counts from row 0 in the whole fit. A draw weight is at
// most 2^90, so the product is at most 2^123.
template <typename T, typename S>
__device__ __forceinline__ bool is_drawn(const Sample& a, const Rows<T, S>& rows, u64 row, u64 number, u128 weight) {
    if (a.by_values) number = hash_row(rows, row);
    const u64 u = philox(a.key_low, a.key_high, a.stream, a.restart, (u32)number, (u32)(number >> 32));
    return below(u, wide(a.total_high, a.total_low)) < (u128)a.expected * weight;
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

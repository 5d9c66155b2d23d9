// The sums of all clusters. An accumulator is one cluster's sum of one limb of one column. In shared memory it is an int64 in two 32-bit words,
// because shared memory adds 32-bit integers natively and 64-bit ones only in a loop of compare-and-swap. In device memory it is two
// 64-bit accumulators, one of low halves and one of high halves. 2^31 additions cannot overflow them, and they need no carry between
// them. The update folds them into canonical 128-bit integers.
#pragma once
#include "exact.cuh"
#include "labels.cuh"

struct Sums {
    u64* pending; // (k, columns, limbs, 2)
    i64* pending_rows; // (k)
    i128* sums; // (k, columns): canonical
    i64* rows; // (k): rows of positive weight
    const u8* one_limb; // (columns): whether the column has one limb. Read if others have two; its low limbs are then all 0
    int k, d, columns; // columns: d, plus one for the mass if there are weights
    int mass_column; // d, or -1
    int limbs; // 1, or 2 if any column has two
    int unused;
};

__device__ __forceinline__ void add_pending(u64* accumulator, i64 value) {
    if (value != 0) {
        atomicAdd(&accumulator[0], (u64)(u32)value);
        atomicAdd(&accumulator[1], (u64)(value >> 32));
    }
}

// ---- a table in shared memory ----------------------------------------------------------------------------------------------------

// Adds to an accumulator of two words, with the carry.
__device__ __forceinline__ void add_words(u32* low, u32* high, i64 value) {
    u32 v = (u32)value, h = (u32)(value >> 32);
    u32 old = atomicAdd(low, v);
    h += (old + v < old) ? 1 : 0;
    if (h != 0) atomicAdd(high, h);
}

// A table of accumulators in shared memory. Each accumulator has `copies` (a power of two), so that lanes collide less.
struct Table {
    u32* words;
    int accumulators, copies;
};

__device__ __forceinline__ void table_clear(const Table& t) {
#pragma unroll 1
    for (int i = threadIdx.x; i < t.accumulators * t.copies * 2; i += blockDim.x) t.words[i] = 0;
}
__device__ __forceinline__ void table_add(const Table& t, int accumulator, int copy, i64 value) {
    u32* at = t.words + (size_t)accumulator * 2 * t.copies + copy;
    add_words(at, at + t.copies, value);
}
// Adds both limbs to the accumulators from `into` on. If the row leaves a cluster, subtracts them from the accumulators from `out` on.
__device__ __forceinline__ void table_move(const Table& t, int into, int out, bool leaves, int copy, const Pair& p, bool two) {
    const u32 limb = 2 * t.copies;
    u32* to = t.words + (u32)into * limb + copy;
    u32* from = t.words + (leaves ? (u32)out : (u32)into) * limb + copy;
    const i64 value[4] = {p.hi, leaves ? -p.hi : 0, p.lo, leaves ? -p.lo : 0};
    u32* const at[4] = {to, from, to + limb, from + limb};
    u32 old[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        old[i] = 0;
        if ((i & 1) == 0 || leaves)
            if (i < 2 || two) old[i] = atomicAdd(at[i], (u32)value[i]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const u32 high = (u32)(value[i] >> 32) + (old[i] + (u32)value[i] < old[i] ? 1 : 0);
        if (high != 0 && (i < 2 || two)) atomicAdd(at[i] + t.copies, high);
    }
}
// Returns the accumulator's sum and sets it to 0. Only between barriers.
__device__ __forceinline__ i64 table_take(const Table& t, int accumulator) {
    u32* at = t.words + (size_t)accumulator * 2 * t.copies;
    i64 sum = 0;
#pragma unroll 1
    for (int c = 0; c < t.copies; c++) {
        int i = (c + threadIdx.x) & (t.copies - 1);
        sum += (i64)((u64)at[i] | (u64)at[t.copies + i] << 32);
        at[i] = 0;
        at[t.copies + i] = 0;
    }
    return sum;
}
// One warp adds a block's table to device memory and empties it, while other warps may go on adding. Nothing is lost: each word is
// exchanged atomically, and a carry that comes later goes to the high word.
__device__ __forceinline__ void flush_table_by_warp(const Table& t, int* table_rows, const Sums& s, int lane) {
#pragma unroll 1
    for (int accumulator = lane; accumulator < t.accumulators; accumulator += 32) {
        u32* at = t.words + (size_t)accumulator * 2 * t.copies;
        i64 sum = 0;
#pragma unroll 1
        for (int c = 0; c < t.copies; c++) {
            int i = (c + lane) & (t.copies - 1);
            u32 low = atomicExch(&at[i], 0u), high = atomicExch(&at[t.copies + i], 0u);
            sum += (i64)((u64)low | (u64)high << 32);
        }
        add_pending(s.pending + (u64)accumulator * 2, sum);
    }
#pragma unroll 1
    for (int j = lane; j < s.k; j += 32) {
        int rows = atomicExch(&table_rows[j], 0);
        if (rows != 0) atomicAdd((u64*)&s.pending_rows[j], (u64)(i64)rows);
    }
}
// The same as a function that is called. All arguments are passed in registers: no pointer to a struct, which would be written to memory.
__device__ __noinline__ void flush_table_apart(u32* words, int accumulators, int copies, int* table_rows, u64* pending, i64* pending_rows, int k,
                                               int lane) {
    Sums s = {};
    s.pending = pending, s.pending_rows = pending_rows, s.k = k;
    flush_table_by_warp({words, accumulators, copies}, table_rows, s, lane);
}
// Adds a block's table to device memory and empties it. Only between barriers.
__device__ __forceinline__ void flush_table(const Table& t, int* table_rows, const Sums& s) {
#pragma unroll 1
    for (int accumulator = threadIdx.x; accumulator < t.accumulators; accumulator += blockDim.x) add_pending(s.pending + (u64)accumulator * 2, table_take(t, accumulator));
#pragma unroll 1
    for (int j = threadIdx.x; j < s.k; j += blockDim.x) {
        int rows = table_rows[j];
        if (rows != 0) {
            atomicAdd((u64*)&s.pending_rows[j], (u64)(i64)rows);
            table_rows[j] = 0;
        }
    }
}

// ---- rows of one cluster ---------------------------------------------------------------------------------------------------------

// The lanes of a warp whose rows go to the same cluster, if they are many. Adding to one accumulator one after another takes long, so they add up
// their values first, and their leader adds the sum.
struct Together {
    u32 lanes; // a bit for each of them; 0 if there are too few

    // Only looks at the cluster of one lane: where most lanes have one cluster, this is mostly it. (To compare all lanes costs as much as adding
    // rows of different clusters.) `copies`: of an accumulator, so that many lanes may add at once. All lanes of the warp must call this.
    __device__ __forceinline__ void find(u32 label, bool there, int copies, int from) {
        const u32 one = __shfl_sync(FULL_WARP, label, from), same = __ballot_sync(FULL_WARP, there && label == one);
        lanes = __popc(same) >= 4 * copies + 4 ? same : 0;
    }
    // One of them adds for all.
    __device__ __forceinline__ bool leads(int lane) const { return lane == __ffs(lanes) - 1; }
    // Replaces the values of these lanes, which are below 2^51, by their sum in the leader and by 0 in the others. All lanes of the warp must
    // call this.
    __device__ __forceinline__ void add_up(i64& v) const {
        if (!lanes) return;
        const u32 lane = threadIdx.x & 31;
        const bool in = lanes >> lane & 1;
        const u32 low = __reduce_add_sync(FULL_WARP, in ? (u32)v & 0x3ffffffu : 0u);
        const int high = __reduce_add_sync(FULL_WARP, in ? (int)(v >> 26) : 0);
        if (in) v = leads(lane) ? ((i64)high << 26) + (i64)low : 0;
    }
};

// ---- contributions of rows -------------------------------------------------------------------------------------------------------

// A row's weight as two limbs, the low one of 27 bits. The mass is a column of its own.
__device__ __forceinline__ Pair mass_limbs(double w, double to_integer) {
    u64 m = (u64)__dmul_rn(w, to_integer);
    Pair p = {(i64)(m >> 27), (i64)(m & ((1u << 27) - 1))};
    return p;
}

// Moves a row's contribution from one cluster (or from none) to another, directly in device memory. `lanes` lanes share the columns.
template <typename T, typename S>
__device__ __forceinline__ void move_pending(const Rows<T, S>& rows, const Sums& s, const Factors* factors, double mass_to_integer, u64 row,
                                             u32 from, u32 to, double weight, int lane, int lanes) {
#pragma unroll 1
    for (int c = lane; c < s.columns; c += lanes) {
        Pair p;
        if (c < rows.d) {
            double x = (double)rows.at((u64)c * rows.stride + row);
            if (rows.w) x = __dmul_rn(weight, x);
            p = limbs_of(x, factors[c]);
        } else {
            p = mass_limbs(weight, mass_to_integer);
        }
        u64* into = s.pending + ((u64)to * s.columns + c) * s.limbs * 2;
        add_pending(into, p.hi);
        if (s.limbs == 2) add_pending(into + 2, p.lo);
        if (from != UNASSIGNED) {
            u64* out = s.pending + ((u64)from * s.columns + c) * s.limbs * 2;
            add_pending(out, -p.hi);
            if (s.limbs == 2) add_pending(out + 2, -p.lo);
        }
    }
    if (lane == 0) {
        atomicAdd((u64*)&s.pending_rows[to], 1ull);
        if (from != UNASSIGNED) atomicAdd((u64*)&s.pending_rows[from], ~0ull);
    }
}

// The sums of kernels/step/assign_columns.cu. A warp lists the rows whose label changed, and moves each contribution from one cluster to the
// other in the block's table while their columns are still in the second-level cache.
#pragma once
#include "columns_stream.cuh"
#include "gate.cuh"

// The list is emptied once it has this many (row, column) pairs: enough for all lanes, and so few that the rows are still in the second-level
// cache.
#define ENOUGH 128
// So at most 14 rows of at least 9 columns stay in the list. There must be room for all rows of one tile, and for 32 rows in doubt.
#define LIST (14 + TILE + 32)

// The rows of one warp whose label changed.
struct List {
    u32 row[LIST];
    u8 from[LIST], to[LIST]; // `NOWHERE`: the row had no label
    u32 count;

    __device__ __forceinline__ void add(u32 at, u32 which, u32 old, u32 label) { row[at] = which, from[at] = (u8)old, to[at] = (u8)label; }
};
#define NOWHERE 0xffu

// The table of a block: the low words of all accumulators, then the high words. The accumulators of one limb of one column are contiguous, and their number
// is odd. So neither the clusters of one column nor the columns of one cluster share a bank.
struct BlockSums {
    u32* words;
    int* rows; // rows that came to each cluster, minus rows that left it
    u32 plane; // words from a low word to its high word
    u32 across; // words from a limb of a column to the next
    int there; // whether there is a table. If not, sums are added directly to device memory

    BlockSums() = default;
    template <typename T, typename S> __device__ __forceinline__ BlockSums(const Assign<T, S>& a, u32* shared) : there(a.table_copies) {
        across = (a.sums.k | 1) * (u32)there;
        plane = (u32)(a.sums.columns * a.sums.limbs) * across;
        rows = (int*)shared;
        words = shared + a.k_padded;
    }
    // All threads of the block must call this.
    __device__ __forceinline__ void clear(int k) const {
#pragma unroll 1
        for (u32 i = threadIdx.x; i < 2 * plane; i += blockDim.x) words[i] = 0;
        if (threadIdx.x < k) rows[threadIdx.x] = 0;
    }

    __device__ __forceinline__ u32* at(u32 column_and_limb, u32 label) const { return words + column_and_limb * across + label; }
};

// Adds the table to device memory and empties it. Other threads may go on adding: each word is exchanged atomically, and a carry that
// comes later goes to the high word. Threads `start`, `start` + `step`, ... share the work.
__device__ __forceinline__ void flush(const BlockSums& block_sums, const Sums& s, u32 start, u32 step) {
    const u32 width = (u32)(s.columns * s.limbs), all = (u32)s.k * width;
#pragma unroll 1
    for (u32 accumulator = start; accumulator < all; accumulator += step) {
        const u32 j = accumulator / width;
        u32* const low = block_sums.at(accumulator - j * width, j);
        u32* const high = low + block_sums.plane;
        const u32 l = *(volatile u32*)low ? atomicExch(low, 0u) : 0, h = *(volatile u32*)high ? atomicExch(high, 0u) : 0;
        const i64 sum = (i64)((u64)l | (u64)h << 32);
        add_pending(s.pending + (u64)accumulator * 2, sum);
    }
#pragma unroll 1
    for (u32 j = start; j < (u32)s.k; j += step) {
        const int rows = atomicExch(&block_sums.rows[j], 0);
        if (rows != 0) atomicAdd((u64*)&s.pending_rows[j], (u64)(i64)rows);
    }
}

// Announces `count` rows, at most `TILE`. An int64 is sure to hold 4,096 values of one limb.
__device__ __forceinline__ void enter(Gate& gate, u32 count, const BlockSums& block_sums, const Sums& s, int lane) {
    enter(gate, count, 4096 - (blockDim.x / 32 - 1) * TILE, lane, [&] { flush(block_sums, s, lane, 32); });
}

// Adds `N` values to accumulators. All low words are added before any carry is known, so the additions do not wait for each other.
template <int N> __device__ __forceinline__ void add_to_accumulators(const BlockSums& block_sums, u32* const (&at)[N], const i64 (&value)[N]) {
    u32 before[N];
#pragma unroll
    for (int i = 0; i < N; i++) before[i] = atomicAdd(at[i], (u32)value[i]);
#pragma unroll
    for (int i = 0; i < N; i++)
        atomicAdd(at[i] + block_sums.plane, (u32)(value[i] >> 32) + (before[i] + (u32)value[i] < before[i] ? 1 : 0));
}

// The limbs of column c of a row.
template <typename T, typename S> __device__ __forceinline__ Pair limbs_at(const Assign<T, S>& a, const Factors* factors, u32 c, u32 row, T value) {
    if (!a.rows.w) return limbs_of((double)value, factors[c]);
    const double weight = a.rows.w[row];
    return c < (u32)a.rows.d ? limbs_of(__dmul_rn(weight, (double)value), factors[c]) : mass_limbs(weight, a.mass_to_integer);
}

// The values of one limb of several columns: from which clusters they leave and to which they go.
template <int N> struct Moving {
    u32 column[N], from[N], to[N];
    Pair limbs[N];
};

// Moves limb `limb` in the block's table. A value that leaves no cluster takes 0 from the one that it goes to.
template <int N> __device__ __forceinline__ void move_in_table(const BlockSums& block_sums, const Sums& s, const Moving<N>& m, int limb) {
    u32* at[2 * N];
    i64 value[2 * N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        const bool leaves = m.from[i] != NOWHERE;
        const i64 v = limb ? m.limbs[i].lo : m.limbs[i].hi;
        const u32 c = m.column[i] * s.limbs + limb;
        at[2 * i] = block_sums.at(c, m.to[i]), value[2 * i] = v;
        at[2 * i + 1] = block_sums.at(c, leaves ? m.from[i] : m.to[i]), value[2 * i + 1] = leaves ? -v : 0;
    }
    add_to_accumulators<2 * N>(block_sums, at, value);
}
// The same in device memory.
template <int N> __device__ __forceinline__ void move_in_memory(const Sums& s, const Moving<N>& m, int limb) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        const i64 v = limb ? m.limbs[i].lo : m.limbs[i].hi;
        add_pending(s.pending + (((u64)m.to[i] * s.columns + m.column[i]) * s.limbs + limb) * 2, v);
        if (m.from[i] != NOWHERE) add_pending(s.pending + (((u64)m.from[i] * s.columns + m.column[i]) * s.limbs + limb) * 2, -v);
    }
}

// Moves the contributions of `count` listed rows from row `begin` of the list on, at most `TILE`. The lanes share the (row, column) pairs.
template <typename T, typename S>
__device__ __forceinline__ void move_some(const Assign<T, S>& a, const Factors* factors, Gate& gate, const BlockSums& block_sums, const List& list, u32 begin,
                                          u32 count, int lane) {
    const int AHEAD = 4; // pairs that a lane moves at once
    const Sums& s = a.sums;
    if (block_sums.there) enter(gate, count, block_sums, s, lane);
    const u32 columns = s.columns, reciprocal = 0xffffffffu / columns + 1; // exact quotients: TILE * columns^2 < 2^32
    const u32 pairs = count * columns;
#pragma unroll 1
    for (u32 start = lane; start < pairs; start += 32 * AHEAD) {
        Moving<AHEAD> m;
        T value[AHEAD];
        u32 row[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const u32 pair = min(start + i * 32, pairs - 1), e = __umulhi(pair, reciprocal), at = begin + e;
            m.column[i] = pair - e * columns, m.from[i] = list.from[at], m.to[i] = list.to[at];
            row[i] = list.row[at];
            value[i] = m.column[i] < a.rows.d ? a.rows.at((u64)m.column[i] * a.rows.stride + row[i]) : (T)0;
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            m.limbs[i] = limbs_at(a, factors, m.column[i], row[i], value[i]);
            if (start + i * 32 >= pairs) m.limbs[i] = {0, 0}; // the last pair was repeated
        }
#pragma unroll 1
        for (int limb = 0; limb < s.limbs; limb++) {
            if (block_sums.there) move_in_table<AHEAD>(block_sums, s, m, limb);
            else move_in_memory<AHEAD>(s, m, limb);
        }
    }
#pragma unroll 1
    for (u32 e = begin + lane; e < begin + count; e += 32) {
        const u32 from = list.from[e], to = list.to[e];
        if (block_sums.there) {
            atomicAdd(&block_sums.rows[to], 1);
            if (from != NOWHERE) atomicSub(&block_sums.rows[from], 1);
        } else {
            atomicAdd((u64*)&s.pending_rows[to], 1ull);
            if (from != NOWHERE) atomicAdd((u64*)&s.pending_rows[from], ~0ull);
        }
    }
}

// Moves the contributions of all listed rows, and empties the list. The whole warp must call this.
template <typename T, typename S>
__device__ __forceinline__ void move_listed(const Assign<T, S>& a, const Factors* factors, Gate& gate, const BlockSums& block_sums, List& list, u32 listed,
                                            int lane) {
    __syncwarp();
#pragma unroll 1
    for (u32 begin = 0; begin < listed; begin += TILE)
        move_some(a, factors, gate, block_sums, list, begin, min(listed - begin, (u32)TILE), lane);
    __syncwarp();
    if (lane == 0) list.count = 0;
    __syncwarp();
}

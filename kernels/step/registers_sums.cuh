// The sums of kernels/step/assign_registers.cu. Rows whose label changed are listed by their warp. When its list is long enough, the lanes of
// the warp share its (row, column) pairs, and move each contribution from one cluster to the other in the block's table.
#pragma once
#include "../common/filter.cuh"
#include "async_tiles.cuh"
#include "gate.cuh"

// The list is emptied once it has this many rows. There must still be room for all rows of one tile.
#define ENOUGH 32
#define LIST (ENOUGH - 1 + WARP_TILE)
// Rows in doubt that are settled together, at most: two for each lane.
#define MOST_DOUBTFUL (2 * 32)
// Rows that may move through a block's table before it must be flushed. An int64 is sure to hold 4,096 values of one limb. When the
// table is flushed, each other warp may have announced rows that it has not added yet, so their number is subtracted.
#define CAPACITY (4096 - (WARPS - 1) * LIST)

// The rows of one warp whose label changed, and those whose label is in doubt. A row of a tile is in one of both. So they share the words, from
// both ends: three words for a row that changed, one for a row in doubt.
struct List {
    u32 words[3 * LIST + MOST_DOUBTFUL - 1];
    u32 count, doubtful; // how many there are

    __device__ __forceinline__ u32 from(u32 i) const { return words[3 * i]; }
    __device__ __forceinline__ u32 to(u32 i) const { return words[3 * i + 1]; }
    __device__ __forceinline__ u32 row(u32 i) const { return words[3 * i + 2]; }
    __device__ __forceinline__ void put(u32 i, u32 from, u32 to, u32 row) { words[3 * i] = from, words[3 * i + 1] = to, words[3 * i + 2] = row; }
    __device__ __forceinline__ u32& doubted(u32 i) { return words[3 * LIST + MOST_DOUBTFUL - 2 - i]; }
};

// A block's table of sums, and the row counts of its clusters.
struct BlockSums {
    Table table;
    int* rows;
};

// The block's table, and when a warp may add to it.
struct Entrance {
    BlockSums block_sums; // kept here for float64, whose kernels have no registers left for it
    Gate gate;
};

template <bool APART> __device__ __forceinline__ void enter(Entrance& entrance, u32 count, const BlockSums& block_sums, const Sums& s, int lane) {
    enter(entrance.gate, count, CAPACITY, lane, [&] {
        const Table& t = block_sums.table;
        if constexpr (APART) flush_table_apart(t.words, t.accumulators, t.copies, block_sums.rows, s.pending, s.pending_rows, s.k, lane);
        else flush_table_by_warp(t, block_sums.rows, s, lane);
    });
}

// Moves the contributions of the listed rows from cluster to cluster. Each lane takes (row, column) pairs. In the table all additions
// of a pair are issued at once, and then their carries. NEIGHBOURS: rows that follow each other mostly have the same clusters, so neighbours in the list
// add to different copies of the accumulators.
template <bool APART, bool NEIGHBOURS = false, typename T, typename S>
__device__ __forceinline__ void move_listed(const Assign<T, S>& a, const Factors* factors, Entrance& entrance, const BlockSums& block_sums, List& list,
                                            u32 count, int lane) {
    const int AHEAD = sizeof(T) == 4 ? 4 : 1;
    const Sums& s = a.sums;
    __syncwarp();
    const Table& table = block_sums.table;
    if (table.copies) enter<APART>(entrance, count, block_sums, s, lane);
    const u32 columns = s.columns, reciprocal = (65536 + columns - 1) / columns; // gives exact quotients up to 159 * 13 pairs
    const bool two = s.limbs == 2;
    const u32 pairs = count * columns;
#pragma unroll 1
    for (u32 pair = lane; pair < pairs;) {
        // Loads the values of several pairs together.
        T ahead[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const u32 at = pair + i * 32, e = at * reciprocal >> 16, c = at - e * columns;
            ahead[i] = (T)0;
            if (at < pairs && c < a.rows.d) ahead[i] = a.rows.at((u64)c * a.rows.stride + list.row(e));
        }
        const u32 end = min(pairs, pair + AHEAD * 32);
#pragma unroll 1
        for (; pair < end; pair += 32) {
            const u32 e = pair * reciprocal >> 16, c = pair - e * columns;
            const u32 from = list.from(e), to = list.to(e);
            const double weight = a.rows.w ? a.rows.w[list.row(e)] : 1.0;
            double x = (double)ahead[0];
#pragma unroll
            for (int i = 1; i < AHEAD; i++) ahead[i - 1] = ahead[i];
            Pair p;
            if (c < a.rows.d) {
                if (a.rows.w) x = __dmul_rn(weight, x);
                p = limbs_of(x, factors[c]);
            } else {
                p = mass_limbs(weight, a.mass_to_integer);
            }
            const u32 into = (to * columns + c) * s.limbs, out = (from * columns + c) * s.limbs;
            const bool leaves = from != UNASSIGNED;
            if (table.copies) {
                table_move(table, into, out, leaves, (NEIGHBOURS ? e : lane) & (table.copies - 1), p, two);
            } else {
                add_pending(s.pending + (u64)into * 2, p.hi);
                if (two) add_pending(s.pending + (u64)into * 2 + 2, p.lo);
                if (leaves) {
                    add_pending(s.pending + (u64)out * 2, -p.hi);
                    if (two) add_pending(s.pending + (u64)out * 2 + 2, -p.lo);
                }
            }
        }
    }
#pragma unroll 1
    for (u32 e = lane; e < count; e += 32) {
        const u32 from = list.from(e), to = list.to(e);
        if (table.copies) {
            atomicAdd(&block_sums.rows[to], 1);
            if (from != UNASSIGNED) atomicSub(&block_sums.rows[from], 1);
        } else {
            atomicAdd((u64*)&s.pending_rows[to], 1ull);
            if (from != UNASSIGNED) atomicAdd((u64*)&s.pending_rows[from], ~0ull);
        }
    }
    __syncwarp();
    if (lane == 0) list.count = 0;
    __syncwarp();
}

// Adds rows of a tile that many lanes have in one cluster: their sum, by one lane. Returns the bits of the rows that are left.
template <typename T, int D, typename S>
__device__ __forceinline__ u32 add_together(const Assign<T, S>& a, const Factors* factors, const AsyncTiles<T, S, D>& next, const Table& table,
                                            const u32 (&label)[ROWS], u32 valid, int lane) {
    const Sums& s = a.sums;
#pragma unroll 1
    for (int r = 0; r < ROWS; r++) {
        const u32 own = pick(label, r);
        Together together;
        together.find(own, valid >> r & 1, table.copies, 9 * r + 2);
        if (!together.lanes) continue;
#pragma unroll 1
        for (int f = 0; f < a.rows.d; f++) {
            Pair p = limbs_of((double)next.value(a.rows, f, r), factors[f]);
            const u32 accumulator = (own * s.columns + f) * s.limbs;
            together.add_up(p.hi);
            if (together.leads(lane)) table_add(table, accumulator, lane & (table.copies - 1), p.hi);
            if (s.limbs == 2) {
                together.add_up(p.lo);
                if (together.leads(lane)) table_add(table, accumulator + 1, lane & (table.copies - 1), p.lo);
            }
        }
        if (together.lanes >> lane & 1) valid &= ~(1u << r);
    }
    return valid;
}

// Adds the rows of a tile that had no labels, from the places where it arrived. Each lane adds its own rows, without a list.
// SPARE: whether there are registers for `add_together`. It only looks for rows of one cluster if a tile's first rows are such.
template <bool SPARE, typename T, int D, typename S>
__device__ __forceinline__ void add_first(const Assign<T, S>& a, const Factors* factors, const AsyncTiles<T, S, D>& next, const BlockSums& block_sums,
                                          const u32 (&label)[ROWS], u32 valid, int lane) {
    const Sums& s = a.sums;
    const Table& table = block_sums.table;
    const int copy = lane & (table.copies - 1);
    const u32 counted = valid;
    Together together = {};
    if (SPARE) together.find(label[0], valid & 1, table.copies, 2);
    if (SPARE && together.lanes) valid = add_together<T, D>(a, factors, next, table, label, valid, lane);
#pragma unroll 1
    for (int f = 0; f < a.rows.d; f++) {
        const Factors own = factors[f];
        T raw[ROWS];
        next.take(a.rows, f, raw);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (valid >> r & 1) {
                const Pair p = limbs_of((double)raw[r], own);
                const u32 accumulator = (label[r] * s.columns + f) * s.limbs;
                table_add(table, accumulator, copy, p.hi);
                if (s.limbs == 2) table_add(table, accumulator + 1, copy, p.lo);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        if (counted >> r & 1) atomicAdd(&block_sums.rows[label[r]], 1);
    __syncwarp();
}

// Stores the new labels of a thread's four rows, and lists the rows that move from one cluster to another. `valid` has a bit for each row
// that exists.
template <typename T, typename S>
__device__ __forceinline__ void list_changed(const Assign<T, S>& a, List& list, const Four& now, const Four& old, const u32 (&label)[ROWS],
                                             u32 valid, u32 row) {
    u32 differs = now.differs(old, a.labels.bytes) & valid;
    if (!differs) return;
    now.store(a.labels.bytes, (u8*)a.labels.at + (u64)row * (u32)a.labels.bytes);
    if (a.rows.w) {
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if ((differs >> r & 1) && !(a.rows.w[row + r] > 0.0)) differs &= ~(1u << r);
    }
    // Few lanes have changed rows, and most of these have one. So each lane takes places from a counter by itself.
    u32 at = atomicAdd(&list.count, __popc(differs));
#pragma unroll 1
    for (; differs; differs &= differs - 1, at++) {
        const int r = __ffs(differs) - 1;
        list.put(at, old.label(a.labels.bytes, r), pick(label, r), row + r);
    }
}

// Lists rows in doubt: a bit of `doubt` for each of the lane's rows, the first of which is `row`.
__device__ __forceinline__ void list_doubtful(List& list, u32 doubt, u32 row) {
    if (!doubt) return;
    u32 at = atomicAdd(&list.doubtful, __popc(doubt));
#pragma unroll 1
    for (; doubt; doubt &= doubt - 1, at++) list.doubted(at) = row + __ffs(doubt) - 1;
}

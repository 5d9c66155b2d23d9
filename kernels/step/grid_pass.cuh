// One pass over rows that are in the order of their cells, for assign_grid.cu and assign_sorted.cu: their labels, and the moves between sums.
//
// The kernel says for its struct C of arguments (`assign`, `tiles` and `count` are fields of it), by functions of these names:
//   settled_head, head_of        the head of a cell: a word
//   is_settled                   the rows of the cell have their label already, so its tiles are skipped
//   has_one, only_label          all rows of the cell have this label
//   ask_ahead                    a word of each lane that is read while the tile before is worked on
//   find_labels                  the labels of a lane's rows. Adds to the scores of the warp, and returns how many rows were in doubt
#pragma once
#include "../common/grid.cuh"
#include "registers_sums.cuh"

#define UNROLL _Pragma("unroll")
#define KEEP_LOOP _Pragma("unroll 1")

// Ranges of tiles of a block.
#define RANGES 8
// Rows of a tile that changed from which on the warp adds them up.
#define MANY 80

template <int D> struct Vector {
    static const int width = D == 3 ? 4 : D;
};

// The rows of a tile that has arrived.
template <int D, typename T, typename S>
__device__ __forceinline__ void take_rows(const Rows<T, S>& rows, const AsyncTiles<T, S, D>& from, T (&x)[D][ROWS]) {
    if constexpr (is_half<S>) {
        from.take_all(rows, x);
    } else {
        UNROLL for (int f = 0; f < D; f++) from.take(rows, f, x[f]);
    }
}
// The rows of a lane in memory, from a place that is a multiple of 4.
template <int D, typename T, typename S> __device__ __forceinline__ void load_rows(const Rows<T, S>& rows, u32 place, T (&x)[D][ROWS]) {
    UNROLL for (int f = 0; f < D; f++) {
        const u64 at = (u64)f * rows.stride + place;
        if constexpr (is_half<S>) {
            half_values(*(const uint2*)(rows.x + at), rows.bfloat16, x[f]);
        } else if constexpr (sizeof(T) == 4) {
            const float4 v = *(const float4*)(rows.x + at);
            x[f][0] = v.x, x[f][1] = v.y, x[f][2] = v.z, x[f][3] = v.w;
        } else {
            const double2 v = *(const double2*)(rows.x + at), w = *(const double2*)(rows.x + at + 2);
            x[f][0] = v.x, x[f][1] = v.y, x[f][2] = w.x, x[f][3] = w.y;
        }
    }
}

// The sum of all lanes, of numbers below 2^52.
__device__ __forceinline__ i64 sum_of_warp(i64 v) {
    const u32 low = __reduce_add_sync(FULL_WARP, (u32)v & 0x7ffffffu);
    const int high = __reduce_add_sync(FULL_WARP, (int)(v >> 27));
    return ((i64)high << 27) + (i64)low;
}

// Moves the rows of a tile that changed, in the sums: rows that go from one cluster to one other together.
template <int D, typename T, typename S>
__device__ __forceinline__ void move_together(const Assign<T, S>& a, const Factors* factors, const BlockSums& block_sums, const T (&x)[D][ROWS],
                                              const Four& old, const u32 (&label)[ROWS], u32 differs, int lane) {
    const Sums& s = a.sums;
    const bool two = s.limbs == 2;
    KEEP_LOOP while (true) {
        const u32 lanes = __ballot_sync(FULL_WARP, differs != 0);
        if (!lanes) break;
        const int leader = __ffs(lanes) - 1, r = max(__ffs(differs) - 1, 0);
        const u32 from = __shfl_sync(FULL_WARP, old.label(a.labels.bytes, r), leader), to = __shfl_sync(FULL_WARP, pick(label, r), leader);
        u32 mine = 0;
        UNROLL for (int i = 0; i < ROWS; i++)
            mine |= (differs >> i & 1) && label[i] == to && old.label(a.labels.bytes, i) == from ? 1u << i : 0;
        differs &= ~mine;
        const bool leaves = from != UNASSIGNED;
        Pair own = {0, 0}; // of the feature of this lane
        UNROLL for (int f = 0; f < D; f++) {
            Pair sum = {0, 0};
            UNROLL for (int i = 0; i < ROWS; i++) {
                const double v = __dmul_rn(__dmul_rn((double)x[f][i], factors[f].first), factors[f].second);
                Pair p = {0, 0};
                if (two) p = split(v, factors[f].low);
                else p.hi = round_to_integer(v);
                if (mine >> i & 1) sum.hi += p.hi, sum.lo += p.lo;
            }
            sum.hi = sum_of_warp(sum.hi);
            if (two) sum.lo = sum_of_warp(sum.lo);
            if (lane == f) own = sum;
        }
        const u32 into = (to * s.columns + lane) * s.limbs, out = (from * s.columns + lane) * s.limbs;
        if (lane < D && block_sums.table.copies) {
            table_move(block_sums.table, into, out, leaves, (threadIdx.x / 32) & (block_sums.table.copies - 1), own, two);
        } else if (lane < D) {
            add_pending(s.pending + (u64)into * 2, own.hi);
            if (two) add_pending(s.pending + (u64)into * 2 + 2, own.lo);
            if (leaves) {
                add_pending(s.pending + (u64)out * 2, -own.hi);
                if (two) add_pending(s.pending + (u64)out * 2 + 2, -own.lo);
            }
        }
        const int count = __reduce_add_sync(FULL_WARP, __popc(mine));
        if (lane == 0 && block_sums.table.copies) {
            atomicAdd(&block_sums.rows[to], count);
            if (leaves) atomicSub(&block_sums.rows[from], count);
        } else if (lane == 0) {
            atomicAdd((u64*)&s.pending_rows[to], (u64)count);
            if (leaves) atomicAdd((u64*)&s.pending_rows[from], (u64)-(i64)count);
        }
    }
    __syncwarp();
}

template <int D, typename T, typename S, typename C> __device__ __forceinline__ void label_cells(const C& c) {
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ List lists[WARPS];
    __shared__ Entrance entrance;
    __shared__ u32 block_changed, block_in_doubt, taken;
    __shared__ Factors factors[D];
    const Assign<T, S>& a = c.assign;
    wait_for_kernel_before();
    if (a.control->stop) return;
    const int W = Vector<D>::width, bytes = a.labels.bytes;
    const AsyncTiles<T, S, D> next = {shared, shared + AsyncTiles<T, S, D>::bytes(0)};
    unsigned char* const after = shared + AsyncTiles<T, S, D>::bytes(bytes);
    T* const centroids = a.centroids_in_shared ? (T*)after : nullptr;
    const Table table = {(u32*)(after + (a.centroids_in_shared ? (u64)a.k * W * sizeof(T) : 0)), a.sums.k * a.sums.columns * a.sums.limbs,
                         a.table_copies};
    const BlockSums block_sums = {table, (int*)(table.words + (size_t)table.accumulators * 2 * table.copies)};
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    List& own = lists[warp];
    if (lane == 0) own.count = own.doubtful = 0;
    if (threadIdx.x < D) factors[threadIdx.x] = a.factors[threadIdx.x];
    if (threadIdx.x == 0) {
        entrance = {block_sums, {0, 0, 0}};
        block_changed = block_in_doubt = taken = 0;
    }
    if (table.copies) {
        table_clear(table);
        KEEP_LOOP for (int i = threadIdx.x; i < a.sums.k; i += THREADS) block_sums.rows[i] = 0;
    }
    if (centroids)
        KEEP_LOOP for (int i = threadIdx.x; i < a.k * W; i += THREADS) centroids[i] = i % W < D ? a.centroids[i / W * D + i % W] : (T)0;
    __syncthreads();
    // A block has some ranges of neighbouring tiles, so it adds to few clusters. Its warps take runs of these tiles, each at its own pace.
    const u32 tiles = *c.count, range = (tiles + RANGES * gridDim.x - 1) / (RANGES * gridDim.x);
    const u32 run = 1u << min(5, 31 - __clz(max(1u, range * RANGES / (8 * WARPS)))), runs = (range + run - 1) / run;
    u32 changed = 0, in_doubt = 0, listed = 0;
    u64 scores = 0; // of the warp
    KEEP_LOOP while (true) {
        u32 own_run = 0;
        if (lane == 0) own_run = atomicAdd(&taken, 1);
        own_run = __shfl_sync(FULL_WARP, own_run, 0);
        if (own_run >= RANGES * runs) break;
        const u32 in_range = own_run % runs * run, begin = (own_run / runs * gridDim.x + blockIdx.x) * range + in_range;
        const u32 length = min(run, range - in_range);
        CellTile tile = {0, 0};
        u32 head = settled_head(c);
        if (lane < length && begin + lane < tiles) {
            tile = c.tiles[begin + lane];
            head = head_of(c, tile.cell_and_count & 0xffff);
        }
        // The next tile arrives while the warp works on one.
        u32 todo = __ballot_sync(FULL_WARP, !is_settled(c, head)), word_ahead = 0;
        auto ask = [&]() {
            const int i = __ffs(todo) - 1;
            const u32 first = __shfl_sync(FULL_WARP, tile.first, i), cell_and_count = __shfl_sync(FULL_WARP, tile.cell_and_count, i);
            const u32 words = __shfl_sync(FULL_WARP, head, i);
            // Lanes without rows ask for those of the first lane.
            const u32 from = lane * ROWS < cell_and_count >> 16 ? first + lane * ROWS : first;
            if (has_one(c, words)) copy_labels(next.labels + threadIdx.x * 4 * bytes, (const u8*)a.labels.at + (u64)from * (u32)bytes, bytes);
            else next.ask(a.rows, a.labels, from);
            word_ahead = ask_ahead(c, words, cell_and_count & 0xffff, lane, word_ahead);
        };
        if (todo) ask();
        KEEP_LOOP while (todo) {
            const int i = __ffs(todo) - 1;
            const u32 first = __shfl_sync(FULL_WARP, tile.first, i), cell_and_count = __shfl_sync(FULL_WARP, tile.cell_and_count, i);
            const u32 words = __shfl_sync(FULL_WARP, head, i), cell = cell_and_count & 0xffff, count = cell_and_count >> 16;
            const u32 place = first + lane * ROWS, there = count - min(count, lane * ROWS), valid = (1u << min(there, (u32)ROWS)) - 1;
            const bool one = has_one(c, words);
            const u32 word = word_ahead;
            T x[D][ROWS];
            u32 label[ROWS];
            todo &= todo - 1;
            asm volatile("cp.async.wait_all;" ::: "memory");
            const Four old = next.take_labels(bytes);
            if (!one) take_rows<D>(a.rows, next, x);
            if (todo) ask();
            if (!one) {
                in_doubt += find_labels(c, centroids, words, word, cell, x, valid, count, label, scores);
            } else {
                UNROLL for (int r = 0; r < ROWS; r++) label[r] = only_label(c, words);
            }
            const Four now(bytes, label);
            u32 differs = now.differs(old, bytes) & valid;
            if (!__any_sync(FULL_WARP, differs != 0)) continue;
            const u32 many = __reduce_add_sync(FULL_WARP, __popc(differs));
            if (many >= MANY && !a.rows.w) {
                if (differs) now.store(bytes, (u8*)a.labels.at + (u64)place * (u32)bytes);
                if (one) load_rows<D>(a.rows, valid ? place : first, x);
                if (table.copies) enter<true>(entrance, many, block_sums, a.sums, lane);
                move_together<D>(a, factors, block_sums, x, old, label, differs, lane);
                changed += many;
                continue;
            }
            list_changed(a, own, now, old, label, valid, place);
            __syncwarp();
            listed = own.count;
            if (listed >= ENOUGH) {
                move_listed<true, true>(a, factors, entrance, block_sums, own, listed, lane);
                changed += listed, listed = 0;
            }
        }
    }
    if (listed) {
        move_listed<true, true>(a, factors, entrance, block_sums, own, listed, lane);
        changed += listed;
    }
    in_doubt = __reduce_add_sync(FULL_WARP, in_doubt);
    if (lane == 0 && changed) atomicAdd(&block_changed, changed);
    if (lane == 0 && in_doubt) atomicAdd(&block_in_doubt, in_doubt);
    if (lane == 0 && scores) atomicAdd(&a.control->scores, scores);
    __syncthreads();
    if (a.table_copies && entrance.gate.announced) flush_table(table, block_sums.rows, a.sums);
    if (threadIdx.x == 0) {
        if (block_changed) atomicAdd(&a.control->changed, (u64)block_changed);
        if (block_in_doubt) atomicAdd(&a.control->in_doubt, block_in_doubt);
    }
}

// assign_registers: labels and sums in one pass over the data, for few dimensions.
//
// Source:    Li, Zhao, Chu and Liu, "Speeding up k-means algorithm by GPUs", CIT 2010, algorithm 3 (low d: a row lives in
//            registers, centroids in shared memory); sums fused into the same pass as Lutz et al. 2018, section 4.
// Used when: d <= 12, and few rows or very many clusters do not make tiles faster (src/backend/cuda/chooser.rs).
// Tile:      a thread has 4 rows (one 16-byte load a float32 column), a warp 128; warps take runs of tiles from a common counter, each
//            at its own pace, or, with few clusters, as many each and the last by turns: no barrier after the start. Centroids are in
//            shared memory where they fit, else the first-level cache has them.
// Memory:    each value is read once, by asynchronous copies to the thread's own place in shared memory, on their way while the tile
//            before is worked on; labels are read and, where they changed, written, in 1, 2 or 4 bytes.
// Precision: a float32 product filter, h_j = |c_j|^2 / 2 - x.c_j on centred, scaled copies, certified by `Bound`
//            (d fmas onto the half square: d roundings). Rows in doubt are settled at once, by the warp that found them.
//
//   for each tile:
//     up to 8 centroids: all scores, the least, and which are in reach of it; more: best, second and the index over pairs of centroids;
//     many: over groups of them, then once more over the best group
//     rows whose second best is in reach: by a warp, the scores once more, and reference distances to the centroids in reach
//     rows whose label changed go to the warp's list; when it has enough, its lanes take (row, column) pairs of it: quantise, take
//     from one cluster's cell, add to the other's
//   flush the block's table of cells
//
// Departures from the paper: (1) groups: only the least score of a group is kept in the first sweep (one instruction a score
// instead of five), and the best group is swept again. (2) Sums move by deltas: a row that stays where it is costs nothing, and
// the few that move share the lanes of a warp evenly. (3) What few tiles need (single labels, counts) is not held in registers and not
// computed in others.
#include "nearest.cuh"

// Listed rows from which on the list is worked off; as many as one tile adds must still fit.
#define ENOUGH 32
#define LIST (ENOUGH - 1 + WARP_TILE)
// Rows that may be moved through a block's table before it is flushed: less than the 4,096 values that an int64 is sure to hold (one
// limb) by what other warps have announced, but not added yet, when the table is flushed.
#define CAPACITY (4096 - (WARPS - 1) * LIST)

// Rows of one warp that changed.
struct List {
    u32 from[LIST], to[LIST], row[LIST];
    u32 count;
};

// A block's table and the rows of its clusters.
struct Cells {
    Table table;
    int* rows;
};

// Who may add to a block's table, and when it is flushed.
struct Gate {
    Cells cells; // float64 has no registers left for it
    u32 announced; // rows, by all warps
    u32 flushed; // rows announced when the table was flushed last
    u32 busy; // a warp is flushing
};

// Announces `count` rows; flushes the table first where there is no room for them. By a whole warp.
__device__ __forceinline__ void enter(Gate& gate, u32 count, const Cells& cells, const Sums& s, int lane) {
    while (true) {
        u32 flush = 0;
        if (lane == 0) {
            while (true) {
                const u32 announced = *(volatile u32*)&gate.announced;
                if (announced - *(volatile u32*)&gate.flushed + count <= CAPACITY) {
                    if (atomicCAS(&gate.announced, announced, announced + count) == announced) break;
                } else if (atomicCAS(&gate.busy, 0u, 1u) == 0) {
                    flush = 1;
                    break;
                } else {
                    __nanosleep(100);
                }
            }
        }
        if (!__shfl_sync(FULL_WARP, flush, 0)) return;
        // What is added from here on is counted against the next flush.
        const u32 announced = *(volatile u32*)&gate.announced;
        __threadfence_block();
        flush_table_by_warp(cells.table, cells.rows, s, lane);
        __threadfence_block();
        __syncwarp();
        if (lane == 0) {
            *(volatile u32*)&gate.flushed = announced;
            __threadfence_block();
            atomicExch(&gate.busy, 0u);
        }
        __syncwarp();
    }
}

// Moves what the listed rows contribute from cluster to cluster: lanes take pairs of a row and a column. In the table, all additions
// of a pair are on their way at once, then their carries.
template <typename T>
__device__ __forceinline__ void move_listed(const Assign<T>& a, const Factors* factors, Gate& gate, const Cells& cells, List& list,
                                            u32 count, int lane) {
    const int AHEAD = sizeof(T) == 4 ? 4 : 1;
    const Sums& s = a.sums;
    __syncwarp();
    const Table& table = cells.table;
    if (table.copies) enter(gate, count, cells, s, lane);
    const u32 columns = s.columns, reciprocal = (65536 + columns - 1) / columns; // exact for the at most 159 * 13 pairs
    const bool two = s.limbs == 2;
    const u32 pairs = count * columns;
#pragma unroll 1
    for (u32 pair = lane; pair < pairs;) {
        // Values of some pairs are on their way together.
        T ahead[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const u32 at = pair + i * 32, e = at * reciprocal >> 16, c = at - e * columns;
            ahead[i] = (T)0;
            if (at < pairs && c < a.rows.d) ahead[i] = a.rows.x[(u64)c * a.rows.stride + list.row[e]];
        }
        const u32 end = min(pairs, pair + AHEAD * 32);
#pragma unroll 1
        for (; pair < end; pair += 32) {
            const u32 e = pair * reciprocal >> 16, c = pair - e * columns;
            const u32 from = list.from[e], to = list.to[e];
            const double weight = a.rows.w ? a.rows.w[list.row[e]] : 1.0;
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
                table_move(table, into, out, leaves, lane & (table.copies - 1), p, two);
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
        const u32 from = list.from[e], to = list.to[e];
        if (table.copies) {
            atomicAdd(&cells.rows[to], 1);
            if (from != UNASSIGNED) atomicSub(&cells.rows[from], 1);
        } else {
            atomicAdd((u64*)&s.pending_rows[to], 1ull);
            if (from != UNASSIGNED) atomicAdd((u64*)&s.pending_rows[from], ~0ull);
        }
    }
    __syncwarp();
    if (lane == 0) list.count = 0;
    __syncwarp();
}

// The contributions of a tile that had no labels, from where it arrived: a lane has its own rows, and no list is needed.
template <typename T, int D>
__device__ __forceinline__ void add_first(const Assign<T>& a, const Factors* factors, const Arriving<T, D>& next, const Cells& cells,
                                          const u32 (&label)[ROWS], u32 valid, int lane) {
    const Sums& s = a.sums;
    const Table& table = cells.table;
    const int copy = lane & (table.copies - 1);
#pragma unroll 1
    for (int f = 0; f < a.rows.d; f++) {
        const Factors own = factors[f];
        T raw[ROWS];
        next.take(f, raw);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (valid >> r & 1) {
                const Pair p = limbs_of((double)raw[r], own);
                const u32 cell = (label[r] * s.columns + f) * s.limbs;
                table_add(table, cell, copy, p.hi);
                if (s.limbs == 2) table_add(table, cell + 1, copy, p.lo);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        if (valid >> r & 1) atomicAdd(&cells.rows[label[r]], 1);
    __syncwarp();
}

template <typename T, int D, int GROUP> __device__ __forceinline__ void assign(const Assign<T>& a) {
    // Copies of a warp of 512 bytes to a place that is not a multiple of 128 would be asked for in halves, and read twice.
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ List lists[WARPS];
    __shared__ Gate gate;
    __shared__ u32 following[WARPS]; // the run that each warp takes next
    __shared__ u32 block_changed, block_contested;
    __shared__ Factors factors[D];
    wait_for_kernel_before();
    if (a.control->stop) return;
    const int W = Centroid<D>::width;
    // Shared memory: the arriving tile, centroids (if they fit), the table's words, rows of each cluster.
    typedef Arriving<T, D> Next;
    const Next next = {(float4*)shared, shared + Next::bytes(0)};
    const bool fit = a.portion != 0;
    float* centroids = (float*)(shared + Next::bytes(a.labels.bytes));
    const u32 centroid_words = fit ? a.k_padded * W + (GROUP ? a.k_padded / (GROUP ? GROUP : 1) * 4 : 0) : 0;
    const Table table = {(u32*)(centroids + centroid_words), a.sums.k * a.sums.columns * a.sums.limbs, a.table_copies};
    const Cells own = {table, (int*)(table.words + (size_t)table.cells * 2 * table.copies)};
    auto cells = [&]() { return sizeof(T) == 4 ? own : gate.cells; };
    const int d = a.rows.d, lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    // Runs of tiles: rounds of them, one for each warp, up to `even`, then one more for each, then as the counter says, of which one is
    // always under way. A run is a power of two, and starts at a multiple of it.
    const u32 tiles = (a.rows.n + WARP_TILE - 1) / WARP_TILE, in_run = a.run - 1;
    u32 tile = (blockIdx.x * WARPS + warp) * a.run;
    if (lane == 0) lists[warp].count = 0;
    if (lane == 0) following[warp] = a.even + tile;
    if (tile < tiles) next.ask(a.rows, a.labels, tile * WARP_TILE + lane * ROWS);
    if (threadIdx.x < d) factors[threadIdx.x] = a.factors[threadIdx.x];
    if (threadIdx.x == 0) {
        gate = {own, 0, 0, 0};
        block_changed = 0, block_contested = 0;
    }
    if (table.copies) {
        table_clear(table);
#pragma unroll 1
        for (int i = threadIdx.x; i < a.sums.k; i += THREADS) own.rows[i] = 0;
    }
    Bound bound = *a.bound;
    if (fit) {
        const float lift = lift_of<D>(bound);
        if (GROUP) bound = lifted<D>(bound, lift);
        fetch_centroids<D, GROUP>(a.copies, centroids, a.k_padded, lift);
    }
    // Up to four dimensions there is a kernel for each.
    const bool exact = D <= 4;
    T shift[D];
#pragma unroll
    for (int f = 0; f < D; f++) shift[f] = exact || f < d ? a.shift[f] : (T)0;
    // In a first assign lanes add their own rows, unless the sums are in device memory or weighted.
    const bool by_lanes = a.table_copies && !a.rows.w;
    __syncthreads();

    u32 listed = 0; // by the warp
    // The counter's run is asked for a run ahead.
    u32 later = a.even < tiles && lane == 0 ? atomicAdd(&a.control->next_run, in_run + 1) : 0;
#pragma unroll 1
    while (true) {
        const bool done = tile >= tiles;
        if (listed >= (done ? 1 : ENOUGH)) {
            move_listed(a, factors, gate, cells(), lists[warp], listed, lane);
            if (lane == 0) atomicAdd(&block_changed, listed);
            listed = 0;
        }
        if (done) break;
        const u32 row = tile * WARP_TILE + lane * ROWS;
        tile++;
        if ((tile & in_run) == 0) {
            const u32 round = gridDim.x * WARPS * (in_run + 1);
            tile += round - (in_run + 1);
            if (tile >= a.even) {
                __syncwarp();
                tile = following[warp];
                __syncwarp();
                if (lane == 0) {
                    following[warp] = a.even + round + later;
                    if (tile < tiles) later = atomicAdd(&a.control->next_run, in_run + 1);
                }
            }
        }
        float x[D][ROWS];
        float square[ROWS];
        asm volatile("cp.async.wait_all;" ::: "memory");
#pragma unroll
        for (int r = 0; r < ROWS; r++) square[r] = 0.0f;
#pragma unroll
        for (int f = 0; f < D; f++) {
            T raw[ROWS] = {0, 0, 0, 0};
            if (exact || f < d) next.take(f, raw);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                x[f][r] = centred_copy(raw[r], shift[f], a.scale);
                square[r] = __fmaf_rn(x[f][r], x[f][r], square[r]);
            }
        }
        const Four old = next.take_labels(a.labels.bytes);
        // In a first assign every row moves, from nowhere: its values stay where they are until they are added.
        const bool first = by_lanes && __all_sync(FULL_WARP, old.none());
        if (!first && tile < tiles) next.ask(a.rows, a.labels, tile * WARP_TILE + lane * ROWS);
        Found found = fit ? nearest<D, GROUP, 4>(x, square, bound, centroids, a.k_padded)
                          : nearest<D, GROUP, 0>(x, square, bound, a.copies, a.k_padded);
        const u32 valid = (1u << min(a.rows.n - min(a.rows.n, row), ROWS)) - 1; // rows that there are
        const u32 doubt = found.doubt & valid;
#pragma unroll 1
        for (u32 lanes = __ballot_sync(FULL_WARP, found.doubt != 0); lanes; lanes &= lanes - 1) {
            const int source = __ffs(lanes) - 1;
            // Rows in doubt have no label yet: those that there are not get one too.
#pragma unroll
            for (int i = 0; i < ROWS; i++) found.label[i] = lane == source && (found.doubt >> i & 1) ? 0 : found.label[i];
#pragma unroll 1
            for (u32 rows = __shfl_sync(FULL_WARP, doubt, source); rows; rows &= rows - 1) {
                const int r = __ffs(rows) - 1;
                const float limit = __shfl_sync(FULL_WARP, pick(found.limit, r), source);
                const u32 label = settle<T, D, GROUP>(a, shift, fit ? centroids : a.copies, fit ? 4 : 0,
                                                      row - lane * ROWS + source * ROWS + r, limit, lane);
#pragma unroll
                for (int i = 0; i < ROWS; i++) found.label[i] = lane == source && i == r ? label : found.label[i];
                if (lane == 0) atomicAdd(&block_contested, 1u);
            }
        }
        const Four now(a.labels.bytes, found.label);
        if (first) {
            if (valid) now.store(a.labels.bytes, (u8*)a.labels.at + (u64)row * (u32)a.labels.bytes);
            const u32 count = min(WARP_TILE, a.rows.n - (row - lane * ROWS));
            enter(gate, count, cells(), a.sums, lane);
            add_first(a, factors, next, cells(), found.label, valid, lane);
            if (lane == 0) atomicAdd(&block_changed, count);
            if (tile < tiles) next.ask(a.rows, a.labels, tile * WARP_TILE + lane * ROWS);
            continue;
        }
        if (__any_sync(FULL_WARP, !now.is(old))) {
            List& list = lists[warp];
            u32 differs = now.differs(old, a.labels.bytes) & valid;
            if (differs) {
                now.store(a.labels.bytes, (u8*)a.labels.at + (u64)row * (u32)a.labels.bytes);
                if (a.rows.w) {
#pragma unroll
                    for (int r = 0; r < ROWS; r++)
                        if ((differs >> r & 1) && !(a.rows.w[row + r] > 0.0)) differs &= ~(1u << r);
                }
                // Few lanes have any, and most of these one: places are taken from a counter, not agreed upon by all.
                u32 at = atomicAdd(&list.count, __popc(differs));
#pragma unroll 1
                for (; differs; differs &= differs - 1, at++) {
                    const int r = __ffs(differs) - 1;
                    list.from[at] = old.label(a.labels.bytes, r);
                    list.to[at] = pick(found.label, r);
                    list.row[at] = row + r;
                }
            }
            __syncwarp();
            listed = list.count;
        }
    }
    __syncthreads();
    if (a.table_copies && gate.announced) flush_table(gate.cells.table, gate.cells.rows, a.sums);
    if (threadIdx.x == 0) {
        if (block_changed) atomicAdd(&a.control->changed, (u64)block_changed);
        if (block_contested) atomicAdd(&a.control->contested, block_contested);
    }
}

// BLOCKS: on a multiprocessor at a time, so that enough loads are in flight.
#define KERNEL(NAME, T, D, GROUP, BLOCKS)                                                                    \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) NAME(const __grid_constant__ Assign<T> a) { \
        assign<T, D, GROUP>(a);                                                                              \
    }
#define ALL(D, BLOCKS, BLOCKS_GROUPED, BLOCKS_F64)                            \
    KERNEL(assign_registers_f32_d##D, float, D, 0, BLOCKS)                     \
    KERNEL(assign_registers_f32_d##D##_groups8, float, D, 8, BLOCKS_GROUPED)   \
    KERNEL(assign_registers_f32_d##D##_groups16, float, D, 16, BLOCKS_GROUPED) \
    KERNEL(assign_registers_f64_d##D, double, D, 0, BLOCKS_F64)                \
    KERNEL(assign_registers_f64_d##D##_groups8, double, D, 8, BLOCKS_F64)      \
    KERNEL(assign_registers_f64_d##D##_groups16, double, D, 16, BLOCKS_F64)
ALL(1, 4, 4, 4)
ALL(2, 4, 4, 4)
ALL(3, 3, 2, 2)
ALL(4, 3, 3, 3)
ALL(6, 2, 2, 2)
ALL(8, 2, 2, 2)
ALL(12, 2, 2, 1)

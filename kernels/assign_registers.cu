// assign_registers: labels and sums in one pass over the data, for few dimensions.
//
// Source:    Li, Zhao, Chu and Liu, "Speeding up k-means algorithm by GPUs", CIT 2010, algorithm 3 (low d: a row lives in
//            registers, centroids in shared memory); sums fused into the same pass as Lutz et al. 2018, section 4.
// Used when: d <= 12, and few rows or very many clusters do not make tiles faster (src/backend/cuda/chooser.rs).
// Tile:      a thread has 4 rows (one 16-byte load a float32 column), a warp 128; warps take runs of tiles from a common counter, each
//            at its own pace: no barrier after the start. Centroids are in shared memory where they fit, else the first-level
//            cache has them.
// Memory:    each value is read once, by asynchronous copies to the thread's own place in shared memory, on their way while the tile
//            before is worked on; labels are read and, where they changed, written, in 1, 2 or 4 bytes.
// Precision: a float32 product filter, h_j = |c_j|^2 / 2 - x.c_j on centred, scaled copies, certified by `Bound`
//            (d fmas onto the half square: d roundings). Rows in doubt are settled at once, by the warp that found them.
//
//   for each tile:
//     best, second and the index over all centroids; many centroids: over groups of them, then once more over the best group
//     rows whose second best is in reach: reference distances to all centroids
//     rows whose label changed go to the warp's list; when it has enough, its lanes take (row, column) pairs of it: quantise, take
//     from one cluster's cell, add to the other's
//   flush the block's table of cells
//
// Departures from the paper: (1) groups: only the least score of a group is kept in the first sweep (one instruction a score
// instead of five), and the best group is swept again. (2) Sums move by deltas: a row that stays where it is costs nothing, and
// the few that move share the lanes of a warp evenly.
#include "common.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)
#define ROWS 4
#define WARP_TILE (32 * ROWS)
// Listed rows from which on the list is worked off; as many as one tile adds must still fit.
#define ENOUGH 16
#define LIST (ENOUGH - 1 + WARP_TILE)
// Rows that may be moved through a block's table before it is flushed: less than the 4,096 values that an int64 is sure to hold (one
// limb) by what other warps have announced, but not added yet, when the table is flushed.
#define CAPACITY (4096 - (WARPS - 1) * LIST)

// ---- a tile on its way -------------------------------------------------------------------------------------------------------

template <int BYTES> __device__ __forceinline__ void copy_async(void* to, const void* from) {
    u32 shared = (u32)__cvta_generic_to_shared(to);
    if constexpr (BYTES == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from) : "memory");
    else asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared), "l"(from), "n"(BYTES) : "memory");
}

// Each thread copies and reads its own places only, so that no barrier is needed: 16 bytes a plane (two planes a float64 column),
// then four labels.
template <typename T, int D> struct Arriving {
    static const int planes = sizeof(T) / 4;
    float4* values; // (D * planes, THREADS)
    unsigned char* labels; // (THREADS, 4 labels)

    static __host__ __device__ constexpr int bytes(int label_bytes) { return THREADS * (D * planes * 16 + 4 * label_bytes); }

    __device__ __forceinline__ void ask(const Rows<T>& rows, Labels from, u64 row) const {
#pragma unroll
        for (int f = 0; f < D; f++) {
            if (D <= 4 || f < rows.d) {
                const float4* x = (const float4*)(rows.x + (u64)f * rows.stride + row);
#pragma unroll
                for (int p = 0; p < planes; p++) copy_async<16>(values + (f * planes + p) * THREADS + threadIdx.x, x + p);
            }
        }
        unsigned char* to = labels + threadIdx.x * 4 * from.bytes;
        const unsigned char* at = (const unsigned char*)from.at + row * from.bytes;
        if (from.bytes == 1) copy_async<4>(to, at);
        else if (from.bytes == 2) copy_async<8>(to, at);
        else copy_async<16>(to, at);
    }
    // The four rows of column f.
    __device__ __forceinline__ void take(int f, float (&out)[ROWS]) const {
        float4 v = values[f * THREADS + threadIdx.x];
        out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
    }
    __device__ __forceinline__ void take(int f, double (&out)[ROWS]) const {
        double2 v = *(double2*)(values + 2 * f * THREADS + threadIdx.x), w = *(double2*)(values + (2 * f + 1) * THREADS + threadIdx.x);
        out[0] = v.x, out[1] = v.y, out[2] = w.x, out[3] = w.y;
    }
    __device__ __forceinline__ void take_labels(int label_bytes, u32 (&out)[ROWS]) const {
        if (label_bytes == 1) {
            u32 v = ((const u32*)labels)[threadIdx.x];
#pragma unroll
            for (int r = 0; r < ROWS; r++) out[r] = widen((v >> (8 * r)) & 0xff, 1);
        } else if (label_bytes == 2) {
            uint2 v = ((const uint2*)labels)[threadIdx.x];
            out[0] = widen(v.x & 0xffff, 2), out[1] = widen(v.x >> 16, 2);
            out[2] = widen(v.y & 0xffff, 2), out[3] = widen(v.y >> 16, 2);
        } else {
            uint4 v = ((const uint4*)labels)[threadIdx.x];
            out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
        }
    }
};

__device__ __forceinline__ void store_labels(Labels labels, u64 row, const u32* in) {
    if (labels.bytes == 1) {
        *(u32*)((u8*)labels.at + row) = (in[0] & 0xff) | (in[1] & 0xff) << 8 | (in[2] & 0xff) << 16 | in[3] << 24;
    } else if (labels.bytes == 2) {
        *(uint2*)((u16*)labels.at + row) = make_uint2((in[0] & 0xffff) | in[1] << 16, (in[2] & 0xffff) | in[3] << 16);
    } else {
        *(uint4*)((u32*)labels.at + row) = make_uint4(in[0], in[1], in[2], in[3]);
    }
}

// ---- scores --------------------------------------------------------------------------------------------------------------------

// A centroid in shared memory: D values and the half square, padded to whole 16-byte pieces.
template <int D> struct Centroid {
    static const int width = (D + 1 + 3) / 4 * 4;
    float v[width];
    __device__ __forceinline__ void load(const float* p) {
#pragma unroll
        for (int i = 0; i < width; i += 4) {
            float4 q = *(const float4*)(p + i);
            v[i] = q.x, v[i + 1] = q.y, v[i + 2] = q.z, v[i + 3] = q.w;
        }
    }
    // x is (D, ROWS).
    __device__ __forceinline__ float score(const float (&x)[D][ROWS], int r) const {
        float h = v[D];
#pragma unroll
        for (int f = 0; f < D; f++) h = __fmaf_rn(x[f][r], v[f], h);
        return h;
    }
};

// The least two scores over all centroids and the index of the least; with groups, the index of the least group's first and the
// least two over groups. In shared memory groups are 16 bytes apart
// (GAP words), so that lanes that look at different groups find them in different banks.
template <int D, int GROUP, int GAP>
__device__ __forceinline__ void sweep(const float (&x)[D][ROWS], const float* centroids, int count, float (&best)[ROWS],
                                      float (&second)[ROWS], u32 (&index)[ROWS]) {
    const int W = Centroid<D>::width;
    if constexpr (GROUP != 0) {
#pragma unroll 1
        for (int g = 0; g < count; g += GROUP) {
            float least[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) least[r] = infinity_f();
#pragma unroll (D <= 4 ? GROUP : 2)
            for (int i = 0; i < GROUP; i++) {
                Centroid<D> c;
                c.load(centroids + i * W);
#pragma unroll
                for (int r = 0; r < ROWS; r++) least[r] = fminf(least[r], c.score(x, r));
            }
            centroids += GROUP * W + GAP;
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                second[r] = fminf(second[r], fmaxf(best[r], least[r]));
                index[r] = least[r] < best[r] ? g : index[r];
                best[r] = fminf(best[r], least[r]);
            }
        }
    } else {
#pragma unroll (D <= 8 ? 2 : 1)
        for (int j = 0; j < count; j++) {
            Centroid<D> c;
            c.load(centroids + j * W);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float h = c.score(x, r);
                second[r] = fminf(second[r], fmaxf(best[r], h));
                index[r] = h < best[r] ? j : index[r];
                best[r] = fminf(best[r], h);
            }
        }
    }
}

// Centroids from device memory to shared memory; groups are moved apart.
template <int D, int GROUP> __device__ __forceinline__ void fetch_centroids(const float* from, float* to, int count) {
    const int W = Centroid<D>::width;
#pragma unroll 1
    for (int i = threadIdx.x; i < count * W / 4; i += THREADS) {
        int group = GROUP ? i / (GROUP * W / 4) : 0;
        ((float4*)to)[i + group] = ((const float4*)from)[i];
    }
}

// ---- sums ----------------------------------------------------------------------------------------------------------------------

// Rows of one warp that changed.
struct List {
    u32 from[LIST], to[LIST], row[LIST];
    u32 count;
};

// A block's table: who may add to it, and when it is flushed.
struct Gate {
    u32 announced; // rows, by all warps
    u32 flushed; // rows announced when the table was flushed last
    u32 busy; // a warp is flushing
};

// Announces `count` rows; flushes the table first where there is no room for them. By a whole warp.
__device__ __forceinline__ void enter(Gate& gate, u32 count, const Table& table, int* table_rows, const Sums& s, int lane) {
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
        flush_table_by_warp(table, table_rows, s, lane);
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

// Moves what the listed rows contribute from cluster to cluster: lanes take pairs of a row and a column.
template <typename T>
__device__ __forceinline__ void move_listed(const Assign<T>& a, Gate& gate, const Table& table, int* table_rows, List& list, u32 count, int lane) {
    const Sums& s = a.sums;
    __syncwarp();
    if (table.copies) enter(gate, count, table, table_rows, s, lane);
    const u32 columns = s.columns, reciprocal = (65536 + columns - 1) / columns; // exact for the at most 143 * 13 pairs
    const int copy = lane & (table.copies - 1);
#pragma unroll 1
    for (u32 pair = lane; pair < count * columns; pair += 32) {
        const u32 e = pair * reciprocal >> 16, c = pair - e * columns;
        const u32 from = list.from[e], to = list.to[e];
        const u64 row = list.row[e];
        const double weight = a.rows.w ? a.rows.w[row] : 1.0;
        Pair p;
        if (c < a.rows.d) {
            double x = (double)a.rows.x[(u64)c * a.rows.stride + row];
            if (a.rows.w) x = __dmul_rn(weight, x);
            p = limbs_of(x, a.factors[c]);
        } else {
            p = mass_limbs(weight, a.mass_to_integer);
        }
        u32 into = (to * columns + c) * s.limbs, out = (from * columns + c) * s.limbs;
#pragma unroll 1
        for (int limb = 0; limb < s.limbs; limb++) {
            i64 v = limb ? p.lo : p.hi;
            if (table.copies) {
                table_add(table, into + limb, copy, v);
                if (from != UNASSIGNED) table_add(table, out + limb, copy, -v);
            } else {
                add_pending(s.pending + (u64)(into + limb) * 2, v);
                if (from != UNASSIGNED) add_pending(s.pending + (u64)(out + limb) * 2, -v);
            }
        }
    }
#pragma unroll 1
    for (u32 e = lane; e < count; e += 32) {
        const u32 from = list.from[e], to = list.to[e];
        if (table.copies) {
            atomicAdd(&table_rows[to], 1);
            if (from != UNASSIGNED) atomicSub(&table_rows[from], 1);
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
__device__ __forceinline__ void add_first(const Assign<T>& a, const Arriving<T, D>& next, const Table& table, int* table_rows,
                                          const u32 (&label)[ROWS], u32 valid, int lane) {
    const Sums& s = a.sums;
    const int copy = lane & (table.copies - 1);
#pragma unroll 1
    for (int f = 0; f < a.rows.d; f++) {
        const Factors factors = a.factors[f];
        T raw[ROWS];
        next.take(f, raw);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (valid >> r & 1) {
                const Pair p = limbs_of((double)raw[r], factors);
                const u32 cell = (label[r] * s.columns + f) * s.limbs;
                table_add(table, cell, copy, p.hi);
                if (s.limbs == 2) table_add(table, cell + 1, copy, p.lo);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        if (valid >> r & 1) atomicAdd(&table_rows[label[r]], 1);
    __syncwarp();
}

template <typename T, int D, int GROUP> __device__ __forceinline__ void assign(const Assign<T>& a) {
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ List lists[WARPS];
    __shared__ Gate gate;
    __shared__ u32 following[WARPS]; // the run that each warp takes next
    __shared__ u32 block_changed, block_contested;
    wait_for_kernel_before();
    if (a.control->stop) return;
    const int W = Centroid<D>::width;
    // Shared memory: the arriving tile, centroids (if they fit), the table's words, rows of each cluster.
    typedef Arriving<T, D> Next;
    const Next next = {(float4*)shared, shared + Next::bytes(0)};
    const bool fit = a.portion != 0;
    float* centroids = (float*)(shared + Next::bytes(a.labels.bytes));
    const u32 centroid_words = fit ? a.k_padded * W + (GROUP ? a.k_padded / (GROUP ? GROUP : 1) * 4 : 0) : 0;
    Table table = {(u32*)(centroids + centroid_words), a.sums.k * a.sums.columns * a.sums.limbs, a.table_copies};
    int* table_rows = (int*)(table.words + (size_t)table.cells * 2 * table.copies);
    const int d = a.rows.d, lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    // Runs of tiles: the first two of every warp are known, and one more than that is always under way.
    // A run is a power of two, and starts at a multiple of it.
    const u32 tiles = (a.rows.n + WARP_TILE - 1) / WARP_TILE, in_run = a.run - 1;
    u32 tile = (blockIdx.x * WARPS + warp) * a.run;
    if (lane == 0) lists[warp].count = 0;
    if (lane == 0) following[warp] = tile + gridDim.x * WARPS * a.run;
    if (tile < tiles) next.ask(a.rows, a.labels, (u64)tile * WARP_TILE + lane * ROWS);
    if (threadIdx.x == 0) gate.announced = 0, gate.flushed = 0, gate.busy = 0, block_changed = 0, block_contested = 0;
    if (table.copies) {
        table_clear(table);
#pragma unroll 1
        for (int i = threadIdx.x; i < a.sums.k; i += THREADS) table_rows[i] = 0;
    }
    if (fit) fetch_centroids<D, GROUP>(a.copies, centroids, a.k_padded);
    const Bound bound = *a.bound;
    // Up to four dimensions there is a kernel for each.
    const bool exact = D <= 4;
    T shift[D];
#pragma unroll
    for (int f = 0; f < D; f++) shift[f] = exact || f < d ? a.shift[f] : (T)0;
    __syncthreads();

    u32 changed = 0, contested = 0, listed = 0; // of the warp
    u32 later = 0;
#pragma unroll 1
    while (tile < tiles) {
        // The run after the next one, asked for a run ahead.
        if ((tile & in_run) == 0 && lane == 0) later = atomicAdd(&a.control->next_run, in_run + 1);
        const u64 row = (u64)tile * WARP_TILE + lane * ROWS;
        tile++;
        if ((tile & in_run) == 0) {
            __syncwarp();
            tile = following[warp];
            __syncwarp();
            if (lane == 0) following[warp] = 2 * gridDim.x * WARPS * (in_run + 1) + later;
        }
        float x[D][ROWS];
        float square[ROWS], best[ROWS], second[ROWS];
        u32 index[ROWS], old[ROWS];
        asm volatile("cp.async.wait_all;" ::: "memory");
        next.take_labels(a.labels.bytes, old);
#pragma unroll
        for (int r = 0; r < ROWS; r++) square[r] = 0.0f, best[r] = infinity_f(), second[r] = infinity_f(), index[r] = 0;
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
        // In a first assign every row moves, from nowhere: its values stay where they are until they are added.
        const bool first = table.copies && !a.rows.w
            && __all_sync(FULL_WARP, (old[0] & old[1] & old[2] & old[3]) == UNASSIGNED);
        if (!first && tile < tiles) next.ask(a.rows, a.labels, (u64)tile * WARP_TILE + lane * ROWS);
        if (fit) sweep<D, GROUP, 4>(x, centroids, a.k_padded, best, second, index);
        else sweep<D, GROUP, 0>(x, a.copies, a.k_padded, best, second, index);
        if constexpr (GROUP != 0) {
            // The best group once more, with the same roundings: which of its centroids, and its second least.
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const u32 group = index[r] / GROUP;
                const float* from = fit ? centroids + group * (GROUP * W + 4) : a.copies + (u64)index[r] * W;
                const u32 start = index[r];
                float least = infinity_f(), next = infinity_f();
#pragma unroll (D <= 4 ? 4 : 1)
                for (int i = 0; i < GROUP; i++) {
                    Centroid<D> c;
                    c.load(from + i * W);
                    float h = c.score(x, r);
                    next = fminf(next, fmaxf(least, h));
                    index[r] = h < least ? start + i : index[r];
                    least = fminf(least, h);
                }
                second[r] = fminf(second[r], next);
            }
        }
        const u32 left = a.rows.n - (u32)min((u64)a.rows.n, row); // rows that there are from this thread's first on
        u32 doubt = 0;
#pragma unroll
        for (int r = 0; r < ROWS; r++) doubt |= second[r] > reach(bound, square[r], best[r]) ? 0 : 1u << r;
        const u32 valid = left >= ROWS ? 0xf : (1u << left) - 1;
        doubt &= valid;
        for (u32 lanes = __ballot_sync(FULL_WARP, doubt != 0); lanes; lanes &= lanes - 1) {
            const int source = __ffs(lanes) - 1;
            for (u32 rows = __shfl_sync(FULL_WARP, doubt, source); rows; rows &= rows - 1) {
                const int r = __ffs(rows) - 1;
                const u32 label = nearest_by_warp(a.rows, row - lane * ROWS + source * ROWS + r, a.columns, a.k, lane);
#pragma unroll
                for (int i = 0; i < ROWS; i++) index[i] = lane == source && i == r ? label : index[i];
                contested++;
            }
        }
        if (first) {
            if (valid) store_labels(a.labels, row, index);
            const u32 count = min(WARP_TILE, a.rows.n - (u32)(row - lane * ROWS));
            enter(gate, count, table, table_rows, a.sums, lane);
            add_first(a, next, table, table_rows, index, valid, lane);
            changed += count;
            if (tile < tiles) next.ask(a.rows, a.labels, (u64)tile * WARP_TILE + lane * ROWS);
            continue;
        }
        u32 differs = 0;
#pragma unroll
        for (int r = 0; r < ROWS; r++) differs |= index[r] != old[r] ? 1u << r : 0;
        differs &= valid;
        if (__any_sync(FULL_WARP, differs)) {
            List& list = lists[warp];
            if (differs) {
                store_labels(a.labels, row, index);
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
                    list.from[at] = r == 0 ? old[0] : r == 1 ? old[1] : r == 2 ? old[2] : old[3];
                    list.to[at] = r == 0 ? index[0] : r == 1 ? index[1] : r == 2 ? index[2] : index[3];
                    list.row[at] = (u32)row + r;
                }
            }
            __syncwarp();
            listed = list.count;
        }
        if (listed >= ENOUGH) {
            move_listed(a, gate, table, table_rows, lists[warp], listed, lane);
            changed += listed;
            listed = 0;
        }
    }
    if (listed) {
        move_listed(a, gate, table, table_rows, lists[warp], listed, lane);
        changed += listed;
    }
    if (lane == 0 && changed) atomicAdd(&block_changed, changed);
    if (lane == 0 && contested) atomicAdd(&block_contested, contested);
    __syncthreads();
    if (table.copies && gate.announced) flush_table(table, table_rows, a.sums);
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

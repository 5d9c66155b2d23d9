// assign_registers: labels and sums in one pass over the data, for few dimensions.
//
// Source:    Li, Zhao, Chu and Liu, "Speeding up k-means algorithm by GPUs", CIT 2010, algorithm 3 (low d: a row lives in
//            registers, centroids in shared memory); sums fused into the same pass as Lutz et al. 2018, section 4.
// Used when: d <= 12.
// Tile:      a thread has 4 rows (one 16-byte load a float32 column), a block of 256 threads 1,024; centroids go through shared
//            memory, all of them at once where they fit, else in portions, once for each tile.
// Memory:    each value is read once; labels are read and, where they changed, written, in 1, 2 or 4 bytes.
// Precision: a float32 product filter, h_j = |c_j|^2 / 2 - x.c_j on centred, scaled copies, certified by `Bound`
//            (d fmas onto the half square: d roundings). Rows in doubt are settled at once, by the warp that found them.
//
//   for each tile:
//     best, second and the index over all centroids; many centroids: over groups of them, then once more over the best group
//     rows whose second best is in reach: reference distances to all centroids
//     rows whose label changed go to the warp's list; its lanes take (row, column) pairs of it: quantise, take from one
//     cluster's cell, add to the other's
//   flush the block's table of cells
//
// Departures from the paper: (1) groups: only the least score of a group is kept in the first sweep (one instruction a score
// instead of five), and the best group is swept again. (2) Sums move by deltas: a row that stays where it is costs nothing, and
// the few that move share the lanes of a warp evenly.
#include "common.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)
#define ROWS 4
#define TILE (THREADS * ROWS)
#define WARP_TILE (32 * ROWS)
// Values that an int64 is sure to hold (one limb), in tiles.
#define TILES_A_FLUSH 3
#define CAPACITY 4096

template <typename T> struct Four;
template <> struct Four<float> {
    static __device__ __forceinline__ void load(const float* p, float* out) {
        float4 v = *(const float4*)p;
        out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
    }
};
template <> struct Four<double> {
    static __device__ __forceinline__ void load(const double* p, double* out) {
        double2 v = ((const double2*)p)[0], w = ((const double2*)p)[1];
        out[0] = v.x, out[1] = v.y, out[2] = w.x, out[3] = w.y;
    }
};

__device__ __forceinline__ void load_labels(Labels labels, u64 row, u32* out) {
    if (labels.bytes == 1) {
        u32 v = *(const u32*)((const u8*)labels.at + row);
#pragma unroll
        for (int r = 0; r < ROWS; r++) out[r] = widen((v >> (8 * r)) & 0xff, 1);
    } else if (labels.bytes == 2) {
        uint2 v = *(const uint2*)((const u16*)labels.at + row);
        out[0] = widen(v.x & 0xffff, 2), out[1] = widen(v.x >> 16, 2);
        out[2] = widen(v.y & 0xffff, 2), out[3] = widen(v.y >> 16, 2);
    } else {
        uint4 v = *(const uint4*)((const u32*)labels.at + row);
        out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
    }
}

__device__ __forceinline__ void store_labels(Labels labels, u64 row, const u32* in) {
    if (labels.bytes == 1) {
        *(u32*)((u8*)labels.at + row) = (in[0] & 0xff) | (in[1] & 0xff) << 8 | (in[2] & 0xff) << 16 | in[3] << 24;
    } else if (labels.bytes == 2) {
        *(uint2*)((u16*)labels.at + row) = make_uint2((in[0] & 0xffff) | in[1] << 16, (in[2] & 0xffff) | in[3] << 16);
    } else {
        *(uint4*)((u32*)labels.at + row) = make_uint4(in[0], in[1], in[2], in[3]);
    }
}

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
// least two over groups. Groups are 16 bytes apart, so that lanes that look at different groups find them in different banks.
template <int D, int GROUP>
__device__ __forceinline__ void sweep(const float (&x)[D][ROWS], const float* centroids, int first, int count, float (&best)[ROWS],
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
            centroids += GROUP * W + 4;
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                second[r] = fminf(second[r], fmaxf(best[r], least[r]));
                index[r] = least[r] < best[r] ? first + g : index[r];
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
                index[r] = h < best[r] ? first + j : index[r];
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

// Rows of one warp that changed.
struct List {
    u32 from[WARP_TILE], to[WARP_TILE];
    unsigned char place[WARP_TILE];
};

// Moves what the listed rows contribute from cluster to cluster: lanes take pairs of a row and a column.
template <typename T>
__device__ __forceinline__ void move_listed(const Assign<T>& a, const Table& table, int* table_rows, const List& list, u32 count, u64 first,
                                            int lane) {
    const Sums& s = a.sums;
    const u32 columns = s.columns, reciprocal = (65536 + columns - 1) / columns; // exact for the at most 128 * 13 pairs
    const int copy = lane & (table.copies - 1);
#pragma unroll 1
    for (u32 pair = lane; pair < count * columns; pair += 32) {
        const u32 e = pair * reciprocal >> 16, c = pair - e * columns;
        const u32 from = list.from[e], to = list.to[e];
        const u64 row = first + list.place[e];
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
}

template <typename T, int D, int GROUP> __device__ __forceinline__ void assign(const Assign<T>& a) {
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ List lists[WARPS];
    __shared__ u32 block_moved; // rows moved through the table since its last flush
    __shared__ u32 block_changed, block_contested;
    if (a.control->stop) return;
    const int W = Centroid<D>::width;
    // Shared memory: centroids (one portion), the table's words, rows of each cluster.
    const int portion = a.portion;
    float* centroids = (float*)shared;
    Table table = {(u32*)(centroids + portion * W + (GROUP ? portion / (GROUP ? GROUP : 1) * 4 : 0)),
                   a.sums.k * a.sums.columns * a.sums.limbs, a.table_copies};
    int* table_rows = (int*)(table.words + (size_t)table.cells * 2 * table.copies);
    if (threadIdx.x == 0) block_moved = 0, block_changed = 0, block_contested = 0;
    if (table.copies) {
        table_clear(table);
#pragma unroll 1
        for (int i = threadIdx.x; i < a.sums.k; i += THREADS) table_rows[i] = 0;
    }
    const bool whole = portion >= a.k_padded;
    if (whole) fetch_centroids<D, GROUP>(a.copies, centroids, a.k_padded);
    const Bound bound = *a.bound;
    const int d = a.rows.d, lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    // Up to four dimensions there is a kernel for each.
    const bool exact = D <= 4;
    T shift[D];
#pragma unroll
    for (int f = 0; f < D; f++) shift[f] = exact || f < d ? a.shift[f] : (T)0;
    __syncthreads();

    const u32 tiles = (a.rows.n + TILE - 1) / TILE;
    u32 changed = 0, contested = 0; // of the warp
    int since = 0;
#pragma unroll 1
    for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const u64 first = (u64)tile * TILE + warp * WARP_TILE, row = first + lane * ROWS;
        float x[D][ROWS];
        float square[ROWS], best[ROWS], second[ROWS];
        u32 index[ROWS], old[ROWS];
        load_labels(a.labels, row, old);
        // Every load is on its way before the first is used.
        T raw[D][ROWS];
#pragma unroll
        for (int f = 0; f < D; f++) {
            if (exact || f < d) {
                Four<T>::load(a.rows.x + (u64)f * a.rows.stride + row, raw[f]);
            } else {
#pragma unroll
                for (int r = 0; r < ROWS; r++) raw[f][r] = 0;
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) square[r] = 0.0f, best[r] = infinity_f(), second[r] = infinity_f(), index[r] = 0;
#pragma unroll
        for (int f = 0; f < D; f++) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                x[f][r] = centred_copy(raw[f][r], shift[f], a.scale);
                square[r] = __fmaf_rn(x[f][r], x[f][r], square[r]);
            }
        }
        if (whole) {
            sweep<D, GROUP>(x, centroids, 0, a.k_padded, best, second, index);
        } else {
#pragma unroll 1
            for (int at = 0; at < a.k_padded; at += portion) {
                int count = min(portion, a.k_padded - at);
                __syncthreads();
                fetch_centroids<D, GROUP>(a.copies + (u64)at * W, centroids, count);
                __syncthreads();
                sweep<D, GROUP>(x, centroids, at, count, best, second, index);
            }
        }
        if constexpr (GROUP != 0) {
            // The best group once more, with the same roundings: which of its centroids, and its second least.
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const u32 group = index[r] / GROUP;
                const float* from = whole ? centroids + group * (GROUP * W + 4) : a.copies + (u64)index[r] * W;
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
                const u32 label = nearest_by_warp(a.rows, first + source * ROWS + r, a.columns, a.k, lane);
#pragma unroll
                for (int i = 0; i < ROWS; i++) index[i] = lane == source && i == r ? label : index[i];
                contested++;
            }
        }
        u32 differs = 0;
#pragma unroll
        for (int r = 0; r < ROWS; r++) differs |= index[r] != old[r] ? 1u << r : 0;
        differs &= valid;
        if (__any_sync(FULL_WARP, differs)) {
            if (differs) store_labels(a.labels, row, index);
            List& list = lists[warp];
            u32 count = 0;
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const bool listed = (differs >> r & 1) && (!a.rows.w || a.rows.w[row + r] > 0.0);
                const u32 mask = __ballot_sync(FULL_WARP, listed);
                if (listed) {
                    const u32 at = count + __popc(mask & ((1u << lane) - 1));
                    list.from[at] = old[r], list.to[at] = index[r], list.place[at] = lane * ROWS + r;
                }
                count += __popc(mask);
            }
            __syncwarp();
            move_listed(a, table, table_rows, list, count, first, lane);
            changed += count;
            __syncwarp();
        }
        if (table.copies && ++since == TILES_A_FLUSH) {
            since = 0;
            if (lane == 0 && changed) atomicAdd(&block_moved, changed), atomicAdd(&block_changed, changed);
            changed = 0;
            __syncthreads();
            const bool full = block_moved + TILES_A_FLUSH * TILE > CAPACITY;
            __syncthreads();
            if (full) {
                if (threadIdx.x == 0) block_moved = 0;
                flush_table(table, table_rows, a.sums);
                __syncthreads();
            }
        }
    }
    if (lane == 0 && changed) atomicAdd(&block_moved, changed), atomicAdd(&block_changed, changed);
    if (lane == 0 && contested) atomicAdd(&block_contested, contested);
    __syncthreads();
    if (table.copies && block_moved) flush_table(table, table_rows, a.sums);
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
#define ALL(D, BLOCKS)                                                \
    KERNEL(assign_registers_f32_d##D, float, D, 0, BLOCKS)             \
    KERNEL(assign_registers_f32_d##D##_groups8, float, D, 8, BLOCKS)   \
    KERNEL(assign_registers_f32_d##D##_groups16, float, D, 16, BLOCKS) \
    KERNEL(assign_registers_f64_d##D, double, D, 0, BLOCKS)            \
    KERNEL(assign_registers_f64_d##D##_groups8, double, D, 8, BLOCKS)  \
    KERNEL(assign_registers_f64_d##D##_groups16, double, D, 16, BLOCKS)
ALL(1, 4)
ALL(2, 4)
ALL(3, 3)
ALL(4, 3)
ALL(6, 2)
ALL(8, 2)
ALL(12, 2)

// assign_registers: labels and sums in one pass over the data, for few dimensions.
//
// Source:    Li, Zhao, Chu and Liu, "Speeding up k-means algorithm by GPUs", CIT 2010, algorithm 3 (low d: a row lives in
//            registers, centroids in shared memory); sums fused into the same pass as Lutz et al. 2018, section 4.
// Used when: d <= 16.
// Tile:      a thread has 4 rows (one 16-byte load a float32 column), a block of 256 threads 1,024; centroids go through shared
//            memory, all of them at once where they fit, else in portions, once for each tile.
// Memory:    each value is read once; labels are read and, where they changed, written, in 1, 2 or 4 bytes.
// Precision: a float32 product filter, h_j = |c_j|^2 / 2 - x.c_j on centred, scaled copies, certified by `Bound`
//            (d fmas onto the half square: d + 1 roundings). Rows in doubt go to `settle`.
//
//   for each tile:
//     best, second and the index over all centroids; many centroids: over groups of 8, then once more over the best group
//     certified rows whose label changed: quantise their values, take from one cluster's cells, add to the other's
//   flush the block's table of cells
//
// Departures from the paper: (1) groups: only the least score of a group is kept in the first sweep (one instruction a score
// instead of five), and the best group is swept again. (2) Sums move by deltas: a row that stays where it is costs nothing.
#include "common.cuh"

#define THREADS 256
#define ROWS 4
#define TILE (THREADS * ROWS)
#define GROUP 8
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

// Moves a row's contribution from one cluster (or none) to another: through the block's table where there is one. Not unrolled:
// its registers are the sweep's.
template <typename T>
__device__ __forceinline__ void move_row(const Assign<T>& a, const Table& table, int* table_rows, int lane, u64 row, u32 from, u32 to,
                                         double weight) {
    const Sums& s = a.sums;
    if (!table.copies) {
        move_pending(a.rows, s, a.factors, a.mass_to_integer, row, from, to, weight, 0, 1);
        return;
    }
    atomicAdd(&table_rows[to], 1);
    if (from != UNASSIGNED) atomicSub(&table_rows[from], 1);
    const int copy = lane & (table.copies - 1);
#pragma unroll 1
    for (int c = 0; c < s.columns; c++) {
        Pair p;
        if (c < a.rows.d) {
            double x = (double)a.rows.x[(u64)c * a.rows.stride + row];
            if (a.rows.w) x = __dmul_rn(weight, x);
            p = limbs_of(x, a.factors[c]);
        } else {
            p = mass_limbs(weight, a.mass_to_integer);
        }
#pragma unroll 1
        for (int limb = 0; limb < s.limbs; limb++) {
            i64 v = limb ? p.lo : p.hi;
            table_add(table, ((int)to * s.columns + c) * s.limbs + limb, copy, v);
            if (from != UNASSIGNED) table_add(table, ((int)from * s.columns + c) * s.limbs + limb, copy, -v);
        }
    }
}

// The least two scores over all centroids and the index of the least.
template <int D, bool GROUPED>
__device__ __forceinline__ void sweep(const float (&x)[D][ROWS], const float* centroids, int first, int count, float (&best)[ROWS],
                                      float (&second)[ROWS], u32 (&index)[ROWS]) {
    const int W = Centroid<D>::width;
    if (GROUPED) {
        for (int g = 0; g < count; g += GROUP) {
            float least[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) least[r] = infinity_f();
#pragma unroll
            for (int i = 0; i < GROUP; i++) {
                Centroid<D> c;
                c.load(centroids + (g + i) * W);
#pragma unroll
                for (int r = 0; r < ROWS; r++) least[r] = fminf(least[r], c.score(x, r));
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                second[r] = fminf(second[r], fmaxf(best[r], least[r]));
                index[r] = least[r] < best[r] ? first + g : index[r];
                best[r] = fminf(best[r], least[r]);
            }
        }
    } else {
#pragma unroll 2
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

template <typename T, int D, bool GROUPED> __device__ __forceinline__ void assign(const Assign<T>& a) {
    extern __shared__ __align__(16) unsigned char shared[];
    if (a.control->stop) return;
    const int W = Centroid<D>::width;
    const Bound bound = *a.bound;
    // Shared memory: centroids (one portion), the table's words, rows of each cluster.
    const int portion = a.portion;
    float* centroids = (float*)shared;
    Table table = {(u32*)(centroids + portion * W), a.sums.k * a.sums.columns * a.sums.limbs, a.table_copies};
    int* table_rows = (int*)(table.words + (size_t)table.cells * 2 * table.copies);
    __shared__ u32 block_moved; // rows moved through the table since its last flush
    __shared__ u32 block_changed;
    if (threadIdx.x == 0) block_moved = 0, block_changed = 0;
    if (table.copies) {
        table_clear(table);
#pragma unroll 1
        for (int i = threadIdx.x; i < a.sums.k; i += THREADS) table_rows[i] = 0;
    }
    const bool whole = portion >= a.k_padded;
    if (whole) {
#pragma unroll 1
        for (int i = threadIdx.x; i < a.k_padded * W / 4; i += THREADS) ((float4*)centroids)[i] = ((const float4*)a.copies)[i];
    }
    __syncthreads();

    const int d = a.rows.d, lane = threadIdx.x & 31;
    const u32 tiles = (a.rows.n + TILE - 1) / TILE;
    u32 changed = 0;
    int since = 0;
    for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const u64 row = (u64)tile * TILE + threadIdx.x * ROWS;
        float x[D][ROWS];
        float square[ROWS], best[ROWS], second[ROWS];
        u32 index[ROWS], old[ROWS];
        load_labels(a.labels, row, old);
#pragma unroll
        for (int r = 0; r < ROWS; r++) square[r] = 0.0f, best[r] = infinity_f(), second[r] = infinity_f(), index[r] = 0;
        // Every load is on its way before the first is used.
        T raw[D][ROWS];
#pragma unroll
        for (int f = 0; f < D; f++) {
            if (f < d) {
                Four<T>::load(a.rows.x + (u64)f * a.rows.stride + row, raw[f]);
            } else {
#pragma unroll
                for (int r = 0; r < ROWS; r++) raw[f][r] = 0;
            }
        }
#pragma unroll
        for (int f = 0; f < D; f++) {
            T centre = f < d ? a.centre[f] : (T)0;
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                x[f][r] = centred_copy(raw[f][r], centre, a.scale);
                square[r] = __fmaf_rn(x[f][r], x[f][r], square[r]);
            }
        }
        if (whole) {
            sweep<D, GROUPED>(x, centroids, 0, a.k_padded, best, second, index);
        } else {
            for (int first = 0; first < a.k_padded; first += portion) {
                int count = min(portion, a.k_padded - first);
                __syncthreads();
#pragma unroll 1
                for (int i = threadIdx.x; i < count * W / 4; i += THREADS)
                    ((float4*)centroids)[i] = ((const float4*)(a.copies + (u64)first * W))[i];
                __syncthreads();
                sweep<D, GROUPED>(x, centroids, first, count, best, second, index);
            }
        }
        u32 store = 0, moved = 0;
        u32 label[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            label[r] = index[r];
            if (GROUPED) {
                // The best group once more, with the same roundings: which of its centroids, and its second least.
                const float* from = whole ? centroids : a.copies;
                float least = infinity_f(), next = infinity_f();
#pragma unroll
                for (int i = 0; i < GROUP; i++) {
                    Centroid<D> c;
                    c.load(from + (index[r] + i) * W);
                    float h = c.score(x, r);
                    next = fminf(next, fmaxf(least, h));
                    label[r] = h < least ? index[r] + i : label[r];
                    least = fminf(least, h);
                }
                second[r] = fminf(second[r], next);
            }
            const bool here = row + r < a.rows.n;
            const bool certain = second[r] > reach(bound, square[r], best[r]);
            if (here && !certain) {
                a.contested[atomicAdd(&a.control->contested, 1u)] = (u32)(row + r);
            }
            if (!(here && certain)) label[r] = old[r];
            if (label[r] != old[r]) store = 1;
        }
        if (store) {
            store_labels(a.labels, row, label);
            // One copy of the code for all four rows; selects instead of an index, which would put the arrays in local memory.
#pragma unroll 1
            for (int r = 0; r < ROWS; r++) {
                u32 to = r == 0 ? label[0] : r == 1 ? label[1] : r == 2 ? label[2] : label[3];
                u32 from = r == 0 ? old[0] : r == 1 ? old[1] : r == 2 ? old[2] : old[3];
                if (to == from) continue;
                double weight = a.rows.w ? a.rows.w[row + r] : 1.0;
                if (!(weight > 0.0)) continue;
                moved++;
                move_row(a, table, table_rows, lane, row + r, from, to, weight);
            }
        }
        changed += moved;
        if (table.copies && ++since == TILES_A_FLUSH) {
            since = 0;
            u32 all = __reduce_add_sync(FULL_WARP, changed);
            changed = 0;
            if (lane == 0 && all) atomicAdd(&block_moved, all), atomicAdd(&block_changed, all);
            __syncthreads();
            bool full = block_moved + TILES_A_FLUSH * TILE > CAPACITY;
            __syncthreads();
            if (full) {
                if (threadIdx.x == 0) block_moved = 0;
                flush_table(table, table_rows, a.sums);
                __syncthreads();
            }
        }
    }
    u32 all = __reduce_add_sync(FULL_WARP, changed);
    if (lane == 0 && all) atomicAdd(&block_moved, all), atomicAdd(&block_changed, all);
    __syncthreads();
    if (table.copies && block_moved) flush_table(table, table_rows, a.sums);
    if (threadIdx.x == 0 && block_changed) atomicAdd(&a.control->changed, (u64)block_changed);
}

// BLOCKS: on a multiprocessor at a time, so that enough loads are in flight.
#define KERNEL(NAME, T, D, GROUPED, BLOCKS)                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) NAME(const __grid_constant__ Assign<T> a) { \
        assign<T, D, GROUPED>(a);                                                                          \
    }
#define BOTH(D, BLOCKS)                                                \
    KERNEL(assign_registers_f32_d##D, float, D, false, BLOCKS)         \
    KERNEL(assign_registers_f32_d##D##_groups, float, D, true, BLOCKS) \
    KERNEL(assign_registers_f64_d##D, double, D, false, BLOCKS)        \
    KERNEL(assign_registers_f64_d##D##_groups, double, D, true, BLOCKS)
BOTH(1, 3)
BOTH(2, 3)
BOTH(3, 2)
BOTH(4, 3)
BOTH(6, 2)
BOTH(8, 2)
BOTH(12, 1)
BOTH(16, 1)

// deltas: sums after an assign that only wrote labels: what each row that changed contributes moves from sum to sum.
//
// Source:    the partitioned features of Lutz et al. 2018, section 3.1: a block owns a few columns and a table of their sums for
//            all clusters in shared memory. Ours: only rows that changed, found by comparing two arrays of labels.
// Used when: the assign is `assign_tiled` (many dimensions).
// Tile:      1,024 rows: those that changed are listed in shared memory, then each warp takes a column and its lanes rows of the
//            list: consecutive rows where all changed, so that the loads coalesce.
// Memory:    labels before and after, once for each chunk of columns, and the values of rows that changed.
// Precision: integers.
#include "common.cuh"

#define THREADS 256
#define TILE 1024
#define CAPACITY 4096

template <typename T> struct Deltas {
    Rows<T> rows;
    Labels labels; // before
    Labels next; // after
    Sums sums;
    const Factors* factors;
    double mass_to_integer;
    Control* control;
    int table_copies; // 0: straight to device memory
    int chunk; // columns of a block
    int chunks;
};

template <typename T> __device__ __forceinline__ void deltas(const Deltas<T>& a) {
    extern __shared__ __align__(16) unsigned char shared[];
    if (a.control->stop) return;
    __shared__ u32 count, moved;
    __shared__ u32 from[TILE], to[TILE];
    __shared__ unsigned short place[TILE];
    const Sums& s = a.sums;
    const int part = blockIdx.x % a.chunks, first = part * a.chunk, columns = min(a.chunk, s.columns - first);
    Table table = {(u32*)shared, s.k * columns * s.limbs, a.table_copies};
    if (table.copies) table_clear(table);
    if (threadIdx.x == 0) moved = 0;
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const u32 tiles = (a.rows.n + TILE - 1) / TILE, step = gridDim.x / a.chunks;
    u64 changed = 0;
    if (blockIdx.x / a.chunks >= step) return; // a last, incomplete set of chunks
    for (u32 tile = blockIdx.x / a.chunks; tile < tiles; tile += step) {
        __syncthreads();
        if (threadIdx.x == 0) count = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < TILE; i += THREADS) {
            const u64 row = (u64)tile * TILE + i;
            u32 before = 0, after = 0;
            bool listed = false;
            if (row < a.rows.n) {
                before = load_label(a.labels, row), after = load_label(a.next, row);
                listed = before != after && (!a.rows.w || a.rows.w[row] > 0.0);
            }
            u32 mask = __ballot_sync(FULL_WARP, listed), base = 0;
            if (lane == 0 && mask) base = atomicAdd(&count, __popc(mask));
            base = __shfl_sync(FULL_WARP, base, 0) + __popc(mask & ((1u << lane) - 1));
            if (listed) from[base] = before, to[base] = after, place[base] = i;
        }
        __syncthreads();
        const u32 all = count;
        if (table.copies && moved + all > CAPACITY) {
            // Rows are counted straight in device memory below: the table holds sums only.
            for (int cell = threadIdx.x; cell < table.cells; cell += THREADS) {
                int limb = cell % s.limbs, c = cell / s.limbs % columns, j = cell / s.limbs / columns;
                add_pending(s.pending + (((u64)j * s.columns + first + c) * s.limbs + limb) * 2, table_take(table, cell));
            }
            __syncthreads();
            if (threadIdx.x == 0) moved = 0;
            __syncthreads();
        }
        if (threadIdx.x == 0) moved += all;
        if (part == 0) {
            if (threadIdx.x == 0) changed += all;
            for (u32 q = threadIdx.x; q < all; q += THREADS) {
                atomicAdd((u64*)&s.pending_rows[to[q]], 1ull);
                if (from[q] != UNASSIGNED) atomicAdd((u64*)&s.pending_rows[from[q]], ~0ull);
            }
        }
        const int copy = lane & (table.copies - 1);
        for (int c = warp; c < columns; c += THREADS / 32) {
            const int column = first + c;
            Factors factors = column < a.rows.d ? a.factors[column] : Factors{0, 0, 0};
            for (u32 q = lane; q < all; q += 32) {
                const u64 row = (u64)tile * TILE + place[q];
                const double weight = a.rows.w ? a.rows.w[row] : 1.0;
                Pair p;
                if (column < a.rows.d) {
                    double x = (double)a.rows.x[(u64)column * a.rows.stride + row];
                    if (a.rows.w) x = __dmul_rn(weight, x);
                    p = limbs_of(x, factors);
                } else {
                    p = mass_limbs(weight, a.mass_to_integer);
                }
                for (int limb = 0; limb < s.limbs; limb++) {
                    i64 v = limb ? p.lo : p.hi;
                    if (table.copies) {
                        table_add(table, ((int)to[q] * columns + c) * s.limbs + limb, copy, v);
                        if (from[q] != UNASSIGNED) table_add(table, ((int)from[q] * columns + c) * s.limbs + limb, copy, -v);
                    } else {
                        add_pending(s.pending + (((u64)to[q] * s.columns + column) * s.limbs + limb) * 2, v);
                        if (from[q] != UNASSIGNED) add_pending(s.pending + (((u64)from[q] * s.columns + column) * s.limbs + limb) * 2, -v);
                    }
                }
            }
        }
    }
    __syncthreads();
    if (table.copies && moved) {
        for (int cell = threadIdx.x; cell < table.cells; cell += THREADS) {
            int limb = cell % s.limbs, c = cell / s.limbs % columns, j = cell / s.limbs / columns;
            add_pending(s.pending + (((u64)j * s.columns + first + c) * s.limbs + limb) * 2, table_take(table, cell));
        }
    }
    if (changed) atomicAdd(&a.control->changed, changed);
}

extern "C" __global__ void __launch_bounds__(THREADS) deltas_f32(const __grid_constant__ Deltas<float> a) { deltas(a); }
extern "C" __global__ void __launch_bounds__(THREADS) deltas_f64(const __grid_constant__ Deltas<double> a) { deltas(a); }

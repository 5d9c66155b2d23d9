// assign_table: labels, one thread a row, with all centroids in one table. The variants _sums also add up the rows in the same pass.
//
// Source:    Li, Zhao, Chu and Liu, CIT 2010, algorithm 3: a row lives in registers (d <= 16; suffixes _d4, _d8, _d16), and centroids
//            come through the caches. Luigi, "Accelerating K-means with CUDA", 2025: V1 adds each row to the sums of its block as soon
//            as the row has a label, by atomics in shared memory. Then it adds the sums of the block to those in device memory. V2
//            only labels. V3 and V4 hold the whole table of centroids in shared memory (suffix _shared), as Lutz et al. 2018 do.
// Used when: labels of `li`, `lutz-merge`, `lutz-features`, `lutz-mass-*` (d <= 16) and `luigi-v2`. Labels and sums (suffix _sums)
//            of `luigi-v1`, `luigi-v3`, `luigi-v4`.
// Tile:      256 rows, one a thread, and a persistent grid. Wider rows (suffix _any) are read again for every four centroids.
// Memory:    shared: in _shared the centroids (k x width floats and k half squares); in _sums the accumulators of the block (8 bytes each)
//            and a counter a cluster. These limit k.
// Precision: a float32 product filter (d roundings). Rows in doubt go to kernels/step/settle.cu. In _sums the warp settles them at once.
//
// Departures: blocks are persistent and take tile after tile. So they fill the table once, and flush the accumulators only every 4,096 rows.
#include "systems.cuh"

#define THREADS 256

template <typename T, int D, bool SHARED, bool SUMS> __device__ __forceinline__ void assign_table(const SystemAssign<T>& system) {
    extern __shared__ __align__(16) float shared[];
    const Assign<T>& a = system.assign;
    if (a.control->stop) return;
    const Sums& s = a.sums;
    const int tid = threadIdx.x, d = a.rows.d;
    const u32 tiles = (a.rows.n + THREADS - 1) / THREADS;
    // Shared memory: copies of the centroids, half squares, words of the accumulators, counters.
    const int values = SHARED ? a.k_padded * system.width : 0, floats = SHARED ? values + a.k_padded : 0;
    if constexpr (SHARED) {
        for (int i = tid; i < floats; i += THREADS) shared[i] = i < values ? a.copies[i] : a.half_squares[i - values];
    }
    const float* copies = SHARED ? shared : a.copies;
    const float* halves = SHARED ? shared + values : a.half_squares;
    const Table table = {(u32*)(shared + floats), SUMS ? s.k * s.columns * s.limbs : 0, 1};
    int* table_rows = (int*)(table.words + 2 * (size_t)table.accumulators);
    if (SUMS) {
        table_clear(table);
        for (int j = tid; j < s.k; j += THREADS) table_rows[j] = 0;
    }
    __syncthreads();
    const Bound bound = *a.bound;
    u32 changed = 0, added = 0;
#pragma unroll 1
    for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const u64 place = (u64)tile * THREADS + tid, row = min(place, (u64)a.rows.n - 1);
        const bool inside = place < a.rows.n;
        Near near;
        near.start();
        const float square = sweep_row<D>(copies, halves, a.k, d, system.width, near, [&](int f) {
            return centred_copy(a.rows.x[(u64)f * a.rows.stride + row], __ldg(&a.minus_centre[f]), a.scale);
        });
        const bool doubt = inside && near.doubt(bound, square, a.slacks);
        if constexpr (!SUMS) {
            if (inside) store_label(a.next, row, doubt ? load_label(a.labels, row) : near.index);
            add_in_doubt(a, row, doubt);
        } else {
            u32 label = near.index;
            settle_at_once(a, place - (tid & 31), doubt, label);
            if (inside) store_label(a.next, row, label);
            if (inside && counts(a.rows, row)) {
                changed += label != load_label(a.labels, row);
#pragma unroll 1
                for (int c = 0; c < s.columns; c++) {
                    const Pair p = contribution(a.rows, a.factors, a.mass_to_integer, row, c);
                    const u32 accumulator = (label * s.columns + c) * s.limbs;
                    table_add(table, accumulator, 0, p.hi);
                    if (s.limbs == 2) table_add(table, accumulator + 1, 0, p.lo);
                }
                atomicAdd(&table_rows[label], 1);
            }
            added += THREADS;
            if (added == CELL_ROWS || tile + gridDim.x >= tiles) {
                added = 0;
                __syncthreads();
                flush_table(table, table_rows, s);
                __syncthreads();
            }
        }
    }
    if (SUMS) add_count(&a.control->changed, changed);
}

#define KERNEL(T, NAME, D, SUFFIX, SHARED, SUMS)                                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) assign_table_##NAME##SUFFIX(const __grid_constant__ SystemAssign<T> a) { \
        assign_table<T, D, SHARED, SUMS>(a);                                                                                 \
    }
#define ANY(T, NAME, D)                            \
    KERNEL(T, NAME, D, , false, false)             \
    KERNEL(T, NAME, D, _sums, false, true)         \
    KERNEL(T, NAME, D, _shared_sums, true, true)
#define WIDTH(T, NAME, D)                          \
    ANY(T, NAME, D)                                \
    KERNEL(T, NAME, D, _shared, true, false)
WIDTH(float, f32_d4, 4)
WIDTH(float, f32_d8, 8)
WIDTH(float, f32_d16, 16)
ANY(float, f32_any, 0)
WIDTH(double, f64_d4, 4)
WIDTH(double, f64_d8, 8)
WIDTH(double, f64_d16, 16)
ANY(double, f64_any, 0)

// sum_features: the feature sums of all clusters, by partitioned features.
//
// Source:    Lutz et al. 2018, section 3.1, partitioned features. A thread has one feature of every points-th row, and its own k sums.
//            So nothing is atomic. A block shares the label of a row. If there are more features than threads, blocks share the features.
// Used when: strategies `lutz-features` and `lutz-mass-*`, after a pass for labels. kernels/papers/mass.cu counts the rows.
// Tile:      512 rows. A block of 32 to 256 threads has a chunk of columns and takes `points` rows at a time (8 to 128). These rows are
//            neighbours in memory, because the matrix is column-major. A thread has four loads in flight.
// Memory:    shared: (k, limbs, threads) sums of 8 bytes. If the sums of 32 threads do not fit, they are in device memory, one table a
//            block (suffix _device), as in the paper.
// Precision: integers.
#include "systems.cuh"

#define TILE 512
#define FLIGHT 4

template <typename T, bool SHARED> __device__ __forceinline__ void sum_features(const SystemSums<T>& a) {
    extern __shared__ __align__(16) i64 shared[];
    __shared__ u32 labels[TILE];
    if (a.control->stop) return;
    const Sums& s = a.sums;
    const u32 tid = threadIdx.x, slots = blockDim.x, points = a.points;
    i64* accumulators = SHARED ? shared : a.scratch + (u64)blockIdx.x * s.k * s.limbs * slots;
    // Blocks with the same chunk of columns share the rows.
    const u32 chunks = ((u32)s.columns + a.chunk - 1) / a.chunk, chunk = blockIdx.x % chunks;
    const u32 part = blockIdx.x / chunks, parts = gridDim.x / chunks;
    if (part >= parts) return;
    const u32 first = chunk * a.chunk, columns = min(a.chunk, (u32)s.columns - first);
    const u32 c = first + tid / points, p = tid & (points - 1);
    const bool mine = tid / points < columns;
    const u32 tiles = (a.rows.n + TILE - 1) / TILE;
    clear_slots(accumulators, s, slots);
    u32 added = 0; // an upper limit of the values that a sum took
#pragma unroll 1
    for (u32 tile = part; tile < tiles; tile += parts) {
        const u64 start = (u64)tile * TILE;
        __syncthreads(); // all threads are done with the labels before
        for (u32 i = tid; i < TILE; i += slots) {
            const u64 row = start + i;
            labels[i] = row < a.rows.n && counts(a.rows, row) ? load_label(a.next, row) : UNASSIGNED;
        }
        __syncthreads();
        if (mine) {
#pragma unroll 1
            for (u32 i = p; i < TILE; i += FLIGHT * points) {
                Pair pairs[FLIGHT];
#pragma unroll
                for (int q = 0; q < FLIGHT; q++) {
                    const u32 at = i + q * points;
                    if (labels[at] != UNASSIGNED) pairs[q] = contribution(a.rows, a.factors, a.mass_to_integer, start + at, c);
                }
#pragma unroll
                for (int q = 0; q < FLIGHT; q++) {
                    const u32 to = labels[i + q * points];
                    if (to != UNASSIGNED) add_slot(accumulators, s, slots, tid, to, pairs[q]);
                }
            }
        }
        added += TILE / points;
        if (added + TILE / points > CELL_ROWS || tile + parts >= tiles) {
            added = 0;
            __syncthreads();
            flush_slots(accumulators, s, slots, points, first, columns);
            __syncthreads();
        }
    }
}

#define KERNELS(T, NAME)                                                                                                        \
    extern "C" __global__ void __launch_bounds__(256) sum_features_##NAME(const __grid_constant__ SystemSums<T> a) {            \
        sum_features<T, true>(a);                                                                                               \
    }                                                                                                                           \
    extern "C" __global__ void __launch_bounds__(256) sum_features_##NAME##_device(const __grid_constant__ SystemSums<T> a) {   \
        sum_features<T, false>(a);                                                                                              \
    }
KERNELS(float, f32)
KERNELS(double, f64)

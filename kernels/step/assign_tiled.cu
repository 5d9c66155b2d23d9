// assign_tiled: labels for many features (any d and k are allowed). A float32 product filter, tiled like a matrix product and fused
// with the search for the nearest centroid. So the n x k scores are never written.
//
//   h_j = - x.c_j + |c_j|^2 / 2   on centred, scaled float32 copies of rows and centroids
//   for each tile of rows, for each tile of centroids:
//     for each step of 8 or 16 features:  copy the next tiles to shared memory; 8 x 8 scores a thread += x^ . (-c^)
//     best, second best and index of each row, merged over the lanes that share its scores; with panels the third best too
//   with few tiles of rows, several blocks share the centroids: the last one that is done merges what they found
//   if the second best is out of reach of the best, the label is certified
//   else, if the third best is out of reach, the row goes to the list of pairs
//   else it goes to the list of rows to compare with all centroids
//
// Source: Li et al. 2010, algorithm 4 (the product in tiles of shared memory, for high d). Centroids come in portions, so any k fits:
// Zechner & Granitzer 2009, kmcuda 2016. Departures: (1) Registers hold the scores, and the search reads them there. (2) The copies of
// rows are made on the way to shared memory, so nothing of size n x d is stored besides x. (3) Scores only rank the centroids.
// Reference distances decide the label, by the bound of src/bounds.rs.
//
// Used when: d > 12, or few rows and many clusters (src/backend/cuda/step/choice.rs).
// Tiles: 128 rows by 128, 64 or 32 centroids (suffix _k128, _k64, _k32), for k above 64, up to 64, up to 32. The suffix changes only
// the speed. The variants _panels are for many features, if the blocks fit (src/backend/cuda/step/tiled.rs). Their bound is made for fewer roundings. A block has 256, 128 or 64 threads. The grid is persistent: a
// block takes every gridDim.x-th tile of rows. If there are fewer tiles of rows than SMs, several blocks share the centroids of each.
// Memory: 18 to 48 KB of static shared memory a block. The variants _panels have another 33 or 66 KB of dynamic shared memory (64
// floats a thread, and the third best scores).
// Precision: a score is one chain of d fmas, and |c|^2 / 2 is added to it. The variants _panels add up partial sums of PANEL
// features, the first to the second and so on. The sum of squares weighs each feature by the number of roundings of its product
// (`weight_of`). That sum has at most d + 8 roundings itself.
// Relies on: x, copies and half_squares are aligned to 16 bytes. The stride is a multiple of 128. k_padded is a multiple of 128, with
// zero copies and infinite half squares from k on. copies has d rows (feature-major), and nothing after them is read.
#include "tiled_epilogue.cuh"
#include "tiled_pipeline.cuh"

// The fewest steps of a tile. A row tile leaves its results in shared memory. With at least three steps, a barrier always lies between
// the reads of these results and the first writes of the next row tile. So they need no barrier of their own.
#define FEWEST_STEPS 3

template <typename S>
__device__ __forceinline__ void assign_tiled(const Assign<typename S::T, typename S::V>& a, TiledShared<S>& s, const Parked& parked) {
    wait_for_kernel_before();
    if (a.control->stop) return;
    const u32 row_tiles = a.rows.n / ROWS + (a.rows.n % ROWS != 0);
    const Portion portion(a.shares, ((u32)a.k + S::centroids - 1) / S::centroids);
    if (portion.first >= row_tiles) return;

    const int tid = sizeof(typename S::T) == 4 ? (int)opaque(threadIdx.x) : (int)threadIdx.x, lane = tid & 31;
    const int d = a.rows.d;
    const u32 steps = max(FEWEST_STEPS, (d + S::step - 1) / S::step);
    const Operands operands(lane, tid >> 5);
    Pipeline<S> pipeline(a, s, tid, d, row_tiles, steps, portion);
    pipeline.start();

    u32 slot = 0; // the place of the current step in the ring
    for (u32 row_tile = portion.first; row_tile < row_tiles; row_tile += portion.step) {
        for (u32 centroid_tile = portion.begin; centroid_tile < portion.end; centroid_tile++) {
            const u32 first_centroid = centroid_tile * S::centroids;
            // A warp beyond the last centroid multiplies nothing: its half squares are infinite.
            const int features = first_centroid + operands.warp_centroid * WARP_CENTROIDS < (u32)a.k ? d : 0;
            Scores scores;
            clear(scores);
            pipeline.ask_half_squares(first_centroid);

            for (u32 step = 0; step < steps; step++) {
                pipeline.ask_ahead(row_tile, centroid_tile, step, slot);
                if (S::panels && step != 0 && step % S::panel_steps == 0) park<S>(scores, parked.totals, tid, step == S::panel_steps);
                multiply_step<S>(scores, s.stages[slot].x[0] + operands.x_at, s.stages[slot].copies + operands.c_at,
                                 features - (int)step * S::step);
                if (step + 1 == steps) {
                    if (S::panels && steps > S::panel_steps) take_back<S>(scores, parked.totals, tid);
                    add_half_squares(scores, s.half_squares + operands.c_at);
                    Best<S::panels> two[2];
                    best_of_tile<S>(scores, first_centroid + 4 * operands.c_at, lane, two);
                    keep_best<S>(s, parked.thirds, operands, lane, centroid_tile == portion.begin, two);
                }
                slot = pipeline.advance(step, slot);
            }
        }
        if (a.shares > 1 && !gather_shares<S>(a, s, parked.thirds, row_tile, tid)) continue;
        decide<S>(a, s, parked.thirds, row_tile, tid);
    }
}

#define ASSIGN_TILED(T, V, NAME, CENTROIDS, BLOCKS, STEP, RING)                                                                       \
    extern "C" __global__ void __launch_bounds__(ROWS * CENTROIDS / 64, BLOCKS) NAME(const __grid_constant__ Assign<T, V> a) {        \
        typedef Tiling<T, V, CENTROIDS, STEP, RING, 0> S;                                                                             \
        __shared__ TiledShared<S> s;                                                                                               \
        assign_tiled<S>(a, s, {});                                                                                                 \
    }
#define ASSIGN_TILED_PANELS(T, V, NAME, CENTROIDS, BLOCKS, STEP, RING, PANEL)                                                         \
    extern "C" __global__ void __launch_bounds__(ROWS * CENTROIDS / 64, BLOCKS) NAME(const __grid_constant__ Assign<T, V> a) {        \
        typedef Tiling<T, V, CENTROIDS, STEP, RING, PANEL> S;                                                                         \
        __shared__ TiledShared<S> s;                                                                                               \
        extern __shared__ float4 totals[];                                                                                         \
        assign_tiled<S>(a, s, {totals, (float2*)(totals + ROWS * CENTROIDS / 4)});                                                 \
    }

// Longer steps spend a larger share of their instructions on products, but need more registers and more shared memory for arriving
// values. With panels and 64 centroids, three blocks with steps of 16 are faster than four blocks with steps of 8 (1.88 and 1.96 ms for
// 2,097,152 rows of 256 features, H200). With panels of 128 features it is 1.83 ms, but 50 % more rows are in doubt: with settling
// 2.39 ms and not 2.29.
ASSIGN_TILED(float, float, assign_tiled_f32_k128, 128, 2, 16, 2)
ASSIGN_TILED(float, float, assign_tiled_f32_k64, 64, 4, 16, 2)
ASSIGN_TILED(float, float, assign_tiled_f32_k32, 32, 8, 8, 3)
ASSIGN_TILED(double, double, assign_tiled_f64_k128, 128, 2, 8, 3)
ASSIGN_TILED(double, double, assign_tiled_f64_k64, 64, 4, 16, 2)
ASSIGN_TILED(double, double, assign_tiled_f64_k32, 32, 8, 8, 3)
ASSIGN_TILED_PANELS(float, float, assign_tiled_f32_k128_panels, 128, 2, 16, 2, 128)
ASSIGN_TILED_PANELS(double, double, assign_tiled_f64_k128_panels, 128, 2, 8, 3, 128)
ASSIGN_TILED_PANELS(float, float, assign_tiled_f32_k64_panels, 64, 3, 16, 2, 64)
ASSIGN_TILED_PANELS(double, double, assign_tiled_f64_k64_panels, 64, 3, 16, 2, 64)
ASSIGN_TILED(float, Half, assign_tiled_f16_k128, 128, 2, 16, 2)
ASSIGN_TILED(float, Half, assign_tiled_f16_k64, 64, 4, 8, 3)
ASSIGN_TILED(float, Half, assign_tiled_f16_k32, 32, 8, 8, 3)
ASSIGN_TILED_PANELS(float, Half, assign_tiled_f16_k128_panels, 128, 2, 16, 2, 128)
ASSIGN_TILED_PANELS(float, Half, assign_tiled_f16_k64_panels, 64, 3, 16, 2, 64)

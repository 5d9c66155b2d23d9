// assign_portions: labels, one thread a row. Centroids pass through shared memory in portions, so any d and k fit.
//
// Source:    Zechner and Granitzer, "K-means on the graphics processor", 2009, section V-B. All threads of a block look at the same
//            centroid. Shared memory holds as many of its components at a time as the block has threads, so d has no limit.
//            Vadim Markovtsev, "kmcuda", 2016: several whole centroids at a time, products instead of differences, and the loop over
//            features unrolled by four. One kernel does both. The shape of a portion tells them apart.
// Used when: strategies `zechner` (128 threads, portions of 128 features of one centroid) and `kmcuda` (256 threads, as many whole
//            centroids as 48 KiB hold).
// Tile:      one row a thread. A block takes every gridDim.x-th tile. A portion is (across, features): either `across` centroids with
//            all their features, or one centroid with some of them.
// Memory:    each thread reads its row again for every centroid. These reads are coalesced and hit the caches if the values are still
//            there. They are what limits these systems. Centroids are read once for each tile of rows.
// Precision: a float32 product filter (d roundings). Rows in doubt go to kernels/step/settle.cu.
//
// Departures: (1) Zechner's kernel adds squared differences and certifies nothing. (2) A row is centred and scaled as it is read.
#include "systems.cuh"

template <typename T> __device__ __forceinline__ void assign_portions(const SystemAssign<T>& s) {
    extern __shared__ __align__(16) float portion[]; // (across, features), then across half squares
    const Assign<T>& a = s.assign;
    if (a.control->stop) return;
    const int d = a.rows.d, tid = threadIdx.x, threads = blockDim.x;
    const u32 tiles = (a.rows.n + threads - 1) / threads;
    float* halves = portion + s.across * s.features;
    const Bound bound = *a.bound;
#pragma unroll 1
    for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const u64 place = (u64)tile * threads + tid, row = min(place, (u64)a.rows.n - 1);
        const T* x = a.rows.x + row;
        Near near;
        near.start();
        float square = 0.0f, h = 0.0f; // h is carried over the portions of one centroid
        auto value = [&](int f) { return centred_copy(x[(u64)f * a.rows.stride], __ldg(&a.minus_centre[f]), a.scale); };
#pragma unroll 4
        for (int f = 0; f < d; f++) {
            const float v = value(f);
            square = __fmaf_rn(v, v, square);
        }
#pragma unroll 1
        for (int j = 0; j < a.k; j += s.across) {
            const int across = min(s.across, a.k - j);
#pragma unroll 1
            for (int first = 0; first < d; first += s.features) {
                const int features = min(s.features, d - first);
                __syncthreads(); // all threads are done with the portion before
                for (int i = 0; i < across; i++)
                    for (int f = tid; f < features; f += threads) portion[i * features + f] = a.copies[(u64)(j + i) * s.width + first + f];
                for (int i = tid; i < across; i += threads) halves[i] = a.half_squares[j + i];
                __syncthreads();
#pragma unroll 1
                for (int i = 0; i < across; i++) {
                    const float* c = portion + i * features;
                    if (first == 0) h = halves[i];
#pragma unroll 4
                    for (int f = 0; f < features; f++) h = __fmaf_rn(value(first + f), c[f], h);
                    if (first + features == d) near.take(h, j + i);
                }
            }
        }
        const bool inside = place < a.rows.n, doubt = inside && near.doubt(bound, square, a.slacks);
        if (inside) store_label(a.next, row, doubt ? load_label(a.labels, row) : near.index);
        add_in_doubt(a, row, doubt);
    }
}

extern "C" __global__ void __launch_bounds__(256) assign_portions_f32(const __grid_constant__ SystemAssign<float> a) { assign_portions(a); }
extern "C" __global__ void __launch_bounds__(256) assign_portions_f64(const __grid_constant__ SystemAssign<double> a) { assign_portions(a); }

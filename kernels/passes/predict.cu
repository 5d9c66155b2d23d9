// predict: answers of a fitted model other than labels alone: the nearest centroids of a row, and its distances to all centroids.
//
//   nearest             label, distance and second distance of every row. If a model has no filter, it also gives labels alone
//   distances           (n, k): the distance of every row to every centroid, or its square
//   blank               afterwards: removes the answers of rows with a value that is not finite
//   nearest_clusters    (n, m): of all squared distances of a row, the m least and their centroids
//
// Used when: predictions on a GPU, one batch of rows at a time. Labels alone come from `assign_tiled` and `settle`.
// Tile:      128 rows by 16 centroids. A thread has a row and 16 chains at once in registers, each in feature order. A block of
//            `nearest` takes all centroids of its rows, tile after tile. `distances` spreads the tiles over the blocks, and tiles of the
//            same rows go to neighbouring blocks.
// Memory:    a thread reads its row once for every 16 centroids. These reads are coalesced, and after the first time they hit the
//            caches. Shared memory (8 KB) holds 64 features of the centroids at a time, and all lanes read the same value. `distances`
//            passes its results through shared memory (17 KB), so that 16 results of a row are written together.
// Precision: reference distances in float64 and IEEE square roots, exactly as the contract defines them. A distance that overflows is
//            infinite. If all are infinite, the label is 0.
#include "chains.cuh"

template <typename T, typename S = T> struct Nearest {
    Rows<T, S> rows;
    const T* centroid_columns; // (d, k): the centroids, column-major
    u32* labels; // (n)
    double* distances; // (n), or null: then neither this nor `seconds` is wanted
    double* seconds; // (n): to the second nearest centroid; infinite with one cluster
    int k;
    int unused;
};

template <typename T, typename S> __device__ __forceinline__ void nearest(const Nearest<T, S>& a) {
    __shared__ Portion portion;
    for (u64 start = (u64)blockIdx.x * THREADS; start < a.rows.n; start += (u64)gridDim.x * THREADS) {
        const u64 row = start + threadIdx.x;
        double least = infinity(), second = infinity();
        u32 label = 0;
#pragma unroll 1
        for (int first = 0; first < a.k; first += WIDTH) {
            double s[WIDTH];
            chains(a.rows, row, a.centroid_columns, a.k, first, portion, s);
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                if (first + i < a.k) {
                    if (s[i] < least) second = least, least = s[i], label = (u32)(first + i);
                    else if (s[i] < second) second = s[i];
                }
            }
        }
        if (row < a.rows.n) {
            a.labels[row] = label;
            if (a.distances) {
                a.distances[row] = __dsqrt_rn(least);
                a.seconds[row] = __dsqrt_rn(second);
            }
        }
    }
}

template <typename T, typename S = T> struct Distances {
    Rows<T, S> rows;
    const T* centroid_columns; // (d, k): the centroids, column-major
    double* out; // (n, k)
    int k;
    int squared; // 1: reference distances. 0: their square roots
};

template <typename T, typename S> __device__ __forceinline__ void distances(const Distances<T, S>& a) {
    __shared__ Portion portion;
    __shared__ double results[THREADS][WIDTH + 1]; // one column more, so no two lanes write to the same bank
    const u32 across = (u32)(a.k + WIDTH - 1) / WIDTH;
    const u64 tiles = (u64)(a.rows.n / THREADS + (a.rows.n % THREADS != 0)) * across;
    for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const u64 start = tile / across * THREADS;
        const int first = (int)(tile % across) * WIDTH;
        double s[WIDTH];
        // `chains` has barriers, so all threads have read the results of the tile before.
        chains(a.rows, start + threadIdx.x, a.centroid_columns, a.k, first, portion, s);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) results[threadIdx.x][i] = s[i];
        __syncthreads();
        const int width = min(WIDTH, a.k - first), height = (int)min((u64)THREADS, a.rows.n - start);
        for (int i = threadIdx.x; i < height * width; i += THREADS) {
            const int r = i / width, j = i % width;
            const double distance = results[r][j];
            a.out[(start + r) * a.k + first + j] = a.squared ? distance : __dsqrt_rn(distance);
        }
    }
}

template <typename T, typename S = T> struct Blank {
    Rows<T, S> rows;
    u32* labels; // (n), or null
    double* distances; // (n, k), or null
    int k;
    int unused;
};

template <typename T, typename S> __device__ __forceinline__ void blank(const Blank<T, S>& a) {
    for (u64 row = global_thread(); row < a.rows.n; row += all_threads()) {
        bool finite = true;
#pragma unroll 8
        for (int f = 0; f < a.rows.d; f++) {
            const T x = a.rows.at((u64)f * a.rows.stride + row);
            finite &= x - x == (T)0;
        }
        if (finite) continue;
        if (a.labels) a.labels[row] = UNASSIGNED;
        if (a.distances)
            for (int j = 0; j < a.k; j++) a.distances[row * a.k + j] = __longlong_as_double(0x7ff8000000000000ll);
    }
}

struct NearestClusters {
    const double* squares; // (n, k); NaN in a row without an answer
    u32* clusters; // (n, m)
    double* distances; // (n, m)
    u64 n;
    int k, m;
    int squared; // 1: reference distances. 0: their square roots
    int unused;
};

// A warp has a row. Each turn finds the least distance behind the one of the turn before, by (distance, number). Distances are not negative, so their
// bits have the same order as they have.
extern "C" __global__ void __launch_bounds__(THREADS) nearest_clusters(const __grid_constant__ NearestClusters a) {
    const u32 lane = threadIdx.x & 31;
#pragma unroll 1
    for (u64 row = global_thread() / 32; row < a.n; row += all_threads() / 32) {
        const double* const squares = a.squares + row * a.k;
        const bool none = squares[0] != squares[0];
        u64 before = 0;
        i64 label = -1; // of the turn before
#pragma unroll 1
        for (int turn = 0; turn < a.m; turn++) {
            u64 least = ~0ull;
            u32 own = UNASSIGNED;
#pragma unroll 4
            for (int j = (int)lane; j < a.k; j += 32) {
                const u64 bits = (u64)__double_as_longlong(squares[j]);
                if ((bits > before || (bits == before && j > label)) && bits < least) least = bits, own = (u32)j;
            }
            const u32 high = __reduce_min_sync(FULL_WARP, (u32)(least >> 32));
            const bool in = (u32)(least >> 32) == high;
            const u32 low = __reduce_min_sync(FULL_WARP, in ? (u32)least : 0xffffffffu);
            own = __reduce_min_sync(FULL_WARP, in && (u32)least == low ? own : 0xffffffffu);
            before = (u64)high << 32 | low, label = own;
            if (lane == 0) {
                const double square = __longlong_as_double((i64)before);
                a.clusters[row * a.m + turn] = none ? UNASSIGNED : own;
                a.distances[row * a.m + turn] = a.squared ? square : __dsqrt_rn(square);
            }
        }
    }
}

#define KERNELS(T, S, NAME)                                                                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS, 4) nearest_##NAME(const __grid_constant__ Nearest<T, S> a) { nearest(a); }     \
    extern "C" __global__ void __launch_bounds__(THREADS, 4) distances_##NAME(const __grid_constant__ Distances<T, S> a) { distances(a); } \
    extern "C" __global__ void __launch_bounds__(THREADS) blank_##NAME(const __grid_constant__ Blank<T, S> a) { blank(a); }
KERNELS(float, float, f32)
KERNELS(double, double, f64)
KERNELS(float, Half, f16)

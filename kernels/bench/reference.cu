// reference: the label of every row by the reference distances to all centroids. Benches and tests check the labels of whole fits with it, so it
// shares no code with the kernels that label.
//
//   s = 0; for f in 0..d { t = x[f] - c[f]; s = fma(t, t, s) }      in float64, in feature order
//   label = the smallest j of least s, or 0 if all are infinite
//
// Tile:      a block has 128 rows and goes through all centroids, 128 at a time. A thread has 8 x 8 sums in registers: 8 rows in sequence, and
//            centroids 2 i and 2 i + 1 of each run of 32, for its number i in a row of 16 threads.
// Memory:    8 features of rows and centroids are in shared memory as float64, twice: one part is read while the next one is written. Features
//            after the last are 0 in both and add nothing: fma(0, 0, s) = s.
// Precision: float64.
typedef unsigned int u32;
typedef unsigned long long u64;

template <typename T> struct Reference {
    const T* x; // (d, n)
    const T* centroids; // (d, k)
    u32* labels; // (n)
    u32 n, k, d, unused;
};

#define THREADS 256
#define TILE 128
#define DEPTH 8
#define EACH 8 // rows of a thread, and centroids
#define FETCH (TILE * DEPTH / THREADS)

// The thread's part of DEPTH features of a tile: column `column` of features `first`, first + 2, ...
template <typename T> __device__ __forceinline__ void fetch(T (&to)[FETCH], const T* from, u32 columns, u32 column, u32 first, u32 d) {
#pragma unroll
    for (u32 i = 0; i < FETCH; i++) {
        const u32 f = first + i * (THREADS / TILE);
        to[i] = column < columns && f < d ? from[(u64)f * columns + column] : (T)0;
    }
}

template <typename T> __device__ __forceinline__ void store(double (&to)[DEPTH][TILE], const T (&from)[FETCH]) {
#pragma unroll
    for (u32 i = 0; i < FETCH; i++) to[threadIdx.x / TILE + i * (THREADS / TILE)][threadIdx.x % TILE] = (double)from[i];
}

template <typename T> __device__ __forceinline__ void reference(const Reference<T>& a) {
    __shared__ __align__(16) double x[2][DEPTH][TILE], c[2][DEPTH][TILE];
    const u32 across = threadIdx.x % 16, down = threadIdx.x / 16, feature = threadIdx.x / TILE;
    const u32 first_row = blockIdx.x * TILE, row = first_row + threadIdx.x % TILE;
    double least[EACH];
    u32 label[EACH];
#pragma unroll
    for (u32 r = 0; r < EACH; r++) least[r] = __longlong_as_double(0x7ff0000000000000ll), label[r] = 0;
    u32 turn = 0;
#pragma unroll 1
    for (u32 first = 0; first < a.k; first += TILE) {
        const u32 centroid = first + threadIdx.x % TILE;
        double s[EACH][EACH] = {};
        T next_x[FETCH], next_c[FETCH];
        fetch(next_x, a.x, a.n, row, feature, a.d);
        fetch(next_c, a.centroids, a.k, centroid, feature, a.d);
#pragma unroll 1
        for (u32 f = 0; f < a.d; f += DEPTH, turn ^= 1) {
            // Everybody has read this part before the barrier of the other one.
            store(x[turn], next_x);
            store(c[turn], next_c);
            __syncthreads();
            if (f + DEPTH < a.d) {
                fetch(next_x, a.x, a.n, row, f + DEPTH + feature, a.d);
                fetch(next_c, a.centroids, a.k, centroid, f + DEPTH + feature, a.d);
            }
#pragma unroll
            for (u32 i = 0; i < DEPTH; i++) {
                double2 xs[EACH / 2], cs[EACH / 2];
#pragma unroll
                for (u32 r = 0; r < EACH / 2; r++) xs[r] = *(const double2*)&x[turn][i][down * EACH + 2 * r];
#pragma unroll
                for (u32 j = 0; j < EACH / 2; j++) cs[j] = *(const double2*)&c[turn][i][across * 2 + 32 * j];
#pragma unroll
                for (u32 r = 0; r < EACH; r++)
#pragma unroll
                    for (u32 j = 0; j < EACH; j++) {
                        const double t = __dsub_rn(r % 2 ? xs[r / 2].y : xs[r / 2].x, j % 2 ? cs[j / 2].y : cs[j / 2].x);
                        s[r][j] = __fma_rn(t, t, s[r][j]);
                    }
            }
        }
#pragma unroll
        for (u32 j = 0; j < EACH; j++) {
            const u32 number = first + across * 2 + 32 * (j / 2) + j % 2;
            if (number >= a.k) continue;
#pragma unroll
            for (u32 r = 0; r < EACH; r++)
                if (s[r][j] < least[r]) least[r] = s[r][j], label[r] = number;
        }
    }
    // 16 threads have the same rows.
#pragma unroll
    for (u32 r = 0; r < EACH; r++) {
#pragma unroll
        for (u32 o = 8; o; o >>= 1) {
            const double other = __shfl_xor_sync(~0u, least[r], o);
            const u32 number = __shfl_xor_sync(~0u, label[r], o);
            if (other < least[r] || (other == least[r] && number < label[r])) least[r] = other, label[r] = number;
        }
        if (across == 0 && first_row + down * EACH + r < a.n) a.labels[first_row + down * EACH + r] = label[r];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) reference_f32(const __grid_constant__ Reference<float> a) { reference(a); }
extern "C" __global__ void __launch_bounds__(THREADS, 1) reference_f64(const __grid_constant__ Reference<double> a) { reference(a); }

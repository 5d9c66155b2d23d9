// directions: the centroids of metric="cosine": exact means, rounded to float64, normalised, rounded once (src/backend/update.rs,
// src/input/transform.rs). A mean of zero, and a cluster without rows, keep the centroid.
//
// Source:    spherical k-means, Dhillon & Modha 2001.
// Used when: after every assign with metric="cosine", before `update`, which takes the centroids from `directions`.
// Tile:      a block has a cluster, and each thread a column of every 256. One thread computes the chain of the norm, in feature order.
//            A mean is computed again where it is needed, because a block has no room for the means of all columns.
// Memory:    (k, d) tables only.
// Precision: 128-bit integers, then the operations of src/input/transform.rs in their order.
#include "../common/transform.cuh"
#include "cluster_sum.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)

template <typename T> struct Directions {
    Sums sums;
    const int* mean_exponents; // (d): a mean is sum / mass * 2^this
    const T* centroids; // (k, d)
    T* directions; // (k, d): the new centroids
    const Control* control;
};

// The mean of column f of cluster j. `mass` is not 0.
template <typename T> __device__ __forceinline__ double mean_of(const Directions<T>& a, int j, int f, i128 mass) {
    return round_quotient<double>(ClusterSum(a.sums, j, f).total(a.sums, f), (u128)mass, a.mean_exponents[f]);
}

template <typename T> __device__ __forceinline__ void directions(const Directions<T>& a) {
    __shared__ double values[THREADS];
    __shared__ double of_warps[WARPS];
    __shared__ double norm;
    const Sums& s = a.sums;
    const int tid = threadIdx.x, d = s.d;
    if (a.control->stop) return;
#pragma unroll 1
    for (int j = blockIdx.x; j < s.k; j += gridDim.x) {
        const i64 rows = s.rows[j] + s.pending_rows[j];
        i128 mass = rows;
        if (s.mass_column >= 0) mass = ClusterSum(s, j, s.mass_column).total(s, s.mass_column);
        double largest = 0.0;
#pragma unroll 1
        for (int f = tid; f < d && rows > 0; f += THREADS) largest = fmax(largest, fabs(mean_of(a, j, f, mass)));
        for (int o = 16; o; o >>= 1) largest = fmax(largest, __shfl_xor_sync(FULL_WARP, largest, o));
        __syncthreads();
        if ((tid & 31) == 0) of_warps[tid / 32] = largest;
        __syncthreads();
        for (int w = 0; w < WARPS; w++) largest = fmax(largest, of_warps[w]);
        if (largest == 0.0) {
#pragma unroll 1
            for (int f = tid; f < d; f += THREADS) a.directions[(u64)j * d + f] = a.centroids[(u64)j * d + f];
            continue;
        }
        const UnitFactors unit(largest);
        double chain = 0.0;
#pragma unroll 1
        for (int piece = 0; piece < d; piece += THREADS) {
            if (piece + tid < d) values[tid] = unit.apply(mean_of(a, j, piece + tid, mass));
            __syncthreads();
            if (tid == 0) {
                const int count = min(THREADS, d - piece);
#pragma unroll 8
                for (int i = 0; i < count; i++) chain = __fma_rn(values[i], values[i], chain);
            }
            __syncthreads();
        }
        if (tid == 0) norm = __dsqrt_rn(chain);
        __syncthreads();
#pragma unroll 1
        for (int f = tid; f < d; f += THREADS)
            a.directions[(u64)j * d + f] = (T)__ddiv_rn(unit.apply(mean_of(a, j, f, mass)), norm);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) directions_f32(const __grid_constant__ Directions<float> a) { directions(a); }
extern "C" __global__ void __launch_bounds__(THREADS) directions_f64(const __grid_constant__ Directions<double> a) { directions(a); }

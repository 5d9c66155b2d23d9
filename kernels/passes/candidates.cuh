// Reference distances of rows to some points. A thread has two rows, and all points at once.
#pragma once
#include "draws.cuh"

#define THREADS 128
#define TILE (2 * THREADS)
#define POINT_VALUES 2048 // values of candidates in shared memory

// Two values that follow each other in memory.
__device__ __forceinline__ float2 load_two(const float* at) { return *reinterpret_cast<const float2*>(at); }
__device__ __forceinline__ double2 load_two(const double* at) { return *reinterpret_cast<const double2*>(at); }

// Copies features first to first + count of m candidates (m, d) to shared memory as (count, M), with 0 for missing candidates.
template <typename T, int M> __device__ __forceinline__ void load_points(const T* points, int m, int d, int first, int count, double* shared) {
    for (int i = threadIdx.x; i < count * M; i += THREADS) {
        const int f = i / M, j = i % M;
        shared[i] = j < m ? (double)points[(u64)j * d + first + f] : 0.0;
    }
}

// Continues the reference distances of rows `row` and `row + 1` to M points, over features first to first + count.
template <typename T, int M, typename S>
__device__ __forceinline__ void add_distances(const Rows<T, S>& rows, u64 row, int first, int count, const double* points, double (&s)[2][M]) {
    const S* at = rows.x + (u64)first * rows.stride + row;
#pragma unroll 4
    for (int f = 0; f < count; f++, at += rows.stride, points += M) {
        double x0, x1;
        if constexpr (is_half<S>) {
            const ushort2 x = *reinterpret_cast<const ushort2*>(at);
            x0 = (double)rows.value({x.x}), x1 = (double)rows.value({x.y});
        } else {
            const auto x = load_two(at);
            x0 = (double)x.x, x1 = (double)x.y;
        }
        double c[M];
        if constexpr (M % 2 == 0) {
#pragma unroll
            for (int j = 0; j < M; j += 2) {
                const double2 two = *reinterpret_cast<const double2*>(points + j);
                c[j] = two.x, c[j + 1] = two.y;
            }
        } else {
#pragma unroll
            for (int j = 0; j < M; j++) c[j] = points[j];
        }
#pragma unroll
        for (int j = 0; j < M; j++) {
            const double t0 = __dadd_rn(x0, -c[j]), t1 = __dadd_rn(x1, -c[j]);
            s[0][j] = __fma_rn(t0, t0, s[0][j]);
            s[1][j] = __fma_rn(t1, t1, s[1][j]);
        }
    }
}

// The reference distances of a thread's two rows to M points. All threads of the block must call this. Rows from n on are padding, for
// which the stride has room. If all features of the points fit into shared memory, they are there already.
template <typename T, int M, typename S>
__device__ __forceinline__ void distances(const Rows<T, S>& rows, u64 row, const T* points, int m, double* shared, double (&s)[2][M]) {
    constexpr int FEATURES = POINT_VALUES / M;
#pragma unroll
    for (int j = 0; j < M; j++) s[0][j] = s[1][j] = 0.0;
    if (rows.d <= FEATURES) {
        add_distances<T, M>(rows, row, 0, rows.d, shared, s);
        return;
    }
    for (int first = 0; first < rows.d; first += FEATURES) {
        const int count = rows.d - first < FEATURES ? rows.d - first : FEATURES;
        __syncthreads();
        load_points<T, M>(points, m, rows.d, first, count, shared);
        __syncthreads();
        add_distances<T, M>(rows, row, first, count, shared, s);
    }
}

// Loads the points once, if all their features fit. Ends in a barrier.
template <typename T, int M, typename S> __device__ __forceinline__ void load_all_points(const Rows<T, S>& rows, const T* points, int m, double* shared) {
    if (rows.d <= POINT_VALUES / M) load_points<T, M>(points, m, rows.d, 0, rows.d, shared);
    __syncthreads();
}

// A thread's two values of a column of doubles, which is as long as the stride. Ones if there is no column.
__device__ __forceinline__ double2 two_or_one(const double* column, u64 row) {
    return column ? load_two(column + row) : make_double2(1.0, 1.0);
}

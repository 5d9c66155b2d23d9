// Reference distances of 128 rows to 16 centroids at once: a thread has a row and 16 chains in registers, each in feature order.
#pragma once
#include "../common/labels.cuh"

#define THREADS 128
// Centroids of a tile, and how many of their features are in shared memory at a time.
#define WIDTH 16
#define STEP 64

// Values as doubles, two centroids at a time.
typedef double2 Portion[STEP][WIDTH / 2];

// The reference distances of row `row` to centroids `first` to `first` + WIDTH - 1. Distances from centroid k on mean nothing. The row may
// be one of the padding. All threads of the block must call this.
template <typename T, typename S>
__device__ __forceinline__ void chains(const Rows<T, S>& rows, u64 row, const T* centroid_columns, int k, int first, Portion& portion, double (&s)[WIDTH]) {
#pragma unroll
    for (int i = 0; i < WIDTH; i++) s[i] = 0.0;
    for (int begin = 0; begin < rows.d; begin += STEP) {
        const int count = min(STEP, rows.d - begin);
        __syncthreads(); // all threads are done with the portion before
        for (int i = threadIdx.x; i < count * WIDTH; i += THREADS) {
            const int f = i / WIDTH, j = first + i % WIDTH;
            ((double*)portion)[i] = j < k ? (double)centroid_columns[(u64)(begin + f) * k + j] : 0.0;
        }
        __syncthreads();
        const S* x = rows.x + (u64)begin * rows.stride + row;
#pragma unroll 4
        for (int f = 0; f < count; f++) {
            const double v = (double)rows.value(x[(u64)f * rows.stride]);
#pragma unroll
            for (int i = 0; i < WIDTH / 2; i++) {
                const double2 c = portion[f][i];
                const double low = __dadd_rn(v, -c.x), high = __dadd_rn(v, -c.y);
                s[2 * i] = __fma_rn(low, low, s[2 * i]);
                s[2 * i + 1] = __fma_rn(high, high, s[2 * i + 1]);
            }
        }
    }
}

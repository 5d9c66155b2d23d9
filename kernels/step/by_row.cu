// by_row: a copy of the rows whose features lie side by side.
//
//     rows   columns: feature f of row r is at f * stride + r
//     copies (n, width): feature f of row r is at r * width + f. Features from d on are 0
//
// Settling and sums read single rows, all features of each. From a column, one value of 4 bytes costs 32 bytes of memory traffic.
//
// Used when: once a fit, before assign_tensor, if there is memory for it.
// Tile:      128 rows and 128 bytes of each, 256 threads.
// Memory:    shared: 17 KiB. Columns are read 128 bytes at a time or more, and rows are written 128 bytes at a time.
// Precision: values are moved, and nothing is computed.
#include "../common/half.cuh"
#include "../common/labels.cuh"

#define THREADS 256
#define TILE_ROWS 128
#define ROW_BYTES 128

template <typename T, typename S = T> struct ByRow {
    Rows<T, S> rows;
    S* copies;
    u32 width; // of a row: a multiple of 32 bytes
    u32 across; // tiles side by side
};

template <typename T, typename S> __device__ __forceinline__ void by_row(const ByRow<T, S>& a) {
    const u32 FEATURES = ROW_BYTES / sizeof(S), PIECE = 16 / sizeof(S);
    // One more word or value than a row has: neither the rows of one feature nor the pieces of one row share a bank.
    const u32 PITCH = FEATURES + (sizeof(S) < 4 ? 4 / sizeof(S) : 1);
    __shared__ S tile[TILE_ROWS * PITCH];
    const u32 tid = threadIdx.x, first_feature = blockIdx.x % a.across * FEATURES;
    const u64 first_row = (u64)(blockIdx.x / a.across) * TILE_ROWS;
    const u32 local = tid % TILE_ROWS;
    const bool inside = first_row + local < a.rows.n;
    const S* const x = a.rows.x + first_row + local;
    const u32 EACH = FEATURES * TILE_ROWS / THREADS; // values of a thread, all on their way at once
    const auto feature = [&](u32 i) { return i * (THREADS / TILE_ROWS) + tid / TILE_ROWS; };
    S values[EACH] = {};
#pragma unroll
    for (u32 i = 0; i < EACH; i++)
        if (inside && first_feature + feature(i) < (u32)a.rows.d) values[i] = x[(u64)(first_feature + feature(i)) * a.rows.stride];
#pragma unroll
    for (u32 i = 0; i < EACH; i++) tile[local * PITCH + feature(i)] = values[i];
    __syncthreads();
#pragma unroll
    for (u32 i = tid; i < TILE_ROWS * (ROW_BYTES / 16); i += THREADS) {
        const u32 row = i / (ROW_BYTES / 16), f = i % (ROW_BYTES / 16) * PIECE;
        if (first_row + row >= a.rows.n || first_feature + f >= a.width) continue;
        union {
            S values[PIECE];
            uint4 words;
        } piece;
#pragma unroll
        for (u32 v = 0; v < PIECE; v++) piece.values[v] = tile[row * PITCH + f + v];
        *(uint4*)(a.copies + (first_row + row) * a.width + first_feature + f) = piece.words;
    }
}

#define KERNEL(T, S, NAME)                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(const __grid_constant__ ByRow<T, S> a) { by_row(a); }
KERNEL(float, float, by_row_f32)
KERNEL(double, double, by_row_f64)
KERNEL(float, Half, by_row_f16)

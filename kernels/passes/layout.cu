// layout: turns row-major rows into columns. An Array column is uploaded as it is, and becomes the matrix that all other kernels read.
//
//     rows_in     is (rows, width), row-major: a piece of the rows, as in host memory
//     columns_out is (width, stride), column-major: columns_out[f * stride + r] = rows_in[r * width + f]
//
// A block takes a tile of 1,024 values through shared memory. So it reads neighbouring values of rows, and writes neighbouring rows of
// a column. The tile is 32 x 32, but never wider than the rows: a tile of 4 features has 256 rows, so all lanes have work. Each column
// is padded by one value, so the lanes of a warp use different banks.
//
// Used when: row-major blocks are uploaded. It runs while the next piece is copied.
// Tile:      1,024 values, 256 threads.
// Memory:    shared: 2, 4 or 8 KiB, and the padding.
// Precision: values are moved, and nothing is computed.

#include "../common/half.cuh"

#define TILE_LOG 10
#define TILE_THREADS 256

template <typename T> struct Transpose {
    const T* rows_in;
    T* columns_out;
    u64 stride;
    u32 rows, width;
    u32 log_width; // of the tile, at most 5
    u32 tiles_across; // tiles side by side in a row
};

template <typename T> __device__ __forceinline__ void transpose(const Transpose<T>& a) {
    // (1 << log_width) columns of (1 << log_rows) values, each with one value of padding. So the padding has at most 32 values.
    __shared__ T tile[(1 << TILE_LOG) + 32];
    const u32 log_width = a.log_width, log_rows = TILE_LOG - log_width;
    const u32 wide = 1u << log_width, high = 1u << log_rows;
    const u32 first_column = blockIdx.x % a.tiles_across << log_width, first_row = blockIdx.x / a.tiles_across << log_rows;
#pragma unroll
    for (u32 e = threadIdx.x; e < 1 << TILE_LOG; e += TILE_THREADS) {
        u32 column = e & (wide - 1), row = e >> log_width;
        if (first_column + column < a.width && first_row + row < a.rows)
            tile[column * (high + 1) + row] = a.rows_in[(u64)(first_row + row) * a.width + first_column + column];
    }
    __syncthreads();
#pragma unroll
    for (u32 e = threadIdx.x; e < 1 << TILE_LOG; e += TILE_THREADS) {
        u32 column = e >> log_rows, row = e & (high - 1);
        if (first_column + column < a.width && first_row + row < a.rows)
            a.columns_out[(first_column + column) * a.stride + first_row + row] = tile[column * (high + 1) + row];
    }
}

extern "C" __global__ void __launch_bounds__(TILE_THREADS) rows_to_columns_f32(const __grid_constant__ Transpose<float> a) {
    transpose<float>(a);
}
extern "C" __global__ void __launch_bounds__(TILE_THREADS) rows_to_columns_f64(const __grid_constant__ Transpose<double> a) {
    transpose<double>(a);
}
extern "C" __global__ void __launch_bounds__(TILE_THREADS) rows_to_columns_f16(const __grid_constant__ Transpose<Half> a) {
    transpose<Half>(a);
}

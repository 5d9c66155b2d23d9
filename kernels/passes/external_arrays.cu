// external_arrays: makes our columns of values that another program has put on the GPU: a tensor, or columns of a data frame.
//
//     value f of row r is number `first + r * row_pitch + f * column_pitch` of the values at `from`
//     to[f * stride + place] = that value in our type, where `place` is the row's number among the kept rows
//
// A null becomes NaN. Everything that leaves out values that are not finite leaves out nulls with them.
//
// A block takes a tile of 1,024 values through shared memory, as in layout.cu. Where neighbouring values are those of a row, the tile
// has up to 32 columns. Where they are those of a column, it has one column and 1,024 rows. So both reads and writes are of neighbours.
//
// Used when: the rows of a fit, of a batch of predictions, or weights are on the GPU already and cannot be read where they are.
// Tile:      1,024 values, 256 threads. finite_rows: a thread has a row, and a warp writes one word.
// Memory:    reads and writes every value once. Shared: 4 or 8 KiB, and the padding.
// Precision: values are widened exactly, but for integers of 64 bits: they are rounded to float64, ties to even.

#include "../common/labels.cuh"
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define TILE_LOG 10
#define TILE_THREADS 256

// The types of values, in the order of `ValueType` (src/input/gpu_table.rs).
enum Kind { BIT, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64, FLOAT16, BFLOAT16, FLOAT32, FLOAT64 };

__device__ __forceinline__ bool bit(const u8* bits, i64 i) { return bits[i >> 3] >> (i & 7) & 1; }

// Some of the rows: a bit for each row, and the kept rows before each word. All rows if `bits` is null.
struct KeptRows {
    const u32* bits;
    const u32* before;

    // Whether the row is kept, and its number among the kept rows.
    __device__ __forceinline__ bool find(u64 row, u64& place) const {
        place = row;
        if (!bits) return true;
        const u32 word = bits[row >> 5], own = 1u << (row & 31);
        place = before[row >> 5] + __popc(word & (own - 1));
        return word & own;
    }
};

// S: the type of our columns in memory. Columns of 16 bits are copied from values of the same type.
template <typename T, typename S = T> struct ExternalArray {
    const void* from;
    const u8* validity; // a bit for each row, or null: no value is null
    KeptRows kept;
    S* to;
    u64 stride;
    i64 first, row_pitch, column_pitch;
    i64 validity_first;
    u32 rows, columns;
    u32 log_width; // of the tile, at most 5
    u32 tiles_across; // tiles side by side in a row
    int kind;
    int unused;
};

template <typename T> __device__ __forceinline__ T load(const void* from, i64 i, int kind) {
    switch (kind) {
    case BIT: return (T)(bit((const u8*)from, i) ? 1 : 0);
    case INT8: return (T)((const signed char*)from)[i];
    case INT16: return (T)((const short*)from)[i];
    case INT32: return (T)((const int*)from)[i];
    case INT64: return (T)((const i64*)from)[i];
    case UINT8: return (T)((const u8*)from)[i];
    case UINT16: return (T)((const u16*)from)[i];
    case UINT32: return (T)((const u32*)from)[i];
    case UINT64: return (T)((const u64*)from)[i];
    case FLOAT16: return (T)__half2float(((const __half*)from)[i]);
    case BFLOAT16: return (T)__bfloat162float(((const __nv_bfloat16*)from)[i]);
    case FLOAT32: return (T)((const float*)from)[i];
    default: return (T)((const double*)from)[i];
    }
}

// The value of our columns that stands for value `i`, or for a null.
template <typename T, typename S> __device__ __forceinline__ S stored(const void* from, i64 i, int kind, bool null) {
    if constexpr (is_half<S>) return {null ? (u16)(kind == BFLOAT16 ? 0x7fc0 : 0x7e00) : ((const u16*)from)[i]};
    else return null ? (T)__int_as_float(0x7fc00000) : load<T>(from, i, kind);
}

template <typename T, typename S> __device__ __forceinline__ void to_columns(const ExternalArray<T, S>& a) {
    // (1 << log_width) columns of (1 << log_rows) values, each with one value of padding. So the padding has at most 32 values.
    __shared__ S tile[(1 << TILE_LOG) + 32];
    const u32 log_width = a.log_width, log_rows = TILE_LOG - log_width;
    const u32 wide = 1u << log_width, high = 1u << log_rows;
    const u32 first_column = blockIdx.x % a.tiles_across << log_width;
    const u64 first_row = (u64)(blockIdx.x / a.tiles_across) << log_rows;
#pragma unroll
    for (u32 e = threadIdx.x; e < 1 << TILE_LOG; e += TILE_THREADS) {
        const u32 c = e & (wide - 1), r = e >> log_width, column = first_column + c;
        const u64 row = first_row + r;
        if (column >= a.columns || row >= a.rows) continue;
        const bool null = a.validity && !bit(a.validity, a.validity_first + (i64)row);
        const i64 at = a.first + (i64)row * a.row_pitch + (i64)column * a.column_pitch;
        tile[c * (high + 1) + r] = stored<T, S>(a.from, at, a.kind, null);
    }
    __syncthreads();
#pragma unroll
    for (u32 e = threadIdx.x; e < 1 << TILE_LOG; e += TILE_THREADS) {
        const u32 c = e >> log_rows, r = e & (high - 1), column = first_column + c;
        const u64 row = first_row + r;
        u64 place;
        if (column < a.columns && row < a.rows && a.kept.find(row, place)) a.to[column * a.stride + place] = tile[c * (high + 1) + r];
    }
}

// Which rows have only finite values, and a finite weight if there are weights.
template <typename T, typename S = T> struct FiniteRows {
    Rows<T, S> rows;
    u32* bits; // a bit for each row; the bits after the last row are 0
};

template <typename T, typename S> __device__ __forceinline__ void finite_rows(const FiniteRows<T, S>& a) {
    const u64 end = ((u64)a.rows.n + 31) / 32 * 32;
    for (u64 row = global_thread(); row < end; row += all_threads()) {
        bool finite = row < a.rows.n;
        if (finite) {
            if (a.rows.w) finite = isfinite(a.rows.w[row]);
#pragma unroll 8
            for (int f = 0; f < a.rows.d; f++) finite &= isfinite(a.rows.at((u64)f * a.rows.stride + row)) != 0;
        }
        const u32 word = __ballot_sync(FULL_WARP, finite);
        if ((threadIdx.x & 31) == 0) a.bits[row >> 5] = word;
    }
}

#define KERNELS(T, S, NAME)                                                                                                           \
    extern "C" __global__ void __launch_bounds__(TILE_THREADS) external_to_columns_##NAME(const __grid_constant__ ExternalArray<T, S> a) {  \
        to_columns(a);                                                                                                               \
    }                                                                                                                                \
    extern "C" __global__ void __launch_bounds__(TILE_THREADS) finite_rows_##NAME(const __grid_constant__ FiniteRows<T, S> a) {      \
        finite_rows(a);                                                                                                              \
    }
KERNELS(float, float, f32)
KERNELS(double, double, f64)
KERNELS(float, Half, f16)

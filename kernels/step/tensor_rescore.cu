// tensor_rescore: copies for a second product of the rows that assign_tensor leaves in doubt. Its bound is that of float32 sums, so few remain.
//
//   high, low   two float16 numbers hold 22 bits of a value. A product of such copies is low and high, high and low, high and high: three products
//               on the same tensor cores, in the same sums, by the same kernel: assign_tensor
//   then        assign_tensor labels the rows, or leaves them in doubt once more
//
// Used when: after assign_tensor, if it leaves more rows than settle_listed takes. The rows are taken from the list in batches, and each batch is
//            multiplied before the next one is copied. The first batch takes the numbers of all rows: the pairs that a product finds may
//            be written over the rest of the list.
// Tile:      a warp for each row and, in the first batch, for each centroid of the fallback group's list.
// Precision: src/bounds/fp16/rescore.rs.
#include "../common/filter.cuh"
#include "../common/tensor.cuh"
#include "tensor_copies.cuh"

template <typename T, typename S = T> struct TensorRescore {
    Rows<T, S> rows;
    const T* centroids; // (k, d)
    const T* centre; // (d): that of the fallback group
    T scale; // a power of two
    u32 fallback; // its number
    const TensorGroup* groups;
    const u32* list; // of the fallback group
    const RowInDoubt* in_doubt; // the list of rows in doubt
    Control* control;
    FewControl* few;
    u8* row_copies; // (capacity / 128, 2 chunks, 128, 64) of 2 bytes: high, then low
    float* terms; // (capacity)
    u32* row_of_place; // (batches, capacity)
    u32* group_of_tile; // (capacity / 128): NO_ROW from the last tile on
    u8* copies; // (k padded / 256, 2 chunks, 256, 64) of 2 bytes: high, then low
    float* lowered; // (k padded)
    float* slacks; // (k padded)
    float* tile_slacks; // (k padded / 256), filled with 0
    TensorTerms bound;
    u32 chunks, capacity;
    u32 batch, batches;
    u32 fewest; // a shorter list is left as it is
    u32 unused;
};

template <typename T, typename S> __device__ __forceinline__ void rescore_row(const TensorRescore<T, S>& a, u32 place, u32 row) {
    const int d = a.rows.d;
    const TensorGroup& fallback = a.groups[a.fallback];
    const S* const x = a.rows.of(row);
    const T scale = (T)fallback.row_scale;
    const auto value = [&](int f) { return f < d ? (double)((a.rows.value(x[(u64)f * a.rows.stride]) - a.centre[f]) * a.scale * scale) : 0.0; };
    u8* const tile = a.row_copies + (u64)(place / TILE_ROWS) * 2 * a.chunks * (TILE_ROWS * PLACE_BYTES);
    const CopySquares s = copy_vector<true>(value, a.chunks, place % TILE_ROWS, TILE_ROWS * PLACE_BYTES, tile);
    if ((threadIdx.x & 31) != 0) return;
    const TensorTerms& b = a.bound;
    const double more = 1.0 + b.half, high = sqrt(s.high * more), low = sqrt(s.low * more);
    const double unit = sizeof(T) == 4 ? 6.0e-8 : 1.2e-16;
    double rest = sqrt(s.rest * more + d * 1e-36);
    rest += 1.001 * unit * (high + low + rest);
    const double norm = high + 3.0 * low + rest + b.subnormal;
    const double term = rest * rest / b.share + (b.share + b.sum) * norm * norm + low * low;
    float rounded = __double2float_ru(term * 1.00001);
    if (fallback.farthest > fallback.radius && !(high + low + rest <= (double)fallback.radius * fallback.row_scale)) rounded = infinity_f();
    if (!(rounded < 1e35f)) rounded = infinity_f();
    a.terms[place] = rounded;
}

template <typename T, typename S> __device__ __forceinline__ void tensor_rescore(const TensorRescore<T, S>& a) {
    const u32 doubtful = a.few->doubtful, most = a.capacity * a.batches;
    const u32 left = doubtful < a.fewest ? doubtful : doubtful > most ? doubtful - most : 0; // rows that are not taken
    const u32 begin = left + a.batch * a.capacity, count = doubtful > begin ? min(doubtful - begin, a.capacity) : 0;
    const u32 tiles = (count + TILE_ROWS - 1) / TILE_ROWS;
    if (a.batch == 0 && global_thread() == 0) a.control->in_doubt = left, a.control->rescored += doubtful - left;
    for (u32 tile = global_thread(); tile < a.capacity / TILE_ROWS; tile += all_threads()) a.group_of_tile[tile] = tile < tiles ? a.fallback : NO_ROW;
    if (count == 0) return;
    if (a.batch == 0)
        for (u64 i = global_thread() + a.capacity; i < doubtful - left; i += all_threads())
            a.row_of_place[i] = a.in_doubt[a.rows.n - 1 - (left + (u32)i)].row;
    u32* const row_of_place = a.row_of_place + (u64)a.batch * a.capacity;
    const TensorGroup& fallback = a.groups[a.fallback];
    const u32 centroids = a.batch == 0 ? tiles_of(fallback.centroids) * TILE_CENTROIDS : 0;
    const bool writes = (threadIdx.x & 31) == 0;
#pragma unroll 1
    for (u32 i = global_thread() / 32; i < tiles * TILE_ROWS + centroids; i += all_threads() / 32) {
        if (i < centroids) {
            const u32 tile = i / TILE_CENTROIDS;
            const bool real = i < fallback.centroids;
            const T* const c = a.centroids + (u64)(real ? a.list[i] : 0) * a.rows.d;
            u8* const copies = a.copies + (u64)tile * 2 * a.chunks * (TILE_CENTROIDS * PLACE_BYTES);
            const OwnTerms own = copy_centroid<true>(c, a.centre, a.scale, fallback, a.bound, a.rows.d, a.chunks, real, i % TILE_CENTROIDS, copies);
            if (!writes) continue;
            a.lowered[i] = own.lowered, a.slacks[i] = own.slack;
            if (real) atomicMax((u32*)&a.tile_slacks[tile], __float_as_uint(own.slack));
            continue;
        }
        const u32 place = i - centroids;
        if (place >= count) {
            if (writes) row_of_place[place] = NO_ROW, a.terms[place] = 0.0f;
            continue;
        }
        const u32 row = a.batch == 0 ? a.in_doubt[a.rows.n - 1 - (begin + place)].row : row_of_place[place];
        rescore_row(a, place, row);
        if (writes && a.batch == 0) row_of_place[place] = row;
    }
}

#define KERNEL(T, S, NAME)                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ TensorRescore<T, S> a) {                                  \
        wait_for_kernel_before();                                                                                                            \
        if (a.control->stop == 0) tensor_rescore(a);                                                                                         \
    }
KERNEL(float, float, tensor_rescore_f32)
KERNEL(double, double, tensor_rescore_f64)
KERNEL(float, Half, tensor_rescore_f16)

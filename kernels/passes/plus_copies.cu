// plus_copies: the copies of rows with which plus_filter rules candidates of k-means++ out.
//
//   plus_values   the rows themselves, row-major
//   plus_count    how many rows each centre has
//   plus_places   the place of each row
//   plus_copies   the copies
//
// Used when: the steps of k-means++ on the device, if the device has room for the copies. The first kernel runs once. The others run
//            again when there are many more seeds, so that rows are near their centres.
// Tile:      plus_values: a block has 32 rows and 32 features at a time. plus_count, plus_places: a row a thread. plus_copies: a block has
//            a tile of 32 places, and a warp makes one copy at a time.
// Memory:    plus_values reads x and writes as much. plus_copies reads that and writes d bytes a row.
// Precision: src/bounds/bytes.rs. The order of the rows of a centre differs from run to run, and so may the centre of a row on a tie of
//            two kernels. Nothing depends on either.
#include "bytes.cuh"
#include "plus_plus.cuh"

template <typename T, typename S = T> struct PlusValues {
    Rows<T, S> rows;
    T* values; // (n, d)
};

#define SIDE 32

template <typename T, typename S> __device__ __forceinline__ void plus_values(const PlusValues<T, S>& a) {
    __shared__ T square[SIDE][SIDE + 1];
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, d = a.rows.d, across = (d + SIDE - 1) / SIDE;
    const u64 squares = (u64)((a.rows.n + SIDE - 1) / SIDE) * across;
    for (u64 i = blockIdx.x; i < squares; i += gridDim.x) {
        const u32 row = (u32)(i / across) * SIDE, feature = (u32)(i % across) * SIDE;
#pragma unroll
        for (u32 f = 0; f < SIDE; f += 8)
            if (feature + f + warp < d && row + lane < a.rows.n)
                square[f + warp][lane] = a.rows.at((u64)(feature + f + warp) * a.rows.stride + row + lane);
        __syncthreads();
#pragma unroll
        for (u32 r = 0; r < SIDE; r += 8)
            if (row + r + warp < a.rows.n && feature + lane < d) a.values[(u64)(row + r + warp) * d + feature + lane] = square[lane][r + warp];
        __syncthreads();
    }
}

struct PlusCount {
    const u32* owners; // (n): the centre of each row
    u32* counts; // (centres): must be 0 before
    u32 n;
    u32 centres;
};

#define MOST_COUNTED 1024 // centres

extern "C" __global__ void __launch_bounds__(256) plus_count(const __grid_constant__ PlusCount a) {
    __shared__ u32 counts[MOST_COUNTED];
    for (u32 g = threadIdx.x; g < a.centres; g += blockDim.x) counts[g] = 0;
    __syncthreads();
    for (u32 row = global_thread(); row < a.n; row += all_threads()) {
        atomicAdd(&counts[a.owners[row]], 1u);
    }
    __syncthreads();
    for (u32 g = threadIdx.x; g < a.centres; g += blockDim.x)
        if (counts[g]) atomicAdd(&a.counts[g], counts[g]);
}

struct PlusPlaces {
    const u32* owners; // (n): the centre of each row
    u32* next; // (centres): the next free place of each
    u32* order; // (places)
    u32 n;
    u32 unused;
};

extern "C" __global__ void __launch_bounds__(256) plus_places(const __grid_constant__ PlusPlaces a) {
    const u32 row = global_thread();
    if (row >= a.n) return;
    const u32 lane = threadIdx.x & 31, centre = a.owners[row];
    const u32 same = __match_any_sync(__activemask(), centre), leader = __ffs(same) - 1;
    u32 place = 0;
    if (lane == leader) place = atomicAdd(&a.next[centre], __popc(same));
    a.order[__shfl_sync(same, place, leader) + __popc(same & ((1u << lane) - 1))] = row;
}

template <typename T> struct PlusCopies {
    const double* nearest; // (n): the distance to the nearest seed
    const T* centres; // (centres, d)
    ByteCopies<T> copies;
    int d;
    u32 unused;
};

template <typename T> __device__ __forceinline__ void plus_copies(const PlusCopies<T>& a) {
    const ByteCopies<T>& copies = a.copies;
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, tiles = copies.places / PLACES;
    const int d = a.d;
    u32* words = reinterpret_cast<u32*>(copies.bytes);
    for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const u32 centre = copies.centre_of[tile];
        const T* c = a.centres + (u64)centre * d;
        float reach = 0.0f;
#pragma unroll 1
        for (u32 i = warp; i < PLACES; i += 8) {
            const u64 place = (u64)tile * PLACES + i;
            const u32 row = copies.order[place];
            if (row == NO_ROW) {
                if (lane == 0) copies.facts[place] = {NEVER, 0.0f, 0.0f, 0.0f};
                continue;
            }
            const auto word = [&](u32 at) -> u32& { return words[row_word(copies, tile, i, at)]; };
            const CopiedBytes copied = copy_bytes(copies, copies.values + (u64)row * d, c, d, word);
            if (lane == 0) {
                const float norm = norm_up(copied.square);
                const double nearest = a.nearest[row];
                copies.facts[place] = {lead(copied.square, nearest, copies.scale), copied.step, norm, residual_up(copied.residual, norm)};
                reach = fmaxf(reach, reach_of(norm, nearest, copies.scale));
            }
        }
        // Reaches are not negative, so their bits have the same order as they have.
        if (lane == 0) atomicMax(&copies.reaches[centre], __float_as_uint(reach));
    }
}

// ---- entry points ----------------------------------------------------------------------------------------------------

#define VALUES(T, S, SUFFIX)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256) plus_values_##SUFFIX(const __grid_constant__ PlusValues<T, S> a) {      \
        plus_values(a);                                                                                                       \
    }
#define COPIES(T, SUFFIX)                                                                                                     \
    extern "C" __global__ void __launch_bounds__(256) plus_copies_##SUFFIX(const __grid_constant__ PlusCopies<T> a) {         \
        plus_copies(a);                                                                                                       \
    }

VALUES(float, float, f32)
VALUES(double, double, f64)
VALUES(float, Half, f16)
COPIES(float, f32)
COPIES(double, f64)

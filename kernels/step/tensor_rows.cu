// tensor_rows: the half-precision copies of the rows for assign_tensor, in the order of their groups.
//
//   tensor_clear   no place has a row
//   tensor_group   the group of each row: that of the nearest centre, by float32 differences. How many rows each group has, and how large it is
//   tensor_places  the tiles of each group
//   tensor_rows    the copies, written to their places, with the row's part of the bound
//
// Used when: in the first iteration. Again in a few later ones, if the one before had much doubt. If rows stream, for each chunk of each
//            iteration.
// Tile:      128 rows a block, 64 features at a time.
// Memory:    columns are read row by row of a tile, so loads are contiguous. A copy is written as 128 bytes of one place at a time.
#include "../common/sums.cuh"
#include "../common/tensor.cuh"
#include <cuda_fp16.h>

template <typename T, typename S = T> struct TensorRows {
    Rows<T, S> rows;
    const T* centres; // (groups, d)
    T scale; // a power of two
    int count; // groups
    TensorGroup* groups;
    u8* group_of_row; // (n)
    u32* group_of_tile; // (tiles), NO_ROW from the last tile on
    u32* row_of_place; // (tiles, 128): NO_ROW for no row
    float* terms; // (tiles, 128): 2 E_x / t, and more
    u8* copies; // (tiles, chunks, 128, 64) of 2 bytes
    const Control* control;
    const FewControl* few;
    TensorTerms bound;
    u32 tiles, chunks;
    u32 most_doubt, unused;
};

#define GROUP_THREADS 128

template <typename T, typename S> __device__ __forceinline__ void tensor_clear(const TensorRows<T, S>& a) {
    const u64 places = (u64)a.tiles * TILE_ROWS;
    for (u64 place = global_thread(); place < places; place += all_threads()) a.row_of_place[place] = NO_ROW;
    if (global_thread() < a.count) a.groups[global_thread()] = {};
}

template <typename T, typename S> __device__ __forceinline__ void tensor_group(const TensorRows<T, S>& a) {
    __shared__ T centres[CHUNK][MOST_GROUPS];
    __shared__ u32 radius[MOST_GROUPS], rows[MOST_GROUPS];
    __shared__ float lengths[MOST_GROUPS];
    const int tid = threadIdx.x, d = a.rows.d;
    if (tid < MOST_GROUPS) radius[tid] = rows[tid] = 0, lengths[tid] = 0.0f;
    const u64 row = (u64)blockIdx.x * GROUP_THREADS + tid;
    const bool inside = row < a.rows.n;
    float sums[MOST_GROUPS];
#pragma unroll
    for (int g = 0; g < MOST_GROUPS; g++) sums[g] = 0.0f;
#pragma unroll 1
    for (int done = 0; done < d; done += CHUNK) {
        const int features = min(CHUNK, d - done);
        __syncthreads();
        for (int i = tid; i < features * MOST_GROUPS; i += GROUP_THREADS) {
            const int g = i / features, f = i % features;
            centres[f][g] = g < a.count ? a.centres[(u64)g * d + done + f] : (T)0;
        }
        __syncthreads();
#pragma unroll 2
        for (int f = 0; f < features; f++) {
            const T x = inside ? a.rows.at((u64)(done + f) * a.rows.stride + row) : (T)0;
#pragma unroll
            for (int g = 0; g < MOST_GROUPS; g++) {
                const float difference = (float)((x - centres[f][g]) * a.scale);
                sums[g] = __fmaf_rn(difference, difference, sums[g]);
            }
        }
    }
    int nearest = 0;
    float least = sums[0];
#pragma unroll
    for (int g = 1; g < MOST_GROUPS; g++)
        if (g < a.count && sums[g] < least) least = sums[g], nearest = g;
    if (inside) {
        a.group_of_row[row] = (u8)nearest;
        // Not negative, so bits have the order of the values.
        atomicMax(&radius[nearest], __float_as_uint(least));
        atomicAdd(&rows[nearest], 1);
        // A row out of the range of float32 must not make the mean infinite.
        if (least < infinity_f()) atomicAdd(&lengths[nearest], sqrtf(least));
    }
    __syncthreads();
    if (tid < a.count && rows[tid] != 0) {
        TensorGroup* const group = a.groups + tid;
        const double far = sqrt((double)__uint_as_float(radius[tid])) * (1.0 + a.bound.radius);
        atomicMax((u32*)&group->farthest, __float_as_uint(__double2float_ru(far)));
        atomicAdd(&group->rows, rows[tid]);
        atomicAdd(&group->lengths, (double)lengths[tid]);
    }
}

// One block.
template <typename T, typename S> __device__ __forceinline__ void tensor_places(const TensorRows<T, S>& a) {
    __shared__ u32 first[MOST_GROUPS + 1];
    if (threadIdx.x == 0) {
        u32 tile = 0;
        for (int g = 0; g < a.count; g++) {
            TensorGroup& group = a.groups[g];
            group.first_tile = first[g] = tile, group.next_place = tile * TILE_ROWS;
            tile += (group.rows + TILE_ROWS - 1) / TILE_ROWS;
            const double most = group.rows ? MOST_MEANS * group.lengths / group.rows : 0.0;
            group.radius = group.farthest > most ? __double2float_ru(most) : group.farthest;
            // The largest norm of a copy is between 2^14 and 2^15, or the group is tiny beside the data. Infinite distances (rows out of
            // the range of float32) give copies that are not finite, which `tensor_rows` keeps out.
            const int exponent = group.radius > 0.0f ? min(14 - ilogbf(group.radius), 60) : 0;
            group.row_scale = ldexpf(1.0f, group.radius < 1e30f ? exponent : 0);
        }
        first[a.count] = tile;
    }
    __syncthreads();
    for (int g = 0; g < a.count; g++)
        for (u32 tile = first[g] + threadIdx.x; tile < first[g + 1]; tile += blockDim.x) a.group_of_tile[tile] = g;
    for (u32 tile = first[a.count] + threadIdx.x; tile < a.tiles; tile += blockDim.x) a.group_of_tile[tile] = NO_ROW;
}

template <typename T, typename S> __device__ __forceinline__ void tensor_rows(const TensorRows<T, S>& a) {
    __shared__ __align__(16) __half copies[TILE_ROWS][CHUNK + 8];
    __shared__ T centres[MOST_GROUPS][CHUNK + 1];
    __shared__ u32 places[TILE_ROWS], used[MOST_GROUPS], begin[MOST_GROUPS];
    __shared__ float squares[2][TILE_ROWS], residuals[2][TILE_ROWS];
    const int tid = threadIdx.x, d = a.rows.d, local = tid % TILE_ROWS, half = tid / TILE_ROWS;
    const u64 row = (u64)blockIdx.x * TILE_ROWS + local;
    const bool inside = row < a.rows.n;
    const int g = inside ? a.group_of_row[row] : 0;
    if (tid < MOST_GROUPS) used[tid] = 0;
    __syncthreads();
    u32 rank = 0;
    if (half == 0 && inside) rank = atomicAdd(&used[g], 1);
    __syncthreads();
    if (tid < a.count && used[tid] != 0) begin[tid] = atomicAdd(&a.groups[tid].next_place, used[tid]);
    __syncthreads();
    if (half == 0) places[local] = inside ? begin[g] + rank : NO_ROW;
    __syncthreads();
    const u32 place = places[local];
    const T scale = (T)a.groups[g].row_scale;
    float square = 0.0f, residual = 0.0f;
#pragma unroll 1
    for (u32 c = 0; c < a.chunks; c++) {
        const int done = c * CHUNK, features = min(CHUNK, d - done);
        __syncthreads();
        for (int i = tid; i < a.count * CHUNK; i += 2 * TILE_ROWS) {
            const int group = i / CHUNK, f = i % CHUNK;
            centres[group][f] = f < features ? a.centres[(u64)group * d + done + f] : (T)0;
        }
        __syncthreads();
#pragma unroll 8
        for (int f = half; f < CHUNK; f += 2) {
            __half copy = __float2half_rn(0.0f);
            if (f < features && inside) {
                const T x = (a.rows.at((u64)(done + f) * a.rows.stride + row) - centres[g][f]) * a.scale * scale;
                if constexpr (sizeof(T) == 4) copy = __float2half_rn(x);
                else copy = __double2half(x);
                // Products of what is not finite could lose a centroid. The residual says that nothing is known.
                if (!(fabsf(__half2float(copy)) < 65505.0f)) copy = __float2half_rn(0.0f);
                const float copied = __half2float(copy), rest = (float)(x - (T)copied);
                square = __fmaf_rn(copied, copied, square), residual = __fmaf_rn(rest, rest, residual);
            }
            copies[local][f] = copy;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILE_ROWS * 8 / (2 * TILE_ROWS); i++) {
            const int r = i * (2 * TILE_ROWS / 8) + tid / 8, piece = tid % 8;
            const u32 to = places[r];
            if (to == NO_ROW) continue;
            const uint4 words = *(const uint4*)&copies[r][piece * 8];
            u8* const tile = a.copies + ((u64)(to / TILE_ROWS) * a.chunks + c) * (TILE_ROWS * PLACE_BYTES);
            *(uint4*)(tile + swizzled(to % TILE_ROWS, piece)) = words;
        }
    }
    squares[half][local] = square, residuals[half][local] = residual;
    __syncthreads();
    if (half == 0 && inside) {
        // Sums of float32 squares: d + 8 roundings, and the residual's own rounding. A residual below 2^-60 may lose its square.
        const double more = 1.0 + (d + 16) * 1.2e-7;
        const double copy = sqrt(((double)square + squares[1][local]) * more);
        const double unit = sizeof(T) == 4 ? 6.0e-8 : 1.2e-16;
        double rest = sqrt(((double)residual + residuals[1][local]) * more + d * 1e-36);
        rest += 1.001 * unit * (copy + rest);
        const double norm = copy + rest + a.bound.subnormal;
        const double term = rest * rest / a.bound.share + (a.bound.share + a.bound.sum) * norm * norm;
        // Also covers the rounding of the row's part of reference distances, which is below 2^-20 of this.
        float rounded = __double2float_ru(term * 1.00001);
        // A copy that is not finite, or a row beyond the radius: every centroid is in reach.
        const TensorGroup& group = a.groups[g];
        if (group.farthest > group.radius && !(norm <= (double)group.radius * group.row_scale)) rounded = infinity_f();
        if (!(rounded < 1e35f)) rounded = infinity_f();
        a.terms[place] = rounded;
        a.row_of_place[place] = (u32)row;
    }
}

#define KERNEL(T, S, FUNCTION, THREADS, NAME)                                                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(const __grid_constant__ TensorRows<T, S> a) {                                 \
        if (a.control->stop == 0 && again(a.few, a.most_doubt)) FUNCTION(a);                                                                 \
    }
#define KERNELS(T, S, TYPE)                                                                                                                  \
    KERNEL(T, S, tensor_clear, 256, tensor_clear_##TYPE)                                                                                     \
    KERNEL(T, S, tensor_group, GROUP_THREADS, tensor_group_##TYPE)                                                                           \
    KERNEL(T, S, tensor_places, 1024, tensor_places_##TYPE)                                                                                  \
    KERNEL(T, S, tensor_rows, 2 * TILE_ROWS, tensor_rows_##TYPE)
KERNELS(float, float, f32)
KERNELS(double, double, f64)
KERNELS(float, Half, f16)

// tensor_rows: the half-precision copies of the rows for assign_tensor, written to their places, with the row's part of the bound.
//
// Used when: after tensor_groups.cu.
// Tile:      128 rows a block, 64 features at a time.
// Memory:    columns are read row by row of a tile, so loads are contiguous. A copy is written as 128 bytes of one place at a time.
#include "tensor_rows.cuh"
#include <cuda_fp16.h>

#define FLIGHT 8 // values of a row that a thread has on their way at once

template <typename T, typename S> __device__ __forceinline__ void tensor_rows(const TensorRows<T, S>& a) {
    // One more word than a row has, so neither the rows of one feature nor the pieces of one row share a bank.
    __shared__ __half2 copies[TILE_ROWS][CHUNK / 2 + 1];
    __shared__ u32 places[TILE_ROWS], used[MOST_GROUPS + 1], begin[MOST_GROUPS + 1];
    __shared__ float squares[2][TILE_ROWS], residuals[2][TILE_ROWS];
    const int tid = threadIdx.x, d = a.rows.d, local = tid % TILE_ROWS, half = tid / TILE_ROWS;
    const u64 row = (u64)blockIdx.x * TILE_ROWS + local;
    const u32 group_of_row = row < a.rows.n ? a.group_of_row[row] : NO_GROUP;
    const bool inside = group_of_row != NO_GROUP;
    const u32 g = inside && group_of_row != a.most ? a.groups[group_of_row].home : a.most;
    const u32 label = inside ? label_of_row(a, row) : UNASSIGNED;
    const bool labelled = label != UNASSIGNED && group_of_row != a.most; // rows that are too far away have no order
    for (u32 i = tid; i <= a.most; i += 2 * TILE_ROWS) used[i] = 0;
    __syncthreads();
    u32 rank = 0;
    if (half == 0 && inside && !labelled) rank = atomicAdd(&used[g], 1);
    __syncthreads();
    for (u32 i = tid; i <= a.most; i += 2 * TILE_ROWS)
        if (used[i] != 0) begin[i] = atomicAdd(&a.buckets[i], used[i]);
    __syncthreads();
    if (half == 0) places[local] = labelled ? atomicAdd(&a.buckets[a.most + 1 + label], 1) : inside ? begin[g] + rank : NO_ROW;
    __syncthreads();
    const u32 place = places[local];
    const T scale = (T)a.groups[g].row_scale;
    const T* const centre = a.centres + g * centre_width(d);
    float square = 0.0f, residual = 0.0f;
#pragma unroll 1
    for (u32 c = 0; c < a.chunks; c++) {
        const int done = c * CHUNK, features = min(CHUNK, d - done);
        // The two threads of a row take four features by turns.
#pragma unroll 1
        for (int first = 0; first < CHUNK; first += 2 * FLIGHT) {
            T values[FLIGHT], centres[FLIGHT];
#pragma unroll
            for (int i = 0; i < FLIGHT; i++) {
                const int f = first + i / 4 * 8 + 4 * half + i % 4;
                values[i] = f < features && inside ? a.rows.at((u64)(done + f) * a.rows.stride + row) : (T)0;
            }
#pragma unroll
            for (int i = 0; i < FLIGHT; i += 4) {
                const int f = first + i / 4 * 8 + 4 * half;
                if (f < features) load_four(centre + done + f, centres + i);
            }
            const auto copy_of = [&](int i, int f) {
                __half copy = __float2half_rn(0.0f);
                if (f >= features || !inside) return copy;
                const T x = (values[i] - centres[i]) * a.scale * scale;
                if constexpr (sizeof(T) == 4) copy = __float2half_rn(x);
                else copy = __double2half(x);
                // Products of what is not finite could lose a centroid. The residual says that nothing is known.
                if (!(fabsf(__half2float(copy)) < 65505.0f)) copy = __float2half_rn(0.0f);
                const float copied = __half2float(copy), rest = (float)(x - (T)copied);
                square = __fmaf_rn(copied, copied, square), residual = __fmaf_rn(rest, rest, residual);
                return copy;
            };
            if (first == 0) __syncthreads(); // the chunk before has been written
#pragma unroll
            for (int i = 0; i < FLIGHT; i += 2) {
                const int f = first + i / 4 * 8 + 4 * half + i % 4;
                copies[local][f / 2] = __halves2half2(copy_of(i, f), copy_of(i + 1, f + 1));
            }
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILE_ROWS * 8 / (2 * TILE_ROWS); i++) {
            const int r = i * (2 * TILE_ROWS / 8) + tid / 8, piece = tid % 8;
            const u32 to = places[r];
            if (to == NO_ROW) continue;
            const u32* const from = (const u32*)copies[r] + piece * 4;
            const uint4 words = make_uint4(from[0], from[1], from[2], from[3]);
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

#define KERNEL(T, S, NAME)                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(2 * TILE_ROWS) NAME(const __grid_constant__ TensorRows<T, S> a) {                           \
        if (a.control->stop == 0 && again(a.few, a.most_doubt, a.most_kept)) tensor_rows(a);                                                 \
    }
KERNEL(float, float, tensor_rows_f32)
KERNEL(double, double, tensor_rows_f64)
KERNEL(float, Half, tensor_rows_f16)

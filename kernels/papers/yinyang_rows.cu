// yinyang_rows: the float32 copies of the rows that must be compared, side by side as a matrix product wants them, and what the product needs of each
// row besides.
//
// Source:    ours.
// Used when: before assign_yinyang.
// Tile:      a thread has a row, a block a tile of 128.
// Memory:    values of listed rows cost 4 to 32 bytes each. If all rows are compared, they are read as they lie.
// Precision: a copy as in `centred_copy`. Sums of squares are float64, of values with one float64 rounding each.
#include "yinyang.cuh"

#define ROWS 128

template <typename T, typename S> __device__ __forceinline__ void gather(const CarriedRows<T, S>& a) {
    const Carried& c = a.carried;
    __shared__ u32 groups[2];
    const u32 tid = threadIdx.x;
    const bool full = c.own->full;
    const u32 count = full ? c.n : c.own->listed;
    const u64 every = c.group_count == 64 ? ~0ull : (1ull << c.group_count) - 1;
    const double scale = (double)a.scale;
    const bool usable = a.bound->slope < infinity_f();
    if (global_thread() == 0 && !full) atomicAdd(&c.control->scores, (u64)c.own->doubtful);
#pragma unroll 1
    for (u32 tile = blockIdx.x; (u64)tile * ROWS < count; tile += gridDim.x) {
        const u32 place = tile * ROWS + tid;
        const bool inside = place < count;
        Listed entry = {place, infinity_f(), every};
        if (inside && !full) entry = c.listed[place];
        if (!inside) entry.groups = 0;
        const S* x = a.rows.x + (inside ? entry.place : 0);
        float* to = c.x + place;
        double plain = 0.0, weighted = 0.0;
#pragma unroll 1
        for (u32 group = 0; group < c.d; group += 16) {
            const u32 end = min(c.d, group + 16);
            double part = 0.0;
#pragma unroll 8
            for (u32 f = group; f < end; f++) {
                const T value = a.rows.value(x[(u64)f * a.rows.stride]), minus_centre = a.minus_centre[f];
                to[(u64)f * c.stride] = inside ? centred_copy(value, minus_centre, a.scale) : 0.0f;
                const double t = __fma_rn((double)value, scale, (double)minus_centre);
                part = __fma_rn(t, t, part);
            }
            plain = __dadd_rn(plain, part);
            weighted = __fma_rn(part, (double)weight_of(group, c.d, a.panel), weighted);
        }
        Terms terms = {minus_infinity_f(), infinity_f(), infinity_f(), entry.others};
        // Longer rows could overflow a score.
        if (usable && weighted < 1e37) {
            const double around = plain * a.squares + 7.2e-43, error = weighted * a.error; // 2^-140
            terms.low = __double2float_rd(plain - around - error);
            terms.high = __double2float_ru(plain + around + error);
            terms.square = __double2float_ru(weighted * (1.0 + a.squares));
        }
        c.terms[place] = terms;
        if (tid < 2) groups[tid] = 0;
        __syncthreads();
        const u32 low = __reduce_or_sync(FULL_WARP, (u32)entry.groups), high = __reduce_or_sync(FULL_WARP, (u32)(entry.groups >> 32));
        if ((tid & 31) == 0) atomicOr(&groups[0], low), atomicOr(&groups[1], high);
        __syncthreads();
        if (tid == 0) c.unions[tile] = (u64)groups[1] << 32 | groups[0];
        __syncthreads();
    }
}

#define GATHER(T, S, NAME)                                                                                                           \
    extern "C" __global__ void __launch_bounds__(ROWS) yinyang_rows_##NAME(const __grid_constant__ CarriedRows<T, S> a) {             \
        wait_for_kernel_before();                                                                                                    \
        if (a.carried.control->stop) return;                                                                                         \
        gather(a);                                                                                                                   \
    }
GATHER(float, float, f32)
GATHER(double, double, f64)
GATHER(float, Half, f16)

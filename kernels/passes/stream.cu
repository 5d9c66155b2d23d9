// stream: k-means++ over rows that stream through the device. Each step takes one pass. A row needs no memory except its label.
//
// Source:    Arthur and Vassilvitskii 2007, as in kernels/passes/seed.cu. Ours: (1) A row keeps the number of its nearest centroid, in the place
//            of its label. It does not keep the distance, because one reference distance gives it again. (2) One pass takes the chosen
//            centroid and also tries the candidates for the next one. (3) Each range of rows has a total under each candidate. When a
//            candidate is chosen, the next draw uses its totals and needs no pass.
// Used when: init="k-means++" and the rows do not fit on the device.
// Tile:      one row a thread, with all candidates. A range of rows is split over several blocks, so that all of the device works.
// Memory:    reads every value and every label once. Writes few labels.
// Precision: reference distances, then integers.
#include "../common/sums.cuh"

#define THREADS 128

__device__ __forceinline__ u128 warp_sum_wide(u128 v) {
#pragma unroll
    for (int o = 16; o; o >>= 1)
        v += (u128)__shfl_xor_sync(FULL_WARP, (u64)(v >> 64), o) << 64 | __shfl_xor_sync(FULL_WARP, (u64)v, o);
    return v;
}

template <typename T> struct Potentials {
    Rows<T> rows;
    Labels labels; // the number of the nearest of the first `known` seeds
    const T* seeds; // (known, d), plus one row if a seed is taken now
    const double* points; // (d, M): the candidates, 0 for missing ones
    u64* totals; // (1 + m, stride): 128 bits each, the low word first, from this chunk's first range on; must be 0 before
    u64 stride; // the number of ranges of all chunks
    DistanceScale scale;
    u64 range; // rows of a range, at most 2^24, so that a thread has at most 131,072 of them
    u32 ranges, split; // split: blocks that share a range
    u32 known;
    u32 take; // whether one more seed is taken
    u32 m; // candidates, at most M
    u32 base; // whether the totals without any candidate are wanted
};

template <typename T, int M> __device__ __forceinline__ void potentials(const Potentials<T>& a) {
    const int d = a.rows.d;
    for (u64 piece = blockIdx.x; piece < (u64)a.ranges * a.split; piece += gridDim.x) {
        const u64 r = piece / a.split, part = piece % a.split;
        const u64 begin = r * a.range, length = (begin + a.range < a.rows.n ? begin + a.range : a.rows.n) - begin;
        const u64 first = begin + length * part / a.split, last = begin + length * (part + 1) / a.split;
        Pair sums[M + 1];
#pragma unroll
        for (int j = 0; j <= M; j++) sums[j].hi = sums[j].lo = 0;
        for (u64 row = first + threadIdx.x; row < last; row += THREADS) {
            const u32 label = a.known ? load_label(a.labels, row) : 0;
            const T *nearest = a.seeds + (u64)label * d, *taken = a.seeds + (u64)a.known * d;
            double near = 0.0, fresh = 0.0, s[M + 1];
#pragma unroll
            for (int j = 0; j < M; j++) s[j] = 0.0;
            for (int f = 0; f < d; f++) {
                const double x = (double)a.rows.x[(u64)f * a.rows.stride + row];
                if (a.known) {
                    const double t = __dadd_rn(x, -(double)nearest[f]);
                    near = __fma_rn(t, t, near);
                }
                if (a.take) {
                    const double t = __dadd_rn(x, -(double)taken[f]);
                    fresh = __fma_rn(t, t, fresh);
                }
#pragma unroll
                for (int j = 0; j < M; j++) {
                    const double t = __dadd_rn(x, -a.points[(u64)f * M + j]);
                    s[j] = __fma_rn(t, t, s[j]);
                }
            }
            if (!a.known) near = infinity();
            if (a.take && fresh < near) {
                near = fresh;
                store_label(a.labels, row, a.known);
            }
            const double w = a.rows.w ? a.rows.w[row] : 1.0;
            const Pair own = quantise_distance(a.scale, w, near);
            sums[0].hi += own.hi, sums[0].lo += own.lo;
#pragma unroll
            for (int j = 0; j < M; j++) {
                // Integer distances grow with s.
                const Pair p = s[j] < near ? quantise_distance(a.scale, w, s[j]) : own;
                sums[j + 1].hi += p.hi, sums[j + 1].lo += p.lo;
            }
        }
#pragma unroll
        for (int j = 0; j <= M; j++) {
            const u128 sum = warp_sum_wide((u128)join(sums[j]));
            u64* to = a.totals + 2 * (j * a.stride + r);
            if ((threadIdx.x & 31) == 0 && sum && (j ? j <= a.m : a.base)) add_wide(to, to + 1, sum);
        }
    }
}

#define KERNEL(T, SUFFIX, M)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS) potentials_##SUFFIX##_##M(const __grid_constant__ Potentials<T> a) { \
        potentials<T, M>(a);                                                                                                  \
    }
#define KERNELS(T, SUFFIX) \
    KERNEL(T, SUFFIX, 0)   \
    KERNEL(T, SUFFIX, 4)   \
    KERNEL(T, SUFFIX, 8)
KERNELS(float, f32)
KERNELS(double, f64)

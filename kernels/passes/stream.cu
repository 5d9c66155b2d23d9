// stream: k-means++ over rows that stream through the device. Each step takes one pass. A row needs no memory except its label. Samples
// in which every row decides alone work the same way.
//
// Source:    Arthur and Vassilvitskii 2007, as in kernels/passes/seed.cu. Ours: (1) A row keeps the number of its nearest centroid, in the place
//            of its label. It does not keep the distance, because one reference distance gives it again. (2) One pass takes the chosen
//            centroid and also tries the candidates for the next one. (3) Each range of rows has a total under each candidate. When a
//            candidate is chosen, the next draw uses its totals and needs no pass. (4) If there are more centroids than numbers that a
//            label can hold, several share a number, and a row is compared with all of these.
// Used when: init="k-means++" and the rows do not fit on the device.
// Tile:      one row a thread, with all candidates. A range of rows is split over several blocks, so that all of the device works.
// Memory:    reads every value and every label once. Writes few labels.
// Precision: reference distances, then integers.
#include "draws.cuh"

#define THREADS 128

// The centroids taken so far, and which of them is nearest to each row.
template <typename T> struct Seeds {
    Labels labels; // the number of the nearest of the first `known` seeds. Seed i has the number i % numbers
    const T* seeds; // (known + take, d)
    u32 numbers;
    u32 known;
};

// Lowers `near` to the least reference distance of a row to the seeds `first`, `first + step` and so on, below `end`. Returns the seed of
// that distance, or `none` if no distance was lower.
template <typename T, typename S>
__device__ __forceinline__ u32 lower(const Rows<T, S>& rows, u64 row, const T* seeds, u64 first, u32 step, u32 end, double& near, u32 none) {
    u32 nearest = none;
#pragma unroll 1
    for (u64 seed = first; seed < end; seed += step) {
        const double s = reference_distance(rows, row, seeds + seed * rows.d, 1);
        if (s < near) near = s, nearest = (u32)seed;
    }
    return nearest;
}

template <typename T, typename S = T> struct Potentials {
    Rows<T, S> rows;
    Seeds<T> seeds;
    const double* points; // (d, M): the candidates, 0 for missing ones
    u64* totals; // (1 + m, stride): 128 bits each, the low word first, from this chunk's first range on; must be 0 before
    u64 stride; // the number of ranges of all chunks
    DistanceScale scale;
    u64 range; // rows of a range, at most 2^24, so that a thread has at most 131,072 of them
    u32 ranges, split; // split: blocks that share a range
    u32 take; // seeds that are taken now
    u32 m; // candidates, at most M
    u32 base; // whether the totals without any candidate are wanted
    u32 unused;
};

template <typename T, int M, typename S> __device__ __forceinline__ void potentials(const Potentials<T, S>& a) {
    const int d = a.rows.d;
    const u32 known = a.seeds.known;
    for (u64 piece = blockIdx.x; piece < (u64)a.ranges * a.split; piece += gridDim.x) {
        const u64 r = piece / a.split, part = piece % a.split;
        const u64 begin = r * a.range, length = (begin + a.range < a.rows.n ? begin + a.range : a.rows.n) - begin;
        const u64 first = begin + length * part / a.split, last = begin + length * (part + 1) / a.split;
        Pair sums[M + 1];
#pragma unroll
        for (int j = 0; j <= M; j++) sums[j].hi = sums[j].lo = 0;
        for (u64 row = first + threadIdx.x; row < last; row += THREADS) {
            const u32 label = known ? load_label(a.seeds.labels, row) : 0;
            const T *nearest = a.seeds.seeds + (u64)label * d, *taken = a.seeds.seeds + (u64)known * d;
            double near = 0.0, fresh = 0.0, s[M + 1];
#pragma unroll
            for (int j = 0; j < M; j++) s[j] = 0.0;
            for (int f = 0; f < d; f++) {
                const double x = (double)a.rows.at((u64)f * a.rows.stride + row);
                if (known) {
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
            if (!known) near = infinity();
            // Usually no other seed has the same number, and at most one seed is taken.
            if (known) lower(a.rows, row, a.seeds.seeds, (u64)label + a.seeds.numbers, a.seeds.numbers, known, near, 0);
            if (a.take) {
                const bool nearer = fresh < near;
                if (nearer) near = fresh;
                const u32 later = lower(a.rows, row, a.seeds.seeds, (u64)known + 1, 1, known + a.take, near, known);
                if (nearer || later != known) store_label(a.seeds.labels, row, later % a.seeds.numbers);
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

template <typename T, typename S = T> struct StreamSample {
    Rows<T, S> rows;
    Seeds<T> seeds; // all of them are known
    DistanceScale scale;
    Sample sample;
    FoundRows found;
    u64 first; // the number of row 0 of this chunk in the stream
};

template <typename T, typename S> __device__ __forceinline__ void stream_sample(const StreamSample<T, S>& a) {
    for (u64 row = global_thread(); row < a.rows.n; row += all_threads()) {
        double near = infinity();
        lower(a.rows, row, a.seeds.seeds, load_label(a.seeds.labels, row), a.seeds.numbers, a.seeds.known, near, 0);
        const double w = a.rows.w ? a.rows.w[row] : 1.0;
        const u128 weight = (u128)join(quantise_distance(a.scale, w, near));
        const u64 number = a.sample.first + a.first + row;
        if (is_drawn(a.sample, a.rows, row, number, weight)) add_found(a.found, a.first + row);
    }
}

#define KERNEL(T, S, SUFFIX, M)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS) potentials_##SUFFIX##_##M(const __grid_constant__ Potentials<T, S> a) { \
        potentials<T, M>(a);                                                                                                  \
    }
#define KERNELS(T, S, SUFFIX)                                                                                                    \
    extern "C" __global__ void __launch_bounds__(THREADS) stream_sample_##SUFFIX(const __grid_constant__ StreamSample<T, S> a) { \
        stream_sample(a);                                                                                                     \
    }                                                                                                                         \
    KERNEL(T, S, SUFFIX, 0)                                                                                                      \
    KERNEL(T, S, SUFFIX, 4)                                                                                                      \
    KERNEL(T, S, SUFFIX, 8)
KERNELS(float, float, f32)
KERNELS(double, double, f64)
KERNELS(float, Half, f16)

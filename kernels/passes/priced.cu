// priced: passes with a price on each centroid (src/backend/priced.rs), for fits with bounds on the sizes of clusters.
//
//   priced_counts   for each row: the centroid of least weighted distance + price, and how many centroids are in reach
//   priced_lists    for the rows with several in reach: these centroids, and the reference distances to them
//   priced_sample   what each centroid costs some rows, in float32
//
// Centroid j is in reach of a row of cheapest centroid a if the total of j, less the width of a and j, is not certain to be larger than the total of a.
//
// Used when: labels within bounds on sizes are looked for. The host adds the counts up, so it knows where each list begins.
// Tile:      128 rows by 16 centroids: see chains.cuh. A block takes all centroids of its rows twice: totals first, then reach.
// Memory:    as `nearest` of predict.cu. A thread reads its row of the widths in order.
// Precision: reference distances. A total has a rounding of the price and one of the sum, and so has a difference. `in_reach` leaves room for all.
#include "chains.cuh"

// Rows of a block of a sample.
#define SAMPLE_BLOCK 64
// The largest cost of a sample.
#define MOST_COST 1e36

// Some rows, the prices of centroids, and how far prices may move.
template <typename T, typename S = T> struct PricedRows {
    Rows<T, S> rows;
    const u32* numbers; // (count): the numbers of the rows, or null: all rows from `first` on
    const T* centroid_columns; // (d, k)
    const double* prices; // (k)
    const float* pairs; // (k, k): the widths, or null
    const float* own; // (k): if there are no pairs, a width is the sum of two of these
    double unit; // of widths
    u32 first;
    u32 count;
    int k;
    int unused;

    __device__ __forceinline__ u64 row(u64 place) const { return place >= count ? 0 : numbers ? numbers[place] : first + place; }
    __device__ __forceinline__ double weight(u64 row) const { return rows.w ? rows.w[row] : 1.0; }
    __device__ __forceinline__ double total(double weight, double s, int j) const { return __dadd_rn(__dmul_rn(weight, s), prices[j]); }
    // `least`: the total of centroid a, which is the cheapest one. A comparison with NaN leaves nothing out.
    __device__ __forceinline__ bool in_reach(double total, double least, u32 a, int j) const {
        const double width = __dmul_rn(unit, (double)(pairs ? pairs[(u64)a * k + j] : __fadd_ru(own[a], own[j])));
        const double roundings = 0x1p-50 * (fabs(total) + fabs(least) + width);
        return !(__dadd_rn(__dadd_rn(total, -least), -width) > roundings);
    }
};

template <typename T, typename S = T> struct PricedCounts {
    PricedRows<T, S> priced;
    u32* nearest; // (count)
    u32* counts; // (count)
};

template <typename T, typename S> __device__ __forceinline__ void counts(const PricedCounts<T, S>& a) {
    __shared__ Portion portion;
    const PricedRows<T, S>& p = a.priced;
    for (u64 start = (u64)blockIdx.x * THREADS; start < p.count; start += (u64)gridDim.x * THREADS) {
        const u64 place = start + threadIdx.x, row = p.row(place);
        const double weight = p.weight(row);
        double least = infinity(), s[WIDTH];
        u32 nearest = 0, count = 0;
#pragma unroll 1
        for (int first = 0; first < p.k; first += WIDTH) {
            chains(p.rows, row, p.centroid_columns, p.k, first, portion, s);
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                if (first + i >= p.k) continue;
                const double total = p.total(weight, s[i], first + i);
                if (total < least) least = total, nearest = (u32)(first + i);
            }
        }
#pragma unroll 1
        for (int first = 0; first < p.k; first += WIDTH) {
            chains(p.rows, row, p.centroid_columns, p.k, first, portion, s);
#pragma unroll
            for (int i = 0; i < WIDTH; i++)
                if (first + i < p.k) count += p.in_reach(p.total(weight, s[i], first + i), least, nearest, first + i);
        }
        if (place < p.count) a.nearest[place] = nearest, a.counts[place] = count;
    }
}

template <typename T, typename S = T> struct PricedLists {
    PricedRows<T, S> priced;
    const u32* nearest; // (count)
    const u32* starts; // (count): where the list of each row begins
    u32* clusters; // the lists, ascending
    double* squares; // the reference distances
    double* weights; // (count), or null
};

template <typename T, typename S> __device__ __forceinline__ void lists(const PricedLists<T, S>& a) {
    __shared__ Portion portion;
    const PricedRows<T, S>& p = a.priced;
    for (u64 start = (u64)blockIdx.x * THREADS; start < p.count; start += (u64)gridDim.x * THREADS) {
        const u64 place = start + threadIdx.x, row = p.row(place);
        const bool is_there = place < p.count;
        const double weight = p.weight(row);
        const u32 nearest = is_there ? a.nearest[place] : 0;
        const double least = p.total(weight, reference_distance(p.rows, row, p.centroid_columns + nearest, (u64)p.k), (int)nearest);
        u64 to = is_there ? a.starts[place] : 0;
        double s[WIDTH];
#pragma unroll 1
        for (int first = 0; first < p.k; first += WIDTH) {
            chains(p.rows, row, p.centroid_columns, p.k, first, portion, s);
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                if (!is_there || first + i >= p.k || !p.in_reach(p.total(weight, s[i], first + i), least, nearest, first + i)) continue;
                a.clusters[to] = (u32)(first + i);
                a.squares[to++] = s[i];
            }
        }
        if (is_there && a.weights) a.weights[place] = weight;
    }
}

template <typename T, typename S = T> struct PricedSample {
    Rows<T, S> rows;
    const u32* numbers; // (count)
    const T* centroid_columns; // (d, k)
    float* costs; // (count / SAMPLE_BLOCK rounded up, k, SAMPLE_BLOCK): weighted distances, less the least of the row
    double factor; // of these costs
    u32 count;
    int k;
};

template <typename T, typename S> __device__ __forceinline__ void sample(const PricedSample<T, S>& a) {
    __shared__ Portion portion;
    const u64 end = (u64)(a.count + SAMPLE_BLOCK - 1) / SAMPLE_BLOCK * SAMPLE_BLOCK;
    for (u64 start = (u64)blockIdx.x * THREADS; start < end; start += (u64)gridDim.x * THREADS) {
        const u64 place = start + threadIdx.x, row = place < a.count ? a.numbers[place] : 0;
        const double weight = a.rows.w ? a.rows.w[row] : 1.0;
        double least = infinity(), s[WIDTH];
#pragma unroll 1
        for (int first = 0; first < a.k; first += WIDTH) {
            chains(a.rows, row, a.centroid_columns, a.k, first, portion, s);
#pragma unroll
            for (int i = 0; i < WIDTH; i++)
                if (first + i < a.k && s[i] < least) least = s[i];
        }
        float* const costs = a.costs + (place / SAMPLE_BLOCK * a.k) * SAMPLE_BLOCK + place % SAMPLE_BLOCK;
#pragma unroll 1
        for (int first = 0; first < a.k; first += WIDTH) {
            chains(a.rows, row, a.centroid_columns, a.k, first, portion, s);
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                if (place >= end || first + i >= a.k) continue;
                const double cost = __dmul_rn(__dmul_rn(weight, __dadd_rn(s[i], -least)), a.factor);
                costs[(u64)(first + i) * SAMPLE_BLOCK] = place >= a.count ? 0.0f : cost <= MOST_COST ? (float)cost : (float)MOST_COST;
            }
        }
    }
}

#define KERNELS(T, S, NAME)                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(THREADS, 4) priced_counts_##NAME(const __grid_constant__ PricedCounts<T, S> a) { counts(a); }      \
    extern "C" __global__ void __launch_bounds__(THREADS, 4) priced_lists_##NAME(const __grid_constant__ PricedLists<T, S> a) { lists(a); }         \
    extern "C" __global__ void __launch_bounds__(THREADS, 4) priced_sample_##NAME(const __grid_constant__ PricedSample<T, S> a) { sample(a); }
KERNELS(float, float, f32)
KERNELS(double, double, f64)
KERNELS(float, Half, f16)

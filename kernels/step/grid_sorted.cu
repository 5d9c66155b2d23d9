// grid_sorted: the centroids of one feature in ascending order, and where the rows of each cell lie among them, for assign_sorted.
//
//   sorted_runs    sorts runs of RUN centroids
//   sorted_merge   merges pairs of runs into runs of twice the length, until there is one
//   sorted_minima  the least number of each 32 entries: of the centroids, then of these minima, until there are few
//   sorted_ranges  the range of each cell
//
// Source:    merge sort by ranks: a centroid's place in two merged runs is its place in its own run and the number of those before it in the other.
// Used when: before each assign_sorted.
// Tile:      a thread has a centroid, or a cell. A block has a run in shared memory.
#include "grid_box.cuh"
#include "sorted.cuh"

#define RUN 1024
#define SORT_THREADS 256

template <typename T> struct SortCentroids {
    const T* centroids; // (k): what sorted_runs sorts
    const T* from_values; // (k): what sorted_merge merges, and the numbers of these centroids
    const u32* from_numbers;
    T* values; // (k): the result
    u32* numbers;
    const Control* control;
    u32 k;
    u32 run; // centroids of each run before
};

struct SortedMinima {
    const u32* from; // (count)
    u32* to; // (count / 32, rounded up)
    const Control* control;
    u32 count, unused;
};

template <typename T> struct SortedRanges {
    const Ordered<T>* boxes; // (cells, 2, 1)
    const u32* counts; // (cells): rows
    const T* values; // (k), in ascending order
    const u32* numbers;
    SortedRange* ranges; // (cells)
    const Control* control;
    double relative, underflow; // of the test
    u32 k, cells;
};

// The place of entry i of two neighbouring runs, the first of which begins at a multiple of 2 `run`, in the order of both. Equal values stay in order.
template <typename T> __device__ __forceinline__ u32 merged_place(const T* values, u32 i, u32 run, u32 count) {
    const u32 first = i & ~(2 * run - 1), second = min(first + run, count), end = min(first + 2 * run, count);
    const T v = values[i];
    const bool right = i >= second;
    u32 low = right ? first : second, high = right ? second : end;
    const u32 begin = low;
    while (low < high) {
        const u32 middle = (low + high) / 2;
        const T other = values[middle];
        const bool before = right ? other <= v : other < v;
        if (before) low = middle + 1;
        else high = middle;
    }
    return right ? first + (i - second) + (low - begin) : i + (low - begin);
}

template <typename T> __device__ __forceinline__ void sorted_runs(const SortCentroids<T>& a) {
    __shared__ T values[2][RUN];
    __shared__ u16 numbers[2][RUN];
    wait_for_kernel_before();
    if (a.control->stop) return;
    const u32 first = blockIdx.x * RUN, count = min((u32)RUN, a.k - first);
    for (u32 i = threadIdx.x; i < count; i += SORT_THREADS) values[0][i] = a.centroids[first + i], numbers[0][i] = (u16)i;
    u32 now = 0;
#pragma unroll 1
    for (u32 run = 1; run < count; run *= 2, now ^= 1) {
        __syncthreads();
#pragma unroll 1
        for (u32 i = threadIdx.x; i < count; i += SORT_THREADS) {
            const u32 place = merged_place(values[now], i, run, count);
            values[now ^ 1][place] = values[now][i], numbers[now ^ 1][place] = numbers[now][i];
        }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < count; i += SORT_THREADS) a.values[first + i] = values[now][i], a.numbers[first + i] = first + numbers[now][i];
}

template <typename T> __device__ __forceinline__ void sorted_merge(const SortCentroids<T>& a) {
    wait_for_kernel_before();
    if (a.control->stop) return;
#pragma unroll 1
    for (u32 i = global_thread(); i < a.k; i += all_threads()) {
        const u32 place = merged_place(a.from_values, i, a.run, a.k);
        a.values[place] = a.from_values[i], a.numbers[place] = a.from_numbers[i];
    }
}

extern "C" __global__ void __launch_bounds__(SORT_THREADS) sorted_minima(const __grid_constant__ SortedMinima a) {
    wait_for_kernel_before();
    if (a.control->stop) return;
    // Whole warps.
#pragma unroll 1
    for (u32 start = global_thread() & ~31u; start < a.count; start += all_threads()) {
        const u32 i = start + (threadIdx.x & 31), least = __reduce_min_sync(FULL_WARP, i < a.count ? a.from[i] : ~0u);
        if ((threadIdx.x & 31) == 0) a.to[start / 32] = least;
    }
}

// A cell whose rows all have the same label for certain: there is a centroid that is nearer to every row of the box than its neighbours are. Then
// it is nearer than all others, whose distances are no less than those of its neighbours (src/bounds/grid.rs).
template <typename T> __device__ __forceinline__ void sorted_ranges(const SortedRanges<T>& a) {
    wait_for_kernel_before();
    if (a.control->stop) return;
#pragma unroll 1
    for (u32 cell = global_thread(); cell < a.cells; cell += all_threads()) {
        if (a.counts[cell] == 0) continue;
        const T low = unordered(a.boxes[2 * (u64)cell]), high = unordered(a.boxes[2 * (u64)cell + 1]);
        const u32 from = first_from(a.values, 0, a.k, low), to = first_from(a.values, from, a.k, high);
        u32 head = 0;
        if (to - from <= 1) {
            Box<1> box;
            box.low[0] = (double)low, box.high[0] = (double)high;
            const u32 last = min(to, a.k - 1);
#pragma unroll 1
            for (u32 j = from == 0 ? 0 : from - 1; j <= last; j++) {
                const Seen<1> own(a.values + j, box);
                const bool first = j == 0 || Seen<1>(a.values + j - 1, box).is_farther(own, box, a.relative, a.underflow);
                if (first && (j + 1 == a.k || Seen<1>(a.values + j + 1, box).is_farther(own, box, a.relative, a.underflow)))
                    head = SORTED_ONE | a.numbers[j];
            }
        }
        const u32 before = a.ranges[cell].head & ~SORTED_SETTLED;
        a.ranges[cell] = {head | (head && before == head ? SORTED_SETTLED : 0), from, to, 0};
    }
}

#define KERNEL(ARGUMENT, T, FUNCTION, NAME)                                                                                                    \
    extern "C" __global__ void __launch_bounds__(SORT_THREADS) NAME(const __grid_constant__ ARGUMENT<T> a) { FUNCTION(a); }
KERNEL(SortCentroids, float, sorted_runs, sorted_runs_f32)
KERNEL(SortCentroids, double, sorted_runs, sorted_runs_f64)
KERNEL(SortCentroids, float, sorted_merge, sorted_merge_f32)
KERNEL(SortCentroids, double, sorted_merge, sorted_merge_f64)
KERNEL(SortedRanges, float, sorted_ranges, sorted_ranges_f32)
KERNEL(SortedRanges, double, sorted_ranges, sorted_ranges_f64)

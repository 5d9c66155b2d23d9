// assign_sorted: labels and sums of one feature and very many clusters, in one pass over rows that are in the order of their cells. A row is compared
// with the centroids on both sides of it.
//
// Source:    nearest neighbours on a line are found by binary search.
// Used when: one feature and more clusters than lists have numbers for (src/backend/cuda/step/grid/sorted.rs).
// Tile:      up to 128 rows of one cell, as in assign_grid.cu. The range of the cell leaves few steps of the search.
// Memory:    the rows at their places, once, and centroids through caches: neighbouring rows read neighbouring centroids.
// Types:     rows of 16 bits have no kernel: no more than 65,536 of them differ.
// Precision: reference distances. Each rounding is monotone. So on each side of the row, a centroid that is farther away never has a smaller
//            distance. The centroids of the least distance are therefore one run around the row. Binary search finds its ends, and the minima
//            give its least number.
#include "grid_pass.cuh"
#include "sorted.cuh"

template <typename T> struct AssignSorted {
    Assign<T> assign; // rows and labels are those of the places
    const CellTile* tiles;
    const u32* count; // of tiles
    const SortedRange* ranges; // (cells)
    const T* values; // (k): the centroids in ascending order
    const u32* numbers; // (k)
    const u32* minima; // the least of each 32 numbers, then of each 32 of these, and so on
};

__device__ __forceinline__ double distance_on_line(double x, double c) {
    const double t = __dadd_rn(x, -c);
    return __fma_rn(t, t, 0.0);
}

// The least number of the places from `from` to `to`.
__device__ __forceinline__ u32 least_number(const u32* numbers, const u32* minima, u32 count, u32 from, u32 to) {
    u32 least = ~0u;
    const u32* at = numbers;
    KEEP_LOOP while (true) {
        const bool last = to - from < 64;
        KEEP_LOOP while (from <= to && (last || from % 32)) least = min(least, at[from++]);
        if (last) return least;
        KEEP_LOOP while ((to + 1) % 32) least = min(least, at[to--]);
        // Whole groups of 32 are left. There is at least one.
        from /= 32, to /= 32;
        at = at == numbers ? minima : at + count;
        count = (count + 31) / 32;
    }
}

// The smallest number of least distance, where the centroids before and at place p are not the only ones that may have it.
template <typename T> __device__ __noinline__ u32 label_of_run(const T* values, const u32* numbers, const u32* minima, u32 k, u32 p, double x) {
    double least = infinity();
    if (p > 0) least = distance_on_line(x, (double)values[p - 1]);
    if (p < k) least = fmin(least, distance_on_line(x, (double)values[p]));
    u32 from = 0, high = p; // the first place whose distance is the least, or p
    KEEP_LOOP while (from < high) {
        const u32 middle = (from + high) / 2;
        if (distance_on_line(x, (double)values[middle]) > least) from = middle + 1;
        else high = middle;
    }
    u32 end = p, after = k; // the place behind the last one
    KEEP_LOOP while (end < after) {
        const u32 middle = (end + after) / 2;
        if (distance_on_line(x, (double)values[middle]) > least) after = middle;
        else end = middle + 1;
    }
    return least_number(numbers, minima, k, from, end - 1);
}

// What label_cells asks.
template <typename T> __device__ __forceinline__ u32 settled_head(const AssignSorted<T>&) { return SORTED_SETTLED; }
template <typename T> __device__ __forceinline__ u32 head_of(const AssignSorted<T>& c, u32 cell) { return c.ranges[cell].head; }
template <typename T> __device__ __forceinline__ bool is_settled(const AssignSorted<T>&, u32 head) { return head & SORTED_SETTLED; }
template <typename T> __device__ __forceinline__ bool has_one(const AssignSorted<T>&, u32 head) { return head != 0; }
template <typename T> __device__ __forceinline__ u32 only_label(const AssignSorted<T>&, u32 head) { return head & ~SORTED_ONE; }
template <typename T> __device__ __forceinline__ u32 ask_ahead(const AssignSorted<T>&, u32, u32, int, u32 word) { return word; }
template <int D, typename T>
__device__ __forceinline__ u32 find_labels(const AssignSorted<T>& c, const T*, u32, u32, u32 cell, const T (&x)[D][ROWS], u32 valid, u32 count,
                                           u32 (&label)[ROWS], u64& scores) {
    const u32 from = c.ranges[cell].from, to = c.ranges[cell].to, k = c.assign.k;
    u32 place[ROWS];
    UNROLL for (int r = 0; r < ROWS; r++) place[r] = from;
    KEEP_LOOP for (u32 step = to > from ? 1u << (31 - __clz(to - from)) : 0; step; step /= 2) {
        UNROLL for (int r = 0; r < ROWS; r++)
            if (place[r] + step <= to && __ldg(c.values + place[r] + step - 1) < x[0][r]) place[r] += step;
    }
    u32 doubt = 0;
    UNROLL for (int r = 0; r < ROWS; r++) {
        const u32 p = place[r];
        const double v = (double)x[0][r];
        // The two on both sides of the row, and the next ones. One that is not there is farther than all.
        double s[4];
        UNROLL for (int i = 0; i < 4; i++) {
            const u32 at = p + i - 2; // wraps around before the first
            s[i] = at < k ? distance_on_line(v, (double)__ldg(c.values + at)) : infinity();
        }
        const double least = fmin(s[1], s[2]);
        const bool left = s[1] < s[2];
        label[r] = __ldg(c.numbers + min(left ? p - 1 : p, k - 1));
        if (!((left ? s[0] : fmin(s[1], s[3])) > least)) doubt |= 1u << r;
    }
    doubt &= valid;
    const u32 in_doubt = __popc(doubt);
    KEEP_LOOP for (; doubt; doubt &= doubt - 1) {
        const int r = __ffs(doubt) - 1;
        const u32 found = label_of_run(c.values, c.numbers, c.minima, k, pick(place, r), (double)pick(x[0], r));
        UNROLL for (int i = 0; i < ROWS; i++) label[i] = i == r ? found : label[i];
    }
    __syncwarp();
    scores += 2 * (u64)count;
    return in_doubt;
}

#define KERNEL(T, NAME)                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) NAME(const __grid_constant__ AssignSorted<T> a) { label_cells<1, T, T>(a); }
KERNEL(float, assign_sorted_f32)
KERNEL(double, assign_sorted_f64)

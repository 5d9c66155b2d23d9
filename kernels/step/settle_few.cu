// settle_few, settle_listed: the exact labels of rows in doubt.
//
//   settle_few     rows with a few centroids in reach. Differences in float32 decide most of them (settle_few_differences.cuh). The others: distances to these
//                  centroids
//   settle_listed  the other rows, if there are not many: distances to all centroids of their group's list, or to all
//
// Used when: after assign_tensor, which lists such rows. settle (settle.cu) takes a long list of other rows.
// Tile:      settle_listed: a block has a part of the centroids of one row, 128 at a time. The last block of a row compares the parts.
//            settle_few: a warp takes two rows for their differences, and one row for its distances. For these, each lane has one
//            candidate at a time, and its chain in feature order. The lanes fetch 32 features of the row at once.
// Memory:    single values of x, each of which costs 32 bytes of memory traffic. Centroids are read row by row, from the caches.
// Precision: differences in float32 decide only where their bound proves the label. Else float64, exactly as the contract defines it: the
//            label is the smallest j of least distance.
#include "../common/filter.cuh"
#include "../common/tensor.cuh"
#include "settle_few_differences.cuh"

template <typename T, typename S = T> struct SettleFew {
    Rows<T, S> rows;
    Labels next;
    const T* centroids; // (k, d)
    T scale; // that of `Assign`: so no square leaves the range
    Few few;
    Control* control;
};

// The least distance of a part of a list.
struct ListedPart {
    double least;
    u32 label, unused;
};

template <typename T, typename S = T> struct SettleListed {
    Rows<T, S> rows;
    Labels next;
    const T* centroids; // (k, d)
    const u32* list; // (groups, k padded)
    const TensorGroup* groups;
    const RowInDoubt* in_doubt; // `second` is the row's group, or NO_ROW: all centroids
    ListedPart* parts; // (most, slices)
    u32* tickets; // (most): 0 before and after
    const Control* control;
    u32 k, k_padded, slices, most;
};

#define WARPS 4
#define PIECE 32

// The label of a row by the reference distances of its candidates.
template <typename T, typename S> __device__ __forceinline__ u32 by_distances(const SettleFew<T, S>& a, double (&values)[PIECE], const FewRow& one) {
    const int lane = threadIdx.x & 31, d = a.rows.d;
    const S* const x = a.rows.of(one.row);
    Closest closest;
    closest.label = NO_ROW;
#pragma unroll 1
    for (u32 base = 0; base < one.count; base += 32) {
        const bool has = base + lane < one.count;
        const u32 j = a.few.candidates[one.first + (has ? base + lane : 0)];
        const T* const c = a.centroids + (u64)j * d;
        double s = 0.0;
#pragma unroll 1
        for (int done = 0; done < d; done += PIECE) {
            const int f = done + lane;
            const T value = f < d ? a.rows.value(x[(u64)f * a.rows.stride]) : (T)0;
            __syncwarp(); // all lanes are done with the piece before
            values[lane] = (double)value;
            __syncwarp();
            if (done + PIECE <= d) {
                T centroid[PIECE];
#pragma unroll
                for (int i = 0; i < PIECE; i++) centroid[i] = c[done + i];
#pragma unroll
                for (int i = 0; i < PIECE; i++) {
                    const double t = __dadd_rn(values[i], -(double)centroid[i]);
                    s = __fma_rn(t, t, s);
                }
            } else {
#pragma unroll 1
                for (int i = 0; i < d - done; i++) {
                    const double t = __dadd_rn(values[i], -(double)c[done + i]);
                    s = __fma_rn(t, t, s);
                }
            }
        }
        if (has && (s < closest.least || (s == closest.least && j < closest.label))) closest.least = s, closest.label = j;
    }
    return closest.of_warp();
}

// The label of a row by differences, for the 16 lanes that share it. UNASSIGNED: they cannot decide.
template <typename S> __device__ __forceinline__ u32 by_differences(const SettleFew<float, S>& a, const FewRow& one) {
    const Differences bound = bound_of_lanes(a.rows.d, a.scale);
    const Two two = least_two<4>(a.rows, one.row, a.centroids, a.scale, one.count, [&](u32 i) { return a.few.candidates[one.first + i]; });
    return two.second > bound.reach(two.least, bound.offset) ? two.label : UNASSIGNED;
}
template <typename S> __device__ __forceinline__ u32 by_differences(const SettleFew<double, S>&, const FewRow&) { return UNASSIGNED; }

template <typename T, typename S> __device__ __forceinline__ void settle_few(const SettleFew<T, S>& a, double (&values)[PIECE], u32 count) {
    const u32 lane = threadIdx.x & 31, ROWS = 32 / DIFFERENCE_LANES;
    DifferenceTrial trial;
#pragma unroll 1
    for (u64 base = (u64)(threadIdx.x / 32 * gridDim.x + blockIdx.x) * ROWS; base < count; base += (u64)gridDim.x * WARPS * ROWS) {
        const u64 at = base + lane / DIFFERENCE_LANES;
        const FewRow one = a.few.rows[min(at, (u64)count - 1)];
        const bool stores = lane % DIFFERENCE_LANES == 0 && at < count;
        const bool tries = sizeof(T) == 4 && trial.pays();
        const u32 label = tries ? by_differences(a, one) : UNASSIGNED;
        if (stores && label != UNASSIGNED) store_label(a.next, one.row, label);
        u32 left = __ballot_sync(FULL_WARP, stores && label == UNASSIGNED);
        if (tries) trial.tried += ROWS, trial.left += __popc(left);
#pragma unroll 1
        for (; left; left &= left - 1) {
            const FewRow row = a.few.rows[base + (__ffs(left) - 1) / DIFFERENCE_LANES];
            const u32 exact = by_distances(a, values, row);
            if (lane == 0) store_label(a.next, row.row, exact);
        }
    }
}

#define LISTED_THREADS 128

__device__ __forceinline__ void take_lower(double& least, u32& label, double other, u32 j) {
    if (other < least || (other == least && j < label)) least = other, label = j;
}

template <typename T, typename S> __device__ __forceinline__ void settle_listed(const SettleListed<T, S>& a, u32 count) {
    __shared__ double values[LISTED_THREADS], least_of[LISTED_THREADS / 32];
    __shared__ u32 label_of[LISTED_THREADS / 32];
    const int tid = threadIdx.x, d = a.rows.d;
    const u64 items = (u64)count * a.slices;
#pragma unroll 1
    for (u64 item = blockIdx.x; item < items; item += gridDim.x) {
        const u32 i = (u32)(item / a.slices), slice = (u32)(item % a.slices);
        const RowInDoubt one = a.in_doubt[a.rows.n - 1 - i];
        const bool every = one.second == NO_ROW;
        const u32 listed = every ? a.k : a.groups[one.second].centroids, parts = (listed + LISTED_THREADS - 1) / LISTED_THREADS;
        if (slice >= parts) continue;
        const u32 place = min(slice * LISTED_THREADS + tid, listed - 1); // the last one several times does not matter
        u32 label = every ? place : a.list[(u64)one.second * a.k_padded + place];
        const T* const c = a.centroids + (u64)label * d;
        const S* const x = a.rows.of(one.row);
        double least = 0.0;
#pragma unroll 1
        for (int done = 0; done < d; done += LISTED_THREADS) {
            const int features = min(LISTED_THREADS, d - done);
            __syncthreads(); // all threads are done with the piece before
            if (tid < features) values[tid] = (double)a.rows.value(x[(u64)(done + tid) * a.rows.stride]);
            __syncthreads();
#pragma unroll 16
            for (int f = 0; f < features; f++) {
                const double t = __dadd_rn(values[f], -(double)c[done + f]);
                least = __fma_rn(t, t, least);
            }
        }
#pragma unroll
        for (int o = 16; o; o >>= 1) take_lower(least, label, __shfl_xor_sync(FULL_WARP, least, o), __shfl_xor_sync(FULL_WARP, label, o));
        if ((tid & 31) == 0) least_of[tid / 32] = least, label_of[tid / 32] = label;
        __syncthreads();
        if (tid != 0) continue;
        for (int w = 1; w < LISTED_THREADS / 32; w++) take_lower(least, label, least_of[w], label_of[w]);
        ListedPart* const all = a.parts + (u64)i * a.slices;
        __stcg(&all[slice].least, least);
        __stcg(&all[slice].label, label);
        __threadfence();
        if (atomicInc(&a.tickets[i], parts - 1) != parts - 1) continue;
        __threadfence();
#pragma unroll 4
        for (u32 p = 0; p < parts; p++) take_lower(least, label, __ldcg(&all[p].least), __ldcg(&all[p].label));
        store_label(a.next, one.row, label);
    }
}

#define KERNEL(T, S, NAME)                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(32 * WARPS) settle_few_##NAME(const __grid_constant__ SettleFew<T, S> a) {                  \
        wait_for_kernel_before();                                                                                                            \
        __shared__ double values[WARPS][PIECE];                                                                                              \
        if (a.control->stop) return;                                                                                                         \
        const u32 count = a.few.control->rows;                                                                                               \
        if (blockIdx.x == 0 && threadIdx.x == 0) a.control->settled += count;                                                                \
        if (count != 0) settle_few(a, values[threadIdx.x / 32], count);                                                                      \
    }                                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(LISTED_THREADS) settle_listed_##NAME(const __grid_constant__ SettleListed<T, S> a) {        \
        wait_for_kernel_before();                                                                                                            \
        if (a.control->stop) return;                                                                                                         \
        const u32 count = a.control->in_doubt;                                                                                              \
        if (count != 0 && count <= a.most) settle_listed(a, count);                                                                          \
    }
KERNEL(float, float, f32)
KERNEL(double, double, f64)
KERNEL(float, Half, f16)

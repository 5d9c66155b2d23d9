// bounds_drifts, bounds_copies, bounds_carry, bounds_tighten, bounds_starts, bounds_sort: which rows must be compared with which centroids, by bounds
// that are carried from iteration to iteration.
//
//   bounds_drifts    how far each centroid is from where it was in the last launch, and the sums of that
//   bounds_copies    with several groups: the filter's copies of the centroids in the order of their groups
//   bounds_carry     rows whose bounds hold keep their label. The others are listed
//   bounds_tighten   for these rows, the distance to their own centroid takes the place of the upper bound. If now all bounds hold, the row keeps
//                    its label. If not, it is listed with the groups whose bounds do not hold, and with its own group
//   bounds_starts, bounds_sort   with several groups: the list in the order of the rows' centroids, so that rows of a tile want the same groups
//
// Source:    Hamerly 2010 (one lower bound), Ding et al. 2015 (Yinyang: one for each group of centroids; kmcuda 2016 has it on GPUs). Departures:
//            (1) bounds are stored beside sums of drifts, so that a row whose bounds hold is not written; (2) drifts are those of the rounded
//            centroids, measured here; (3) no row is ever certified by a bound alone where rounded reference distances could say otherwise
//            (src/certify/carry_gpu.rs).
// Used when: before assign_bounded. If nothing is known, or if bounds have just saved next to nothing, all rows are compared with all centroids: then all
//            kernels but the first two return at once.
// Tile:      bounds_drifts: a warp has a centroid. The others: a thread has a row.
// Memory:    bounds_carry reads 8 bytes and a label of each row, 4 bytes a group more of a row that does not pass. bounds_tighten reads single values of x.
// Precision: bounds are float32 with directed roundings, drifts and distances float64.
#include "../common/bounds.cuh"

#define THREADS 256
// If an iteration computes more than 15 of 16 scores, bounds are not tried for some iterations: 1, 2, and then 4.
#define MOST_PATIENCE 4

// What this iteration does, from what the one before has found.
__device__ __forceinline__ BoundsControl begun(const Carried& a, const BoundsControl& before) {
    BoundsControl now = {};
    const bool poor = !a.fresh && !before.full && before.computed / 15 > (u64)a.n * a.k / 16;
    if (poor) now.patience = min(max(1u, 2 * before.patience), MOST_PATIENCE);
    else if (!a.fresh && before.full) now.patience = before.patience;
    const u32 wait = a.fresh ? 0 : poor ? now.patience : before.full ? before.wait : 0;
    now.full = a.fresh || wait > 0;
    now.wait = wait > 0 ? wait - 1 : 0;
    return now;
}

__device__ __forceinline__ void add_drift(Drifted& m, double drift, bool full) {
    const double sum = full ? 0.0 : __dadd_ru(m.sum, drift);
    m.sum = sum, m.down = __double2float_rd(sum), m.up = __double2float_ru(sum);
}

template <typename T> __device__ __forceinline__ void drifts(const CarriedRows<T>& a) {
    const Carried& c = a.carried;
    __shared__ u32 last;
    const int lane = threadIdx.x & 31;
    const BoundsControl now = begun(c, *c.own);
    const double scale = (double)a.scale;
#pragma unroll 1
    for (u32 j = global_thread() / 32; j < c.k; j += all_threads() / 32) {
        double s = 0.0;
#pragma unroll 4
        for (u32 f = lane; f < c.d; f += 32) {
            const u64 at = (u64)j * c.d + f;
            const T after = a.centroids[at];
            const double t = __dmul_rn(__dadd_rn((double)after, -(double)a.kept[at]), scale);
            s = __fma_rn(t, t, s);
            a.kept[at] = after;
        }
        for (int o = 16; o; o >>= 1) s = __dadd_rn(s, __shfl_xor_sync(FULL_WARP, s, o));
        if (lane == 0) {
            const double drift = __dadd_ru(__dmul_ru(__dsqrt_ru(s), a.grown), a.tiny);
            add_drift(c.centroids[j], drift, now.full);
            c.counts[j] = 0;
            if (!now.full) atomicMax(&c.largest[c.places[j] / c.group_size], (u64)__double_as_longlong(drift));
        }
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(&c.own->ticket, 1u) == gridDim.x - 1;
    __syncthreads();
    if (!last || threadIdx.x >= 32) return;
    __threadfence();
    u64 most = 0;
    for (u32 g = lane; g < c.group_count; g += 32) {
        const u64 bits = __ldcg(&c.largest[g]);
        add_drift(c.groups[g], __longlong_as_double((i64)bits), now.full);
        c.largest[g] = 0;
        most = max(most, bits);
    }
    for (int o = 16; o; o >>= 1) most = max(most, __shfl_xor_sync(FULL_WARP, most, o));
    if (lane == 0) {
        add_drift(c.groups[c.group_count], __longlong_as_double((i64)most), now.full);
        *c.own = now;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) bounds_copies(const __grid_constant__ Carried a) {
    wait_for_kernel_before();
    if (a.control->stop) return;
    const u64 all = (u64)a.k_padded * (a.d + 1);
    for (u64 i = global_thread(); i < all; i += all_threads()) {
        const u32 f = (u32)(i / a.k_padded), place = (u32)(i - (u64)f * a.k_padded);
        const u32 j = a.order[place];
        if (f == a.d) a.own_half_squares[place] = a.half_squares[j];
        else a.own_copies[i] = a.copies[(u64)f * a.k_padded + j];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) bounds_carry(const __grid_constant__ Carried a) {
    wait_for_kernel_before();
    if (a.control->stop || a.own->full) return;
    const int lane = threadIdx.x & 31;
    const Drifted all = a.groups[a.group_count];
    const u64 padded = ((u64)a.n + 31) & ~31ull;
#pragma unroll 1
    for (u64 i = global_thread(); i < padded; i += all_threads()) {
        const bool inside = i < a.n;
        const u32 row = (u32)i;
        bool kept = false;
        if (inside) {
            const u32 label = load_label(a.labels, row);
            const float2 stored = a.bounds[row];
            const float upper = upper_now(stored.x, a.centroids[label]);
            kept = holds(a, lower_now(stored.y, all), upper);
            if (!kept && a.group_count > 1 && upper < infinity_f()) {
                float least = infinity_f();
                for (u32 g = 0; g < a.group_count; g++)
                    least = fminf(least, lower_now(a.group_bounds[(u64)row * a.width + g], a.groups[g]));
                kept = holds(a, least, upper);
                if (kept) a.bounds[row].y = lower_stored(least, all);
            }
            if (kept) store_label(a.next, row, label);
        }
        const u32 at = append(inside && !kept, &a.own->doubtful, lane);
        if (inside && !kept) a.doubtful[at] = row;
    }
}

template <typename T, typename S> __device__ __forceinline__ void tighten(const CarriedRows<T, S>& a) {
    const Carried& c = a.carried;
    const int lane = threadIdx.x & 31;
    const Drifted all = c.groups[c.group_count];
    const u32 count = c.own->doubtful;
    const double scale = (double)a.scale;
    const u64 padded = ((u64)count + 31) & ~31ull;
#pragma unroll 1
    for (u64 i = global_thread(); i < padded; i += all_threads()) {
        bool listed = false;
        Listed entry = {0, infinity_f(), 0};
        u32 place = 0;
        if (i < count) {
            const u32 row = entry.row = c.doubtful[i];
            const u32 label = load_label(c.labels, row);
            const S* x = a.rows.x + row;
            const T* const centroid = a.centroids + (u64)label * c.d;
            double s = 0.0;
#pragma unroll 8
            for (u32 f = 0; f < c.d; f++) {
                const double t = __dmul_rn(__dadd_rn((double)a.rows.value(x[(u64)f * a.rows.stride]), -(double)centroid[f]), scale);
                s = __fma_rn(t, t, s);
            }
            const float upper = __double2float_ru(__dadd_ru(__dmul_ru(__dsqrt_ru(s), a.grown), a.tiny));
            float2 stored = c.bounds[row];
            stored.x = upper_stored(upper, c.centroids[label]);
            bool kept = holds(c, lower_now(stored.y, all), upper);
            if (!kept && c.group_count > 1) {
                for (u32 g = 0; g < c.group_count; g++) {
                    const float lower = lower_now(c.group_bounds[(u64)row * c.width + g], c.groups[g]);
                    if (holds(c, lower, upper)) entry.others = fminf(entry.others, lower);
                    else entry.groups |= 1ull << g;
                }
                kept = entry.groups == 0;
                if (kept) stored.y = lower_stored(entry.others, all);
            }
            place = c.places[label];
            entry.groups |= 1ull << (place / c.group_size);
            c.bounds[row] = stored;
            if (kept) store_label(c.next, row, label);
            listed = !kept;
        }
        const u32 at = append(listed, &c.own->listed, lane);
        if (listed) {
            c.listed[at] = entry;
            if (c.group_count > 1) atomicAdd(&c.counts[place], 1u);
        }
    }
}

// Where the rows of each place begin in the sorted list, by one block.
#define STARTS_THREADS 1024
extern "C" __global__ void __launch_bounds__(STARTS_THREADS) bounds_starts(const __grid_constant__ Carried a) {
    __shared__ u32 sums[STARTS_THREADS / 32];
    wait_for_kernel_before();
    if (a.control->stop || a.own->full) return;
    const u32 tid = threadIdx.x, lane = tid & 31, share = (a.k + STARTS_THREADS - 1) / STARTS_THREADS;
    const u32 begin = min(a.k, tid * share), end = min(a.k, begin + share);
    u32 own = 0;
    for (u32 i = begin; i < end; i++) own += a.counts[i];
    u32 sum = own;
    for (int o = 1; o < 32; o <<= 1) {
        const u32 other = __shfl_up_sync(FULL_WARP, sum, o);
        if (lane >= o) sum += other;
    }
    if (lane == 31) sums[tid / 32] = sum;
    __syncthreads();
    u32 at = sum - own;
    for (u32 w = 0; w < tid / 32; w++) at += sums[w];
    for (u32 i = begin; i < end; i++) {
        const u32 count = a.counts[i];
        a.counts[i] = at;
        at += count;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) bounds_sort(const __grid_constant__ Carried a) {
    wait_for_kernel_before();
    if (a.control->stop || a.own->full) return;
    const u32 count = a.own->listed;
    for (u64 i = global_thread(); i < count; i += all_threads()) {
        const Listed entry = a.listed[i];
        const u32 at = atomicAdd(&a.counts[a.places[load_label(a.labels, entry.row)]], 1u);
        a.sorted[at] = entry;
    }
}

#define DRIFTS(T, NAME)                                                                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS) bounds_drifts_##NAME(const __grid_constant__ CarriedRows<T> a) {           \
        wait_for_kernel_before();                                                                                                    \
        if (a.carried.control->stop) return;                                                                                         \
        drifts(a);                                                                                                                   \
    }
#define TIGHTEN(T, S, NAME)                                                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS) bounds_tighten_##NAME(const __grid_constant__ CarriedRows<T, S> a) {       \
        wait_for_kernel_before();                                                                                                    \
        if (a.carried.control->stop || a.carried.own->full) return;                                                                  \
        tighten(a);                                                                                                                  \
    }
DRIFTS(float, f32)
DRIFTS(double, f64)
TIGHTEN(float, float, f32)
TIGHTEN(double, double, f64)
TIGHTEN(float, Half, f16)

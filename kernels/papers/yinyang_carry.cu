// yinyang_drifts, yinyang_copies, yinyang_carry, yinyang_tighten: which rows must be compared with which centroids, by bounds that are carried from iteration to
// iteration.
//
//   yinyang_drifts    how far each centroid is from where it was in the last launch, and the sums of that
//   yinyang_copies    with several groups: the filter's copies of the centroids in the order of their groups
//   yinyang_carry     all rows keep their label for now. Rows whose bounds do not hold are listed
//   yinyang_tighten   for these rows, the distance to their own centroid takes the place of the upper bound. If now all bounds hold, the row is done. If not, it is
//                    listed with the groups whose bounds do not hold, and with its own group
//
// Source:    Ding et al. 2015 (Yinyang: a lower bound for each group of centroids; kmcuda 2016 has it on GPUs). Departures:
//            (1) bounds are stored beside sums of drifts, so that a row whose bounds hold is not written; (2) drifts are those of the rounded
//            centroids, measured here; (3) a bound counts only if it holds for rounded reference distances, too (src/bounds/yinyang.rs).
// Used when: before assign_yinyang. If nothing is known, or if bounds have just saved next to nothing, all rows are compared with all centroids: then all
//            kernels but the first two return at once.
// Tile:      yinyang_drifts: a warp has a centroid. The others: a thread has a row. Lists are in the order of the rows, a block at a time.
// Memory:    yinyang_carry reads 10 bytes of each row, 4 bytes a group more of a row that does not pass, and copies all labels. yinyang_tighten reads values of x,
//            side by side where most rows are listed.
// Precision: bounds are float32 with directed roundings, drifts and distances float64.
#include "yinyang.cuh"

#define THREADS 256
// If an iteration computes more than 15 of 16 scores, bounds are not tried for some iterations: 1, 2, and then 4.
#define MOST_PATIENCE 4
// Rows that a block takes at a time.
#define CARRIED 2048
#define TIGHTENED 512

// What this iteration does, from what the one before has found.
__device__ __forceinline__ BoundsControl begun(const Carried& a, const BoundsControl& before) {
    BoundsControl now = {};
    const bool fresh = before.epoch != a.epoch;
    const bool poor = !fresh && !before.full && before.computed / 15 > (u64)a.n * a.k / 16;
    if (poor) now.patience = min(max(1u, 2 * before.patience), MOST_PATIENCE);
    else if (!fresh && before.full) now.patience = before.patience;
    const u32 wait = fresh ? 0 : poor ? now.patience : before.full ? before.wait : 0;
    now.full = fresh || wait > 0;
    now.wait = wait > 0 ? wait - 1 : 0;
    now.epoch = a.epoch;
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

extern "C" __global__ void __launch_bounds__(THREADS) yinyang_copies(const __grid_constant__ Carried a) {
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

extern "C" __global__ void __launch_bounds__(THREADS) yinyang_carry(const __grid_constant__ Carried a) {
    __shared__ Collected<u32, CARRIED, THREADS> found;
    wait_for_kernel_before();
    if (a.control->stop || a.own->full) return;
    // Label arrays have room for a multiple of 1,024 rows.
    const u64 words = ((u64)a.n * a.labels.bytes + 15) / 16;
    for (u64 i = global_thread(); i < words; i += all_threads()) ((uint4*)a.next.at)[i] = ((const uint4*)a.labels.at)[i];
    const Drifted all = a.groups[a.group_count];
#pragma unroll 1
    for (u64 base = (u64)blockIdx.x * CARRIED; base < a.n; base += (u64)gridDim.x * CARRIED) {
        found.begin();
#pragma unroll 1
        for (u32 i = threadIdx.x; i < CARRIED; i += THREADS) {
            const bool inside = base + i < a.n;
            const u32 place = (u32)base + i;
            bool kept = !inside;
            if (inside) {
                const float2 stored = a.bounds[place];
                if (stored.x < infinity_f()) {
                    const float upper = upper_now(stored.x, a.centroids[a.own_labels[place]]);
                    kept = holds(a, lower_now(stored.y, all), upper);
                    if (!kept && a.group_count > 1) {
                        float least = infinity_f();
                        for (u32 g = 0; g < a.group_count; g++)
                            least = fminf(least, lower_now(a.group_bounds[(u64)place * a.width + g], a.groups[g]));
                        kept = holds(a, least, upper);
                        if (kept) a.bounds[place].y = lower_stored(least, all);
                    }
                }
            }
            found.add(!kept, place);
        }
        found.append(&a.own->doubtful, a.doubtful);
    }
}

template <typename T, typename S> __device__ __forceinline__ void tighten(const CarriedRows<T, S>& a, Collected<Listed, TIGHTENED, THREADS>& found) {
    const Carried& c = a.carried;
    const Drifted all = c.groups[c.group_count];
    const u32 count = c.own->doubtful;
    const double scale = (double)a.scale;
#pragma unroll 1
    for (u64 base = (u64)blockIdx.x * TIGHTENED; base < count; base += (u64)gridDim.x * TIGHTENED) {
        found.begin();
#pragma unroll 1
        for (u32 i = threadIdx.x; i < TIGHTENED; i += THREADS) {
            bool kept = true;
            Listed entry = {0, infinity_f(), 0};
            if (base + i < count) {
                const u32 place = entry.place = c.doubtful[base + i];
                float2 stored = c.bounds[place];
                u32 label = c.own_labels[place];
                if (!(stored.x < infinity_f())) {
                    // It was settled.
                    label = load_label(c.labels, row_at(c, place));
                    c.own_labels[place] = (u16)label;
                }
                const S* x = a.rows.x + place;
                const T* const centroid = a.centroids + (u64)label * c.d;
                double s = 0.0;
#pragma unroll 8
                for (u32 f = 0; f < c.d; f++) {
                    const double t = __dmul_rn(__dadd_rn((double)a.rows.value(x[(u64)f * a.rows.stride]), -(double)centroid[f]), scale);
                    s = __fma_rn(t, t, s);
                }
                const float upper = __double2float_ru(__dadd_ru(__dmul_ru(__dsqrt_ru(s), a.grown), a.tiny));
                stored.x = upper_stored(upper, c.centroids[label]);
                kept = holds(c, lower_now(stored.y, all), upper);
                if (!kept && c.group_count > 1) {
                    for (u32 g = 0; g < c.group_count; g++) {
                        const float lower = lower_now(c.group_bounds[(u64)place * c.width + g], c.groups[g]);
                        if (holds(c, lower, upper)) entry.others = fminf(entry.others, lower);
                        else entry.groups |= 1ull << g;
                    }
                    kept = entry.groups == 0;
                    if (kept) stored.y = lower_stored(entry.others, all);
                }
                entry.groups |= 1ull << (c.places[label] / c.group_size);
                c.bounds[place] = stored;
            }
            found.add(!kept, entry);
        }
        found.append(&c.own->listed, c.listed);
    }
}

#define DRIFTS(T, NAME)                                                                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS) yinyang_drifts_##NAME(const __grid_constant__ CarriedRows<T> a) {           \
        wait_for_kernel_before();                                                                                                    \
        if (a.carried.control->stop) return;                                                                                         \
        drifts(a);                                                                                                                   \
    }
#define TIGHTEN(T, S, NAME)                                                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS) yinyang_tighten_##NAME(const __grid_constant__ CarriedRows<T, S> a) {       \
        __shared__ Collected<Listed, TIGHTENED, THREADS> found;                                                                      \
        wait_for_kernel_before();                                                                                                    \
        if (a.carried.control->stop || a.carried.own->full) return;                                                                  \
        tighten(a, found);                                                                                                           \
    }
DRIFTS(float, f32)
DRIFTS(double, f64)
TIGHTEN(float, float, f32)
TIGHTEN(double, double, f64)
TIGHTEN(float, Half, f16)

// update: exact means, how far the centroids moved, whether to stop, and the filter's copies for the next assign.
//
// Source:    the division on the device as in Luigi 2025, V4; the rest is the contract's loop (src/update.rs, src/fit.rs).
// Used when: after every assign.
// Tile:      a warp has a cluster, its lanes the columns; lane 0 walks the chain of the shift, in feature order. The block that is
//            done last has the last word. Where a cluster turns out to be empty, the others have moved already: the centroids that
//            the rows were assigned by are kept for the host, which then updates in its place.
// Memory:    (k, d) tables only.
// Precision: 128-bit integers; a mean is rounded once. The copies and the bound may be anything that certify.rs proves.
#include "common.cuh"

// The terms of the bound that do not depend on the centroids (src/certify.rs).
struct BoundTerms {
    double unit, half;
    double reference; // r
    double underflow;
    double norm_factor, norm_offset;
    int panel; // of the weights: `weight_of`
    int unused;
};

template <typename T> struct Update {
    Sums sums;
    const int* mean_exponents; // (d): of sum / mass, to the value
    const T* lows; // (d): of the column
    const T* highs;
    T* centroids; // (k, d)
    T* previous; // (k, d): the centroids before
    T* columns; // (d, k)
    // copies for the assign
    const T* shift; // (d)
    T scale;
    float* copies;
    float* half_squares;
    u64 copy_stride_j, copy_stride_f; // copies[j * copy_stride_j + f * copy_stride_f]
    u64 half_stride; // half_squares[j * half_stride]
    BoundTerms terms;
    Bound* bound;
    Control* control;
    Record* records; // one an iteration of the batch
    // the loop
    DistanceScale shifts;
    double largest_changed, largest_shift; // tol_labels * n, tol * variance
    u32 iterations; // at most so many, in all
    u32 first_iteration; // of the batch
};

__device__ __forceinline__ u64 device_clock() {
    u64 t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

// Takes what is pending into the canonical sum of column c of cluster j, which it returns.
__device__ __forceinline__ i128 fold_cell(const Sums& s, int j, int c) {
    u64* p = s.pending + ((u64)j * s.columns + c) * s.limbs * 2;
    i128* sum = s.sums + (u64)j * s.columns + c;
    // Plain loads: nothing else touches these cells in this kernel.
    i128 hi = ((i128)(i64)p[1] << 32) + (i128)p[0], all = *sum;
    p[0] = 0, p[1] = 0;
    if (s.limbs == 2) {
        i128 lo = ((i128)(i64)p[3] << 32) + (i128)p[2];
        p[2] = 0, p[3] = 0;
        hi = s.one_limb[c] ? hi : (hi << (c == s.mass_column ? 27 : 45)) + lo;
    }
    all += hi;
    *sum = all;
    return all;
}

// As `fold_cell` for all columns of cluster j; returns its rows to all lanes.
__device__ __forceinline__ i64 fold(const Sums& s, Control* control, int j, int lane) {
    for (int c = lane; c < s.columns; c += 32) fold_cell(s, j, c);
    i64 rows = 0;
    if (lane == 0) {
        rows = s.rows[j] + s.pending_rows[j];
        s.rows[j] = rows;
        s.pending_rows[j] = 0;
        if (rows == 0) atomicAdd(&control->empty, 1u);
    }
    rows = __shfl_sync(FULL_WARP, rows, 0);
    __syncwarp();
    return rows;
}

// Of the copies of a cluster: half the sum of its squares, and the weighted sum. By one lane.
template <typename T> __device__ __forceinline__ void note_squares(const Update<T>& a, int j, double square, double weighted, bool finite) {
    float half = (float)(0.5 * square);
    a.half_squares[j * a.half_stride] = half;
    if (!finite || !(half < infinity_f())) {
        atomicAdd(&a.control->not_finite, 1u);
    } else {
        atomicMax(&a.control->largest_half_square, (u64)__double_as_longlong(0.5 * square));
        atomicMax(&a.control->largest_weighted, (u64)__double_as_longlong(weighted));
    }
}

// The filter's copies of cluster j, from `centroids`.
template <typename T> __device__ __forceinline__ void copy_centroid(const Update<T>& a, int d, int j, int lane) {
    double sum = 0.0, weighted = 0.0;
    bool finite = true;
    for (int f = lane; f < d; f += 32) {
        T c = a.centroids[(u64)j * d + f];
        a.columns[(u64)f * a.sums.k + j] = c;
        float copy = centred_copy(c, a.shift[f], a.scale);
        finite = finite && fabsf(copy) < infinity_f();
        a.copies[j * a.copy_stride_j + f * a.copy_stride_f] = -copy;
        double t = __fma_rn((double)c, (double)a.scale, (double)a.shift[f]);
        t = __dmul_rn(t, t);
        sum += t;
        weighted = __fma_rn(t, (double)weight_of(f & ~15, d, a.terms.panel), weighted);
    }
    for (int o = 16; o; o >>= 1) {
        sum += __shfl_xor_sync(FULL_WARP, sum, o);
        weighted += __shfl_xor_sync(FULL_WARP, weighted, o);
    }
    finite = __all_sync(FULL_WARP, finite);
    if (lane == 0) note_squares(a, j, sum, weighted, finite);
}

__device__ __forceinline__ double to_double(u128 v) {
    return __dadd_rn(__dmul_rn((double)(u64)(v >> 64), 18446744073709551616.0), (double)(u64)v);
}

// As `round_quotient`, for float32 from one float64 division wherever that decides it. The quotient has at most seven roundings, so
// it is within 8 units in its last place; unless a boundary between float32 values is that close, both round to the same one.
__device__ __forceinline__ double rounded_mean(i128 numerator, u128 denominator, int exponent, float) {
    u128 magnitude = numerator < 0 ? (u128)0 - (u128)numerator : (u128)numerator;
    double q = __ddiv_rn(to_double(magnitude), to_double(denominator));
    const i64 half = 1ll << 28;
    i64 bits = __double_as_longlong(q), below = (bits & (2 * half - 1)) - half;
    int binade = (int)(bits >> 52) - 1023 + exponent;
    bool decided = (below > 16 || below < -16) && binade >= -126 && binade < 127 && exponent > -1022 && exponent < 1023;
    if (decided) {
        double value = (double)__double2float_rn(__dmul_rn(q, power_of_two(exponent)));
        return numerator < 0 ? -value : value;
    }
    return round_quotient<float>(numerator, denominator, exponent);
}
__device__ __forceinline__ double rounded_mean(i128 numerator, u128 denominator, int exponent, double) {
    return round_quotient<double>(numerator, denominator, exponent);
}

// The mean of cluster j, which has rows, and how far it moved.
template <typename T> __device__ __forceinline__ void mean(const Update<T>& a, int d, int j, i64 rows, int lane) {
    const Sums& s = a.sums;
    const u128 mass = s.mass_column >= 0 ? (u128)s.sums[(u64)j * s.columns + s.mass_column] : (u128)rows;
    bool differs = false;
    for (int f = lane; f < d; f += 32) {
        const u64 at = (u64)j * d + f;
        T m = (T)rounded_mean(s.sums[(u64)j * s.columns + f], mass, a.mean_exponents[f], (T)0);
        if (m < a.lows[f]) m = a.lows[f];
        else if (m > a.highs[f]) m = a.highs[f];
        T before = a.centroids[at];
        differs = differs || m != before;
        a.previous[at] = before;
        a.centroids[at] = m;
    }
    // Where nothing differs (but for the sign of a zero) the distance is 0.
    differs = __any_sync(FULL_WARP, differs);
    __syncwarp();
    if (lane == 0 && differs) {
        double distance = 0.0;
        for (int f = 0; f < d; f++) {
            double t = __dadd_rn((double)a.previous[(u64)j * d + f], -(double)a.centroids[(u64)j * d + f]);
            distance = __fma_rn(t, t, distance);
        }
        add_wide(&a.control->shift_low, &a.control->shift_high, (u128)join(quantise_distance(a.shifts, 1.0, distance)));
        a.control->moved = 1;
    }
    __syncwarp();
}

// By one thread, when all copies are made: src/certify.rs, `ExpandedTerms::bound`.
template <typename T> __device__ void make_bound(const Update<T>& a) {
    const double slack = 1.001, u = 1.0 / 16777216.0;
    const double square = 2.0 * __longlong_as_double((i64)a.control->largest_half_square) * slack;
    const double weighted = __longlong_as_double((i64)a.control->largest_weighted) * slack;
    const double slope = a.terms.unit + 2.0 * a.terms.reference;
    const double offset = a.terms.unit * weighted + (a.terms.half + 4.04 * u + 2.0 * a.terms.reference) * square + a.terms.underflow
        + 3.009265538105056e-36;
    Bound b;
    b.slope = __double2float_ru(slope * a.terms.norm_factor * slack);
    b.offset = __double2float_ru((offset + slope * a.terms.norm_offset) * slack);
    if (a.control->not_finite) b.offset = infinity_f();
    *a.bound = b;
    a.control->largest_half_square = 0;
    a.control->largest_weighted = 0;
    a.control->not_finite = 0;
}

// By one thread, when everything else is done.
template <typename T> __device__ void finish(const Update<T>& a) {
    Control* c = a.control;
    if (c->empty) {
        c->empty = 0;
        c->stop = 2;
        return;
    }
    make_bound(a);
    i128 total = (i128)((u128)c->shift_low | (u128)c->shift_high << 64);
    double shift = a.shifts.none ? 0.0 : round_quotient<double>(total, 1, a.shifts.quantum_exponent);
    u64 now = device_clock();
    Record record = {c->changed, shift, now - c->started, c->moved, c->contested + c->pairs};
    a.records[c->iteration - a.first_iteration] = record;
    c->started = now;
    c->iteration++;
    bool settled = (double)c->changed <= a.largest_changed || shift <= a.largest_shift;
    if (settled || c->iteration == a.iterations) c->stop = 1;
    c->changed = 0;
    c->shift_low = 0;
    c->shift_high = 0;
    c->moved = 0;
    c->contested = 0;
    c->pairs = 0;
    c->next_run = 0;
}

// Whether this block is the last to get here; what the others wrote is then visible.
__device__ __forceinline__ bool last_block(Control* control) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (gridDim.x == 1) return true;
    if (threadIdx.x == 0) {
        last = atomicAdd(&control->ticket, 1u) == gridDim.x - 1;
        if (last) control->ticket = 0;
    }
    __syncthreads();
    if (last) __threadfence();
    return last;
}

// What a block's clusters moved; goes to the control in one addition.
struct BlockShift {
    u64 low, high;
    u32 moved;
};

// Fold, mean, shift and copy of cluster j at once, for at most 32 columns: a lane keeps its column in registers, so that all loads
// are under way together.
template <typename T> __device__ __forceinline__ void update_narrow(const Update<T>& a, BlockShift& block, int d, int j, int lane) {
    const Sums& s = a.sums;
    const bool mine = lane < d;
    const u64 at = (u64)j * d + lane;
    T before = 0, low = 0, high = 0, shift = 0;
    int exponent = 0;
    if (mine) before = a.centroids[at], low = a.lows[lane], high = a.highs[lane], shift = a.shift[lane], exponent = a.mean_exponents[lane];
    i128 sum = 0;
    if (lane < s.columns) sum = fold_cell(s, j, lane);
    const i64 rows = s.rows[j] + s.pending_rows[j];
    __syncwarp();
    if (lane == 0) {
        s.rows[j] = rows;
        s.pending_rows[j] = 0;
        if (rows == 0) atomicAdd(&a.control->empty, 1u);
    }
    u128 mass = (u128)rows;
    if (s.mass_column >= 0) {
        u64 low_word = __shfl_sync(FULL_WARP, (u64)(u128)sum, s.mass_column), high_word = __shfl_sync(FULL_WARP, (u64)((u128)sum >> 64), s.mass_column);
        mass = (u128)low_word | (u128)high_word << 64;
    }
    T after = before;
    if (mine && rows > 0) {
        after = (T)rounded_mean(sum, mass, exponent, (T)0);
        if (after < low) after = low;
        else if (after > high) after = high;
    }
    if (mine) a.previous[at] = before, a.centroids[at] = after, a.columns[(u64)lane * s.k + j] = after;
    if (__any_sync(FULL_WARP, after != before)) {
        const double t = __dadd_rn((double)before, -(double)after);
        double distance = 0.0;
        for (int f = 0; f < d; f++) {
            double u = __shfl_sync(FULL_WARP, t, f);
            distance = __fma_rn(u, u, distance);
        }
        if (lane == 0) {
            u128 moved = (u128)join(quantise_distance(a.shifts, 1.0, distance));
            add_wide(&block.low, &block.high, moved);
            block.moved = 1;
        }
    }
    float copy = 0.0f;
    double u = 0.0, weighted = 0.0;
    if (mine) {
        copy = centred_copy(after, shift, a.scale);
        a.copies[j * a.copy_stride_j + lane * a.copy_stride_f] = -copy;
        u = __fma_rn((double)after, (double)a.scale, (double)shift);
        u = __dmul_rn(u, u);
        weighted = __dmul_rn(u, (double)weight_of(lane & ~15, d, a.terms.panel));
    }
    for (int o = 16; o; o >>= 1) {
        u += __shfl_xor_sync(FULL_WARP, u, o);
        weighted += __shfl_xor_sync(FULL_WARP, weighted, o);
    }
    const bool finite = __all_sync(FULL_WARP, fabsf(copy) < infinity_f());
    if (lane == 0) note_squares(a, j, u, weighted, finite);
}

template <typename T> __device__ __forceinline__ void update(const Update<T>& a) {
    __shared__ BlockShift block;
    wait_for_kernel_before();
    if (a.control->stop) return;
    const int lane = threadIdx.x & 31, d = a.sums.d;
    if (threadIdx.x == 0) block.low = 0, block.high = 0, block.moved = 0;
    __syncthreads();
    for (int j = global_thread() / 32; j < a.sums.k; j += all_threads() / 32) {
        if (a.sums.columns <= 32) {
            update_narrow(a, block, d, j, lane);
            continue;
        }
        const i64 rows = fold(a.sums, a.control, j, lane);
        if (rows > 0) {
            mean(a, d, j, rows, lane);
            copy_centroid(a, d, j, lane);
        } else {
            for (int f = lane; f < d; f += 32) a.previous[(u64)j * d + f] = a.centroids[(u64)j * d + f];
        }
    }
    __syncthreads();
    if (threadIdx.x == 0 && block.moved) {
        add_wide(&a.control->shift_low, &a.control->shift_high, (u128)block.low | (u128)block.high << 64);
        a.control->moved = 1;
    }
    if (last_block(a.control) && threadIdx.x == 0) finish(a);
}

// What is pending becomes canonical, and no more: for updates by the host.
template <typename T> __device__ __forceinline__ void fold_all(const Update<T>& a) {
    if (a.control->stop) return;
    for (int j = global_thread() / 32; j < a.sums.k; j += all_threads() / 32) fold(a.sums, a.control, j, threadIdx.x & 31);
}

// Copies and bound of centroids that the host gave; starts the clock.
template <typename T> __device__ __forceinline__ void start(const Update<T>& a) {
    for (int j = global_thread() / 32; j < a.sums.k; j += all_threads() / 32) copy_centroid(a, a.sums.d, j, threadIdx.x & 31);
    if (last_block(a.control) && threadIdx.x == 0) {
        make_bound(a);
        Control* c = a.control;
        c->changed = 0, c->shift_low = 0, c->shift_high = 0, c->moved = 0, c->contested = 0, c->pairs = 0, c->empty = 0, c->stop = 0;
        c->next_run = 0;
        c->started = device_clock();
    }
}

#define KERNELS(T, NAME)                                                                                                        \
    extern "C" __global__ void __launch_bounds__(256, 1) update_##NAME(const __grid_constant__ Update<T> a) { update(a); }      \
    extern "C" __global__ void __launch_bounds__(256, 1) update_fold_##NAME(const __grid_constant__ Update<T> a) { fold_all(a); } \
    extern "C" __global__ void __launch_bounds__(256, 1) start_##NAME(const __grid_constant__ Update<T> a) { start(a); }
KERNELS(float, f32)
KERNELS(double, f64)

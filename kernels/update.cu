// update: exact means, how far the centroids moved, whether to stop, and the filter's copies for the next assign.
//
// Source:    the division on the device as in Luigi 2025, V4; the rest is the contract's loop (src/update.rs, src/fit.rs).
// Used when: after every assign. One block where k * d is small, else `update_fold` and `update_means` over the whole device.
// Tile:      a warp has a cluster, its lanes the columns; lane 0 walks the chain of the shift, in feature order.
// Memory:    (k, d) tables only.
// Precision: 128-bit integers; a mean is rounded once. The copies and the bound may be anything that certify.rs proves.
#include "common.cuh"

// The terms of the bound that do not depend on the centroids (src/certify.rs).
struct BoundTerms {
    double rounding; // g
    double reference; // r
    double underflow;
    float norm_factor, norm_offset;
};

template <typename T> struct Update {
    Sums sums;
    const int* mean_exponents; // (d): of sum / mass, to the value
    const T* lows; // (d): of the column
    const T* highs;
    T* centroids; // (k, d)
    T* fresh; // (k, d): scratch
    T* columns; // (d, k)
    // copies for the assign
    const T* centre; // (d)
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

// Takes what is pending into the canonical sums of cluster j.
__device__ __forceinline__ void fold(const Sums& s, Control* control, int j, int lane) {
    for (int c = lane; c < s.columns; c += 32) {
        u64* p = s.pending + ((u64)j * s.columns + c) * s.limbs * 2;
        // Plain loads: nothing else touches these cells between kernels.
        i128 hi = ((i128)(i64)p[1] << 32) + (i128)p[0], sum;
        p[0] = 0, p[1] = 0;
        if (s.limbs == 2) {
            i128 lo = ((i128)(i64)p[3] << 32) + (i128)p[2];
            p[2] = 0, p[3] = 0;
            sum = (hi << (c == s.mass_column ? 27 : 45)) + lo;
            if (s.one_limb && s.one_limb[c]) sum = hi;
        } else {
            sum = hi;
        }
        s.sums[(u64)j * s.columns + c] += sum;
    }
    if (lane == 0) {
        i64 rows = s.rows[j] + s.pending_rows[j];
        s.rows[j] = rows;
        s.pending_rows[j] = 0;
        if (rows == 0) atomicAdd(&control->empty, 1u);
    }
}

// The filter's copies of cluster j, from `centroids`.
template <typename T> __device__ __forceinline__ void copy_centroid(const Update<T>& a, int d, int j, int lane) {
    double sum = 0.0;
    bool finite = true;
    for (int f = lane; f < d; f += 32) {
        T c = a.centroids[(u64)j * d + f];
        a.columns[(u64)f * a.sums.k + j] = c;
        float copy = centred_copy(c, a.centre[f], a.scale);
        finite = finite && fabsf(copy) < infinity_f();
        a.copies[j * a.copy_stride_j + f * a.copy_stride_f] = -copy;
        double t = ((double)c - (double)a.centre[f]) * (double)a.scale;
        sum = __fma_rn(t, t, sum);
    }
    for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(FULL_WARP, sum, o);
    finite = __all_sync(FULL_WARP, finite);
    if (lane == 0) {
        float half = (float)(0.5 * sum);
        a.half_squares[j * a.half_stride] = half;
        if (!finite || !(half < infinity_f())) atomicAdd(&a.control->not_finite, 1u);
        else atomicMax(&a.control->largest_half_square, (u64)__double_as_longlong(0.5 * sum));
    }
}

// The mean of cluster j and how far it moved.
template <typename T> __device__ __forceinline__ void mean(const Update<T>& a, int d, int j, int lane) {
    const Sums& s = a.sums;
    const u128 mass = s.mass_column >= 0 ? (u128)s.sums[(u64)j * s.columns + s.mass_column] : (u128)s.rows[j];
    bool differs = false;
    for (int f = lane; f < d; f += 32) {
        T m = (T)round_quotient<T>(s.sums[(u64)j * s.columns + f], mass, a.mean_exponents[f]);
        if (m < a.lows[f]) m = a.lows[f];
        else if (m > a.highs[f]) m = a.highs[f];
        differs = differs || m != a.centroids[(u64)j * d + f];
        a.fresh[(u64)j * d + f] = m;
    }
    differs = __any_sync(FULL_WARP, differs);
    if (!differs) {
        // The same centroid (but for the sign of a zero), at distance 0.
        for (int f = lane; f < d; f += 32) a.centroids[(u64)j * d + f] = a.fresh[(u64)j * d + f];
        __syncwarp();
        return;
    }
    __syncwarp();
    if (lane == 0) {
        double distance = 0.0;
        for (int f = 0; f < d; f++) {
            double t = (double)a.centroids[(u64)j * d + f] - (double)a.fresh[(u64)j * d + f];
            distance = __fma_rn(t, t, distance);
        }
        add_wide(&a.control->shift_low, &a.control->shift_high, (u128)join(quantise_distance(a.shifts, 1.0, distance)));
        a.control->moved = 1;
    }
    __syncwarp();
    for (int f = lane; f < d; f += 32) a.centroids[(u64)j * d + f] = a.fresh[(u64)j * d + f];
    __syncwarp();
}

// By one thread, when all copies are made.
template <typename T> __device__ void make_bound(const Update<T>& a) {
    const double slack = 1.001, u = 1.0 / 16777216.0;
    double half = __longlong_as_double((i64)a.control->largest_half_square);
    double c = sqrt(2.0 * half) * (1.0 + 1e-6) * slack, q = 1.001 * u, g = a.terms.rounding, r = a.terms.reference;
    Bound b;
    b.constant = __double2float_ru(((g + 2.0 * u) * c * c + r * c * c + a.terms.underflow + 3.009265538105056e-36) * slack);
    b.linear = __double2float_ru((2.0 * (2.01 * q + g) * c + 2.0 * r * c) * slack);
    b.quadratic = __double2float_ru(r * slack);
    b.norm_factor = a.terms.norm_factor;
    b.norm_offset = a.terms.norm_offset;
    b.no_filter = a.control->not_finite != 0;
    *a.bound = b;
    a.control->largest_half_square = 0;
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
    Record record = {c->changed, shift, now - c->started, c->moved, c->contested};
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
}

// Whether this block is the last to get here; what the others wrote is then visible.
__device__ __forceinline__ bool last_block(Control* control) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(&control->ticket, 1u) == gridDim.x - 1;
        if (last) control->ticket = 0;
    }
    __syncthreads();
    if (last) __threadfence();
    return last;
}

template <typename T> __device__ __forceinline__ void update_small(const Update<T>& a) {
    if (a.control->stop) return;
    const int lane = threadIdx.x & 31, d = a.sums.d;
    for (int j = threadIdx.x / 32; j < a.sums.k; j += blockDim.x / 32) fold(a.sums, a.control, j, lane);
    __syncthreads();
    if (*(volatile u32*)&a.control->empty == 0) {
        for (int j = threadIdx.x / 32; j < a.sums.k; j += blockDim.x / 32) {
            mean(a, d, j, lane);
            copy_centroid(a, d, j, lane);
        }
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) finish(a);
}

// What is pending becomes canonical; no more: for the host's own updates, and before `update_means`.
__device__ __forceinline__ void fold_all(const Sums& s, Control* control) {
    if (control->stop) return;
    for (int j = global_thread() / 32; j < s.k; j += all_threads() / 32) fold(s, control, j, threadIdx.x & 31);
}

template <typename T> __device__ __forceinline__ void update_means(const Update<T>& a) {
    if (a.control->stop) return;
    const int lane = threadIdx.x & 31, d = a.sums.d;
    if (a.control->empty == 0) {
        for (int j = global_thread() / 32; j < a.sums.k; j += all_threads() / 32) {
            mean(a, d, j, lane);
            copy_centroid(a, d, j, lane);
        }
    }
    if (last_block(a.control) && threadIdx.x == 0) finish(a);
}

// Copies and bound of centroids that the host gave; starts the clock.
template <typename T> __device__ __forceinline__ void start(const Update<T>& a) {
    for (int j = global_thread() / 32; j < a.sums.k; j += all_threads() / 32) copy_centroid(a, a.sums.d, j, threadIdx.x & 31);
    if (last_block(a.control) && threadIdx.x == 0) {
        make_bound(a);
        Control* c = a.control;
        c->changed = 0, c->shift_low = 0, c->shift_high = 0, c->moved = 0, c->contested = 0, c->empty = 0, c->stop = 0;
        c->started = device_clock();
    }
}

extern "C" __global__ void __launch_bounds__(512) update_small_f32(const __grid_constant__ Update<float> a) { update_small(a); }
extern "C" __global__ void __launch_bounds__(512) update_small_f64(const __grid_constant__ Update<double> a) { update_small(a); }
extern "C" __global__ void __launch_bounds__(256, 1) update_fold_f32(const __grid_constant__ Update<float> a) { fold_all(a.sums, a.control); }
extern "C" __global__ void __launch_bounds__(256, 1) update_fold_f64(const __grid_constant__ Update<double> a) { fold_all(a.sums, a.control); }
extern "C" __global__ void __launch_bounds__(256, 1) update_means_f32(const __grid_constant__ Update<float> a) { update_means(a); }
extern "C" __global__ void __launch_bounds__(256, 1) update_means_f64(const __grid_constant__ Update<double> a) { update_means(a); }
extern "C" __global__ void __launch_bounds__(256) start_f32(const __grid_constant__ Update<float> a) { start(a); }
extern "C" __global__ void __launch_bounds__(256) start_f64(const __grid_constant__ Update<double> a) { start(a); }

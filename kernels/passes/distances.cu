// distances: passes over rows and their labels. Inertia, distances to own centroids, the farthest rows, and rows that move to other clusters.
//
// Used when: the inertia is needed (for the last labels of every fit, and in each iteration of a full history), a cluster is empty, or sizes have bounds.
// Tile:      one row a thread. Inertia: the sums of the clusters are in a table in shared memory, as in `assign_registers`.
// Memory:    reads every value once.
// Precision: reference distances, then integers.
#include "../common/sums.cuh"

#define THREADS 256

template <typename T, typename S = T> struct Inertia {
    Rows<T, S> rows;
    Labels labels;
    const T* centroids; // (k, d)
    DistanceScale scale;
    const DistanceScale* scales; // (k): in the place of `scale`, or null
    u64* pending; // (k, 2 limbs, 2)
    int k;
    int table_copies; // 0: add directly to device memory
};

#define FLIGHT 8 // values that are on their way at once

// Values from a multiple of 16 bytes on.
__device__ __forceinline__ void load_flight(const float* from, float (&to)[FLIGHT]) {
#pragma unroll
    for (int i = 0; i < FLIGHT; i += 4) {
        const float4 v = *(const float4*)(from + i);
        to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
    }
}
__device__ __forceinline__ void load_flight(const double* from, double (&to)[FLIGHT]) {
#pragma unroll
    for (int i = 0; i < FLIGHT; i += 2) {
        const double2 v = *(const double2*)(from + i);
        to[i] = v.x, to[i + 1] = v.y;
    }
}

// The reference distance of a row to the centroid of its label. The rows of a warp have different centroids, so the time of a load grows with the
// number of cache lines that the warp reads. Where centroids begin at multiples of 16 bytes, a load brings 16 bytes.
template <typename T, typename S> __device__ __forceinline__ double own_distance(const Rows<T, S>& rows, u64 row, const T* centroids, u32 label) {
    const T* const c = centroids + (u64)label * rows.d;
    const S* const x = rows.x + row;
    const bool aligned = ((u64)centroids % 16 | (u64)rows.d * sizeof(T) % 16) == 0;
    const auto add = [&](double s, T value, T of_centroid) {
        const double t = __dadd_rn((double)value, -(double)of_centroid);
        return __fma_rn(t, t, s);
    };
    double s = 0.0;
    int f = 0;
#pragma unroll 1
    for (; f + FLIGHT <= rows.d; f += FLIGHT) {
        S values[FLIGHT];
        T of_centroid[FLIGHT];
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) values[i] = x[(u64)(f + i) * rows.stride];
        if (aligned) {
            load_flight(c + f, of_centroid);
        } else {
#pragma unroll
            for (int i = 0; i < FLIGHT; i++) of_centroid[i] = c[f + i];
        }
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) s = add(s, rows.value(values[i]), of_centroid[i]);
    }
#pragma unroll 1
    for (; f < rows.d; f++) s = add(s, rows.value(x[(u64)f * rows.stride]), c[f]);
    return s;
}

template <typename T, typename S> __device__ __forceinline__ void inertia(const Inertia<T, S>& a) {
    extern __shared__ __align__(16) unsigned char shared[];
    Table table = {(u32*)shared, a.k * 2, a.table_copies};
    if (table.copies) table_clear(table);
    __syncthreads();
    const int copy = threadIdx.x & (table.copies - 1);
    u32 since = 0;
    for (u64 start = (u64)blockIdx.x * THREADS; start < a.rows.n; start += (u64)gridDim.x * THREADS) {
        const u64 row = start + threadIdx.x;
        if (row < a.rows.n) {
            const u32 label = load_label(a.labels, row);
            const double w = a.rows.w ? a.rows.w[row] : 1.0, s = own_distance(a.rows, row, a.centroids, label);
            const Pair p = quantise_distance(a.scales ? a.scales[label] : a.scale, w, s);
            if (table.copies) {
                table_add(table, (int)label * 2, copy, p.hi);
                if (p.lo) table_add(table, (int)label * 2 + 1, copy, p.lo);
            } else {
                add_pending(a.pending + (u64)label * 4, p.hi);
                add_pending(a.pending + (u64)label * 4 + 2, p.lo);
            }
        }
        // An int64 is sure to hold 131,072 limbs of 45 bits.
        if (table.copies && ++since == 131072 / THREADS) {
            since = 0;
            __syncthreads();
            for (int accumulator = threadIdx.x; accumulator < table.accumulators; accumulator += THREADS) add_pending(a.pending + (u64)accumulator * 2, table_take(table, accumulator));
            __syncthreads();
        }
    }
    __syncthreads();
    if (table.copies)
        for (int accumulator = threadIdx.x; accumulator < table.accumulators; accumulator += THREADS) add_pending(a.pending + (u64)accumulator * 2, table_take(table, accumulator));
}

template <typename T, typename S = T> struct OwnSquares {
    Rows<T, S> rows;
    Labels labels;
    const T* centroids; // (k, d)
    double* out; // (n)
};

template <typename T, typename S> __device__ __forceinline__ void own_squares(const OwnSquares<T, S>& a) {
    for (u64 row = global_thread(); row < a.rows.n; row += all_threads()) a.out[row] = own_distance(a.rows, row, a.centroids, load_label(a.labels, row));
}

// A row far from its centroid.
struct Candidate {
    double distance;
    u64 row;
};

// The farther row comes first. Of rows equally far, the one with the smaller number comes first.
__device__ __forceinline__ bool farther(Candidate a, Candidate b) {
    return a.distance > b.distance || (a.distance == b.distance && a.row < b.row);
}

struct FarRow {
    Candidate at;
    u32 label;
    u32 unused;
};

// The search for the rows that are farthest from their centroids.
template <typename T, typename S = T> struct Far {
    Rows<T, S> rows;
    Labels labels;
    const T* centroids;
    const u8* donors; // (k): whether a cluster may give a row
    Candidate* farthest; // one a warp
    FarRow* list; // (room)
    u32* listed; // how many rows the list should hold
    Candidate last;
    u32 room;
    u32 unused;
};

// The distance of a row that may move to an empty cluster; -1 for all others.
template <typename T, typename S> __device__ __forceinline__ Candidate candidate(const Far<T, S>& a, u64 row, u32 label) {
    const bool may = a.donors[label] && (!a.rows.w || a.rows.w[row] > 0.0);
    return {may ? own_distance(a.rows, row, a.centroids, label) : -1.0, row};
}

// Finds the farthest row of each warp. Its distance is -1 if none of them may move.
template <typename T, typename S> __device__ __forceinline__ void farthest(const Far<T, S>& a) {
    Candidate best = {-1.0, ~0ull};
    for (u64 row = global_thread(); row < a.rows.n; row += all_threads()) {
        const Candidate c = candidate(a, row, load_label(a.labels, row));
        if (farther(c, best)) best = c;
    }
    for (int o = 16; o; o >>= 1) {
        const Candidate c = {__shfl_xor_sync(FULL_WARP, best.distance, o), __shfl_xor_sync(FULL_WARP, best.row, o)};
        if (farther(c, best)) best = c;
    }
    if ((threadIdx.x & 31) == 0) a.farthest[global_thread() / 32] = best;
}

// Lists the rows that may move and do not come after `last`. Counts them all, but lists no more than there is room for. The rows of a warp are those
// that it had in `farthest`, so most warps have none to list.
template <typename T, typename S> __device__ __forceinline__ void far_rows(const Far<T, S>& a) {
    if (farther(a.last, a.farthest[global_thread() / 32])) return;
    for (u64 row = global_thread(); row < a.rows.n; row += all_threads()) {
        const u32 label = load_label(a.labels, row);
        const Candidate c = candidate(a, row, label);
        if (c.distance < 0.0 || farther(a.last, c)) continue;
        const u32 place = atomicAdd(a.listed, 1);
        if (place < a.room) a.list[place] = {c, label, 0};
    }
}

// Moves rows and their contributions to other clusters. One warp moves one row.
struct Moved {
    u64 row; // its number among the labels
    u32 place; // its number among the rows
    u32 to;
};

template <typename T, typename S = T> struct Relocate {
    Rows<T, S> rows;
    Labels labels;
    Sums sums;
    const Factors* factors;
    double mass_to_integer;
    const Moved* moves; // one a block; no row twice
};

template <typename T, typename S> __device__ __forceinline__ void relocate(const Relocate<T, S>& a) {
    const Moved move = a.moves[blockIdx.x];
    const u32 from = load_label(a.labels, move.row);
    __syncwarp();
    if (threadIdx.x == 0) store_label(a.labels, move.row, move.to);
    const double weight = a.rows.w ? a.rows.w[move.place] : 1.0;
    move_pending(a.rows, a.sums, a.factors, a.mass_to_integer, move.place, from, move.to, weight, threadIdx.x, 32);
}

#define KERNELS(T, S, NAME)                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS) inertia_##NAME(const __grid_constant__ Inertia<T, S> a) { inertia(a); }           \
    extern "C" __global__ void __launch_bounds__(THREADS) own_squares_##NAME(const __grid_constant__ OwnSquares<T, S> a) { own_squares(a); } \
    extern "C" __global__ void __launch_bounds__(THREADS) farthest_##NAME(const __grid_constant__ Far<T, S> a) { farthest(a); }             \
    extern "C" __global__ void __launch_bounds__(THREADS) far_rows_##NAME(const __grid_constant__ Far<T, S> a) { far_rows(a); }             \
    extern "C" __global__ void __launch_bounds__(32) relocate_##NAME(const __grid_constant__ Relocate<T, S> a) { relocate(a); }
KERNELS(float, float, f32)
KERNELS(double, double, f64)
KERNELS(float, Half, f16)

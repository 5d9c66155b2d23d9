// seed: draws rows for seeding. For k-means++ it keeps each row's distance to the nearest centroid taken so far, and draws by it.
//
// Source:    Arthur and Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007 (src/seeding/plus_plus.rs).
//            Bahmani et al., "Scalable k-means++", PVLDB 2012: samples in which every row decides alone, and masses of candidates.
// Used when: init="k-means++". `seed_totals` and `seed_search` also for init="random". If rows stream, for each chunk of them.
// Tile:      about 4,096 ranges of at least 256 rows, each with the total of its draw weights. One block makes a draw: it finds the
//            range in the totals, and then the row in the range. In `seed_take` and `seed_gains` a thread has two rows and all
//            candidates at once.
// Memory:    `seed_take` reads x, and reads and writes `nearest`. `seed_gains` reads both, once for up to 12 candidates.
// Precision: reference distances, then integers. So a draw does not depend on the order in which the totals were added up.
#include "candidates.cuh"
#include "plus_plus.cuh"
#include "search.cuh"

// ---- sums of a block -------------------------------------------------------------------------------------------------

// The sum over the block, in thread 0. `shared` has room for one value a warp. It may be used again at once.
template <int WARPS> __device__ __forceinline__ u128 block_sum_wide(u128 v, u128* shared) {
    v = warp_sum_wide(v);
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x / 32] = v;
    __syncthreads();
    u128 sum = 0;
    if (threadIdx.x == 0)
        for (int w = 0; w < WARPS; w++) sum += shared[w];
    __syncthreads();
    return sum;
}

// ---- draws -----------------------------------------------------------------------------------------------------------

struct Totals {
    Draws draws;
    u128* totals; // (ranges)
    u64* total; // 128 bits, the low word first. The kernel adds to it
};

extern "C" __global__ void __launch_bounds__(256) seed_totals(const __grid_constant__ Totals a) {
    __shared__ u128 shared[8];
    u128 mine = 0;
    for (u32 r = blockIdx.x; r < a.draws.ranges; r += gridDim.x) {
        const u64 begin = r * a.draws.range, end = begin + a.draws.range < a.draws.n ? begin + a.draws.range : a.draws.n;
        u128 sum = 0;
#pragma unroll 4
        for (u64 row = begin + threadIdx.x; row < end; row += 256) sum += draw_weight(a.draws, row);
        sum = block_sum_wide<8>(sum, shared);
        if (threadIdx.x == 0) a.totals[r] = sum;
        mine += sum;
    }
    if (threadIdx.x == 0) add_wide(&a.total[0], &a.total[1], mine);
}

template <typename T, typename S = T> struct Search {
    Rows<T, S> rows;
    Draws draws;
    const u128* totals; // (ranges)
    const u128* targets; // one a block
    u64* found; // (targets): the rows drawn
    T* values; // (targets, d): the values of these rows
    double* weights; // (targets): the weights of these rows
};

template <typename T, typename S> __device__ __forceinline__ void seed_search(const Search<T, S>& a) {
    __shared__ SearchSpace shared;
    const u128 target = a.targets[blockIdx.x];
    const u64 row = a.draws.kind == DRAW_ROW ? (u64)target : drawn_row(a.draws, a.totals, target, shared);
    if (threadIdx.x == 0) {
        a.found[blockIdx.x] = row;
        a.weights[blockIdx.x] = a.rows.w ? a.rows.w[row] : 1.0;
    }
    copy_row(a.rows, row, a.values + (u64)blockIdx.x * a.rows.d);
}

// ---- samples ---------------------------------------------------------------------------------------------------------

template <typename T, typename S = T> struct Bernoulli {
    Rows<T, S> rows;
    Draws draws;
    Sample sample;
    FoundRows found;
    u64 base; // the number of row 0 among all rows, if the rows are a chunk
};

template <typename T, typename S> __device__ __forceinline__ void seed_sample(const Bernoulli<T, S>& a) {
    for (u64 row = global_thread(); row < a.draws.n; row += all_threads())
        if (is_drawn(a.sample, a.rows, row, a.sample.first + a.base + row, draw_weight(a.draws, row))) add_found(a.found, a.base + row);
}

// ---- taking a centroid -------------------------------------------------------------------------------------------------

template <typename T, typename S = T> struct Take {
    Rows<T, S> rows;
    double* nearest; // (stride)
    const T* centroids; // (d): the centroid, or (candidates, d) if the device does the whole step
    u128* totals; // (ranges)
    u64* total; // 128 bits, the low word first. The kernel adds to it
    DistanceScale scale;
    u64 range; // rows of a range: a multiple of the tile, and at most 2^24, so that a thread has at most 131,072 of them
    u32 ranges;
    int first; // whether this is the first centroid. Then `nearest` holds nothing yet
    Step<T> step; // if the device does the whole step, the centroid is the chosen one of the candidates, unless a list has its rows
};

template <typename T, typename S> __device__ __forceinline__ void seed_take(const Take<T, S>& a) {
    __shared__ __align__(16) double points[POINT_VALUES];
    __shared__ u128 shared[THREADS / 32];
    wait_for_kernel_before();
    Choice choice = {0, 0, 0};
    if (a.step.control) {
        if (has_stopped(a.step) || a.step.control->listed <= a.step.room) return;
        choice = choose(a.step, a.scale);
        if (choice.stop) return stop_steps(a.step, choice.stop);
        keep_seed(a.step, a.rows.d, choice);
    }
    const T* centroid = a.centroids + (u64)choice.candidate * a.rows.d;
    load_all_points<T, 1>(a.rows, centroid, 1, points);
    u128 mine = 0;
    const u32 seed = a.step.control ? a.step.control->step : 0;
    for (u32 r = blockIdx.x; r < a.ranges; r += gridDim.x) {
        const u64 begin = r * a.range, end = begin + a.range < a.rows.n ? begin + a.range : a.rows.n;
        Pair sum = {0, 0};
        for (u64 tile = begin; tile < end; tile += TILE) {
            const u64 row = tile + 2 * threadIdx.x;
            double2 near = make_double2(infinity(), infinity()), w = make_double2(0.0, 0.0);
            if (row < end) {
                if (!a.first) near = load_two(a.nearest + row);
                w = two_or_one(a.rows.w, row);
            }
            double s[2][1];
            distances<T, 1>(a.rows, row, centroid, 1, points, s);
            if (seed < a.step.owned) {
                if (s[0][0] < near.x && row < end) a.step.owners[row] = seed;
                if (s[1][0] < near.y && row + 1 < end) a.step.owners[row + 1] = seed;
            }
            near.x = s[0][0] < near.x ? s[0][0] : near.x;
            near.y = s[1][0] < near.y ? s[1][0] : near.y;
            if (row < end) {
                *reinterpret_cast<double2*>(a.nearest + row) = near;
                const Pair p = quantise_distance(a.scale, w.x, near.x);
                sum.hi += p.hi, sum.lo += p.lo;
                if (row + 1 < end) {
                    const Pair q = quantise_distance(a.scale, w.y, near.y);
                    sum.hi += q.hi, sum.lo += q.lo;
                }
            }
        }
        const u128 total = block_sum_wide<THREADS / 32>((u128)join(sum), shared);
        if (threadIdx.x == 0) a.totals[r] = total;
        mine += total;
    }
    if (a.step.control) finish_step(a.step, choice);
    else if (threadIdx.x == 0) add_wide(&a.total[0], &a.total[1], mine);
}

// ---- the gains of candidates -----------------------------------------------------------------------------------------

template <typename T, typename S = T> struct Gains {
    Rows<T, S> rows;
    const double* nearest; // (stride)
    const T* candidates; // (m, d)
    u64* gains; // (m): 128 bits each, the low word first; must be 0 before
    DistanceScale scale;
    int m; // at most M
    u32 first; // the number of the first of these candidates
    Step<T> step; // if the device does the whole step, every gain is also written to its list
};

// A thread has at most 131,072 rows, because the launch has enough blocks.
template <typename T, int M, typename S> __device__ __forceinline__ void seed_gains(const Gains<T, S>& a) {
    wait_for_kernel_before();
    if (has_stopped(a.step)) return;
    __shared__ __align__(16) double points[POINT_VALUES];
    // Each thread has its own sums here. Few rows come nearer to a candidate, and the registers are needed for the distances.
    __shared__ i64 high[M][THREADS], low[M][THREADS];
    __shared__ u128 sums[M][THREADS / 32];
#pragma unroll
    for (int j = 0; j < M; j++) high[j][threadIdx.x] = low[j][threadIdx.x] = 0;
    load_all_points<T, M>(a.rows, a.candidates, a.m, points);
    for (u64 tile = (u64)blockIdx.x * TILE; tile < a.rows.n; tile += (u64)gridDim.x * TILE) {
        const u64 row = tile + 2 * threadIdx.x;
        double s[2][M];
        // Rows beyond n gain nothing.
        double2 near = make_double2(0.0, 0.0), w = near;
        if (row < a.rows.n) {
            near = load_two(a.nearest + row);
            w = two_or_one(a.rows.w, row);
            if (row + 1 == a.rows.n) near.y = 0.0;
        }
        distances<T, M>(a.rows, row, a.candidates, a.m, points, s);
        const bool listing = a.step.control && has_room(a.step);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const double before = r ? near.y : near.x, weight = r ? w.y : w.x;
            double least = s[r][0];
#pragma unroll
            for (int j = 1; j < M; j++) least = s[r][j] < least ? s[r][j] : least;
            // Integer distances grow with s, so only rows that come nearer to a candidate change.
            if (least < before) {
                const Pair old = quantise_distance(a.scale, weight, before);
#pragma unroll
                for (int j = 0; j < M; j++)
                    if (s[r][j] < before) {
                        const Pair p = quantise_distance(a.scale, weight, s[r][j]);
                        high[j][threadIdx.x] += old.hi - p.hi;
                        low[j][threadIdx.x] += old.lo - p.lo;
                        if (listing) add_nearer(a.step, Nearer{s[r][j], (u32)row + r, NO_PLACE, a.first + j, 0});
                    }
            }
        }
    }
    for (int j = 0; j < M; j++) {
        const Pair p = {high[j][threadIdx.x], low[j][threadIdx.x]};
        const u128 sum = warp_sum_wide((u128)join(p));
        if ((threadIdx.x & 31) == 0) sums[j][threadIdx.x / 32] = sum;
    }
    __syncthreads();
    if (threadIdx.x < a.m) {
        u128 sum = 0;
        for (int w = 0; w < THREADS / 32; w++) sum += sums[threadIdx.x][w];
        if (sum) add_wide(&a.gains[2 * threadIdx.x], &a.gains[2 * threadIdx.x + 1], sum);
    }
}

// ---- many candidates, of which each row's nearest is known --------------------------------------------------------------

template <typename T, typename S = T> struct Lower {
    Rows<T, S> rows;
    double* nearest; // (n)
    const u32* labels; // (n): each row's nearest candidate
    const T* candidates; // (m, d)
    int first; // whether these are the first centroids. Then `nearest` holds nothing yet
    int unused;
};

// Lowers each row's distance to that of its nearest candidate.
template <typename T, typename S> __device__ __forceinline__ void seed_lower(const Lower<T, S>& a) {
    for (u64 row = global_thread(); row < a.rows.n; row += all_threads()) {
        const double s = reference_distance(a.rows, row, a.candidates + (u64)a.labels[row] * a.rows.d, 1);
        if (a.first || s < a.nearest[row]) a.nearest[row] = s;
    }
}

struct Weigh {
    const double* w; // (n): null if all rows weigh 1
    const u32* labels; // (n): each row's nearest candidate
    u64* masses; // (m): 128 bits each, the low word first. The kernel adds to them
    double weight_to_integer;
    u64 n;
};

// Adds the weight of each row to the mass of its nearest candidate.
extern "C" __global__ void __launch_bounds__(256) seed_weigh(const __grid_constant__ Weigh a) {
    for (u64 row = global_thread(); row < a.n; row += all_threads()) {
        const u64 weight = a.w ? (u64)__dmul_rn(a.w[row], a.weight_to_integer) : 1;
        u64* mass = a.masses + 2 * (u64)a.labels[row];
        if (weight) add_wide(mass, mass + 1, weight);
    }
}

// ---- entry points ----------------------------------------------------------------------------------------------------

#define GAINS(T, S, SUFFIX, M)                                                                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS) seed_gains_##SUFFIX##_##M(const __grid_constant__ Gains<T, S> a) {         \
        seed_gains<T, M>(a);                                                                                                      \
    }
#define KERNELS(T, S, SUFFIX)                                                                                                        \
    extern "C" __global__ void __launch_bounds__(SEARCHERS) seed_search_##SUFFIX(const __grid_constant__ Search<T, S> a) {           \
        seed_search(a);                                                                                                           \
    }                                                                                                                             \
    extern "C" __global__ void __launch_bounds__(256) seed_sample_##SUFFIX(const __grid_constant__ Bernoulli<T, S> a) {              \
        seed_sample(a);                                                                                                           \
    }                                                                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS, 8) seed_take_##SUFFIX(const __grid_constant__ Take<T, S> a) {              \
        seed_take(a);                                                                                                             \
    }                                                                                                                             \
    extern "C" __global__ void __launch_bounds__(256) seed_lower_##SUFFIX(const __grid_constant__ Lower<T, S> a) {                   \
        seed_lower(a);                                                                                                            \
    }                                                                                                                             \
    GAINS(T, S, SUFFIX, 2)                                                                                                           \
    GAINS(T, S, SUFFIX, 4)                                                                                                           \
    GAINS(T, S, SUFFIX, 6)                                                                                                           \
    GAINS(T, S, SUFFIX, 8)                                                                                                           \
    GAINS(T, S, SUFFIX, 10)                                                                                                          \
    GAINS(T, S, SUFFIX, 12)

KERNELS(float, float, f32)
KERNELS(double, double, f64)
KERNELS(float, Half, f16)

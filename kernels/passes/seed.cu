// seed: draws rows for seeding. For k-means++ it keeps each row's distance to the nearest centroid taken so far, and draws by it.
//
// Source:    Arthur and Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007 (src/seeding/plus_plus.rs).
//            Bahmani et al., "Scalable k-means++", PVLDB 2012: samples in which every row decides alone, and masses of candidates.
// Used when: init="k-means++". `seed_totals`, `seed_search` and `seed_row` also for init="random" and for single rows.
// Tile:      about 4,096 ranges of at least 256 rows, each with the total of its draw weights. One block makes a draw: it finds the
//            range in the totals, and then the row in the range. In `seed_take` and `seed_gains` a thread has two rows and all
//            candidates at once.
// Memory:    `seed_take` reads x, and reads and writes `nearest`. `seed_gains` reads both, once for up to 12 candidates.
// Precision: reference distances, then integers. So a draw does not depend on the order in which the totals were added up.
#include "draws.cuh"

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

// The weight of a row in a draw.
#define DRAW_ROW 0 // every row weighs the same, so a target is the number of a row
#define DRAW_WEIGHT 1 // the integer of w^
#define DRAW_DISTANCE 2 // the integer of its distance to the nearest centroid taken
#define DRAW_POSITIVE 3 // 1 if w is positive

struct Draws {
    const double* w;
    const double* nearest;
    DistanceScale scale;
    double weight_to_integer;
    u64 n;
    u64 range; // rows
    u32 ranges;
    int kind;
};

__device__ __forceinline__ u128 draw_weight(const Draws& a, u64 row) {
    const double w = a.w ? a.w[row] : 1.0;
    if (a.kind == DRAW_POSITIVE) return w > 0.0;
    if (a.kind == DRAW_WEIGHT) return (u64)__dmul_rn(w, a.weight_to_integer);
    return (u128)join(quantise_distance(a.scale, w, a.nearest[row]));
}

struct Totals {
    Draws draws;
    u128* totals; // (ranges)
    u64* total; // 128 bits, the low word first; must be 0 before
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

#define SEARCHERS 1024

struct SearchSpace {
    u128 sums[32];
    u128 before;
    u64 place;
};

// Returns the first i in begin..end at which the running sum of weight(i) exceeds `target`. Leaves in `target` what remains of it there.
template <typename Weight>
__device__ __forceinline__ u64 search(u64 begin, u64 end, u128& target, SearchSpace& shared, const Weight& weight) {
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    // Each warp sums one of 32 parts. Then all warps go on with the part that holds the target. No part is empty, because there are more
    // than 961 entries.
    while (end - begin > SEARCHERS) {
        const u64 part = (end - begin + 31) / 32;
        const u64 first = begin + warp * part, last = first + part < end ? first + part : end;
        u128 sum = 0;
#pragma unroll 4
        for (u64 i = first + lane; i < last; i += 32) sum += weight(i);
        sum = warp_sum_wide(sum);
        if (lane == 0) shared.sums[warp] = sum;
        __syncthreads();
        u32 p = 0;
        while (p < 31 && target >= shared.sums[p]) target -= shared.sums[p++];
        begin += p * part;
        end = begin + part < end ? begin + part : end;
        __syncthreads();
    }
    const u64 i = begin + threadIdx.x;
    const u128 own = i < end ? weight(i) : 0;
    u128 sum = own;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        const u128 other = wide(__shfl_up_sync(FULL_WARP, (u64)(sum >> 64), o), __shfl_up_sync(FULL_WARP, (u64)sum, o));
        if (lane >= o) sum += other;
    }
    if (lane == 31) shared.sums[warp] = sum;
    if (threadIdx.x == 0) {
        shared.place = begin;
        shared.before = 0;
    }
    __syncthreads();
    u128 before = sum - own;
    for (u32 p = 0; p < warp; p++) before += shared.sums[p];
    if (before <= target && target - before < own) {
        shared.place = i;
        shared.before = before;
    }
    __syncthreads();
    const u64 place = shared.place;
    target -= shared.before;
    __syncthreads();
    return place;
}

template <typename T> struct Search {
    Rows<T> rows;
    Draws draws;
    const u128* totals; // (ranges)
    const u128* targets; // one a block
    u64* found; // (targets): the rows drawn
    T* values; // (targets, d): the values of these rows
};

template <typename T> __device__ __forceinline__ void copy_row(const Rows<T>& rows, u64 row, T* out) {
    for (int f = threadIdx.x; f < rows.d; f += blockDim.x) out[f] = rows.x[(u64)f * rows.stride + row];
}

template <typename T> __device__ __forceinline__ void seed_search(const Search<T>& a) {
    __shared__ SearchSpace shared;
    u128 target = a.targets[blockIdx.x];
    u64 row = (u64)target;
    if (a.draws.kind != DRAW_ROW) {
        const u64 range = search(0, a.draws.ranges, target, shared, [&](u64 i) { return a.totals[i]; });
        const u64 begin = range * a.draws.range, end = begin + a.draws.range;
        row = search(begin, end < a.draws.n ? end : a.draws.n, target, shared, [&](u64 i) { return draw_weight(a.draws, i); });
    }
    if (threadIdx.x == 0) a.found[blockIdx.x] = row;
    copy_row(a.rows, row, a.values + (u64)blockIdx.x * a.rows.d);
}

template <typename T> struct Row {
    Rows<T> rows;
    T* values; // (d)
    u64 row;
};

// ---- samples ---------------------------------------------------------------------------------------------------------

struct Bernoulli {
    Draws draws;
    Sample sample;
    FoundRows found;
};

extern "C" __global__ void __launch_bounds__(256) seed_sample(const __grid_constant__ Bernoulli a) {
    for (u64 row = global_thread(); row < a.draws.n; row += all_threads())
        if (is_drawn(a.sample, row, draw_weight(a.draws, row))) add_found(a.found, row);
}

template <typename T> struct Gather {
    Rows<T> rows;
    const u64* wanted; // (count): numbers of rows
    T* values; // (count, d)
    u64 count;
};

template <typename T> __device__ __forceinline__ void seed_gather(const Gather<T>& a) {
    for (u64 i = blockIdx.x; i < a.count; i += gridDim.x) copy_row(a.rows, a.wanted[i], a.values + i * a.rows.d);
}

// ---- distances to candidates -----------------------------------------------------------------------------------------

#define THREADS 128
#define TILE (2 * THREADS)
#define POINT_VALUES 2048 // values of candidates in shared memory

__device__ __forceinline__ float2 load_two(const float* at) { return *reinterpret_cast<const float2*>(at); }
__device__ __forceinline__ double2 load_two(const double* at) { return *reinterpret_cast<const double2*>(at); }

// Copies features first to first + count of m candidates (m, d) to shared memory as (count, M), with 0 for missing candidates.
template <typename T, int M> __device__ __forceinline__ void load_points(const T* points, int m, int d, int first, int count, double* shared) {
    for (int i = threadIdx.x; i < count * M; i += THREADS) {
        const int f = i / M, j = i % M;
        shared[i] = j < m ? (double)points[(u64)j * d + first + f] : 0.0;
    }
}

// Continues the reference distances of rows `row` and `row + 1` to M points, over features first to first + count.
template <typename T, int M>
__device__ __forceinline__ void add_distances(const Rows<T>& rows, u64 row, int first, int count, const double* points, double (&s)[2][M]) {
    const T* at = rows.x + (u64)first * rows.stride + row;
#pragma unroll 4
    for (int f = 0; f < count; f++, at += rows.stride, points += M) {
        const auto x = load_two(at);
        const double x0 = (double)x.x, x1 = (double)x.y;
        double c[M];
        if constexpr (M % 2 == 0) {
#pragma unroll
            for (int j = 0; j < M; j += 2) {
                const double2 two = *reinterpret_cast<const double2*>(points + j);
                c[j] = two.x, c[j + 1] = two.y;
            }
        } else {
#pragma unroll
            for (int j = 0; j < M; j++) c[j] = points[j];
        }
#pragma unroll
        for (int j = 0; j < M; j++) {
            const double t0 = __dadd_rn(x0, -c[j]), t1 = __dadd_rn(x1, -c[j]);
            s[0][j] = __fma_rn(t0, t0, s[0][j]);
            s[1][j] = __fma_rn(t1, t1, s[1][j]);
        }
    }
}

// The reference distances of a thread's two rows to M points. All threads of the block must call this. Rows from n on are padding, for
// which the stride has room. If all features of the points fit into shared memory, they are there already.
template <typename T, int M>
__device__ __forceinline__ void distances(const Rows<T>& rows, u64 row, const T* points, int m, double* shared, double (&s)[2][M]) {
    constexpr int FEATURES = POINT_VALUES / M;
#pragma unroll
    for (int j = 0; j < M; j++) s[0][j] = s[1][j] = 0.0;
    if (rows.d <= FEATURES) {
        add_distances<T, M>(rows, row, 0, rows.d, shared, s);
        return;
    }
    for (int first = 0; first < rows.d; first += FEATURES) {
        const int count = rows.d - first < FEATURES ? rows.d - first : FEATURES;
        __syncthreads();
        load_points<T, M>(points, m, rows.d, first, count, shared);
        __syncthreads();
        add_distances<T, M>(rows, row, first, count, shared, s);
    }
}

// Loads the points once, if all their features fit. Ends in a barrier.
template <typename T, int M> __device__ __forceinline__ void load_all_points(const Rows<T>& rows, const T* points, int m, double* shared) {
    if (rows.d <= POINT_VALUES / M) load_points<T, M>(points, m, rows.d, 0, rows.d, shared);
    __syncthreads();
}

#define GROUP 8 // points at a time, if there are many

// Calls visit(j, s0, s1) for each of m points, in ascending order of j, with the reference distances of a thread's two rows. All threads
// of the block must call this.
template <typename T, typename Visit>
__device__ __forceinline__ void visit_distances(const Rows<T>& rows, u64 row, const T* points, u32 m, double* shared, const Visit& visit) {
#pragma unroll 1
    for (u32 first = 0; first < m; first += GROUP) {
        const T* group = points + (u64)first * rows.d;
        const int here = m - first < GROUP ? m - first : GROUP;
        double s[2][GROUP];
        __syncthreads();
        load_all_points<T, GROUP>(rows, group, here, shared);
        distances<T, GROUP>(rows, row, group, here, shared, s);
#pragma unroll
        for (int j = 0; j < GROUP; j++)
            if (j < here) visit(first + j, s[0][j], s[1][j]);
    }
}

// A thread's two values of a column of doubles, which is as long as the stride. Ones if there is no column.
__device__ __forceinline__ double2 two_or_one(const double* column, u64 row) {
    return column ? load_two(column + row) : make_double2(1.0, 1.0);
}

// ---- taking centroids ------------------------------------------------------------------------------------------------

template <typename T> struct Take {
    Rows<T> rows;
    double* nearest; // (stride)
    const T* centroids; // (m, d)
    u128* totals; // (ranges)
    u64* total; // 128 bits, the low word first; must be 0 before
    DistanceScale scale;
    u64 range; // rows of a range: a multiple of the tile, and at most 2^24, so that a thread has at most 131,072 of them
    u32 ranges;
    int first; // whether these are the first centroids. Then `nearest` holds nothing yet
    u32 m;
    u32 unused;
};

// MANY: there may be more than one centroid.
template <typename T, bool MANY> __device__ __forceinline__ void seed_take(const Take<T>& a) {
    __shared__ __align__(16) double points[POINT_VALUES];
    __shared__ u128 shared[THREADS / 32];
    if constexpr (!MANY) load_all_points<T, 1>(a.rows, a.centroids, 1, points);
    u128 mine = 0;
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
            const auto lower = [&](u32, double s0, double s1) {
                near.x = s0 < near.x ? s0 : near.x;
                near.y = s1 < near.y ? s1 : near.y;
            };
            if constexpr (MANY) {
                visit_distances<T>(a.rows, row, a.centroids, a.m, points, lower);
            } else {
                double s[2][1];
                distances<T, 1>(a.rows, row, a.centroids, 1, points, s);
                lower(0, s[0][0], s[1][0]);
            }
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
    if (threadIdx.x == 0) add_wide(&a.total[0], &a.total[1], mine);
}

// ---- the gains of candidates -----------------------------------------------------------------------------------------

template <typename T> struct Gains {
    Rows<T> rows;
    const double* nearest; // (stride)
    const T* candidates; // (m, d)
    u64* gains; // (m): 128 bits each, the low word first; must be 0 before
    DistanceScale scale;
    int m; // at most M
    int unused;
};

// A thread has at most 131,072 rows, because the launch has enough blocks.
template <typename T, int M> __device__ __forceinline__ void seed_gains(const Gains<T>& a) {
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

// ---- the masses of candidates ----------------------------------------------------------------------------------------

template <typename T> struct Masses {
    Rows<T> rows;
    const T* candidates; // (m, d)
    u64* masses; // (m): 128 bits each, the low word first. The kernel adds to them
    double weight_to_integer;
    u32 m;
    u32 unused;
};

// Adds the weight of each row to the mass of its nearest candidate. The smaller candidate wins ties.
template <typename T> __device__ __forceinline__ void seed_masses(const Masses<T>& a) {
    __shared__ __align__(16) double points[POINT_VALUES];
    for (u64 tile = (u64)blockIdx.x * TILE; tile < a.rows.n; tile += (u64)gridDim.x * TILE) {
        const u64 row = tile + 2 * threadIdx.x;
        double least[2] = {infinity(), infinity()};
        u32 nearest[2] = {0, 0};
        visit_distances<T>(a.rows, row, a.candidates, a.m, points, [&](u32 j, double s0, double s1) {
            if (s0 < least[0]) least[0] = s0, nearest[0] = j;
            if (s1 < least[1]) least[1] = s1, nearest[1] = j;
        });
#pragma unroll
        for (int r = 0; r < 2; r++)
            if (row + r < a.rows.n) {
                const u64 weight = a.rows.w ? (u64)__dmul_rn(a.rows.w[row + r], a.weight_to_integer) : 1;
                u64* mass = a.masses + 2 * (u64)nearest[r];
                if (weight) add_wide(mass, mass + 1, weight);
            }
    }
}

// ---- entry points ----------------------------------------------------------------------------------------------------

#define GAINS(T, SUFFIX, M)                                                                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS) seed_gains_##SUFFIX##_##M(const __grid_constant__ Gains<T> a) {         \
        seed_gains<T, M>(a);                                                                                                      \
    }
#define KERNELS(T, SUFFIX)                                                                                                        \
    extern "C" __global__ void __launch_bounds__(SEARCHERS) seed_search_##SUFFIX(const __grid_constant__ Search<T> a) {           \
        seed_search(a);                                                                                                           \
    }                                                                                                                             \
    extern "C" __global__ void __launch_bounds__(256) seed_row_##SUFFIX(const __grid_constant__ Row<T> a) {                       \
        copy_row(a.rows, a.row, a.values);                                                                                        \
    }                                                                                                                             \
    extern "C" __global__ void __launch_bounds__(256) seed_gather_##SUFFIX(const __grid_constant__ Gather<T> a) {                 \
        seed_gather(a);                                                                                                           \
    }                                                                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS, 8) seed_take_##SUFFIX(const __grid_constant__ Take<T> a) {              \
        seed_take<T, false>(a);                                                                                                   \
    }                                                                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS) seed_take_many_##SUFFIX(const __grid_constant__ Take<T> a) {            \
        seed_take<T, true>(a);                                                                                                    \
    }                                                                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS) seed_masses_##SUFFIX(const __grid_constant__ Masses<T> a) {             \
        seed_masses(a);                                                                                                           \
    }                                                                                                                             \
    GAINS(T, SUFFIX, 2)                                                                                                           \
    GAINS(T, SUFFIX, 4)                                                                                                           \
    GAINS(T, SUFFIX, 6)                                                                                                           \
    GAINS(T, SUFFIX, 8)                                                                                                           \
    GAINS(T, SUFFIX, 10)                                                                                                          \
    GAINS(T, SUFFIX, 12)

KERNELS(float, f32)
KERNELS(double, f64)

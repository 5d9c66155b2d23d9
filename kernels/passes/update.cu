// update: the exact means, the shift of the centroids, the decision to stop, and the filter's copies for the next assign.
//
// Source:    the division on the device, as in Luigi 2025, V4. The rest is the loop of the contract (src/backend/update.rs, src/fit.rs).
// Used when: after every assign.
// Tile:      a team of 1, 2, 4 or 8 warps has a cluster, and each thread a column. So all loads are in flight at once. The moves of the
//            columns go to shared memory. From there one thread computes the chain of the shift, in feature order. With few clusters
//            all teams are in one block. Otherwise blocks leave their results in device memory, and the block that finishes last
//            combines them. If a cluster is empty, the other centroids have moved by then. So the centroids before are kept: the host
//            needs them, because it does the update instead.
// Memory:    (k, d) tables only.
// With metric="cosine", the new centroids come from `directions.cu`. Where several GPUs have shared out the means, they come from
// `exchange.cu`, and the sums are done.
// Precision: 128-bit integers. A mean is rounded once. The copies, the half squares and the slacks are those of src/bounds.rs.
#include "../common/filter.cuh"
#include "cluster_sum.cuh"

#define MOST_THREADS 512
#define MOST_WARPS (MOST_THREADS / 32)
// Steps of the chain of the shift whose values are fetched together.
#define STEPS 8

// The combined results of some clusters.
struct BlockMoves {
    u64 shift[2]; // the sum of their shifts, the low word first
    int exponents; // the sum of the exponents of their half squares
    u32 moved; // whether any centroid moved
    u32 empty; // whether a cluster has no rows
    u32 not_finite; // whether a copy is not finite, or very long
    u32 terms; // clusters that moved by a positive distance
    u32 unused;
};

// The terms of the bound that do not depend on the centroids: `ExpandedTerms` of src/bounds.rs.
struct BoundTerms {
    double unit, start, reference, underflow, half, balance;
    double offset; // slope * norm_offset
    double ceiling_lower, ceiling_offset; // `Ceiling`
    float ceiling_slope, ceiling_rise;
    float slope;
    int panel; // for `weight_of`
};

template <typename T> struct Update {
    Sums sums;
    const int* mean_exponents; // (d): a mean is sum / mass * 2^this
    const T* lows; // (d): the least value of each column
    const T* highs;
    T* centroids; // (k, d)
    T* previous; // (k, d): the centroids before. At first the new centroids, if they do not come from the sums
    T* centroid_columns; // (d, k)
    // copies for the next assign
    const T* minus_centre; // (d)
    T scale;
    float* copies;
    float* half_squares;
    float* slacks; // (k padded)
    u64 copy_stride_j, copy_stride_f; // copies[j * copy_stride_j + f * copy_stride_f]
    u64 half_stride; // half_squares[j * half_stride]
    BoundTerms terms;
    Bound* bound;
    Control* control;
    Record* records; // one for each iteration of the batch
    BlockMoves* block_moves; // one for each block
    double* distances; // (k): how far each cluster moved, squared
    // the loop
    DistanceScale shifts;
    double largest_changed, largest_shift; // tol_labels * n, tol * variance
    u32 iterations; // at most so many in the whole fit
    u32 first_iteration; // of the batch
    int team; // threads of a cluster
    u32 most_unresolved; // if there are more such rows, the next step compares scores by value
    int subtracts_lower; // whether `lower` is subtracted from all half squares, so that most rows have a negative score
    int unused;
};

__device__ __forceinline__ u64 device_clock() {
    u64 t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

// Computes a chain of squares, in order. Zeros that fill it up to a multiple of STEPS change nothing.
__device__ __forceinline__ double walk(const double* moves, int count, double distance) {
    double2 ahead[STEPS / 2];
    auto fetch = [&](int first) {
#pragma unroll
        for (int i = 0; i < STEPS / 2; i++) ahead[i] = *(const double2*)(moves + first + 2 * i);
    };
    fetch(0);
#pragma unroll 1
    for (int first = 0; first < count; first += STEPS) {
        double2 now[STEPS / 2];
#pragma unroll
        for (int i = 0; i < STEPS / 2; i++) now[i] = ahead[i];
        if (first + STEPS < count) fetch(first + STEPS);
#pragma unroll
        for (int i = 0; i < STEPS / 2; i++) {
            distance = __fma_rn(now[i].x, now[i].x, distance);
            distance = __fma_rn(now[i].y, now[i].y, distance);
        }
    }
    return distance;
}

// The threads that share a cluster, and how they exchange values. They use two buffers in turn, so one barrier for each piece of columns
// is enough.
struct Team {
    int width, number, member;

    // A barrier of the team. Returns whether `mine` is true for any of its threads.
    __device__ __forceinline__ bool any(bool mine) const {
        if (width == 32) {
            __syncwarp();
            return __any_sync(FULL_WARP, mine);
        }
        int all;
        asm volatile("{ .reg .pred p, q; setp.ne.u32 p, %3, 0; barrier.red.or.pred q, %1, %2, p; selp.u32 %0, 1, 0, q; }"
                     : "=r"(all)
                     : "r"(number + 1), "r"(width), "r"((u32)mine)
                     : "memory");
        return all != 0;
    }
};

struct Shared {
    double moves[2][MOST_THREADS];
    double2 squares[2][MOST_WARPS]; // sums of the squares of the copies, plain and weighted
    BlockMoves parts[MOST_WARPS];
    u32 last;
};

// `CentroidBound` of src/bounds/own.rs.
struct CentroidBound {
    float lowered, slack;
};

// `ExpandedTerms::own` of src/bounds.rs.
__device__ __forceinline__ CentroidBound centroid_bound(const BoundTerms& a, double half_square, double weighted, double lower) {
    const double safety = 1.001, v = 1.1102230246251565e-16;
    const double error = safety * a.unit * weighted / (2.0 * a.balance) + 3.009265538105056e-36; // 2^-118
    const double below = half_square * (1.0 - a.half) - lower, above = half_square * (1.0 + a.half) - lower;
    const double z = below - error;
    const float start = __double2float_rd(z - 1.01 * a.start * fabs(z));
    const double reference = a.reference * (1.0 + 1.0 / a.balance) * 2.0 * half_square * safety + a.underflow;
    const double slack = above - (double)start + 1.01 * a.start * fabs((double)start) + error + reference + a.offset;
    return {start, __double2float_ru((slack + 4.0 * v * (half_square + lower)) * (1.0 + 8.0 * v))};
}

// Where new centroids come from. Those that are made already are in `previous`. MEANS: the rows are canonical already, and the
// sums are with the GPU that has the cluster.
enum Source { SUMS, DIRECTIONS, MEANS };

// A team updates cluster j: sums, mean, shift and copies. START: only makes the copies of `centroids`. The first thread of the team has
// the results for copies and rows. The first thread of its last warp has the shift. `stop` is checked after the first loads are issued;
// if it is set, nothing is done.
template <bool START, Source FROM, typename T>
__device__ __forceinline__ void update_cluster(const Update<T>& a, Shared& shared, const Team& team, int j, u32 stop, float lower, int& turn,
                                               BlockMoves& part) {
    const Sums& s = a.sums;
    const int d = s.d, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    i64 rows = 0;
    i128 mass = 0;
    if (!START) {
        rows = s.rows[j];
        if (FROM != MEANS) rows += s.pending_rows[j];
        mass = rows;
        if (FROM != MEANS && s.mass_column >= 0) mass = ClusterSum(s, j, s.mass_column).total(s, s.mass_column);
    }
    double square = 0.0, weighted = 0.0, distance = 0.0;
    bool moved = false;
#pragma unroll 1
    for (int piece = 0; piece < d; piece += team.width, turn ^= 1) {
        const int f = piece + team.member;
        const u64 at = (u64)j * d + f;
        double move = 0.0;
        bool differs = false;
        T before = 0, after = 0, minus_centre = 0;
        i128 sum = 0;
        if (f < d) {
            before = after = a.centroids[at], minus_centre = a.minus_centre[f];
            if (!START) {
                T low = 0, high = 0;
                int exponent = 0;
                if (FROM == DIRECTIONS || (FROM == MEANS && rows > 0)) after = a.previous[at];
                if (FROM == SUMS) low = a.lows[f], high = a.highs[f], exponent = a.mean_exponents[f];
                if (FROM != MEANS) sum = ClusterSum(s, j, f).total(s, f);
                if (FROM == SUMS && rows > 0) after = mean_within(sum, (u128)mass, exponent, low, high);
            }
        }
        if (stop) return;
        if (f < d) {
            if (!START) {
                if (FROM != MEANS) ClusterSum(s, j, f).store(s, sum);
                // If nothing differs (except the sign of a zero), the distance is 0.
                differs = after != before;
                move = __dadd_rn((double)before, -(double)after);
                a.previous[at] = before;
                a.centroids[at] = after;
            }
            a.centroid_columns[(u64)f * s.k + j] = after;
            const float copy = centred_copy(after, minus_centre, a.scale);
            a.copies[j * a.copy_stride_j + f * a.copy_stride_f] = -copy;
            double t = __fma_rn((double)after, (double)a.scale, (double)minus_centre);
            t = fabsf(copy) < infinity_f() ? __dmul_rn(t, t) : infinity();
            square = __dadd_rn(square, t);
            weighted = __fma_rn(t, (double)weight_of(f & ~15, d, a.terms.panel), weighted);
        }
        if (piece + team.width >= d) {
            for (int o = 16; o; o >>= 1) {
                square += __shfl_xor_sync(FULL_WARP, square, o);
                weighted += __shfl_xor_sync(FULL_WARP, weighted, o);
            }
            if (lane == 0) shared.squares[turn][warp] = make_double2(square, weighted);
        }
        if (!START) shared.moves[turn][threadIdx.x] = move;
        if (team.any(differs)) {
            moved = true;
            if (team.member == team.width - 32)
                distance = walk(shared.moves[turn] + team.number * team.width, min(team.width, d - piece), distance);
        }
        if (!START && piece == 0 && team.member == 0) {
            // All threads have read these.
            if (FROM != MEANS) s.rows[j] = rows, s.pending_rows[j] = 0;
            if (FROM != MEANS && s.mass_column >= 0) ClusterSum(s, j, s.mass_column).store(s, mass);
            if (rows == 0) part.empty = 1;
        }
        if (piece + team.width >= d && team.member == 0) {
            double2 sum = {0.0, 0.0};
            for (int w = 0; w < team.width / 32; w++) {
                const double2 more = shared.squares[turn][warp + w];
                sum.x += more.x, sum.y += more.y;
            }
            const CentroidBound own = centroid_bound(a.terms, 0.5 * sum.x, sum.y, lower);
            a.half_squares[j * a.half_stride] = own.lowered;
            a.slacks[j] = own.slack;
            part.exponents += max((int)(__double_as_longlong(0.5 * sum.x) >> 52) - 1023, -100);
            // Longer copies could overflow a score.
            if (!(sum.x < 1e37)) part.not_finite = 1;
        }
    }
    if (!START && team.member == team.width - 32) a.distances[j] = distance;
    if (!START && moved && team.member == team.width - 32) {
        const u128 all = ((u128)part.shift[0] | (u128)part.shift[1] << 64) + (u128)join(quantise_distance(a.shifts, 1.0, distance));
        part.shift[0] = (u64)all, part.shift[1] = (u64)(all >> 64);
        part.moved = 1;
        part.terms += distance > 0.0;
    }
}

// Combines `count` parts. Lane 0 gets the result. All lanes of the warp must call this.
__device__ __forceinline__ BlockMoves together(const BlockMoves* parts, u32 count, int lane) {
    BlockMoves all = {};
    auto add = [&](u64 low, u64 high, int exponents, u32 flags, u32 terms) {
        all.shift[0] += low;
        all.shift[1] += high + (all.shift[0] < low ? 1 : 0);
        all.exponents += exponents;
        all.moved |= flags & 1, all.empty |= flags >> 1 & 1, all.not_finite |= flags >> 2 & 1;
        all.terms += terms;
    };
#pragma unroll 1
    for (u32 i = lane; i < count; i += 32) {
        // Volatile: if the parts are in device memory, other blocks wrote them.
        const volatile BlockMoves* p = parts + i;
        const u64 low = p->shift[0], high = p->shift[1];
        const u32 moved = p->moved, empty = p->empty, not_finite = p->not_finite, terms = p->terms;
        add(low, high, p->exponents, moved | empty << 1 | not_finite << 2, terms);
    }
#pragma unroll 1
    for (int o = 16; o; o >>= 1) {
        if (o >= count) continue;
        const u32 flags = all.moved | all.empty << 1 | all.not_finite << 2;
        add(__shfl_down_sync(FULL_WARP, all.shift[0], o), __shfl_down_sync(FULL_WARP, all.shift[1], o),
            __shfl_down_sync(FULL_WARP, all.exponents, o), __shfl_down_sync(FULL_WARP, flags, o), __shfl_down_sync(FULL_WARP, all.terms, o));
    }
    return all;
}

// Makes the bound, in one thread. `before`: the control when the kernel began.
//
// assign_registers can compare the bits of scores as integers, which is faster, if every row has a negative score. So about the
// square of a usual centroid's norm is subtracted from the half squares. Then a row has no negative score only if it is much nearer to the
// centre than to any centroid. It counts these rows. If there are many, the next step compares by value. This
// update finds the number that the next one subtracts. Only speed depends on all this. `lower`: the number that this update subtracts.
template <typename T>
__device__ __forceinline__ void make_bound(const Update<T>& a, const Control& before, const BlockMoves& all, float lower) {
    const int exponent = all.exponents / a.sums.k + 2;
    Bound b = {};
    b.slope = all.not_finite ? infinity_f() : a.terms.slope;
    b.lower = a.subtracts_lower ? (float)power_of_two(min(max(exponent, -100), 20)) : 0.0f;
    b.ceiling.slope = all.not_finite ? infinity_f() : a.terms.ceiling_slope;
    b.ceiling.rise = a.terms.ceiling_rise;
    b.ceiling.offset = __double2float_ru(a.terms.ceiling_lower * lower + a.terms.ceiling_offset);
    b.ceiling.by_value = before.started == 0 || before.unresolved > a.most_unresolved;
    *a.bound = b;
}

// The shift, by one warp, whose lane 0 knows `all`: summed again with finer quanta until it is precise (src/exact/distances.rs).
template <typename T> __device__ __forceinline__ double precise_shift(const Update<T>& a, const BlockMoves& all, int lane) {
    const u32 terms = __shfl_sync(FULL_WARP, all.terms, 0);
    u64 low = __shfl_sync(FULL_WARP, all.shift[0], 0), high = __shfl_sync(FULL_WARP, all.shift[1], 0);
    DistanceScale scale = a.shifts;
    while (!is_precise(scale, (u128)low | (u128)high << 64, terms)) {
        u128 sum = 0;
#pragma unroll 1
        for (int j = lane; j < a.sums.k; j += 32) sum += (u128)join(quantise_distance(scale, 1.0, __ldcg(a.distances + j)));
#pragma unroll 1
        for (int o = 16; o; o >>= 1)
            sum += (u128)__shfl_xor_sync(FULL_WARP, (u64)sum, o) | (u128)__shfl_xor_sync(FULL_WARP, (u64)(sum >> 64), o) << 64;
        low = (u64)sum, high = (u64)(sum >> 64);
    }
    return scale.none ? 0.0 : round_quotient<double>((i128)((u128)low | (u128)high << 64), 1, scale.quantum_exponent);
}

// Ends the iteration, in one thread. `before` is the control when the kernel began.
template <typename T>
__device__ __forceinline__ void finish(const Update<T>& a, const Control& before, const BlockMoves& all, double shift) {
    Control* c = a.control;
    if (all.empty) {
        c->stop = 2;
        return;
    }
    u64 now = device_clock();
    Record record = {before.changed, shift, now - before.started, before.settled + before.in_doubt + before.pairs, before.scores, before.rescored, before.groups,
                     all.moved, 0};
    a.records[before.iteration - a.first_iteration] = record;
    bool settled = (double)before.changed <= a.largest_changed || shift <= a.largest_shift;
    c->started = now;
    c->iteration = before.iteration + 1;
    if (settled || before.iteration + 1 == a.iterations) c->stop = 1;
    c->changed = 0;
    c->settled = 0;
    c->scores = 0;
    c->rescored = 0;
    c->unresolved = 0;
    c->in_doubt = 0;
    c->pairs = 0;
    c->next_run = 0;
}

// For the end of a chunk.
struct EndChunk {
    Control* control;
};

template <bool START, Source FROM, typename T> __device__ __forceinline__ void update(const Update<T>& a) {
    __shared__ Shared shared;
    wait_for_kernel_before();
    const Control before = *a.control;
    const u32 stop = START ? 0 : before.stop;
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, teams = blockDim.x / a.team;
    const Team team = {a.team, tid / a.team, tid & (a.team - 1)};
    const float lower = a.bound->lower;
    BlockMoves part = {};
    int turn = 0;
#pragma unroll 1
    for (int j = blockIdx.x * teams + team.number; j < a.sums.k; j += gridDim.x * teams)
        update_cluster<START, FROM>(a, shared, team, j, stop, lower, turn, part);
    if (stop) return;
    // In a team of one warp one thread has all results. In others two threads have a half each.
    BlockMoves& mine = shared.parts[team.number];
    if (team.member == 0) mine.exponents = part.exponents, mine.empty = part.empty, mine.not_finite = part.not_finite;
    if (team.member == team.width - 32) mine.shift[0] = part.shift[0], mine.shift[1] = part.shift[1], mine.moved = part.moved, mine.terms = part.terms;
    __syncthreads();
    // Two warps do the rest: one makes the bound, and the other ends the iteration.
    if (warp > 1) return;
    BlockMoves all = together(shared.parts, teams, lane);
    if (gridDim.x > 1) {
        if (tid == 0) {
            a.block_moves[blockIdx.x] = all;
            __threadfence();
            shared.last = atomicInc(&a.control->ticket, gridDim.x - 1) == gridDim.x - 1;
        }
        asm volatile("barrier.sync 1, 64;" ::: "memory");
        if (!shared.last) return;
        __threadfence();
        all = together(a.block_moves, gridDim.x, lane);
    }
    if (lane == 0 && warp == 1) make_bound(a, before, all, lower);
    if (warp != 0) return;
    if (START) {
        Control c = {};
        c.started = device_clock();
        if (lane == 0) *a.control = c;
    } else {
        const double shift = precise_shift(a, all, lane);
        if (lane == 0) finish(a, before, all, shift);
    }
}

// Makes all pending sums canonical, and does nothing else. For updates by the host.
template <typename T> __device__ __forceinline__ void fold_all(const Update<T>& a) {
    const Sums& s = a.sums;
    const u64 sums = (u64)s.k * s.columns;
    for (u64 i = global_thread(); i < sums; i += all_threads()) {
        const int j = (int)(i / s.columns), c = (int)(i - (u64)j * s.columns);
        const ClusterSum sum(s, j, c);
        sum.store(s, sum.total(s, c));
    }
    for (u32 j = global_thread(); j < s.k; j += all_threads()) s.rows[j] += s.pending_rows[j], s.pending_rows[j] = 0;
}

// Ends a chunk after which another one comes: what its kernels have listed is counted, and the lists are empty.
extern "C" __global__ void __launch_bounds__(32) end_chunk(const __grid_constant__ EndChunk a) {
    Control* c = a.control;
    if (threadIdx.x != 0) return;
    c->settled += (u64)c->in_doubt + c->pairs;
    c->in_doubt = 0;
    c->pairs = 0;
    c->next_run = 0;
}

#define KERNELS(T, NAME)                                                                                                          \
    extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1) update_##NAME(const __grid_constant__ Update<T> a) {            \
        update<false, SUMS>(a);                                                                                                   \
    }                                                                                                                             \
    extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1) update_directions_##NAME(const __grid_constant__ Update<T> a) { \
        update<false, DIRECTIONS>(a);                                                                                             \
    }                                                                                                                             \
    extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1) update_means_##NAME(const __grid_constant__ Update<T> a) {      \
        update<false, MEANS>(a);                                                                                                  \
    }                                                                                                                             \
    extern "C" __global__ void __launch_bounds__(256, 1) update_fold_##NAME(const __grid_constant__ Update<T> a) { fold_all(a); } \
    extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1) update_start_##NAME(const __grid_constant__ Update<T> a) { update<true, SUMS>(a); }
KERNELS(float, f32)
KERNELS(double, f64)

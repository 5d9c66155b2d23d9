// plus_plus: steps of greedy k-means++ without the host (src/seeding/plus_plus.rs).
//
//   plus_draw    draws the candidates
//   seed_gains   their gains and the list of rows that come nearer to one of them (seed.cu), or plus_near, plus_filter and plus_settle
//                (plus_filter.cu)
//   plus_take    chooses a candidate and takes it, if the list has all of its rows
//   plus_next    the same, and then draws the candidates of the next step. With the filter
//   seed_take    the same with a pass over all rows, if the list is too short (seed.cu)
//
// Used when: init="k-means++", and all rows are on one device.
// Tile:      plus_draw: a block a candidate. plus_take: an entry of the list a thread. plus_next: the last block draws, a warp a candidate.
// Memory:    draws read the totals of all ranges and one range for each candidate. plus_take reads the list. It reads and writes single
//            distances.
// Precision: integers, which are those of the steps of the host.
#include "bytes.cuh"
#include "plus_plus.cuh"
#include "search.cuh"

// ---- draws -----------------------------------------------------------------------------------------------------------

template <typename T, typename S = T> struct PlusDraw {
    Rows<T, S> rows;
    Draws draws; // by distance
    const u128* totals; // (ranges)
    Step<T> step;
    ByteCopies<T> copies;
    u32 key_low, key_high; // the seed
    u32 stream, restart;
};

template <typename T, typename S> __device__ __forceinline__ void plus_draw(const PlusDraw<T, S>& a) {
    __shared__ SearchSpace shared;
    wait_for_kernel_before();
    if (has_stopped(a.step)) return;
    const StepControl& control = *a.step.control;
    const u64 u = philox(a.key_low, a.key_high, a.stream, a.restart, control.step, blockIdx.x);
    const u64 row = drawn_row(a.draws, a.totals, below(u, wide(control.total_high, control.total_low)), shared);
    T* candidate = a.step.candidates + (u64)blockIdx.x * a.rows.d;
    if (a.copies.centres) {
        for (int f = threadIdx.x; f < a.rows.d; f += SEARCHERS) candidate[f] = a.copies.values[row * a.rows.d + f];
    } else {
        copy_row(a.rows, row, candidate);
    }
}

// ---- taking the chosen candidate -------------------------------------------------------------------------------------

template <typename T> struct PlusTake {
    Rows<T> rows;
    double* nearest; // (stride)
    u128* totals; // (ranges)
    DistanceScale scale;
    u64 range; // rows of a range
    Step<T> step;
    ByteCopies<T> copies;
};

// Returns whether this block has ended the step. Then `left` is the potential.
template <typename T> __device__ __forceinline__ bool plus_take(const PlusTake<T>& a, u128& left) {
    wait_for_kernel_before();
    // All of this is on its way at once. The list may be shorter than the place that is read.
    const u32 stopped = a.step.control->stopped, listed = a.step.control->listed, seed = a.step.control->step, own = global_thread();
    Nearer nearer = a.step.list[own < a.step.room ? own : 0];
    const Choice choice = choose(a.step, a.scale);
    if (stopped) return false;
    if (listed > a.step.room) {
        // If the filter did not write the list, `seed_take` comes next.
        if (a.step.filtered) stop_steps(a.step, STOPPED_FULL);
        return false;
    }
    if (choice.stop) {
        stop_steps(a.step, choice.stop);
        return false;
    }
    left = choice.left;
    keep_seed(a.step, a.rows.d, choice);
    for (u32 i = own; i < listed; i += all_threads()) {
        if (i != own) nearer = a.step.list[i];
        if (nearer.candidate != choice.candidate || nearer.distance == infinity()) continue;
        const double before = a.nearest[nearer.row], w = a.rows.w ? a.rows.w[nearer.row] : 1.0;
        a.nearest[nearer.row] = nearer.distance;
        if (seed < a.step.owned) a.step.owners[nearer.row] = seed;
        const u128 gain = (u128)(join(quantise_distance(a.scale, w, before)) - join(quantise_distance(a.scale, w, nearer.distance)));
        // A total is a number modulo 2^128, so a negative term is one too.
        u64* total = reinterpret_cast<u64*>(a.totals + nearer.row / a.range);
        if (gain) add_wide(total, total + 1, (u128)0 - gain);
        if (nearer.place != NO_PLACE) {
            float& square = a.copies.facts[nearer.place].square;
            square = lead_after(square, before, nearer.distance, a.copies.scale);
        }
    }
    return finish_step(a.step, choice);
}

// ---- taking, and drawing the next candidates -------------------------------------------------------------------------

template <typename T> struct PlusNext {
    PlusTake<T> take;
    Draws draws; // by distance
    u32 key_low, key_high; // the seed
    u32 stream, restart;
};

// Other blocks of this kernel have written these, so they are not read from the first-level cache.
__device__ __forceinline__ u128 total_now(const u128* at) {
    const ulonglong2 v = __ldcg(reinterpret_cast<const ulonglong2*>(at));
    return wide(v.y, v.x);
}

#define NEXT_THREADS 512
#define OF_NEXT 8 // totals of a thread, and rows of a lane

// The weights of up to OF_NEXT rows that follow each other.
struct NextRows {
    double nearest[OF_NEXT];

    __device__ __forceinline__ void load(const Draws& a, u64 first, u64 last) {
#pragma unroll
        for (u32 i = 0; i < OF_NEXT; i++) nearest[i] = first + i < last ? __ldcg(a.nearest + first + i) : 0.0;
    }
    __device__ __forceinline__ u128 weight(const Draws& a, u64 first, u64 last, u32 i) const {
        const double w = a.w && first + i < last ? a.w[first + i] : 1.0;
        return (u128)join(quantise_distance(a.scale, w, nearest[i]));
    }
};

// The first row of begin..end at which the running sum of the weights exceeds `target`, by one warp.
__device__ __forceinline__ u64 row_by_warp(const Draws& a, u64 begin, u64 end, u128 target) {
    const u32 lane = threadIdx.x & 31;
    while (true) {
        // A lane sums a part. Then the warp goes on with the part that holds the target.
        const u64 part = (end - begin + 31) / 32, first = begin + lane * part, last = first + part < end ? first + part : end;
        NextRows rows;
        u128 own = 0;
        for (u64 row = first; row < last; row += OF_NEXT) {
            rows.load(a, row, last);
#pragma unroll
            for (u32 i = 0; i < OF_NEXT; i++) own += rows.weight(a, row, last, i);
        }
        const u128 before = warp_scan_wide(own) - own;
        const u32 here = __ballot_sync(FULL_WARP, before <= target && target - before < own);
        const u32 which = here ? __ffs(here) - 1 : 0;
        if (part <= OF_NEXT) {
            // The lane still has the rows.
            u128 rest = target - before;
            u32 found = 0;
#pragma unroll
            for (u32 i = 0; i < OF_NEXT - 1; i++) {
                const u128 weight = rows.weight(a, first, last, i);
                if (found == i && rest >= weight) rest -= weight, found++;
            }
            return __shfl_sync(FULL_WARP, first + found, which);
        }
        target -= wide(__shfl_sync(FULL_WARP, (u64)(before >> 64), which), __shfl_sync(FULL_WARP, (u64)before, which));
        begin += which * part;
        end = begin + part < end ? begin + part : end;
    }
}

// Draws the candidates of the next step, by one block of NEXT_THREADS threads.
template <typename T> __device__ __forceinline__ void draw_next(const PlusNext<T>& a, u128 potential, u32 step) {
    __shared__ u128 sums[NEXT_THREADS / 32], targets[MOST_TRIALS], rests[MOST_TRIALS];
    __shared__ u32 ranges[MOST_TRIALS];
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, m = a.take.step.m, d = a.take.rows.d;
    const u32 each = (a.draws.ranges + NEXT_THREADS - 1) / NEXT_THREADS, first = threadIdx.x * each;
    u128 totals[OF_NEXT], own = 0;
#pragma unroll
    for (u32 i = 0; i < OF_NEXT; i++) {
        totals[i] = i < each && first + i < a.draws.ranges ? total_now(a.take.totals + first + i) : 0;
        own += totals[i];
    }
    if (threadIdx.x < m) {
        targets[threadIdx.x] = below(philox(a.key_low, a.key_high, a.stream, a.restart, step, threadIdx.x), potential);
        rests[threadIdx.x] = 0, ranges[threadIdx.x] = 0;
    }
    const u128 sum = warp_scan_wide(own);
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    u128 before = sum - own;
    for (u32 w = 0; w < warp; w++) before += sums[w];
    for (u32 j = 0; j < m; j++) {
        u128 rest = targets[j] - before;
        if (targets[j] < before || rest >= own) continue;
        u32 i = 0;
#pragma unroll
        for (u32 next = 0; next < OF_NEXT - 1; next++)
            if (i == next && rest >= totals[next]) rest -= totals[next], i++;
        ranges[j] = first + i, rests[j] = rest;
    }
    __syncthreads();
    if (warp >= m) return;
    const u64 begin = ranges[warp] * a.draws.range, end = begin + a.draws.range < a.draws.n ? begin + a.draws.range : a.draws.n;
    const T* values = a.take.copies.values + row_by_warp(a.draws, begin, end, rests[warp]) * d;
    T* candidate = a.take.step.candidates + (u64)warp * d;
#pragma unroll 8
    for (u32 f = lane; f < d; f += 32) candidate[f] = values[f];
}

template <typename T> __device__ __forceinline__ void plus_next(const PlusNext<T>& a) {
    u128 left = 0;
    if (!plus_take(a.take, left) || left == 0) return;
    __syncthreads();
    draw_next(a, left, *(volatile const u32*)&a.take.step.control->step);
}

// ---- entry points ----------------------------------------------------------------------------------------------------

// `plus_take` reads no values of rows.
#define PLUS_DRAW(T, S, SUFFIX)                                                                                               \
    extern "C" __global__ void __launch_bounds__(SEARCHERS) plus_draw_##SUFFIX(const __grid_constant__ PlusDraw<T, S> a) {    \
        plus_draw(a);                                                                                                         \
    }
#define PLUS_TAKE(T, SUFFIX)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256) plus_take_##SUFFIX(const __grid_constant__ PlusTake<T> a) {             \
        u128 left;                                                                                                            \
        plus_take(a, left);                                                                                                   \
    }                                                                                                                         \
    extern "C" __global__ void __launch_bounds__(NEXT_THREADS) plus_next_##SUFFIX(const __grid_constant__ PlusNext<T> a) {       \
        plus_next(a);                                                                                                         \
    }

PLUS_DRAW(float, float, f32)
PLUS_DRAW(double, double, f64)
PLUS_DRAW(float, Half, f16)
PLUS_TAKE(float, f32)
PLUS_TAKE(double, f64)

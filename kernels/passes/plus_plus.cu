// plus_plus: steps of greedy k-means++ without the host (src/seeding/plus_plus.rs).
//
//   plus_draw    draws the candidates, and makes their copies for the filter
//   seed_gains   their gains and the list of rows that come nearer to one of them (seed.cu), or plus_filter and plus_settle (plus_filter.cu)
//   plus_take    chooses a candidate and takes it, if the list has all of its rows
//   seed_take    the same with a pass over all rows, if the list is too short (seed.cu)
//
// Used when: init="k-means++", and all rows are on one device.
// Tile:      plus_draw: a block a candidate. plus_take: an entry of the list a thread.
// Memory:    plus_draw reads the totals of all ranges and one range for each candidate. plus_take reads the list. It reads and writes
//            single distances.
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

// The copy of a candidate for one centre, by one warp.
template <typename T> __device__ __forceinline__ void copy_candidate(const ByteCopies<T>& a, const T* c, const T* centre, int d, u64 place, u32 lane) {
    double largest = 0.0, square = 0.0, residual = 0.0, inverse;
#pragma unroll 4
    for (int f = lane; f < d; f += 32) {
        const double t = scaled(c[f], centre[f], a.scale);
        largest = fmax(largest, fabs(t));
        square = __fma_rn(t, t, square);
    }
#pragma unroll
    for (int o = 16; o; o >>= 1) {
        largest = fmax(largest, __shfl_xor_sync(FULL_WARP, largest, o));
        square += __shfl_xor_sync(FULL_WARP, square, o);
    }
    const float step = step_of(largest, inverse);
    u32* words = reinterpret_cast<u32*>(a.candidate_bytes + place * a.pieces);
#pragma unroll 2
    for (int word = lane; word < 4 * (int)a.pieces; word += 32) {
        u32 bytes = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int f = 4 * word + i;
            if (f < d) bytes |= byte_of(scaled(c[f], centre[f], a.scale), step, inverse, residual) << 8 * i;
        }
        words[word] = bytes;
    }
#pragma unroll
    for (int o = 16; o; o >>= 1) residual += __shfl_xor_sync(FULL_WARP, residual, o);
    if (lane == 0) {
        const float norm = norm_up(square), down = __double2float_rd(__dmul_rd(square, 1.0 - ROUNDED));
        a.candidate_facts[place] = {down, step, norm, residual_up(residual, norm)};
    }
}

template <typename T, typename S> __device__ __forceinline__ void plus_draw(const PlusDraw<T, S>& a) {
    __shared__ SearchSpace shared;
    wait_for_kernel_before();
    if (has_stopped(a.step)) return;
    const StepControl& control = *a.step.control;
    const u64 u = philox(a.key_low, a.key_high, a.stream, a.restart, control.step, blockIdx.x);
    const u64 row = drawn_row(a.draws, a.totals, below(u, wide(control.total_high, control.total_low)), shared);
    T* candidate = a.step.candidates + (u64)blockIdx.x * a.rows.d;
    copy_row(a.rows, row, candidate);
    if (a.copies.centres == 0) return;
    __syncthreads();
    for (u32 g = threadIdx.x / 32; g < a.copies.centres; g += SEARCHERS / 32)
        copy_candidate(a.copies, candidate, a.step.seeds + (u64)g * a.rows.d, a.rows.d, (u64)g * a.step.m + blockIdx.x, threadIdx.x & 31);
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

template <typename T> __device__ __forceinline__ void plus_take(const PlusTake<T>& a) {
    wait_for_kernel_before();
    if (has_stopped(a.step)) return;
    const u32 listed = a.step.control->listed;
    if (listed > a.step.room) {
        // If the filter did not write the list, `seed_take` comes next.
        if (a.step.filtered) stop_steps(a.step, STOPPED_FULL);
        return;
    }
    const Choice choice = choose(a.step, a.scale);
    if (choice.stop) return stop_steps(a.step, choice.stop);
    for (u32 i = global_thread(); i < listed; i += all_threads()) {
        const Nearer nearer = a.step.list[i];
        if (nearer.candidate != choice.candidate || nearer.distance == infinity()) continue;
        const double before = a.nearest[nearer.row], w = a.rows.w ? a.rows.w[nearer.row] : 1.0;
        a.nearest[nearer.row] = nearer.distance;
        const u128 gain = (u128)(join(quantise_distance(a.scale, w, before)) - join(quantise_distance(a.scale, w, nearer.distance)));
        // A total is a number modulo 2^128, so a negative term is one too.
        u64* total = reinterpret_cast<u64*>(a.totals + nearer.row / a.range);
        if (gain) add_wide(total, total + 1, (u128)0 - gain);
        if (nearer.place != NO_PLACE) {
            float& square = a.copies.facts[nearer.place].square;
            square = lead_after(square, before, nearer.distance, a.copies.scale);
        }
    }
    finish_step(a.step, a.rows.d, choice);
}

// ---- entry points ----------------------------------------------------------------------------------------------------

// `plus_take` reads no values of rows.
#define PLUS_DRAW(T, S, SUFFIX)                                                                                               \
    extern "C" __global__ void __launch_bounds__(SEARCHERS) plus_draw_##SUFFIX(const __grid_constant__ PlusDraw<T, S> a) {    \
        plus_draw(a);                                                                                                         \
    }
#define PLUS_TAKE(T, SUFFIX)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256) plus_take_##SUFFIX(const __grid_constant__ PlusTake<T> a) {             \
        plus_take(a);                                                                                                         \
    }

PLUS_DRAW(float, float, f32)
PLUS_DRAW(double, double, f64)
PLUS_DRAW(float, Half, f16)
PLUS_TAKE(float, f32)
PLUS_TAKE(double, f64)

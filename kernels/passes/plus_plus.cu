// plus_plus: steps of greedy k-means++ without the host (src/seeding/plus_plus.rs).
//
//   plus_draw    draws the candidates
//   seed_gains   their gains and the list of rows that come nearer to one of them (seed.cu), or plus_near, plus_filter and plus_settle
//                (plus_filter.cu)
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
        if (a.step.owners) a.step.owners[nearer.row] = a.step.control->step;
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

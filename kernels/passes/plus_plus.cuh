// The steps of k-means++ without the host: what the kernels of a step tell each other, the choice of a candidate, and the end of a step.
//
// A step draws m candidates, computes the gain of each, chooses one and takes it. Kernels note every row that comes nearer to a candidate
// in a list, with the new distance. If the list has room for all of them, the rows of the chosen candidate are known, and no pass over all
// rows takes it.
#pragma once
#include "draws.cuh"

#define MOST_TRIALS 16 // candidates of a step
#define NO_PLACE 0xffffffffu

// Why the steps stopped.
#define STOPPED_ZERO 1u // the potential is 0
#define STOPPED_COARSE 2u // the potential of a candidate is not precise in this scale. The host does this step
#define STOPPED_FULL 3u // the list has no room for what the filter leaves

// All of it is 0 at first, except the potential and the number of the step.
struct StepControl {
    u64 total_low, total_high; // the potential
    u64 gains[2 * MOST_TRIALS]; // 128 bits each, the low word first
    u32 listed; // entries of the list. It may be more than there is room for
    u32 step; // the number of this step, which is the number of seeds taken
    u32 stopped;
    u32 ticket; // blocks that have taken the chosen candidate
};

// A row that comes nearer to a candidate: the new distance, infinite if it does not after all.
struct Nearer {
    double distance;
    u32 row, place; // place: in the copies of the filter, or NO_PLACE
    u32 candidate, unused;
};

// A step on the device.
template <typename T> struct Step {
    StepControl* control; // null if the host does the step
    T* candidates; // (m, d)
    T* seeds; // (k, d): the centroids taken so far
    Nearer* list;
    u32* owners; // (n): the number of each row's nearest seed among the first `owned`, when it last came nearer to one
    u64 room; // entries of the list
    u64 terms; // rows of positive weight
    u32 m;
    u32 owned; // seeds that can have rows. 0 if they are not asked for
    u32 filtered; // whether the filter writes the list. Then there is no other way if the list is too short
    u32 unused;
};

template <typename T> __device__ __forceinline__ bool has_stopped(const Step<T>& a) { return a.control && a.control->stopped; }

template <typename T> __device__ __forceinline__ void stop_steps(const Step<T>& a, u32 why) {
    if (global_thread() == 0) a.control->stopped = why;
}

// Whether the list is not known to be too short. One that is too short is not used, so nothing need be appended any more.
template <typename T> __device__ __forceinline__ bool has_room(const Step<T>& a) {
    return *(volatile const u32*)&a.control->listed <= a.room;
}

// Appends to the list. Any lanes of a warp may call this together.
template <typename T> __device__ __forceinline__ void add_nearer(const Step<T>& a, const Nearer& nearer) {
    const u32 lanes = __activemask(), lane = threadIdx.x & 31, leader = __ffs(lanes) - 1;
    u32 place = 0;
    if (lane == leader) place = atomicAdd(&a.control->listed, __popc(lanes));
    place = __shfl_sync(lanes, place, leader) + __popc(lanes & ((1u << lane) - 1));
    if (place < a.room) a.list[place] = nearer;
}

struct Choice {
    u32 candidate;
    u32 stop; // or why there is none
    u128 left; // the potential with this candidate
};

// The candidate of the least potential; the first of them on ties. All potentials are in the same scale. Every warp finds it, a candidate
// a lane. All lanes must call this.
template <typename T> __device__ __forceinline__ Choice choose(const Step<T>& a, const DistanceScale& scale) {
    const u128 total = wide(a.control->total_high, a.control->total_low);
    const u32 lane = threadIdx.x & 31;
    Choice choice = {lane, 0, ~(u128)0};
    bool coarse = false;
    if (lane < a.m) {
        choice.left = total - wide(a.control->gains[2 * lane + 1], a.control->gains[2 * lane]);
        DistanceScale finer = scale;
        coarse = !is_precise(finer, choice.left, a.terms);
    }
#pragma unroll
    for (int o = 16; o; o >>= 1) {
        const u128 left = wide(__shfl_xor_sync(FULL_WARP, (u64)(choice.left >> 64), o), __shfl_xor_sync(FULL_WARP, (u64)choice.left, o));
        const u32 candidate = __shfl_xor_sync(FULL_WARP, choice.candidate, o);
        if (left < choice.left || (left == choice.left && candidate < choice.candidate)) choice.left = left, choice.candidate = candidate;
    }
    choice.stop = __any_sync(FULL_WARP, coarse) ? STOPPED_COARSE : 0;
    return choice;
}

// The chosen candidate becomes a seed. A block does it.
template <typename T> __device__ __forceinline__ void keep_seed(const Step<T>& a, int d, const Choice& choice) {
    const T* from = a.candidates + (u64)choice.candidate * d;
    T* to = a.seeds + (u64)a.control->step * d;
    if (blockIdx.x == gridDim.x - 1)
        for (int f = threadIdx.x; f < d; f += blockDim.x) to[f] = from[f];
}

// Ends a step, once all threads of all blocks have taken their part of the chosen candidate. The last block does it. Returns whether it is this
// block.
template <typename T> __device__ __forceinline__ bool finish_step(const Step<T>& a, const Choice& choice) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(&a.control->ticket, 1u) == gridDim.x - 1;
    __syncthreads();
    if (!last) return false;
    const u32 step = a.control->step;
    __syncthreads();
    if (threadIdx.x < 2 * MOST_TRIALS) a.control->gains[threadIdx.x] = 0;
    if (threadIdx.x == 0) {
        a.control->total_low = (u64)choice.left, a.control->total_high = (u64)(choice.left >> 64);
        a.control->listed = a.control->ticket = 0;
        a.control->step = step + 1;
        if (choice.left == 0) a.control->stopped = STOPPED_ZERO;
    }
    return true;
}

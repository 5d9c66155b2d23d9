// sum_groups: the feature sums and row counts of all clusters, by divide and conquer.
//
// Source:    Li et al. 2010, algorithm 6. Rows are divided into n' = n / M groups, each with its own temporary sums. M is a multiple of
//            the number of SMs. These sums are divided into n' / M groups, and so on, until n' <= M. The rest is reduced once more.
// Used when: strategy `li`, after a pass for labels.
// Tile:      first round: a thread has one column of one group. The rows of a group lie n' apart, so neighbouring threads read
//            neighbouring rows. The last "column" counts rows. Later rounds: a thread has one sum of one group. Last round: a warp has
//            one sum.
// Memory:    device: n' tables of (k, columns, limbs) sums of 8 bytes and k counts. The entries of neighbouring groups are adjacent.
//            Later rounds write two halves for each sum. M grows if the tables would take more than
//            src/backend/cuda/papers/sizes.rs allows.
// Precision: integers. A group has at most 4,096 rows, or its sums are kept in the low and high halves that later rounds use.
//
// Departures: the last round runs on the device. The paper downloads M tables and adds them up on the CPU. The CPU divides in both.
#include "systems.cuh"

// The number of sums and counts of a table.
__device__ __forceinline__ u64 entries(const Sums& s) { return (u64)s.k * s.columns * s.limbs + s.k; }

// Allows a group of any number of rows: whenever its running sums are full, they are added to the pending sums in device memory.
template <typename T> __device__ __forceinline__ void spill(const SystemSums<T>& a, u64 group, int c) {
    const Sums& s = a.sums;
    for (int j = 0; j < s.k; j++)
        for (int limb = 0; limb < s.limbs; limb++) {
            const u64 accumulator = ((u64)j * s.columns + c) * s.limbs + limb;
            add_pending(s.pending + accumulator * 2, a.scratch[accumulator * a.tables + group]);
            a.scratch[accumulator * a.tables + group] = 0;
        }
}

template <typename T> __device__ __forceinline__ void first_round(const SystemSums<T>& a) {
    if (a.control->stop) return;
    const Sums& s = a.sums;
    const u64 counters = (u64)s.k * s.columns * s.limbs;
    const u32 across = (a.tables + blockDim.x - 1) / blockDim.x, work = across * (s.columns + 1); // blocks of groups, by column
    u32 changed = 0;
#pragma unroll 1
    for (u32 i = blockIdx.x; i < work; i += gridDim.x) {
        const u32 c = i / across, group = (i - c * across) * blockDim.x + threadIdx.x;
        if (group >= a.tables) continue;
        i64* mine = a.scratch + group;
        if (c == (u32)s.columns) {
            for (int j = 0; j < s.k; j++) mine[(counters + j) * a.tables] = 0;
            for (u64 row = group; row < a.rows.n; row += a.tables) {
                if (!counts(a.rows, row)) continue;
                const u32 label = load_label(a.next, row);
                changed += label != load_label(a.labels, row);
                mine[(counters + label) * a.tables]++;
            }
            continue;
        }
        for (int j = 0; j < s.k; j++)
            for (int limb = 0; limb < s.limbs; limb++) mine[(((u64)j * s.columns + c) * s.limbs + limb) * a.tables] = 0;
        u32 added = 0;
        for (u64 row = group; row < a.rows.n; row += a.tables) {
            if (!counts(a.rows, row)) continue;
            const Pair p = contribution(a.rows, a.factors, a.mass_to_integer, row, (int)c);
            i64* accumulator = mine + ((u64)load_label(a.next, row) * s.columns + c) * s.limbs * a.tables;
            *accumulator += p.hi;
            if (s.limbs == 2) accumulator[a.tables] += p.lo;
            if (++added == CELL_ROWS) {
                added = 0;
                spill(a, group, (int)c);
            }
        }
    }
    __syncwarp();
    add_count(&a.control->changed, changed);
}

__device__ __forceinline__ void take_entry(Halves& sum, const i64* tables, u64 at, u32 pairs) {
    if (pairs) sum.add(Halves{(u64)tables[2 * at], (u64)tables[2 * at + 1]});
    else sum.add(tables[at]);
}

template <typename T> __device__ __forceinline__ void next_round(const SystemSums<T>& a) {
    if (a.control->stop) return;
    const u64 work = entries(a.sums) * a.tables_next;
#pragma unroll 1
    for (u64 i = global_thread(); i < work; i += all_threads()) {
        const u64 entry = i / a.tables_next;
        Halves sum = {0, 0};
        for (u32 group = (u32)(i - entry * a.tables_next); group < a.tables; group += a.tables_next)
            take_entry(sum, a.scratch, entry * a.tables + group, a.from_pairs);
        a.scratch_next[2 * i] = (i64)sum.low;
        a.scratch_next[2 * i + 1] = (i64)sum.high;
    }
}

template <typename T> __device__ __forceinline__ void last_round(const SystemSums<T>& a) {
    if (a.control->stop) return;
    const Sums& s = a.sums;
    const u64 counters = (u64)s.k * s.columns * s.limbs;
    const u32 lane = threadIdx.x & 31;
#pragma unroll 1
    for (u64 entry = global_thread() / 32; entry < entries(s); entry += all_threads() / 32) {
        Halves sum = {0, 0};
        for (u32 group = lane; group < a.tables; group += 32) take_entry(sum, a.scratch, entry * a.tables + group, a.from_pairs);
        sum.over_warp();
        if (lane != 0) continue;
        if (entry < counters) sum.flush(s.pending + entry * 2);
        else atomicAdd((u64*)&s.pending_rows[entry - counters], sum.low + (sum.high << 32));
    }
}

#define KERNELS(T, NAME)                                                                                                           \
    extern "C" __global__ void __launch_bounds__(256) sum_groups_first_##NAME(const __grid_constant__ SystemSums<T> a) { first_round(a); } \
    extern "C" __global__ void __launch_bounds__(256) sum_groups_next_##NAME(const __grid_constant__ SystemSums<T> a) { next_round(a); }   \
    extern "C" __global__ void __launch_bounds__(256) sum_groups_last_##NAME(const __grid_constant__ SystemSums<T> a) { last_round(a); }
KERNELS(float, f32)
KERNELS(double, f64)

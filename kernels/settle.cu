// settle: the exact label of every row that a filter could not decide, by reference distances to all centroids.
//
// Used when: after every assign; the list is short (ties, and rows about as far from two centroids as rounding can tell).
// Tile:      a warp has a row; its lanes take every 32nd centroid, so that each chain stays in feature order.
// Memory:    the row's values (one address for all lanes) and the centroids column by column, from the second-level cache.
// Precision: float64, the contract's own arithmetic; the smallest j of least distance.
#include "common.cuh"

template <typename T> struct Settle {
    Rows<T> rows;
    Labels labels; // before
    Labels next; // after: the same memory where the assign moves contributions itself (`moves`)
    const T* columns; // (d, k): the centroids, column-major
    const u32* contested;
    Control* control;
    int k;
    int moves;
    Sums sums;
    const Factors* factors;
    double mass_to_integer;
};

template <typename T> __device__ __forceinline__ void settle(const Settle<T>& a) {
    if (a.control->stop) return;
    const u32 count = a.control->contested;
    const int lane = threadIdx.x & 31;
    u32 changed = 0;
    for (u32 i = global_thread() / 32; i < count; i += all_threads() / 32) {
        const u64 row = a.contested[i];
        const u32 label = nearest_by_warp(a.rows, row, a.columns, a.k, lane);
        if (!a.moves) {
            if (lane == 0) store_label(a.next, row, label);
            continue;
        }
        const u32 old = load_label(a.labels, row);
        __syncwarp();
        if (label == old) continue;
        if (lane == 0) store_label(a.next, row, label);
        const double weight = a.rows.w ? a.rows.w[row] : 1.0;
        if (weight > 0.0) {
            changed++;
            move_pending(a.rows, a.sums, a.factors, a.mass_to_integer, row, old, label, weight, lane, 32);
        }
    }
    if (lane == 0 && changed) atomicAdd(&a.control->changed, (u64)changed);
}

extern "C" __global__ void __launch_bounds__(256) settle_f32(const __grid_constant__ Settle<float> a) { settle(a); }
extern "C" __global__ void __launch_bounds__(256) settle_f64(const __grid_constant__ Settle<double> a) { settle(a); }

// cells_lists: for each cell of rows, the centroids that can be nearest to a row of it, for assign_cells.
//
// Source:    the filtering algorithm of Kanungo et al. 2002, with its test of a centroid against the box of a cell. Here cells are all on one level,
//            with parents on a second one and parts of parents between.
// Used when: before each assign_cells.
// Tile:      a block has a parent: a thread takes some centroids. Then a warp has a part of the parent's cells, first together and then one by one: a
//            lane takes some centroids of the list before.
// Precision: float64. The test is that of src/bounds/grid.rs: a centroid is left out only if for every row of the box its rounded reference distance is
//            greater than that of another centroid.
#include "cells_box.cuh"

template <typename T> struct CellLists {
    const Ordered<T>* boxes; // (cells, 2, d)
    const u32* counts; // (cells): rows
    const T* centroids; // (k, d)
    u16* lists; // (cells, CELL_LIST)
    u16* parents; // (parents, k)
    u32* parent_counts; // (parents)
    const Control* control;
    double relative, underflow; // of the test
    u32 k, cells, parent_cells, unused; // parent_cells: cells of a parent, at most 128
};

#define LISTS_THREADS 256
#define LISTS_WARPS (LISTS_THREADS / 32)
// The most centroids in the list of a part of a parent. If there are more, the list of the parent is used.
#define PART_LIST 1024
// The most centroids of a cell that are compared with more than one rival. If there are more, the list of the parent is used.
#define MOST_KEPT 256
// The centroids nearest to a cell that its others are compared with.
#define RIVALS 8
#define MOST_PARENT_CELLS (MOST_CELLS / MOST_PARENTS)

// The number of the centroid with the least `far` of the lanes' best ones. Distances are not negative, so their bits have their order.
__device__ __forceinline__ u32 least_of_warp(double far, u32 j) {
    Closest closest;
    closest.least = far, closest.label = j;
    return closest.of_warp();
}

// Writes those of the `count` centroids in `from` to `to` that can be nearest to a row of the box, in the same order. Returns how many there are;
// those from number `room` on are not written.
template <int D, typename T>
__device__ __forceinline__ u32 keep_near(const CellLists<T>& a, const Box<D>& box, const u16* from, u32 count, u16* to, u32 room, u32 lane) {
    double far = infinity();
    u32 nearest = from[0];
#pragma unroll 1
    for (u32 i = lane; i < count; i += 32) {
        const u32 j = from[i];
        const Seen<D> seen(a.centroids + (u64)j * D, box);
        if (seen.far < far) far = seen.far, nearest = j;
    }
    const Seen<D> rival(a.centroids + (u64)least_of_warp(far, nearest) * D, box);
    u32 kept = 0;
#pragma unroll 1
    for (u32 start = 0; start < count; start += 32) {
        const u32 j = from[min(start + lane, count - 1)];
        const Seen<D> seen(a.centroids + (u64)j * D, box);
        const bool keeps = start + lane < count && !seen.is_farther(rival, box, a.relative, a.underflow);
        const u32 all = __ballot_sync(FULL_WARP, keeps), at = kept + __popc(all & ((1u << lane) - 1));
        if (keeps && at < room) to[at] = (u16)j;
        kept += __popc(all);
    }
    __syncwarp();
    return kept;
}

// Drops those of the `count` centroids in `few` that are farther from every row of the box than one of up to RIVALS near ones. The others stay in
// the same order. Returns how many there are. Without this, lists are two to four times as long where centroids are dense on one side of the box.
template <int D, typename T>
__device__ __forceinline__ u32 drop_behind_rivals(const CellLists<T>& a, const Box<D>& box, u16* few, u32 count, Seen<D>* rivals, u32 lane) {
    double far = infinity();
    u32 nearest = few[0], own = 0;
#pragma unroll 1
    for (u32 i = lane; i < count; i += 32) {
        const u32 j = few[i];
        const Seen<D> seen(a.centroids + (u64)j * D, box);
        if (seen.far < far) far = seen.far, nearest = j;
    }
    // The nearest one of each lane takes part: lane r keeps the one in place r.
#pragma unroll 1
    for (u32 r = 0; r < RIVALS; r++) {
        const u32 j = least_of_warp(far, nearest);
        if (lane == r) own = j;
        if (nearest == j) far = infinity();
    }
    if (lane < RIVALS) rivals[lane] = Seen<D>(a.centroids + (u64)own * D, box);
    __syncwarp();
    u32 kept = 0;
#pragma unroll 1
    for (u32 start = 0; start < count; start += 32) {
        const u32 j = few[min(start + lane, count - 1)];
        const Seen<D> seen(a.centroids + (u64)j * D, box);
        bool keeps = start + lane < count;
#pragma unroll 1
        for (u32 r = 0; r < RIVALS; r++)
            if (seen.is_farther(rivals[r], box, a.relative, a.underflow)) keeps = false;
        const u32 all = __ballot_sync(FULL_WARP, keeps);
        __syncwarp(); // all lanes have read their centroids
        if (keeps) few[kept + __popc(all & ((1u << lane) - 1))] = (u16)j;
        kept += __popc(all);
        __syncwarp();
    }
    return kept;
}

// The list of a cell, from the `count` centroids of a longer list.
template <int D, typename T>
__device__ __forceinline__ void list_of_cell(const CellLists<T>& a, const Box<D>& box, const u16* from, u32 count, u32 cell, u16* few,
                                             Seen<D>* rivals, u32 lane) {
    u16* const list = a.lists + (u64)cell * CELL_LIST;
    const u32 before = *(const u32*)list;
    u32 kept = keep_near<D>(a, box, from, count, few, MOST_KEPT, lane);
    if (kept > RIVALS && kept <= MOST_KEPT) kept = drop_behind_rivals<D>(a, box, few, kept, rivals, lane);
    if (kept > 2 && kept <= 32) {
        // Each against each of the others.
        const u32 j = few[min(lane, kept - 1)];
        const Seen<D> seen(a.centroids + (u64)j * D, box);
        bool keeps = lane < kept;
#pragma unroll 1
        for (u32 i = 0; i < kept; i++) {
            const Seen<D> other(a.centroids + (u64)few[i] * D, box);
            if (seen.is_farther(other, box, a.relative, a.underflow)) keeps = false;
        }
        const u32 all = __ballot_sync(FULL_WARP, keeps);
        kept = __popc(all);
        __syncwarp();
        if (keeps) few[__popc(all & ((1u << lane) - 1))] = (u16)j;
        __syncwarp();
    }
    const bool fits = kept < CELL_LIST;
    for (u32 i = 1 + lane; fits && i < kept; i += 32) list[1 + i] = few[i];
    if (lane == 0) {
        const u32 head = fits ? kept | few[0] << 16 : LIST_OF_PARENT;
        const bool settled = kept == 1 && (before & 0x7fff) == 1 && before >> 16 == head >> 16;
        *(u32*)list = head | (settled ? LIST_SETTLED : 0);
    }
    __syncwarp();
}

// Makes a box larger, so that it has the rows of another one.
template <int D> __device__ __forceinline__ void widen(Box<D>& box, const Box<D>& other) {
#pragma unroll
    for (int f = 0; f < D; f++) box.low[f] = fmin(box.low[f], other.low[f]), box.high[f] = fmax(box.high[f], other.high[f]);
}
template <int D> __device__ __forceinline__ Box<D> no_rows() {
    Box<D> box;
#pragma unroll
    for (int f = 0; f < D; f++) box.low[f] = infinity(), box.high[f] = -infinity();
    return box;
}

template <int D, typename T> __device__ __forceinline__ void cells_lists(const CellLists<T>& a) {
    __shared__ Box<D> boxes[MOST_PARENT_CELLS], part_boxes[LISTS_WARPS], box;
    __shared__ bool has_rows[MOST_PARENT_CELLS];
    __shared__ double fars[LISTS_WARPS];
    __shared__ u32 nearest[LISTS_WARPS], counts[2][LISTS_WARPS];
    __shared__ u16 few[LISTS_WARPS][MOST_KEPT], parts[LISTS_WARPS][PART_LIST];
    __shared__ Seen<D> rivals[LISTS_WARPS][RIVALS];
    const u32 tid = threadIdx.x, lane = tid & 31, warp = tid / 32, first = blockIdx.x * a.parent_cells;
    wait_for_kernel_before();
    if (a.control->stop) return;
    for (u32 i = tid; i < a.parent_cells * D; i += LISTS_THREADS) {
        const u32 cell = i / D, f = i % D;
        boxes[cell].low[f] = (double)unordered(a.boxes[(u64)(first + cell) * 2 * D + f]);
        boxes[cell].high[f] = (double)unordered(a.boxes[((u64)(first + cell) * 2 + 1) * D + f]);
        if (f == 0) has_rows[cell] = a.counts[first + cell] != 0;
    }
    __syncthreads();
    // The cells of this warp.
    const u32 each = (a.parent_cells + LISTS_WARPS - 1) / LISTS_WARPS, from = min(warp * each, a.parent_cells), to = min(from + each, a.parent_cells);
    if (lane == 0) {
        Box<D> part = no_rows<D>();
        for (u32 cell = from; cell < to; cell++)
            if (has_rows[cell]) widen(part, boxes[cell]);
        part_boxes[warp] = part;
    }
    __syncthreads();
    if (tid == 0) {
        Box<D> all = part_boxes[0];
        for (u32 w = 1; w < LISTS_WARPS; w++) widen(all, part_boxes[w]);
        box = all;
    }
    __syncthreads();
    if (box.low[0] > box.high[0]) return; // no rows
    double far = infinity();
    u32 own = 0;
#pragma unroll 1
    for (u32 j = tid; j < a.k; j += LISTS_THREADS) {
        const Seen<D> seen(a.centroids + (u64)j * D, box);
        if (seen.far < far) far = seen.far, own = j;
    }
    own = least_of_warp(far, own);
    if (lane == 0) nearest[warp] = own, fars[warp] = Seen<D>(a.centroids + (u64)own * D, box).far;
    __syncthreads();
    own = nearest[0], far = fars[0];
    for (u32 w = 1; w < LISTS_WARPS; w++)
        if (fars[w] < far) far = fars[w], own = nearest[w];
    const Seen<D> rival(a.centroids + (u64)own * D, box);
    u16* const list = a.parents + (u64)blockIdx.x * a.k;
    u32 count = 0;
#pragma unroll 1
    for (u32 start = 0, turn = 0; start < a.k; start += LISTS_THREADS, turn ^= 1) {
        const u32 j = min(start + tid, a.k - 1);
        const Seen<D> seen(a.centroids + (u64)j * D, box);
        const bool keeps = start + tid < a.k && !seen.is_farther(rival, box, a.relative, a.underflow);
        const u32 all = __ballot_sync(FULL_WARP, keeps);
        if (lane == 0) counts[turn][warp] = __popc(all);
        __syncthreads();
        u32 at = count + __popc(all & ((1u << lane) - 1));
        for (u32 w = 0; w < LISTS_WARPS; w++) at += w < warp ? counts[turn][w] : 0, count += counts[turn][w];
        if (keeps) list[at] = (u16)j;
    }
    if (tid == 0) a.parent_counts[blockIdx.x] = count;
    __syncthreads();
    const u16* near = list;
    if (each > 1 && count > 32 && part_boxes[warp].low[0] <= part_boxes[warp].high[0]) {
        const u32 kept = keep_near<D>(a, part_boxes[warp], list, count, parts[warp], PART_LIST, lane);
        if (kept <= PART_LIST) near = parts[warp], count = kept;
    }
#pragma unroll 1
    for (u32 cell = from; cell < to; cell++)
        if (has_rows[cell]) list_of_cell<D>(a, boxes[cell], near, count, first + cell, few[warp], rivals[warp], lane);
}

#define KERNEL(T, D, NAME)                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(LISTS_THREADS, D == 4 ? 3 : 4) NAME(const __grid_constant__ CellLists<T> a) { cells_lists<D>(a); }
#define ALL(D)                                                                                                                                \
    KERNEL(float, D, cells_lists_f32_d##D)                                                                                                    \
    KERNEL(double, D, cells_lists_f64_d##D)
ALL(1)
ALL(2)
ALL(3)
ALL(4)

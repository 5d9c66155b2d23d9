// grid_lists: for each cell of rows, the centroids that can be nearest to a row of it, for assign_grid.
//
// Source:    the filtering algorithm of Kanungo et al. 2002, with its test of a centroid against the box of a cell. Here cells are all on one level,
//            with parents on a second one and parts of parents between.
// Used when: before each assign_grid.
// Tile:      a block has a parent: a thread takes some centroids. Then a warp has a part of the parent's cells together, or the block one part after
//            another if lists are long. Last, warps take the cells one by one: a lane takes some centroids of the list before.
// Precision: float64. The test is that of src/bounds/grid.rs: a centroid is left out only if for every row of the box its rounded reference distance is
//            greater than that of another centroid.
#include "grid_rivals.cuh"

// The most centroids in the list of a part of a parent. If there are more, the list of the parent is used.
#define PART_LIST 1024
// The most centroids of a cell's list. If there are more, the list of the parent is used.
#define MOST_KEPT 256
// The centroids of a parent, or of a part, that are too many: more rivals are looked for. And how often.
#define LONG_PARENT 512
#define LONG_PART 256
#define PARENT_ROUNDS 12
#define ROUNDS 8
#define MOST_PARENT_CELLS (MOST_CELLS / MOST_PARENTS)

// Where long lists of a parent's cells are.
struct LongLists {
    u16* at;
    u32* taken; // places that are taken
    u32 room;
};

// The list of a cell, from the `count` centroids of a longer list.
template <int D, typename T>
__device__ __forceinline__ void list_of_cell(const CellLists<T>& a, const Box<D>& box, const u16* from, u32 count, u32 cell, const LongLists& longer,
                                             u16* few, Seen<D>* rivals, u32 lane) {
    u16* const list = a.lists + (u64)cell * CELL_LIST;
    const u32 before = *(const u32*)list;
    u32 kept = keep_near<D>(a, box, from, count, few, MOST_KEPT, lane);
    u32 round = 0;
#pragma unroll 1
    for (; kept > MOST_KEPT && round < ROUNDS; round++) // other rivals each time
        kept = drop_behind_places<D>(a, box, from, count, few, MOST_KEPT, rivals, round, lane);
    if (kept > RIVALS && kept <= MOST_KEPT) kept = drop_behind_near<D>(a, box, few, kept, rivals, lane);
#pragma unroll 1
    for (round = 0; kept >= CELL_LIST && kept <= MOST_KEPT && round < ROUNDS; round++)
        kept = drop_behind_places<D>(a, box, few, kept, few, kept, rivals, ROUNDS + round, lane);
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
    u32 head = fits ? kept | few[0] << 16 : LIST_OF_PARENT;
    if (!fits && kept <= MOST_KEPT) {
        u32 at = 0;
        if (lane == 0) at = atomicAdd(longer.taken, kept);
        at = __shfl_sync(FULL_WARP, at, 0);
        if (at + kept <= longer.room) {
            for (u32 i = lane; i < kept; i += 32) longer.at[at + i] = few[i];
            head = LIST_LONG | kept | at << 16;
        }
    }
    if (lane == 0) {
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

template <int D, typename T> __device__ __forceinline__ void grid_lists(const CellLists<T>& a) {
    __shared__ Box<D> boxes[MOST_PARENT_CELLS], part_boxes[LISTS_WARPS], box;
    __shared__ bool has_rows[MOST_PARENT_CELLS];
    __shared__ OfBlock<D> all_warps;
    __shared__ u16 few[LISTS_WARPS][MOST_KEPT], parts[LISTS_WARPS][PART_LIST];
    __shared__ u32 part_counts[LISTS_WARPS], taken, taken_places; // PART_LIST + 1 or more: the list of the parent is used
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
    // The cells of the part of this warp.
    const u32 each = (a.parent_cells + LISTS_WARPS - 1) / LISTS_WARPS, from = min(warp * each, a.parent_cells), to = min(from + each, a.parent_cells);
    if (lane == 0) {
        Box<D> part = no_rows<D>();
        for (u32 cell = from; cell < to; cell++)
            if (has_rows[cell]) widen(part, boxes[cell]);
        part_boxes[warp] = part;
        part_counts[warp] = PART_LIST + 1;
    }
    __syncthreads();
    if (tid == 0) {
        Box<D> all = part_boxes[0];
        for (u32 w = 1; w < LISTS_WARPS; w++) widen(all, part_boxes[w]);
        box = all;
        taken = 0;
    }
    __syncthreads();
    if (box.low[0] > box.high[0]) return; // no rows
    u16* const list = a.parents + (u64)blockIdx.x * a.k;
    u32 count = near_by_block<D>(a, box, nullptr, a.k, list, a.k, all_warps);
#pragma unroll 1
    for (u32 round = 0; count > LONG_PARENT && round < PARENT_ROUNDS; round++) count = places_by_block<D>(a, box, list, count, round, all_warps);
    if (tid == 0) a.parent_counts[blockIdx.x] = taken_places = count;
    const LongLists longer = {list, &taken_places, (u32)a.k};
    if (each > 1 && count > LONG_PARENT) {
#pragma unroll 1
        for (u32 part = 0; part < LISTS_WARPS; part++) {
            if (part_boxes[part].low[0] > part_boxes[part].high[0]) continue;
            u32 kept = near_by_block<D>(a, part_boxes[part], list, count, parts[part], PART_LIST, all_warps);
#pragma unroll 1
            for (u32 round = 0; kept > LONG_PART && kept <= PART_LIST && round < ROUNDS; round++)
                kept = places_by_block<D>(a, part_boxes[part], parts[part], kept, round, all_warps);
            if (tid == 0) part_counts[part] = kept;
        }
    } else if (each > 1 && count > 32 && part_boxes[warp].low[0] <= part_boxes[warp].high[0]) {
        const u32 kept = keep_near<D>(a, part_boxes[warp], list, count, parts[warp], PART_LIST, lane);
        if (lane == 0) part_counts[warp] = kept;
    }
    __syncthreads();
    // Some cells take much longer than others, so warps take them one by one.
#pragma unroll 1
    while (true) {
        u32 cell = 0;
        if (lane == 0) cell = atomicAdd(&taken, 1);
        cell = __shfl_sync(FULL_WARP, cell, 0);
        if (cell >= a.parent_cells) break;
        if (!has_rows[cell]) continue;
        const u32 part = cell / each, of_part = part_counts[part];
        const bool own = of_part <= PART_LIST;
        list_of_cell<D>(a, boxes[cell], own ? parts[part] : list, own ? of_part : count, first + cell, longer, few[warp], rivals[warp],
                        lane);
    }
}

#define KERNEL(T, D, NAME)                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(LISTS_THREADS, D == 4 ? 3 : 4) NAME(const __grid_constant__ CellLists<T> a) { grid_lists<D>(a); }
#define ALL(D)                                                                                                                                \
    KERNEL(float, D, grid_lists_f32_d##D)                                                                                                    \
    KERNEL(double, D, grid_lists_f64_d##D)
ALL(1)
ALL(2)
ALL(3)
ALL(4)

// Lists of centroids for kernels/step/grid_lists.cu: which of them can be nearest to a row of a box, by comparison with rivals. A warp shortens a
// list, or a block does.
#pragma once
#include "grid_box.cuh"

template <typename T> struct CellLists {
    const Ordered<T>* boxes; // (cells, 2, d)
    const u32* counts; // (cells): rows
    const T* centroids; // (k, d)
    u16* lists; // (cells, CELL_LIST)
    u16* parents; // (parents, k): the list of each parent, then long lists of its cells
    u32* parent_counts; // (parents)
    const Control* control;
    double relative, underflow; // of the test
    u32 k, cells, parent_cells, unused; // parent_cells: cells of a parent, at most 128
};

#define LISTS_THREADS 256
#define LISTS_WARPS (LISTS_THREADS / 32)
// The centroids nearest to a cell that its others are compared with.
#define RIVALS 8

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

// One of `count` entries, at random.
__device__ __forceinline__ u32 random_entry(u32 number, u32 count) {
    u32 bits = (number + 1) * 0x9e3779b1u;
    bits = (bits ^ bits >> 15) * 0x85ebca77u;
    bits = (bits ^ bits >> 13) * 0xc2b2ae3du;
    return __umulhi(bits ^ bits >> 16, count);
}

// The centroid nearest to a place of a box, among some. The place is that nearest to one of them, chosen at random: many that lie behind a side of the
// box are farther from its rows than one right behind the side.
template <int D> struct NearPlace {
    double place[D], least;
    u32 label;

    template <typename T>
    __device__ __forceinline__ NearPlace(const T* centroids, const Box<D>& box, const u16* list, u32 count, u32 number)
        : least(infinity()), label(list[random_entry(number, count)]) {
#pragma unroll
        for (int f = 0; f < D; f++) place[f] = fmin(fmax((double)centroids[(u64)label * D + f], box.low[f]), box.high[f]);
    }
    template <typename T> __device__ __forceinline__ void compare(const T* centroids, u32 j) {
        double s = 0.0;
#pragma unroll
        for (int f = 0; f < D; f++) {
            const double t = (double)centroids[(u64)j * D + f] - place[f];
            s = __fma_rn(t, t, s);
        }
        if (s < least) least = s, label = j;
    }
    // Of the lanes that look for the same place: those whose numbers are equal modulo RIVALS.
    __device__ __forceinline__ void of_lanes() {
#pragma unroll
        for (int o = RIVALS; o < 32; o *= 2) {
            const double other = __shfl_xor_sync(FULL_WARP, least, o);
            const u32 j = __shfl_xor_sync(FULL_WARP, label, o);
            if (other < least) least = other, label = j;
        }
    }
};

// Writes those of the `count` centroids in `from` to `to` that are not farther from every row of the box than one of the rivals, in the same order.
// `to` may be `from`. Returns how many there are; those from number `room` on are not written.
template <int D, typename T>
__device__ __forceinline__ u32 drop_behind(const CellLists<T>& a, const Box<D>& box, const u16* from, u32 count, u16* to, u32 room,
                                           const Seen<D>* rivals, u32 many, u32 lane) {
    u32 kept = 0;
#pragma unroll 1
    for (u32 start = 0; start < count; start += 32) {
        const u32 j = from[min(start + lane, count - 1)];
        const Seen<D> seen(a.centroids + (u64)j * D, box);
        bool keeps = start + lane < count;
#pragma unroll 1
        for (u32 r = 0; r < many; r++) {
            if (seen.is_farther(rivals[r], box, a.relative, a.underflow)) keeps = false;
            if (!__any_sync(FULL_WARP, keeps)) break;
        }
        const u32 all = __ballot_sync(FULL_WARP, keeps), at = kept + __popc(all & ((1u << lane) - 1));
        __syncwarp(); // all lanes have read their centroids
        if (keeps && at < room) to[at] = (u16)j;
        kept += __popc(all);
        __syncwarp();
    }
    return kept;
}

// Drops those of the `count` centroids in `few` that are farther from every row of the box than one of up to RIVALS near ones. The others stay in
// the same order. Returns how many there are. Without this, lists are two to four times as long where centroids are dense on one side of the box.
template <int D, typename T>
__device__ __forceinline__ u32 drop_behind_near(const CellLists<T>& a, const Box<D>& box, u16* few, u32 count, Seen<D>* rivals, u32 lane) {
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
    return drop_behind<D>(a, box, few, count, few, count, rivals, RIVALS, lane);
}

// The same for rivals that are nearest to RIVALS places of the box. A large box beside dense centroids has few that are nearest to a row of it, but no
// single rival shows this. Each round has other places.
template <int D, typename T>
__device__ __forceinline__ u32 drop_behind_places(const CellLists<T>& a, const Box<D>& box, const u16* from, u32 count, u16* to, u32 room,
                                                  Seen<D>* rivals, u32 round, u32 lane) {
    NearPlace<D> near(a.centroids, box, from, count, round * RIVALS + lane % RIVALS);
#pragma unroll 2
    for (u32 i = lane / RIVALS; i < count; i += 32 / RIVALS) near.compare(a.centroids, from[i]);
    near.of_lanes();
    if (lane < RIVALS) rivals[lane] = Seen<D>(a.centroids + (u64)near.label * D, box);
    __syncwarp();
    return drop_behind<D>(a, box, from, count, to, room, rivals, RIVALS, lane);
}

// What the warps of a block find together.
template <int D> struct OfBlock {
    double least[LISTS_WARPS][RIVALS]; // of each warp
    u32 nearest[LISTS_WARPS][RIVALS];
    Seen<D> rivals[RIVALS];
    u32 counts[2][LISTS_WARPS];
};

// As `drop_behind`, by all threads of the block. `from` may be null: then these are all centroids.
template <int D, typename T>
__device__ __forceinline__ u32 drop_by_block(const CellLists<T>& a, const Box<D>& box, const u16* from, u32 count, u16* to, u32 room, u32 many,
                                             OfBlock<D>& all_warps) {
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    u32 kept = 0;
#pragma unroll 1
    for (u32 start = 0, turn = 0; start < count; start += LISTS_THREADS, turn ^= 1) {
        const u32 i = min(start + threadIdx.x, count - 1), j = from ? from[i] : i;
        const Seen<D> seen(a.centroids + (u64)j * D, box);
        bool keeps = start + threadIdx.x < count;
#pragma unroll 1
        for (u32 r = 0; r < many; r++) {
            if (seen.is_farther(all_warps.rivals[r], box, a.relative, a.underflow)) keeps = false;
            if (!__any_sync(FULL_WARP, keeps)) break;
        }
        const u32 all = __ballot_sync(FULL_WARP, keeps);
        if (lane == 0) all_warps.counts[turn][warp] = __popc(all);
        __syncthreads(); // all threads have read their centroids
        u32 at = kept + __popc(all & ((1u << lane) - 1));
        for (u32 w = 0; w < LISTS_WARPS; w++)
            at += w < warp ? all_warps.counts[turn][w] : 0, kept += all_warps.counts[turn][w];
        if (keeps && at < room) to[at] = (u16)j;
    }
    __syncthreads();
    return kept;
}

// As `keep_near`, by all threads of the block. `from` may be null: then these are all centroids.
template <int D, typename T>
__device__ __forceinline__ u32 near_by_block(const CellLists<T>& a, const Box<D>& box, const u16* from, u32 count, u16* to, u32 room,
                                             OfBlock<D>& all_warps) {
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    double far = infinity();
    u32 own = from ? from[0] : 0;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < count; i += LISTS_THREADS) {
        const u32 j = from ? from[i] : i;
        const Seen<D> seen(a.centroids + (u64)j * D, box);
        if (seen.far < far) far = seen.far, own = j;
    }
    own = least_of_warp(far, own);
    if (lane == 0) all_warps.nearest[warp][0] = own, all_warps.least[warp][0] = Seen<D>(a.centroids + (u64)own * D, box).far;
    __syncthreads();
    if (threadIdx.x == 0) {
        u32 best = 0;
        for (u32 w = 1; w < LISTS_WARPS; w++)
            if (all_warps.least[w][0] < all_warps.least[best][0]) best = w;
        all_warps.rivals[0] = Seen<D>(a.centroids + (u64)all_warps.nearest[best][0] * D, box);
    }
    __syncthreads();
    return drop_by_block<D>(a, box, from, count, to, room, 1, all_warps);
}

// As `drop_behind_places`, by all threads of the block.
template <int D, typename T>
__device__ __forceinline__ u32 places_by_block(const CellLists<T>& a, const Box<D>& box, u16* list, u32 count, u32 round, OfBlock<D>& all_warps) {
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    NearPlace<D> near(a.centroids, box, list, count, round * RIVALS + lane % RIVALS);
#pragma unroll 2
    for (u32 i = threadIdx.x / RIVALS; i < count; i += LISTS_THREADS / RIVALS) near.compare(a.centroids, list[i]);
    near.of_lanes();
    if (lane < RIVALS) all_warps.least[warp][lane] = near.least, all_warps.nearest[warp][lane] = near.label;
    __syncthreads();
    if (threadIdx.x < RIVALS) {
        u32 best = 0;
        for (u32 w = 1; w < LISTS_WARPS; w++)
            if (all_warps.least[w][threadIdx.x] < all_warps.least[best][threadIdx.x]) best = w;
        all_warps.rivals[threadIdx.x] = Seen<D>(a.centroids + (u64)all_warps.nearest[best][threadIdx.x] * D, box);
    }
    __syncthreads();
    return drop_by_block<D>(a, box, list, count, list, count, RIVALS, all_warps);
}

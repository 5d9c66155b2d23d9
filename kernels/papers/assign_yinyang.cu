// assign_yinyang: compares listed rows with the centroids of some groups, by the float32 product filter of assign_tiled. It gives labels, rows in doubt and
// new bounds.
//
//   for each tile of 128 rows, for each group of centroids that any of them wants, for each tile of centroids of the group:
//     8 x 8 scores a thread += x^ . (-c^);   best, second and third of each row, merged over the lanes that share its scores
//     after a group: the best score gives the bound of the group, and is merged with those of the groups before
//   the second best is out of reach of the best: the label is certified. The best score gives the upper bound, the second the lower bound.
//     In the group of the label, the second score of that group gives the bound
//   else: pairs and other rows in doubt are listed for settle.cu. Any of their centroids in reach may become the label. So the bounds that are stored
//     hold for each of them: the upper bound is infinite, the lower ones come from best scores
//
// Source:    the tile is that of assign_tiled (Li et al. 2010, algorithm 4). Groups of centroids: Yinyang (Ding et al. 2015), but a group is a multiple of
//            a tile of centroids, and is left out for 128 rows at a time.
// Used when: after yinyang_rows, which makes the copies of the rows.
// Tiles:     128 rows by 128, 64 or 32 centroids (suffix _k128, _k64, _k32). The variants _panels have partial sums of as many features as centroids. The
//            grid is persistent: a block takes every gridDim.x-th tile of rows.
// Memory:    copies of rows and centroids, read tile by tile. A warp requests steps ahead, across the borders of tiles. One thread makes the list of
//            coming tiles.
// Precision: as assign_tiled: a score is one chain of d fmas, or of partial sums of PANEL features, and the lowered half square is added last. Bounds of
//            distances: src/bounds/yinyang.rs.
// Relies on: x is aligned to 16 bytes and its stride a multiple of 128. k_padded is a multiple of 128, with zero copies and infinite half squares
//            from k on. Every row that is listed wants the group of its own centroid.
#include "yinyang.cuh"
#include "../step/tiled_epilogue.cuh"
#include "../step/tiled_pipeline.cuh"

// Which tile comes, and what begins and ends with it.
struct Item {
    u32 row_tile, centroid_tile, flags, unused;
};
#define FIRST_OF_GROUP 1u
#define LAST_OF_GROUP 2u
#define FIRST_OF_ROWS 4u // set in all tiles of the first group
#define LAST_OF_ROWS 8u
#define END 16u

struct Yinyang {
    Carried carried;
    const float* slacks; // (k padded): by centroid
    const Bound* bound;
    RowInDoubt* in_doubt;
    u32 tiles; // of centroids
    u32 group_tiles; // tiles of a group
};

// Which tiles of a block come next. One thread uses it.
struct Coming {
    u64 groups; // of the tile of rows that are still to come
    u64 computed; // scores of what has been compared
    u32 row_tile, tile_of_group, first;

    __device__ __forceinline__ void begin(const Yinyang& a, u32 row_tiles) {
        tile_of_group = 0, first = FIRST_OF_ROWS;
        groups = row_tile < row_tiles ? a.carried.unions[row_tile] : 0;
    }
    __device__ __forceinline__ Item next(const Yinyang& a, u32 row_tiles) {
        if (row_tile >= row_tiles) return {0, 0, END, 0};
        const u32 group = (u32)__ffsll((i64)groups) - 1, tile = group * a.group_tiles + tile_of_group;
        Item item = {row_tile, tile, first | (tile_of_group == 0 ? FIRST_OF_GROUP : 0), 0};
        tile_of_group++;
        if (tile_of_group == a.group_tiles || tile + 1 == a.tiles) {
            item.flags |= LAST_OF_GROUP;
            groups &= groups - 1;
            tile_of_group = 0, first = 0;
            if (groups == 0) {
                item.flags |= LAST_OF_ROWS;
                row_tile += gridDim.x;
                begin(a, row_tiles);
            }
        }
        return item;
    }
};

#define ITEMS 8
#define HALF_SQUARES 4 // tiles whose half squares are in shared memory

template <typename S> struct alignas(128) YinyangShared {
    Stage<S> stages[S::ring];
    float4 half_squares[HALF_SQUARES][S::centroids / 4];
    float2 best[S::warps_across][ROWS / 2], second[S::warps_across][ROWS / 2], thirds[S::warps_across * ROWS / 2];
    uint2 index[S::warps_across][ROWS / 2];
    // Of all groups so far of the tile of rows. `within`: the second score in the group of the best.
    Best<true> all[ROWS];
    float within[ROWS];
    Item items[ITEMS];
    Coming coming;

    static const int half_squares_at = S::ring * sizeof(Stage<S>);
};

// Requests the values of steps, in the order in which they are used. Addresses are computed for each step: that costs less than the registers to keep them.
template <typename S> struct Requests {
    const Yinyang& a;
    YinyangShared<S>& s;
    const u32 places; // this thread's first place in the first stage
    u32 item, step;

    __device__ __forceinline__ Requests(const Yinyang& a, YinyangShared<S>& s)
        : a(a), s(s), places(opaque((u32)__cvta_generic_to_shared(&s) + threadIdx.x * 16)), item(0), step(0) {}

    __device__ __forceinline__ void ask(u32 slot, u32 steps) {
        const Carried& c = a.carried;
        const Item next = s.items[item % ITEMS];
        const u32 tid = opaque(threadIdx.x), to = places + slot * (u32)sizeof(Stage<S>), first = step * S::step, quarter = S::centroids / 4;
        if (!(next.flags & END)) {
            const int warp = (int)(tid >> 5), feature = (int)(tid / quarter), left = (int)(c.d - first);
            const float* const x = c.x + (u64)(first + warp) * c.stride + next.row_tile * ROWS + 4 * (tid & 31);
            const u32 centroid = next.centroid_tile * S::centroids + 4 * (tid % quarter);
            const float* const copies = c.own_copies + (u64)(first + feature) * c.k_padded + centroid;
            if (left >= S::step) {
                fetch_rows<S, true, 0>(to, x, c.stride, warp, left);
                fetch_copies<S, true, 0>(to, copies, (int)c.k_padded, feature, left);
            } else {
                fetch_rows<S, false, 0>(to, x, c.stride, warp, left);
                fetch_copies<S, false, 0>(to, copies, (int)c.k_padded, feature, left);
            }
            if (step == 0 && tid < quarter)
                copy_async<YinyangShared<S>::half_squares_at, true>(places + item % HALF_SQUARES * (u32)(S::centroids * 4),
                                                                   c.own_half_squares + centroid);
        }
        commit_copies();
        if (++step == steps) step = 0, item++;
    }
};

// The end of a tile of rows: labels, rows in doubt, bounds. All lanes of a warp must call this.
__device__ __forceinline__ void decide_yinyang(const Yinyang& a, const Best<true>& b, float within, const Terms& terms, u32 place, bool inside, bool full,
                                               u32 group_centroids, int lane) {
    const Carried& c = a.carried;
    const u32 first = c.order[b.first()], second = c.order[b.index >> 16];
    const float slack = __ldg(a.slacks + first), limit = reach(*a.bound, terms.square, b.best, slack);
    const bool certified = b.second > limit, pair = !certified && b.third > limit;
    // Where the row's label is known, it need not be written again.
    const u32 label = inside && !full ? c.own_labels[place] : UNASSIGNED, row = inside ? row_at(c, place) : 0;
    list_rows(inside && pair, &c.control->pairs, a.in_doubt, 1, {row, second}, lane);
    list_rows(inside && !certified && !pair, &c.control->in_doubt, a.in_doubt + (c.n - 1), -1, {row, 0}, lane);
    if (!inside) return;
    float upper = infinity_f();
    if (certified) {
        upper = upper_stored(upper_of(b.best, slack, terms.high), c.centroids[first]);
        // The distance that yinyang_tighten has computed is less rough.
        if (label == first) upper = fminf(upper, c.bounds[place].x);
        if (c.group_count > 1) {
            const u32 own = b.first() / group_centroids;
            c.group_bounds[(u64)place * c.width + own] = lower_stored(lower_of(within, terms.low), c.groups[own]);
        }
    }
    if ((certified || pair) && label != first) {
        store_label(c.next, row, first);
        c.own_labels[place] = (u16)first;
    }
    const float lower = fminf(terms.others, lower_of(certified ? b.second : b.best, terms.low));
    c.bounds[place] = {upper, lower_stored(lower, c.groups[c.group_count])};
}

// After a tile of centroids, if it ends a group: the group's bounds, and the best of all groups so far.
template <typename S>
__device__ __forceinline__ void end_group(const Yinyang& a, YinyangShared<S>& s, const Item& last, int tid) {
    const Carried& c = a.carried;
    const Item item = last;
    const bool full = c.own->full;
    const u32 count = full ? c.n : c.own->listed;
    const u32 group = item.centroid_tile / a.group_tiles, group_centroids = a.group_tiles * S::centroids;
    if (tid == 0)
        s.coming.computed += (u64)min((u32)ROWS, count - item.row_tile * ROWS) * min(group_centroids, c.k - group * group_centroids);
#pragma unroll 1
    for (int p = tid; p < ROWS; p += S::threads) {
        Best<true> b = kept_best<S>(s, s.thirds, 0, p);
#pragma unroll
        for (int w = 1; w < S::warps_across; w++) b.merge(kept_best<S>(s, s.thirds, w, p));
        const u32 at = item.row_tile * ROWS + p;
        const bool inside = at < count;
        const u32 place = full ? at : inside ? c.listed[at].place : 0;
        const Terms terms = c.terms[at];
        if (inside && c.group_count > 1)
            c.group_bounds[(u64)place * c.width + group] = lower_stored(lower_of(b.best, terms.low), c.groups[group]);
        float within = b.second;
        if (!(item.flags & FIRST_OF_ROWS)) {
            Best<true> before = s.all[p];
            if (!(b.best < before.best)) within = s.within[p];
            before.merge(b);
            b = before;
        }
        if (item.flags & LAST_OF_ROWS) decide_yinyang(a, b, within, terms, place, inside, full, group_centroids, tid & 31);
        else s.all[p] = b, s.within[p] = within;
    }
}

// PARKS: whether there are partial sums of S::panel features.
template <typename S, bool PARKS> __device__ __forceinline__ void assign_yinyang(const Yinyang& a, YinyangShared<S>& s, float4* totals) {
    const Carried& c = a.carried;
    wait_for_kernel_before();
    if (c.control->stop) return;
    const u32 count = c.own->full ? c.n : c.own->listed, row_tiles = count / ROWS + (count % ROWS != 0);
    if (blockIdx.x >= row_tiles) return;

    const int tid = (int)opaque(threadIdx.x), lane = tid & 31, d = (int)c.d;
    const u32 steps = (d + S::step - 1) / S::step;
    const Operands operands(lane, tid >> 5);
    if (tid == 0) {
        s.coming.row_tile = blockIdx.x, s.coming.computed = 0;
        s.coming.begin(a, row_tiles);
#pragma unroll 1
        for (int i = 0; i <= S::ring; i++) s.items[i] = s.coming.next(a, row_tiles);
    }
    __syncthreads();
    Requests<S> requests(a, s);
    for (int i = 0; i < S::ring - 1; i++) requests.ask(i, steps);

    u32 slot = 0; // the place of the current step in the ring
#pragma unroll 1
    for (u32 t = 0;; t++) {
        await_copies<S::ring - 2>();
        __syncthreads();
        if (t != 0 && s.items[(t - 1) % ITEMS].flags & LAST_OF_GROUP) {
            end_group<S>(a, s, s.items[(t - 1) % ITEMS], (int)opaque(tid));
            // With one step a tile, this tile's best scores are written before the next barrier.
            if (steps == 1) __syncthreads();
        }
        if (s.items[t % ITEMS].flags & END) break;
        if (tid == 0) s.items[(t + S::ring + 1) % ITEMS] = s.coming.next(a, row_tiles);
        Scores scores;
        clear(scores);
        // A warp beyond the last centroid multiplies nothing: its half squares are infinite.
        const u32 first_centroid = s.items[t % ITEMS].centroid_tile * S::centroids;
        const int features = first_centroid + operands.warp_centroid * WARP_CENTROIDS < c.k ? d : 0;
#pragma unroll 1
        for (u32 step = 0; step < steps; step++) {
            if (step != 0) {
                await_copies<S::ring - 2>();
                __syncthreads();
            }
            requests.ask(slot == 0 ? S::ring - 1 : slot - 1, steps);
            if (PARKS && step != 0 && step % S::panel_steps == 0) park<S>(scores, totals, tid, step == S::panel_steps);
            multiply_step<S>(scores, s.stages[slot].x[0] + operands.x_at, s.stages[slot].copies + operands.c_at, features - (int)step * S::step);
            slot = slot + 1 == S::ring ? 0 : slot + 1;
        }
        if (PARKS && steps > S::panel_steps) take_back<S>(scores, totals, tid);
        add_half_squares(scores, s.half_squares[t % HALF_SQUARES] + operands.c_at);
        Best<true> two[2];
        const Item& item = s.items[t % ITEMS];
        best_of_tile<S>(scores, item.centroid_tile * S::centroids + 4 * operands.c_at, lane, two);
        keep_best<S>(s, s.thirds, operands, lane, item.flags & FIRST_OF_GROUP, two);
    }
    if (tid == 0) atomicAdd(&c.control->scores, s.coming.computed), atomicAdd(&c.own->computed, s.coming.computed);
}

// Where no sums are partial, a panel has more features than any row.
#define NO_PANEL (1 << 30)
#define ASSIGN_YINYANG(NAME, CENTROIDS, BLOCKS, STEP, RING, PANEL)                                                                   \
    extern "C" __global__ void __launch_bounds__(ROWS * CENTROIDS / 64, BLOCKS) NAME(const __grid_constant__ Yinyang a) {            \
        typedef Tiling<float, float, CENTROIDS, STEP, RING, PANEL> S;                                                                \
        __shared__ YinyangShared<S> s;                                                                                               \
        extern __shared__ float4 totals[];                                                                                           \
        assign_yinyang<S, PANEL != NO_PANEL>(a, s, totals);                                                                          \
    }

ASSIGN_YINYANG(assign_yinyang_k128, 128, 2, 16, 2, NO_PANEL)
ASSIGN_YINYANG(assign_yinyang_k64, 64, 4, 16, 2, NO_PANEL)
ASSIGN_YINYANG(assign_yinyang_k32, 32, 8, 8, 3, NO_PANEL)
ASSIGN_YINYANG(assign_yinyang_k128_panels, 128, 2, 16, 2, 128)
ASSIGN_YINYANG(assign_yinyang_k64_panels, 64, 3, 16, 2, 64)

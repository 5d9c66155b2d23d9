// What the kernels of kernels/step/assign_tensor.cu and assign_tensor_mma.cu have in common: their argument, the best keys of a row, and the
// decision about a row.
//
//   sums       a lane has two neighbouring columns of every eight, at 2 (lane % 4). So four lanes share a row, and each has two sets of
//              columns: even ones and odd ones
//   keys       scores whose lowest five bits are the number of their eight columns in the tile of centroids
//   WIDTH      columns of a tile of centroids: 128 or 256
#pragma once
#include "../common/filter.cuh"
#include "../common/tensor.cuh"

struct Tensor {
    const u8* rows; // (tiles, chunks, 128, 64) of 2 bytes
    const float* terms; // (tiles, 128): the row's part of the bound
    const u32* row_of_place; // (tiles, 128)
    const u32* group_of_tile; // (tiles)
    const TensorGroup* groups;
    const u8* centroids; // (groups, k padded / 256, chunks, 256, 64) of 2 bytes
    const float* folded; // (groups, k padded): p
    const float* margins; // (groups, k padded): F
    const u32* list; // (groups, k padded): centroids
    Labels next;
    Contested* contested;
    Control* control;
    Few few;
    u32 n, tiles, chunks, last_steps; // last_steps: runs of 16 features in the last chunk
    u32 k_padded, stages, folded_slots, unused;
};

// A key differs from its score by less than this, relative to either.
#define TAG_ERROR 7.62939453125e-6f

// The least two keys of a set of columns, and the tiles of centroids that they are in. All other keys are at least `third`, but for those of
// a tile that has both the best and the second.
struct Kept {
    float best, second, third;
    u32 best_tile, second_tile;

    __device__ __forceinline__ Kept() : best(3e38f), second(3e38f), third(3e38f), best_tile(0), second_tile(~0u) {}
    // Adds the least two of another tile.
    __device__ __forceinline__ void add(float low, float high, u32 tile) {
        const bool lower = low < best;
        const float first = lower ? low : best, rival = lower ? best : low;
        const u32 first_tile = lower ? tile : best_tile, rival_tile = lower ? best_tile : tile;
        // The second of the tile that has the best now, and that of the other one, which is above the rival.
        const float own = lower ? high : second, other = lower ? second : high;
        const u32 own_tile = lower ? tile : second_tile;
        const bool same = own < rival;
        third = fminf(third, fminf(fmaxf(own, rival), other));
        best = first, best_tile = first_tile;
        second = same ? own : rival, second_tile = same ? own_tile : rival_tile;
    }
    // Whether other keys of the tile may be as low as the second.
    __device__ __forceinline__ bool hides() const { return best_tile == second_tile; }
};

// The place in the group's list of the centroid with a key.
template <u32 WIDTH> __device__ __forceinline__ u32 place_of(float key, u32 tile, u32 lane, u32 e) {
    return tile * WIDTH + (__float_as_uint(key) & 31) * 8 + (lane & 3) * 2 + e;
}

// Decides a row. Its four lanes must call this together.
template <u32 WIDTH> __device__ __forceinline__ void decide(const Tensor& a, const Kept (&kept)[2], u64 place, u32 g, u32 lane) {
    const bool even = kept[0].best <= kept[1].best;
    const float own = even ? kept[0].best : kept[1].best;
    float best = own;
    u32 at = even ? place_of<WIDTH>(own, kept[0].best_tile, lane, 0) : place_of<WIDTH>(own, kept[1].best_tile, lane, 1);
#pragma unroll
    for (int o = 1; o < 4; o *= 2) {
        const float other = __shfl_xor_sync(FULL_WARP, best, o);
        const u32 other_at = __shfl_xor_sync(FULL_WARP, at, o);
        if (other < best || (other == best && other_at < at)) best = other, at = other_at;
    }
    const u32 row = a.row_of_place[place];
    const float term = __fmul_ru(a.terms[place], a.groups[g].balance);
    const u64 of_group = (u64)g * a.k_padded;
    const float sum = __fadd_ru(__fmaf_ru(fabsf(best), TAG_ERROR, best), __fadd_ru(a.margins[of_group + at], term));
    const float limit = __fmaf_ru(fabsf(sum), TAG_ERROR, sum);
    // How many centroids of this lane are to be compared, besides the best. NaN: in reach.
    u32 others = 0, second = NO_ROW;
    bool all = false;
#pragma unroll
    for (u32 e = 0; e < 2; e++) {
        const Kept& set = kept[e];
        const u32 mine = place_of<WIDTH>(set.best, set.best_tile, lane, e);
        const bool first_in = !(set.best > limit), second_in = !(set.second > limit);
        if (first_in && mine != at) others++, second = mine;
        if (second_in) {
            others += set.hides() ? WIDTH / 8 - 1 : 1;
            second = place_of<WIDTH>(set.second, set.second_tile, lane, e);
        }
        all |= !(set.third > limit);
    }
    u32 total = others | (u32)all << 16, before = 0;
#pragma unroll
    for (int o = 1; o < 4; o *= 2) {
        const u32 theirs = __shfl_xor_sync(FULL_WARP, total, o);
        if (lane & o) before += theirs & 0xffff;
        total += theirs;
        second = min(second, __shfl_xor_sync(FULL_WARP, second, o));
    }
    all = total >> 16 != 0, total &= 0xffff;
    const u32 doubt = __reduce_add_sync(FULL_WARP, (lane & 3) != 0 || row == NO_ROW ? 0 : all ? ALL_CANDIDATES : min(total, ALL_CANDIDATES));
    if (lane == 0 && doubt != 0) atomicAdd(&a.few.control->doubt, doubt);
    const bool writes = (lane & 3) == 0 && row != NO_ROW;
    if (writes && !all && total <= 1) store_label(a.next, row, a.list[of_group + at]);
    if (writes && !all && total == 1) a.contested[atomicAdd(&a.control->pairs, 1)] = {row, a.list[of_group + second]};
    // A few candidates: the row gets a part of the pool. If the pool is full, the row is compared with all centroids.
    u32 from = 0;
    const bool few = row != NO_ROW && !all && total > 1;
    if (few && (lane & 3) == 0) {
        // Once the pool is full, nobody adds to the counter, so it cannot overflow.
        from = __ldcg(&a.few.control->candidates);
        if (from < a.few.room) from = atomicAdd(&a.few.control->candidates, total + 1);
        if (from < a.few.room && total + 1 <= a.few.room - from) {
            const u32 entry = atomicAdd(&a.few.control->rows, 1);
            a.few.rows[entry] = {row, from, total + 1, 0};
            a.few.candidates[from] = a.list[of_group + at];
        } else {
            from = NO_ROW;
        }
    }
    from = __shfl_sync(FULL_WARP, from, lane & ~3);
    if (writes && (all || few && from == NO_ROW)) a.contested[a.n - 1 - atomicAdd(&a.control->contested, 1)] = {row, term < infinity_f() ? g : NO_ROW};
    if (!few || from == NO_ROW) return;
    u32* to = a.few.candidates + from + 1 + before;
#pragma unroll
    for (u32 e = 0; e < 2; e++) {
        const Kept& set = kept[e];
        const u32 mine = place_of<WIDTH>(set.best, set.best_tile, lane, e);
        if (!(set.best > limit) && mine != at) *to++ = a.list[of_group + mine];
        if (set.second > limit) continue;
        if (!set.hides()) {
            *to++ = a.list[of_group + place_of<WIDTH>(set.second, set.second_tile, lane, e)];
            continue;
        }
        for (u32 i = 0; i < WIDTH / 8; i++) {
            const u32 place = set.best_tile * WIDTH + i * 8 + (lane & 3) * 2 + e;
            // Places without a centroid stand for the best one.
            if (place != mine) *to++ = place < a.groups[g].centroids ? a.list[of_group + place] : a.list[of_group + at];
        }
    }
}

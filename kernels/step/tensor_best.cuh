// What the kernels of kernels/step/assign_tensor.cu and assign_tensor_mma.cu have in common: their argument, the best scores of a row, and the
// decision about a row.
//
//   sums       a lane has two neighbouring columns of every eight, at 2 (lane % 4), of two rows. So four lanes share a row, and each has two
//              sets of columns, even ones and odd ones, or one set of all of them, if these have a bit each in a word
//   limit      centroids with a score above it are out of reach. Every tile of centroids may lower it: by the least score there
//   in reach   a bit for each column of a set. Most tiles have no such column for any row of a warp: then a tile costs one minimum for each
//              score
//   WIDTH      columns of a tile of centroids: 64, 128 or 256
#pragma once
#include "../common/filter.cuh"
#include "../common/tensor.cuh"

struct Tensor {
    const u8* rows; // (tiles, stored, 128, 64) of 2 bytes
    const float* terms; // (tiles, 128): the row's part of the bound
    const u32* row_of_place; // (tiles, 128)
    const u32* group_of_tile; // (tiles)
    const TensorGroup* groups;
    const u8* centroids; // (copied, stored, 256, 64) of 2 bytes, with the other sign
    const float* lowered; // (copied, 256): p
    const float* slacks; // (copied, 256): F
    const float* tile_slacks; // (copied): no F of a tile of centroids is larger
    const u32* list; // (groups, k padded): centroids
    const u32* first_visit; // (tiles): the tile of centroids that a tile of rows begins with
    Labels next;
    RowInDoubt* in_doubt;
    Control* control;
    Few few;
    u32* left; // counts the rows that are to be compared with all centroids
    u32 n, tiles, chunks, last_steps; // last_steps: runs of 16 features in the last chunk
    u32 k_padded, stages;
    u32 stored; // chunks of a copy
    u32 part; // chunks of each of the two parts of a copy; 0 if copies have one part (tensor_rescore.cu)
    u32 row_buffers; // tiles of rows that stay in shared memory at a time, for each team of a block (assign_tensor_narrow), or 0
};

// Which chunk of a copy takes part in chunk c of the products. With two parts, high and low: low and high, then high and low, then high and high.
// So the largest products come last: src/bounds/fp16/rescore.rs.
__device__ __forceinline__ u32 chunk_of_rows(const Tensor& a, u32 c) { return c < a.part ? c + a.part : c < 2 * a.part ? c - a.part : c - 2 * a.part; }
__device__ __forceinline__ u32 chunk_of_centroids(const Tensor& a, u32 c) { return c < 2 * a.part ? c : c - 2 * a.part; }

// Above every score of a centroid, and below that of a place without one.
#define NO_LIMIT 5e37f

// The two tiles of centroids with the least scores of a set of columns. The columns of other tiles have scores of at least `third`, or they are
// out of reach.
struct Kept {
    float best, second, third;
    u32 tiles; // their numbers, that of the best in the low half
    u32 best_in, second_in; // which of their columns are in reach

    __device__ __forceinline__ Kept() : best(3e38f), second(3e38f), third(3e38f), tiles(0), best_in(0), second_in(0) {}
    // Adds a tile with its least score, if it has a column in reach. Never is `best` above `second`, nor `second` above `third`.
    __device__ __forceinline__ void add(float least, u32 in, u32 tile) {
        const float score = in != 0 ? least : 3e38f; // adds nothing
        const bool first = score < best, second_one = score < second;
        third = fminf(third, fmaxf(second, score));
        second = fminf(second, fmaxf(best, score));
        second_in = first ? best_in : second_one ? in : second_in;
        tiles = first ? tiles << 16 | tile : second_one ? tile << 16 | (tiles & 0xffff) : tiles;
        best = fminf(best, score);
        best_in = first ? in : best_in;
    }
};

// A row, as one of its four lanes sees it.
template <u32 LANE_SETS> struct Best {
    float limit;
    float rise; // the row's part of what lies between a score and the limit
    Kept sets[LANE_SETS];

    __device__ __forceinline__ Best(const Tensor& a, u64 place, u32 g) : limit(NO_LIMIT) { rise = __fmul_ru(a.terms[place], a.groups[g].balance); }
};

// The least value of the four lanes of a row.
__device__ __forceinline__ float of_quad(float v) {
    v = fminf(v, __shfl_xor_sync(FULL_WARP, v, 1));
    return fminf(v, __shfl_xor_sync(FULL_WARP, v, 2));
}

// Moves the bits up by one, and puts the sign of a difference into the lowest bit.
__device__ __forceinline__ u32 push_sign(u32 bits, float difference) { return __funnelshift_l(__float_as_uint(difference), bits, 1); }

// The sum of row r of a lane, for column `bit` of set e.
template <u32 LANE_SETS> __device__ __forceinline__ constexpr u32 sum_of(u32 r, u32 e, u32 bit) {
    return LANE_SETS == 2 ? 4 * bit + 2 * r + e : 4 * (bit / 2) + 2 * r + bit % 2;
}
// Where this column is among those of all lanes, from the lane's first one on.
template <u32 LANE_SETS> __device__ __forceinline__ u32 column_of(u32 e, u32 bit) { return LANE_SETS == 2 ? bit * 8 + e : bit / 2 * 8 + bit % 2; }

// The p of a lane's columns 8 i and 8 i + 1. `lowered`: where those of its first columns are, in shared memory.
__device__ __forceinline__ void load_lowered(float (&p)[2], u32 lowered, int i) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(p[0]), "=f"(p[1]) : "r"(lowered + i * 32));
}

// Adds p to sums that began with 0: now they are scores.
template <u32 WIDTH, u32 SUMS> __device__ __forceinline__ void add_lowered(float (&sums)[SUMS], u32 lowered) {
#pragma unroll
    for (int i = 0; i < WIDTH / 8; i++) {
        float p[2];
        load_lowered(p, lowered, i);
#pragma unroll
        for (int e = 0; e < 4; e++) sums[4 * i + e] = __fadd_rn(p[e % 2], sums[4 * i + e]);
    }
}

// The place in the group's list of a column of a set.
template <u32 WIDTH, u32 LANE_SETS> __device__ __forceinline__ u32 place_of(u32 bit, u32 tile, u32 lane, u32 e) {
    return tile * WIDTH + (lane & 3) * 2 + column_of<LANE_SETS>(e, bit);
}

// The columns of a set of row r whose scores are up to `most`. Bits are pushed in short chains, which run side by side.
template <u32 BITS, u32 LANE_SETS, u32 SUMS> __device__ __forceinline__ u32 up_to(const float (&sums)[SUMS], u32 r, u32 e, float most) {
    u32 above = 0;
#pragma unroll
    for (u32 byte = 0; byte < BITS / 8; byte++) {
        u32 bits = 0;
#pragma unroll
        for (int i = 7; i >= 0; i--) bits = push_sign(bits, __fsub_rn(most, sums[sum_of<LANE_SETS>(r, e, byte * 8 + i)]));
        above |= bits << 8 * byte;
    }
    return ~above & (u32)((1ull << BITS) - 1);
}

// Looks at the first WIDTH places of a tile of TILE centroids. `sums`: the scores. `first_copy`: that of the group. Returns how many sets had a
// column in reach of one of the warp's rows.
template <u32 WIDTH, u32 TILE, u32 SUMS, u32 LANE_SETS>
__device__ __forceinline__ u32 look(const Tensor& a, u32 first_copy, const float (&sums)[SUMS], Best<LANE_SETS> (&rows)[2], u32 tile) {
    constexpr u32 BITS = WIDTH / 4 / LANE_SETS; // columns of a set
    constexpr u32 CHAIN = BITS < 16 ? BITS : 16; // columns whose minimum is found one by one. Several chains run side by side
    float least[2][LANE_SETS];
#pragma unroll
    for (u32 r = 0; r < 2; r++)
#pragma unroll
        for (u32 e = 0; e < LANE_SETS; e++)
#pragma unroll
            for (u32 from = 0; from < BITS; from += CHAIN) {
                float of_chain = sums[sum_of<LANE_SETS>(r, e, from)];
#pragma unroll
                for (u32 i = 1; i < CHAIN; i++) of_chain = fminf(of_chain, sums[sum_of<LANE_SETS>(r, e, from + i)]);
                least[r][e] = from == 0 ? of_chain : fminf(least[r][e], of_chain);
            }
    const float own[2] = {fminf(least[0][0], least[0][LANE_SETS - 1]), fminf(least[1][0], least[1][LANE_SETS - 1])};
    if (!__any_sync(FULL_WARP, own[0] <= rows[0].limit || own[1] <= rows[1].limit)) return 0;
    const float most = a.tile_slacks[first_copy + tile * TILE / TILE_CENTROIDS]; // no F of the tile is larger
#pragma unroll
    for (u32 r = 0; r < 2; r++) rows[r].limit = fminf(rows[r].limit, __fadd_ru(of_quad(own[r]), __fadd_ru(most, rows[r].rise)));
    u32 in[2][LANE_SETS], kept = 0;
    bool several = false; // of a lane
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        u32 found = 0;
#pragma unroll
        for (u32 e = 0; e < LANE_SETS; e++) {
            in[r][e] = 0;
            if (__any_sync(FULL_WARP, least[r][e] <= rows[r].limit)) in[r][e] = up_to<BITS, LANE_SETS>(sums, r, e, rows[r].limit), kept++;
            found += __popc(in[r][e]);
        }
        several |= found > 1;
    }
    // If a lane has several: the limit again, with the own F of the best column of each set. `decide_one` does so for several of a row.
    if (__any_sync(FULL_WARP, several)) {
#pragma unroll
        for (u32 r = 0; r < 2; r++) {
            float limit = rows[r].limit;
#pragma unroll
            for (u32 e = 0; e < LANE_SETS; e++) {
                // Places without a row may hold anything, and have no least score then.
                const u32 bit = (__ffs(up_to<BITS, LANE_SETS>(sums, r, e, least[r][e])) - 1) & (BITS - 1);
                const float slack = a.slacks[first_copy * TILE_CENTROIDS + place_of<TILE, LANE_SETS>(bit, tile, threadIdx.x, e)];
                limit = fminf(limit, __fadd_ru(least[r][e], __fadd_ru(slack, rows[r].rise)));
            }
            rows[r].limit = of_quad(limit);
#pragma unroll
            for (u32 e = 0; e < LANE_SETS; e++) in[r][e] = up_to<BITS, LANE_SETS>(sums, r, e, rows[r].limit);
        }
    }
#pragma unroll
    for (u32 r = 0; r < 2; r++)
#pragma unroll
        for (u32 e = 0; e < LANE_SETS; e++) rows[r].sets[e].add(least[r][e], in[r][e], tile);
    return kept;
}

// More centroids than a lane counts: a row is not decided at once.
#define ANY_NUMBER 1024u

// Decides a row with any number of centroids in reach. The lanes of a warp must call this together.
template <u32 WIDTH, u32 LANE_SETS> __device__ __forceinline__ void decide_one(const Tensor& a, const Best<LANE_SETS>& best, u32 row, u32 g, u32 lane) {
    const u64 of_group = (u64)g * a.k_padded, first_copy = (u64)a.groups[g].first_copy * TILE_CENTROIDS;
    // The limit again, with the own F of the best centroid, if it is known.
    const Kept &one = best.sets[0], &other = best.sets[LANE_SETS - 1];
    const bool odd = other.best < one.best;
    const float own = odd ? other.best : one.best;
    const u32 own_in = odd ? other.best_in : one.best_in, own_tile = odd ? other.tiles & 0xffff : one.tiles & 0xffff;
    float limit = best.limit;
    if (__popc(own_in) == 1) {
        const float slack = a.slacks[first_copy + place_of<WIDTH, LANE_SETS>(__ffs(own_in) - 1, own_tile, lane, odd)];
        limit = fminf(limit, __fadd_ru(own, __fadd_ru(slack, best.rise)));
    }
    limit = of_quad(limit);
    // The columns of this lane that are in reach.
    u32 in[LANE_SETS][2], total = 0, first = NO_ROW, last = 0;
    bool all = !(best.rise < infinity_f());
#pragma unroll
    for (u32 e = 0; e < LANE_SETS; e++) {
        const Kept& set = best.sets[e];
        in[e][0] = set.best <= limit ? set.best_in : 0, in[e][1] = set.second <= limit ? set.second_in : 0;
        all |= set.third <= limit;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const u32 columns = in[e][i], tile = i ? set.tiles >> 16 : set.tiles & 0xffff;
            total += __popc(columns);
            if (columns == 0) continue;
            first = min(first, place_of<WIDTH, LANE_SETS>(__ffs(columns) - 1, tile, lane, e));
            last = max(last, place_of<WIDTH, LANE_SETS>(31 - __clz(columns), tile, lane, e));
        }
    }
    total |= (u32)all << 16;
    u32 before = 0;
#pragma unroll
    for (int o = 1; o < 4; o *= 2) {
        const u32 theirs = __shfl_xor_sync(FULL_WARP, total, o);
        if (lane & o) before += theirs & 0xffff;
        total += theirs;
        first = min(first, __shfl_xor_sync(FULL_WARP, first, o)), last = max(last, __shfl_xor_sync(FULL_WARP, last, o));
    }
    all = total >> 16 != 0, total &= 0xffff;
    all |= total == 0; // cannot be: the label itself is in reach
    const u32 doubt = __reduce_add_sync(FULL_WARP, (lane & 3) != 0 || row == NO_ROW ? 0 : all ? ALL_CANDIDATES : min(total - 1, ALL_CANDIDATES));
    if (lane == 0 && doubt != 0 && a.part == 0) atomicAdd(&a.few.control->doubt, (u64)doubt);
    const bool writes = (lane & 3) == 0 && row != NO_ROW;
    if (writes && !all && total <= 2) store_label(a.next, row, a.list[of_group + first]);
    if (writes && !all && total == 2) a.in_doubt[atomicAdd(&a.control->pairs, 1)] = {row, a.list[of_group + last]};
    // A few candidates: the row gets a part of the pool. If the pool is full, the row is compared with all centroids.
    u32 from = 0;
    const bool few = row != NO_ROW && !all && total > 2;
    if (few && (lane & 3) == 0) {
        // Once the pool is full, no thread adds to the counter, so it cannot overflow.
        from = __ldcg(&a.few.control->candidates);
        if (from < a.few.room) from = atomicAdd(&a.few.control->candidates, total);
        if (from < a.few.room && total <= a.few.room - from) a.few.rows[atomicAdd(&a.few.control->rows, 1)] = {row, from, total, 0};
        else from = NO_ROW;
    }
    from = __shfl_sync(FULL_WARP, from, lane & ~3);
    if (writes && (all || few && from == NO_ROW)) a.in_doubt[a.n - 1 - atomicAdd(a.left, 1)] = {row, best.rise < infinity_f() && a.groups[g].centroids != 0 ? g : NO_ROW};
    if (!few || from == NO_ROW) return;
    u32* to = a.few.candidates + from + before;
#pragma unroll
    for (u32 e = 0; e < LANE_SETS; e++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const u32 tile = i ? best.sets[e].tiles >> 16 : best.sets[e].tiles & 0xffff;
            for (u32 left = in[e][i]; left; left &= left - 1) *to++ = a.list[of_group + place_of<WIDTH, LANE_SETS>(__ffs(left) - 1, tile, lane, e)];
        }
}

// Decides a lane's two rows. The lanes of a warp must call this together. Mostly all of their rows have one centroid in reach, which one lane knows.
template <u32 WIDTH, u32 LANE_SETS>
__device__ __forceinline__ void decide(const Tensor& a, const Best<LANE_SETS> (&best)[2], const u32 (&row)[2], u32 g, u32 lane) {
    u32 found = 0; // in reach of the first row, and in the upper half of the second one
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        u32 own = best[r].rise < infinity_f() ? 0 : ANY_NUMBER;
#pragma unroll
        for (u32 e = 0; e < LANE_SETS; e++) {
            const Kept& set = best[r].sets[e];
            if (set.best <= best[r].limit) own += __popc(set.best_in);
            if (set.second <= best[r].limit) own = ANY_NUMBER;
        }
        found += own << 16 * r;
    }
    found += __shfl_xor_sync(FULL_WARP, found, 1);
    found += __shfl_xor_sync(FULL_WARP, found, 2);
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        if (__any_sync(FULL_WARP, (found >> 16 * r & 0xffff) != 1)) {
            decide_one<WIDTH>(a, best[r], row[r], g, lane);
            continue;
        }
#pragma unroll
        for (u32 e = 0; e < LANE_SETS; e++) {
            const Kept& set = best[r].sets[e];
            if (!(set.best <= best[r].limit) || row[r] == NO_ROW) continue;
            store_label(a.next, row[r], a.list[(u64)g * a.k_padded + place_of<WIDTH, LANE_SETS>(__ffs(set.best_in) - 1, set.tiles & 0xffff, lane, e)]);
        }
    }
}

// assign_tensor: labels by tensor cores. Products of half-precision copies are a filter; what its bound cannot decide is settled afterwards.
//
//   y_j = p_j - x^.c^_j       p_j: the half square with the centroid's own error taken off (src/certify/halves.rs)
//   for each tile of rows, for each tile of the centroids of its group:
//     for each chunk of 64 features:  the products of 128 rows and 256 centroids, added up in registers
//     keys: scores with the number of their column in the lowest bits; the best two keys of each row, in eight sets of columns
//   then the label, or a place in the list of rows in doubt
//
// Used when: many clusters of many features, on generation 9.0.
// Tile:      a block has 3 warpgroups. One requests chunks (TMA, bulk copies). The other two multiply 64 rows each (wgmma, m64n256k16), with 128
//            sums a thread. They take turns of two chunks. This gains only 2 to 5 %: products of one beside
//            minima of the other slow both down (128 features: 1,800 and 2,200 clocks a tile, alone 1,250 and 1,050; H200).
// Memory:    copies lie in device memory as wgmma reads them, so a chunk is one contiguous copy. The copies of a group's centroids come
//            from the second-level cache, and so do those of the rows but for the first time.
// Precision: half-precision operands, sums in float32 as tensor cores add them.
#include "../common/filter.cuh"
#include "../common/tensor.cuh"
#include "tensor_pipeline.cuh"
#include "wgmma.cuh"

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

#define TENSOR_THREADS 384
#define ROW_BYTES (TILE_ROWS * PLACE_BYTES)
#define CENTROID_BYTES (TILE_CENTROIDS * PLACE_BYTES)
#define FOLDED_BYTES (TILE_CENTROIDS * 4)
// A key differs from its score by less than this, relative to either.
#define TAG_ERROR 7.62939453125e-6f

// Where things are in shared memory.
struct TensorShared {
    u32 stages, folded, full, empty;

    __device__ __forceinline__ TensorShared(const Tensor& a, const u8* shared) {
        stages = (shared_address(shared) + 1023) & ~1023u;
        folded = stages + a.stages * (ROW_BYTES + CENTROID_BYTES);
        full = folded + a.folded_slots * FOLDED_BYTES;
        empty = full + 8 * a.stages;
    }
    __device__ __forceinline__ u32 stage(u32 slot) const { return stages + slot * (ROW_BYTES + CENTROID_BYTES); }
};

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

// The thread that requests all chunks.
__device__ __forceinline__ void request(const Tensor& a, const TensorShared& s) {
    Turn turn, folded_turn;
#pragma unroll 1
    for (u32 tile = blockIdx.x; tile < a.tiles; tile += gridDim.x) {
        const u32 g = a.group_of_tile[tile];
        if (g == NO_ROW) return;
        const u32 tiles = (a.groups[g].centroids + TILE_CENTROIDS - 1) / TILE_CENTROIDS;
        const u8* const rows = a.rows + (u64)tile * a.chunks * ROW_BYTES;
        const u8* centroids = a.centroids + (u64)g * (a.k_padded / TILE_CENTROIDS) * a.chunks * CENTROID_BYTES;
        const float* folded = a.folded + (u64)g * a.k_padded;
#pragma unroll 1
        for (u32 t = 0; t < tiles; t++, folded += TILE_CENTROIDS) {
#pragma unroll 1
            for (u32 c = 0; c < a.chunks; c++, centroids += CENTROID_BYTES) {
                const u32 to = s.stage(turn.slot), full = s.full + 8 * turn.slot;
                const bool last = c + 1 == a.chunks;
                await_barrier(s.empty + 8 * turn.slot, turn.parity ^ 1);
                arrive_for(full, ROW_BYTES + CENTROID_BYTES + (last ? FOLDED_BYTES : 0));
                copy_bytes(to, centroids, CENTROID_BYTES, full);
                copy_bytes(to + CENTROID_BYTES, rows + (u64)c * ROW_BYTES, ROW_BYTES, full);
                if (last) {
                    copy_bytes(s.folded + folded_turn.slot * FOLDED_BYTES, folded, FOLDED_BYTES, full);
                    folded_turn.next(a.folded_slots);
                }
                turn.next(a.stages);
            }
        }
    }
}

// What a warpgroup has done, over all of its tiles.
struct Progress {
    Turn turn, folded_turn;
};

// The two warpgroups take turns. The first one begins.
__device__ __forceinline__ void await_turn(u32 half) { asm volatile("bar.sync %0, 256;" ::"r"(1 + half) : "memory"); }
__device__ __forceinline__ void give_turn(u32 half) { asm volatile("bar.arrive %0, 256;" ::"r"(2 - half) : "memory"); }
// Whether a turn ends with chunk c. A tile's first and last turns have two chunks if there are enough: as long as it takes to look for the best.
__device__ __forceinline__ bool ends_turn(u32 c, u32 chunks) { return c + 1 == chunks || c + 3 == chunks || (c + 3 < chunks && c % 2 == 1); }

// The products of the first STEPS runs of 16 features of chunk c.
template <u32 STEPS> __device__ __forceinline__ void run(float (&sums)[TILE_CENTROIDS / 2], u64 x, u64 y, u32 c) {
    begin_products();
#pragma unroll
    for (u32 i = 0; i < STEPS; i++) multiply(sums, x + 2 * i, y + 2 * i, c + i);
    commit_products();
}

// Adds up the products of a tile of rows and a tile of centroids.
__device__ __forceinline__ void products(const Tensor& a, const TensorShared& s, Progress& at, float (&sums)[TILE_CENTROIDS / 2], u32 half, bool first_thread) {
    u32 before = 0;
    bool turn = false;
#pragma unroll 1
    for (u32 c = 0; c < a.chunks; c++) {
        const u32 from = s.stage(at.turn.slot);
        if (!turn) await_turn(half);
        turn = !ends_turn(c, a.chunks);
        await_barrier(s.full + 8 * at.turn.slot, at.turn.parity);
        const u64 x = matrix_at(from + CENTROID_BYTES + half * (ROW_BYTES / 2)), y = matrix_at(from);
        // The tensor cores' order begins and ends in each branch. Otherwise the compiler lets every product wait for the one before.
        if (c + 1 < a.chunks) run<4>(sums, x, y, c);
        else if (a.last_steps == 4) run<4>(sums, x, y, c);
        else if (a.last_steps == 3) run<3>(sums, x, y, c);
        else if (a.last_steps == 2) run<2>(sums, x, y, c);
        else run<1>(sums, x, y, c);
        if (c > 0) {
            await_products<1>();
            if (first_thread) arrive(s.empty + 8 * before);
        }
        if (!turn && c + 1 < a.chunks) give_turn(half);
        before = at.turn.slot;
        at.turn.next(a.stages);
    }
    await_products<0>();
    give_turn(half);
    if (first_thread) arrive(s.empty + 8 * before);
}

// The least two keys of a tile of centroids, for each row of a thread and for its even and odd columns.
__device__ __forceinline__ void keep_best(const Tensor& a, const TensorShared& s, Progress& at, const float (&sums)[TILE_CENTROIDS / 2], Kept (&kept)[2][2],
                                          u32 tile, u32 lane) {
    const u32 folded = s.folded + at.folded_turn.slot * FOLDED_BYTES + (lane & 3) * 8;
    at.folded_turn.next(a.folded_slots);
    u32 mask = ~31u;
    asm volatile("" : "+r"(mask)); // in a register, so that a key is one instruction
    float least[2][2], second[2][2];
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int e = 0; e < 2; e++) least[r][e] = second[r][e] = 3e38f;
#pragma unroll
    for (int i = 0; i < TILE_CENTROIDS / 8; i++) {
        float p[2];
        asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(p[0]), "=f"(p[1]) : "r"(folded + i * 32));
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float score = __fsub_rn(p[e], sums[4 * i + 2 * r + e]);
                float key;
                asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=f"(key) : "f"(score), "r"(mask), "r"(i)); // (score & mask) | i
                second[r][e] = fminf(second[r][e], fmaxf(least[r][e], key));
                least[r][e] = fminf(least[r][e], key);
            }
    }
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int e = 0; e < 2; e++) kept[r][e].add(least[r][e], second[r][e], tile);
}

// The place in the group's list of the centroid with a key.
__device__ __forceinline__ u32 place_of(float key, u32 tile, u32 lane, u32 e) {
    return tile * TILE_CENTROIDS + (__float_as_uint(key) & 31) * 8 + (lane & 3) * 2 + e;
}

// Decides a row. Its four lanes must call this together.
__device__ __forceinline__ void decide(const Tensor& a, const Kept (&kept)[2], u64 place, u32 g, u32 lane) {
    const bool even = kept[0].best <= kept[1].best;
    const float own = even ? kept[0].best : kept[1].best;
    float best = own;
    u32 at = even ? place_of(own, kept[0].best_tile, lane, 0) : place_of(own, kept[1].best_tile, lane, 1);
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
        const u32 mine = place_of(set.best, set.best_tile, lane, e);
        const bool first_in = !(set.best > limit), second_in = !(set.second > limit);
        if (first_in && mine != at) others++, second = mine;
        if (second_in) {
            others += set.hides() ? TILE_CENTROIDS / 8 - 1 : 1;
            second = place_of(set.second, set.second_tile, lane, e);
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
        const u32 mine = place_of(set.best, set.best_tile, lane, e);
        if (!(set.best > limit) && mine != at) *to++ = a.list[of_group + mine];
        if (set.second > limit) continue;
        if (!set.hides()) {
            *to++ = a.list[of_group + place_of(set.second, set.second_tile, lane, e)];
            continue;
        }
        for (u32 i = 0; i < TILE_CENTROIDS / 8; i++) {
            const u32 place = set.best_tile * TILE_CENTROIDS + i * 8 + (lane & 3) * 2 + e;
            // Places without a centroid stand for the best one.
            if (place != mine) *to++ = place < a.groups[g].centroids ? a.list[of_group + place] : a.list[of_group + at];
        }
    }
}

// A warpgroup that multiplies.
__device__ __forceinline__ void label(const Tensor& a, const TensorShared& s, u32 half) {
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32 & 3;
    const bool first_thread = (threadIdx.x & 127) == 0;
    Progress at;
    if (half == 1) give_turn(half);
#pragma unroll 1
    for (u32 tile = blockIdx.x; tile < a.tiles; tile += gridDim.x) {
        const u32 g = a.group_of_tile[tile];
        if (g == NO_ROW) break;
        const u32 tiles = (a.groups[g].centroids + TILE_CENTROIDS - 1) / TILE_CENTROIDS;
        Kept kept[2][2];
#pragma unroll 1
        for (u32 t = 0; t < tiles; t++) {
            float sums[TILE_CENTROIDS / 2];
            products(a, s, at, sums, half, first_thread);
            keep_best(a, s, at, sums, kept, t, lane);
        }
        const u64 place = (u64)tile * TILE_ROWS + half * 64 + warp * 16 + lane / 4;
#pragma unroll
        for (int r = 0; r < 2; r++) decide(a, kept[r], place + 8 * r, g, lane);
        __syncwarp(); // lanes leave `decide` in different places
    }
    if (half == 0) await_turn(half); // nobody leaves with a turn that was given
}

extern "C" __global__ void __launch_bounds__(TENSOR_THREADS, 1) assign_tensor(const __grid_constant__ Tensor a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ u8 shared[];
    if (a.control->stop) return;
    const TensorShared s(a, shared);
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < a.stages; i++) make_barrier(s.full + 8 * i, 1), make_barrier(s.empty + 8 * i, 2);
        show_barriers();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) request(a, s);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        label(a, s, threadIdx.x / 128 - 1);
    }
#else
    __trap(); // other generations have no such instructions, and never launch this
#endif
}

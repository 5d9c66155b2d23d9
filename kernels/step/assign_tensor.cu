// assign_tensor: labels by tensor cores. Products of half-precision copies are a filter; what its bound cannot decide is settled afterwards.
//
//   y_j = p_j - x^.c^_j       p_j: the half square with the centroid's own error taken off (src/bounds/fp16.rs)
//   for each tile of rows, for each tile of the centroids of its group:
//     for each chunk of 64 features:  the products of 128 rows and 256 centroids, added up in registers
//     the least score of each row, and which columns are in reach (tensor_best.cuh)
//   then the label, or a place in the list of rows in doubt
//
// Used when: many clusters of many features, on generation 9.0.
// Tile:      a block has 3 warpgroups. One requests chunks (TMA, bulk copies). The other two multiply 64 rows each (wgmma, m64n256k16), with 128
//            sums a thread. If the last tile of a group has at most 128 or 64 centroids, only so many are copied and multiplied. Most tiles
//            cost one minimum for each score, and no more.
// Memory:    copies lie in device memory as wgmma reads them, so a chunk is one contiguous copy. The copies of a group's centroids come
//            from the second-level cache, and so do those of the rows but for the first time.
// Precision: half-precision operands, sums in float32 as tensor cores add them.
#include "tensor_best.cuh"
#include "tensor_pipeline.cuh"
#include "wgmma.cuh"

#define TENSOR_THREADS 384
#define ROW_BYTES (TILE_ROWS * PLACE_BYTES)
#define CENTROID_BYTES (TILE_CENTROIDS * PLACE_BYTES)
#define FOLDED_BYTES (TILE_CENTROIDS * 8) // p and F

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

// The centroids of tile t of a group that are multiplied. Those from the group's last centroid on are places without one.
__device__ __forceinline__ u32 width_of(u32 centroids, u32 t) {
    const u32 left = centroids - t * TILE_CENTROIDS;
    return left <= 64 ? 64 : left <= 128 ? 128 : TILE_CENTROIDS;
}

// The thread that requests all chunks.
__device__ __forceinline__ void request(const Tensor& a, const TensorShared& s) {
    Turn turn, folded_turn;
    u64 visited = 0, scores = 0;
#pragma unroll 1
    for (u32 tile = blockIdx.x; tile < a.tiles; tile += gridDim.x) {
        const u32 g = a.group_of_tile[tile];
        if (g == NO_ROW) break;
        if (a.part == 0) scores += (u64)min(a.groups[g].here - (tile - a.groups[g].first_tile) * TILE_ROWS, (u32)TILE_ROWS) * a.groups[g].centroids;
        const u32 tiles = (a.groups[g].centroids + TILE_CENTROIDS - 1) / TILE_CENTROIDS;
        const u8* const rows = a.rows + (u64)tile * a.stored * ROW_BYTES;
        const u64 of_group = a.groups[g].first_copy;
        u32 t = a.first_visit[tile];
        visited += tiles;
#pragma unroll 1
        for (u32 seen = 0; seen < tiles; seen++, t = t + 1 < tiles ? t + 1 : 0) {
            const u8* const centroids = a.centroids + (of_group + t) * a.stored * CENTROID_BYTES;
            const u64 folded = (of_group + t) * TILE_CENTROIDS;
            const u32 bytes = width_of(a.groups[g].centroids, t) * PLACE_BYTES;
#pragma unroll 1
            for (u32 c = 0; c < a.chunks; c++) {
                const u32 to = s.stage(turn.slot), full = s.full + 8 * turn.slot;
                const bool last = c + 1 == a.chunks;
                await_barrier(s.empty + 8 * turn.slot, turn.parity ^ 1);
                arrive_for(full, ROW_BYTES + bytes + (last ? FOLDED_BYTES : 0));
                copy_bytes(to, centroids + (u64)chunk_of_centroids(a, c) * CENTROID_BYTES, bytes, full);
                copy_bytes(to + CENTROID_BYTES, rows + (u64)chunk_of_rows(a, c) * ROW_BYTES, ROW_BYTES, full);
                if (last) {
                    const u32 slot = s.folded + folded_turn.slot * FOLDED_BYTES;
                    copy_bytes(slot, a.folded + folded, FOLDED_BYTES / 2, full);
                    copy_bytes(slot + FOLDED_BYTES / 2, a.margins + folded, FOLDED_BYTES / 2, full);
                    folded_turn.next(a.folded_slots);
                }
                turn.next(a.stages);
            }
        }
    }
    if (visited == 0) return;
    if (a.part != 0) return;
    atomicAdd(&a.few.control->visited, visited);
    atomicAdd(&a.control->scores, scores);
}

// What a warpgroup has done, over all of its tiles.
struct Progress {
    Turn turn, folded_turn;
};

// The products of the first STEPS runs of 16 features of chunk c.
template <u32 WIDTH, u32 STEPS> __device__ __forceinline__ void run(float (&sums)[TILE_CENTROIDS / 2], u64 x, u64 y, u32 c) {
    begin_products();
#pragma unroll
    for (u32 i = 0; i < STEPS; i++) multiply<WIDTH>(sums, x + 2 * i, y + 2 * i, c + i);
    commit_products();
}

// Adds up the products of a tile of rows and a tile of centroids.
template <u32 WIDTH>
__device__ __forceinline__ void products(const Tensor& a, const TensorShared& s, Progress& at, float (&sums)[TILE_CENTROIDS / 2], u32 half, bool first_thread) {
    u32 before = 0;
#pragma unroll 1
    for (u32 c = 0; c < a.chunks; c++) {
        const u32 from = s.stage(at.turn.slot);
        await_barrier(s.full + 8 * at.turn.slot, at.turn.parity);
        const u64 x = matrix_at(from + CENTROID_BYTES + half * (ROW_BYTES / 2)), y = matrix_at(from);
        // The tensor cores' order begins and ends in each branch. Otherwise the compiler lets every product wait for the one before.
        if (c + 1 < a.chunks) run<WIDTH, 4>(sums, x, y, c);
        else if (a.last_steps == 4) run<WIDTH, 4>(sums, x, y, c);
        else if (a.last_steps == 3) run<WIDTH, 3>(sums, x, y, c);
        else if (a.last_steps == 2) run<WIDTH, 2>(sums, x, y, c);
        else run<WIDTH, 1>(sums, x, y, c);
        if (c > 0) {
            await_products<1>();
            if (first_thread) arrive(s.empty + 8 * before);
        }
        before = at.turn.slot;
        at.turn.next(a.stages);
    }
    await_products<0>();
    if (first_thread) arrive(s.empty + 8 * before);
}

// Multiplies a tile of rows and the first WIDTH places of tile t of centroids, and looks at the scores.
template <u32 WIDTH>
__device__ __forceinline__ u32 visit(const Tensor& a, const TensorShared& s, Progress& at, float (&sums)[TILE_CENTROIDS / 2], Best (&best)[2], u32 half,
                                     float most, u32 t) {
    products<WIDTH>(a, s, at, sums, half, (threadIdx.x & 127) == 0);
    const u32 folded = s.folded + at.folded_turn.slot * FOLDED_BYTES + (threadIdx.x & 3) * 8;
    at.folded_turn.next(a.folded_slots);
    return look<WIDTH>(folded, folded + FOLDED_BYTES / 2, sums, best, most, t);
}

// A warpgroup that multiplies.
__device__ __forceinline__ void label(const Tensor& a, const TensorShared& s, u32 half) {
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32 & 3;
    Progress at;
    u32 kept = 0;
#pragma unroll 1
    for (u32 tile = blockIdx.x; tile < a.tiles; tile += gridDim.x) {
        const u32 g = a.group_of_tile[tile];
        if (g == NO_ROW) break;
        const u32 tiles = (a.groups[g].centroids + TILE_CENTROIDS - 1) / TILE_CENTROIDS;
        const u64 place = (u64)tile * TILE_ROWS + half * 64 + warp * 16 + lane / 4;
        const u32 of_group = a.groups[g].first_copy;
        Best best[2] = {{a, place, g}, {a, place + 8, g}};
        u32 t = a.first_visit[tile];
#pragma unroll 1
        for (u32 seen = 0; seen < tiles; seen++, t = t + 1 < tiles ? t + 1 : 0) {
            float sums[TILE_CENTROIDS / 2]; // one array for all widths: registers are not enough for three
            const float most = a.tile_margins[of_group + t];
            const u32 width = width_of(a.groups[g].centroids, t);
            if (width == 64) kept += visit<64>(a, s, at, sums, best, half, most, t);
            else if (width == 128) kept += visit<128>(a, s, at, sums, best, half, most, t);
            else kept += visit<TILE_CENTROIDS>(a, s, at, sums, best, half, most, t);
        }
#pragma unroll
        for (int r = 0; r < 2; r++) decide<TILE_CENTROIDS>(a, best[r], place + 8 * r, g, lane);
        __syncwarp(); // lanes leave `decide` in different places
    }
    if (lane == 0 && a.part == 0) atomicAdd(&a.few.control->kept, (u64)kept);
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

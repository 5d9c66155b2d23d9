// assign_tensor: labels by tensor cores. Products of half-precision copies are a filter; what its bound cannot decide is settled afterwards.
//
//   y_j = p_j - x^.c^_j       p_j: the half square with the centroid's own error taken off (src/bounds/fp16.rs)
//   for each tile of rows, for each tile of the centroids of its group:
//     for each chunk of 64 features:  the products of 128 rows and 256 centroids, added up in registers
//     the least score of each row, and which columns are in reach (tensor_best.cuh)
//   then the label, or a place in the list of rows in doubt
//
// Used when: many clusters of many features, on generation 9.0.
// Tile:      a team is two warpgroups, which multiply 64 rows each (wgmma), and a thread that requests chunks for them (TMA, bulk copies).
//            assign_tensor: a team a block, 256 centroids at a time (m64n256k16), 128 sums a thread. assign_tensor_narrow, for few features or
//            few clusters: two teams a block, 128 centroids at a time, 64 sums a thread. So twice as many warps share the work of looking at
//            scores. If the last tile of a group has at most 128 or 64 centroids, only so many are copied and multiplied. Most tiles cost one
//            minimum for each score, and no more.
// Memory:    copies lie in device memory as wgmma reads them, so a chunk is one contiguous copy. The copies of a group's centroids come
//            from the second-level cache, and so do those of the rows but for the first time.
// Precision: half-precision operands, sums in float32 as tensor cores add them.
#include "tensor_best.cuh"
#include "tensor_pipeline.cuh"
#include "wgmma.cuh"

#define ROW_BYTES (TILE_ROWS * PLACE_BYTES)
#define WHOLE_BYTES (TILE_CENTROIDS * PLACE_BYTES) // a chunk of a tile of copies

// Where things are in shared memory. TILE: the centroids that a warpgroup multiplies at a time, a whole tile of copies or half of one.
template <u32 TILE> struct TensorShared {
    static constexpr u32 CENTROID_BYTES = TILE * PLACE_BYTES, STAGE = ROW_BYTES + CENTROID_BYTES, FOLDED_BYTES = TILE * 8; // p and F
    const Tensor& a;
    u32 stages; // what else there is follows from this address: registers are few

    __device__ __forceinline__ TensorShared(const Tensor& a, const u8* shared, u32 team) : a(a) {
        stages = (shared_address(shared) + 1023) & ~1023u;
        stages += team * ((full(2 * a.stages) - stages + 1023) & ~1023u);
    }
    __device__ __forceinline__ u32 stage(u32 slot) const { return stages + slot * STAGE; }
    __device__ __forceinline__ u32 folded(u32 slot) const { return stage(a.stages) + slot * FOLDED_BYTES; }
    __device__ __forceinline__ u32 full(u32 slot) const { return folded(a.folded_slots) + 8 * slot; }
    __device__ __forceinline__ u32 empty(u32 slot) const { return full(a.stages + slot); }
};

// The centroids of tile t of a group that are multiplied. Those from the group's last centroid on are places without one.
template <u32 TILE> __device__ __forceinline__ u32 width_of(u32 centroids, u32 t) {
    const u32 left = centroids - t * TILE;
    return left <= 64 ? 64 : left <= 128 ? 128 : TILE;
}

// The thread that requests all chunks.
template <u32 TILE, u32 TEAMS> __device__ __forceinline__ void request(const Tensor& a, const TensorShared<TILE>& s, u32 team) {
    constexpr u32 CENTROID_BYTES = s.CENTROID_BYTES, FOLDED_BYTES = s.FOLDED_BYTES, PARTS = TILE_CENTROIDS / TILE;
    Turn turn, folded_turn;
#pragma unroll 1
    for (u32 tile = blockIdx.x * TEAMS + team; tile < a.tiles; tile += gridDim.x * TEAMS) {
        const u32 g = a.group_of_tile[tile];
        if (g == NO_ROW) break;
        const u32 centroids = a.groups[g].centroids, tiles = (centroids + TILE - 1) / TILE;
        const u32 of_group = a.groups[g].first_copy;
        u32 t = a.first_visit[tile] * PARTS;
#pragma unroll 1
        for (u32 seen = 0; seen < tiles; seen++, t = t + 1 < tiles ? t + 1 : 0) {
#pragma unroll 1
            for (u32 c = 0; c < a.chunks; c++) {
                await_barrier(s.empty(turn.slot()), turn.parity() ^ 1);
                const u32 to = s.stage(turn.slot()), full = s.full(turn.slot()), bytes = width_of<TILE>(centroids, t) * PLACE_BYTES;
                const bool last = c + 1 == a.chunks;
                arrive_for(full, ROW_BYTES + bytes + (last ? FOLDED_BYTES : 0));
                const u64 of_centroids = (of_group + t / PARTS) * a.stored + chunk_of_centroids(a, c), of_rows = tile * a.stored + chunk_of_rows(a, c);
                copy_bytes(to, a.centroids + of_centroids * WHOLE_BYTES + t % PARTS * CENTROID_BYTES, bytes, full);
                copy_bytes(to + CENTROID_BYTES, a.rows + of_rows * ROW_BYTES, ROW_BYTES, full);
                if (last) {
                    const u32 slot = s.folded(folded_turn.slot());
                    const u64 first = (u64)of_group * TILE_CENTROIDS + t * TILE;
                    copy_bytes(slot, a.folded + first, FOLDED_BYTES / 2, full);
                    copy_bytes(slot + FOLDED_BYTES / 2, a.margins + first, FOLDED_BYTES / 2, full);
                    folded_turn.next(a.folded_slots);
                }
                turn.next(a.stages);
            }
        }
    }
}

// The thread that counts a team's work.
template <u32 TEAMS> __device__ __forceinline__ void count(const Tensor& a, u32 team) {
    u64 scores = 0;
    u32 visited = 0;
#pragma unroll 1
    for (u32 tile = blockIdx.x * TEAMS + team; tile < a.tiles; tile += gridDim.x * TEAMS) {
        const u32 g = a.group_of_tile[tile];
        if (g == NO_ROW) break;
        const TensorGroup& group = a.groups[g];
        visited += tiles_of(group.centroids);
        scores += (u64)min(group.here - (tile - group.first_tile) * TILE_ROWS, (u32)TILE_ROWS) * group.centroids;
    }
    if (visited == 0) return;
    atomicAdd(&a.few.control->visited, (u64)visited);
    atomicAdd(&a.control->scores, scores);
}

// What a warpgroup has done, over all of its tiles.
struct Progress {
    Turn turn, folded_turn;
};

// The products of the first STEPS runs of 16 features of chunk c.
template <u32 WIDTH, u32 STEPS, u32 SUMS> __device__ __forceinline__ void run(float (&sums)[SUMS], u64 x, u64 y, u32 c) {
    begin_products();
#pragma unroll
    for (u32 i = 0; i < STEPS; i++) multiply<WIDTH>(sums, x + 2 * i, y + 2 * i, c + i);
    commit_products();
}

// Adds up the products of a tile of rows and a tile of centroids.
template <u32 WIDTH, u32 TILE>
__device__ __forceinline__ void products(const Tensor& a, const TensorShared<TILE>& s, Progress& at, float (&sums)[TILE / 2], u32 half, bool first_thread) {
    u32 before = 0;
#pragma unroll 1
    for (u32 c = 0; c < a.chunks; c++) {
        const u32 from = s.stage(at.turn.slot());
        await_barrier(s.full(at.turn.slot()), at.turn.parity());
        const u64 x = matrix_at(from + s.CENTROID_BYTES + half * (ROW_BYTES / 2)), y = matrix_at(from);
        // The tensor cores' order begins and ends in each branch. Otherwise the compiler lets every product wait for the one before.
        if (c + 1 < a.chunks) run<WIDTH, 4>(sums, x, y, c);
        else if (a.last_steps == 4) run<WIDTH, 4>(sums, x, y, c);
        else if (a.last_steps == 3) run<WIDTH, 3>(sums, x, y, c);
        else if (a.last_steps == 2) run<WIDTH, 2>(sums, x, y, c);
        else run<WIDTH, 1>(sums, x, y, c);
        if (c > 0) {
            await_products<1>();
            if (first_thread) arrive(s.empty(before));
        }
        before = at.turn.slot();
        at.turn.next(a.stages);
    }
    await_products<0>();
    if (first_thread) arrive(s.empty(before));
}

// Multiplies a tile of rows and the first WIDTH places of tile t of centroids, and looks at the scores.
template <u32 WIDTH, u32 TILE, u32 LANE_SETS>
__device__ __forceinline__ u32 visit(const Tensor& a, const TensorShared<TILE>& s, Progress& at, float (&sums)[TILE / 2], Best<LANE_SETS> (&best)[2], u32 half,
                                     float most, u32 t) {
    products<WIDTH>(a, s, at, sums, half, (threadIdx.x & 127) == 0);
    const u32 folded = s.folded(at.folded_turn.slot()) + (threadIdx.x & 3) * 8;
    at.folded_turn.next(a.folded_slots);
    return look<WIDTH>(folded, folded + s.FOLDED_BYTES / 2, sums, best, most, t);
}

// A warpgroup that multiplies. The columns of a lane make one set if they have a bit each in a word.
template <u32 TILE, u32 TEAMS> __device__ __forceinline__ void label(const Tensor& a, const TensorShared<TILE>& s, u32 team, u32 half) {
    constexpr u32 PARTS = TILE_CENTROIDS / TILE, LANE_SETS = TILE > 128 ? 2 : 1;
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32 & 3;
    Progress at;
    u32 kept = 0;
#pragma unroll 1
    for (u32 tile = blockIdx.x * TEAMS + team; tile < a.tiles; tile += gridDim.x * TEAMS) {
        const u32 g = a.group_of_tile[tile];
        if (g == NO_ROW) break;
        const u32 tiles = (a.groups[g].centroids + TILE - 1) / TILE;
        const u32 place = tile * TILE_ROWS + half * 64 + warp * 16 + lane / 4;
        const u32 of_group = a.groups[g].first_copy;
        Best<LANE_SETS> best[2] = {{a, place, g}, {a, place + 8, g}};
        u32 t = a.first_visit[tile] * PARTS;
#pragma unroll 1
        for (u32 seen = 0; seen < tiles; seen++, t = t + 1 < tiles ? t + 1 : 0) {
            float sums[TILE / 2]; // one array for all widths: registers are not enough for three
            const float most = a.tile_margins[of_group + t / PARTS];
            const u32 width = width_of<TILE>(a.groups[g].centroids, t);
            if (width == 64) kept += visit<64>(a, s, at, sums, best, half, most, t);
            else if (TILE == 128 || width == 128) kept += visit<128>(a, s, at, sums, best, half, most, t);
            else if constexpr (TILE > 128) kept += visit<TILE>(a, s, at, sums, best, half, most, t);
        }
        decide<TILE>(a, best, place, g, lane);
        __syncwarp(); // lanes leave `decide` in different places
    }
    if (lane == 0 && a.part == 0) atomicAdd(&a.few.control->kept, (u64)kept);
}

// A block of some teams, with FEWER registers for a thread that requests, and MORE for one that multiplies.
template <u32 TILE, u32 TEAMS, int FEWER, int MORE> __device__ __forceinline__ void assign_tensor_block(const Tensor& a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ u8 shared[];
    if (a.control->stop) return;
    const u32 warpgroup = threadIdx.x / 128;
    const u32 team = TEAMS == 1 ? 0 : warpgroup == 0 ? min(threadIdx.x / 32, TEAMS - 1) : (warpgroup - 1) / 2;
    const TensorShared<TILE> s(a, shared, team);
    const bool requests = threadIdx.x < 32 * TEAMS && threadIdx.x % 32 == 0;
    if (requests) {
        for (u32 i = 0; i < a.stages; i++) make_barrier(s.full(i), 1), make_barrier(s.empty(i), 2);
        show_barriers();
    }
    __syncthreads();
    if (warpgroup == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(FEWER));
        if (requests) request<TILE, TEAMS>(a, s, team);
        else if (threadIdx.x >= 96 && threadIdx.x < 96 + TEAMS && a.part == 0) count<TEAMS>(a, threadIdx.x - 96);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(MORE));
        label<TILE, TEAMS>(a, s, team, (warpgroup - 1) % 2);
    }
#else
    __trap(); // other generations have no such instructions, and never launch this
#endif
}

extern "C" __global__ void __launch_bounds__(384, 1) assign_tensor(const __grid_constant__ Tensor a) {
    assign_tensor_block<TILE_CENTROIDS, 1, 40, 232>(a);
}
extern "C" __global__ void __launch_bounds__(640, 1) assign_tensor_narrow(const __grid_constant__ Tensor a) {
    assign_tensor_block<TILE_CENTROIDS / 2, 2, 32, 112>(a);
}

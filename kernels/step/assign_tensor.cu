// assign_tensor: labels by tensor cores. Products of half-precision copies are a filter; what its bound cannot decide is settled afterwards.
//
//   y_j = p_j - x^.c^_j       p_j: the half square with the centroid's own error taken off (src/bounds/fp16.rs). Sums begin with it, and copies
//                             of centroids have the other sign, so what tensor cores add up is the score
//   for each tile of rows, for each tile of the centroids of its group:
//     for each chunk of 64 features:  the products, added up in registers
//     the least score of each row, and which columns are in reach (tensor_best.cuh)
//   then the label, or a place in the list of rows in doubt
//
// Used when: many clusters of many features, on generation 9.0.
// Tile:      assign_tensor: 128 rows and 256 centroids at a time (m64n256k16), two warpgroups with 128 sums a thread. assign_tensor_narrow, for
//            up to 256 features: 256 rows, which stay in shared memory until all centroids were there, and 128 centroids at a time, four
//            warpgroups with 64 sums a thread. While some warpgroups look at scores, others multiply. A warpgroup multiplies 64 rows. Two more
//            threads request copies: one chunks of centroids, one rows that stay. If the last tile of a group has at most 128 or 64 centroids,
//            only so many are copied and multiplied. Most tiles cost one minimum for each score, and no more.
// Memory:    copies lie in device memory as wgmma reads them, so a chunk is one contiguous copy. The copies of a group's centroids come
//            from the second-level cache, and so do those of the rows in assign_tensor but for the first time.
// Precision: half-precision operands, sums in float32 as tensor cores add them.
#include "tensor_best.cuh"
#include "tensor_pipeline.cuh"
#include "wgmma.cuh"

#define ROW_BYTES (TILE_ROWS * PLACE_BYTES)
#define WHOLE_BYTES (TILE_CENTROIDS * PLACE_BYTES) // a chunk of a tile of copies
#define LOWERED_ROOM 4096 // bytes for p of all stages
#define HEADER (LOWERED_ROOM + 1024) // bytes before the stages

// Where things are in shared memory. TILE: the centroids that a warpgroup multiplies at a time, a whole tile of copies or half of one. ROW_TILES: the
// tiles of rows of a block. If there are several, their copies stay until all centroids were there.
//
//   p                of each stage, if it comes with its chunk
//   barriers         of each stage, whether it is full and whether it is empty; of each buffer of rows, whether rows are there and whether all
//                    centroids were there
//   stages           chunks of centroids, and of rows if these do not stay
//   rows             that stay: (buffers, chunks, ROW_TILES, 128, 64) halves
template <u32 TILE, u32 ROW_TILES> struct TensorShared {
    static constexpr bool ROWS_STAY = ROW_TILES > 1;
    static constexpr u32 CENTROID_BYTES = TILE * PLACE_BYTES, CHUNK_OF_ROWS = ROW_TILES * ROW_BYTES, LOWERED_BYTES = TILE * 4;
    static constexpr u32 STAGE = CENTROID_BYTES + (ROWS_STAY ? 0 : ROW_BYTES);
    const Tensor& a;
    u32 lowered, barriers, stages;

    __device__ __forceinline__ TensorShared(const Tensor& a, const u8* shared) : a(a), lowered(shared_address(shared)) {
        barriers = lowered + LOWERED_ROOM, stages = lowered + HEADER;
    }
    __device__ __forceinline__ u32 rows(u32 buffer) const { return stages + a.stages * STAGE + buffer * a.chunks * CHUNK_OF_ROWS; }
    __device__ __forceinline__ u32 full(const Turn& turn) const { return barriers + turn.barrier(); }
    __device__ __forceinline__ u32 empty_of(u32 full) const { return full + 8 * a.stages; }
    __device__ __forceinline__ u32 rows_full(const Turn& turn) const { return barriers + 16 * a.stages + turn.barrier(); }
    __device__ __forceinline__ u32 rows_empty(const Turn& turn) const { return rows_full(turn) + 8 * a.row_buffers; }
};

// The centroids of tile t of a group that are multiplied. Those from the group's last centroid on are places without one.
template <u32 TILE> __device__ __forceinline__ u32 width_of(u32 centroids, u32 t) {
    const u32 left = centroids - t * TILE;
    return left <= 64 ? 64 : left <= 128 ? 128 : TILE;
}

// The thread that requests the chunks of centroids, and those of rows if they do not stay.
template <u32 TILE, u32 ROW_TILES> __device__ __forceinline__ void request(const Tensor& a, const TensorShared<TILE, ROW_TILES>& s) {
    constexpr u32 CENTROID_BYTES = s.CENTROID_BYTES, LOWERED_BYTES = s.LOWERED_BYTES, PARTS = TILE_CENTROIDS / TILE;
    const u32 with_lowered = a.part == 0 ? 0 : a.chunks - 1; // the chunk that p comes with
    Turn turn;
#pragma unroll 1
    for (u32 tile = blockIdx.x * ROW_TILES; tile < a.tiles; tile += gridDim.x * ROW_TILES) {
        const u32 g = a.group_of_tile[tile];
        if (g == NO_ROW) break;
        const u32 centroids = a.groups[g].centroids, tiles = (centroids + TILE - 1) / TILE;
        const u32 of_group = a.groups[g].first_copy;
        u32 t = a.first_visit[tile] * PARTS;
#pragma unroll 1
        for (u32 seen = 0; seen < tiles; seen++, t = t + 1 < tiles ? t + 1 : 0) {
#pragma unroll 1
            for (u32 c = 0; c < a.chunks; c++) {
                const u32 to = s.stages + turn.slot() * s.STAGE, full = s.full(turn), bytes = width_of<TILE>(centroids, t) * PLACE_BYTES;
                await_barrier(s.empty_of(full), turn.parity() ^ 1);
                arrive_for(full, (s.ROWS_STAY ? 0 : ROW_BYTES) + bytes + (c == with_lowered ? LOWERED_BYTES : 0));
                const u64 of_centroids = (of_group + t / PARTS) * a.stored + (s.ROWS_STAY ? c : chunk_of_centroids(a, c));
                copy_bytes(to, a.centroids + of_centroids * WHOLE_BYTES + t % PARTS * CENTROID_BYTES, bytes, full);
                const u64 of_rows = tile * a.stored + chunk_of_rows(a, c);
                if (!s.ROWS_STAY) copy_bytes(to + CENTROID_BYTES, a.rows + of_rows * ROW_BYTES, ROW_BYTES, full);
                const float* const lowered = a.lowered + (u64)of_group * TILE_CENTROIDS + t * TILE;
                if (c == with_lowered) copy_bytes(s.lowered + turn.slot() * LOWERED_BYTES, lowered, LOWERED_BYTES, full);
                turn.next(a.stages);
            }
        }
    }
}

// The thread that requests rows that stay. What warpgroups read of them themselves is in the first-level cache then.
template <u32 TILE, u32 ROW_TILES> __device__ __forceinline__ void request_rows(const Tensor& a, const TensorShared<TILE, ROW_TILES>& s) {
    Turn turn;
#pragma unroll 1
    for (u32 tile = blockIdx.x * ROW_TILES; tile < a.tiles; tile += gridDim.x * ROW_TILES) {
        const u32 g = a.group_of_tile[tile];
        if (g == NO_ROW) break;
        if (a.groups[g].centroids == 0) continue;
        await_barrier(s.rows_empty(turn), turn.parity() ^ 1);
        arrive_for(s.rows_full(turn), a.chunks * s.CHUNK_OF_ROWS);
        u32 to = s.rows(turn.slot());
#pragma unroll 1
        for (u32 c = 0; c < a.chunks; c++)
#pragma unroll
            for (u32 row_tile = 0; row_tile < ROW_TILES; row_tile++) {
                const u64 of_rows = (u64)(tile + row_tile) * a.stored + c;
                copy_bytes(to, a.rows + of_rows * ROW_BYTES, ROW_BYTES, s.rows_full(turn));
                to += ROW_BYTES;
            }
        const u32 next = tile + gridDim.x * ROW_TILES;
        if (next < a.tiles) warm(a.group_of_tile + next), warm(a.first_visit + next);
        // With one buffer the rows of this tile are about to be multiplied: too late for them.
        const u32 soon = a.row_buffers > 1 ? tile : next;
#pragma unroll 1
        for (u32 i = soon * TILE_ROWS; soon < a.tiles && i < (soon + ROW_TILES) * TILE_ROWS; i += 32) warm(a.terms + i), warm(a.row_of_place + i);
        turn.next(a.row_buffers);
    }
}

// A thread that counts the work with one of the tiles of rows of a block.
template <u32 ROW_TILES> __device__ __forceinline__ void count(const Tensor& a, u32 row_tile) {
    u64 scores = 0;
    u32 visited = 0;
#pragma unroll 1
    for (u32 tile = blockIdx.x * ROW_TILES + row_tile; tile < a.tiles; tile += gridDim.x * ROW_TILES) {
        const u32 g = a.group_of_tile[tile];
        if (g == NO_ROW) break;
        const TensorGroup& group = a.groups[g];
        const u32 before = (tile - group.first_tile) * TILE_ROWS;
        if (before >= group.here) continue;
        visited += tiles_of(group.centroids);
        scores += (u64)min(group.here - before, (u32)TILE_ROWS) * group.centroids;
    }
    if (visited == 0) return;
    atomicAdd(&a.few.control->visited, (u64)visited);
    atomicAdd(&a.control->scores, scores);
}

// What a warpgroup has done, over all of its tiles. `rows`: the buffer of its rows, if they stay.
struct Progress {
    Turn turn, rows;
};

// The number of this thread's warpgroup among those that multiply.
__device__ __forceinline__ u32 warpgroup() { return threadIdx.x / 128 - 1; }
__device__ __forceinline__ bool first_of_warpgroup() { return (threadIdx.x & 127) == 0; }

// Adds the products of the first STEPS runs of 16 features of a chunk.
template <u32 WIDTH, u32 STEPS, u32 SUMS> __device__ __forceinline__ void run(float (&sums)[SUMS], u32 x, u32 y) {
    begin_products();
#pragma unroll
    for (u32 i = 0; i < STEPS; i++) multiply<WIDTH>(sums, x + 2 * i, y + 2 * i);
    commit_products();
}

// What sums begin with: p, or 0 if it is added at the end. The sums of a second product lose less without it. `lowered`: where the p of the lane's first
// columns are.
template <u32 WIDTH, u32 SUMS> __device__ __forceinline__ void begin(float (&sums)[SUMS], u32 lowered, bool at_end) {
#pragma unroll
    for (int i = 0; i < WIDTH / 8; i++) {
        float p[2] = {};
        if (!at_end) load_lowered(p, lowered, i);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            sums[4 * i + e] = p[e % 2];
            asm volatile("" : "+f"(sums[4 * i + e])::"memory"); // before tensor cores begin
        }
    }
}

// The scores of a tile of rows and a tile of centroids. STEPS: if it is not 0, copies have one chunk, and at most so many runs of 16 features. `rows`: where
// the rows of the warpgroup are.
template <u32 WIDTH, u32 STEPS, u32 TILE, u32 ROW_TILES>
__device__ __forceinline__ void products(const Tensor& a, const TensorShared<TILE, ROW_TILES>& s, Progress& at, float (&sums)[TILE / 2], u32 rows) {
    const bool at_end = !s.ROWS_STAY && a.part != 0;
    const u32 chunks = STEPS != 0 ? 1 : a.chunks;
    u32 before = 0;
    await_barrier(s.full(at.turn), at.turn.parity()); // p comes with the first chunk, unless it is added at the end
    const u32 lowered = s.lowered + (threadIdx.x & 3) * 8;
    begin<WIDTH>(sums, lowered + at.turn.slot() * s.LOWERED_BYTES, at_end);
#pragma unroll 1
    for (u32 c = 0; c < chunks; c++) {
        const u32 full = s.full(at.turn), y = matrix_at(s.stages) + at.turn.slot() * (s.STAGE / 16);
        const u32 x = s.ROWS_STAY ? rows : y + rows;
        if (c > 0) await_barrier(full, at.turn.parity());
        // The tensor cores' order begins and ends in each branch. Otherwise the compiler lets every product wait for the one before.
        if constexpr (STEPS != 0) run<WIDTH, STEPS>(sums, x, y);
        else if (c + 1 < chunks) run<WIDTH, 4>(sums, x, y);
        else if (a.last_steps == 4) run<WIDTH, 4>(sums, x, y);
        else if (a.last_steps == 3) run<WIDTH, 3>(sums, x, y);
        else if (a.last_steps == 2) run<WIDTH, 2>(sums, x, y);
        else run<WIDTH, 1>(sums, x, y);
        if (c > 0) {
            await_products<1>();
            if (first_of_warpgroup()) arrive(s.empty_of(before));
        }
        before = full;
        if (s.ROWS_STAY) rows += s.CHUNK_OF_ROWS / 16;
        at.turn.next(a.stages);
    }
    await_products<0>();
    if (at_end) {
        add_lowered<WIDTH>(sums, lowered + (before - s.barriers) / 8 * s.LOWERED_BYTES);
        await_warpgroup(warpgroup()); // all have read p
    }
    if (first_of_warpgroup()) arrive(s.empty_of(before));
}

// Multiplies a tile of rows and the first WIDTH places of tile t of centroids, and looks at the scores.
template <u32 WIDTH, u32 STEPS, u32 TILE, u32 ROW_TILES, u32 LANE_SETS>
__device__ __forceinline__ u32 visit(const Tensor& a, const TensorShared<TILE, ROW_TILES>& s, Progress& at, float (&sums)[TILE / 2],
                                     Best<LANE_SETS> (&best)[2], u32 of_rows, u32 first_copy, u32 t) {
    products<WIDTH, STEPS>(a, s, at, sums, of_rows);
    return look<WIDTH, TILE>(a, first_copy, sums, best, t);
}

// The group of a tile of rows, or NO_ROW from the last one on.
__device__ __forceinline__ u32 group_of(const Tensor& a, u32 tile) { return tile < a.tiles ? a.group_of_tile[tile] : NO_ROW; }

// What a warpgroup does that has no rows, while others multiply so many tiles of centroids.
template <u32 TILE, u32 ROW_TILES>
__device__ __forceinline__ void pass(const Tensor& a, const TensorShared<TILE, ROW_TILES>& s, Progress& at, u32 tiles) {
#pragma unroll 1
    for (u32 i = 0; i < tiles * a.chunks; i++) {
        const u32 full = s.full(at.turn);
        await_barrier(full, at.turn.parity());
        await_warpgroup(warpgroup()); // no warp may be a round behind the others
        if (first_of_warpgroup()) arrive(s.empty_of(full));
        at.turn.next(a.stages);
    }
}

// A warpgroup that multiplies. The columns of a lane make one set if they have a bit each in a word.
template <u32 STEPS, u32 TILE, u32 ROW_TILES> __device__ __forceinline__ void label(const Tensor& a, const TensorShared<TILE, ROW_TILES>& s) {
    constexpr u32 PARTS = TILE_CENTROIDS / TILE, LANE_SETS = TILE > 128 ? 2 : 1;
    const u32 lane = threadIdx.x & 31;
    Progress at;
    u32 of_rows = (s.CENTROID_BYTES + warpgroup() * (ROW_BYTES / 2)) / 16; // as `matrix_at`: in shared memory if they stay, or in a stage
    u32 kept = 0, tile = blockIdx.x * ROW_TILES, g = group_of(a, tile);
#pragma unroll 1
    while (g != NO_ROW) {
        const u32 next = tile + gridDim.x * ROW_TILES;
        u32 next_group = group_of(a, next);
        asm volatile("" : "+r"(next_group)); // Otherwise the compiler waits for it here.
        const u32 centroids = a.groups[g].centroids, tiles = (centroids + TILE - 1) / TILE;
        const u32 place = tile * TILE_ROWS + threadIdx.x / 32 * 16 - 64 + lane / 4;
        const u32 first_copy = a.groups[g].first_copy;
        const bool empty = ROW_TILES > 1 && (tile - a.groups[g].first_tile) * TILE_ROWS + warpgroup() * 64 >= a.groups[g].here;
        Best<LANE_SETS> best[2] = {{a, place, g}, {a, place + 8, g}};
        const u32 rows[2] = {a.row_of_place[place], a.row_of_place[place + 8]};
        if (s.ROWS_STAY && tiles != 0) {
            of_rows = matrix_at(s.rows(at.rows.slot()) + warpgroup() * (ROW_BYTES / 2));
            await_barrier(s.rows_full(at.rows), at.rows.parity());
        }
        u32 t = a.first_visit[tile] * PARTS;
#pragma unroll 1
        for (u32 seen = empty ? tiles : 0; seen < tiles; seen++, t = t + 1 < tiles ? t + 1 : 0) {
            float sums[TILE / 2]; // one array for all widths: registers are not enough for three
            const u32 width = width_of<TILE>(centroids, t);
            if (width == 64) kept += visit<64, STEPS>(a, s, at, sums, best, of_rows, first_copy, t);
            else if (TILE == 128 || width == 128) kept += visit<128, STEPS>(a, s, at, sums, best, of_rows, first_copy, t);
            else if constexpr (TILE > 128) kept += visit<TILE, STEPS>(a, s, at, sums, best, of_rows, first_copy, t);
        }
        if (empty) pass(a, s, at, tiles);
        if (s.ROWS_STAY && tiles != 0) {
            if (first_of_warpgroup()) arrive(s.rows_empty(at.rows));
            at.rows.next(a.row_buffers);
        }
        decide<TILE>(a, best, rows, g, lane);
        __syncwarp(); // lanes leave `decide` in different places
        tile = next, g = __shfl_sync(FULL_WARP, next_group, 0);
    }
    if (lane == 0 && a.part == 0) atomicAdd(&a.few.control->kept, (u64)kept);
}

// A block of some teams, with FEWER registers for a thread that requests, and MORE for one that multiplies.
template <u32 TILE, u32 ROW_TILES, int FEWER, int MORE> __device__ __forceinline__ void assign_tensor_block(const Tensor& a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) u8 shared[];
    wait_for_kernel_before();
    if (a.control->stop) return;
    const TensorShared<TILE, ROW_TILES> s(a, shared);
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < 2 * (a.stages + a.row_buffers); i++) {
            const bool of_copies = i < a.stages || (i >= 2 * a.stages && i < 2 * a.stages + a.row_buffers); // or of warpgroups
            make_barrier(s.barriers + 8 * i, of_copies ? 1 : 2 * ROW_TILES);
        }
        if (s.stages % 1024 != 0) __trap(); // tensor cores would read other places than copies were written to
        if (a.stages * s.LOWERED_BYTES > LOWERED_ROOM) __trap(); // p would be written over the barriers
        show_barriers();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(FEWER));
        if (threadIdx.x == 0) request<TILE, ROW_TILES>(a, s);
        else if (threadIdx.x == 32 && s.ROWS_STAY) request_rows<TILE, ROW_TILES>(a, s);
        else if (threadIdx.x >= 96 && threadIdx.x < 96 + ROW_TILES && a.part == 0) count<ROW_TILES>(a, threadIdx.x - 96);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(MORE));
        if (s.ROWS_STAY && a.chunks == 1 && a.last_steps <= 2) label<2>(a, s);
        else if (s.ROWS_STAY && a.chunks == 1) label<4>(a, s);
        else label<0>(a, s);
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

// assign_tensor: labels by tensor cores. Products of half-precision copies are a filter; what its bound cannot decide is settled afterwards.
//
//   y_j = p_j - x^.c^_j       p_j: the half square with the centroid's own error taken off (src/bounds/fp16.rs)
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

// Where things are in shared memory. TILE: the centroids that a warpgroup multiplies at a time, a whole tile of copies or half of one. ROW_TILES: the
// tiles of rows of a block. If there are several, their copies stay until all centroids were there.
//
//   stages           chunks of centroids, and of rows if these do not stay
//   rows             that stay: (buffers, chunks, ROW_TILES, 128, 64) halves
//   p and F          of some tiles of centroids
//   barriers         of each stage, whether it is full and whether it is empty; of each buffer of rows, whether rows are there and whether all
//                    centroids were there
template <u32 TILE, u32 ROW_TILES> struct TensorShared {
    static constexpr bool ROWS_STAY = ROW_TILES > 1;
    static constexpr u32 CENTROID_BYTES = TILE * PLACE_BYTES, CHUNK_OF_ROWS = ROW_TILES * ROW_BYTES, FOLDED_BYTES = TILE * 8;
    static constexpr u32 STAGE = CENTROID_BYTES + (ROWS_STAY ? 0 : ROW_BYTES);
    const Tensor& a;
    u32 stages;
    u32 barriers;

    __device__ __forceinline__ TensorShared(const Tensor& a, const u8* shared) : a(a), stages(shared_address(shared)) {
        barriers = rows(a.row_buffers) + a.folded_slots * FOLDED_BYTES;
    }
    __device__ __forceinline__ u32 rows(u32 buffer) const { return stages + a.stages * STAGE + buffer * a.chunks * CHUNK_OF_ROWS; }
    __device__ __forceinline__ u32 folded(const Turn& turn) const { return barriers - (turn.slot() + 1) * FOLDED_BYTES; }
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
    constexpr u32 CENTROID_BYTES = s.CENTROID_BYTES, FOLDED_BYTES = s.FOLDED_BYTES, PARTS = TILE_CENTROIDS / TILE;
    Turn turn, folded_turn;
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
                const bool last = c + 1 == a.chunks;
                arrive_for(full, (s.ROWS_STAY ? 0 : ROW_BYTES) + bytes + (last ? FOLDED_BYTES : 0));
                const u64 of_centroids = (of_group + t / PARTS) * a.stored + (s.ROWS_STAY ? c : chunk_of_centroids(a, c));
                copy_bytes(to, a.centroids + of_centroids * WHOLE_BYTES + t % PARTS * CENTROID_BYTES, bytes, full);
                const u64 of_rows = tile * a.stored + chunk_of_rows(a, c);
                if (!s.ROWS_STAY) copy_bytes(to + CENTROID_BYTES, a.rows + of_rows * ROW_BYTES, ROW_BYTES, full);
                if (last) {
                    const u32 slot = s.folded(folded_turn);
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
    Turn turn, folded_turn, rows;
};

// A warpgroup's part of a block's rows, and a tile of centroids.
struct Part {
    u32 warpgroup; // which 64 rows
    u32 rows; // where they are, as `matrix_at`: in shared memory if they stay, or in a stage
    bool first_thread; // of the warpgroup
    bool empty; // no row is there: nothing is multiplied
};

// The products of the first STEPS runs of 16 features of chunk c.
template <u32 WIDTH, u32 STEPS, u32 SUMS> __device__ __forceinline__ void run(float (&sums)[SUMS], u32 x, u32 y, u32 c) {
    begin_products();
#pragma unroll
    for (u32 i = 0; i < STEPS; i++) multiply<WIDTH>(sums, x + 2 * i, y + 2 * i, i > 0 || c > 0);
    commit_products();
}

// Adds up the products of a tile of rows and a tile of centroids.
template <u32 WIDTH, u32 TILE, u32 ROW_TILES>
__device__ __forceinline__ void products(const Tensor& a, const TensorShared<TILE, ROW_TILES>& s, Progress& at, float (&sums)[TILE / 2], const Part& part) {
    u32 before = 0, rows = part.rows;
#pragma unroll 1
    for (u32 c = 0; c < a.chunks; c++) {
        const u32 full = s.full(at.turn), y = matrix_at(s.stages) + at.turn.slot() * (s.STAGE / 16);
        const u32 x = s.ROWS_STAY ? rows : y + part.rows;
        await_barrier(full, at.turn.parity());
        // The tensor cores' order begins and ends in each branch. Otherwise the compiler lets every product wait for the one before.
        if (part.empty) await_warpgroup(part.warpgroup); // as products do: no warp may be a round behind
        else if (c + 1 < a.chunks) run<WIDTH, 4>(sums, x, y, c);
        else if (a.last_steps == 4) run<WIDTH, 4>(sums, x, y, c);
        else if (a.last_steps == 3) run<WIDTH, 3>(sums, x, y, c);
        else if (a.last_steps == 2) run<WIDTH, 2>(sums, x, y, c);
        else run<WIDTH, 1>(sums, x, y, c);
        if (c > 0) {
            await_products<1>();
            if (part.first_thread) arrive(s.empty_of(before));
        }
        before = full, rows += s.CHUNK_OF_ROWS / 16;
        at.turn.next(a.stages);
    }
    await_products<0>();
    if (part.first_thread) arrive(s.empty_of(before));
}

// Multiplies a tile of rows and the first WIDTH places of tile t of centroids, and looks at the scores.
template <u32 WIDTH, u32 TILE, u32 ROW_TILES, u32 LANE_SETS>
__device__ __forceinline__ u32 visit(const Tensor& a, const TensorShared<TILE, ROW_TILES>& s, Progress& at, float (&sums)[TILE / 2],
                                     Best<LANE_SETS> (&best)[2], const Part& part, float most, u32 t) {
    products<WIDTH>(a, s, at, sums, part);
    const u32 folded = s.folded(at.folded_turn) + (threadIdx.x & 3) * 8;
    at.folded_turn.next(a.folded_slots);
    return part.empty ? 0 : look<WIDTH>(folded, folded + s.FOLDED_BYTES / 2, sums, best, most, t);
}

// A warpgroup that multiplies. The columns of a lane make one set if they have a bit each in a word.
template <u32 TILE, u32 ROW_TILES> __device__ __forceinline__ void label(const Tensor& a, const TensorShared<TILE, ROW_TILES>& s, u32 warpgroup) {
    constexpr u32 PARTS = TILE_CENTROIDS / TILE, LANE_SETS = TILE > 128 ? 2 : 1;
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32 & 3;
    Progress at;
    Part part = {warpgroup, (s.CENTROID_BYTES + warpgroup * (ROW_BYTES / 2)) / 16, (threadIdx.x & 127) == 0, false};
    u32 kept = 0;
#pragma unroll 1
    for (u32 tile = blockIdx.x * ROW_TILES; tile < a.tiles; tile += gridDim.x * ROW_TILES) {
        const u32 g = a.group_of_tile[tile];
        if (g == NO_ROW) break;
        const u32 centroids = a.groups[g].centroids, tiles = (centroids + TILE - 1) / TILE;
        const u32 place = tile * TILE_ROWS + warpgroup * 64 + warp * 16 + lane / 4;
        const u32 of_group = a.groups[g].first_copy;
        part.empty = ROW_TILES > 1 && (tile - a.groups[g].first_tile) * TILE_ROWS + warpgroup * 64 >= a.groups[g].here;
        Best<LANE_SETS> best[2] = {{a, place, g}, {a, place + 8, g}};
        if (s.ROWS_STAY && tiles != 0) {
            part.rows = matrix_at(s.rows(at.rows.slot()) + warpgroup * (ROW_BYTES / 2));
            await_barrier(s.rows_full(at.rows), at.rows.parity());
        }
        u32 t = a.first_visit[tile] * PARTS;
#pragma unroll 1
        for (u32 seen = 0; seen < tiles; seen++, t = t + 1 < tiles ? t + 1 : 0) {
            float sums[TILE / 2]; // one array for all widths: registers are not enough for three
            const float most = a.tile_margins[of_group + t / PARTS];
            const u32 width = width_of<TILE>(centroids, t);
            if (width == 64) kept += visit<64>(a, s, at, sums, best, part, most, t);
            else if (TILE == 128 || width == 128) kept += visit<128>(a, s, at, sums, best, part, most, t);
            else if constexpr (TILE > 128) kept += visit<TILE>(a, s, at, sums, best, part, most, t);
        }
        if (s.ROWS_STAY && tiles != 0) {
            if (part.first_thread) arrive(s.rows_empty(at.rows));
            at.rows.next(a.row_buffers);
        }
        decide<TILE>(a, best, place, g, lane);
        __syncwarp(); // lanes leave `decide` in different places
    }
    if (lane == 0 && a.part == 0) atomicAdd(&a.few.control->kept, (u64)kept);
}

// A block of some teams, with FEWER registers for a thread that requests, and MORE for one that multiplies.
template <u32 TILE, u32 ROW_TILES, int FEWER, int MORE> __device__ __forceinline__ void assign_tensor_block(const Tensor& a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) u8 shared[];
    wait_for_kernel_before();
    if (a.control->stop) return;
    const u32 warpgroup = threadIdx.x / 128;
    const TensorShared<TILE, ROW_TILES> s(a, shared);
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < 2 * (a.stages + a.row_buffers); i++) {
            const bool of_copies = i < a.stages || (i >= 2 * a.stages && i < 2 * a.stages + a.row_buffers); // or of warpgroups
            make_barrier(s.barriers + 8 * i, of_copies ? 1 : 2 * ROW_TILES);
        }
        if (s.stages % 1024 != 0) __trap(); // tensor cores would read other places than copies were written to
        show_barriers();
    }
    __syncthreads();
    if (warpgroup == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(FEWER));
        if (threadIdx.x == 0) request<TILE, ROW_TILES>(a, s);
        else if (threadIdx.x == 32 && s.ROWS_STAY) request_rows<TILE, ROW_TILES>(a, s);
        else if (threadIdx.x >= 96 && threadIdx.x < 96 + ROW_TILES && a.part == 0) count<ROW_TILES>(a, threadIdx.x - 96);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(MORE));
        label<TILE, ROW_TILES>(a, s, warpgroup - 1);
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

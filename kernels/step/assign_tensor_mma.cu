// assign_tensor_mma: labels by tensor cores, as kernels/step/assign_tensor.cu does it, for every generation from 8.0 on. The copies and the
// decisions are the same, but not the instructions. kernels/step/probe_tensor.cu measures how these add up.
//
//   for each tile of rows, for each 128 centroids of its group:
//     for each part of 32 features:  the products of 128 rows and 128 centroids, added up in registers
//     scores, the least of each row, and the columns in reach of it: tensor_best.cuh
//   then the label, or a place in the list of rows in doubt
//
// Used when: many clusters of many features, on generations 8.0 to 8.9 and from 10.0 on. On generation 9.0 it runs too, so it is tested there.
// Tile:      128 rows and 128 centroids a block of 4 warps. A warp has 32 rows, so it has all columns of its rows, and nothing is merged. It
//            multiplies by m16n8k16, with 128 sums a thread. Two blocks run on a processor: one looks for minima while the other multiplies.
// Memory:    parts lie in a ring in shared memory. Each thread requests pieces of 16 bytes (cp.async), two parts ahead. Two blocks with
//            three parts each have 97 KiB, which generations 8.6, 8.9 and 12.0 have. A fourth part makes no difference on an H200.
// Precision: half-precision operands, sums in float32 as tensor cores add them.
#include "mma.cuh"
#include "tensor_best.cuh"

#define MMA_THREADS 128
#define COLUMNS 128 // centroids of a tile
#define PART 32 // features
#define PART_BYTES (TILE_ROWS * 2 * PART) // as many for rows and for centroids
#define PARTS 3 // of a block in shared memory
#define LOWERED_BYTES (COLUMNS * 4) // of half squares
#define SUMS (COLUMNS / 2) // of 16 rows, for a lane

static_assert(COLUMNS == TILE_ROWS, "rows and centroids of a part have one form");

// What is requested next. A part has 64 bytes of each place: pieces 0 to 3, or 4 to 7, of a chunk. In shared memory, piece i of place p is
// at i ^ (p / 2 % 4), so eight places of one piece are in eight different runs of 16 bytes of 128.
struct Source {
    const Tensor& a;
    u32 parts, turns, tile, tiles = 0, seen = 0, t = 0, part = 0;
    u32 from, to; // of this thread's first piece, in a chunk and in shared memory
    u32 first_copy = 0; // of the tile's group

    __device__ __forceinline__ Source(const Tensor& a, u32 parts, u32 turns) : a(a), parts(parts), turns(turns), tile(blockIdx.x) {
        const u32 place = threadIdx.x / 4, piece = threadIdx.x % 4;
        from = swizzled(place, piece);
        to = place * 2 * PART + ((piece ^ (place / 2 & 3)) << 4);
        open();
    }
    // Finds the next tile of rows from `tile` on that has centroids. Without one, `tiles` is 0.
    __device__ __forceinline__ void open() {
#pragma unroll 1
        for (tiles = 0; tile < a.tiles; tile += gridDim.x) {
            const u32 g = a.group_of_tile[tile];
            if (g == NO_ROW) return;
            first_copy = a.groups[g].first_copy;
            tiles = (a.groups[g].centroids + COLUMNS - 1) / COLUMNS;
            if (tiles == 0) continue;
            seen = 0, t = a.first_visit[tile] * (TILE_CENTROIDS / COLUMNS);
            return;
        }
    }
    // Requests the next part, if there is one. `advance` must follow.
    __device__ __forceinline__ void request(u32 stage) const {
        // The pieces of the other half of a chunk have 4 more, before they are exchanged.
        const u32 piece = from ^ (part & 1) * 64, chunk = part / 2;
        const u8* const x = a.rows + ((u64)tile * a.stored + chunk_of_rows(a, chunk)) * (TILE_ROWS * PLACE_BYTES) + piece;
        const u64 tile_of = (u64)first_copy + t / 2;
        const u8* const c = a.centroids + (tile_of * a.stored + chunk_of_centroids(a, chunk)) * (TILE_CENTROIDS * PLACE_BYTES) + (t & 1) * (COLUMNS * PLACE_BYTES) + piece;
        const u32 wanted = tiles != 0 && part < parts;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            copy_piece(stage + to + i * 32 * 2 * PART, x + i * 32 * PLACE_BYTES, wanted);
            copy_piece(stage + PART_BYTES + to + i * 32 * 2 * PART, c + i * 32 * PLACE_BYTES, wanted);
        }
    }
    // Goes on to the part after it. `lowered`: where half squares go, which come in the last turn of a tile.
    __device__ __forceinline__ void advance(u32 lowered) {
        if (tiles != 0 && ++part == turns) {
            const float* const values = a.lowered + (u64)first_copy * TILE_CENTROIDS + t * COLUMNS + threadIdx.x * 4;
            copy_piece(lowered + threadIdx.x * 16, values, threadIdx.x < LOWERED_BYTES / 16);
            part = 0;
            t = t + 1 < tiles ? t + 1 : 0;
            if (++seen == tiles) tile += gridDim.x, open();
        }
        commit_pieces();
    }
};

// Adds up the products of 32 rows of a warp and 128 centroids over STEPS runs of 16 features. `x`, `c`: where the lane's row of matrices is.
// Meanwhile it requests the next part.
template <u32 STEPS> __device__ __forceinline__ void multiply_part(float (&sums)[2][SUMS], u32 x, u32 c, const Source& source, u32 to) {
#pragma unroll
    for (u32 step = 0; step < STEPS; step++) {
        u32 of_rows[2][4];
#pragma unroll
        for (int m = 0; m < 2; m++) load_matrices(of_rows[m], (x ^ step * 32) + m * 16 * 2 * PART); // 16 features are two pieces
#pragma unroll
        for (int i = 0; i < COLUMNS / 8; i += 2) {
            u32 of_centroids[4];
            load_matrices(of_centroids, (c ^ step * 32) + i * 8 * 2 * PART);
#pragma unroll
            for (int m = 0; m < 2; m++) {
                multiply(&sums[m][4 * i], of_rows[m], of_centroids[0], of_centroids[1]);
                multiply(&sums[m][4 * i + 4], of_rows[m], of_centroids[2], of_centroids[3]);
            }
        }
        if (step == 0) source.request(to);
    }
}

extern "C" __global__ void __launch_bounds__(MMA_THREADS, 2) assign_tensor_mma(const __grid_constant__ Tensor a) {
    extern __shared__ __align__(128) u8 shared[];
    wait_for_kernel_before();
    if (a.control->stop) return;
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const u32 ring = (u32)__cvta_generic_to_shared(shared), lowered = ring + PARTS * (2 * PART_BYTES), end = lowered;
    const u32 parts = 2 * a.chunks - (a.last_steps <= 2);
    // A tile has a turn for each part. It has three at least, so the half squares of one tile are under way at a time.
    const u32 turns = max(parts, 3u);
    const bool half_part = a.chunks * 4 - 4 + a.last_steps == 2 * parts - 1; // the last part has 16 features
    Source source(a, parts, turns);
    u32 to = ring;
#pragma unroll 1
    for (u32 i = 1; i < PARTS; i++, to += 2 * PART_BYTES) {
        source.request(to);
        source.advance(lowered);
    }
    // Where this lane's row of a matrix is in a part: of rows, and of centroids. See `load_matrices`.
    const u32 places = lane / 2 & 3;
    const u32 x_at = (warp * 32 + (lane & 15)) * 2 * PART + ((lane / 16 ^ places) << 4);
    const u32 c_at = PART_BYTES + ((lane & 7) + lane / 16 * 8) * 2 * PART + ((lane / 8 & 1 ^ places) << 4);
    u32 from = ring, kept = 0;
    u64 visited = 0, scores = 0; // of the block
#pragma unroll 1
    for (u32 tile = blockIdx.x; tile < a.tiles; tile += gridDim.x) {
        const u32 g = a.group_of_tile[tile];
        if (g == NO_ROW) break;
        const u32 tiles = (a.groups[g].centroids + COLUMNS - 1) / COLUMNS;
        visited += tiles_of(a.groups[g].centroids);
        scores += (u64)min(a.groups[g].here - (tile - a.groups[g].first_tile) * TILE_ROWS, (u32)TILE_ROWS) * a.groups[g].centroids;
        const u32 place = tile * TILE_ROWS + warp * 32 + lane / 4;
        Best<2> best[2][2] = {{{a, place, g}, {a, place + 8, g}}, {{a, place + 16, g}, {a, place + 24, g}}};
        u32 t = a.first_visit[tile] * (TILE_CENTROIDS / COLUMNS);
#pragma unroll 1
        for (u32 seen = 0; seen < tiles; seen++, t = t + 1 < tiles ? t + 1 : 0) {
            float sums[2][SUMS] = {};
#pragma unroll 1
            for (u32 part = 0; part < turns; part++) {
                await_pieces<PARTS - 2>();
                __syncthreads(); // all have their pieces, and no thread reads the part before, whose buffer is filled next
                if (part + 1 < parts || part + 1 == parts && !half_part) multiply_part<2>(sums, from + x_at, from + c_at, source, to);
                else if (part < parts) multiply_part<1>(sums, from + x_at, from + c_at, source, to);
                else source.request(to);
                source.advance(lowered);
                to = to + 2 * PART_BYTES == end ? ring : to + 2 * PART_BYTES;
                from = from + 2 * PART_BYTES == end ? ring : from + 2 * PART_BYTES;
            }
            const u32 first_copy = a.groups[g].first_copy;
#pragma unroll
            for (int m = 0; m < 2; m++) {
                add_lowered<COLUMNS>(sums[m], lowered + (lane & 3) * 8);
                kept += look<COLUMNS, COLUMNS>(a, first_copy, sums[m], best[m], t);
            }
        }
#pragma unroll
        for (int m = 0; m < 2; m++) {
            const u32 rows[2] = {a.row_of_place[place + 16 * m], a.row_of_place[place + 16 * m + 8]};
            decide<COLUMNS>(a, best[m], rows, g, lane);
        }
        __syncwarp(); // lanes leave `decide` in different places
    }
    // Two of its tiles are one of 256 centroids.
    if (a.part != 0) return;
    if (lane == 0) atomicAdd(&a.few.control->kept, (u64)kept / 2);
    if (threadIdx.x != 0 || visited == 0) return;
    atomicAdd(&a.few.control->visited, visited);
    atomicAdd(&a.control->scores, scores);
}

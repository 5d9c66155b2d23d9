// assign_columns: labels and sums in one pass over the rows, for few clusters of many features.
//
//   for each tile of rows:
//     for each column:  x^ = its centred, scaled copy;  the scores of all centroids += x^ . (-c^)
//     h_j = |c_j|^2 / 2 - x.c_j: the nearest centroid, and the second best score
//     rows whose second best is in reach: the warp computes their reference distances to the centroids in reach
//     rows whose label changed: to the list of the warp. When it is long enough, its lanes take (row, column) pairs: quantise, subtract
//       from one cluster's cell, add to the other's
//   flush the block's table of cells
//
// Source:    ours. As kernels/step/assign_registers.cu it does everything in one pass, but what lives in registers is not the row: it is the
//            scores of all centroids. So a column is needed only once, and there may be any number of columns.
// Used when: d > 8 and k <= 32, where it is faster (src/backend/cuda/step/choice.rs).
// Tile:      a thread has 4 rows and their scores of 2, 4, 8, 16 or 32 centroids (suffix _k2 to _k32). A warp has 128 rows, one block fills an
//            SM. Tiles are dealt out to the blocks in turn, then a counter hands them out. There is no barrier after the start.
// Memory:    each value is read once. Asynchronous copies bring the next columns to the thread's own places in shared memory, across the
//            borders of tiles. Copies of the centroids are in shared memory and read as broadcasts of 16 bytes. Values of rows that move
//            are read again, from the second-level cache. Labels take one byte. They are written only if they changed.
// Precision: a score is one chain of d fmas, and |c|^2 / 2 is added to it, as in kernels/step/assign_tiled.cu without panels. The same
//            bound certifies it (`Chains::One` of src/certify.rs). The sum of squares has d + 1 roundings.
// Relies on: x and copies are aligned to 16 bytes, the stride is a multiple of 128, labels have one byte. d is more than (RING - 2) STEP, so
//            the columns that are requested belong to this tile or to the next one.
#include "columns_settle.cuh"
#include "columns_sums.cuh"

// A warp's own places.
struct Private {
    List list;
    Doubtful doubtful;
    u32 later; // the place after its first tiles of the tile that it takes after the one that is requested
};

// What few tiles need is here and not in registers.
struct Block {
    Cells cells;
    Gate gate;
    u32 changed, contested;
};

// Copies of the centroids, `minus_centre` and the weights to shared memory, feature by feature.
template <typename S> __device__ __forceinline__ void fetch_centroids(const Assign<typename S::T>& a, float* to) {
    const int d = a.rows.d, parts = S::k == 2 ? 1 : S::k / 4;
#pragma unroll 4
    for (int i = threadIdx.x; i < d * parts; i += THREADS) {
        const int f = i / parts, part = i % parts;
        if (S::k == 2) *(float2*)(to + f * S::width) = ((const float2*)a.copies)[f];
        else ((float4*)(to + f * S::width))[part] = ((const float4*)a.copies)[i];
    }
#pragma unroll 2
    for (int f = threadIdx.x; f < d; f += THREADS) {
        *(typename S::T*)(to + f * S::width + S::k) = a.minus_centre[f];
        to[f * S::width + S::weight_at] = (float)weight_of(f & ~15, d, 0x7fffffff);
    }
}

// The labels of a lane's four rows of the tile that begins with row `first`, one byte each.
template <typename T> __device__ __forceinline__ u32 load_labels(const Labels& all, u32 first, int lane) {
    const u8* const labels = (const u8*)all.at + first;
    if (sizeof(T) == 4) return *(const u32*)(labels + place_of<T>(lane, 0));
    return (u32)*(const u16*)(labels + place_of<T>(lane, 0)) | (u32)*(const u16*)(labels + place_of<T>(lane, 2)) << 16;
}
template <typename T> __device__ __forceinline__ void store_labels(const Labels& all, u32 first, u32 four, int lane) {
    u8* const labels = (u8*)all.at + first;
    if (sizeof(T) == 4) {
        *(u32*)(labels + place_of<T>(lane, 0)) = four;
    } else {
        *(u16*)(labels + place_of<T>(lane, 0)) = (u16)four;
        *(u16*)(labels + place_of<T>(lane, 2)) = (u16)(four >> 16);
    }
}

// Lists the rows of a lane that changed: a bit of `differs` for each.
template <typename T>
__device__ __forceinline__ void list_changed(const Assign<T>& a, List& list, u32 differs, u32 old, const u32 (&label)[ROWS], u32 first, int lane) {
    if (a.rows.w) {
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if ((differs >> r & 1) && !(a.rows.w[first + place_of<T>(lane, r)] > 0.0)) differs &= ~(1u << r);
    }
    if (!differs) return;
    u32 at = atomicAdd(&list.count, __popc(differs));
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (!(differs >> r & 1)) continue;
        list.row[at] = first + place_of<T>(lane, r);
        list.from[at] = (u8)(old >> 8 * r);
        list.to[at] = (u8)label[r];
        at++;
    }
}

// The scores of the stream's current tile, and the weighted squares of its rows. Requests columns ahead. `following`: the tile after the one
// that is requested now.
template <typename S, typename Next>
__device__ __forceinline__ void score_tile(const Assign<typename S::T>& a, Stream<S>& stream, const float* centroids, Scores<S::k>& scores,
                                           float (&square)[ROWS], Next next) {
    const int d = a.rows.d;
    const float* feature = centroids;
    scores.clear();
#pragma unroll
    for (int r = 0; r < ROWS; r++) square[r] = 0.0f;
#pragma unroll 1
    for (int f = 0; f < d; f += S::step) {
        if (stream.left <= 0) next();
        stream.ask(stream.slot == 0 ? S::ring - 1 : stream.slot - 1);
        stream.wait();
        if (f + S::step <= d) {
#pragma unroll
            for (int i = 0; i < S::step; i++) add_column<S>(stream, i, feature + i * S::width, a.scale, scores, square);
        } else {
#pragma unroll 1
            for (int i = 0; f + i < d; i++) add_column<S>(stream, i, feature + i * S::width, a.scale, scores, square);
        }
        feature += S::step * S::width;
        stream.slot = stream.slot + 1 == S::ring ? 0 : stream.slot + 1;
    }
}

template <typename S> __device__ __forceinline__ void assign_columns(const Assign<typename S::T>& a) {
    typedef typename S::T T;
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ Private privates[WARPS];
    __shared__ Block block;
    wait_for_kernel_before();
    if (a.control->stop) return;
    const int d = a.rows.d, lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    // Shared memory: the ring, the copies of the centroids, their half squares, the factors, the table.
    float* const centroids = (float*)(shared + S::ring_bytes);
    float* const half_squares = centroids + d * S::width;
    Factors* const factors = (Factors*)(half_squares + (S::k == 2 ? 4 : S::k));
    Private& own = privates[warp];

    const u32 tiles = (a.rows.n + TILE - 1) / TILE;
    u32 tile = warp * gridDim.x + blockIdx.x;
    Stream<S> stream(a.rows, tiles, (float4*)shared);
    stream.begin(tile);
#pragma unroll 1
    for (int i = 0; i < S::ring - 1; i++) stream.ask(i);

    fetch_centroids<S>(a, centroids);
    if (threadIdx.x < S::k) half_squares[threadIdx.x] = a.half_squares[threadIdx.x];
#pragma unroll 1
    for (int i = threadIdx.x; i < 3 * d; i += THREADS) ((double*)factors)[i] = ((const double*)a.factors)[i];
    // A warp has asked for the number of one tile more than it copies.
    const u32 dealt = gridDim.x * WARPS;
    if (lane == 0) own.list.count = 0, own.later = dealt < tiles ? atomicAdd(&a.control->next_run, 1u) : 0;
    if (threadIdx.x == 0) block.cells = Cells(a, (u32*)(factors + d)), block.gate = {0, 0, 0}, block.changed = 0, block.contested = 0;
    __syncthreads();
    block.cells.clear(a.sums.k);
    __syncthreads();

#pragma unroll 1
    while (true) {
        const bool done = tile >= tiles;
        const u32 listed = own.list.count;
        if (listed >= (done ? 1 : ENOUGH)) {
            move_listed(a, factors, block.gate, block.cells, own.list, listed, lane);
            if (lane == 0) atomicAdd(&block.changed, listed);
        }
        if (done) break;
        // With 32 centroids no register is left for labels that are loaded before they are needed.
        const bool early = S::k < 32;
        u32 old = early ? load_labels<T>(a.labels, tile * TILE, lane) : 0;
        Scores<S::k> scores;
        float square[ROWS];
        score_tile<S>(a, stream, centroids, scores, square, [&] {
            // `asked` is at most one tile ahead of `tile`. Once it is beyond the last tile it stays there.
            if (stream.asked >= tiles) return;
            __syncwarp();
            stream.begin(dealt < tiles ? dealt + own.later : tiles);
            __syncwarp();
            if (lane == 0 && stream.asked < tiles) own.later = atomicAdd(&a.control->next_run, 1u);
        });
        const u32 first = tile * TILE;
        tile = stream.asked;
        if (!early) old = load_labels<T>(a.labels, first, lane);

        u32 valid = 0; // a bit for each row that exists
#pragma unroll
        for (int r = 0; r < ROWS; r++) valid |= first + place_of<T>(lane, r) < a.rows.n ? 1u << r : 0;
        Found found;
        decide(a, half_squares, square, scores, valid, found);
        if (__any_sync(FULL_WARP, found.doubt != 0)) {
            const u32 rows = settle(a, own.doubtful, first, found.doubt, found.reach, found.label, lane);
            if (lane == 0) atomicAdd(&block.contested, rows);
        }
        const u32 now = found.label[0] | found.label[1] << 8 | found.label[2] << 16 | found.label[3] << 24, changes = now ^ old;
        u32 differs = 0;
#pragma unroll
        for (int r = 0; r < ROWS; r++) differs |= (changes >> 8 * r & 0xff) && (valid >> r & 1) ? 1u << r : 0;
        if (differs) store_labels<T>(a.labels, first, now, lane);
        if (a.table_copies && !a.rows.w && __all_sync(FULL_WARP, old == 0xffffffffu)) {
            const u32 count = min(TILE, a.rows.n - first);
            enter(block.gate, count, block.cells, a.sums, lane);
            add_first(a, factors, block.cells, a.rows.x + first + place_of<T>(lane, 0), found.label, valid, lane);
            if (lane == 0) atomicAdd(&block.changed, count);
        } else if (__any_sync(FULL_WARP, differs != 0)) {
            list_changed(a, own.list, differs, old, found.label, first, lane);
            __syncwarp();
        }
    }
    __syncthreads();
    if (a.table_copies && block.gate.announced) flush(block.cells, a.sums, threadIdx.x, THREADS);
    if (threadIdx.x == 0) {
        if (block.changed) atomicAdd(&a.control->changed, (u64)block.changed);
        if (block.contested) atomicAdd(&a.control->contested, block.contested);
    }
}

#define ASSIGN_COLUMNS(T, NAME, K)                                                                     \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) NAME(const __grid_constant__ Assign<T> a) { \
        assign_columns<Shape<T, K>>(a);                                                                 \
    }
#define ALL(K)                                        \
    ASSIGN_COLUMNS(float, assign_columns_f32_k##K, K)  \
    ASSIGN_COLUMNS(double, assign_columns_f64_k##K, K)
ALL(2)
ALL(4)
ALL(8)
ALL(16)
ALL(32)

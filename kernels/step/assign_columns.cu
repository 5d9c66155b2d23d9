// assign_columns: labels and sums in one pass over the rows, for few clusters of many features.
//
//   for each tile of rows:
//     for each column:  x^ = its centred, scaled copy;  the scores of all centroids += x^ . (-c^)
//     h_j = |c_j|^2 / 2 - x.c_j: the nearest centroid, and the second best score
//     rows whose second best is in reach: the warp keeps them. Once they fill its lanes, it computes their reference distances to the
//       centroids in reach
//     rows whose label changed, if they are few: to the list of the warp. When it is long enough, its lanes take (row, column) pairs:
//       quantise, subtract from one cluster's accumulator, add to the other's
//     rows whose label changed, if they are many: products of integers on the tensor cores add up the tile
//   flush the block's table of accumulators
//
// Source:    ours. As kernels/step/assign_registers.cu it does everything in one pass, but what lives in registers is not the row: it is the
//            scores of all centroids. So a column is needed only once, and there may be any number of columns.
// Used when: d > 8 and k <= 32, where it is faster (src/backend/cuda/step/choice.rs).
// Tile:      a thread has 4 rows and their scores of 2, 4, 8, 16 or 32 centroids (suffix _k2 to _k32). A warp has 128 rows, one block of 12
//            or 16 warps fills an SM. Tiles are dealt out to the blocks in turn, then a counter hands them out. There is no barrier after the start.
// Memory:    each value is read once. Asynchronous copies bring the next columns to the thread's own places in shared memory, across the
//            borders of tiles. Copies of the centroids are in shared memory and read as broadcasts of 16 bytes. Values of rows that move
//            are read again, from the second-level cache. Labels take one byte. They are written only if they changed.
// Precision: a score is one chain of d fmas, and |c|^2 / 2 is added to it, as in kernels/step/assign_tiled.cu without panels. The same
//            bound certifies it (`Chains::One` of src/bounds.rs). The sum of squares has d + 1 roundings.
// Relies on: x and copies are aligned to 16 bytes, the stride is a multiple of 128, labels have one byte. a tile has at least RING - 1
//            steps, so the columns that are requested belong to this tile or to the next one.
#include "columns_dense.cuh"
#include "columns_settle.cuh"

// A warp's own places.
struct Private {
    List list;
    Doubtful doubtful;
    Move move;
    u32 now; // the tile that it works on
    u32 later; // the place after its first tiles of the tile that it takes after the one that is requested
};

// What few tiles need is here and not in registers.
struct Block {
    BlockSums block_sums;
    Gate gate;
    u32 changed, in_doubt;
    int half_squares; // where they begin, counted from the centroids
};

// Copies of the centroids, `minus_centre` and the weights to shared memory, feature by feature. Features that fill the last step are all 0.
template <typename S> __device__ __forceinline__ void fetch_centroids(const Assign<typename S::T, typename S::V>& a, float* to, int padded) {
    const int d = a.rows.d, parts = S::k == 2 ? 1 : S::k / 4;
#pragma unroll 4
    for (int i = threadIdx.x; i < padded * parts; i += S::threads) {
        const int f = i / parts, part = i % parts;
        if (S::k == 2) *(float2*)(to + f * S::width) = f < d ? ((const float2*)a.copies)[f] : make_float2(0, 0);
        else ((float4*)(to + f * S::width))[part] = f < d ? ((const float4*)a.copies)[i] : make_float4(0, 0, 0, 0);
    }
#pragma unroll 2
    for (int f = threadIdx.x; f < padded; f += S::threads) {
        *(typename S::T*)(to + f * S::width + S::k) = f < d ? a.minus_centre[f] : (typename S::T)0;
        to[f * S::width + S::weight_at] = f < d ? (float)weight_of(f & ~15, d, 0x7fffffff) : 0.0f;
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
template <typename T, typename S>
__device__ __forceinline__ void list_changed(const Assign<T, S>& a, List& list, u32 differs, u32 old, const u32 (&label)[ROWS], u32 first, int lane) {
    if (a.rows.w) {
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if ((differs >> r & 1) && !(a.rows.w[first + place_of<T>(lane, r)] > 0.0)) differs &= ~(1u << r);
    }
    if (!differs) return;
    u32 at = atomicAdd(&list.count, __popc(differs));
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        if (differs >> r & 1) list.add(at++, first + place_of<T>(lane, r), old >> 8 * r & 0xff, label[r]);
}

// Four labels of a lane's rows to their places in the tile.
template <typename T> __device__ __forceinline__ void place_labels(u8 (&tile)[TILE], u32 four, int lane) {
    if (sizeof(T) == 4) {
        *(u32*)(tile + place_of<T>(lane, 0)) = four;
    } else {
        *(u16*)(tile + place_of<T>(lane, 0)) = (u16)four;
        *(u16*)(tile + place_of<T>(lane, 2)) = (u16)(four >> 16);
    }
}

// The scores of the stream's current tile, and the weighted squares of its rows. Requests columns ahead. `next` begins with the tile after
// this one. It is called once.
template <typename S, typename Next>
__device__ __forceinline__ void score_tile(const Assign<typename S::T, typename S::V>& a, Stream<S>& stream, const float* centroids, Scores<S::k>& scores,
                                           float (&square)[ROWS], Next next) {
    scores.clear();
#pragma unroll
    for (int r = 0; r < ROWS; r++) square[r] = 0.0f;
#pragma unroll 1
    for (int f = 0; f < a.rows.d; f += S::step) {
        const float* const feature = centroids + f * S::width;
        if (stream.left == 0) next();
        stream.ask(stream.slot == 0 ? S::ring - 1 : stream.slot - 1);
        stream.wait();
#pragma unroll S::unrolled
        for (int i = 0; i < S::step; i++) add_column<S>(stream, i, feature + i * S::width, a.scale, scores, square);
        stream.slot = stream.slot + 1 == S::ring ? 0 : stream.slot + 1;
    }
}

template <typename S> __device__ __forceinline__ void assign_columns(const Assign<typename S::T, typename S::V>& a) {
    typedef typename S::T T;
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ Private privates[S::warps];
    __shared__ Block block;
    wait_for_kernel_before();
    if (a.control->stop) return;
    const int d = a.rows.d, lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    // Shared memory: the ring, the copies of the centroids, their half squares, the factors, the table.
    float* const centroids = (float*)(shared + S::ring_bytes);
    // Read from `block` where they are needed: registers are scarce.
    auto half_squares = [&] { return centroids + *(volatile int*)&block.half_squares; };
    auto factors = [&] { return (Factors*)(half_squares() + (S::k == 2 ? 4 : S::k)); };
    Private& own = privates[warp];

    const u32 tiles = (a.rows.n + TILE - 1) / TILE;
    Stream<S> stream(a.rows, tiles, shared);
    stream.begin(warp * gridDim.x + blockIdx.x);
#pragma unroll 1
    for (int i = 0; i < S::ring - 1; i++) stream.ask(i);

    if (threadIdx.x == 0) block.half_squares = stream.padded() * S::width;
    __syncthreads();
    fetch_centroids<S>(a, centroids, stream.padded());
    if (threadIdx.x < S::k) half_squares()[threadIdx.x] = a.half_squares[threadIdx.x];
#pragma unroll 1
    for (int i = threadIdx.x; i < 3 * d; i += S::threads) ((double*)factors())[i] = ((const double*)a.factors)[i];
    // A warp has asked for the number of one tile more than it copies.
    const u32 dealt = gridDim.x * S::warps;
    if (lane == 0) {
        own.list.count = 0, own.doubtful.count = 0, own.doubtful.rows = 0;
        own.later = dealt < tiles ? atomicAdd(&a.control->next_run, 1u) : 0;
    }
    if (threadIdx.x == 0) block.block_sums = BlockSums(a, (u32*)(factors() + d)), block.gate = {0, 0, 0}, block.changed = 0, block.in_doubt = 0;
    __syncthreads();
    block.block_sums.clear(a.sums.k);
    __syncthreads();

#pragma unroll 1
    while (true) {
        const bool done = stream.asked() >= tiles;
        if (done && own.doubtful.count) settle_pairs(a, own.doubtful, own.list, lane);
        const u32 listed = own.list.count;
        if (listed * a.sums.columns >= (done ? 1 : ENOUGH)) {
            move_listed(a, factors(), block.gate, block.block_sums, own.list, listed, lane);
            if (lane == 0) atomicAdd(&block.changed, listed);
        }
        if (done) break;
        // With 32 centroids no register is left for labels that are loaded before they are needed.
        const bool early = S::k < 32;
        u32 old = early ? load_labels<T>(a.labels, stream.asked() * TILE, lane) : 0;
        Scores<S::k> scores;
        float square[ROWS];
        score_tile<S>(a, stream, centroids, scores, square, [&] {
            if (lane == 0) own.now = stream.asked();
            __syncwarp();
            stream.begin(dealt < tiles ? dealt + own.later : tiles);
            __syncwarp();
            if (lane == 0 && stream.asked() < tiles) own.later = atomicAdd(&a.control->next_run, 1u);
        });
        const u32 first = own.now * TILE;
        if (!early) old = load_labels<T>(a.labels, first, lane);

        u32 valid = 0; // a bit for each row that exists
#pragma unroll
        for (int r = 0; r < ROWS; r++) valid |= first + place_of<T>(lane, r) < a.rows.n ? 1u << r : 0;
        Found found;
        decide(a, half_squares(), square, scores, valid, found);
        u32 differs = 0;
#pragma unroll
        for (int r = 0; r < ROWS; r++) differs |= found.label[r] != (old >> 8 * r & 0xff) ? 1u << r : 0;
        differs &= valid & ~found.doubt;
        const u32 now = found.label[0] | found.label[1] << 8 | found.label[2] << 16 | found.label[3] << 24;
        const u32 moves = (differs * 0x00204081u & 0x01010101u) * 0xffu; // all ones in the byte of each row that moves
        if (differs) store_labels<T>(a.labels, first, (now & moves) | (old & ~moves), lane);
        if (__any_sync(FULL_WARP, found.doubt != 0)) {
            __syncwarp(); // a row that is settled at once gets its label after the store above
            const u32 rows = keep(a, own.doubtful, own.list, first, found.doubt, found.reach, old, lane);
            if (lane == 0) atomicAdd(&block.in_doubt, rows);
        }
        if (!__any_sync(FULL_WARP, differs != 0)) continue;
        const u32 count = __reduce_add_sync(FULL_WARP, (u32)__popc(differs));
        if (count >= MANY && !a.rows.w) {
            place_labels<T>(own.move.from, old | ~moves, lane);
            place_labels<T>(own.move.to, now | ~moves, lane);
            __syncwarp();
            if (block.block_sums.there) enter(block.gate, count, block.block_sums, a.sums, lane);
            move_tile<S::k>(a, factors(), block.block_sums, own.move, first, lane);
            if (lane == 0) atomicAdd(&block.changed, count);
        } else {
            list_changed(a, own.list, differs, old, found.label, first, lane);
        }
        __syncwarp();
    }
    __syncthreads();
    if (a.table_copies && block.gate.announced) flush(block.block_sums, a.sums, threadIdx.x, S::threads);
    if (threadIdx.x == 0) {
        if (block.changed) atomicAdd(&a.control->changed, (u64)block.changed);
        if (block.in_doubt) atomicAdd(&a.control->in_doubt, block.in_doubt);
    }
}

#define ASSIGN_COLUMNS(T, S, NAME, K)                                                                                        \
    extern "C" __global__ void __launch_bounds__(Shape<T, S, K>::threads, 1) NAME(const __grid_constant__ Assign<T, S> a) { \
        assign_columns<Shape<T, S, K>>(a);                                                                                  \
    }
#define ALL(K)                                               \
    ASSIGN_COLUMNS(float, float, assign_columns_f32_k##K, K)  \
    ASSIGN_COLUMNS(double, double, assign_columns_f64_k##K, K) \
    ASSIGN_COLUMNS(float, Half, assign_columns_f16_k##K, K)
ALL(2)
ALL(4)
ALL(8)
ALL(16)
ALL(32)

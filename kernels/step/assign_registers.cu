// assign_registers: labels and sums in one pass over the rows, for few features.
//
// Source:    Li, Zhao, Chu and Liu, "Speeding up k-means algorithm by GPUs", CIT 2010, algorithm 3 (low d: a row lives in registers,
//            centroids in shared memory). Sums are fused into the same pass, as in Lutz et al. 2018, section 4.
// Used when: d <= 12, unless tiles are faster, as with few rows or very many clusters (src/backend/cuda/step/choice.rs).
// Tile:      a thread has 4 rows (one 16-byte load a float32 column), so a warp has 128. Warps take runs of tiles from a common
//            counter, each at its own pace. With few clusters every warp takes equally many runs, and only the last ones come from
//            the counter. There is no barrier after the start. Centroids are in shared memory if they fit, else in the first-level cache.
// Memory:    each value is read once. Asynchronous copies bring the next tile to the thread's own places in shared memory while the
//            thread works on the current tile. Labels take 1, 2 or 4 bytes. They are read, and written only if they changed.
// Precision: a float32 product filter, h_j = |c_j|^2 / 2 - x.c_j on centred, scaled copies, certified by `Bound` (d fmas onto the half
//            square: d roundings). A warp collects its rows in doubt and settles many together, by differences of copies.
//
//   for each tile:
//     scores:  up to 8 centroids  all scores at once, the least, and the centroids in reach of it
//              more               best, second best and index, over pairs of centroids
//              many               best and second best over groups of centroids, then the best group once more
//     rows whose second best is in reach: to the warp's list of rows in doubt; their labels stay as they are
//     rows whose label changed: to the warp's list of such rows
//   when there are enough rows in doubt: their differences from all centroids, then reference distances to centroids in reach
//   when enough rows have changed: lanes take (row, column) pairs: quantise, subtract from one cluster's accumulator, add to the other's
//   flush the block's table of accumulators
//
// Departures from the paper: (1) Groups: the first sweep keeps only the least score of a group (one instruction a score instead of
// five). Then the best group is swept again. (2) Sums move by deltas: a row that stays in its cluster costs nothing, and the few rows
// that move are spread evenly over the lanes of a warp. (3) Values that few tiles need (single labels, counts) are not kept in
// registers, and tiles that do not need them do not compute them.
#include "settle_rows.cuh"

// Loops that the compiler unrolls, and loops that it must not.
#define UNROLL _Pragma("unroll")
#define KEEP_LOOP _Pragma("unroll 1")

// What a kernel has registers for. Not every kernel has room for all of it: registers would spill, which tests/kernels.rs finds.
template <typename T, typename S, int D, int GROUP> struct Room {
    // For `settle_few`.
    static const bool few = GROUP != 0 || (is_half<S> ? D == 1 || D > 4 : D != (sizeof(T) == 4 ? 3 : 4));
    // For `add_together`.
    static const bool together = is_half<S> ? GROUP != 0 || (D != 2 && D != 3) : GROUP == 0 || D != 2 || sizeof(T) == 4;
    // For a call of `flush_table_apart`. Kernels with groups are up to 5 % faster with it.
    static const bool apart = GROUP != 0 && D > (is_half<S> ? 4 : 2);
};

// Shared memory holds the arriving tile, the centroids (if they fit), the words of the table, the row counts of the clusters. A warp
// copies 512 bytes at once; if the target is not a multiple of 128, the copy is split in halves and read twice.
//
// Runs of tiles: up to tile `even` they come in rounds, one run for each warp. Then each warp takes one more, and after that the counter
// hands them out. One run is always requested ahead. A run has a power of two tiles, and starts at a multiple of that.
//
// In a first assign every row moves, from no cluster. Then each lane adds its own rows, unless the sums are in device memory or there
// are weights; their values stay in place until they are added. Rows in doubt are left out, and move later. Rows beyond n may get a label.
template <typename T, typename S, int D, int GROUP> __device__ __forceinline__ void assign(const Assign<T, S>& a) {
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ List lists[WARPS];
    __shared__ Entrance entrance;
    __shared__ u32 following[WARPS]; // the next run of each warp
    __shared__ u32 block_changed, block_in_doubt, block_unresolved;
    __shared__ Factors factors[D];
    wait_for_kernel_before();
    if (a.control->stop) return;
    const AsyncTiles<T, S, D> next = {shared, shared + AsyncTiles<T, S, D>::bytes(0)};
    const bool fit = a.centroids_in_shared != 0;
    float* centroids = (float*)(shared + AsyncTiles<T, S, D>::bytes(a.labels.bytes));
    const u32 centroid_words = fit ? a.k_padded * Centroid<D>::width + (GROUP ? a.k_padded / (GROUP ? GROUP : 1) * 4 : 0) : 0;
    const Table table = {(u32*)(centroids + centroid_words), a.sums.k * a.sums.columns * a.sums.limbs, a.table_copies};
    const BlockSums own = {table, (int*)(table.words + (size_t)table.accumulators * 2 * table.copies)};
    auto block_sums = [&]() { return sizeof(T) == 4 ? own : entrance.block_sums; };
    const int d = a.rows.d, lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const u32 tiles = (a.rows.n + WARP_TILE - 1) / WARP_TILE, in_run = a.run - 1;
    u32 tile = (blockIdx.x * WARPS + warp) * a.run;
    if (lane == 0) lists[warp].count = 0, lists[warp].doubtful = 0;
    if (lane == 0) following[warp] = a.even + tile;
    if (tile < tiles) next.ask(a.rows, a.labels, tile * WARP_TILE + lane * ROWS);
    if (threadIdx.x < d) factors[threadIdx.x] = a.factors[threadIdx.x];
    if (threadIdx.x == 0) {
        entrance = {own, {0, 0, 0}};
        block_changed = 0, block_in_doubt = 0, block_unresolved = 0;
    }
    if (table.copies) {
        table_clear(table);
        KEEP_LOOP for (int i = threadIdx.x; i < a.sums.k; i += THREADS) own.rows[i] = 0;
    }
    if (fit) fetch_centroids<D, GROUP>(a.copies, centroids, a.k_padded);
    const bool exact = D <= 4; // up to four features there is a kernel for each number of features
    T minus_centre[D];
    UNROLL for (int f = 0; f < D; f++) minus_centre[f] = exact || f < d ? a.minus_centre[f] : (T)0;
    const bool by_lanes = a.table_copies && !a.rows.w;
    __syncthreads();
    u32 listed = 0; // rows of this warp that have changed
    u32 later = a.even < tiles && lane == 0 ? atomicAdd(&a.control->next_run, in_run + 1) : 0;
    KEEP_LOOP while (true) {
        const bool done = tile >= tiles;
        const u32 doubtful = lists[warp].doubtful;
        if (listed >= ENOUGH || (done && listed && !doubtful)) {
            move_listed<Room<T, S, D, GROUP>::apart>(a, factors, entrance, block_sums(), lists[warp], listed, lane);
            if (lane == 0) atomicAdd(&block_changed, listed);
            listed = 0;
        }
        if (doubtful >= (done ? 1 : 32 * Settling<T, D>::rows)) {
            u32 settled = doubtful;
            if (Room<T, S, D, GROUP>::few && done && are_few(doubtful, a.k)) settle_few<T, D>(a, lists[warp], doubtful, lane);
            else settled = settle_rows<T, D, GROUP>(a, minus_centre, centroids, lists[warp], doubtful, lane);
            if (lane == 0) atomicAdd(&block_in_doubt, settled);
            listed = lists[warp].count;
            continue; // there may be many changed rows now
        }
        if (done) break;
        const u32 row = tile * WARP_TILE + lane * ROWS;
        tile++;
        if ((tile & in_run) == 0) {
            const u32 round = gridDim.x * WARPS * (in_run + 1);
            tile += round - (in_run + 1);
            if (tile >= a.even) {
                __syncwarp();
                tile = following[warp];
                __syncwarp();
                if (lane == 0) {
                    following[warp] = a.even + round + later;
                    if (tile < tiles) later = atomicAdd(&a.control->next_run, in_run + 1);
                }
            }
        }
        float x[D][ROWS], square[ROWS];
        asm volatile("cp.async.wait_all;" ::: "memory");
        UNROLL for (int r = 0; r < ROWS; r++) square[r] = 0.0f;
        const bool together = is_half<S> && D > 2; // up to two columns one after the other need fewer registers
        if constexpr (together) next.take_all(a.rows, x);
        UNROLL for (int f = 0; f < D; f++) {
            T raw[ROWS] = {0, 0, 0, 0};
            if constexpr (together) {
                UNROLL for (int r = 0; r < ROWS; r++) raw[r] = x[f][r];
            } else if (exact || f < d) {
                next.take(a.rows, f, raw);
            }
            UNROLL for (int r = 0; r < ROWS; r++) {
                x[f][r] = centred_copy(raw[r], minus_centre[f], a.scale);
                square[r] = __fmaf_rn(x[f][r], x[f][r], square[r]);
            }
        }
        const Four old = next.take_labels(a.labels.bytes);
        const bool first = by_lanes && __all_sync(FULL_WARP, old.none());
        if (!first && tile < tiles) next.ask(a.rows, a.labels, tile * WARP_TILE + lane * ROWS);
        const Ceiling bound = a.bound->ceiling; // read again for every tile: registers are scarce
        Found found = fit ? nearest<D, GROUP, 4>(x, square, bound, {centroids, a.k_padded})
                          : nearest<D, GROUP, 0>(x, square, bound, {a.copies, a.k_padded});
        const u32 valid = (1u << min(a.rows.n - min(a.rows.n, row), ROWS)) - 1; // a bit for each row that exists
        if (__any_sync(FULL_WARP, (found.doubt | found.unresolved) != 0)) {
            UNROLL for (int i = 0; i < ROWS; i++) found.label[i] = found.doubt >> i & 1 ? old.label(a.labels.bytes, i) : found.label[i];
            list_doubtful(lists[warp], found.doubt & valid, row);
            if (GROUP && (found.unresolved & valid)) atomicAdd(&block_unresolved, (u32)__popc(found.unresolved & valid));
            __syncwarp();
        }
        const Four now(a.labels.bytes, found.label);
        if (first) {
            if (valid) now.store(a.labels.bytes, (u8*)a.labels.at + (u64)row * (u32)a.labels.bytes);
            const u32 count = __reduce_add_sync(FULL_WARP, __popc(valid & ~found.doubt));
            enter<Room<T, S, D, GROUP>::apart>(entrance, count, block_sums(), a.sums, lane);
            add_first<Room<T, S, D, GROUP>::together>(a, factors, next, block_sums(), found.label, valid & ~found.doubt, lane);
            if (lane == 0) atomicAdd(&block_changed, count);
            if (tile < tiles) next.ask(a.rows, a.labels, tile * WARP_TILE + lane * ROWS);
            continue;
        }
        if (__any_sync(FULL_WARP, !now.is(old))) {
            list_changed(a, lists[warp], now, old, found.label, valid, row);
            __syncwarp();
            listed = lists[warp].count;
        }
    }
    __syncthreads();
    if (a.table_copies && entrance.gate.announced) flush_table(entrance.block_sums.table, entrance.block_sums.rows, a.sums);
    if (threadIdx.x == 0) {
        if (block_changed) atomicAdd(&a.control->changed, (u64)block_changed);
        if (block_in_doubt) atomicAdd(&a.control->in_doubt, block_in_doubt);
        if (block_unresolved) atomicAdd(&a.control->unresolved, block_unresolved);
    }
}

// BLOCKS: how many blocks an SM must hold at a time, so that enough loads are in flight.
#define KERNEL(NAME, T, S, D, GROUP, BLOCKS)                                                                    \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) NAME(const __grid_constant__ Assign<T, S> a) { \
        assign<T, S, D, GROUP>(a);                                                                              \
    }
#define ALL_GROUPS(T, S, NAME, D, BLOCKS, BLOCKS_GROUPED)                           \
    KERNEL(assign_registers_##NAME##_d##D, T, S, D, 0, BLOCKS)                       \
    KERNEL(assign_registers_##NAME##_d##D##_groups8, T, S, D, 8, BLOCKS_GROUPED)     \
    KERNEL(assign_registers_##NAME##_d##D##_groups16, T, S, D, 16, BLOCKS_GROUPED)
#define ALL(D, BLOCKS, BLOCKS_GROUPED, BLOCKS_F64)              \
    ALL_GROUPS(float, float, f32, D, BLOCKS, BLOCKS_GROUPED)     \
    ALL_GROUPS(double, double, f64, D, BLOCKS_F64, BLOCKS_F64)   \
    ALL_GROUPS(float, Half, f16, D, BLOCKS, BLOCKS_GROUPED)
ALL(1, 4, 4, 4)
ALL(2, 4, 4, 4)
ALL(3, 3, 2, 2)
ALL(4, 3, 3, 3)
ALL(6, 2, 2, 2)
ALL(8, 2, 2, 2)
ALL(12, 2, 2, 1)

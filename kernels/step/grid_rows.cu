// grid_rows: the rows in the order of their cells, for assign_grid.
//
//   grid_sample  rows for the tree: some rows, each in the list of a node
//   grid_find    the cell of each row, and how many rows each cell has
//   grid_places  the first place and the first tile of each cell
//   grid_tiles   the tiles
//   (then grid_split.cu puts the rows at their places)
//   grid_boxes   the box of each cell: the least and the largest value of each feature
//
// Used when: once a fit.
// Tile:      a thread has 4 rows of the columns (one 16-byte load a float32 column), or 4 places. The tree is in shared memory, but for the last of 16 levels.
// Memory:    the rows are read once to find cells, and once to find boxes.
#include "../common/grid.cuh"

template <typename T, typename S = T> struct CellRows {
    Rows<T, S> rows;
    const S* x; // (d, stride): the rows at their places
    u64 stride;
    u16* cell_of_row; // (n)
    u32* nodes; // (cells)
    float* samples; // (nodes of the top, d, POINTS)
    u32* sampled; // (nodes of the top)
    u32* counts; // (cells): rows
    u32* starts; // (cells): first places
    u32* next; // (cells): the next free place of each
    u32* tile_starts; // (cells + 1): first tiles
    u32* group_starts; // (groups + 1): rows of the groups of cells before
    u32* group_next; // (groups): the same, for grid_split
    CellTile* tiles;
    Ordered<T>* boxes; // (cells, 2, d): the least values, then the largest ones
    u32 cells, levels;
    u32 wanted; // rows for the tree
    u32 group_cells; // cells of a group
};

#define FIND_THREADS 1024
// Nodes of the tree in shared memory. The last level of a larger tree is read through caches.
#define SHARED_NODES 32768
#define COPY_THREADS 256

// The cell of a row.
template <int D> __device__ __forceinline__ u32 descend(const u32* nodes, const float (&x)[D], u32 levels) {
    u32 node = 1;
#pragma unroll 1
    for (u32 l = 0; l < levels; l++) {
        const u32 split = nodes[node];
        node = 2 * node + (feature_of<D>(x, split) < __uint_as_float(split) ? 0 : 1);
    }
    return node;
}

// Takes a number for each lane of `counter[which]`, which counts up. Lanes of the same counter add together. All lanes of the warp must call this.
__device__ __forceinline__ u32 take(u32* counters, u32 which, bool takes) {
    const u32 lane = threadIdx.x & 31, same = __match_any_sync(FULL_WARP, takes ? which : ~0u);
    const int leader = __ffs(same) - 1;
    u32 first = 0;
    if (takes && lane == leader) first = atomicAdd(&counters[which], (u32)__popc(same));
    return __shfl_sync(FULL_WARP, first, leader) + __popc(same & ((1u << lane) - 1));
}

// A node with more points than it has room for drops those that come last. So cells may differ from run to run, and with them what a fit costs;
// labels and sums do not.
template <int D, typename T, typename S> __device__ __forceinline__ void grid_sample(const CellRows<T, S>& a) {
    const u32 i = global_thread();
    const bool wanted = i < a.wanted;
    const u64 row = (u64)min(i, a.wanted - 1) * a.rows.n / a.wanted;
    float x[D];
#pragma unroll
    for (int f = 0; f < D; f++) x[f] = in_tree(a.rows.at((u64)f * a.rows.stride + row));
    const u32 node = descend<D>(a.nodes, x, a.levels) - (1u << a.levels), at = take(a.sampled, node, wanted);
    if (!wanted || at >= POINTS) return;
#pragma unroll
    for (int f = 0; f < D; f++) a.samples[((u64)node * D + f) * POINTS + at] = x[f];
}

// Four neighbouring values of a column.
__device__ __forceinline__ void load_four(const Rows<float, float>& rows, u64 at, float (&out)[4]) {
    const float4 v = *(const float4*)(rows.x + at);
    out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
}
__device__ __forceinline__ void load_four(const Rows<double, double>& rows, u64 at, double (&out)[4]) {
    const double2 v = *(const double2*)(rows.x + at), w = *(const double2*)(rows.x + at + 2);
    out[0] = v.x, out[1] = v.y, out[2] = w.x, out[3] = w.y;
}
__device__ __forceinline__ void load_four(const Rows<float, Half>& rows, u64 at, float (&out)[4]) {
    half_values(*(const uint2*)(rows.x + at), rows.bfloat16, out);
}

template <int D, typename T, typename S> __device__ __forceinline__ void grid_find(const CellRows<T, S>& a) {
    extern __shared__ u32 nodes[];
    for (u32 i = threadIdx.x; i < min(a.cells, (u32)SHARED_NODES); i += FIND_THREADS) nodes[i] = a.nodes[i];
    __syncthreads();
    const u32 fours = (a.rows.n + 3) / 4;
    // Whole warps: lanes count together.
#pragma unroll 1
    for (u32 start = blockIdx.x * FIND_THREADS + (threadIdx.x & ~31u); start < fours; start += all_threads()) {
        const u32 four = start + (threadIdx.x & 31);
        const u64 row = (u64)min(four, fours - 1) * 4;
        float x[4][D];
#pragma unroll
        for (int f = 0; f < D; f++) {
            T raw[4];
            load_four(a.rows, (u64)f * a.rows.stride + row, raw);
#pragma unroll
            for (int r = 0; r < 4; r++) x[r][f] = in_tree(raw[r]);
        }
        u32 node[4] = {1, 1, 1, 1};
#pragma unroll 1
        for (u32 l = 0; l < a.levels; l++) {
#pragma unroll
            for (int r = 0; r < 4; r++) {
                const u32 split = node[r] < SHARED_NODES ? nodes[node[r]] : __ldg(a.nodes + node[r]);
                node[r] = 2 * node[r] + (feature_of<D>(x[r], split) < __uint_as_float(split) ? 0 : 1);
            }
        }
        ushort4 cells;
        cells.x = (u16)(node[0] - a.cells), cells.y = (u16)(node[1] - a.cells), cells.z = (u16)(node[2] - a.cells), cells.w = (u16)(node[3] - a.cells);
        if (four < fours) *(ushort4*)(a.cell_of_row + row) = cells;
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const bool inside = four < fours && row + r < a.rows.n;
            u32 same = 1u << (threadIdx.x & 31);
            // Lanes of the same cell count together, where there are many of them.
            if (__any_sync(FULL_WARP, node[r] == __shfl_xor_sync(FULL_WARP, node[r], 1))) same = __match_any_sync(FULL_WARP, inside ? node[r] : 0);
            if (inside && (threadIdx.x & 31) == __ffs(same) - 1) atomicAdd(&a.counts[node[r] - a.cells], (u32)__popc(same));
        }
    }
}

// One block.
extern "C" __global__ void __launch_bounds__(FIND_THREADS) grid_places(const __grid_constant__ CellRows<float> a) {
    __shared__ u32 sums[3][32];
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, each = (a.cells + FIND_THREADS - 1) / FIND_THREADS;
    const u32 from = min(threadIdx.x * each, a.cells), to = min(from + each, a.cells);
    // Places, tiles, rows.
    u32 own[3] = {0, 0, 0}, before[3];
    auto add = [&](u32 (&all)[3], u32 rows) { all[0] += (rows + 3) & ~3u, all[1] += (rows + CELL_TILE - 1) / CELL_TILE, all[2] += rows; };
    for (u32 c = from; c < to; c++) add(own, a.counts[c]);
#pragma unroll
    for (int i = 0; i < 3; i++) {
        before[i] = own[i];
        for (int o = 1; o < 32; o *= 2) {
            const u32 other = __shfl_up_sync(FULL_WARP, before[i], o);
            if (lane >= o) before[i] += other;
        }
        if (lane == 31) sums[i][warp] = before[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 3; i++) {
        before[i] -= own[i];
        for (u32 w = 0; w < warp; w++) before[i] += sums[i][w];
    }
    for (u32 c = from; c < to; c++) {
        a.starts[c] = a.next[c] = before[0], a.tile_starts[c] = before[1];
        if (c % a.group_cells == 0) a.group_starts[c / a.group_cells] = a.group_next[c / a.group_cells] = before[2];
        add(before, a.counts[c]);
    }
    if (threadIdx.x == FIND_THREADS - 1) a.tile_starts[a.cells] = before[1], a.group_starts[a.cells / a.group_cells] = before[2];
}

extern "C" __global__ void __launch_bounds__(COPY_THREADS) grid_tiles(const __grid_constant__ CellRows<float> a) {
    const u32 tiles = a.tile_starts[a.cells];
    for (u32 tile = global_thread(); tile < tiles; tile += all_threads()) {
        // The last cell whose first tile is not behind this one. Cells without rows have no tile.
        u32 cell = 0;
        for (u32 step = MOST_CELLS; step; step /= 2)
            if (cell + step < a.cells && a.tile_starts[cell + step] <= tile) cell += step;
        const u32 before = (tile - a.tile_starts[cell]) * CELL_TILE;
        a.tiles[tile] = {a.starts[cell] + before, cell | min(a.counts[cell] - before, (u32)CELL_TILE) << 16};
    }
}

__device__ __forceinline__ u32 warp_least(u32 v) { return __reduce_min_sync(FULL_WARP, v); }
__device__ __forceinline__ u64 warp_least(u64 v) {
    const u32 high = __reduce_min_sync(FULL_WARP, (u32)(v >> 32));
    return (u64)high << 32 | __reduce_min_sync(FULL_WARP, (u32)(v >> 32) == high ? (u32)v : 0xffffffffu);
}

// A warp a tile. Boxes are all ones, then all zeros before.
template <int D, typename T, typename S> __device__ __forceinline__ void grid_boxes(const CellRows<T, S>& a) {
    const u32 lane = threadIdx.x & 31, tiles = a.tile_starts[a.cells];
    Rows<T, S> places = a.rows;
    places.x = a.x;
#pragma unroll 1
    for (u32 tile = global_thread() / 32; tile < tiles; tile += all_threads() / 32) {
        const u32 first = a.tiles[tile].first, cell = a.tiles[tile].cell_and_count & 0xffff, count = a.tiles[tile].cell_and_count >> 16;
#pragma unroll
        for (int f = 0; f < D; f++) {
            Ordered<T> low = ~(Ordered<T>)0, high = ~(Ordered<T>)0; // `high`: of the complement
            if (lane * 4 < count) {
                T x[4];
                load_four(places, (u64)f * a.stride + first + lane * 4, x);
#pragma unroll
                for (int r = 0; r < 4; r++) {
                    const Ordered<T> v = ordered(x[r]);
                    if (lane * 4 + r < count) low = min(low, v), high = min(high, (Ordered<T>)~v);
                }
            }
            low = warp_least(low), high = ~warp_least(high);
            if (lane == 0) {
                atomicMin(&a.boxes[((u64)cell * 2) * D + f], low);
                atomicMax(&a.boxes[((u64)cell * 2 + 1) * D + f], high);
            }
        }
    }
}

// Empties boxes and counters.
template <int D, typename T, typename S> __device__ __forceinline__ void grid_clear(const CellRows<T, S>& a) {
    for (u32 cell = global_thread(); cell < a.cells; cell += all_threads()) {
        a.counts[cell] = 0;
        for (int f = 0; f < D; f++) a.boxes[((u64)cell * 2) * D + f] = ~(Ordered<T>)0, a.boxes[((u64)cell * 2 + 1) * D + f] = 0;
    }
}

#define KERNEL(T, S, FUNCTION, D, THREADS, NAME)                                                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(const __grid_constant__ CellRows<T, S> a) {                                    \
        FUNCTION<D>(a);                                                                                                                       \
    }
#define KERNELS(T, S, TYPE, D)                                                                                                                \
    KERNEL(T, S, grid_clear, D, COPY_THREADS, grid_clear_##TYPE##_d##D)                                                                     \
    KERNEL(T, S, grid_sample, D, COPY_THREADS, grid_sample_##TYPE##_d##D)                                                                   \
    KERNEL(T, S, grid_find, D, FIND_THREADS, grid_find_##TYPE##_d##D)                                                                       \
    KERNEL(T, S, grid_boxes, D, COPY_THREADS, grid_boxes_##TYPE##_d##D)
#define ALL(D)                                                                                                                                \
    KERNELS(float, float, f32, D)                                                                                                             \
    KERNELS(double, double, f64, D)                                                                                                           \
    KERNELS(float, Half, f16, D)
ALL(1)
ALL(2)
ALL(3)
ALL(4)

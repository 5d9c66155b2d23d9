// grid_tree: a tree that splits space into cells with about equally many rows (kernels/common/grid.cuh).
//
// Source:    a k-d tree (Bentley 1975) of a sample: each node is split at the middle value of its widest feature. So cells are small where rows are
//            dense, whatever the columns' scales and however far some rows are out. Where most of the width is a gap, as between blobs, the node
//            is split there: a box that reached over it would be near to very many centroids.
// Used when: once a fit, before assign_grid.
// Tile:      a block has up to 2,048 points in shared memory and makes some levels of the tree. It sorts all points by (node, value of the node's
//            feature) for each level. First one block makes the top of the tree from few points. Then each block takes the points of one node of
//            the top (grid_sample of grid_rows.cu) and makes the levels below it.
#include "../common/grid.cuh"

struct CellTree {
    const float* samples; // (nodes, d, POINTS)
    const u32* sampled; // (nodes): how many points there are; more than POINTS counts as POINTS
    u32* nodes; // (cells)
    int d;
    u32 first; // the node of block 0
    u32 levels; // to make
    u32 unused;
};

#define TREE_THREADS 512
// A split leaves each side this share of the points at least, and is taken if points times widths are so much less than by the middle.
#define LEAST_SIDE 8
#define ENOUGH_LESS 0.7f
// The most levels that a block makes.
#define TREE_LEVELS 9
#define MOST_D 4

// Sorts the keys of POINTS points.
__device__ __forceinline__ void sort_keys(u64* keys) {
#pragma unroll 1
    for (u32 size = 2; size <= POINTS; size *= 2) {
#pragma unroll 1
        for (u32 step = size / 2; step; step /= 2) {
            __syncthreads();
#pragma unroll
            for (u32 e = 0; e < POINTS / 2 / TREE_THREADS; e++) {
                const u32 i = e * TREE_THREADS + threadIdx.x, low = 2 * i - (i & (step - 1)), high = low + step;
                const u64 a = keys[low], b = keys[high];
                if ((a > b) == ((low & size) == 0)) keys[low] = b, keys[high] = a;
            }
        }
    }
    __syncthreads();
}

// What a split of some points in the order of their values costs, before point `cut`: the points of each side times its width, as a small number.
template <typename VALUE> __device__ __forceinline__ float cost_of_cut(const VALUE& value, u32 from, u32 cut, u32 to) {
    auto width = [&](u32 first, u32 last) { return value(last) * 0x1p-13f - value(first) * 0x1p-13f; };
    return (float)(cut - from) * width(from, cut - 1) + (float)(to - cut) * width(cut, to - 1);
}

extern "C" __global__ void __launch_bounds__(TREE_THREADS) grid_tree(const __grid_constant__ CellTree a) {
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ u32 lows[MOST_D << (TREE_LEVELS - 1)], highs[MOST_D << (TREE_LEVELS - 1)];
    __shared__ u8 widest[1 << (TREE_LEVELS - 1)];
    __shared__ u16 node_of[POINTS]; // of the point in each place
    __shared__ u16 starts[(1 << TREE_LEVELS) + 1]; // the first place of each node, and of the node after the last one
    __shared__ u64 cuts[1 << (TREE_LEVELS - 1)]; // the best of each node: its cost, and how to find it
    u64* const keys = (u64*)shared;
    float* const points = (float*)(keys + POINTS); // (d, POINTS)
    const u32 tid = threadIdx.x, d = a.d, m = min(a.sampled[blockIdx.x], (u32)POINTS), root = a.first + blockIdx.x;
    for (u32 i = tid; i < POINTS; i += TREE_THREADS) {
        keys[i] = i < m ? i : ~0ull;
        for (u32 f = 0; f < d; f++) points[f * POINTS + i] = i < m ? a.samples[((u64)blockIdx.x * d + f) * POINTS + i] : 0.0f;
    }
    for (u32 i = tid; i < POINTS; i += TREE_THREADS) node_of[i] = 0;
    if (tid == 0) starts[0] = 0, starts[1] = (u16)m;
    // The points of a node of a level are neighbours in the order of the keys.
#pragma unroll 1
    for (u32 l = 0; l < a.levels; l++) {
        const u32 nodes = 1u << l;
        __syncthreads();
        for (u32 i = tid; i < nodes * d; i += TREE_THREADS) lows[i] = 0xffffffffu, highs[i] = 0;
        __syncthreads();
#pragma unroll 1
        for (u32 start = tid & ~31u; start < m; start += TREE_THREADS) {
            const u32 at = start + (tid & 31), node = at < m ? node_of[at] : 0, point = (u32)keys[min(at, m - 1)] & (POINTS - 1);
            const u32 one = __shfl_sync(FULL_WARP, node, 0);
            const bool same = __all_sync(FULL_WARP, at < m && node == one);
            for (u32 f = 0; f < d; f++) {
                u32 low = ordered(points[f * POINTS + point]), high = low;
                if (same) low = __reduce_min_sync(FULL_WARP, low), high = __reduce_max_sync(FULL_WARP, high);
                if (at < m && (!same || (tid & 31) == 0)) {
                    atomicMin(&lows[node * d + f], low);
                    atomicMax(&highs[node * d + f], high);
                }
            }
        }
        __syncthreads();
        if (tid < nodes) {
            u32 best = 0;
            float most = -1.0f;
            for (u32 f = 0; f < d; f++) {
                const u32 low = lows[tid * d + f], high = highs[tid * d + f];
                // Halves, so that the width is finite.
                const float width = low <= high ? 0.5f * unordered(high) - 0.5f * unordered(low) : 0.0f;
                if (width > most) most = width, best = f;
            }
            widest[tid] = (u8)best;
        }
        __syncthreads();
        u64 own[POINTS / TREE_THREADS];
#pragma unroll
        for (u32 e = 0; e < POINTS / TREE_THREADS; e++) {
            const u32 at = e * TREE_THREADS + tid;
            own[e] = ~0ull;
            if (at < m) {
                const u32 node = node_of[at], point = (u32)keys[at] & (POINTS - 1);
                own[e] = (u64)node << 44 | (u64)ordered(points[widest[node] * POINTS + point]) << 12 | point;
            }
        }
        __syncthreads();
#pragma unroll
        for (u32 e = 0; e < POINTS / TREE_THREADS; e++) keys[e * TREE_THREADS + tid] = own[e];
        sort_keys(keys);
        auto value_at = [&](u32 node) { return [&, node](u32 at) { return points[widest[node] * POINTS + ((u32)keys[at] & (POINTS - 1))]; }; };
        if (tid < nodes) cuts[tid] = ~0ull;
        __syncthreads();
        for (u32 at = tid; at < m; at += TREE_THREADS) {
            const u32 node = node_of[at], from = starts[node], to = starts[node + 1], least = max(1u, (to - from) / LEAST_SIDE);
            if (at < from + least || at + least > to) continue;
            const u32 middle = from + (to - from) / 2, away = at < middle ? middle - at : at - middle;
            const float cost = cost_of_cut(value_at(node), from, at, to);
            atomicMin(&cuts[node], (u64)__float_as_uint(cost) << 32 | away << 16 | at);
        }
        __syncthreads();
        u32 from = 0, cut = 0;
        if (tid < nodes) {
            const u32 to = starts[tid + 1];
            from = starts[tid], cut = from + (to - from) / 2;
            if (cuts[tid] != ~0ull) {
                const u32 best = (u32)cuts[tid] & 0xffff;
                if (__uint_as_float((u32)(cuts[tid] >> 32)) < ENOUGH_LESS * cost_of_cut(value_at(tid), from, cut, to)) cut = best;
            }
            const float value = from < to ? value_at(tid)(cut) : 0.0f;
            a.nodes[(root << l) + tid] = (__float_as_uint(value) & ~3u) | widest[tid];
        }
        __syncthreads();
        if (tid < nodes) starts[2 * tid] = (u16)from, starts[2 * tid + 1] = (u16)cut;
        if (tid == 0) starts[2 * nodes] = (u16)m;
        __syncthreads();
        for (u32 at = tid; at < m; at += TREE_THREADS) {
            const u32 node = 2 * node_of[at];
            node_of[at] = (u16)(at < starts[node + 1] ? node : node + 1);
        }
    }
}

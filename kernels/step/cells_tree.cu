// cells_tree: a tree that splits space into cells with about equally many rows (kernels/common/cells.cuh).
//
// Source:    a k-d tree (Bentley 1975) of a sample: each node is split at the middle value of its widest feature. So cells are small where rows are
//            dense, whatever the columns' scales and however far some rows are out.
// Used when: once a fit, before assign_cells.
// Tile:      a block has up to 2,048 points in shared memory and makes some levels of the tree. It sorts all points by (node, value of the node's
//            feature) for each level. First one block makes the top of the tree from few points. Then each block takes the points of one node of
//            the top (cells_sample of cells_rows.cu) and makes the levels below it.
#include "../common/cells.cuh"

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

extern "C" __global__ void __launch_bounds__(TREE_THREADS) cells_tree(const __grid_constant__ CellTree a) {
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ u32 lows[MOST_D << (TREE_LEVELS - 1)], highs[MOST_D << (TREE_LEVELS - 1)];
    __shared__ u8 widest[1 << (TREE_LEVELS - 1)];
    u64* const keys = (u64*)shared;
    float* const points = (float*)(keys + POINTS); // (d, POINTS)
    const u32 tid = threadIdx.x, d = a.d, m = min(a.sampled[blockIdx.x], (u32)POINTS), root = a.first + blockIdx.x;
    for (u32 i = tid; i < POINTS; i += TREE_THREADS) {
        keys[i] = i < m ? i : ~0ull;
        for (u32 f = 0; f < d; f++) points[f * POINTS + i] = i < m ? a.samples[((u64)blockIdx.x * d + f) * POINTS + i] : 0.0f;
    }
    // Node s of level l has the points from s m / 2^l on, in the order of the keys.
#pragma unroll 1
    for (u32 l = 0; l < a.levels; l++) {
        const u32 nodes = 1u << l;
        __syncthreads();
        for (u32 i = tid; i < nodes * d; i += TREE_THREADS) lows[i] = 0xffffffffu, highs[i] = 0;
        __syncthreads();
#pragma unroll 1
        for (u32 start = tid & ~31u; start < m; start += TREE_THREADS) {
            const u32 at = start + (tid & 31), node = at < m ? (((at + 1) << l) - 1) / m : 0, point = (u32)keys[min(at, m - 1)] & (POINTS - 1);
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
                const u32 node = (((at + 1) << l) - 1) / m, point = (u32)keys[at] & (POINTS - 1);
                own[e] = (u64)node << 44 | (u64)ordered(points[widest[node] * POINTS + point]) << 12 | point;
            }
        }
        __syncthreads();
#pragma unroll
        for (u32 e = 0; e < POINTS / TREE_THREADS; e++) keys[e * TREE_THREADS + tid] = own[e];
        sort_keys(keys);
        if (tid < nodes) {
            const u32 from = tid * m >> l, to = (tid + 1) * m >> l, middle = (2 * tid + 1) * m >> (l + 1);
            const float value = from < to ? points[widest[tid] * POINTS + ((u32)keys[middle] & (POINTS - 1))] : 0.0f;
            a.nodes[(root << l) + tid] = (__float_as_uint(value) & ~3u) | widest[tid];
        }
    }
}

// The tiles of kernels/step/assign_tiled.cu: their shape, their place in shared memory, and asynchronous copies to it.
#pragma once
#include "../common/filter.cuh"

#define ROWS 128
// Rows and centroids of a warp. Its lanes form an 8 x 4 grid. Each lane has two groups of 4 rows and two groups of 4 centroids.
#define WARP_ROWS 64
#define WARP_CENTROIDS 32

// The shape of one kernel. CENTROIDS: those of a tile. STEP: features between two barriers. RING: steps in shared memory, one in use and
// the others on their way. PANEL: features of a partial sum (0: no partial sums).
// Value: the type of a value in arithmetic. Stored: its type in memory.
template <typename Value, typename Stored, int CENTROIDS, int STEP, int RING, int PANEL> struct Tiling {
    typedef Value T;
    typedef Stored V;
    static const int centroids = CENTROIDS, step = STEP, ring = RING, panel = PANEL;
    static const bool panels = PANEL != 0;
    static const int threads = ROWS * CENTROIDS / 64, warps = threads / 32, warps_across = CENTROIDS / WARP_CENTROIDS;
    static const int fetches = STEP / warps; // features of a step that a warp requests
    // Features whose centroid copies all threads together request at once, and how often they do so in a step.
    static const int copied = threads / (CENTROIDS / 4), copies = STEP / copied;
    static const int panel_steps = panels ? PANEL / STEP : 1;
    // Features whose products are unrolled. 8 features are 9 KB of instructions, which can stay in a cache near the scheduler. A whole
    // step is unrolled if no register is left for a loop counter.
    static const int run = panels && CENTROIDS == 128 ? STEP : 8;

    static_assert(STEP % warps == 0 && STEP % copied == 0 && PANEL % 16 == 0 && 16 % STEP == 0 && ROWS == 4 * 32, "tiles do not divide");
};

// The values of one step. A thread requests x, four rows of a feature at a time. When its own values have arrived, it turns them into
// centred, scaled copies, before the barrier that shows them to the other threads. float32 values are turned in place. float64 values
// (16 bytes in each of two planes) go to the first plane. Values of 16 bits take the first half of their place. Thread t owns places t, t + threads, ... of every array.
// Aligned to 128 bytes: otherwise a warp's copy is split in halves.
template <typename S> struct alignas(128) Stage {
    static const int planes = sizeof(typename S::T) / sizeof(float);

    float4 x[planes][S::step * ROWS / 4];
    float4 copies[S::step * S::centroids / 4];

    static const int plane = S::step * ROWS * 4, copies_at = planes * plane;
};

// Which tiles a block takes: tiles of rows `first`, `first` + `step`, ..., and of each the tiles of centroids from `begin` to `end`.
struct Portion {
    u32 first, step, begin, end;

    __device__ __forceinline__ Portion(u32 shares, u32 centroid_tiles) {
        const u32 share = blockIdx.x % shares;
        first = blockIdx.x / shares, step = gridDim.x / shares;
        begin = (u32)((u64)centroid_tiles * share / shares), end = (u32)((u64)centroid_tiles * (share + 1) / shares);
    }
};

// What a block has in shared memory. The variants with panels have `Parked` too.
template <typename S> struct alignas(128) TiledShared {
    Stage<S> stages[S::ring];
    float4 half_squares[S::centroids / 4]; // of the current tile of centroids
    float4 squares[S::warps][ROWS / 4];
    float2 best[S::warps_across][ROWS / 2], second[S::warps_across][ROWS / 2];
    uint2 index[S::warps_across][ROWS / 2];
    u32 last; // whether this block is the last one of its tile of rows

    static const int half_squares_at = S::ring * sizeof(Stage<S>);
};

// Dynamic shared memory of the variants with panels: 64 partial sums a thread, and the third best scores, two rows in each entry.
struct Parked {
    float4* totals;
    float2* thirds; // (warps across, 64)
};

// Place p of a tile of rows holds row `place_row<T>(p)`. Lane l fetches places 4 l to 4 l + 3. For float64 these are rows
// 2 l, 2 l + 1, 64 + 2 l, 65 + 2 l, so each read of a warp has consecutive addresses.
template <typename T> __device__ __forceinline__ int place_row(int place) {
    return sizeof(T) == 4 ? place : (place >> 2) * 2 + (place & 1) + (place & 2) * (ROWS / 4);
}

// Hides a value from the compiler, which then neither computes it again nor moves it out of a loop.
__device__ __forceinline__ u32 opaque(u32 v) {
    asm volatile("" : "+r"(v));
    return v;
}

// Copies 16 bytes to a constant offset from an address in shared memory. KEEP: keeps them in the first-level cache too.
template <int OFFSET, bool KEEP> __device__ __forceinline__ void copy_async(u32 shared, const void* global) {
    if (KEEP) asm volatile("cp.async.ca.shared.global [%0 + %2], [%1], 16;" ::"r"(shared), "l"(global), "n"(OFFSET) : "memory");
    else asm volatile("cp.async.cg.shared.global [%0 + %2], [%1], 16;" ::"r"(shared), "l"(global), "n"(OFFSET) : "memory");
}
// The same for 8 bytes.
template <int OFFSET> __device__ __forceinline__ void copy_8_bytes_async(u32 shared, const void* global) {
    asm volatile("cp.async.ca.shared.global [%0 + %2], [%1], 8;" ::"r"(shared), "l"(global), "n"(OFFSET) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for all copy groups of this thread, except the last LEFT.
template <int LEFT> __device__ __forceinline__ void await_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

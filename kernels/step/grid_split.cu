// grid_split: puts rows in the order of their cells, for assign_grid.
//
// Source:    a radix sort with the most significant digit first (as in Stehle & Jacobsen 2017): first by groups of cells, then by cells.
// Used when: once a fit, after grid_places of grid_rows.cu; twice if there are many cells.
// Tile:      a block takes up to 8,192 rows and sorts them by their bins in shared memory, one column after another. So all rows of a bin are written to
//            consecutive places. Blocks take the places of a bin from a counter. So the order of rows in a cell may differ from run to run, but
//            nothing that leaves a fit depends on it.
// Memory:    every value is read once and written once in each of the two turns.
#include "../common/grid.cuh"

#define SPLIT_THREADS 512
#define SPLIT_ROWS 8192
#define MOST_BINS 512
static_assert(MOST_BINS == SPLIT_THREADS, "a thread has a bin");

// T: the type of the values in memory.
template <typename T> struct CellSplit {
    const T* x; // (d, stride)
    u64 stride;
    const u32* rows; // numbers of the rows, or null: they are as they come
    const u16* cells; // of the rows
    T* to_x; // (d, to_stride)
    u64 to_stride;
    u32* to_rows;
    u16* to_cells; // or null in the last turn
    const double* w; // weights by the numbers of the rows, or null
    double* to_w; // in the last turn
    u32* next; // (all bins): the next free place of each
    const u32* segments; // (groups + 1): the rows of each group, which have bins of their own, or null: all rows have the same bins
    u32 n, groups;
    u32 shift, bins; // the bin of a cell: cell >> shift, modulo bins
};

// Values are moved as words.
template <int BYTES> struct WordOf;
template <> struct WordOf<2> {
    typedef u16 type;
};
template <> struct WordOf<4> {
    typedef u32 type;
};
template <> struct WordOf<8> {
    typedef u64 type;
};

// The rows that a block sorts, and the first of their bins.
struct Segment {
    u32 first, count, bin;
};

// Every thread of the block must call this.
template <typename S> __device__ __forceinline__ Segment segment_of(const CellSplit<S>& a) {
    if (!a.segments) {
        const u32 first = blockIdx.x * SPLIT_ROWS;
        return {first, first < a.n ? min((u32)SPLIT_ROWS, a.n - first) : 0, 0};
    }
    // Each group has as many blocks as its rows need. This is the group of this block.
    __shared__ u32 ends[MOST_BINS];
    __shared__ Segment found;
    const u32 p = threadIdx.x;
    const u32 rows = p < a.groups ? a.segments[p + 1] - a.segments[p] : 0, own = (rows + SPLIT_ROWS - 1) / SPLIT_ROWS;
    ends[p] = own;
    if (p == 0) found = {0, 0, 0};
    __syncthreads();
#pragma unroll 1
    for (u32 o = 1; o < MOST_BINS; o *= 2) {
        const u32 before = p >= o ? ends[p - o] : 0;
        __syncthreads();
        ends[p] += before;
        __syncthreads();
    }
    if (blockIdx.x < ends[p] && blockIdx.x >= ends[p] - own) {
        const u32 done = (blockIdx.x - (ends[p] - own)) * SPLIT_ROWS;
        found = {a.segments[p] + done, min((u32)SPLIT_ROWS, rows - done), p * a.bins};
    }
    __syncthreads();
    return found;
}

template <int D, typename S> __device__ __forceinline__ void grid_split(const CellSplit<S>& a) {
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ u32 counts[MOST_BINS], shifts[MOST_BINS], sums[SPLIT_THREADS / 32];
    typedef typename WordOf<sizeof(S)>::type Word;
    u16* const bin_of = (u16*)shared; // of each place in the block
    u16* const place_of = bin_of + SPLIT_ROWS; // of each row: its place in the block
    unsigned char* const staged = (unsigned char*)(place_of + SPLIT_ROWS);
    const u32 tid = threadIdx.x, lane = tid & 31, warp = tid / 32;
    const Segment of = segment_of(a);
    if (of.count == 0) return;
    const u16* const cells = a.cells + of.first;
    auto bin = [&](u32 i) { return (u32)cells[i] >> a.shift & (a.bins - 1); };
    counts[tid] = 0;
    __syncthreads();
#pragma unroll 4
    for (u32 i = tid; i < of.count; i += SPLIT_THREADS) place_of[i] = (u16)atomicAdd(&counts[bin(i)], 1u);
    __syncthreads();
    const u32 own = counts[tid];
    u32 before = own;
    for (int o = 1; o < 32; o *= 2) {
        const u32 other = __shfl_up_sync(FULL_WARP, before, o);
        if (lane >= o) before += other;
    }
    if (lane == 31) sums[warp] = before;
    __syncthreads();
    before -= own;
    for (u32 w = 0; w < warp; w++) before += sums[w];
    counts[tid] = before; // the bin's first place in the block
    shifts[tid] = own ? atomicAdd(&a.next[of.bin + tid], own) - before : 0;
    __syncthreads();
#pragma unroll 4
    for (u32 i = tid; i < of.count; i += SPLIT_THREADS) {
        const u32 b = bin(i), place = place_of[i] + counts[b];
        place_of[i] = (u16)place, bin_of[place] = (u16)b;
    }
    // Puts a value for each row through shared memory. Thread by thread the same rows as above.
    auto pass = [&](auto* stage, auto value, auto write) {
#pragma unroll 8
        for (u32 i = tid; i < of.count; i += SPLIT_THREADS) stage[place_of[i]] = value(i);
        __syncthreads();
#pragma unroll 4
        for (u32 i = tid; i < of.count; i += SPLIT_THREADS) write(i + shifts[bin_of[i]], stage[i]);
        __syncthreads();
    };
#pragma unroll 1
    for (int f = 0; f < D; f++) {
        const Word* const from = (const Word*)(a.x + (u64)f * a.stride + of.first);
        Word* const to = (Word*)(a.to_x + (u64)f * a.to_stride);
        pass((Word*)staged, [&](u32 i) { return __ldg(from + i); }, [&](u32 place, Word v) { to[place] = v; });
    }
    pass((u32*)staged, [&](u32 i) { return a.rows ? __ldg(a.rows + of.first + i) : of.first + i; },
         [&](u32 place, u32 row) {
             a.to_rows[place] = row;
             if (a.to_w) a.to_w[place] = a.w[row];
         });
    if (a.to_cells) pass((u16*)staged, [&](u32 i) { return __ldg(cells + i); }, [&](u32 place, u16 cell) { a.to_cells[place] = cell; });
}

#define KERNEL(S, D, BLOCKS, NAME)                                                                                                                \
    extern "C" __global__ void __launch_bounds__(SPLIT_THREADS, BLOCKS) NAME(const __grid_constant__ CellSplit<S> a) { grid_split<D>(a); }
#define ALL(D)                                                                                                                                \
    KERNEL(float, D, 3, grid_split_f32_d##D)                                                                                                    \
    KERNEL(double, D, 2, grid_split_f64_d##D)                                                                                                   \
    KERNEL(Half, D, 3, grid_split_f16_d##D)
ALL(1)
ALL(2)
ALL(3)
ALL(4)

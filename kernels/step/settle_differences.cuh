// Float32 differences for kernels/step/settle.cu. Where many rows with float32 features are in doubt, they decide most of them for half of what
// float64 takes. These are differences of the values themselves, not of copies (differences.cuh): only one rounding each, however far out a row is.
//
//   a group of threads takes 16 rows; each thread takes every width-th centroid, and keeps the least two sums of each row, and the first's centroid
//   the threads of a warp share the rows: each gets one row, and its least two sums of all centroids of the warp
//   a row whose second sum is out of reach has its label. The block lists the others
//   if these are many in the block's first batch, as with real ties, it computes no more differences
#pragma once
#include "../common/filter.cuh"
#include "differences.cuh"
#include "two.cuh"

#define THREADS 256
#define MOST_ROWS 16

template <typename T, typename S = T> struct Settle {
    Rows<T, S> rows;
    Labels next; // where the labels go
    const T* centroid_columns; // (d, k): the centroids, column-major
    const T* centroids; // (k, d): the same, row-major
    T scale; // that of `Assign`: so no square leaves the range
    RowInDoubt* in_doubt;
    Control* control;
    int k;
    int values; // float64 values that fit in shared memory: at least one for each of the 16 rows of each group
    u32 fewest; // a shorter list has been labelled before: settle_listed
    u32 unused;
};

// What the threads of a block tell each other.
struct LeftByDifferences {
    Two two[THREADS / 32][MOST_ROWS];
    u32 left; // rows that the differences cannot decide
};

// The place of the row number `at` that a block leaves over: the unused word of one of its own entries in the list of rows in doubt.
template <typename T, typename S> __device__ __forceinline__ RowInDoubt& left_over(const Settle<T, S>& a, u32 at, int groups) {
    const u32 rows = groups * MOST_ROWS;
    return a.in_doubt[a.rows.n - 1 - ((at / rows * gridDim.x + blockIdx.x) * rows + at % rows)];
}

// 16 rows of a group: the sums of their squared differences from a centroid. `values`: their scaled values, feature after feature. `centroid`: its
// values, k apart.
__device__ __forceinline__ void add_differences(const float* values, const float* centroid, float scale, int features, int k,
                                                float (&s)[MOST_ROWS]) {
    const int FLIGHT = 4;
#pragma unroll 1
    for (int left = features; left > 0; left -= FLIGHT, centroid += (u64)FLIGHT * k) {
        float minus[FLIGHT];
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) minus[i] = i < left ? __fmul_rn(centroid[(u64)i * k], -scale) : 0.0f;
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {
            if (i >= left) break;
#pragma unroll
            for (int r = 0; r < MOST_ROWS; r += 4, values += 4) {
                const float4 v = *(const float4*)values;
                const float t[4] = {__fadd_rn(v.x, minus[i]), __fadd_rn(v.y, minus[i]), __fadd_rn(v.z, minus[i]), __fadd_rn(v.w, minus[i])};
#pragma unroll
                for (int e = 0; e < 4; e++) s[r + e] = __fmaf_rn(t[e], t[e], s[r + e]);
            }
        }
    }
}

__device__ __forceinline__ Two either(bool first, const Two& a, const Two& b) {
    return {first ? a.least : b.least, first ? a.second : b.second, first ? a.label : b.label};
}

// Two lanes whose numbers differ by 2 HALF exchange halves of their 2 HALF rows.
template <int HALF> __device__ __forceinline__ void halve(Two (&two)[MOST_ROWS], int lane) {
    const bool upper = lane & 2 * HALF;
#pragma unroll
    for (int r = 0; r < HALF; r++) {
        const Two given = either(upper, two[r], two[r + HALF]);
        two[r] = either(upper, two[r + HALF], two[r]);
        two[r].merge(given.of_lane(2 * HALF));
    }
}
// Leaves lane 2 i and lane 2 i + 1 with row i, merged over the lanes of the warp.
__device__ __forceinline__ Two share_rows(Two (&two)[MOST_ROWS], int lane) {
    halve<8>(two, lane);
    halve<4>(two, lane);
    halve<2>(two, lane);
    halve<1>(two, lane);
    two[0].merge(two[0].of_lane(1));
    return two[0];
}

// Labels the rows in doubt that differences can decide. `left_rows.left`, which must be 0, counts those that this block leaves over. `begin`: the
// place of its first batch in the list, then of the first without differences.
template <typename S>
__device__ __forceinline__ void settle_by_differences(const Settle<float, S>& a, float* shared, LeftByDifferences& left_rows, u32 count, int groups, u64& begin) {
    int tid = threadIdx.x;
    asm volatile("" : "+r"(tid)); // what `settle` computes from it is not kept in registers until then
    const int lane = tid & 31, warp = tid >> 5;
    const int width = THREADS / groups, group = tid / width, member = tid - group * width;
    // As in `settle`: this thread fetches features first, first + step, ... of one row.
    const int rows = groups * MOST_ROWS, place = tid & (rows - 1), first = tid / rows, step = THREADS / rows;
    const int d = a.rows.d, k = a.k, piece = min(d, 2 * a.values / rows);
    float* const to = shared + (place / MOST_ROWS) * piece * MOST_ROWS + place % MOST_ROWS;
    const float* const from = shared + group * piece * MOST_ROWS;
    const Differences bound(d, (double)a.scale);
#pragma unroll 1
    for (bool is_first = true; begin < count; is_first = false) {
        const u64 base = begin;
        begin += (u64)gridDim.x * rows;
        const bool listed = base + place < count;
        const u64 row = listed ? a.in_doubt[a.rows.n - 1 - (u32)(base + place)].row : 0;
        const S* const x = a.rows.of(row);
        Two two[MOST_ROWS];
#pragma unroll
        for (int r = 0; r < MOST_ROWS; r++) two[r] = {infinity_f(), infinity_f(), 0};
#pragma unroll 1
        for (int start = 0; start < k; start += width) {
            const int j = start + member;
            float s[MOST_ROWS];
#pragma unroll
            for (int r = 0; r < MOST_ROWS; r++) s[r] = 0.0f;
#pragma unroll 1
            for (int done = 0; done < d; done += piece) {
                const int features = min(piece, d - done);
                if (piece != d || start == 0) {
                    __syncthreads(); // all threads are done with the piece before
#pragma unroll 4
                    for (int f = first; f < features; f += step)
                        to[f * MOST_ROWS] = listed ? __fmul_rn(a.rows.value(x[(u64)(done + f) * a.rows.stride]), a.scale) : 0.0f;
                    __syncthreads();
                }
                if (j < k) add_differences(from, a.centroid_columns + (u64)done * k + j, a.scale, features, k, s);
            }
            if (j < k) {
#pragma unroll
                for (int r = 0; r < MOST_ROWS; r++) two[r].take(s[r], (u32)j);
            }
        }
        const Two one = share_rows(two, lane);
        if (!(lane & 1)) left_rows.two[warp][lane / 2] = one;
        __syncthreads();
        if (tid < rows && listed) {
            const int warps = width / 32, w = place / MOST_ROWS * warps;
            Two best = left_rows.two[w][place % MOST_ROWS];
#pragma unroll 1
            for (int i = 1; i < warps; i++) best.merge(left_rows.two[w + i][place % MOST_ROWS]);
            if (best.second > bound.reach(best.least, bound.offset)) store_label(a.next, row, best.label);
            else left_over(a, atomicAdd(&left_rows.left, 1u), groups).second = (u32)row;
        }
        // The next rows write their sums only after the barriers of their first piece.
        if (is_first) {
            __syncthreads();
            if (4 * left_rows.left > (u32)rows) break;
        }
    }
}
__device__ __forceinline__ void settle_by_differences(const Settle<double>&, float*, LeftByDifferences&, u32, int, u64&) {} // float64 goes to distances at once

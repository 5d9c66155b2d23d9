// The products of kernels/step/assign_tiled.cu: a thread adds up the scores of 8 rows and 8 centroids in registers.
#pragma once
#include "tiled_shared.cuh"

typedef float Scores[8][8]; // rows, centroids

// Which rows and centroids a thread multiplies. Lanes 0 and 1 have the same rows, and lanes 0 and 2 the same centroids. So reads of 16 bytes
// pair up. Warps that share centroids have consecutive numbers, so in a last, narrow tile the warps with work are on two schedulers.
struct Operands {
    int warp_row, warp_centroid; // the place of the warp in the tile
    // The first group of 4 rows and of 4 centroids. The second groups are 8 and 4 places further.
    u32 x_at, c_at;

    __device__ __forceinline__ Operands(int lane, int warp) {
        warp_row = warp % (ROWS / WARP_ROWS), warp_centroid = warp / (ROWS / WARP_ROWS);
        // Both in one register.
        const u32 both = opaque((warp_row * (WARP_ROWS / 4) + ((lane >> 1) & 7)) << 16 |
                                warp_centroid * (WARP_CENTROIDS / 4) + ((lane & 1) | ((lane >> 4) << 1)));
        x_at = both >> 16, c_at = both & 0xffff;
    }
};

__device__ __forceinline__ void clear(Scores& scores) {
#pragma unroll
    for (int r = 0; r < 8; r++)
#pragma unroll
        for (int c = 0; c < 8; c++) scores[r][c] = 0.0f;
}

// Adds the products of one feature, and goes on to the next one.
template <typename S> __device__ __forceinline__ void multiply(Scores& scores, const float4*& x, const float4*& copies) {
    float4 x_low = x[0], x_high = x[8], c_low = copies[0], c_high = copies[4];
    float xs[8] = {x_low.x, x_low.y, x_low.z, x_low.w, x_high.x, x_high.y, x_high.z, x_high.w};
    float cs[8] = {c_low.x, c_low.y, c_low.z, c_low.w, c_high.x, c_high.y, c_high.z, c_high.w};
    // Goes through the centroids forwards and backwards in turn, so that neighbouring products share an operand and its register is read
    // once. The ports of even and of odd registers each give one value a cycle, and a product needs two values that its neighbour did not
    // read.
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int c = i % 2 ? 7 - j : j;
            scores[i][c] = __fmaf_rn(xs[i], cs[c], scores[i][c]);
        }
    x += ROWS / 4;
    copies += S::centroids / 4;
}

// Adds the products of a step, of which `left` features exist.
template <typename S> __device__ __forceinline__ void multiply_step(Scores& scores, const float4* x, const float4* copies, int left) {
    if (left >= S::step) {
#pragma unroll 1
        for (int run = 0; run < S::step / S::run; run++) {
#pragma unroll
            for (int f = 0; f < S::run; f++) multiply<S>(scores, x, copies);
        }
    } else {
#pragma unroll 1
        for (; left > 0; left--) multiply<S>(scores, x, copies);
    }
}

// Ends a panel: adds the scores to the partial sums in shared memory, where each thread has its own places, and sets them to 0. Neighbours
// swap places there. So the sum of an even centroid has an odd register and can be read in the same cycle as the centroid's value.
template <typename S> __device__ __forceinline__ void park(Scores& scores, float4* totals, int tid, bool first) {
    float4* const own = totals + opaque(tid); // computed only here, not in every step
#pragma unroll
    for (int r = 0; r < 8; r++)
#pragma unroll
        for (int c = 0; c < 8; c += 4) {
            float4* at = &own[(r * 2 + c / 4) * S::threads];
            float4 t = {scores[r][c + 1], scores[r][c], scores[r][c + 3], scores[r][c + 2]};
            if (!first) {
                float4 before = *at;
                t.x = __fadd_rn(before.x, t.x);
                t.y = __fadd_rn(before.y, t.y);
                t.z = __fadd_rn(before.z, t.z);
                t.w = __fadd_rn(before.w, t.w);
            }
            *at = t;
            scores[r][c] = scores[r][c + 1] = scores[r][c + 2] = scores[r][c + 3] = 0.0f;
            if (r == 3 && c == 4) __syncwarp(); // half of the sums at a time saves registers
        }
}

// Adds the scores of the last panel to the partial sums. The result is in the scores.
template <typename S> __device__ __forceinline__ void take_back(Scores& scores, const float4* totals, int tid) {
#pragma unroll
    for (int r = 0; r < 8; r++)
#pragma unroll
        for (int c = 0; c < 8; c += 4) {
            float4 t = totals[(r * 2 + c / 4) * S::threads + tid];
            scores[r][c + 1] = __fadd_rn(t.x, scores[r][c + 1]);
            scores[r][c] = __fadd_rn(t.y, scores[r][c]);
            scores[r][c + 3] = __fadd_rn(t.z, scores[r][c + 3]);
            scores[r][c + 2] = __fadd_rn(t.w, scores[r][c + 2]);
        }
}

__device__ __forceinline__ void add_half_squares(Scores& scores, const float4* half_squares) {
    float4 low = half_squares[0], high = half_squares[4];
    float halves[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int r = 0; r < 8; r++)
#pragma unroll
        for (int c = 0; c < 8; c++) scores[r][c] = __fadd_rn(scores[r][c], halves[c]);
}

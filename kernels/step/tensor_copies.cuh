// The half-precision copy of one vector by a warp, for tensor cores, and what belongs to a centroid's copy: src/bounds/fp16.rs.
//
//   high   the nearest float16 of each value
//   low    the nearest float16 of what that leaves, if LOW: kernels/step/tensor_rescore.cu. Its chunks come after those of `high`
#pragma once
#include "../common/tensor.cuh"
#include <cuda_fp16.h>

// Squared norms: of the vector, of its two copies, and of what both leave.
struct CopySquares {
    double square, high, low, rest;
};

struct OwnTerms {
    float lowered, slack; // p and F of src/bounds/own.rs
};

__device__ __forceinline__ __half half_of(double v) {
    const __half copy = __double2half(v);
    // Products of what is not finite could lose a centroid. The residual says that nothing is known.
    return fabsf(__half2float(copy)) < 65505.0f ? copy : __float2half_rn(0.0f);
}

// Writes the copies of `value(f)` to place `place` of a tile of `bytes` bytes a chunk.
template <bool LOW, typename Value>
__device__ __forceinline__ CopySquares copy_vector(const Value& value, u32 chunks, u32 place, u32 bytes, u8* tile) {
    const u32 lane = threadIdx.x & 31;
    CopySquares s = {};
#pragma unroll 2
    for (u32 chunk = 0; chunk < chunks; chunk++) {
        __half high[2], low[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const double v = value((int)(chunk * CHUNK + 2 * lane + e));
            high[e] = half_of(v);
            const double copy = (double)__half2float(high[e]);
            double rest = v - copy;
            s.square = __fma_rn(v, v, s.square), s.high = __fma_rn(copy, copy, s.high);
            if constexpr (LOW) {
                low[e] = half_of(rest);
                const double second = (double)__half2float(low[e]);
                rest -= second;
                s.low = __fma_rn(second, second, s.low);
            }
            s.rest = __fma_rn(rest, rest, s.rest);
        }
        u8* const to = tile + chunk * bytes + swizzled(place, lane / 4) + (lane & 3) * 4;
        *(__half2*)to = __halves2half2(high[0], high[1]);
        if constexpr (LOW) *(__half2*)(to + chunks * bytes) = __halves2half2(low[0], low[1]);
    }
    s.square = warp_total(s.square), s.high = warp_total(s.high), s.rest = warp_total(s.rest);
    if constexpr (LOW) s.low = warp_total(s.low);
    return s;
}

// Copies a centroid from the centre of its group, with the other sign: products are taken off p. A place without a centroid, not `real`, gets a score
// above every limit. What is there must be finite, and is: 0, or an older copy.
template <bool LOW, typename T>
__device__ __forceinline__ OwnTerms copy_centroid(const T* c, const T* centre, T scale, const TensorGroup& group, const TensorTerms& b, int d,
                                                  u32 chunks, bool real, u32 place, u8* tile) {
    OwnTerms own = {FARTHEST, infinity_f()};
    if (!real) return own;
    const double both = (double)scale * group.centroid_scale;
    const auto value = [&](int f) { return f < d ? ((double)centre[f] - (double)c[f]) * both : 0.0; };
    const CopySquares s = copy_vector<LOW>(value, chunks, place, TILE_CENTROIDS * PLACE_BYTES, tile);
    const double more = 1.0 + b.half, ratio = (double)group.row_scale / group.centroid_scale;
    const double norm = sqrt(s.square * more), rest = sqrt(s.rest * more) + 1.2e-16 * norm, low = LOW ? sqrt(s.low * more) : 0.0;
    const double copy = sqrt(s.high * more) + 3.0 * low + b.subnormal;
    const double squares = b.share * norm * norm + rest * rest / b.share + b.sum * copy * copy + low * low;
    const double half = 0.5 * ratio * s.square;
    const double error = 1.00001 * ((squares / (2.0 * group.balance) + b.least + b.begin * half) / (1.0 - b.begin));
    const double below = half * (1.0 - b.half), above = half * (1.0 + b.half);
    const double roundings = 6.0e-8, z = below - error;
    own.lowered = __double2float_rd(z - 1.01 * roundings * fabs(z));
    const double reference = 4.0 * b.reference * half + b.underflow * ((double)group.row_scale * group.centroid_scale);
    const double p = (double)own.lowered;
    own.slack = __double2float_ru((above - p + 1.01 * roundings * fabs(p) + error + reference) * 1.00001);
    // Copies that are not finite, or scores that could overflow: always in reach, and nothing is compared with it.
    if (!(half < 1e36) || !(own.slack < 1e36f)) own = {-FARTHEST, infinity_f()};
    return own;
}

// The scores of kernels/step/assign_registers.cu. They give the nearest centroid of each row of a tile and say whether other centroids are in
// reach. If so, the row is in doubt, and `settle` finds its exact label.
#pragma once
#include "../common/filter.cuh"
#include "arriving.cuh"

// A centroid in shared memory: D values and the half square, padded to a multiple of 16 bytes.
template <int D> struct Centroid {
    static const int width = (D + 1 + 3) / 4 * 4;
    float v[width];
    __device__ __forceinline__ void load(const float* p) {
#pragma unroll
        for (int i = 0; i < width; i += 4) {
            float4 q = *(const float4*)(p + i);
            v[i] = q.x, v[i + 1] = q.y, v[i + 2] = q.z, v[i + 3] = q.w;
        }
    }
    // x is (D, ROWS).
    __device__ __forceinline__ float score(const float (&x)[D][ROWS], int r) const {
        float h = v[D];
#pragma unroll
        for (int f = 0; f < D; f++) h = __fmaf_rn(x[f][r], v[f], h);
        return h;
    }
};

// The result for the four rows of a thread: the labels, the limits above which a score is out of reach, and a bit for each row in doubt.
struct Found {
    u32 label[ROWS];
    float limit[ROWS];
    u32 doubt;
};

// Sets a bit unless the score is above the limit. NaN counts as not above. (The compiler would select a word and then OR it.)
__device__ __forceinline__ void mark(u32& in_reach, u32 bit, float score, float limit) {
    asm("{\n\t.reg .pred p;\n\tsetp.leu.f32 p, %2, %3;\n\t@p or.b32 %0, %0, %1;\n\t}" : "+r"(in_reach) : "r"(bit), "f"(score), "f"(limit));
}

// All N scores of a row at once: the least, and the centroids in reach. Each centroid in reach adds 64 and its number to the last bits of
// a float. If there is only one, these bits are its number.
template <int D, int N>
__device__ __forceinline__ Found nearest_of_few(const float (&x)[D][ROWS], const float (&square)[ROWS], const Bound& bound,
                                                const float* centroids) {
    const int W = Centroid<D>::width, TOGETHER = N <= 4 ? ROWS : 2;
    const float none = 8388608.0f;
    Found found;
    found.doubt = 0;
#pragma unroll
    for (int first = 0; first < ROWS; first += TOGETHER) {
        float h[N][TOGETHER];
#pragma unroll
        for (int j = 0; j < N; j++) {
            Centroid<D> c;
            c.load(centroids + j * W);
#pragma unroll
            for (int i = 0; i < TOGETHER; i++) h[j][i] = c.score(x, first + i);
        }
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const int r = first + i;
            float best = h[0][i], in_reach = none;
#pragma unroll
            for (int j = 1; j < N; j++) best = fminf(best, h[j][i]);
            found.limit[r] = reach(bound, square[r], best);
#pragma unroll
            for (int j = 0; j < N; j++) in_reach = __fmaf_rn(h[j][i] > found.limit[r] ? 0.0f : 1.0f, (float)(64 + j), in_reach);
            found.label[r] = __float_as_uint(in_reach) & 63;
            found.doubt |= in_reach < none + 128.0f ? 0 : 1u << r;
        }
    }
    return found;
}

// Lowers `least` to the scores of two centroids, as bits.
template <int D>
__device__ __forceinline__ void least_of_two(const float (&x)[D][ROWS], const Centroid<D>& c, const Centroid<D>& e, int (&least)[ROWS]) {
    if constexpr (D <= 3) {
        // The same roundings as `score`. Each product shares an operand with the one before, which is then not read again. With more features
        // the compiler's own order is 2 % faster.
#pragma unroll
        for (int r = 0; r < ROWS; r += 2) {
            float h[2] = {c.v[D], c.v[D]}, g[2] = {e.v[D], e.v[D]};
#pragma unroll
            for (int f = 0; f < D; f++) {
                h[0] = __fmaf_rn(x[f][r], c.v[f], h[0]);
                h[1] = __fmaf_rn(x[f][r + 1], c.v[f], h[1]);
                g[1] = __fmaf_rn(x[f][r + 1], e.v[f], g[1]);
                g[0] = __fmaf_rn(x[f][r], e.v[f], g[0]);
            }
#pragma unroll
            for (int i = 0; i < 2; i++) least[r + i] = __vimin3_s32(least[r + i], __float_as_int(h[i]), __float_as_int(g[i]));
        }
    } else {
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            least[r] = __vimin3_s32(least[r], __float_as_int(c.score(x, r)), __float_as_int(e.score(x, r)));
    }
}

// Sweeps over pairs of centroids (the count is padded to an even number): finds the pair with the least score, then which of the two has
// it. The label is the nearest centroid by scores.
template <int D>
__device__ __forceinline__ void least_of_pairs(const float (&x)[D][ROWS], const float* centroids, int count, u32 (&label)[ROWS],
                                               float (&best)[ROWS], float (&second)[ROWS]) {
    const int W = Centroid<D>::width;
    int j = 0;
#pragma unroll 1
    do {
        Centroid<D> c, e;
        c.load(centroids + j * W);
        e.load(centroids + (j + 1) * W);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float h = c.score(x, r), i = e.score(x, r), least = fminf(h, i);
            second[r] = fminf(fminf(second[r], fmaxf(h, i)), fmaxf(best[r], least));
            label[r] = least < best[r] ? j : label[r];
            best[r] = fminf(best[r], least);
        }
        j += 2;
    } while (j < count);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        Centroid<D> c;
        c.load(centroids + label[r] * W);
        label[r] += c.score(x, r) == best[r] ? 0 : 1;
    }
}

// With groups: finds the least score of each group and the least two of these. Then it computes the scores of the best group once more,
// with the same roundings, to find the centroids in reach. Without groups: finds the least two scores, over pairs of centroids. In shared
// memory groups are 16 bytes apart (GAP words), so lanes that read different groups use different banks.
template <int D, int GROUP, int GAP>
__device__ __forceinline__ Found nearest(const float (&x)[D][ROWS], const float (&square)[ROWS], const Bound& bound, const float* centroids,
                                         int count) {
    const int W = Centroid<D>::width;
    if constexpr (GROUP == 0 && GAP != 0 && D <= 4) {
        if (count == 2) return nearest_of_few<D, 2>(x, square, bound, centroids);
        if (count == 4) return nearest_of_few<D, 4>(x, square, bound, centroids);
        if (count == 6) return nearest_of_few<D, 6>(x, square, bound, centroids);
        if constexpr (D <= 3)
            if (count == 8) return nearest_of_few<D, 8>(x, square, bound, centroids);
    }
    Found found;
    float best[ROWS], second[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) best[r] = infinity_f(), second[r] = infinity_f(), found.label[r] = 0;
    found.doubt = 0;
    if constexpr (GROUP != 0 && GAP != 0) {
        // Compares the bits of lifted scores. If a score is negative, the order of the bits is not that of the scores. But then one of
        // the negative scores is found. So the row is in doubt, and the limit is not too low.
        const float* group = centroids;
        int low[ROWS], next[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) low[r] = next[r] = __float_as_int(infinity_f());
        int g = 0;
#pragma unroll 1
        do {
            int least[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) least[r] = __float_as_int(infinity_f());
#pragma unroll (D <= 4 ? GROUP / 2 : 1)
            for (int i = 0; i < GROUP; i += 2) {
                Centroid<D> c, e;
                c.load(group + i * W);
                e.load(group + (i + 1) * W);
                least_of_two(x, c, e, least);
            }
            group += GROUP * W + GAP;
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                next[r] = min(next[r], max(low[r], least[r]));
                found.label[r] = least[r] < low[r] ? g : found.label[r];
                low[r] = min(low[r], least[r]);
            }
            g += GROUP;
        } while (g < count);
#pragma unroll
        for (int r = 0; r < ROWS; r++) best[r] = __int_as_float(low[r]), second[r] = low[r] < 0 ? best[r] : __int_as_float(next[r]);
    } else if constexpr (GROUP != 0) {
        const float* group = centroids;
#pragma unroll 1
        for (int g = 0; g < count; g += GROUP) {
            float least[ROWS];
#pragma unroll (D <= 4 ? GROUP : 2)
            for (int i = 0; i < GROUP; i++) {
                Centroid<D> c;
                c.load(group + i * W);
#pragma unroll
                for (int r = 0; r < ROWS; r++) least[r] = i == 0 ? c.score(x, r) : fminf(least[r], c.score(x, r));
            }
            group += GROUP * W + GAP;
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                second[r] = fminf(second[r], fmaxf(best[r], least[r]));
                found.label[r] = least[r] < best[r] ? g : found.label[r];
                best[r] = fminf(best[r], least[r]);
            }
        }
    }
    if constexpr (GROUP != 0) {
        // Sets a bit for each centroid in reach.
        const int STEP = D <= 4 ? 4 : 1;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            found.limit[r] = reach(bound, square[r], best[r]);
            const float* from = centroids + (GAP ? found.label[r] / GROUP * (GROUP * W + GAP) : found.label[r] * W);
            u32 in_reach = 0;
#pragma unroll 1
            for (int i = 0; i < GROUP; i += STEP) {
                in_reach >>= STEP;
#pragma unroll
                for (int e = 0; e < STEP; e++) {
                    Centroid<D> c;
                    c.load(from + e * W);
                    mark(in_reach, 1u << (GROUP - STEP + e), c.score(x, r), found.limit[r]);
                }
                from += STEP * W;
            }
            found.label[r] += 31 - __clz(in_reach);
            found.doubt |= second[r] > found.limit[r] && (in_reach & (in_reach - 1)) == 0 ? 0 : 1u << r;
        }
    } else {
        least_of_pairs<D>(x, centroids, count, found.label, best, second);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            found.limit[r] = reach(bound, square[r], best[r]);
            found.doubt |= second[r] > found.limit[r] ? 0 : 1u << r;
        }
    }
    return found;
}

// The exact label of a row in doubt. All lanes of a warp work on it. The label is the smallest j of least reference distance among the
// centroids in reach. These contain the nearest centroid and all that tie with it. There are `gap` floats between groups.
template <typename T, int D, int GROUP>
__device__ __forceinline__ u32 settle(const Assign<T>& a, const T (&minus_centre)[D], const float* centroids, int gap, u32 row, float limit,
                                      int lane) {
    const int W = Centroid<D>::width;
    float x[D][ROWS]; // only the first row is used
#pragma unroll
    for (int f = 0; f < D; f++) {
        const bool there = D <= 4 || f < a.rows.d;
        x[f][0] = there ? centred_copy(a.rows.x[(u64)f * a.rows.stride + row], minus_centre[f], a.scale) : 0.0f;
    }
    const float* from = centroids + lane * W + (GROUP ? lane / (GROUP ? GROUP : 1) * gap : 0);
    Closest closest;
#pragma unroll 1
    for (int first = lane; first < a.k + lane; first += 1024) {
        // Each lane scores up to 32 centroids before any lane computes a distance. Then all lanes with distances compute them together.
        u32 in_reach = 0, bit = 1;
#pragma unroll 1
        for (int j = first; j < a.k && bit; j += 32) {
            Centroid<D> c;
            c.load(from);
            from += 32 * W + (GROUP ? 32 / (GROUP ? GROUP : 1) * gap : 0);
            if (!(c.score(x, 0) > limit)) in_reach |= bit;
            bit <<= 1;
        }
        __syncwarp();
#pragma unroll 1
        for (; in_reach; in_reach &= in_reach - 1) {
            const u32 j = first + 32 * (__ffs(in_reach) - 1);
            const T* x = a.rows.x + row;
            const T* c = a.centroid_columns + j;
            double s = 0.0;
#pragma unroll 1
            for (int f = 0; f < a.rows.d; f++) {
                const double t = __dadd_rn((double)*x, -(double)*c);
                s = __fma_rn(t, t, s);
                x += a.rows.stride, c += a.k;
            }
            closest.compare(j, s);
        }
        __syncwarp();
    }
    return closest.of_warp();
}

// If scores are not negative, their bits have the same order as they have, and the least of three integers is one instruction on Hopper.
// So if centroids are in groups in shared memory, their half squares are lifted by M. M is about twice the square of the longest
// centroid's norm. Then only rows more than two and a half times as far out as that centroid can have a negative score, and these rows
// are in doubt.
//
// The lift raises the limit. M goes through d + 1 roundings in each of the two scores that are compared. The roundings of the comparison
// act on values that are up to M larger. Together that is (2 d + 2 + 4.04) u M to first order, which is less than (2 D + 7) u M.
// |c|^2 / 2 goes through one more rounding, for which `(b + 2) u` of `ExpandedTerms` (src/certify.rs) has room: it is gamma_(d+3).
//
// Any M is allowed. This one is made from the offset of the bound, which is about (2 d + 14) u |c|^2. Nothing overflows: the scale keeps
// the copies of centroids and of rows that count below about 8 (src/backend/cuda/step/filter.rs). A row of weight 0 that lies far beyond
// has an infinite square, or at least no infinite score.
template <int D> __device__ __forceinline__ float lift_of(const Bound& bound) { return 33554432.0f / (2 * D + 14) * bound.offset; }
template <int D> __device__ __forceinline__ Bound lifted(const Bound& bound, float lift) {
    return {bound.slope, __fadd_ru(bound.offset, __fmul_ru((2 * D + 8) / 16777216.0f, lift))};
}

// Copies centroids from device memory to shared memory, with a gap between groups.
template <int D, int GROUP> __device__ __forceinline__ void fetch_centroids(const float* from, float* to, int count, float lift) {
    const int W = Centroid<D>::width;
#pragma unroll 1
    for (int i = threadIdx.x; i < count * W / 4; i += THREADS) {
        int group = GROUP ? i / (GROUP * W / 4) : 0;
        float4 v = ((const float4*)from)[i];
        if (GROUP && i % (W / 4) == D / 4) (D % 4 == 0 ? v.x : D % 4 == 1 ? v.y : D % 4 == 2 ? v.z : v.w) += lift;
        ((float4*)to)[i + group] = v;
    }
}

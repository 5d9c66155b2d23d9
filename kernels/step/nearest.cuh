// The scores of kernels/step/assign_registers.cu. They give the nearest centroid of each row of a tile and say whether other centroids are in
// reach. If so, the row is in doubt, and `settle_rows` (settle_rows.cuh) will find its exact label.
#pragma once
#include "../common/filter.cuh"
#include "async_tiles.cuh"

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

// The result for the four rows of a thread: the labels, a bit for each row in doubt, and a bit for each row that has no negative score.
struct Found {
    u32 label[ROWS];
    u32 doubt, unresolved;
};

// Where the scores come from: the centroids, in shared memory if they fit.
struct Scored {
    const float* centroids;
    int count; // with the padding
};

// Sets a bit unless the score is above the limit. NaN counts as not above. (The compiler would select a word and then OR it.)
__device__ __forceinline__ void mark(u32& in_reach, u32 bit, float score, float limit) {
    asm("{\n\t.reg .pred p;\n\tsetp.leu.f32 p, %2, %3;\n\t@p or.b32 %0, %0, %1;\n\t}" : "+r"(in_reach) : "r"(bit), "f"(score), "f"(limit));
}

// All N scores of a row at once: the least, and the centroids in reach. Each centroid in reach adds 64 and its number to the last bits of
// a float. If there is only one, these bits are its number.
template <int D, int N>
__device__ __forceinline__ Found nearest_of_few(const float (&x)[D][ROWS], const float (&square)[ROWS], const Ceiling& bound,
                                                const Scored& scored) {
    const int W = Centroid<D>::width, TOGETHER = N <= 4 ? ROWS : 2;
    const float none = 8388608.0f;
    Found found;
    found.doubt = found.unresolved = 0;
#pragma unroll
    for (int first = 0; first < ROWS; first += TOGETHER) {
        float h[N][TOGETHER];
#pragma unroll
        for (int j = 0; j < N; j++) {
            Centroid<D> c;
            c.load(scored.centroids + j * W);
#pragma unroll
            for (int i = 0; i < TOGETHER; i++) h[j][i] = c.score(x, first + i);
        }
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const int r = first + i;
            float least = h[0][i], in_reach = none;
#pragma unroll
            for (int j = 1; j < N; j++) least = fminf(least, h[j][i]);
            const float limit = bound.reach(square[r], least);
#pragma unroll
            for (int j = 0; j < N; j++) in_reach = __fmaf_rn(h[j][i] > limit ? 0.0f : 1.0f, (float)(64 + j), in_reach);
            found.label[r] = __float_as_uint(in_reach) & 63;
            found.doubt |= in_reach < none + 128.0f ? 0 : 1u << r;
        }
    }
    return found;
}

// Raises `most` to the bits of the scores of two centroids. As unsigned integers, bits of negative scores are above those of all others, and
// the lowest score has the highest bits.
template <int D>
__device__ __forceinline__ void most_of_two(const float (&x)[D][ROWS], const Centroid<D>& c, const Centroid<D>& e, u32 (&most)[ROWS]) {
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
            for (int i = 0; i < 2; i++) most[r + i] = __vimax3_u32(most[r + i], __float_as_uint(h[i]), __float_as_uint(g[i]));
        }
    } else {
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            most[r] = __vimax3_u32(most[r], __float_as_uint(c.score(x, r)), __float_as_uint(e.score(x, r)));
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
        if (D > 4) asm volatile("" ::: "memory"); // one row after another: registers are scarce
        Centroid<D> c;
        c.load(centroids + label[r] * W);
        label[r] += c.score(x, r) == best[r] ? 0 : 1;
    }
}

// The least scores of the groups, and the least two of these: `best`, `second`, and the first centroid of the best group. GAP: floats between
// groups.
template <int D, int GROUP, int GAP>
__device__ __forceinline__ void least_of_groups(const float (&x)[D][ROWS], const Scored& scored, u32 (&label)[ROWS], float (&best)[ROWS],
                                                float (&second)[ROWS]) {
    const float* group = scored.centroids;
#pragma unroll 1
    for (int g = 0; g < scored.count; g += GROUP) {
        float least[ROWS];
#pragma unroll (D <= 4 ? GROUP : 2)
        for (int i = 0; i < GROUP; i++) {
            Centroid<D> c;
            c.load(group + i * Centroid<D>::width);
#pragma unroll
            for (int r = 0; r < ROWS; r++) least[r] = i == 0 ? c.score(x, r) : fminf(least[r], c.score(x, r));
        }
        group += GROUP * Centroid<D>::width + GAP;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            second[r] = fminf(second[r], fmaxf(best[r], least[r]));
            label[r] = least[r] < best[r] ? g : label[r];
            best[r] = fminf(best[r], least[r]);
        }
    }
}

// The same by the bits of the scores: one instruction for two scores on Hopper. A row without a negative score gets a best score that is not
// negative, which says nothing. If the second best is not negative, it is only known that all scores of other groups are at least 0.
template <int D, int GROUP, int GAP>
__device__ __forceinline__ void least_of_groups_by_bits(const float (&x)[D][ROWS], const Scored& scored, u32 (&label)[ROWS],
                                                        float (&best)[ROWS], float (&second)[ROWS]) {
    const float* group = scored.centroids;
    u32 high[ROWS], next[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) high[r] = next[r] = 0;
    int g = 0;
#pragma unroll 1
    do {
        u32 most[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) most[r] = 0;
#pragma unroll (D <= 4 ? GROUP / 2 : 1)
        for (int i = 0; i < GROUP; i += 2) {
            Centroid<D> c, e;
            c.load(group + i * Centroid<D>::width);
            e.load(group + (i + 1) * Centroid<D>::width);
            most_of_two(x, c, e, most);
        }
        group += GROUP * Centroid<D>::width + GAP;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            next[r] = max(next[r], min(high[r], most[r]));
            label[r] = most[r] > high[r] ? g : label[r];
            high[r] = max(high[r], most[r]);
        }
        g += GROUP;
    } while (g < scored.count);
#pragma unroll
    for (int r = 0; r < ROWS; r++) best[r] = __uint_as_float(high[r]), second[r] = fminf(__uint_as_float(next[r]), 0.0f);
}

// Computes the scores of the best group of each row once more, with the same roundings, to find the centroids in reach.
template <int D, int GROUP, int GAP>
__device__ __forceinline__ void decide_in_group(const float (&x)[D][ROWS], const float (&square)[ROWS], const Ceiling& bound,
                                                const Scored& scored, const float (&best)[ROWS], const float (&second)[ROWS], Found& found) {
    const int W = Centroid<D>::width, STEP = D <= 4 ? 4 : 1;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float limit = bound.reach(square[r], best[r]);
        const float* from = scored.centroids + (GAP ? found.label[r] / GROUP * (GROUP * W + GAP) : found.label[r] * W);
        u32 in_reach = 0;
#pragma unroll 1
        for (int i = 0; i < GROUP; i += STEP) {
            in_reach >>= STEP;
#pragma unroll
            for (int e = 0; e < STEP; e++) {
                Centroid<D> c;
                c.load(from + e * W);
                mark(in_reach, 1u << (GROUP - STEP + e), c.score(x, r), limit);
            }
            from += STEP * W;
        }
        found.label[r] += 31 - __clz(in_reach | 1);
        found.doubt |= second[r] > limit && (in_reach & (in_reach - 1)) == 0 ? 0 : 1u << r;
    }
}

// With groups: finds the least score of each group and the least two of these, then looks into the best group. Without groups: finds the
// least two scores, over pairs of centroids. In shared memory groups are 16 bytes apart (GAP words), so lanes that read different groups
// use different banks.
template <int D, int GROUP, int GAP>
__device__ __forceinline__ Found nearest(const float (&x)[D][ROWS], const float (&square)[ROWS], const Ceiling& bound, const Scored& scored) {
    if constexpr (GROUP == 0 && GAP != 0 && D <= 4) {
        if (scored.count == 2) return nearest_of_few<D, 2>(x, square, bound, scored);
        if (scored.count == 4) return nearest_of_few<D, 4>(x, square, bound, scored);
        if (scored.count == 6) return nearest_of_few<D, 6>(x, square, bound, scored);
        if constexpr (D <= 3)
            if (scored.count == 8) return nearest_of_few<D, 8>(x, square, bound, scored);
    }
    Found found;
    float best[ROWS], second[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) best[r] = second[r] = infinity_f(), found.label[r] = 0;
    found.doubt = found.unresolved = 0;
    if constexpr (GROUP == 0) {
        least_of_pairs<D>(x, scored.centroids, scored.count, found.label, best, second);
#pragma unroll
        for (int r = 0; r < ROWS; r++) found.doubt |= second[r] > bound.reach(square[r], best[r]) ? 0 : 1u << r;
        return found;
    } else {
        const bool by_bits = GAP != 0 && !bound.by_value;
        if (by_bits) least_of_groups_by_bits<D, GROUP, GAP>(x, scored, found.label, best, second);
        else least_of_groups<D, GROUP, GAP>(x, scored, found.label, best, second);
        decide_in_group<D, GROUP, GAP>(x, square, bound, scored, best, second, found);
        if (GAP != 0) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) found.unresolved |= best[r] < 0.0f ? 0 : 1u << r;
            if (by_bits) found.doubt |= found.unresolved;
        }
        return found;
    }
}

// Copies centroids from device memory to shared memory, with a gap between groups.
template <int D, int GROUP> __device__ __forceinline__ void fetch_centroids(const float* from, float* to, int count) {
    const int W = Centroid<D>::width;
#pragma unroll 1
    for (int i = threadIdx.x; i < count * W / 4; i += THREADS) {
        const int group = GROUP ? i / (GROUP * W / 4) : 0;
        ((float4*)to)[i + group] = ((const float4*)from)[i];
    }
}

// The two or three least scores of a row and the centroids that have them, for kernels/step/assign_tiled.cu.
#pragma once
#include "../common/launch.cuh"

// The two least scores, and the centroid of the least. PAIRS: the three least scores, and the centroids of the two least, in 16 bits of
// `index` each.
template <bool PAIRS> struct Best;

// If two scores are equal, the second equals the best. Such a row is in doubt anyway, so either index may stay.
template <> struct Best<false> {
    float best, second;
    u32 index;

    __device__ __forceinline__ void of(float a, float b) { best = fminf(a, b), second = fmaxf(a, b); }
    __device__ __forceinline__ void merge_scores(const Best& other) {
        second = fminf(fminf(second, other.second), fmaxf(best, other.best));
        best = fminf(best, other.best);
    }
    __device__ __forceinline__ void merge(const Best& other) {
        index = other.best < best ? other.index : index;
        merge_scores(other);
    }
    __device__ __forceinline__ u32 first() const { return index; }
};

// If the third score equals the second, either index may stay: if one of them is in reach, both are.
template <> struct Best<true> {
    float best, second;
    u32 index; // of the best in the low half, of the second in the high half
    float third;

    __device__ __forceinline__ void of(float a, float b) { best = fminf(a, b), second = fmaxf(a, b), third = infinity_f(); }
    __device__ __forceinline__ void merge_scores(const Best& other) {
        const float worse = fmaxf(best, other.best), next = fminf(second, other.second);
        third = fminf(fmaxf(worse, next), fminf(third, other.third));
        second = fminf(worse, next);
        best = fminf(best, other.best);
    }
    __device__ __forceinline__ void merge(const Best& other) {
        const u32 before = __byte_perm(index, other.index, 0x5410), after = __byte_perm(index, other.index, 0x1054);
        const u32 kept = other.best < second ? before : index, given = other.second < best ? other.index : after;
        index = other.best < best ? given : kept;
        merge_scores(other);
    }
    __device__ __forceinline__ u32 first() const { return index & 0xffffu; }
};

template <bool PAIRS> __device__ __forceinline__ Best<PAIRS> exchange(const Best<PAIRS>& mine, int mask) {
    Best<PAIRS> b;
    b.best = __shfl_xor_sync(FULL_WARP, mine.best, mask);
    b.second = __shfl_xor_sync(FULL_WARP, mine.second, mask);
    b.index = __shfl_xor_sync(FULL_WARP, mine.index, mask);
    if constexpr (PAIRS) b.third = __shfl_xor_sync(FULL_WARP, mine.third, mask);
    return b;
}

// The best of a thread's eight centroids: four from `base` on and four from `base` + 16 on. It finds the scores first, by comparing
// halves, and then their indices. Carrying two indices through every comparison takes more instructions, and branches.
template <bool PAIRS> __device__ __forceinline__ Best<PAIRS> best_of(const float (&scores)[8], u32 base) {
    Best<PAIRS> b, others[3];
    b.of(scores[0], scores[1]);
#pragma unroll
    for (int i = 0; i < 3; i++) others[i].of(scores[2 * i + 2], scores[2 * i + 3]);
    b.merge_scores(others[0]);
    others[1].merge_scores(others[2]);
    b.merge_scores(others[1]);
    // The last centroid with the best score, the first with the second score. If both scores are equal these are two centroids.
    u32 first = 0, second = 19;
#pragma unroll
    for (int c = 1; c < 8; c++) first = scores[c] == b.best ? (u32)(c < 4 ? c : 12 + c) : first;
    if constexpr (PAIRS) {
#pragma unroll
        for (int c = 6; c >= 0; c--) second = scores[c] == b.second ? (u32)(c < 4 ? c : 12 + c) : second;
        b.index = (second << 16 | first) + base * 0x10001u;
    } else {
        b.index = first + base;
    }
    return b;
}

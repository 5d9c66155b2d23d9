// The argument of the kernels that choose groups and copy centroids for tensor cores: tensor_centres.cu and tensor_centroids.cu.
#pragma once
#include "../common/sums.cuh"
#include "../common/tensor.cuh"

// When tensor_near has work: always; if groups are made now; or if groups were not made just before. If they were, its results exist.
#define NEAR_ALWAYS 0
#define NEAR_BEFORE_GROUPS 1
#define NEAR_WITHOUT_GROUPS 2

template <typename T> struct TensorCentroids {
    const T* centroids; // (k, d)
    T* centres; // (most + 1, centre width). The last one is the mean of all centroids, that of the fallback group
    T scale; // a power of two
    u32 most; // groups that there may be. The number of the fallback group
    u32* count; // groups that there are
    TensorGroup* groups; // (most + 1)
    TensorTotals* totals;
    float* near; // (most + 1, k): squared distances of centroids from the centre of each group, in float32
    u16* group_of_centroid; // (k): that of the nearest centre
    u32* list; // (most + 1, k padded): centroids
    u32* group_of_copy; // (copied): of each tile of copies, or NO_ROW
    float* lowered; // (copied, 256): p of src/bounds/own.rs
    float* slacks; // (copied, 256): F
    float* tile_slacks; // (copied): the largest F of a tile
    u8* copies; // (copied, chunks, 256, 64) of 2 bytes
    Labels labels; // before this step
    const u32* group_of_tile; // (tiles)
    const u32* row_of_place; // (tiles, 128)
    u32* first_visit; // (tiles): the tile of centroids that a tile of rows begins with
    Control* control;
    FewControl* few;
    TensorTerms bound;
    int d, k;
    u32 k_padded, chunks, tiles;
    u32 copied; // tiles of copies that there is room for
    u32 near_when; // for tensor_near
    u64 most_doubt, most_kept;
};

// The argument of the kernels that group and copy the rows for tensor cores: tensor_groups.cu, tensor_places.cu and tensor_rows.cu.
//
//   a bucket   rows that lie side by side in the order of the copies: those of one group that have no label yet, or those of one label
#pragma once
#include "../common/sums.cuh"
#include "../common/tensor.cuh"

template <typename T, typename S = T> struct TensorRows {
    Rows<T, S> rows;
    const T* centres; // (most + 1, centre width)
    T scale; // a power of two
    u32 most; // groups that there may be. The number of the fallback group
    const u32* count; // groups that there are
    TensorGroup* groups; // (most + 1)
    TensorTotals* totals;
    const float* near; // (most + 1, k): see tensor_centres.cu
    Labels labels; // before this step
    const u16* group_of_centroid; // (k)
    u16* group_of_row; // (n): NO_GROUP for a row that is not finite
    u32* buckets; // (most + 1 + k): how many rows each has, then its next place
    u32* group_of_tile; // (tiles), NO_ROW from the last tile on
    u32* row_of_place; // (tiles, 128): NO_ROW for no row
    float* terms; // (tiles, 128): 2 E_x / t, and more
    u8* copies; // (tiles, chunks, 128, 64) of 2 bytes
    S* by_row; // (n, width): the rows with their features side by side, or null. Features from d on are 0
    const Control* control;
    const FewControl* few;
    TensorTerms bound;
    u32 tiles, chunks, k;
    u32 width; // of a row of `by_row`: a multiple of 32 bytes
    u32 copies_of_centroids; // tiles of them that there may be: the others are for centroids that will have moved
    u32 row_tiles; // tiles of rows that a block of the products takes at a time: all of one group
    u64 most_doubt, most_kept;
};

// A row with a value that is not finite. Predictions meet such rows. It has no copy, gets no label, and does not count in its group.
#define NO_GROUP 0xffff

// A row's label, or UNASSIGNED.
template <typename T, typename S> __device__ __forceinline__ u32 label_of_row(const TensorRows<T, S>& a, u64 row) {
    const u32 label = load_label(a.labels, row);
    return label < a.k ? label : UNASSIGNED;
}

// The float32 filter: copies of rows and centroids, the bound that certifies its scores, the rows that it cannot decide, and the
// arguments of the kernels that run it.
#pragma once
#include "sums.cuh"

// How far above the best score another score may be and still be in reach: src/bounds.rs, `ExpandedTerms`. A row needs the weighted
// square of its copy, and the slack of the centroid with the best score.
//
// A kernel that looks up no slacks has a ceiling instead: the least score says how large the slack can be (`Ceiling` of src/bounds.rs).
struct Ceiling {
    float slope, rise, offset;
    int by_value; // whether assign_registers compares scores as floats, not as bits

    // Scores that are not greater than this are in reach of the least score.
    __device__ __forceinline__ float reach(float square, float least) const {
        return __fadd_ru(least, __fmaf_ru(least, rise, __fmaf_ru(square, slope, offset)));
    }
};

struct Bound {
    Ceiling ceiling;
    float slope; // infinite if no centroid may be ruled out
    float lower; // what is subtracted from the half squares for assign_registers, so that most rows have a negative score
    int unused[2];
};

// Scores that are not greater than this are in reach. `slack` is that of the centroid with this score. If the copy's square is infinite
// or NaN, so is this, and no score is greater.
__device__ __forceinline__ float reach(const Bound& b, float square, float score, float slack) {
    return __fadd_ru(score, __fmaf_ru(square, b.slope, slack));
}

// The weight of features `group` to `group` + 15 in that square: `weight` of src/bounds.rs. It counts the roundings of their products,
// and three more. The products form one chain of d, or chains of `panel` whose sums are added up. With `panel` 0
// every weight is 1.
__device__ __forceinline__ int weight_of(int group, int d, int panel) {
    const u32 g = group, p = panel; // unsigned, so division by a constant panel is a shift
    return panel == 0 ? 1 : min(d - group, (int)(p - g % p)) + (int)((u32)d / p + ((u32)d % p != 0) - g / p) + 4;
}

// A value's copy for the filter: x * scale + minus_centre, where minus_centre is -(centre * scale) and scale is a power of two. It has one rounding in
// the type of x, that of the difference, and then one to float32.
__device__ __forceinline__ float centred_copy(float x, float minus_centre, float scale) { return __fmaf_rn(x, scale, minus_centre); }
__device__ __forceinline__ float centred_copy(double x, double minus_centre, double scale) {
    return __double2float_rn(__fma_rn(x, scale, minus_centre));
}

// A row that a filter could not decide. Such rows share an array of n. From its front come rows with two centroids in reach: the one that
// `next` holds, and `second`. From its back come all others.
struct RowInDoubt {
    u32 row, second;
};

// What one block of assign_tiled found for a row: the least two or three scores and their centroids, as in kernels/step/best.cuh.
struct ShareBest {
    float best, second, third;
    u32 index;
};

// Arguments of the assign kernels.
template <typename T, typename S = T> struct Assign {
    Rows<T, S> rows;
    Labels labels; // the labels before. assign_registers writes the new ones in place
    Labels next; // assign_tiled writes the new labels here
    const T* minus_centre; // (d): -(centre * scale)
    T scale; // a power of two
    const float* copies; // minus the centred, scaled centroids, laid out for the kernel
    const float* half_squares; // (k padded): |c|^2 / 2, lowered by the centroid's own error; infinite from k on
    const float* slacks; // (k padded): by how much a score may exceed the centroid's own and still be in reach, without the row's part
    const Bound* bound;
    RowInDoubt* in_doubt; // rows that the filter could not decide
    Control* control;
    int k, k_padded;
    // The other fields are for kernels that also move contributions.
    Sums sums;
    const Factors* factors; // (d)
    double mass_to_integer;
    int table_copies; // copies of each cell in shared memory; 0: add directly to device memory
    int centroids_in_shared; // whether they fit there
    const T* centroid_columns; // (d, k): the centroids, column-major
    const T* centroids; // (k, d): the same, row-major
    u32 run; // tiles that a warp takes at a time, a power of two
    u32 even; // up to this tile, in whole rounds, every warp takes equally many
    // For assign_tiled.
    u32 shares; // blocks that share the centroids of a tile of rows
    ShareBest* share_bests; // (tiles of rows, shares, 128), if there are several
    u32* share_tickets; // (tiles of rows): blocks that are done with theirs. 0 before and after the kernel
};

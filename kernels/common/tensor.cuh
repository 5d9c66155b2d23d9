// Half-precision copies of rows and centroids for tensor cores, and the bound on scores from their products: src/bounds/fp16.rs.
//
//   a group     rows near one point, its centre. The copies of its rows and of the centroids near them are taken from this centre
//   the fallback group   the last group. Its centre is the mean of all centroids. It has the rows of the groups that do not pay, and the rows that a second
//               product looks at (step/tensor_rescore.cu)
//   a tile      128 places for rows of one group, or 256 places for centroids, in chunks of 64 features. A chunk is as wgmma reads it:
//               128 bytes a place; the 16 bytes number i of place p are at i ^ (p % 8)
#pragma once
#include "labels.cuh"

#define TILE_ROWS 128
#define TILE_CENTROIDS 256
#define CHUNK 64 // features
#define PLACE_BYTES (2 * CHUNK)
#define MOST_GROUPS 1024 // besides the fallback group
#define NO_ROW 0xffffffffu

// A group of rows. Distances are in units of 1 / `scale` of the argument.
struct TensorGroup {
    float farthest; // no row is farther from the centre
    u32 rows; // those of the fallback group are all
    double lengths; // sum of the rows' distances from the centre
    // The same with the rows that are too far away: these have their copies with the fallback group.
    float farthest_of_all;
    u32 all;
    double lengths_of_all;
    double logarithms; // of these lengths that are positive, their sum
    u32 positive;
    u32 home; // the group that has the copies of its rows: this one, or the fallback group
    u32 here; // rows that have their copies here
    u32 first_tile; // of its tiles of rows
    u32 centroids; // how many of the current centroids can be nearest to a row
    float balance; // t of src/bounds/fp16.rs, for the current centroids
    float row_scale, centroid_scale; // powers of two; the second one is for the current centroids
    float radius; // rows that are farther have no copies: they are compared with all centroids
    u32 first_copy; // the tile of copies of centroids that is its first
};

// The groups of the rows, all together.
struct TensorTotals {
    u32 tiles; // of copies of centroids, if each group that pays has its own rows
    u32 groups; // that have copies of rows, besides the fallback group
};

// A few far rows must not decide how precise the copies of the others are: no row farther than this many times the mean has a copy.
#define MOST_MEANS 256.0

// A row with a few centroids in reach: `count` of the candidates from `first` on.
struct FewRow {
    u32 row, first, count, unused;
};

// Counters of the list of such rows, and how much work a step was. Zero before a step.
struct FewControl {
    u32 rows, candidates;
    u64 doubt; // candidates besides the best, or ALL_CANDIDATES for a row that is compared with all; see `again`
    u64 kept; // sets of columns that had one in reach, for each tile of centroids that a warp has seen
    u64 visited; // pairs of a tile of rows and a tile of centroids
    u32 copied; // tiles of copies of centroids, without those of the fallback group
    u32 doubtful; // rows that the first product leaves to be compared with all centroids
};

#define ALL_CANDIDATES 16u

// Sets of columns for each pair of a tile of rows and a tile of centroids.
#define SETS (TILE_ROWS / 16 * 4)

// Whether rows are grouped and copied again: the step before had too much doubt, or kept so much that rows in the order of their labels
// would save time. All ones if there are no groups yet.
__device__ __forceinline__ bool again(const FewControl* c, u64 most_doubt, u64 most_kept) {
    return c->doubt > most_doubt || (c->kept > most_kept && c->kept / (SETS / 3) > c->visited);
}

struct Few {
    FewRow* rows; // (room / 3)
    u32* candidates; // (room)
    FewControl* control;
    u32 room, unused;
};

// The constants of the bound.
struct TensorTerms {
    double share; // q
    double sum; // B
    double begin; // B, or 0 if sums surely begin with 0 and p is added at the end
    double reference; // r
    double underflow; // the least error of a reference distance
    double subnormal; // of a copy's norm
    double half; // relative error of a half square
    double least; // of a centroid's own error
    double radius; // relative error of a float32 distance from the centre
};

// No float32 distance is known to be farther: the square of a longer one may be infinite.
#define LONGEST 1.8e19

// The score of places without a centroid, above every limit. Minus this: that of centroids that are always in reach. Not infinite: differences with
// limits are taken.
#define FARTHEST 1e38f

__device__ __forceinline__ double warp_total(double v) {
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(FULL_WARP, v, o);
    return v;
}

// Values of a row of centres, so that each row begins at a multiple of 16 bytes.
__device__ __forceinline__ u64 centre_width(int d) { return (u64)(d + 3) / 4 * 4; }

// Four values from a multiple of 16 bytes on.
__device__ __forceinline__ void load_four(const float* from, float* to) {
    const float4 v = *(const float4*)from;
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}
__device__ __forceinline__ void load_four(const double* from, double* to) {
    const double2 v = ((const double2*)from)[0], w = ((const double2*)from)[1];
    to[0] = v.x, to[1] = v.y, to[2] = w.x, to[3] = w.y;
}

// The tiles of so many centroids.
__device__ __forceinline__ u32 tiles_of(u32 centroids) { return (centroids + TILE_CENTROIDS - 1) / TILE_CENTROIDS; }

// Where 16 bytes of a place are in its chunk.
__device__ __forceinline__ u32 swizzled(u32 place, u32 piece) { return place * PLACE_BYTES + ((piece ^ (place & 7)) << 4); }

// The exact labels of the rows in doubt of a warp's tile, for kernels/step/assign_registers.cu.
//
// The product filter may leave many centroids in reach, for instance where rows are far from the centre of the copies. So a centroid in reach
// goes through a second filter: the sum of squared differences of the copies, in float32 (src/certify.rs, `CopyDifference`). Reference distances
// decide among those that are left.
//
// All lanes of the warp work on the rows. One row gets 32 lanes, each of which takes every 32nd centroid. If there are more rows, a row gets fewer
// lanes: with 32 rows or more, one lane. So many rows in doubt cost about as much as computing the scores of the tile once more.
#pragma once
#include "nearest.cuh"

// The lanes of a warp that share a row, and this lane's row.
struct Share {
    int width; // lanes of a row: a power of two
    int member; // this lane's number among them
    bool there; // whether there is a row
};

// The largest float32 sum of squared differences between copies that a centroid can have which is not farther than `distance`, a squared
// reference distance: `CopyDifference` of src/certify.rs. `square`: that of the row's copy.
__device__ __forceinline__ float nearer_than(double distance, double scale, float square, int d) {
    const double u = 5.9604644775390625e-8, norm = sqrt((double)square * (1.0 + (d + 9) * u) + 1e-37);
    const double root = sqrt(distance) * scale * (1.0 + 4.0 * u) + 2.03 * u * norm + 1e-18;
    return __double2float_ru(root * root * (1.0 + 2.0 * (d + 8) * u));
}

// The exact label of a row: the smallest j of least reference distance among the centroids in reach. These contain the nearest centroid and all
// that tie with it. An infinite limit is found first. `gap`: floats between groups. All lanes of the warp must call this.
template <typename T, int D, int GROUP>
__device__ __forceinline__ u32 settle_row(const Assign<T>& a, const T (&minus_centre)[D], const Bound& bound, const Scored& scored, int gap,
                                          u32 row, float limit, const Share& share) {
    const bool TWICE = GROUP != 0 || D > 2; // with very few features and clusters, registers are worth more than the second filter
    float x[D][ROWS], square = 0.0f; // only the first row is used
#pragma unroll
    for (int f = 0; f < D; f++) {
        const bool there = D <= 4 || f < a.rows.d;
        x[f][0] = there ? centred_copy(a.rows.x[(u64)f * a.rows.stride + row], minus_centre[f], a.scale) : 0.0f;
        square = __fmaf_rn(x[f][0], x[f][0], square);
    }
    auto score = [&](int j) {
        Centroid<D> c;
        c.load(scored.centroids + j * Centroid<D>::width + (GROUP ? j / (GROUP ? GROUP : 1) * gap : 0));
        return c.score(x, 0);
    };
    auto difference = [&](int j) {
        const float* c = scored.centroids + j * Centroid<D>::width + (GROUP ? j / (GROUP ? GROUP : 1) * gap : 0);
        float s = 0.0f;
#pragma unroll
        for (int f = 0; f < D; f++) {
            const float t = __fadd_rn(x[f][0], c[f]);
            s = __fmaf_rn(t, t, s);
        }
        return s;
    };
    if (__any_sync(FULL_WARP, !(limit < infinity_f()))) {
        float least = infinity_f();
#pragma unroll 1
        for (int j = share.member; j < a.k; j += share.width) least = fminf(least, __fadd_ru(score(j), __ldg(scored.margins + j)));
#pragma unroll 1
        for (int o = share.width / 2; o; o >>= 1) least = fminf(least, __shfl_xor_sync(FULL_WARP, least, o));
        if (!(limit < infinity_f())) limit = reach(bound, square, least, 0.0f);
    }
    Closest closest;
    float most = infinity_f(); // the second filter rules out what is above
#pragma unroll 1
    for (int first = share.member; first < a.k + share.member; first += 32 * share.width) {
        // Each lane scores up to 32 centroids before any lane computes a distance. Then all lanes with distances compute them together.
        u32 in_reach = 0, bit = 1;
#pragma unroll 1
        for (int j = first; j < a.k && bit; j += share.width) {
            if (!(score(j) > limit)) in_reach |= bit;
            bit <<= 1;
        }
        if (!share.there) in_reach = 0;
        __syncwarp();
#pragma unroll 1
        for (; in_reach; in_reach &= in_reach - 1) {
            const u32 j = first + share.width * (__ffs(in_reach) - 1);
            if (TWICE && difference(j) > most) continue;
            const T* value = a.rows.x + row;
            const T* centroid = a.centroid_columns + j;
            double s = 0.0;
#pragma unroll 1
            for (int f = 0; f < a.rows.d; f++) {
                const double t = __dadd_rn((double)*value, -(double)*centroid);
                s = __fma_rn(t, t, s);
                value += a.rows.stride, centroid += a.k;
            }
            if (TWICE && s < closest.least) most = nearer_than(s, (double)a.scale, square, a.rows.d);
            closest.compare(j, s);
        }
        __syncwarp();
    }
    return closest.of_lanes(share.width);
}

// The rows of a warp's tile, in shared memory: what is known of each row, and the places of those in doubt.
struct Doubtful {
    u32 known[WARP_TILE]; // the bits of the row's limit, then its label
    u8 places[WARP_TILE];
};

// Replaces the labels of the rows in doubt by their exact labels. `doubt`: a bit for each of this lane's four rows. `first`: the first row of
// the tile. Returns how many rows there were.
template <typename T, int D, int GROUP>
__device__ __forceinline__ u32 settle_rows(const Assign<T>& a, const T (&minus_centre)[D], const Bound& bound, const Scored& scored, int gap,
                                           u32 first, u32 doubt, Found& found, Doubtful& rows, int lane) {
    u32 before = __popc(doubt);
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        const u32 other = __shfl_up_sync(FULL_WARP, before, o);
        if (lane >= o) before += other;
    }
    const u32 count = __shfl_sync(FULL_WARP, before, 31);
    before -= __popc(doubt);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const bool in_doubt = doubt >> r & 1;
        rows.known[lane * ROWS + r] = in_doubt ? __float_as_uint(found.limit[r]) : found.label[r];
        if (in_doubt) rows.places[before++] = (u8)(lane * ROWS + r);
    }
    __syncwarp();
    // As many rows at a time as a power of two.
    const int log_rows = count > 16 ? 5 : count < 2 ? 0 : 32 - __clz(count - 1);
#pragma unroll 1
    for (u32 base = 0; base < count; base += 1 << log_rows) {
        const u32 at = base + (lane >> (5 - log_rows));
        const Share share = {32 >> log_rows, lane & ((32 >> log_rows) - 1), at < count};
        const u32 place = rows.places[share.there ? at : base];
        const u32 label = settle_row<T, D, GROUP>(a, minus_centre, bound, scored, gap, first + place, __uint_as_float(rows.known[place]), share);
        __syncwarp(); // all lanes of the row have read its limit
        if (share.there && share.member == 0) rows.known[place] = label;
    }
    __syncwarp();
#pragma unroll
    for (int r = 0; r < ROWS; r++) found.label[r] = rows.known[lane * ROWS + r];
    __syncwarp(); // all lanes have read their labels
    return count;
}

// The exact labels of the rows in doubt of a warp, for kernels/step/assign_registers.cu.
//
// The product filter may leave many centroids in reach, for instance where rows are far from the centre of the copies. So these rows go through
// a second filter, the differences of copies (differences.cuh). Where it leaves several centroids, reference distances decide.
//
//   first sweep    over all centroids: the least difference of each row. Centroids are in at most 32 portions. A row has a bit for each portion
//                  that can have centroids in reach
//   second sweep   over these portions: counts the centroids in reach
//   rows with several centroids in reach: once more over these portions, and reference distances
//
// A lane has several rows, so that each centroid is loaded once for all of them. If there are few rows, several lanes share rows, and each
// takes other portions.
#pragma once
#include "differences.cuh"
#include "nearest.cuh"
#include "registers_sums.cuh"

template <typename T, int D> struct Settling {
    static const int rows = sizeof(T) == 8 && D <= 4 ? 1 : 2; // of a lane
};

// How lanes share the rows of a batch.
struct Share {
    int width; // lanes that share rows: a power of two
    int member; // this lane's number among them

    __device__ __forceinline__ Share(u32 count, int rows, int lane) {
        width = 32;
        while (width > 1 && 32 / width * rows < (int)count) width >>= 1;
        member = lane & (width - 1);
    }
    __device__ __forceinline__ float least(float v) const {
#pragma unroll 1
        for (int o = width / 2; o; o >>= 1) v = fminf(v, __shfl_xor_sync(FULL_WARP, v, o));
        return v;
    }
};

// The centroids as a warp sees them. `gap`: floats between groups.
template <int D, int GROUP> struct Portions {
    const float* centroids;
    int gap, k;
    int size; // centroids of a portion: a multiple of 8, so that 8 of them are neighbours in one group

    __device__ __forceinline__ Portions(const float* centroids, int gap, int k) : centroids(centroids), gap(gap), k(k) {
        size = max(8, ((k + 31) / 32 + 7) & ~7);
    }
    __device__ __forceinline__ const float* at(int j) const {
        return centroids + j * Centroid<D>::width + (GROUP ? j / (GROUP ? GROUP : 1) * gap : 0);
    }
};

// The sum of squared differences from row r of x.
template <int D, int R> __device__ __forceinline__ float difference(const float (&x)[D][R], int r, const Centroid<D>& c) {
    float s = 0.0f;
#pragma unroll
    for (int f = 0; f < D; f++) {
        const float t = __fadd_rn(x[f][r], c.v[f]);
        s = __fmaf_rn(t, t, s);
    }
    return s;
}

// The least differences of R rows from the centroids of this lane's portions, and a bit for each portion that may have centroids in reach.
template <int D, int GROUP, int R>
__device__ __forceinline__ void sweep_differences(const Portions<D, GROUP>& p, const Share& share, const Differences& bound,
                                                  const float (&x)[D][R], const float (&far)[R], float (&least)[R], u32 (&open)[R]) {
#pragma unroll
    for (int r = 0; r < R; r++) least[r] = infinity_f(), open[r] = 0;
    u32 bit = 1u << share.member;
#pragma unroll 1
    for (int first = share.member * p.size; first < p.k; first += share.width * p.size) {
        int low[R]; // the bits of the least: differences are not negative
#pragma unroll
        for (int r = 0; r < R; r++) low[r] = 0x7fffffff;
        const int end = min(p.k, first + p.size);
        int j = first;
#pragma unroll 1
        for (; j + 8 <= end; j += 8) {
            const float* at = p.at(j);
#pragma unroll(D <= 4 ? 4 : 2)
            for (int i = 0; i < 8; i += 2) {
                Centroid<D> c, e;
                c.load(at + i * Centroid<D>::width);
                e.load(at + (i + 1) * Centroid<D>::width);
#pragma unroll
                for (int r = 0; r < R; r++)
                    low[r] = __vimin3_s32(low[r], __float_as_int(difference(x, r, c)), __float_as_int(difference(x, r, e)));
            }
        }
#pragma unroll 1
        for (; j < end; j++) { // the last centroids. What follows them is none
            Centroid<D> c;
            c.load(p.at(j));
#pragma unroll
            for (int r = 0; r < R; r++) low[r] = min(low[r], __float_as_int(difference(x, r, c)));
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
            const float s = __int_as_float(low[r]), part = Differences::rough_part(far[r]);
            if (!(s > bound.rough_reach(least[r], part))) {
                // What was found before may be out of reach now.
                open[r] = bound.rough_reach(s, part) < least[r] ? bit : open[r] | bit;
                least[r] = fminf(least[r], s);
            }
        }
        bit <<= share.width;
    }
}

// Row r of x as an array of one row.
template <typename V, int R> __device__ __forceinline__ V chosen(const V (&from)[R], int r) {
    V v = from[0];
#pragma unroll
    for (int i = 1; i < R; i++) v = r == i ? from[i] : v;
    return v;
}

// The exact label of row `row`: the smallest j of least reference distance. The centroids in reach have a difference of at most `limit`, and
// are in the portions `open` of the lanes that share the row. All lanes of the warp must call this.
template <typename T, int D, int GROUP, typename S>
__device__ __forceinline__ u32 nearest_in_reach(const Assign<T, S>& a, const Portions<D, GROUP>& p, const Share& share, const float (&x)[D][1],
                                                u64 row, float limit, u32 open) {
    u32 label = UNASSIGNED, found = 0;
    Closest closest;
#pragma unroll 1
    for (int pass = 0; pass < 2; pass++) {
        // The first pass counts. The second computes distances.
        u32 portions = open;
#pragma unroll 1
        for (int done = 0; __any_sync(FULL_WARP, portions != 0);) {
            // 8 centroids of the lane's next portion
            const int first = (__ffs(portions) - 1) * p.size + done, there = portions ? min(8, p.k - first) : 0;
            u32 in_reach = 0;
            const float* at = p.at(first);
#pragma unroll(D <= 4 ? 8 : 2)
            for (int i = 0; i < 8; i++) {
                if (i < there) {
                    Centroid<D> c;
                    c.load(at + i * Centroid<D>::width);
                    mark(in_reach, 1u << i, difference(x, 0, c), limit);
                }
            }
            if (pass == 0) {
                if (in_reach) label = min(label, (u32)(first + __ffs(in_reach) - 1));
                found += __popc(in_reach);
            } else {
#pragma unroll 1
                for (; in_reach; in_reach &= in_reach - 1) {
                    const u32 j = first + __ffs(in_reach) - 1;
                    double s = 0.0;
#pragma unroll(sizeof(T) == 4 ? D : 1)
                    for (int f = 0; f < D; f++) { // a feature that is not there adds 0 * 0, which changes nothing
                        const bool is_column = D <= 4 || f < a.rows.d;
                        const T value = is_column ? a.rows.at((u64)f * a.rows.stride + row) : (T)0;
                        const T centroid = is_column ? a.centroids[(u64)j * a.rows.d + f] : (T)0;
                        const double t = __dadd_rn((double)value, -(double)centroid);
                        s = __fma_rn(t, t, s);
                    }
                    closest.compare(j, s);
                }
            }
            __syncwarp();
            done += 8;
            if (done == p.size) done = 0, portions &= portions - 1;
        }
        if (pass == 0) {
#pragma unroll 1
            for (int o = share.width / 2; o; o >>= 1) {
                found += __shfl_xor_sync(FULL_WARP, found, o);
                label = min(label, __shfl_xor_sync(FULL_WARP, label, o));
            }
            if (found < 2) open = 0;
            if (!__any_sync(FULL_WARP, found >= 2)) return label;
        }
    }
    const u32 exact = closest.of_lanes(share.width);
    return found < 2 ? label : exact;
}

// Stores the exact label of a row, which differs from the one before. `list` gets the row.
template <typename T, typename S> __device__ __forceinline__ void store_settled(const Assign<T, S>& a, List& list, u64 row, u32 old, u32 label) {
    store_label(a.labels, row, label);
    // Rows of weight 0 have labels, but do not move.
    if (!a.rows.w || a.rows.w[row] > 0.0) list.put(atomicAdd(&list.count, 1), old, label, (u32)row);
}

// Whether `count` rows in doubt have so few reference distances that `settle_few` is faster than filters.
__device__ __forceinline__ bool are_few(u32 count, int k) { return count <= 32 && (u64)count * (u32)k <= 1024; }

// Settles the last rows in doubt of a warp by reference distances to all centroids. Here no other work hides how long it takes, and this is the
// shortest way. The whole warp must call this.
template <typename T, int D, typename S> __device__ __forceinline__ void settle_few(const Assign<T, S>& a, List& list, u32 count, int lane) {
    const Share share(count, 1, lane);
    const u32 at = lane / share.width;
    const u64 row = list.doubted(count - 1 - min(at, count - 1));
    const u32 old = load_label(a.labels, row);
    T x[D];
#pragma unroll
    for (int f = 0; f < D; f++) x[f] = D <= 4 || f < a.rows.d ? a.rows.at((u64)f * a.rows.stride + row) : (T)0;
    Closest closest;
#pragma unroll 1
    for (int j = share.member; j < a.k; j += share.width) {
        double s = 0.0;
#pragma unroll
        for (int f = 0; f < D; f++) { // a feature that is not there adds 0 * 0, which changes nothing
            const T centroid = D <= 4 || f < a.rows.d ? a.centroids[(u64)j * a.rows.d + f] : (T)0;
            const double t = __dadd_rn((double)x[f], -(double)centroid);
            s = __fma_rn(t, t, s);
        }
        closest.compare(j, s);
    }
    const u32 label = closest.of_lanes(share.width);
    __syncwarp(); // all lanes have read the list
    if (at < count && share.member == 0 && label != old) store_settled(a, list, row, old, label);
    if (lane == 0) list.doubtful = 0;
    __syncwarp();
}

// Settles a batch of the rows in doubt of a warp, `count` of which are listed: stores their exact labels, and lists those whose label changed.
// Returns how many it settled. The list must have room for them. The whole warp must call this.
// `in_shared`: the centroids in shared memory.
template <typename T, int D, int GROUP, typename S>
__device__ __forceinline__ u32 settle_rows(const Assign<T, S>& a, const T (&minus_centre)[D], const float* in_shared, List& list, u32 count,
                                           int lane) {
    const int R = Settling<T, D>::rows;
    const u32 taken = min(count, 32 * R);
    const Share share(taken, R, lane);
    // Without this the compiler computes all that is the same for every batch before the first tile, and keeps it in registers.
    int k = a.k, fit = a.centroids_in_shared;
    T scale = a.scale;
    asm volatile("" : "+r"(k), "+r"(fit));
    if constexpr (sizeof(T) == 4) asm volatile("" : "+f"(scale));
    else asm volatile("" : "+d"(scale));
    const Portions<D, GROUP> portions(fit ? in_shared : a.copies, fit ? 4 : 0, k);
    const Differences bound(D, (double)scale);
    u32 row[R], there = 0;
    float x[D][R], far[R], least[R];
    u32 open[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
        const u32 at = r * (32 / share.width) + lane / share.width;
        if (at < taken) there |= 1u << r;
        row[r] = list.doubted(count - 1 - min(at, taken - 1));
        float square = 0.0f;
#pragma unroll
        for (int f = 0; f < D; f++) {
            const bool is_column = D <= 4 || f < a.rows.d;
            x[f][r] = is_column ? centred_copy(a.rows.at((u64)f * a.rows.stride + row[r]), minus_centre[f], scale) : 0.0f;
            square = __fmaf_rn(x[f][r], x[f][r], square);
        }
        far[r] = a.bound->ceiling.slope < infinity_f() ? bound.far(square) : infinity_f();
    }
    __syncwarp(); // all lanes have read the list
    sweep_differences<D, GROUP, R>(portions, share, bound, x, far, least, open);
#pragma unroll 1
    for (int r = 0; r < R; r++) {
        float one[D][1];
#pragma unroll
        for (int f = 0; f < D; f++) one[f][0] = chosen(x[f], r);
        const bool is_row = there >> r & 1;
        const u64 at = chosen(row, r);
        const float limit = bound.reach(share.least(chosen(least, r)), chosen(far, r));
        const u32 label = nearest_in_reach(a, portions, share, one, at, limit, is_row ? chosen(open, r) : 0);
        if (is_row && share.member == 0) {
            const u32 old = load_label(a.labels, at);
            if (label != old) store_settled(a, list, at, old, label);
        }
    }
    if (lane == 0) list.doubtful = count - taken;
    __syncwarp();
    return taken;
}

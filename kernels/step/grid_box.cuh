// The test of a centroid against the box of some rows: `Farther` of src/bounds/grid.rs.
#pragma once
#include "../common/grid.cuh"

// The box of some rows.
template <int D> struct Box {
    double low[D], high[D];
};

// A centroid and its rounded reference distance from the farthest point of a box, or more.
template <int D> struct Seen {
    double c[D], far;

    Seen() = default;
    template <typename T> __device__ __forceinline__ Seen(const T* centroid, const Box<D>& box) {
        far = 0.0;
#pragma unroll
        for (int f = 0; f < D; f++) {
            c[f] = (double)centroid[f];
            const double t = fmax(__dadd_rn(c[f], -box.low[f]), __dadd_rn(box.high[f], -c[f]));
            far = __fma_rn(t, t, far);
        }
    }
    // Whether the other centroid is nearer to every row of the box, by rounded reference distances: `is_farther` of src/bounds/grid.rs.
    __device__ __forceinline__ bool is_farther(const Seen& other, const Box<D>& box, double relative, double underflow) const {
        double own = 0.0, others = 0.0;
#pragma unroll
        for (int f = 0; f < D; f++) {
            const double corner = c[f] > other.c[f] ? box.high[f] : box.low[f];
            const double t = __dadd_rn(corner, -c[f]), s = __dadd_rn(corner, -other.c[f]);
            own = __fma_rn(t, t, own), others = __fma_rn(s, s, others);
        }
        const double slack = __fma_rn(relative, __dadd_rn(__dadd_rn(own, others), other.far), underflow);
        return __dadd_rn(own, -others) > slack; // what is not finite is never farther
    }
};

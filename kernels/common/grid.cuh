// Cells of rows: boxes of rows that are near each other, for kernels/step/grid_*.cu and assign_grid.cu.
//
//   a tree     splits space into cells: 2^levels of them. Node i has the children 2 i and 2 i + 1; node 1 is the root; node `cells` + c is cell c. A
//              node is a float32 whose last two bits are the number of a feature. Rows whose value there is below the float go left
//   a place    a row's number in the order of cells. A cell's first place is a multiple of 4, so some places have no row
//   a tile     up to 128 places of one cell
//   a list     the centroids that can be nearest to a row of a cell, in ascending order
#pragma once
#include "labels.cuh"

#define MOST_CELLS 65536
// Rows that a part of the tree is made from.
#define POINTS 2048
// Places of a tile.
#define CELL_TILE 128
// Words of 16 bits of a cell's list: the count and the centroids.
#define CELL_LIST 64
// Instead of a count: the rows of the cell have the only centroid of the list as their label already.
#define LIST_SETTLED 0x8000u
// With a count: there are more centroids. They are behind the list of the cell's parent, from the place on that takes the place of the first centroid.
#define LIST_LONG 0x2000u
// Instead of a count: there are even more. The list of the cell's parent is to be used.
#define LIST_OF_PARENT 0x4000u
// The most parents. A parent has neighbouring cells, and its list is made before theirs.
#define MOST_PARENTS 512
#define NO_ROW 0xffffffffu

struct CellTile {
    u32 first; // place
    u32 cell_and_count; // the cell in the lower half
};

// Numbers whose order as unsigned integers is that of floating-point numbers, and back.
template <typename T> struct OrderedOf;
template <> struct OrderedOf<float> {
    typedef u32 type;
};
template <> struct OrderedOf<double> {
    typedef u64 type;
};
template <typename T> using Ordered = typename OrderedOf<T>::type;
__device__ __forceinline__ u32 ordered(float v) {
    const u32 bits = __float_as_uint(v);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ u64 ordered(double v) {
    const u64 bits = (u64)__double_as_longlong(v);
    return bits >> 63 ? ~bits : bits | 0x8000000000000000ull;
}
__device__ __forceinline__ float unordered(u32 bits) { return __uint_as_float(bits >> 31 ? bits & 0x7fffffffu : ~bits); }
__device__ __forceinline__ double unordered(u64 bits) {
    return __longlong_as_double((i64)(bits >> 63 ? bits & 0x7fffffffffffffffull : ~bits));
}

// A value as the tree sees it: finite.
__device__ __forceinline__ float in_tree(float v) { return v; }
__device__ __forceinline__ float in_tree(double v) { return fminf(fmaxf((float)v, -3e38f), 3e38f); }

// Value f of an array, without an address: all values stay in registers.
template <int D> __device__ __forceinline__ float feature_of(const float (&x)[D], u32 f) {
    if constexpr (D == 1) return x[0];
    else if constexpr (D == 2) return f & 1 ? x[1] : x[0];
    else if constexpr (D == 3) return f & 2 ? x[2] : f & 1 ? x[1] : x[0];
    else return f & 2 ? (f & 1 ? x[3] : x[2]) : f & 1 ? x[1] : x[0];
}

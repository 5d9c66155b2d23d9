// The centroids of one feature in ascending order: kernels/step/grid_sorted.cu makes them, assign_sorted.cu reads them.
#pragma once
#include "../common/grid.cuh"

// The head of a cell: all of its rows have this label; they have it already.
#define SORTED_ONE 0x40000000u
#define SORTED_SETTLED 0x80000000u

// What is known of a cell.
struct SortedRange {
    u32 head; // a label with these flags, or 0
    u32 from, to; // a row's value lies between the centroids before and at one of these places
    u32 unused;
};

// The first of the places from `low` to `high` whose value is not less than v, or `high`.
template <typename T> __device__ __forceinline__ u32 first_from(const T* values, u32 low, u32 high, T v) {
    while (low < high) {
        const u32 middle = (low + high) / 2;
        if (values[middle] < v) low = middle + 1;
        else high = middle;
    }
    return low;
}

// grid_labels: labels from the rows to their places, and back, for assign_grid.
//
// Used when: others have changed the labels of the rows, or want to read them.
// Memory:    a label of a row is somewhere, so each costs 32 bytes.
#include "../common/grid.cuh"

#define COPY_THREADS 256

struct CellLabels {
    Labels labels; // of the rows
    Labels own; // of the places
    const u32* row_of_place;
    u64 stride;
};

__device__ __forceinline__ void take_labels(const CellLabels& a) {
    for (u64 place = global_thread(); place < a.stride; place += all_threads()) {
        const u32 row = a.row_of_place[place];
        store_label(a.own, place, row == NO_ROW ? UNASSIGNED : load_label(a.labels, row));
    }
}
__device__ __forceinline__ void give_labels(const CellLabels& a) {
    for (u64 place = global_thread(); place < a.stride; place += all_threads()) {
        const u32 row = a.row_of_place[place];
        if (row != NO_ROW) store_label(a.labels, row, load_label(a.own, place));
    }
}

extern "C" __global__ void __launch_bounds__(COPY_THREADS) grid_take_labels(const __grid_constant__ CellLabels a) { take_labels(a); }
extern "C" __global__ void __launch_bounds__(COPY_THREADS) grid_give_labels(const __grid_constant__ CellLabels a) { give_labels(a); }

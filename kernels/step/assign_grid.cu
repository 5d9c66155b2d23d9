// assign_grid: labels and sums in one pass over rows that are in the order of their cells. Only the centroids of a cell's list are looked at.
//
// Source:    the filtering algorithm of Kanungo et al. 2002 (Hall & Hart 2004 have nearest-centroid search by a tree on GPUs).
// Used when: up to 4 features and enough clusters (src/backend/cuda/step/grid.rs).
// Tile:      up to 128 rows of one cell: a warp has a tile, a lane 4 rows (one 16-byte load a float32 column). All lanes look at the same centroids.
// Memory:    the rows at their places, once. Asynchronous copies bring the next tile while the warp works on one; a cell with one centroid in its list needs its labels only, and nothing if its rows had this label before.
// Precision: float32 rows: differences in float32, then reference distances where a second centroid is in reach. float64 rows: reference
//            distances at once.
//
//   for each tile that is not settled:
//     the list of its cell: the nearest centroid of each row
//     writes the labels of rows that changed. If these are few, it lists them, as assign_registers does. If they are many, the warp first adds up those
//     that go from one cluster to one other
#include "grid_pass.cuh"

template <typename T, typename S = T> struct AssignCells {
    Assign<T, S> assign; // rows and labels are those of the places
    const CellTile* tiles;
    const u32* count; // of tiles
    const u16* lists; // (cells, CELL_LIST)
    const u16* parents; // (parents, k): the list of each parent, then long lists of its cells
    const u32* parent_counts;
    u32 parent_cells;
    float slope, offset; // of the limit: `Difference` of src/bounds.rs
    u32 unused;
};

// What the lanes of a warp see of the list of a tile.
struct ListSeen {
    u32 word; // of this lane: two entries
    u32 count;
    const u16* others; // a long list or that of the parent, or null

    __device__ __forceinline__ u32 at(u32 i) const {
        if (others) return others[i];
        return __shfl_sync(FULL_WARP, word, (i + 1) / 2) >> ((i + 1) % 2 * 16) & 0xffff;
    }
};

// The nearest centroid of a list to each row, by reference distances. All lanes of the warp must call this.
template <int D, int R, typename T>
__device__ __forceinline__ void nearest_exactly(const T* centroids, const ListSeen& list, const double (&x)[D][R], u32 (&label)[R]) {
    Closest closest[R];
    KEEP_LOOP for (u32 i = 0; i < list.count; i++) {
        const u32 j = list.at(i);
        double s[R];
        UNROLL for (int r = 0; r < R; r++) s[r] = 0.0;
        UNROLL for (int f = 0; f < D; f++) {
            const double c = (double)__ldg(centroids + (u64)j * D + f);
            UNROLL for (int r = 0; r < R; r++) {
                const double t = __dadd_rn(x[f][r], -c);
                s[r] = __fma_rn(t, t, s[r]);
            }
        }
        UNROLL for (int r = 0; r < R; r++) closest[r].compare(j, s[r]);
    }
    UNROLL for (int r = 0; r < R; r++) label[r] = closest[r].label;
}

// Finds the labels of a lane's rows. Returns how many of the lane's rows were in doubt. `shared`: the centroids, Vector<D>::width values each, or null.
template <int D, typename S>
__device__ __forceinline__ u32 nearest_of_list(const AssignCells<float, S>& c, const float* shared, const ListSeen& list, const float (&x)[D][ROWS],
                                               u32 valid, u32 (&label)[ROWS]) {
    const Assign<float, S>& a = c.assign;
    const int W = Vector<D>::width;
    float best[ROWS], second[ROWS];
    UNROLL for (int r = 0; r < ROWS; r++) best[r] = second[r] = infinity_f(), label[r] = 0;
    KEEP_LOOP for (u32 i = 0; i < list.count; i++) {
        const u32 j = list.at(i);
        float centroid[W];
        if (shared) {
            if constexpr (W == 4) {
                const float4 v = *(const float4*)(shared + j * W);
                centroid[0] = v.x, centroid[1] = v.y, centroid[2] = v.z, centroid[3] = v.w;
            } else if constexpr (W == 2) {
                const float2 v = *(const float2*)(shared + j * W);
                centroid[0] = v.x, centroid[1] = v.y;
            } else {
                centroid[0] = shared[j];
            }
        } else {
            const float* const from = a.centroids + (u64)j * D;
            if constexpr (D == 4) {
                const float4 v = __ldg((const float4*)from);
                centroid[0] = v.x, centroid[1] = v.y, centroid[2] = v.z, centroid[3] = v.w;
            } else if constexpr (D == 2) {
                const float2 v = __ldg((const float2*)from);
                centroid[0] = v.x, centroid[1] = v.y;
            } else {
                UNROLL for (int f = 0; f < D; f++) centroid[f] = __ldg(from + f);
            }
        }
        UNROLL for (int r = 0; r < ROWS; r++) {
            float s = 0.0f;
            UNROLL for (int f = 0; f < D; f++) {
                const float t = __fadd_rn(x[f][r], -centroid[f]);
                s = f == 0 ? __fmul_rn(t, t) : __fmaf_rn(t, t, s);
            }
            second[r] = fminf(second[r], fmaxf(best[r], s));
            label[r] = s < best[r] ? j : label[r];
            best[r] = fminf(best[r], s);
        }
    }
    u32 doubt = 0;
    UNROLL for (int r = 0; r < ROWS; r++) doubt |= second[r] > __fmaf_ru(best[r], c.slope, c.offset) ? 0 : 1u << r;
    doubt &= valid;
    const u32 in_doubt = __popc(doubt);
    KEEP_LOOP while (__any_sync(FULL_WARP, doubt != 0)) {
        // Each lane's next row in doubt.
        const int r = __ffs(doubt) - 1;
        double one[D][1];
        UNROLL for (int f = 0; f < D; f++) one[f][0] = (double)pick(x[f], r);
        u32 found[1];
        nearest_exactly<D, 1>(a.centroids, list, one, found);
        UNROLL for (int i = 0; i < ROWS; i++) label[i] = i == r ? found[0] : label[i];
        doubt &= doubt - 1;
    }
    return in_doubt;
}
template <int D>
__device__ __forceinline__ u32 nearest_of_list(const AssignCells<double>& c, const double*, const ListSeen& list, const double (&x)[D][ROWS], u32 valid,
                                               u32 (&label)[ROWS]) {
    nearest_exactly<D, ROWS>(c.assign.centroids, list, x, label);
    return __popc(valid);
}

// What label_cells asks.
template <typename T, typename S> __device__ __forceinline__ u32 settled_head(const AssignCells<T, S>&) { return LIST_SETTLED; }
template <typename T, typename S> __device__ __forceinline__ u32 head_of(const AssignCells<T, S>& c, u32 cell) {
    return *(const u32*)(c.lists + (u64)cell * CELL_LIST);
}
template <typename T, typename S> __device__ __forceinline__ bool is_settled(const AssignCells<T, S>&, u32 head) { return head & LIST_SETTLED; }
template <typename T, typename S> __device__ __forceinline__ bool has_one(const AssignCells<T, S>&, u32 head) { return (head & 0xffff) == 1; }
template <typename T, typename S> __device__ __forceinline__ u32 only_label(const AssignCells<T, S>&, u32 head) { return head >> 16; }
template <typename T, typename S>
__device__ __forceinline__ u32 ask_ahead(const AssignCells<T, S>& c, u32 head, u32 cell, int lane, u32 word) {
    const u32 count = head & 0xffff;
    return count > 1 && count < CELL_LIST ? ((const u32*)c.lists)[(u64)cell * (CELL_LIST / 2) + lane] : word;
}
template <int D, typename T, typename S>
__device__ __forceinline__ u32 find_labels(const AssignCells<T, S>& c, const T* shared, u32 head, u32 word, u32 cell, const T (&x)[D][ROWS],
                                           u32 valid, u32 count, u32 (&label)[ROWS], u64& scores) {
    ListSeen list = {word, head & 0xffff, nullptr};
    if (list.count >= CELL_LIST) {
        list.others = c.parents + (u64)(cell / c.parent_cells) * (u32)c.assign.k;
        if (list.count == LIST_OF_PARENT) list.count = c.parent_counts[cell / c.parent_cells];
        else list.others += head >> 16, list.count -= LIST_LONG;
    }
    scores += (u64)list.count * count;
    return nearest_of_list<D>(c, shared, list, x, valid, label);
}

#define KERNEL(T, S, D, BLOCKS, NAME)                                                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) NAME(const __grid_constant__ AssignCells<T, S> a) { label_cells<D, T, S>(a); }
#define ALL(D)                                                                                                                                \
    KERNEL(float, float, D, D == 1 ? 2 : 3, assign_grid_f32_d##D)                                                                                         \
    KERNEL(double, double, D, 2, assign_grid_f64_d##D)                                                                                       \
    KERNEL(float, Half, D, D == 1 ? 2 : 3, assign_grid_f16_d##D)
ALL(1)
ALL(2)
ALL(3)
ALL(4)

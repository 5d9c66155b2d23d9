// assign_cells: labels and sums in one pass over rows that are in the order of their cells. Only the centroids of a cell's list are looked at.
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
#include "../common/cells.cuh"
#include "registers_sums.cuh"

#define UNROLL _Pragma("unroll")
#define KEEP_LOOP _Pragma("unroll 1")

template <typename T, typename S = T> struct AssignCells {
    Assign<T, S> assign; // rows and labels are those of the places
    const CellTile* tiles;
    const u32* count; // of tiles
    const u16* lists; // (cells, CELL_LIST)
    const u16* parents; // (parents, k)
    const u32* parent_counts;
    u32 parent_cells;
    float slope, offset; // of the limit: `Difference` of src/bounds.rs
    u32 unused;
};

// Ranges of tiles of a block.
#define RANGES 8
// Rows of a tile that changed from which on the warp adds them up.
#define MANY 80

template <int D> struct Vector {
    static const int width = D == 3 ? 4 : D;
};

// What the lanes of a warp see of the list of a tile.
struct ListSeen {
    u32 word; // of this lane: two entries
    u32 count;
    const u16* others; // the list of the parent, or null

    __device__ __forceinline__ u32 at(u32 i) const {
        if (others) return others[i];
        return __shfl_sync(FULL_WARP, word, (i + 1) / 2) >> ((i + 1) % 2 * 16) & 0xffff;
    }
};

// The rows of a tile that has arrived.
template <int D, typename T, typename S>
__device__ __forceinline__ void take_rows(const Rows<T, S>& rows, const Arriving<T, S, D>& from, T (&x)[D][ROWS]) {
    if constexpr (is_half<S>) {
        from.take_all(rows, x);
    } else {
        UNROLL for (int f = 0; f < D; f++) from.take(rows, f, x[f]);
    }
}
// The rows of a lane in memory, from a place that is a multiple of 4.
template <int D, typename T, typename S> __device__ __forceinline__ void load_rows(const Rows<T, S>& rows, u32 place, T (&x)[D][ROWS]) {
    UNROLL for (int f = 0; f < D; f++) {
        const u64 at = (u64)f * rows.stride + place;
        if constexpr (is_half<S>) {
            half_values(*(const uint2*)(rows.x + at), rows.bfloat16, x[f]);
        } else if constexpr (sizeof(T) == 4) {
            const float4 v = *(const float4*)(rows.x + at);
            x[f][0] = v.x, x[f][1] = v.y, x[f][2] = v.z, x[f][3] = v.w;
        } else {
            const double2 v = *(const double2*)(rows.x + at), w = *(const double2*)(rows.x + at + 2);
            x[f][0] = v.x, x[f][1] = v.y, x[f][2] = w.x, x[f][3] = w.y;
        }
    }
}

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
    const u32 contested = __popc(doubt);
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
    return contested;
}
template <int D>
__device__ __forceinline__ u32 nearest_of_list(const AssignCells<double>& c, const double*, const ListSeen& list, const double (&x)[D][ROWS], u32 valid,
                                               u32 (&label)[ROWS]) {
    nearest_exactly<D, ROWS>(c.assign.centroids, list, x, label);
    return __popc(valid);
}

// The sum of all lanes, of numbers below 2^52.
__device__ __forceinline__ i64 sum_of_warp(i64 v) {
    const u32 low = __reduce_add_sync(FULL_WARP, (u32)v & 0x7ffffffu);
    const int high = __reduce_add_sync(FULL_WARP, (int)(v >> 27));
    return ((i64)high << 27) + (i64)low;
}

// Moves the rows of a tile that changed, in the sums: rows that go from one cluster to one other together.
template <int D, typename T, typename S>
__device__ __forceinline__ void move_together(const Assign<T, S>& a, const Factors* factors, const Cells& cells, const T (&x)[D][ROWS],
                                              const Four& old, const u32 (&label)[ROWS], u32 differs, int lane) {
    const Sums& s = a.sums;
    const bool two = s.limbs == 2;
    KEEP_LOOP while (true) {
        const u32 lanes = __ballot_sync(FULL_WARP, differs != 0);
        if (!lanes) break;
        const int leader = __ffs(lanes) - 1, r = max(__ffs(differs) - 1, 0);
        const u32 from = __shfl_sync(FULL_WARP, old.label(a.labels.bytes, r), leader), to = __shfl_sync(FULL_WARP, pick(label, r), leader);
        u32 mine = 0;
        UNROLL for (int i = 0; i < ROWS; i++)
            mine |= (differs >> i & 1) && label[i] == to && old.label(a.labels.bytes, i) == from ? 1u << i : 0;
        differs &= ~mine;
        const bool leaves = from != UNASSIGNED;
        Pair own = {0, 0}; // of the feature of this lane
        UNROLL for (int f = 0; f < D; f++) {
            Pair sum = {0, 0};
            UNROLL for (int i = 0; i < ROWS; i++) {
                const double v = __dmul_rn(__dmul_rn((double)x[f][i], factors[f].first), factors[f].second);
                Pair p = {0, 0};
                if (two) p = split(v, factors[f].low);
                else p.hi = round_to_integer(v);
                if (mine >> i & 1) sum.hi += p.hi, sum.lo += p.lo;
            }
            sum.hi = sum_of_warp(sum.hi);
            if (two) sum.lo = sum_of_warp(sum.lo);
            if (lane == f) own = sum;
        }
        const u32 into = (to * s.columns + lane) * s.limbs, out = (from * s.columns + lane) * s.limbs;
        if (lane < D && cells.table.copies) {
            table_move(cells.table, into, out, leaves, (threadIdx.x / 32) & (cells.table.copies - 1), own, two);
        } else if (lane < D) {
            add_pending(s.pending + (u64)into * 2, own.hi);
            if (two) add_pending(s.pending + (u64)into * 2 + 2, own.lo);
            if (leaves) {
                add_pending(s.pending + (u64)out * 2, -own.hi);
                if (two) add_pending(s.pending + (u64)out * 2 + 2, -own.lo);
            }
        }
        const int count = __reduce_add_sync(FULL_WARP, __popc(mine));
        if (lane == 0 && cells.table.copies) {
            atomicAdd(&cells.rows[to], count);
            if (leaves) atomicSub(&cells.rows[from], count);
        } else if (lane == 0) {
            atomicAdd((u64*)&s.pending_rows[to], (u64)count);
            if (leaves) atomicAdd((u64*)&s.pending_rows[from], (u64)-(i64)count);
        }
    }
    __syncwarp();
}

template <int D, typename T, typename S> __device__ __forceinline__ void assign_cells(const AssignCells<T, S>& c) {
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ List lists[WARPS];
    __shared__ Entrance entrance;
    __shared__ u32 block_changed, block_contested, taken;
    __shared__ Factors factors[D];
    const Assign<T, S>& a = c.assign;
    wait_for_kernel_before();
    if (a.control->stop) return;
    const int W = Vector<D>::width, bytes = a.labels.bytes;
    const Arriving<T, S, D> next = {shared, shared + Arriving<T, S, D>::bytes(0)};
    unsigned char* const after = shared + Arriving<T, S, D>::bytes(bytes);
    T* const centroids = a.centroids_in_shared ? (T*)after : nullptr;
    const Table table = {(u32*)(after + (a.centroids_in_shared ? (u64)a.k * W * sizeof(T) : 0)), a.sums.k * a.sums.columns * a.sums.limbs,
                         a.table_copies};
    const Cells cells = {table, (int*)(table.words + (size_t)table.cells * 2 * table.copies)};
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    List& own = lists[warp];
    if (lane == 0) own.count = own.doubtful = 0;
    if (threadIdx.x < D) factors[threadIdx.x] = a.factors[threadIdx.x];
    if (threadIdx.x == 0) {
        entrance = {cells, {0, 0, 0}};
        block_changed = block_contested = taken = 0;
    }
    if (table.copies) {
        table_clear(table);
        KEEP_LOOP for (int i = threadIdx.x; i < a.sums.k; i += THREADS) cells.rows[i] = 0;
    }
    if (centroids)
        KEEP_LOOP for (int i = threadIdx.x; i < a.k * W; i += THREADS) centroids[i] = i % W < D ? a.centroids[i / W * D + i % W] : (T)0;
    __syncthreads();
    // A block has some ranges of neighbouring tiles, so it adds to few clusters. Its warps take runs of these tiles, each at its own pace.
    const u32 tiles = *c.count, range = (tiles + RANGES * gridDim.x - 1) / (RANGES * gridDim.x);
    const u32 run = 1u << min(5, 31 - __clz(max(1u, range * RANGES / (8 * WARPS)))), runs = (range + run - 1) / run;
    u32 changed = 0, contested = 0, listed = 0;
    u64 scores = 0; // of the warp
    KEEP_LOOP while (true) {
        u32 own_run = 0;
        if (lane == 0) own_run = atomicAdd(&taken, 1);
        own_run = __shfl_sync(FULL_WARP, own_run, 0);
        if (own_run >= RANGES * runs) break;
        const u32 in_range = own_run % runs * run, begin = (own_run / runs * gridDim.x + blockIdx.x) * range + in_range;
        const u32 length = min(run, range - in_range);
        CellTile tile = {0, 0};
        u32 head = LIST_SETTLED;
        if (lane < length && begin + lane < tiles) {
            tile = c.tiles[begin + lane];
            head = *(const u32*)(c.lists + (u64)(tile.cell_and_count & 0xffff) * CELL_LIST);
        }
        // The next tile arrives while the warp works on one.
        u32 todo = __ballot_sync(FULL_WARP, !(head & LIST_SETTLED)), word_ahead = 0;
        auto ask = [&]() {
            const int i = __ffs(todo) - 1;
            const u32 first = __shfl_sync(FULL_WARP, tile.first, i), cell_and_count = __shfl_sync(FULL_WARP, tile.cell_and_count, i);
            const u32 count = __shfl_sync(FULL_WARP, head, i) & 0xffff;
            // Lanes without rows ask for those of the first lane.
            const u32 from = lane * ROWS < cell_and_count >> 16 ? first + lane * ROWS : first;
            if (count == 1) copy_labels(next.labels + threadIdx.x * 4 * bytes, (const u8*)a.labels.at + (u64)from * (u32)bytes, bytes);
            else next.ask(a.rows, a.labels, from);
            if (count > 1 && count < CELL_LIST) word_ahead = ((const u32*)c.lists)[(u64)(cell_and_count & 0xffff) * (CELL_LIST / 2) + lane];
        };
        if (todo) ask();
        KEEP_LOOP while (todo) {
            const int i = __ffs(todo) - 1;
            const u32 first = __shfl_sync(FULL_WARP, tile.first, i), cell_and_count = __shfl_sync(FULL_WARP, tile.cell_and_count, i);
            const u32 words = __shfl_sync(FULL_WARP, head, i), cell = cell_and_count & 0xffff, count = cell_and_count >> 16;
            const u32 place = first + lane * ROWS, there = count - min(count, lane * ROWS), valid = (1u << min(there, (u32)ROWS)) - 1;
            ListSeen list = {word_ahead, words & 0xffff, nullptr};
            T x[D][ROWS];
            u32 label[ROWS];
            todo &= todo - 1;
            asm volatile("cp.async.wait_all;" ::: "memory");
            const Four old = next.take_labels(bytes);
            if (list.count != 1) take_rows<D>(a.rows, next, x);
            if (todo) ask();
            if (list.count != 1) {
                if (list.count == LIST_OF_PARENT) {
                    list.others = c.parents + (u64)(cell / c.parent_cells) * (u32)a.k;
                    list.count = c.parent_counts[cell / c.parent_cells];
                }
                contested += nearest_of_list<D>(c, centroids, list, x, valid, label);
                scores += (u64)list.count * count;
            } else {
                UNROLL for (int r = 0; r < ROWS; r++) label[r] = words >> 16;
            }
            const Four now(bytes, label);
            u32 differs = now.differs(old, bytes) & valid;
            if (!__any_sync(FULL_WARP, differs != 0)) continue;
            const u32 many = __reduce_add_sync(FULL_WARP, __popc(differs));
            if (many >= MANY && !a.rows.w) {
                if (differs) now.store(bytes, (u8*)a.labels.at + (u64)place * (u32)bytes);
                if (list.count == 1) load_rows<D>(a.rows, valid ? place : first, x);
                if (table.copies) enter<true>(entrance, many, cells, a.sums, lane);
                move_together<D>(a, factors, cells, x, old, label, differs, lane);
                changed += many;
                continue;
            }
            list_changed(a, own, now, old, label, valid, place);
            __syncwarp();
            listed = own.count;
            if (listed >= ENOUGH) {
                move_listed<true, true>(a, factors, entrance, cells, own, listed, lane);
                changed += listed, listed = 0;
            }
        }
    }
    if (listed) {
        move_listed<true, true>(a, factors, entrance, cells, own, listed, lane);
        changed += listed;
    }
    contested = __reduce_add_sync(FULL_WARP, contested);
    if (lane == 0 && changed) atomicAdd(&block_changed, changed);
    if (lane == 0 && contested) atomicAdd(&block_contested, contested);
    if (lane == 0 && scores) atomicAdd(&a.control->scores, scores);
    __syncthreads();
    if (a.table_copies && entrance.gate.announced) flush_table(table, cells.rows, a.sums);
    if (threadIdx.x == 0) {
        if (block_changed) atomicAdd(&a.control->changed, (u64)block_changed);
        if (block_contested) atomicAdd(&a.control->contested, block_contested);
    }
}

#define KERNEL(T, S, D, BLOCKS, NAME)                                                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) NAME(const __grid_constant__ AssignCells<T, S> a) { assign_cells<D>(a); }
#define ALL(D)                                                                                                                                \
    KERNEL(float, float, D, D == 1 ? 2 : 3, assign_cells_f32_d##D)                                                                                         \
    KERNEL(double, double, D, 2, assign_cells_f64_d##D)                                                                                       \
    KERNEL(float, Half, D, D == 1 ? 2 : 3, assign_cells_f16_d##D)
ALL(1)
ALL(2)
ALL(3)
ALL(4)

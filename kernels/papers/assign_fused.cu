// assign_fused: labels and sums in one pass over the rows, without atomics inside a block.
//
// Source:    Lutz, Bress, Rabl, Zeuch and Markl, "Efficient and scalable k-means on GPUs", 2018, section 4. A pass has two halves,
//            and shared memory transposes the rows between them. First each thread takes a row and finds its label. After a barrier
//            each thread takes a feature and adds the rows of the block to its own k sums (partitioned features, section 3.1).
//            Row counts: partitioned private (section 3.2), each thread counts its own rows.
// Used when: strategy `lutz-fused`.
// Tile:      one row a thread. A block has 32 to 256 threads, as many as shared memory allows. If there are fewer columns than
//            threads, several rows are added at a time. If there are more, a thread has several columns.
// Memory:    shared: (k, limbs, slots) sums of 8 bytes, (k, threads) counters of 4 bytes, and the tile. These limit k and d
//            together, even with few threads a block. Centroids come through the first-level cache.
// Precision: a float32 product filter (d roundings). The warp that finds rows in doubt settles them at once.
#include "systems.cuh"

template <typename T, int D> __device__ __forceinline__ void assign_fused(const SystemAssign<T>& system) {
    extern __shared__ __align__(16) i64 accumulators[];
    const Assign<T>& a = system.assign;
    if (a.control->stop) return;
    const Sums& s = a.sums;
    const u32 tid = threadIdx.x, threads = blockDim.x, slots = system.slots, points = system.points;
    const int d = a.rows.d;
    // Shared memory: sums, then the tile (each column padded by one value), then labels and counters.
    T* tile_values = (T*)(accumulators + (u64)s.k * s.limbs * slots);
    u32* labels = (u32*)(tile_values + (u64)d * (threads + 1) + ((u64)d * (threads + 1) & 1));
    u32* mass = labels + threads;
    clear_slots(accumulators, s, slots);
    for (int j = 0; j < s.k; j++) mass[j * threads + tid] = 0;
    __syncthreads();
    const Bound bound = *a.bound;
    const u32 tiles = (a.rows.n + threads - 1) / threads;
    u32 changed = 0, added = 0;
    T* mine = tile_values + tid;
#pragma unroll 1
    for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const u64 start = (u64)tile * threads, place = start + tid, row = min(place, (u64)a.rows.n - 1);
        const bool inside = place < a.rows.n;
        for (int f = 0; f < d; f++) mine[f * (threads + 1)] = a.rows.x[(u64)f * a.rows.stride + row];
        Near near;
        near.start();
        const float square = sweep_row<D>(a.copies, a.half_squares, a.k, d, system.width, near, [&](int f) {
            return centred_copy(mine[f * (threads + 1)], __ldg(&a.minus_centre[f]), a.scale);
        });
        u32 label = near.index;
        settle_at_once(a, place - (tid & 31), inside && near.doubt(bound, square, a.slacks), label);
        const bool adds = inside && counts(a.rows, row);
        if (inside) store_label(a.next, row, label);
        if (adds) {
            changed += label != load_label(a.labels, row);
            mass[label * threads + tid]++;
        }
        labels[tid] = adds ? label : UNASSIGNED;
        __syncthreads();
        // Until here a thread had a row. From here on it has columns.
#pragma unroll 1
        for (u32 slot = tid; slot < slots; slot += threads) {
            const int c = (int)(slot / points);
            if (c >= s.columns) break;
            Factors factors = {0.0, 0.0, 0.0};
            if (c < d) factors = a.factors[c];
#pragma unroll 1
            for (u32 i = slot & (points - 1); i < threads; i += points) {
                const u32 to = labels[i];
                if (to == UNASSIGNED) continue;
                Pair p;
                if (c < d) {
                    double x = (double)tile_values[c * (threads + 1) + i];
                    if (a.rows.w) x = __dmul_rn(a.rows.w[start + i], x);
                    p = limbs_of(x, factors);
                } else {
                    p = mass_limbs(a.rows.w[start + i], a.mass_to_integer);
                }
                add_slot(accumulators, s, slots, slot, to, p);
            }
        }
        added += threads;
        __syncthreads();
        if (added + threads > CELL_ROWS || tile + gridDim.x >= tiles) {
            added = 0;
            flush_slots(accumulators, s, slots, points, 0, s.columns);
            __syncthreads();
        }
    }
    for (int j = tid / 32; j < s.k; j += threads / 32) {
        u64 rows = 0;
        for (u32 i = tid & 31; i < threads; i += 32) rows += mass[j * threads + i];
        rows = warp_sum(rows);
        if ((tid & 31) == 0 && rows) atomicAdd((u64*)&s.pending_rows[j], rows);
    }
    add_count(&a.control->changed, changed);
}

#define KERNEL(T, NAME, D)                                                                                            \
    extern "C" __global__ void __launch_bounds__(256, 1) assign_fused_##NAME(const __grid_constant__ SystemAssign<T> a) { \
        assign_fused<T, D>(a);                                                                                        \
    }
KERNEL(float, f32_d4, 4)
KERNEL(float, f32_d8, 8)
KERNEL(float, f32_d16, 16)
KERNEL(float, f32_any, 0)
KERNEL(double, f64_d4, 4)
KERNEL(double, f64_d8, 8)
KERNEL(double, f64_d16, 16)
KERNEL(double, f64_any, 0)

// The sums of kernels/step/assign_columns.cu. A warp lists the rows whose label changed, and moves each contribution from one cluster to the
// other in the block's table while their columns are still in the second-level cache.
#pragma once
#include "columns_stream.cuh"
#include "gate.cuh"

// The list is emptied once it has this many rows. There must still be room for all rows of one tile.
#define ENOUGH 32
#define LIST (ENOUGH - 1 + TILE)
// Rows that may move through a block's table before it must be flushed: an int64 is sure to hold 4,096 values of one limb.
#define CAPACITY (4096 - (WARPS - 1) * LIST)

// The rows of one warp whose label changed.
struct List {
    u32 row[LIST];
    u8 from[LIST], to[LIST]; // `NOWHERE`: the row had no label
    u32 count;
};
#define NOWHERE 0xffu

// The table of a block: the low words of all cells, then the high words, `copies` of each. The cells of one limb of one column are
// contiguous, and their number is odd. So neither the clusters of one column nor the columns of one cluster share a bank.
struct Cells {
    u32* words;
    int* rows; // rows that came to each cluster, minus rows that left it
    u32 plane; // words from a low word to its high word
    u32 across; // words from a limb of a column to the next
    int copies; // 0: sums are added directly to device memory

    Cells() = default;
    template <typename T> __device__ __forceinline__ Cells(const Assign<T>& a, u32* shared) : copies(a.table_copies) {
        across = (a.sums.k | 1) * (u32)copies;
        plane = (u32)(a.sums.columns * a.sums.limbs) * across;
        rows = (int*)shared;
        words = shared + a.k_padded;
    }
    // All threads of the block must call this.
    __device__ __forceinline__ void clear(int k) const {
#pragma unroll 1
        for (u32 i = threadIdx.x; i < 2 * plane; i += THREADS) words[i] = 0;
        if (threadIdx.x < k) rows[threadIdx.x] = 0;
    }

    __device__ __forceinline__ u32* at(u32 column_and_limb, u32 label, u32 copy) const {
        return words + column_and_limb * across + label * (u32)copies + copy;
    }
};

// Adds the table to device memory and empties it. Other threads may go on adding: each word is exchanged atomically, and a carry that
// comes later goes to the high word. Threads `start`, `start` + `step`, ... share the work.
__device__ __forceinline__ void flush(const Cells& cells, const Sums& s, u32 start, u32 step) {
    const u32 width = (u32)(s.columns * s.limbs), all = (u32)s.k * width;
#pragma unroll 1
    for (u32 cell = start; cell < all; cell += step) {
        const u32 j = cell / width;
        u32* const at = cells.at(cell - j * width, j, 0);
        i64 sum = 0;
#pragma unroll 1
        for (int copy = 0; copy < cells.copies; copy++) {
            // Cells start with different copies, so their banks differ.
            u32* const low = at + ((copy + cell) & (cells.copies - 1));
            u32* const high = low + cells.plane;
            const u32 l = *(volatile u32*)low ? atomicExch(low, 0u) : 0, h = *(volatile u32*)high ? atomicExch(high, 0u) : 0;
            sum += (i64)((u64)l | (u64)h << 32);
        }
        add_pending(s.pending + (u64)cell * 2, sum);
    }
#pragma unroll 1
    for (u32 j = start; j < (u32)s.k; j += step) {
        const int rows = atomicExch(&cells.rows[j], 0);
        if (rows != 0) atomicAdd((u64*)&s.pending_rows[j], (u64)(i64)rows);
    }
}

__device__ __forceinline__ void enter(Gate& gate, u32 count, const Cells& cells, const Sums& s, int lane) {
    enter(gate, count, CAPACITY, lane, [&] { flush(cells, s, lane, 32); });
}

// Adds `N` values to cells. All low words are added before any carry is known, so the additions do not wait for each other.
template <int N> __device__ __forceinline__ void add_cells(const Cells& cells, u32* const (&at)[N], const i64 (&value)[N]) {
    u32 before[N];
#pragma unroll
    for (int i = 0; i < N; i++) before[i] = atomicAdd(at[i], (u32)value[i]);
#pragma unroll
    for (int i = 0; i < N; i++)
        atomicAdd(at[i] + cells.plane, (u32)(value[i] >> 32) + (before[i] + (u32)value[i] < before[i] ? 1 : 0));
}

// The limbs of column c of a row.
template <typename T> __device__ __forceinline__ Pair limbs_at(const Assign<T>& a, const Factors* factors, u32 c, u32 row, T value) {
    if (!a.rows.w) return limbs_of((double)value, factors[c]);
    const double weight = a.rows.w[row];
    return c < (u32)a.rows.d ? limbs_of(__dmul_rn(weight, (double)value), factors[c]) : mass_limbs(weight, a.mass_to_integer);
}

// The values of one limb of several columns: from which clusters they leave and to which they go.
template <int N> struct Moving {
    u32 column[N], from[N], to[N];
    Pair limbs[N];
};

// Moves limb `limb` in the block's table. A value that leaves no cluster takes 0 from the one that it goes to.
template <int N> __device__ __forceinline__ void move_in_table(const Cells& cells, const Sums& s, const Moving<N>& m, int limb, u32 copy) {
    u32* at[2 * N];
    i64 value[2 * N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        const bool leaves = m.from[i] != NOWHERE;
        const i64 v = limb ? m.limbs[i].lo : m.limbs[i].hi;
        const u32 c = m.column[i] * s.limbs + limb;
        at[2 * i] = cells.at(c, m.to[i], copy), value[2 * i] = v;
        at[2 * i + 1] = cells.at(c, leaves ? m.from[i] : m.to[i], copy), value[2 * i + 1] = leaves ? -v : 0;
    }
    add_cells<2 * N>(cells, at, value);
}
// The same in device memory.
template <int N> __device__ __forceinline__ void move_in_memory(const Sums& s, const Moving<N>& m, int limb) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        const i64 v = limb ? m.limbs[i].lo : m.limbs[i].hi;
        add_pending(s.pending + (((u64)m.to[i] * s.columns + m.column[i]) * s.limbs + limb) * 2, v);
        if (m.from[i] != NOWHERE) add_pending(s.pending + (((u64)m.from[i] * s.columns + m.column[i]) * s.limbs + limb) * 2, -v);
    }
}

// Moves the contributions of the listed rows from cluster to cluster. The lanes share the (row, column) pairs.
template <typename T>
__device__ __forceinline__ void move_listed(const Assign<T>& a, const Factors* factors, Gate& gate, const Cells& cells, List& list, u32 count,
                                            int lane) {
    const int AHEAD = 4; // pairs that a lane moves at once
    const Sums& s = a.sums;
    __syncwarp();
    if (cells.copies) enter(gate, count, cells, s, lane);
    const u32 columns = s.columns, reciprocal = 0xffffffffu / columns + 1; // exact quotients: LIST * columns^2 < 2^32
    const u32 pairs = count * columns, copy = lane & (u32)(cells.copies - 1);
#pragma unroll 1
    for (u32 start = lane; start < pairs; start += 32 * AHEAD) {
        Moving<AHEAD> m;
        T value[AHEAD];
        u32 row[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const u32 pair = min(start + i * 32, pairs - 1), e = __umulhi(pair, reciprocal);
            m.column[i] = pair - e * columns, m.from[i] = list.from[e], m.to[i] = list.to[e];
            row[i] = list.row[e];
            value[i] = m.column[i] < a.rows.d ? a.rows.x[(u64)m.column[i] * a.rows.stride + row[i]] : (T)0;
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            m.limbs[i] = limbs_at(a, factors, m.column[i], row[i], value[i]);
            if (start + i * 32 >= pairs) m.limbs[i] = {0, 0}; // the last pair was repeated
        }
#pragma unroll 1
        for (int limb = 0; limb < s.limbs; limb++) {
            if (cells.copies) move_in_table<AHEAD>(cells, s, m, limb, copy);
            else move_in_memory<AHEAD>(s, m, limb);
        }
    }
#pragma unroll 1
    for (u32 e = lane; e < count; e += 32) {
        const u32 from = list.from[e], to = list.to[e];
        if (cells.copies) {
            atomicAdd(&cells.rows[to], 1);
            if (from != NOWHERE) atomicSub(&cells.rows[from], 1);
        } else {
            atomicAdd((u64*)&s.pending_rows[to], 1ull);
            if (from != NOWHERE) atomicAdd((u64*)&s.pending_rows[from], ~0ull);
        }
    }
    __syncwarp();
    if (lane == 0) list.count = 0;
    __syncwarp();
}

// Four rows of a column.
__device__ __forceinline__ void load_four(const float* x, float (&out)[ROWS]) {
    const float4 v = *(const float4*)x;
    out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
}
__device__ __forceinline__ void load_four(const double* x, double (&out)[ROWS]) {
    const double2 v = *(const double2*)x, w = *(const double2*)(x + TILE / 2);
    out[0] = v.x, out[1] = v.y, out[2] = w.x, out[3] = w.y;
}

// Adds the rows of a tile that had no labels. Each lane adds its own rows, without a list. There is a table, and there are no weights.
// `valid` has a bit for each row that exists.
template <typename T>
__device__ __forceinline__ void add_first(const Assign<T>& a, const Factors* factors, const Cells& cells, const T* x, const u32 (&label)[ROWS],
                                          u32 valid, int lane) {
    const int AHEAD = sizeof(T) == 4 ? 4 : 2;
    const Sums& s = a.sums;
    const u32 copy = lane & (u32)(cells.copies - 1), d = a.rows.d;
#pragma unroll 1
    for (u32 f = 0; f < d; f += AHEAD, x += AHEAD * a.rows.stride) {
        T raw[AHEAD][ROWS];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) load_four(x + min(i, (int)(d - 1 - f)) * a.rows.stride, raw[i]);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (f + i >= d) break;
            const Factors own = factors[f + i];
            u32* at[ROWS];
            i64 high[ROWS], low[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const Pair p = limbs_of((double)raw[i][r], own);
                high[r] = valid >> r & 1 ? p.hi : 0, low[r] = valid >> r & 1 ? p.lo : 0;
                at[r] = cells.at((f + i) * s.limbs, label[r], copy);
            }
            add_cells<ROWS>(cells, at, high);
            if (s.limbs == 2) {
#pragma unroll
                for (int r = 0; r < ROWS; r++) at[r] += cells.across;
                add_cells<ROWS>(cells, at, low);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        if (valid >> r & 1) atomicAdd(&cells.rows[label[r]], 1);
    __syncwarp();
}

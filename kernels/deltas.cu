// deltas: sums after an assign that only wrote labels: what each row that changed contributes moves from sum to sum.
//
// Source:    the partitioned features of Lutz et al. 2018, section 3.1: a block owns a few columns and a table of their sums for
//            all clusters in shared memory. Ours: only rows that changed, found by comparing two arrays of labels.
// Used when: the assign is `assign_tiled` (many dimensions).
// Tile:      a block has an equal share of all (chunk of columns, 2,048 rows); it compares labels four at a time and lists rows that
//            changed in shared memory. Once there are enough, all threads share out the pairs of a column and a listed row, rows
//            fastest: consecutive where all changed, so that the loads coalesce; each has four loads on their way.
// Memory:    labels before and after, once for each chunk of columns, and the values of rows that changed.
// Precision: integers. A cell of the table takes at most 4,096 values before it is emptied: a cluster's are counted.
#include "common.cuh"

#define THREADS 512
#define TILE (4 * THREADS)
// A list is worked off when it is this long at the latest; another tile may come on top.
#define LONGEST_WAIT 1024
#define SHORTEST_WAIT 256
#define LIST (LONGEST_WAIT + TILE)
// Loads of a thread that are on their way at a time.
#define FLIGHT 4
// Values that a cell may take; a whole list must fit on top of those that it has.
#define CAPACITY 4096
static_assert(LIST < CAPACITY, "a list does not fit in an empty cell");

template <typename T> struct Deltas {
    Rows<T> rows;
    Labels labels; // before
    Labels next; // after
    Sums sums;
    const Factors* factors;
    double mass_to_integer;
    Control* control;
    int table_copies; // of a cell, a power of two; 0: straight to device memory
    int chunk; // columns of a table
    int chunks;
};

// Four labels of so many bytes each, as they are in memory; their row is a multiple of 4.
template <int BYTES> struct Four {
    u32 words[BYTES];

    __device__ __forceinline__ void load(const void* labels, u64 row) {
        const u8* at = (const u8*)labels + row * BYTES;
        if constexpr (BYTES == 1) {
            words[0] = *(const u32*)at;
        } else if constexpr (BYTES == 2) {
            uint2 v = *(const uint2*)at;
            words[0] = v.x, words[1] = v.y;
        } else {
            uint4 v = *(const uint4*)at;
            words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
        }
    }
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int w = 0; w < BYTES; w++) words[w] = 0;
    }
    __device__ __forceinline__ bool differs(const Four& other) const {
        u32 bits = 0;
#pragma unroll
        for (int w = 0; w < BYTES; w++) bits |= words[w] ^ other.words[w];
        return bits != 0;
    }
    __device__ __forceinline__ u32 get(int i) const {
        if constexpr (BYTES == 1) return widen(words[0] >> (8 * i) & 0xffu, 1);
        else if constexpr (BYTES == 2) return widen(words[i / 2] >> (16 * (i & 1)) & 0xffffu, 2);
        else return words[i];
    }
};

// The table: low words of all cells, then high words, `copies` of each; the cells of a column's limb are next to each other, an odd
// number of them, so that neither rows of one column nor columns of one cluster share a bank. Then a counter for each cluster: rows
// that came (low half) and that went.
struct Moves {
    u32* words;
    u32* counters;
    u32 plane; // words from a low word to its high word
    int copies, across; // copies of a cell; clusters, made odd
};

// Adds to device memory what the table holds for columns `first` on, and empties it. Between barriers. Two lanes have a cell, one for
// each half.
__device__ __forceinline__ void flush_moves(const Moves& t, const Sums& s, int first, int columns, bool rows) {
    const u32 width = (u32)(columns * s.limbs), halves = (u32)s.k * width * 2;
    const u32 lane = threadIdx.x & 31;
#pragma unroll 1
    for (u32 start = threadIdx.x - lane; start < halves; start += THREADS) {
        const u32 i = start + lane, cell = i >> 1;
        u32* at = t.words;
        i64 sum = 0;
        if (i < halves) {
            const u32 j = cell / width, c = cell - j * width; // c: of column and limb
            at += (c * t.across + j) * t.copies;
            // Cells start with different copies: their banks differ.
            for (int copy = 0; copy < t.copies; copy++) {
                const u32 word = (copy + cell) & (t.copies - 1);
                sum += (i64)((u64)at[word] | (u64)at[t.plane + word] << 32);
            }
            const u64 half = i & 1 ? (u64)(sum >> 32) : (u64)(u32)sum;
            if (half != 0) atomicAdd(&s.pending[(((u64)j * s.columns + first) * s.limbs + c) * 2 + (i & 1)], half);
        }
        __syncwarp();
        if (i < halves && !(i & 1))
            for (int copy = 0; copy < t.copies; copy++) at[copy] = 0, at[t.plane + copy] = 0;
    }
#pragma unroll 1
    for (int j = threadIdx.x; j < s.k; j += THREADS) {
        const u32 count = t.counters[j];
        if (count != 0) {
            t.counters[j] = 0;
            const i64 net = (i64)(count & 0xffffu) - (i64)(count >> 16);
            if (rows && net != 0) atomicAdd((u64*)&s.pending_rows[j], (u64)net);
        }
    }
}

struct Listed {
    u32 rows[LIST];
    u32 moves[LIST]; // labels before in the high half, after in the low one; those of four bytes are read again
    u32 counts[3];
};

template <int BYTES, typename T> __device__ __forceinline__ void deltas(const Deltas<T>& a, Listed& list, u32* shared) {
    u32 *listed = list.rows, *moves = list.moves, *counts = list.counts;
    
    const Sums& s = a.sums;
    const int tid = threadIdx.x, lane = tid & 31;
    const u32 n = a.rows.n, tiles = n / TILE + (n % TILE != 0);
    // This block's share: consecutive tiles of rows, chunk after chunk.
    const u64 units = (u64)tiles * a.chunks, unit = units * blockIdx.x / gridDim.x;
    u32 left = (u32)(units * (blockIdx.x + 1) / gridDim.x - unit);
    if (left == 0) return;

    Moves table;
    table.copies = a.table_copies;
    table.across = s.k | 1;
    table.plane = (u32)(a.chunk * s.limbs * table.across) * (u32)table.copies;
    table.words = shared;
    table.counters = table.words + 2 * (size_t)table.plane;

    u32 chunk = (u32)(unit / tiles), tile = (u32)(unit - (u64)chunk * tiles);
    if (tid < 3) counts[tid] = 0;
    bool cleared = false, filled = false; // whether the table was ever set to zero; whether it holds anything
    u32 all = 0; // rows in the list
    u32 changed = 0;
    u32 turn = 0; // which counter: three of them, so that one barrier a tile is enough
    // Rows from n to the stride have equal labels: none, for ever.
    u32 row = tile * TILE + 4 * tid;
    Four<BYTES> before, after;
    before.clear(), after.clear();
    if (row < n) before.load(a.labels.at, row), after.load(a.next.at, row);
    __syncthreads();

#pragma unroll 1
    for (;;) {
        const bool last_unit = left == 1, last = last_unit || tile + 1 == tiles;
        // The next tile's labels are on their way while this one's rows are listed and worked off.
        const u32 next_tile = tile + 1 == tiles ? 0 : tile + 1;
        const u32 next_row = next_tile * TILE + 4 * tid;
        const Four<BYTES> old = before, now = after;
        const u32 here = row;
        before.clear(), after.clear();
        if (!last_unit && next_row < n) before.load(a.labels.at, next_row), after.load(a.next.at, next_row);
        row = next_row;

        if (__any_sync(FULL_WARP, old.differs(now))) {
            u32 rank = 0, total = 0, mine = 0;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                bool moved = old.get(i) != now.get(i) && here + i < n;
                if (moved && a.rows.w) moved = a.rows.w[here + i] > 0.0;
                const u32 mask = __ballot_sync(FULL_WARP, moved);
                rank += __popc(mask & ((1u << lane) - 1));
                total += __popc(mask);
                mine |= moved ? 1u << i : 0u;
            }
            u32 base = 0;
            if (lane == 0 && total) base = atomicAdd(&counts[turn], total);
            base = all + __shfl_sync(FULL_WARP, base, 0) + rank;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (mine >> i & 1) {
                    listed[base] = here + i;
                    moves[base] = old.get(i) << 16 | (now.get(i) & 0xffffu);
                    base++;
                }
            }
        }
        __syncthreads();
        all += counts[turn];
        // The counter of the tile before was read by all before this barrier, and is used again after the next one.
        if (tid == 0) counts[turn == 0 ? 2 : turn - 1] = 0;
        turn = turn == 2 ? 0 : turn + 1;

        const int first = (int)chunk * a.chunk, columns = min(a.chunk, s.columns - first);
        const u32 wait = min((u32)LONGEST_WAIT, max((u32)SHORTEST_WAIT, (u32)(THREADS * 2 * FLIGHT) / (u32)columns));
        bool full = false;
        if (all != 0 && (last || all >= wait)) {
            // A few rows are not worth a table.
            const bool direct = table.copies == 0 || (last && !filled && (u64)all * 16 <= (u64)s.k);
            if (!direct && !cleared) {
                const u32 words = 2 * table.plane + (u32)table.across;
                for (u32 i = tid; i < words; i += THREADS) table.words[i] = 0;
                cleared = true;
                __syncthreads();
            }
            if (!direct) filled = true;
            if (chunk == 0 && tid == 0) changed += all;
            auto labels_of = [&](u32 q, u32 at, u32& from, u32& to) {
                if constexpr (BYTES == 4) {
                    from = ((const u32*)a.labels.at)[at], to = ((const u32*)a.next.at)[at];
                } else {
                    const u32 both = moves[q];
                    from = widen(both >> 16, 2), to = both & 0xffffu;
                }
            };
            // A cluster's counter says how many values its cells took; in the first chunk also how its number of rows changes.
            if (!direct || chunk == 0) {
                for (u32 q = tid; q < all; q += THREADS) {
                    u32 from, to;
                    labels_of(q, listed[q], from, to);
                    if (direct) {
                        atomicAdd((u64*)&s.pending_rows[to], 1ull);
                        if (from != UNASSIGNED) atomicAdd((u64*)&s.pending_rows[from], ~0ull);
                    } else {
                        const u32 came = atomicAdd(&table.counters[to], 1u);
                        full = full || (came & 0xffffu) + (came >> 16) + 1 > CAPACITY - LIST;
                        if (from != UNASSIGNED) {
                            const u32 went = atomicAdd(&table.counters[from], 1u << 16);
                            full = full || (went & 0xffffu) + (went >> 16) + 1 > CAPACITY - LIST;
                        }
                    }
                }
            }
            // Pair i is of column i / all and of listed row i % all; a thread's pairs are THREADS apart.
            const u32 columns_further = THREADS / all, rows_further = THREADS - columns_further * all;
            u32 c = (u32)tid / all, q = (u32)tid - c * all;
            const u32 copy = (u32)lane & (u32)(table.copies - 1);
#pragma unroll 1
            while (c < (u32)columns) {
                T x[FLIGHT];
                u32 ahead_c = c, ahead_q = q;
#pragma unroll
                for (int i = 0; i < FLIGHT; i++) {
                    x[i] = (T)0;
                    const u32 column = (u32)first + ahead_c;
                    if (ahead_c < (u32)columns && column < (u32)a.rows.d) x[i] = a.rows.x[(u64)column * a.rows.stride + listed[ahead_q]];
                    ahead_c += columns_further, ahead_q += rows_further;
                    if (ahead_q >= all) ahead_q -= all, ahead_c++;
                }
#pragma unroll
                for (int i = 0; i < FLIGHT; i++) {
                    if (c < (u32)columns) {
                        const u32 column = (u32)first + c, at = listed[q];
                        u32 from, to;
                        labels_of(q, at, from, to);
                        Pair p;
                        if (column < (u32)a.rows.d) {
                            double value = (double)x[i];
                            if (a.rows.w) value = __dmul_rn(a.rows.w[at], value);
                            p = limbs_of(value, a.factors[column]);
                        } else {
                            p = mass_limbs(a.rows.w[at], a.mass_to_integer);
                        }
#pragma unroll
                        for (int limb = 0; limb < 2; limb++) {
                            const i64 v = limb ? p.lo : p.hi;
                            if (limb < s.limbs && v != 0) {
                                if (direct) {
                                    add_pending(s.pending + (((u64)to * s.columns + column) * s.limbs + limb) * 2, v);
                                    if (from != UNASSIGNED)
                                        add_pending(s.pending + (((u64)from * s.columns + column) * s.limbs + limb) * 2, -v);
                                } else {
                                    u32* words = table.words + (c * s.limbs + limb) * table.across * table.copies + copy;
                                    u32* into = words + to * table.copies;
                                    add_words(into, into + table.plane, v);
                                    if (from != UNASSIGNED) {
                                        u32* out = words + from * table.copies;
                                        add_words(out, out + table.plane, -v);
                                    }
                                }
                            }
                        }
                    }
                    c += columns_further, q += rows_further;
                    if (q >= all) q -= all, c++;
                }
            }
            all = 0;
            full = __syncthreads_or(full);
        }
        // The next addition to the table comes after the barrier of another tile.
        if (filled && (last || full)) {
            flush_moves(table, s, first, columns, chunk == 0);
            filled = false;
        }
        if (last_unit) break;
        left--;
        tile = next_tile;
        if (tile == 0) chunk++;
    }
    if (changed) atomicAdd(&a.control->changed, (u64)changed);
}

#define DELTAS(T, NAME)                                                                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) NAME(const __grid_constant__ Deltas<T> a) {                           \
        extern __shared__ __align__(16) u32 shared[];                                                                              \
        __shared__ Listed list;                                                                                                    \
        wait_for_kernel_before();                                                                                                  \
        if (a.control->stop) return;                                                                                               \
        if (a.labels.bytes == 1) deltas<1>(a, list, shared);                                                                       \
        else if (a.labels.bytes == 2) deltas<2>(a, list, shared);                                                                  \
        else deltas<4>(a, list, shared);                                                                                           \
    }

DELTAS(float, deltas_f32)
DELTAS(double, deltas_f64)

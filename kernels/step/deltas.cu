// deltas: updates the sums after an assign that only wrote labels. The contribution of each row that changed moves from the sum of its
// old cluster to that of its new one.
//
// Source:    partitioned features of Lutz et al. 2018, section 3.1: a block owns a few columns, and a table in shared memory with their
//            sums for all clusters. Ours: only rows that changed, found by comparing two arrays of labels.
// Used when: the assign is `assign_tiled` (many features).
// Tile:      a block has a chunk of columns and a share of the rows. Its warps compare labels, 16 bytes a lane, each at its own pace.
//            They list the rows that changed in shared memory, until all rows were seen or the list is full. Then a warp takes 32
//            listed rows, one a lane, and some of the columns. If all rows changed, the rows of neighbouring lanes are consecutive and
//            loads coalesce. The data of a row stay in registers.
// Memory:    labels before and after, once for each chunk of columns, and the values of rows that changed.
// Precision: integers. A cell of the table takes at most 4,096 values before it is emptied. A counter a cluster counts them.
#include "../common/sums.cuh"

#define THREADS 512
#define WARPS (THREADS / 32)
#define LIST 2048
// Values that a cell may take. A cell must have room for a whole list.
#define CAPACITY 4096
static_assert(LIST < CAPACITY, "a list does not fit in an empty cell");

template <typename T, typename S = T> struct Deltas {
    Rows<T, S> rows;
    Labels labels; // before
    Labels next; // after
    Sums sums;
    const Factors* factors;
    double mass_to_integer;
    Control* control;
    int table_copies; // copies of a cell, a power of two; 0: add directly to device memory
    int chunk; // columns of a table. The factors of these columns lie in front of it
    int chunks;
    int few; // up to so many rows a block does without a table
};

// The table: the low words of all cells, then the high words, `copies` of each. The cells of one limb of one column are contiguous, and
// their number is odd. So neither the clusters of one column nor the columns of one cluster share a bank. Then comes a counter for
// each cluster: rows that came (low half) and rows that left (high half).
struct Moves {
    u32* words;
    u32* counters;
    u32 plane; // words from a low word to its high word
    int copies, across; // copies of a cell; k, made odd
};

// Adds the table, whose columns begin with `first`, to device memory. Empties it if it is used `again`. Two lanes share a cell, one for
// each half.
__device__ __forceinline__ void flush_moves(const Moves& t, const Sums& s, int first, int columns, bool rows, bool again) {
    const u32 width = (u32)(columns * s.limbs), halves = (u32)s.k * width * 2;
    const u32 lane = threadIdx.x & 31;
#pragma unroll 1
    for (u32 start = threadIdx.x - lane; start < halves; start += THREADS) {
        const u32 i = start + lane, cell = i >> 1, j = cell / width, c = cell - j * width; // c numbers columns and limbs
        u32* const at = t.words + (c * t.across + j) * t.copies;
        const bool touched = i < halves && t.counters[j] != 0;
        if (touched) {
            i64 sum = 0;
            // Cells start with different copies, so their banks differ.
#pragma unroll 1
            for (int copy = 0; copy < t.copies; copy++) {
                const u32 word = (copy + cell) & (t.copies - 1);
                sum += (i64)((u64)at[word] | (u64)at[t.plane + word] << 32);
            }
            const u64 half = i & 1 ? (u64)(sum >> 32) : (u64)(u32)sum;
            if (half != 0) atomicAdd(&s.pending[(((u64)j * s.columns + first) * s.limbs + c) * 2 + (i & 1)], half);
        }
        if (again) {
            __syncwarp();
            if (touched && !(i & 1))
                for (int copy = 0; copy < t.copies; copy++) at[copy] = 0, at[t.plane + copy] = 0;
        }
    }
    if (rows) {
#pragma unroll 1
        for (int j = threadIdx.x; j < s.k; j += THREADS) {
            const u32 count = t.counters[j];
            const i64 net = (i64)(count & 0xffffu) - (i64)(count >> 16);
            if (net != 0) atomicAdd((u64*)&s.pending_rows[j], (u64)net);
        }
    }
    if (again) {
        __syncthreads();
#pragma unroll 1
        for (int j = threadIdx.x; j < s.k; j += THREADS) t.counters[j] = 0;
        __syncthreads();
    }
}

struct Listed {
    u32 rows[LIST];
    u32 moves[LIST]; // the label before in the high half, after in the low half. Labels of four bytes are read again instead
    u32 counts[2];
};

template <int BYTES> __device__ __forceinline__ u32 label_of(const uint4& labels, int i) {
    const u32 word = i * BYTES / 4 == 0 ? labels.x : i * BYTES / 4 == 1 ? labels.y : i * BYTES / 4 == 2 ? labels.z : labels.w;
    return BYTES == 4 ? word : word >> (i * BYTES % 4 * 8) & ((1u << (8 * BYTES % 32)) - 1);
}

// Lists the changed rows of all lanes of a warp, if the list has room for them. Returns whether it had.
template <int BYTES>
__device__ __forceinline__ bool list_changed(Listed& list, u32& count, const uint4& before, const uint4& after, u32 row, u32 n,
                                             const double* weights, int lane) {
    const bool differs = before.x != after.x || before.y != after.y || before.z != after.z || before.w != after.w;
    if (!__any_sync(FULL_WARP, differs)) return true;
    u32 mine = 0;
    if (differs) {
#pragma unroll
        for (int i = 0; i < 16 / BYTES; i++)
            mine |= row + i < n && label_of<BYTES>(before, i) != label_of<BYTES>(after, i) ? 1u << i : 0u;
        if (weights)
            for (u32 left = mine; left; left &= left - 1)
                if (!(weights[row + __ffs(left) - 1] > 0.0)) mine &= ~(left & (0u - left));
    }
    const u32 own = __popc(mine);
    u32 until = own; // changed rows of this lane and of the lanes before it
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
        const u32 other = __shfl_up_sync(FULL_WARP, until, o);
        until += lane >= o ? other : 0;
    }
    const u32 total = __shfl_sync(FULL_WARP, until, 31);
    u32 place = 0;
    // A warp moves the counter only if it finds room, so places have no gaps.
    if (lane == 0) {
        place = *(volatile u32*)&count;
        while (place + total <= LIST) {
            const u32 seen = atomicCAS(&count, place, place + total);
            if (seen == place) break;
            place = seen;
        }
    }
    place = __shfl_sync(FULL_WARP, place, 0);
    if (place + total > LIST) return false;
    place += until - own;
#pragma unroll
    for (int i = 0; i < 16 / BYTES; i++) {
        if (mine >> i & 1) {
            list.rows[place] = row + i;
            if (BYTES < 4) list.moves[place] = label_of<BYTES>(before, i) << 16 | label_of<BYTES>(after, i);
            place++;
        }
    }
    return true;
}

// Moves the contributions of `all` listed rows to the columns from `first` on: in the table, or in device memory.
template <int BYTES, bool DIRECT, typename T, typename S>
__device__ __forceinline__ void move_listed(const Deltas<T, S>& a, const Listed& list, const Moves& table, const Factors* factors, u32 all,
                                            int first, int columns, bool& full) {
    const int FLIGHT = sizeof(T) == 4 ? 4 : 1; // loads in flight a thread. Registers are scarce
    const Sums& s = a.sums;
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    // With few rows, several warps have the same rows and share the columns.
    const u32 groups = (all + 31) / 32, slices = groups < WARPS ? WARPS / groups : 1, slice = warp / groups;
    if (groups < WARPS && slice >= slices) return;
    const int step = (int)slices;
#pragma unroll 1
    for (u32 group = groups < WARPS ? warp - slice * groups : warp; group < groups; group += WARPS) {
        const int start = groups < WARPS ? (int)slice : 0;
        const u32 entry = group * 32 + lane;
        const bool listed = entry < all;
        u32 row = 0, from = UNASSIGNED, to = 0;
        if (listed) {
            row = list.rows[entry];
            if constexpr (BYTES == 4) {
                from = ((const u32*)a.labels.at)[row], to = ((const u32*)a.next.at)[row];
            } else {
                from = widen(list.moves[entry] >> 16, BYTES), to = list.moves[entry] & 0xffffu;
            }
        }
        // A cluster's counter counts the values that its cells took. In the first chunk it also gives the change of its row count.
        if (listed && start == 0) {
            if (!DIRECT) {
                const u32 came = atomicAdd(&table.counters[to], 1u);
                full = full || (came & 0xffffu) + (came >> 16) + 1 > CAPACITY - LIST;
                if (from != UNASSIGNED) {
                    const u32 went = atomicAdd(&table.counters[from], 1u << 16);
                    full = full || (went & 0xffffu) + (went >> 16) + 1 > CAPACITY - LIST;
                }
            } else if (first == 0) {
                atomicAdd((u64*)&s.pending_rows[to], 1ull);
                if (from != UNASSIGNED) atomicAdd((u64*)&s.pending_rows[from], ~0ull);
            }
        }
        const u32 copy = lane & (u32)(table.copies - 1);
        Together together = {0};
        if (!DIRECT && sizeof(T) == 4) together.find(to, listed, table.copies, 0);
#pragma unroll 1
        for (int c = start; c < columns; c += FLIGHT * step) {
            T values[FLIGHT];
#pragma unroll
            for (int i = 0; i < FLIGHT; i++) {
                const int column = first + c + i * step;
                values[i] = listed && c + i * step < columns && column < a.rows.d ? a.rows.at((u64)column * a.rows.stride + row) : (T)0;
            }
            // Not unrolled: with few rows the loop would end before the longer code is fetched.
#pragma unroll 1
            for (int i = 0; i < FLIGHT; i++) {
                const int in_chunk = c + i * step, column = first + in_chunk;
                T taken = values[0];
#pragma unroll
                for (int o = 1; o < FLIGHT; o++) taken = i == o ? values[o] : taken;
                if (in_chunk >= columns || (sizeof(T) == 8 && !listed)) continue;
                Pair p = {0, 0};
                if (listed && column < a.rows.d) {
                    double value = (double)taken;
                    if (a.rows.w) value = __dmul_rn(a.rows.w[row], value);
                    p = limbs_of(value, factors[in_chunk]);
                } else if (listed) {
                    p = mass_limbs(a.rows.w[row], a.mass_to_integer);
                }
#pragma unroll 1
                for (int limb = 0; limb < s.limbs; limb++) {
                    i64 v = limb ? p.lo : p.hi;
                    if (sizeof(T) == 8 && v == 0) continue;
                    const bool leaves = from != UNASSIGNED && v != 0;
                    if (DIRECT) {
                        if (v != 0) add_pending(s.pending + (((u64)to * s.columns + column) * s.limbs + limb) * 2, v);
                        if (leaves) add_pending(s.pending + (((u64)from * s.columns + column) * s.limbs + limb) * 2, -v);
                    } else {
                        u32* words = table.words + (in_chunk * s.limbs + limb) * table.across * table.copies + copy;
                        if (leaves) {
                            u32* out = words + from * table.copies;
                            add_words(out, out + table.plane, -v);
                        }
                        if (sizeof(T) == 4) together.add_up(v); // float64 has no registers left for it
                        u32* into = words + to * table.copies;
                        if (v != 0) add_words(into, into + table.plane, v);
                    }
                }
            }
        }
    }
}

template <int BYTES, typename T, typename S> __device__ __forceinline__ void deltas(const Deltas<T, S>& a, Listed& list, uint4* shared, const u32& stop) {
    const u32 TILE = 32 * 16 / BYTES; // rows a warp compares at once
    const Sums& s = a.sums;
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
    const u32 n = a.rows.n, tiles = n / TILE + (n % TILE != 0);
    // Blocks with the same chunk share the rows.
    const u32 sharing = max(1u, gridDim.x / (u32)a.chunks), share = blockIdx.x % sharing;
    const u32 begin = (u32)((u64)tiles * share / sharing), end = (u32)((u64)tiles * (share + 1) / sharing);

    Moves table;
    table.copies = a.table_copies;
    table.across = s.k | 1;
    table.plane = (u32)(a.chunk * s.limbs * table.across) * (u32)table.copies;
    // Shared memory: the factors of the chunk, padded to 16 bytes, then the table.
    double* const factors = (double*)shared;
    uint4* const words = shared + (3 * a.chunk + 1) / 2;
    table.words = (u32*)words;
    table.counters = table.words + 2 * (size_t)table.plane;

    u32 turn = 0;
#pragma unroll 1
    for (u32 chunk = blockIdx.x / sharing; chunk < (u32)a.chunks; chunk += max(1u, gridDim.x / sharing)) {
        const int first = (int)chunk * a.chunk, columns = min(a.chunk, s.columns - first);
        u32 tile = begin + warp;
        uint4 before = {}, after = {};
        auto ask = [&] {
            if (tile >= end) return;
            const u64 byte = (u64)tile * 512 + lane * 16;
            // Rows from n to the stride never get a label, so both arrays agree there. The stride is a multiple of 1,024.
            before = *(const uint4*)((const u8*)a.labels.at + byte), after = *(const uint4*)((const u8*)a.next.at + byte);
        };
        bool cleared = false, filled = false; // whether the table was set to zero in this chunk; whether it holds anything
#pragma unroll 1
        for (;;) {
            ask();
            if (!cleared) {
                cleared = true;
                if (table.copies) {
                    const u32 pieces = (2 * table.plane + (u32)table.across + 3) / 4;
#pragma unroll 1
                    for (u32 i = tid; i < pieces; i += THREADS) words[i] = make_uint4(0, 0, 0, 0);
                }
                if (tid < 2) list.counts[tid] = 0;
                const int values = 3 * min(columns, max(0, a.rows.d - first));
#pragma unroll 1
                for (int i = tid; i < values; i += THREADS) factors[i] = ((const double*)(a.factors + first))[i];
                // Checked after the first loads are issued.
                if (stop) return;
                __syncthreads();
            }
#pragma unroll 1
            while (tile < end) {
                const uint4 old = before, now = after;
                const u32 here = tile;
                tile += WARPS;
                ask();
                if (!list_changed<BYTES>(list, list.counts[turn], old, now, here * TILE + lane * (16 / BYTES), n, a.rows.w, lane)) {
                    tile = here;
                    break;
                }
            }
            const bool more = __syncthreads_or(tile < end);
            const u32 all = list.counts[turn];
            turn ^= 1;
            if (tid == 0) list.counts[turn] = 0;
            if (chunk == 0 && tid == 0 && all) atomicAdd(&a.control->changed, (u64)all);
            const bool direct = table.copies == 0 || (!more && !filled && all <= (u32)a.few);
            bool full = false;
            const Factors* staged = (const Factors*)factors;
            if (all && direct) move_listed<BYTES, true>(a, list, table, staged, all, first, columns, full);
            else if (all) move_listed<BYTES, false>(a, list, table, staged, all, first, columns, full);
            filled = filled || (all && !direct);
            if (!more && !filled) break;
            full = __syncthreads_or(full);
            if (filled && (full || !more)) {
                flush_moves(table, s, first, columns, chunk == 0, more);
                filled = false;
            }
            if (!more) break;
        }
        __syncthreads(); // the next chunk clears the table
    }
}

#define DELTAS(T, S, NAME)                                                                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) NAME(const __grid_constant__ Deltas<T, S> a) {                           \
        extern __shared__ __align__(16) uint4 shared[];                                                                            \
        __shared__ Listed list;                                                                                                    \
        wait_for_kernel_before();                                                                                                  \
        const u32 stop = a.control->stop;                                                                                          \
        if (a.labels.bytes == 1) deltas<1>(a, list, shared, stop);                                                                 \
        else if (a.labels.bytes == 2) deltas<2>(a, list, shared, stop);                                                            \
        else deltas<4>(a, list, shared, stop);                                                                                     \
    }

DELTAS(float, float, deltas_f32)
DELTAS(double, double, deltas_f64)
DELTAS(float, Half, deltas_f16)

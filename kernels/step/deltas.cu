// deltas: updates the sums after an assign that only wrote labels. The contribution of each row that changed moves from the sum of its
// old cluster to that of its new one.
//
// Source:    partitioned features of Lutz et al. 2018, section 3.1: a block owns a few columns, and a table in shared memory with their
//            sums for all clusters. Ours: only rows that changed, found by comparing two arrays of labels.
// Used when: the assign is `assign_tiled` or `assign_tensor` (many features).
// Tile:      a block has a chunk of columns and a share of the rows. Its warps work alone, with no barrier between them. A warp compares
//            labels, 16 bytes a lane, and lists the rows that changed. It takes 32 of them at a time, one a lane, with all columns of the
//            chunk. If all rows changed, the rows of neighbouring lanes are consecutive and loads coalesce.
// Memory:    labels before and after, once for each chunk of columns, and the values of rows that changed. If these are few, from the copy
//            of the rows whose features lie side by side, if there is one.
// Precision: integers. An accumulator of the table that has grown large is emptied by the lane that made it so (`ACCUMULATOR_LIMIT`).
#include "../common/sums.cuh"

#define THREADS 1024
#define WARPS (THREADS / 32)
#define FLIGHT 4 // values of a row that are on their way at once
#define LABEL_BYTES 512 // that a warp compares at a time
#define DENSE 256 // if 32 rows that changed are among so many rows, columns are read: neighbours share what memory sends
// A lane empties an accumulator when it has moved the high word beyond this. Before that each thread may add one value of up to 2^50, or one lane of each warp
// the sum of 32 of them: less than 2^30 in the high word. So it never overflows.
#define ACCUMULATOR_LIMIT (1 << 30)

template <typename T, typename S = T> struct Deltas {
    Rows<T, S> rows;
    Labels labels; // before
    Labels next; // after
    Sums sums;
    const Factors* factors;
    double mass_to_integer;
    Control* control;
    int table_copies; // copies of an accumulator, a power of two; 0: add directly to device memory
    int chunk; // columns of a table. The column after the last one of the sums counts rows
    int chunks;
    u32 width; // of a row of `by_row`
    const S* by_row; // the rows with their features side by side (tensor_groups.cu), or null. Then chunks begin at multiples of FLIGHT
};

// A chunk of columns and its table: the low words of all accumulators, then the high words, `copies` of each. The accumulators of one limb of one column are
// contiguous, and their number is odd. So neither the clusters of one column nor the columns of one cluster share a bank.
struct Moves {
    u32* words;
    const Factors* factors; // of the columns of the chunk
    u32 plane; // words from a low word to its high word
    int copies, across; // copies of an accumulator; k, made odd
    int first, columns; // of the sums
    bool counts; // whether the chunk also counts rows
    bool plain; // float32 values without weights, in one limb: the first factor stands for both

    __device__ __forceinline__ u32 accumulators(const Sums& s) const { return (columns * s.limbs + counts) * across; }
    __device__ __forceinline__ u32* accumulator(u32 column, u32 j, u32 copy) const { return words + (column * across + j) * copies + copy; }
};

// Where the sum of an accumulator belongs in device memory.
__device__ __forceinline__ u64* pending_of(const Sums& s, const Moves& t, u32 column, u32 j) {
    return s.pending + (((u64)j * s.columns + t.first) * s.limbs + column) * 2;
}

__device__ __forceinline__ void add_rows(const Sums& s, u32 j, i64 count) {
    if (count != 0) atomicAdd((u64*)&s.pending_rows[j], (u64)count);
}

// Empties one copy of an accumulator. Other warps may go on adding: a carry that comes later goes to the high word.
__device__ __forceinline__ void empty_accumulator(u32* low, u32 plane, u64* pending) {
    const u32 l = atomicExch(low, 0u), h = atomicExch(low + plane, 0u);
    add_pending(pending, (i64)((u64)h << 32 | l));
}

// Adds an integer to an accumulator of cluster j.
__device__ __forceinline__ void add_to_accumulator(const Sums& s, const Moves& t, u32* low, u32 column, u32 j, u32 l, u32 h) {
    const u32 old = atomicAdd(low, l);
    h += old + l < old ? 1 : 0;
    if (h == 0) return;
    const int now = (int)(atomicAdd(low + t.plane, h) + h);
    if (now > ACCUMULATOR_LIMIT || now < -ACCUMULATOR_LIMIT) empty_accumulator(low, t.plane, pending_of(s, t, column, j));
}

// The sum of one half of the copies of an accumulator. Each half has an accumulator of its own: together they could overflow.
__device__ __forceinline__ i64 sum_of_half(const Moves& t, u32 column, u32 j, bool high) {
    i64 all = 0;
    // Accumulators start with different copies, so their banks differ.
#pragma unroll 1
    for (int copy = 0; copy < t.copies; copy++) {
        const u32 word = *(t.accumulator(column, j, (copy + j) & (t.copies - 1)) + (high ? t.plane : 0));
        all += high ? (i64)(int)word : (i64)word;
    }
    return all;
}

// Adds the table to device memory. Two lanes share an accumulator, one for each half, so that neighbours write to one place.
__device__ __forceinline__ void flush_moves(const Moves& t, const Sums& s) {
    const u32 width = t.columns * s.limbs, halves = s.k * width * 2;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < halves; i += THREADS) {
        const u32 accumulator = i >> 1, j = accumulator / width, column = accumulator - j * width;
        const i64 half = sum_of_half(t, column, j, i & 1);
        if (half != 0) atomicAdd(pending_of(s, t, column, j) + (i & 1), (u64)half);
    }
    if (!t.counts) return;
#pragma unroll 1
    for (u32 j = threadIdx.x; j < s.k; j += THREADS) add_rows(s, j, sum_of_half(t, width, j, false) + (sum_of_half(t, width, j, true) << 32));
}

// A row that moves, and where its values go.
struct Move {
    u32 row, from, to;
    bool listed, leaves;
};

// Values that are on their way at once. Where features lie side by side, it is one load or two.
template <typename S> struct alignas(sizeof(S) * FLIGHT < 16 ? sizeof(S) * FLIGHT : 16) Flight {
    S values[FLIGHT];
};

// The values of a row in the columns of a chunk.
template <typename S> struct Values {
    const S* first;
    const u64& columns; // from column to column
    bool side_by_side;

    __device__ __forceinline__ S operator[](int c) const { return first[side_by_side ? c : (u64)c * columns]; }
    // The values from column c on, a multiple of FLIGHT, of which `left` exist. Where features lie side by side, rows are filled up, and something can be
    // read behind the last one: a chunk that only counts rows begins at the end of a row. (To skip the load took registers that are not there.)
    __device__ __forceinline__ void load(int c, int left, Flight<S>& out) const {
        if (side_by_side) {
            out = *(const Flight<S>*)(first + c);
        } else {
#pragma unroll
            for (int i = 0; i < FLIGHT; i++)
                if (i < left) out.values[i] = first[(u64)(c + i) * columns];
        }
    }
};

// The usual case: float32 values without weights, in one limb.
template <typename T, typename S>
__device__ __forceinline__ void move_plain(const Deltas<T, S>& a, const Moves& t, const Move& m, const Values<S>& x, const Flight<S>& begun,
                                           u32 copy) {
    const u32 across = t.across * t.copies;
    u32 *into = t.accumulator(0, m.to, copy), *out = t.accumulator(0, m.leaves ? m.from : m.to, copy);
    const auto move = [&](S stored, int c) {
        // As `round_to_integer`: the product is exact. The low word of 1.5 * 2^52 is 0.
        const double rounded = __fma_rn((double)a.rows.value(stored), t.factors[c].first, 6755399441055744.0);
        const u32 l = __double2loint(rounded), h = __double2hiint(rounded) - 0x43380000u;
        add_to_accumulator(a.sums, t, into + c * across, c, m.to, l, h);
        if (m.leaves) add_to_accumulator(a.sums, t, out + c * across, c, m.from, 0u - l, ~h + (l == 0));
    };
#pragma unroll
    for (int i = 0; i < FLIGHT; i++)
        if (i < t.columns) move(begun.values[i], i);
#pragma unroll 1
    for (int c = FLIGHT; c < t.columns; c += FLIGHT) {
        Flight<S> next;
        x.load(c, t.columns - c, next);
#pragma unroll
        for (int i = 0; i < FLIGHT; i++)
            if (c + i < t.columns) move(next.values[i], c + i);
    }
}

// Any case. All lanes of the warp must call this.
template <bool DIRECT, typename T, typename S>
__device__ __forceinline__ void move_any(const Deltas<T, S>& a, const Moves& t, const Move& m, const Values<S>& x, u32 copy, const Together& together) {
    const Sums& s = a.sums;
#pragma unroll 1
    for (int c = 0; c < t.columns; c++) {
        Pair p = {0, 0};
        if (m.listed && t.first + c < a.rows.d) {
            double value = (double)a.rows.value(x[c]);
            if (a.rows.w) value = __dmul_rn(a.rows.w[m.row], value);
            p = limbs_of(value, t.factors[c]);
        } else if (m.listed) {
            p = mass_limbs(a.rows.w[m.row], a.mass_to_integer);
        }
#pragma unroll 1
        for (int limb = 0; limb < s.limbs; limb++) {
            const u32 column = c * s.limbs + limb;
            i64 v = limb ? p.lo : p.hi;
            const bool leaves = m.leaves && v != 0;
            if (DIRECT) {
                if (leaves) add_pending(pending_of(s, t, column, m.from), -v);
                if (v != 0) add_pending(pending_of(s, t, column, m.to), v);
                continue;
            }
            if (leaves) add_to_accumulator(s, t, t.accumulator(column, m.from, copy), column, m.from, (u32)-v, (u32)(-v >> 32));
            together.add_up(v);
            if (v != 0) add_to_accumulator(s, t, t.accumulator(column, m.to, copy), column, m.to, (u32)v, (u32)(v >> 32));
        }
    }
}

// Moves the contributions of up to 32 listed rows, one a lane.
template <typename T, typename S> __device__ __forceinline__ void move_rows(const Deltas<T, S>& a, const Moves& t, const u32* list, u32 count) {
    const u32 lane = threadIdx.x & 31, copy = lane & (u32)(t.copies - 1);
    Move m = {0, UNASSIGNED, 0, lane < count, false};
    if (m.listed) m.row = list[lane];
    // The values of the first columns are on their way while the labels come.
    const bool dense = __shfl_sync(FULL_WARP, m.row, (int)count - 1) - __shfl_sync(FULL_WARP, m.row, 0) < DENSE;
    const bool side_by_side = a.by_row && !dense;
    const S* const first = side_by_side ? a.by_row + (u64)m.row * a.width + t.first : a.rows.x + (u64)t.first * a.rows.stride + m.row;
    const Values<S> x = {first, a.rows.stride, side_by_side};
    Flight<S> begun = {};
    if (t.plain && m.listed) x.load(0, t.columns, begun);
    if (m.listed) m.from = load_label(a.labels, m.row), m.to = load_label(a.next, m.row);
    m.leaves = m.from != UNASSIGNED;
    if (t.copies == 0) {
        move_any<true>(a, t, m, x, copy, {0});
        if (t.counts && m.listed) {
            add_rows(a.sums, m.to, 1);
            if (m.leaves) add_rows(a.sums, m.from, -1);
        }
        return;
    }
    Together together;
    together.find(m.to, m.listed, t.copies, 0);
    if (!t.plain || together.lanes) move_any<false>(a, t, m, x, copy, together);
    else if (m.listed) move_plain(a, t, m, x, begun, copy);
    if (t.counts && m.listed) {
        const u32 column = t.columns * a.sums.limbs;
        // A block has fewer than 2^32 rows, and the high word takes what the low one does not.
        add_words(t.accumulator(column, m.to, copy), t.accumulator(column, m.to, copy) + t.plane, 1);
        if (m.leaves) add_words(t.accumulator(column, m.from, copy), t.accumulator(column, m.from, copy) + t.plane, -1);
    }
}

template <int BYTES> __device__ __forceinline__ u32 label_of(const uint4& labels, int i) {
    const u32 word = i * BYTES / 4 == 0 ? labels.x : i * BYTES / 4 == 1 ? labels.y : i * BYTES / 4 == 2 ? labels.z : labels.w;
    return BYTES == 4 ? word : word >> (i * BYTES % 4 * 8) & ((1u << (8 * BYTES % 32)) - 1);
}

// Adds the changed rows of a tile to the warp's list. Returns how many these are.
template <int BYTES, typename T, typename S> __device__ __forceinline__ u32 list_changed(const Deltas<T, S>& a, u32* list, u32 tile, int lane) {
    // Rows from n to the stride never get a label, so both arrays agree there. The stride is a multiple of 1,024.
    const u64 byte = (u64)tile * LABEL_BYTES + lane * 16;
    const uint4 before = *(const uint4*)((const u8*)a.labels.at + byte), after = *(const uint4*)((const u8*)a.next.at + byte);
    const u32 row = byte / BYTES;
    const bool differs = before.x != after.x || before.y != after.y || before.z != after.z || before.w != after.w;
    if (!__any_sync(FULL_WARP, differs)) return 0;
    u32 mine = 0;
    if (differs) {
#pragma unroll
        for (int i = 0; i < 16 / BYTES; i++)
            mine |= row + i < a.rows.n && label_of<BYTES>(before, i) != label_of<BYTES>(after, i) ? 1u << i : 0u;
        if (a.rows.w)
            for (u32 left = mine; left; left &= left - 1)
                if (!(a.rows.w[row + __ffs(left) - 1] > 0.0)) mine &= ~(left & (0u - left));
    }
    const u32 own = __popc(mine);
    u32 until = own; // changed rows of this lane and of the lanes before it
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
        const u32 other = __shfl_up_sync(FULL_WARP, until, o);
        until += lane >= o ? other : 0;
    }
    u32 place = until - own;
#pragma unroll
    for (int i = 0; i < 16 / BYTES; i++)
        if (mine >> i & 1) list[place++] = row + i;
    return __shfl_sync(FULL_WARP, until, 31);
}

template <int BYTES, typename T, typename S> __device__ __forceinline__ void deltas(const Deltas<T, S>& a, uint4* shared, const u32& stop) {
    const u32 TILE = LABEL_BYTES / BYTES; // rows a warp compares at once
    const Sums& s = a.sums;
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
    const u32 tiles = a.rows.n / TILE + (a.rows.n % TILE != 0);
    // Blocks with the same chunk share the rows.
    const u32 sharing = max(1u, gridDim.x / (u32)a.chunks), share = blockIdx.x % sharing;
    const u32 begin = (u32)((u64)tiles * share / sharing), end = (u32)((u64)tiles * (share + 1) / sharing);

    // Shared memory: the lists of the warps, the factors of the chunk, padded to 16 bytes, then the table.
    u32* const list = (u32*)shared + warp * (TILE + 32);
    double* const factors = (double*)((u32*)shared + WARPS * (TILE + 32));
    uint4* const words = (uint4*)factors + (3 * a.chunk + 1) / 2;
    Moves table;
    table.words = (u32*)words;
    table.factors = (const Factors*)factors;
    table.copies = a.table_copies;
    table.across = s.k | 1;
    table.plane = (u32)(a.chunk * s.limbs * table.across) * (u32)table.copies;
    table.plain = sizeof(T) == 4 && !a.rows.w && s.limbs == 1 && table.copies != 0;

    u64 changed = 0;
#pragma unroll 1
    for (u32 chunk = blockIdx.x / sharing; chunk < (u32)a.chunks; chunk += max(1u, gridDim.x / sharing)) {
        table.first = (int)chunk * a.chunk;
        table.columns = min(a.chunk, s.columns - table.first);
        table.counts = table.first + a.chunk > s.columns;
        const u32 pieces = (2 * table.plane + 3) / 4;
#pragma unroll 1
        for (u32 i = tid; i < pieces; i += THREADS) words[i] = make_uint4(0, 0, 0, 0);
        const int features = min(table.columns, a.rows.d - table.first);
#pragma unroll 1
        for (int i = tid; i < features; i += THREADS) {
            Factors f = a.factors[table.first + i];
            if (table.plain) f.first = __dmul_rn(f.first, f.second), f.second = 1.0;
            factors[3 * i] = f.first, factors[3 * i + 1] = f.second, factors[3 * i + 2] = f.low;
        }
        if (stop) return;
        __syncthreads();
        u32 held = 0;
#pragma unroll 1
        for (u32 tile = begin + warp; tile < end; tile += WARPS) {
            const u32 found = list_changed<BYTES>(a, list + held, tile, lane);
            if (found == 0) continue;
            changed += found, held += found;
            __syncwarp();
            u32 done = 0;
#pragma unroll 1
            for (; done + 32 <= held; done += 32) move_rows(a, table, list + done, 32);
            held -= done;
            const u32 left = (u32)lane < held ? list[done + lane] : 0;
            __syncwarp();
            list[lane] = left;
            __syncwarp();
        }
        if (held != 0) move_rows(a, table, list, held);
        __syncthreads();
        if (table.copies != 0) flush_moves(table, s);
        __syncthreads(); // the next chunk clears the table
        if (chunk != 0) changed = 0;
        if (lane == 0 && changed != 0) atomicAdd(&a.control->changed, changed);
        changed = 0;
    }
}

#define DELTAS(T, S, NAME)                                                                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) NAME(const __grid_constant__ Deltas<T, S> a) {                           \
        extern __shared__ __align__(16) uint4 shared[];                                                                            \
        wait_for_kernel_before();                                                                                                  \
        const u32 stop = a.control->stop;                                                                                          \
        if (a.labels.bytes == 1) deltas<1>(a, shared, stop);                                                                       \
        else if (a.labels.bytes == 2) deltas<2>(a, shared, stop);                                                                  \
        else deltas<4>(a, shared, stop);                                                                                           \
    }

DELTAS(float, float, deltas_f32)
DELTAS(double, double, deltas_f64)
DELTAS(float, Half, deltas_f16)

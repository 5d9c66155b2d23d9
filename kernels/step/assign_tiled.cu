// assign_tiled: labels for many features (any d and k are allowed). A float32 product filter, tiled like a matrix product and fused
// with the search for the nearest centroid. So the n x k scores are never written.
//
//   h_j = - x.c_j + |c_j|^2 / 2   on centred, scaled float32 copies of rows and centroids
//   for each tile of rows, for each tile of centroids:
//     for each step of 8 or 16 features:  copy the next tiles to shared memory; 8 x 8 scores a thread += x^ . (-c^)
//     best, second best and index of each row, merged over the lanes that share its scores; with panels the third best too
//   if the second best is out of reach of the best, the label is certified
//   else, if the third best is out of reach, the row goes to the list of pairs
//   else it goes to the list of rows to compare with all centroids
//
// Source: Li et al. 2010, algorithm 4 (the product in tiles of shared memory, for high d). Centroids come in portions, so any k fits:
// Zechner & Granitzer 2009, kmcuda 2016. Departures: (1) Registers hold the scores, and the search reads them there. (2) The copies of
// rows are made on the way to shared memory, so nothing of size n x d is stored besides x. (3) Scores only rank the centroids.
// Reference distances decide the label, by the bound of src/certify.rs.
//
// Used when: d > 12, or few rows and many clusters (src/backend/cuda/chooser.rs).
// Tiles: 128 rows by 128, 64 or 32 centroids (suffix _k128, _k64, _k32), for k above 64, up to 64, up to 32. The suffix changes only
// the speed. The variants _panels are for d > 128 with k > 64, and for d > 64 with 32 < k <= 64, if the blocks fit
// (src/backend/cuda/plan.rs). Their bound is made for fewer roundings. A block has 256, 128 or 64 threads. The grid is persistent: a
// block takes every gridDim.x-th tile of rows. Its pipeline runs across the borders of tiles, which matters if d is only a few steps.
// Memory: 18 to 48 KB of static shared memory a block. The variants _panels have another 33 or 66 KB of dynamic shared memory (64
// floats a thread, and the third best scores).
// Precision: a score is one chain of d fmas, and |c|^2 / 2 is added to it. The variants _panels add up partial sums of PANEL
// features, the first to the second and so on. The sum of squares weighs each feature by the number of roundings of its product
// (`weight_of`). That sum has at most d + 8 roundings itself.
// Relies on: x, copies and half_squares are aligned to 16 bytes. The stride is a multiple of 128. k_padded is a multiple of 128, with
// zero copies and infinite half squares from k on. copies has d rows (feature-major), and nothing after them is read.
#include "best.cuh"

// The fewest steps of a tile. A row tile leaves its results in shared memory. With at least three steps, a barrier always lies between
// the reads of these results and the first writes of the next row tile. So they need no barrier of their own.
#define FEWEST_STEPS 3
#define ROWS 128
// Rows and centroids of a warp. Its lanes form an 8 x 4 grid. Each lane has two groups of 4 rows and two groups of 4 centroids.
#define WARP_ROWS 64
#define WARP_COLUMNS 32

// Hides a value from the compiler, which then neither computes it again nor moves it out of a loop.
__device__ __forceinline__ u32 opaque(u32 v) {
    asm volatile("" : "+r"(v));
    return v;
}

// ---- asynchronous copies -------------------------------------------------------------------------------------------------------

// Copies 16 bytes to a constant offset from an address in shared memory. KEEP: keeps them in the first-level cache too.
template <int OFFSET, bool KEEP> __device__ __forceinline__ void copy_async(u32 shared, const void* global) {
    if (KEEP) asm volatile("cp.async.ca.shared.global [%0 + %2], [%1], 16;" ::"r"(shared), "l"(global), "n"(OFFSET) : "memory");
    else asm volatile("cp.async.cg.shared.global [%0 + %2], [%1], 16;" ::"r"(shared), "l"(global), "n"(OFFSET) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for all copy groups of this thread, except the last LEFT.
template <int LEFT> __device__ __forceinline__ void await_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

// ---- shared memory -------------------------------------------------------------------------------------------------------------

// The values of one step. A thread requests x, four rows of a feature at a time. When its own values have arrived, it turns them into
// centred, scaled copies, before the barrier that shows them to the other threads. float32 values are turned in place. float64 values
// (16 bytes in each of two planes) go to the first plane. Thread t owns places t, t + threads, ... of every array.
// Aligned to 128 bytes: otherwise a warp's copy is split in halves.
template <typename T, int COLUMNS, int STEP> struct alignas(128) Stage {
    static const int planes = sizeof(T) / sizeof(float);

    float4 x[planes][STEP * ROWS / 4];
    float4 copies[STEP * COLUMNS / 4];

    static const int plane = STEP * ROWS * 4, copies_at = planes * plane;
};

// STEP: features between two barriers. RING: steps in shared memory, one in use and the others on their way.
template <typename T, int COLUMNS, int STEP, int RING> struct alignas(128) TiledShared {
    static const int threads = ROWS * COLUMNS / 64, warps = threads / 32;
    static const int warps_across = COLUMNS / WARP_COLUMNS;

    Stage<T, COLUMNS, STEP> stages[RING];
    float4 half_squares[COLUMNS / 4]; // of the current tile of centroids
    float4 squares[warps][ROWS / 4];
    float2 best[warps_across][ROWS / 2], second[warps_across][ROWS / 2];
    uint2 index[warps_across][ROWS / 2];

    static const int half_squares_at = RING * sizeof(Stage<T, COLUMNS, STEP>);
};

// Place p of a tile of rows holds row `place_row<T>(p)`. Lane l fetches places 4 l to 4 l + 3. For float64 these are rows
// 2 l, 2 l + 1, 64 + 2 l, 65 + 2 l, so each read of a warp has consecutive addresses.
template <typename T> __device__ __forceinline__ int place_row(int place) {
    return sizeof(T) == 4 ? place : (place >> 2) * 2 + (place & 1) + (place & 2) * (ROWS / 4);
}

__device__ __forceinline__ float4 copy_of(float4 x, const float4*, float centre, float scale) {
    float4 v = {centred_copy(x.x, centre, scale), centred_copy(x.y, centre, scale), centred_copy(x.z, centre, scale),
                centred_copy(x.w, centre, scale)};
    return v;
}
__device__ __forceinline__ double2 as_doubles(float4 bits) {
    double2 v = {__hiloint2double(__float_as_int(bits.y), __float_as_int(bits.x)),
                 __hiloint2double(__float_as_int(bits.w), __float_as_int(bits.z))};
    return v;
}
__device__ __forceinline__ float4 copy_of(float4 x, const float4* second_plane, double centre, double scale) {
    double2 low = as_doubles(x), high = as_doubles(*second_plane);
    float4 v = {centred_copy(low.x, centre, scale), centred_copy(low.y, centre, scale), centred_copy(high.x, centre, scale),
                centred_copy(high.y, centre, scale)};
    return v;
}

// Appends the rows of all lanes that are `listed`, with one addition to the counter a warp. All lanes of the warp must call this.
__device__ __forceinline__ void list_rows(bool listed, u32* counter, Contested* list, int direction, Contested entry, int lane) {
    const u32 mask = __ballot_sync(FULL_WARP, listed);
    if (mask == 0) return;
    const int leader = __ffs((int)mask) - 1;
    u32 position = 0;
    if (lane == leader) position = atomicAdd(counter, (u32)__popc(mask));
    position = __shfl_sync(FULL_WARP, position, leader) + (u32)__popc(mask & ((1u << lane) - 1));
    if (listed) list[direction * (i64)position] = entry;
}

// Requests features `warp` + I * WARPS, ... of a step. WHOLE: all features of the step exist.
template <typename Q, bool WHOLE, int I, int FETCHES, int WARPS, int THREADS, typename T>
__device__ __forceinline__ void fetch_rows(u32 to, const T* x, u64 stride, int warp, int left) {
    if constexpr (I < FETCHES) {
        if (WHOLE || warp + I * WARPS < left) {
            const T* at = x + (u64)(I * WARPS) * stride;
            copy_async<I * THREADS * 16, false>(to, at);
            if constexpr (sizeof(T) == 8) copy_async<I * THREADS * 16 + Q::plane, false>(to, at + ROWS / 2);
        }
        fetch_rows<Q, WHOLE, I + 1, FETCHES, WARPS, THREADS>(to, x, stride, warp, left);
    }
}

// Requests this thread's four centroid copies of feature `feature` + I * COPIED, ... of a step. Copies of few centroids are read again
// for every tile of rows, so they may stay in the first-level cache.
template <typename Q, bool WHOLE, int I, int COPIES, int COPIED, int COLUMNS>
__device__ __forceinline__ void fetch_copies(u32 to, const float* copies, int k_padded, int feature, int left) {
    if constexpr (I < COPIES) {
        if (WHOLE || feature + I * COPIED < left)
            copy_async<Q::copies_at + I * COPIED * COLUMNS * 4, (COLUMNS < 128)>(to, copies + (u64)(I * COPIED) * k_padded);
        fetch_copies<Q, WHOLE, I + 1, COPIES, COPIED, COLUMNS>(to, copies, k_padded, feature, left);
    }
}

// With panels, `totals` holds partial sums (64 floats a thread) and `thirds` is (warps across, 64), with two rows in each entry.
template <int PANEL, typename T, int COLUMNS, int STEP, int RING>
__device__ __forceinline__ void assign_tiled(const Assign<T>& a, TiledShared<T, COLUMNS, STEP, RING>& s, float4* totals, float2* thirds) {
    typedef TiledShared<T, COLUMNS, STEP, RING> S;
    typedef Stage<T, COLUMNS, STEP> Q;
    const int THREADS = S::threads, WARPS = S::warps, FETCHES = STEP / WARPS;
    // COPIED: features whose centroid copies all threads together request at once. COPIES: how often they do so in a step.
    const int COPIED = THREADS / (COLUMNS / 4), COPIES = STEP / COPIED;
    const bool PANELS = PANEL != 0;
    const int PANEL_STEPS = PANELS ? PANEL / STEP : 1;
    // RUN: features whose products are unrolled. 8 features are 9 KB of instructions, which can stay in a cache near the scheduler. A
    // whole step is unrolled if no register is left for a loop counter.
    const int RUN = PANELS && COLUMNS == 128 ? STEP : 8;
    typedef Best<PANELS> Nearest;
    static_assert(STEP % S::warps == 0 && STEP % COPIED == 0 && PANEL % 16 == 0 && 16 % STEP == 0 && ROWS == 4 * 32, "tiles do not divide");

    wait_for_kernel_before();
    if (a.control->stop) return;
    const u32 row_tiles = a.rows.n / ROWS + (a.rows.n % ROWS != 0);
    if (blockIdx.x >= row_tiles) return;

    const int tid = sizeof(T) == 4 ? (int)opaque(threadIdx.x) : (int)threadIdx.x, lane = tid & 31, warp = tid >> 5;
    const int d = a.rows.d;
    const u32 column_tiles = ((u32)a.k + COLUMNS - 1) / COLUMNS;
    const u32 steps = max(FEWEST_STEPS, (d + STEP - 1) / STEP);

    // Fetching: a warp takes features warp, warp + WARPS, ... of a step, and a lane takes the same four rows of each. A thread also
    // takes four centroid copies of one feature.
    const int copies_feature = tid / (COLUMNS / 4);
    // Multiplying: lanes 0 and 1 have the same rows, and lanes 0 and 2 the same centroids. So reads of 16 bytes pair up. Warps that share
    // centroids have consecutive numbers, so in a last, narrow tile the warps with work are on two schedulers.
    const int warp_row = warp % (ROWS / WARP_ROWS), warp_column = warp / (ROWS / WARP_ROWS);
    // The first group of 4 rows and of 4 centroids, in one register. The second groups are 8 and 4 places further.
    const u32 operands = opaque((warp_row * (WARP_ROWS / 4) + ((lane >> 1) & 7)) << 16 | warp_column * (WARP_COLUMNS / 4) +
                                ((lane & 1) | ((lane >> 4) << 1)));
    const u32 x_at = operands >> 16, c_at = operands & 0xffff;

    // This thread's first place in the first stage. `opaque` keeps it in a register, so it is not computed again and again.
    const u32 places = opaque((u32)__cvta_generic_to_shared(&s) + tid * 16);
    const T* asked_x;
    const float* asked_copies;
    int asked_d = d; // 0 if there is no further tile
    auto ask_tile = [&](u32 row_tile, u32 column_tile) {
        row_tile = opaque(row_tile); // computed once a tile, so not worth registers during the steps before
        column_tile = opaque(column_tile);
        asked_x = a.rows.x + (u64)warp * a.rows.stride + (u64)row_tile * ROWS + place_row<T>(4 * lane);
        const u64 column = (u64)column_tile * COLUMNS + 4 * (tid % (COLUMNS / 4));
        asked_copies = a.copies + (u64)copies_feature * a.k_padded + column;
    };
    auto ask = [&](u32 step, u32 slot) {
        const int left = asked_d - (int)step * STEP;
        const u32 to = places + slot * (u32)sizeof(Q);
        if (left >= STEP) {
            fetch_rows<Q, true, 0, FETCHES, WARPS, THREADS>(to, asked_x, a.rows.stride, warp, left);
            fetch_copies<Q, true, 0, COPIES, COPIED, COLUMNS>(to, asked_copies, a.k_padded, copies_feature, left);
        } else {
            fetch_rows<Q, false, 0, FETCHES, WARPS, THREADS>(to, asked_x, a.rows.stride, warp, left);
            fetch_copies<Q, false, 0, COPIES, COPIED, COLUMNS>(to, asked_copies, a.k_padded, copies_feature, left);
        }
        asked_x += (u64)STEP * a.rows.stride;
        asked_copies += (u64)STEP * a.k_padded;
    };

    // Turns the values that this thread requested into copies. The squares are summed again for every tile of centroids, which is
    // cheaper than a second loop.
    float4 square = {0.0f, 0.0f, 0.0f, 0.0f};
    auto turn = [&](u32 step, Q& stage) {
        const int first = (int)step * STEP + warp;
        const T* centre = a.minus_centre + first;
        float4 part = {0.0f, 0.0f, 0.0f, 0.0f};
        auto turn_feature = [&](int i) {
            const int at = tid + i * THREADS;
            float4 v = copy_of(stage.x[0][at], &stage.x[Q::planes - 1][at], __ldg(&centre[i * WARPS]), a.scale);
            stage.x[0][at] = v;
            part.x = __fmaf_rn(v.x, v.x, part.x);
            part.y = __fmaf_rn(v.y, v.y, part.y);
            part.z = __fmaf_rn(v.z, v.z, part.z);
            part.w = __fmaf_rn(v.w, v.w, part.w);
        };
        if (((int)step + 1) * STEP <= d) {
#pragma unroll
            for (int i = 0; i < FETCHES; i++) turn_feature(i);
        } else {
#pragma unroll 1
            for (int i = 0; first + i * WARPS < d; i++) turn_feature(i);
        }
        const float weight = (float)weight_of((int)step * STEP & ~15, d, PANELS ? PANEL : 0x7fffffff);
        square.x = __fmaf_rn(part.x, weight, square.x);
        square.y = __fmaf_rn(part.y, weight, square.y);
        square.z = __fmaf_rn(part.z, weight, square.z);
        square.w = __fmaf_rn(part.w, weight, square.w);
        if (step + 1 == steps) {
            s.squares[warp][lane] = square;
            square = {0.0f, 0.0f, 0.0f, 0.0f};
        }
    };

    // Decides the rows of a tile from the results of all warps across it.
    auto decide = [&](u32 row_tile) {
#pragma unroll
        for (int p = tid; p < ROWS; p += THREADS) {
            auto found = [&](int w) {
                Nearest b;
                b.best = ((const float*)s.best[w])[p], b.second = ((const float*)s.second[w])[p], b.index = ((const u32*)s.index[w])[p];
                if constexpr (PANELS) b.third = ((const float*)thirds)[w * ROWS + p];
                return b;
            };
            Nearest b = found(0);
#pragma unroll
            for (int w = 1; w < S::warps_across; w++) b.merge(found(w));
            float sum = ((const float*)s.squares[0])[p];
#pragma unroll
            for (int i = 1; i < WARPS; i++) sum = __fadd_rn(sum, ((const float*)s.squares[i])[p]);
            float limit = reach(*a.bound, sum, b.best);

            u64 row = (u64)row_tile * ROWS + place_row<T>(p);
            const bool inside = row < a.rows.n, certified = b.second > limit;
            bool pair = false;
            // All lanes get here, because ROWS and THREADS are multiples of 32.
            if constexpr (PANELS) {
                pair = !certified && b.third > limit;
                list_rows(inside && pair, &a.control->pairs, a.contested, 1, {(u32)row, b.index >> 16}, lane);
            }
            if (inside && (certified || pair)) store_label(a.next, row, b.first());
            list_rows(inside && !certified && !pair, &a.control->contested, a.contested + (a.rows.n - 1), -1, {(u32)row, 0}, lane);
        }
    };

    ask_tile(blockIdx.x, 0);
    for (int i = 0; i < RING - 1; i++) {
        ask(i, i);
        commit_copies();
    }
    await_copies<RING - 2>();
    turn(0, s.stages[0]);
    __syncthreads();

    u32 slot = 0; // the place of the current step in the ring
    for (u32 row_tile = blockIdx.x; row_tile < row_tiles; row_tile += gridDim.x) {
        for (u32 column_tile = 0; column_tile < column_tiles; column_tile++) {
            const u32 first_column = column_tile * COLUMNS;
            // A warp beyond the last centroid multiplies nothing: its half squares are infinite.
            const int features = first_column + warp_column * WARP_COLUMNS < (u32)a.k ? d : 0;
            float scores[8][8];
#pragma unroll
            for (int r = 0; r < 8; r++)
#pragma unroll
                for (int c = 0; c < 8; c++) scores[r][c] = 0.0f;
            // All threads are done with the tile before. The half squares arrive within two steps.
            if (tid < COLUMNS / 4) copy_async<S::half_squares_at, true>(places, a.half_squares + first_column + 4 * tid);

            for (u32 step = 0; step < steps; step++) {
                // Requests the step that is RING - 1 ahead, into the place of the step before, with which all threads are done.
                u32 asked_step = step + RING - 1;
                const u32 free = slot == 0 ? RING - 1 : slot - 1;
                if (asked_step >= steps) {
                    asked_step -= steps;
                    if (asked_step == 0) {
                        bool next_rows = column_tile + 1 == column_tiles;
                        u32 asked_rows = next_rows ? row_tile + gridDim.x : row_tile;
                        if (asked_rows < row_tiles) ask_tile(asked_rows, next_rows ? 0 : column_tile + 1);
                        else asked_d = 0;
                    }
                }
                ask(asked_step, free);
                commit_copies();

                // The partial sums go to shared memory, where each thread has its own places. Neighbours swap places there. So the sum
                // of an even centroid has an odd register and can be read in the same cycle as the centroid's value.
                if (PANELS && step != 0 && step % PANEL_STEPS == 0) {
                    float4* const own = totals + opaque(tid); // computed only here, not in every step
#pragma unroll
                    for (int r = 0; r < 8; r++)
#pragma unroll
                        for (int c = 0; c < 8; c += 4) {
                            float4* at = &own[(r * 2 + c / 4) * THREADS];
                            float4 t = {scores[r][c + 1], scores[r][c], scores[r][c + 3], scores[r][c + 2]};
                            if (step != PANEL_STEPS) {
                                float4 before = *at;
                                t.x = __fadd_rn(before.x, t.x);
                                t.y = __fadd_rn(before.y, t.y);
                                t.z = __fadd_rn(before.z, t.z);
                                t.w = __fadd_rn(before.w, t.w);
                            }
                            *at = t;
                            scores[r][c] = scores[r][c + 1] = scores[r][c + 2] = scores[r][c + 3] = 0.0f;
                            if (r == 3 && c == 4) __syncwarp(); // half of the sums at a time saves registers
                        }
                }

                const float4 *x = s.stages[slot].x[0] + x_at, *c = s.stages[slot].copies + c_at;
                auto multiply = [&]() {
                    float4 x_low = x[0], x_high = x[8], c_low = c[0], c_high = c[4];
                    float xs[8] = {x_low.x, x_low.y, x_low.z, x_low.w, x_high.x, x_high.y, x_high.z, x_high.w};
                    float cs[8] = {c_low.x, c_low.y, c_low.z, c_low.w, c_high.x, c_high.y, c_high.z, c_high.w};
                    // Goes through the columns forwards and backwards in turn, so that neighbouring products share an operand and its
                    // register is read once. The ports of even and of odd registers each give one value a cycle, and a product
                    // needs two values that its neighbour did not read.
#pragma unroll
                    for (int i = 0; i < 8; i++)
#pragma unroll
                        for (int j = 0; j < 8; j++) {
                            const int c = i % 2 ? 7 - j : j;
                            scores[i][c] = __fmaf_rn(xs[i], cs[c], scores[i][c]);
                        }
                    x += ROWS / 4;
                    c += COLUMNS / 4;
                };
                int left = features - (int)step * STEP;
                if (left >= STEP) {
#pragma unroll 1
                    for (int run = 0; run < STEP / RUN; run++) {
#pragma unroll
                        for (int f = 0; f < RUN; f++) multiply();
                    }
                } else {
#pragma unroll 1
                    for (; left > 0; left--) multiply();
                }

                if (step + 1 == steps) {
                    if (PANELS && steps > PANEL_STEPS) {
#pragma unroll
                        for (int r = 0; r < 8; r++)
#pragma unroll
                            for (int c = 0; c < 8; c += 4) {
                                float4 t = totals[(r * 2 + c / 4) * THREADS + tid];
                                scores[r][c + 1] = __fadd_rn(t.x, scores[r][c + 1]);
                                scores[r][c] = __fadd_rn(t.y, scores[r][c]);
                                scores[r][c + 3] = __fadd_rn(t.z, scores[r][c + 3]);
                                scores[r][c + 2] = __fadd_rn(t.w, scores[r][c + 2]);
                            }
                    }
                    {
                        float4 low = s.half_squares[c_at], high = s.half_squares[c_at + 4];
                        float halves[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
                        for (int r = 0; r < 8; r++)
#pragma unroll
                            for (int c = 0; c < 8; c++) scores[r][c] = __fadd_rn(scores[r][c], halves[c]);
                    }
                    const u32 base = first_column + 4 * c_at;
                    // Four lanes share 8 rows. They exchange halves, so each ends with two rows and all have work.
                    const bool upper = lane & 16, odd = lane & 1;
                    Nearest rows[4];
#pragma unroll
                    for (int r = 0; r < 4; r++) {
                        Nearest low = best_of<PANELS>(scores[r], base), high = best_of<PANELS>(scores[r + 4], base);
                        Nearest given = upper ? low : high, kept = upper ? high : low;
                        kept.merge(exchange(given, 16));
                        rows[r] = kept;
                    }
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        Nearest given = odd ? rows[r] : rows[r + 2], kept = odd ? rows[r + 2] : rows[r];
                        kept.merge(exchange(given, 1));
                        rows[r] = kept;
                    }
                    // This lane has rows 2 lane and 2 lane + 1 of the warp.
                    const int at = (int)opaque((u32)(warp_row * (WARP_ROWS / 2) + lane));
                    float2 *best_at = &s.best[warp_column][at], *second_at = &s.second[warp_column][at];
                    uint2* index_at = &s.index[warp_column][at];
                    if (column_tile != 0) {
                        float2 best = *best_at, second = *second_at;
                        uint2 index = *index_at;
                        Nearest before[2];
                        before[0].best = best.x, before[0].second = second.x, before[0].index = index.x;
                        before[1].best = best.y, before[1].second = second.y, before[1].index = index.y;
                        if constexpr (PANELS) {
                            float2 third = thirds[warp_column * (ROWS / 2) + at];
                            before[0].third = third.x, before[1].third = third.y;
                        }
                        rows[0].merge(before[0]);
                        rows[1].merge(before[1]);
                    }
                    *best_at = {rows[0].best, rows[1].best};
                    *second_at = {rows[0].second, rows[1].second};
                    *index_at = {rows[0].index, rows[1].index};
                    if constexpr (PANELS) thirds[warp_column * (ROWS / 2) + at] = {rows[0].third, rows[1].third};
                }

                slot = slot + 1 == RING ? 0 : slot + 1;
                await_copies<RING - 2>();
                // After the last tile this turns values of an earlier step, which nobody reads.
                turn(step + 1 == steps ? 0 : step + 1, s.stages[slot]);
                __syncthreads();
            }
        }
        decide(row_tile);
    }
}

#define ASSIGN_TILED(T, NAME, COLUMNS, BLOCKS, STEP, RING)                                                                         \
    extern "C" __global__ void __launch_bounds__(ROWS * COLUMNS / 64, BLOCKS) NAME(const __grid_constant__ Assign<T> a) {          \
        __shared__ TiledShared<T, COLUMNS, STEP, RING> s;                                                                          \
        assign_tiled<0>(a, s, nullptr, nullptr);                                                                                   \
    }
#define ASSIGN_TILED_PANELS(T, NAME, COLUMNS, BLOCKS, STEP, RING, PANEL)                                                           \
    extern "C" __global__ void __launch_bounds__(ROWS * COLUMNS / 64, BLOCKS) NAME(const __grid_constant__ Assign<T> a) {          \
        __shared__ TiledShared<T, COLUMNS, STEP, RING> s;                                                                          \
        extern __shared__ float4 totals[];                                                                                         \
        assign_tiled<PANEL>(a, s, totals, (float2*)(totals + ROWS * COLUMNS / 4));                                       \
    }

// Longer steps spend a larger share of their instructions on products, but need more registers and more shared memory for arriving
// values. With panels and 64 centroids, three blocks with steps of 16 are faster than four blocks with steps of 8 (1.88 and 1.96 ms for
// 2,097,152 rows of 256 features, H200). With panels of 128 features it is 1.83 ms, but 50 % more rows are in doubt: with settling
// 2.39 ms and not 2.29.
ASSIGN_TILED(float, assign_tiled_f32_k128, 128, 2, 16, 2)
ASSIGN_TILED(float, assign_tiled_f32_k64, 64, 4, 16, 2)
ASSIGN_TILED(float, assign_tiled_f32_k32, 32, 8, 8, 3)
ASSIGN_TILED(double, assign_tiled_f64_k128, 128, 2, 8, 3)
ASSIGN_TILED(double, assign_tiled_f64_k64, 64, 4, 16, 2)
ASSIGN_TILED(double, assign_tiled_f64_k32, 32, 8, 8, 3)
ASSIGN_TILED_PANELS(float, assign_tiled_f32_k128_panels, 128, 2, 16, 2, 128)
ASSIGN_TILED_PANELS(double, assign_tiled_f64_k128_panels, 128, 2, 8, 3, 128)
ASSIGN_TILED_PANELS(float, assign_tiled_f32_k64_panels, 64, 3, 16, 2, 64)
ASSIGN_TILED_PANELS(double, assign_tiled_f64_k64_panels, 64, 3, 16, 2, 64)

// settle: the exact labels of all rows that a filter could not decide.
//
//   settle         rows that may belong to any cluster. If there are many, differences in float32 decide most of them (settle_differences.cuh). The others:
//                  distances to all centroids
//   settle_pairs   rows with two centroids in reach, the best and second best of the filter. Differences in float32 decide most of them
//                  (settle_few_differences.cuh). The others: distances to these two
//
// Used when: after every assign. settle_pairs only if the assign makes a list of pairs. The lists are usually short: they hold ties,
//            and rows whose distances to two centroids differ by less than rounding can tell. They are long if there are many
//            centroids of many features.
// Tile:      settle: a group of 32 to 256 threads, about as many as there are centroids, takes 16, 4 or 1 rows of the list. It takes
//            fewer if the list is too short to fill the device. Each thread takes every width-th centroid. It has a chain in registers
//            for each row, in feature order. So a value of a centroid is loaded once for all of these rows.
//            settle_pairs: a warp takes 4 rows. Where differences do not decide all four, its lanes fetch 64 features of these rows and
//            of their centroids at once. Then 8 lanes compute one chain each. (When each lane fetched for its own chain, 16 features
//            at a time, long lists took a fifth longer.)
// Memory:    settle: the values of the rows are in shared memory as float64, in pieces if there are many features. Centroids are read
//            column by column from the second-level cache. settle_pairs: single values of x, each of which costs 32 bytes or more of
//            memory traffic.
// Precision: differences in float32 decide only where their bound proves the label. Else float64, exactly as the contract defines it: the
//            label is the smallest j of least distance.
#include "settle_differences.cuh"
#include "settle_few_differences.cuh"

// Each of `groups` groups has THREADS / groups threads, and takes ROWS rows at a time. All are powers of two.
// Either the rows of the list from `begin` on, every gridDim.x-th batch. Or the LEFT rows, which this block has left over itself (settle_differences.cuh).
template <int ROWS, bool LEFT, typename T, typename S>
__device__ __forceinline__ void settle(const Settle<T, S>& a, double* shared, double (&least_of)[8][MOST_ROWS], u32 (&label_of)[8][MOST_ROWS],
                                       u32 count, int groups, u64 begin) {
    // Loads of centroid values in flight. With few rows there is little work to hide them behind, so there are more.
    const int FLIGHT = ROWS == MOST_ROWS ? 8 : ROWS == 4 || sizeof(T) == 8 ? 12 : 24;
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
    const int width = THREADS / groups, group = tid / width, member = tid - group * width;
    // This thread fetches features first, first + step, ... of one row. In the end threads tid < rows store the labels.
    const int rows = groups * ROWS, place = tid & (rows - 1), first = tid / rows, step = THREADS / rows;
    const int d = a.rows.d, k = a.k, piece = min(d, a.values / rows);
    double* const to = shared + (place / ROWS) * piece * ROWS + place % ROWS;
    const double* const from = shared + group * piece * ROWS;
    const bool whole = piece == d;

#pragma unroll 1
    for (u64 base = begin; base < count; base += LEFT ? rows : (u64)gridDim.x * rows) {
        const bool listed = base + place < count;
        u32 row = 0;
        if (listed) row = LEFT ? left_over(a, (u32)(base + place), groups).second : a.in_doubt[a.rows.n - 1 - (u32)(base + place)].row;
        double least[ROWS];
        u32 label[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) least[r] = infinity(), label[r] = 0;

#pragma unroll 1
        for (int start = 0; start < k; start += width) {
            const int j = start + member;
            double s[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) s[r] = 0.0;
#pragma unroll 1
            for (int done = 0; done < d; done += piece) {
                const int features = min(piece, d - done);
                if (!whole || start == 0) {
                    __syncthreads(); // all threads are done with the piece before
#pragma unroll 4
                    for (int f = first; f < features; f += step)
                        to[f * ROWS] = listed ? (double)a.rows.at((u64)row * (u32)a.rows.step + (u64)(done + f) * a.rows.stride) : 0.0;
                    __syncthreads();
                }
                if (j < k) {
                    const T* c = a.centroid_columns + (u64)done * k + j;
                    const double* values = from;
                    auto add = [&](double centroid) {
#pragma unroll
                        for (int r = 0; r < ROWS; r++) {
                            double t = __dadd_rn(values[r], -centroid);
                            s[r] = __fma_rn(t, t, s[r]);
                        }
                        values += ROWS;
                    };
#pragma unroll 1
                    for (int left = features; left > 0; left -= FLIGHT, c += (u64)FLIGHT * k) {
                        T centroid[FLIGHT];
#pragma unroll
                        for (int i = 0; i < FLIGHT; i++) centroid[i] = i < left ? c[(u64)i * k] : (T)0;
#pragma unroll
                        for (int i = 0; i < FLIGHT; i++)
                            if (i < left) add((double)centroid[i]);
                    }
                }
            }
            if (j < k) {
#pragma unroll
                for (int r = 0; r < ROWS; r++)
                    if (s[r] < least[r]) least[r] = s[r], label[r] = (u32)j;
            }
        }

        // A thread that found nothing has label 0 and distance infinity. Every finite distance beats it. If all are infinite, the label
        // is 0.
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
#pragma unroll
            for (int o = 16; o; o >>= 1) {
                double other = __shfl_xor_sync(FULL_WARP, least[r], o);
                u32 j = __shfl_xor_sync(FULL_WARP, label[r], o);
                if (other < least[r] || (other == least[r] && j < label[r])) least[r] = other, label[r] = j;
            }
            if (lane == 0) least_of[warp][r] = least[r], label_of[warp][r] = label[r];
        }
        __syncthreads();
        if (tid < rows && listed) {
            const int warps = width / 32, r = place % ROWS;
            int w = place / ROWS * warps;
            double best = least_of[w][r];
            u32 nearest = label_of[w][r];
#pragma unroll 1
            for (int i = 1; i < warps; i++) {
                w++;
                double other = least_of[w][r];
                u32 j = label_of[w][r];
                if (other < best || (other == best && j < nearest)) best = other, nearest = j;
            }
            store_label(a.next, row, nearest);
        }
        // The next rows write their least distances only after the barrier of their first piece.
    }
}

// PAIRS: rows of a warp. PIECE: features that it fetches at a time. PAIR_WARPS: warps of a block.
#define PAIRS 4
#define PIECE 64
#define PAIR_WARPS 4

struct Piece {
    double values[PIECE][PAIRS];
    double centroids[2 * PAIRS][PIECE + 2]; // two more, so no two chains read from the same bank
};

// The labels of a warp's rows by differences: lane 2 r gets that of row r. UNASSIGNED: differences cannot decide. Lanes 2 r and 2 r + 1 hold `row` r and
// its candidates `j`.
template <typename S> __device__ __forceinline__ u32 settle_pairs_by_differences(const Settle<float, S>& a, u32 row, u32 j, int lane) {
    const Differences bound = bound_of_lanes(a.rows.d, a.scale);
    u32 label = UNASSIGNED;
#pragma unroll
    for (int round = 0; round < PAIRS * DIFFERENCE_LANES / 32; round++) {
        const int from = (round * (32 / DIFFERENCE_LANES) + lane / DIFFERENCE_LANES) * 2;
        const u32 pair[2] = {__shfl_sync(FULL_WARP, j, from), __shfl_sync(FULL_WARP, j, from + 1)};
        const Two two = least_two<2>(a.rows, __shfl_sync(FULL_WARP, row, from), a.centroids, a.scale, 2, [&](u32 i) { return i ? pair[1] : pair[0]; });
        const u32 found = two.second > bound.reach(two.least, bound.offset) ? two.label : UNASSIGNED;
        const u32 given = __shfl_sync(FULL_WARP, found, lane / 2 % (32 / DIFFERENCE_LANES) * DIFFERENCE_LANES);
        if (lane / 2 / (32 / DIFFERENCE_LANES) == round) label = given;
    }
    return label;
}
template <typename S> __device__ __forceinline__ u32 settle_pairs_by_differences(const Settle<double, S>&, u32, u32, int) { return UNASSIGNED; }

template <typename T, typename S> __device__ __forceinline__ void settle_pairs(const Settle<T, S>& a, Piece& piece, u32 count) {
    const int lane = threadIdx.x & 31, d = a.rows.d;
    DifferenceTrial trial;
#pragma unroll 1
    for (u64 base = (u64)(threadIdx.x / 32 * gridDim.x + blockIdx.x) * PAIRS; base < count; base += (u64)gridDim.x * PAIR_WARPS * PAIRS) {
        // Lanes 2 r and 2 r + 1 hold row r and its first and second centroid. So do the lanes 8, 16 and 24 further.
        const u64 at = base + (lane % (2 * PAIRS)) / 2;
        const RowInDoubt one = a.in_doubt[min(at, (u64)count - 1)];
        const u32 j = lane & 1 ? one.second : load_label(a.next, one.row);
        const bool stores = lane < 2 * PAIRS && !(lane & 1) && at < count;
        if (sizeof(T) == 4 && trial.pays()) {
            const u32 label = settle_pairs_by_differences(a, one.row, j, lane);
            const u32 left = __popc(__ballot_sync(FULL_WARP, stores && label == UNASSIGNED));
            trial.tried += PAIRS, trial.left += left;
            if (left == 0) {
                if (stores) store_label(a.next, one.row, label);
                continue;
            }
        }
        const S* const x = a.rows.of(__shfl_sync(FULL_WARP, one.row, lane % PAIRS * 2));
        double s = 0.0;
#pragma unroll 1
        for (int done = 0; done < d; done += PIECE) {
            const int features = min(PIECE, d - done);
            T values[PIECE * PAIRS / 32], centroids[2 * PAIRS][PIECE / 32];
#pragma unroll
            for (int i = 0; i < PIECE * PAIRS / 32; i++) {
                const int f = i * (32 / PAIRS) + lane / PAIRS;
                values[i] = f < features ? a.rows.value(x[(u64)(done + f) * a.rows.stride]) : (T)0;
            }
#pragma unroll
            for (int c = 0; c < 2 * PAIRS; c++) {
                const T* from = a.centroids + (u64)__shfl_sync(FULL_WARP, j, c) * d + done;
#pragma unroll
                for (int i = 0; i < PIECE / 32; i++) centroids[c][i] = i * 32 + lane < features ? from[i * 32 + lane] : (T)0;
            }
            __syncwarp(); // all lanes are done with the piece before
#pragma unroll
            for (int i = 0; i < PIECE * PAIRS / 32; i++) (&piece.values[0][0])[i * 32 + lane] = (double)values[i];
#pragma unroll
            for (int c = 0; c < 2 * PAIRS; c++)
#pragma unroll
                for (int i = 0; i < PIECE / 32; i++) piece.centroids[c][i * 32 + lane] = (double)centroids[c][i];
            __syncwarp();
            if (lane < 2 * PAIRS) {
#pragma unroll 8
                for (int f = 0; f < features; f++) {
                    double t = __dadd_rn(piece.values[f][lane / 2], -piece.centroids[lane][f]);
                    s = __fma_rn(t, t, s);
                }
            }
        }
        const double other = __shfl_xor_sync(FULL_WARP, s, 1);
        const u32 other_j = __shfl_xor_sync(FULL_WARP, j, 1);
        if (stores) store_label(a.next, one.row, other < s || (other == s && other_j < j) ? other_j : j);
    }
}

#define SETTLE(T, S, NAME)                                                                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) NAME(const __grid_constant__ Settle<T, S> a) {                           \
        extern __shared__ __align__(16) double shared[];                                                                           \
        __shared__ double least_of[8][MOST_ROWS];                                                                                  \
        __shared__ u32 label_of[8][MOST_ROWS];                                                                                     \
        __shared__ LeftByDifferences left_rows;                                                                                                  \
        wait_for_kernel_before();                                                                                                  \
        if (a.control->stop) return;                                                                                               \
        const u32 count = a.control->in_doubt;                                                                                    \
        if (count < a.fewest) return;                                                                                                  \
        const int groups = a.k <= 32 ? 8 : a.k <= 64 ? 4 : a.k <= 128 ? 2 : 1;                                                     \
        const u64 most = (u64)gridDim.x * groups;                                                                                  \
        const u64 first = (u64)blockIdx.x * groups;                                                                                \
        if (count >= 8 * most) {                                                                                                   \
            u64 begin = 16 * first;                                                                                                \
            if (threadIdx.x == 0) left_rows.left = 0;                                                                                 \
            settle_by_differences(a, (float*)shared, left_rows, count, groups, begin);                                                                 \
            settle<16, false>(a, shared, least_of, label_of, count, groups, begin);                                                \
            __syncthreads();                                                                                                       \
            if (left_rows.left > (u32)groups) settle<4, true>(a, shared, least_of, label_of, left_rows.left, groups, 0);                 \
            else settle<1, true>(a, shared, least_of, label_of, left_rows.left, groups, 0);                                           \
        } else if (count >= 2 * most) {                                                                                            \
            settle<4, false>(a, shared, least_of, label_of, count, groups, 4 * first);                                             \
        } else {                                                                                                                   \
            settle<1, false>(a, shared, least_of, label_of, count, groups, first);                                                 \
        }                                                                                                                          \
    }
#define SETTLE_PAIRS(T, S, NAME)                                                                                                      \
    extern "C" __global__ void __launch_bounds__(32 * PAIR_WARPS, 6) NAME(const __grid_constant__ Settle<T, S> a) {                   \
        __shared__ Piece pieces[PAIR_WARPS];                                                                                       \
        wait_for_kernel_before();                                                                                                  \
        if (a.control->stop) return;                                                                                               \
        const u32 count = a.control->pairs;                                                                                        \
        if (count != 0) settle_pairs(a, pieces[threadIdx.x / 32], count);                                                          \
    }

SETTLE(float, float, settle_f32)
SETTLE(double, double, settle_f64)
SETTLE(float, Half, settle_f16)
SETTLE_PAIRS(float, float, settle_pairs_f32)
SETTLE_PAIRS(double, double, settle_pairs_f64)
SETTLE_PAIRS(float, Half, settle_pairs_f16)

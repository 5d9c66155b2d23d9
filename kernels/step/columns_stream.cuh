// The columns of a tile of rows for kernels/step/assign_columns.cu, and the scores that they are turned into.
#pragma once
#include "../common/filter.cuh"

#define ROWS 4
#define TILE (32 * ROWS)

// The shape of one kernel. K: centroids, with padding. STEP: columns between two waits. RING: steps in shared memory, one in use and the
// others on their way. Together these are 60 to 64 KB for each SM, which hides the way from memory. THREADS: as many as their registers
// allow.
//
// Value: the type of a value in arithmetic. Stored: its type in memory.
template <typename Value, typename Stored, int K> struct Shape {
    typedef Value T;
    typedef Stored V;
    static const int k = K, planes = sizeof(Value) / 4, step = 2;
    static const int unrolled = K < 32 ? step : 1; // for 32 centroids no register is left for two columns at a time
    static const int threads = sizeof(Value) == 4 && K < 32 ? 512 : 384, warps = threads / 32;
    static const int ring = sizeof(Value) == 8 ? 3 : K < 32 ? 5 : 6;
    // Floats of a feature in shared memory: the copies of all centroids, `minus_centre`, the weight of its square, and padding to 16 bytes.
    static const int weight_at = K + planes, width = (weight_at + 4) / 4 * 4;
    static const int place = is_half<Stored> ? 8 : 16; // bytes of a thread's rows of a column, or of two of them
    static const int ring_bytes = ring * step * planes * threads * place;
};

// The place of row `r` of lane `lane` in a tile. 16 bytes of a float64 column hold two rows. A lane has two such pairs, so each copy of a
// warp reads consecutive addresses.
template <typename T> __device__ __forceinline__ u32 place_of(int lane, int r) {
    return sizeof(T) == 4 ? lane * ROWS + r : (r >> 1) * (TILE / 2) + lane * 2 + (r & 1);
}

// A thread's own way from memory to its registers: it copies four rows of every column to its own places in shared memory, and reads only
// these. So no barrier is needed. The copies run ahead across the border of a tile.
template <typename S> struct Stream {
    typedef typename S::T T;

    typedef typename S::V V;

    const Rows<T, V>& rows;
    const u32 tiles;
    const unsigned char* own; // this thread's first place
    u32 row; // this thread's first row of the tile whose columns are requested
    int left; // its columns that were not requested yet, in whole steps; negative if there is no such tile
    u32 slot; // the place of the current step in the ring

    __device__ __forceinline__ Stream(const Rows<T, V>& rows, u32 tiles, unsigned char* ring)
        : rows(rows), tiles(tiles), own(ring + threadIdx.x * S::place), slot(0) {}

    // The tile whose columns are requested.
    __device__ __forceinline__ u32 asked() const { return row / TILE; }
    __device__ __forceinline__ void begin(u32 tile) {
        row = tile * TILE + place_of<T>(threadIdx.x & 31, 0);
        left = tile < tiles ? padded() : -S::step;
    }
    __device__ __forceinline__ int padded() const { return (rows.d + S::step - 1) / S::step * S::step; }
    // Requests the next step of columns into a slot. What is beyond the last column becomes 0. The group of copies may be empty.
    __device__ __forceinline__ void ask(u32 into) {
        const u32 to = (u32)__cvta_generic_to_shared(own) + into * (S::step * S::planes * S::threads * S::place);
        if (left > 0) {
            const V* x = rows.x + row + (u64)(u32)(padded() - left) * rows.stride; // computed again, to save registers
#pragma unroll
            for (int i = 0; i < S::step; i++) {
                const bool last = left == S::step && i > (rows.d - 1) % S::step;
                const int bytes = last ? 0 : S::place;
#pragma unroll
                for (int p = 0; p < S::planes; p++) {
                    const u32 at = to + (i * S::planes + p) * S::threads * S::place;
                    const V* const from = x + p * (TILE / 2);
                    if constexpr (is_half<V>)
                        asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
                    else asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
                }
                if (!last) x += rows.stride;
            }
        }
        left -= S::step;
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    // Waits for the current step.
    __device__ __forceinline__ void wait() const { asm volatile("cp.async.wait_group %0;" ::"n"(S::ring - 1) : "memory"); }
    // The four rows of column i of the current step.
    __device__ __forceinline__ void take(int i, float (&out)[ROWS]) const {
        const unsigned char* const at = own + (slot * S::step + i) * S::threads * S::place;
        if constexpr (is_half<V>) {
            half_values(*(const uint2*)at, rows.bfloat16, out);
        } else {
            const float4 v = *(const float4*)at;
            out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
        }
    }
    __device__ __forceinline__ void take(int i, double (&out)[ROWS]) const {
        const unsigned char* const at = own + (slot * S::step + i) * 2 * S::threads * S::place;
        const double2 v = *(const double2*)at, w = *(const double2*)(at + S::threads * S::place);
        out[0] = v.x, out[1] = v.y, out[2] = w.x, out[3] = w.y;
    }
};

// Scores of a thread's four rows.
template <int K> struct Scores {
    float h[K][ROWS];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int j = 0; j < K; j++)
#pragma unroll
            for (int r = 0; r < ROWS; r++) h[j][r] = 0.0f;
    }
};

// Adds the products of column i of the current step. `feature`: the copies of the centroids there. `square`: the weighted sum of the squares of
// the rows' copies.
template <typename S>
__device__ __forceinline__ void add_column(const Stream<S>& stream, int i, const float* feature, typename S::T scale, Scores<S::k>& scores,
                                           float (&square)[ROWS]) {
    typedef typename S::T T;
    T raw[ROWS];
    stream.take(i, raw);
    float x[ROWS];
    const T minus_centre = *(const T*)(feature + S::k);
    const float weight = feature[S::weight_at];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        x[r] = centred_copy(raw[r], minus_centre, scale);
        square[r] = __fmaf_rn(__fmul_rn(x[r], weight), x[r], square[r]);
    }
#pragma unroll
    for (int first = 0; first < S::k; first += 4) {
        const float4 v = *(const float4*)(feature + first);
        const float c[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int j = 0; j < (S::k == 2 ? 2 : 4); j++)
            // Forwards and backwards in turn: neighbouring products share an operand, whose register is read once.
#pragma unroll
            for (int q = 0; q < ROWS; q++) {
                const int r = j % 2 ? ROWS - 1 - q : q;
                scores.h[first + j][r] = __fmaf_rn(x[r], c[j], scores.h[first + j][r]);
            }
    }
}

// What the scores say of a thread's four rows: the nearest centroid of each, a bit for each row in doubt, and for these the centroids in
// reach.
struct Found {
    u32 label[ROWS], reach[ROWS];
    u32 doubt;
};

// Sets a bit unless the score is above the limit. NaN counts as not above. (The compiler would select a word and then OR it.)
__device__ __forceinline__ void mark(u32& in_reach, u32 bit, float score, float limit) {
    asm("{\n\t.reg .pred p;\n\tsetp.leu.f32 p, %2, %3;\n\t@p or.b32 %0, %0, %1;\n\t}" : "+r"(in_reach) : "r"(bit), "f"(score), "f"(limit));
}

// Scores above this are out of reach. `nearest` has the best score.
template <typename T, typename S> __device__ __forceinline__ float limit_of(const Assign<T, S>& a, float square, float best, u32 nearest) {
    return reach(*a.bound, square, best, __ldg(a.slacks + nearest));
}

// Adds the half squares to the products. Finds the nearest centroid and the second best score of each row. A score that is NaN makes
// the second equal to the best, so the row is in doubt. `valid` has a bit for each row that exists. One row after the other, because few
// registers are left. The whole warp must call this.
template <typename T, int K, typename S>
__device__ __forceinline__ void decide(const Assign<T, S>& a, const float* half_squares, const float (&square)[ROWS], const Scores<K>& scores,
                                       u32 valid, Found& found) {
    found.doubt = 0;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float h[K], best = infinity_f(), second = infinity_f();
        u32 label = 0;
#pragma unroll
        for (int j = 0; j < K; j++) {
            h[j] = __fadd_rn(scores.h[j][r], *(const volatile float*)(half_squares + j)); // read again for every row, to save registers
            second = fminf(second, fmaxf(best, h[j]));
            label = h[j] < best ? j : label;
            best = fminf(best, h[j]);
        }
        const float limit = limit_of(a, square[r], best, label);
        const bool doubt = !(second > limit) && (valid >> r & 1);
        found.label[r] = label;
        found.reach[r] = 0;
        if (__any_sync(FULL_WARP, doubt)) {
            u32 bits = 0;
#pragma unroll
            for (int j = 0; j < K; j++) mark(bits, 1u << j, h[j], limit);
            found.reach[r] = bits & (0xffffffffu >> (32 - a.k));
            found.doubt |= doubt ? 1u << r : 0;
        }
    }
}

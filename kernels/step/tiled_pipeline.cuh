// The pipeline of kernels/step/assign_tiled.cu. It requests the values of later steps, and turns rows that arrived into centred, scaled
// copies. It runs across the borders of tiles, which matters if d is only a few steps.
#pragma once
#include "tiled_shared.cuh"

__device__ __forceinline__ float4 copy_of(float4 x, const float4*, float minus_centre, float scale) {
    float4 v = {centred_copy(x.x, minus_centre, scale), centred_copy(x.y, minus_centre, scale), centred_copy(x.z, minus_centre, scale),
                centred_copy(x.w, minus_centre, scale)};
    return v;
}
__device__ __forceinline__ double2 as_doubles(float4 bits) {
    double2 v = {__hiloint2double(__float_as_int(bits.y), __float_as_int(bits.x)),
                 __hiloint2double(__float_as_int(bits.w), __float_as_int(bits.z))};
    return v;
}
__device__ __forceinline__ float4 copy_of(float4 x, const float4* second_plane, double minus_centre, double scale) {
    double2 low = as_doubles(x), high = as_doubles(*second_plane);
    float4 v = {centred_copy(low.x, minus_centre, scale), centred_copy(low.y, minus_centre, scale),
                centred_copy(high.x, minus_centre, scale), centred_copy(high.y, minus_centre, scale)};
    return v;
}

// Requests features `warp` + I * warps, ... of a step. WHOLE: all features of the step exist.
template <typename S, bool WHOLE, int I>
__device__ __forceinline__ void fetch_rows(u32 to, const typename S::V* x, u64 stride, int warp, int left) {
    if constexpr (I < S::fetches) {
        if (WHOLE || warp + I * S::warps < left) {
            const typename S::V* at = x + (u64)(I * S::warps) * stride;
            if constexpr (is_half<typename S::V>) copy_8_bytes_async<I * S::threads * 16>(to, at);
            else copy_async<I * S::threads * 16, false>(to, at);
            if constexpr (sizeof(typename S::T) == 8) copy_async<I * S::threads * 16 + Stage<S>::plane, false>(to, at + ROWS / 2);
        }
        fetch_rows<S, WHOLE, I + 1>(to, x, stride, warp, left);
    }
}

// Requests this thread's four centroid copies of feature `feature` + I * copied, ... of a step. Copies of few centroids are read again
// for every tile of rows, so they may stay in the first-level cache.
template <typename S, bool WHOLE, int I>
__device__ __forceinline__ void fetch_copies(u32 to, const float* copies, int k_padded, int feature, int left) {
    if constexpr (I < S::copies) {
        if (WHOLE || feature + I * S::copied < left)
            copy_async<Stage<S>::copies_at + I * S::copied * S::centroids * 4, (S::centroids < 128)>(
                to, copies + (u64)(I * S::copied) * k_padded);
        fetch_copies<S, WHOLE, I + 1>(to, copies, k_padded, feature, left);
    }
}

// A warp takes features warp, warp + warps, ... of a step, and a lane takes the same four rows of each. A thread also takes four centroid
// copies of one feature.
template <typename S> struct Pipeline {
    typedef typename S::T T;
    typedef typename S::V V;

    const Assign<T, V>& a;
    TiledShared<S>& s;
    const int tid, lane, warp, d, copies_feature;
    const u32 row_tiles, steps;
    const Portion portion;
    const u32 places; // this thread's first place in the first stage
    // What is requested next.
    const V* asked_x;
    const float* asked_copies;
    int asked_d; // 0 if there is no further tile
    float4 square; // of the copies of four rows, over the steps so far

    __device__ __forceinline__ Pipeline(const Assign<T, V>& a, TiledShared<S>& s, int tid, int d, u32 row_tiles, u32 steps,
                                        const Portion& portion)
        : a(a), s(s), tid(tid), lane(tid & 31), warp(tid >> 5), d(d), copies_feature(tid / (S::centroids / 4)), row_tiles(row_tiles),
          steps(steps), portion(portion),
          // `opaque` keeps it in a register, so it is not computed again and again.
          places(opaque((u32)__cvta_generic_to_shared(&s) + tid * 16)), asked_d(d), square{0.0f, 0.0f, 0.0f, 0.0f} {}

    // Begins with the first step of a tile.
    __device__ __forceinline__ void ask_tile(u32 row_tile, u32 centroid_tile) {
        row_tile = opaque(row_tile); // computed once a tile, so not worth registers during the steps before
        centroid_tile = opaque(centroid_tile);
        asked_x = a.rows.x + (u64)warp * a.rows.stride + (u64)row_tile * ROWS + place_row<T>(4 * lane);
        const u64 centroid = (u64)centroid_tile * S::centroids + 4 * (tid % (S::centroids / 4));
        asked_copies = a.copies + (u64)copies_feature * a.k_padded + centroid;
    }

    // Requests one step of the tile, into a place of the ring.
    __device__ __forceinline__ void ask(u32 step, u32 slot) {
        const int left = asked_d - (int)step * S::step;
        const u32 to = places + slot * (u32)sizeof(Stage<S>);
        if (left >= S::step) {
            fetch_rows<S, true, 0>(to, asked_x, a.rows.stride, warp, left);
            fetch_copies<S, true, 0>(to, asked_copies, a.k_padded, copies_feature, left);
        } else {
            fetch_rows<S, false, 0>(to, asked_x, a.rows.stride, warp, left);
            fetch_copies<S, false, 0>(to, asked_copies, a.k_padded, copies_feature, left);
        }
        asked_x += (u64)S::step * a.rows.stride;
        asked_copies += (u64)S::step * a.k_padded;
    }

    // Turns the values that this thread requested into copies. The squares are summed again for every tile of centroids, which is
    // cheaper than a second loop.
    __device__ __forceinline__ void turn(u32 step, Stage<S>& stage) {
        const int first = (int)step * S::step + warp;
        const T* minus_centre = a.minus_centre + first;
        float4 part = {0.0f, 0.0f, 0.0f, 0.0f};
        if (((int)step + 1) * S::step <= d) {
#pragma unroll
            for (int i = 0; i < S::fetches; i++) turn_feature(stage, i, minus_centre, part);
        } else {
#pragma unroll 1
            for (int i = 0; first + i * S::warps < d; i++) turn_feature(stage, i, minus_centre, part);
        }
        const float weight = (float)weight_of((int)step * S::step & ~15, d, S::panels ? S::panel : 0x7fffffff);
        square.x = __fmaf_rn(part.x, weight, square.x);
        square.y = __fmaf_rn(part.y, weight, square.y);
        square.z = __fmaf_rn(part.z, weight, square.z);
        square.w = __fmaf_rn(part.w, weight, square.w);
        if (step + 1 == steps) {
            s.squares[warp][lane] = square;
            square = {0.0f, 0.0f, 0.0f, 0.0f};
        }
    }
    __device__ __forceinline__ void turn_feature(Stage<S>& stage, int i, const T* minus_centre, float4& part) {
        const int at = tid + i * S::threads;
        float4 arrived = stage.x[0][at];
        if constexpr (is_half<V>) {
            float x[4];
            half_values({__float_as_uint(arrived.x), __float_as_uint(arrived.y)}, a.rows.bfloat16, x);
            arrived = {x[0], x[1], x[2], x[3]};
        }
        float4 v = copy_of(arrived, &stage.x[Stage<S>::planes - 1][at], __ldg(&minus_centre[i * S::warps]), a.scale);
        stage.x[0][at] = v;
        part.x = __fmaf_rn(v.x, v.x, part.x);
        part.y = __fmaf_rn(v.y, v.y, part.y);
        part.z = __fmaf_rn(v.z, v.z, part.z);
        part.w = __fmaf_rn(v.w, v.w, part.w);
    }

    // Fills the ring, and makes its first step ready.
    __device__ __forceinline__ void start() {
        ask_tile(portion.first, portion.begin);
        for (int i = 0; i < S::ring - 1; i++) {
            ask(i, i);
            commit_copies();
        }
        await_copies<S::ring - 2>();
        turn(0, s.stages[0]);
        __syncthreads();
    }

    // The half squares of a tile of centroids. They arrive within two steps. All threads must be done with the tile before.
    __device__ __forceinline__ void ask_half_squares(u32 first_centroid) const {
        if (tid < S::centroids / 4) copy_async<TiledShared<S>::half_squares_at, true>(places, a.half_squares + first_centroid + 4 * tid);
    }

    // Requests the step that is ring - 1 ahead, into the place of the step before, with which all threads are done.
    __device__ __forceinline__ void ask_ahead(u32 row_tile, u32 centroid_tile, u32 step, u32 slot) {
        u32 asked_step = step + S::ring - 1;
        const u32 free = slot == 0 ? S::ring - 1 : slot - 1;
        if (asked_step >= steps) {
            asked_step -= steps;
            if (asked_step == 0) {
                bool next_rows = centroid_tile + 1 == portion.end;
                u32 asked_rows = next_rows ? row_tile + portion.step : row_tile;
                if (asked_rows < row_tiles) ask_tile(asked_rows, next_rows ? portion.begin : centroid_tile + 1);
                else asked_d = 0;
            }
        }
        ask(asked_step, free);
        commit_copies();
    }

    // Ends a step: waits for the values of the next one, makes them ready, and returns their place in the ring.
    __device__ __forceinline__ u32 advance(u32 step, u32 slot) {
        slot = slot + 1 == S::ring ? 0 : slot + 1;
        await_copies<S::ring - 2>();
        // After the last tile this turns values of an earlier step, which are not read.
        turn(step + 1 == steps ? 0 : step + 1, s.stages[slot]);
        __syncthreads();
        return slot;
    }
};

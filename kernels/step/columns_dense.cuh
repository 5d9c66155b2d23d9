// Sums for kernels/step/assign_columns.cu: a tile of which many rows move. They are products of integers on the tensor cores:
//
//   (clusters x rows: 1 where a row comes, -1 where it leaves) x (rows x columns: one byte of each fixed-point value)
//
// Each product adds up one byte in each cluster. Seven products are the exact sums. Their number does not depend on how many rows move. The
// block's table gets only one addition for each cluster and column.
//
// The products are `mma.m16n8k32`: 16 clusters, 32 rows, 8 columns. Lane 4 g + q has the rows 4 q to 4 q + 3 and 16 more of column g as
// the right operand. It has the same rows of clusters g and g + 8 as the left one, and columns 2 q and 2 q + 1 of these clusters as the result.
#pragma once
#include "columns_sums.cuh"

#define BYTES 7 // of a fixed-point value
#define GROUPS (TILE / 32) // of 32 rows

// A tile with this many rows that move is added up here.
#define MANY 16

// The labels of a tile of rows. `NOWHERE` if the row does not move.
struct Move {
    __align__(16) u8 from[TILE];
    __align__(16) u8 to[TILE];
};

// 1 in each byte of `four` that is `label`.
__device__ __forceinline__ u32 equal_bytes(u32 four, u32 label) {
    const u32 x = four ^ label * 0x01010101u;
    return ~(((x & 0x7f7f7f7fu) + 0x7f7f7f7fu) | x) >> 7 & 0x01010101u;
}

__device__ __forceinline__ void multiply(int (&sum)[4], const u32 (&clusters)[4], u32 rows, u32 more_rows) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
        : "r"(clusters[0]), "r"(clusters[1]), "r"(clusters[2]), "r"(clusters[3]), "r"(rows), "r"(more_rows));
}

// The limb of a value plus `TOP * 2^48`, as bits. Rounding is that of `split`: `magic` is the double with the bits `0x43 * 2^56 + TOP * 2^48`,
// so the bits of `magic + v` are these plus rint(v). The products with powers of two are exact, so an fma rounds as a sum does.
#define TOP 0x38
template <bool LOW> __device__ __forceinline__ u64 limb_bits(double v, double low) {
    const double magic = 6755399441055744.0, sum = __dadd_rn(v, magic);
    return __double_as_longlong(LOW ? __fma_rn(__dadd_rn(v, -__dadd_rn(sum, -magic)), low, magic) : sum);
}
// A float32 value needs one factor: quanta of float32 columns are from 2^-199 to 2^78.
template <bool LOW> __device__ __forceinline__ u64 limb_of(float x, const Factors& f) {
    const double factor = __dmul_rn(f.first, f.second);
    if (!LOW) return __double_as_longlong(__fma_rn((double)x, factor, 6755399441055744.0));
    return limb_bits<LOW>(__dmul_rn((double)x, factor), f.low);
}
template <bool LOW> __device__ __forceinline__ u64 limb_of(double x, const Factors& f) {
    return limb_bits<LOW>(__dmul_rn(__dmul_rn(x, f.first), f.second), f.low);
}

// Byte i of four words is word i of the result.
__device__ __forceinline__ void transpose(u32 a, u32 b, u32 c, u32 d, u32 (&out)[4]) {
    const u32 ab = __byte_perm(a, b, 0x5140), cd = __byte_perm(c, d, 0x5140);
    const u32 ab_high = __byte_perm(a, b, 0x7362), cd_high = __byte_perm(c, d, 0x7362);
    out[0] = __byte_perm(ab, cd, 0x5410), out[1] = __byte_perm(ab, cd, 0x7632);
    out[2] = __byte_perm(ab_high, cd_high, 0x5410), out[3] = __byte_perm(ab_high, cd_high, 0x7632);
}
// The bytes of a limb of four values: word i has byte i of each.
template <bool LOW, typename T> __device__ __forceinline__ void bytes_of(const T (&value)[4], const Factors& f, u32 (&out)[BYTES]) {
    u32 low[4], high[4], bytes[4];
#pragma unroll
    for (int r = 0; r < 4; r++) {
        const u64 bits = limb_of<LOW>(value[r], f);
        low[r] = (u32)bits, high[r] = (u32)(bits >> 32);
    }
    transpose(low[0], low[1], low[2], low[3], bytes);
    out[0] = bytes[0], out[1] = bytes[1], out[2] = bytes[2], out[3] = bytes[3];
    transpose(high[0], high[1], high[2], high[3], bytes);
    out[4] = bytes[0], out[5] = bytes[1], out[6] = bytes[2];
}

// Four values that follow each other in memory.
__device__ __forceinline__ void load_four(const float* x, float (&out)[4], int) {
    const float4 v = *(const float4*)x;
    out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
}
__device__ __forceinline__ void load_four(const Half* x, float (&out)[4], int bfloat16) {
    half_values(*(const uint2*)x, bfloat16, out);
}
__device__ __forceinline__ void load_four(const double* x, double (&out)[4], int) {
    const double2 v = *(const double2*)x, w = *(const double2*)(x + 2);
    out[0] = v.x, out[1] = v.y, out[2] = w.x, out[3] = w.y;
}

// The left operands: four groups of 32 rows, and each 16 clusters. K: all clusters.
template <int K> struct Clusters {
    static const int blocks = K <= 16 ? 1 : 2;
    // The operands of 8 clusters stay in registers. For those of more too few are left, so they are made again for every product.
    static const bool kept = K <= 8;
    u32 all[kept ? GROUPS : 1][4];
    const u8 *from, *to; // the labels of this lane's first rows
    u32 label; // its first cluster

    __device__ __forceinline__ Clusters(const Move& move, int lane)
        : from(move.from + 4 * (lane & 3)), to(move.to + 4 * (lane & 3)), label(lane / 4) {
        if (kept) {
#pragma unroll
            for (int group = 0; group < GROUPS; group++) make(group, 0, all[kept ? group : 0]);
        }
    }
    __device__ __forceinline__ void make(int group, int block, u32 (&out)[4]) const {
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const u32 at = 32 * group + 16 * (c / 2), own = label + 16 * block + 8 * (c % 2);
            const u32 comes = *(const volatile u32*)(to + at), leaves = *(const volatile u32*)(from + at);
            out[c] = K <= 8 && c % 2 ? 0 : equal_bytes(comes, own) | equal_bytes(leaves, own) * 0xffu;
        }
    }
    __device__ __forceinline__ void get(int group, int block, u32 (&out)[4]) const {
        if (kept) {
#pragma unroll
            for (int c = 0; c < 4; c++) out[c] = all[kept ? group : 0][c];
        } else {
            make(group, block, out);
        }
    }
};

// The sums of one limb of 8 columns of a tile. `x`: the first rows of this lane in its column.
template <bool LOW, int K, typename T, typename S, int BLOCKS>
__device__ __forceinline__ void sum_limb(const Rows<T, S>& rows, const S* x, const Factors& f, const Clusters<K>& clusters, int (&sum)[BYTES][BLOCKS][4]) {
#pragma unroll
    for (int i = 0; i < BYTES; i++)
#pragma unroll
        for (int b = 0; b < BLOCKS; b++)
#pragma unroll
            for (int c = 0; c < 4; c++) sum[i][b][c] = 0;
#pragma unroll
    for (int group = 0; group < GROUPS; group++) {
        T value[4], more[4];
        load_four(x + 32 * group, value, rows.bfloat16);
        load_four(x + 32 * group + 16, more, rows.bfloat16);
        u32 rows[BYTES], more_rows[BYTES];
        bytes_of<LOW>(value, f, rows);
        bytes_of<LOW>(more, f, more_rows);
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            u32 left[4];
            clusters.get(group, b, left);
#pragma unroll
            for (int i = 0; i < BYTES; i++) multiply(sum[i][b], left, rows[i], more_rows[i]);
        }
    }
}

// Adds up the tile that begins with row `first`. There are no weights. The whole warp must call this.
template <int K, typename T, typename S>
__device__ __forceinline__ void move_tile(const Assign<T, S>& a, const Factors* factors, const BlockSums& block_sums, const Move& move, u32 first, int lane) {
    const Clusters<K> clusters(move, lane);
    const int BLOCKS = Clusters<K>::blocks, HALVES = K <= 8 ? 1 : 2; // of 16 and of 8 clusters
    const Sums& s = a.sums;
    const u32 g = lane / 4, q = lane & 3;
    int come[BLOCKS][4]; // rows that come to each cluster, minus rows that leave it
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
#pragma unroll
        for (int c = 0; c < 4; c++) come[b][c] = 0;
#pragma unroll
        for (int group = 0; group < GROUPS; group++) {
            u32 left[4];
            clusters.get(group, b, left);
            multiply(come[b], left, 0x01010101u, 0x01010101u);
        }
    }
#pragma unroll 1
    for (u32 f = 0; f < (u32)a.rows.d; f += 8) {
        const u32 column = min(f + g, (u32)a.rows.d - 1);
        const S* const x = a.rows.x + column * a.rows.stride + first + 4 * q;
        const Factors own = factors[column];
#pragma unroll 1
        for (u32 limb = 0; limb < (u32)s.limbs; limb++) {
            int sum[BYTES][BLOCKS][4];
            if (limb == 0) sum_limb<false, K>(a.rows, x, own, clusters, sum);
            else sum_limb<true, K>(a.rows, x, own, clusters, sum);
#pragma unroll
            for (int b = 0; b < BLOCKS; b++) {
#pragma unroll
                for (int c = 0; c < 2 * HALVES; c++) {
                    i64 low = 0;
#pragma unroll
                    for (int i = 0; i < 4; i++) low += (i64)sum[i][b][c] << 8 * i;
                    const int high = sum[4][b][c] + (sum[5][b][c] << 8) + ((sum[6][b][c] - TOP * come[b][c]) << 16);
                    const i64 all = low + ((i64)high << 32);
                    const u32 label = 16 * b + 8 * (c / 2) + g, to = f + 2 * q + c % 2;
                    if (all == 0 || label >= (u32)s.k || to >= (u32)a.rows.d) continue;
                    const u32 accumulator = to * s.limbs + limb;
                    if (block_sums.there) add_words(block_sums.at(accumulator, label), block_sums.at(accumulator, label) + block_sums.plane, all);
                    else add_pending(s.pending + ((u64)label * s.columns * s.limbs + accumulator) * 2, all);
                }
            }
        }
    }
    if (q == 0) {
#pragma unroll
        for (int b = 0; b < BLOCKS; b++)
#pragma unroll
            for (int half = 0; half < HALVES; half++) {
                const u32 label = 16 * b + 8 * half + g;
                const int rows = come[b][2 * half];
                if (rows == 0 || label >= (u32)s.k) continue;
                if (block_sums.there) atomicAdd(&block_sums.rows[label], rows);
                else atomicAdd((u64*)&s.pending_rows[label], (u64)(i64)rows);
            }
    }
}

// The next tile of rows for kernels/step/assign_registers.cu. Asynchronous copies bring its values to shared memory, where each thread has
// its own places. Its labels come along, packed as in device memory.
#pragma once
#include "../common/labels.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)
#define ROWS 4
#define WARP_TILE (32 * ROWS)

// Picks one of four values. No value needs an address, so all stay in registers.
template <typename V> __device__ __forceinline__ V pick(const V (&from)[ROWS], int r) {
    return r == 0 ? from[0] : r == 1 ? from[1] : r == 2 ? from[2] : from[3];
}

__device__ __forceinline__ void copy_async(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}
// Four labels of 1, 2 or 4 bytes each, without a branch.
__device__ __forceinline__ void copy_labels(void* to, const void* from, int bytes) {
    asm volatile("{\n\t.reg .pred p;\n\t"
                 "setp.eq.s32 p, %2, 1;\n\t@p cp.async.ca.shared.global [%0], [%1], 4;\n\t"
                 "setp.eq.s32 p, %2, 2;\n\t@p cp.async.ca.shared.global [%0], [%1], 8;\n\t"
                 "setp.eq.s32 p, %2, 4;\n\t@p cp.async.cg.shared.global [%0], [%1], 16;\n\t}"
                 ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from), "r"(bytes) : "memory");
}

// Four labels, packed as in memory: in one, two or four words. Unused words are all ones.
struct Four {
    u32 word[ROWS];

    __device__ __forceinline__ Four(int bytes, const u32 (&label)[ROWS]) : word{UNASSIGNED, UNASSIGNED, UNASSIGNED, UNASSIGNED} {
        if (bytes == 1) word[0] = __byte_perm(__byte_perm(label[0], label[1], 0x40), __byte_perm(label[2], label[3], 0x40), 0x5410);
        else if (bytes == 2) word[0] = __byte_perm(label[0], label[1], 0x5410), word[1] = __byte_perm(label[2], label[3], 0x5410);
        else word[0] = label[0], word[1] = label[1], word[2] = label[2], word[3] = label[3];
    }
    __device__ __forceinline__ Four(int bytes, const void* from) : word{UNASSIGNED, UNASSIGNED, UNASSIGNED, UNASSIGNED} {
        if (bytes == 1) {
            word[0] = *(const u32*)from;
        } else if (bytes == 2) {
            const uint2 v = *(const uint2*)from;
            word[0] = v.x, word[1] = v.y;
        } else {
            const uint4 v = *(const uint4*)from;
            word[0] = v.x, word[1] = v.y, word[2] = v.z, word[3] = v.w;
        }
    }
    __device__ __forceinline__ void store(int bytes, void* to) const {
        if (bytes == 1) *(u32*)to = word[0];
        else if (bytes == 2) *(uint2*)to = make_uint2(word[0], word[1]);
        else *(uint4*)to = make_uint4(word[0], word[1], word[2], word[3]);
    }
    __device__ __forceinline__ bool is(const Four& other) const {
        return ((word[0] ^ other.word[0]) | (word[1] ^ other.word[1]) | (word[2] ^ other.word[2]) | (word[3] ^ other.word[3])) == 0;
    }
    // One bit a label: 1 if it differs from the other's.
    __device__ __forceinline__ u32 differs(const Four& other, int bytes) const {
        if (bytes == 1) {
            // Sets the highest bit of each byte that is not 0, then gathers the four bits by one product. Its summands share no bit.
            const u32 x = word[0] ^ other.word[0];
            return ((((x & 0x7f7f7f7fu) + 0x7f7f7f7fu) | x) >> 7 & 0x01010101u) * 0x01020408u >> 24;
        }
        u32 bits = 0;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const u32 x = bytes == 2 ? (word[r / 2] ^ other.word[r / 2]) >> 16 * (r & 1) & 0xffff : word[r] ^ other.word[r];
            bits |= x != 0 ? 1u << r : 0;
        }
        return bits;
    }
    __device__ __forceinline__ bool none() const { return (word[0] & word[1] & word[2] & word[3]) == UNASSIGNED; }
    __device__ __forceinline__ u32 label(int bytes, int r) const {
        if (bytes == 1) return widen(word[0] >> 8 * r & 0xff, 1);
        if (bytes == 2) return widen((r < 2 ? word[0] : word[1]) >> 16 * (r & 1) & 0xffff, 2);
        return pick(word, r);
    }
};

__device__ __forceinline__ void copy_8_bytes_async(void* to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}

// Each thread copies and reads only its own places, so no barrier is needed. A thread has 16 bytes a plane (a float64 column has two
// planes), or 8 bytes if values have 16 bits, then four labels. S: the type of the values in memory.
template <typename T, typename S, int D> struct AsyncTiles {
    static const int planes = sizeof(T) / 4, place = is_half<S> ? 8 : 16;
    unsigned char* values; // (D * planes, THREADS) places
    unsigned char* labels; // (THREADS, 4 labels)

    static __host__ __device__ constexpr int bytes(int label_bytes) { return THREADS * (D * planes * place + 4 * label_bytes); }

    __device__ __forceinline__ void ask(const Rows<T, S>& rows, Labels from, u32 row) const {
        copy_labels(labels + threadIdx.x * 4 * from.bytes, (const unsigned char*)from.at + (u64)row * (u32)from.bytes, from.bytes);
#pragma unroll
        for (int f = 0; f < D; f++) {
            if (D <= 4 || f < rows.d) {
                const unsigned char* x = (const unsigned char*)(rows.x + (u64)f * rows.stride + row);
#pragma unroll
                for (int p = 0; p < planes; p++) {
                    unsigned char* const to = values + ((f * planes + p) * THREADS + threadIdx.x) * place;
                    if constexpr (is_half<S>) copy_8_bytes_async(to, x);
                    else copy_async(to, x + p * place);
                }
            }
        }
    }
    __device__ __forceinline__ const unsigned char* place_of(int plane) const { return values + (plane * THREADS + threadIdx.x) * place; }
    // The four rows of column f.
    __device__ __forceinline__ void take(const Rows<T, S>& rows, int f, float (&out)[ROWS]) const {
        if constexpr (is_half<S>) {
            half_values(*(const uint2*)place_of(f), rows.bfloat16, out);
        } else {
            float4 v = *(const float4*)place_of(f);
            out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
        }
    }
    // The four rows of all columns of 16 bits, 0 for columns that are not there. There is one branch, not one a column.
    __device__ __forceinline__ void take_all(const Rows<T, S>& rows, float (&out)[D][ROWS]) const {
        uint2 words[D];
#pragma unroll
        for (int f = 0; f < D; f++) {
            words[f] = make_uint2(0, 0);
            if (D <= 4 || f < rows.d) words[f] = *(const uint2*)place_of(f);
        }
        if (rows.bfloat16) {
#pragma unroll
            for (int f = 0; f < D; f++) half_values(words[f], true, out[f]);
        } else {
#pragma unroll
            for (int f = 0; f < D; f++) half_values(words[f], false, out[f]);
        }
    }
    __device__ __forceinline__ void take(const Rows<T, S>&, int f, double (&out)[ROWS]) const {
        double2 v = *(const double2*)place_of(2 * f), w = *(const double2*)place_of(2 * f + 1);
        out[0] = v.x, out[1] = v.y, out[2] = w.x, out[3] = w.y;
    }
    // Row r of column f.
    __device__ __forceinline__ T value(const Rows<T, S>& rows, int f, int r) const {
        const int in_place = place / sizeof(S);
        return rows.value(((const S*)place_of(f * planes + r / in_place))[r % in_place]);
    }
    __device__ __forceinline__ Four take_labels(int label_bytes) const { return Four(label_bytes, labels + threadIdx.x * 4 * label_bytes); }
};

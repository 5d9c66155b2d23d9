// Values of 16 bits, float16 or bfloat16, and what they stand for in float32. That is exact.
#pragma once
#include "types.cuh"

struct Half {
    u16 bits;
};

template <typename S> constexpr bool is_half = false;
template <> constexpr bool is_half<Half> = true;

__device__ __forceinline__ float from_float16(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
__device__ __forceinline__ float half_value(u16 bits, int bfloat16) {
    return bfloat16 ? __uint_as_float((u32)bits << 16) : from_float16(bits);
}

// The two values in a word.
__device__ __forceinline__ void from_float16s(u32 word, float& low, float& high) {
    low = from_float16((u16)word), high = from_float16((u16)(word >> 16));
}
__device__ __forceinline__ void from_bfloat16s(u32 word, float& low, float& high) {
    low = __uint_as_float(word << 16), high = __uint_as_float(word & 0xffff0000u);
}
// The four values in two words.
__device__ __forceinline__ void half_values(uint2 words, int bfloat16, float (&out)[4]) {
    if (bfloat16) from_bfloat16s(words.x, out[0], out[1]), from_bfloat16s(words.y, out[2], out[3]);
    else from_float16s(words.x, out[0], out[1]), from_float16s(words.y, out[2], out[3]);
}

// The integer types of all kernels, and infinity.
//
// Kernels are compiled with -fmad=false: a product and a sum are two roundings, unless the code says fma. No fast math; subnormals are
// kept. From the structs that kernels take, build/arguments.rs writes those of Rust.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
typedef unsigned __int128 u128;
typedef __int128 i128;

__device__ __forceinline__ float infinity_f() { return __int_as_float(0x7f800000); }
__device__ __forceinline__ double infinity() { return __longlong_as_double(0x7ff0000000000000ll); }

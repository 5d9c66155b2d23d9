// The power of two that takes the largest magnitude of a vector into [1, 2), as src/input/transform.rs has it.
#pragma once
#include "exact.cuh"

struct UnitFactors {
    double first, second;

    __device__ __forceinline__ explicit UnitFactors(double largest) {
        const int biased = (int)(__double_as_longlong(largest) >> 52);
        int exponent = 1023 - biased;
        if (largest == 0.0) exponent = 0;
        // A subnormal number times 2^64 is normal.
        else if (biased == 0) exponent = 1087 - (int)(__double_as_longlong(__dmul_rn(largest, 18446744073709551616.0)) >> 52);
        first = power_of_two(exponent / 2), second = power_of_two(exponent - exponent / 2);
    }
    __device__ __forceinline__ double apply(double x) const { return __dmul_rn(__dmul_rn(x, first), second); }
};

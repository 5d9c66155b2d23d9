// Exact arithmetic: fixed-point numbers of two limbs (src/exact/fixed.rs), squared distances as integers (src/exact/distances.rs), 128-bit integers,
// and a quotient that is rounded once.
#pragma once
#include "types.cuh"

// ---- fixed point -------------------------------------------------------------------------------------------------------------

// The factors of a column's quantum: hi = rint(x * first * second). With two limbs lo = rint((x * first * second - hi) * low), and
// low = 2^45. With one limb low = 0.
struct Factors {
    double first, second, low;
};

struct Pair {
    i64 hi, lo;
};

// rint(v) for |v| <= 2^51, ties to even.
__device__ __forceinline__ i64 round_to_integer(double v) {
    const double magic = 6755399441055744.0;
    return __double_as_longlong(__dadd_rn(v, magic)) - __double_as_longlong(magic);
}
__device__ __forceinline__ Pair split(double v, double low) {
    const double magic = 6755399441055744.0;
    double rounded = __dadd_rn(__dadd_rn(v, magic), -magic);
    Pair p;
    p.hi = round_to_integer(v);
    p.lo = round_to_integer(__dmul_rn(__dadd_rn(v, -rounded), low));
    return p;
}
__device__ __forceinline__ Pair limbs_of(double x, Factors s) { return split(__dmul_rn(__dmul_rn(x, s.first), s.second), s.low); }
__device__ __forceinline__ i128 join(Pair p) { return ((i128)p.hi << 45) + p.lo; }

// 2^e as a double, -1074 <= e <= 1023.
__device__ __forceinline__ double power_of_two(int e) {
    return e >= -1022 ? __longlong_as_double((i64)(e + 1023) << 52) : __longlong_as_double(1ll << (e + 1074));
}

// ---- distances as integers -----------------------------------------------------------------------------------------------------

// How squared distances become integers (src/exact/distances.rs); `none` where every distance counts 0.
struct DistanceScale {
    Factors factors;
    int quantum_exponent;
    int none;
};
// The limbs of a row's weighted distance: a positive one counts at least one quantum, a row of weight 0 nothing, more than the range
// as the range.
__device__ __forceinline__ Pair quantise_distance(const DistanceScale& scale, double weight, double s) {
    Pair p = {0, 0};
    if (!scale.none && s > 0.0 && weight > 0.0) {
        const double most = 35184372088832.0; // 2^45
        const double v = __dmul_rn(__dmul_rn(__dmul_rn(s, scale.factors.first), scale.factors.second), weight);
        p = split(v < most ? v : most, scale.factors.low);
        if (p.hi == 0 && p.lo == 0) p.lo = 1;
    }
    return p;
}

__device__ __forceinline__ int bits_of(u128 m) {
    u64 high = (u64)(m >> 64), low = (u64)m;
    return high ? 128 - __clzll(high) : 64 - __clzll(low);
}

// Whether a sum of distances of so many terms is precise; if not, `scale` becomes the one to sum again with.
__device__ __forceinline__ bool is_precise(DistanceScale& scale, u128 total, u64 terms) {
    if (scale.none || total == 0 || (total >> 41) >= terms) return true;
    const int exponent = scale.quantum_exponent + bits_of(total), power = 45 - exponent, half = power / 2;
    scale.factors.first = power_of_two(half);
    scale.factors.second = power_of_two(power - half);
    scale.quantum_exponent = exponent - 90;
    return false;
}

// ---- the rounded quotient ------------------------------------------------------------------------------------------------------

template <typename T> struct Type;
template <> struct Type<float> {
    static const int precision = 24, smallest = -149;
};
template <> struct Type<double> {
    static const int precision = 53, smallest = -1074;
};

// numerator * 2^exponent / denominator, rounded once to T. The result is that value as a double. As `round_quotient` of src/exact/fixed.rs.
template <typename T> __device__ double round_quotient(i128 numerator, u128 denominator, int exponent) {
    if (numerator == 0) return 0.0;
    bool negative = numerator < 0;
    u128 magnitude = negative ? (u128)0 - (u128)numerator : (u128)numerator;
    u128 quotient = magnitude, remainder = 0;
    if (denominator > 1) {
        if ((magnitude >> 64) == 0 && (denominator >> 64) == 0) {
            quotient = (u64)magnitude / (u64)denominator;
            remainder = (u64)magnitude % (u64)denominator;
        } else {
            quotient = magnitude / denominator;
            remainder = magnitude % denominator;
        }
        while (remainder != 0 && quotient < ((u128)1 << 56)) {
            u128 shifted = remainder << 37;
            u128 digit;
            if ((shifted >> 64) == 0 && (denominator >> 64) == 0) {
                digit = (u64)shifted / (u64)denominator;
                remainder = (u64)shifted % (u64)denominator;
            } else {
                digit = shifted / denominator;
                remainder = shifted % denominator;
            }
            quotient = (quotient << 37) + digit;
            exponent -= 37;
        }
    }
    int unit = bits_of(quotient) + exponent - Type<T>::precision;
    if (unit < Type<T>::smallest) unit = Type<T>::smallest;
    int cut = unit - exponent; // bits below the unit
    double value;
    if (cut <= 0) {
        int half = exponent / 2;
        value = __dmul_rn(__dmul_rn((double)(u64)quotient, power_of_two(half)), power_of_two(exponent - half));
    } else {
        u128 rounded = 0;
        if (cut <= 127) {
            u128 kept = quotient >> cut, rest = quotient & (((u128)1 << cut) - 1), half = (u128)1 << (cut - 1);
            bool up = rest > half || (rest == half && (remainder != 0 || (kept & 1)));
            rounded = kept + (up ? 1 : 0);
        }
        int half = unit / 2;
        value = __dmul_rn(__dmul_rn((double)(u64)rounded, power_of_two(half)), power_of_two(unit - half));
    }
    return negative ? -value : value;
}

// ---- 128-bit sums --------------------------------------------------------------------------------------------------------------

// Adds to a 128-bit integer in two words, the low word first.
__device__ __forceinline__ void add_wide(u64* low, u64* high, u128 v) {
    u64 l = (u64)v, h = (u64)(v >> 64);
    u64 old = atomicAdd(low, l);
    h += (old + l < old) ? 1 : 0;
    if (h) atomicAdd(high, h);
}

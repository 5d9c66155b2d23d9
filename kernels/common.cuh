// What all kernels share: the exact arithmetic, tables of sums, the filter's bound, reductions.
//
// Compiled with -fmad=false: a product and a sum are two roundings, unless the code says fma. No fast math; subnormals are kept.
// src/backend/cuda/*.rs declares the argument structures again, field by field.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
typedef unsigned __int128 u128;
typedef __int128 i128;

#define FULL_WARP 0xffffffffu

__device__ __forceinline__ float infinity_f() { return __int_as_float(0x7f800000); }
__device__ __forceinline__ double infinity() { return __longlong_as_double(0x7ff0000000000000ll); }

// ---- rows ------------------------------------------------------------------------------------------------------------

// The rows of a fit. x is (d, stride), column-major, and zero from row n to the stride. The stride is a multiple of 1,024.
// w holds the weights w^, or is null if there are none.
template <typename T> struct Rows {
    const T* x;
    const double* w;
    u64 stride;
    u32 n;
    int d;
};

// Labels, as narrow as k allows: `bytes` is 1, 2 or 4. A label of all ones means that the row has none yet.
struct Labels {
    void* at;
    int bytes;
};

#define UNASSIGNED 0xffffffffu

__device__ __forceinline__ u32 widen(u32 label, int bytes) {
    return bytes == 1 ? (label == 0xffu ? UNASSIGNED : label) : bytes == 2 ? (label == 0xffffu ? UNASSIGNED : label) : label;
}
__device__ __forceinline__ u32 load_label(Labels labels, u64 row) {
    if (labels.bytes == 1) return widen(((const u8*)labels.at)[row], 1);
    if (labels.bytes == 2) return widen(((const u16*)labels.at)[row], 2);
    return ((const u32*)labels.at)[row];
}
__device__ __forceinline__ void store_label(Labels labels, u64 row, u32 label) {
    if (labels.bytes == 1) ((u8*)labels.at)[row] = (u8)label;
    else if (labels.bytes == 2) ((u16*)labels.at)[row] = (u16)label;
    else ((u32*)labels.at)[row] = label;
}

// ---- fixed point (src/fixed.rs) ----------------------------------------------------------------------------------------

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

// How squared distances become integers (src/distances.rs); `none` where every distance counts 0.
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
__device__ __forceinline__ i128 join(Pair p) { return ((i128)p.hi << 45) + p.lo; }

// 2^e as a double, -1074 <= e <= 1023.
__device__ __forceinline__ double power_of_two(int e) {
    return e >= -1022 ? __longlong_as_double((i64)(e + 1023) << 52) : __longlong_as_double(1ll << (e + 1074));
}

template <typename T> struct Type;
template <> struct Type<float> {
    static const int precision = 24, smallest = -149;
};
template <> struct Type<double> {
    static const int precision = 53, smallest = -1074;
};

__device__ __forceinline__ int bits_of(u128 m) {
    u64 high = (u64)(m >> 64), low = (u64)m;
    return high ? 128 - __clzll(high) : 64 - __clzll(low);
}

// Whether a sum of distances of so many terms is precise; if not, `scale` becomes the one to sum again with.
__device__ __forceinline__ bool is_precise(DistanceScale& scale, u128 total, u64 terms) {
    if (scale.none || total == 0 || (total >> 41) >= terms) return true;
    const int exponent = scale.quantum_exponent + bits_of(total), shift = 45 - exponent, half = shift / 2;
    scale.factors.first = power_of_two(half);
    scale.factors.second = power_of_two(shift - half);
    scale.quantum_exponent = exponent - 90;
    return false;
}

// numerator * 2^exponent / denominator, rounded once to T. The result is that value as a double. As `round_quotient` of src/fixed.rs.
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
    int shift = unit - exponent;
    double value;
    if (shift <= 0) {
        int half = exponent / 2;
        value = __dmul_rn(__dmul_rn((double)(u64)quotient, power_of_two(half)), power_of_two(exponent - half));
    } else {
        u128 rounded = 0;
        if (shift <= 127) {
            u128 kept = quotient >> shift, rest = quotient & (((u128)1 << shift) - 1), half = (u128)1 << (shift - 1);
            bool up = rest > half || (rest == half && (remainder != 0 || (kept & 1)));
            rounded = kept + (up ? 1 : 0);
        }
        int half = unit / 2;
        value = __dmul_rn(__dmul_rn((double)(u64)rounded, power_of_two(half)), power_of_two(unit - half));
    }
    return negative ? -value : value;
}

// ---- sums ----------------------------------------------------------------------------------------------------------------
//
// A cell is one cluster's sum of one limb of one column. In shared memory it is an int64 in two 32-bit words, because shared memory adds
// 32-bit integers natively and 64-bit ones only in a loop of compare-and-swap. In device memory it is two 64-bit accumulators, one of low
// halves and one of high halves. 2^31 additions cannot overflow them, and they need no carry between them. The update folds them into
// canonical 128-bit integers.

struct Sums {
    u64* pending; // (k, columns, limbs, 2)
    i64* pending_rows; // (k)
    i128* sums; // (k, columns): canonical
    i64* rows; // (k): rows of positive weight
    const u8* one_limb; // (columns): whether the column has one limb. Read if others have two; its low limbs are then all 0
    int k, d, columns; // columns: d, plus one for the mass if there are weights
    int mass_column; // d, or -1
    int limbs; // 1, or 2 if any column has two
    int unused;
};

__device__ __forceinline__ void add_pending(u64* cell, i64 value) {
    if (value != 0) {
        atomicAdd(&cell[0], (u64)(u32)value);
        atomicAdd(&cell[1], (u64)(value >> 32));
    }
}

// Adds to a cell of two words, with the carry.
__device__ __forceinline__ void add_words(u32* low, u32* high, i64 value) {
    u32 v = (u32)value, h = (u32)(value >> 32);
    u32 old = atomicAdd(low, v);
    h += (old + v < old) ? 1 : 0;
    if (h != 0) atomicAdd(high, h);
}

// A table of cells in shared memory. Each cell has `copies` (a power of two), so that lanes collide less.
struct Table {
    u32* words;
    int cells, copies;

};

__device__ __forceinline__ void table_clear(const Table& t) {
#pragma unroll 1
    for (int i = threadIdx.x; i < t.cells * t.copies * 2; i += blockDim.x) t.words[i] = 0;
}
__device__ __forceinline__ void table_add(const Table& t, int cell, int copy, i64 value) {
    u32* at = t.words + (size_t)cell * 2 * t.copies + copy;
    add_words(at, at + t.copies, value);
}
// Adds both limbs to the cells from `into` on. If the row leaves a cluster, subtracts them from the cells from `out` on.
__device__ __forceinline__ void table_move(const Table& t, int into, int out, bool leaves, int copy, const Pair& p, bool two) {
    const u32 limb = 2 * t.copies;
    u32* to = t.words + (u32)into * limb + copy;
    u32* from = t.words + (leaves ? (u32)out : (u32)into) * limb + copy;
    const i64 value[4] = {p.hi, leaves ? -p.hi : 0, p.lo, leaves ? -p.lo : 0};
    u32* const at[4] = {to, from, to + limb, from + limb};
    u32 old[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        old[i] = 0;
        if ((i & 1) == 0 || leaves)
            if (i < 2 || two) old[i] = atomicAdd(at[i], (u32)value[i]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const u32 high = (u32)(value[i] >> 32) + (old[i] + (u32)value[i] < old[i] ? 1 : 0);
        if (high != 0 && (i < 2 || two)) atomicAdd(at[i] + t.copies, high);
    }
}
// Returns the cell's sum and sets it to 0. Only between barriers.
__device__ __forceinline__ i64 table_take(const Table& t, int cell) {
    u32* at = t.words + (size_t)cell * 2 * t.copies;
    i64 sum = 0;
#pragma unroll 1
    for (int c = 0; c < t.copies; c++) {
        int i = (c + threadIdx.x) & (t.copies - 1);
        sum += (i64)((u64)at[i] | (u64)at[t.copies + i] << 32);
        at[i] = 0;
        at[t.copies + i] = 0;
    }
    return sum;
}
// One warp adds a block's table to device memory and empties it, while other warps may go on adding. Nothing is lost: each word is
// exchanged atomically, and a carry that comes later goes to the high word.
__device__ __forceinline__ void flush_table_by_warp(const Table& t, int* table_rows, const Sums& s, int lane) {
#pragma unroll 1
    for (int cell = lane; cell < t.cells; cell += 32) {
        u32* at = t.words + (size_t)cell * 2 * t.copies;
        i64 sum = 0;
#pragma unroll 1
        for (int c = 0; c < t.copies; c++) {
            int i = (c + lane) & (t.copies - 1);
            u32 low = atomicExch(&at[i], 0u), high = atomicExch(&at[t.copies + i], 0u);
            sum += (i64)((u64)low | (u64)high << 32);
        }
        add_pending(s.pending + (u64)cell * 2, sum);
    }
#pragma unroll 1
    for (int j = lane; j < s.k; j += 32) {
        int rows = atomicExch(&table_rows[j], 0);
        if (rows != 0) atomicAdd((u64*)&s.pending_rows[j], (u64)(i64)rows);
    }
}
// Adds a block's table to device memory and empties it. Only between barriers.
__device__ __forceinline__ void flush_table(const Table& t, int* table_rows, const Sums& s) {
#pragma unroll 1
    for (int cell = threadIdx.x; cell < t.cells; cell += blockDim.x) add_pending(s.pending + (u64)cell * 2, table_take(t, cell));
#pragma unroll 1
    for (int j = threadIdx.x; j < s.k; j += blockDim.x) {
        int rows = table_rows[j];
        if (rows != 0) {
            atomicAdd((u64*)&s.pending_rows[j], (u64)(i64)rows);
            table_rows[j] = 0;
        }
    }
}

// A row's weight as two limbs, the low one of 27 bits. The mass is a column of its own.
__device__ __forceinline__ Pair mass_limbs(double w, double to_integer) {
    u64 m = (u64)__dmul_rn(w, to_integer);
    Pair p = {(i64)(m >> 27), (i64)(m & ((1u << 27) - 1))};
    return p;
}

// Moves a row's contribution from one cluster (or from none) to another, directly in device memory. `lanes` lanes share the columns.
template <typename T>
__device__ __forceinline__ void move_pending(const Rows<T>& rows, const Sums& s, const Factors* factors, double mass_to_integer, u64 row,
                                             u32 from, u32 to, double weight, int lane, int lanes) {
#pragma unroll 1
    for (int c = lane; c < s.columns; c += lanes) {
        Pair p;
        if (c < rows.d) {
            double x = (double)rows.x[(u64)c * rows.stride + row];
            if (rows.w) x = __dmul_rn(weight, x);
            p = limbs_of(x, factors[c]);
        } else {
            p = mass_limbs(weight, mass_to_integer);
        }
        u64* into = s.pending + ((u64)to * s.columns + c) * s.limbs * 2;
        add_pending(into, p.hi);
        if (s.limbs == 2) add_pending(into + 2, p.lo);
        if (from != UNASSIGNED) {
            u64* out = s.pending + ((u64)from * s.columns + c) * s.limbs * 2;
            add_pending(out, -p.hi);
            if (s.limbs == 2) add_pending(out + 2, -p.lo);
        }
    }
    if (lane == 0) {
        atomicAdd((u64*)&s.pending_rows[to], 1ull);
        if (from != UNASSIGNED) atomicAdd((u64*)&s.pending_rows[from], ~0ull);
    }
}

// ---- distances -------------------------------------------------------------------------------------------------------------

// The reference distance of row `row` to the centroid whose value f is c[f * step].
template <typename T, typename C>
__device__ __forceinline__ double reference_distance(const Rows<T>& rows, u64 row, const C* c, u64 step) {
    double s = 0.0;
    for (int f = 0; f < rows.d; f++) {
        double t = __dadd_rn((double)rows.x[(u64)f * rows.stride + row], -(double)c[(u64)f * step]);
        s = __fma_rn(t, t, s);
    }
    return s;
}

// ---- the filter --------------------------------------------------------------------------------------------------------------

// How far above the best score another score may be and still be in reach: src/certify.rs, `ExpandedTerms`. It needs only the weighted
// square of the norm of the row's copy, not the norm. If no centroid may be ruled out, the offset is infinite.
struct Bound {
    float slope, offset;
};

// Scores that are not greater than this are in reach. If the copy's square is infinite or NaN, so is this, and no score is greater.
__device__ __forceinline__ float reach(const Bound& b, float square, float best) { return __fadd_rn(best, __fmaf_rn(square, b.slope, b.offset)); }

// The weight of features `group` to `group` + 15 in that square: `weight` of src/certify.rs. It counts the roundings of their products
// before |c|^2 / 2 is added, and five more. The products form one chain of d, or chains of `panel` whose sums are added up. With `panel` 0
// every weight is 1.
__device__ __forceinline__ int weight_of(int group, int d, int panel) {
    const u32 g = group, p = panel; // unsigned, so division by a constant panel is a shift
    return panel == 0 ? 1 : min(d - group, (int)(p - g % p)) + (int)((u32)d / p + ((u32)d % p != 0) - g / p) + 6;
}

// A value's copy for the filter: x * scale + shift, where shift = -(centre * scale) and scale is a power of two. It has one rounding in
// the type of x, that of the difference, and then one to float32.
__device__ __forceinline__ float centred_copy(float x, float shift, float scale) { return __fmaf_rn(x, scale, shift); }
__device__ __forceinline__ float centred_copy(double x, double shift, double scale) { return __double2float_rn(__fma_rn(x, scale, shift)); }

// Kernels of a fit's loop call this first. Each is launched while the kernel before it still runs (`Queue::launch_behind` of
// src/backend/cuda/device.rs), so its blocks are ready when that kernel is done. Nothing may be read or written before this call.
__device__ __forceinline__ void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// What the kernels of a fit tell each other and the host.
struct Control {
    u64 changed; // rows of positive weight whose label changed in this iteration
    u64 started; // the device's clock at the end of the last iteration
    u32 stop; // 0: go on; 1: converged; 2: a cluster is empty and the host relocates. Unless 0, later kernels do nothing
    u32 iteration; // finished iterations
    u32 ticket; // blocks of the update that are done
    u32 contested; // rows in the list of rows to compare with all centroids
    u32 pairs; // rows in the list of rows to compare with two centroids
    u32 next_run; // tiles that the warps of assign_registers have taken from the counter
};

// One iteration in the history.
struct Record {
    u64 changed;
    double shift;
    u64 nanoseconds;
    u32 moved;
    u32 contested;
};

// A row that a filter could not decide. Such rows share an array of n. From its front come rows with two centroids in reach: the one that
// `next` holds, and `second`. From its back come all others.
struct Contested {
    u32 row, second;
};

// Arguments of the assign kernels.
template <typename T> struct Assign {
    Rows<T> rows;
    Labels labels; // the labels before. assign_registers writes the new ones in place
    Labels next; // assign_tiled writes the new labels here
    const T* shift; // (d): minus the centre, scaled
    T scale; // a power of two
    const float* copies; // minus the centred, scaled centroids, laid out for the kernel
    const float* half_squares; // (k padded): |c|^2 / 2, infinite from k on
    const Bound* bound;
    Contested* contested; // rows that the filter could not decide
    Control* control;
    int k, k_padded;
    // The other fields are for kernels that also move contributions.
    Sums sums;
    const Factors* factors; // (d)
    double mass_to_integer;
    int table_copies; // copies of each cell in shared memory; 0: add directly to device memory
    int portion; // whether the centroids fit in shared memory
    const T* columns; // (d, k): the centroids, column-major
    u32 run; // tiles that a warp takes at a time, a power of two
    u32 even; // up to this tile, in whole rounds, every warp takes equally many
};

// The centroid of least distance that a lane has seen, then that of all lanes of a warp. On ties the smallest j.
struct Closest {
    double least = infinity();
    u32 label = 0;

    // A lane must call this in ascending order of j.
    __device__ __forceinline__ void compare(u32 j, double s) {
        if (s < least) least = s, label = j;
    }
    // A lane that found nothing has label 0 and distance infinity. Every finite distance beats it, and if all are infinite the label is 0.
    // Distances are not negative, so their bits have the same order as they have.
    __device__ __forceinline__ u32 of_warp() const {
        const u64 bits = (u64)__double_as_longlong(least);
        const u32 high = __reduce_min_sync(FULL_WARP, (u32)(bits >> 32));
        const bool in = (u32)(bits >> 32) == high;
        const u32 low = __reduce_min_sync(FULL_WARP, in ? (u32)bits : 0xffffffffu);
        return __reduce_min_sync(FULL_WARP, in && (u32)bits == low ? label : 0xffffffffu);
    }
};

// The exact label of a row: the smallest j of least distance. All lanes of a warp work on it, each on every 32nd centroid.
template <typename T> __device__ __forceinline__ u32 nearest_by_warp(const Rows<T>& rows, u64 row, const T* columns, int k, int lane) {
    Closest closest;
#pragma unroll 1
    for (int j = lane; j < k; j += 32) {
        double s = 0.0;
#pragma unroll 1
        for (int f = 0; f < rows.d; f++) {
            double t = __dadd_rn((double)rows.x[(u64)f * rows.stride + row], -(double)columns[(u64)f * k + j]);
            s = __fma_rn(t, t, s);
        }
        closest.compare(j, s);
    }
    return closest.of_warp();
}

// ---- small helpers -------------------------------------------------------------------------------------------------------------

__device__ __forceinline__ u32 global_thread() { return blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ u32 all_threads() { return gridDim.x * blockDim.x; }
__device__ __forceinline__ u64 warp_sum(u64 v) {
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(FULL_WARP, v, o);
    return v;
}
// Adds to a 128-bit integer in two words, the low word first.
__device__ __forceinline__ void add_wide(u64* low, u64* high, u128 v) {
    u64 l = (u64)v, h = (u64)(v >> 64);
    u64 old = atomicAdd(low, l);
    h += (old + l < old) ? 1 : 0;
    if (h) atomicAdd(high, h);
}

// transform: rows that were sent are scaled and normalised where they are, before anything else reads them (src/input/transform.rs).
//
// Used when: `scale` or `metric="cosine"` is asked for, after every upload of rows.
// Tile:      scale: a block has up to 8,192 values of one column. normalise: a thread has a row, so neighbouring threads read
//            neighbouring values of a column.
// Memory:    scale reads and writes all values once. normalise reads them three times and writes them once.
// Precision: the operations of src/input/transform.rs, in their order. Each is rounded as IEEE 754 says.
#include "../common/transform.cuh"
#include "../common/launch.cuh"

#define THREADS 256
#define CHUNK 8192
#define MOST_FACTORS 256

// Some columns, and a factor for each. The factors are in the parameter, so they take no device memory.
template <typename T> struct ScaleColumns {
    T* x; // (columns, stride)
    u64 stride;
    u32 n;
    u32 columns;
    double factors[MOST_FACTORS];
};

template <typename T> __device__ __forceinline__ void scale_columns(const ScaleColumns<T>& a) {
    const u32 f = blockIdx.x % a.columns;
    const u64 begin = (u64)(blockIdx.x / a.columns) * CHUNK, end = begin + CHUNK < a.n ? begin + CHUNK : a.n;
    const double factor = a.factors[f];
    T* column = a.x + (u64)f * a.stride;
#pragma unroll 8
    for (u64 row = begin + threadIdx.x; row < end; row += THREADS) column[row] = (T)__dmul_rn((double)column[row], factor);
}

template <typename T> struct Normalise {
    T* x; // (d, stride)
    u64 stride;
    u32 n;
    int d;
};

template <typename T> __device__ __forceinline__ void normalise(const Normalise<T>& a) {
    for (u64 row = global_thread(); row < a.n; row += all_threads()) {
        T* x = a.x + row;
        double largest = 0.0;
#pragma unroll 8
        for (int f = 0; f < a.d; f++) {
            const double magnitude = fabs((double)x[(u64)f * a.stride]);
            if (magnitude > largest) largest = magnitude;
        }
        const UnitFactors unit(largest);
        double s = 0.0;
#pragma unroll 8
        for (int f = 0; f < a.d; f++) {
            const double y = unit.apply((double)x[(u64)f * a.stride]);
            s = __fma_rn(y, y, s);
        }
        const double norm = __dsqrt_rn(s);
#pragma unroll 4
        for (int f = 0; f < a.d; f++) {
            T* value = x + (u64)f * a.stride;
            *value = (T)__ddiv_rn(unit.apply((double)*value), norm);
        }
    }
}

#define KERNELS(T, NAME)                                                                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS) scale_columns_##NAME(const __grid_constant__ ScaleColumns<T> a) {         \
        scale_columns(a);                                                                                                           \
    }                                                                                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS) normalise_##NAME(const __grid_constant__ Normalise<T> a) { normalise(a); }
KERNELS(float, f32)
KERNELS(double, f64)

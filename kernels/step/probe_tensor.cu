// probe_tensor: given numbers and products of given vectors, added up by the instructions of assign_tensor and assign_tensor_mma. From these sums
// src/bounds/fp16/adding.rs finds out how the tensor cores of this device add up.
//
// Used when: once a process, before the first assign_tensor or assign_tensor_mma on a device.
// Tile:      one block: 64 rows, 256 centroids, 64 features. One warpgroup multiplies by m64n256k16, or 4 warps by m16n8k16, in the same order of
//            features as the kernels. The instructions for 128 and for 64 centroids must give the same sums, or there is no sum.
#include "../common/tensor.cuh"
#include "mma.cuh"
#include "tensor_pipeline.cuh"
#include "wgmma.cuh"

struct ProbeTensor {
    const u8* rows; // (64, 64) of 2 bytes, in the order of a chunk
    const u8* centroids; // (256, 64) of 2 bytes, likewise
    const float* starts; // (256): what the sums of a centroid begin with
    float* sums; // (64, 256)
};

#define PROBE_THREADS 128
#define PROBE_ROWS 64

// Copies both sides to shared memory: centroids first.
__device__ __forceinline__ void load_sides(const ProbeTensor& a, u8* shared) {
    const int centroids = TILE_CENTROIDS * PLACE_BYTES / 16, all = centroids + PROBE_ROWS * PLACE_BYTES / 16;
    for (int i = threadIdx.x; i < all; i += PROBE_THREADS)
        ((uint4*)shared)[i] = i < centroids ? ((const uint4*)a.centroids)[i] : ((const uint4*)a.rows)[i - centroids];
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// Where the two sums of columns 8 i to 8 i + 7 are that a lane has for its row number r.
__device__ __forceinline__ float* sums_of(const ProbeTensor& a, u32 i, u32 r) {
    const u32 lane = threadIdx.x & 31, row = threadIdx.x / 32 * 16 + lane / 4 + 8 * r;
    return a.sums + row * TILE_CENTROIDS + i * 8 + (lane & 3) * 2;
}

// The sums of WIDTH centroids from `first` on. Returns whether they are those that are there. If `write`, they are written.
template <u32 WIDTH> __device__ __forceinline__ bool add_up(const ProbeTensor& a, u32 x, u32 centroids, u32 first, bool write) {
    const u32 y = matrix_at(centroids + first * PLACE_BYTES);
    float sums[WIDTH / 2];
#pragma unroll
    for (u32 i = 0; i < WIDTH / 2; i++) sums[i] = a.starts[first + i / 4 * 8 + (threadIdx.x & 3) * 2 + i % 2];
    begin_products();
#pragma unroll
    for (u32 i = 0; i < CHUNK / 16; i++) multiply<WIDTH>(sums, x + 2 * i, y + 2 * i);
    commit_products();
    await_products<0>();
    bool same = true;
#pragma unroll
    for (u32 i = 0; i < WIDTH / 2; i++) {
        float* const at = sums_of(a, first / 8 + i / 4, i / 2 % 2) + i % 2;
        if (write) *at = sums[i];
        else same &= __float_as_uint(sums[i]) == __float_as_uint(*at);
    }
    return same;
}
#endif

extern "C" __global__ void __launch_bounds__(PROBE_THREADS, 1) probe_tensor_wgmma(const __grid_constant__ ProbeTensor a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    __shared__ __align__(1024) u8 shared[(TILE_CENTROIDS + PROBE_ROWS) * PLACE_BYTES];
    load_sides(a, shared);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); // tensor cores read what threads have written
    __syncthreads();
    const u32 y = shared_address(shared), x = matrix_at(y + TILE_CENTROIDS * PLACE_BYTES);
    bool same = add_up<256>(a, x, y, 0, true);
#pragma unroll 1
    for (u32 first = 0; first < TILE_CENTROIDS; first += 128) same &= add_up<128>(a, x, y, first, false);
#pragma unroll 1
    for (u32 first = 0; first < TILE_CENTROIDS; first += 64) same &= add_up<64>(a, x, y, first, false);
    if (__syncthreads_or(!same) && threadIdx.x == 0) a.sums[0] = __uint_as_float(0x7fc00000u); // which is looked at
#else
    __trap(); // other generations have no such instructions, and never launch this
#endif
}

extern "C" __global__ void __launch_bounds__(PROBE_THREADS, 1) probe_tensor_mma(const __grid_constant__ ProbeTensor a) {
    __shared__ __align__(1024) u8 shared[(TILE_CENTROIDS + PROBE_ROWS) * PLACE_BYTES];
    load_sides(a, shared);
    __syncthreads();
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const u32 y = (u32)__cvta_generic_to_shared(shared), x = y + TILE_CENTROIDS * PLACE_BYTES;
#pragma unroll 1
    for (u32 j = 0; j < TILE_CENTROIDS; j += 8) {
        const float* const starts = a.starts + j + (lane & 3) * 2;
        float sums[4] = {starts[0], starts[1], starts[0], starts[1]};
#pragma unroll
        for (u32 i = 0; i < CHUNK / 16; i++) {
            u32 of_rows[4], of_centroids[4];
            load_matrices(of_rows, x + swizzled(warp * 16 + (lane & 15), 2 * i + lane / 16));
            load_matrices(of_centroids, y + swizzled(j + (lane & 7), 2 * i + (lane / 8 & 1))); // twice: two matrices would do
            multiply(sums, of_rows, of_centroids[0], of_centroids[1]);
        }
        float* const to = a.sums + (warp * 16 + lane / 4) * TILE_CENTROIDS + j + (lane & 3) * 2;
        to[0] = sums[0], to[1] = sums[1], to[8 * TILE_CENTROIDS] = sums[2], to[8 * TILE_CENTROIDS + 1] = sums[3];
    }
}

// mma: the products of a warp on tensor cores, from registers to registers, and the copies that bring their operands. Generation 8.0 and later.
#pragma once
#include "../common/types.cuh"

// Copies 16 bytes to shared memory, past the first-level cache, if `wanted` is not 0. No branch, so it is done between products.
__device__ __forceinline__ void copy_piece(u32 to, const void* from, u32 wanted) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %2, 0;\n\t@p cp.async.cg.shared.global [%0], [%1], 16;\n\t}" ::"r"(to), "l"(from), "r"(wanted)
                 : "memory");
}
// Ends a group of copies. It may be empty.
__device__ __forceinline__ void commit_pieces() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for all groups of copies of this thread, except the last LEFT.
template <int LEFT> __device__ __forceinline__ void await_pieces() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }

// Four matrices of 8 x 8 halves. Lane l names row l % 8 of matrix l / 8, which is 16 bytes. It gets the halves 2 (l % 4) and the next one of
// row l / 4 of each.
__device__ __forceinline__ void load_matrices(u32 (&to)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}

// Adds to d the products of 16 rows and 8 centroids over 16 features. x: the matrices of rows 0 to 7 and 8 to 15 for features 0 to 7, then for
// features 8 to 15. c, e: those of the centroids. Lane l gets row l / 4 and centroids 2 (l % 4) + {0, 1} in d[0] and d[1], and the same of row
// l / 4 + 8 in d[2] and d[3].
__device__ __forceinline__ void multiply(float* d, const u32 (&x)[4], u32 c, u32 e) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(c), "r"(e));
}

// When the warps of a block may add to its table of sums, and when the table is flushed. An accumulator may hold only so many values. So a warp
// announces its rows before it adds them, and the warp that finds no room for its rows flushes the table. No warp waits for a barrier.
#pragma once
#include "../common/launch.cuh"

struct Gate {
    u32 announced; // rows that all warps announced
    u32 flushed; // rows that were announced when the table was last flushed
    u32 busy; // 1 while a warp flushes
};

// Announces `count` rows. If the table has no room for them, calls `flush` first, which must leave nothing out that was added before.
// `capacity`: the rows that an accumulator may take, minus those that all other warps may have announced and not added yet. The whole warp must
// call this.
template <typename Flush> __device__ __forceinline__ void enter(Gate& gate, u32 count, u32 capacity, int lane, Flush flush) {
    while (true) {
        u32 full = 0;
        if (lane == 0) {
            while (true) {
                const u32 announced = *(volatile u32*)&gate.announced;
                if (announced - *(volatile u32*)&gate.flushed + count <= capacity) {
                    if (atomicCAS(&gate.announced, announced, announced + count) == announced) break;
                } else if (atomicCAS(&gate.busy, 0u, 1u) == 0) {
                    full = 1;
                    break;
                } else {
                    __nanosleep(100);
                }
            }
        }
        if (!__shfl_sync(FULL_WARP, full, 0)) return;
        // Rows announced after this point count towards the next flush.
        const u32 announced = *(volatile u32*)&gate.announced;
        __threadfence_block();
        flush();
        __threadfence_block();
        __syncwarp();
        if (lane == 0) {
            *(volatile u32*)&gate.flushed = announced;
            __threadfence_block();
            atomicExch(&gate.busy, 0u);
        }
        __syncwarp();
    }
}

// exchange: the sums of the GPUs of a fit become one, between the step and the update.
//
// Source:    ours. kmcuda 2016 has two GPUs, and Li et al. 2010 a cluster of them; both add up floats, so their results depend on the
//            number of GPUs. Here pending sums are words that wrap around, so a plain sum over the GPUs is exact.
// Used when: a fit has several GPUs that reach each other's memory.
// Plan:      step         adds to the pending sums of the GPU, of which there are two: one for this iteration, one for the next
//            arrive       writes the counts of the step beside them, and says that all is there
//            meet         waits until every GPU has said so
//            total_sums   reads the sums of each GPU, and writes their total to this GPU. The sums of the iteration before become zero:
//                         by now all GPUs have read them
//            update       the same on every GPU
// Memory:    each GPU reads the (k, columns, limbs) sums of each other GPU once.
// Waiting:   one warp waits, and the rest of the GPU is free. The host queues `meet` on a GPU when it has queued `arrive` on all of them. So
//            a GPU waits only for work that is queued, and a call of the driver that waits for this GPU ends. If a kernel fails on one of
//            them, the host rings an alarm, and no GPU waits any more.
#include "../common/sums.cuh"
#include "../common/launch.cuh"

#define MOST_GPUS 16
// How often a waiting lane looks at the other GPU before it looks whether the alarm was rung.
#define LOOKS 64

// What a GPU tells the others beside its sums.
struct Counts {
    u64 changed, settled, scores, rescored;
};

struct Arrive {
    Control* control;
    Counts* counts;
    u64* arrived; // exchanges that this GPU has reached
    u64 scores; // those of the step, if the step does not count them
    int moves; // whether these are the sums of rows that the host has moved, and not those of a step
    int unused;
};

struct Meet {
    const Control* control;
    const u64* arrived; // exchanges that this GPU has reached
    const u64* others[MOST_GPUS]; // the same of each GPU
    const u32* alarm;
    int gpus;
    int moves;
};

struct Total {
    const u64* pending[MOST_GPUS]; // (words) of each GPU
    const i64* rows[MOST_GPUS]; // (k) of each GPU
    const Counts* counts[MOST_GPUS];
    u64* sums; // (words): the total
    i64* sum_rows; // (k)
    u64* next; // (words): the pending sums of the next step. They become zero
    i64* next_rows; // (k)
    Control* control;
    u64 words; // k * columns * limbs * 2
    int k, gpus;
    int moves;
    int unused;
};

extern "C" __global__ void __launch_bounds__(32) arrive(const __grid_constant__ Arrive a) {
    wait_for_kernel_before();
    const Control* c = a.control;
    if (!a.moves && c->stop) return;
    if (threadIdx.x != 0) return;
    *a.counts = {c->changed, c->settled + c->in_doubt + c->pairs, a.scores ? a.scores : c->scores, c->rescored};
    // Only this GPU writes the number. A GPU that sees the number sees all that this GPU has written before.
    asm volatile("fence.acq_rel.sys;\n\tst.release.sys.u64 [%0], %1;" ::"l"(a.arrived), "l"(*a.arrived + 1) : "memory");
}

extern "C" __global__ void __launch_bounds__(32) meet(const __grid_constant__ Meet a) {
    wait_for_kernel_before();
    if (!a.moves && a.control->stop) return;
    const int lane = threadIdx.x;
    if (lane >= a.gpus) return;
    const u64 turn = *a.arrived;
    for (u32 look = 1;; look++) {
        u64 seen;
        asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(seen) : "l"(a.others[lane]) : "memory");
        if (seen >= turn) break;
        if (look % LOOKS == 0 && *(const volatile u32*)a.alarm) break;
    }
}

// Another GPU has written these values. They are not taken from this SM's cache.
__device__ __forceinline__ u64 fresh(const u64* at) { return __ldcg((const unsigned long long*)at); }

extern "C" __global__ void __launch_bounds__(256) total_sums(const __grid_constant__ Total a) {
    wait_for_kernel_before();
    if (!a.moves && a.control->stop) return;
    const u32 first = global_thread(), all = all_threads();
#pragma unroll 1
    for (u64 i = first; i < a.words / 2; i += all) {
        ulonglong2 sum = make_ulonglong2(0, 0);
#pragma unroll 4
        for (int g = 0; g < a.gpus; g++) {
            const ulonglong2 more = __ldcg((const ulonglong2*)a.pending[g] + i);
            sum.x += more.x, sum.y += more.y;
        }
        ((ulonglong2*)a.sums)[i] = sum;
        ((ulonglong2*)a.next)[i] = make_ulonglong2(0, 0);
    }
#pragma unroll 1
    for (u32 j = first; j < a.k; j += all) {
        u64 rows = 0;
        for (int g = 0; g < a.gpus; g++) rows += fresh((const u64*)a.rows[g] + j);
        a.sum_rows[j] = (i64)rows;
        a.next_rows[j] = 0;
    }
    if (first != 0 || a.moves) return;
    Counts sum = {};
    for (int g = 0; g < a.gpus; g++) {
        const u64* more = (const u64*)a.counts[g];
        sum.changed += fresh(more), sum.settled += fresh(more + 1), sum.scores += fresh(more + 2), sum.rescored += fresh(more + 3);
    }
    Control* c = a.control;
    c->changed = sum.changed, c->settled = sum.settled, c->scores = sum.scores, c->rescored = (u32)sum.rescored;
    c->in_doubt = 0, c->pairs = 0;
}

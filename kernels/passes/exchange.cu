// exchange: the sums of the GPUs of a fit become one, between the step and the update.
//
// Source:    ours. kmcuda 2016 has two GPUs, and Li et al. 2010 a cluster of them; both add up floats, so their results depend on the
//            number of GPUs. Here pending sums are words that wrap around, so a plain sum over the GPUs is exact.
// Used when: a fit has several GPUs that reach each other's memory.
// Plan:      step         adds to the pending sums of the GPU. In this plan there are two: one for this iteration, one for the next
//            arrive       writes the counts of the step beside them, and says that all is there
//            meet         waits until every GPU has said so
//            total_sums   reads the sums of each GPU, and writes their total to this GPU. The sums of the iteration before become zero:
//                         by now all GPUs have read them
//            update       the same on every GPU
//            Where sums are large, each GPU makes the sums and means of its own clusters, and takes the other means:
//            step; touched: which clusters have pending sums; arrive; meet
//            share_sums   reads the pending sums of its clusters from each GPU that has some
//            arrive; meet
//            take_means   reads the means of all clusters. The pending sums become zero: all GPUs have read them
//            update       the same on every GPU, from means
// Memory:    each GPU reads the (k, columns, limbs) sums of each other GPU once, or those of its own clusters, and k * d means.
// Waiting:   one warp waits, and the rest of the GPU is free. The host queues `meet` on a GPU when it has queued `arrive` on all of them. So
//            a GPU waits only for work that is queued, and a call of the driver that waits for this GPU ends. If a kernel fails on one of
//            them, the host rings an alarm, and no GPU waits any more.
#include "cluster_sum.cuh"
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
    Counts* counts; // null in the second half of an exchange
    u64* arrived; // exchanges, and halves of exchanges, that this GPU has reached
    u64 scores; // those of the step, if the step does not count them
    int moves; // whether these are the sums of rows that the host has moved, and not those of a step
    int unused;
};

struct Meet {
    const Control* control;
    const u64* arrived; // exchanges, and halves of exchanges, that this GPU has reached
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
    if (a.counts) *a.counts = {c->changed, c->settled + c->in_doubt + c->pairs, a.scores ? a.scores : c->scores, c->rescored};
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

// The counts of all GPUs become those of this one.
__device__ __forceinline__ void take_counts(const Counts* const* counts, int gpus, Control* c) {
    Counts sum = {};
    for (int g = 0; g < gpus; g++) {
        const u64* more = (const u64*)counts[g];
        sum.changed += fresh(more), sum.settled += fresh(more + 1), sum.scores += fresh(more + 2), sum.rescored += fresh(more + 3);
    }
    c->changed = sum.changed, c->settled = sum.settled, c->scores = sum.scores, c->rescored = (u32)sum.rescored;
    c->in_doubt = 0, c->pairs = 0;
}

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
    if (first == 0 && !a.moves) take_counts(a.counts, a.gpus, a.control);
}

// Which clusters have pending sums.
struct Touched {
    const u64* pending; // (k, words)
    const i64* rows; // (k)
    u8* touched; // (k)
    const Control* control;
    int k;
    int words; // columns * limbs * 2
    int moves;
    int unused;
};

// A warp has a cluster.
extern "C" __global__ void __launch_bounds__(256) touched(const __grid_constant__ Touched a) {
    wait_for_kernel_before();
    if (!a.moves && a.control->stop) return;
    const int lane = threadIdx.x & 31;
#pragma unroll 1
    for (u32 j = global_thread() / 32; j < a.k; j += all_threads() / 32) {
        const ulonglong2* words = (const ulonglong2*)(a.pending + (u64)j * a.words);
        u64 any = lane == 0 ? (u64)a.rows[j] : 0;
#pragma unroll 4
        for (int i = lane; i < a.words / 2; i += 32) any |= words[i].x | words[i].y;
        any = __any_sync(FULL_WARP, any != 0);
        if (lane == 0) a.touched[j] = (u8)any;
    }
}

// The clusters of a GPU, when several share them.
template <typename T> struct ShareSums {
    const u64* pending[MOST_GPUS]; // (k, columns, limbs, 2) of each GPU
    const i64* pending_rows[MOST_GPUS]; // (k) of each GPU
    const u8* touched[MOST_GPUS]; // (k) of each GPU
    const Counts* counts[MOST_GPUS];
    Sums sums; // of this GPU
    const int* mean_exponents; // (d): a mean is sum / mass * 2^this
    const T* lows; // (d)
    const T* highs; // (d)
    T* means; // (k, d): written for the clusters of this GPU that have rows
    i64* rows; // (k): written for the clusters of this GPU
    Control* control;
    int first, end; // the clusters of this GPU
    int gpus;
    int moves;
};

// A block has a cluster, and a thread a column.
template <typename T> __device__ __forceinline__ void share(const ShareSums<T>& a) {
    wait_for_kernel_before();
    if (!a.moves && a.control->stop) return;
    const Sums& s = a.sums;
#pragma unroll 1
    for (int j = a.first + blockIdx.x; j < a.end; j += gridDim.x) {
        u32 have = 0; // a bit for each GPU
#pragma unroll 1
        for (int g = 0; g < a.gpus; g++) have |= (u32)(__ldcg(a.touched[g] + j) != 0) << g;
        auto total = [&](int c) {
            ulonglong2 p = make_ulonglong2(0, 0), q = p;
            const u64 accumulator = (u64)j * s.columns + c;
#pragma unroll 1
            for (u32 left = have; left; left &= left - 1) {
                const ulonglong2* at = (const ulonglong2*)a.pending[__ffs(left) - 1] + accumulator * s.limbs;
                const ulonglong2 high = __ldcg(at);
                p.x += high.x, p.y += high.y;
                if (s.limbs < 2) continue;
                const ulonglong2 low = __ldcg(at + 1);
                q.x += low.x, q.y += low.y;
            }
            return with_pending(s, c, s.sums[accumulator], p, q);
        };
        u64 rows = (u64)s.rows[j];
#pragma unroll 1
        for (u32 left = have; left; left &= left - 1) rows += fresh((const u64*)a.pending_rows[__ffs(left) - 1] + j);
        const i128 mass = s.mass_column >= 0 ? total(s.mass_column) : (i128)rows;
        // All threads have read the mass.
        __syncthreads();
#pragma unroll 1
        for (int c = threadIdx.x; c < s.columns; c += blockDim.x) {
            const i128 sum = c == s.mass_column ? mass : total(c);
            if (have) s.sums[(u64)j * s.columns + c] = sum;
            if (c < s.d && rows > 0) a.means[(u64)j * s.d + c] = mean_within(sum, (u128)mass, a.mean_exponents[c], a.lows[c], a.highs[c]);
        }
        if (threadIdx.x == 0) a.rows[j] = (i64)rows;
    }
    // In the second half a GPU may be one step ahead, and have the counts of that step.
    if (global_thread() == 0 && !a.moves) take_counts(a.counts, a.gpus, a.control);
}

// The means of all clusters.
template <typename T> struct TakeMeans {
    const T* means[MOST_GPUS]; // (k, d) of each GPU
    const i64* rows[MOST_GPUS]; // (k) of each GPU
    u64* pending; // (k, words): this GPU's pending sums, which become zero
    i64* pending_rows; // (k)
    const u8* touched; // (k): this GPU's clusters with pending sums
    T* centroids; // (k, d): the new centroids of clusters with rows
    i64* all_rows; // (k)
    const Control* control;
    int k, d;
    int words; // columns * limbs * 2
    int share; // clusters of a GPU; the last one may have fewer
    int moves;
    int unused;
};

// A block has a cluster.
template <typename T> __device__ __forceinline__ void take(const TakeMeans<T>& a) {
    wait_for_kernel_before();
    if (!a.moves && a.control->stop) return;
#pragma unroll 1
    for (int j = blockIdx.x; j < a.k; j += gridDim.x) {
        const int owner = j / a.share;
        const T* means = a.means[owner] + (u64)j * a.d;
#pragma unroll 4
        for (int f = threadIdx.x; f < a.d; f += blockDim.x) a.centroids[(u64)j * a.d + f] = __ldcg(means + f);
        if (a.touched[j])
            for (int i = threadIdx.x; i < a.words / 2; i += blockDim.x)
                ((ulonglong2*)(a.pending + (u64)j * a.words))[i] = make_ulonglong2(0, 0);
        if (threadIdx.x == 0) a.all_rows[j] = (i64)fresh((const u64*)a.rows[owner] + j), a.pending_rows[j] = 0;
    }
}

#define KERNELS(T, NAME)                                                                                                      \
    extern "C" __global__ void __launch_bounds__(128) share_sums_##NAME(const __grid_constant__ ShareSums<T> a) { share(a); }      \
    extern "C" __global__ void __launch_bounds__(128) take_means_##NAME(const __grid_constant__ TakeMeans<T> a) { take(a); }
KERNELS(float, f32)
KERNELS(double, f64)

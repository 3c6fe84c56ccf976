/* Where top-k and top-p cut the candidates of a row of logits.
 *
 * A cut keeps the best candidates until their count (top-k) or their weight (top-p) reaches a bound; where it falls is
 * found digit by digit: how much the candidates of each value of the digit hold together says which value the cut is
 * in. Candidates are ordered by fd_sampling_order, in which no two are equal, so that a cut among equal logits is found
 * by the same digits. Counts and weights are integers: atomic additions give the same sums in any order. */
#ifndef FD_KERNELS_SAMPLING_CUT_CUH
#define FD_KERNELS_SAMPLING_CUT_CUH

#include "kernels/sampling/cluster.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
/* Digit of a level, larger for better candidates. The first is an eighth of e's exponent below the best: it spreads
 * logits over the digits where the bytes of a binary32 have most of them in few. */
__device__ __forceinline__ int digit_at(int level, float logit, float best, uint64_t order) {
    if (level > 0) return (int)(order >> (64 - 8 * level)) & (DIGITS - 1);
    const float below = (best - logit) * 8.0f;
    return below < 255.0f ? 255 - (int)below : 0;
}

/* What is known of where a cut falls. */
struct cut_place {
    uint64_t least;  /* candidates have at least this order */
    uint64_t before; /* held by those that are better than all with the digits so far */
    int coarse;      /* digit of level 0 */
    uint64_t prefix; /* digits of the levels after it */
};

__device__ __forceinline__ void clear(unsigned *words, int n) {
    for (int i = (int)threadIdx.x; i < n; i += THREADS) words[i] = 0;
    __syncthreads();
}

/* What this block's candidates hold, by their digit of the level. `in`: it has the digits of the levels before. The
 * conditions here and in find_digit stand where and as they do because the compiler makes branches of them so; with a
 * function for `in` and one condition for the cut it makes selects, and sampling from 151,936 logits takes 4 µs
 * more. */
template <bool WEIGHT>
__device__ __forceinline__ void add_digits(const cut_place &place, int level, const slice &own, digit_sums &sums) {
    for (int i = (int)threadIdx.x; i < own.n; i += THREADS) {
        const float logit = own.logits[i];
        if (logit == -(float)INFINITY) continue;
        const uint64_t order = fd_sampling_order(logit, own.first + i);
        const bool in =
            order >= place.least && (level == 0 || (digit_at(0, logit, own.best, order) == place.coarse &&
                                                    (level == 1 || order >> (72 - 8 * level) == place.prefix)));
        if (!in) continue;
        const int digit = digit_at(level, logit, own.best, order);
        atomicAdd(&sums.count[digit], 1u);
        if (WEIGHT) {
            const uint64_t weight = fd_sampling_weight(logit - own.best);
            for (int piece = 0; piece < 3; piece++) {
                const unsigned bits = (unsigned)(weight >> (16 * piece)) & 0xffffu;
                if (bits) atomicAdd(&sums.weight[piece][digit], bits);
            }
        }
    }
}

/* The digit that the cut is in, from the sums of all blocks: the first, from the best, with which the bound is reached.
 * To s.digit (-1: with none), s.before and s.alone. */
template <bool WEIGHT>
__device__ __forceinline__ void find_digit(cg::cluster_group &cluster, sample_shared &s, digit_sums &sums,
                                           uint64_t before, double bound) {
    /* Thread d gathers what the cluster has in digit d. */
    uint64_t held = 0, count = 0;
    if (threadIdx.x < DIGITS) {
        for (unsigned b = 0; b < BLOCKS; b++) {
            const digit_sums *theirs = cluster.map_shared_rank(&sums, b);
            count += theirs->count[threadIdx.x];
            if (WEIGHT)
                for (int piece = 0; piece < 3; piece++)
                    held += (uint64_t)theirs->weight[piece][threadIdx.x] << (16 * piece);
        }
        if (!WEIGHT) held = count;
    }
    /* Sums from the best digit down: thread d of `reached` has its own digit and all better ones. */
    uint64_t reached = held;
    const int lane = (int)threadIdx.x % 32;
    for (int step = 1; step < 32; step *= 2) {
        const uint64_t other = __shfl_down_sync(0xffffffffu, reached, step);
        if (lane + step < 32) reached += other;
    }
    if (lane == 0) s.warp[threadIdx.x / 32] = reached;
    if (threadIdx.x == 0) s.digit = -1;
    __syncthreads();
    for (int w = (int)threadIdx.x / 32 + 1; w < DIGITS / 32; w++) reached += s.warp[w];
    reached += before;
    if (threadIdx.x < DIGITS && count > 0) {
        const bool is_cut = (double)(reached - held) < bound && (double)reached >= bound;
        if (is_cut) {
            s.digit = (int)threadIdx.x;
            s.before = reached - held;
            s.alone = count == 1;
        }
    }
    __syncthreads();
}

/* The least order that a cut leaves: of candidates with an order of at least `least`, the fewest best whose count, or
 * weight, reaches `bound` (all, when they do not). */
template <bool WEIGHT>
__device__ uint64_t cut(cg::cluster_group &cluster, sample_shared &s, const slice &own, uint64_t least, double bound) {
    cut_place place = {least, 0, 0, 0};
    clear((unsigned *)s.digits, (int)(sizeof s.digits / sizeof(unsigned)));
    for (int level = 0; level < LEVELS; level++) {
        add_digits<WEIGHT>(place, level, own, s.digits[level % 2]);
        cluster.sync();
        find_digit<WEIGHT>(cluster, s, s.digits[level % 2], place.before, bound);
        if (s.digit < 0) return least; /* the bound is never reached: only at level 0 */
        place.before = s.before;
        const int digit = s.digit;
        if (level == 0)
            place.coarse = digit;
        else
            place.prefix = place.prefix << 8 | (uint64_t)digit;
        const bool alone = s.alone;
        clear((unsigned *)&s.digits[(level + 1) % 2], (int)(sizeof *s.digits / sizeof(unsigned)));
        if (!alone && level < LEVELS - 1) continue;
        /* One candidate is left: it is the last that is kept. */
        unsigned long long found = 0;
        for (int i = (int)threadIdx.x; i < own.n; i += THREADS) {
            const float logit = own.logits[i];
            if (logit == -(float)INFINITY) continue;
            const uint64_t order = fd_sampling_order(logit, own.first + i);
            if (order >= place.least && digit_at(0, logit, own.best, order) == place.coarse &&
                (level == 0 || order >> (64 - 8 * level) == place.prefix))
                found = larger(found, order);
        }
        return over_cluster<false>(cluster, s, found);
    }
    return least;
}
#endif

#endif

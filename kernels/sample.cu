/* A cluster of blocks a sequence; each block keeps its share of the logits, penalised, in shared memory.
 *
 * The sampler's sorted list is never made. A cut keeps the best candidates until their count (top-k) or their weight
 * (top-p) reaches a bound; where it falls is found digit by digit: how much the candidates of each value of the digit
 * hold together says which value the cut is in. Candidates are ordered by fd_sampling_order, in which no two are
 * equal, so that a cut among equal logits is found by the same digits. Counts and weights are integers: atomic additions
 * give the same sums in any order. */
#include "kernels/sample.h"

#include <cooperative_groups.h>

#include "kernels/device.cuh"
#include "kernels/launch.cuh"
#include "numerics/sampling.h"

enum {
    BLOCKS = 8, /* of a cluster: as many as every device of sm_90 takes */
    THREADS = 512,
    WARPS = THREADS / 32,
    DIGITS = 256,
    LEVELS = 9, /* the coarse digit, then the eight bytes of the order */
};

/* What candidates of one digit hold. Weights in pieces of 16 bits: a block has fewer than 2^16 logits, so a piece's sum
 * fits 32 bits, whose additions shared memory does by itself. */
struct digit_sums {
    unsigned count[DIGITS];
    unsigned weight[3][DIGITS];
};

struct sample_shared {
    digit_sums digits[2]; /* this level's, and the one being cleared */
    unsigned long long warp[WARPS];
    unsigned long long block; /* what this block tells the cluster */
    unsigned long long all;   /* what the cluster told this block */
    uint64_t before;          /* held by candidates that are better than all of the cut's digit */
    int digit, alone;
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
namespace cg = cooperative_groups;

__device__ __forceinline__ unsigned long long larger(unsigned long long a, unsigned long long b) {
    return a > b ? a : b;
}

/* The maximum, or the sum, over the cluster; the same in every thread. */
template <bool SUM>
__device__ unsigned long long over_cluster(cg::cluster_group &cluster, sample_shared &s, unsigned long long value) {
    for (int step = 16; step > 0; step /= 2) {
        const unsigned long long other = __shfl_xor_sync(0xffffffffu, value, step);
        value = SUM ? value + other : larger(value, other);
    }
    if (threadIdx.x % 32 == 0) s.warp[threadIdx.x / 32] = value;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < WARPS; w++) value = SUM ? value + s.warp[w] : larger(value, s.warp[w]);
        s.block = value;
    }
    cluster.sync();
    if (threadIdx.x == 0) {
        unsigned long long all = 0;
        for (unsigned b = 0; b < BLOCKS; b++) {
            const unsigned long long one = *cluster.map_shared_rank(&s.block, b);
            all = SUM ? all + one : larger(all, one);
        }
        s.all = all;
    }
    cluster.sync(); /* nobody writes s.block while another reads it */
    return s.all;
}

struct slice {
    float *logits; /* shared: penalised, [n] */
    int first, n;  /* ids of this block */
    float best;
};

/* Digit of a level, larger for better candidates. The first is an eighth of e's exponent below the best: it spreads
 * logits over the digits where the bytes of a binary32 have most of them in few. */
__device__ __forceinline__ int digit_at(int level, float logit, float best, uint64_t order) {
    if (level > 0) return (int)(order >> (64 - 8 * level)) & (DIGITS - 1);
    const float below = (best - logit) * 8.0f;
    return below < 255.0f ? 255 - (int)below : 0;
}

/* The least order that a cut leaves: of candidates with an order of at least `least`, the fewest best whose count, or
 * weight, reaches `bound` (all, when they do not). */
template <bool WEIGHT>
__device__ uint64_t cut(cg::cluster_group &cluster, sample_shared &s, const slice &own, uint64_t least, double bound) {
    uint64_t before = 0, prefix = 0;
    int coarse = 0;
    for (int i = (int)threadIdx.x; i < (int)(sizeof s.digits / sizeof(unsigned)); i += THREADS)
        ((unsigned *)s.digits)[i] = 0;
    __syncthreads();
    for (int level = 0; level < LEVELS; level++) {
        digit_sums &now = s.digits[level % 2];
        for (int i = (int)threadIdx.x; i < own.n; i += THREADS) {
            const float logit = own.logits[i];
            if (logit == -(float)INFINITY) continue;
            const uint64_t order = fd_sampling_order(logit, own.first + i);
            const bool in = order >= least &&
                            (level == 0 || (digit_at(0, logit, own.best, order) == coarse &&
                                            (level == 1 || order >> (72 - 8 * level) == prefix)));
            if (!in) continue;
            const int digit = digit_at(level, logit, own.best, order);
            atomicAdd(&now.count[digit], 1u);
            if (WEIGHT) {
                const uint64_t weight = fd_sampling_weight(logit - own.best);
                for (int piece = 0; piece < 3; piece++) {
                    const unsigned bits = (unsigned)(weight >> (16 * piece)) & 0xffffu;
                    if (bits) atomicAdd(&now.weight[piece][digit], bits);
                }
            }
        }
        cluster.sync();
        /* Thread d gathers what the cluster has in digit d. */
        uint64_t held = 0, count = 0;
        if (threadIdx.x < DIGITS) {
            for (unsigned b = 0; b < BLOCKS; b++) {
                const digit_sums *theirs = cluster.map_shared_rank(&now, b);
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
        /* The cut's digit: the first, from the best, with which the bound is reached; else the last with anything. */
        if (threadIdx.x < DIGITS && count > 0) {
            const bool is_cut = (double)(reached - held) < bound && (double)reached >= bound;
            if (is_cut) {
                s.digit = (int)threadIdx.x;
                s.before = reached - held;
                s.alone = count == 1;
            }
        }
        __syncthreads();
        if (s.digit < 0) return least; /* the bound is never reached: only at level 0 */
        before = s.before;
        const int digit = s.digit;
        if (level == 0)
            coarse = digit;
        else
            prefix = prefix << 8 | (uint64_t)digit;
        const bool alone = s.alone;
        digit_sums &next = s.digits[(level + 1) % 2];
        for (int i = (int)threadIdx.x; i < (int)(sizeof next / sizeof(unsigned)); i += THREADS)
            ((unsigned *)&next)[i] = 0;
        __syncthreads();
        if (!alone && level < LEVELS - 1) continue;
        /* One candidate is left: it is the last that is kept. */
        unsigned long long found = 0;
        for (int i = (int)threadIdx.x; i < own.n; i += THREADS) {
            const float logit = own.logits[i];
            if (logit == -(float)INFINITY) continue;
            const uint64_t order = fd_sampling_order(logit, own.first + i);
            if (order >= least && digit_at(0, logit, own.best, order) == coarse &&
                (level == 0 || order >> (64 - 8 * level) == prefix))
                found = larger(found, order);
        }
        return over_cluster<false>(cluster, s, found);
    }
    return least;
}

__device__ __forceinline__ uint64_t final_weight(const fd_sample_state &o, const slice &own, int i, uint64_t least) {
    const float logit = own.logits[i];
    if (logit == -(float)INFINITY || fd_sampling_order(logit, own.first + i) < least) return 0;
    const float below = logit - own.best;
    return fd_exp32(below) >= o.min_p ? fd_sampling_weight(below / o.temperature) : 0;
}

/* The candidate in rising id with which the sum of weights exceeds the draw; the order of ids is kept by giving each
 * block, and in it each thread, neighbouring ones. */
__device__ int draw(cg::cluster_group &cluster, sample_shared &s, const fd_sample_state &o, const slice &own,
                    uint64_t least) {
    const int each = (own.n + THREADS - 1) / THREADS | 1; /* odd: threads of a warp read different banks */
    const int begin = min((int)threadIdx.x * each, own.n), end = min(begin + each, own.n);
    uint64_t mine = 0;
    for (int i = begin; i < end; i++) mine += final_weight(o, own, i, least);

    uint64_t upto = mine; /* with the threads before, of the warp, then of the block */
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    for (int step = 1; step < 32; step *= 2) {
        const uint64_t other = __shfl_up_sync(0xffffffffu, upto, step);
        if (lane >= step) upto += other;
    }
    if (lane == 31) s.warp[warp] = upto;
    __syncthreads();
    for (int w = 0; w < warp; w++) upto += s.warp[w];
    if (threadIdx.x == THREADS - 1) s.block = upto;
    cluster.sync();
    uint64_t sum = 0, before = 0;
    for (unsigned b = 0; b < BLOCKS; b++) {
        const uint64_t one = *cluster.map_shared_rank(&s.block, b);
        if (b < cluster.block_rank()) before += one;
        sum += one;
    }
    cluster.sync();
    const uint64_t target = fd_sampling_below(fd_sampling_random(o.seed, o.n_draw), sum);
    uint64_t reached = before + upto - mine;
    int found = 0;
    if (reached <= target && target < reached + mine)
        for (int i = begin; i < end; i++) {
            reached += final_weight(o, own, i, least);
            if (reached > target) {
                found = own.first + i + 1;
                break;
            }
        }
    return (int)over_cluster<false>(cluster, s, (unsigned long long)found) - 1;
}

/* Loads and penalises. Returns the complement of (2 · id + 1 if only the penalty made it so) of the first bad logit; 0:
 * all are good. */
__device__ unsigned long long load(cg::cluster_group &cluster, sample_shared &s, const fd_sampling &in,
                                   const fd_sample_state &o, const float *logits, const int32_t *history,
                                   const slice &own) {
    unsigned long long bad = 0;
    for (int i = (int)threadIdx.x; i < own.n; i += THREADS) {
        const float logit = __ldcg(logits + own.first + i);
        own.logits[i] = logit;
        if (!(logit < (float)INFINITY)) bad = larger(bad, ~(2ull * (unsigned)(own.first + i)));
    }
    __syncthreads();
    int window = o.repeat_penalty == 1.0f ? 0 : o.repeat_last;
    if (window < 0 || window > o.n_history) window = o.n_history;
    for (int i = (int)threadIdx.x; i < window; i += THREADS) {
        const int id = history[o.n_history - 1 - i];
        if (id < own.first || id >= own.first + own.n) continue;
        /* From the logit itself, not from what another thread may have made of it: once for each distinct id. */
        const float logit = fd_sampling_penalise(__ldcg(logits + id), o.repeat_penalty);
        own.logits[id - own.first] = logit;
        if (!(logit < (float)INFINITY)) bad = larger(bad, ~(2ull * (unsigned)id + 1));
    }
    __syncthreads();
    return over_cluster<false>(cluster, s, bad);
}

__global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(THREADS)
    sample(const __grid_constant__ fd_sampling in) {
    __shared__ sample_shared s;
    fd_allow_next();
    fd_wait_previous();
    cg::cluster_group cluster = cg::this_cluster();
    const int row = (int)blockIdx.y, sequence = in.sequences ? __ldcg(in.sequences + row) : row;
    const int share = (in.n_vocab + BLOCKS - 1) / BLOCKS;
    const fd_sample_state o = in.states[sequence];
    int32_t *history = in.history + (int64_t)sequence * in.history_stride;
    slice own = {fd_shared_floats(), min((int)cluster.block_rank() * share, in.n_vocab), 0, 0.0f};
    own.n = min(share, in.n_vocab - own.first);

    const float *logits = in.logits + (int64_t)row * in.n_vocab;
    fd_sample_result result = {-1, FD_SAMPLE_GOOD, -1};
    const unsigned long long bad = load(cluster, s, in, o, logits, history, own);
    unsigned long long best = 0;
    if (!bad) {
        for (int i = (int)threadIdx.x; i < own.n; i += THREADS)
            if (own.logits[i] != -(float)INFINITY) best = larger(best, fd_sampling_order(own.logits[i], own.first + i));
        best = over_cluster<false>(cluster, s, best);
    }
    if (bad) {
        const bool penalised = ~bad & 1;
        result.id = (int32_t)(~bad / 2);
        const bool is_nan = logits[result.id] != logits[result.id] ||
                            (penalised && fd_sampling_penalise(logits[result.id], o.repeat_penalty) !=
                                              fd_sampling_penalise(logits[result.id], o.repeat_penalty));
        result.bad = penalised ? is_nan ? FD_SAMPLE_NAN_PENALISED : FD_SAMPLE_INF_PENALISED
                     : is_nan  ? FD_SAMPLE_NAN
                               : FD_SAMPLE_INF;
    } else if (best == 0) {
        result.bad = FD_SAMPLE_ALL_MINUS_INF;
    } else if (o.temperature == 0.0f) {
        result.token = (int32_t)~(uint32_t)best;
    } else {
        /* The order's upper half back to the logit. */
        const uint32_t bits = (uint32_t)(best >> 32);
        own.best = fd_from_bits32(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
        uint64_t least = 0;
        if (o.top_k > 0) least = cut<false>(cluster, s, own, least, (double)o.top_k);
        if (o.top_p < 1.0f) {
            unsigned long long sum = 0;
            for (int i = (int)threadIdx.x; i < own.n; i += THREADS)
                if (own.logits[i] != -(float)INFINITY && fd_sampling_order(own.logits[i], own.first + i) >= least)
                    sum += fd_sampling_weight(own.logits[i] - own.best);
            sum = over_cluster<true>(cluster, s, sum);
            least = cut<true>(cluster, s, own, least, fd_sampling_share(o.top_p, sum));
        }
        result.token = draw(cluster, s, o, own, least);
    }
    if (cluster.block_rank() == 0 && threadIdx.x == 0) {
        fd_sample_state *state = &in.states[sequence];
        const int32_t token = result.token < 0 ? 0 : result.token;
        history[o.n_history] = token;
        for (int i = 0; i < 2; i++)
            if (in.positions[i]) in.positions[i][row] = o.n_history;
        if (in.tokens) in.tokens[row] = token;
        state->n_draw = o.n_draw + (o.temperature == 0.0f ? 0 : 1);
        state->n_history = o.n_history + 1;
        state->n_sampled = o.n_sampled + 1;
        in.results[(int64_t)(o.n_sampled % in.n_result) * in.result_stride + sequence] = result;
    }
    cluster.sync(); /* no block ends while another reads its shared memory or the state */
}

#else
/* Clusters came with sm_90; fd_sample_fits says so before anyone launches this. */
__global__ void sample(const __grid_constant__ fd_sampling) {}
#endif

static size_t shared_bytes(int32_t n_vocab) {
    return sizeof(float) * (size_t)((n_vocab + BLOCKS - 1) / BLOCKS);
}

bool fd_sample_fits(const fd_queue *queue, int32_t n_vocab) {
    return queue->has_clusters && n_vocab <= FD_SAMPLING_MAX_VOCAB && (n_vocab + BLOCKS - 1) / BLOCKS < 1 << 16 &&
           shared_bytes(n_vocab) + sizeof(sample_shared) + 1024 <= queue->max_shared;
}

fd_code fd_launch_sample(const fd_queue *queue, const fd_sampling *in, fd_error *err) {
    if (in->n_seq < 1 || in->n_seq > 65535 || in->n_vocab < 1 || in->n_result < 1)
        return fd_fail(err, FD_ERR_INPUT, "kernel sample: %d sequences, %d logits", in->n_seq, in->n_vocab);
    if (!fd_sample_fits(queue, in->n_vocab))
        return fd_fail(err, FD_ERR_UNSUPPORTED, "kernel sample: %d logits need a cluster of %d blocks, sm_90, and their shared memory", in->n_vocab,
                       BLOCKS);
    return fd_launch(queue, "sample", sample, dim3(BLOCKS, (unsigned)in->n_seq), THREADS, shared_bytes(in->n_vocab),
                     err, *in);
}

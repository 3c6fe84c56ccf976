/* A cluster of blocks a sequence; each block keeps its share of the logits, penalised, in shared memory. The sampler's
 * sorted list is never made: where top-k and top-p cut is found digit by digit (kernels/sampling/cut.cuh). */
#include "kernels/sampling/sample.h"

#include "kernels/device.cuh"
#include "kernels/launch.cuh"
#include "kernels/sampling/cut.cuh"
#include "numerics/sampling.h"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
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
__device__ unsigned long long load(cg::cluster_group &cluster, sample_shared &s, const fd_sample_state &o,
                                   const float *logits, const int32_t *history, const slice &own) {
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

/* What `load` found bad. */
__device__ __forceinline__ fd_sample_result result_of(unsigned long long bad, const float *logits, float penalty) {
    const bool penalised = ~bad & 1;
    const int32_t id = (int32_t)(~bad / 2);
    const float logit = penalised ? fd_sampling_penalise(logits[id], penalty) : logits[id];
    const bool is_nan = logits[id] != logits[id] || logit != logit;
    if (penalised) return {-1, is_nan ? FD_SAMPLE_NAN_PENALISED : FD_SAMPLE_INF_PENALISED, id};
    return {-1, is_nan ? FD_SAMPLE_NAN : FD_SAMPLE_INF, id};
}

__global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(THREADS)
    sample(const __grid_constant__ fd_sampling in) {
    __shared__ sample_shared s;
    fd_pdl_launch_dependents();
    fd_pdl_wait();
    cg::cluster_group cluster = cg::this_cluster();
    const int row = (int)blockIdx.y, sequence = in.sequences ? __ldcg(in.sequences + row) : row;
    const int share = (in.n_vocab + BLOCKS - 1) / BLOCKS;
    const fd_sample_state o = in.states[sequence];
    int32_t *history = in.history + (int64_t)sequence * in.history_stride;
    slice own = {fd_shared_floats(), min((int)cluster.block_rank() * share, in.n_vocab), 0, 0.0f};
    own.n = min(share, in.n_vocab - own.first);

    const float *logits = in.logits + (int64_t)row * in.n_vocab;
    fd_sample_result result = {-1, FD_SAMPLE_GOOD, -1};
    const unsigned long long bad = load(cluster, s, o, logits, history, own);
    unsigned long long best = 0;
    if (!bad) {
        for (int i = (int)threadIdx.x; i < own.n; i += THREADS)
            if (own.logits[i] != -(float)INFINITY) best = larger(best, fd_sampling_order(own.logits[i], own.first + i));
        best = over_cluster<false>(cluster, s, best);
    }
    if (bad) {
        result = result_of(bad, logits, o.repeat_penalty);
    } else if (best == 0) {
        result.bad = FD_SAMPLE_ALL_MINUS_INF;
    } else if (o.temperature == 0.0f) {
        result.token = (int32_t) ~(uint32_t)best;
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

bool fd_sample_fits(const fd_launch_context *ctx, int32_t n_vocab) {
    return ctx->has_clusters && n_vocab <= FD_SAMPLING_MAX_VOCAB && (n_vocab + BLOCKS - 1) / BLOCKS < 1 << 16 &&
           shared_bytes(n_vocab) + sizeof(sample_shared) + 1024 <= ctx->max_shared;
}

fd_code fd_launch_sample(const fd_launch_context *ctx, const fd_sampling *in, fd_error *err) {
    if (in->n_seq < 1 || in->n_seq > 65535 || in->n_vocab < 1 || in->n_result < 1)
        return fd_fail(err, FD_ERR_INPUT, "kernel sample: %d sequences, %d logits", in->n_seq, in->n_vocab);
    if (!fd_sample_fits(ctx, in->n_vocab))
        return fd_fail(err, FD_ERR_UNSUPPORTED,
                       "kernel sample: %d logits need a cluster of %d blocks, sm_90, and their shared memory",
                       in->n_vocab, BLOCKS);
    return fd_launch(ctx, "sample", sample, dim3(BLOCKS, (unsigned)in->n_seq), THREADS, shared_bytes(in->n_vocab), err,
                     *in);
}

/* Attention of one position in a short context: one kernel, a block a head. Latency takes the time, so the block
 * requests all that it needs of memory at once: cached rows and angles before the wait for the previous kernel, the
 * newest rows right after it, the other half of the values during the softmax. */
#include "kernels/attention/decode.cuh"
#include "kernels/device.cuh"
#include "kernels/launch.cuh"

constexpr int SHORT = FD_ATTENTION_SHORT_CONTEXT, HALF = CHUNK / 2;
static_assert(SHORT <= DECODE_THREADS, "a thread a score");

/* score[0 … n − 1] to e^(s − max) / sum. Every warp finds maximum and sum for itself: a block has little else to do,
 * and barriers are what takes the time. Starts and ends with a barrier. */
__device__ __forceinline__ void softmax_short(float *score, float *e, int n) {
    const int lane = (int)threadIdx.x % 32, own = (int)threadIdx.x;
    __syncthreads();
    float max = -(float)INFINITY;
#pragma unroll
    for (int i = 0; i < SHORT / 32; i++)
        if (lane + i * 32 < n) max = fmaxf(max, score[lane + i * 32]);
    max = fd_warp_max(max);
    const float own_e = own < n ? fd_exp32(score[own] - max) : 0.0f;
    if (own < n) e[own] = own_e;
    __syncthreads();
    float low = 0.0f, high = 0.0f;
#pragma unroll
    for (int i = 0; i < SHORT / 64; i++) {
        if (lane + i * 64 < n) low = low + e[lane + i * 64];
        if (lane + i * 64 + 32 < n) high = high + e[lane + i * 64 + 32];
    }
    const float sum = fd_tree_lanes<32>(low) + fd_tree_lanes<32>(high);
    if (own < n) score[own] = own_e / sum;
    __syncthreads();
}

/* Half a chunk of the cache's values of element d, those before position `end`. */
template <class Element>
__device__ __forceinline__ void load_values(const Element *from, int64_t stride, int first, int end,
                                            Element (&value)[HALF]) {
#pragma unroll
    for (int i = 0; i < HALF; i++) value[i] = first + i < end ? __ldcg(from + (first + i) * stride) : (Element)0;
}
template <class Element>
__device__ __forceinline__ float mix_values(float acc, const float *p, int count, const Element (&value)[HALF]) {
#pragma unroll
    for (int i = 0; i < HALF; i++)
        if (i < count) acc = fmaf(p[i], fd_from_cached(value[i]), acc);
    return acc;
}

template <int GROUPS>
__device__ __forceinline__ void key_from(const float *key, int head_dim, int lane, float (&k)[GROUPS * 8]) {
#pragma unroll
    for (int i = 0; i < GROUPS * 8; i++) {
        const int at = i / 8 * 64 + lane * 8 + i % 8;
        if (at < head_dim) k[i] = key[at];
    }
}

/* What a thread computes: element d of q, k, v and out, and from chunk `part` on every at_once-th chunk of that
 * element's mix; as lane of eight, scores. */
template <int GROUPS, class Element> struct thread_work {
    static constexpr int width = 64 * GROUPS, at_once = DECODE_THREADS / width; /* elements; chunks the block mixes */
    static constexpr int passes = 4 / GROUPS, pass_rows = DECODE_THREADS / 8;   /* of keys that registers hold */
    int pos, head, kv_head, lane, d, part;
    bool has_d;
    int64_t stride, of_head; /* elements from one cached row to the next; of the K/V head within a row */
    Element *cache_k, *cache_v;

    __device__ __forceinline__ explicit thread_work(const fd_attn_decode &a)
        : pos(__ldcg(a.pos)), head((int)blockIdx.x), kv_head(head / (a.n_head / a.n_head_kv)),
          lane((int)threadIdx.x % 8), d((int)threadIdx.x % width), part((int)threadIdx.x / width),
          has_d(d < a.head_dim), stride((int64_t)a.n_head_kv * a.head_dim), of_head((int64_t)kv_head * a.head_dim),
          cache_k((Element *)a.cache_k + of_head), cache_v((Element *)a.cache_v + of_head + d) {}
    /* The position that the thread scores in a pass. */
    static __device__ __forceinline__ int row(int pass) { return pass * pass_rows + (int)threadIdx.x / 8; }
};

template <int GROUPS> struct block_shared {
    alignas(16) float query[64 * GROUPS], key[64 * GROUPS], score[SHORT], e[SHORT], sums[SHORT / CHUNK * 64 * GROUPS];
};

/* q and k after RoPE to shared memory, and to an observer; the newest rows to the caches, by the first of the heads that
 * share them. The first `width` threads rotate the query, the next ones, or the same, the newest key; angles are loaded
 * before the wait. Returns element d of v as the cache keeps it. Ends with a barrier. */
template <int GROUPS, class Element>
__device__ __forceinline__ float stage_rows(const fd_attn_decode &a, const thread_work<GROUPS, Element> &w,
                                            block_shared<GROUPS> &b) {
    const bool rotates_q = w.part == 0, rotates_k = w.part == (w.at_once > 1 ? 1 : 0);
    const fd_rope_angle q_angle = fd_rope_angle_of(a.q_rope, w.d, a.head_dim, w.pos);
    const fd_rope_angle k_angle = fd_rope_angle_of(a.k_rope, w.d, a.head_dim, w.pos);
    fd_pdl_wait();
    const float2 none = make_float2(0.0f, 0.0f);
    const float2 q_pair = rotates_q ? fd_rope_load(q_angle, a.q + (int64_t)w.head * a.head_dim) : none;
    const float2 k_pair = rotates_k ? fd_rope_load(k_angle, a.k + w.of_head) : none;
    const Element value = fd_to_cached<Element>(w.has_d ? __ldcg(a.v + w.of_head + w.d) : 0.0f);
    if (rotates_q) {
        const float query = fd_rope_rotate(q_angle, q_pair);
        b.query[fd_query_at(w.d)] = query;
        if (a.q_out && w.has_d) a.q_out[(int64_t)w.head * a.head_dim + w.d] = query;
    }
    const float key = fd_rope_rotate(k_angle, k_pair);
    if (rotates_k) b.key[w.d] = fd_as_cached<Element>(key);
    if (w.head % (a.n_head / a.n_head_kv) == 0 && w.has_d) {
        if (w.part == 0) w.cache_v[w.pos * w.stride] = value;
        if (rotates_k) w.cache_k[w.pos * w.stride + w.d] = fd_to_cached<Element>(key);
        if (rotates_k && a.k_out) a.k_out[w.of_head + w.d] = key;
    }
    __syncthreads();
    return fd_from_cached(value);
}

/* Scores of all positions: those whose keys are held, then the others. */
template <int GROUPS, int PASSES, class Element>
__device__ __forceinline__ void score_all(const fd_attn_decode &a, const thread_work<GROUPS, Element> &w,
                                          block_shared<GROUPS> &b, fd_key_share<GROUPS, Element> (&held)[PASSES]) {
    const int n = w.pos + 1;
    const auto put_score = [&](int t, const float(&k)[GROUPS * 8]) {
        const float s = fd_query_dot<GROUPS>(b.query, k, a.head_dim, w.lane) * a.scale;
        if (w.lane == 0 && t < n) b.score[t] = s;
        if (w.lane == 0 && t < n && a.scores_out) a.scores_out[(int64_t)w.head * a.n_ctx + t] = s;
    };
#pragma unroll
    for (int pass = 0; pass < PASSES; pass++) {
        const int t = w.row(pass);
        if (pass * w.pass_rows >= n) break;
        float key[GROUPS * 8];
        held[pass].spread(key);
        if (t >= w.pos) key_from<GROUPS>(b.key, a.head_dim, w.lane, key);
        put_score(t, key);
    }
#pragma unroll 1
    for (int base = PASSES * w.pass_rows; base < n; base += w.pass_rows) {
        const int t = base + (int)threadIdx.x / 8;
        float key[GROUPS * 8];
        if (t < w.pos) {
            held[0].load(w.cache_k + t * w.stride, a.head_dim, w.lane);
            held[0].spread(key);
        } else {
            key_from<GROUPS>(b.key, a.head_dim, w.lane, key);
        }
        put_score(t, key);
    }
}

/* Σ p·v of each chunk to b.sums; `value` and `second` hold the two halves of the thread's first chunk. */
template <int GROUPS, class Element>
__device__ __forceinline__ void mix_chunks(const thread_work<GROUPS, Element> &w, block_shared<GROUPS> &b, float v_new,
                                           Element (&value)[HALF], Element (&second)[HALF]) {
    for (int chunk = w.part; chunk < chunks_of(w.pos + 1); chunk += w.at_once) {
        const int first = chunk * CHUNK, cached = w.pos - first < CHUNK ? w.pos - first : CHUNK;
        if (chunk != w.part) {
            load_values(w.cache_v, w.stride, first, w.has_d ? w.pos : 0, value);
            load_values(w.cache_v, w.stride, first + HALF, w.has_d ? w.pos : 0, second);
        }
        float acc = mix_values(0.0f, b.score + first, cached, value);
        acc = mix_values(acc, b.score + first + HALF, cached - HALF, second);
        b.sums[chunk * w.width + w.d] = cached < CHUNK ? fmaf(b.score[w.pos], v_new, acc) : acc;
    }
    __syncthreads();
}

/* Grid: heads × rows. Of the cache, only rows before *pos are read: earlier steps wrote them, and the position was
 * there before the step's first kernel.
 *
 *   cached K ── key[passes], registers ──────────────┐
 *   q, k ── RoPE ── query, key (shared) ── caches    ├─ score_all: q·k·scale ── score (shared)
 *                                                    ┘        │
 *                                                        softmax_short
 *                                                             │
 *   cached V ── value, second: half a chunk each ─────── mix_chunks: sums of each chunk of 64 positions (shared)
 *   v ── the newest value ──────────────────────────────┘     │
 *                                                        sums added in order of positions ── out */
template <int GROUPS, class Element>
__global__ void __launch_bounds__(DECODE_THREADS, 2)
    attention_single_block(const __grid_constant__ fd_attn_decode all) {
    __shared__ block_shared<GROUPS> b;
    fd_pdl_launch_dependents();
    const fd_attn_decode a = row_of(all);
    const thread_work<GROUPS, Element> w(a);
    fd_send_begin(all.send);
    fd_key_share<GROUPS, Element> key[w.passes];
    Element value[HALF], second[HALF];
#pragma unroll
    for (int pass = 0; pass < w.passes; pass++)
        if (w.row(pass) < w.pos) key[pass].load(w.cache_k + w.row(pass) * w.stride, a.head_dim, w.lane);
    load_values(w.cache_v, w.stride, w.part * CHUNK, w.has_d ? w.pos : 0, value);
    const float v_new = stage_rows(a, w, b);
    score_all<GROUPS>(a, w, b, key);
    load_values(w.cache_v, w.stride, w.part * CHUNK + HALF, w.has_d ? w.pos : 0, second);
    softmax_short(b.score, b.e, w.pos + 1);
    if (a.weights_out && (int)threadIdx.x <= w.pos)
        a.weights_out[(int64_t)w.head * a.n_ctx + threadIdx.x] = b.score[threadIdx.x];
    mix_chunks(w, b, v_new, value, second);
    if ((int)threadIdx.x < a.head_dim) {
        float total = 0.0f;
        for (int chunk = 0; chunk < chunks_of(w.pos + 1); chunk++)
            total = total + b.sums[chunk * w.width + threadIdx.x];
        leave_mixed(all, a.out, (int64_t)w.head * a.head_dim + threadIdx.x, total);
    }
}

/* Dynamic shared memory that the kernel asks for. Where heads together are wide, the next product has long rings, and
 * on a multiprocessor that one of its blocks shares, q, k and v wait for the ring's first fill
 * (docs/performance-diary.md): so no ring shares it. Narrow heads go with short products, whose rings would keep this
 * kernel from starting early. */
static size_t shared_to_ask(const fd_launch_context *ctx, const fd_attn_decode *in, unsigned rows) {
    enum { WIDE = 12 }; /* elements of all heads, a multiprocessor */
    const bool wide = (int64_t)in->n_head * in->head_dim >= (int64_t)WIDE * ctx->n_sm;
    return wide && (int64_t)in->n_head * rows <= ctx->n_sm ? fd_shared_alone(ctx) : 0;
}

fd_code fd_launch_attn_single_block(const fd_launch_context *ctx, const fd_attn_decode *in, fd_error *err) {
    const unsigned rows = in->n_seq > 1 ? (unsigned)in->n_seq : 1;
    const size_t shared = shared_to_ask(ctx, in, rows);
    return fd_with_cached_groups(in, err, [&](auto groups, auto element) {
        auto kernel = attention_single_block<decltype(groups)::value, typename decltype(element)::type>;
        return fd_launch(ctx, "attention_single_block", kernel, dim3((unsigned)in->n_head, 1, rows), DECODE_THREADS,
                         shared, err, *in);
    });
}

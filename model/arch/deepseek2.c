/* deepseek2: DeepSeek V2, V3 and R1, Kimi K2. Attention over a compressed K and V (MLA): each position caches one
 * vector of kv_lora_rank elements, normed, and one rotated key of a few more, which all heads share. Experts as
 * glm4moe's, chosen from the best groups alone where the file has groups.
 *
 * A file has the matrix that makes every head's K and V of that vector in one of two forms. As attn_kv_b: K and V are
 * made and cached. As attn_k_b and attn_v_b: what is cached stays compressed, attn_k_b is multiplied into Q instead of
 * K, and attn_v_b after the sum of values; the heads then share one K, whose first elements are V as well.
 * Source: DeepSeek-AI, DeepSeek-V2, 2024, and DeepSeek-V3 (modeling_deepseek.py of both). */
#include <math.h>

#include "model/builder.h"

typedef struct mla {
    int32_t q_rank, kv_rank;         /* q_rank 0: Q is not compressed */
    int32_t n_nope, n_rope, n_value; /* of each head: elements of Q and K without and with rotation, of V */
    bool absorbed;
    fd_attention_block how;
} mla;

static void read_key(fd_builder *b, const char *name, int64_t fallback, int64_t low, int32_t *out) {
    fd_code code = fd_key_i32(b->keys, name, fallback, low, 1 << 20, out);
    if (code != FD_OK) fd_builder_set_error(b, code);
}

/* YaRN's factor on cos and sin reaches only the rotated elements; the scale of the scores has it for all, twice, and
 * so has the multiplier's (rope.scaling.yarn_log_multiplier: a tenth of the paper's mscale). */
static float score_scale(fd_builder *b, int32_t n_key) {
    const fd_rope *rope = &b->h->rope;
    double multiplier = 0;
    fd_code code = fd_key_f64(b->keys, "rope.scaling.yarn_log_multiplier", 0, &multiplier);
    if (code != FD_OK) fd_builder_set_error(b, code);
    double factor = rope->attention_factor;
    if (rope->scaling == FD_ROPE_SCALING_YARN)
        factor *= 1 + multiplier * log(rope->factor);
    else if (rope->scaling != FD_ROPE_SCALING_NONE)
        fd_builder_set_error(b, fd_fail(b->err, FD_ERR_UNSUPPORTED,
                                        "key deepseek2.rope.scaling.type: %s, only yarn is implemented",
                                        fd_rope_scaling_name(rope->scaling)));
    return (float)(factor * factor / sqrt(n_key));
}

static mla read_mla(fd_builder *b) {
    mla m = {.how = {.rope_freqs = FD_NO_ROPE_FACTORS}, .n_rope = b->h->rope.n_rot};
    int32_t n_key = b->h->head_dim, n_cached = 0;
    read_key(b, "attention.q_lora_rank", 0, 0, &m.q_rank);
    read_key(b, "attention.kv_lora_rank", -1, 1, &m.kv_rank);
    read_key(b, "attention.key_length_mla", 0, 0, &n_key);
    m.absorbed = n_key > 0;
    if (m.absorbed) {
        read_key(b, "attention.value_length_mla", -1, 1, &m.n_value);
        read_key(b, "attention.value_length", m.kv_rank, 1, &n_cached);
        if (b->code == FD_OK && (b->h->head_dim != m.kv_rank + m.n_rope || n_cached != m.kv_rank))
            fd_builder_set_error(b,
                                 fd_fail(b->err, FD_ERR_INPUT,
                                         "keys deepseek2.attention.key_length, value_length: %d, %d; expected %d, %d",
                                         b->h->head_dim, n_cached, m.kv_rank + m.n_rope, m.kv_rank));
    } else {
        n_key = b->h->head_dim;
        read_key(b, "attention.value_length", n_key, 1, &m.n_value);
    }
    m.n_nope = n_key - m.n_rope;
    if (b->code == FD_OK && m.n_nope < 1)
        fd_builder_set_error(b, fd_fail(b->err, FD_ERR_INPUT,
                                        "key deepseek2.rope.dimension_count: %d, expected less than a key's %d",
                                        m.n_rope, n_key));
    m.how.scale = score_scale(b, n_key);
    return m;
}

static int32_t query(fd_builder *b, int32_t layer, int32_t x, const mla *m) {
    int32_t n = b->h->n_head * (m->n_nope + m->n_rope), q;
    if (m->q_rank > 0) {
        q = fd_build_matmul(b, layer, "attn_q_a", "attn_q_a", x, m->q_rank, FD_OPTIONAL);
        q = fd_build_norm(b, layer, "attn_q_a_norm", "attn_q_a_norm", q);
        q = fd_build_matmul(b, layer, "attn_q", "attn_q_b", q, n, FD_OPTIONAL);
    } else {
        q = fd_build_matmul(b, layer, "attn_q", "attn_q", x, n, FD_OPTIONAL);
    }
    fd_build_heads(b, q, b->h->n_head);
    int32_t nope = fd_build_slice(b, layer, "attn_q_nope", q, 0, m->n_nope);
    int32_t rope = fd_build_slice(b, layer, "attn_q_pe", q, m->n_nope, m->n_rope);
    if (m->absorbed) nope = fd_build_head_matmul(b, layer, "attn_q_absorbed", "attn_k_b", nope, m->kv_rank);
    rope = fd_build_rope(b, layer, "attn_q_rope", rope, m->how.rope_freqs);
    q = fd_build_concat(b, layer, "attn_q_whole", nope, rope);
    return b->h->temperature_scale != 0.0f ? fd_build_attn_temperature(b, layer, "attn_q_temperature", q) : q;
}

static int32_t attention(fd_builder *b, int32_t layer, int32_t x, const mla *m) {
    const fd_part compressed = {0, m->kv_rank + m->n_rope}, shared = {m->kv_rank, m->kv_rank + m->n_rope};
    int32_t q = query(b, layer, x, m);
    int32_t c = fd_build_matmul_part(b, layer, "attn_kv_a", "attn_kv_a_mqa", x, compressed, m->kv_rank, FD_OPTIONAL);
    int32_t rope = fd_build_matmul_part(b, layer, "attn_k", "attn_kv_a_mqa", x, shared, m->n_rope, FD_OPTIONAL);
    c = fd_build_norm(b, layer, "attn_kv_a_norm", "attn_kv_a_norm", fd_build_heads(b, c, 1));
    rope = fd_build_rope(b, layer, "attn_k_rope", fd_build_heads(b, rope, 1), m->how.rope_freqs);
    int32_t k, v;
    if (m->absorbed) {
        k = v = c;
    } else {
        c = fd_build_matmul(b, layer, "attn_kv", "attn_kv_b", c, b->h->n_head * (m->n_nope + m->n_value), FD_OPTIONAL);
        fd_build_heads(b, c, b->h->n_head);
        k = fd_build_slice(b, layer, "attn_k_nope", c, 0, m->n_nope);
        v = fd_build_slice(b, layer, "attn_v", c, m->n_nope, m->n_value);
    }
    k = fd_build_concat(b, layer, "attn_k_whole", k, rope);
    int32_t cache_k = fd_build_kv_write(b, layer, "cache_k", k);
    int32_t cache_v = fd_build_kv_write(b, layer, "cache_v", v);
    int32_t scores = fd_build_attn_scores(b, layer, q, cache_k, &m->how);
    int32_t out = fd_build_attn_mix(b, layer, fd_build_attn_softmax(b, layer, scores, false), cache_v);
    if (m->absorbed) out = fd_build_head_matmul(b, layer, "attn_out_v", "attn_v_b", out, m->n_value);
    return fd_build_matmul(b, layer, "attn_proj", "attn_output", out, b->h->n_embd, FD_OPTIONAL);
}

static void list(fd_builder *b) {
    fd_build_skip_further_tokens(b);
    const mla m = read_mla(b);
    const fd_experts_block experts = fd_experts_of_file(b);
    int32_t x = fd_build_embed(b, "token_embd");
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        int32_t norm = fd_build_norm(b, layer, "attn_norm", "attn_norm", x);
        x = fd_build_add(b, layer, "ffn_inp", x, attention(b, layer, norm, &m));
        norm = fd_build_norm(b, layer, "ffn_norm", "ffn_norm", x);
        x = fd_build_add(b, layer, "l_out", x, fd_build_mixture(b, layer, norm, &experts));
    }
    fd_build_logits(b, x);
}

const fd_arch fd_arch_deepseek2 = {
    .name = "deepseek2",
    .rope_pairing = FD_ROPE_INTERLEAVED,
    .rope_rows_kept = true,
    .list = list,
    .reads = FD_READS_EXPERTS | FD_READS_EXPERT_NORM | FD_READS_SHARED_EXPERTS | FD_READS_DENSE_LAYERS |
             FD_READS_TEMPERATURE | FD_READS_VALUE_LENGTH,
    .norm = FD_NORM_RMS,
    .made_keys = "block_count=3 attention.head_count_kv=1 leading_dense_block_count=1 attention.q_lora_rank=96 "
                 "attention.kv_lora_rank=64 attention.key_length=80 attention.value_length=64 "
                 "attention.key_length_mla=48 attention.value_length_mla=40 rope.dimension_count=16 expert_count=8 "
                 "expert_used_count=3 expert_feed_forward_length=256 expert_shared_count=1 expert_gating_func=2 "
                 "expert_weights_norm=true expert_weights_scale=2.5 expert_group_count=4 expert_group_used_count=2",
    .made_with = "exp_probs_b.bias",
};

/* qwen3next: Qwen 3 Next. Every fourth layer attends, with a gate for each head and RoPE on a part of it; the others
 * carry a state by the gated delta rule. Experts as qwen2moe's, weighted by their share of the chosen ones'
 * probabilities. qwen35 has an FFN in their place, qwen35moe has them; both have M-RoPE's sections, and their value
 * heads take the key heads in turn.
 *
 * Gated delta rule, head by head: the state S [key, value] decays to e^g·S; where k reads it, it is corrected towards v
 * by beta: S + k·(beta·(v − Sᵀk)); q reads it: Sᵀq / sqrt(key). r value heads share a key head. As in mamba.c the state
 * is not stored: the node reads a cache whose rows have, by key head, r values of g, r of beta, k, and r rows of v.
 * Source: Qwen team, Qwen3-Next, 2025, Qwen3.5, 2026, transformers' Qwen3NextModel and Qwen3_5TextModel; Yang et al., Gated Delta Networks, 2024. */
#include <stdio.h>

#include "model/builder.h"

typedef struct delta {
    int32_t n_tap, n_key_head, n_value_head, dim, n_key, n_value; /* dim: of a key; n_key, n_value: of all heads */
    int32_t
        n_group;  /* rows of the cache: key heads, or in_turn value heads, each with a key head's values of its own */
    bool in_turn; /* value head i reads key head i mod n_key_head; beta and alpha have a matrix each */
} delta;

static int32_t key(fd_builder *b, const char *name, int32_t most) {
    int32_t value = 1;
    fd_code code = fd_key_i32(b->keys, name, -1, 1, most, &value);
    if (code != FD_OK) fd_builder_set_error(b, code);
    return value;
}

static delta read_delta(fd_builder *b, bool in_turn) {
    delta d = {.n_tap = key(b, "ssm.conv_kernel", 64),
               .n_key_head = key(b, "ssm.group_count", 4096),
               .n_value_head = key(b, "ssm.time_step_rank", 4096),
               .dim = key(b, "ssm.state_size", FD_MAX_STATE),
               .n_value = key(b, "ssm.inner_size", 1 << 20)};
    if (b->code != FD_OK) return d;
    d.n_key = d.dim * d.n_key_head;
    d.in_turn = in_turn;
    d.n_group = in_turn ? d.n_value_head : d.n_key_head;
    if (d.n_value_head % d.n_key_head != 0 || d.n_value % d.n_value_head != 0)
        fd_builder_set_error(b, fd_fail(b->err, FD_ERR_INPUT,
                                        "keys %s.ssm.*: %d key heads, %d value heads, %d in all: expected multiples",
                                        b->h->arch, d.n_key_head, d.n_value_head, d.n_value));
    return d;
}

/* Part of each of `x`'s heads, all in one row. */
static int32_t row_of(fd_builder *b, int32_t layer, const char *name, int32_t x, int32_t first, int32_t n) {
    return fd_build_one_head(b, fd_build_slice(b, layer, name, x, first, n));
}

/* Q, K and V in one row; *z: the gate of the output. Older files have all four, key head by key head, in ssm_in. */
static int32_t project(fd_builder *b, int32_t layer, int32_t x, const delta *d, int32_t *z) {
    if (!fd_build_has(b, layer, "ssm_in.weight")) {
        *z = fd_build_matmul(b, layer, "delta_z", "attn_gate", x, d->n_value, FD_OPTIONAL);
        return fd_build_matmul(b, layer, "delta_qkv", "attn_qkv", x, 2 * d->n_key + d->n_value, FD_OPTIONAL);
    }
    const int32_t each = d->n_value / d->n_key_head;
    int32_t all = fd_build_matmul(b, layer, "delta_qkvz", "ssm_in", x, 2 * (d->n_key + d->n_value), FD_OPTIONAL);
    fd_build_heads(b, all, d->n_key_head);
    int32_t q = row_of(b, layer, "delta_q_in", all, 0, d->dim), k = row_of(b, layer, "delta_k_in", all, d->dim, d->dim);
    int32_t v = row_of(b, layer, "delta_v_in", all, 2 * d->dim, each);
    *z = fd_build_slice(b, layer, "delta_z", all, 2 * d->dim + each, each);
    return fd_build_concat(b, layer, "delta_qkv", fd_build_concat(b, layer, "delta_qk", q, k), v);
}

/* g and beta of each value head, as rows of groups: from one matrix that has both key head by key head, or one each. */
static int32_t project_gates(fd_builder *b, int32_t layer, int32_t x, const delta *d) {
    const int32_t n = d->n_value_head, r = n / d->n_key_head;
    int32_t both = -1;
    if (!d->in_turn) both = fd_build_matmul(b, layer, "delta_beta_alpha", "ssm_ba", x, 2 * n, FD_OPTIONAL);
    if (!d->in_turn) fd_build_heads(b, both, d->n_key_head);
    int32_t beta = d->in_turn ? fd_build_matmul(b, layer, "delta_beta_in", "ssm_beta", x, n, FD_OPTIONAL)
                              : fd_build_slice(b, layer, "delta_beta_in", both, 0, r);
    beta = fd_build_activation(b, layer, "delta_beta", FD_OP_SIGMOID, fd_build_heads(b, beta, d->n_group));
    int32_t g = d->in_turn ? fd_build_matmul(b, layer, "delta_alpha", "ssm_alpha", x, n, FD_OPTIONAL)
                           : fd_build_slice(b, layer, "delta_alpha", both, r, r);
    g = fd_build_add_vector(b, layer, "delta_alpha_biased", "ssm_dt.bias", g);
    g = fd_build_activation(b, layer, "delta_alpha_softplus", FD_OP_SOFTPLUS, g);
    g = fd_build_mul_vector(b, layer, "delta_g", "ssm_a", g);
    return fd_build_concat(b, layer, "delta_g_beta", fd_build_heads(b, g, d->n_group), beta);
}

/* Heads of Q or K; where they are taken in turn, all of them once for each value head that a key head serves. */
static int32_t key_heads(fd_builder *b, int32_t layer, const char *name, int32_t x, int32_t first, const delta *d) {
    int32_t row = fd_build_slice(b, layer, name, x, first, d->n_key);
    if (d->n_group == d->n_key_head) return fd_build_heads(b, row, d->n_key_head);
    char repeated[32];
    int32_t all = fd_build_one_head(b, row);
    for (int32_t i = 1; i < d->n_value_head / d->n_key_head; i++) {
        snprintf(repeated, sizeof repeated, "%s_%d", name, i + 1);
        all = fd_build_concat(b, layer, repeated, all, row);
    }
    snprintf(repeated, sizeof repeated, "%s_in_turn", name);
    all = fd_build_slice(b, layer, repeated, all, 0, d->n_value_head * d->dim);
    return fd_build_heads(b, all, d->n_value_head);
}

static int32_t linear_attention(fd_builder *b, int32_t layer, int32_t norm, const delta *d) {
    const float eps = b->h->rms_eps;
    int32_t z, x = project(b, layer, norm, d, &z);
    int32_t cache = fd_build_kv_write(b, layer, "cache_conv", x);
    x = fd_build_conv(b, layer, "delta_conv", "ssm_conv1d", cache, d->n_tap, FD_OPTIONAL);
    x = fd_build_activation(b, layer, "delta_conv_silu", FD_OP_SILU, x);
    int32_t q = key_heads(b, layer, "delta_q", x, 0, d);
    int32_t k = key_heads(b, layer, "delta_k", x, d->n_key, d);
    int32_t v = fd_build_heads(b, fd_build_slice(b, layer, "delta_v", x, 2 * d->n_key, d->n_value), d->n_group);
    q = fd_build_l2_norm(b, layer, "delta_q_norm", q, eps);
    k = fd_build_l2_norm(b, layer, "delta_k_norm", k, eps);
    int32_t row = fd_build_concat(b, layer, "delta_g_beta_k", project_gates(b, layer, norm, d), k);
    cache = fd_build_kv_write(b, layer, "cache_delta", fd_build_concat(b, layer, "delta_g_beta_k_v", row, v));
    int32_t y = fd_build_gated_delta(b, layer, "delta_out", cache, q,
                                     (const int32_t[]){d->n_value_head, d->n_value / d->n_value_head});
    y = fd_build_rms_norm(b, layer, "delta_norm", "ssm_norm", y);
    y = fd_build_gated(b, layer, "delta_gated", FD_OP_SILU_MUL, z, y);
    return fd_build_matmul(b, layer, "delta_proj", "ssm_out", y, b->h->n_embd, FD_OPTIONAL);
}

/* attention.recurrent_layers says it layer by layer, else every full_attention_interval-th attends. */
static bool attends(fd_builder *b, int32_t layer) {
    const fd_gguf_kv *recurrent = fd_key_find(b->keys, "attention.recurrent_layers");
    int32_t interval = 4;
    int64_t carries;
    fd_code code = fd_key_i32(b->keys, "full_attention_interval", 4, 1, 4096, &interval);
    if (code != FD_OK) fd_builder_set_error(b, code);
    if (recurrent && fd_gguf_item_i64(recurrent, recurrent->type == FD_GGUF_ARRAY ? (uint64_t)layer : 0, &carries))
        return carries == 0;
    return (layer + 1) % interval == 0;
}

static void list_with(fd_builder *b, bool in_turn) {
    const fd_attention_block attention = {
        .qkv_bias = FD_OPTIONAL, .qk_norm = true, .gated = true, .rope_freqs = FD_NO_ROPE_FACTORS};
    const fd_experts_block experts = {
        .gating = FD_GATING_NORMALISED, .activation = FD_OP_SILU_MUL, .bias = FD_OPTIONAL, .shared_gated = true};
    fd_default_expert_length(b);
    if (b->h->n_expert > 0 && b->h->n_ff_shared == 0) b->graph->hparams.n_ff_shared = b->h->n_ff;
    const delta d = read_delta(b, in_turn);
    int32_t x = fd_build_embed(b);
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        int32_t norm = fd_build_norm(b, layer, "attn_norm", "attn_norm", x);
        int32_t branch =
            attends(b, layer) ? fd_build_attention(b, layer, norm, &attention) : linear_attention(b, layer, norm, &d);
        x = fd_build_add(b, layer, "ffn_inp", x, branch);
        norm = fd_build_norm(b, layer, "attn_post_norm", "post_attention_norm", x);
        x = fd_build_add(b, layer, "l_out", x, fd_build_mixture(b, layer, norm, &experts));
    }
    fd_build_logits(b, x);
}

static void list(fd_builder *b) {
    list_with(b, false);
}

static void list_in_turn(fd_builder *b) {
    fd_read_rope_sections(b);
    list_with(b, true);
}

const fd_arch fd_arch_qwen3next = {
    .name = "qwen3next",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .reads = FD_READS_EXPERTS | FD_READS_EXPERT_NORM | FD_READS_SHARED_EXPERTS,
    .norm = FD_NORM_RMS,
    .made_keys =
        "block_count=4 rope.dimension_count=16&head full_attention_interval=4 expert_count=4 expert_used_count=2 "
        "expert_feed_forward_length=256 expert_shared_feed_forward_length=256 ssm.conv_kernel=4 "
        "ssm.state_size=32 ssm.group_count=2 ssm.time_step_rank=4 ssm.inner_size=128",
};
const fd_arch fd_arch_qwen35 = {
    .name = "qwen35",
    .rope_pairing = FD_ROPE_HALF,
    .list = list_in_turn,
    .norm = FD_NORM_RMS,
    .made_keys = "block_count=4 rope.dimension_count=16&head rope.dimension_sections=3,3,2,0 full_attention_interval=4 "
                 "ssm.conv_kernel=4 ssm.state_size=32 ssm.group_count=2 ssm.time_step_rank=4 ssm.inner_size=128",
};
const fd_arch fd_arch_qwen35moe = {
    .name = "qwen35moe",
    .rope_pairing = FD_ROPE_HALF,
    .list = list_in_turn,
    .reads = FD_READS_EXPERTS | FD_READS_EXPERT_NORM | FD_READS_SHARED_EXPERTS,
    .norm = FD_NORM_RMS,
    .made_keys = "block_count=4 rope.dimension_count=16&head rope.dimension_sections=3,3,2,0 full_attention_interval=4 "
                 "expert_count=4 expert_used_count=2 expert_feed_forward_length=256 "
                 "expert_shared_feed_forward_length=256 ssm.conv_kernel=4 ssm.state_size=32 ssm.group_count=2 "
                 "ssm.time_step_rank=6 ssm.inner_size=192",
};

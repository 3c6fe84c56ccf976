/* The blocks that decoder architectures share. */
#include "model/builder.h"

/* Q, K or V, as rows of one fused matrix where the file has that. */
typedef struct projection {
    const char *name, *norm, *clamped; /* "attn_q", "attn_q_norm", "attn_q_clamped" */
    int32_t n_head, first;             /* its first row in attn_qkv */
} projection;

static int32_t norm_heads(fd_builder *b, int32_t layer, const projection *p, int32_t x, const fd_attention_block *how) {
    if (how->qk_norm_row) return fd_build_norm(b, layer, p->norm, p->norm, x); /* ROPE makes heads of it */
    fd_build_heads(b, x, p->n_head);
    return how->qk_norm ? fd_build_norm(b, layer, p->norm, p->norm, x) : x;
}

static int32_t project(fd_builder *b, int32_t layer, const projection *p, int32_t x, const fd_attention_block *how) {
    const fd_hparams *h = b->h;
    int32_t n_out = p->n_head * h->head_dim, node;
    if (fd_build_has(b, layer, "attn_qkv.weight")) {
        fd_part part = {p->first, (int64_t)(h->n_head + 2 * h->n_head_kv) * h->head_dim};
        node = fd_build_matmul_part(b, layer, p->name, "attn_qkv", x, part, n_out, how->qkv_bias);
    } else {
        node = fd_build_matmul(b, layer, p->name, p->name, x, n_out, how->qkv_bias);
    }
    if (h->clamp_qkv > 0.0f && !how->qk_norm_row) fd_build_heads(b, node, p->n_head);
    if (h->clamp_qkv > 0.0f) node = fd_build_clamp(b, layer, p->clamped, node, h->clamp_qkv);
    return p->norm ? norm_heads(b, layer, p, node, how) : fd_build_heads(b, node, p->n_head);
}

/* Q and its gate, head by head from one matrix; *both: the node that has them. */
static int32_t project_gated(fd_builder *b, int32_t layer, const projection *p, int32_t x,
                             const fd_attention_block *how, int32_t *both) {
    const int32_t dim = b->h->head_dim;
    *both = fd_build_matmul(b, layer, "attn_q_and_gate", p->name, x, 2 * p->n_head * dim, how->qkv_bias);
    fd_build_heads(b, *both, p->n_head);
    return norm_heads(b, layer, p, fd_build_slice(b, layer, p->name, *both, 0, dim), how);
}

/* both -1: by rows of a matrix of its own, of the layer's input x. */
static int32_t gate(fd_builder *b, int32_t layer, int32_t out, int32_t both, int32_t x) {
    const int32_t dim = b->h->head_dim;
    x = both >= 0 ? fd_build_slice(b, layer, "attn_gate", both, dim, dim)
                  : fd_build_matmul(b, layer, "attn_gate", "attn_gate", x, b->h->n_head * dim, FD_OPTIONAL);
    if (both < 0) fd_build_heads(b, x, b->h->n_head);
    x = fd_build_activation(b, layer, "attn_gate_sigmoid", FD_OP_SIGMOID, x);
    return fd_build_mul(b, layer, "attn_gated", out, x);
}

/* Rotation, and what an architecture has after it. */
static int32_t rotate(fd_builder *b, int32_t layer, const projection *p, int32_t x, const fd_attention_block *how) {
    bool is_q = p->first == 0;
    if (!how->no_rope) x = fd_build_rope(b, layer, is_q ? "attn_q_rope" : "attn_k_rope", x, how->rope_freqs);
    if (!how->no_rope && how->rope && b->code == FD_OK) b->graph->nodes[x].rope = *how->rope;
    if (how->qk_norm_row) fd_build_heads(b, x, p->n_head);
    if (how->qk_norm_after) x = fd_build_norm(b, layer, p->norm, p->norm, x);
    if (how->qk_unit_norm) x = fd_build_unit_norm(b, layer, is_q ? "attn_q_unit" : "attn_k_unit", p->norm, x);
    if (is_q && b->h->temperature_scale != 0.0f && !how->no_temperature)
        x = fd_build_attn_temperature(b, layer, x, how->temperature_first);
    return x;
}

int32_t fd_build_attention(fd_builder *b, int32_t layer, int32_t x, const fd_attention_block *how) {
    const fd_hparams *h = b->h;
    int32_t n_q = h->n_head * h->head_dim, n_k = h->n_head_kv * h->head_dim;
    const projection of_q = {"attn_q", "attn_q_norm", "attn_q_clamped", h->n_head, 0};
    const projection of_k = {"attn_k", "attn_k_norm", "attn_k_clamped", h->n_head_kv, n_q};
    const projection of_v = {"attn_v", NULL, "attn_v_clamped", h->n_head_kv, n_q + n_k};
    int32_t both = -1;
    int32_t q = how->gated ? project_gated(b, layer, &of_q, x, how, &both) : project(b, layer, &of_q, x, how);
    int32_t k = project(b, layer, &of_k, x, how);
    int32_t v = project(b, layer, &of_v, x, how);
    q = rotate(b, layer, &of_q, q, how);
    k = rotate(b, layer, &of_k, k, how);
    int32_t cache_k = fd_build_kv_write(b, layer, "cache_k", k);
    int32_t cache_v = fd_build_kv_write(b, layer, "cache_v", v);
    int32_t scores = fd_build_attn_scores(b, layer, q, cache_k, how);
    if (h->max_alibi_bias > 0.0f) scores = fd_build_attn_alibi(b, layer, scores);
    int32_t weights = fd_build_attn_softmax(b, layer, scores, how->sinks);
    int32_t out = fd_build_attn_mix(b, layer, weights, cache_v);
    if (how->gated || how->gated_apart) out = gate(b, layer, out, both, x);
    return fd_build_matmul(b, layer, "attn_proj", "attn_output", out, h->n_embd, FD_OPTIONAL);
}

int32_t fd_build_ffn_of(fd_builder *b, int32_t layer, int32_t x, fd_op activation, int32_t n_ff) {
    int32_t act;
    if (!fd_is_gated(activation)) {
        int32_t up = fd_build_matmul(b, layer, "ffn_up", "ffn_up", x, n_ff, FD_OPTIONAL);
        act = fd_build_activation(b, layer, "ffn_act", activation, up);
    } else {
        bool fused = fd_build_has(b, layer, "ffn_up.weight") && !fd_build_has(b, layer, "ffn_gate.weight");
        fd_part of_gate = {0, 2 * (int64_t)n_ff}, of_up = {n_ff, 2 * (int64_t)n_ff};
        int32_t gate = fused ? fd_build_matmul_part(b, layer, "ffn_gate", "ffn_up", x, of_gate, n_ff, FD_OPTIONAL)
                             : fd_build_matmul(b, layer, "ffn_gate", "ffn_gate", x, n_ff, FD_OPTIONAL);
        int32_t up = fused ? fd_build_matmul_part(b, layer, "ffn_up", "ffn_up", x, of_up, n_ff, FD_OPTIONAL)
                           : fd_build_matmul(b, layer, "ffn_up", "ffn_up", x, n_ff, FD_OPTIONAL);
        act = fd_build_gated(b, layer, "ffn_act", activation, gate, up);
    }
    return fd_build_matmul(b, layer, "ffn_down", "ffn_down", act, b->h->n_embd, FD_OPTIONAL);
}

int32_t fd_build_ffn(fd_builder *b, int32_t layer, int32_t x, fd_op activation) {
    return fd_build_ffn_of(b, layer, x, activation, b->h->n_ff);
}

int32_t fd_build_pre_norm_attention(fd_builder *b, int32_t layer, int32_t x, const fd_attention_block *how) {
    int32_t norm = fd_build_norm(b, layer, "attn_norm", "attn_norm", x);
    return fd_build_add(b, layer, "ffn_inp", x, fd_build_attention(b, layer, norm, how));
}

int32_t fd_build_pre_norm_ffn(fd_builder *b, int32_t layer, int32_t x, fd_op activation) {
    int32_t norm = fd_build_norm(b, layer, "ffn_norm", "ffn_norm", x);
    return fd_build_add(b, layer, "l_out", x, fd_build_ffn(b, layer, norm, activation));
}

static int32_t output(fd_builder *b, const char *name, const char *norm_weight, int32_t x) {
    int32_t norm = fd_build_norm(b, -1, "output_norm", norm_weight, x);
    bool tied = !fd_build_has(b, -1, "output.weight");
    return fd_build_matmul(b, -1, name, tied ? "token_embd" : "output", norm, b->h->n_vocab, FD_OPTIONAL);
}

void fd_build_logits(fd_builder *b, int32_t x) {
    output(b, "logits", "output_norm", x);
}

void fd_build_logits_normed(fd_builder *b, int32_t x, const char *norm_weight) {
    output(b, "logits", norm_weight, x);
}

void fd_build_capped_logits(fd_builder *b, int32_t x, float cap) {
    fd_build_softcap(b, -1, "logits", output(b, "logits_raw", "output_norm", x), cap);
}

void fd_build_scaled_logits(fd_builder *b, int32_t x, float factor) {
    fd_build_scale(b, -1, "logits", output(b, "logits_raw", "output_norm", x), factor);
}

void fd_build_scaled_capped_logits(fd_builder *b, int32_t x, float factor, float cap) {
    x = fd_build_scale(b, -1, "logits_scaled", output(b, "logits_raw", "output_norm", x), factor);
    fd_build_softcap(b, -1, "logits", x, cap);
}

fd_windows fd_read_windows(fd_builder *b, int32_t default_window, int32_t default_period) {
    static const char key[] = "attention.sliding_window_pattern";
    fd_windows windows = {default_window, default_period, fd_key_find(b->keys, key)};
    fd_code code = fd_key_i32(b->keys, "attention.sliding_window", default_window, 0, INT32_MAX, &windows.window);
    if (windows.pattern && windows.pattern->type != FD_GGUF_ARRAY) windows.pattern = NULL;
    if (code == FD_OK && !windows.pattern) code = fd_key_i32(b->keys, key, default_period, 1, 4096, &windows.period);
    if (code == FD_OK && windows.pattern && windows.pattern->count < (uint64_t)b->h->n_layer)
        code = fd_fail(b->err, FD_ERR_INPUT, "key %s.%s: %llu items, expected %d layers", b->h->arch, key,
                       (unsigned long long)windows.pattern->count, b->h->n_layer);
    if (code != FD_OK) fd_builder_set_error(b, code);
    b->graph->hparams.window = windows.window;
    return windows;
}

fd_rope fd_rope_of_windows(fd_builder *b, double default_base, bool scaled) {
    fd_rope rope = b->h->rope;
    fd_code code = fd_key_f64(b->keys, "rope.freq_base_swa", default_base, &rope.base);
    if (code == FD_OK && !scaled) {
        rope.scaling = FD_ROPE_SCALING_NONE;
        code = fd_key_f64(b->keys, "rope.scaling.attn_factor", 1.0, &rope.attention_factor);
    }
    if (code != FD_OK) fd_builder_set_error(b, code);
    return rope;
}

bool fd_is_windowed(const fd_windows *windows, int32_t layer) {
    int64_t item = 0;
    if (!windows->pattern) return layer % windows->period < windows->period - 1;
    return fd_gguf_item_i64(windows->pattern, (uint64_t)layer, &item) && item != 0;
}

int32_t fd_window_of(const fd_windows *windows, int32_t layer) {
    return fd_is_windowed(windows, layer) ? windows->window : 0;
}

int32_t fd_build_parallel_layer(fd_builder *b, int32_t layer, int32_t x, const fd_attention_block *how,
                                fd_op activation) {
    int32_t norm = fd_build_norm(b, layer, "attn_norm", "attn_norm", x);
    int32_t ffn_inp = fd_build_add(b, layer, "ffn_inp", x, fd_build_attention(b, layer, norm, how));
    return fd_build_add(b, layer, "l_out", ffn_inp, fd_build_ffn(b, layer, norm, activation));
}

int32_t fd_build_post_norm_layer(fd_builder *b, int32_t layer, int32_t x, const fd_attention_block *how,
                                 fd_op activation, bool pre_norm) {
    int32_t norm = pre_norm ? fd_build_norm(b, layer, "attn_norm", "attn_norm", x) : x;
    int32_t branch = fd_build_attention(b, layer, norm, how);
    branch = fd_build_norm(b, layer, "attn_post_norm", "post_attention_norm", branch);
    x = fd_build_add(b, layer, "ffn_inp", x, branch);
    norm = pre_norm ? fd_build_norm(b, layer, "ffn_norm", "ffn_norm", x) : x;
    branch = fd_build_ffn(b, layer, norm, activation);
    branch = fd_build_norm(b, layer, "ffn_post_norm", "post_ffw_norm", branch);
    return fd_build_add(b, layer, "l_out", x, branch);
}

int32_t fd_build_pre_norm_layers(fd_builder *b, int32_t x, const fd_attention_block *attention, fd_op activation,
                                 const fd_experts_block *experts) {
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        x = fd_build_pre_norm_attention(b, layer, x, attention);
        int32_t norm = fd_build_norm(b, layer, "ffn_norm", "ffn_norm", x);
        int32_t ffn = experts ? fd_build_mixture(b, layer, norm, experts) : fd_build_ffn(b, layer, norm, activation);
        x = fd_build_add(b, layer, "l_out", x, ffn);
    }
    return x;
}

void fd_build_pre_norm_model(fd_builder *b, const fd_attention_block *attention, fd_op activation,
                             const fd_experts_block *experts) {
    int32_t x = fd_build_embed(b);
    fd_build_logits(b, fd_build_pre_norm_layers(b, x, attention, activation, experts));
}

bool fd_read_rope_sections(fd_builder *b) {
    const fd_gguf_kv *kv = fd_key_find(b->keys, "rope.dimension_sections");
    int64_t section, sum = 0, any = 0;
    for (uint64_t i = 0; kv && i < kv->count; i++) {
        if (!fd_gguf_item_i64(kv, i, &section) || section < 0) {
            fd_builder_set_error(
                b, fd_fail(b->err, FD_ERR_INPUT, "key %s.rope.dimension_sections: expected sizes", b->h->arch));
            return false;
        }
        any += section;
        if (i < 3) sum += section; /* a fourth would stand still in text */
    }
    if (any > 0 && sum < b->h->rope.n_rot / 2)
        fd_builder_set_error(b, fd_fail(b->err, FD_ERR_UNSUPPORTED,
                                        "key %s.rope.dimension_sections: three sections of %lld pairs, only those "
                                        "that hold all %d are implemented",
                                        b->h->arch, (long long)sum, b->h->rope.n_rot / 2));
    return any > 0;
}

bool fd_layer_has(const fd_builder *b, int32_t layer, const char *key) {
    int64_t n = 1;
    const fd_gguf_kv *kv = fd_key_find(b->keys, key);
    if (kv) fd_gguf_item_i64(kv, kv->type == FD_GGUF_ARRAY ? (uint64_t)layer : 0, &n);
    return n != 0;
}

int32_t fd_layer_number(const fd_builder *b, int32_t layer, const char *key, int32_t fallback) {
    int64_t n = fallback;
    const fd_gguf_kv *kv = fd_key_find(b->keys, key);
    if (kv) fd_gguf_item_i64(kv, kv->type == FD_GGUF_ARRAY ? (uint64_t)layer : 0, &n);
    return (int32_t)n;
}

void fd_set_layer_sizes(fd_builder *b, const fd_hparams *from) {
    fd_hparams *h = &b->graph->hparams;
    h->n_head = from->n_head;
    h->n_head_kv = from->n_head_kv;
    h->n_ff = from->n_ff;
}

void fd_read_layer_sizes(fd_builder *b, int32_t layer, const fd_hparams *file) {
    fd_hparams sizes = *file;
    sizes.n_head = fd_layer_number(b, layer, "attention.head_count", file->n_head);
    sizes.n_head_kv = fd_layer_number(b, layer, "attention.head_count_kv", sizes.n_head);
    sizes.n_ff = fd_layer_number(b, layer, "feed_forward_length", file->n_ff);
    fd_set_layer_sizes(b, &sizes);
}

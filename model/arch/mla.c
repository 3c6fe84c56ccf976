/* Attention over a compressed K and V (MLA): each position caches one vector of kv_lora_rank elements, normed, and one
 * rotated key of a few more, which all heads share.
 *
 * A file has the matrix that makes every head's K and V of that vector in one of two forms. As attn_kv_b: K and V are
 * made and cached. As attn_k_b and attn_v_b: what is cached stays compressed, attn_k_b is multiplied into Q instead of
 * K, and attn_v_b after the sum of values; the heads then share one K, whose first elements are V as well.
 * Source: DeepSeek-AI, DeepSeek-V2, 2024. */
#include "model/builder.h"

static void read_key(fd_builder *b, const char *name, int64_t fallback, int64_t low, int32_t *out) {
    fd_code code = fd_key_i32(b->keys, name, fallback, low, 1 << 20, out);
    if (code != FD_OK) fd_builder_set_error(b, code);
}

fd_mla fd_read_mla(fd_builder *b) {
    const fd_hparams *h = b->h;
    fd_mla m = {.how = {.rope_freqs = FD_NO_ROPE_FACTORS}, .n_rope = h->rope.n_rot};
    int32_t n_key = h->head_dim, n_cached = 0;
    read_key(b, "attention.q_lora_rank", 0, 0, &m.q_rank);
    read_key(b, "attention.kv_lora_rank", -1, 1, &m.kv_rank);
    read_key(b, "attention.key_length_mla", 0, 0, &n_key);
    m.absorbed = n_key > 0;
    if (m.absorbed) {
        read_key(b, "attention.value_length_mla", -1, 1, &m.n_value);
        read_key(b, "attention.value_length", m.kv_rank, 1, &n_cached);
        if (b->code == FD_OK && (h->head_dim != m.kv_rank + m.n_rope || n_cached != m.kv_rank))
            fd_builder_set_error(b, fd_fail(b->err, FD_ERR_INPUT,
                                            "keys %s.attention.key_length, value_length: %d, %d; expected %d, %d",
                                            h->arch, h->head_dim, n_cached, m.kv_rank + m.n_rope, m.kv_rank));
    } else {
        n_key = h->head_dim;
        read_key(b, "attention.value_length", h->n_embd / h->n_head, 1, &m.n_value);
    }
    const int32_t n_head_kv = m.absorbed ? 1 : h->n_head;
    if (b->code == FD_OK && h->n_head_kv != n_head_kv)
        fd_builder_set_error(b, fd_fail(b->err, FD_ERR_INPUT, "key %s.attention.head_count_kv: %d, expected %d",
                                        h->arch, h->n_head_kv, n_head_kv));
    m.n_nope = n_key - m.n_rope;
    if (b->code == FD_OK && m.n_nope < 1)
        fd_builder_set_error(b, fd_fail(b->err, FD_ERR_INPUT,
                                        "key %s.rope.dimension_count: %d, expected less than a key's %d", h->arch,
                                        m.n_rope, n_key));
    return m;
}

static int32_t query(fd_builder *b, int32_t layer, int32_t x, const fd_mla *m) {
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
    return b->h->temperature_scale != 0.0f ? fd_build_attn_temperature(b, layer, q, 0) : q;
}

int32_t fd_build_mla(fd_builder *b, int32_t layer, int32_t x, const fd_mla *m) {
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

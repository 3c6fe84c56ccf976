/* mamba and mamba2 (Codestral Mamba): no attention. Each layer mixes a few positions by a convolution, then carries a
 * state through all of them, which decays by a step dt and takes in dt x B; C reads it. In mamba dt, B and C are made of
 * x (and normed without weights in Falcon Mamba), and every channel has a decay for each element of its state; in mamba2 they come with x from one matrix, heads of
 * channels share dt and a decay, groups of heads B and C, and the gated result is normed.
 *
 * The state of a position follows from the rows before it, so it is not stored: the scan reads a cache of dt, x and B, as
 * attention reads K and V. A step of decode costs as many updates as there are positions before it.
 * Source: Gu and Dao, Mamba, 2023; Dao and Gu, Mamba-2, 2024; transformers' MambaModel and Mamba2Model. */
#include "model/builder.h"

static void read_key(fd_builder *b, const char *name, int64_t fallback, int32_t high, int32_t *out) {
    fd_code code = fd_key_i32(b->keys, name, fallback, 1, high, out);
    if (code != FD_OK) fd_builder_set_error(b, code);
}

fd_ssm fd_read_ssm(fd_builder *b) {
    fd_ssm s = {0};
    read_key(b, "ssm.conv_kernel", -1, 64, &s.n_tap);
    read_key(b, "ssm.inner_size", -1, 1 << 20, &s.n_inner);
    read_key(b, "ssm.state_size", -1, FD_MAX_STATE, &s.n_state);
    read_key(b, "ssm.time_step_rank", -1, 1 << 20, &s.n_rank);
    return s;
}

/* Rows of ssm_in. */
static int32_t project(fd_builder *b, int32_t layer, const char *name, int32_t x, int64_t first, int32_t n,
                       int64_t all) {
    return fd_build_matmul_part(b, layer, name, "ssm_in", x, (fd_part){first, all}, n, FD_OPTIONAL);
}

static int32_t convolve(fd_builder *b, int32_t layer, int32_t x, const fd_ssm *s) {
    int32_t cache = fd_build_kv_write(b, layer, "cache_conv", fd_build_heads(b, x, 1));
    return fd_build_activation(b, layer, "ssm_x", FD_OP_SILU,
                               fd_build_conv(b, layer, "ssm_conv", "ssm_conv1d", cache, s->n_tap, s->extras));
}

/* dt, x and B side by side in one row. */
static int32_t store(fd_builder *b, int32_t layer, int32_t dt, int32_t x, int32_t to_state) {
    int32_t row = fd_build_concat(b, layer, "ssm_dt_x", fd_build_heads(b, dt, 1), x);
    return fd_build_kv_write(b, layer, "cache_ssm", fd_build_concat(b, layer, "ssm_dt_x_b", row, to_state));
}

int32_t fd_build_mamba(fd_builder *b, int32_t layer, int32_t norm, const fd_ssm *s) {
    int32_t x = project(b, layer, "ssm_in", norm, 0, s->n_inner, 2 * (int64_t)s->n_inner);
    int32_t z = project(b, layer, "ssm_z", norm, s->n_inner, s->n_inner, 2 * (int64_t)s->n_inner);
    const int64_t n_made = s->n_rank + 2 * (int64_t)s->n_state;
    x = convolve(b, layer, x, s);
    int32_t dt = fd_build_matmul_part(b, layer, "ssm_dt_in", "ssm_x", x, (fd_part){0, n_made}, s->n_rank, FD_OPTIONAL);
    int32_t to_state =
        fd_build_matmul_part(b, layer, "ssm_b", "ssm_x", x, (fd_part){s->n_rank, n_made}, s->n_state, FD_OPTIONAL);
    int32_t read = fd_build_matmul_part(b, layer, "ssm_c", "ssm_x", x, (fd_part){s->n_rank + s->n_state, n_made},
                                        s->n_state, FD_OPTIONAL);
    if (s->normed) {
        dt = fd_build_unit_norm(b, layer, "ssm_dt_unit", "ssm_dt_norm", dt);
        to_state = fd_build_unit_norm(b, layer, "ssm_b_unit", "ssm_b_norm", fd_build_heads(b, to_state, 1));
        read = fd_build_unit_norm(b, layer, "ssm_c_unit", "ssm_c_norm", fd_build_heads(b, read, 1));
    } else if (fd_build_has(b, layer, "ssm_dt_norm.weight")) { /* jamba's */
        dt = fd_build_norm(b, layer, "ssm_dt_norm", "ssm_dt_norm", dt);
        to_state = fd_build_norm(b, layer, "ssm_b_norm", "ssm_b_norm", fd_build_heads(b, to_state, 1));
        read = fd_build_norm(b, layer, "ssm_c_norm", "ssm_c_norm", fd_build_heads(b, read, 1));
    }
    dt = fd_build_matmul(b, layer, "ssm_dt", "ssm_dt", dt, s->n_inner, FD_REQUIRED);
    dt = fd_build_activation(b, layer, "ssm_dt_softplus", FD_OP_SOFTPLUS, dt);
    int32_t cache = store(b, layer, dt, x, fd_build_heads(b, to_state, 1));
    int32_t y = fd_build_ssm_scan(b, layer, cache, fd_build_heads(b, read, 1), (const int32_t[]){s->n_inner, 1}, true);
    y = fd_build_gated(b, layer, "ssm_gated", FD_OP_SILU_MUL, z, y);
    return fd_build_matmul(b, layer, "ssm_out", "ssm_out", y, b->h->n_embd, FD_OPTIONAL);
}

int32_t fd_build_mamba2(fd_builder *b, int32_t layer, int32_t norm, const fd_ssm *s) {
    const int32_t n_b = s->n_group * s->n_state, n_conv = s->n_inner + 2 * n_b;
    const int64_t all = (int64_t)s->n_inner + n_conv + s->n_rank;
    int32_t z = project(b, layer, "ssm_z", norm, 0, s->n_inner, all);
    int32_t x = project(b, layer, "ssm_in", norm, s->n_inner, n_conv, all);
    int32_t dt = project(b, layer, "ssm_dt", norm, s->n_inner + n_conv, s->n_rank, all);
    x = convolve(b, layer, x, s);
    int32_t to_state = fd_build_slice(b, layer, "ssm_b", x, s->n_inner, n_b);
    int32_t read = fd_build_slice(b, layer, "ssm_c", x, s->n_inner + n_b, n_b);
    fd_build_heads(b, read, s->n_group);
    x = fd_build_slice(b, layer, "ssm_x_alone", x, 0, s->n_inner);
    dt = fd_build_add_vector(b, layer, "ssm_dt_biased", "ssm_dt.bias", dt);
    dt = fd_build_activation(b, layer, "ssm_dt_softplus", FD_OP_SOFTPLUS, dt);
    int32_t cache = store(b, layer, dt, x, to_state);
    int32_t y = fd_build_ssm_scan(b, layer, cache, read, (const int32_t[]){s->n_rank, s->n_inner / s->n_rank}, false);
    y = fd_build_gated(b, layer, "ssm_gated", FD_OP_SILU_MUL, z, y);
    if (s->extras == FD_REQUIRED || fd_build_has(b, layer, "ssm_norm.weight"))
        y = s->n_group > 1 ? fd_build_rms_norm_groups(b, layer, "ssm_norm", "ssm_norm",
                                                      fd_build_heads(b, fd_build_one_head(b, y), s->n_group))
                           : fd_build_rms_norm(b, layer, "ssm_norm", "ssm_norm", y);
    return fd_build_matmul(b, layer, "ssm_out", "ssm_out", y, b->h->n_embd, FD_OPTIONAL);
}

static void list_with(fd_builder *b, const fd_ssm *s,
                      int32_t (*mixer)(fd_builder *, int32_t, int32_t, const fd_ssm *)) {
    int32_t x = fd_build_embed(b);
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        int32_t norm = fd_build_norm(b, layer, "attn_norm", "attn_norm", x);
        x = fd_build_add(b, layer, "l_out", x, mixer(b, layer, norm, s));
    }
    fd_build_logits(b, x);
}

static void list(fd_builder *b) {
    fd_ssm s = fd_read_ssm(b);
    fd_code code = fd_key_bool(b->keys, "ssm.dt_b_c_rms", false, &s.normed);
    if (code != FD_OK) fd_builder_set_error(b, code);
    list_with(b, &s, fd_build_mamba);
}

fd_ssm fd_read_ssm2(fd_builder *b) {
    fd_ssm s = fd_read_ssm(b);
    read_key(b, "ssm.group_count", 1, 1 << 10, &s.n_group);
    if (b->code == FD_OK && s.n_inner % s.n_rank != 0)
        fd_builder_set_error(b, fd_fail(b->err, FD_ERR_INPUT,
                                        "key %s.ssm.time_step_rank: %d, expected a divisor of inner_size %d",
                                        b->h->arch, s.n_rank, s.n_inner));
    if (b->code == FD_OK && s.n_rank % s.n_group != 0)
        fd_builder_set_error(b, fd_fail(b->err, FD_ERR_INPUT,
                                        "key %s.ssm.group_count: %d, expected a divisor of time_step_rank %d",
                                        b->h->arch, s.n_group, s.n_rank));
    return s;
}

static void list_mamba2(fd_builder *b) {
    const fd_ssm s = fd_read_ssm2(b);
    list_with(b, &s, fd_build_mamba2);
}

const fd_arch fd_arch_mamba = {
    .name = "mamba",
    .list = list,
    .reads = FD_READS_NO_ATTENTION,
    .norm = FD_NORM_RMS,
    .made_keys = "attention.head_count=0 attention.head_count_kv=0 feed_forward_length=0 ssm.conv_kernel=4 "
                 "ssm.inner_size=2*embd ssm.state_size=16 ssm.time_step_rank=16",
};
const fd_arch fd_arch_mamba2 = {
    .name = "mamba2",
    .list = list_mamba2,
    .reads = FD_READS_NO_ATTENTION,
    .norm = FD_NORM_RMS,
    .made_keys = "attention.head_count=0 attention.head_count_kv=0 feed_forward_length=0 ssm.conv_kernel=4 "
                 "ssm.inner_size=2*embd ssm.state_size=32 ssm.time_step_rank=8&inner ssm.group_count=1",
};

/* A GGUF against checkpoints that hold other things: logarithms, two matrices in one, blocks of 4 bits. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint.h"

/* ---- models with a state, and compressed K and V ---- */

/* As transformers' mamba has it: the logarithm of minus A. */
static void add_mamba_tensor(checkpoint *c, const fd_gguf_tensor *t) {
    static const char *const names[][2] = {{"ssm_in.weight", "in_proj.weight"},
                                           {"ssm_conv1d.weight", "conv1d.weight"},
                                           {"ssm_conv1d.bias", "conv1d.bias"},
                                           {"ssm_x.weight", "x_proj.weight"},
                                           {"ssm_dt.weight", "dt_proj.weight"},
                                           {"ssm_dt.bias", "dt_proj.bias"},
                                           {"ssm_out.weight", "out_proj.weight"},
                                           {"ssm_a", "A_log"},
                                           {"ssm_d", "D"}};
    int layer = -1, skipped = 0;
    char full[200] = "";
    sscanf(t->name, "blk.%d.%n", &layer, &skipped);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(t->name + skipped, names[i][0]) == 0)
            snprintf(full, sizeof full, "backbone.layers.%d.mixer.%s", layer, names[i][1]);
    if (strcmp(t->name + skipped, "attn_norm.weight") == 0)
        snprintf(full, sizeof full, "backbone.layers.%d.norm.weight", layer);
    if (layer < 0)
        snprintf(full, sizeof full, "%s",
                 strcmp(t->name, "token_embd.weight") == 0    ? "backbone.embeddings.weight"
                 : strcmp(t->name, "output_norm.weight") == 0 ? "backbone.norm_f.weight"
                                                              : "lm_head.weight");
    cr_assert(*full, "%s", t->name);
    checkpoint_item *to = checkpoint_add(c, full, t->n_dim == 1 ? 0 : t->shape[1], t->shape[0]);
    for (int64_t i = 0; i < checkpoint_rows(to) * to->n_col; i++) {
        const float x = ((const float *)t->data)[i];
        to->data[i] = strcmp(t->name + skipped, "ssm_a") == 0 ? logf(-x) : x;
    }
}

static scene *stage_mamba(void) {
    scene *s = calloc(1, sizeof *s);
    fd_error err = {0};
    const fd_made_model what = {.arch = "mamba", .n_embd = 64, .keys = {"ssm.inner_size=128"}};
    cr_assert_eq(fd_made_model_open(&what, &s->gguf, &err), FD_OK, "%s", err.message);
    for (size_t i = 0; i < fd_gguf_n_tensor(s->gguf); i++) add_mamba_tensor(&s->c, fd_gguf_tensor_at(s->gguf, i));
    return s;
}

Test(against, a_state_space_model_has_logarithms_in_its_checkpoint) {
    scene *s = stage_mamba();
    scene_play(s);
    cr_expect(s->report.wrong.n == 0 && s->report.unknown.n == 0, "%s %s",
              s->report.wrong.n     ? s->report.wrong.items[0].tensor
              : s->report.unknown.n ? s->report.unknown.items[0].tensor
                                    : "",
              s->report.wrong.n ? s->report.wrong.items[0].what : "");
    cr_expect_eq(s->report.n_tensor, fd_gguf_n_tensor(s->gguf));
    scene_end(s);
    s = stage_mamba(); /* a converter that forgot the exponential */
    const fd_gguf_tensor *a = fd_gguf_find_tensor(s->gguf, "blk.1.ssm_a");
    memcpy(checkpoint_find(&s->c, "backbone.layers.1.mixer.A_log")->data, a->data, a->bytes);
    scene_expect_one(s, "blk.1.ssm_a", "is as the checkpoint has it, expected as minus its exponential");
}

/* Heads of `each` rows in kv_b: K's, which k_b has transposed, then V's. */
static void add_kv_b(checkpoint *c, const fd_gguf *gguf, int layer, bool v_first) {
    char name[128];
    snprintf(name, sizeof name, "blk.%d.attn_k_b.weight", layer);
    const fd_gguf_tensor *k = fd_gguf_find_tensor(gguf, name);
    snprintf(name, sizeof name, "blk.%d.attn_v_b.weight", layer);
    const fd_gguf_tensor *v = fd_gguf_find_tensor(gguf, name);
    const int64_t n_k = k->shape[0], rank = k->shape[1], n_head = k->shape[2], n_v = v->shape[1], each = n_k + n_v;
    snprintf(name, sizeof name, "model.layers.%d.self_attn.kv_b_proj.weight", layer);
    checkpoint_item *to = checkpoint_add(c, name, n_head * each, rank);
    for (int64_t h = 0; h < n_head; h++)
        for (int64_t r = 0; r < each; r++)
            for (int64_t i = 0; i < rank; i++) {
                const int64_t place = v_first ? (r + n_k) % each : r;
                to->data[(h * each + r) * rank + i] =
                    place < n_k ? ((const float *)k->data)[(h * rank + i) * n_k + place]
                                : ((const float *)v->data)[(h * n_v + place - n_k) * rank + i];
            }
}

Test(against, compressed_k_and_v_are_cut_from_one_matrix) {
    for (int wrong = 0; wrong < 2; wrong++) {
        scene *s = calloc(1, sizeof *s);
        fd_error err = {0};
        const fd_made_model what = {.arch = "deepseek2", .n_embd = 64, .n_ff = 64};
        cr_assert_eq(fd_made_model_open(&what, &s->gguf, &err), FD_OK, "%s", err.message);
        add_kv_b(&s->c, s->gguf, 0, wrong);
        scene_play(s);
        int n_found = 0, n_other = 0;
        for (size_t i = 0; i < s->report.wrong.n; i++)
            n_found += strstr(s->report.wrong.items[i].tensor, "blk.0.attn_k_b") ||
                       strstr(s->report.wrong.items[i].tensor, "blk.0.attn_v_b");
        for (size_t i = 0; i < s->report.unknown.n; i++)
            n_other += strstr(s->report.unknown.items[i].tensor, "blk.0.attn_k_b") != NULL;
        cr_expect_eq(n_found, wrong ? 2 : 0, "%d: %d findings, %s: %s", wrong, n_found,
                     s->report.wrong.n ? s->report.wrong.items[0].tensor : "",
                     s->report.wrong.n ? s->report.wrong.items[0].what : "");
        cr_expect_eq(n_other, 0);
        cr_expect_eq(s->report.n_tensor, 2);
        scene_end(s);
    }
}

/* ---- experts in MXFP4, and the gated delta rule ---- */

static const fd_gguf_tensor *tensor_of(const scene *s, const char *name) {
    const fd_gguf_tensor *t = fd_gguf_find_tensor(s->gguf, name);
    cr_assert_not_null(t, "%s", name);
    return t;
}

/* As gpt-oss has them: a byte holds two elements that follow each other; rows r of `a` and of `b`, if any, in turn. */
static void add_blocks(scene *s, const char *name, const fd_gguf_tensor *a, const fd_gguf_tensor *b, bool in_turn) {
    const int64_t n_row = a->shape[1], n_block = a->shape[0] / 32, n_of = b ? 2 : 1, n_expert = a->shape[2];
    char full[128];
    snprintf(full, sizeof full, "model.layers.0.mlp.experts.%s_blocks", name);
    checkpoint_item *blocks = checkpoint_add(&s->c, full, n_expert * n_of * n_row, n_block * 16);
    snprintf(blocks->shape, sizeof blocks->shape, "%d,%d,%d,16", (int)n_expert, (int)(n_of * n_row), (int)n_block);
    blocks->bytes = true;
    snprintf(full, sizeof full, "model.layers.0.mlp.experts.%s_scales", name);
    checkpoint_item *scales = checkpoint_add(&s->c, full, n_expert * n_of * n_row, n_block);
    snprintf(scales->shape, sizeof scales->shape, "%d,%d,%d", (int)n_expert, (int)(n_of * n_row), (int)n_block);
    scales->bytes = true;
    for (int64_t e = 0; e < n_expert; e++)
        for (int64_t k = 0; k < n_of * n_row; k++) {
            const bool second = b && (in_turn ? k % 2 : k / n_row);
            const int64_t r = !b ? k : in_turn ? k / 2 : k % n_row, to = e * n_of * n_row + k;
            const unsigned char *from = (const unsigned char *)(second ? b : a)->data + (e * n_row + r) * n_block * 17;
            for (int64_t i = 0; i < n_block; i++, from += 17) {
                scales->data[to * n_block + i] = from[0];
                for (int j = 0; j < 16; j++) {
                    const unsigned char low = from[1 + 2 * j % 16], high = from[1 + (2 * j + 1) % 16];
                    blocks->data[(to * n_block + i) * 16 + j] =
                        (float)(j < 8 ? (low & 15) | (high & 15) << 4 : low >> 4 | (high >> 4) << 4);
                }
            }
        }
}

/* Elements of both biases in turn. */
static void add_biases(scene *s, const fd_gguf_tensor *gate, const fd_gguf_tensor *up) {
    const int64_t n = gate->shape[0], n_expert = gate->shape[1];
    checkpoint_item *to = checkpoint_add(&s->c, "model.layers.0.mlp.experts.gate_up_proj_bias", n_expert, 2 * n);
    for (int64_t i = 0; i < n_expert * n; i++) {
        to->data[2 * i] = ((const float *)gate->data)[i];
        to->data[2 * i + 1] = ((const float *)up->data)[i];
    }
}

Test(against, experts_are_read_from_mxfp4) {
    for (int in_turn = 0; in_turn < 2; in_turn++) {
        scene *s = calloc(1, sizeof *s);
        fd_error err = {0};
        const fd_made_model what = {
            .arch = "gpt-oss", .dtype = FD_MXFP4, .n_embd = 64, .n_ff = 96, .keys = {"expert_feed_forward_length=96"}};
        cr_assert_eq(fd_made_model_open(&what, &s->gguf, &err), FD_OK, "%s", err.message);
        add_blocks(s, "gate_up_proj", tensor_of(s, "blk.0.ffn_gate_exps.weight"),
                   tensor_of(s, "blk.0.ffn_up_exps.weight"), in_turn);
        add_blocks(s, "down_proj", tensor_of(s, "blk.0.ffn_down_exps.weight"), NULL, false);
        add_biases(s, tensor_of(s, "blk.0.ffn_gate_exps.bias"), tensor_of(s, "blk.0.ffn_up_exps.bias"));
        scene_play(s);
        cr_expect_eq(s->report.wrong.n, in_turn ? 0 : 2, "%d: %zu findings, %s: %s", in_turn, s->report.wrong.n,
                     s->report.wrong.n ? s->report.wrong.items[0].tensor : "",
                     s->report.wrong.n ? s->report.wrong.items[0].what : "");
        cr_expect_eq(s->report.n_tensor, 5);
        cr_expect_eq(s->report.n_rounded, 0, "the checkpoint's own blocks");
        scene_end(s);
    }
}

/* Made models have 2 key heads of 32, and 4 value heads of 32. */
Test(against, a_delta_nets_projections_are_cut_from_one_matrix) {
    for (int v_first = 0; v_first < 2; v_first++) {
        scene *s = calloc(1, sizeof *s);
        fd_error err = {0};
        const fd_made_model what = {.arch = "qwen3next", .n_embd = 64};
        cr_assert_eq(fd_made_model_open(&what, &s->gguf, &err), FD_OK, "%s", err.message);
        const float *qkv = tensor_of(s, "blk.0.attn_qkv.weight")->data,
                    *z = tensor_of(s, "blk.0.attn_gate.weight")->data;
        checkpoint_item *all =
            checkpoint_add(&s->c, "model.layers.0.linear_attn.in_proj_qkvz.weight", 2 * (64 + 128), 64);
        for (int head = 0, row = 0; head < 2; head++)
            for (int r = 0; r < 192; r++, row++) {
                const int at = v_first && r < 128 ? (r + 64) % 128 : r;
                const float *from = at < 32    ? qkv + (head * 32 + at) * 64
                                    : at < 64  ? qkv + (64 + head * 32 + at - 32) * 64
                                    : at < 128 ? qkv + (128 + head * 64 + at - 64) * 64
                                               : z + (head * 64 + at - 128) * 64;
                memcpy(all->data + row * 64, from, sizeof *from * 64);
            }
        scene_play(s);
        cr_expect_eq(s->report.wrong.n, v_first, "%d: %zu findings, %s: %s", v_first, s->report.wrong.n,
                     s->report.wrong.n ? s->report.wrong.items[0].tensor : "",
                     s->report.wrong.n ? s->report.wrong.items[0].what : "");
        cr_expect_eq(s->report.n_tensor, 2);
        scene_end(s);
    }
}

/* A GGUF against checkpoints of models with a state: value heads in another order, experts in one matrix, RWKV's
 * vectors one by one. Each is made from a GGUF by the way back of its converter. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint.h"

static scene *stage(const fd_made_model *what) {
    scene *s = calloc(1, sizeof *s);
    fd_error err = {0};
    cr_assert_eq(fd_made_model_open(what, &s->gguf, &err), FD_OK, "%s", err.message);
    return s;
}

static const fd_gguf_tensor *tensor_of(const scene *s, const char *name) {
    const fd_gguf_tensor *t = fd_gguf_find_tensor(s->gguf, name);
    cr_assert_not_null(t, "%s", name);
    return t;
}

static void expect_all_agree(scene *s, size_t n_tensor) {
    scene_play(s);
    const fd_against_list *wrong = &s->report.wrong;
    cr_expect(wrong->n == 0 && s->report.n_tensor == n_tensor, "%zu tensors, expected %zu; %zu findings %s %s",
              s->report.n_tensor, n_tensor, wrong->n, wrong->n ? wrong->items[0].tensor : "",
              wrong->n ? wrong->items[0].what : "");
    scene_end(s);
}

/* ---- qwen35: 2 key heads of 32, 4 value heads of 32; the checkpoint has the two of a key head next to each other ---- */

enum { N_KEY_HEAD = 2, N_VALUE_HEAD = 4, N_QK = 2 * N_KEY_HEAD * 32 };

static int64_t value_head_there(int64_t head) {
    static const int64_t of[N_VALUE_HEAD] = {0, 2, 1, 3}; /* 0: key head 0's first, 1: key head 1's first … */
    return of[head];
}

/* Rows or columns from `before` on belong to value heads. */
static int64_t there(int64_t i, int64_t n, int64_t before) {
    const int64_t each = (n - before) / N_VALUE_HEAD;
    return i < before ? i : before + value_head_there((i - before) / each) * each + (i - before) % each;
}

static const struct {
    const char *tensor, *name;
    int64_t rows_before; /* of the value heads; -1: rows stay */
    bool columns, logarithm;
} delta_tensors[] = {
    {"attn_qkv.weight", "in_proj_qkv.weight", N_QK, false, false},
    {"attn_gate.weight", "in_proj_z.weight", 0, false, false},
    {"ssm_alpha.weight", "in_proj_a.weight", 0, false, false},
    {"ssm_beta.weight", "in_proj_b.weight", 0, false, false},
    {"ssm_conv1d.weight", "conv1d.weight", N_QK, false, false},
    {"ssm_dt.bias", "dt_bias", 0, false, false},
    {"ssm_a", "A_log", 0, false, true},
    {"ssm_norm.weight", "norm.weight", -1, false, false},
    {"ssm_out.weight", "out_proj.weight", -1, true, false},
};
enum { N_DELTA = sizeof delta_tensors / sizeof *delta_tensors };

/* Of layer 0; `as_it_is`: this one's heads stand in the GGUF as the checkpoint has them. */
static scene *stage_delta(const char *as_it_is) {
    scene *s = stage(&(fd_made_model){.arch = "qwen35", .n_embd = 64});
    for (size_t i = 0; i < N_DELTA; i++) {
        char name[128];
        snprintf(name, sizeof name, "blk.0.%s", delta_tensors[i].tensor);
        const fd_gguf_tensor *t = tensor_of(s, name);
        const bool vector = t->n_dim == 1, stays = strcmp(as_it_is, delta_tensors[i].tensor) == 0;
        const int64_t n_row = vector ? t->shape[0] : t->shape[1], n_col = vector ? 1 : t->shape[0];
        snprintf(name, sizeof name, "model.language_model.layers.0.linear_attn.%s", delta_tensors[i].name);
        checkpoint_item *to =
            vector ? checkpoint_add(&s->c, name, 0, n_row) : checkpoint_add(&s->c, name, n_row, n_col);
        for (int64_t k = 0; k < n_row * n_col; k++) {
            int64_t r = k / n_col, c = k % n_col;
            if (delta_tensors[i].rows_before >= 0 && !stays) r = there(r, n_row, delta_tensors[i].rows_before);
            if (delta_tensors[i].columns && !stays) c = there(c, n_col, 0);
            const float x = ((const float *)t->data)[k];
            to->data[r * n_col + c] = delta_tensors[i].logarithm ? logf(-x) : x;
        }
    }
    return s;
}

Test(against, value_heads_take_turns) {
    expect_all_agree(stage_delta(""), N_DELTA);
    for (size_t i = 0; i < N_DELTA; i++) { /* a converter that left one as it was */
        char name[64];
        if (delta_tensors[i].rows_before < 0 && !delta_tensors[i].columns) continue;
        snprintf(name, sizeof name, "blk.0.%s", delta_tensors[i].tensor);
        scene_expect_one(stage_delta(delta_tensors[i].tensor), name,
                         delta_tensors[i].logarithm
                             ? "is as minus its exponential, expected as minus its exponential, with"
                             : "is as the checkpoint has it, expected with the");
    }
}

/* ---- experts of a layer in one matrix ---- */

typedef enum { ROWS, COLUMNS, COLUMNS_IN_TURN } gate_up_how;

static void add_gate_up(scene *s, gate_up_how how, bool up_first) {
    const fd_gguf_tensor *gate = tensor_of(s, "blk.0.ffn_gate_exps.weight"),
                         *up = tensor_of(s, "blk.0.ffn_up_exps.weight");
    const int64_t n_in = gate->shape[0], n = gate->shape[1], n_expert = gate->shape[2];
    checkpoint_item *to = checkpoint_add(&s->c, "model.layers.0.mlp.experts.gate_up_proj", n_expert, 2 * n * n_in);
    snprintf(to->shape, sizeof to->shape, "%d,%d,%d", (int)n_expert, (int)(how == ROWS ? 2 * n : n_in),
             (int)(how == ROWS ? n_in : 2 * n));
    for (int64_t e = 0; e < n_expert; e++)
        for (int64_t r = 0; r < 2 * n; r++)
            for (int64_t i = 0; i < n_in; i++) {
                const bool second = how == COLUMNS_IN_TURN ? r % 2 : r / n;
                const int64_t row = how == COLUMNS_IN_TURN ? r / 2 : r % n;
                const float *from = (second != up_first ? up : gate)->data;
                to->data[e * 2 * n * n_in + (how == ROWS ? r * n_in + i : i * 2 * n + r)] =
                    from[(e * n + row) * n_in + i];
            }
}

static void add_down(scene *s, bool transposed) {
    const fd_gguf_tensor *down = tensor_of(s, "blk.0.ffn_down_exps.weight");
    const int64_t n_in = down->shape[0], n = down->shape[1], n_expert = down->shape[2];
    checkpoint_item *to = checkpoint_add(&s->c, "model.layers.0.mlp.experts.down_proj", n_expert, n * n_in);
    snprintf(to->shape, sizeof to->shape, "%d,%d,%d", (int)n_expert, (int)(transposed ? n_in : n),
             (int)(transposed ? n : n_in));
    for (int64_t k = 0; k < n_expert * n * n_in; k++) {
        const int64_t e = k / (n * n_in), r = k / n_in % n, i = k % n_in;
        to->data[e * n * n_in + (transposed ? i * n + r : r * n_in + i)] = ((const float *)down->data)[k];
    }
}

Test(against, experts_of_a_layer_stand_in_one_matrix) {
    static const struct {
        const char *arch;
        gate_up_how how;
    } cases[] = {{"qwen35moe", ROWS}, {"qwen3vlmoe", COLUMNS}, {"gpt-oss", COLUMNS_IN_TURN}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int wrong = 0; wrong < 2; wrong++) {
            scene *s = stage(&(fd_made_model){.arch = cases[i].arch, .n_embd = 64});
            add_gate_up(s, cases[i].how, wrong);
            add_down(s, cases[i].how != ROWS);
            if (!wrong) {
                expect_all_agree(s, 3);
                continue;
            }
            scene_play(s);
            cr_expect_eq(s->report.wrong.n, 2, "%s: %zu", cases[i].arch, s->report.wrong.n);
            for (size_t k = 0; k < s->report.wrong.n; k++)
                cr_expect(strstr(s->report.wrong.items[k].what, "expected the "), "%s", s->report.wrong.items[k].what);
            scene_end(s);
        }
}

/* ---- rwkv7, as flash-linear-attention names it ---- */

static void add_whole(scene *s, const fd_gguf_tensor *t, const char *name, const char *shape) {
    checkpoint_item *to = t->n_dim == 1
                              ? checkpoint_add(&s->c, name, 0, t->shape[0])
                              : checkpoint_add(&s->c, name, t->shape[1] * t->shape[2] * t->shape[3], t->shape[0]);
    snprintf(to->shape, sizeof to->shape, "%s", shape);
    memcpy(to->data, t->data, t->bytes);
}

/* r, w, k, v, a, g of a row each. */
static void add_mixes(scene *s, const fd_gguf_tensor *t, int layer) {
    const int64_t n = t->shape[0];
    for (int i = 0; i < 6; i++) {
        char name[128], shape[32];
        snprintf(name, sizeof name, "model.layers.%d.attn.x_%c", layer, "rwkvag"[i]);
        snprintf(shape, sizeof shape, "1,1,%d", (int)n);
        checkpoint_item *to = checkpoint_add(&s->c, name, 0, n);
        memcpy(to->data, (const float *)t->data + i * n, sizeof(float) * (size_t)n);
        snprintf(to->shape, sizeof to->shape, "%s", shape);
    }
}

static void add_rwkv_tensor(scene *s, const fd_gguf_tensor *t) {
    static const char *const names[][2] = {
        {"attn_norm.", "attn_norm."},
        {"attn_norm_2.", "ffn_norm."},
        {"time_mix_w0.weight", "attn.w_lora.lora.2.bias"},
        {"time_mix_w1.", "attn.w_lora.lora.0."},
        {"time_mix_w2.", "attn.w_lora.lora.2."},
        {"time_mix_a0.weight", "attn.a_lora.lora.2.bias"},
        {"time_mix_a1.", "attn.a_lora.lora.0."},
        {"time_mix_a2.", "attn.a_lora.lora.2."},
        {"time_mix_v0.weight", "attn.v_lora.lora.2.bias"},
        {"time_mix_v1.", "attn.v_lora.lora.0."},
        {"time_mix_v2.", "attn.v_lora.lora.2."},
        {"time_mix_g1.", "attn.g_lora.lora.0."},
        {"time_mix_g2.", "attn.g_lora.lora.2."},
        {"time_mix_k_k.weight", "attn.k_k"},
        {"time_mix_k_a.weight", "attn.k_a"},
        {"time_mix_r_k.weight", "attn.r_k"},
        {"time_mix_key.", "attn.k_proj."},
        {"time_mix_value.", "attn.v_proj."},
        {"time_mix_receptance.", "attn.r_proj."},
        {"time_mix_output.", "attn.o_proj."},
        {"time_mix_ln.", "attn.g_norm."},
        {"channel_mix_lerp_k.weight", "ffn.x_k"},
        {"channel_mix_key.", "ffn.key."},
        {"channel_mix_value.", "ffn.value."},
        {"token_embd.", "model.embeddings."},
        {"token_embd_norm.", "model.layers.0.pre_norm."},
        {"output_norm.", "model.norm."},
        {"output.", "lm_head."},
    };
    int layer = -1, skipped = 0;
    sscanf(t->name, "blk.%d.%n", &layer, &skipped);
    const char *base = t->name + skipped;
    if (strcmp(base, "time_mix_lerp_fused.weight") == 0) {
        add_mixes(s, t, layer);
        return;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const size_t length = strlen(names[i][0]);
        char name[160], shape[32] = "";
        if (strncmp(base, names[i][0], length) != 0) continue;
        snprintf(name, sizeof name, "model.layers.%d.", layer);
        if (layer < 0) *name = '\0';
        snprintf(name + strlen(name), sizeof name - strlen(name), "%s%s", names[i][1], base + length);
        if (strcmp(names[i][1], "attn.r_k") == 0) snprintf(shape, sizeof shape, "%d,64", (int)t->shape[0] / 64);
        add_whole(s, t, name, shape);
        return;
    }
    cr_assert_fail("%s", t->name);
}

static scene *stage_rwkv(void) {
    scene *s = stage(&(fd_made_model){.arch = "rwkv7", .n_embd = 128});
    for (size_t i = 0; i < fd_gguf_n_tensor(s->gguf); i++) add_rwkv_tensor(s, fd_gguf_tensor_at(s->gguf, i));
    return s;
}

Test(against, an_rwkv_has_a_vector_for_each_mix) {
    scene *s = stage_rwkv();
    size_t n = fd_gguf_n_tensor(s->gguf);
    for (size_t i = 0; i < fd_gguf_n_tensor(s->gguf); i++)
        n -= strncmp(fd_gguf_tensor_at(s->gguf, i)->name, "blk.0.time_mix_v", 16) == 0 &&
             strstr(fd_gguf_tensor_at(s->gguf, i)->name, "value") == NULL; /* nothing reads them */
    expect_all_agree(s, n);
    s = stage_rwkv(); /* w and k exchanged */
    checkpoint_item *w = checkpoint_find(&s->c, "model.layers.1.attn.x_w"),
                    *k = checkpoint_find(&s->c, "model.layers.1.attn.x_k");
    float *data = w->data;
    w->data = k->data;
    k->data = data;
    scene_expect_one(s, "blk.1.time_mix_lerp_fused.weight", "2 of 6 rows differ, the first is row 1");
}

/* A GGUF against a checkpoint: what a converter did right agrees, and what it did wrong is named. The checkpoints are made
 * here, of random models, in the form that transformers has; then one thing is changed in them. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/against/against.h"
#include "model/gguf/quant.h"
#include "model/gguf_writer/made_model.h"

enum { MAX_ITEMS = 200 };

typedef struct item {
    char name[128];
    int64_t n_row, n_col; /* n_row 0: a vector */
    float *data;
    char shape[64]; /* of bytes, "2,8,4,16"; "": floats */
} item;

typedef struct checkpoint {
    item items[MAX_ITEMS];
    int n;
} checkpoint;

static item *add(checkpoint *c, const char *name, int64_t n_row, int64_t n_col) {
    cr_assert_lt(c->n, MAX_ITEMS);
    item *to = &c->items[c->n++];
    snprintf(to->name, sizeof to->name, "%s", name);
    to->n_row = n_row;
    to->n_col = n_col;
    to->data = malloc(sizeof *to->data * (size_t)((n_row ? n_row : 1) * n_col));
    return to;
}

static item *find(checkpoint *c, const char *name) {
    for (int i = 0; i < c->n; i++)
        if (strcmp(c->items[i].name, name) == 0) return &c->items[i];
    cr_assert_fail("no %s", name);
    return NULL;
}

static int64_t rows(const item *i) {
    return i->n_row ? i->n_row : 1;
}

/* ---- from a GGUF's tensors to transformers' ---- */

typedef struct naming {
    const char *arch, *tensor, *name;
    enum { SAME, HALVES, TRANSPOSED, MINUS_ONE, BY_HEAD, EXPERTS } how;
} naming;

static const naming namings[] = {
    {"llama", "attn_q", "model.layers.%d.self_attn.q_proj", HALVES},
    {"llama", "attn_k", "model.layers.%d.self_attn.k_proj", HALVES},
    {"gemma", "attn_norm", "model.layers.%d.input_layernorm", MINUS_ONE},
    {"gemma", "ffn_norm", "model.layers.%d.post_attention_layernorm", MINUS_ONE},
    {"gemma", "output_norm", "model.norm", MINUS_ONE},
    {"gpt2", "token_embd", "transformer.wte", SAME},
    {"gpt2", "position_embd", "transformer.wpe", SAME},
    {"gpt2", "output_norm", "transformer.ln_f", SAME},
    {"gpt2", "attn_norm", "transformer.h.%d.ln_1", SAME},
    {"gpt2", "ffn_norm", "transformer.h.%d.ln_2", SAME},
    {"gpt2", "attn_qkv", "transformer.h.%d.attn.c_attn", TRANSPOSED},
    {"gpt2", "attn_output", "transformer.h.%d.attn.c_proj", TRANSPOSED},
    {"gpt2", "ffn_up", "transformer.h.%d.mlp.c_fc", TRANSPOSED},
    {"gpt2", "ffn_down", "transformer.h.%d.mlp.c_proj", TRANSPOSED},
    {"gptneox", "token_embd", "gpt_neox.embed_in", SAME},
    {"gptneox", "output", "embed_out", SAME},
    {"gptneox", "output_norm", "gpt_neox.final_layer_norm", SAME},
    {"gptneox", "attn_norm", "gpt_neox.layers.%d.input_layernorm", SAME},
    {"gptneox", "ffn_norm", "gpt_neox.layers.%d.post_attention_layernorm", SAME},
    {"gptneox", "attn_qkv", "gpt_neox.layers.%d.attention.query_key_value", BY_HEAD},
    {"gptneox", "attn_output", "gpt_neox.layers.%d.attention.dense", SAME},
    {"gptneox", "ffn_up", "gpt_neox.layers.%d.mlp.dense_h_to_4h", SAME},
    {"gptneox", "ffn_down", "gpt_neox.layers.%d.mlp.dense_4h_to_h", SAME},
    {"qwen3moe", "ffn_gate_inp", "model.layers.%d.mlp.gate", SAME},
    {"qwen3moe", "ffn_gate_exps", "model.layers.%d.mlp.experts.%d.gate_proj", EXPERTS},
    {"qwen3moe", "ffn_up_exps", "model.layers.%d.mlp.experts.%d.up_proj", EXPERTS},
    {"qwen3moe", "ffn_down_exps", "model.layers.%d.mlp.experts.%d.down_proj", EXPERTS},
    {"", "token_embd", "model.embed_tokens", SAME},
    {"", "output", "lm_head", SAME},
    {"", "output_norm", "model.norm", SAME},
    {"", "attn_norm", "model.layers.%d.input_layernorm", SAME},
    {"", "ffn_norm", "model.layers.%d.post_attention_layernorm", SAME},
    {"", "attn_q", "model.layers.%d.self_attn.q_proj", SAME},
    {"", "attn_k", "model.layers.%d.self_attn.k_proj", SAME},
    {"", "attn_v", "model.layers.%d.self_attn.v_proj", SAME},
    {"", "attn_q_norm", "model.layers.%d.self_attn.q_norm", SAME},
    {"", "attn_k_norm", "model.layers.%d.self_attn.k_norm", SAME},
    {"", "attn_output", "model.layers.%d.self_attn.o_proj", SAME},
    {"", "ffn_gate", "model.layers.%d.mlp.gate_proj", SAME},
    {"", "ffn_up", "model.layers.%d.mlp.up_proj", SAME},
    {"", "ffn_down", "model.layers.%d.mlp.down_proj", SAME},
};

static const naming *naming_of(const char *arch, const char *base) {
    for (size_t i = 0; i < sizeof namings / sizeof *namings; i++)
        if ((!*namings[i].arch || strcmp(namings[i].arch, arch) == 0) && strcmp(namings[i].tensor, base) == 0)
            return &namings[i];
    cr_assert_fail("%s %s", arch, base);
    return NULL;
}

/* Made models have 4 heads and 2 K/V heads. */
static int64_t row_there(const naming *n, const char *base, int64_t r, int64_t n_row) {
    const int64_t heads = strcmp(base, "attn_k") == 0 ? 2 : 4;
    if (n->how == HALVES) {
        const int64_t each = n_row / heads, i = r % each;
        return r - i + i % 2 * (each / 2) + i / 2;
    }
    if (n->how == BY_HEAD) { /* two groups of two Q, a K, a V */
        static const int place[8] = {0, 1, 4, 5, 2, 6, 3, 7};
        const int64_t each = n_row / 8;
        return place[r / each] * each + r % each;
    }
    return r;
}

static void add_tensor(checkpoint *c, const char *arch, const fd_gguf_tensor *t) {
    int layer = -1, skipped = 0;
    char base[128], name[16], full[200];
    sscanf(t->name, "blk.%d.%n", &layer, &skipped);
    snprintf(base, sizeof base, "%s", t->name + skipped);
    char *suffix = strrchr(base, '.');
    snprintf(name, sizeof name, "%.15s", suffix);
    *suffix = '\0';
    const naming *n = naming_of(arch, base);
    const bool vector = t->n_dim == 1;
    const int64_t n_row = vector ? t->shape[0] : t->shape[1], n_col = vector ? 1 : t->shape[0];
    for (int64_t e = 0; e < t->shape[2]; e++) {
        char stem[160];
        snprintf(stem, sizeof stem, n->name, layer, (int)e);
        snprintf(full, sizeof full, "%s%s", stem, name);
        const bool turned = n->how == TRANSPOSED && !vector;
        item *to = vector ? add(c, full, 0, n_row) : turned ? add(c, full, n_col, n_row) : add(c, full, n_row, n_col);
        const float *from = (const float *)t->data + e * n_row * n_col;
        for (int64_t r = 0; r < n_row; r++)
            for (int64_t k = 0; k < n_col; k++) {
                const int64_t there = row_there(n, base, r, n_row);
                to->data[turned ? k * n_row + r : there * n_col + k] =
                    from[r * n_col + k] - (n->how == MINUS_ONE ? 1.0f : 0.0f);
            }
    }
}

/* ---- files ---- */

static void save(const checkpoint *c, const char *folder) {
    char path[200], *header = calloc(1, 1 << 20);
    size_t at = 0, offset = 0;
    at += (size_t)sprintf(header, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int i = 0; i < c->n; i++) {
        const item *t = &c->items[i];
        const size_t bytes = (*t->shape ? 1 : sizeof *t->data) * (size_t)(rows(t) * t->n_col);
        char shape[64];
        if (*t->shape)
            snprintf(shape, sizeof shape, "%s", t->shape);
        else if (t->n_row)
            snprintf(shape, sizeof shape, "%lld,%lld", (long long)t->n_row, (long long)t->n_col);
        else
            snprintf(shape, sizeof shape, "%lld", (long long)t->n_col);
        at += (size_t)sprintf(header + at, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                              t->name, *t->shape ? "U8" : "F32", shape, offset, offset + bytes);
        offset += bytes;
    }
    header[at++] = '}';
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    FILE *file = fopen(path, "wb");
    cr_assert_not_null(file);
    const uint64_t length = at;
    fwrite(&length, sizeof length, 1, file);
    fwrite(header, 1, at, file);
    for (int i = 0; i < c->n; i++) {
        const item *t = &c->items[i];
        const int64_t n = rows(t) * t->n_col;
        for (int64_t k = 0; k < n && *t->shape; k++) fputc((int)t->data[k], file);
        if (!*t->shape) fwrite(t->data, sizeof(float), (size_t)n, file);
    }
    fclose(file);
    free(header);
}

typedef struct scene {
    checkpoint c;
    fd_gguf *gguf;
    fd_against_report report;
} scene;

/* The checkpoint of a model in F32, and the model in `dtype`. */
static scene *stage(const char *arch, uint32_t dtype, bool tied) {
    scene *s = calloc(1, sizeof *s);
    fd_error err = {0};
    fd_gguf *plain;
    fd_made_model what = {.arch = arch, .n_embd = 64, .n_ff = 96, .tied = tied};
    if (strcmp(arch, "qwen3moe") == 0) what.keys[0] = "expert_feed_forward_length=32";
    cr_assert_eq(fd_made_model_open(&what, &plain, &err), FD_OK, "%s", err.message);
    for (size_t i = 0; i < fd_gguf_n_tensor(plain); i++) add_tensor(&s->c, arch, fd_gguf_tensor_at(plain, i));
    fd_gguf_close(plain);
    what.dtype = dtype;
    cr_assert_eq(fd_made_model_open(&what, &s->gguf, &err), FD_OK, "%s", err.message);
    return s;
}

static void play(scene *s) {
    char folder[] = "/tmp/firstdiff-against-XXXXXX", path[64];
    fd_error err = {0};
    cr_assert_not_null(mkdtemp(folder));
    save(&s->c, folder);
    cr_assert_eq(fd_against_run(s->gguf, folder, &s->report, &err), FD_OK, "%s", err.message);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    unlink(path);
    rmdir(folder);
}

static void end(scene *s) {
    for (int i = 0; i < s->c.n; i++) free(s->c.items[i].data);
    fd_against_free(&s->report);
    fd_gguf_close(s->gguf);
    free(s);
}

/* Exactly one finding, of that tensor, whose text holds `what`. */
static void expect_one(scene *s, const char *tensor, const char *what) {
    play(s);
    const fd_against_list *wrong = &s->report.wrong;
    cr_expect(wrong->n == 1 && strcmp(wrong->items[0].tensor, tensor) == 0 && strstr(wrong->items[0].what, what),
              "%s: %s: %zu findings, the first: %s %s: %s", tensor, what, wrong->n,
              wrong->n ? wrong->items[0].tensor : "", wrong->n ? wrong->items[0].checkpoint : "",
              wrong->n ? wrong->items[0].what : "");
    end(s);
}

Test(against, what_a_sound_converter_writes_agrees) {
    static const struct {
        const char *arch;
        uint32_t dtype;
    } models[] = {{"llama", FD_F32},    {"llama", FD_F16},  {"llama", FD_BF16},  {"llama", FD_Q8_0},
                  {"llama", FD_Q4_0},   {"qwen3", FD_Q5_1}, {"gemma", FD_F32},   {"gemma", FD_F16},
                  {"gpt2", FD_F32},     {"gpt2", FD_Q5_0},  {"gptneox", FD_F32}, {"qwen3moe", FD_F32},
                  {"qwen3moe", FD_Q8_0}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        scene *s = stage(models[i].arch, models[i].dtype, strcmp(models[i].arch, "gpt2") == 0);
        play(s);
        const fd_against_report *r = &s->report;
        cr_expect(r->wrong.n == 0 && r->unknown.n == 0 && r->notes.n == 0, "%s %s: %zu findings, the first %s: %s",
                  models[i].arch, fd_dtype_get(models[i].dtype)->name, r->wrong.n + r->unknown.n,
                  r->wrong.n     ? r->wrong.items[0].tensor
                  : r->unknown.n ? r->unknown.items[0].tensor
                                 : "",
                  r->wrong.n ? r->wrong.items[0].what : "");
        cr_expect(r->n_tensor == fd_gguf_n_tensor(s->gguf) && (r->n_rounded > 0) == (models[i].dtype != FD_F32));
        end(s);
    }
}

static void unpermuted(scene *s) {
    const fd_gguf_tensor *t = fd_gguf_find_tensor(s->gguf, "blk.1.attn_k.weight");
    memcpy(find(&s->c, "model.layers.1.self_attn.k_proj.weight")->data, t->data, t->bytes);
}

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
    item *to = add(c, full, t->n_dim == 1 ? 0 : t->shape[1], t->shape[0]);
    for (int64_t i = 0; i < rows(to) * to->n_col; i++) {
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
    play(s);
    cr_expect(s->report.wrong.n == 0 && s->report.unknown.n == 0, "%s %s",
              s->report.wrong.n     ? s->report.wrong.items[0].tensor
              : s->report.unknown.n ? s->report.unknown.items[0].tensor
                                    : "",
              s->report.wrong.n ? s->report.wrong.items[0].what : "");
    cr_expect_eq(s->report.n_tensor, fd_gguf_n_tensor(s->gguf));
    end(s);
    s = stage_mamba(); /* a converter that forgot the exponential */
    const fd_gguf_tensor *a = fd_gguf_find_tensor(s->gguf, "blk.1.ssm_a");
    memcpy(find(&s->c, "backbone.layers.1.mixer.A_log")->data, a->data, a->bytes);
    expect_one(s, "blk.1.ssm_a", "is as the checkpoint has it, expected as minus its exponential");
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
    item *to = add(c, name, n_head * each, rank);
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
        play(s);
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
        end(s);
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
    item *blocks = add(&s->c, full, n_expert * n_of * n_row, n_block * 16);
    snprintf(blocks->shape, sizeof blocks->shape, "%d,%d,%d,16", (int)n_expert, (int)(n_of * n_row), (int)n_block);
    snprintf(full, sizeof full, "model.layers.0.mlp.experts.%s_scales", name);
    item *scales = add(&s->c, full, n_expert * n_of * n_row, n_block);
    snprintf(scales->shape, sizeof scales->shape, "%d,%d,%d", (int)n_expert, (int)(n_of * n_row), (int)n_block);
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
    item *to = add(&s->c, "model.layers.0.mlp.experts.gate_up_proj_bias", n_expert, 2 * n);
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
        play(s);
        cr_expect_eq(s->report.wrong.n, in_turn ? 0 : 2, "%d: %zu findings, %s: %s", in_turn, s->report.wrong.n,
                     s->report.wrong.n ? s->report.wrong.items[0].tensor : "",
                     s->report.wrong.n ? s->report.wrong.items[0].what : "");
        cr_expect_eq(s->report.n_tensor, 5);
        cr_expect_eq(s->report.n_rounded, 0, "the checkpoint's own blocks");
        end(s);
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
        item *all = add(&s->c, "model.layers.0.linear_attn.in_proj_qkvz.weight", 2 * (64 + 128), 64);
        for (int head = 0, row = 0; head < 2; head++)
            for (int r = 0; r < 192; r++, row++) {
                const int at = v_first && r < 128 ? (r + 64) % 128 : r;
                const float *from = at < 32    ? qkv + (head * 32 + at) * 64
                                    : at < 64  ? qkv + (64 + head * 32 + at - 32) * 64
                                    : at < 128 ? qkv + (128 + head * 64 + at - 64) * 64
                                               : z + (head * 64 + at - 128) * 64;
                memcpy(all->data + row * 64, from, sizeof *from * 64);
            }
        play(s);
        cr_expect_eq(s->report.wrong.n, v_first, "%d: %zu findings, %s: %s", v_first, s->report.wrong.n,
                     s->report.wrong.n ? s->report.wrong.items[0].tensor : "",
                     s->report.wrong.n ? s->report.wrong.items[0].what : "");
        cr_expect_eq(s->report.n_tensor, 2);
        end(s);
    }
}

Test(against, a_wrong_form_is_named) {
    scene *s = stage("llama", FD_F32, false);
    unpermuted(s);
    expect_one(s, "blk.1.attn_k.weight",
               "is as the checkpoint has it, expected with the rows of each head in neighbouring pairs");
    s = stage("gemma", FD_F32, true);
    item *norm = find(&s->c, "model.norm.weight");
    for (int64_t i = 0; i < norm->n_col; i++) norm->data[i] += 1.0f;
    expect_one(s, "output_norm.weight", "is as the checkpoint has it, expected with 1 added");
    s = stage("gptneox", FD_F32, false);
    const fd_gguf_tensor *qkv = fd_gguf_find_tensor(s->gguf, "blk.0.attn_qkv.bias");
    memcpy(find(&s->c, "gpt_neox.layers.0.attention.query_key_value.bias")->data, qkv->data, qkv->bytes);
    expect_one(s, "blk.0.attn_qkv.bias", "expected with Q of all heads first");
    s = stage("gpt2", FD_F32, true);
    item *up = find(&s->c, "transformer.h.0.attn.c_proj.weight");
    const fd_gguf_tensor *square = fd_gguf_find_tensor(s->gguf, "blk.0.attn_output.weight");
    memcpy(up->data, square->data, square->bytes);
    expect_one(s, "blk.0.attn_output.weight", "is as the checkpoint has it, expected transposed");
}

Test(against, other_mistakes_are_named) {
    scene *s = stage("llama", FD_F16, false);
    item *v = find(&s->c, "model.layers.0.self_attn.v_proj.weight");
    for (int64_t i = 0; i < v->n_row * v->n_col; i++) v->data[i] *= 0.25f;
    expect_one(s, "blk.0.attn_v.weight", "is 4 times the checkpoint's values");

    s = stage("llama", FD_F32, false);
    item *down = find(&s->c, "model.layers.1.mlp.down_proj.weight");
    memset(down->data + 7 * down->n_col, 0, sizeof(float) * (size_t)down->n_col);
    expect_one(s, "blk.1.ffn_down.weight", "1 of 64 rows differ, the first is row 7");

    s = stage("llama", FD_F32, false);
    item *other = find(&s->c, "model.layers.0.input_layernorm.weight");
    item *norm = find(&s->c, "model.layers.1.input_layernorm.weight");
    memcpy(norm->data, other->data, sizeof(float) * (size_t)norm->n_col);
    for (int64_t i = 0; i < norm->n_col; i++) norm->data[i] *= 1.0f + 0.01f * (float)(i % 5);
    expect_one(s, "blk.1.attn_norm.weight", "other values: they differ by 0.1");

    s = stage("llama", FD_F32, false);
    add(&s->c, "model.layers.0.self_attn.q_proj.bias", 0, 64);
    expect_one(s, "", "nothing in the GGUF holds it");

    s = stage("llama", FD_F32, true);
    item *head = add(&s->c, "lm_head.weight", 320, 64);
    for (int64_t i = 0; i < 320 * 64; i++) head->data[i] = (float)(i % 7);
    expect_one(s, "output.weight", "missing, so that the embedding is used again");
}

Test(against, exchanged_matrices_are_both_named) {
    scene *s = stage("llama", FD_Q8_0, false);
    item *gate = find(&s->c, "model.layers.0.mlp.gate_proj.weight"),
         *up = find(&s->c, "model.layers.0.mlp.up_proj.weight");
    float *data = gate->data;
    gate->data = up->data;
    up->data = data;
    play(s);
    cr_assert_eq(s->report.wrong.n, 2);
    cr_expect_str_eq(s->report.wrong.items[0].what, "holds model.layers.0.mlp.up_proj.weight");
    cr_expect_str_eq(s->report.wrong.items[1].what, "holds model.layers.0.mlp.gate_proj.weight");
    end(s);
}

Test(against, a_vocabulary_may_be_padded_and_nothing_else_may) {
    scene *s = stage("llama", FD_F32, false);
    find(&s->c, "model.embed_tokens.weight")->n_row = 311;
    play(s);
    cr_expect(s->report.wrong.n == 0 && s->report.notes.n == 1 &&
              strstr(s->report.notes.items[0].what, "320 rows, the checkpoint has 311: the vocabulary is padded"));
    end(s);
    s = stage("llama", FD_F32, false);
    find(&s->c, "model.layers.0.mlp.up_proj.weight")->n_row = 90;
    expect_one(s, "blk.0.ffn_up.weight", "96 rows of 64, the checkpoint's shape is [90, 64]");
}

/* A third of the values weighed differently is more than Q4_1 rounds. */
Test(against, rounding_explains_no_other_values) {
    scene *s = stage("llama", FD_Q4_1, false);
    item *o = find(&s->c, "model.layers.0.self_attn.o_proj.weight");
    for (int64_t i = 0; i < o->n_row * o->n_col; i++) o->data[i] *= i % 3 ? 1.0f : 0.3f;
    expect_one(s, "blk.0.attn_output.weight", "of 64 rows differ, the first is row 0");
}

Test(against, what_is_no_checkpoint_is_refused) {
    fd_error err = {0};
    fd_against_report report;
    scene *s = stage("llama", FD_F32, false);
    cr_expect_eq(fd_against_run(s->gguf, "/nowhere", &report, &err), FD_ERR_INPUT);
    fd_against_free(&report);
    cr_expect_eq(fd_against_run(s->gguf, FD_SOURCE_DIR "/docs", &report, &err), FD_ERR_INPUT);
    cr_expect(strstr(err.message, "no tensors"), "%s", err.message);
    fd_against_free(&report);
    end(s);
}

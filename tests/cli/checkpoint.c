#include "checkpoint.h"
#include "tests/scratch.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

checkpoint_item *checkpoint_add(checkpoint *c, const char *name, int64_t n_row, int64_t n_col) {
    cr_assert_lt(c->n, MAX_ITEMS);
    checkpoint_item *to = &c->items[c->n++];
    snprintf(to->name, sizeof to->name, "%s", name);
    to->n_row = n_row;
    to->n_col = n_col;
    to->data = malloc(sizeof *to->data * (size_t)((n_row ? n_row : 1) * n_col));
    return to;
}

checkpoint_item *checkpoint_find(checkpoint *c, const char *name) {
    for (int i = 0; i < c->n; i++)
        if (strcmp(c->items[i].name, name) == 0) return &c->items[i];
    cr_assert_fail("no %s", name);
    return NULL;
}

int64_t checkpoint_rows(const checkpoint_item *i) {
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
        checkpoint_item *to = vector   ? checkpoint_add(c, full, 0, n_row)
                              : turned ? checkpoint_add(c, full, n_col, n_row)
                                       : checkpoint_add(c, full, n_row, n_col);
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
        const checkpoint_item *t = &c->items[i];
        const size_t bytes = (t->bytes ? 1 : sizeof *t->data) * (size_t)(checkpoint_rows(t) * t->n_col);
        char shape[64];
        if (*t->shape)
            snprintf(shape, sizeof shape, "%s", t->shape);
        else if (t->n_row)
            snprintf(shape, sizeof shape, "%lld,%lld", (long long)t->n_row, (long long)t->n_col);
        else
            snprintf(shape, sizeof shape, "%lld", (long long)t->n_col);
        at += (size_t)sprintf(header + at, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                              t->name, t->bytes ? "U8" : "F32", shape, offset, offset + bytes);
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
        const checkpoint_item *t = &c->items[i];
        const int64_t n = checkpoint_rows(t) * t->n_col;
        for (int64_t k = 0; k < n && t->bytes; k++) fputc((int)t->data[k], file);
        if (!t->bytes) fwrite(t->data, sizeof(float), (size_t)n, file);
    }
    fclose(file);
    free(header);
}

scene *scene_stage(const char *arch, uint32_t dtype, bool tied) {
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

void scene_play(scene *s) {
    char folder[SCRATCH_PATH], path[128];
    fd_error err = {0};
    cr_assert_not_null(mkdtemp(scratch_path(folder, "firstdiff-against-XXXXXX")));
    save(&s->c, folder);
    cr_assert_eq(fd_against_run(s->gguf, folder, &s->report, &err), FD_OK, "%s", err.message);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    unlink(path);
    rmdir(folder);
}

void scene_end(scene *s) {
    for (int i = 0; i < s->c.n; i++) free(s->c.items[i].data);
    fd_against_free(&s->report);
    fd_gguf_close(s->gguf);
    free(s);
}

void scene_expect_one(scene *s, const char *tensor, const char *what) {
    scene_play(s);
    const fd_against_list *wrong = &s->report.wrong;
    cr_expect(wrong->n == 1 && strcmp(wrong->items[0].tensor, tensor) == 0 && strstr(wrong->items[0].what, what),
              "%s: %s: %zu findings, the first: %s %s: %s", tensor, what, wrong->n,
              wrong->n ? wrong->items[0].tensor : "", wrong->n ? wrong->items[0].checkpoint : "",
              wrong->n ? wrong->items[0].what : "");
    scene_end(s);
}

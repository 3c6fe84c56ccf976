/* A GGUF against a checkpoint: what a converter did right agrees, and what it did wrong is named. The checkpoints are made
 * here, of random models, in the form that transformers has; then one thing is changed in them. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint.h"

Test(against, what_a_sound_converter_writes_agrees) {
    static const struct {
        const char *arch;
        uint32_t dtype;
    } models[] = {{"llama", FD_F32},    {"llama", FD_F16},  {"llama", FD_BF16},  {"llama", FD_Q8_0},
                  {"llama", FD_Q4_0},   {"qwen3", FD_Q5_1}, {"gemma", FD_F32},   {"gemma", FD_F16},
                  {"gpt2", FD_F32},     {"gpt2", FD_Q5_0},  {"gptneox", FD_F32}, {"qwen3moe", FD_F32},
                  {"qwen3moe", FD_Q8_0}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        scene *s = scene_stage(models[i].arch, models[i].dtype, strcmp(models[i].arch, "gpt2") == 0);
        scene_play(s);
        const fd_against_report *r = &s->report;
        cr_expect(r->wrong.n == 0 && r->unknown.n == 0 && r->notes.n == 0, "%s %s: %zu findings, the first %s: %s",
                  models[i].arch, fd_dtype_get(models[i].dtype)->name, r->wrong.n + r->unknown.n,
                  r->wrong.n     ? r->wrong.items[0].tensor
                  : r->unknown.n ? r->unknown.items[0].tensor
                                 : "",
                  r->wrong.n ? r->wrong.items[0].what : "");
        cr_expect(r->n_tensor == fd_gguf_n_tensor(s->gguf) && (r->n_rounded > 0) == (models[i].dtype != FD_F32));
        scene_end(s);
    }
}

static void unpermuted(scene *s) {
    const fd_gguf_tensor *t = fd_gguf_find_tensor(s->gguf, "blk.1.attn_k.weight");
    memcpy(checkpoint_find(&s->c, "model.layers.1.self_attn.k_proj.weight")->data, t->data, t->bytes);
}

Test(against, a_wrong_form_is_named) {
    scene *s = scene_stage("llama", FD_F32, false);
    unpermuted(s);
    scene_expect_one(s, "blk.1.attn_k.weight",
                     "is as the checkpoint has it, expected with the rows of each head in neighbouring pairs");
    s = scene_stage("gemma", FD_F32, true);
    checkpoint_item *norm = checkpoint_find(&s->c, "model.norm.weight");
    for (int64_t i = 0; i < norm->n_col; i++) norm->data[i] += 1.0f;
    scene_expect_one(s, "output_norm.weight", "is as the checkpoint has it, expected with 1 added");
    s = scene_stage("gptneox", FD_F32, false);
    const fd_gguf_tensor *qkv = fd_gguf_find_tensor(s->gguf, "blk.0.attn_qkv.bias");
    memcpy(checkpoint_find(&s->c, "gpt_neox.layers.0.attention.query_key_value.bias")->data, qkv->data, qkv->bytes);
    scene_expect_one(s, "blk.0.attn_qkv.bias", "expected with Q of all heads first");
    s = scene_stage("gpt2", FD_F32, true);
    checkpoint_item *up = checkpoint_find(&s->c, "transformer.h.0.attn.c_proj.weight");
    const fd_gguf_tensor *square = fd_gguf_find_tensor(s->gguf, "blk.0.attn_output.weight");
    memcpy(up->data, square->data, square->bytes);
    scene_expect_one(s, "blk.0.attn_output.weight", "is as the checkpoint has it, expected transposed");
}

Test(against, other_mistakes_are_named) {
    scene *s = scene_stage("llama", FD_F16, false);
    checkpoint_item *v = checkpoint_find(&s->c, "model.layers.0.self_attn.v_proj.weight");
    for (int64_t i = 0; i < v->n_row * v->n_col; i++) v->data[i] *= 0.25f;
    scene_expect_one(s, "blk.0.attn_v.weight", "is 4 times the checkpoint's values");

    s = scene_stage("llama", FD_F32, false);
    checkpoint_item *down = checkpoint_find(&s->c, "model.layers.1.mlp.down_proj.weight");
    memset(down->data + 7 * down->n_col, 0, sizeof(float) * (size_t)down->n_col);
    scene_expect_one(s, "blk.1.ffn_down.weight", "1 of 64 rows differ, the first is row 7");

    s = scene_stage("llama", FD_F32, false);
    checkpoint_item *other = checkpoint_find(&s->c, "model.layers.0.input_layernorm.weight");
    checkpoint_item *norm = checkpoint_find(&s->c, "model.layers.1.input_layernorm.weight");
    memcpy(norm->data, other->data, sizeof(float) * (size_t)norm->n_col);
    for (int64_t i = 0; i < norm->n_col; i++) norm->data[i] *= 1.0f + 0.01f * (float)(i % 5);
    scene_expect_one(s, "blk.1.attn_norm.weight", "other values: they differ by 0.1");

    s = scene_stage("llama", FD_F32, false);
    checkpoint_add(&s->c, "model.layers.0.self_attn.q_proj.bias", 0, 64);
    scene_expect_one(s, "", "nothing in the GGUF holds it");

    s = scene_stage("llama", FD_F32, true);
    checkpoint_item *head = checkpoint_add(&s->c, "lm_head.weight", 320, 64);
    for (int64_t i = 0; i < 320 * 64; i++) head->data[i] = (float)(i % 7);
    scene_expect_one(s, "output.weight", "missing, so that the embedding is used again");
}

Test(against, exchanged_matrices_are_both_named) {
    scene *s = scene_stage("llama", FD_Q8_0, false);
    checkpoint_item *gate = checkpoint_find(&s->c, "model.layers.0.mlp.gate_proj.weight"),
                    *up = checkpoint_find(&s->c, "model.layers.0.mlp.up_proj.weight");
    float *data = gate->data;
    gate->data = up->data;
    up->data = data;
    scene_play(s);
    cr_assert_eq(s->report.wrong.n, 2);
    cr_expect_str_eq(s->report.wrong.items[0].what, "holds model.layers.0.mlp.up_proj.weight");
    cr_expect_str_eq(s->report.wrong.items[1].what, "holds model.layers.0.mlp.gate_proj.weight");
    scene_end(s);
}

Test(against, a_vocabulary_may_be_padded_and_nothing_else_may) {
    scene *s = scene_stage("llama", FD_F32, false);
    checkpoint_find(&s->c, "model.embed_tokens.weight")->n_row = 311;
    scene_play(s);
    cr_expect(s->report.wrong.n == 0 && s->report.notes.n == 1 &&
              strstr(s->report.notes.items[0].what, "320 rows, the checkpoint has 311: the vocabulary is padded"));
    scene_end(s);
    s = scene_stage("llama", FD_F32, false);
    checkpoint_find(&s->c, "model.layers.0.mlp.up_proj.weight")->n_row = 90;
    scene_expect_one(s, "blk.0.ffn_up.weight", "96 rows of 64, the checkpoint's shape is [90, 64]");
}

/* A third of the values weighed differently is more than Q4_1 rounds. */
Test(against, rounding_explains_no_other_values) {
    scene *s = scene_stage("llama", FD_Q4_1, false);
    checkpoint_item *o = checkpoint_find(&s->c, "model.layers.0.self_attn.o_proj.weight");
    for (int64_t i = 0; i < o->n_row * o->n_col; i++) o->data[i] *= i % 3 ? 1.0f : 0.3f;
    scene_expect_one(s, "blk.0.attn_output.weight", "of 64 rows differ, the first is row 0");
}

Test(against, what_is_no_checkpoint_is_refused) {
    fd_error err = {0};
    fd_against_report report;
    scene *s = scene_stage("llama", FD_F32, false);
    cr_expect_eq(fd_against_run(s->gguf, "/nowhere", &report, &err), FD_ERR_INPUT);
    fd_against_free(&report);
    cr_expect_eq(fd_against_run(s->gguf, FD_SOURCE_DIR "/docs", &report, &err), FD_ERR_INPUT);
    cr_expect(strstr(err.message, "no tensors"), "%s", err.message);
    fd_against_free(&report);
    scene_end(s);
}

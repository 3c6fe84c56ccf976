/* Made models of every architecture with sizes other than their own: each builds, or is refused in words that say why. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/gguf_writer/made_model.h"
#include "model/gguf_writer/made_sizes.h"
#include "reference_cpu/reference.h"

enum { N_VOCAB = 320 };

static const fd_arch *const archs[] = {
#define FD_ARCH(name) &fd_arch_##name,
#include "model/arch/archs.def"
#undef FD_ARCH
};
enum { N_ARCH = sizeof archs / sizeof *archs };

static const struct {
    const char *name;
    fd_made_model sizes;
} cases[] = {
    {"embd 96", {.n_embd = 96}},
    {"embd 64, 4 heads", {.n_embd = 64, .n_head = 4}},
    {"embd 100, 5 heads", {.n_embd = 100, .n_head = 5}},
    {"embd 72, 6 heads, 3 for K and V", {.n_embd = 72, .n_head = 6, .n_head_kv = 3}},
    {"embd 66, 6 heads", {.n_embd = 66, .n_head = 6}},
    {"8 heads", {.n_embd = 128, .n_head = 8}},
    {"one head", {.n_embd = 64, .n_head = 1}},
    {"one head for K and V", {.n_embd = 64, .n_head_kv = 1}},
    {"1 layer", {.n_embd = 64, .n_layer = 1}},
    {"5 layers", {.n_embd = 64, .n_layer = 5}},
    {"ff 33", {.n_embd = 64, .n_ff = 33}},
    {"no output.weight", {.n_embd = 64, .tied = true}},
};
enum { N_CASE = sizeof cases / sizeof *cases };

/* "*": every architecture. What is not here must be made. */
static const struct {
    const char *arch, *name, *why;
} refused[] = {
    {"*", "embd 66, 6 heads", ".rope.dimension_count: 11, expected an even number"},
    {"*", "embd 66, 6 heads", ".rope.dimension_count: 1, expected 2 to 11"},
    {"*", "1 layer", ".block_count: of 1 layers none attends"},
    {"*", "no output.weight", "has an output.weight of its own"},
    {"llama4", "1 layer", "block_count: 1, expected at least 4"},
    {"gemma4", "1 layer", "shared_kv_layers: leaves 1 layers of 1, expected 2"},
    {"baichuan", "1 layer", "block_count: 1, expected 32 (7B, RoPE) or 40 (13B, ALiBi)"},
    {"baichuan", "5 layers", "block_count: 5, expected 32 (7B, RoPE) or 40 (13B, ALiBi)"},
    {"qwen", "*", "head_count_kv: "},
    {"olmoe", "*", "head_count_kv: "},
    {"dots1", "*", "head_count_kv: "},
    {"deepseek2", "*", "head_count_kv: 3, expected 1"},
    {"mistral4", "*", "head_count_kv: 3, expected 1"},
    {"minicpm3", "*", "head_count_kv: "},
    {"plm", "*", "head_count_kv: "},
    {"mamba", "*", "is asked for, and mamba has none"},
    {"mamba2", "*", "is asked for, and mamba2 has none"},
    {"rwkv7", "*", "is asked for, and rwkv7 has none"},
    {"rwkv7", "embd 96", "wkv.head_size: 64, expected a divisor of embedding_length 96"},
};

static bool may_be_refused(const char *arch, const char *name, const char *why) {
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if ((*refused[i].arch == '*' || strcmp(refused[i].arch, arch) == 0) &&
            (*refused[i].name == '*' || strcmp(refused[i].name, name) == 0) && strstr(why, refused[i].why))
            return true;
    return false;
}

/* Two tokens. */
static void expect_finite(const fd_gguf *gguf, const char *arch, const char *name) {
    static float logits[N_VOCAB];
    fd_error err = {0};
    fd_graph *graph;
    fd_exec *exec;
    const fd_batch batch = {.tokens = (const int32_t[]){5, 42}, .n_tok = 2, .logits = logits};
    cr_assert_eq(fd_graph_build(gguf, &graph, NULL, &err), FD_OK, "%s, %s: %s", arch, name, err.message);
    cr_assert_eq(fd_reference_new(graph, &(fd_reference_options){.n_ctx = 2}, &exec, &err), FD_OK, "%s", err.message);
    cr_assert_eq(fd_exec_forward(exec, &batch, &err), FD_OK, "%s, %s: %s", arch, name, err.message);
    for (int i = 0; i < N_VOCAB; i++) cr_assert(isfinite(logits[i]), "%s, %s", arch, name);
    fd_exec_free(exec);
    fd_graph_free(graph);
}

/* One in four runs, each case with some architectures and each architecture in some cases. */
Test(made_sizes, each_is_made_or_refused_by_name) {
    int n_made = 0;
    for (int a = 0; a < N_ARCH; a++)
        for (int c = 0; c < N_CASE; c++) {
            fd_made_model what = cases[c].sizes;
            what.arch = archs[a]->name;
            fd_gguf *gguf;
            fd_error err = {0};
            if (fd_made_model_open(&what, &gguf, &err) != FD_OK) {
                cr_expect(may_be_refused(what.arch, cases[c].name, err.message), "%s, %s: %s", what.arch, cases[c].name,
                          err.message);
                continue;
            }
            n_made++;
            if ((a + c) % 4 == 0) expect_finite(gguf, what.arch, cases[c].name);
            fd_gguf_close(gguf);
        }
    cr_expect_gt(n_made, N_ARCH * N_CASE * 3 / 4);
}

Test(made_sizes, an_unknown_refusal_fails_the_gate) {
    cr_expect(!may_be_refused("llama", "embd 96", "key llama.rope.dimension_count: 11, expected an even number"));
    cr_expect(!may_be_refused("llama", "one head", "key llama.attention.head_count_kv: 1"));
}

/* Values of made_keys; 3 layers, 4 heads, embd 64, K/V heads 2. */
Test(made_sizes, values_follow_from_sizes) {
    static const struct {
        const char *text, *value;
    } rows[] = {
        {"16", "16"},
        {"yarn", "yarn"},
        {"1e-5", "1e-5"},
        {"true", "true"},
        {"2*embd", "128"},
        {"embd/3", "22"},
        {"embd-65", "0"},
        {"head-4/6", "2"},
        {"32&head", "16"},
        {"24&head", "8"},
        {"0,kv,0,..", "0,2,0"},
        {"0,kv,..", "0,2,0"},
        {"3,3,2,0", "3,3,2,0"},
        {"heads", "4"},
        {"head/4,head/8,0", "4,2,0"},
        {"kv,1,0,0,..", "2,1,0"},
    };
    const fd_made_sizes sizes =
        fd_made_sizes_of(&(fd_made_model){.arch = "llama", .n_layer = 3, .n_embd = 64}, &fd_arch_llama);
    char value[64];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_assert(fd_made_value(&sizes, rows[i].text, value, sizeof value));
        cr_expect_str_eq(value, rows[i].value, "%s: %s", rows[i].text, value);
    }
    cr_expect(!fd_made_value(&sizes, "0,kv,0,..", value, 4));
}

/* A hybrid's layers stay of both kinds whatever is asked for. */
Test(made_sizes, hybrids_stay_hybrids) {
    static const struct {
        fd_made_model what;
        const char *attends, *carries;
    } rows[] = {
        {{.arch = "lfm2", .n_embd = 96, .n_head = 6, .n_layer = 5},
         "blk.4.attn_q.weight",
         "blk.3.shortconv.conv.weight"},
        {{.arch = "jamba", .n_embd = 64, .n_head = 8, .n_layer = 5}, "blk.4.attn_q.weight", "blk.3.ssm_in.weight"},
        {{.arch = "granitehybrid", .n_embd = 64, .n_head = 2, .n_layer = 6},
         "blk.5.attn_q.weight",
         "blk.4.ssm_in.weight"},
        {{.arch = "nemotron_h", .n_embd = 64, .n_ff = 96, .n_layer = 7}, "blk.6.attn_q.weight", "blk.4.ssm_in.weight"},
        {{.arch = "gemma4", .n_embd = 64, .n_head = 2, .n_layer = 6}, "blk.1.attn_q.weight", "blk.0.attn_k.weight"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fd_gguf *gguf;
        fd_error err = {0};
        cr_assert_eq(fd_made_model_open(&rows[i].what, &gguf, &err), FD_OK, "%s: %s", rows[i].what.arch, err.message);
        cr_expect(fd_gguf_find_tensor(gguf, rows[i].attends), "%s", rows[i].what.arch);
        cr_expect(fd_gguf_find_tensor(gguf, rows[i].carries), "%s", rows[i].what.arch);
        fd_gguf_close(gguf);
    }
}

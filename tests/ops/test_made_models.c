/* Models of random weights, made here, against llama.cpp's logits of the same files (record_made_logits.py): every
 * architecture, in F32 and quantised, without a file that is not in the repository. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "model/builder.h"
#include "model/gguf_writer/made_model.h"
#include "reference_cpu/reference.h"
#include "tests/nmse.h"
#include "tests/ops/llama_cpp_gelu.h"
#include "tests/ops/made_rows.h"
#include "tests/ops/shared_files.h"

#define HERE FD_SOURCE_DIR "/tests/ops/"

enum { N_TOKEN = 24, N_VOCAB = 320 };

static fd_made_model described(const made_row *row) {
    fd_made_model what;
    fd_error err = {0};
    cr_assert_eq(made_row_describe(row, &what, &err), FD_OK, "%s", err.message);
    return what;
}

static int read_cases(made_row *cases) {
    int n = made_rows_read(cases);
    cr_assert_gt(n, 0, "made_models.txt");
    return n;
}

/* The last position's logits. */
static void run(const fd_gguf *gguf, int32_t n_token, float *logits) {
    fd_error err = {0};
    fd_graph *graph;
    fd_exec *exec;
    int32_t tokens[N_TOKEN];
    for (int32_t i = 0; i < n_token; i++) tokens[i] = (37 * i + 5) % N_VOCAB;
    cr_assert_eq(fd_graph_build(gguf, &graph, NULL, &err), FD_OK, "%s", err.message);
    fd_graph_set_context(graph, n_token);
    take_llama_cpp_gelu(graph);
    cr_assert_eq(fd_reference_new(graph, &(fd_reference_options){.n_ctx = n_token}, &exec, &err), FD_OK, "%s",
                 err.message);
    cr_assert_eq(fd_exec_forward(exec, &(fd_batch){.tokens = tokens, .n_tok = n_token, .logits = logits}, &err), FD_OK,
                 "%s", err.message);
    fd_exec_free(exec);
    fd_graph_free(graph);
}

static unsigned crc_of(const fd_gguf *gguf) {
    return (unsigned)crc32(0, fd_gguf_file_data(gguf), (uInt)fd_gguf_file_size(gguf));
}

static fd_gguf *make(const fd_made_model *what) {
    fd_gguf *gguf;
    fd_error err = {0};
    cr_assert_eq(fd_made_model_open(what, &gguf, &err), FD_OK, "%s: %s", what->arch, err.message);
    return gguf;
}

Test(made_models, logits_are_llama_cpps) {
    static made_row cases[MADE_MAX_ROWS];
    static float logits[N_VOCAB];
    int64_t n_row, n_col;
    int n = read_cases(cases);
    float *expected = read_npy(HERE "made_logits.npy", &n_row, &n_col);
    cr_assert(expected && n_row == n && n_col == N_VOCAB, "run record_made_logits.py");
    for (int i = 0; i < n; i++) {
        const made_row *c = &cases[i];
        const fd_made_model what = described(c);
        fd_gguf *gguf = make(&what);
        cr_expect_eq(crc_of(gguf), c->crc, "%s %s %s: other bytes than those recorded", c->arch, c->type, c->keys);
        run(gguf, N_TOKEN, logits);
        double found = nmse(logits, expected + i * N_VOCAB, N_VOCAB);
        cr_expect(found <= c->limit, "%s %s %s %s: NMSE %g", c->arch, c->type, c->keys, c->with, found);
        cr_log_info("%s %s %s %s: NMSE %.2g\n", c->arch, c->type, c->keys, c->with, found);
        fd_gguf_close(gguf);
    }
    free(expected);
}

/* The gate above: another model's logits are not within any limit. */
Test(made_models, another_seed_fails_the_gate) {
    static made_row cases[MADE_MAX_ROWS];
    static float logits[N_VOCAB];
    int64_t n_row, n_col;
    int n = read_cases(cases);
    float *expected = read_npy(HERE "made_logits.npy", &n_row, &n_col);
    for (int i = 0; i < n && i < 3; i++) {
        fd_made_model what = described(&cases[i]);
        what.seed = 8;
        fd_gguf *gguf = make(&what);
        cr_expect_neq(crc_of(gguf), cases[i].crc);
        run(gguf, N_TOKEN, logits);
        cr_expect(!(nmse(logits, expected + i * N_VOCAB, N_VOCAB) <= 1e-2));
        fd_gguf_close(gguf);
    }
    free(expected);
}

Test(made_models, every_architecture_is_there_in_three_types) {
    static const char *const archs[] = {
#define FD_ARCH(name) #name,
#include "model/arch/archs.def"
#undef FD_ARCH
    };
    static const fd_arch *const rows[] = {
#define FD_ARCH(name) &fd_arch_##name,
#include "model/arch/archs.def"
#undef FD_ARCH
    };
    static const char *const types[] = {"F32", "Q8_0", "Q4_K"};
    static made_row cases[MADE_MAX_ROWS];
    int n = read_cases(cases);
    for (size_t a = 0; a < sizeof archs / sizeof *archs; a++)
        for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
            bool there = false;
            for (int i = 0; i < n; i++)
                there |= strcmp(cases[i].arch, rows[a]->name) == 0 && strcmp(cases[i].type, types[t]) == 0;
            cr_expect(there, "%s %s: no row in made_models.txt", archs[a], types[t]);
        }
}

/* Hashes of weights go by name and row: a weight with other rows than the file's tensor must have another name. */
Test(made_models, a_weight_with_a_tensors_name_has_its_rows) {
    static const fd_arch *const rows[] = {
#define FD_ARCH(name) &fd_arch_##name,
#include "model/arch/archs.def"
#undef FD_ARCH
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fd_gguf *gguf = make(&(fd_made_model){.arch = rows[i]->name});
        fd_graph *graph;
        fd_error err = {0};
        int n_found = 0;
        cr_assert_eq(fd_graph_build(gguf, &graph, NULL, &err), FD_OK, "%s", err.message);
        for (int32_t k = 0; k < graph->n_weight; k++) {
            const fd_weight *w = &graph->weights[k];
            const fd_gguf_tensor *t = fd_gguf_find_tensor(gguf, w->name);
            if (!t) continue;
            int64_t n_row = t->shape[1] * t->shape[2] * t->shape[3];
            cr_expect(w->n_col == t->shape[0] && w->n_row == n_row, "%s %s: [%d, %d]", rows[i]->name, w->name,
                      (int)w->n_row, (int)w->n_col);
            n_found++;
        }
        cr_expect_gt(n_found, 10, "%s", rows[i]->name);
        fd_graph_free(graph);
        fd_gguf_close(gguf);
    }
}

Test(made_models, dimensions_are_free) {
    static float logits[N_VOCAB];
    static const fd_made_model models[] = {
        {.arch = "llama", .n_layer = 1, .n_embd = 96, .n_head = 3, .n_ff = 64, .n_vocab = 320},
        {.arch = "gemma2", .n_layer = 3, .n_embd = 64, .keys = {"attention.key_length=48 attention.value_length=48"}},
        {.arch = "qwen3moe", .n_embd = 64, .keys = {"expert_count=7 expert_used_count=3"}},
        {.arch = "bloom", .n_embd = 96, .n_head = 6, .dtype = FD_Q6_K}, /* rows that are no whole blocks of 256 */
        {.arch = "llama", .n_embd = 48, .n_head = 4, .n_ff = 80, .dtype = FD_Q4_K, .mixed = true}, /* nor of 32 */
        {.arch = "gpt2", .n_embd = 64, .n_ctx = 33, .tied = true},
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        fd_gguf *gguf = make(&models[i]);
        run(gguf, 2, logits);
        for (int k = 0; k < N_VOCAB; k++) cr_assert(isfinite(logits[k]), "%s %zu", models[i].arch, i);
        fd_gguf_close(gguf);
    }
}

Test(made_models, what_cannot_be_made_is_named) {
    static const struct {
        fd_made_model model;
        const char *message;
    } rows[] = {
        {{.arch = "clippy"}, "architecture \"clippy\" is not implemented; known: llama, qwen2"},
        {{.arch = "llama", .n_head = 3, .n_head_kv = 2}, "key llama.attention.head_count_kv: 2, expected a divisor"},
        {{.arch = "llama", .keys = {"attention.clamp_kqv=2.0"}}, "key llama.attention.clamp_kqv: 2"},
        {{.arch = "llama", .keys = {"rope.freq_base"}}, "\"rope.freq_base\": expected KEY=VALUE"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fd_gguf *gguf;
        fd_error err = {0};
        cr_expect_neq(fd_made_model_open(&rows[i].model, &gguf, &err), FD_OK, "%zu", i);
        cr_expect(strstr(err.message, rows[i].message), "%zu: %s", i, err.message);
    }
}

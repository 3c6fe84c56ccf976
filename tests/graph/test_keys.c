/* Metadata keys below an architecture's prefix: what nothing read is refused by name, unless it is known to change
 * nothing. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/keys.h"
#include "tests/graph/small_model.h"
#include "tests/ops/shared_files.h"

typedef struct key_case {
    const char *arch, *key;
    float value;
    bool loads;
} key_case;

static const key_case cases[] = {
    {"llama", "a_key_of_next_year", 0, false}, /* in no list: its value says nothing to us */
    {"qwen2", "a_key_of_next_year", 1, false},
    {"llama", "attention.max_alibi_bias", 8, false},
    {"llama", "attention.max_alibi_bias", 0, true},
    {"llama", "attention.clamp_kqv", 1, false},
    {"llama", "attention.sliding_window", 16, false},
    {"llama", "attention.sliding_window", 256, true}, /* the context's length */
    {"llama", "attention.sliding_window", 0, true},
    {"llama", "attention.scale", 0.25f, true}, /* 1/sqrt(16), the scores' own */
    {"llama", "attention.scale", 0.2f, false},
    {"llama", "attn_logit_softcapping", 50, true}, /* llama.cpp's default, in every file that it saves */
    {"llama", "attn_logit_softcapping", 20, false},
    {"qwen2", "final_logit_softcapping", 15, false},
    {"llama", "logit_scale", 1, true},
    {"llama", "logit_scale", 0, true},
    {"llama", "logit_scale", 8, false},
    {"llama", "embedding_scale", 12, false},
    {"qwen2", "attention.temperature_scale", 0.1f, false},
    {"qwen2", "rope.freq_base_swa", 500000, true}, /* there are no windows */
    {"llama", "expert_weights_scale", 2.5f, true}, /* there are no experts */
    {"qwen2", "expert_count", 8, false},
    {"llama", "ssm.state_size", 16, false},
    {"llama", "ssm.state_size", 0, true},
    {"llama", "ssm.", 0, false},
    {"llama", "vocab_size", 99, true},
    {"llama", "attention.layer_norm_epsilon", 1e-5f, true}, /* of a norm that it does not have */
};

static fd_code build(const key_case *c, fd_error *err) {
    fd_graph *graph = NULL;
    fd_code code = fd_graph_build(
        small_model(&(small_model_options){.arch = c->arch, .extra_key = c->key, .extra_value = c->value}), &graph,
        NULL, err);
    fd_graph_free(graph);
    return code;
}

Test(keys, what_may_change_the_arithmetic_and_is_not_read_is_refused) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fd_error err = {0};
        char named[96];
        snprintf(named, sizeof named, "key %s.%s: ", cases[i].arch, cases[i].key);
        fd_code code = build(&cases[i], &err);
        if (cases[i].loads)
            cr_expect(code == FD_OK, "%s%g: %s", named, (double)cases[i].value, err.message);
        else
            cr_expect(code == FD_ERR_UNSUPPORTED && strstr(err.message, named), "%s%g: %d %s", named,
                      (double)cases[i].value, (int)code, err.message);
    }
}

/* The check itself: it refuses because the key was not read, and for no other reason. */
Test(keys, a_key_that_is_read_passes) {
    fd_error err = {0};
    fd_keys keys;
    fd_graph *graph;
    cr_assert_eq(fd_graph_build(small_model(&(small_model_options){.arch = "llama"}), &graph, NULL, &err), FD_OK);
    fd_gguf *gguf =
        small_model(&(small_model_options){.arch = "llama", .extra_key = "a_key_of_next_year", .extra_value = 3});
    cr_assert_eq(fd_keys_make(&keys, gguf, "llama", &err), FD_OK);
    for (size_t i = 0; i < fd_gguf_n_kv(gguf); i++) keys.read[i] = true;
    cr_expect_eq(fd_keys_check(&keys, graph), FD_OK, "%s", err.message);
    fd_keys_free(&keys);

    double value;
    cr_assert_eq(fd_keys_make(&keys, gguf, "llama", &err), FD_OK);
    cr_expect_eq(fd_keys_check(&keys, graph), FD_ERR_UNSUPPORTED);
    for (size_t i = 0; i < fd_gguf_n_kv(gguf); i++)
        keys.read[i] = !strstr(fd_gguf_kv_at(gguf, i)->key.data, "a_key_of_next_year");
    cr_expect_eq(fd_keys_check(&keys, graph), FD_ERR_UNSUPPORTED);
    cr_expect_eq(fd_key_f64(&keys, "a_key_of_next_year", 0, &value), FD_OK);
    cr_expect(value == 3);
    cr_expect_eq(fd_keys_check(&keys, graph), FD_OK, "%s", err.message);
    fd_keys_free(&keys);
    fd_graph_free(graph);
}

static fd_code build_bytes(const char *bytes, size_t size, fd_error *err) {
    fd_gguf *gguf;
    fd_graph *graph = NULL;
    cr_assert_eq(fd_gguf_parse(bytes, size, &gguf, err), FD_OK, "%s", err->message);
    fd_code code = fd_graph_build(gguf, &graph, NULL, err);
    fd_graph_free(graph);
    fd_gguf_close(gguf);
    return code;
}

/* Every architecture for which there is a file: the file as it is loads; with a letter of one of its keys' names
 * changed it does not. */
Test(keys, no_architecture_is_exempt) {
    size_t n_file;
    int n_model = 0;
    char **paths = shared_files("conformance", ".gguf", &n_file);
    if (n_file == 0) cr_skip_test("no conformance models");
    for (size_t i = 0; i < n_file; i++) {
        const char *path = paths[i];
        size_t size;
        fd_error err = {0};
        char *bytes = read_bytes(path, &size);
        if (build_bytes(bytes, size, &err) == FD_OK) {
            char *name = memmem(bytes, size, ".attention.clamp_kqv", 20);
            cr_assert_not_null(name, "%s", path);
            name[19] = 'w';
            cr_expect(build_bytes(bytes, size, &err) == FD_ERR_UNSUPPORTED &&
                          strstr(err.message, ".attention.clamp_kqw: "),
                      "%s: %s", path, err.message);
            n_model++;
        }
        free(bytes);
    }
    cr_expect_geq(n_model, 15);
}

#include "tests/emulate/emulate_case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reference_cpu/reference.h"
#include "tests/common.h"

emulate_case case_open(int i) {
    static const char *const names[CASE_MODELS] = {"kjv-llama", "kjv-qwen2"};
    emulate_case c = {.model = names[i]};
    fd_error err = {0};
    fd_gguf *gguf;
    char path[4096];
    snprintf(path, sizeof path, "%s/traces/%s.gguf", FD_SOURCE_DIR, names[i]);
    must(fd_gguf_open(path, &gguf, &err), &err);
    must(fd_graph_build(kept(gguf), &c.graph, NULL, &err), &err);
    kept(c.graph);
    for (int32_t t = 0; t < CASE_TOKENS; t++) c.tokens[t] = (1 + t * 37 + t * t * 11) % c.graph->hparams.n_vocab;
    return c;
}

fd_exec *case_exec(const fd_graph *graph, const char *text, int32_t n_thread) {
    fd_exec *exec;
    fd_error err = {0};
    bool f64 = strcmp(text, "f64") == 0;
    if (f64 || strcmp(text, "exact") == 0) {
        fd_reference_options options = {
            .numerics = f64 ? FD_NUMERICS_F64 : FD_NUMERICS_EXACT, .n_ctx = CASE_TOKENS, .n_thread = n_thread};
        must(fd_reference_new(graph, &options, &exec, &err), &err);
        return exec;
    }
    fd_emulate_options options = {.n_ctx = CASE_TOKENS, .n_thread = n_thread};
    must(fd_emulate_parse(text, strlen(text), &options, &err), &err);
    must(fd_emulate_new(graph, &options, &exec, &err), &err);
    return exec;
}

int64_t case_n_logit(const emulate_case *c) {
    return (int64_t)CASE_TOKENS * c->graph->hparams.n_vocab;
}

float *case_logits(const emulate_case *c, fd_exec *exec, int32_t batch) {
    int64_t n_vocab = c->graph->hparams.n_vocab;
    float *logits = kept(malloc(sizeof *logits * (size_t)case_n_logit(c)));
    fd_error err = {0};
    fd_exec_reset(exec);
    for (int32_t at = 0; at < CASE_TOKENS; at += batch) {
        int32_t n = CASE_TOKENS - at < batch ? CASE_TOKENS - at : batch;
        fd_batch b = {
            .tokens = c->tokens + at, .n_tok = n, .pos0 = at, .all_logits = true, .logits = logits + at * n_vocab};
        must(fd_exec_forward(exec, &b, &err), &err);
    }
    return logits;
}

float *case_run(const emulate_case *c, const fd_graph *graph, const char *text, int32_t n_thread, int32_t batch) {
    fd_exec *exec = case_exec(graph, text, n_thread);
    float *logits = case_logits(c, exec, batch);
    fd_exec_free(exec);
    return logits;
}

int64_t bits_apart(const float *a, const float *b, int64_t n) {
    int64_t apart = 0;
    for (int64_t i = 0; i < n; i++) apart += memcmp(&a[i], &b[i], sizeof *a) != 0;
    return apart;
}

typedef struct catcher {
    const char *node;
    float *rows;
} catcher;

static fd_code catch (void *user, const fd_observation *o, fd_error *err) {
    (void)err;
    catcher *to = user;
    if (strcmp(o->node->name, to->node) != 0) return FD_OK;
    size_t bytes = sizeof(float) * (size_t)(o->n_pos * o->row_stride);
    to->rows = kept(malloc(bytes));
    memcpy(to->rows, o->data, bytes);
    return FD_OK;
}

float *case_node(const emulate_case *c, const fd_graph *graph, const char *text, int32_t n, const char *node) {
    fd_exec *exec = case_exec(graph, text, 1);
    catcher to = {.node = node};
    fd_error err = {0};
    fd_exec_set_observer(exec, (fd_observer){.observe = catch, .user = &to});
    fd_batch b = {.tokens = c->tokens, .n_tok = n};
    must(fd_exec_forward(exec, &b, &err), &err);
    fd_exec_free(exec);
    if (!to.rows) {
        fprintf(stderr, "emulate_case: node %s was not shown\n", node);
        abort();
    }
    return to.rows;
}

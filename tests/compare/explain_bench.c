#include "tests/compare/explain_bench.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

const char *const models[N_MODEL] = {"kjv-llama", "kjv-qwen2"};
const int32_t prompt[N_PROMPT] = {1, 300, 45, 1036, 261};

void must(fd_code code, const fd_error *err) {
    cr_assert_eq(code, FD_OK, "%s", err->message);
}

bench open_model(const char *name) {
    char path[512];
    bench b;
    fd_error err = {0};
    snprintf(path, sizeof path, "%s/traces/%s.gguf", FD_SOURCE_DIR, name);
    if (access(path, R_OK) != 0) {
        fprintf(stderr, "skipped: %s is not there\n", path);
        cr_skip_test("no model");
    }
    must(fd_gguf_open(path, &b.gguf, &err), &err);
    must(fd_graph_build(b.gguf, &b.graph, NULL, &err), &err);
    return b;
}

void close_model(bench *b) {
    fd_graph_free(b->graph);
    fd_gguf_close(b->gguf);
}

void print_score(const char *what, const score *s) {
    fprintf(stderr, "%s: %d injected, %d located, %d named (%d together with others), %d not named, %d wrong names\n",
            what, s->n_injected, s->n_located, s->n_named, s->n_together, s->n_unnamed, s->n_wrong);
}

bool among_remaining(const fd_explanation *e, const char *name) {
    for (int32_t i = 0; i < e->n_remaining && i < FD_MAX_REMAINING; i++)
        if (strcmp(e->remaining[i].fault->name, name) == 0) return true;
    return false;
}

#include "tests/compare/explain_bench.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/compare/said.h"
#include "tests/ops/shared_files.h"

const char *const models[N_MODEL] = {"kjv-llama", "kjv-qwen2"};
const int32_t prompt[N_PROMPT] = {1, 300, 45, 1036, 261};

void must(fd_code code, const fd_error *err) {
    cr_assert_eq(code, FD_OK, "%s", err->message);
}

static bench open_path(const char *path, const char *name) {
    bench b = {0};
    fd_error err = {0};
    if (!*path || access(path, R_OK) != 0) {
        fprintf(stderr, "skipped: %s is not there\n", name);
        cr_skip_test("no model");
    }
    must(fd_gguf_open(path, &b.gguf, &err), &err);
    must(fd_graph_build(b.gguf, &b.graph, NULL, &err), &err);
    return b;
}

bench open_model(const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/traces/%s.gguf", FD_SOURCE_DIR, name);
    return open_path(path, name);
}

bench open_arch(const char *name) {
    char path[128];
    snprintf(path, sizeof path, "conformance/%s.gguf", name);
    return open_path(shared_file(path), name);
}

void forget(bench *b) {
    for (int32_t i = 0; i < b->n_made; i++) fd_graph_free(b->made[i]);
    for (int32_t i = 0; i < b->n_owner; i++) fd_fault_owner_free(b->owners[i]);
    b->n_made = b->n_owner = 0;
}

void close_model(bench *b) {
    forget(b);
    if (b->ref) fd_trace_close(b->ref);
    fd_graph_free(b->graph);
    fd_gguf_close(b->gguf);
}

static fd_graph *copy_graph(bench *b, const fd_graph *graph) {
    fd_error err = {0};
    cr_assert(b->n_made < (int32_t)(sizeof b->made / sizeof *b->made));
    must(fd_graph_clone(graph, &b->made[b->n_made], &err), &err);
    return b->made[b->n_made++];
}

fd_graph *faulted_copy(bench *b, const fd_graph *of, const char *faults) {
    fd_graph *copy = copy_graph(b, of);
    for (const char *at = faults; at; at = strchr(at, '+') ? strchr(at, '+') + 1 : NULL) {
        char spec[96];
        fd_error err = {0};
        snprintf(spec, sizeof spec, "%.*s", (int)strcspn(at, "+"), at);
        cr_assert(b->n_owner < (int32_t)(sizeof b->owners / sizeof *b->owners));
        if (fd_fault_apply(spec, copy, &b->owners[b->n_owner], &err) != FD_OK) return NULL;
        b->n_owner++;
    }
    return copy;
}

fd_graph *faulted(bench *b, const char *faults) {
    return faulted_copy(b, b->graph, faults);
}

fd_graph *spoiled(bench *b, const char *node, fd_override_fn how) {
    fd_graph *copy = copy_graph(b, b->graph);
    int32_t at = fd_graph_find(copy, node);
    cr_assert(at >= 0, "%s", node);
    copy->nodes[at].override = how;
    return copy;
}

void print_score(const char *what, const score *s) {
    fprintf(stderr, "%s: %d injected, %d located, %d named (%d together with others), %d not named, %d wrong names\n",
            what, s->n_injected, s->n_located, s->n_named, s->n_together, s->n_unnamed, s->n_wrong);
}

bool among_remaining(const fd_explanation *e, const char *name) {
    for (int32_t i = 0; i < e->n_remaining && i < FD_MAX_REMAINING; i++)
        if (strcmp(e->remaining[i].name, name) == 0) return true;
    return false;
}

bool count_answer(const fd_explanation *e, const char *fault, const char *spec, const char *model, score *s) {
    bool right = e->named && among_remaining(e, fault);
    s->n_injected++;
    s->n_named += right;
    s->n_together += right && e->n_remaining > 1;
    s->n_wrong += e->named && !right;
    s->n_unnamed += !e->named;
    if (!right || e->n_remaining > 1)
        fprintf(stderr, "  %s in %s: %s %s%s%s; %s; next: %s\n", spec, model, e->named ? "named" : "not named",
                e->n_remaining ? e->remaining[0].name : "-", e->n_remaining > 1 ? " with " : "",
                e->n_remaining > 1 ? e->remaining[1].name : "", unnamed_of(e), tells_apart_of(e));
    return right;
}

void inject_and_explain(bench *b, const fd_graph *graph, recorded_run *clean, const int32_t *tokens, int32_t fault,
                        int32_t layer, const char *model, score *s) {
    const fd_fault_info *info = fd_fault_at(fault);
    char spec[96];
    if (info->later) return; /* the run is one batch */
    snprintf(spec, sizeof spec, info->outside ? "%s" : "%s@%d", info->name, layer);
    const fd_graph *faulty = faulted_copy(b, graph, spec);
    if (faulty) {
        recorded_run run = record_run(faulty, tokens, clean->n_pos);
        int32_t node = first_difference(clean, &run);
        cr_assert(node >= 0, "%s in %s changes nothing", spec, model);
        bool located = fd_fault_shows_at(info, &graph->nodes[node]);
        s->n_located += located;
        cr_expect(located, "%s in %s: shows at %s", spec, model, graph->nodes[node].name);
        fd_explain_request ask = ask_about(&run, graph, tokens, node);
        fd_explanation e;
        fd_error err = {0};
        must(fd_explain(&ask, &e, &err), &err);
        count_answer(&e, info->name, spec, model, s);
        cr_expect(!e.named || e.remaining[0].z == 0.0, "%s in %s", spec, model);
        recorded_run_free(&run);
    }
    forget(b);
}

/* Explanations on the conformance models, for the faults of what the bundled models do not have: experts, windows,
 * softcaps, sinks, QK-norms, norms behind the blocks. Every fault of the table that concerns such a model is injected in
 * each layer. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reference_cpu/reference.h"
#include "tests/compare/explain_bench.h"
#include "tests/ops/shared_files.h"
#include "tests/compare/said.h"

static const char *const archs[] = {"qwen3-dense", "gemma2-dense", "qwen3moe-moe", "gpt-oss-moe", "llama-moe"};
enum { N_ARCH = sizeof archs / sizeof *archs };

static void inject(const bench *b, recorded_run *clean, const int32_t *tokens, int32_t n_token, int32_t f,
                   int32_t layer, const char *model, score *s) {
    const fd_fault_info *fault = fd_fault_at(f);
    char spec[96];
    fd_error err = {0};
    fd_graph *faulty;
    fd_fault_owner *owner;
    snprintf(spec, sizeof spec, fault->outside ? "%s" : "%s@%d", fault->name, layer);
    must(fd_graph_clone(b->graph, &faulty, &err), &err);
    if (fd_fault_apply(spec, faulty, &owner, &err) == FD_OK) {
        recorded_run run = record_run(faulty, tokens, n_token);
        int32_t node = first_difference(clean, &run);
        cr_expect(node >= 0, "%s in %s changes nothing", spec, model);
        if (node >= 0) {
            bool located = fd_fault_shows_at(fault, &b->graph->nodes[node]);
            fd_explain_request ask = ask_about(&run, b->graph, tokens, node);
            fd_explanation e;
            must(fd_explain(&ask, &e, &err), &err);
            bool right = e.named && among_remaining(&e, fault->name);
            s->n_injected++;
            s->n_located += located;
            s->n_named += right;
            s->n_together += right && e.n_remaining > 1;
            s->n_wrong += e.named && !right;
            s->n_unnamed += !e.named;
            cr_expect(located, "%s in %s: shows at %s", spec, model, b->graph->nodes[node].name);
            if (!right || e.n_remaining > 1)
                fprintf(stderr, "  %s in %s: %s %s%s%s; %s; next: %s\n", spec, model, e.named ? "named" : "not named",
                        e.n_remaining ? e.remaining[0].fault->name : "-", e.n_remaining > 1 ? " with " : "",
                        e.n_remaining > 1 ? e.remaining[1].fault->name : "", unnamed_of(&e), tells_apart_of(&e));
        }
        recorded_run_free(&run);
        fd_fault_owner_free(owner);
    }
    fd_graph_free(faulty);
}

Test(explain_archs, every_fault_is_located_and_named_and_none_wrongly) {
    score all = {0};
    for (int a = 0; a < N_ARCH; a++) {
        char name[64];
        bench b;
        fd_error err = {0};
        int32_t n_token;
        snprintf(name, sizeof name, "conformance/%s.gguf", archs[a]);
        if (!*shared_file(name)) cr_skip_test("%s is not there", name);
        must(fd_gguf_open(shared_file(name), &b.gguf, &err), &err);
        must(fd_graph_build(b.gguf, &b.graph, NULL, &err), &err);
        for (int32_t i = 0; i < b.graph->n_node; i++) b.graph->nodes[i].limit *= 0.1f; /* so that a clamp is reached */
        int32_t *tokens = read_ids(shared_file("conformance/tokens.txt"), &n_token);
        recorded_run clean = record_run(b.graph, tokens, n_token);
        score s = {0};
        for (int32_t i = 0; i < fd_fault_count(); i++)
            for (int32_t layer = 0; layer < (fd_fault_at(i)->outside ? 1 : b.graph->hparams.n_layer); layer++)
                inject(&b, &clean, tokens, n_token, i, layer, archs[a], &s);
        print_score(archs[a], &s);
        all.n_injected += s.n_injected;
        all.n_located += s.n_located;
        all.n_named += s.n_named;
        all.n_wrong += s.n_wrong;
        recorded_run_free(&clean);
        free(tokens);
        close_model(&b);
    }
    cr_expect(all.n_injected > 600, "%d", all.n_injected);
    cr_expect_eq(all.n_wrong, 0);
    cr_expect_eq(all.n_located, all.n_injected);
    cr_expect(100 * all.n_named >= 98 * all.n_injected, "named %d of %d", all.n_named, all.n_injected);
}

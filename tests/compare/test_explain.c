/* Explanations: every fault of the table is named from the faulty run's own tensors, and faults outside it are not. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/compare/explain_bench.h"
#include "tests/faults/dressed.h"
#include "tests/faults/unlisted.h"

/* ---- faults of the table ---- */

/* Sanitizers take ten times as long: there each fault is injected once a model that it fits, and a third of them in each dress. */
#ifdef FD_SANITIZED
enum { SANITIZED = 1, FEWEST = 150 };
#else
enum { SANITIZED = 0, FEWEST = 400 };
#endif

/* In n_layer layers, the middle one first; what sits outside the layers once. `turn`: of the graph, 0 for the first. */
static void inject_all(bench *b, const fd_graph *graph, int turn, int n_layer, const char *model, score *s) {
    recorded_run clean = record_run(graph, prompt, N_PROMPT);
    int32_t last = graph->hparams.n_layer - 1, layers[] = {last / 2, 0, last};
    for (int32_t i = 0; i < fd_fault_count(); i++)
        for (int k = 0; k < (fd_fault_at(i)->outside || SANITIZED ? 1 : n_layer); k++)
            if (!SANITIZED || turn == 0 || (i + turn) % 3 == 0)
                inject_and_explain(b, graph, &clean, prompt, i, layers[k], model, s);
    recorded_run_free(&clean);
}

Test(explain, every_fault_of_the_table_is_named_and_none_wrongly) {
    score s = {0};
    for (int m = 0; m < N_MODEL; m++) {
        bench b = open_model(models[m]);
        inject_all(&b, b.graph, 0, 3, models[m], &s);
        for (int d = 0; d < FD_N_DRESS && m == 0; d++) {
            fd_dressed dressed = fd_dress_up(b.graph, &fd_dresses[d]);
            inject_all(&b, dressed.graph, 1 + d, 1, fd_dresses[d].name, &s);
            fd_undress(&dressed);
        }
        close_model(&b);
    }
    print_score("faults of the table", &s);
    cr_expect(s.n_injected > FEWEST, "%d", s.n_injected);
    cr_expect_eq(s.n_wrong, 0);
    cr_expect_eq(s.n_located, s.n_injected);
    cr_expect(100 * s.n_named >= 95 * s.n_injected, "named %d of %d", s.n_named, s.n_injected);
}

/* ---- faults outside it ---- */

static void inject_unlisted(bench *b, recorded_run *clean, int u, int32_t layer, score *s) {
    char name[64];
    fd_error err = {0};
    fd_explanation e;
    if (fd_unlisted_faults[u].outside)
        snprintf(name, sizeof name, "%s", fd_unlisted_faults[u].node);
    else
        snprintf(name, sizeof name, "blk.%d.%s", layer, fd_unlisted_faults[u].node);
    int32_t node = fd_graph_find(b->graph, name);
    cr_assert(node >= 0, "%s", name);
    recorded_run run = record_run(spoiled(b, name, fd_unlisted_faults[u].override), prompt, N_PROMPT);
    s->n_injected++;
    cr_expect_eq(first_difference(clean, &run), node, "%s at %s", fd_unlisted_faults[u].name, name);
    s->n_located += first_difference(clean, &run) == node;
    fd_explain_request ask = ask_about(&run, b->graph, prompt, node);
    must(fd_explain(&ask, &e, &err), &err);
    cr_expect(!e.named, "%s at %s is named %s", fd_unlisted_faults[u].name, name, e.named ? e.remaining[0].name : "");
    cr_expect(e.named || e.why, "%s at %s: no reason given", fd_unlisted_faults[u].name, name);
    s->n_wrong += e.named;
    s->n_unnamed += !e.named;
    recorded_run_free(&run);
    forget(b);
}

Test(explain, faults_outside_the_table_are_located_and_not_named) {
    score s = {0};
    for (int m = 0; m < N_MODEL; m++) {
        bench b = open_model(models[m]);
        recorded_run clean = record_run(b.graph, prompt, N_PROMPT);
        int32_t last = b.graph->hparams.n_layer - 1, layers[] = {0, last / 2, last};
        for (int u = 0; u < FD_N_UNLISTED; u++)
            for (int k = 0; k < (fd_unlisted_faults[u].outside ? 1 : 3); k++)
                inject_unlisted(&b, &clean, u, layers[k], &s);
        recorded_run_free(&clean);
        close_model(&b);
    }
    print_score("faults outside it", &s);
    cr_expect_eq(s.n_wrong, 0);
    cr_expect_eq(s.n_located, s.n_injected);
}

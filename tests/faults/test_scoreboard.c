/* The scoreboard's quick part: faults of the table and faults of no table in six models and five candidate classes,
 * each run judged as a user would have it judged. bench/faults.py runs all of the table. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "faults/faults.h"
#include "tests/compare/replay_bench.h"
#include "tests/faults/unlisted.h"

static const char *const paths[] = {"traces/kjv-llama.gguf",
                                    "traces/kjv-qwen2.gguf",
                                    "../shared/conformance/qwen3-dense.gguf",
                                    "../shared/conformance/gemma2-dense.gguf",
                                    "../shared/conformance/qwen3moe-moe.gguf",
                                    "../shared/conformance/gpt-oss-moe.gguf"};
static const char *const classes[] = {"f32", "f16", "bf16", "llama-cpu", "q8"};
enum { N_PATH = sizeof paths / sizeof *paths, N_CLASS = sizeof classes / sizeof *classes };

/* Ids that the smallest vocabulary has. */
static const int32_t tokens[N_PREFILL + N_DECODE] = {1, 30, 45, 99, 61, 7, 112, 88};

typedef struct tally {
    int32_t n_run, n_without_effect, n_located, n_named, n_wrong;
} tally;

static recording as(const char *class_) {
    return (recording){.emulated = class_, .n_prompt = N_PREFILL, .tokens = tokens};
}

static bool open_path(const char *path, bench *b) {
    char full[512];
    fd_error err = {0};
    snprintf(full, sizeof full, "%s/%s", FD_SOURCE_DIR, path);
    if (access(full, R_OK) != 0) {
        fprintf(stderr, "skipped: %s is not there\n", path);
        return false;
    }
    must(fd_gguf_open(full, &b->gguf, &err), &err);
    must(fd_graph_build(b->gguf, &b->graph, NULL, &err), &err);
    return true;
}

/* Where the fault first changes a bit when nothing is rounded; "" nowhere. */
static const char *exact_place(const fd_graph *faulty, const recorded_run *clean) {
    recorded_run run = record_run(faulty, tokens, clean->n_pos);
    int32_t node = first_difference(clean, &run);
    recorded_run_free(&run);
    return node < 0 ? "" : clean->graph->nodes[node].name;
}

/* One faulty run in one class. `fault`: the name it must get, NULL: none. */
static void run_one(const bench *b, const fd_trace *ref, const recorded_run *clean, const fd_graph *faulty,
                    const char *fault, const char *what, const char *class_, tally *t) {
    const char *node = exact_place(faulty, clean);
    fd_verdict v = judge(b->graph, ref, record(faulty, as(class_)), NULL);
    const fd_explanation *x = &v.diagnosis.explanation;
    bool located = node[0] && strcmp(v.divergence.node, node) == 0, effect = true;
    if (!located) { /* without any rounding, does it leave the class's bounds, and where? */
        fd_verdict alone = judge(b->graph, ref, record(faulty, as(NULL)), class_);
        effect = node[0] && alone.status == FD_DIVERGED;
        located = effect && strcmp(v.divergence.node, alone.divergence.node) == 0;
        fd_verdict_free(&alone);
    }
    cr_expect(v.diagnosis.done || v.status != FD_DIVERGED, "%s, %s: seen and left unexplained", what, class_);
    bool named = v.diagnosis.done && x->named, right = named && fault && among_remaining(x, fault);
    located |= right && x->slope_rows > 0; /* below the bounds: where its direction is seen beside the rounding */
    t->n_run++;
    t->n_without_effect += !effect;
    t->n_located += located;
    t->n_named += right && effect;
    t->n_wrong += named && !right;
    if ((effect && !located) || (named && !right))
        fprintf(stderr, "  %s, %s: at %s, expected %s, %s\n", what, class_, v.divergence.node, node,
                named ? x->remaining[0].name : "no name");
    fd_verdict_free(&v);
}

static void report(const char *what, const tally *t) {
    fprintf(stderr, "%s: %d runs, %d without effect in their class, %d located, %d named, %d wrong names\n", what,
            t->n_run, t->n_without_effect, t->n_located, t->n_named, t->n_wrong);
}

Test(scoreboard, faults_of_the_table_are_located_and_named_in_every_model_and_class, .timeout = 300) {
    enum { EVERY = 15 }; /* a fault in two of the 30 */
    tally t = {0};
    int32_t turn = 0, n_alarm = 0;
    for (int m = 0; m < N_PATH; m++) {
        bench b = {0};
        if (!open_path(paths[m], &b)) continue;
        fd_trace *ref = record(b.graph, as(NULL));
        recorded_run exact = record_run(b.graph, tokens, N_PREFILL);
        for (int c = 0; c < N_CLASS; c++) {
            fd_verdict clean = judge(b.graph, ref, record(b.graph, as(classes[c])), NULL);
            n_alarm += clean.status != FD_NOISE;
            fd_verdict_free(&clean);
            for (int32_t i = (m * N_CLASS + c) % EVERY; i < fd_fault_count(); i += EVERY, turn++) {
                const fd_fault_info *fault = fd_fault_at(i);
                int32_t last = b.graph->hparams.n_layer - 1, layers[] = {0, last / 2, last};
                char spec[96], what[224];
                fd_error err = {0};
                fd_graph *faulty;
                fd_fault_owner *owner = NULL;
                snprintf(spec, sizeof spec, fault->outside ? "%s" : "%s@%d", fault->name, layers[turn % 3]);
                snprintf(what, sizeof what, "%s in %s", spec, paths[m]);
                must(fd_graph_clone(b.graph, &faulty, &err), &err);
                if (fd_fault_apply(spec, faulty, &owner, &err) == FD_OK)
                    run_one(&b, ref, &exact, faulty, fault->name, what, classes[c], &t);
                fd_graph_free(faulty);
                fd_fault_owner_free(owner);
            }
        }
        recorded_run_free(&exact);
        fd_trace_close(ref);
        close_model(&b);
    }
    report("faults of the table", &t);
    int32_t n = t.n_run - t.n_without_effect;
    cr_expect(n >= 40);
    cr_expect(100 * t.n_located >= 99 * n, "located %d of %d", t.n_located, n);
    cr_expect(100 * t.n_named >= 95 * n, "named %d of %d", t.n_named, n);
    cr_expect_eq(t.n_wrong, 0);
    cr_expect_eq(n_alarm, 0, "%d clean runs diverged", n_alarm);
}

Test(scoreboard, faults_of_no_table_are_located_and_named_by_what_they_do_or_not_at_all, .timeout = 300) {
    tally t = {0};
    for (int m = 0; m < 2; m++) {
        bench b = {0};
        if (!open_path(paths[m], &b)) continue;
        fd_trace *ref = record(b.graph, as(NULL));
        recorded_run exact = record_run(b.graph, tokens, N_PREFILL);
        for (int u = 0; u < FD_N_UNLISTED; u++)
            for (int k = 0; k < 2; k++) {
                const fd_unlisted *fault = &fd_unlisted_faults[u];
                const char *class_ = classes[(u + 2 * k + m) % N_CLASS];
                char node[64];
                fd_error err = {0};
                fd_graph *faulty;
                snprintf(node, sizeof node, fault->outside ? "%.0d%s" : "blk.%d.%s", fault->outside ? 0 : 1 + k,
                         fault->node);
                must(fd_graph_clone(b.graph, &faulty, &err), &err);
                faulty->nodes[fd_graph_find(faulty, node)].override = fault->override;
                run_one(&b, ref, &exact, faulty, fault->guess, fault->name, class_, &t);
                fd_graph_free(faulty);
            }
        recorded_run_free(&exact);
        fd_trace_close(ref);
        close_model(&b);
    }
    report("faults of no table", &t);
    int32_t n = t.n_run - t.n_without_effect;
    cr_expect(n >= 10);
    cr_expect(100 * t.n_located >= 99 * n, "located %d of %d", t.n_located, n);
    cr_expect_eq(t.n_wrong, 0);
}

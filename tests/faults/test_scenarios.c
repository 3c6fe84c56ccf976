/* Two projects that looped on one word and never found out why: several bugs at once, so that no single fix changed the
 * text. firstdiff names them one after another as each is fixed, says that the first divergence moved later, and lists
 * the others from the start. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/report/report.h"
#include "compare/report/baseline.h"
#include "faults/faults.h"
#include "tests/compare/replay_bench.h"
#include "tests/compare/said.h"

enum { N_FAULT = 3 };

typedef struct scenario {
    const char *model;
    bool hashes;                 /* the traces hold hashes of the weights: loader bugs are found there, before any op */
    const char *faults[N_FAULT]; /* in the order in which they must be named */
} scenario;

/* The llama-type project read 47 % of each Q8_0 matrix; the qwen2-type one gave its GEMMs the wrong leading dimension.
 * Both rotated the other pairs. Two bugs in one node have no name of their own: with hashes of the weights they are
 * two. */
static const scenario scenarios[] = {
    {"kjv-llama", true, {"bytes_read_short", "eps_outside_root", "rope_pairing"}},
    {"kjv-llama", false, {"eps_outside_root", "bytes_read_short", "rope_pairing"}},
    {"kjv-qwen2", true, {"leading_dimension", "missing_qkv_bias", "rope_pairing"}},
    {"kjv-qwen2", true, {"weight_in_out", "missing_qkv_bias", "rope_pairing"}},
};
static const char *const classes[] = {NULL, "f16", "q8"};

typedef struct faulty {
    fd_graph *graph;
    fd_fault_owner *owners[N_FAULT];
} faulty;

/* With the faults from `first` on. */
static faulty spoil(const fd_graph *graph, const scenario *s, int first) {
    faulty f = {0};
    fd_error err = {0};
    must(fd_graph_clone(graph, &f.graph, &err), &err);
    for (int i = first; i < N_FAULT; i++) must(fd_fault_apply(s->faults[i], f.graph, &f.owners[i], &err), &err);
    return f;
}

static void mend(faulty *f) {
    fd_graph_free(f->graph);
    for (int i = 0; i < N_FAULT; i++) fd_fault_owner_free(f->owners[i]);
}

static fd_baseline remember(const fd_verdict *v) {
    char *text = NULL;
    size_t size;
    fd_error err = {0};
    fd_baseline since;
    FILE *to = open_memstream(&text, &size);
    cr_assert(to);
    must(fd_report_json(to, v, &err), &err);
    fclose(to);
    must(fd_baseline_parse(text, size, "verdict", &since, &err), &err);
    free(text);
    return since;
}

static const char *first_name(const fd_verdict *v) {
    if (v->weights.n_differ) return v->weights.named ? v->weights.fault : weights_unnamed_of(v);
    return v->diagnosis.done && v->diagnosis.explanation.named ? v->diagnosis.explanation.remaining[0].name
                                                               : unnamed_of(&v->diagnosis.explanation);
}

static bool listed(const fd_verdict *v, const char *fault) {
    if (v->weights.named && strcmp(v->weights.fault, fault) == 0) return true;
    if (strcmp(v->diagnosis.causes.first.name, fault) == 0) return true;
    for (int32_t i = 0; i < v->diagnosis.causes.n_also && i < FD_MAX_ALSO; i++)
        if (strcmp(v->diagnosis.causes.also[i].name, fault) == 0) return true;
    return false;
}

static void play(const scenario *s, const char *class_) {
    bench b = open_model(s->model);
    const fd_graph *hashed = s->hashes ? b.graph : NULL;
    const char *in = class_ ? class_ : "exact";
    fd_trace *ref = record(b.graph, (recording){.n_prompt = N_PREFILL, .weights = hashed});
    fd_baseline since = {0};
    for (int fixed = 0; fixed <= N_FAULT; fixed++) {
        faulty f = spoil(b.graph, s, fixed);
        fd_verdict v =
            judge(b.graph, ref,
                  record(f.graph, (recording){.emulated = class_, .n_prompt = N_PREFILL, .weights = hashed}), NULL);
        if (fixed > 0) fd_baseline_apply(&since, ref, &v);
        if (fixed < N_FAULT) {
            cr_expect_str_eq(first_name(&v), s->faults[fixed], "%s, %s, %d fixed: %s, expected %s", s->model, in, fixed,
                             first_name(&v), s->faults[fixed]);
            for (int i = fixed; i < N_FAULT; i++)
                cr_expect(listed(&v, s->faults[i]), "%s, %s, %d fixed: %s is not listed", s->model, in, fixed,
                          s->faults[i]);
            cr_expect_eq(v.moved, fixed ? FD_MOVED_LATER : FD_MOVED_UNASKED, "%s, %s, %d fixed: %s", s->model, in,
                         fixed, moved_of(&v));
            since = remember(&v);
        } else {
            cr_expect_eq(v.status, class_ ? FD_NOISE : FD_IDENTICAL, "%s, %s", s->model, in);
            cr_expect_eq(v.moved, FD_MOVED_GONE, "%s", moved_of(&v));
        }
        fd_verdict_free(&v);
        mend(&f);
    }
    fd_trace_close(ref);
    close_model(&b);
}

Test(scenarios, bugs_are_named_one_after_another_and_the_divergence_moves_later) {
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
        for (size_t c = 0; c < sizeof classes / sizeof *classes; c++) play(&scenarios[i], classes[c]);
}

/* ---- moving ---- */

static fd_verdict verdict_of(const bench *b, const fd_trace *ref, const char *fault) {
    fd_error err = {0};
    fd_graph *graph;
    fd_fault_owner *owner = NULL;
    must(fd_graph_clone(b->graph, &graph, &err), &err);
    if (fault) must(fd_fault_apply(fault, graph, &owner, &err), &err);
    fd_verdict v = judge(b->graph, ref, record(graph, (recording){.emulated = "f32"}), NULL);
    fd_graph_free(graph);
    fd_fault_owner_free(owner);
    return v;
}

Test(scenarios, what_moved_where_is_said) {
    static const struct {
        const char *then, *now;
        fd_moved moved;
        const char *says;
    } cases[] = {
        {"rope_pairing@1", "rope_pairing@2", FD_MOVED_LATER,
         "moved later: from blk.1.attn_q_rope step 0 to blk.2.attn_q_rope step 0"},
        {"rope_pairing@2", "q0_only@1", FD_MOVED_EARLIER,
         "moved earlier: from blk.2.attn_q_rope step 0 to blk.1.attn_scores step 0; it was rope_pairing"},
        {"rope_pairing@2", "rope_sign@2", FD_MOVED_NOT,
         "the same place: blk.2.attn_q_rope step 0; it was rope_pairing"},
        {"rope_pairing@2", NULL, FD_MOVED_GONE, "gone: blk.2.attn_q_rope step 0; it was rope_pairing"},
        {NULL, "rope_pairing@2", FD_MOVED_NEW, "new: there was none before"},
        {NULL, NULL, FD_MOVED_UNASKED, ""},
    };
    bench b = open_model(models[0]);
    fd_trace *ref = record(b.graph, (recording){0});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fd_verdict then = verdict_of(&b, ref, cases[i].then), now = verdict_of(&b, ref, cases[i].now);
        fd_baseline since = remember(&then);
        fd_baseline_apply(&since, ref, &now);
        cr_expect_eq(now.moved, cases[i].moved, "case %zu", i);
        cr_expect_str_eq(moved_of(&now), cases[i].says);
        fd_verdict_free(&then);
        fd_verdict_free(&now);
    }
    fd_trace_close(ref);
    close_model(&b);
}

Test(scenarios, what_is_no_verdict_is_refused) {
    static const char *const bad[] = {
        "", "{", "[]", "{}", "{\"schema\": \"firstdiff-sweep 1\"}", "{\"schema\": 7}", "\"firstdiff-verdict 1\""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        fd_baseline since;
        fd_error err = {0};
        cr_expect_eq(fd_baseline_parse(bad[i], strlen(bad[i]), "old.json", &since, &err), FD_ERR_INPUT, "%s", bad[i]);
        cr_expect(strstr(err.message, "old.json"), "%s", err.message);
    }
    fd_baseline since;
    fd_error err = {0};
    static const char odd[] = "{\"schema\": \"firstdiff-verdict 1\", \"divergence\": {\"step\": -4, \"node\": 3}}";
    must(fd_baseline_parse(odd, strlen(odd), "odd", &since, &err), &err);
    cr_expect(since.diverged && since.step == 0 && !since.node[0]);
    cr_expect_eq(fd_baseline_read("/nowhere/at/all.json", &since, &err), FD_ERR_INPUT);
}

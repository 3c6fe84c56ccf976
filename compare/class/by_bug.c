#include "compare/class/by_bug.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "compare/bounds/dot_inputs.h"
#include "compare/class/attempt.h"
#include "compare/infer/try_classes.h"
#include "compare/products/products.h"
#include "compare/replay/in_order.h"

/* Of fewer layers a sample of three would save little. */
enum { MANY_LAYERS = 10, MOST_LIKELY = 5 };

/* Times: the wrong factor of K leaves 3 to 50 times what the right one of the scores does in the engine's own class. */
#define FAR_LESS 8.0

/* A class that leaves nothing, of engines in binary32. */
static bool is_tight(const fd_numerics_class *class_, const fd_graph *graph) {
    return fd_class_leaves_nothing(class_) && class_->u_out >= 0x1p-24 && fd_class_is_another(class_, graph);
}

/* Sums of V in 16 bits have room for bugs of attention. Behind a bug that goes through a whole layer ggml's CUDA kernels leave about as much
 * as its CPU's: they are asked where fast math was seen. */
static bool may_be_it(const fd_numerics_class *class_, const fd_graph *graph, const fd_numerics_class *inferred) {
    const bool is_near = !class_->cuda_kernels || inferred->fast_math;
    return class_ != inferred && is_tight(class_, graph) && is_near && !fd_class_has_room_in_mix(class_);
}

void fd_class_refuted_by_bug(const fd_numerics_class *class_, const char *node, fd_class_evidence *evidence) {
    evidence->kind = FD_EVIDENCE_BUG; /* its rivals stay: what one of them gives as a whole may be no bug */
    evidence->outside = true;
    evidence->undecided = false;
    snprintf(evidence->other, sizeof evidence->other, "%s", class_->name);
    snprintf(evidence->node, sizeof evidence->node, "%s", node);
}

static void take(fd_attribution_options *options, const fd_class_attempt *a, fd_class_evidence *evidence) {
    if (a->class_ == options->numerics) return;
    fd_class_refuted_by_bug(options->numerics, options->graph->nodes[a->first.node].name, evidence);
    options->numerics = a->class_;
}

/* With the wrong class more departs: what the class rounds, too, or the bug's error and the class's together. */
static int by_what_is_left(const void *x, const void *y) {
    const fd_class_attempt *a = x, *b = y;
    if (a->n != b->n) return a->n < b->n ? -1 : 1;
    return a->left < b->left ? -1 : a->left > b->left;
}

/* Through a span each question costs a second: then the classes that leave least are asked alone. A class in which a step departs that
 * the inferred one, which is tight, gives is not asked. */
static bool worth_asking(const fd_class_attempt *a, const fd_class_attempt *own, int rank, bool table_alone) {
    if (own->first.finding != FD_FOUND_NOTHING && a->first.step < own->first.step) return false;
    return a->first.span_first == a->first.node || rank < (table_alone ? 2 : 1);
}

static fd_code try_attempt(fd_attribution_options *options, fd_class_attempt *a, int32_t fewest,
                           fd_class_evidence *evidence, fd_error *err) {
    FD_TRY(fd_class_attempt_explain(options, a, false, evidence->undecided, fewest, err));
    if (a->named) take(options, a, evidence);
    return FD_OK;
}

/* Guesses: in the inferred class, if that is tight, they come with the verdict. Of two classes the one in which a bug explains all that
 * departs: a row of 256 elements is one block in several, and of longer rows they differ. */
static fd_code explain_in_order(fd_attribution_options *options, const fd_class_attempt *own,
                                fd_class_attempt *attempts, int n, bool guesses, fd_class_evidence *evidence,
                                fd_error *err) {
    for (int pass = 0; pass < 1 + guesses; pass++) {
        fd_class_attempt *best = NULL;
        for (int i = 0; i < n && !(best && best->all); i++) {
            fd_class_attempt *a = &attempts[i];
            if (!worth_asking(a, own, i, pass == 0)) continue;
            FD_TRY(fd_class_attempt_explain(options, a, pass == 0, evidence->undecided, attempts[0].n, err));
            if (a->named && (a->all || (!best && (!own->named || own->fitted)))) best = a;
        }
        if (best) take(options, best, evidence);
        if (best) return FD_OK;
    }
    return FD_OK;
}

/* Where attention departs first, all else says nothing of the cache's type: it may be another's than that of the class that was
 * inferred. `own`: in that class, where no guess explains it. */
static fd_code explain_with_other_caches(fd_attribution_options *options, const fd_class_attempt *own,
                                         fd_class_attempt *attempts, int n, fd_class_evidence *evidence,
                                         fd_error *err) {
    int n_asked = 0;
    for (int i = 0; i < n && n_asked < 3; i++) {
        if (attempts[i].n != own->n || attempts[i].first.node != own->first.node ||
            attempts[i].first.step < own->first.step)
            continue;
        n_asked++;
        FD_TRY(try_attempt(options, &attempts[i], attempts[0].n, evidence, err));
        if (attempts[i].named) return FD_OK;
    }
    return FD_OK;
}

static fd_code judge_and_try(fd_attribution_options *options, const fd_class_attempt *own,
                             const fd_numerics_class *class_, fd_class_evidence *evidence, fd_error *err) {
    fd_class_attempt a;
    fd_code code = fd_class_attempt_judge(options, class_, &a, err);
    if (code == FD_OK) fd_class_attempt_measure(&a, options->graph);
    const bool fits = code == FD_OK && a.n <= own->n && a.first.node == own->first.node;
    if (fits) code = try_attempt(options, &a, own->n, evidence, err);
    fd_class_attempt_free(&a);
    return code;
}

/* What reads a cache, or one product behind it. */
static bool reads_cache(const fd_attribution_options *options, const fd_node_finding *f) {
    const fd_node *nodes = options->graph->nodes, *node = &nodes[f->node];
    const bool behind = node->op == FD_OP_MATMUL && nodes[node->input[0]].op == FD_OP_ATTN_MIX;
    return f->finding != FD_FOUND_NOTHING && (fd_reads_kv_cache(node) || (behind && f->span_first < f->node));
}

/* Or what was reached through a whole layer, its caches among it. */
static bool hides_cache(const fd_attribution_options *options, const fd_node_finding *f) {
    const fd_node *nodes = options->graph->nodes;
    bool any = false;
    for (int32_t i = f->span_first; i < f->node && f->finding != FD_FOUND_NOTHING; i++)
        any |= fd_node_is_kv_cache(&nodes[i]) && !fd_trace_has_data(options->cand, nodes[i].name);
    return any || reads_cache(options, f);
}

/* An explanation that leaves next to nothing, but more than the inferred class does, leaves nothing in the class that it is. Beside a
 * name it is asked for its numbers again there, which were fitted to the other class's roundings, and has to leave far less than the
 * name does. */
static fd_code explain_by_near_bug(fd_attribution_options *options, const fd_class_attempt *own,
                                   fd_class_attempt *attempts, int n, fd_class_evidence *evidence, fd_error *err) {
    const fd_hypothesis *h = &own->near.hypothesis;
    fd_class_attempt *best = NULL;
    double least = INFINITY;
    for (int i = 0; i < n && h->guess != FD_GUESS_NONE; i++) {
        double left;
        if (attempts[i].first.node != own->first.node || attempts[i].first.step < own->first.step) continue;
        FD_TRY(fd_class_attempt_nearness(options, &attempts[i], h, !own->named, &left, err));
        if (left < least) least = left, best = &attempts[i];
    }
    if (!best) return FD_OK;
    if (own->named)
        FD_TRY(fd_class_attempt_explain(options, best, false, evidence->undecided, attempts[0].n, err));
    else
        FD_TRY(fd_class_attempt_confirm(options, best, h, attempts[0].n, err));
    if (best->named && !(own->named && best->named_left > own->named_left / FAR_LESS)) take(options, best, evidence);
    return FD_OK;
}

/* Where every product of a quantised matrix is wrong, nothing shows that its rows go in as int8. */
static fd_code explain_with_int8_rows(fd_attribution_options *options, const fd_class_attempt *own,
                                      fd_class_attempt *attempts, int n, fd_class_evidence *evidence, fd_error *err) {
    const fd_node_finding *f = &own->first;
    const fd_node *node = &options->graph->nodes[f->node];
    const int32_t w = node->op == FD_OP_MATMUL && f->span_first == f->node ? node->weight[0] : -1;
    if (f->finding == FD_FOUND_NOTHING || w < 0 || !options->numerics->plain_products) return FD_OK;
    if (fd_dtype_get(options->graph->weights[w].dtype)->block_elements == 1) return FD_OK;
    for (int i = 0; i < n; i++) {
        const fd_class_attempt *a = &attempts[i];
        const bool is_int8 = a->class_->replays_inputs && !a->class_->plain_products;
        if (!is_int8 || a->first.node != f->node || a->first.step != f->step) continue;
        return try_attempt(options, &attempts[i], attempts[0].n, evidence, err);
    }
    return FD_OK;
}

/* Where a fused kernel's sum departs first, wrong throughout, nothing says how it rounds: it may have been in 16 bits. */
static fd_code explain_with_fused_sums(fd_attribution_options *options, const fd_class_attempt *own,
                                       fd_class_evidence *evidence, fd_error *err) {
    const fd_numerics_class *inferred = options->numerics, *class_;
    const bool scores = options->graph->nodes[own->first.node].op == FD_OP_ATTN_SCORES;
    if (own->first.span_first == own->first.node || scores) return FD_OK;
    for (int32_t i = 0; (class_ = fd_numerics_class_at(i)) && options->numerics == inferred; i++)
        if (class_ != inferred && is_tight(class_, options->graph) && class_->u_mix > 0x1p-24)
            FD_TRY(judge_and_try(options, own, class_, evidence, err));
    return FD_OK;
}

typedef struct tight_classes {
    const fd_attribution_options *options;
    fd_class_attempt at[FD_MOST_CLASSES];
} tight_classes;

/* fd_jobs: all of them are wanted */
static bool is_needless(void *user, int32_t i) {
    (void)user, (void)i;
    return false;
}

static fd_code judge_tight(void *user, int32_t i, fd_error *err) {
    tight_classes *t = user;
    FD_TRY(fd_class_attempt_judge(t->options, t->at[i].class_, &t->at[i], err));
    fd_class_attempt_measure(&t->at[i], t->options->graph);
    return FD_OK;
}

static bool take_tight(void *user, int32_t i) {
    (void)user, (void)i;
    return true;
}

static fd_code judge_all(tight_classes *t, int32_t n, fd_error *err) {
    const fd_jobs jobs = {0, n, fd_products_callers(t->options->device), t, is_needless, judge_tight, take_tight};
    fd_code code = fd_run_in_order(&jobs, err);
    qsort(t->at, (size_t)n, sizeof *t->at, by_what_is_left);
    return code;
}

/* A dozen classes of many layers take minutes; three layers of each say which leave least. */
static fd_code keep_likely(const fd_attribution_options *options, tight_classes *t, int32_t *n, fd_error *err) {
    fd_attribution_options few = *options;
    if (options->graph->hparams.n_layer < MANY_LAYERS || *n <= MOST_LIKELY) return FD_OK;
    few.sample = true;
    t->options = &few;
    fd_code code = judge_all(t, *n, err);
    t->options = options;
    for (int32_t i = 0; i < *n; i++) {
        fd_class_attempt_free(&t->at[i]);
        t->at[i] = (fd_class_attempt){.class_ = t->at[i].class_};
    }
    *n = MOST_LIKELY;
    return code;
}

/* In the inferred class, which is tight: as it was judged there, if that is not too much. out->of is borrowed. */
static fd_code explain_inferred(const fd_attribution_options *options, const fd_attribution *judged, bool undecided,
                                fd_class_attempt *out, fd_error *err) {
    fd_class_attempt own = {.class_ = options->numerics, .of = *judged};
    bool too_much = judged->n_pos > FD_ATTEMPT_POSITIONS;
    fd_code code = too_much ? fd_class_attempt_judge(options, options->numerics, &own, err) : FD_OK;
    if (code == FD_OK) {
        fd_class_attempt_measure(&own, options->graph);
        code = fd_class_attempt_explain(options, &own, true, undecided, INT32_MAX, err);
        if (code == FD_OK && !own.named && hides_cache(options, &own.first))
            code = fd_class_attempt_explain(options, &own, false, undecided, INT32_MAX, err);
    }
    if (too_much) fd_class_attempt_free(&own);
    *out = own;
    return code;
}

/* GELU from a table of binary16, which has room for another form of it. */
static bool reads_table(const fd_attribution_options *options) {
    bool table = false;
    for (int32_t i = 0; i < options->graph->n_node; i++) {
        const fd_node *node = &options->graph->nodes[i];
        table |= (node->op == FD_OP_GELU || node->op == FD_OP_GELU_MUL) && fd_gelu_is_table(options->numerics, node);
    }
    return table;
}

/* The table of faults in the tight classes; then guesses, which are many. */
fd_code fd_refute_class_by_bug(fd_attribution_options *options, const fd_attribution *judged,
                               fd_class_evidence *evidence, fd_error *err) {
    const fd_numerics_class *inferred = options->numerics;
    tight_classes tight = {.options = options};
    int32_t n = 0;
    fd_class_attempt own = {0};
    const bool is_one = is_tight(inferred, options->graph);
    if (inferred->exact || inferred->u_out < 0x1p-24 || inferred->u_out > 0x1p-24) return FD_OK;
    if (is_one) FD_TRY(explain_inferred(options, judged, evidence->undecided, &own, err));
    const bool room_alone =
        evidence->undecided && fd_class_has_room_in_mix(inferred); /* it may be a bug's all the same */
    const bool nothing = is_one && own.first.finding == FD_FOUND_NOTHING && !room_alone;
    const bool near = own.near.hypothesis.guess != FD_GUESS_NONE, doubtful = own.named && near;
    const bool says_all = own.named && own.all && !own.fitted;
    if (is_one && ((says_all && !doubtful) || (nothing && !reads_table(options)))) return FD_OK;
    for (int32_t i = 0; fd_numerics_class_at(i) && n < FD_MOST_CLASSES; i++)
        if (may_be_it(fd_numerics_class_at(i), options->graph, inferred))
            tight.at[n++].class_ = fd_numerics_class_at(i);
    fd_code code = keep_likely(options, &tight, &n, err);
    if (code == FD_OK) code = judge_all(&tight, n, err);
    if (code == FD_OK && doubtful) code = explain_by_near_bug(options, &own, tight.at, n, evidence, err);
    if (code == FD_OK && !says_all && options->numerics == inferred)
        code = explain_in_order(options, &own, tight.at, n, !is_one, evidence, err);
    const bool of_cache = is_one && reads_cache(options, &own.first);
    if (code == FD_OK && of_cache && (own.named ? own.fitted : near) && options->numerics == inferred)
        code = explain_with_fused_sums(options, &own, evidence, err); /* a name, where the near bug alone is none */
    if (code == FD_OK && is_one && !own.named && options->numerics == inferred)
        code = explain_with_int8_rows(options, &own, tight.at, n, evidence, err);
    if (code == FD_OK && is_one && !own.named && options->numerics == inferred)
        code = explain_by_near_bug(options, &own, tight.at, n, evidence, err);
    if (code == FD_OK && of_cache && !own.named && options->numerics == inferred)
        code = explain_with_other_caches(options, &own, tight.at, n, evidence, err);
    if (code == FD_OK && of_cache && !near && !own.named && options->numerics == inferred)
        code = explain_with_fused_sums(options, &own, evidence, err);
    for (int32_t i = 0; i < n; i++) fd_class_attempt_free(&tight.at[i]);
    return code;
}

/* Other nodes: K for Q, the second norm of a layer, the same op in other layers. */
#include "compare/explain/cross_check.h"

/* Each costs the op once for every contender. */
enum { MOST_NODES = 32 };

fd_code fd_where_they_differ(const fd_trial *t, const fd_hypothesis *a, const fd_hypothesis *b, int32_t *found,
                             fd_error *err) {
    const fd_op_args *args = &t->all.request->args;
    *found = -1;
    for (int32_t i = 0; i < args->graph->n_node && *found < 0; i++) {
        bool by_a, by_b;
        if (args->graph->nodes[i].layer != args->node->layer || i == args->node->id) continue;
        FD_TRY(fd_evaluate_concerns(t->all.bench, a, i, &by_a, err));
        FD_TRY(fd_evaluate_concerns(t->all.bench, b, i, &by_b, err));
        if (by_a != by_b) *found = i;
    }
    return FD_OK;
}

typedef struct prediction {
    bool concerned, known;
    fd_explain_fit fit;
    int64_t evidence;
} prediction;

/* What one hypothesis predicts at node `id`: itself, or the op as it should be where it leaves the node alone. */
static fd_code predict(const fd_trial *t, const fd_hypothesis *h, int32_t id, const float *rows,
                       const fd_variant *unmodified, prediction *out, fd_error *err) {
    const fd_explain_request *r = t->all.request;
    const fd_node *node = &r->args.graph->nodes[id];
    fd_variant v;
    FD_TRY(fd_evaluate(t->all.bench, h, id, true, &v, err));
    out->known = v.state != FD_VARIANT_UNTRIED;
    out->concerned = v.state == FD_VARIANT_COMPUTED;
    if (out->concerned && v.overridden) fd_variant_widen(r, node, &v, unmodified);
    if (out->known) out->fit = fd_variant_fit(r, node, out->concerned ? &v : unmodified, rows);
    if (out->concerned) out->evidence = fd_variant_evidence(r, node, rows, &v, unmodified);
    fd_variant_free(&v);
    return FD_OK;
}

/* Rows of a cache that are fitted give any values: where the op as it should be gives them as well, and another explanation leaves it
 * alone, they say nothing of this cache. */
static void refute_fitted(fd_trial *t, const prediction *predictions, const fd_explain_fit *unmodified) {
    bool left_alone = false;
    for (int32_t i = 0; i < t->n; i++)
        left_alone |= !t->contenders[i].refuted && predictions[i].known && !predictions[i].concerned &&
                      t->contenders[i].fit.z <= 1.0;
    for (int32_t i = 0; i < t->n && left_alone && unmodified->z <= 1.0; i++) {
        const fd_hypothesis *h = &t->contenders[i].h;
        const bool fitted = h->guess == FD_GUESS_CACHE && h->which == FD_CACHE_UNKNOWN;
        if (fitted && predictions[i].concerned) t->contenders[i].refuted = true;
    }
}

/* What computes an op otherwise rounds its inputs elsewhere: int8 blocks of what goes through a gate afterwards leave a hundredth. */
#define LITTLE 32.0

static bool takes_most(const prediction *p, const fd_explain_fit *unmodified) {
    return p->concerned && p->fit.z * LITTLE < unmodified->z;
}

static void update_evidence(fd_trial *t, const prediction *predictions, const fd_explain_fit *unmodified,
                            bool same_layer) {
    bool supported = false, op_beyond = fd_fit_clearly_beyond(unmodified);
    for (int32_t i = 0; i < t->n; i++) {
        const prediction *p = &predictions[i];
        fd_contender *c = &t->contenders[i];
        if (c->refuted || !p->known || !(c->fit.z <= 1.0)) continue;
        supported |= (op_beyond && takes_most(p, unmodified)) || p->fit.z <= 1.0;
        if (!p->concerned || !op_beyond || !(p->fit.z <= 1.0)) continue;
        c->evidence += p->evidence;
        t->op_refuted = true;
    }
    if (!supported || !(same_layer || op_beyond)) return;
    for (int32_t i = 0; i < t->n; i++) {
        const prediction *p = &predictions[i];
        if (p->known && fd_fit_clearly_beyond(&p->fit) && !takes_most(p, unmodified)) t->contenders[i].refuted = true;
    }
}

static fd_code check_node(fd_trial *t, int32_t id, bool same_layer, prediction *predictions, fd_error *err) {
    const fd_explain_request *r = t->all.request;
    const fd_node *node = &r->args.graph->nodes[id];
    const float *rows = r->tensor ? r->tensor(r->user, id) : NULL;
    fd_variant unmodified;
    if (!rows) return FD_OK;
    if (node->op == FD_OP_KV_WRITE) rows += r->args.pos0 * fd_node_row_stride(node, r->args.n_kv);
    FD_TRY(fd_evaluate(t->all.bench, &fd_no_hypothesis, id, true, &unmodified, err));
    fd_code code = FD_OK;
    if (unmodified.state == FD_VARIANT_COMPUTED) {
        fd_explain_fit fit = fd_variant_fit(r, node, &unmodified, rows);
        for (int32_t i = 0; i < t->n && code == FD_OK; i++) {
            predictions[i] = (prediction){0};
            if (!t->contenders[i].refuted)
                code = predict(t, &t->contenders[i].h, id, rows, &unmodified, &predictions[i], err);
        }
        if (code == FD_OK) update_evidence(t, predictions, &fit, same_layer);
        if (code == FD_OK && same_layer) refute_fitted(t, predictions, &fit);
    }
    fd_variant_free(&unmodified);
    return code;
}

/* Nothing is left to ask when one contender stands alone against an op that is refuted. */
static bool resolved(const fd_trial *t) {
    int32_t n = 0;
    for (int32_t i = 0; i < t->n; i++) n += !t->contenders[i].refuted;
    return n == 0 || (n == 1 && t->op_refuted);
}

static fd_code worth_asking(const fd_trial *t, int32_t id, bool *yes, fd_error *err) {
    bool any = false, all = true;
    for (int32_t i = 0; i < t->n; i++) {
        bool concerned;
        if (t->contenders[i].refuted) continue;
        FD_TRY(fd_evaluate_concerns(t->all.bench, &t->contenders[i].h, id, &concerned, err));
        any |= concerned;
        all &= concerned;
    }
    /* where all of them change the node they may still predict different values, but not if they are equal here: they
     * are then the same computation there, too */
    *yes = any && !(all && !t->all.request->numerics);
    return FD_OK;
}

fd_code fd_cross_check(fd_trial *t, fd_error *err) {
    const fd_explain_request *r = t->all.request;
    const fd_graph *graph = r->args.graph;
    prediction predictions[64];
    int32_t n_asked = 0;
    if (r->tau || t->n == 0 || t->n > 64) return FD_OK; /* bounds of other nodes are not known */
    for (int pass = 0; pass < (r->numerics ? 2 : 1); pass++)
        for (int32_t i = 0; i < graph->n_node && n_asked < MOST_NODES && !resolved(t); i++) {
            const fd_node *node = &graph->nodes[i];
            bool same_layer = node->layer == r->args.node->layer, yes = false;
            if (i == r->args.node->id || same_layer != (pass == 0)) continue;
            if (!same_layer && node->op != r->args.node->op) continue;
            FD_TRY(worth_asking(t, i, &yes, err));
            if (!yes) continue;
            FD_TRY(check_node(t, i, same_layer, predictions, err));
            n_asked++;
        }
    return FD_OK;
}

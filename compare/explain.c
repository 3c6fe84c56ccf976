#include "compare/explain.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/explain_variant.h"

/* A name is a strong claim: within τ itself, and nothing else nearer than ten. Fewer than eight finite elements that only
 * the fault explains are no evidence: NaN alone says nothing of how it came about, and a few roundings may be chance. */
enum { CLEARLY_BEYOND = 10, MIN_EVIDENCE = 8 };

typedef struct contender {
    int32_t fault;
    fd_explain_fit fit;
    fd_variant variant;
    bool in_group; /* named together with the best one */
} contender;

typedef struct trial {
    const fd_explain_request *request;
    fd_explanation *out;
    fd_variant unmodified;
    contender *contenders; /* within CLEARLY_BEYOND, best first */
    int32_t n;
} trial;

static bool better(const fd_explain_fit *a, const fd_explain_fit *b) {
    if (a->z != b->z) return a->z < b->z;
    if (a->n_beyond != b->n_beyond) return a->n_beyond < b->n_beyond;
    return a->ulp < b->ulp;
}

static void note_runner_up(trial *t, const fd_explain_fit *fit) {
    fd_explain_fit *kept = &t->out->runner_up;
    if (!kept->fault || better(fit, kept)) *kept = *fit;
}

static fd_code keep(trial *t, contender *c, fd_error *err) {
    contender *grown = realloc(t->contenders, sizeof *grown * (size_t)(t->n + 1));
    if (!grown) {
        fd_variant_free(&c->variant);
        return fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory");
    }
    t->contenders = grown;
    int32_t at = t->n++;
    for (; at > 0 && better(&c->fit, &grown[at - 1].fit); at--) grown[at] = grown[at - 1];
    grown[at] = *c;
    return FD_OK;
}

static fd_code try_fault(trial *t, int32_t fault, fd_error *err) {
    const fd_explain_request *r = t->request;
    contender c = {.fault = fault};
    FD_TRY(fd_variant_compute(r, fault, r->args.node->id, &c.variant, err));
    t->out->n_untried += c.variant.state == FD_VARIANT_UNTRIED;
    if (c.variant.state != FD_VARIANT_COMPUTED) return FD_OK;
    t->out->n_tried++;
    if (fd_variant_equal(&r->args, r->args.node, c.variant.rows, t->unmodified.rows)) {
        t->out->n_without_effect++;
        fd_variant_free(&c.variant);
        return FD_OK;
    }
    c.fit = fd_variant_fit(&r->args, r->args.node, c.variant.rows, r->output, r->tau);
    c.fit.fault = fd_fault_at(fault);
    if (c.fit.z <= CLEARLY_BEYOND) return keep(t, &c, err);
    note_runner_up(t, &c.fit);
    fd_variant_free(&c.variant);
    return FD_OK;
}

/* ---- faults that are the same here ---- */

static fd_code concerns(const fd_graph *graph, int32_t fault, int32_t node, bool *yes, fd_error *err) {
    fd_graph *clone;
    fd_fault_owner *owner;
    FD_TRY(fd_graph_clone(graph, &clone, err));
    fd_code code = fd_fault_apply_node(fault, clone, node, yes, &owner, err);
    fd_graph_free(clone);
    fd_fault_owner_free(owner);
    return code;
}

/* A node of the layer that one of them changes and the other does not; -1. */
static fd_code where_they_differ(const trial *t, int32_t a, int32_t b, int32_t after, int32_t *found, fd_error *err) {
    const fd_graph *graph = t->request->args.graph;
    *found = -1;
    for (int32_t i = after + 1; i < graph->n_node && *found < 0; i++) {
        bool by_a, by_b;
        if (graph->nodes[i].layer != t->request->args.node->layer || i == t->request->args.node->id) continue;
        FD_TRY(concerns(graph, a, i, &by_a, err));
        FD_TRY(concerns(graph, b, i, &by_b, err));
        if (by_a != by_b) *found = i;
    }
    return FD_OK;
}

/* Does the candidate's node look as the fault, which may leave it alone, would have it? Unknown counts as yes. */
static fd_code agrees(const trial *t, int32_t fault, int32_t id, bool *yes, fd_error *err) {
    const fd_explain_request *r = t->request;
    const fd_node *node = &r->args.graph->nodes[id];
    const float *rows = r->tensor ? r->tensor(r->user, id) : NULL;
    fd_variant v;
    *yes = true;
    if (!rows) return FD_OK;
    if (node->op == FD_OP_KV_WRITE) rows += r->args.pos0 * fd_node_row_stride(node, r->args.n_kv);
    FD_TRY(fd_variant_compute(r, fault, id, &v, err));
    if (v.state == FD_VARIANT_UNCONCERNED) FD_TRY(fd_variant_compute(r, -1, id, &v, err));
    if (v.state == FD_VARIANT_COMPUTED) *yes = fd_variant_fit(&r->args, node, v.rows, rows, NULL).z <= 1.0;
    fd_variant_free(&v);
    return FD_OK;
}

/* Asks the nodes beside this one. Only for exact traces: there τ is known to be 0 everywhere. */
static fd_code tell_apart(trial *t, fd_error *err) {
    if (t->request->tau) return FD_OK;
    for (int32_t i = 0; i < t->n; i++)
        for (int32_t k = i + 1; k < t->n; k++) {
            int32_t node = -1;
            while (t->contenders[i].in_group && t->contenders[k].in_group) {
                bool first, second;
                FD_TRY(where_they_differ(t, t->contenders[i].fault, t->contenders[k].fault, node, &node, err));
                if (node < 0) break;
                FD_TRY(agrees(t, t->contenders[i].fault, node, &first, err));
                FD_TRY(agrees(t, t->contenders[k].fault, node, &second, err));
                if (first != second) t->contenders[first ? k : i].in_group = false;
            }
        }
    return FD_OK;
}

/* ---- the decision ---- */

static bool one_position(const trial *t) {
    return t->request->args.pos0 == 0 && t->request->args.n_pos == 1;
}

static void list_remaining(trial *t, bool group_alone) {
    fd_explanation *out = t->out;
    for (int32_t i = 0; i < t->n; i++) {
        if (group_alone && !t->contenders[i].in_group) continue;
        if (out->n_remaining < FD_MAX_REMAINING) out->remaining[out->n_remaining] = t->contenders[i].fit;
        out->n_remaining++;
    }
}

static fd_code advise(trial *t, fd_error *err) {
    fd_explanation *out = t->out;
    const fd_graph *graph = t->request->args.graph;
    if (one_position(t) && !out->named)
        snprintf(out->next, sizeof out->next,
                 "a second position: at position 0 RoPE is the identity and a row attends to "
                 "itself alone");
    else if (out->n_remaining > 1) {
        int32_t node;
        FD_TRY(where_they_differ(t, fd_fault_find(out->remaining[0].fault->name),
                                 fd_fault_find(out->remaining[1].fault->name), -1, &node, err));
        if (node >= 0)
            snprintf(out->next, sizeof out->next, "%s: %s and %s differ there", graph->nodes[node].name,
                     out->remaining[0].fault->name, out->remaining[1].fault->name);
        else
            snprintf(out->next, sizeof out->next, "more positions: %s and %s differ in nothing else",
                     out->remaining[0].fault->name, out->remaining[1].fault->name);
    } else if (out->n_untried && !out->named)
        snprintf(out->next, sizeof out->next, "the other tensors of layer %d: %d explanations read them",
                 t->request->args.node->layer, out->n_untried);
    return FD_OK;
}

static fd_code decide(trial *t, fd_error *err) {
    fd_explanation *out = t->out;
    const fd_explain_request *r = t->request;
    int32_t n_fit = 0, n_apart = 0;
    for (int32_t i = 0; i < t->n; i++) {
        contender *c = &t->contenders[i];
        n_fit += c->fit.z <= 1.0;
        c->in_group = i == 0 || (c->fit.z <= 1.0 && fd_variant_equal(&r->args, r->args.node, c->variant.rows,
                                                                     t->contenders[0].variant.rows));
        n_apart += !c->in_group;
    }
    if (!(out->unmodified.z > CLEARLY_BEYOND))
        snprintf(out->reason, sizeof out->reason, "the op as it should be is within 10 τ of the candidate");
    else if (n_fit == 0)
        snprintf(out->reason, sizeof out->reason, "none of %d explanations gives the candidate's values%s",
                 out->n_tried, t->n ? "; the nearest are within 10 τ" : "");
    else if (n_apart > 0)
        snprintf(out->reason, sizeof out->reason, "%d explanations are within 10 τ and differ from each other", t->n);
    else if (fd_variant_evidence(r, t->contenders[0].variant.rows, t->unmodified.rows, CLEARLY_BEYOND) < MIN_EVIDENCE)
        snprintf(out->reason, sizeof out->reason,
                 "fewer than %d finite elements tell the explanation from the op as it should be", MIN_EVIDENCE);
    else
        out->named = true;
    if (out->named) {
        FD_TRY(tell_apart(t, err));
        for (int32_t i = 0; i < t->n; i++)
            if (!t->contenders[i].in_group) note_runner_up(t, &t->contenders[i].fit);
    }
    list_remaining(t, out->named);
    if (!out->named && out->n_without_effect) {
        size_t at = strlen(out->reason);
        snprintf(out->reason + at, sizeof out->reason - at, "; %d change nothing on these inputs",
                 out->n_without_effect);
    }
    return advise(t, err);
}

static fd_code run(trial *t, fd_error *err) {
    const fd_explain_request *r = t->request;
    FD_TRY(fd_variant_compute(r, -1, r->args.node->id, &t->unmodified, err));
    if (t->unmodified.state != FD_VARIANT_COMPUTED) {
        snprintf(t->out->reason, sizeof t->out->reason, "an input of %s was not recorded", r->args.node->name);
        t->out->unmodified.z = NAN;
        return FD_OK;
    }
    t->out->unmodified = fd_variant_fit(&r->args, r->args.node, t->unmodified.rows, r->output, r->tau);
    for (int32_t i = 0; i < fd_fault_count(); i++) FD_TRY(try_fault(t, i, err));
    return decide(t, err);
}

fd_code fd_explain(const fd_explain_request *request, fd_explanation *out, fd_error *err) {
    trial t = {.request = request, .out = out};
    *out = (fd_explanation){0};
    fd_code code = run(&t, err);
    for (int32_t i = 0; i < t.n; i++) fd_variant_free(&t.contenders[i].variant);
    free(t.contenders);
    fd_variant_free(&t.unmodified);
    return code;
}

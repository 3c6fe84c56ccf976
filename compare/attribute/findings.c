#include "compare/attribute/findings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/describe.h"
#include "compare/diff/inputs.h"

static fd_code describe_inputs(const fd_finding_context *c, const fd_node *node, fd_divergence *d, fd_error *err) {
    if (node->op == FD_OP_EMBED) fd_divergence_add_input("tokens", FD_EQUAL, d);
    for (int k = 0; k < FD_MAX_INPUTS; k++) {
        if (node->input[k] < 0) continue;
        const fd_node *input = &c->graph->nodes[node->input[k]];
        fd_equality equality;
        FD_TRY(fd_input_equality(c->pair, input->name, input->op == FD_OP_KV_WRITE, d->pos, &equality, err));
        fd_divergence_add_input(input->name, equality, d);
    }
    fd_divergence_sum_inputs(d);
    return FD_OK;
}

/* What the other run has where the finding is worst; *value stays where a row has padding. */
static fd_code read_other(const fd_finding_context *c, const fd_node_pair *np, const fd_node_finding *f,
                          bool of_reference, double *value, fd_error *err) {
    const fd_node *node = &c->graph->nodes[f->node];
    const int64_t n = fd_node_elements(node, f->pos + 1);
    if (f->has_reference || node->over_kv || f->worst < 0 || f->worst >= n) return FD_OK;
    double *row = malloc(sizeof *row * (size_t)n);
    if (!row) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", node->name);
    fd_code code = of_reference ? fd_trace_read(c->pair->cand, np->cand, f->pos, NULL, row, err)
                                : fd_trace_read(c->pair->ref, np->ref, f->pos, NULL, row, err);
    if (code == FD_OK) *value = row[f->worst];
    free(row);
    return code;
}

/* Reference and candidate at the worst element stand first: the first bit that differs may be noise. `other`: of the run that was
 * not judged. */
static void put_worst_first(fd_divergence *d, const fd_node_finding *f, bool of_reference, double other) {
    double ref = of_reference ? f->candidate : other, cand = of_reference ? other : f->candidate;
    fd_tensor_view one[2] = {{&ref, FD_F64}, {&cand, FD_F64}};
    fd_tensor_diff diff;
    fd_diff_tensors(one[0], one[1], 1, d->diff.grid, &diff);
    d->diff.first = (fd_element_diff){f->worst, ref, cand, diff.first.index == 0 ? diff.first.ulp : 0};
}

fd_code fd_finding_divergence(const fd_finding_context *c, const fd_node_finding *f, bool of_reference,
                              fd_divergence *d, fd_error *err) {
    const fd_node *node = &c->graph->nodes[f->node];
    const fd_trace_step *steps = fd_trace_steps(c->ref);
    *d = (fd_divergence){0};
    fd_divergence_at(c->graph, node, f->step, f->step < fd_trace_n_step(c->ref) ? steps[f->step].kind : FD_STEP_DECODE,
                     f->pos, d);
    if (f->pos >= c->n_pos) return FD_OK; /* the reference went another way: there is nothing to compare with */
    const fd_node_pair *np = fd_trace_pair_find(c->pair, node->name);
    if (np && np->same_shape) {
        fd_look look = {0};
        FD_TRY(fd_trace_pair_values(c->pair, np, f->pos, &look, err));
        d->has_values = look.has_diff;
        if (look.has_diff) {
            double other = f->reference;
            FD_TRY(read_other(c, np, f, of_reference, &other, err));
            d->diff = look.diff;
            put_worst_first(d, f, of_reference, other);
        }
    }
    return describe_inputs(c, node, d, err);
}

/* Appends to a list of globs unless it is there. */
static void add_glob(char *to, size_t size, const char *glob) {
    size_t at = strlen(to), n = strlen(glob);
    for (const char *p = to; (p = strstr(p, glob)) != NULL; p += n)
        if ((p == to || p[-1] == ',') && (p[n] == ',' || p[n] == '\0')) return;
    if (at + n + 2 < size) snprintf(to + at, size - at, "%s%s", at ? "," : "", glob);
}

void fd_finding_globs(const fd_graph *graph, int32_t first, int32_t last, char *to, size_t size) {
    const fd_node *nodes = graph->nodes;
    int32_t low = INT32_MAX, high = -1;
    to[0] = '\0';
    for (int32_t i = first; i <= last; i++) {
        if (nodes[i].layer < 0) continue;
        low = nodes[i].layer < low ? nodes[i].layer : low;
        high = nodes[i].layer > high ? nodes[i].layer : high;
    }
    if (high > low) add_glob(to, size, "token_embd,*.l_out");
    for (int32_t i = first; i <= last && high <= low; i++) {
        char glob[80];
        if (nodes[i].layer >= 0)
            snprintf(glob, sizeof glob, "blk.%d.*", nodes[i].layer);
        else
            snprintf(glob, sizeof glob, "%s", nodes[i].name);
        add_glob(to, size, glob);
        for (int k = 0; k < FD_MAX_INPUTS; k++)
            if (nodes[i].input[k] >= 0 && nodes[nodes[i].input[k]].layer != nodes[i].layer)
                add_glob(to, size, nodes[nodes[i].input[k]].name);
    }
    if (nodes[last].layer < 0 || high > low) add_glob(to, size, nodes[last].name);
}

void fd_finding_missing(const fd_graph *graph, const uint8_t *found, fd_attribution *a) {
    enum { FOR_COUNT = sizeof " and 1000000 more" };
    size_t at = 0;
    int32_t n_more = 0;
    a->missing[0] = '\0';
    for (int32_t i = a->first.span_first; a->found && i < a->first.node; i++) {
        const char *name = graph->nodes[i].name;
        if (found[i] != FD_FOUND_NOTHING) continue;
        if (n_more || at + strlen(name) + 2 + FOR_COUNT > sizeof a->missing)
            n_more++;
        else
            at += (size_t)snprintf(a->missing + at, sizeof a->missing - at, "%s%s", at ? ", " : "", name);
    }
    if (n_more) snprintf(a->missing + at, sizeof a->missing - at, " and %d more", n_more);
}

void fd_finding_replay(const fd_graph *graph, const fd_attribution *a, bool of_reference, fd_verdict_replay *p) {
    const fd_node_finding *f = &a->first;
    const fd_node *nodes = graph->nodes;
    snprintf(p->finding, sizeof p->finding, "%s", fd_finding_name(f->finding));
    p->of_reference = of_reference;
    p->z = f->z;
    p->candidate = f->candidate;
    p->replayed = f->replayed;
    p->tau = f->tau;
    p->shares_known = f->has_reference && f->introduced + f->propagated > 0;
    p->introduced = f->introduced;
    p->propagated = f->propagated;
    p->n_element = f->n_element;
    p->n_beyond = f->n_beyond;
    p->n_slice_beyond = f->n_slice_beyond;
    p->n_nan_new = f->n_nan_new;
    p->left = f->left;
    p->left_usually = f->usual;
    p->n_odd = f->n_beyond ? 0 : f->n_odd;
    if (f->span_first != f->node) snprintf(p->span_first, sizeof p->span_first, "%s", nodes[f->span_first].name);
    snprintf(p->missing, sizeof p->missing, "%s", a->missing);
    if (a->next.finding != FD_FOUND_NOTHING) snprintf(p->next, sizeof p->next, "%s", nodes[a->next.node].name);
    if (a->not_finite.finding != FD_FOUND_NOTHING) {
        snprintf(p->not_finite, sizeof p->not_finite, "%s", nodes[a->not_finite.node].name);
        p->not_finite_pos = a->not_finite.pos;
    }
    p->n_before = a->n_before;
    if (a->first.span_first != f->node)
        fd_finding_globs(graph, a->first.span_first, f->node, p->tensors, sizeof p->tensors);
}

void fd_finding_counts(const fd_graph *graph, const fd_attribution *a, const char *source, fd_verdict_replay *p) {
    p->done = true;
    snprintf(p->numerics, sizeof p->numerics, "%s", a->numerics->name);
    snprintf(p->source, sizeof p->source, "%s", source);
    p->n_tensor = a->n_tensor;
    p->n_noise = a->n_by_finding[FD_FOUND_NOISE];
    p->n_inherited = a->n_by_finding[FD_FOUND_INHERITED];
    p->n_amplifier = a->n_by_finding[FD_FOUND_AMPLIFIER];
    p->n_introduced = a->n_by_finding[FD_FOUND_INTRODUCED] + a->n_by_finding[FD_FOUND_BOTH];
    p->noisiest_z = a->noisiest.finding == FD_FOUND_NOTHING ? -1 : a->noisiest.z;
    if (p->noisiest_z >= 0) snprintf(p->noisiest, sizeof p->noisiest, "%s", graph->nodes[a->noisiest.node].name);
}

#include "compare/attribute/attribution.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/attribute/attribution_row.h"
#include "compare/attribute/findings.h"
#include "compare/attribute/plan.h"
#include "compare/attribute/residuals.h"
#include "compare/attribute/steps.h"

typedef struct row_counts {
    int32_t all, later;  /* later: of steps after the first */
    int32_t choice;      /* of the inconclusive, those of perhaps another choice of experts */
    int32_t vague_later; /* of the inconclusive, those of steps after the first */
} row_counts;

typedef struct attributing {
    const fd_attribution_options *o;
    fd_attribution *out;
    fd_replay *replay;
    fd_replay_plan plan;
    int32_t *step_of; /* [n_pos] */
    int32_t *in_ref;  /* [n_node] */
    uint8_t *worst;   /* [n_step, n_node] fd_finding */
    int32_t n_step, pos0, n_range;
    double *growth;      /* [n_node, 2]: Σ(c − r)², Σ r² */
    double *steps;       /* [2, n_node] fd_steps_leave: of steps, of sums */
    bool leaves_nothing; /* the class does: */
    fd_residuals residuals;
    fd_node_finding *vague;      /* [n_node] the first row that is inconclusive, n_odd of them */
    row_counts *rows;            /* [n_node] */
    double *reference, *scratch; /* one row; owned, grown */
    int64_t capacity;
} attributing;

static void record_finding(attributing *a, const fd_node_finding *f) {
    fd_attribution *out = a->out;
    uint8_t *worst = &a->worst[(int64_t)f->step * a->o->graph->n_node + f->node];
    if (f->finding > *worst) *worst = (uint8_t)f->finding;
    if (f->finding > out->finding[f->node]) out->finding[f->node] = (uint8_t)f->finding;
    if (!(f->z <= out->z[f->node])) out->z[f->node] = f->z;
    if (f->finding < FD_FOUND_INTRODUCED) {
        if (out->noisiest.finding == FD_FOUND_NOTHING || f->z > out->noisiest.z) out->noisiest = *f;
        return;
    }
    if (f->n_nan_new && (out->not_finite.finding == FD_FOUND_NOTHING || fd_finding_earlier(f, &out->not_finite)))
        out->not_finite = *f;
    fd_note_introduced(out, f);
}

static fd_code attribute_node(attributing *a, const fd_node *node, const fd_replayed *rows, fd_error *err) {
    if (rows->stride > a->capacity) {
        free(a->reference);
        free(a->scratch);
        a->capacity = rows->stride;
        a->reference = malloc(sizeof *a->reference * (size_t)rows->stride);
        a->scratch = malloc(sizeof *a->scratch * (size_t)rows->stride);
        if (!a->reference || !a->scratch) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", node->name);
    }
    for (int32_t r = 0; r < a->n_range; r++) {
        bool has_ref = false;
        if (!rows->recorded[r]) continue;
        bool comparable = !a->o->n_ref_pos || a->pos0 + r < a->o->n_ref_pos;
        if (a->o->ref && comparable)
            FD_TRY(fd_replay_read_row(a->o->ref, a->in_ref[node->id], node, a->pos0 + r, a->pos0 + a->n_range,
                                      a->scratch, a->reference, &has_ref, err));
        int64_t at = r * rows->stride;
        fd_attribution_row row = {.node = node,
                                  .pos = a->pos0 + r,
                                  .step = a->step_of[a->pos0 + r],
                                  .n_kv = a->pos0 + a->n_range,
                                  .span_first = rows->span_first,
                                  .stride = rows->stride,
                                  .candidate = rows->candidate + at,
                                  .replayed = rows->y + at,
                                  .tau = rows->tau + at,
                                  .reference = has_ref ? a->reference : NULL,
                                  .steps = a->steps[node->id],
                                  .sums = a->steps[a->o->graph->n_node + node->id] * sqrt(a->pos0 + r + 1)};
        if (a->o->rows_alone) {
            a->o->on_row(a->o->user, &row);
            continue;
        }
        fd_node_finding f = fd_attribute_row(&row, a->growth + 2 * node->id);
        row_counts *counts = &a->rows[node->id];
        counts->all++;
        counts->later += row.step > 0;
        bool right = a->leaves_nothing && fd_residuals_add(&a->residuals, &row, &f);
        if (a->o->on_row) a->o->on_row(a->o->user, &row);
        if (!right && fd_row_is_inconclusive(&row, &f)) {
            if (a->vague[node->id].n_odd++ == 0) f.n_odd = 1, a->vague[node->id] = f;
            counts->choice += f.tau >= FD_BOUND_UNKNOWN;
            counts->vague_later += row.step > 0;
            continue;
        }
        record_finding(a, &f);
    }
    return FD_OK;
}

/* ---- all of it ---- */

static fd_code attribute_range(attributing *a, fd_error *err) {
    const fd_graph *graph = a->o->graph;
    const fd_replay_plan *plan = &a->plan;
    bool in_gap = a->pos0 >= plan->gap && a->pos0 < plan->gap_end;
    const bool *needed = in_gap ? plan->in_gap : plan->needed;
    FD_TRY(fd_replay_range(a->replay, a->pos0, a->n_range, err));
    for (int32_t i = 0; i < graph->n_node; i++) {
        fd_replayed rows;
        if (!needed[i]) continue;
        bool wanted = !in_gap && plan->judged[i];
        FD_TRY(fd_replay_node(a->replay, i, wanted, &rows, err));
        if (wanted && !fd_is_unattributable(a->o, i, rows.span_first))
            FD_TRY(attribute_node(a, &graph->nodes[i], &rows, err));
        if (a->o->progress)
            a->o->progress(a->o->user, (int64_t)a->pos0 * graph->n_node + (i + 1) * (int64_t)a->n_range,
                           (int64_t)plan->n_pos * graph->n_node);
    }
    return FD_OK;
}

static fd_code attribute_ranges(attributing *a, fd_error *err) {
    for (a->pos0 = 0; a->pos0 < a->plan.n_pos; a->pos0 += a->n_range) {
        a->n_range = fd_replay_plan_range(&a->plan, a->pos0);
        FD_TRY(attribute_range(a, err));
    }
    return FD_OK;
}

/* Inherited errors that a node made grow far more than its op does elsewhere. */
static void find_amplifiers(attributing *a) {
    int32_t n_node = a->o->graph->n_node;
    for (int32_t i = 0; i < n_node; i++) {
        if (a->out->finding[i] != FD_FOUND_INHERITED || !fd_amplifies(a->o->graph, a->growth, i)) continue;
        a->out->finding[i] = FD_FOUND_AMPLIFIER;
        for (int32_t s = 0; s < a->n_step; s++) {
            uint8_t *worst = &a->worst[(int64_t)s * n_node + i];
            if (*worst == FD_FOUND_INHERITED) *worst = FD_FOUND_AMPLIFIER;
        }
    }
}

/* Rounding turns a choice of experts in a few rows: the others are right, and so is the op. Where softmax is steep, one row of
 * many has bounds that say nothing; an op that is wrong is wrong in more of them. And where most rows are shown to be right by what
 * is left of them, a few that are not are roundings. A prompt's rows say nothing of what goes wrong in the calls after it (a cache, positions),
 * so of those most rows have to be judged by themselves. */
enum { FEW_CHOICES = 4, VERY_FEW = 16 };
static bool decides_nothing(const attributing *a, int32_t node) {
    const fd_node_finding *f = &a->vague[node];
    if (f->finding == FD_FOUND_NOTHING) return false;
    const row_counts *rows = &a->rows[node];
    const bool few = (rows->choice == f->n_odd ? FEW_CHOICES : VERY_FEW) * f->n_odd <= rows->all,
               later = 2 * rows->vague_later > rows->later;
    return (!few || later) &&
           !(a->leaves_nothing && !a->residuals.unsure[node] && a->out->suspect[node].finding == FD_FOUND_NOTHING);
}

static void count_inconclusive(attributing *a) {
    for (int32_t i = 0; i < a->o->graph->n_node; i++) {
        const fd_node_finding *f = &a->vague[i];
        if (!decides_nothing(a, i)) continue;
        if (a->out->n_inconclusive == 0 || fd_finding_earlier(f, &a->out->inconclusive)) a->out->inconclusive = *f;
        a->out->n_inconclusive += f->n_odd;
    }
}

static void count_findings(attributing *a) {
    fd_attribution *out = a->out;
    int32_t n_node = a->o->graph->n_node;
    for (int32_t s = 0; s < a->n_step; s++)
        for (int32_t i = 0; i < n_node; i++) {
            uint8_t finding = a->worst[(int64_t)s * n_node + i];
            out->n_by_finding[finding]++;
            if (finding == FD_FOUND_NOTHING) continue;
            out->n_tensor++;
            bool before = s < out->first.step || (s == out->first.step && i < out->first.node);
            out->n_before += out->found && before;
        }
}

/* What the bounds have room for, but what is left of other tensors has not. */
static fd_code add_residuals(attributing *a, fd_error *err) {
    int32_t n_node = a->o->graph->n_node;
    if (!a->leaves_nothing) return FD_OK;
    fd_node_finding *found = malloc(sizeof *found * (size_t)n_node);
    if (!found) return fd_fail(err, FD_ERR_MEMORY, "judging %d nodes: out of memory", n_node);
    fd_code code = fd_residuals_judge(&a->residuals, found, a->out->suspect, err);
    for (int32_t i = 0; i < n_node; i++) {
        a->out->uses_room[i] = a->residuals.n_room[i] > 0;
        a->out->n_moved[i] = a->residuals.n_moved[i];
    }
    for (int32_t i = 0; i < n_node && code == FD_OK; i++)
        if (found[i].finding != FD_FOUND_NOTHING && a->out->introduced[i].finding == FD_FOUND_NOTHING)
            record_finding(a, &found[i]);
    free(found);
    return code;
}

static void number_steps(attributing *a) {
    const fd_trace *trace = a->o->ref ? a->o->ref : a->o->cand;
    const fd_trace_step *steps = fd_trace_steps(trace);
    int32_t n = fd_trace_n_step(trace);
    for (int32_t p = 0, s = 0; p < a->o->n_pos; p++) {
        while (s < n && p >= steps[s].pos0 + steps[s].n_pos) s++;
        a->step_of[p] = s; /* positions that no step claims are one more */
    }
    a->n_step = a->step_of[a->o->n_pos - 1] + 1;
}

static fd_code open_replay(attributing *a, fd_error *err) {
    const fd_attribution_options *o = a->o;
    size_t n = (size_t)o->graph->n_node;
    fd_attribution *out = a->out;
    a->step_of = malloc(sizeof *a->step_of * (size_t)o->n_pos);
    a->in_ref = malloc(sizeof *a->in_ref * n);
    a->growth = calloc(2 * n, sizeof *a->growth);
    a->steps = calloc(2 * n, sizeof *a->steps);
    a->vague = calloc(n, sizeof *a->vague);
    a->rows = calloc(n, sizeof *a->rows);
    out->z = malloc(sizeof *out->z * n);
    out->finding = calloc(n, sizeof *out->finding);
    out->introduced = calloc(n, sizeof *out->introduced);
    out->suspect = calloc(n, sizeof *out->suspect);
    out->uses_room = calloc(n, sizeof *out->uses_room);
    out->n_moved = calloc(n, sizeof *out->n_moved);
    if (!a->step_of || !a->in_ref || !a->growth || !a->steps || !a->vague || !a->rows || !out->z || !out->finding ||
        !out->introduced || !out->suspect || !out->uses_room || !out->n_moved)
        return fd_fail(err, FD_ERR_MEMORY, "judging %zu nodes: out of memory", n);
    FD_TRY(fd_replay_plan_make(o, &a->plan, err));
    number_steps(a);
    out->n_output = fd_replay_plan_outputs(o->graph, o->n_pos);
    a->worst = calloc((size_t)a->n_step * n, sizeof *a->worst);
    if (!a->worst) return fd_fail(err, FD_ERR_MEMORY, "judging %zu nodes: out of memory", n);
    for (size_t i = 0; i < n; i++) {
        out->z[i] = -1;
        if (fd_trace_has_data(o->cand, o->graph->nodes[i].name))
            a->steps[i] = fd_steps_leave(o, a->plan.whole, (int32_t)i, &a->steps[n + i]);
        const int32_t at = o->ref ? fd_trace_find(o->ref, o->graph->nodes[i].name) : -1;
        const bool same_shape =
            at >= 0 && fd_trace_elements(fd_trace_node_at(o->ref, at), 4) == fd_node_elements(&o->graph->nodes[i], 5);
        a->in_ref[i] = same_shape ? at : -1; /* another is no reference: compare has said so already */
    }
    fd_replay_options how = {.graph = o->graph,
                             .trace = o->cand,
                             .tokens = fd_trace_tokens(o->cand),
                             .op = o->op,
                             .device = o->device,
                             .memo = o->memo,
                             .numerics = o->numerics,
                             .ignored = o->ignored,
                             .unrounded = o->unrounded,
                             .records_rounded = o->records_rounded,
                             .kv_type = o->kv_type,
                             .values_alone = o->values_alone,
                             .draw = o->draw,
                             .n_output = out->n_output};
    return fd_replay_open(&how, &a->replay, err);
}

fd_code fd_attribute_errors(const fd_attribution_options *options, fd_attribution *out, fd_error *err) {
    *out = (fd_attribution){.numerics = options->numerics, .n_pos = options->n_pos};
    if (!fd_trace_tokens(options->cand))
        return fd_fail(err, FD_ERR_INCOMPLETE, "%s: no tokens recorded, so nothing can be replayed",
                       fd_trace_path(options->cand));
    if (options->n_pos < 1 || options->n_pos > fd_trace_n_pos(options->cand))
        return fd_fail(err, FD_ERR_INCOMPLETE, "%s: %d positions to judge, the trace has %d",
                       fd_trace_path(options->cand), options->n_pos, fd_trace_n_pos(options->cand));
    attributing a = {.o = options, .out = out};
    fd_code code = open_replay(&a, err);
    a.leaves_nothing = fd_class_leaves_nothing(options->numerics) && !options->rows_alone;
    if (code == FD_OK && a.leaves_nothing) code = fd_residuals_open(options, a.plan.whole, &a.residuals, err);
    if (code == FD_OK) code = attribute_ranges(&a, err);
    if (code == FD_OK) code = add_residuals(&a, err);
    if (code == FD_OK) {
        find_amplifiers(&a);
        count_inconclusive(&a);
        count_findings(&a);
        fd_finding_missing(a.o->graph, a.worst + (int64_t)out->first.step * a.o->graph->n_node, out);
    }
    fd_replay_close(a.replay);
    fd_replay_plan_free(&a.plan);
    fd_residuals_free(&a.residuals);
    free(a.step_of);
    free(a.in_ref);
    free(a.worst);
    free(a.growth);
    free(a.steps);
    free(a.vague);
    free(a.rows);
    free(a.reference);
    free(a.scratch);
    return code;
}

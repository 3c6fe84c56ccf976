#include "compare/replay/judge.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/replay/judge_row.h"

/* Positions replayed together: weights are dequantised once for all of them. */
enum { RANGE = 64, SAMPLE = 8 };

typedef struct judge {
    const fd_judge_options *o;
    fd_judgement *out;
    fd_replay *replay;
    int32_t *step_of; /* [n_pos] */
    int32_t *in_ref;  /* [n_node] */
    uint8_t *worst;   /* [n_step, n_node] fd_finding */
    int32_t n_step, pos0, n_range;
    double *growth;              /* [n_node, 2]: Σ(c − r)², Σ r² */
    double *reference, *scratch; /* one row; owned, grown */
    int64_t capacity;
} judge;

const char *fd_finding_name(fd_finding finding) {
    static const char *const names[] = {"not judged", "NOISE", "INHERITED", "AMPLIFIER", "INTRODUCED", "BOTH"};
    return names[finding];
}

const char *fd_class_source_name(fd_class_source source) {
    return source == FD_CLASS_GIVEN ? "given" : source == FD_CLASS_RECORDED ? "recorded" : "inferred";
}

/* Earlier by step, then node, then position. */
static bool earlier(const fd_node_finding *a, const fd_node_finding *b) {
    if (a->step != b->step) return a->step < b->step;
    if (a->node != b->node) return a->node < b->node;
    return a->pos < b->pos;
}

static void note(judge *j, const fd_node_finding *f) {
    fd_judgement *out = j->out;
    uint8_t *worst = &j->worst[(int64_t)f->step * j->o->graph->n_node + f->node];
    if (f->finding > *worst) *worst = (uint8_t)f->finding;
    if (f->finding > out->finding[f->node]) out->finding[f->node] = (uint8_t)f->finding;
    if (!(f->z <= out->z[f->node])) out->z[f->node] = f->z;
    if (f->finding < FD_FOUND_INTRODUCED) {
        if (out->noisiest.finding == FD_FOUND_NOTHING || f->z > out->noisiest.z) out->noisiest = *f;
        return;
    }
    fd_node_finding *own = &out->introduced[f->node];
    if (own->finding == FD_FOUND_NOTHING || earlier(f, own)) *own = *f;
    if (!out->found || earlier(f, &out->first)) {
        if (out->found && (out->first.node != f->node || out->first.step != f->step)) out->next = out->first;
        out->first = *f;
        out->found = true;
    } else if (f->node != out->first.node && (out->next.finding == FD_FOUND_NOTHING || earlier(f, &out->next))) {
        out->next = *f;
    }
}

static fd_code judge_node(judge *j, const fd_node *node, const fd_replayed *rows, fd_error *err) {
    if (rows->stride > j->capacity) {
        free(j->reference);
        free(j->scratch);
        j->capacity = rows->stride;
        j->reference = malloc(sizeof *j->reference * (size_t)rows->stride);
        j->scratch = malloc(sizeof *j->scratch * (size_t)rows->stride);
        if (!j->reference || !j->scratch) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", node->name);
    }
    for (int32_t r = 0; r < j->n_range; r++) {
        bool has_ref = false;
        if (!rows->recorded[r]) continue;
        bool comparable = !j->o->n_ref_pos || j->pos0 + r < j->o->n_ref_pos;
        if (j->o->ref && comparable)
            FD_TRY(fd_replay_read_row(j->o->ref, j->in_ref[node->id], node, j->pos0 + r, j->pos0 + j->n_range,
                                      j->scratch, j->reference, &has_ref, err));
        fd_judged_row row = {.node = node,
                             .rows = rows,
                             .r = r,
                             .pos = j->pos0 + r,
                             .step = j->step_of[j->pos0 + r],
                             .n_kv = j->pos0 + j->n_range,
                             .reference = has_ref ? j->reference : NULL};
        fd_node_finding f = fd_judge_row(&row, j->growth ? j->growth + 2 * node->id : NULL);
        int64_t at = r * rows->stride;
        if (j->o->see)
            j->o->see(j->o->see_user, node, row.pos, rows->stride, rows->candidate + at, rows->y + at, rows->tau + at,
                      row.reference);
        if (fd_row_is_blind(&row, &f)) {
            if (j->out->n_blind++ == 0) j->out->blind = f;
            continue;
        }
        note(j, &f);
    }
    return FD_OK;
}

/* ---- all of it ---- */

static bool in_sample(const fd_graph *graph, const fd_node *node) {
    int32_t last = graph->hparams.n_layer - 1;
    return node->layer < 0 || node->layer == 0 || node->layer == last / 2 || node->layer == last;
}

/* Nobody knows what the node, or one that it was replayed through, was computed with. */
static bool blameless(const fd_judge_options *o, int32_t node, int32_t span_first) {
    for (int32_t i = span_first; o->unjudged && i <= node; i++)
        if (o->unjudged[i]) return true;
    return false;
}

/* What the sample's last positions read of those between: caches, and what unrecorded ones are made of. Matrix products
 * are not worth it: false. */
static bool find_needed(const judge *j, bool *needed) {
    const fd_graph *graph = j->o->graph;
    for (int32_t i = graph->n_node - 1; i >= 0; i--) {
        const fd_node *node = &graph->nodes[i];
        needed[i] |= node->op == FD_OP_KV_WRITE;
        int32_t at = needed[i] ? fd_trace_find(j->o->cand, node->name) : -1;
        if (!needed[i] || (at >= 0 && fd_trace_node_at(j->o->cand, at)->has_data)) continue;
        if (node->op != FD_OP_KV_WRITE && node->op != FD_OP_ROPE) return false;
        for (int k = 0; k < FD_MAX_INPUTS; k++)
            if (node->input[k] >= 0) needed[node->input[k]] = true;
    }
    return true;
}

/* Positions [pos0, pos0 + n_range); needed NULL: all nodes, judged; else those, replayed only. */
static fd_code judge_range(judge *j, const bool *needed, fd_error *err) {
    const fd_graph *graph = j->o->graph;
    FD_TRY(fd_replay_range(j->replay, j->pos0, j->n_range, err));
    for (int32_t i = 0; i < graph->n_node; i++) {
        fd_replayed rows;
        if (needed && !needed[i]) continue;
        bool wanted = !needed && (!j->o->sample || in_sample(graph, &graph->nodes[i]));
        FD_TRY(fd_replay_node(j->replay, i, wanted, &rows, err));
        if (wanted && !blameless(j->o, i, rows.span_first)) FD_TRY(judge_node(j, &graph->nodes[i], &rows, err));
    }
    return FD_OK;
}

static fd_code judge_ranges(judge *j, fd_error *err) {
    int32_t n_pos = j->o->n_pos, last = n_pos - SAMPLE; /* of a sample: the first position of its second half */
    bool *needed = NULL;
    if (j->o->sample) {
        needed = calloc((size_t)j->o->graph->n_node, sizeof *needed);
        if (!needed) return fd_fail(err, FD_ERR_MEMORY, "judging a sample: out of memory");
        if (last < SAMPLE) last = SAMPLE;
        if (!find_needed(j, needed)) n_pos = n_pos < 2 * SAMPLE ? n_pos : 2 * SAMPLE, last = SAMPLE;
    }
    fd_code code = FD_OK;
    for (j->pos0 = 0; code == FD_OK && j->pos0 < n_pos; j->pos0 += j->n_range) {
        bool between = j->o->sample && j->pos0 >= SAMPLE && j->pos0 < last;
        int32_t end = !j->o->sample ? n_pos : j->pos0 < SAMPLE ? SAMPLE : between ? last : n_pos;
        int32_t most = j->o->sample && !between ? SAMPLE : RANGE;
        if (end > n_pos) end = n_pos;
        j->n_range = end - j->pos0 < most ? end - j->pos0 : most;
        code = judge_range(j, between ? needed : NULL, err);
    }
    free(needed);
    return code;
}

/* Inherited errors that this node made grow far more than its op does elsewhere. Growth: relative error out over the
 * largest relative error in. */
static void find_amplifiers(judge *j) {
    const fd_graph *graph = j->o->graph;
    fd_judgement *out = j->out;
    for (int32_t i = 0; i < graph->n_node; i++) {
        double own = 0, usual[3] = {0};
        int32_t n = 0;
        if (out->finding[i] != FD_FOUND_INHERITED) continue;
        /* the median would need a list; the third largest of the op's other nodes is as robust for what is asked here */
        for (int32_t k = 0; k < graph->n_node; k++) {
            const fd_node *node = &graph->nodes[k];
            if (node->op != graph->nodes[i].op || j->growth[2 * k + 1] == 0) continue;
            double in = 0, o = sqrt(j->growth[2 * k] / j->growth[2 * k + 1]);
            for (int m = 0; m < FD_MAX_INPUTS; m++) {
                const double *g = node->input[m] < 0 ? NULL : &j->growth[2 * node->input[m]];
                if (g && g[1] > 0 && sqrt(g[0] / g[1]) > in) in = sqrt(g[0] / g[1]);
            }
            if (in == 0) continue;
            if (k == i) {
                own = o / in;
                continue;
            }
            double growth = o / in;
            n++;
            for (int m = 0; m < 3; m++)
                if (growth > usual[m]) {
                    double pushed = usual[m];
                    usual[m] = growth;
                    growth = pushed;
                }
        }
        if (n >= 3 && own > 10 * usual[2] && own > 10) {
            out->finding[i] = FD_FOUND_AMPLIFIER;
            for (int32_t s = 0; s < j->n_step; s++) {
                uint8_t *worst = &j->worst[(int64_t)s * graph->n_node + i];
                if (*worst == FD_FOUND_INHERITED) *worst = FD_FOUND_AMPLIFIER;
            }
        }
    }
}

static void count(judge *j) {
    fd_judgement *out = j->out;
    int32_t n_node = j->o->graph->n_node;
    for (int32_t s = 0; s < j->n_step; s++)
        for (int32_t i = 0; i < n_node; i++) {
            uint8_t finding = j->worst[(int64_t)s * n_node + i];
            out->n_by_finding[finding]++;
            if (finding == FD_FOUND_NOTHING) continue;
            out->n_tensor++;
            bool before = s < out->first.step || (s == out->first.step && i < out->first.node);
            out->n_before += out->found && before;
        }
}

/* The unrecorded nodes that the first finding's replay went through. */
static void list_missing(judge *j) {
    const fd_graph *graph = j->o->graph;
    fd_judgement *out = j->out;
    size_t at = 0;
    for (int32_t i = out->first.span_first; out->found && i < out->first.node && at < sizeof out->missing; i++)
        if (j->worst[(int64_t)out->first.step * graph->n_node + i] == FD_FOUND_NOTHING)
            at += (size_t)snprintf(out->missing + at, sizeof out->missing - at, "%s%s", at ? ", " : "",
                                   graph->nodes[i].name);
}

static double n_output(const fd_graph *graph, int32_t n_pos) {
    double n = 0;
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        n += node->over_kv ? (double)node->shape[0] * n_pos * (n_pos + 1) / 2
                           : (double)fd_node_elements(node, 1) * n_pos;
    }
    return n;
}

static void number_steps(judge *j) {
    const fd_trace *trace = j->o->ref ? j->o->ref : j->o->cand;
    const fd_trace_step *steps = fd_trace_steps(trace);
    int32_t n = fd_trace_n_step(trace);
    for (int32_t p = 0, s = 0; p < j->o->n_pos; p++) {
        while (s < n && p >= steps[s].pos0 + steps[s].n_pos) s++;
        j->step_of[p] = s; /* positions that no step claims are one more */
    }
    j->n_step = j->step_of[j->o->n_pos - 1] + 1;
}

static fd_code open_judge(judge *j, fd_error *err) {
    const fd_judge_options *o = j->o;
    size_t n = (size_t)o->graph->n_node;
    fd_judgement *out = j->out;
    j->step_of = malloc(sizeof *j->step_of * (size_t)o->n_pos);
    j->in_ref = malloc(sizeof *j->in_ref * n);
    j->growth = calloc(2 * n, sizeof *j->growth);
    out->z = malloc(sizeof *out->z * n);
    out->finding = calloc(n, sizeof *out->finding);
    out->introduced = calloc(n, sizeof *out->introduced);
    if (!j->step_of || !j->in_ref || !j->growth || !out->z || !out->finding || !out->introduced)
        return fd_fail(err, FD_ERR_MEMORY, "judging %zu nodes: out of memory", n);
    number_steps(j);
    out->n_output = n_output(o->graph, o->n_pos);
    j->worst = calloc((size_t)j->n_step * n, sizeof *j->worst);
    if (!j->worst) return fd_fail(err, FD_ERR_MEMORY, "judging %zu nodes: out of memory", n);
    for (size_t i = 0; i < n; i++) {
        out->z[i] = -1;
        j->in_ref[i] = o->ref ? fd_trace_find(o->ref, o->graph->nodes[i].name) : -1;
        /* a tensor of another shape is no reference: compare has said so already */
        if (j->in_ref[i] >= 0 &&
            fd_trace_elements(fd_trace_node_at(o->ref, j->in_ref[i]), 4) != fd_node_elements(&o->graph->nodes[i], 5))
            j->in_ref[i] = -1;
    }
    fd_replay_options how = {.graph = o->graph,
                             .trace = o->cand,
                             .tokens = fd_trace_tokens(o->cand),
                             .op = o->op,
                             .numerics = o->numerics,
                             .n_output = out->n_output};
    return fd_replay_open(&how, &j->replay, err);
}

fd_code fd_judge_replay(const fd_judge_options *options, fd_judgement *out, fd_error *err) {
    *out = (fd_judgement){.numerics = options->numerics, .n_pos = options->n_pos};
    if (!fd_trace_tokens(options->cand))
        return fd_fail(err, FD_ERR_INCOMPLETE, "%s: no tokens recorded, so nothing can be replayed",
                       fd_trace_path(options->cand));
    if (options->n_pos < 1 || options->n_pos > fd_trace_n_pos(options->cand))
        return fd_fail(err, FD_ERR_INCOMPLETE, "%s: %d positions to judge, the trace has %d",
                       fd_trace_path(options->cand), options->n_pos, fd_trace_n_pos(options->cand));
    judge j = {.o = options, .out = out};
    fd_code code = open_judge(&j, err);
    if (code == FD_OK) code = judge_ranges(&j, err);
    if (code == FD_OK) {
        find_amplifiers(&j);
        count(&j);
        list_missing(&j);
    }
    fd_replay_close(j.replay);
    free(j.step_of);
    free(j.in_ref);
    free(j.worst);
    free(j.growth);
    free(j.reference);
    free(j.scratch);
    return code;
}

void fd_judgement_free(fd_judgement *judgement) {
    free(judgement->z);
    free(judgement->finding);
    free(judgement->introduced);
    judgement->z = NULL;
    judgement->finding = NULL;
    judgement->introduced = NULL;
}

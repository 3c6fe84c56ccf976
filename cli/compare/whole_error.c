#include "cli/compare/whole_error.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/ranks.h"
#include "compare/bounds/bounds.h"

/* Of 45 sound engines that rounded as their class, the candidate's NMSE over the emulated one's was 0.1 to 3.1. Where a class rounds to
 * no more than binary32, engines differ by more than roundings: angles of RoPE, approximations of exp; llama.cpp's had up to 230. But not
 * in every row: at position 0 all angles are exact. Of 16 sound engines in binary32 the row with the least had 0.06 to 1.5 times as much, of
 * eps in the wrong place, or ten times as large, 94 and 166. */
#define MOST             10.0
#define MOST_F32         1000.0
#define MOST_IN_ALL_ROWS 30.0
#define COARSE           1e-9 /* NMSE that roundings to 16 bits leave at least */

/* Of fewer rows one may have a large error by chance. Multiply-adds: a few seconds. */
enum { FEWEST_ROWS = 4 };
#define MOST_WORK 2e10

typedef struct rows {
    int32_t in_reference, in_candidate;      /* ids of the logits */
    float *reference, *candidate, *emulated; /* [n_vocab] each: of one position */
    double of_candidate, of_emulated;        /* Σ of squares of errors */
    double size;                             /* Σ of squares of the reference's */
    double least;                            /* of the rows: the one over the other */
    int32_t n;                               /* rows that the candidate recorded */
} rows;

static bool chooses_experts(const fd_graph *graph) {
    for (int32_t i = 0; i < graph->n_node; i++)
        if (graph->nodes[i].op == FD_OP_TOP_K) return true;
    return false;
}

/* An emulated cache has no blocks, nor a type that is not its class's. */
static bool has_blocks_in_cache(const fd_trace *trace) {
    uint32_t k = FD_F32, v = FD_F32;
    fd_error none;
    return fd_kv_types_parse(fd_trace_get_info(trace)->kv_type, &k, &v, &none) == FD_OK &&
           (fd_kv_is_quantised(k) || fd_kv_is_quantised(v) || k == FD_BF16 || v == FD_BF16);
}

/* What kernels keep to themselves is not recorded in either. */
static fd_code open_emulated(const fd_cli_pair *pair, const char *class_name, fd_cli_exec *out, bool *known,
                             fd_error *err) {
    char spec[48];
    fd_error unknown;
    const fd_numerics_class *class_ = fd_numerics_class_find(class_name);
    snprintf(spec, sizeof spec, "cpu:emulate-%s", class_ ? fd_class_unfused(class_)->name : class_name);
    const fd_code code = fd_cli_exec_open(spec, pair->model->graph, fd_trace_n_pos(pair->cand), 0, out, &unknown);
    *known = code == FD_OK;
    if (code == FD_OK || code == FD_ERR_INPUT || code == FD_ERR_UNSUPPORTED) return FD_OK;
    *err = unknown;
    return code;
}

/* Adds nothing where a side has no such row, or a number is none. */
static void add_row(const fd_cli_pair *pair, int32_t pos, rows *r) {
    const int32_t n = pair->model->graph->hparams.n_vocab;
    double of_candidate = 0, of_emulated = 0, size = 0;
    fd_error missing;
    if (fd_trace_read(pair->ref, r->in_reference, pos, r->reference, NULL, &missing) != FD_OK ||
        fd_trace_read(pair->cand, r->in_candidate, pos, r->candidate, NULL, &missing) != FD_OK)
        return;
    for (int32_t i = 0; i < n; i++) {
        const double c = (double)r->candidate[i] - (double)r->reference[i],
                     e = (double)r->emulated[i] - (double)r->reference[i];
        of_candidate += c * c;
        of_emulated += e * e;
        size += (double)r->reference[i] * (double)r->reference[i];
    }
    if (!isfinite(of_candidate) || !isfinite(of_emulated)) return;
    r->of_candidate += of_candidate;
    r->of_emulated += of_emulated;
    r->size += size;
    r->least = fmin(r->least, of_emulated > 0 ? of_candidate / of_emulated : INFINITY);
    r->n++;
}

/* Step by step, as the candidate was fed. */
static fd_code run(const fd_cli_pair *pair, fd_exec *exec, rows *r, fd_error *err) {
    const int32_t n_vocab = pair->model->graph->hparams.n_vocab, *tokens = fd_trace_tokens(pair->cand);
    const fd_trace_step *steps = fd_trace_steps(pair->cand);
    for (int32_t s = 0; s < fd_trace_n_step(pair->cand); s++) {
        float *logits = malloc(sizeof *logits * (size_t)n_vocab * (size_t)steps[s].n_pos);
        const fd_batch batch = {.tokens = tokens + steps[s].pos0,
                                .n_tok = steps[s].n_pos,
                                .pos0 = steps[s].pos0,
                                .all_logits = true,
                                .logits = logits};
        fd_code code =
            logits ? fd_exec_forward(exec, &batch, err) : fd_fail(err, FD_ERR_MEMORY, "logits: out of memory");
        for (int32_t p = 0; p < steps[s].n_pos && code == FD_OK; p++) {
            r->emulated = logits + (int64_t)p * n_vocab;
            add_row(pair, steps[s].pos0 + p, r);
        }
        free(logits);
        FD_TRY(code);
    }
    return FD_OK;
}

static void judge(const rows *r, fd_verdict *verdict) {
    const double emulated = r->of_emulated / r->size, most = emulated > COARSE ? MOST : MOST_F32;
    if (r->n < FEWEST_ROWS || !(r->size > 0) || !(r->of_emulated > 0)) return;
    if (r->of_candidate <= most * r->of_emulated && (emulated > COARSE || r->least <= MOST_IN_ALL_ROWS)) return;
    fd_remark reason = {FD_REASON_WHOLE_ERROR, .n = {r->n}};
    snprintf(reason.node, sizeof reason.node, "%.2g", r->of_candidate / r->size);
    snprintf(reason.other, sizeof reason.other, "%.2g", emulated);
    fd_verdict_late_reason(verdict, reason);
}

fd_code fd_cli_check_whole_error(const fd_cli_pair *pair, fd_verdict *verdict, fd_error *err) {
    const fd_graph *graph = pair->model->graph;
    const int32_t n_pos = fd_trace_n_pos(pair->cand), n_vocab = graph->hparams.n_vocab;
    fd_cli_exec exec;
    bool known;
    if (verdict->status != FD_NOISE || verdict->replay.of_reference || fd_cli_peers() || chooses_experts(graph) ||
        has_blocks_in_cache(pair->cand) || !(fd_graph_n_parameter(graph) * n_pos <= MOST_WORK) ||
        strcmp(fd_trace_get_info(pair->ref)->numerics, "exact") != 0 || !fd_trace_has_data(pair->ref, "logits") ||
        !fd_trace_has_data(pair->cand, "logits") || fd_trace_n_pos(pair->ref) < n_pos)
        return FD_OK;
    FD_TRY(open_emulated(pair, verdict->replay.numerics, &exec, &known, err));
    if (!known) return FD_OK;
    rows r = {.in_reference = fd_trace_find(pair->ref, "logits"),
              .in_candidate = fd_trace_find(pair->cand, "logits"),
              .reference = malloc(2 * sizeof(float) * (size_t)n_vocab),
              .least = INFINITY};
    fd_code code = r.reference ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "logits: out of memory");
    if (code == FD_OK) {
        r.candidate = r.reference + n_vocab;
        code = run(pair, exec.exec, &r, err);
    }
    if (code == FD_OK) judge(&r, verdict);
    free(r.reference);
    fd_cli_exec_close(&exec);
    return code;
}

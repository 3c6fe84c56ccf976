#include "compare/diagnose/recorded_rows.h"

#include <stdlib.h>
#include <string.h>

#include "compare/diagnose/hidden_scores.h"
#include "compare/replay/kv_types.h"

/* Rows of the finding's own node before its position may lack, as of a chunk that left its last logits: those up to the last that
 * lacks are not judged. Of what it reads none may. */
static bool may_lack(fd_recorded_rows *r, const fd_node *node, int32_t first, int32_t p) {
    const fd_node_finding *f = r->o->finding;
    if (node->id != f->node || first + p >= f->pos) return false;
    const int32_t row = first + p - r->at.pos0;
    if (row >= r->at.n_unjudged) r->at.n_unjudged = row + 1;
    return true;
}

static fd_code read_rows(fd_recorded_rows *r, const fd_node *node, float **out, fd_error *err) {
    int64_t stride = fd_node_row_stride(node, r->at.n_kv);
    int32_t first = node->op == FD_OP_KV_WRITE ? 0 : r->at.pos0, n = r->at.n_kv - first;
    int32_t in_trace = fd_asked_is_recorded(r->o, node) ? fd_trace_find(r->o->trace, node->name) : -1;
    float *rows = malloc(sizeof *rows * (size_t)(n * stride));
    double *row = malloc(2 * sizeof *row * (size_t)stride); /* and scratch after it */
    bool present = in_trace >= 0;
    fd_code code = rows && row ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "%s: explanation: out of memory", node->name);
    for (int32_t p = 0; p < n && present && code == FD_OK; p++) {
        code = fd_replay_read_row(r->o->trace, in_trace, node, first + p, r->at.n_kv, row + stride, row, &present, err);
        const bool lacks = !present && code == FD_OK && may_lack(r, node, first, p);
        for (int64_t i = 0; i < stride && present && code == FD_OK; i++) rows[p * stride + i] = (float)row[i];
        if (lacks) memset(rows + p * stride, 0, sizeof *rows * (size_t)stride);
        present |= lacks;
    }
    if (present && code == FD_OK) code = fd_hide_scores(r->o, node, first, n, r->at.n_kv, rows, err);
    free(row);
    *out = present && code == FD_OK ? rows : NULL;
    if (!*out) free(rows);
    return code;
}

static const float *tensor(void *user, int32_t node) {
    fd_recorded_rows *r = user;
    if (!r->rows[node] && r->code == FD_OK) r->code = read_rows(r, &r->o->graph->nodes[node], &r->rows[node], &r->err);
    return r->rows[node];
}

static const float *rows_before(void *user, int32_t id) {
    fd_recorded_rows *r = user;
    const fd_node *node = &r->o->graph->nodes[id];
    const int64_t stride = fd_node_row_stride(node, r->at.n_kv);
    bool present = id == r->o->finding->node && !node->over_kv && node->op != FD_OP_KV_WRITE && r->at.pos0 > 0;
    if (!present || r->before || r->code != FD_OK) return present && r->code == FD_OK ? r->before : NULL;
    float *rows = malloc(sizeof *rows * (size_t)(r->at.pos0 * stride));
    double *row = malloc(2 * sizeof *row * (size_t)stride);
    if (!rows || !row) r->code = fd_fail(&r->err, FD_ERR_MEMORY, "%s: explanation: out of memory", node->name);
    const int32_t in_trace = fd_trace_find(r->o->trace, node->name);
    for (int32_t p = 0; p < r->at.pos0 && present && r->code == FD_OK; p++) {
        r->code = fd_replay_read_row(r->o->trace, in_trace, node, p, p + 1, row + stride, row, &present, &r->err);
        for (int64_t i = 0; i < stride && present; i++) rows[p * stride + i] = (float)row[i];
    }
    free(row);
    const bool whole = present && r->code == FD_OK;
    r->before = whole ? rows : NULL;
    if (!whole) free(rows);
    return r->before;
}

static uint32_t stored(void *user, int32_t node) {
    const fd_recorded_rows *r = user;
    int32_t at = fd_trace_find(r->o->trace, r->o->graph->nodes[node].name);
    return at < 0 ? (uint32_t)FD_F64 : fd_trace_node_at(r->o->trace, at)->dtype;
}

fd_explain_request fd_recorded_question(fd_recorded_rows *r, const fd_node *node) {
    const fd_diagnose_options *o = r->o;
    fd_explain_request ask = {.output = tensor(r, node->id), /* says which rows are judged */
                              .numerics = o->numerics->exact ? NULL : o->numerics,
                              .n_output = o->n_output,
                              .op = o->op,
                              .memo = o->memo,
                              .tensor = tensor,
                              .before = rows_before,
                              .stored = stored,
                              .user = r,
                              .n_context = r->at.n_context,
                              .n_unjudged = r->at.n_unjudged,
                              .n_earlier = r->at.n_earlier,
                              .n_tokens_before = r->at.pos0,
                              .n_tokens_after = fd_trace_n_pos(o->trace) - r->at.n_kv,
                              .n_prompt = fd_prompt_length(o->trace),
                              .products = r->at.products};
    fd_kept_types(o->numerics, o->trace, o->kv_type, &ask.k_type, &ask.v_type);
    ask.args = (fd_op_args){.graph = o->graph,
                            .node = node,
                            .pos0 = r->at.pos0,
                            .n_pos = r->at.n_pos,
                            .n_kv = r->at.n_kv,
                            .row_by_row = r->at.row_by_row,
                            .batch_offset = r->at.batch_offset,
                            .first_batch = fd_trace_n_step(o->trace) > 0 ? fd_trace_steps(o->trace)[0].n_pos : 0,
                            .batch_end = r->at.batch_end,
                            .tokens = fd_trace_tokens(o->trace) + r->at.pos0};
    for (int k = 0; k < FD_MAX_INPUTS; k++)
        if (node->input[k] >= 0) ask.args.in[k] = tensor(r, node->input[k]);
    if (ask.output && node->op == FD_OP_KV_WRITE) ask.output += r->at.pos0 * fd_node_row_stride(node, r->at.n_kv);
    return ask;
}

fd_code fd_recorded_rows_open(const fd_diagnose_options *o, const fd_node *node, fd_asked_for which, int32_t most,
                              fd_recorded_rows *r, fd_error *err) {
    *r = (fd_recorded_rows){.o = o, .rows = calloc((size_t)o->graph->n_node, sizeof *r->rows)};
    if (!r->rows) return fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory");
    FD_TRY(fd_choose_rows(o, node, which, most, true, &r->at, err));
    if (!r->at.for_hidden_scores || tensor(r, node->id)) return FD_OK;
    return fd_choose_rows(o, node, which, most, false, &r->at, err); /* rows of earlier steps lack */
}

void fd_recorded_rows_close(fd_recorded_rows *r) {
    for (int32_t i = 0; r->rows && i < r->o->graph->n_node; i++) free(r->rows[i]);
    free(r->rows);
    free(r->before);
}

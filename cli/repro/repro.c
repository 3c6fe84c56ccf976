#include "cli/repro/repro.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/npy.h"
#include "cli/output.h"
#include "cli/repro/internal.h"
#include "reference_cpu/reference.h"

fd_code fd_repro_open(const fd_repro *repro, const char *name, FILE **out, char path[4096], fd_error *err) {
    if (snprintf(path, 4096, "%s/%s", repro->folder, name) >= 4096)
        return fd_fail(err, FD_ERR_INPUT, "--repro %.100s…: too long", repro->folder);
    return fd_cli_output_open(path, out, err);
}

fd_code fd_repro_put_array(const fd_repro *repro, const char *name, const double *x, int64_t n_row, int64_t n_col,
                           bool wide, fd_error *err) {
    char path[4096];
    const int64_t shape[] = {n_row ? n_row : n_col, n_col};
    if (snprintf(path, sizeof path, "%s/%s.npy", repro->folder, name) >= (int)sizeof path)
        return fd_fail(err, FD_ERR_INPUT, "--repro %.100s…: too long", repro->folder);
    return fd_cli_write_npy(path, n_row ? 2 : 1, shape, x, wide, err);
}

void fd_repro_add_size(fd_repro *repro, const char *name, double value) {
    size_t at = strlen(repro->sizes);
    snprintf(repro->sizes + at, sizeof repro->sizes - at, "%s %.17g\n", name, value);
}

static fd_code read_row(const fd_repro *repro, const fd_trace *trace, const fd_node *node, int32_t pos, double *to,
                        fd_error *err) {
    fd_error why = {0};
    int32_t at = fd_trace_find(trace, node->name);
    if (at >= 0 && fd_trace_read(trace, at, pos, NULL, to, &why) == FD_OK) return FD_OK;
    return fd_fail(err, FD_ERR_INCOMPLETE, "--repro: %s reads %s, which was not recorded at position %d",
                   repro->node->name, node->name, pos);
}

static fd_code read_inputs(fd_repro *repro, const fd_trace *trace, fd_error *err) {
    for (int k = 0; k < FD_MAX_INPUTS && repro->node->input[k] >= 0; k++) {
        const fd_node *from = &repro->graph->nodes[repro->node->input[k]];
        bool cache = from->op == FD_OP_KV_WRITE;
        int64_t width = fd_node_elements(from, repro->pos + 1), n_row = cache ? repro->pos + 1 : 1;
        repro->in[k] = malloc(sizeof(double) * (size_t)(width * n_row));
        if (!repro->in[k]) return fd_fail(err, FD_ERR_MEMORY, "--repro: out of memory");
        for (int64_t r = 0; r < n_row; r++)
            FD_TRY(read_row(repro, trace, from, cache ? (int32_t)r : repro->pos, repro->in[k] + r * width, err));
    }
    return FD_OK;
}

/* The op in binary64 on these inputs, alone. */
static fd_code compute(const fd_repro *repro, double **out, fd_error *err) {
    const fd_node *node = repro->node;
    int32_t n_kv = repro->pos + 1, half = node->rope.n_rot / 2;
    fd_op_args args = {.graph = repro->graph, .node = node, .pos0 = repro->pos, .n_pos = 1, .n_kv = n_kv};
    double *table = malloc(sizeof *table * (2 * (size_t)n_kv * (size_t)half + 1));
    /* a cache's row is written where its position is */
    size_t n_row = node->op == FD_OP_KV_WRITE ? (size_t)n_kv : 1, width = (size_t)fd_node_elements(node, n_kv);
    *out = calloc(width * n_row + 1, sizeof **out);
    if (!table || !*out) {
        free(table);
        return fd_fail(err, FD_ERR_MEMORY, "--repro: out of memory");
    }
    for (int k = 0; k < FD_MAX_INPUTS; k++) args.in[k] = repro->in[k];
    for (int k = 0; k < FD_MAX_WEIGHTS; k++)
        args.weight[k] = node->weight[k] >= 0 ? &repro->graph->weights[node->weight[k]] : NULL;
    if (node->op == FD_OP_ROPE)
        fd_rope_table_f64(&node->rope, args.weight[0], 0, n_kv, table, table + (size_t)n_kv * (size_t)half);
    args.rope_cos = table;
    args.rope_sin = table + (size_t)n_kv * (size_t)half;
    args.tokens = &repro->token;
    args.out = *out;
    fd_reference_op(FD_NUMERICS_F64, &args);
    memmove(*out, *out + width * (n_row - 1), sizeof **out * width);
    free(table);
    return FD_OK;
}

/* expected, candidate and tau of the tested elements. The replayed values may follow the class's rounding of inputs: where
 * they are from the op's own is room for rounding, too. */
static fd_code write_results(const fd_repro *repro, const fd_measured_values *m, fd_error *err) {
    const double *candidate = repro->verdict->replay.of_reference ? m->reference : m->candidate;
    double *all, expected[FD_MEASURE_VALUES], tau[FD_MEASURE_VALUES];
    int64_t skip = repro->first - m->first;
    FD_TRY(compute(repro, &all, err));
    for (int64_t i = 0; i < repro->n; i++) {
        expected[i] = all[repro->first + i];
        /* and room for another order of the sums in binary64, where τ is 0 */
        tau[i] = m->tau[skip + i] + fabs(m->replayed[skip + i] - expected[i]) + 1e-12 * fabs(expected[i]) + 1e-30;
        if (isinf(expected[i])) tau[i] = 1e-30; /* a hidden key's score: that or wrong */
    }
    free(all);
    FD_TRY(fd_repro_put_array(repro, "expected", expected, 0, repro->n, true, err));
    FD_TRY(fd_repro_put_array(repro, "tau", tau, 0, repro->n, true, err));
    return fd_repro_put_array(repro, "candidate", candidate + skip, 0, repro->n, false, err);
}

static fd_code write_all(fd_repro *repro, const fd_trace *trace, const fd_measured_values *m, fd_error *err) {
    FD_TRY(read_inputs(repro, trace, err));
    FD_TRY(fd_repro_write_arrays(repro, err));
    FD_TRY(write_results(repro, m, err));
    return fd_repro_write_scripts(repro, err);
}

fd_code fd_cli_write_repro(const fd_graph *graph, const fd_trace *trace, const fd_verdict *v, const char *folder,
                           fd_error *err) {
    int32_t node = v->divergence.kind == FD_DIVERGED_VALUES ? fd_graph_find(graph, v->divergence.node) : -1;
    if (node < 0 || !v->replay.finding[0] || v->measures.n_node != graph->n_node || !v->measures.nodes[node].values.n)
        return fd_fail(err, FD_ERR_INPUT,
                       "--repro: no op was found wrong by replay, so there is none to write a test of");
    if (v->replay.span_first[0])
        return fd_fail(err, FD_ERR_INCOMPLETE, "--repro: %s … %s is not one op; record what lies between",
                       v->replay.span_first, v->divergence.node);
    const fd_measured_values *m = &v->measures.nodes[node].values;
    fd_repro repro = {.graph = graph,
                      .node = &graph->nodes[node],
                      .verdict = v,
                      .folder = folder,
                      .pos = m->pos,
                      .token = fd_trace_tokens(trace) ? fd_trace_tokens(trace)[m->pos] : 0,
                      .first = m->first,
                      .n = m->n};
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return fd_fail(err, FD_ERR_IO, "--repro %s: %s", folder, strerror(errno));
    fd_code code = write_all(&repro, trace, m, err);
    for (int k = 0; k < FD_MAX_INPUTS; k++) free(repro.in[k]);
    if (code == FD_OK)
        fprintf(stderr, "%s: %s alone, at position %d: pytest %s\n", folder, v->divergence.node, m->pos, folder);
    return code;
}

#include "tests/compare/recorded_run.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "numerics/contract.h"
#include "reference_cpu/reference.h"

static fd_code keep(void *user, const fd_observation *seen, fd_error *err) {
    recorded_run *run = user;
    size_t size = sizeof(float) * (size_t)(seen->n_pos * seen->row_stride);
    float *copy = malloc(size ? size : 1);
    if (!copy) return fd_fail(err, FD_ERR_MEMORY, "out of memory");
    memcpy(copy, seen->data, size);
    run->rows[seen->node->id] = copy;
    return FD_OK;
}

recorded_run record_run(const fd_graph *graph, const int32_t *tokens, int32_t n_pos) {
    recorded_run run = {graph, n_pos, calloc((size_t)graph->n_node, sizeof(float *))};
    fd_reference_options options = {.numerics = FD_NUMERICS_EXACT, .n_ctx = n_pos, .n_thread = 1};
    fd_batch batch = {.tokens = tokens, .n_tok = n_pos};
    fd_error err = {0};
    fd_exec *exec;
    cr_assert_eq(fd_reference_new(graph, &options, &exec, &err), FD_OK, "%s", err.message);
    fd_exec_set_observer(exec, (fd_observer){.observe = keep, .user = &run});
    cr_assert_eq(fd_exec_forward(exec, &batch, &err), FD_OK, "%s", err.message);
    fd_exec_free(exec);
    return run;
}

void recorded_run_free(recorded_run *run) {
    for (int32_t i = 0; i < run->graph->n_node; i++) free(run->rows[i]);
    free(run->rows);
}

int32_t first_difference(const recorded_run *a, const recorded_run *b) {
    for (int32_t i = 0; i < a->graph->n_node; i++) {
        const fd_node *node = &a->graph->nodes[i];
        int64_t stride = fd_node_row_stride(node, a->n_pos);
        for (int64_t k = 0; k < a->n_pos * stride; k++) {
            if (node->over_kv && k % a->n_pos > k / stride) continue;
            if (fd_canonical32(a->rows[i][k]) != fd_canonical32(b->rows[i][k])) return i;
        }
    }
    return -1;
}

static const float *tensor(void *user, int32_t node) {
    return ((recorded_run *)user)->rows[node];
}

fd_explain_request ask_about(recorded_run *run, const fd_graph *graph, const int32_t *tokens, int32_t node) {
    fd_explain_request r = {.output = run->rows[node], .op = fd_reference_op, .tensor = tensor, .user = run};
    r.args = (fd_op_args){
        .graph = graph, .node = &graph->nodes[node], .n_pos = run->n_pos, .n_kv = run->n_pos, .tokens = tokens};
    for (int k = 0; k < FD_MAX_INPUTS; k++)
        if (graph->nodes[node].input[k] >= 0) r.args.in[k] = run->rows[graph->nodes[node].input[k]];
    return r;
}

/* One forward call: the node list in order, each node's rows made when it runs and freed after its last reader. */
#include <stdlib.h>
#include <string.h>

#include "emulate/internal.h"
#include "emulate/rounding.h"

static const fd_emulate_op ops[FD_OP_COUNT] = {
#define FD_OP(ENUM, name, n_input, summary) [FD_OP_##ENUM] = fd_emulate_##name,
#include "model/ops.def"
#undef FD_OP
};

static fd_op_args args_of(const fd_emulate *e, const fd_batch *batch, const fd_node *node) {
    fd_op_args args = {.graph = e->exec.graph,
                       .node = node,
                       .pos0 = batch->pos0,
                       .n_pos = batch->n_tok,
                       .n_kv = batch->pos0 + batch->n_tok,
                       .tokens = batch->tokens,
                       .n_ctx = e->exec.n_ctx};
    for (int i = 0; i < FD_MAX_INPUTS; i++)
        if (node->input[i] >= 0) args.in[i] = e->rows[node->input[i]];
    for (int i = 0; i < FD_MAX_WEIGHTS; i++)
        if (node->weight[i] >= 0) args.weight[i] = &e->exec.graph->weights[node->weight[i]];
    if (e->angles_of[node->id] >= 0) {
        args.rope_cos = e->angles[e->angles_of[node->id]].cos;
        args.rope_sin = e->angles[e->angles_of[node->id]].sin;
    }
    return args;
}

/* The logits of the last row alone, where nobody asks for the others: a vocabulary is wide. */
static void keep_last_row(fd_op_args *args) {
    int64_t skip = args->n_pos - 1;
    args->in[0] = (const float *)args->in[0] + skip * fd_node_row_stride(fd_emulate_input(args, 0), args->n_kv);
    args->pos0 += (int32_t)skip;
    args->n_pos = 1;
}

static fd_code run(fd_emulate *e, const fd_op_args *args, fd_error *err) {
    const fd_node *node = args->node;
    if (node->override)
        node->override(args);
    else
        FD_TRY(ops[node->op](e, args, err));
    int64_t stride = fd_node_row_stride(node, args->n_kv);
    float *out = args->out;
    if (node->op == FD_OP_TOP_K) return FD_OK; /* indices are integers in every engine */
    if (node->op != FD_OP_KV_WRITE)
        fd_round_row(e->class_.tensor, out, out, args->n_pos * stride);
    else if (node->override)
        fd_round_row(e->class_.cache, out + args->pos0 * stride, out + args->pos0 * stride, args->n_pos * stride);
    return FD_OK;
}

static void release(fd_emulate *e, int32_t id) {
    if (e->exec.graph->nodes[id].op == FD_OP_KV_WRITE) return;
    free(e->rows[id]);
    e->rows[id] = NULL;
}

static fd_code step(fd_emulate *e, const fd_batch *batch, const fd_node *node, bool all_rows, fd_error *err) {
    fd_op_args args = args_of(e, batch, node);
    bool last = node->id == e->exec.graph->n_node - 1;
    if (last && !all_rows && node->op == FD_OP_MATMUL) keep_last_row(&args);
    if (node->op != FD_OP_KV_WRITE) {
        size_t n = (size_t)(args.n_pos * fd_node_row_stride(node, args.n_kv));
        e->rows[node->id] = calloc(n, sizeof(float));
        if (!e->rows[node->id]) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory for %zu elements", node->name, n);
    }
    args.out = e->rows[node->id];
    FD_TRY(run(e, &args, err));
    FD_TRY(fd_exec_show(&e->exec, &args, err));
    if (last && batch->logits) {
        int64_t n_vocab = e->exec.graph->hparams.n_vocab, n_row = batch->all_logits ? args.n_pos : 1;
        memcpy(batch->logits, (const float *)args.out + (args.n_pos - n_row) * n_vocab,
               sizeof(float) * (size_t)(n_row * n_vocab));
    }
    return FD_OK;
}

fd_code fd_emulate_forward(fd_exec *exec, const fd_batch *batch, fd_error *err) {
    fd_emulate *e = (fd_emulate *)exec;
    const fd_graph *graph = exec->graph;
    bool all_rows = batch->all_logits || exec->observer.observe;
    fd_code code = FD_OK;
    e->batch = e->class_.batch_kernels && batch->n_tok > 1;
    for (int32_t i = 0; i < graph->n_node && code == FD_OK; i++) {
        code = step(e, batch, &graph->nodes[i], all_rows, err);
        for (int k = 0; k < FD_MAX_INPUTS; k++) {
            int32_t input = graph->nodes[i].input[k];
            if (input >= 0 && e->last_reader[input] == i) release(e, input);
        }
    }
    for (int32_t i = 0; i < graph->n_node; i++) release(e, i); /* nodes that nothing reads, or what a failure left */
    return code;
}

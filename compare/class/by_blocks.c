/* A bug of a product, asked with its int8 blocks repeated. */
#include "compare/class/by_bug.h"

fd_code fd_explain_by_blocks(const fd_diagnose_options *ask, fd_explanation *e, fd_error *err) {
    const fd_node_finding *f = ask->finding;
    const bool product = ask->graph->nodes[f->node].op == FD_OP_MATMUL && f->span_first == f->node;
    fd_diagnose_options tight = *ask;
    fd_explanation other;
    if (e->named || !product || !ask->numerics->q8_activations || fd_class_leaves_nothing(ask->numerics)) return FD_OK;
    tight.numerics = fd_numerics_class_find("ggml-cpu-f32kv");
    FD_TRY(fd_diagnose(&tight, &other, err));
    if (other.named) *e = other;
    return FD_OK;
}

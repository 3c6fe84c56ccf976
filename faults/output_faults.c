/* Bugs of the last norm and of the logits. */
#include "faults/internal.h"

#include <math.h>
#include <stdlib.h>

#include "numerics/contract.h"

static void scaled_logits(const fd_op_args *args) {
    const fd_weight *w = args->weight[0];
    float scale = 1.0f / sqrtf((float)w->n_col);
    for (int64_t o = 0; o < w->n_row; o++) {
        float *row = fd_fault_row(w, o);
        for (int32_t r = 0; r < args->n_pos; r++)
            ((float *)args->out)[r * w->n_row + o] =
                row ? fd_fault_dot(row, (const float *)args->in[0] + r * w->n_col, w->n_col) * scale : NAN;
        free(row);
    }
}

/* Logits from the stream before the last norm: the right tensor is computed, the wrong one read. */
static void unnormed(fd_fault_site *site) {
    const fd_node *norm = &site->graph->nodes[site->node->input[0]];
    if (norm->op == FD_OP_RMS_NORM) site->node->input[0] = norm->input[0];
}

#define OUTPUT(name, located, summary) .info = {name, "output", summary, located, true}, .nodes = located

static const fd_fault rows[] = {
    {OUTPUT("final_norm_missing", "output_norm", "the last norm is left out"), .op = FD_OP_RMS_NORM,
     .override = fd_fault_copy},
    {OUTPUT("logits_unnormed", "logits logits_raw", "the logits are computed from the stream before the last norm"),
     .op = FD_OP_MATMUL, .edit = unnormed},
    {OUTPUT("logit_scale", "logits logits_raw",
            "the logits are scaled by 1/sqrt(n_embd), which this architecture does not do"),
     .op = FD_OP_MATMUL, .override = scaled_logits},
    {OUTPUT("final_softcap_missing", "logits", "the logits are not capped by cap·tanh(x / cap)"), .op = FD_OP_SOFTCAP,
     .override = fd_fault_copy},
};
const fd_fault_family fd_output_faults = FD_FAULT_FAMILY(rows);

/* Bugs of the last norm and of the logits. */
#include "faults/internal.h"

#include <math.h>
#include <stdlib.h>

#include "numerics/contract.h"

/* y = finish(dot(W, x) + b); n is the length of x. */
static void logits_with(const fd_op_args *args, float (*finish)(float y, int64_t n)) {
    const fd_weight *w = args->weight[0];
    float *bias = args->weight[1] ? fd_fault_row(args->weight[1], 0) : NULL;
    for (int64_t o = 0; o < w->n_row; o++) {
        float *row = fd_fault_row(w, o);
        for (int32_t r = 0; r < args->n_pos; r++) {
            float *y = (float *)args->out + r * w->n_row + o;
            *y = row ? fd_fault_dot(row, (const float *)args->in[0] + r * w->n_col, w->n_col) : NAN;
            *y = finish(bias ? *y + bias[o] : *y, w->n_col);
        }
        free(row);
    }
    free(bias);
}
static float over_root_of_width(float y, int64_t n) {
    return y * (1.0f / sqrtf((float)n));
}
static float capped_by_30(float y, int64_t n) {
    (void)n;
    return fd_softcap32(y, 30.0f);
}
FD_OVERRIDE(scaled_logits, logits_with(args, over_root_of_width))
FD_OVERRIDE(capped_logits, logits_with(args, capped_by_30))

/* Logits from the stream before the last norm: the right tensor is computed, the wrong one read. */
static void unnormed(fd_fault_site *site) {
    const fd_node *norm = &site->graph->nodes[site->node->input[0]];
    if (fd_node_is_norm(norm)) site->node->input[0] = norm->input[0];
}
FD_APPLIES(is_norm, fd_node_is_norm(node))

#define OUTPUT(name, located, summary) .info = {name, "output", summary, located, true}, .nodes = located

static const fd_fault rows[] = {
    {OUTPUT("final_norm_missing", "output_norm", "the last norm is left out"), .op = FD_OP_COUNT, .applies = is_norm,
     .override = fd_fault_copy},
    {OUTPUT("logits_unnormed", "logits logits_raw", "the logits are computed from the stream before the last norm"),
     .op = FD_OP_MATMUL, .edit = unnormed},
    {OUTPUT("logit_scale", "logits logits_raw",
            "the logits are scaled by 1/sqrt(n_embd), which this architecture does not do"),
     .op = FD_OP_MATMUL, .override = scaled_logits},
    {OUTPUT("final_softcap_30", "logits",
            "the logits are capped by 30·tanh(x / 30), which this architecture does not do"),
     .op = FD_OP_MATMUL, .override = capped_logits},
    {OUTPUT("final_softcap_missing", "logits", "the logits are not capped by cap·tanh(x / cap)"), .op = FD_OP_SOFTCAP,
     .override = fd_fault_copy, .info.hardly = true},
};
const fd_fault_family fd_output_faults = FD_FAULT_FAMILY(rows);

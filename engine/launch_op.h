/* A node by its op's kernel: what a launcher is given, and one launcher an op of model/ops.def. */
#ifndef FD_ENGINE_LAUNCH_OP_H
#define FD_ENGINE_LAUNCH_OP_H

#include "engine/pass.h"

/* A node of a pass. */
typedef struct fd_node_job {
    fd_pass *pass;
    const fd_node *node;
    bool int8;           /* a product of int8 blocks */
    int32_t n_tok;       /* rows it computes */
    const int32_t *pos0; /* device: position of the first of them */
    const float *in[FD_MAX_INPUTS];
    float *out;
    uint16_t *half; /* binary16, of ops that leave their result so; NULL: no one reads it */
} fd_node_job;

static inline const fd_node *fd_job_input(const fd_node_job *job, int i) {
    return fd_pass_node(job->pass, job->node->input[i]);
}

/* Elements of a row of a node that does not run over positions. */
static inline int64_t fd_job_row(const fd_node *node) {
    return fd_node_row_stride(node, 0);
}

/* launch_op.c; launch_recurrent.c: those of model/ops.def from SLICE on that are no activation. */
#define FD_OP(ENUM, name, n_input, summary) fd_code fd_launch_op_##name(const fd_node_job *job, fd_error *err);
#include "model/ops.def"
#undef FD_OP

#endif

#include "tests/ops/op_case_parts.h"

static void set_ids(op_case *c) {
    int64_t n = (int64_t)c->args.n_pos * CASE_CHOSEN;
    float *ids = case_own(c, sizeof *ids * (size_t)n);
    for (int64_t i = 0; i < n; i++) {
        int32_t first = (int32_t)(i / CASE_CHOSEN * 5 + 3), rank = (int32_t)(i % CASE_CHOSEN);
        ids[i] = (float)((first + 3 * rank) % CASE_EXPERTS); /* 3 and 8 have no common divisor */
    }
    case_set_input(c, 1, ids, n, 1, CASE_CHOSEN, 0);
    c->nodes[1].op = FD_OP_TOP_K;
    c->graph.hparams.n_expert = CASE_EXPERTS;
}

op_case *case_top_k(int32_t n_pos) {
    op_case *c = case_new(FD_OP_TOP_K, 0, n_pos);
    int64_t n = (int64_t)CASE_EXPERTS * n_pos;
    case_set_input(c, 0, case_floats(c, n), n, 1, CASE_EXPERTS, 0);
    case_set_shape(c, 1, CASE_CHOSEN, 0);
    return c;
}

op_case *case_expert_weights(fd_gating gating, float scale, int32_t n_pos) {
    op_case *c = case_new(FD_OP_EXPERT_WEIGHTS, 0, n_pos);
    int64_t n = (int64_t)CASE_EXPERTS * n_pos;
    case_set_input(c, 0, case_floats(c, n), n, 1, CASE_EXPERTS, 0);
    for (int64_t i = 0; i < n && gating != FD_GATING_SOFTMAX; i++) c->in[0][i] = fabsf(c->in[0][i]);
    set_ids(c);
    case_set_shape(c, 1, CASE_CHOSEN, 0);
    c->nodes[2].gating = gating;
    c->nodes[2].scale = scale;
    return c;
}

op_case *case_expert_matmul(uint32_t dtype, int32_t n_in, int32_t n_out, int32_t n_pos, bool own_rows, int bias) {
    op_case *c = case_new(FD_OP_EXPERT_MATMUL, 0, n_pos);
    int64_t n = (int64_t)n_pos * n_in * (own_rows ? CASE_CHOSEN : 1);
    float *x = case_floats(c, n);
    if (own_rows)
        case_set_input(c, 0, x, n, 2, CASE_CHOSEN, n_in);
    else
        case_set_input(c, 0, x, n, 1, n_in, 0);
    set_ids(c);
    case_set_weight(c, 0, dtype, (int64_t)CASE_EXPERTS * n_out, n_in);
    if (bias >= 0) case_set_weight(c, 1, (uint32_t)bias, CASE_EXPERTS, n_out);
    case_set_shape(c, 2, CASE_CHOSEN, n_out);
    return c;
}

op_case *case_expert_sum(int32_t n, int32_t n_pos) {
    op_case *c = case_new(FD_OP_EXPERT_SUM, 0, n_pos);
    int64_t rows = (int64_t)n_pos * CASE_CHOSEN;
    case_set_input(c, 0, case_floats(c, rows * n), rows * n, 2, CASE_CHOSEN, n);
    case_set_input(c, 1, case_floats(c, rows), rows, 1, CASE_CHOSEN, 0);
    case_set_shape(c, 1, n, 0);
    return c;
}

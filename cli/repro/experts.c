/* What the tested elements of a mixture of experts' ops need. */
#include "cli/repro/internal.h"
#include "model/weight_rows.h"

fd_code fd_repro_write_row_softmax(fd_repro *r, fd_error *err) {
    int64_t width = r->node->shape[r->node->n_dim - 1];
    fd_repro_keep_part(r, width);
    fd_repro_add_size(r, "N_IN", (double)width);
    fd_repro_add_size(r, "SINK", -1e30);
    return fd_repro_put_array(r, "x", r->in[0] + r->head * width, 0, width, false, err);
}

fd_code fd_repro_write_top_k(fd_repro *r, fd_error *err) {
    const fd_node *node = r->node, *router = &r->graph->nodes[node->input[0]];
    fd_repro_keep_part(r, node->shape[0]);
    fd_repro_add_size(r, "N_IN", (double)fd_node_width(router));
    fd_repro_add_size(r, "GROUPS", node->n_group ? node->n_group : 1);
    fd_repro_add_size(r, "GROUPS_USED", node->n_group ? node->n_group_used : 1);
    return fd_repro_put_array(r, "x", r->in[0], 0, fd_node_width(router), false, err);
}

/* FD_ERR_INPUT: the id of rank r names no expert. */
static fd_code expert_of(const fd_repro *r, int64_t rank, int64_t n_expert, int64_t *expert, fd_error *err) {
    *expert = fd_expert_of(r->in[1][rank], n_expert);
    if (*expert >= 0) return FD_OK;
    return fd_fail(err, FD_ERR_INPUT, "--repro: %s: rank %lld is no expert's", r->node->name, (long long)rank);
}

/* x: the router's elements of the chosen. */
fd_code fd_repro_write_expert_weights(fd_repro *r, fd_error *err) {
    enum { MOST = 256 };
    const fd_node *node = r->node, *router = &r->graph->nodes[node->input[0]];
    double x[MOST];
    int64_t expert;
    if (node->shape[0] > MOST) return fd_fail(err, FD_ERR_UNSUPPORTED, "--repro: %d chosen experts", node->shape[0]);
    for (int32_t k = 0; k < node->shape[0]; k++) {
        FD_TRY(expert_of(r, k, fd_node_width(router), &expert, err));
        x[k] = r->in[0][expert];
    }
    fd_repro_keep_part(r, node->shape[0]);
    fd_repro_add_size(r, "N_IN", node->shape[0]);
    fd_repro_add_size(r, "SCALE", (double)node->scale);
    fd_repro_add_size(r, "NORMALISED", node->gating == FD_GATING_NORMALISED);
    fd_repro_add_size(r, "SOFTMAX", node->gating == FD_GATING_SOFTMAX);
    return fd_repro_put_array(r, "x", x, 0, node->shape[0], false, err);
}

fd_code fd_repro_write_expert_matmul(fd_repro *r, fd_error *err) {
    const fd_weight *w = fd_repro_weight(r, 0), *bias = fd_repro_weight(r, 1);
    const fd_node *from = &r->graph->nodes[r->node->input[0]];
    int64_t n_out = r->node->shape[1], expert;
    double b[FD_MEASURE_VALUES] = {0};
    fd_repro_keep_part(r, n_out);
    FD_TRY(expert_of(r, r->head, w->n_row / n_out, &expert, err));
    for (int64_t i = 0; i < r->n && bias; i++) b[i] = (double)fd_weight_row_element(bias, expert, r->offset + i);
    const double *x = r->in[0] + (from->n_dim == 2 && from->shape[0] > 1 ? r->head * w->n_col : 0);
    fd_repro_add_size(r, "N_IN", (double)w->n_col);
    FD_TRY(fd_repro_put_array(r, "x", x, 0, w->n_col, false, err));
    FD_TRY(fd_repro_put_array(r, "bias", b, 0, r->n, false, err));
    return fd_repro_put_weight(r, w, expert * n_out + r->offset, r->n, err);
}

/* As attention's weighted sum, over the ranks. */
fd_code fd_repro_write_expert_sum(fd_repro *r, fd_error *err) {
    int64_t width = r->node->shape[0], n_chosen = fd_node_width(&r->graph->nodes[r->node->input[1]]);
    fd_repro_add_size(r, "N_IN", (double)n_chosen);
    FD_TRY(fd_repro_put_array(r, "p", r->in[1], 0, n_chosen, false, err));
    const fd_repro_columns v = {r->in[0], n_chosen, width, r->first, r->n};
    return fd_repro_put_columns(r, "v", &v, err);
}

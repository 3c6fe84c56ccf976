/* Products of int8 blocks of activations and quantised weights (docs/numerics.md), and which ones are: in q8act all
 * that can, in fast numerics those that are faster so for a single token. There routers stay exact, and what follows
 * the last layer, of which a traced prompt shows every row. */
#include "engine/edges.h"
#include "engine/pass.h"
#include "kernels/int8/q8.h"

/* The products of an item run as one, so they are chosen as one. */
static bool is_chosen(const fd_launch_context *ctx, const fd_plan *step, const fd_item *item, fd_int8 where) {
    const fd_graph *graph = step->graph;
    const fd_weight *first = &graph->weights[graph->nodes[item->matmul[0]].weight[0]];
    int64_t n_row = 0;
    for (int i = 0; i < item->n_matmul; i++) {
        int32_t id = item->matmul[i];
        if (!step->all_rows[id] || fd_feeds_choice(graph, id)) return false;
        n_row += graph->weights[graph->nodes[id].weight[0]].n_row;
    }
    if (!fd_q8_can(first->dtype)) return false;
    return where == FD_INT8_ALWAYS || fd_q8_matvec_is_faster(ctx, first->dtype, n_row, first->n_col);
}

void fd_int8_choose_all(const fd_graph *graph, bool *int8) {
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        if (node->op == FD_OP_MATMUL || node->op == FD_OP_EXPERT_MATMUL)
            int8[i] = fd_q8_can(graph->weights[node->weight[0]].dtype);
    }
}

void fd_int8_choose_faster(const fd_launch_context *ctx, const fd_plan *step, fd_int8 where, bool *int8) {
    for (int32_t i = 0; i < step->n_item && where != FD_INT8_NEVER; i++) {
        const fd_item *item = &step->items[i];
        if (item->kernel != FD_KERNEL_MATVEC || !is_chosen(ctx, step, item, where)) continue;
        for (int k = 0; k < item->n_matmul; k++) int8[item->matmul[k]] = true;
    }
}

void fd_int8_agree(const fd_plan *const *plans, int n_plan, bool *int8) {
    bool changed = true;
    while (changed) {
        changed = false;
        for (int p = 0; p < n_plan; p++)
            for (int32_t i = 0; i < plans[p]->n_item; i++) {
                const fd_item *item = &plans[p]->items[i];
                int n = 0;
                for (int k = 0; k < item->n_matmul; k++) n += int8[item->matmul[k]];
                if (n == 0 || n == item->n_matmul) continue;
                for (int k = 0; k < item->n_matmul; k++) int8[item->matmul[k]] = false;
                changed = true;
            }
    }
}

/* ---- the products ---- */

/* A row goes through the kernel that quantises it on the way in. */
static fd_code launch_row(fd_pass *pass, const fd_matmul *in, fd_error *err) {
    for (int i = 0; i < in->n_part; i++) {
        fd_matvec one = {.x = in->x, .n_tok = 1, .n_part = 1};
        one.part[0] = (fd_matvec_part){.weight = in->part[i].weight, .bias = in->part[i].bias, .out = in->part[i].out};
        FD_TRY(fd_launch_q8_matvec(&pass->ctx, &one, NULL, err));
    }
    return FD_OK;
}

fd_code fd_launch_int8_products(fd_pass *pass, int32_t input, const fd_matmul *in, fd_error *err) {
    if (in->n_tok == 1) return launch_row(pass, in, err);
    int64_t n_col = in->part[0].weight.n_col;
    fd_q8_matmul q8 = {.product = *in, .x = fd_q8_rows_at(pass->q8_rows, n_col, in->n_tok)};
    if (pass->q8_node != input || pass->q8_n_tok != in->n_tok)
        FD_TRY(fd_launch_q8_quantize(&pass->ctx, in->x, in->n_tok, n_col, &q8.x, err));
    pass->q8_node = input;
    pass->q8_n_tok = in->n_tok;
    return fd_launch_q8_matmul(&pass->ctx, &q8, err);
}

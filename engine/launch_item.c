/* From fused items to kernels. */
#include "engine/fast.h"
#include "engine/internal.h"
#include "kernels/matmul/matmul.h"
#include "kernels/elementwise/norm.h"
#include "kernels/elementwise/rope_kv_write.h"

static fd_matvec item_matvec(const fd_engine *engine, const fd_run *run, const fd_item *item) {
    const fd_node *nodes = engine->exec.graph->nodes;
    const fd_node *first = &nodes[item->matvec.matmul[0]];
    fd_matvec in = {.n_tok = run->n_tok, .n_part = item->matvec.n_matmul, .silu_pair = item->matvec.silu >= 0};
    if (item->matvec.norm >= 0) {
        const fd_node *norm = &nodes[item->matvec.norm];
        in.x = fd_run_tensor(engine, run, norm->input[0]);
        in.norm_weight = fd_engine_vector(engine, norm->weight[0]);
        in.norm_eps = norm->eps;
        in.norm_out = run->tensors ? fd_run_tensor(engine, run, norm->id) : NULL;
    } else {
        in.x = fd_run_tensor(engine, run, first->input[0]);
    }
    bool inside = in.silu_pair || item->matvec.add >= 0; /* the products, if they go on into silu or a sum */
    for (int i = 0; i < in.n_part; i++) {
        const fd_node *node = &nodes[item->matvec.matmul[i]];
        in.part[i].weight = *fd_node_matrix(engine, node);
        in.part[i].bias = fd_engine_vector(engine, node->weight[1]);
        in.part[i].product = inside && run->tensors ? fd_run_tensor(engine, run, node->id) : NULL;
        in.part[i].out = inside ? NULL : fd_run_tensor(engine, run, node->id);
    }
    if (in.silu_pair) in.part[0].out = fd_run_tensor(engine, run, item->matvec.silu);
    if (item->matvec.add >= 0) {
        const fd_node *add = &nodes[item->matvec.add];
        int32_t other = add->input[0] == first->id ? add->input[1] : add->input[0];
        in.part[0].residual = fd_run_tensor(engine, run, other);
        in.part[0].out = fd_run_tensor(engine, run, add->id);
    }
    return in;
}

static fd_attn_decode item_attention(const fd_engine *engine, const fd_run *run, const fd_item *item) {
    const fd_node *nodes = engine->exec.graph->nodes;
    const fd_node *q_rope = &nodes[item->attention.q_rope], *k_rope = &nodes[item->attention.k_rope];
    const fd_node *cache_v = &nodes[item->attention.cache_v];
    bool kept = run->tensors != NULL;
    return (fd_attn_decode){.short_context = run->near,
                            .n_head = q_rope->shape[0],
                            .n_head_kv = k_rope->shape[0],
                            .head_dim = q_rope->shape[1],
                            .n_ctx = engine->exec.n_ctx,
                            .q_rope = fd_node_rope(engine, item->attention.q_rope),
                            .k_rope = fd_node_rope(engine, item->attention.k_rope),
                            .q = fd_run_tensor(engine, run, q_rope->input[0]),
                            .k = fd_run_tensor(engine, run, k_rope->input[0]),
                            .v = fd_run_tensor(engine, run, cache_v->input[0]),
                            .cache_k = engine->cache[item->attention.cache_k],
                            .cache_v = engine->cache[item->attention.cache_v],
                            .pos = run->positions ? run->positions : run->inputs + FD_INPUT_FIRST,
                            .scale = nodes[item->attention.scores].scale,
                            .scratch = engine->attention_scratch,
                            .out = fd_run_tensor(engine, run, item->attention.mix),
                            .n_seq = run->n_tok,
                            .sequences = run->sequences           ? run->sequences
                                         : engine->exec.n_seq > 1 ? run->inputs + FD_INPUT_SEQUENCE
                                                                  : NULL,
                            .cache_stride = fd_cache_floats(engine, item->attention.cache_k),
                            .scratch_stride =
                                (int64_t)(fd_scratch_bytes(engine->exec.graph, engine->exec.n_ctx) / sizeof(float)),
                            .q_out = kept ? fd_run_tensor(engine, run, item->attention.q_rope) : NULL,
                            .k_out = kept ? fd_run_tensor(engine, run, item->attention.k_rope) : NULL,
                            .scores_out = kept ? fd_run_tensor(engine, run, item->attention.scores) : NULL,
                            .weights_out = kept ? fd_run_tensor(engine, run, item->attention.softmax) : NULL};
}

/* ---- many rows ---- */

static fd_code launch_products(const fd_engine *engine, const fd_run *run, const fd_item *item, fd_error *err) {
    const fd_node *nodes = engine->exec.graph->nodes;
    fd_matmul in = {.n_tok = run->n_tok, .n_part = item->matvec.n_matmul};
    in.x = fd_run_tensor(engine, run, nodes[item->matvec.matmul[0]].input[0]);
    for (int i = 0; i < in.n_part; i++) {
        const fd_node *node = &nodes[item->matvec.matmul[i]];
        in.part[i] = (fd_matmul_part){.weight = *fd_node_matrix(engine, node),
                                      .bias = fd_engine_vector(engine, node->weight[1]),
                                      .out = fd_run_tensor(engine, run, node->id)};
    }
    return fd_launch_matmul(run->queue, &in, err);
}

static fd_code launch_add_norm(const fd_engine *engine, const fd_run *run, const fd_item *item, fd_error *err) {
    const fd_node *add = &engine->exec.graph->nodes[item->node], *norm = &engine->exec.graph->nodes[item->matvec.norm];
    fd_rms_norm in = {.x = fd_run_tensor(engine, run, add->input[0]),
                      .weight = fd_engine_vector(engine, norm->weight[0]),
                      .eps = norm->eps,
                      .n_tok = run->n_tok,
                      .n = norm->shape[0]};
    return fd_launch_add_rms_norm(run->queue, &in, fd_run_tensor(engine, run, add->input[1]),
                                  fd_run_tensor(engine, run, add->id), fd_run_tensor(engine, run, norm->id), err);
}

static fd_code launch_turn(const fd_engine *engine, const fd_run *run, const fd_item *item, fd_error *err) {
    const fd_node *q = &engine->exec.graph->nodes[item->node];
    fd_rope_kv_write in = {.q_rope = fd_node_rope(engine, q->id),
                           .k_rope = fd_node_rope(engine, q[1].id),
                           .n_tok = run->n_tok,
                           .n_ctx = engine->exec.n_ctx,
                           .pos0 = run->inputs + FD_INPUT_FIRST,
                           .q = fd_run_tensor(engine, run, q->input[0]),
                           .k = fd_run_tensor(engine, run, q[1].input[0]),
                           .v = fd_run_tensor(engine, run, q[3].input[0]),
                           .q_out = fd_run_tensor(engine, run, q->id),
                           .k_out = fd_run_tensor(engine, run, q[1].id),
                           .cache_k = fd_run_tensor(engine, run, q[2].id),
                           .cache_v = fd_run_tensor(engine, run, q[3].id)};
    return fd_launch_rope_kv_write(run->queue, &in, err);
}

/* Each node as it is alone. */
static fd_code launch_apart(const fd_engine *engine, const fd_run *run, const int32_t *nodes, int n, fd_error *err) {
    for (int i = 0; i < n; i++)
        if (fd_run_rows(engine, run, nodes[i]) != FD_ROWS_NONE) FD_TRY(fd_launch_node(engine, run, nodes[i], err));
    return FD_OK;
}

static fd_code launch_rows(const fd_engine *engine, const fd_run *run, const fd_item *item, fd_error *err) {
    int32_t nodes[FD_ITEM_EDGES];
    int n = fd_item_writes(item, nodes);
    bool together = item->kind != FD_ITEM_PRODUCTS ||
                    !fd_engine_in_q8(engine, &engine->exec.graph->nodes[item->node]);
    for (int i = 0; i < n; i++) together = together && fd_run_rows(engine, run, nodes[i]) == FD_ROWS_ALL;
    if (!together) return launch_apart(engine, run, nodes, n, err);
    fd_code code = item->kind == FD_ITEM_PRODUCTS   ? launch_products(engine, run, item, err)
                   : item->kind == FD_ITEM_ADD_NORM ? launch_add_norm(engine, run, item, err)
                                                    : launch_turn(engine, run, item, err);
    return code == FD_OK ? FD_OK : fd_error_prefix(err, "node %s", engine->exec.graph->nodes[item->node].name);
}

fd_code fd_launch_item(const fd_engine *engine, const fd_run *run, const fd_item *item, fd_error *err) {
    if (item->kind == FD_ITEM_NODE) return fd_launch_node(engine, run, item->node, err);
    if (item->kind != FD_ITEM_MATVEC && item->kind != FD_ITEM_ATTENTION) return launch_rows(engine, run, item, err);
    fd_code code;
    if (item->kind == FD_ITEM_MATVEC) {
        fd_matvec in = item_matvec(engine, run, item);
        bool q8 = fd_engine_in_q8(engine, &engine->exec.graph->nodes[item->matvec.matmul[0]]);
        code = q8 ? fd_launch_q8_matvec(run->queue, &in, NULL, err)
                  : fd_launch_matvec(run->queue, &in, NULL, err);
    } else if (engine->fast) {
        code = fd_fast_step_attention(engine, run, item, err);
    } else {
        fd_attn_decode in = item_attention(engine, run, item);
        code = fd_launch_attn_decode(run->queue, &in, err);
    }
    return code == FD_OK ? FD_OK : fd_error_prefix(err, "node %s", engine->exec.graph->nodes[item->node].name);
}

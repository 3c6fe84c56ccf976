/* From fused items to kernels. */
#include "engine/pass.h"
#include "kernels/attention/attention.h"
#include "kernels/elementwise/norm.h"
#include "kernels/elementwise/rope_kv_write.h"
#include "kernels/int8/q8.h"
#include "kernels/matmul/matmul.h"

static int32_t other_input(const fd_node *node, int32_t id) {
    return node->input[0] == id ? node->input[1] : node->input[0];
}

fd_code fd_run_matvec(fd_pass *pass, const fd_item *item, fd_error *err) {
    fd_matvec in = {.n_tok = pass->n_tok, .n_part = item->n_matmul, .silu_pair = item->silu >= 0};
    const fd_node *first = fd_pass_node(pass, item->norm >= 0 ? item->norm : item->matmul[0]);
    in.x = fd_pass_tensor(pass, first->input[0]);
    if (item->norm >= 0) {
        in.norm_weight = fd_pass_vector(pass, first->weight[0]);
        in.norm_eps = first->eps;
        in.norm_out = fd_pass_inner(pass, first->id);
    }
    int32_t result = item->silu >= 0 ? item->silu : item->add; /* what the products go on into */
    for (int i = 0; i < in.n_part; i++) {
        const fd_node *node = fd_pass_node(pass, item->matmul[i]);
        in.part[i] =
            (fd_matvec_part){.weight = *fd_pass_matrix(pass, node), .bias = fd_pass_vector(pass, node->weight[1])};
        if (result >= 0)
            in.part[i].product = fd_pass_inner(pass, node->id);
        else
            in.part[i].out = fd_pass_tensor(pass, node->id);
    }
    if (result >= 0) in.part[0].out = fd_pass_tensor(pass, result);
    if (item->add >= 0)
        in.part[0].residual = fd_pass_tensor(pass, other_input(fd_pass_node(pass, item->add), item->matmul[0]));
    in.send = fd_ranks_send(pass, item);
    if (in.send.n_rank > 0 && item->sent_sum >= 0) {
        int32_t gather = item->matmul[0] + 1;
        in.part[0].residual =
            fd_pass_tensor(pass, other_input(fd_pass_node(pass, item->sent_sum), gather)) + in.send.first;
    }
    return item->int8 ? fd_launch_q8_matvec(&pass->ctx, &in, NULL, err) : fd_launch_matvec(&pass->ctx, &in, NULL, err);
}

fd_code fd_run_attn_decode(fd_pass *pass, const fd_item *item, fd_error *err) {
    const fd_engine *e = pass->engine;
    const fd_node *q_rope = fd_pass_node(pass, item->q_rope), *k_rope = fd_pass_node(pass, item->k_rope);
    const fd_node *cache = fd_pass_node(pass, item->cache_k);
    const bool halves = fd_cache_is_half(cache, false);
    fd_attn_decode in = {
        .short_context = pass->short_context,
        .n_head = q_rope->shape[0],
        .n_head_kv = k_rope->shape[0],
        .head_dim = q_rope->shape[1],
        .n_ctx = e->exec.n_ctx,
        .q_rope = fd_pass_rope(pass, item->q_rope),
        .k_rope = fd_pass_rope(pass, item->k_rope),
        .q = fd_pass_tensor(pass, item->q),
        .k = fd_pass_tensor(pass, item->k),
        .v = fd_pass_tensor(pass, item->v),
        .cache_k = e->state.cache[item->cache_k],
        .cache_v = e->state.cache[item->cache_v],
        .halves = halves,
        .pos = pass->positions ? pass->positions : pass->inputs + FD_INPUT_FIRST,
        .scale = fd_pass_node(pass, item->scores)->scale,
        .scratch = e->state.attention_scratch,
        .out = fd_pass_tensor(pass, item->mix),
        .send = fd_ranks_send(pass, item),
        .n_seq = pass->n_tok,
        .sequences = pass->sequences     ? pass->sequences
                     : e->exec.n_seq > 1 ? pass->inputs + FD_INPUT_SEQUENCE
                                         : NULL,
        .cache_stride = (int64_t)(fd_cache_bytes(cache, e->exec.n_ctx, halves) / (halves ? 2 : sizeof(float))),
        .scratch_stride = (int64_t)(fd_attention_scratch_bytes(e->exec.graph, e->exec.n_ctx) / sizeof(float)),
        .q_out = fd_pass_inner(pass, item->q_rope),
        .k_out = fd_pass_inner(pass, item->k_rope),
        .scores_out = fd_pass_inner(pass, item->scores),
        .weights_out = fd_pass_inner(pass, item->softmax)};
    return fd_launch_attn_decode(&pass->ctx, &in, err);
}

fd_code fd_run_gather_add(fd_pass *pass, const fd_item *item, fd_error *err) {
    fd_gather in = fd_ranks_gather(pass, item->gather, fd_pass_tensor(pass, item->gather - 1), NULL, pass->n_tok);
    if (in.x) in.plus = fd_pass_tensor(pass, other_input(fd_pass_node(pass, item->add), item->gather));
    in.to[in.send.rank] = fd_pass_tensor(pass, item->add); /* through pages each rank writes to its own tensor alone */
    return fd_ranks_launch_gather(pass, item->gather, &in, err);
}

/* ---- many rows ---- */

fd_code fd_run_matmuls(fd_pass *pass, const fd_item *item, fd_error *err) {
    fd_matmul in = {.n_tok = pass->n_tok, .n_part = item->n_matmul};
    in.x = fd_pass_tensor(pass, fd_pass_node(pass, item->node)->input[0]);
    for (int i = 0; i < in.n_part; i++) {
        const fd_node *node = fd_pass_node(pass, item->matmul[i]);
        in.part[i] = (fd_matmul_part){.weight = *fd_pass_matrix(pass, node),
                                      .bias = fd_pass_vector(pass, node->weight[1]),
                                      .out = fd_pass_tensor(pass, node->id)};
    }
    return fd_launch_products(pass, item->node, item->int8, &in, err);
}

fd_code fd_run_add_norm(fd_pass *pass, const fd_item *item, fd_error *err) {
    const fd_node *add = fd_pass_node(pass, item->add), *norm = fd_pass_node(pass, item->norm);
    fd_rms_norm in = {.x = fd_pass_tensor(pass, add->input[0]),
                      .weight = fd_pass_vector(pass, norm->weight[0]),
                      .eps = norm->eps,
                      .n_tok = pass->n_tok,
                      .n = norm->shape[0]};
    return fd_launch_add_rms_norm(&pass->ctx, &in, fd_pass_tensor(pass, add->input[1]), fd_pass_tensor(pass, add->id),
                                  fd_pass_tensor(pass, norm->id), err);
}

fd_code fd_run_rope_kv_write(fd_pass *pass, const fd_item *item, fd_error *err) {
    fd_rope_kv_write in = {.q_rope = fd_pass_rope(pass, item->q_rope),
                           .k_rope = fd_pass_rope(pass, item->k_rope),
                           .n_tok = pass->n_tok,
                           .n_ctx = pass->engine->exec.n_ctx,
                           .pos0 = pass->inputs + FD_INPUT_FIRST,
                           .q = fd_pass_tensor(pass, item->q),
                           .k = fd_pass_tensor(pass, item->k),
                           .v = fd_pass_tensor(pass, item->v),
                           .q_out = fd_pass_tensor(pass, item->q_rope),
                           .k_out = fd_observed_tensor(pass, item->k_rope),
                           .halves = fd_cache_is_half(fd_pass_node(pass, item->cache_k), pass->engine->fast),
                           .cache_k = fd_pass_tensor(pass, item->cache_k),
                           .cache_v = fd_pass_tensor(pass, item->cache_v)};
    FD_TRY(fd_launch_rope_kv_write(&pass->ctx, &in, err));
    for (int i = 0; i < item->n_member && pass->observe; i++) FD_TRY(fd_observe_node(pass, item->members[i], err));
    return FD_OK;
}

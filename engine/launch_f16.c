/* From items of fast numerics to kernels. What an observer wants to see of the inside of a kernel is left next to its
 * result or computed once more after it, which changes nothing of what runs. */
#include "engine/pass.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_f16.h"
#include "kernels/elementwise/rows_f16.h"

static int64_t elements(const fd_node *node) {
    return fd_node_row_stride(node, 0);
}

static bool is_wanted(const fd_pass *pass, int32_t id) {
    return pass->observe && fd_observe_wants(pass->engine, id);
}

static fd_code show(fd_pass *pass, int32_t id, const float *rows, fd_error *err) {
    return is_wanted(pass, id) ? fd_observe_rows(pass, id, rows, err) : FD_OK;
}

fd_code fd_round_to_half(fd_pass *pass, int32_t id, fd_error *err) {
    uint16_t *half = fd_pass_half(pass, id);
    if (!half) return FD_OK;
    return fd_launch_to_f16(&pass->ctx, fd_pass_tensor(pass, id), pass->n_tok * elements(fd_pass_node(pass, id)), half,
                            err);
}

/* ---- products ---- */

static fd_code multiply(fd_pass *pass, const fd_node *node, bool add, float *out, fd_error *err) {
    const fd_fast *fast = pass->engine->fast;
    const fd_device_matrix *w = fd_pass_matrix(pass, node);
    fd_cublas_product in = {
        .weight = w->data, .stride = w->row_bytes / 2, .n_row = w->n_row, .n_col = w->n_col, .add = add};
    in.n_row_whole = elements(fd_split_whole(pass->plan->graph, node->id));
    if (w->dtype != FD_F16) {
        FD_TRY(fd_launch_dequantise_f16(&pass->ctx, w, fast->weights.data, err));
        in.weight = fast->weights.data;
        in.stride = fd_f16_row_stride(w);
    }
    for (int32_t done = 0; done < pass->n_tok; done += in.n_tok) {
        in.n_tok = pass->n_tok - done < FD_FAST_ROWS ? pass->n_tok - done : FD_FAST_ROWS;
        in.x = fd_pass_half(pass, node->input[0]) + (size_t)done * (size_t)w->n_col;
        in.out = out + (size_t)done * (size_t)w->n_row;
        FD_TRY(fd_cublas_multiply(fast->cublas, &in, err));
    }
    return FD_OK;
}

fd_code fd_run_gemm_f16(fd_pass *pass, const fd_item *item, fd_error *err) {
    const fd_node *node = fd_pass_node(pass, item->matmul[0]);
    const float *bias = fd_pass_vector(pass, node->weight[1]);
    float *out = fd_pass_tensor(pass, node->id);
    if (bias) FD_TRY(fd_launch_repeat_bias(&pass->ctx, bias, pass->n_tok, elements(node), out, err));
    FD_TRY(multiply(pass, node, bias != NULL, out, err));
    return fd_round_to_half(pass, node->id, err);
}

fd_code fd_run_gemm_add_f16(fd_pass *pass, const fd_item *item, fd_error *err) {
    const fd_node *add = fd_pass_node(pass, item->add), *product = fd_pass_node(pass, item->matmul[0]);
    const float *from = fd_pass_tensor(pass, add->input[0] == product->id ? add->input[1] : add->input[0]);
    float *out = fd_pass_tensor(pass, add->id), *inner = pass->engine->fast->inner.data;
    if (is_wanted(pass, product->id)) {
        FD_TRY(multiply(pass, product, false, inner, err));
        FD_TRY(show(pass, product->id, inner, err));
    }
    if (from != out) {
        size_t size = sizeof *out * (size_t)elements(add) * (size_t)pass->n_tok;
        FD_TRY(
            fd_cuda_check(cudaMemcpyAsync(out, from, size, cudaMemcpyDeviceToDevice, pass->ctx.stream), "copy", err));
    }
    FD_TRY(multiply(pass, product, true, out, err));
    return fd_round_to_half(pass, add->id, err);
}

/* ---- attention ---- */

/* What a sequence gets must not depend on where the others are: several never take the kernel of short contexts. */
static bool takes_short(const fd_pass *pass) {
    return pass->short_context && pass->engine->exec.n_seq == 1;
}

/* Over the caches of the selected sequence. */
static fd_attn_f16 attention_of(const fd_pass *pass, const fd_item *item) {
    const fd_node *mix = fd_pass_node(pass, item->mix), *scores = fd_pass_node(pass, item->scores);
    return (fd_attn_f16){.n_head = mix->shape[0],
                         .n_head_kv = fd_pass_node(pass, item->cache_k)->shape[0],
                         .n_head_kv_whole = fd_split_whole(pass->plan->graph, item->cache_k)->shape[0],
                         .head_dim = mix->shape[1],
                         .n_tok = pass->n_tok,
                         .n_ctx = pass->engine->exec.n_ctx,
                         .n_seq = pass->engine->exec.n_seq,
                         .pos0 = pass->inputs + FD_INPUT_FIRST,
                         .window = scores->chunked ? 0 : scores->window,
                         .scale = scores->scale,
                         .softcap = scores->softcap,
                         .sinks = fd_pass_vector(pass, fd_pass_node(pass, item->softmax)->weight[0]),
                         .cache_k = (uint16_t *)(void *)fd_pass_tensor(pass, item->cache_k),
                         .cache_v = (uint16_t *)(void *)fd_pass_tensor(pass, item->cache_v),
                         .q = fd_pass_tensor(pass, item->q),
                         .out = {fd_pass_half(pass, item->mix), fd_pass_tensor(pass, item->mix)},
                         .scratch = pass->engine->fast->scratch.data};
}

/* Scores and weights, which the kernel of the mix keeps to itself: scores once more, and the weights that follow from
 * these, so that they agree for an observer of both. */
static fd_code show_inside(fd_pass *pass, const fd_item *item, const fd_attn_f16 *in, fd_error *err) {
    float *scores = pass->engine->fast->inner.data, *weights = pass->engine->fast->attended.data;
    fd_attention shape = {.n_head = in->n_head,
                          .n_head_kv = in->n_head_kv,
                          .head_dim = in->head_dim,
                          .n_tok = in->n_tok,
                          .n_kv = pass->n_kv,
                          .pos0 = in->pos0,
                          .sinks = in->sinks};
    if (!is_wanted(pass, item->scores) && !is_wanted(pass, item->softmax)) return FD_OK;
    bool rounded = item->kernel == FD_KERNEL_ATTENTION_F16;
    FD_TRY(fd_launch_attn_scores_f16(&pass->ctx, in, pass->n_kv, rounded, scores, err));
    if (is_wanted(pass, item->softmax)) FD_TRY(fd_launch_attn_softmax(&pass->ctx, &shape, scores, weights, err));
    FD_TRY(show(pass, item->scores, scores, err));
    return show(pass, item->softmax, weights, err);
}

fd_code fd_run_attention_f16(fd_pass *pass, const fd_item *item, fd_error *err) {
    fd_attn_f16 in = attention_of(pass, item);
    FD_TRY(show_inside(pass, item, &in, err));
    in.short_context = takes_short(pass);
    if (!in.out.real && is_wanted(pass, item->mix)) in.out.real = pass->engine->fast->mixed.data;
    FD_TRY(item->kernel == FD_KERNEL_ATTENTION_F16 ? fd_launch_attn_fused_f16(&pass->ctx, &in, err)
                                                   : fd_launch_attn_decode_f16(&pass->ctx, &in, err));
    return show(pass, item->mix, in.out.real, err);
}

fd_code fd_run_attn_decode_f16(fd_pass *pass, const fd_item *item, fd_error *err) {
    const fd_engine *e = pass->engine;
    fd_attn_f16 in = attention_of(pass, item);
    in.short_context = takes_short(pass);
    if (e->exec.n_seq > 1) { /* the device knows which sequences: a CUDA graph serves all */
        const fd_node *cache = fd_pass_node(pass, item->cache_v);
        in.pos0 = pass->positions ? pass->positions : pass->inputs + FD_INPUT_FIRST;
        in.sequences = pass->sequences ? pass->sequences : pass->inputs + FD_INPUT_SEQUENCE;
        in.cache_k = (uint16_t *)(void *)e->state.cache[item->cache_k];
        in.cache_v = (uint16_t *)(void *)e->state.cache[item->cache_v];
        in.cache_stride = (int64_t)(fd_cache_bytes(cache, e->exec.n_ctx, true) / sizeof(uint16_t));
        in.scratch_stride = (int64_t)(e->fast->scratch.size / (size_t)e->exec.n_seq / sizeof(float));
    }
    in.q_rope = fd_pass_rope(pass, item->q_rope);
    in.k_rope = fd_pass_rope(pass, item->k_rope);
    if (item->k >= 0) {
        in.k = fd_pass_tensor(pass, item->k);
        in.v = fd_pass_tensor(pass, item->v);
    }
    return fd_launch_attn_decode_f16(&pass->ctx, &in, err);
}

/* A fast pass: node by node, each by whom the plan says; what an observer wants to see of the insides of a kernel is
 * left beside its result or computed again behind it, and changes nothing of what runs. */
#include "engine/fast.h"
#include "kernels/attention/kv_cache.h"
#include "kernels/elementwise/rope_kv_write.h"

typedef struct pass {
    fd_engine *engine;
    const fd_run *run;
    const fd_fast_plan *plan;
    fd_watch *watch; /* NULL: nobody looks */
} pass;

static const fd_node *node_at(const pass *p, int32_t id) {
    return &p->engine->exec.graph->nodes[id];
}

static int64_t elements(const fd_node *node) {
    return fd_node_row_stride(node, 0);
}

static uint16_t *half_of(const pass *p, int32_t id) {
    return p->plan->half_of[id] < 0 ? NULL : p->engine->fast->halves[p->plan->half_of[id]].data;
}

static float *kept(const pass *p, int32_t id) {
    return p->plan->real.slot_of[id] < 0 ? NULL : fd_run_tensor(p->engine, p->run, id);
}

static bool wanted(const pass *p, int32_t id) {
    return p->watch && fd_watch_wants(p->engine, id);
}

static fd_code show(const pass *p, int32_t id, const float *rows, fd_error *err) {
    return wanted(p, id) ? fd_watch_rows(p->engine, p->run, id, rows, p->watch, err) : FD_OK;
}

/* Where a kernel of ours leaves a node: for the products behind it, for other readers, and else for who looks. */
static fd_f16_out out_of(const pass *p, int32_t id) {
    fd_f16_out out = {half_of(p, id), kept(p, id)};
    if (!out.real && wanted(p, id)) out.real = p->engine->fast->shown.data;
    return out;
}

/* ---- products ---- */

static fd_code multiply(const pass *p, int32_t id, bool add, float *out, fd_error *err) {
    const fd_engine *e = p->engine;
    const fd_node *node = node_at(p, id);
    const fd_device_matrix *w = &e->weights.matrix[node->weight[0]];
    fd_cublas_product in = {
        .weight = w->data, .stride = w->row_bytes / 2, .n_row = w->n_row, .n_col = w->n_col, .add = add};
    if (w->dtype != FD_F16) {
        FD_TRY(fd_launch_dequantise_f16(p->run->queue, w, e->fast->weights.data, err));
        in.weight = e->fast->weights.data;
        in.stride = fd_f16_row_stride(w);
    }
    for (int32_t done = 0; done < p->run->n_tok; done += in.n_tok) {
        in.n_tok = p->run->n_tok - done < FD_FAST_ROWS ? p->run->n_tok - done : FD_FAST_ROWS;
        in.x = half_of(p, node->input[0]) + (size_t)done * (size_t)w->n_col;
        in.out = out + (size_t)done * (size_t)w->n_row;
        FD_TRY(fd_cublas_multiply(e->fast->cublas, &in, err));
    }
    return FD_OK;
}

static fd_code run_product(const pass *p, int32_t id, fd_error *err) {
    const float *bias = fd_engine_vector(p->engine, node_at(p, id)->weight[1]);
    float *out = kept(p, id);
    if (bias) FD_TRY(fd_launch_repeat_bias(p->run->queue, bias, p->run->n_tok, elements(node_at(p, id)), out, err));
    return multiply(p, id, bias != NULL, out, err);
}

/* The product before this ADD, onto the other summand. */
static fd_code run_product_add(const pass *p, int32_t id, fd_error *err) {
    const fd_node *node = node_at(p, id);
    int32_t product = id - 1, other = node->input[0] == product ? node->input[1] : node->input[0];
    const float *from = kept(p, other);
    float *out = kept(p, id);
    if (wanted(p, product)) {
        float *alone = p->engine->fast->shown.data;
        FD_TRY(multiply(p, product, false, alone, err));
        FD_TRY(show(p, product, alone, err));
    }
    if (from != out) {
        size_t size = sizeof *out * (size_t)elements(node) * (size_t)p->run->n_tok;
        FD_TRY(fd_cuda_check(cudaMemcpyAsync(out, from, size, cudaMemcpyDeviceToDevice, p->run->queue->stream), "copy",
                             err));
    }
    return multiply(p, product, true, out, err);
}

/* ---- attention ---- */

static fd_rope_shape rope_shape(const fd_engine *engine, int32_t id) {
    return id < 0 ? (fd_rope_shape){.n_rot = 0} : fd_node_rope(engine, id);
}

/* Of the selected sequence. */
static uint16_t *cache_of(const fd_engine *engine, int32_t node) {
    return (uint16_t *)engine->cache[node] + fd_fast_cache_stride(engine, node) * engine->exec.sequence;
}

int64_t fd_fast_cache_stride(const fd_engine *engine, int32_t node) {
    return (int64_t)(fd_cache_bytes(&engine->exec.graph->nodes[node], engine->exec.n_ctx, true) / sizeof(uint16_t));
}

/* Several sequences are always taken as far ones: what one gets must not depend on where the others are. */
static bool takes_near(const fd_engine *engine, bool near) {
    return near && engine->exec.n_seq == 1;
}

static fd_attn_f16 attention_of(const fd_engine *engine, const fd_run *run, int32_t mix) {
    const fd_node *nodes = engine->exec.graph->nodes;
    const fd_node *softmax = &nodes[nodes[mix].input[0]], *scores = &nodes[softmax->input[0]];
    int32_t cache_k = scores->input[1], cache_v = nodes[mix].input[1];
    return (fd_attn_f16){.n_head = nodes[mix].shape[0],
                         .n_head_kv = nodes[cache_k].shape[0],
                         .head_dim = nodes[mix].shape[1],
                         .n_tok = run->n_tok,
                         .n_ctx = engine->exec.n_ctx,
                         .pos0 = run->inputs + FD_INPUT_FIRST,
                         .window = scores->window,
                         .scale = scores->scale,
                         .softcap = scores->softcap,
                         .sinks = fd_engine_vector(engine, softmax->weight[0]),
                         .cache_k = cache_of(engine, cache_k),
                         .cache_v = cache_of(engine, cache_v),
                         .scratch = engine->fast->scratch.data};
}

/* Scores and weights, which the kernel of the mix keeps to itself: scores again, and the weights that follow from these,
 * so that who looks at both finds them to agree. */
static fd_code show_inside(const pass *p, const fd_attn_f16 *in, int32_t scores, int32_t softmax, fd_error *err) {
    const fd_launch_context *queue = p->run->queue;
    struct fd_fast *fast = p->engine->fast;
    fd_attention shape = {.n_head = in->n_head,
                          .n_head_kv = in->n_head_kv,
                          .head_dim = in->head_dim,
                          .n_tok = in->n_tok,
                          .n_kv = p->run->n_kv,
                          .pos0 = in->pos0,
                          .sinks = in->sinks};
    FD_TRY(fd_launch_attn_scores_f16(queue, in, p->run->n_kv, p->plan == &fast->many, fast->shown.data, err));
    if (wanted(p, softmax))
        FD_TRY(fd_launch_attn_softmax(queue, &shape, fast->shown.data, fast->attended.data, err));
    FD_TRY(show(p, scores, fast->shown.data, err));
    return show(p, softmax, fast->attended.data, err);
}

static fd_code run_attention(const pass *p, int32_t mix, fd_error *err) {
    const fd_launch_context *queue = p->run->queue;
    struct fd_fast *fast = p->engine->fast;
    int32_t softmax = node_at(p, mix)->input[0], scores = node_at(p, softmax)->input[0];
    fd_attn_f16 in = attention_of(p->engine, p->run, mix);
    bool many = p->plan == &fast->many;
    in.q = kept(p, node_at(p, scores)->input[0]);
    in.out = (fd_f16_out){half_of(p, mix), kept(p, mix)};
    if (wanted(p, scores) || wanted(p, softmax)) FD_TRY(show_inside(p, &in, scores, softmax, err));
    bool beside = !in.out.real && wanted(p, mix);
    if (beside) in.out.real = fast->mixed.data;
    in.short_context = takes_near(p->engine, p->run->pos0 < FD_ATTENTION_SHORT_CONTEXT); /* as the step has it */
    FD_TRY(many ? fd_launch_attn_fused_f16(queue, &in, err) : fd_launch_attn_decode_f16(queue, &in, err));
    return show(p, mix, in.out.real, err);
}

fd_code fd_fast_step_attention(const fd_engine *engine, const fd_run *run, const fd_item *item, fd_error *err) {
    const fd_graph *graph = engine->exec.graph;
    fd_attn_f16 in = attention_of(engine, run, item->attention.mix);
    in.short_context = takes_near(engine, run->near);
    if (engine->exec.n_seq > 1) { /* the device knows which sequences: a CUDA graph serves all */
        const fd_node *mix = &graph->nodes[item->attention.mix];
        const fd_node *scores = &graph->nodes[item->attention.scores];
        in.pos0 = run->positions ? run->positions : run->inputs + FD_INPUT_FIRST;
        in.sequences = run->sequences ? run->sequences : run->inputs + FD_INPUT_SEQUENCE;
        in.cache_k = (uint16_t *)engine->cache[scores->input[1]];
        in.cache_v = (uint16_t *)engine->cache[mix->input[1]];
        in.cache_stride = fd_fast_cache_stride(engine, mix->input[1]);
        in.scratch_stride = fd_fast_scratch_stride(engine);
    }
    in.q_rope = rope_shape(engine, item->attention.q_rope);
    in.k_rope = rope_shape(engine, item->attention.k_rope);
    in.q = fd_run_tensor(engine, run, fd_item_query(graph, item));
    if (item->attention.cache_k >= 0) {
        in.k = fd_run_tensor(engine, run, fd_item_key(graph, item));
        in.v = fd_run_tensor(engine, run, fd_item_value(graph, item));
    }
    in.out.real = fd_run_tensor(engine, run, item->attention.mix);
    return fd_launch_attn_decode_f16(run->queue, &in, err);
}

/* ---- the others ---- */

fd_code fd_fast_kv_write(const fd_engine *engine, const fd_run *run, int32_t id, fd_error *err) {
    const fd_node *node = &engine->exec.graph->nodes[id];
    fd_kv_write in = {.x = fd_run_input(engine, run, id, node->input[0]),
                      .n_tok = run->n_tok,
                      .width = elements(node),
                      .pos0 = run->inputs + FD_INPUT_FIRST,
                      .row_offset = node->row_offset,
                      .halves = true,
                      .cache = cache_of(engine, id),
                      .n_ctx = engine->exec.n_ctx};
    return fd_launch_kv_write(run->queue, &in, err);
}

/* What the cache holds of this pass, as an observer sees it. */
static fd_code show_cache(const pass *p, int32_t id, fd_error *err) {
    if (!wanted(p, id)) return FD_OK;
    int64_t width = elements(node_at(p, id));
    float *shown = p->engine->fast->shown.data;
    FD_TRY(fd_launch_from_f16(p->run->queue, cache_of(p->engine, id) + p->run->pos0 * width, width * p->run->n_tok,
                              shown, err));
    return show(p, id, shown, err);
}

/* ROPE of q at `id`, and the three nodes behind it. */
static fd_code run_turn(const pass *p, int32_t id, fd_error *err) {
    const fd_engine *e = p->engine;
    int32_t k_rope = id + 1, cache_k = id + 2, cache_v = id + 3;
    fd_rope_kv_write in = {.q_rope = rope_shape(e, id),
                           .k_rope = rope_shape(e, k_rope),
                           .n_tok = p->run->n_tok,
                           .n_ctx = e->exec.n_ctx,
                           .pos0 = p->run->inputs + FD_INPUT_FIRST,
                           .q = kept(p, node_at(p, id)->input[0]),
                           .k = kept(p, node_at(p, k_rope)->input[0]),
                           .v = kept(p, node_at(p, cache_v)->input[0]),
                           .q_out = kept(p, id),
                           .k_out = wanted(p, k_rope) ? e->fast->shown.data : NULL,
                           .halves = true,
                           .cache_k = cache_of(e, cache_k),
                           .cache_v = cache_of(e, cache_v)};
    FD_TRY(fd_launch_rope_kv_write(p->run->queue, &in, err));
    FD_TRY(show(p, id, in.q_out, err));
    FD_TRY(show(p, k_rope, in.k_out, err));
    FD_TRY(show_cache(p, cache_k, err));
    return show_cache(p, cache_v, err);
}

static fd_code run_norm(const pass *p, int32_t id, fd_error *err) {
    const fd_node *node = node_at(p, id);
    fd_rms_norm in = {.x = kept(p, node->input[0]),
                      .weight = fd_engine_vector(p->engine, node->weight[0]),
                      .eps = node->eps,
                      .n = node->shape[node->n_dim - 1]};
    in.n_tok = (int32_t)(p->run->n_tok * elements(node) / in.n);
    fd_f16_out out = out_of(p, id);
    FD_TRY(fd_launch_rms_norm_f16(p->run->queue, &in, out, err));
    return show(p, id, out.real, err);
}

static fd_code run_gate(const pass *p, int32_t id, fd_error *err) {
    const fd_node *node = node_at(p, id);
    fd_gate in = {.kind = node->op == FD_OP_SILU_MUL   ? FD_GATE_SILU
                          : node->op == FD_OP_GELU_MUL ? FD_GATE_GELU
                                                       : FD_GATE_SWIGLU_CLAMP,
                  .gate = kept(p, node->input[0]),
                  .up = kept(p, node->input[1]),
                  .n = p->run->n_tok * elements(node),
                  .slope = node->slope,
                  .limit = node->limit};
    fd_f16_out out = out_of(p, id);
    FD_TRY(fd_launch_gate_f16(p->run->queue, &in, out, err));
    return show(p, id, out.real, err);
}

/* A node whose result is kept in binary32: computed, rounded for the products that read it, shown. */
static fd_code run_kept(const pass *p, int32_t id, fd_error *err) {
    switch ((fd_fast_how)p->plan->how[id]) {
    case FD_FAST_BY_PRODUCT: FD_TRY(run_product(p, id, err)); break;
    case FD_FAST_BY_PRODUCT_ADD: FD_TRY(run_product_add(p, id, err)); break;
    default:
        FD_TRY(node_at(p, id)->override ? fd_run_override(p->engine, p->run, id, err)
                                        : fd_launch_node(p->engine, p->run, id, err));
    }
    if (half_of(p, id))
        FD_TRY(fd_launch_to_f16(p->run->queue, kept(p, id), p->run->n_tok * elements(node_at(p, id)), half_of(p, id),
                                err));
    return show(p, id, kept(p, id), err);
}

fd_code fd_fast_run(fd_engine *engine, const fd_run *run, const fd_fast_plan *plan, fd_watch *watch, fd_error *err) {
    pass p = {engine, run, plan, watch};
    for (int32_t i = 0; i < engine->exec.graph->n_node; i++) {
        if (fd_run_rows(engine, run, i) == FD_ROWS_NONE) continue;
        fd_code code;
        switch ((fd_fast_how)plan->how[i]) {
        case FD_FAST_INSIDE: continue;
        case FD_FAST_BY_NORM: code = run_norm(&p, i, err); break;
        case FD_FAST_BY_GATE: code = run_gate(&p, i, err); break;
        case FD_FAST_BY_KV_WRITE:
            code = fd_fast_kv_write(engine, run, i, err);
            if (code == FD_OK) code = show_cache(&p, i, err);
            break;
        case FD_FAST_BY_TURN: code = run_turn(&p, i, err); break;
        case FD_FAST_BY_ATTENTION: code = run_attention(&p, i, err); break;
        default: code = run_kept(&p, i, err);
        }
        if (code == FD_STOP || (code != FD_OK && plan->how[i] == FD_FAST_BY_NODE)) return code; /* named already */
        if (code != FD_OK) return fd_error_prefix(err, "node %s", engine->exec.graph->nodes[i].name);
    }
    return watch ? fd_watch_flush(engine, watch, err) : FD_OK;
}

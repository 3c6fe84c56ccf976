/* Engines that convert the file's weights to 16 bits as they load them, norms' too, and compute in binary32: nobody can tell that from the
 * way they are meant. A bug of such an engine stays one. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "compare/report/remarks.h"
#include "model/weight_rows.h"
#include "tests/compare/mixed_products.h"
#include "tests/compare/replay_bench.h"

static float in_f16(float x) {
    return fd_f16_to_f32(fd_f32_to_f16(x));
}

static float in_bf16(float x) {
    return fd_bf16_to_f32(fd_f32_to_bf16(x));
}

/* A table of frequencies is made of them in binary32. */
static bool is_of_rope(const fd_weight *w) {
    return strcmp(w->name, "rope_freqs.weight") == 0;
}

/* data [n_weight]: what the copy's weights point to. */
static fd_graph *converted(const bench *b, float (*to)(float), float **data) {
    fd_graph *graph = graph_copy(b);
    for (int32_t w = 0; w < graph->n_weight; w++) {
        fd_weight *weight = &graph->weights[w];
        data[w] = NULL;
        if (is_of_rope(weight)) continue;
        float *rows = data[w] = malloc(sizeof *rows * (size_t)weight->n_row * (size_t)weight->n_col);
        for (int64_t r = 0; r < weight->n_row; r++) fd_weight_row(weight, r, rows + r * weight->n_col);
        for (int64_t i = 0; i < weight->n_row * weight->n_col; i++) rows[i] = to(rows[i]);
        weight->dtype = FD_F32;
        weight->data = rows;
        weight->bytes = sizeof *rows * (size_t)weight->n_row * (size_t)weight->n_col;
    }
    return graph;
}

static void norm_off(const fd_op_args *args) {
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * args->node->shape[0]; i++) ((float *)args->out)[i] *= 1.01f;
}

enum { KJV_LLAMA, KJV_QWEN2 };

static const struct {
    const char *what, *tensors, *words;
    float (*to)(float);
    int model;
    fd_override_fn products; /* NULL: in binary32 */
} engines[] = {
    {"binary16, everything recorded", "*", "weights are held in binary16", in_f16, KJV_LLAMA},
    {"binary16, norms after an embedding that was not recorded", "*norm,*attn_k_rope,*gate,*up,*down",
     "weights are held in binary16", in_f16, KJV_LLAMA},
    {"bfloat16, everything recorded", "*", "weights are held in bfloat16", in_bf16, KJV_LLAMA},
    /* Of a file in binary16 norms and biases alone are others. */
    {"binary16 of binary16, everything recorded", "*", "weights are held in binary16", in_f16, KJV_QWEN2},
    {"binary16 of binary16, nothing inside attention and FFN", "token_embd,*norm,*proj,*down,*l_out,logits",
     "weights are held in binary16", in_f16, KJV_QWEN2},
    {"bfloat16, and prompts on tensor cores", "*",
     "weights are held in bfloat16, those of norms too, and products of a prompt round what they read to bfloat16",
     in_bf16, KJV_LLAMA, bf16_of_several_rows},
    {"binary16, and prompts on tensor cores, nothing inside attention and FFN",
     "token_embd,*norm,*attn_[qkv],*rope,*attn_out,*proj,*inp,*down,*l_out,logits",
     "products of a prompt round what they read to binary16", in_f16, KJV_LLAMA, f16_of_several_rows},
};

static void check_engine(size_t i, const bench *b, float **data) {
    for (int bug = 0; bug < 2; bug++) {
        fd_graph *graph = converted(b, engines[i].to, data);
        const int32_t node = fd_graph_find(graph, "blk.3.ffn_norm");
        for (int32_t n = 0; n < graph->n_node && engines[i].products; n++)
            if (graph->nodes[n].op == FD_OP_MATMUL) graph->nodes[n].override = engines[i].products;
        if (bug) graph->nodes[node].override = norm_off;
        recording how = {.emulated = "f32", .numerics = "unknown", .tensors = engines[i].tensors};
        fd_verdict v = judge(b->graph, b->ref, record(graph, how), NULL);
        char text[FD_REMARK_SIZE] = "";
        bool said = false;
        for (int32_t r = 0; r < v.reasons.n && !said; r++)
            said = strstr(fd_reason_text(&v, r, text), engines[i].words) != NULL;
        cr_expect_eq(v.status, bug ? FD_DIVERGED : FD_INCOMPLETE, "%s, bug %d: %s at %s in %s: %s", engines[i].what,
                     bug, fd_verdict_status_name(v.status), v.divergence.node, v.replay.numerics, text);
        if (bug && strcmp(engines[i].tensors, "*") == 0) /* through a layer the first class has room for it */
            cr_expect_str_eq(v.divergence.node, "blk.3.ffn_norm", "%s: at %s", engines[i].what, v.divergence.node);
        cr_expect_eq(said, !bug, "%s, bug %d: %s", engines[i].what, bug, text);
        fd_verdict_free(&v);
        for (int32_t w = 0; w < graph->n_weight; w++) free(data[w]);
        fd_graph_free(graph);
    }
}

Test(weight_type, weights_in_16_bits_are_the_engines_way) {
    for (int model = KJV_LLAMA; model <= KJV_QWEN2; model++) {
        bench b = open_bench(models[model], (recording){0});
        float **data = calloc((size_t)b.graph->n_weight, sizeof *data);
        for (size_t i = 0; i < sizeof engines / sizeof *engines; i++)
            if (engines[i].model == model) check_engine(i, &b, data);
        free(data);
        close_model(&b);
    }
}

Test(weight_type, factors_of_rope_are_no_weights_that_are_held) {
    static const int32_t small[N_PREFILL + N_DECODE] = {65, 91, 7, 119, 63, 13, 40, 28};
    bench b = open_arch("llama-dense");
    b.ref = record(b.graph, (recording){.tokens = small});
    float **data = calloc((size_t)b.graph->n_weight, sizeof *data);
    fd_graph *graph = converted(&b, in_bf16, data);
    for (int32_t n = 0; n < graph->n_node; n++)
        if (graph->nodes[n].op == FD_OP_MATMUL) graph->nodes[n].override = bf16_of_several_rows;
    fd_verdict v = judge(b.graph, b.ref,
                         record(graph, (recording){.emulated = "f32", .numerics = "unknown", .tokens = small}), NULL);
    bool any = false;
    for (int32_t w = 0; w < graph->n_weight; w++) any |= is_of_rope(&graph->weights[w]);
    cr_expect(any);
    cr_expect_eq(v.status, FD_INCOMPLETE, "%s at %s", fd_verdict_status_name(v.status), v.divergence.node);
    fd_verdict_free(&v);
    for (int32_t w = 0; w < graph->n_weight; w++) free(data[w]);
    free(data);
    fd_graph_free(graph);
    close_model(&b);
}

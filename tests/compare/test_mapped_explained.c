/* K/V heads and experts that are read under each other's numbers: which is whose is found, and said, through spans too. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf/quant.h"
#include "tests/compare/guess_bench.h"
#include "tests/compare/said.h"

static const int32_t small[N_PREFILL + N_DECODE] = {1, 30, 45, 103, 26, 7, 51, 88}; /* of a vocabulary of 128 */

/* The op on a copy of input 1, whose rows `change` has changed. */
static void on_changed(const fd_op_args *args, void (*change)(const fd_node *, float *, int64_t n_row)) {
    const fd_node *from = &args->graph->nodes[args->node->input[1]];
    const int64_t n_row = from->op == FD_OP_KV_WRITE ? args->n_kv : args->n_pos, n = n_row * fd_node_width(from);
    float *rows = malloc(sizeof *rows * (size_t)n);
    fd_op_args own = *args;
    memcpy(rows, args->in[1], sizeof *rows * (size_t)n);
    change(from, rows, n_row);
    own.in[1] = rows;
    run_clean(&own);
    free(rows);
}

static void reverse_heads(const fd_node *cache, float *rows, int64_t n_row) {
    const int64_t n_head = cache->shape[0], dim = cache->shape[1];
    for (int64_t r = 0; r < n_row; r++, rows += n_head * dim)
        for (int64_t i = 0; i < n_head / 2 * dim; i++) {
            const int64_t other = (n_head - 1 - i / dim) * dim + i % dim;
            const float x = rows[i];
            rows[i] = rows[other];
            rows[other] = x;
        }
}
static void heads_reversed(const fd_op_args *args) {
    on_changed(args, reverse_heads);
}

/* Experts 0 and 2 exchanged. */
static void exchange_ids(const fd_node *chosen, float *ids, int64_t n_row) {
    for (int64_t i = 0; i < n_row * fd_node_width(chosen); i++) ids[i] = ids[i] == 0 ? 2 : ids[i] == 2 ? 0 : ids[i];
}
static void experts_exchanged(const fd_op_args *args) {
    on_changed(args, exchange_ids);
}

static fd_graph *with(bench *b, const char *const nodes[3], fd_override_fn override) {
    fd_graph *g = spoiled(b, nodes[0], override);
    for (int i = 1; i < 3 && nodes[i]; i++) g->nodes[fd_graph_find(g, nodes[i])].override = override;
    return g;
}

static void expect_mapped(const bench *b, const fd_graph *faulty, recording how, const char *name, const char *says) {
    fd_verdict v = judged(b, faulty, how);
    const fd_explanation *e = &v.diagnosis.explanation;
    const char *found = e->named ? e->remaining[0].summary : unnamed_of(e);
    cr_expect(e->named && strcmp(e->remaining[0].name, name) == 0, "%s, %s: %s", how.tensors, v.divergence.node, found);
    cr_expect(strstr(found, says), "%s, %s: %s", how.tensors, v.divergence.node, found);
    cr_expect(v.diagnosis.causes.n_also == 0, "%s: more bugs than %s", how.tensors, name);
    fd_verdict_free(&v);
}

Test(mapped, heads_of_k_of_v_or_of_both_are_found_in_their_place) {
    static const struct {
        const char *nodes[3], *says;
    } bugs[] = {{{"blk.1.attn_scores"}, "the K heads 0, 1, 2, 3 are read from 3, 2, 1, 0"},
                {{"blk.1.attn_out"}, "the V heads 0, 1, 2, 3 are read from 3, 2, 1, 0"},
                {{"blk.1.attn_scores", "blk.1.attn_out"}, " heads 0, 1, 2, 3 are read from 3, 2, 1, 0"}};
    const char *const recorded[] = {all, fused, layers};
    bench b = open_bench(models[0], (recording){0});
    for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++)
        for (int r = 0; r < 3; r++) {
            const fd_graph *faulty = with(&b, bugs[i].nodes, heads_reversed);
            const bool in_cache =
                r > 0 && !bugs[i].nodes[1]; /* of one cache that was not recorded, its rows may stand so */
            expect_mapped(&b, faulty, (recording){.emulated = "f32", .tensors = recorded[r]},
                          in_cache ? "other_order" : "other_kv_heads", in_cache ? "the heads reversed" : bugs[i].says);
            forget(&b);
        }
    close_model(&b);
}

/* Query head h reads the K/V head that is h + 1's: for each of them the op on a cache of that head alone. */
static void next_heads_group(const fd_op_args *args) {
    const fd_node *cache = &args->graph->nodes[args->node->input[1]];
    const int64_t n_head = args->node->shape[0], n_kv = cache->shape[0], dim = cache->shape[1];
    const int64_t n = args->n_pos * fd_node_row_stride(args->node, args->n_kv), part = n / args->n_pos / n_head;
    float *rows = malloc(sizeof *rows * (size_t)(args->n_kv * n_kv * dim)), *out = malloc(sizeof *out * (size_t)n);
    fd_op_args own = *args;
    own.in[1] = rows;
    own.out = out;
    for (int64_t head = 0; head < n_kv; head++) {
        for (int64_t i = 0; i < args->n_kv * n_kv; i++)
            memcpy(rows + i * dim, (const float *)args->in[1] + (i / n_kv * n_kv + head) * dim,
                   sizeof *rows * (size_t)dim);
        run_clean(&own);
        for (int64_t i = 0; i < n / part; i++) {
            const int64_t next = i % n_head + 1 < n_head ? i % n_head + 1 : n_head - 1;
            if (next * n_kv / n_head == head)
                memcpy((float *)args->out + i * part, out + i * part, sizeof *out * (size_t)part);
        }
    }
    free(rows);
    free(out);
}

Test(mapped, query_heads_that_read_another_groups_are_found) {
    static const char *const both[3] = {"blk.1.attn_scores", "blk.1.attn_out"};
    static const struct {
        const char *tensors, *says;
    } recorded[] = {
        {"*", "query heads 1, 3, 5 read the K heads 1, 2, 3"},
        {"*norm,*attn_[qkv],*proj,*inp,*down,*l_out,logits", "query heads 1, 3, 5 read the K and V heads 1, 2, 3"},
        {"token_embd,*l_out,logits", "query heads 1, 3, 5 read the K and V heads 1, 2, 3"}};
    bench b = open_bench(models[0], (recording){0});
    for (size_t r = 0; r < sizeof recorded / sizeof *recorded; r++) {
        const fd_graph *faulty = with(&b, both, next_heads_group);
        expect_mapped(&b, faulty, (recording){.emulated = "f32", .tensors = recorded[r].tensors}, "query_heads_mapped",
                      recorded[r].says);
        forget(&b);
    }
    close_model(&b);
}

Test(mapped, experts_with_each_others_matrices_are_found) {
    static const char *const all_products[3] = {"blk.1.ffn_moe_gate", "blk.1.ffn_moe_up", "blk.1.ffn_moe_down"};
    static const char *const down[3] = {"blk.1.ffn_moe_down"};
    const char *const recorded[] = {all, "token_embd,*attn_norm,*ffn_norm,*ffn_inp,*moe_out,*l_out,logits", layers};
    bench b = open_arch("llama-moe");
    b.ref = record(b.graph, (recording){.tokens = small});
    for (int i = 0; i < 2; i++)
        for (int r = 0; r < 3; r++) {
            const fd_graph *faulty = with(&b, i ? all_products : down, experts_exchanged);
            expect_mapped(&b, faulty, (recording){.emulated = "f32", .tensors = recorded[r], .tokens = small},
                          "other_experts", "experts 0, 2 are computed with the matrices of 2, 0");
            forget(&b);
        }
    close_model(&b);
}

/* The matrices are those of the chosen experts, the biases those of the experts after them. */
static void biases_of_the_next(const fd_op_args *args) {
    const fd_weight *bias = args->weight[1];
    const int64_t n = bias->n_col, k = args->node->shape[0];
    float *rows = malloc(sizeof *rows * (size_t)(bias->n_row * n)), *out = args->out;
    const float *ids = args->in[1];
    run_clean(args);
    cr_assert(rows);
    fd_dequantize_row(bias->dtype, bias->data, rows, bias->n_row * n);
    for (int64_t i = 0; i < args->n_pos * k * n; i++) {
        const int64_t own = (int64_t)ids[i / n], next = (own + 1) % bias->n_row;
        out[i] += rows[next * n + i % n] - rows[own * n + i % n];
    }
    free(rows);
}

Test(mapped, experts_with_others_biases_are_told_from_experts_with_others_matrices) {
    static const char *const nodes[3] = {"blk.1.ffn_moe_up"};
    bench b = open_arch("gpt-oss-moe");
    b.ref = record(b.graph, (recording){.tokens = small});
    const fd_graph *faulty = with(&b, nodes, biases_of_the_next);
    expect_mapped(&b, faulty, (recording){.emulated = "f32", .tensors = all, .tokens = small}, "other_expert_bias",
                  "the biases that are added are other experts'");
    forget(&b);
    close_model(&b);
}

/* Gate's and up's products as of rows that were weighed, and a sum that weighs no more. */
static float chosen_weights[(N_PREFILL + N_DECODE) * 8];
static void keep_weights(const fd_op_args *args) {
    const size_t size = sizeof(float) * (size_t)(args->n_pos * fd_node_width(args->node));
    cr_assert_leq(size, sizeof chosen_weights);
    run_clean(args);
    memcpy(chosen_weights, args->out, size);
}
static void weigh_before(const fd_op_args *args) {
    const int64_t n = args->node->shape[1];
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * args->node->shape[0] * n; i++)
        ((float *)args->out)[i] *= chosen_weights[i / n];
}
static void sum_alone(const fd_op_args *args) {
    float ones[(N_PREFILL + N_DECODE) * 8];
    fd_op_args own = *args;
    for (size_t i = 0; i < sizeof ones / sizeof *ones; i++) ones[i] = 1;
    own.in[1] = ones;
    run_clean(&own);
}

Test(mapped, experts_that_are_weighed_before_they_compute_are_named) {
    static const char *const products[3] = {"blk.1.ffn_moe_gate", "blk.1.ffn_moe_up"};
    const char *const recorded[] = {all, "token_embd,*attn_norm,*ffn_norm,*ffn_inp,*moe_out,*moe_weights,*l_out,logits",
                                    layers};
    bench b = open_arch("llama-moe");
    b.ref = record(b.graph, (recording){.tokens = small});
    for (int r = 0; r < 3; r++) {
        fd_graph *faulty = with(&b, products, weigh_before);
        faulty->nodes[fd_graph_find(faulty, "blk.1.ffn_moe_weights")].override = keep_weights;
        faulty->nodes[fd_graph_find(faulty, "blk.1.ffn_moe_out")].override = sum_alone;
        expect_mapped(&b, faulty, (recording){.emulated = "f32", .tensors = recorded[r], .tokens = small},
                      "expert_inputs_weighted", "to what they read, not");
        forget(&b);
    }
    close_model(&b);
}

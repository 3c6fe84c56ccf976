/* Graphs of the conformance models: each rule of the ops that they bring notices its breach, and each key that they
 * read is named when it is senseless. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/graph.h"
#include "tests/ops/shared_files.h"

static fd_graph *open_arch(const char *name, fd_gguf **gguf) {
    char path[128];
    fd_error err = {0};
    fd_graph *graph;
    snprintf(path, sizeof path, "conformance/%s.gguf", name);
    if (!*shared_file(path)) cr_skip_test("%s is not there", path);
    cr_assert_eq(fd_gguf_open(shared_file(path), gguf, &err), FD_OK, "%s", err.message);
    cr_assert_eq(fd_graph_build(*gguf, &graph, NULL, &err), FD_OK, "%s", err.message);
    return graph;
}

typedef enum breach {
    NEGATIVE_WINDOW,
    NAN_SOFTCAP,
    NO_SOFTCAP,
    NO_LIMIT,
    UNKNOWN_GATING,
    NO_WEIGHT,
    WIDER,
    WIDER_ROWS,
    CHOOSES_ALL_AND_MORE,
    IDS_OF_ANOTHER_OP,
    MORE_EXPERTS,
    OTHER_BIAS,
    OTHER_SINKS,
} breach;

static void break_node(breach how, fd_node *n, fd_graph *g) {
    switch (how) {
    case NEGATIVE_WINDOW: n->window = -1; break;
    case NAN_SOFTCAP: n->softcap = NAN; break;
    case NO_SOFTCAP: n->softcap = 0; break;
    case NO_LIMIT: n->limit = 0; break;
    case UNKNOWN_GATING: n->gating = (fd_gating)7; break;
    case NO_WEIGHT: n->weight[0] = -1; break;
    case WIDER: n->shape[0]++; break;
    case WIDER_ROWS: n->shape[1]++; break;
    case CHOOSES_ALL_AND_MORE: n->shape[0] = g->hparams.n_expert + 1; break;
    case IDS_OF_ANOTHER_OP: n->input[1] = n->input[0]; break;
    case MORE_EXPERTS: g->hparams.n_expert++; break;
    case OTHER_BIAS: n->weight[1] = n->weight[0]; break;
    case OTHER_SINKS: g->weights[n->weight[0]].n_col++; break;
    }
}

static const struct {
    const char *arch, *node;
    breach how;
} breaches[] = {
    {"gemma2-dense", "blk.0.attn_scores", NEGATIVE_WINDOW},
    {"gemma2-dense", "blk.0.attn_scores", NAN_SOFTCAP},
    {"gemma2-dense", "logits", NO_SOFTCAP},
    {"gemma2-dense", "logits", WIDER},
    {"gemma2-dense", "token_embd_scaled", WIDER},
    {"gemma2-dense", "blk.1.ffn_act", WIDER},
    {"qwen3-dense", "blk.1.attn_q_norm", NO_WEIGHT},
    {"qwen3-dense", "blk.1.attn_k_norm", WIDER_ROWS},
    {"qwen3moe-moe", "blk.1.ffn_moe_probs", WIDER},
    {"qwen3moe-moe", "blk.1.ffn_moe_topk", CHOOSES_ALL_AND_MORE},
    {"qwen3moe-moe", "blk.1.ffn_moe_weights", UNKNOWN_GATING},
    {"qwen3moe-moe", "blk.1.ffn_moe_weights", IDS_OF_ANOTHER_OP},
    {"qwen3moe-moe", "blk.1.ffn_moe_weights", WIDER},
    {"qwen3moe-moe", "blk.1.ffn_moe_gate", NO_WEIGHT},
    {"qwen3moe-moe", "blk.1.ffn_moe_gate", MORE_EXPERTS},
    {"qwen3moe-moe", "blk.1.ffn_moe_gate", IDS_OF_ANOTHER_OP},
    {"qwen3moe-moe", "blk.1.ffn_moe_up", WIDER_ROWS},
    {"qwen3moe-moe", "blk.1.ffn_moe_down", WIDER},
    {"qwen3moe-moe", "blk.1.ffn_moe_out", WIDER},
    {"qwen3moe-moe", "blk.1.ffn_moe_out", IDS_OF_ANOTHER_OP},
    {"gpt-oss-moe", "blk.0.ffn_moe_act", NO_LIMIT},
    {"gpt-oss-moe", "blk.0.ffn_moe_gate", OTHER_BIAS},
    {"gpt-oss-moe", "blk.0.attn_weights", OTHER_SINKS},
};

Test(graph_archs, validation_notices_every_breach) {
    for (size_t i = 0; i < sizeof breaches / sizeof *breaches; i++) {
        fd_gguf *gguf;
        fd_graph *graph = open_arch(breaches[i].arch, &gguf);
        fd_error err = {0};
        int32_t node = fd_graph_find(graph, breaches[i].node);
        cr_assert(node >= 0, "%s", breaches[i].node);
        cr_assert_eq(fd_graph_validate(graph, &err), FD_OK, "%s", err.message);
        break_node(breaches[i].how, &graph->nodes[node], graph);
        cr_expect(fd_graph_validate(graph, &err) == FD_ERR_INPUT && err.message[0], "breach %zu, at %s, not noticed", i,
                  breaches[i].node);
        fd_graph_free(graph);
        fd_gguf_close(gguf);
    }
}

Test(graph_archs, what_a_layer_has_follows_from_the_architecture) {
    static const struct {
        const char *arch, *node;
        int32_t window;
        float softcap, scale;
        bool sinks;
    } layers[] = {
        {"gemma2-dense", "blk.0.attn_scores", 16, 50, 0.17677669f, false},
        {"gemma2-dense", "blk.1.attn_scores", 0, 50, 0.17677669f, false},
        {"gemma2-dense", "blk.2.attn_scores", 16, 50, 0.17677669f, false},
        {"gpt-oss-moe", "blk.0.attn_scores", 16, 0, 0.17677669f, true},
        {"gpt-oss-moe", "blk.1.attn_scores", 0, 0, 0.17677669f, true},
        {"qwen3-dense", "blk.0.attn_scores", 0, 0, 0.17677669f, false}, /* its softcaps and windows are ignored */
        {"exaone4-dense", "blk.0.attn_scores", 0, 0, 0.17677669f, false},
    };
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        fd_gguf *gguf;
        fd_graph *graph = open_arch(layers[i].arch, &gguf);
        const fd_node *scores = &graph->nodes[fd_graph_find(graph, layers[i].node)];
        cr_expect_eq(scores->window, layers[i].window, "%s %s", layers[i].arch, layers[i].node);
        cr_expect_float_eq(scores->softcap, layers[i].softcap, 0);
        cr_expect_float_eq(scores->scale, layers[i].scale, 1e-7);
        cr_expect_eq(graph->nodes[scores->id + 1].weight[0] >= 0, layers[i].sinks);
        fd_graph_free(graph);
        fd_gguf_close(gguf);
    }
}

Test(graph_archs, the_first_position_a_window_shows) {
    static const int32_t table[][3] = {/* window, position, first */
                                       {0, 100, 0}, {1, 0, 0},    {1, 5, 5},        {16, 15, 0},
                                       {16, 16, 1}, {16, 40, 25}, {INT32_MAX, 9, 0}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        fd_node node = {.window = table[i][0]};
        cr_expect_eq(fd_node_first_seen(&node, table[i][1]), table[i][2], "row %zu", i);
    }
}

Test(graph_archs, no_expert_has_an_id_that_is_no_number_of_one) {
    cr_expect(fd_expert_of(0, 4) == 0 && fd_expert_of(3, 4) == 3);
    cr_expect(fd_expert_of(4, 4) == -1 && fd_expert_of(-1, 4) == -1 && fd_expert_of(0.5, 4) == -1);
    cr_expect(fd_expert_of(NAN, 4) == -1 && fd_expert_of(INFINITY, 4) == -1 && fd_expert_of(-INFINITY, 4) == -1);
}

/* What a file leaves out and every engine knows. */
Test(graph_archs, bloom_has_alibi_whether_its_file_says_so_or_not) {
    if (!*shared_file("conformance/bloom-dense.gguf")) cr_skip_test("bloom-dense is not there");
    static const float said[] = {8, 0, 4};
    for (int i = 0; i < 3; i++) {
        size_t size;
        fd_error err = {0};
        fd_gguf *gguf;
        fd_graph *graph;
        char *bytes = read_bytes(shared_file("conformance/bloom-dense.gguf"), &size);
        put_value(bytes, size, "bloom.attention.max_alibi_bias", &said[i]);
        cr_assert_eq(fd_gguf_parse(bytes, size, &gguf, &err), FD_OK, "%s", err.message);
        fd_code code = fd_graph_build(gguf, &graph, NULL, &err);
        if (said[i] == 4) { /* no model has it, and llama.cpp takes 8 */
            cr_expect(code == FD_ERR_UNSUPPORTED && strstr(err.message, "max_alibi_bias: 4, expected 8"));
        } else {
            cr_assert_eq(code, FD_OK, "%s", err.message);
            int32_t node = fd_graph_find(graph, "blk.1.attn_alibi");
            cr_expect(node >= 0 && graph->nodes[node].max_bias == 8, "a key of %g", (double)said[i]);
            fd_graph_free(graph);
        }
        fd_gguf_close(gguf);
        free(bytes);
    }
}

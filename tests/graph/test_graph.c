/* Graphs: what is built, what is refused and how it is said. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "numerics/contract.h"
#include "tests/common.h"
#include "tests/graph/small_model.h"

static fd_graph *build(small_model_options options) {
    fd_error err = {0};
    fd_graph *graph;
    fd_code code = fd_graph_build(small_model(&options), &graph, NULL, &err);
    cr_assert(code == FD_OK, "%s", err.message);
    return kept(graph);
}

Test(graph, nodes_of_a_layer_are_in_order_of_execution) {
    static const char *const names[] = {"attn_norm",   "attn_q",    "attn_k",   "attn_v",      "attn_q_rope",
                                        "attn_k_rope", "cache_k",   "cache_v",  "attn_scores", "attn_weights",
                                        "attn_out",    "attn_proj", "ffn_inp",  "ffn_norm",    "ffn_gate",
                                        "ffn_up",      "ffn_act",   "ffn_down", "l_out"};
    fd_graph *g = build((small_model_options){.arch = "llama"});
    cr_assert(g->n_node == 1 + 2 * 19 + 2);
    cr_assert(strcmp(g->nodes[0].name, "token_embd") == 0);
    for (int l = 0; l < 2; l++)
        for (int i = 0; i < 19; i++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%d.%s", l, names[i]);
            cr_expect(fd_graph_find(g, name) == 1 + l * 19 + i, "%s at %d", name, fd_graph_find(g, name));
        }
    cr_assert(fd_graph_find(g, "logits") == g->n_node - 1);
    cr_assert(fd_graph_find(g, "blk.2.attn_q") == -1);
}

Test(graph, architectures_differ_in_pairing_and_bias) {
    fd_graph *llama = build((small_model_options){.arch = "llama"});
    fd_graph *qwen2 = build((small_model_options){.arch = "qwen2", .tied = true});
    cr_assert(llama->nodes[fd_graph_find(llama, "blk.0.attn_q_rope")].rope.pairing == FD_ROPE_INTERLEAVED);
    cr_assert(qwen2->nodes[fd_graph_find(qwen2, "blk.0.attn_q_rope")].rope.pairing == FD_ROPE_HALF);
    cr_assert(llama->nodes[fd_graph_find(llama, "blk.0.attn_q")].weight[1] == -1);
    cr_assert(qwen2->nodes[fd_graph_find(qwen2, "blk.0.attn_q")].weight[1] >= 0);
    int32_t tied = qwen2->nodes[fd_graph_find(qwen2, "logits")].weight[0];
    cr_assert(strcmp(qwen2->weights[tied].name, "token_embd.weight") == 0);
}

typedef struct refusal {
    small_model_options options;
    fd_code code;
    const char *message; /* what the error must contain */
} refusal;

static const refusal refusals[] = {
    {{.arch = "gpt9"}, FD_ERR_UNSUPPORTED, "architecture \"gpt9\" is not implemented; known: llama, qwen2, "},
    {{.arch = "llama", .skip = "blk.1.ffn_up.weight"}, FD_ERR_INPUT, "weight blk.1.ffn_up.weight: missing"},
    {{.arch = "llama", .skip = "token_embd.weight"}, FD_ERR_INPUT, "weight token_embd.weight: missing"},
    {{.arch = "qwen2", .skip = "blk.0.attn_k.bias"}, FD_ERR_INPUT, "weight blk.0.attn_k.bias: missing"},
    {{.arch = "llama", .widen = "blk.0.attn_q.weight"},
     FD_ERR_INPUT,
     "weight blk.0.attn_q.weight: shape [96, 64], expected [64, 64]"},
    {{.arch = "llama", .drop_key = "block_count"}, FD_ERR_INPUT, "key llama.block_count: missing"},
    {{.arch = "llama", .drop_key = "attention.layer_norm_rms_epsilon"},
     FD_ERR_INPUT,
     "layer_norm_rms_epsilon: missing"},
    {{.arch = "llama", .set_key = "attention.head_count_kv", .set_value = 3}, FD_ERR_INPUT, "expected a divisor"},
    {{.arch = "llama", .set_key = "attention.head_count", .set_value = 0}, FD_ERR_INPUT, "head_count: 0, expected 1"},
    {{.arch = "qwen2", .set_key = "rope.dimension_count", .set_value = 7}, FD_ERR_INPUT, "expected an even number"},
    {{.arch = "llama", .set_key = "rope.dimension_count", .set_value = 8},
     FD_ERR_UNSUPPORTED,
     "key llama.rope.dimension_count: 8, expected a head's 16"},
    {{.arch = "llama", .extra = "blk.0.attn_q.scale"}, FD_ERR_UNSUPPORTED, "weight blk.0.attn_q.scale: a factor"},
    {{.arch = "llama", .set_key = "rope.dimension_count", .set_value = 18}, FD_ERR_INPUT, "expected 2 to 16"},
    {{.arch = "qwen2", .set_key = "expert_count", .set_value = 8}, FD_ERR_UNSUPPORTED, "expert_count: 8"},
    {{.arch = "llama", .set_key = "expert_count", .set_value = 8}, FD_ERR_INPUT, "llama.expert_used_count: missing"},
    {{.arch = "llama", .scaling = "ntk", .scaling_factor = 4},
     FD_ERR_UNSUPPORTED,
     "\"ntk\"; none, linear, llama3, yarn and longrope"},
    {{.arch = "llama", .scaling = "longrope", .scaling_factor = 1},
     FD_ERR_INPUT,
     "weight rope_factors_short.weight: missing"},
    {{.arch = "mistral3",
      .scaling = "yarn",
      .scaling_factor = 4,
      .extra_key = "rope.scaling.yarn_beta_slow",
      .extra_value = 40},
     FD_ERR_INPUT,
     "expected 0 < slow < fast"},
};

Test(graph, what_cannot_run_is_refused_by_name) {
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const refusal *r = &refusals[i];
        fd_error err = {0};
        fd_graph *graph = NULL;
        fd_gguf *gguf = small_model(&r->options);
        fd_code code = fd_graph_build(gguf, &graph, NULL, &err);
        cr_expect(code == r->code && strstr(err.message, r->message), "expected \"%s\", found %d \"%s\"", r->message,
                  (int)code, err.message);
        cr_expect(graph == NULL);
    }
}

Test(graph, unused_tensors_are_reported) {
    fd_error err = {0};
    fd_graph *graph;
    fd_weight_report report;
    fd_gguf *gguf = small_model(&(small_model_options){.arch = "llama", .extra = "blk.0.attn_sinks.weight"});
    cr_assert(fd_graph_build(gguf, &graph, &report, &err) == FD_OK, "%s", err.message);
    cr_assert(report.n_missing == 0 && report.n_unused == 1);
    cr_assert(strcmp(report.unused[0], "blk.0.attn_sinks.weight") == 0);
    fd_weight_report_free(&report);
    fd_graph_free(graph);
}

/* Each case breaks one invariant of a sound graph and names it; NULL: there are no more. */
static const char *break_graph(fd_graph *g, int which) {
    fd_node *n = g->nodes;
    switch (which) {
    case 0: return n[3].input[0] = 5, "later input";
    case 1: return n[3].input[0] = 3, "own input";
    case 2: return n[4].id = 3, "wrong id";
    case 3: return n[2].input[0] = -1, "missing input";
    case 4: return n[1].input[1] = 0, "second input";
    case 5: return n[2].op = FD_OP_COUNT, "unknown op";
    case 6: return n[2].weight[0] = -1, "no weight";
    case 7: return n[2].weight[0] = n[3].weight[0], "wrong weight";
    case 8: return n[2].weight[0] = g->n_weight, "weight past the table";
    case 9: return n[5].rope.n_rot = 18, "wide rotation";
    case 10: return n[1].eps = NAN, "eps is NaN";
    case 11: return n[9].input[1] = n[9].input[0], "scores without a cache";
    case 12: return n[0].shape[0] = 0, "empty shape";
    default: return NULL;
    }
}

Test(graph, validation_notices_every_breach) {
    fd_graph *sound = build((small_model_options){.arch = "llama"});
    const char *breach = "none";
    for (int i = 0; breach; i++) {
        fd_error err = {0};
        fd_graph *g;
        cr_assert(fd_graph_clone(sound, &g, &err) == FD_OK);
        cr_assert(fd_graph_validate(g, &err) == FD_OK);
        breach = break_graph(g, i);
        if (breach) cr_expect(fd_graph_validate(g, &err) == FD_ERR_INPUT && err.message[0], "%s: not noticed", breach);
        fd_graph_free(g);
    }
}

static fd_rope rope_of(fd_rope_scaling scaling) {
    return (fd_rope){.n_rot = 32,
                     .base = 500000,
                     .scaling = scaling,
                     .factor = 8,
                     .low_freq_factor = 1,
                     .high_freq_factor = 4,
                     .beta_fast = 32,
                     .beta_slow = 1,
                     .ext_factor = 1,
                     .original_context = 8192};
}

/* The definitions once more, in plain libm. */
static double expected_frequency(const fd_rope *r, int i) {
    double f = pow(r->base, -2.0 * i / r->n_rot);
    if (r->scaling == FD_ROPE_SCALING_LINEAR) return f / r->factor;
    if (r->scaling == FD_ROPE_SCALING_NONE || r->scaling == FD_ROPE_SCALING_LONGROPE) return f;
    if (r->scaling == FD_ROPE_SCALING_YARN) {
        double per_turn = r->n_rot / (2 * log(r->base)), turns = r->original_context / (2 * acos(-1.0));
        double low = fmax(floor(per_turn * log(turns / r->beta_fast)), 0);
        double high = fmin(ceil(per_turn * log(turns / r->beta_slow)), r->n_rot - 1);
        double ramp = fmin(fmax((i - low) / (high - low), 0), 1);
        return (1 - ramp) * f + ramp * f / r->factor;
    }
    double wavelength = 2 * acos(-1.0) / f;
    if (wavelength < r->original_context / r->high_freq_factor) return f;
    if (wavelength > r->original_context / r->low_freq_factor) return f / r->factor;
    double smooth =
        (r->original_context / wavelength - r->low_freq_factor) / (r->high_freq_factor - r->low_freq_factor);
    return (1 - smooth) * f / r->factor + smooth * f;
}

Test(rope_table, follows_the_definition_under_every_scaling) {
    for (int s = FD_ROPE_SCALING_NONE; s < FD_ROPE_SCALING_COUNT; s++) {
        fd_rope rope = rope_of((fd_rope_scaling)s);
        static float c[100 * 16], si[100 * 16];
        fd_rope_table(&rope, NULL, 1000, 100, c, si);
        for (int p = 0; p < 100; p++)
            for (int i = 0; i < 16; i++) {
                double angle = (1000 + p) * expected_frequency(&rope, i);
                cr_assert(fabs(c[p * 16 + i] - cos(angle)) <= 0x1p-24 && fabs(si[p * 16 + i] - sin(angle)) <= 0x1p-24,
                          "scaling %d, position %d, pair %d", s, 1000 + p, i);
            }
    }
}

Test(rope_table, factors_divide_the_frequency_and_position_zero_is_identity) {
    fd_rope rope = rope_of(FD_ROPE_SCALING_NONE);
    float factors[16], c[2 * 16], s[2 * 16];
    for (int i = 0; i < 16; i++) factors[i] = 1.0f + (float)i;
    fd_weight weight = {.dtype = FD_F32, .n_row = 1, .n_col = 16, .data = factors};
    fd_rope_table(&rope, &weight, 0, 2, c, s);
    for (int i = 0; i < 16; i++) {
        cr_expect(c[i] == 1.0f && s[i] == 0.0f);
        cr_expect(fabs(s[16 + i] - sin(expected_frequency(&rope, i) / factors[i])) <= 0x1p-24);
    }
}

Test(rope_table, a_slice_has_the_bits_of_the_whole) {
    fd_rope rope = rope_of(FD_ROPE_SCALING_LLAMA3);
    static float c[64 * 16], s[64 * 16], c1[16], s1[16];
    fd_rope_table(&rope, NULL, 0, 64, c, s);
    for (int p = 0; p < 64; p++) {
        fd_rope_table(&rope, NULL, p, 1, c1, s1);
        cr_assert(memcmp(c1, c + p * 16, sizeof c1) == 0 && memcmp(s1, s + p * 16, sizeof s1) == 0, "position %d", p);
    }
}

/* YaRN's attention factor, from the keys of gpt-oss (factor 32, nothing else) and of files with a log multiplier. */
Test(rope_table, cos_and_sin_grow_by_the_attention_factor) {
    static const struct {
        const char *arch, *scaling, *key;
        float factor, value;
        double expected;
    } table[] = {{"llama", "yarn", "rope.scaling.yarn_beta_fast", 32, 32, 1.3465735902799727},
                 {"llama", "yarn", "rope.scaling.attn_factor", 32, 2, 2.6931471805599454},
                 {"mistral3", "yarn", "rope.scaling.yarn_log_multiplier", 16, 1, 1},
                 /* llama.cpp does not read these two for llama. */
                 {"llama", "yarn", "rope.scaling.yarn_log_multiplier", 32, 1, 1.3465735902799727},
                 {"llama", "yarn", "rope.scaling.yarn_ext_factor", 32, 0, 1.3465735902799727},
                 {"llama", "yarn", "rope.scaling.yarn_attn_factor", 1, 7, 1},
                 {"llama", "linear", "rope.scaling.attn_factor", 1, 1.5f, 1.5}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        fd_graph *graph = build((small_model_options){.arch = table[i].arch,
                                                      .scaling = table[i].scaling,
                                                      .scaling_factor = table[i].factor,
                                                      .extra_key = table[i].key,
                                                      .extra_value = table[i].value});
        const fd_rope *rope = &graph->nodes[fd_graph_find(graph, "blk.0.attn_k_rope")].rope;
        float c[8], s[8];
        cr_expect_float_eq(rope->attention_factor, table[i].expected, 1e-12, "row %zu: %.17g", i,
                           rope->attention_factor);
        fd_rope_table(rope, NULL, 0, 1, c, s);
        for (int k = 0; k < 8; k++) cr_expect(c[k] == (float)table[i].expected && s[k] == 0);
    }
}

/* A graph is built for a short context; a longer one takes the long factors, and back. */
Test(rope_table, the_context_chooses_longropes_factors) {
    char names[2][32] = {"rope_factors_short.weight", "rope_factors_long.weight"};
    fd_weight weights[2] = {0};
    fd_node node = {.op = FD_OP_ROPE, .weight = {0, 1}, .rope = {.original_context = 512}};
    fd_graph graph = {.nodes = &node, .n_node = 1, .weights = weights, .n_weight = 2};
    for (int k = 0; k < 2; k++) memcpy(weights[k].name, names[k], sizeof names[k]);
    static const int32_t contexts[][2] = {{1, 0}, {512, 0}, {513, 1}, {4096, 1}, {24, 0}};
    for (size_t i = 0; i < sizeof contexts / sizeof *contexts; i++) {
        fd_graph_set_context(&graph, contexts[i][0]);
        cr_expect(node.weight[0] == contexts[i][1] && node.weight[1] == 1 - contexts[i][1], "context %d",
                  contexts[i][0]);
    }
    node.rope.original_context = 128; /* llama.cpp has no context of less than 256 */
    fd_graph_set_context(&graph, 1);
    cr_expect_eq(node.weight[0], 1);
    fd_node plain = {.op = FD_OP_ROPE, .weight = {-1, -1}};
    graph.nodes = &plain;
    fd_graph_set_context(&graph, 4096);
    cr_expect(plain.weight[0] == -1);
}

Test(graph, the_page_of_architectures_lists_each_and_no_other) {
    static const char *const names[] = {
#define FD_ARCH(name) #name,
#include "model/arch/archs.def"
#undef FD_ARCH
    };
    enum { N_NAME = sizeof names / sizeof *names };
    FILE *file = fopen(FD_SOURCE_DIR "/docs/architectures.md", "r");
    char line[1024], name[64];
    bool listed[N_NAME] = {false};
    cr_assert_not_null(file);
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "| `%63[a-z0-9_-]` |", name) != 1) continue;
        bool known = false;
        for (char *c = name; *c; c++)
            if (*c == '-') *c = '_';
        for (size_t i = 0; i < N_NAME; i++)
            if (strcmp(names[i], name) == 0) known = listed[i] = true;
        cr_expect(known, "docs/architectures.md lists %s", name);
    }
    fclose(file);
    for (size_t i = 0; i < N_NAME; i++) cr_expect(listed[i], "docs/architectures.md lacks %s", names[i]);
}

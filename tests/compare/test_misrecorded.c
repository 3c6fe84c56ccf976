/* A sound engine whose dump is wrong gets no bug's name: what reads the tensor follows from what it should be. The same
 * values from an engine that uses them are a bug. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "tests/compare/replay_bench.h"

/* Before they are scaled. */
static void scores_unscaled(const fd_observation *seen, float *rows) {
    if (!fd_ends_with(seen->node->name, ".attn_scores")) return;
    for (int64_t i = 0; i < seen->n_pos * seen->row_stride; i++) rows[i] /= seen->node->scale;
}

/* Before RoPE, by the graph's order the tensor that was seen last but one. */
static void k_before_rope(const fd_observation *seen, float *rows) {
    static float k[8 * 4096];
    size_t size = sizeof *rows * (size_t)(seen->n_pos * seen->row_stride);
    cr_assert(size <= sizeof k || !fd_ends_with(seen->node->name, ".attn_k"));
    if (fd_ends_with(seen->node->name, ".attn_k")) memcpy(k, rows, size);
    if (fd_ends_with(seen->node->name, ".attn_k_rope")) memcpy(rows, k, size);
}

/* Layer 2 alone: every row is that of the position before. */
static void down_late(const fd_observation *seen, float *rows) {
    if (strcmp(seen->node->name, "blk.2.ffn_down") != 0 || seen->n_pos < 2) return;
    size_t n = (size_t)seen->row_stride;
    memmove(rows + n, rows, sizeof *rows * n * (size_t)(seen->n_pos - 1));
}

/* Two pages of one key each, in the order in which they lie in memory. */
static void pages_in_their_order(const fd_observation *seen, float *rows) {
    if (!fd_ends_with(seen->node->name, ".attn_scores") && !fd_ends_with(seen->node->name, ".attn_weights")) return;
    const int64_t n_head = seen->node->shape[0], n_kv = seen->row_stride / n_head;
    for (int64_t i = 0; i < seen->n_pos * n_head; i++) {
        float *keys = rows + i * n_kv, kept = keys[0];
        if (seen->pos0 + i / n_head < 1) continue; /* sees one key */
        keys[0] = keys[1];
        keys[1] = kept;
    }
}

static void unscale(fd_node *node) {
    if (fd_ends_with(node->name, ".attn_scores")) node->scale = 1;
}
static void unturn(fd_node *node) {
    if (!fd_ends_with(node->name, ".attn_k_rope")) return;
    node->rope.scaling = FD_ROPE_SCALING_LINEAR;
    node->rope.factor = 1e30; /* no angle is left */
}

static const struct {
    const char *what;
    void (*misrecord)(const fd_observation *seen, float *rows);
    const char *node, *reader, *says;
    int32_t n_node;
    void (*bug)(fd_node *node); /* the same values, and the engine uses them; NULL: not tried */
} cases[] = {
    {"scores before they are scaled", scores_unscaled, "blk.0.attn_scores", "blk.0.attn_weights", "not scaled", 6,
     unscale},
    {"K before RoPE", k_before_rope, "blk.0.attn_k_rope", "blk.0.cache_k", "blk.0.attn_k", 6, unturn},
    {"keys in the order of pages", pages_in_their_order, "blk.0.attn_scores", "blk.0.attn_out", "keys in another order",
     6, NULL},
    {"one position late", down_late, "blk.2.ffn_down", "blk.2.l_out", "blk.2.ffn_down of position 0", 1, NULL},
};

Test(misrecorded, a_tensor_whose_readers_follow_from_what_it_should_be_was_recorded_wrongly) {
    static const char *const engines[] = {"f32", "f16kv", "f32", "bf16"};
    bench b = open_bench(models[0], (recording){0});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fd_verdict v = judged(&b, b.graph, (recording){.emulated = engines[i], .misrecord = cases[i].misrecord});
        const fd_misrecorded_kind *kind = &v.dump.kinds[0];
        cr_expect_eq(v.status, FD_CHECK_DUMP, "%s: %s", cases[i].what, fd_verdict_status_name(v.status));
        cr_expect_eq(fd_verdict_exit_status(&v), 3);
        cr_assert_eq(v.dump.n, 1, "%s", cases[i].what);
        cr_expect_str_eq(kind->node, cases[i].node);
        cr_expect_str_eq(kind->reader, cases[i].reader);
        cr_expect_eq(kind->n_node, cases[i].n_node, "%s: %d", cases[i].what, kind->n_node);
        cr_expect(strstr(kind->holds, cases[i].says) || strstr(kind->summary, cases[i].says), "%s: \"%s\", \"%s\"",
                  cases[i].what, kind->holds, kind->summary);
        cr_expect_eq(v.replay.n_introduced, 0);
        fd_verdict_free(&v);
    }
    close_model(&b);
}

Test(misrecorded, the_same_values_from_an_engine_that_uses_them_are_a_bug) {
    bench b = open_bench(models[0], (recording){0});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fd_graph *faulty;
        fd_error err = {0};
        if (!cases[i].bug) continue;
        must(fd_graph_clone(b.graph, &faulty, &err), &err);
        for (int32_t k = 0; k < faulty->n_node; k++) cases[i].bug(&faulty->nodes[k]);
        fd_verdict v = judged(&b, faulty, (recording){.emulated = "f32"});
        cr_expect_eq(v.status, FD_DIVERGED, "%s: %s", cases[i].what, fd_verdict_status_name(v.status));
        cr_expect_str_eq(v.divergence.node, cases[i].node);
        cr_expect_eq(v.dump.n, 0);
        fd_verdict_free(&v);
        fd_graph_free(faulty);
    }
    close_model(&b);
}

/* Behind the wrong record, the engine has a bug: both are said. */
Test(misrecorded, a_bug_elsewhere_is_not_hidden_by_a_wrong_record) {
    bench b = open_bench(models[0], (recording){0});
    fd_graph *faulty;
    fd_error err = {0};
    must(fd_graph_clone(b.graph, &faulty, &err), &err);
    faulty->nodes[fd_graph_find(faulty, "blk.3.attn_q_rope")].rope.base = 5e5;
    fd_verdict v = judged(&b, faulty, (recording){.emulated = "f32", .misrecord = down_late});
    cr_expect_eq(v.status, FD_DIVERGED);
    cr_expect_str_eq(v.divergence.node, "blk.3.attn_q_rope");
    cr_expect_eq(v.dump.n, 1);
    cr_expect_str_eq(v.dump.kinds[0].node, "blk.2.ffn_down");
    fd_verdict_free(&v);
    fd_graph_free(faulty);
    close_model(&b);
}

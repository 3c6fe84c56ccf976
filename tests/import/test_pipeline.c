/* Files to trace without the program: positions, names that repeat, rows that are missing, and plans that are
 * refused. */
#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/import/import_case.h"

Test(pipeline, steps_follow_one_another_and_names_repeat, .init = set_up, .fini = tear_down) {
    save("s0.x", "(1, 2, 3)", 6, 0);
    save("s0.x#2", "(1, 2, 3)", 6, 100);
    save("s1.x", "(1, 1, 3)", 3, 6);
    save("s1.x#2", "(1, 1, 3)", 3, 106);
    save("s0.unknown", "(2,)", 2, 0);
    save("s0.tap", "(2,)", 2, 0);
    save("s0.view", "(2,)", 2, 0);
    result r = import(NULL, "x#1 -> a axis=-2\nx#last -> b axis=-2 scale=0.5\nskip view\nallow t*\n", 3, NULL, 0);
    cr_assert_eq(r.code, FD_OK, "%s", r.err.message);
    cr_assert_eq(fd_trace_n_step(r.trace), 2);
    cr_assert_eq(fd_trace_steps(r.trace)[1].kind, FD_STEP_DECODE);
    for (int pos = 0; pos < 3; pos++) {
        cr_assert_eq(at(r.trace, "a", pos, 1), (float)(3 * pos + 1));
        cr_assert_eq(at(r.trace, "b", pos, 2), (float)(100 + 3 * pos + 2) / 2);
    }
    cr_assert_eq(r.n_unmatched, 1);
    cr_assert_eq(r.n_allowed, 1);
    cr_assert_eq(r.n_skipped, 1);
    fd_trace_close(r.trace);
    /* a trace is a source as well: its positions come first */
    char path[96], copy[96];
    snprintf(path, sizeof path, "%s/out.h5", folder);
    snprintf(copy, sizeof copy, "%s/foreign.h5", folder);
    cr_assert_eq(rename(path, copy), 0);
    r = import(copy, "a -> c\nb -> d interleave\n", 3, NULL, 0);
    cr_assert_eq(r.code, FD_ERR_INPUT); /* 3 elements have no halves */
    r = import(copy, "a -> c scale=2\nb -> d\n", 3, NULL, 0);
    cr_assert_eq(r.code, FD_OK, "%s", r.err.message);
    cr_assert_eq(at(r.trace, "c", 2, 1), 14);
    cr_assert_eq(at(r.trace, "d", 2, 2), 54);
    cr_assert_eq(fd_trace_n_step(r.trace), 2);
    fd_trace_close(r.trace);
}

/* Names as SGLang's dumper writes them, of 2026 and of 2025; the .pt beside its .npy is passed over, alone it is
 * refused. */
Test(pipeline, names_of_sglang_say_step_layer_rank_and_order, .init = set_up, .fini = tear_down) {
    char path[200];
    snprintf(path, sizeof path, "%s/dump_1", folder);
    cr_assert_eq(mkdir(path, 0700), 0);
    save("dump_1/step=0___rank=0___dump_index=9___name=q___recompute_status=disabled___layer_id=3", "(2, 3)", 6, 0);
    save("dump_1/step=0___rank=0___dump_index=10___name=q___recompute_status=disabled___layer_id=3", "(2, 3)", 6, 100);
    save("dump_1/step=0___rank=1___dump_index=9___name=q___recompute_status=disabled___layer_id=3", "(2, 3)", 6, 200);
    save("dump_1/step=1___rank=0___dump_index=21___name=q___recompute_status=disabled___layer_id=3", "(1, 3)", 3, 6);
    save("dump_1/step=1___rank=0___dump_index=22___name=q___recompute_status=disabled___layer_id=3", "(1, 3)", 3, 106);
    save("forward_pass_id=0___rank=0___name=embed___dump_index=1___layer_id=None", "(2, 3)", 6, 300);
    const char *map = "q-{layer}#1 -> blk.{layer}.a\nq-{layer}#2 -> blk.{layer}.b\nembed -> e\nallow *:rank?\n";
    result r = import(NULL, map, 3, NULL, 0);
    cr_assert_eq(r.code, FD_OK, "%s", r.err.message);
    cr_expect_eq(r.n_unmatched, 0);
    cr_expect_eq(r.n_allowed, 1);
    cr_expect_eq(fd_trace_n_step(r.trace), 2);
    for (int pos = 0; pos < 3; pos++) {
        cr_expect_eq(at(r.trace, "blk.3.a", pos, 1), (float)(3 * pos + 1));
        cr_expect_eq(at(r.trace, "blk.3.b", pos, 1), (float)(100 + 3 * pos + 1));
    }
    cr_expect_eq(at(r.trace, "e", 1, 0), 303);
    fd_trace_close(r.trace);
    for (int alone = 0; alone < 2; alone++) {
        snprintf(path, sizeof path,
                 "%s/dump_1/step=0___rank=0___dump_index=%d___name=q___recompute_status=disabled___layer_id=3.pt",
                 folder, alone ? 11 : 10);
        FILE *file = fopen(path, "wb");
        cr_assert(file);
        fclose(file);
        r = import(NULL, map, 3, NULL, 0);
        cr_expect_eq(r.code, alone ? FD_ERR_INPUT : FD_OK, "%s", r.err.message);
        fd_trace_close(r.trace);
    }
}

Test(pipeline, keys_beyond_the_position_are_padding, .init = set_up, .fini = tear_down) {
    save("kq", "(1, 2, 3, 5)", 30, 0); /* [batch, head, position, key and padding] */
    result r = import(NULL, "kq -> blk.0.attn_scores axis=-2\n", 3, NULL, 0);
    cr_assert_eq(r.code, FD_OK, "%s", r.err.message);
    int32_t id = fd_trace_find(r.trace, "blk.0.attn_scores");
    cr_assert(fd_trace_node_at(r.trace, id)->over_kv);
    cr_assert_eq(fd_trace_elements(fd_trace_node_at(r.trace, id), 1), 4); /* 2 heads, 2 keys */
    cr_assert_eq(at(r.trace, "blk.0.attn_scores", 1, 1), 6);
    cr_assert_eq(at(r.trace, "blk.0.attn_scores", 1, 2), 20);
    fd_trace_close(r.trace);
}

Test(pipeline, last_rows_and_caches_are_placed, .init = set_up, .fini = tear_down) {
    save("s0.logits", "(1, 2)", 2, 0);
    save("s1.logits", "(1, 2)", 2, 10);
    save("s0.cache", "(8, 2)", 16, 0);
    save("s1.cache", "(8, 2)", 16, 100);
    const int32_t sizes[] = {3, 1};
    result r =
        import(NULL, "logits -> logits axis=-2 rows=last\ncache -> blk.0.cache_k axis=-2 rows=cache\n", 4, sizes, 2);
    cr_assert_eq(r.code, FD_OK, "%s", r.err.message);
    float row[2];
    fd_error err;
    int32_t id = fd_trace_find(r.trace, "logits");
    cr_assert_eq(fd_trace_read(r.trace, id, 1, row, NULL, &err), FD_ERR_INCOMPLETE);
    cr_assert_eq(at(r.trace, "logits", 2, 1), 1);
    cr_assert_eq(at(r.trace, "logits", 3, 1), 11);
    cr_assert_eq(at(r.trace, "blk.0.cache_k", 2, 0), 4);
    cr_assert_eq(at(r.trace, "blk.0.cache_k", 3, 0), 106);
    fd_trace_close(r.trace);
}

/* A prompt in chunks of which each left its last logits; the trace is a source as well. */
Test(pipeline, last_rows_of_chunks_are_kept_and_the_others_are_not_recorded, .init = set_up, .fini = tear_down) {
    static const struct {
        const char *what;
        int skipped; /* a step that left nothing */
        bool held[6];
    } cases[] = {
        {"every step's last row", -1, {false, false, true, false, true, true}},
        {"no row of the second step: what follows the gap is kept", 1, {false, false, false, false, false, true}}};
    const int32_t sizes[] = {3, 2, 1};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        tear_down();
        set_up();
        for (int s = 0; s < 3; s++) {
            char name[16];
            snprintf(name, sizeof name, "s%d.logits", s);
            if (s != cases[c].skipped) save(name, "(1, 2)", 2, 10.0f * (float)s);
            snprintf(name, sizeof name, "s%d.x", s);
            save(name, s == 0 ? "(3, 2)" : s == 1 ? "(2, 2)" : "(1, 2)", 2 * sizes[s], 0);
        }
        result r = import(NULL, "logits -> logits axis=-2 rows=last\nx -> x axis=-2\n", 6, sizes, 3);
        for (int again = 0; again < 2; again++) {
            cr_assert_eq(r.code, FD_OK, "%s: %s", cases[c].what, r.err.message);
            for (int pos = 0; pos < 6; pos++) {
                float row[2];
                fd_error err;
                const bool held =
                    fd_trace_read(r.trace, fd_trace_find(r.trace, "logits"), pos, row, NULL, &err) == FD_OK;
                cr_expect_eq(held, cases[c].held[pos], "%s: position %d", cases[c].what, pos);
                if (held) cr_expect_eq(row[1], 10.0f * (float)(pos < 3 ? 0 : pos < 5 ? 1 : 2) + 1);
            }
            fd_trace_close(r.trace);
            char path[96], copy[96];
            snprintf(path, sizeof path, "%s/out.h5", folder);
            snprintf(copy, sizeof copy, "%s/foreign.h5", folder);
            cr_assert_eq(rename(path, copy), 0);
            if (again == 0) r = import(copy, "logits -> logits\nx -> x\n", 6, NULL, 0);
        }
    }
}

Test(pipeline, the_first_rule_wins_and_ranks_are_layers, .init = set_up, .fini = tear_down) {
    for (int layer = 0; layer < 3; layer++) {
        static const char *const nodes[] = {"node_9", "node_74", "node_117"};
        char name[32];
        snprintf(name, sizeof name, "norm-%d", layer);
        save(name, "(2, 3)", 6, (float)layer);
        save(nodes[layer], "(2, 3)", 6, (float)(10 * layer));
    }
    save("best-1", "(2, 3)", 6, 1000);
    result r = import(NULL,
                      "best-{layer} -> blk.{layer}.ffn_inp axis=-2\nnorm-{layer} -> blk.{layer}.ffn_inp axis=-2\n"
                      "node_{rank} -> blk.{rank}.attn_proj axis=-2\nnorm-2 -> blk.{last}.l_out axis=-2\n",
                      2, NULL, 0);
    cr_assert_eq(r.code, FD_OK, "%s", r.err.message);
    cr_assert_eq(at(r.trace, "blk.1.ffn_inp", 0, 0), 1000);
    cr_assert_eq(at(r.trace, "blk.2.ffn_inp", 0, 0), 2);
    cr_assert_eq(at(r.trace, "blk.0.attn_proj", 0, 0), 0);
    cr_assert_eq(at(r.trace, "blk.2.attn_proj", 0, 0), 20);
    cr_assert_eq(at(r.trace, "blk.2.l_out", 0, 0), 2);
    cr_assert_eq(r.n_unmatched, 0);
    fd_trace_close(r.trace);
}

/* A layer with a window of two keys: an engine that keeps these alone has no columns for the others in decode. */
Test(pipeline, keys_that_a_window_dropped_are_hidden, .init = set_up, .fini = tear_down) {
    static fd_node nodes[] = {{.name = "blk.0.attn_scores", .op = FD_OP_ATTN_SCORES, .shape = {1}, .window = 2},
                              {.name = "blk.0.attn_weights", .id = 1, .op = FD_OP_ATTN_SOFTMAX, .shape = {1}}};
    static const fd_graph graph = {.nodes = nodes, .n_node = 2};
    const char *map = "w -> blk.0.attn_weights axis=-2\n";
    save("s0.w", "(1, 3, 3)", 9, 0);
    save("s1.w", "(1, 1, 2)", 2, 100);
    model = &graph;
    result r = import(NULL, map, 4, NULL, 0);
    cr_assert_eq(r.code, FD_OK, "%s", r.err.message);
    const float decoded[] = {0, 0, 100, 101};
    for (int k = 0; k < 4; k++) cr_assert_eq(at(r.trace, "blk.0.attn_weights", 3, k), decoded[k], "key %d", k);
    cr_assert_eq(at(r.trace, "blk.0.attn_weights", 1, 1), 4);
    fd_trace_close(r.trace);
    nodes[0].window = 3; /* position 3 sees three keys: one is missing */
    r = import(NULL, map, 4, NULL, 0);
    cr_assert_eq(r.code, FD_ERR_INPUT);
    cr_assert(strstr(r.err.message, "n_kv at least 4"), "%s", r.err.message);
    model = NULL;
}

/* transformers' masks add a type's lowest value where ours is -Inf: both make the weight 0. A key that the window shows keeps it. */
Test(pipeline, the_lowest_value_where_a_window_hides_is_minus_infinity, .init = set_up, .fini = tear_down) {
    static fd_node node = {.name = "blk.0.attn_scores", .op = FD_OP_ATTN_SCORES, .shape = {1}, .window = 2};
    static const fd_graph graph = {.nodes = &node, .n_node = 1};
    save("s", "(1, 3, 3)", 9, -FLT_MAX);
    model = &graph;
    result r = import(NULL, "s -> blk.0.attn_scores axis=-2\n", 3, NULL, 0);
    cr_assert_eq(r.code, FD_OK, "%s", r.err.message);
    cr_expect_eq(at(r.trace, "blk.0.attn_scores", 2, 0), -INFINITY);
    cr_expect_eq(at(r.trace, "blk.0.attn_scores", 2, 1), -FLT_MAX);
    cr_expect_eq(at(r.trace, "blk.0.attn_scores", 1, 0), -FLT_MAX);
    fd_trace_close(r.trace);
    model = NULL;
}

/* The row where a window hides its first key may be the one where the engine's begins a position too late: other rows show the mask, of
 * binary16 too. */
Test(pipeline, a_key_that_a_masked_window_shows_is_kept, .init = set_up, .fini = tear_down) {
    static fd_node node = {.name = "blk.0.attn_scores", .op = FD_OP_ATTN_SCORES, .shape = {1}, .window = 2};
    static const fd_graph graph = {.nodes = &node, .n_node = 1};
    static const float lowest[] = {-INFINITY, -FLT_MAX, -65504, -65472, 0};
    for (size_t i = 0; i < sizeof lowest / sizeof *lowest; i++) {
        float scores[16];
        for (int k = 0; k < 16; k++) scores[k] = (float)k;
        scores[12] = lowest[i]; /* row 3 hides key 0, and row 2 does not */
        save_values("s", "(1, 4, 4)", scores, 16);
        model = &graph;
        result r = import(NULL, "s -> blk.0.attn_scores axis=-2\n", 4, NULL, 0);
        cr_assert_eq(r.code, FD_OK, "%s", r.err.message);
        cr_expect_eq(at(r.trace, "blk.0.attn_scores", 2, 0), lowest[i] < 0 ? 8 : -INFINITY, "%g", lowest[i]);
        cr_expect_eq(at(r.trace, "blk.0.attn_scores", 3, 0), -INFINITY, "%g", lowest[i]);
        cr_expect_eq(at(r.trace, "blk.0.attn_scores", 3, 1), lowest[i] < 0 ? 13 : -INFINITY, "%g", lowest[i]);
        fd_trace_close(r.trace);
    }
    model = NULL;
}

static const struct {
    const char *map;
    int32_t n_token;
    fd_code code;
    const char *message;
} refused[] = {
    {"a -> x axis=-1\n", 2, FD_ERR_INPUT, "m.map:1: \"a\": shape [2, 2, 3], expected 2 tokens (step 0) along axis -1"},
    {"a -> x\n", 2, FD_ERR_INPUT, "more than one axis of 2 tokens (step 0): write axis="},
    {"a -> x axis=-2\n", 4, FD_ERR_INPUT, "expected 4 tokens"},
    {"r -> x axis=-2\n", 2, FD_ERR_INPUT, "\"r\" occurs 2 times in step 0: say which, #1 to #2 or #last"},
    {"? -> x axis=-2\n", 2, FD_ERR_INPUT, "two tensors fit in step 0"},
    {"a -> x axis=-2 heads=n_head\n", 2, FD_ERR_INPUT, "needs n_head, which nothing says: give --model"},
    {"a -> blk.0.attn_scores axis=-2 slice=0:1\n", 2, FD_ERR_INPUT, "n_kv at least 2"},
    {"z -> x\n", 2, FD_ERR_INCOMPLETE, "none of its"},
};

Test(pipeline, plans_that_do_not_fit_are_refused, .init = set_up, .fini = tear_down) {
    save("a", "(2, 2, 3)", 12, 0);
    save("b", "(2, 2, 3)", 12, 0);
    save("r", "(2, 2, 3)", 12, 0);
    save("r#2", "(2, 2, 3)", 12, 0);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const char *wanted = refused[i].message;
        result r = import(NULL, refused[i].map, refused[i].n_token, NULL, 0);
        cr_assert_eq(r.code, refused[i].code, "%s gives %d: %s", refused[i].map, r.code, r.err.message);
        cr_assert(strstr(r.err.message, wanted), "%s: %s", refused[i].map, r.err.message);
    }
}

/* Beside attention in one kernel there are no scores to record; without it they are missed. */
Test(pipeline, nodes_are_absent_beside_a_name_that_says_so, .init = set_up, .fini = tear_down) {
    static const char map[] = "x -> token_embd axis=-2\nabsent blk.*.attn_scores blk.*.attn_weights with *.FLASH\n"
                              "absent blk.*.cache_v\nskip *\n";
    save("x", "(2, 3)", 6, 0);
    result without = import(NULL, map, 2, NULL, 0);
    cr_assert_eq(without.code, FD_OK, "%s", without.err.message);
    cr_expect_str_eq(fd_trace_get_info(without.trace)->absent, "blk.*.cache_v");
    fd_trace_close(without.trace);
    save("node_3.FLASH", "(2, 3)", 6, 0);
    result beside = import(NULL, map, 2, NULL, 0);
    cr_assert_eq(beside.code, FD_OK, "%s", beside.err.message);
    cr_expect_str_eq(fd_trace_get_info(beside.trace)->absent, "blk.*.attn_scores blk.*.attn_weights blk.*.cache_v");
    fd_trace_close(beside.trace);
}

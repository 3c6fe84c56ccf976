/* Bugs that begin at a position: within a step, whose earlier rows K and V are made of, too, or in the midst of decode, where the step
 * before is right. And positions of a learned table, and rotated dimensions that are no half. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "model/graph.h"
#include "tests/compare/guess_bench.h"
#include "tests/compare/said.h"

/* Rows from position `from` on are those of `node`, tables of RoPE and all. */
static void late(const fd_op_args *args, const fd_node *node, int32_t from) {
    const int64_t stride = fd_node_row_stride(node, args->n_kv), half = node->rope.n_rot / 2;
    const int64_t first = from > args->pos0 ? from - args->pos0 : 0;
    float *rows = malloc(sizeof *rows * (size_t)(args->n_pos * stride));
    float *tables = malloc(sizeof *tables * (size_t)(2 * half * args->n_kv + 1));
    fd_op_args own = *args;
    cr_assert(rows && tables);
    run_clean(args);
    if (node->op == FD_OP_ROPE) {
        fd_rope_table(&node->rope, NULL, 0, args->n_kv, tables, tables + half * args->n_kv);
        own.rope_cos = tables;
        own.rope_sin = tables + half * args->n_kv;
    }
    own.node = node;
    own.out = rows;
    run_clean(&own);
    for (int64_t i = first * stride; i < args->n_pos * stride; i++) ((float *)args->out)[i] = rows[i];
    free(tables);
    free(rows);
}

enum { FROM = 3 };

static void base_late(const fd_op_args *args) {
    fd_node node = *args->node;
    node.rope.base = 4e4;
    late(args, &node, FROM);
}
static void eps_late(const fd_op_args *args) {
    fd_node node = *args->node;
    node.eps = 1e-3f;
    late(args, &node, FROM);
}

static void base_from_3(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = base_late;
}
static void eps_from_3(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = eps_late;
}
static void three_quarters(fd_graph *g, fd_node *n) {
    (void)g;
    n->rope.n_rot = n->rope.n_rot * 3 / 4;
}

static const struct {
    guessed bug;
    const char *const *tensors;
    bool one_by_one;
} begin[] = {
    {{"_rope", base_from_3, "other_rope_base", "from position 3 on: RoPE base 40000;"}, &fused, false},
    {{"_rope", base_from_3, "other_rope_base", "from position 3 on: RoPE base 40000;"}, &layers, false},
    {{"_rope", base_from_3, "other_rope_base", "from position 3 on: RoPE base 40000;"}, &fused, true},
    {{"attn_norm", eps_from_3, "other_eps", "from position 3 on: eps 0.001;"}, &layers, true},
    {{"_rope", three_quarters, "other_rope_dims", "rotated dimensions 24;"}, &fused, false},
    {{"_rope", three_quarters, "other_rope_dims", "rotated dimensions 24;"}, &layers, false},
};

Test(begins_late, what_rows_from_a_position_on_show_is_named_with_that_position) {
    for (size_t i = 0; i < sizeof begin / sizeof *begin; i++) {
        const guessed *bug = &begin[i].bug;
        bench b = open_bench(models[0], (recording){.one_by_one = begin[i].one_by_one});
        fd_graph *faulty = graph_copy(&b);
        for (int32_t k = 0; k < faulty->n_node; k++)
            if (fd_ends_with(faulty->nodes[k].name, bug->nodes)) bug->edit(faulty, &faulty->nodes[k]);
        fd_verdict v =
            judged(&b, faulty,
                   (recording){.emulated = "f32", .tensors = *begin[i].tensors, .one_by_one = begin[i].one_by_one});
        const fd_explanation *e = &v.diagnosis.explanation;
        const char *name = e->named ? e->remaining[0].name : "", *says = e->named ? e->remaining[0].summary : "";
        cr_expect_eq(v.status, FD_DIVERGED, "%zu", i);
        cr_expect_str_eq(name, bug->name, "%zu: \"%s\" (%s); %s", i, name, says, unnamed_of(e));
        cr_expect(strstr(says, bug->says), "%zu: %s", i, says);
        fd_verdict_free(&v);
        fd_graph_free(faulty);
        close_model(&b);
    }
}

/* ---- a learned table ---- */

static const int32_t small[N_PREFILL + N_DECODE] = {1, 30, 45, 103, 26, 7, 51, 88}; /* of a vocabulary of 128 */

/* A table of four rows, whose last one stands for all positions after it. */
static void table_ends(const fd_op_args *args) {
    const int64_t n = fd_node_width(args->node);
    for (int32_t row = 0; row < args->n_pos; row++) {
        fd_op_args own = *args;
        own.n_pos = 1;
        own.pos0 = args->pos0 + row < FROM ? args->pos0 + row : FROM;
        own.in[0] = (const float *)args->in[0] + row * n;
        own.out = (float *)args->out + row * n;
        run_clean(&own);
    }
}
/* Decode takes the position of the token before. */
static void one_behind(const fd_op_args *args) {
    fd_op_args own = *args;
    own.pos0 -= args->n_pos == 1;
    run_clean(&own);
}

static const struct {
    fd_override_fn how;
    const char *says;
} learned[] = {{table_ends, "adds the row of position 3 from 4 on"}, {one_behind, "adds the row of position - 1"}};

Test(begins_late, positions_of_a_learned_table_are_asked_about_by_the_rules_of_ropes) {
    static const char *const recorded[] = {"*attn_[qkv],*attn_out,*down,logits", "*l_out,logits"};
    bench b = open_arch("gpt2-dense");
    b.ref = record(b.graph, (recording){.tokens = small});
    for (int i = 0; i < 4; i++) {
        fd_verdict v = judged(&b, spoiled(&b, "inp_pos", learned[i / 2].how),
                              (recording){.emulated = "f32", .tensors = recorded[i % 2], .tokens = small});
        const fd_explanation *e = &v.diagnosis.explanation;
        const char *says = e->named ? e->remaining[0].summary : unnamed_of(e);
        cr_expect_str_eq(says, learned[i / 2].says, "%d: %s", i, says);
        fd_verdict_free(&v);
        forget(&b);
    }
    close_model(&b);
}

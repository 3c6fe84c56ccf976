/* Logits and routers have a type of their own in many engines: where their product alone rounds its factors in an engine of binary32 of unknown
 * class, nobody can tell that from the way it is meant. One product of one layer that does so is a bug. */
#include <criterion/criterion.h>

#include "tests/compare/mixed_products.h"
#include "tests/compare/replay_bench.h"

static void norm_off(const fd_op_args *args) {
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * args->node->shape[0]; i++) ((float *)args->out)[i] *= 1.01f;
}

static const struct {
    const char *product, *bug; /* beside it, "": none */
    const char *tensors, *at;  /* where it is DIVERGED, "": it is undecided */
} runs[] = {
    {"logits", "", "*", ""},
    {"logits", "", "*l_out,logits", ""},
    {"logits", "blk.2.ffn_norm", "*", "blk.2.ffn_norm"},
    {"blk.2.attn_q", "", "*", "blk.2.attn_q"},
};

Test(head_factors, of_the_logits_alone_may_be_rounded_by_choice) {
    bench b = open_bench(models[0], (recording){0});
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        fd_graph *graph = graph_copy(&b);
        graph->nodes[fd_graph_find(graph, runs[i].product)].override = bf16_factors;
        if (runs[i].bug[0]) graph->nodes[fd_graph_find(graph, runs[i].bug)].override = norm_off;
        recording how = {.emulated = "f32", .numerics = "unknown", .tensors = runs[i].tensors};
        fd_verdict v = judge(b.graph, b.ref, record(graph, how), NULL);
        cr_expect_eq(v.status, runs[i].at[0] ? FD_DIVERGED : FD_INCOMPLETE, "%zu: %s at %s as %s", i,
                     fd_verdict_status_name(v.status), v.divergence.node, v.replay.numerics);
        cr_expect_str_eq(v.divergence.node, runs[i].at, "%zu: at %s", i, v.divergence.node);
        fd_verdict_free(&v);
        fd_graph_free(graph);
    }
    close_model(&b);
}

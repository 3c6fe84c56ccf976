/* What a step makes of the rows that earlier steps left in the cache: a host hands them back in another order, or the graph joins them to
 * the step's own in another place. */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/compare/guess_bench.h"
#include "tests/compare/said.h"

enum { N_FIRST = 12, N_ALL = 16, WIDTH = 128 };
static const int32_t tokens[N_ALL] = {1, 30, 45, 103, 26, 7, 51, 88, 9, 64, 77, 18, 300, 261, 91, 40};

/* Of layer 1: K, then V; of layer 2 the same. */
static float kept[4][N_ALL * WIDTH];

static void keep(const fd_op_args *args, float *to) {
    run_clean(args);
    cr_assert_eq(fd_node_width(args->node), WIDTH);
    memcpy(to + args->pos0 * WIDTH, args->in[0], sizeof *to * (size_t)(args->n_pos * WIDTH));
}
static void keep_k(const fd_op_args *args) {
    keep(args, kept[args->node->layer == 1 ? 0 : 2]);
}
static void keep_v(const fd_op_args *args) {
    keep(args, kept[args->node->layer == 1 ? 1 : 3]);
}

/* Rows of the first step are those that were kept. */
static void read_past(const fd_op_args *args, const float *past) {
    const int64_t n = args->n_kv * WIDTH, n_past = args->pos0 >= N_FIRST ? N_FIRST * WIDTH : 0;
    fd_op_args own = *args;
    float *rows = copy_input(args, 1, n);
    memcpy(rows, past, sizeof *rows * (size_t)n_past);
    own.in[1] = rows;
    run_clean(&own);
    free(rows);
}
static void v_for_k(const fd_op_args *args) {
    read_past(args, kept[1]);
}
static void k_for_v(const fd_op_args *args) {
    read_past(args, kept[0]);
}
static void k_of_next(const fd_op_args *args) {
    read_past(args, kept[2]);
}
static void v_of_next(const fd_op_args *args) {
    read_past(args, kept[3]);
}

Test(past, rows_of_earlier_steps_that_are_another_caches_are_named) {
    static const struct {
        fd_override_fn scores, mix;
        const char *says;
    } bugs[] = {{v_for_k, k_for_v, "from V for K, and from K for V"}, {k_of_next, v_of_next, "from the next layer's"}};
    static const char *const tensors[] = {"*", "token_embd,*norm,*attn_[qkv],*attn_out,*proj,*inp,*down,*l_out,logits",
                                          "token_embd,*l_out,logits"};
    recording how = {.tokens = tokens, .n_prompt = N_ALL, .first_chunk = N_FIRST};
    bench b = open_bench(models[0], how);
    how.emulated = "f32";
    for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++)
        for (size_t k = 0; k < sizeof tensors / sizeof *tensors; k++) {
            fd_graph *graph = graph_copy(&b);
            how.tensors = tensors[k];
            for (int32_t n = 0; n < graph->n_node; n++) {
                fd_node *node = &graph->nodes[n];
                const bool of_v = strcmp(fd_fault_suffix(node), "cache_v") == 0;
                if (fd_node_is_kv_cache(node) && (node->layer == 1 || node->layer == 2))
                    node->override = of_v ? keep_v : keep_k;
                if (node->layer == 1 && node->op == FD_OP_ATTN_SCORES) node->override = bugs[i].scores;
                if (node->layer == 1 && node->op == FD_OP_ATTN_MIX) node->override = bugs[i].mix;
            }
            fd_verdict v = judged(&b, graph, how);
            const fd_explanation *e = &v.diagnosis.explanation;
            cr_expect_eq(v.status, FD_DIVERGED, "%zu, %zu", i, k);
            cr_expect(e->named && strcmp(e->remaining[0].name, "other_past") == 0 &&
                          strstr(e->remaining[0].summary, bugs[i].says),
                      "%zu, %s: %s", i, tensors[k], e->named ? e->remaining[0].summary : unnamed_of(e));
            fd_verdict_free(&v);
            fd_graph_free(graph);
        }
    close_model(&b);
}

/* A step of one token sees all rows, in whatever order: only a chunk's mask tells. */
Test(past, a_chunk_whose_rows_stand_before_the_past_is_named) {
    static const char *const faults[] = {"kv_new_rows_first", "k_new_rows_first", "v_new_rows_first"};
    recording how = {.tokens = tokens, .n_prompt = N_ALL, .first_chunk = N_FIRST};
    bench b = open_bench(models[0], how);
    how.emulated = "f32";
    how.tensors = "token_embd,*l_out,logits";
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        fd_verdict v = judged(&b, faulted(&b, faults[i]), how);
        const fd_explanation *e = &v.diagnosis.explanation;
        cr_expect(e->named && strcmp(e->remaining[0].name, faults[i]) == 0, "%s: %s", faults[i],
                  e->named ? e->remaining[0].summary : unnamed_of(e));
        fd_verdict_free(&v);
        forget(&b);
    }
    close_model(&b);
}

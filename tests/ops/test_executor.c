/* The executor: bits that depend on nothing but the model and the tokens, and what is refused. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ops/executor_run.h"
#include "tests/ops/op_case.h"
#include "tests/ops/random_model.h"

enum { N_TOKEN = 70 }; /* more than one block of 64 positions */

static const struct {
    const char *arch;
    uint32_t dtype;
} models[] = {{"llama", FD_F32}, {"qwen2", FD_F16}, {"llama", FD_Q8_0}, {"qwen2", FD_Q4_0}, {"llama", FD_BF16}};
#define N_MODEL (sizeof models / sizeof *models)

Test(executor, prefill_equals_decode, .init = fill_tokens) {
    static const int32_t batches[] = {2, 5, 64, 69, N_TOKEN};
    for (size_t i = 0; i < N_MODEL; i++) {
        random_model m = random_model_make(models[i].arch, models[i].dtype);
        float *decoded = run_new(m.graph, (fd_reference_options){.n_thread = 1}, N_TOKEN, 1);
        for (size_t b = 0; b < sizeof batches / sizeof *batches; b++) {
            float *prefilled = run_new(m.graph, (fd_reference_options){.n_thread = 2}, N_TOKEN, batches[b]);
            expect_same(prefilled, decoded, N_TOKEN * RANDOM_VOCAB, models[i].arch);
        }
    }
}

Test(executor, prefill_equals_decode_in_f64, .init = fill_tokens) {
    random_model m = random_model_make("llama", FD_F16);
    fd_reference_options f64 = {.numerics = FD_NUMERICS_F64};
    float *decoded = run_new(m.graph, f64, 20, 1), *prefilled = run_new(m.graph, f64, 20, 20);
    expect_same(prefilled, decoded, 20 * RANDOM_VOCAB, "f64");
}

Test(executor, threads_do_not_change_bits, .init = fill_tokens) {
    static const int32_t threads[] = {2, 3, 7};
    random_model m = random_model_make("llama", FD_F32);
    for (int32_t batch = 1; batch <= N_TOKEN; batch += N_TOKEN - 1) {
        float *one = run_new(m.graph, (fd_reference_options){.n_thread = 1}, N_TOKEN, batch);
        for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
            float *many = run_new(m.graph, (fd_reference_options){.n_thread = threads[t]}, N_TOKEN, batch);
            expect_same(many, one, N_TOKEN * RANDOM_VOCAB, "threads");
        }
    }
}

Test(executor, scalar_definitions_give_the_twins_bits, .init = fill_tokens) {
    static const char *const sets[] = {"baseline", "v3", "v4"};
    for (size_t i = 0; i < N_MODEL; i++) {
        random_model m = random_model_make(models[i].arch, models[i].dtype);
        float *scalar = run_new(m.graph, (fd_reference_options){.scalar = true}, 9, 9);
        for (int isa = 0; isa <= (int)fd_isa_best(); isa++) {
            setenv("FD_SIMD", sets[isa], 1);
            float *twin = run_new(m.graph, (fd_reference_options){0}, 9, 9);
            expect_same(twin, scalar, 9 * RANDOM_VOCAB, sets[isa]);
        }
        unsetenv("FD_SIMD");
    }
}

Test(executor, long_batches_that_are_split_give_the_same_bits, .init = fill_tokens) {
    random_model m = random_model_make("llama", FD_F32);
    float *whole = run_new(m.graph, (fd_reference_options){0}, 200, 200);
    float *pieces = run_new(m.graph, (fd_reference_options){0}, 200, 50);
    expect_same(whole, pieces, 200 * RANDOM_VOCAB, "split");
}

Test(executor, last_rows_logits_are_those_of_all_rows, .init = fill_tokens) {
    random_model m = random_model_make("qwen2", FD_F32);
    fd_exec *exec = make_exec(m.graph, (fd_reference_options){0});
    float *all = run(exec, 140, 140), last[RANDOM_VOCAB];
    fd_error err = {0};
    for (int32_t n = 1; n <= 140; n += 139) { /* 140 runs in two passes, the first of which makes no logits */
        fd_exec_reset(exec);
        fd_batch batch = {.tokens = tokens, .n_tok = n, .logits = last};
        cr_assert_eq(fd_exec_forward(exec, &batch, &err), FD_OK, "%s", err.message);
        expect_same(last, all + (n - 1) * RANDOM_VOCAB, RANDOM_VOCAB, "last row");
    }
    fd_exec_free(exec);
}

Test(executor, reset_forgets_everything, .init = fill_tokens) {
    random_model m = random_model_make("llama", FD_F32);
    fd_exec *exec = make_exec(m.graph, (fd_reference_options){0});
    float *first = run(exec, 30, 30), *again = run(exec, 30, 1);
    expect_same(again, first, 30 * RANDOM_VOCAB, "after a reset");
    fd_exec_free(exec);
}

static void shift_cache_rows(fd_graph *graph, int32_t row_offset) {
    for (int32_t i = 0; i < graph->n_node; i++)
        if (graph->nodes[i].op == FD_OP_KV_WRITE) graph->nodes[i].row_offset = row_offset;
}

Test(executor, rows_written_late_are_there_for_the_next_position, .init = fill_tokens) {
    random_model m = random_model_make("llama", FD_F32);
    float *right = run_new(m.graph, (fd_reference_options){0}, 30, 30);
    shift_cache_rows(m.graph, 1);
    fd_exec *exec = make_exec(m.graph, (fd_reference_options){.n_ctx = 30}); /* the last row falls outside */
    float *first = run(exec, 30, 30), *again = run(exec, 30, 30), *decoded = run(exec, 30, 1);
    expect_same(again, first, 30 * RANDOM_VOCAB, "twice");
    expect_same(decoded, first, 30 * RANDOM_VOCAB, "decode");
    cr_expect(bits_differ(first, right, 30 * RANDOM_VOCAB) > 0, "the fault shows nothing");
    fd_exec_free(exec);
}

Test(executor, rows_of_an_earlier_run_are_never_read, .init = fill_tokens) {
    /* A row written one position early leaves a position's own row as the last run left it. */
    random_model m = random_model_make("llama", FD_F32);
    shift_cache_rows(m.graph, -1);
    fd_exec *exec = make_exec(m.graph, (fd_reference_options){0});
    float *first = run(exec, 30, 1), *whole = run(exec, 30, 30), *again = run(exec, 30, 1);
    expect_same(again, first, 30 * RANDOM_VOCAB, "after another run");
    cr_expect(bits_differ(whole, first, 30 * RANDOM_VOCAB) > 0, "the case shows nothing");
    fd_exec_free(exec);
}

/* ---- what is refused ---- */

static void no_op(const fd_op_args *args) {
    (void)args;
}

Test(executor, refuses_what_it_cannot_run) {
    random_model m = random_model_make("llama", FD_F32);
    fd_exec *exec;
    fd_error err = {0};
    fd_reference_options options = {.n_ctx = 0};
    cr_expect_eq(fd_reference_new(m.graph, &options, &exec, &err), FD_ERR_INPUT);
    cr_expect_null(exec);
    options = (fd_reference_options){.numerics = FD_NUMERICS_FAST, .n_ctx = 4};
    cr_expect_eq(fd_reference_new(m.graph, &options, &exec, &err), FD_ERR_UNSUPPORTED);
    options = (fd_reference_options){.n_ctx = 4, .n_thread = -1};
    cr_expect_eq(fd_reference_new(m.graph, &options, &exec, &err), FD_ERR_INPUT);

    fd_graph *graph;
    cr_assert_eq(fd_graph_clone(m.graph, &graph, &err), FD_OK);
    graph->nodes[1].override = no_op;
    options = (fd_reference_options){.numerics = FD_NUMERICS_F64, .n_ctx = 4};
    cr_expect_eq(fd_reference_new(graph, &options, &exec, &err), FD_ERR_UNSUPPORTED);
    cr_expect(strstr(err.message, graph->nodes[1].name) != NULL, "%s", err.message);
    graph->nodes[1].override = NULL;
    graph->weights[0].dtype = FD_Q8_K;
    cr_expect_eq(fd_reference_new(graph, &options, &exec, &err), FD_ERR_UNSUPPORTED);
    cr_expect(strstr(err.message, "Q8_K") != NULL, "%s", err.message);

    options = (fd_reference_options){.n_ctx = 4};
    setenv("FD_SIMD", "v9", 1);
    cr_expect_eq(fd_reference_new(m.graph, &options, &exec, &err), FD_ERR_INPUT);
    cr_expect(strstr(err.message, "v9") != NULL, "%s", err.message);
    unsetenv("FD_SIMD");
    fd_graph_free(graph);
}

/* Softmax that takes all positions for equal: a position alone has weight 1 either way. */
static void equal_weights(const fd_op_args *args) {
    int32_t n_head = args->node->shape[0];
    for (int32_t item = 0; item < args->n_pos * n_head; item++) {
        int32_t n = args->pos0 + item / n_head + 1;
        float *weight = (float *)args->out + (int64_t)item * args->n_kv;
        for (int32_t t = 0; t < args->n_kv; t++) weight[t] = t < n ? 1.0f / (float)n : 0.0f;
    }
}

Test(executor, an_override_runs_in_place_of_its_op, .init = fill_tokens) {
    random_model m = random_model_make("llama", FD_F32);
    float *right = run_new(m.graph, (fd_reference_options){0}, 8, 8);
    m.graph->nodes[fd_graph_find(m.graph, "blk.1.attn_weights")].override = equal_weights;
    float *wrong = run_new(m.graph, (fd_reference_options){0}, 8, 8);
    float *decoded = run_new(m.graph, (fd_reference_options){.n_thread = 3}, 8, 1);
    cr_expect_eq(bits_differ(right, wrong, RANDOM_VOCAB), 0, "position 0");
    cr_expect(bits_differ(right + RANDOM_VOCAB, wrong + RANDOM_VOCAB, 7 * RANDOM_VOCAB) > 6 * RANDOM_VOCAB);
    expect_same(decoded, wrong, 8 * RANDOM_VOCAB, "an override's decode");
}

/* ---- the gates above can fail ---- */

static void nudge(const fd_op_args *args) { /* the op, and the first row's first element one ulp up */
    fd_node node = *args->node;
    fd_op_args inner = *args;
    node.override = NULL;
    inner.node = &node;
    fd_reference_op(FD_NUMERICS_EXACT, &inner);
    ((float *)args->out)[0] = nextafterf(((float *)args->out)[0], INFINITY);
}

Test(executor, one_ulp_in_one_tensor_changes_logits, .init = fill_tokens) {
    random_model m = random_model_make("llama", FD_F32);
    fd_graph *nudged;
    fd_error err = {0};
    cr_assert_eq(fd_graph_clone(m.graph, &nudged, &err), FD_OK);
    nudged->nodes[fd_graph_find(nudged, "blk.1.ffn_norm")].override = nudge;
    float *right = run_new(m.graph, (fd_reference_options){0}, 12, 12);
    float *wrong = run_new(nudged, (fd_reference_options){0}, 12, 12);
    float *decoded = run_new(nudged, (fd_reference_options){0}, 12, 1);
    cr_expect(bits_differ(right, wrong, RANDOM_VOCAB) > 0, "the bits compared do not depend on the tensor");
    cr_expect(bits_differ(decoded, wrong, 12 * RANDOM_VOCAB) > 0,
              "prefill_equals_decode would pass an op that treats row 0 apart");
    fd_graph_free(nudged);
}

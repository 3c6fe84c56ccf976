/* The executor: bits that depend on nothing but the model and the tokens, what observers see, what is refused. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ops/op_case.h"
#include "tests/ops/random_model.h"

enum { N_TOKEN = 70, VOCAB = 101 }; /* more than one block of 64 positions */

static int32_t tokens[200];

static void fill_tokens(void) {
    for (int i = 0; i < 200; i++) tokens[i] = (i * 37 + i * i * 11) % VOCAB;
}

static fd_exec *make(const fd_graph *graph, fd_reference_options options) {
    fd_error err = {0};
    fd_exec *exec;
    if (!options.n_ctx) options.n_ctx = 200;
    cr_assert_eq(fd_reference_new(graph, &options, &exec, &err), FD_OK, "%s", err.message);
    return exec;
}

/* Logits of all n positions, in batches of `batch` tokens. Malloc'ed. */
static float *run(fd_exec *exec, int32_t n, int32_t batch) {
    fd_error err = {0};
    float *logits = malloc(sizeof *logits * (size_t)n * VOCAB);
    fd_exec_reset(exec);
    for (int32_t at = 0; at < n; at += batch) {
        int32_t m = n - at < batch ? n - at : batch;
        fd_batch b = {.tokens = tokens + at, .n_tok = m, .pos0 = at, .all_logits = true, .logits = logits + at * VOCAB};
        cr_assert_eq(fd_exec_forward(exec, &b, &err), FD_OK, "%s", err.message);
    }
    return logits;
}

static float *run_new(const fd_graph *graph, fd_reference_options options, int32_t n, int32_t batch) {
    fd_exec *exec = make(graph, options);
    float *logits = run(exec, n, batch);
    fd_exec_free(exec);
    return logits;
}

static void expect_same(float *a, float *b, int64_t n, const char *what) {
    int64_t different = bits_differ(a, b, n);
    cr_expect_eq(different, 0, "%s: %lld of %lld logits differ", what, (long long)different, (long long)n);
    for (int64_t i = 0; i < n; i++) cr_assert(isfinite(a[i]), "%s: the case shows nothing", what);
}

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
            expect_same(prefilled, decoded, N_TOKEN * VOCAB, models[i].arch);
            free(prefilled);
        }
        free(decoded);
        random_model_free(&m);
    }
}

Test(executor, prefill_equals_decode_in_f64, .init = fill_tokens) {
    random_model m = random_model_make("llama", FD_F16);
    fd_reference_options f64 = {.numerics = FD_NUMERICS_F64};
    float *decoded = run_new(m.graph, f64, 20, 1), *prefilled = run_new(m.graph, f64, 20, 20);
    expect_same(prefilled, decoded, 20 * VOCAB, "f64");
    free(decoded);
    free(prefilled);
    random_model_free(&m);
}

Test(executor, threads_do_not_change_bits, .init = fill_tokens) {
    static const int32_t threads[] = {2, 3, 7};
    random_model m = random_model_make("llama", FD_F32);
    for (int32_t batch = 1; batch <= N_TOKEN; batch += N_TOKEN - 1) {
        float *one = run_new(m.graph, (fd_reference_options){.n_thread = 1}, N_TOKEN, batch);
        for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
            float *many = run_new(m.graph, (fd_reference_options){.n_thread = threads[t]}, N_TOKEN, batch);
            expect_same(many, one, N_TOKEN * VOCAB, "threads");
            free(many);
        }
        free(one);
    }
    random_model_free(&m);
}

Test(executor, scalar_definitions_give_the_twins_bits, .init = fill_tokens) {
    static const char *const sets[] = {"baseline", "v3", "v4"};
    for (size_t i = 0; i < N_MODEL; i++) {
        random_model m = random_model_make(models[i].arch, models[i].dtype);
        float *scalar = run_new(m.graph, (fd_reference_options){.scalar = true}, 9, 9);
        for (int isa = 0; isa <= (int)fd_isa_best(); isa++) {
            setenv("FD_SIMD", sets[isa], 1);
            float *twin = run_new(m.graph, (fd_reference_options){0}, 9, 9);
            expect_same(twin, scalar, 9 * VOCAB, sets[isa]);
            free(twin);
        }
        unsetenv("FD_SIMD");
        free(scalar);
        random_model_free(&m);
    }
}

Test(executor, long_batches_that_are_split_give_the_same_bits, .init = fill_tokens) {
    random_model m = random_model_make("llama", FD_F32);
    float *whole = run_new(m.graph, (fd_reference_options){0}, 200, 200);
    float *pieces = run_new(m.graph, (fd_reference_options){0}, 200, 50);
    expect_same(whole, pieces, 200 * VOCAB, "split");
    free(whole);
    free(pieces);
    random_model_free(&m);
}

Test(executor, last_rows_logits_are_those_of_all_rows, .init = fill_tokens) {
    random_model m = random_model_make("qwen2", FD_F32);
    fd_exec *exec = make(m.graph, (fd_reference_options){0});
    float *all = run(exec, 140, 140), last[VOCAB];
    fd_error err = {0};
    for (int32_t n = 1; n <= 140; n += 139) { /* 140 runs in two passes, the first of which makes no logits */
        fd_exec_reset(exec);
        fd_batch batch = {.tokens = tokens, .n_tok = n, .logits = last};
        cr_assert_eq(fd_exec_forward(exec, &batch, &err), FD_OK, "%s", err.message);
        expect_same(last, all + (n - 1) * VOCAB, VOCAB, "last row");
    }
    free(all);
    fd_exec_free(exec);
    random_model_free(&m);
}

Test(executor, reset_forgets_everything, .init = fill_tokens) {
    random_model m = random_model_make("llama", FD_F32);
    fd_exec *exec = make(m.graph, (fd_reference_options){0});
    float *first = run(exec, 30, 30), *again = run(exec, 30, 1);
    expect_same(again, first, 30 * VOCAB, "after a reset");
    free(first);
    free(again);
    fd_exec_free(exec);
    random_model_free(&m);
}

static void shift_cache_rows(fd_graph *graph, int32_t row_offset) {
    for (int32_t i = 0; i < graph->n_node; i++)
        if (graph->nodes[i].op == FD_OP_KV_WRITE) graph->nodes[i].row_offset = row_offset;
}

Test(executor, rows_written_late_are_there_for_the_next_position, .init = fill_tokens) {
    random_model m = random_model_make("llama", FD_F32);
    float *right = run_new(m.graph, (fd_reference_options){0}, 30, 30);
    shift_cache_rows(m.graph, 1);
    fd_exec *exec = make(m.graph, (fd_reference_options){.n_ctx = 30}); /* the last row falls outside */
    float *first = run(exec, 30, 30), *again = run(exec, 30, 30), *decoded = run(exec, 30, 1);
    expect_same(again, first, 30 * VOCAB, "twice");
    expect_same(decoded, first, 30 * VOCAB, "decode");
    cr_expect(bits_differ(first, right, 30 * VOCAB) > 0, "the fault shows nothing");
    free(right);
    free(first);
    free(again);
    free(decoded);
    fd_exec_free(exec);
    random_model_free(&m);
}

Test(executor, rows_of_an_earlier_run_are_never_read, .init = fill_tokens) {
    /* A row written one position early leaves a position's own row as the last run left it. */
    random_model m = random_model_make("llama", FD_F32);
    shift_cache_rows(m.graph, -1);
    fd_exec *exec = make(m.graph, (fd_reference_options){0});
    float *first = run(exec, 30, 1), *whole = run(exec, 30, 30), *again = run(exec, 30, 1);
    expect_same(again, first, 30 * VOCAB, "after another run");
    cr_expect(bits_differ(whole, first, 30 * VOCAB) > 0, "the case shows nothing");
    free(first);
    free(whole);
    free(again);
    fd_exec_free(exec);
    random_model_free(&m);
}

/* ---- observers ---- */

typedef struct seen {
    const fd_graph *graph;
    int32_t n_seen, n_pos, pos0, stop_at;
    bool wrong;
    float *rows; /* the last node of op `op` */
    int64_t n_row;
    fd_op op;
    float *logits;
} seen;

static fd_code look(void *user, const fd_observation *o, fd_error *err) {
    seen *s = user;
    bool expected = o->node->id == s->n_seen && o->n_pos == s->n_pos && o->pos0 == s->pos0 && o->dtype == FD_F32 &&
                    o->row_stride == fd_node_row_stride(o->node, o->pos0 + o->n_pos);
    if (!expected) s->wrong = true;
    if (o->node->op == s->op) {
        size_t size = sizeof(float) * (size_t)(o->n_pos * o->row_stride);
        s->rows = realloc(s->rows, size);
        memcpy(s->rows, o->data, size);
        s->n_row = o->n_pos * o->row_stride;
    }
    if (o->node->id == s->graph->n_node - 1) memcpy(s->logits, o->data, sizeof(float) * VOCAB * (size_t)o->n_pos);
    if (s->n_seen++ == s->stop_at) return FD_STOP;
    (void)err;
    return FD_OK;
}

Test(executor, observers_see_every_node_in_order_and_change_no_bit, .init = fill_tokens) {
    random_model m = random_model_make("llama", FD_F32);
    fd_exec *exec = make(m.graph, (fd_reference_options){.n_thread = 2});
    float *unseen = run(exec, 12, 12), last[VOCAB];
    float *shown = malloc(sizeof(float) * VOCAB * 12);
    fd_error err = {0};
    for (int32_t pos0 = 0, n = 10; pos0 < 12; pos0 += n, n = 1) { /* one prefill, two decodes */
        seen s = {.graph = m.graph,
                  .n_pos = n,
                  .pos0 = pos0,
                  .stop_at = -1,
                  .logits = shown + pos0 * VOCAB,
                  .op = FD_OP_COUNT};
        fd_exec_set_observer(exec, (fd_observer){.observe = look, .user = &s});
        if (pos0 == 0) fd_exec_reset(exec);
        fd_batch batch = {.tokens = tokens + pos0, .n_tok = n, .pos0 = pos0, .logits = last};
        cr_assert_eq(fd_exec_forward(exec, &batch, &err), FD_OK, "%s", err.message);
        cr_expect_eq(s.n_seen, m.graph->n_node);
        cr_expect(!s.wrong);
        expect_same(last, unseen + (pos0 + n - 1) * VOCAB, VOCAB, "logits wanted while observed");
    }
    expect_same(shown, unseen, 12 * VOCAB, "observed logits of all rows");
    free(unseen);
    free(shown);
    fd_exec_free(exec);
    random_model_free(&m);
}

Test(executor, observed_cache_rows_are_the_batchs_own, .init = fill_tokens) {
    random_model m = random_model_make("llama", FD_F32);
    fd_exec *exec = make(m.graph, (fd_reference_options){0});
    fd_error err = {0};
    float logits[VOCAB * 9];
    for (int32_t pos0 = 0, n = 6; pos0 < 9; pos0 += n, n = 3) {
        seen cache = {
            .graph = m.graph, .n_pos = n, .pos0 = pos0, .stop_at = -1, .logits = logits, .op = FD_OP_KV_WRITE};
        fd_exec_set_observer(exec, (fd_observer){.observe = look, .user = &cache});
        fd_batch batch = {.tokens = tokens + pos0, .n_tok = n, .pos0 = pos0};
        cr_assert_eq(fd_exec_forward(exec, &batch, &err), FD_OK, "%s", err.message);
        /* the last cache written is layer 2's V: compare with attn_v of a fresh run of the same tokens */
        seen values = {.graph = m.graph, .n_pos = pos0 + n, .stop_at = -1, .logits = logits, .op = FD_OP_COUNT};
        values.stop_at = fd_graph_find(m.graph, "blk.2.attn_v");
        values.op = m.graph->nodes[values.stop_at].op;
        fd_exec *fresh = make(m.graph, (fd_reference_options){0});
        fd_exec_set_observer(fresh, (fd_observer){.observe = look, .user = &values});
        fd_batch whole = {.tokens = tokens, .n_tok = pos0 + n};
        cr_assert_eq(fd_exec_forward(fresh, &whole, &err), FD_STOP);
        cr_assert_eq(cache.n_row, n * 96);
        expect_same(cache.rows, values.rows + pos0 * 96, n * 96, "cache rows");
        free(cache.rows);
        free(values.rows);
        fd_exec_free(fresh);
    }
    fd_exec_free(exec);
    random_model_free(&m);
}

Test(executor, an_observer_can_stop_the_run, .init = fill_tokens) {
    random_model m = random_model_make("llama", FD_F32);
    for (int32_t threads = 1; threads <= 3; threads++) {
        fd_exec *exec = make(m.graph, (fd_reference_options){.n_thread = threads});
        float logits[VOCAB * 4];
        fd_error err = {0};
        seen s = {.graph = m.graph, .n_pos = 4, .stop_at = 17, .logits = logits, .op = FD_OP_COUNT};
        fd_exec_set_observer(exec, (fd_observer){.observe = look, .user = &s});
        fd_batch batch = {.tokens = tokens, .n_tok = 4, .logits = logits};
        cr_expect_eq(fd_exec_forward(exec, &batch, &err), FD_STOP);
        cr_expect_eq(s.n_seen, 18);
        cr_expect_eq(exec->n_past, 0);
        fd_exec_set_observer(exec, (fd_observer){0});
        cr_expect_eq(fd_exec_forward(exec, &batch, &err), FD_OK, "the executor is usable after a stop");
        fd_exec_free(exec);
    }
    random_model_free(&m);
}

static unsigned only_norms(void *user, const fd_node *node) {
    return (void)user, node->op == FD_OP_RMS_NORM;
}
static fd_code count(void *user, const fd_observation *o, fd_error *err) {
    (void)err;
    if (o->node->op != FD_OP_RMS_NORM) return FD_STOP;
    ++*(int *)user;
    return FD_OK;
}

Test(executor, unwanted_nodes_are_not_shown, .init = fill_tokens) {
    random_model m = random_model_make("llama", FD_F32);
    fd_exec *exec = make(m.graph, (fd_reference_options){0});
    int shown = 0;
    fd_error err = {0};
    fd_exec_set_observer(exec, (fd_observer){.observe = count, .wants = only_norms, .user = &shown});
    fd_batch batch = {.tokens = tokens, .n_tok = 3};
    cr_expect_eq(fd_exec_forward(exec, &batch, &err), FD_OK);
    cr_expect_eq(shown, 7);
    fd_exec_free(exec);
    random_model_free(&m);
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
    graph->weights[0].dtype = 16; /* IQ2_XXS */
    cr_expect_eq(fd_reference_new(graph, &options, &exec, &err), FD_ERR_UNSUPPORTED);
    cr_expect(strstr(err.message, "IQ2_XXS") != NULL, "%s", err.message);

    options = (fd_reference_options){.n_ctx = 4};
    setenv("FD_SIMD", "v9", 1);
    cr_expect_eq(fd_reference_new(m.graph, &options, &exec, &err), FD_ERR_INPUT);
    cr_expect(strstr(err.message, "v9") != NULL, "%s", err.message);
    unsetenv("FD_SIMD");
    fd_graph_free(graph);
    random_model_free(&m);
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
    cr_expect_eq(bits_differ(right, wrong, VOCAB), 0, "position 0");
    cr_expect(bits_differ(right + VOCAB, wrong + VOCAB, 7 * VOCAB) > 6 * VOCAB);
    expect_same(decoded, wrong, 8 * VOCAB, "an override's decode");
    free(right);
    free(wrong);
    free(decoded);
    random_model_free(&m);
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
    cr_expect(bits_differ(right, wrong, VOCAB) > 0, "the bits compared do not depend on the tensor");
    cr_expect(bits_differ(decoded, wrong, 12 * VOCAB) > 0,
              "prefill_equals_decode would pass an op that treats row 0 apart");
    free(right);
    free(wrong);
    free(decoded);
    fd_graph_free(nudged);
    random_model_free(&m);
}

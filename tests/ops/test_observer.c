/* What observers of the executor see, and that they change no bit. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ops/executor_run.h"
#include "tests/ops/random_model.h"

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
    if (o->node->id == s->graph->n_node - 1)
        memcpy(s->logits, o->data, sizeof(float) * RANDOM_VOCAB * (size_t)o->n_pos);
    if (s->n_seen++ == s->stop_at) return FD_STOP;
    (void)err;
    return FD_OK;
}

Test(observer, observers_see_every_node_in_order_and_change_no_bit, .init = fill_tokens) {
    random_model m = random_model_make("llama", FD_F32);
    fd_exec *exec = make_exec(m.graph, (fd_reference_options){.n_thread = 2});
    float *unseen = run(exec, 12, 12), last[RANDOM_VOCAB];
    float *shown = malloc(sizeof(float) * RANDOM_VOCAB * 12);
    fd_error err = {0};
    for (int32_t pos0 = 0, n = 10; pos0 < 12; pos0 += n, n = 1) { /* one prefill, two decodes */
        seen s = {.graph = m.graph,
                  .n_pos = n,
                  .pos0 = pos0,
                  .stop_at = -1,
                  .logits = shown + pos0 * RANDOM_VOCAB,
                  .op = FD_OP_COUNT};
        fd_exec_set_observer(exec, (fd_observer){.observe = look, .user = &s});
        if (pos0 == 0) fd_exec_reset(exec);
        fd_batch batch = {.tokens = tokens + pos0, .n_tok = n, .pos0 = pos0, .logits = last};
        cr_assert_eq(fd_exec_forward(exec, &batch, &err), FD_OK, "%s", err.message);
        cr_expect_eq(s.n_seen, m.graph->n_node);
        cr_expect(!s.wrong);
        expect_same(last, unseen + (pos0 + n - 1) * RANDOM_VOCAB, RANDOM_VOCAB, "logits wanted while observed");
    }
    expect_same(shown, unseen, 12 * RANDOM_VOCAB, "observed logits of all rows");
    free(shown);
    fd_exec_free(exec);
}

Test(observer, observed_cache_rows_are_the_batchs_own, .init = fill_tokens) {
    random_model m = random_model_make("llama", FD_F32);
    fd_exec *exec = make_exec(m.graph, (fd_reference_options){0});
    fd_error err = {0};
    float logits[RANDOM_VOCAB * 9];
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
        fd_exec *fresh = make_exec(m.graph, (fd_reference_options){0});
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
}

Test(observer, an_observer_can_stop_the_run, .init = fill_tokens) {
    random_model m = random_model_make("llama", FD_F32);
    for (int32_t threads = 1; threads <= 3; threads++) {
        fd_exec *exec = make_exec(m.graph, (fd_reference_options){.n_thread = threads});
        float logits[RANDOM_VOCAB * 4];
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

Test(observer, unwanted_nodes_are_not_shown, .init = fill_tokens) {
    random_model m = random_model_make("llama", FD_F32);
    fd_exec *exec = make_exec(m.graph, (fd_reference_options){0});
    int shown = 0;
    fd_error err = {0};
    fd_exec_set_observer(exec, (fd_observer){.observe = count, .wants = only_norms, .user = &shown});
    fd_batch batch = {.tokens = tokens, .n_tok = 3};
    cr_expect_eq(fd_exec_forward(exec, &batch, &err), FD_OK);
    cr_expect_eq(shown, 7);
    fd_exec_free(exec);
}

/* A trace of what an executor has worked out itself, without the elements, is the trace of the elements. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/observe/health.h"
#include "fixture.h"

enum { PREFILL = 5, DECODE = 4, POSITIONS = PREFILL + DECODE, MOST_HEADS = 16 };

/* Between the fixture, which shows elements, and the writer. */
typedef struct shim {
    fd_observer to;
    fd_fingerprint prints[PREFILL];
    fd_stats stats[PREFILL];
    fd_top_logits top[PREFILL];
    float entropy[PREFILL * MOST_HEADS], sink[PREFILL * MOST_HEADS];
    int n_without_data;
    bool forget_fingerprint;
} shim;

static unsigned wants_through(void *user, const fd_node *node) {
    shim *s = user;
    return s->to.wants(s->to.user, node);
}

static fd_code hand_over(void *user, const fd_observation *o, fd_error *err) {
    shim *s = user;
    unsigned wants = s->to.wants(s->to.user, o->node);
    fd_observation handed = *o;
    int32_t n_head = o->node->shape[0];
    for (int32_t r = 0; r < o->n_pos; r++) {
        s->prints[r] = fd_observation_fingerprint(o, r);
        fd_observation_stats(o, r, &s->stats[r]);
        const float *row = (const float *)o->data + r * o->row_stride;
        if (strcmp(o->node->name, "logits") == 0) fd_health_logits(FD_F32, row, o->node->shape[0], &s->top[r]);
        if (o->node->op == FD_OP_ATTN_SOFTMAX)
            fd_health_attention(FD_F32, row, n_head, o->pos0 + o->n_pos, o->pos0 + r + 1, s->entropy + r * n_head,
                                s->sink + r * n_head);
    }
    if (wants & FD_WANT_DATA) return s->to.observe(s->to.user, o, err);
    handed.data = NULL;
    handed.fingerprints = s->forget_fingerprint ? NULL : s->prints;
    if (wants & FD_WANT_STATS) handed.stats = s->stats;
    if (wants & FD_WANT_HEALTH) handed.entropy = s->entropy, handed.sink = s->sink, handed.top = s->top;
    s->n_without_data++;
    return s->to.observe(s->to.user, &handed, err);
}

static fd_code write_handed(const char *path, const fd_graph *graph, fd_trace_level level, shim *s, fd_error *err) {
    fd_trace_writer *writer;
    fd_trace_info info = fixture_info();
    fd_trace_options options = fd_trace_defaults(path);
    int32_t token[PREFILL];
    options.level = level;
    FD_TRY(fd_trace_create(&options, &info, graph, FD_NUMERICS_EXACT, &writer, err));
    s->to = fd_trace_run_observer(writer);
    fd_observer between = {.observe = hand_over, .wants = wants_through, .user = s};
    fd_code code = FD_OK;
    for (int32_t pos = 0, n = PREFILL; code == FD_OK && pos < POSITIONS; pos += n, n = 1) {
        for (int32_t i = 0; i < n; i++) token[i] = fixture_token(pos + i);
        fd_batch batch = {.tokens = token, .n_tok = n, .pos0 = pos};
        code = s->to.begin(s->to.user, &batch, err);
        if (code == FD_OK) code = fixture_show(between, graph, FD_NUMERICS_EXACT, pos, n, err);
        if (code == FD_OK) code = s->to.end(s->to.user, err);
    }
    if (code == FD_OK) return fd_trace_finish(writer, err);
    fd_trace_abandon(writer);
    return code;
}

static void same_traces(const char *path, const char *expected_path, const fd_graph *graph, bool stats) {
    fd_trace *found, *expected;
    found = fixture_open(path);
    expected = fixture_open(expected_path);
    cr_assert_eq(fd_trace_n_pos(found), POSITIONS);
    cr_assert_eq(fd_trace_n_step(found), 1 + DECODE);
    for (int32_t pos = 0; pos < POSITIONS; pos++) {
        for (int32_t id = 0; id < graph->n_node; id++) {
            const char *name = graph->nodes[id].name;
            const fd_fingerprint *a = fd_trace_fingerprint(found, id, pos),
                                 *b = fd_trace_fingerprint(expected, id, pos);
            cr_assert(a && b && a->lo == b->lo && a->hi == b->hi, "%s at %d", name, pos);
            if (!stats) continue;
            cr_assert_arr_eq(fd_trace_stats_at(found, id, pos), fd_trace_stats_at(expected, id, pos), sizeof(fd_stats),
                             "%s at %d", name, pos);
        }
        cr_assert_arr_eq(fd_trace_health_at(found, pos), fd_trace_health_at(expected, pos), sizeof(fd_trace_health),
                         "health at %d", pos);
        cr_assert(fd_trace_health_at(found, pos)->top_id[0] >= 0);
        int32_t n_layer, n_head;
        const float *entropy = fd_trace_entropy(found, pos, &n_layer, &n_head);
        cr_assert(entropy && n_layer * n_head > 0);
        size_t bytes = (size_t)(n_layer * n_head) * sizeof *entropy;
        cr_assert_arr_eq(entropy, fd_trace_entropy(expected, pos, &n_layer, &n_head), bytes);
    }
    fd_trace_close(found);
    fd_trace_close(expected);
}

Test(trace_handed, what_was_worked_out_is_recorded_as_if_from_elements) {
    const fd_trace_level levels[] = {FD_TRACE_FINGERPRINT, FD_TRACE_STATS, FD_TRACE_FULL};
    fd_graph *graph = fixture_graph(fixture_small);
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        fd_error err = {0};
        shim s = {0};
        fd_trace_options options = fd_trace_defaults(fixture_path("elements.h5"));
        options.level = levels[i];
        fixture_write(&options, graph, FD_NUMERICS_EXACT, PREFILL, DECODE);
        const char *path = fixture_path("handed.h5");
        cr_assert_eq(write_handed(path, graph, levels[i], &s, &err), FD_OK, "%s", err.message);
        cr_assert_eq(s.n_without_data, levels[i] == FD_TRACE_FULL ? 0 : graph->n_node * (1 + DECODE));
        same_traces(path, options.path, graph, levels[i] >= FD_TRACE_STATS);
    }
    fd_graph_free(graph);
}

Test(trace_handed, neither_elements_nor_a_fingerprint_is_refused) {
    fd_graph *graph = fixture_graph(fixture_small);
    fd_error err = {0};
    shim s = {.forget_fingerprint = true};
    cr_assert_eq(write_handed(fixture_path("lacking.h5"), graph, FD_TRACE_FINGERPRINT, &s, &err), FD_ERR_INPUT);
    cr_assert(strstr(err.message, "token_embd was shown without its fingerprint"), "%s", err.message);
    fd_graph_free(graph);
}

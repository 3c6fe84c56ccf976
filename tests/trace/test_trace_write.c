/* What is written is what is read: every level, both numerics, several writers. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"

enum { PREFILL = 7, DECODE = 30, POSITIONS = PREFILL + DECODE };

/* Fingerprints and statistics of position `pos` against the fixture's values. */
static void check_summary(const fd_trace *trace, const fd_graph *graph, int32_t id, int32_t pos, bool f64, bool stats) {
    const fd_node *node = &graph->nodes[id];
    int64_t n = fd_node_elements(node, pos + 1);
    double *wide = malloc((size_t)n * sizeof *wide);
    float *narrow = malloc((size_t)n * sizeof *narrow);
    for (int64_t i = 0; i < n; i++) narrow[i] = (float)(wide[i] = fixture_value(graph, node, pos, i));
    fd_fingerprint expected = f64 ? fd_fingerprint_f64(wide, n) : fd_fingerprint_f32(narrow, n);
    const fd_fingerprint *found = fd_trace_fingerprint(trace, id, pos);
    cr_assert(found && found->lo == expected.lo && found->hi == expected.hi, "%s at %d", node->name, pos);
    const fd_trace_stats *s = fd_trace_stats_at(trace, id, pos);
    cr_assert_eq(s != NULL, stats);
    double absmax = 0, squares = 0;
    for (int64_t i = 0; s && i < n; i++) {
        double x = f64 ? wide[i] : (double)narrow[i];
        absmax = fmax(absmax, fabs(x));
        squares += x * x;
    }
    if (s)
        cr_assert(s->absmax == absmax && fabs(s->rms - sqrt(squares / (double)n)) <= 1e-12 * s->rms, "%s", node->name);
    free(wide);
    free(narrow);
}

typedef struct level_case {
    fd_trace_level level;
    fd_numerics numerics;
    bool compress;
} level_case;

static void round_trip(level_case c) {
    fd_graph *graph = fixture_graph(fixture_small);
    fd_trace_options options = fd_trace_defaults(fixture_path("round_trip.h5"));
    options.level = c.level;
    options.compress = c.compress;
    fixture_write(&options, graph, c.numerics, PREFILL, DECODE);
    fd_trace *trace = fixture_open(options.path);
    cr_assert_eq(fd_trace_n_pos(trace), POSITIONS);
    cr_assert_eq(fd_trace_n_step(trace), 1 + DECODE);
    cr_assert_eq(fd_trace_n_node(trace), graph->n_node);
    for (int32_t pos = 0; pos < POSITIONS; pos++) {
        cr_assert_eq(fd_trace_tokens(trace)[pos], fixture_token(pos));
        for (int32_t id = 0; id < graph->n_node; id++) {
            const fd_trace_node *node = fd_trace_node_at(trace, id);
            cr_assert_str_eq(node->name, graph->nodes[id].name);
            cr_assert_eq(node->has_data, c.level == FD_TRACE_FULL);
            cr_assert_eq(node->dtype, c.numerics == FD_NUMERICS_F64 ? FD_F64 : FD_F32);
            check_summary(trace, graph, id, pos, c.numerics == FD_NUMERICS_F64, c.level >= FD_TRACE_STATS);
            if (c.level == FD_TRACE_FULL) fixture_check_tensor(trace, graph, node->name, pos);
        }
    }
    if (c.level < FD_TRACE_FULL) {
        fd_error err = {0};
        float x[64];
        cr_assert_eq(fd_trace_read(trace, 0, 0, x, NULL, &err), FD_ERR_INCOMPLETE);
        cr_assert(strstr(err.message, "token_embd"), "%s", err.message);
    }
    fd_trace_close(trace);
    fd_graph_free(graph);
}

Test(trace_write, fingerprint_level_round_trip) {
    round_trip((level_case){FD_TRACE_FINGERPRINT, FD_NUMERICS_EXACT, false});
}
Test(trace_write, stats_level_round_trip) {
    round_trip((level_case){FD_TRACE_STATS, FD_NUMERICS_EXACT, false});
}
Test(trace_write, full_level_round_trip) {
    round_trip((level_case){FD_TRACE_FULL, FD_NUMERICS_EXACT, false});
}
Test(trace_write, full_level_in_binary64_round_trip) {
    round_trip((level_case){FD_TRACE_FULL, FD_NUMERICS_F64, false});
}
Test(trace_write, compressed_round_trip) {
    round_trip((level_case){FD_TRACE_FULL, FD_NUMERICS_EXACT, true});
}

Test(trace_write, attributes_steps_and_graph_come_back) {
    fd_graph *graph = fixture_graph(fixture_small);
    fd_trace_options options = fd_trace_defaults(fixture_path("info.h5"));
    fixture_write(&options, graph, FD_NUMERICS_EXACT, PREFILL, 2);
    fd_trace *trace = fixture_open(options.path);
    const fd_trace_info *info = fd_trace_get_info(trace), said = fixture_info();
    cr_expect_str_eq(info->producer, said.producer);
    cr_expect_str_eq(info->model_name, said.model_name);
    cr_expect_str_eq(info->prompt, said.prompt);
    cr_expect_str_eq(info->fault, "");
    cr_expect(info->complete && info->level == FD_TRACE_FULL && info->contract == 1);
    cr_expect(strlen(info->started) == 20 && strlen(info->finished) == 20);
    const fd_trace_step *steps = fd_trace_steps(trace);
    cr_expect(steps[0].pos0 == 0 && steps[0].n_pos == PREFILL && steps[0].kind == FD_STEP_PREFILL);
    cr_expect(steps[2].pos0 == PREFILL + 1 && steps[2].n_pos == 1 && steps[2].kind == FD_STEP_DECODE);
    const fd_trace_node *scores = fd_trace_node_at(trace, fd_trace_find(trace, "blk.1.attn_scores"));
    cr_expect_str_eq(scores->op, "attn_scores");
    cr_expect_str_eq(scores->inputs[0], "blk.1.attn_q_rope");
    cr_expect_str_eq(scores->inputs[1], "blk.1.cache_k");
    cr_expect(scores->over_kv && scores->layer == 1 && scores->n_dim == 2 && scores->shape[0] == 3 &&
              scores->shape[1] == 0);
    cr_expect_str_eq(fd_trace_node_at(trace, 0)->inputs[0], "tokens");
    cr_expect_eq(fd_trace_find(trace, "blk.9.attn_q"), -1);
    fd_trace_close(trace);
    fd_graph_free(graph);
}

Test(trace_write, health_of_each_position) {
    fd_graph *graph = fixture_graph(fixture_small);
    fd_trace_options options = fd_trace_defaults(fixture_path("health.h5"));
    options.level = FD_TRACE_FINGERPRINT;
    fixture_write(&options, graph, FD_NUMERICS_EXACT, PREFILL, DECODE);
    fd_trace *trace = fixture_open(options.path);
    for (int32_t pos = 0; pos < POSITIONS; pos++) {
        int32_t n_layer, n_head;
        const float *entropy = fd_trace_entropy(trace, pos, &n_layer, &n_head);
        const float *sink = fd_trace_sink(trace, pos, &n_layer, &n_head);
        cr_assert(entropy && sink && n_layer == 2 && n_head == 3);
        double first = 1.0 - pos / 65536.0, rest = 1.0 / 65536.0;
        double expected = -first * log(first) - pos * rest * log(rest);
        for (int i = 0; i < n_layer * n_head; i++) {
            cr_assert(fabs((double)entropy[i] - expected) <= 1e-7 * (1 + expected));
            cr_assert_eq(sink[i], (float)first);
        }
        const fd_trace_health *h = fd_trace_health_at(trace, pos);
        const fd_node *logits = &graph->nodes[graph->n_node - 1];
        cr_assert_eq(h->n_kv, pos + 1);
        cr_assert_eq(h->loop_length, pos >= 28 ? 3 : 0, "position %d: %d", pos, h->loop_length);
        for (int k = 0; k < FD_TOP_K; k++) {
            float at = h->top_logit[k];
            cr_assert_eq(at, (float)fixture_value(graph, logits, pos, h->top_id[k]));
            if (k > 0)
                cr_assert(at < h->top_logit[k - 1] || (at == h->top_logit[k - 1] && h->top_id[k] > h->top_id[k - 1]));
        }
        cr_assert(h->top1_probability > 0 && h->top1_probability <= 1);
    }
    fd_trace_close(trace);
    fd_graph_free(graph);
}

Test(trace_write, steps_outside_the_range_are_fingerprints) {
    fd_graph *graph = fixture_graph(fixture_small);
    fd_trace_options options = fd_trace_defaults(fixture_path("range.h5"));
    options.step_first = 2;
    options.step_last = 3;
    fixture_write(&options, graph, FD_NUMERICS_EXACT, PREFILL, 5);
    fd_trace *trace = fixture_open(options.path);
    for (int32_t pos = 0; pos < PREFILL + 5; pos++) {
        bool inside = pos == PREFILL + 1 || pos == PREFILL + 2;
        for (int32_t id = 0; id < graph->n_node; id++) {
            float x[256];
            fd_error err = {0};
            check_summary(trace, graph, id, pos, false, inside);
            if (inside)
                fixture_check_tensor(trace, graph, graph->nodes[id].name, pos);
            else
                cr_assert_eq(fd_trace_read(trace, id, pos, x, NULL, &err), FD_ERR_INCOMPLETE);
        }
    }
    fd_trace_close(trace);
    fd_graph_free(graph);
}

/* Rows enough that they are shared out to threads: outside a parallel region, and inside one as the CPU executor
 * shows. */
Test(trace_write, rows_in_parallel_are_the_same_rows) {
    enum { ROWS = 64 };
    fd_graph *graph = fixture_graph((fixture_size){1, 6, 1, 1, 4, 20000});
    for (int inside = 0; inside < 2; inside++) {
        fd_trace_options options = fd_trace_defaults(fixture_path("parallel.h5"));
        fd_trace_info info = fixture_info();
        fd_trace_writer *writer;
        fd_error err = {0};
        fd_code code = FD_OK;
        int32_t tokens[ROWS] = {0};
        options.level = FD_TRACE_STATS;
        cr_assert_eq(fd_trace_create(&options, &info, graph, FD_NUMERICS_EXACT, &writer, &err), FD_OK);
        cr_assert_eq(fd_trace_begin_step(writer, FD_STEP_PREFILL, tokens, ROWS, 0, &err), FD_OK);
        fd_observer observer = fd_trace_observer(writer);
        if (inside) {
#pragma omp parallel num_threads(3)
            {
#pragma omp master
                code = fixture_show(observer, graph, FD_NUMERICS_EXACT, 0, ROWS, &err);
#pragma omp barrier
            }
        } else {
            code = fixture_show(observer, graph, FD_NUMERICS_EXACT, 0, ROWS, &err);
        }
        cr_assert_eq(code, FD_OK, "%s", err.message);
        cr_assert_eq(fd_trace_end_step(writer, &err), FD_OK, "%s", err.message);
        cr_assert_eq(fd_trace_finish(writer, &err), FD_OK);
        fd_trace *trace = fixture_open(options.path);
        for (int32_t pos = 0; pos < ROWS; pos += 7) {
            check_summary(trace, graph, graph->n_node - 1, pos, false, true);
            cr_expect_geq(fd_trace_health_at(trace, pos)->top_id[9], 0);
        }
        fd_trace_close(trace);
    }
    fd_graph_free(graph);
}

Test(trace_write, two_writers_in_one_thread) {
    fd_graph *graph = fixture_graph(fixture_small);
    fd_trace_info info = fixture_info();
    fd_trace_writer *writers[2];
    fd_error err = {0};
    const char *paths[2] = {fixture_path("a.h5"), fixture_path("b.h5")};
    for (int w = 0; w < 2; w++) {
        fd_trace_options options = fd_trace_defaults(paths[w]);
        cr_assert_eq(
            fd_trace_create(&options, &info, graph, w ? FD_NUMERICS_F64 : FD_NUMERICS_EXACT, &writers[w], &err), FD_OK,
            "%s", err.message);
    }
    for (int32_t pos = 0; pos < 4; pos++)
        for (int w = 0; w < 2; w++)
            cr_assert_eq(
                fixture_step(writers[w], graph, w ? FD_NUMERICS_F64 : FD_NUMERICS_EXACT, FD_STEP_DECODE, pos, 1, &err),
                FD_OK, "%s", err.message);
    for (int w = 0; w < 2; w++) cr_assert_eq(fd_trace_finish(writers[w], &err), FD_OK);
    for (int w = 0; w < 2; w++) {
        fd_trace *trace = fixture_open(paths[w]);
        for (int32_t pos = 0; pos < 4; pos++) fixture_check_tensor(trace, graph, "blk.1.attn_weights", pos);
        fd_trace_close(trace);
    }
    fd_graph_free(graph);
}

/* Little memory: a row of each table at a time, in any order of asking. */
Test(trace_write, tables_read_by_parts_are_the_whole_tables) {
    fd_graph *graph = fixture_graph(fixture_small);
    fd_trace_options options = fd_trace_defaults(fixture_path("parts.h5"));
    fixture_write(&options, graph, FD_NUMERICS_EXACT, 5, 4);
    fd_trace *whole, *parts;
    fd_error err = {0};
    whole = fixture_open(options.path);
    for (size_t memory = 64; memory <= (size_t)64 << 12; memory <<= 6) {
        cr_assert_eq(fd_trace_open_within(options.path, memory, &parts, &err), FD_OK, "%s", err.message);
        for (int32_t k = 0; k < 3 * fd_trace_n_pos(whole); k++)
            for (int32_t node = 0; node < fd_trace_n_node(whole); node++) {
                int32_t pos = k * 5 % fd_trace_n_pos(whole);
                const fd_fingerprint *a = fd_trace_fingerprint(whole, node, pos),
                                     *b = fd_trace_fingerprint(parts, node, pos);
                const fd_trace_stats *s = fd_trace_stats_at(whole, node, pos), *t = fd_trace_stats_at(parts, node, pos);
                float x[2][512];
                cr_assert(a && b && memcmp(a, b, sizeof *a) == 0, "fingerprint of node %d at %d", node, pos);
                cr_assert(s && t && memcmp(s, t, sizeof *s) == 0, "statistics of node %d at %d", node, pos);
                if (fd_trace_elements(fd_trace_node_at(whole, node), pos) > 512) continue;
                memset(x, 0, sizeof x);
                cr_assert_eq(fd_trace_read(whole, node, pos, x[0], NULL, &err), FD_OK, "%s", err.message);
                cr_assert_eq(fd_trace_read(parts, node, pos, x[1], NULL, &err), FD_OK, "%s", err.message);
                cr_assert(memcmp(x[0], x[1], sizeof x[0]) == 0, "node %d at %d", node, pos);
            }
        fd_trace_close(parts);
    }
    fd_trace_close(whole);
    fd_graph_free(graph);
}

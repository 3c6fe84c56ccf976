/* What is written is what is read: every level, both numerics, filters, several writers. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fixture.h"
#include "model/quant.h"

enum { PREFILL = 7, DECODE = 30, POSITIONS = PREFILL + DECODE };

static fd_trace *open_or_fail(const char *path) {
    fd_error err = {0};
    fd_trace *trace = NULL;
    cr_assert_eq(fd_trace_open(path, &trace, &err), FD_OK, "%s", err.message);
    return trace;
}

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
    fd_trace *trace = open_or_fail(options.path);
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
    fd_trace *trace = open_or_fail(options.path);
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
    fd_trace *trace = open_or_fail(options.path);
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

typedef struct filter_case {
    const char *tensors;
    int32_t layer_first, layer_last;
    const char *kept[4], *dropped[4];
} filter_case;

Test(trace_write, filters_keep_what_they_name_and_mark_the_rest) {
    const filter_case cases[] = {
        {"blk.1.*", 0, INT32_MAX, {"blk.1.attn_q", "blk.1.l_out"}, {"blk.0.attn_q", "logits"}},
        {"*.attn_q*", 0, INT32_MAX, {"blk.0.attn_q", "blk.1.attn_q_rope"}, {"blk.0.attn_k", "token_embd"}},
        {NULL, 1, 1, {"token_embd", "blk.1.attn_q", "logits"}, {"blk.0.attn_q", "blk.0.l_out"}},
        {"nothing", 0, INT32_MAX, {NULL}, {"logits", "blk.0.attn_weights"}},
    };
    fd_graph *graph = fixture_graph(fixture_small);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        fd_trace_options options = fd_trace_defaults(fixture_path("filter.h5"));
        options.tensors = cases[c].tensors;
        options.layer_first = cases[c].layer_first;
        options.layer_last = cases[c].layer_last;
        fixture_write(&options, graph, FD_NUMERICS_EXACT, PREFILL, 3);
        fd_trace *trace = open_or_fail(options.path);
        for (int i = 0; i < 4 && cases[c].kept[i]; i++) {
            int32_t node = fd_trace_find(trace, cases[c].kept[i]);
            cr_expect(fd_trace_node_at(trace, node)->has_data && fd_trace_fingerprint(trace, node, 4));
            fixture_check_tensor(trace, graph, cases[c].kept[i], 8);
        }
        for (int i = 0; i < 4 && cases[c].dropped[i]; i++) {
            int32_t node = fd_trace_find(trace, cases[c].dropped[i]);
            cr_assert(node >= 0);
            cr_expect_not(fd_trace_node_at(trace, node)->has_data);
            cr_expect_null(fd_trace_fingerprint(trace, node, 4));
            cr_expect_null(fd_trace_stats_at(trace, node, 4));
        }
        /* health is of the run, whatever is filtered */
        int32_t n_layer, n_head;
        cr_expect(fd_trace_health_at(trace, 4)->top_id[0] >= 0);
        cr_expect_not(isnan(fd_trace_entropy(trace, 4, &n_layer, &n_head)[0]));
        fd_trace_close(trace);
    }
    fd_graph_free(graph);
}

Test(trace_write, steps_outside_the_range_are_fingerprints) {
    fd_graph *graph = fixture_graph(fixture_small);
    fd_trace_options options = fd_trace_defaults(fixture_path("range.h5"));
    options.step_first = 2;
    options.step_last = 3;
    fixture_write(&options, graph, FD_NUMERICS_EXACT, PREFILL, 5);
    fd_trace *trace = open_or_fail(options.path);
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
        fd_trace *trace = open_or_fail(options.path);
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
        fd_trace *trace = open_or_fail(paths[w]);
        for (int32_t pos = 0; pos < 4; pos++) fixture_check_tensor(trace, graph, "blk.1.attn_weights", pos);
        fd_trace_close(trace);
    }
    fd_graph_free(graph);
}

/* ---- what the writer refuses ---- */

static fd_code create(const char *path, fd_graph *graph, fd_trace_writer **writer, fd_error *err) {
    fd_trace_options options = fd_trace_defaults(path);
    fd_trace_info info = fixture_info();
    return fd_trace_create(&options, &info, graph, FD_NUMERICS_EXACT, writer, err);
}

Test(trace_write, places_that_cannot_hold_a_trace_are_named) {
    const char *places[] = {"/dev/full", "/dev/null", "/proc/trace.h5", "/nowhere/at/all.h5", "/"};
    fd_graph *graph = fixture_graph(fixture_small);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        fd_trace_writer *writer = NULL;
        fd_error err = {0};
        cr_expect_eq(create(places[i], graph, &writer, &err), FD_ERR_IO, "%s", places[i]);
        cr_expect(strstr(err.message, places[i]), "%s", err.message);
        cr_expect_null(writer);
    }
    fd_graph_free(graph);
}

Test(trace_write, a_failed_create_leaves_the_old_file) {
    fd_graph *graph = fixture_graph(fixture_small);
    const char *path = fixture_path("kept.h5");
    fd_trace_options options = fd_trace_defaults(path);
    fixture_write(&options, graph, FD_NUMERICS_EXACT, PREFILL, 1);
    /* a directory stands where the new file would be made */
    char part[200];
    snprintf(part, sizeof part, "%s.%ld.part", path, (long)getpid());
    cr_assert_eq(mkdir(part, 0700), 0);
    fd_trace_writer *writer = NULL;
    fd_error err = {0};
    cr_expect_eq(create(path, graph, &writer, &err), FD_ERR_IO);
    cr_expect(strstr(err.message, "kept.h5") && strstr(err.message, "File exists"), "%s", err.message);
    rmdir(part);
    fd_trace *trace = open_or_fail(path);
    cr_expect_eq(fd_trace_n_pos(trace), PREFILL + 1);
    fd_trace_close(trace);
    /* and without the obstacle the old file is replaced */
    cr_assert_eq(create(path, graph, &writer, &err), FD_OK, "%s", err.message);
    fd_trace_abandon(writer);
    trace = open_or_fail(path);
    cr_expect(fd_trace_n_pos(trace) == 0 && !fd_trace_get_info(trace)->complete);
    fd_trace_close(trace);
    fd_graph_free(graph);
}

Test(trace_write, calls_out_of_order_are_refused) {
    fd_graph *graph = fixture_graph(fixture_small);
    fd_trace_writer *writer;
    fd_error err = {0};
    const int32_t tokens[2] = {1, 2};
    cr_assert_eq(create(fixture_path("order.h5"), graph, &writer, &err), FD_OK);
    cr_expect_eq(fd_trace_end_step(writer, &err), FD_ERR_INPUT);
    cr_expect_eq(fd_trace_begin_step(writer, FD_STEP_PREFILL, tokens, 0, 0, &err), FD_ERR_INPUT);
    cr_expect_eq(fd_trace_begin_step(writer, FD_STEP_PREFILL, tokens, 2, 1, &err), FD_ERR_INPUT);
    cr_expect_eq(fixture_show(fd_trace_observer(writer), graph, FD_NUMERICS_EXACT, 0, 2, &err), FD_ERR_INPUT);
    cr_assert_eq(fd_trace_begin_step(writer, FD_STEP_PREFILL, tokens, 2, 0, &err), FD_OK);
    cr_expect_eq(fd_trace_begin_step(writer, FD_STEP_PREFILL, tokens, 2, 0, &err), FD_ERR_INPUT);
    cr_expect_eq(fixture_show(fd_trace_observer(writer), graph, FD_NUMERICS_EXACT, 0, 3, &err), FD_ERR_INPUT);
    cr_expect_eq(fixture_show(fd_trace_observer(writer), graph, FD_NUMERICS_F64, 0, 2, &err), FD_ERR_INPUT);
    fd_graph *other = fixture_graph((fixture_size){1, 15, 3, 1, 22, 37});
    cr_expect_eq(fixture_show(fd_trace_observer(writer), other, FD_NUMERICS_EXACT, 0, 2, &err), FD_ERR_INPUT);
    cr_expect(strstr(err.message, "another graph"), "%s", err.message);
    cr_expect_eq(fd_trace_finish(writer, &err), FD_ERR_INPUT); /* a step is open */
    fd_graph_free(other);
    fd_graph_free(graph);
}

/* Little memory: a row of each table at a time, in any order of asking. */
Test(trace_write, tables_read_by_parts_are_the_whole_tables) {
    fd_graph *graph = fixture_graph(fixture_small);
    fd_trace_options options = fd_trace_defaults(fixture_path("parts.h5"));
    fixture_write(&options, graph, FD_NUMERICS_EXACT, 5, 4);
    fd_trace *whole, *parts;
    fd_error err = {0};
    cr_assert_eq(fd_trace_open(options.path, &whole, &err), FD_OK, "%s", err.message);
    for (size_t memory = 64; memory <= (size_t)64 << 12; memory <<= 6) {
        cr_assert_eq(fd_trace_open_within(options.path, memory, &parts, &err), FD_OK, "%s", err.message);
        for (int32_t k = 0; k < 3 * fd_trace_n_pos(whole); k++)
            for (int32_t node = 0; node < fd_trace_n_node(whole); node++) {
                int32_t pos = k * 5 % fd_trace_n_pos(whole);
                const fd_fingerprint *a = fd_trace_fingerprint(whole, node, pos), *b = fd_trace_fingerprint(parts, node, pos);
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

/* Rounded once, to nearest even; the fingerprints stay those of what was computed. */
Test(trace_write, elements_stored_in_16_bits_are_the_computed_ones_rounded) {
    static const uint32_t types[] = {FD_F16, FD_BF16};
    fd_graph *graph = fixture_graph(fixture_small);
    for (int k = 0; k < 2; k++) {
        fd_trace_options options = fd_trace_defaults(fixture_path("computed.h5"));
        fd_trace *computed, *stored;
        fd_error err = {0};
        fixture_write(&options, graph, FD_NUMERICS_EXACT, 5, 4);
        cr_assert_eq(fd_trace_open(options.path, &computed, &err), FD_OK, "%s", err.message);
        options.path = fixture_path("stored.h5");
        options.store = types[k];
        options.step_last = 2; /* later steps: what is filled in */
        fixture_write(&options, graph, FD_NUMERICS_EXACT, 5, 4);
        cr_assert_eq(fd_trace_open(options.path, &stored, &err), FD_OK, "%s", err.message);
        int n_rounded = 0;
        for (int32_t node = 0; node < fd_trace_n_node(stored); node++) {
            const fd_trace_node *info = fd_trace_node_at(stored, node);
            cr_expect_eq(info->dtype, types[k], "%s", info->name);
            for (int32_t pos = 0; pos < fd_trace_n_pos(stored); pos++) {
                int64_t n = fd_trace_elements(info, pos);
                float *x = malloc((size_t)n * sizeof *x), *y = malloc((size_t)n * sizeof *y);
                const fd_fingerprint *a = fd_trace_fingerprint(computed, node, pos);
                const fd_fingerprint *b = fd_trace_fingerprint(stored, node, pos);
                cr_expect(a && b && a->lo == b->lo && a->hi == b->hi, "%s at %d", info->name, pos);
                fd_code code = fd_trace_read(stored, node, pos, y, NULL, &err);
                cr_expect_eq(code, pos < 7 ? FD_OK : FD_ERR_INCOMPLETE, "%s at %d", info->name, pos);
                cr_assert_eq(fd_trace_read(computed, node, pos, x, NULL, &err), FD_OK, "%s", err.message);
                for (int64_t i = 0; code == FD_OK && i < n; i++) {
                    float to = types[k] == FD_F16 ? fd_f16_to_f32(fd_f32_to_f16(x[i])) : fd_bf16_to_f32(fd_f32_to_bf16(x[i]));
                    n_rounded += y[i] != x[i];
                    if (to == to) cr_assert_eq(y[i], to, "%s at %d: %g stored, %g computed", info->name, pos, y[i], x[i]);
                }
                free(x);
                free(y);
            }
        }
        cr_expect_gt(n_rounded, 100);
        fd_trace_close(computed);
        fd_trace_close(stored);
    }
    fd_graph_free(graph);
}

/* What options leave out of a trace, or round in it. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "fixture.h"
#include "model/gguf/quant.h"

typedef struct filter_case {
    const char *tensors;
    int32_t layer_first, layer_last;
    const char *kept[4], *dropped[4];
} filter_case;

Test(trace_options, filters_keep_what_they_name_and_mark_the_rest) {
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
        fixture_write(&options, graph, FD_NUMERICS_EXACT, 7, 3);
        fd_trace *trace = fixture_open(options.path);
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

/* Rounded once, to nearest even; the fingerprints stay those of what was computed. */
Test(trace_options, elements_stored_in_16_bits_are_the_computed_ones_rounded) {
    static const uint32_t types[] = {FD_F16, FD_BF16};
    fd_graph *graph = fixture_graph(fixture_small);
    for (int k = 0; k < 2; k++) {
        fd_trace_options options = fd_trace_defaults(fixture_path("computed.h5"));
        fd_trace *computed, *stored;
        fd_error err = {0};
        fixture_write(&options, graph, FD_NUMERICS_EXACT, 5, 4);
        computed = fixture_open(options.path);
        options.path = fixture_path("stored.h5");
        options.store = types[k];
        options.step_last = 2; /* later steps: what is filled in */
        fixture_write(&options, graph, FD_NUMERICS_EXACT, 5, 4);
        stored = fixture_open(options.path);
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
                    float to =
                        types[k] == FD_F16 ? fd_f16_to_f32(fd_f32_to_f16(x[i])) : fd_bf16_to_f32(fd_f32_to_bf16(x[i]));
                    n_rounded += y[i] != x[i];
                    if (to == to)
                        cr_assert_eq(y[i], to, "%s at %d: %g stored, %g computed", info->name, pos, y[i], x[i]);
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

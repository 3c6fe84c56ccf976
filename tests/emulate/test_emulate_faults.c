/* A fault shows in an emulated run where it shows in an exact one, and by the same numbers, up to the class's
 * rounding. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "faults/faults.h"
#include "tests/common.h"
#include "tests/emulate/emulate_case.h"
#include "tests/nmse.h"

enum { POSITIONS = 6 };

static const struct {
    int model;
    const char *fault, *node; /* where it first shows */
} cases[] = {
    {0, "rope_pairing@1", "blk.1.attn_q_rope"},        /* an attribute */
    {0, "eps_outside_root@1", "blk.1.attn_norm"},      /* a node's op */
    {1, "weight_in_out@2", "blk.2.attn_q"},            /* a weight's bytes */
    {1, "missing_qkv_bias@1", "blk.1.attn_q"},         /* a weight taken away */
    {0, "kv_off_by_one@3", "blk.3.cache_k"},           /* a row offset */
    {1, "softmax_all_masked@0", "blk.0.attn_weights"}, /* an op that makes NaN */
    {1, "q0_only@3", "blk.3.attn_scores"},
};
static const char *const classes[] = {"f32", "bf16", "llama-cpu", "hf-bf16"};

static float *node_of(const emulate_case *c, const fd_graph *graph, const char *text, const char *name, int64_t *n) {
    *n = POSITIONS * fd_node_row_stride(&graph->nodes[fd_graph_find(graph, name)], POSITIONS);
    return case_node(c, graph, text, POSITIONS, name);
}

/* -inf of hidden scores and NaN of the fault must stand in the same places; they are then taken for 0. */
static bool same_places(float *a, float *b, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (isfinite(a[i]) != isfinite(b[i]) || isnan(a[i]) != isnan(b[i])) return false;
        if (!isfinite(a[i])) a[i] = b[i] = 0;
    }
    return true;
}

static fd_graph *with_fault(const fd_graph *graph, const char *spec) {
    fd_graph *faulty;
    fd_fault_owner *owner;
    fd_error err = {0};
    must(fd_graph_clone(graph, &faulty, &err), &err);
    must(fd_fault_apply(spec, faulty, &owner, &err), &err);
    kept(owner);
    return kept(faulty);
}

Test(emulate_faults, show_where_and_as_they_do_in_exact_runs) {
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        emulate_case c = case_open(cases[k].model);
        fd_graph *faulty = with_fault(c.graph, cases[k].fault);
        int32_t at = fd_graph_find(c.graph, cases[k].node);
        for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
            int64_t n, n_before;
            const char *before_name = c.graph->nodes[at - 1].name;
            float *before = node_of(&c, c.graph, classes[i], before_name, &n_before);
            float *before_faulty = node_of(&c, faulty, classes[i], before_name, &n_before);
            float *clean = node_of(&c, c.graph, classes[i], cases[k].node, &n);
            float *bad = node_of(&c, faulty, classes[i], cases[k].node, &n);
            float *truth = node_of(&c, faulty, "exact", cases[k].node, &n);
            cr_expect_eq(bits_apart(before, before_faulty, n_before), 0, "%s %s", classes[i], cases[k].fault);
            cr_expect_gt(bits_apart(clean, bad, n), 0, "%s %s", classes[i], cases[k].fault);
            cr_expect(same_places(bad, truth, n), "%s %s", classes[i], cases[k].fault);
            double off = nmse(bad, truth, n);
            cr_expect(off < 2e-3, "%s %s: nmse %.2e against the exact run", classes[i], cases[k].fault, off);
        }
    }
}

/* What an overridden op writes is rounded like everything else. */
Test(emulate_faults, results_of_overridden_nodes_are_rounded) {
    emulate_case c = case_open(0);
    fd_graph *faulty = with_fault(c.graph, "eps_outside_root");
    for (int e = 0; e < 2; e++) {
        int64_t n, wide = 0;
        float *x = node_of(&c, faulty, e ? "bf16" : "hf-bf16", "blk.0.attn_norm", &n);
        for (int64_t i = 0; i < n; i++) {
            uint32_t bits;
            memcpy(&bits, &x[i], sizeof bits);
            wide += (bits & 0xffffu) != 0;
        }
        cr_expect(e ? wide > n / 2 : wide == 0, "%lld of %lld elements have more than 16 bits", (long long)wide,
                  (long long)n);
    }
}

/* The verdict's last word: a fault recorded in a trace is named from that trace, exact or in another engine's
 * roundings, and nothing is named that is not the fault. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/report/report.h"
#include "faults/faults.h"
#include "reference_cpu/reference.h"
#include "tests/compare/replay_bench.h"
#include "tests/compare/said.h"

static const char *const classes[] = {NULL, "f16", "q8", "f32", "bf16"};
enum { N_CLASS = sizeof classes / sizeof *classes };

/* The verdict on a candidate with the fault; false: this model has nothing that the fault could change. */
static bool verdict_of(bench *b, const char *fault, recording how, fd_verdict *v) {
    const fd_graph *faulty = faulted(b, fault);
    if (faulty) *v = judged(b, faulty, how);
    forget(b);
    return faulty != NULL;
}

static bool is_named(const fd_verdict *v, const char *spec) {
    size_t n = strcspn(spec, "@");
    if (!v->diagnosis.done || !v->diagnosis.explanation.named) return false;
    const char *name = v->diagnosis.explanation.remaining[0].name;
    return strlen(name) == n && strncmp(name, spec, n) == 0;
}

/* `subtle`: beside any rounding it is less than ten times the noise where activations are large, so that a name
 * would be a guess. bf16 is so coarse that this happens to larger faults: there a name may be missing, never wrong. */
typedef struct expected {
    const char *spec, *node;
    bool subtle;
} expected;

static void expect_named(bench *b, expected e, const char *class_, const char *model, int32_t *n_named) {
    fd_verdict v;
    if (!verdict_of(b, e.spec, (recording){.emulated = class_}, &v)) return;
    const fd_explanation *x = &v.diagnosis.explanation;
    const char *in = class_ ? class_ : "exact";
    bool named = is_named(&v, e.spec);
    *n_named += named;
    expect_at(&v, e.node, e.spec);
    if (!e.subtle)
        cr_expect(v.replay.introduced > 0.9, "%s in %s, %s: introduced %.3f", e.spec, model, in, v.replay.introduced);
    bool may_lack = class_ && (e.subtle || strstr(class_, "bf16"));
    cr_expect(named || (may_lack && !x->named), "%s in %s, %s: %s %s; %s", e.spec, model, in,
              x->named ? "named" : "not named", x->n_remaining ? x->remaining[0].name : "-", unnamed_of(x));
    if (named) {
        cr_expect(x->remaining[0].z <= (class_ ? 1.0 : 0.0), "%s, %s: residual %g", e.spec, in, x->remaining[0].z);
        cr_expect(x->runner_up.name[0] && x->runner_up.z > 1, "%s, %s", e.spec, in);
        cr_expect(x->unmodified.z > 1, "%s, %s", e.spec, in);
    }
    fd_verdict_free(&v);
}

Test(named, the_write_ups_faults_are_found_and_named_in_every_class) {
    static const expected faults[] = {
        {"rope_pairing@2", "blk.2.attn_q_rope", false}, {"eps_outside_root@1", "blk.1.attn_norm", true},
        {"missing_qkv_bias@0", "blk.0.attn_q", false},  {"kv_off_by_one@3", "blk.3.cache_k", false},
        {"q0_only@1", "blk.1.attn_scores", false},      {"bytes_read_short@2", "blk.2.attn_q", false}};
    int32_t n_named = 0;
    for (int m = 0; m < N_MODEL; m++) {
        bench b = open_bench(models[m], (recording){0});
        for (size_t f = 0; f < sizeof faults / sizeof *faults; f++)
            for (int c = 0; c <= N_CLASS - faults[f].subtle; c++)
                expect_named(&b, faults[f], c < N_CLASS ? classes[c] : "hf-bf16", models[m], &n_named);
        close_model(&b);
    }
    fprintf(stderr, "named %d of %d\n", n_named, (N_CLASS + 1) * 11 - 2);
    cr_expect_geq(n_named, N_CLASS * 9);
}

Test(named, what_a_first_batch_does_not_show_is_named_in_decode) {
    bench b = open_bench(models[0], (recording){0});
    for (int32_t i = 0, c = 0; i < fd_fault_count(); i++) {
        const fd_fault_info *fault = fd_fault_at(i);
        for (c = 0; c < N_CLASS && fault->later; c++) {
            char spec[96], node[64];
            fd_verdict v;
            snprintf(spec, sizeof spec, "%s@2", fault->name);
            snprintf(node, sizeof node, "blk.2.%s", fault->located);
            /* rows of one token may stand anywhere: a mask of several tells where (test_past_explained.c) */
            const recording how = {.emulated = classes[c], .first_chunk = fault->whole_batch ? N_PREFILL / 2 : 0};
            cr_assert(verdict_of(&b, spec, how, &v));
            cr_expect_str_eq(v.divergence.node, node, "%s, %s", spec, classes[c] ? classes[c] : "exact");
            cr_expect(is_named(&v, fault->name), "%s, %s: %s", spec, classes[c] ? classes[c] : "exact",
                      unnamed_of(&v.diagnosis.explanation));
            fd_verdict_free(&v);
        }
    }
    close_model(&b);
}

/* Rows of a batch that are made of one another are not given up on few of them; zeros are no tensor of size 0. */
Test(named, through_fused_attention_from_the_whole_batch) {
    static const char *const faults[] = {"heads_not_transposed@1", "softmax_over_queries@1", "kv_stale_both@1",
                                         "gqa_divisor@1"};
    static const char outside[] = "token_embd,*.attn_norm,*.attn_q,*.attn_k,*.attn_v,*.attn_q_rope,*.attn_k_rope,"
                                  "*.attn_out,*.attn_proj,*.ffn_*,*.l_out,output_norm,logits";
    bench b = open_bench(models[0], (recording){.n_prompt = N_PREFILL});
    for (size_t f = 0; f < sizeof faults / sizeof *faults; f++) {
        fd_verdict v;
        recording how = {.emulated = "f32", .n_prompt = N_PREFILL, .tensors = outside};
        cr_assert(verdict_of(&b, faults[f], how, &v));
        const fd_explanation *x = &v.diagnosis.explanation;
        char name[32];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(faults[f], "@"), faults[f]);
        cr_expect_str_eq(v.divergence.node, "blk.1.attn_out");
        cr_expect(x->named && among_remaining(x, name), "%s: %s; %s", name, x->named ? x->remaining[0].name : "-",
                  unnamed_of(x));
        fd_verdict_free(&v);
    }
    close_model(&b);
}

Test(named, from_an_engine_that_feeds_one_token_at_a_time) {
    static const char *const faults[] = {"rope_pairing@2", "kv_off_by_one@3", "q0_only@1", "bytes_read_short@2"};
    bench b = open_bench(models[0], (recording){.one_by_one = true});
    for (size_t f = 0; f < sizeof faults / sizeof *faults; f++)
        for (int c = 0; c < 3; c++) {
            fd_verdict v;
            cr_assert(verdict_of(&b, faults[f], (recording){.emulated = classes[c], .one_by_one = true}, &v));
            cr_expect(is_named(&v, faults[f]), "%s, %s: %s at %s, position %d; %s", faults[f],
                      classes[c] ? classes[c] : "exact", fd_verdict_status_name(v.status), v.divergence.node,
                      v.divergence.pos, unnamed_of(&v.diagnosis.explanation));
            fd_verdict_free(&v);
        }
    close_model(&b);
}

Test(named, a_fault_of_the_reference_is_named_as_its_own) {
    bench b = open_model(models[1]);
    fd_graph *faulty = faulted(&b, "missing_qkv_bias@1");
    b.ref = record(faulty, (recording){.emulated = "f16"});
    fd_verdict v = judged(&b, b.graph, (recording){.emulated = "f32"});
    cr_expect(v.replay.of_reference);
    cr_expect(is_named(&v, "missing_qkv_bias@1"), "%s", unnamed_of(&v.diagnosis.explanation));
    fd_verdict_free(&v);
    close_model(&b);
}

Test(named, position_0_alone_names_nothing) {
    bench b = open_bench(models[0], (recording){.n_prompt = 1});
    fd_verdict v;
    cr_assert(verdict_of(&b, "rope_pairing@0", (recording){.emulated = "f32", .n_prompt = 1}, &v));
    cr_expect_eq(v.status, FD_INCOMPLETE, "RoPE is the identity there");
    cr_expect(!v.diagnosis.done);
    fd_verdict_free(&v);
    close_model(&b);
}

/* No fault of the table, nor a number that rows or columns have: a third of the elements, others in each row, one and a half times as
 * large. */
static void half_scaled(const fd_op_args *args) {
    fd_node node = *args->node;
    fd_op_args clean = *args;
    node.override = NULL;
    clean.node = &node;
    fd_reference_op(FD_NUMERICS_EXACT, &clean);
    int64_t width = fd_node_row_stride(args->node, args->n_kv), n = args->n_pos * width;
    for (int64_t i = 0; i < n; i++)
        if ((i % width + 5 * (i / width + args->pos0)) % 3 == 0) ((float *)args->out)[i] *= 1.5f;
}

Test(named, a_fault_outside_the_table_is_not_named) {
    static const char *const nodes[] = {"blk.2.attn_q_rope", "blk.1.attn_norm", "blk.3.ffn_up", "blk.0.l_out"};
    bench b = open_bench(models[1], (recording){0});
    for (size_t k = 0; k < sizeof nodes / sizeof *nodes; k++)
        for (int c = 0; c < N_CLASS; c++) {
            fd_error err = {0};
            fd_graph *faulty;
            must(fd_graph_clone(b.graph, &faulty, &err), &err);
            faulty->nodes[fd_graph_find(faulty, nodes[k])].override = half_scaled;
            fd_verdict v = judged(&b, faulty, (recording){.emulated = classes[c]});
            cr_expect_str_eq(v.divergence.node, nodes[k]);
            cr_expect(v.diagnosis.done && !v.diagnosis.explanation.named, "%s: named %s", nodes[k],
                      v.diagnosis.explanation.n_remaining ? v.diagnosis.explanation.remaining[0].name : "-");
            cr_expect(v.diagnosis.explanation.why);
            fd_verdict_free(&v);
        }
    close_model(&b);
}

Test(named, a_bug_inside_a_span_is_named_where_one_explanation_alone_gives_the_values) {
    static const struct {
        const char *fault, *tensors, *at;
    } cases[] = {
        {"q0_only@1", "*[!s]", "blk.1.attn_out"},
        {"rope_pairing@2", "*attn_[qkv],*attn_out", "blk.2.attn_out"},
        {"up_missing@1", "*ffn_norm,*ffn_down", "blk.1.ffn_down"},
        {"attn_scale_missing", "token_embd,*l_out", "blk.0.l_out"},
        {"eps_outside_root@3", "token_embd,*l_out", "blk.3.l_out"},
        {"gqa_modulo@2", "token_embd,*l_out", "blk.2.l_out"},
        {"attn_scale_missing", "logits", "logits"},
    };
    bench b = open_bench(models[0], (recording){0});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char fault[64];
        fd_verdict v;
        snprintf(fault, sizeof fault, "%.*s", (int)strcspn(cases[i].fault, "@"), cases[i].fault);
        cr_assert(verdict_of(&b, cases[i].fault, (recording){.emulated = "f32", .tensors = cases[i].tensors}, &v));
        cr_expect_str_eq(v.divergence.node, cases[i].at, "%s", cases[i].fault);
        cr_expect(v.diagnosis.explanation.named && among_remaining(&v.diagnosis.explanation, fault), "%s: %s",
                  cases[i].fault, unnamed_of(&v.diagnosis.explanation));
        fd_verdict_free(&v);
    }
    close_model(&b);
}

Test(named, a_span_that_no_explanation_gives_is_not_named_and_says_what_to_record) {
    bench b = open_bench(models[0], (recording){0});
    fd_error err = {0};
    fd_graph *faulty;
    must(fd_graph_clone(b.graph, &faulty, &err), &err);
    faulty->nodes[fd_graph_find(faulty, "blk.1.attn_scores")].override = half_scaled;
    fd_verdict v = judged(&b, faulty, (recording){.emulated = "f32", .tensors = "*[!s]"});
    cr_expect_str_eq(v.divergence.node, "blk.1.attn_out");
    cr_expect(v.diagnosis.done && !v.diagnosis.explanation.named &&
              strstr(tells_apart_of(&v.diagnosis.explanation), "blk.1.attn_scores"));
    fd_verdict_free(&v);
    fd_graph_free(faulty);
    close_model(&b);
}

/* ---- how it is said ---- */

static char *report(const fd_verdict *v, bool json) {
    char *text = NULL;
    size_t size;
    fd_error err = {0};
    FILE *to = open_memstream(&text, &size);
    cr_assert(to);
    if (json)
        must(fd_report_json(to, v, &err), &err);
    else
        fd_report_text(to, v, false);
    fclose(to);
    return text;
}

Test(named, the_name_stands_in_text_and_json) {
    bench b = open_bench(models[0], (recording){0});
    fd_verdict v;
    cr_assert(verdict_of(&b, "rope_pairing@2", (recording){.emulated = "f16"}, &v));
    char *text = report(&v, false), *json = report(&v, true);
    cr_expect(strstr(text, "  named       RoPE rotates the other pairs"), "%s", text);
    cr_expect(strstr(text, "  runner-up "), "%s", text);
    json_t *root = json_loads(json, 0, NULL), *said = json_object_get(root, "explanation");
    cr_expect_str_eq(json_string_value(json_object_get(said, "name")), "rope_pairing");
    cr_expect(json_real_value(json_object_get(json_object_get(said, "residual_z"), "value")) <= 1);
    cr_expect_eq(json_array_size(json_object_get(said, "remaining")), 1);

    v.diagnosis.explanation.named = false;
    v.diagnosis.explanation.why = FD_UNNAMED_OP_FITS;
    free(text);
    text = report(&v, false);
    cr_expect(strstr(text, "  not named   the op as it should be is within 10 τ of the candidate"), "%s", text);
    cr_expect(strstr(text, "  possible    RoPE rotates"), "%s", text);
    json_decref(root);
    free(text);
    free(json);
    fd_verdict_free(&v);
    close_model(&b);
}

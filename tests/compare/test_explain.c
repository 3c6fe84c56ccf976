/* Explanations: every fault of the table is named from the faulty run's own tensors, and faults outside it are not. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/quant.h"
#include "numerics/contract.h"
#include "reference_cpu/reference.h"
#include "tests/compare/explain_bench.h"
#include "tests/faults/dressed.h"

/* ---- faults of the table ---- */

static void inject(const fd_graph *graph, recorded_run *clean, const fd_fault_info *fault, int32_t layer,
                   const char *model, score *s) {
    char spec[96];
    fd_error err = {0};
    fd_graph *faulty;
    fd_fault_owner *owner;
    if (fault->outside)
        snprintf(spec, sizeof spec, "%s", fault->name);
    else
        snprintf(spec, sizeof spec, "%s@%d", fault->name, layer);
    must(fd_graph_clone(graph, &faulty, &err), &err);
    if (fd_fault_apply(spec, faulty, &owner, &err) == FD_OK) {
        recorded_run run = record_run(faulty, prompt, N_PROMPT);
        int32_t node = first_difference(clean, &run);
        s->n_injected++;
        cr_expect(node >= 0, "%s in %s changes nothing", spec, model);
        if (node >= 0) {
            bool located = fd_fault_shows_at(fault, &graph->nodes[node]);
            s->n_located += located;
            fd_explain_request ask = ask_about(&run, graph, prompt, node);
            fd_explanation e;
            must(fd_explain(&ask, &e, &err), &err);
            bool right = e.named && among_remaining(&e, fault->name);
            s->n_named += right;
            s->n_together += right && e.n_remaining > 1;
            s->n_wrong += e.named && !right;
            s->n_unnamed += !e.named;
            if (!right || e.n_remaining > 1)
                fprintf(stderr, "  %s in %s: %s %s%s%s; %s; next: %s\n", spec, model, e.named ? "named" : "not named",
                        e.n_remaining ? e.remaining[0].fault->name : "-", e.n_remaining > 1 ? " with " : "",
                        e.n_remaining > 1 ? e.remaining[1].fault->name : "", e.reason, e.next);
            cr_expect(!e.named || e.remaining[0].z == 0.0);
        }
        recorded_run_free(&run);
        fd_fault_owner_free(owner);
    }
    fd_graph_free(faulty);
}

/* In n_layer layers, the middle one first; what sits outside the layers once. */
static void inject_all(const fd_graph *graph, int n_layer, const char *model, score *s) {
    recorded_run clean = record_run(graph, prompt, N_PROMPT);
    int32_t last = graph->hparams.n_layer - 1, layers[] = {last / 2, 0, last};
    for (int32_t i = 0; i < fd_fault_count(); i++)
        for (int k = 0; k < (fd_fault_at(i)->outside ? 1 : n_layer); k++)
            inject(graph, &clean, fd_fault_at(i), layers[k], model, s);
    recorded_run_free(&clean);
}

Test(explain, every_fault_of_the_table_is_named_and_none_wrongly) {
    score s = {0};
    for (int m = 0; m < N_MODEL; m++) {
        bench b = open_model(models[m]);
        inject_all(b.graph, 3, models[m], &s);
        for (int d = 0; d < FD_N_DRESS && m == 0; d++) {
            fd_dressed dressed = fd_dress_up(b.graph, &fd_dresses[d]);
            inject_all(dressed.graph, 1, fd_dresses[d].name, &s);
            fd_undress(&dressed);
        }
        close_model(&b);
    }
    print_score("faults of the table", &s);
    cr_expect(s.n_injected > 400);
    cr_expect_eq(s.n_wrong, 0);
    cr_expect_eq(s.n_located, s.n_injected);
    cr_expect(100 * s.n_named >= 95 * s.n_injected, "named %d of %d", s.n_named, s.n_injected);
}

/* ---- faults outside it ---- */

static void right_op(const fd_op_args *args) {
    fd_node node = *args->node;
    fd_op_args inner = *args;
    node.override = NULL;
    inner.node = &node;
    fd_reference_op(FD_NUMERICS_EXACT, &inner);
}

static int64_t width(const fd_op_args *args) {
    return fd_node_row_stride(args->node, args->n_kv);
}
static float *row(const fd_op_args *args, int32_t r) {
    return (float *)args->out + r * width(args);
}

static void block_of_a_row_corrupted(const fd_op_args *args) {
    const fd_weight *w = args->weight[0];
    float *values = malloc(sizeof *values * (size_t)w->n_col);
    right_op(args);
    fd_dequantize_row(w->dtype, (const char *)w->data + 5 * fd_dtype_row_bytes(w->dtype, w->n_col), values, w->n_col);
    for (int i = 32; i < 64; i++) values[i] = -values[i];
    for (int32_t r = 0; r < args->n_pos; r++)
        row(args, r)[5] = fd_dot(values, (const float *)args->in[0] + r * w->n_col, w->n_col);
    free(values);
}
static void tile_of_the_previous_position(const fd_op_args *args) {
    right_op(args);
    for (int32_t r = args->n_pos - 1; r > 0; r--) memcpy(row(args, r) + 32, row(args, r - 1) + 32, 16 * sizeof(float));
}
static void all_nan(const fd_op_args *args) {
    for (int64_t i = 0; i < args->n_pos * width(args); i++) ((float *)args->out)[i] = NAN;
}
static void all_zero(const fd_op_args *args) {
    for (int64_t i = 0; i < args->n_pos * width(args); i++) ((float *)args->out)[i] = 0.0f;
}
static void rounded_to_f16(const fd_op_args *args) {
    right_op(args);
    for (int64_t i = 0; i < args->n_pos * width(args); i++)
        ((float *)args->out)[i] = fd_f16_to_f32(fd_f32_to_f16(((float *)args->out)[i]));
}
static void a_hundredth_more(const fd_op_args *args) {
    right_op(args);
    for (int64_t i = 0; i < args->n_pos * width(args); i++) ((float *)args->out)[i] *= 1.01f;
}
static void one_head_a_hundredth_more(const fd_op_args *args) {
    right_op(args);
    for (int32_t r = 0; r < args->n_pos; r++)
        for (int32_t d = 0; d < args->node->shape[1]; d++) row(args, r)[args->node->shape[1] + d] *= 1.01f;
}
static void last_pair_unrotated(const fd_op_args *args) {
    int32_t dim = args->node->shape[1];
    right_op(args);
    for (int32_t r = 0; r < args->n_pos; r++)
        for (int64_t h = 0; h < args->node->shape[0]; h++)
            memcpy(row(args, r) + h * dim + dim - 1, (const float *)args->in[0] + r * width(args) + h * dim + dim - 1,
                   sizeof(float));
}
static void eps_thirty_times(const fd_op_args *args) {
    fd_node node = *args->node;
    fd_op_args inner = *args;
    node.override = NULL;
    node.eps *= 30.0f;
    inner.node = &node;
    fd_reference_op(FD_NUMERICS_EXACT, &inner);
}
static void first_position_ignored(const fd_op_args *args) {
    right_op(args);
    for (int64_t i = 0; i < args->n_pos * args->node->shape[0]; i++) ((float *)args->out)[i * args->n_kv] = 0.0f;
}
static void one_head_unscaled(const fd_op_args *args) {
    right_op(args);
    for (int32_t r = 0; r < args->n_pos; r++)
        for (int32_t t = 0; t < args->n_kv; t++) row(args, r)[t] /= args->node->scale;
}
static void quick_gelu(const fd_op_args *args) {
    for (int64_t i = 0; i < args->n_pos * width(args); i++) {
        float g = ((const float *)args->in[0])[i];
        ((float *)args->out)[i] = g / (1.0f + fd_exp32(-1.702f * g)) * ((const float *)args->in[1])[i];
    }
}
static void half_the_branch(const fd_op_args *args) {
    for (int64_t i = 0; i < args->n_pos * width(args); i++)
        ((float *)args->out)[i] = ((const float *)args->in[0])[i] + 0.5f * ((const float *)args->in[1])[i];
}
static void row_3_repeats_row_2(const fd_op_args *args) {
    right_op(args);
    memcpy(row(args, 3), row(args, 2), sizeof(float) * (size_t)width(args));
}
static void never_written(const fd_op_args *args) {
    (void)args;
}
static void one_ulp(const fd_op_args *args) {
    right_op(args);
    row(args, 1)[3] = nextafterf(row(args, 1)[3], INFINITY);
}

static const struct {
    const char *name, *node; /* with "blk.N." before it, but for `outside` */
    fd_override_fn override;
    bool outside;
} unlisted[] = {
    {"a 32-block of one weight row corrupted", "attn_q", block_of_a_row_corrupted, false},
    {"a 32-block of one logits row corrupted", "logits", block_of_a_row_corrupted, true},
    {"16 rows of the previous position", "ffn_gate", tile_of_the_previous_position, false},
    {"a product all NaN", "attn_q", all_nan, false},
    {"a product all zero", "attn_v", all_zero, false},
    {"a product rounded to f16", "attn_proj", rounded_to_f16, false},
    {"a product 1 % too large", "ffn_up", a_hundredth_more, false},
    {"one head 1 % too large", "attn_out", one_head_a_hundredth_more, false},
    {"the last pair of each head unrotated", "attn_k_rope", last_pair_unrotated, false},
    {"eps thirty times too large", "attn_norm", eps_thirty_times, false},
    {"position 0 ignored without a new sum", "attn_weights", first_position_ignored, false},
    {"one head unscaled", "attn_scores", one_head_unscaled, false},
    {"quick GELU", "ffn_act", quick_gelu, false},
    {"half the branch added", "l_out", half_the_branch, false},
    {"row 3 of the cache repeats row 2", "cache_v", row_3_repeats_row_2, false},
    {"the cache never written", "cache_k", never_written, false},
    {"the embedding 1 % too large", "token_embd", a_hundredth_more, true},
    {"the last norm rounded to f16", "output_norm", rounded_to_f16, true},
    {"one element one ulp off", "ffn_norm", one_ulp, false},
};
enum { N_UNLISTED = sizeof unlisted / sizeof *unlisted };

static void inject_unlisted(const bench *b, recorded_run *clean, int u, int32_t layer, score *s) {
    char name[64];
    fd_error err = {0};
    fd_graph *faulty;
    fd_explanation e;
    if (unlisted[u].outside)
        snprintf(name, sizeof name, "%s", unlisted[u].node);
    else
        snprintf(name, sizeof name, "blk.%d.%s", layer, unlisted[u].node);
    int32_t node = fd_graph_find(b->graph, name);
    cr_assert(node >= 0, "%s", name);
    must(fd_graph_clone(b->graph, &faulty, &err), &err);
    faulty->nodes[node].override = unlisted[u].override;
    recorded_run run = record_run(faulty, prompt, N_PROMPT);
    s->n_injected++;
    cr_expect_eq(first_difference(clean, &run), node, "%s at %s", unlisted[u].name, name);
    s->n_located += first_difference(clean, &run) == node;
    fd_explain_request ask = ask_about(&run, b->graph, prompt, node);
    must(fd_explain(&ask, &e, &err), &err);
    cr_expect(!e.named, "%s at %s is named %s", unlisted[u].name, name, e.named ? e.remaining[0].fault->name : "");
    cr_expect(e.named || e.reason[0], "%s at %s: no reason given", unlisted[u].name, name);
    s->n_wrong += e.named;
    s->n_unnamed += !e.named;
    recorded_run_free(&run);
    fd_graph_free(faulty);
}

Test(explain, faults_outside_the_table_are_located_and_not_named) {
    score s = {0};
    for (int m = 0; m < N_MODEL; m++) {
        bench b = open_model(models[m]);
        recorded_run clean = record_run(b.graph, prompt, N_PROMPT);
        int32_t last = b.graph->hparams.n_layer - 1, layers[] = {0, last / 2, last};
        for (int u = 0; u < N_UNLISTED; u++)
            for (int k = 0; k < (unlisted[u].outside ? 1 : 3); k++) inject_unlisted(&b, &clean, u, layers[k], &s);
        recorded_run_free(&clean);
        close_model(&b);
    }
    print_score("faults outside it", &s);
    cr_expect_eq(s.n_wrong, 0);
    cr_expect_eq(s.n_located, s.n_injected);
}

/* Products and caches that are kept in fewer bits: in every layer that may be how the engine is meant to be, in one it is a bug; and
 * the roundings that are tried as explanations. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "compare/bounds/dot_inputs.h"
#include "compare/hypothesis/round_scaled.h"
#include "compare/hypothesis/round_type.h"
#include "model/gguf/quant.h"
#include "tests/compare/guess_bench.h"

/* Rows of a cache in Q8_0 blocks. */
static void in_q8_0(const fd_op_args *args) {
    int64_t width = fd_node_width(args->node);
    run_clean(args);
    fd_round_type_rows(FD_Q8_0, (float *)args->out + args->pos0 * width, args->n_pos, width);
}
/* With -0 for +0, as an engine leaves it whose integers are floats. */
static void in_q8_0_of_floats(const fd_op_args *args) {
    int64_t width = fd_node_width(args->node);
    float *rows = (float *)args->out + args->pos0 * width;
    in_q8_0(args);
    for (int64_t i = 0; i < args->n_pos * width; i++)
        if (!(fabsf(rows[i]) > 0)) rows[i] = -0.0f;
}

/* Rows of a cache with scales: largest values, or numbers that stand in the engine. */
static void in_scaled(const fd_op_args *args, int32_t type, fd_scale_of scale, float given) {
    const int64_t width = fd_node_width(args->node), n = args->n_pos * width;
    float *rows = (float *)args->out + args->pos0 * width;
    const fd_scaled how = {
        .type = type, .scale = scale, .n_row = args->n_pos, .width = width, .n_head = args->node->shape[0]};
    run_clean(args);
    for (int64_t i = 0; i < n; i++) rows[i] /= given;
    fd_round_scaled(&how, rows);
    for (int64_t i = 0; i < n; i++) rows[i] *= given;
}
static void in_e4m3(const fd_op_args *args) {
    in_scaled(args, FD_ROUND_E4M3, FD_SCALE_NONE, 1);
}
static void in_e4m3_with_a_given_scale(const fd_op_args *args) {
    in_scaled(args, FD_ROUND_E4M3, FD_SCALE_NONE, 0.05f);
}
static void in_int8(const fd_op_args *args) {
    in_scaled(args, FD_ROUND_INT8, FD_SCALE_HEAD, 1);
}
static void in_int8_a_row(const fd_op_args *args) {
    in_scaled(args, FD_ROUND_INT8, FD_SCALE_ROW, 1);
}
static void in_int8_a_step(const fd_op_args *args) {
    in_scaled(args, FD_ROUND_INT8, FD_SCALE_STEP, 1);
}

static void in_q8_0_by_division(const fd_op_args *args) {
    int64_t width = fd_node_width(args->node);
    run_clean(args);
    fd_round_type_rows(FD_ROUND_Q8_0_KEPT, (float *)args->out + args->pos0 * width, args->n_pos, width);
}

static void kept_in_bfloat16(const fd_op_args *args) {
    int64_t n = args->n_pos * fd_node_width(args->node);
    run_clean(args);
    for (int64_t i = 0; i < n; i++) ((float *)args->out)[i] = fd_bf16_to_f32(fd_f32_to_bf16(((float *)args->out)[i]));
}

/* By another exponential than the replay's: some values near the middle between two of binary16 go to the other. */
static void from_a_table(const fd_op_args *args) {
    const float *gate = args->in[0], *up = args->in[1];
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++) {
        float x = fd_dot_round_f16(gate[i]), slightly_more = x * (1 + 0x1p-23f);
        ((float *)args->out)[i] = fd_dot_round_f16(slightly_more / (1 + expf(-x))) * up[i];
    }
}

/* In every layer it may be how the engine is meant to be, in one it is not. A table has a name there. */
Test(kept_rounded, what_is_rounded_to_16_bits_everywhere_is_no_bug_and_in_one_layer_is) {
    static const struct {
        const char *node;
        fd_override_fn how;
        const char *says;
    } of[] = {{"attn_q", kept_in_bfloat16, NULL}, {"ffn_act", from_a_table, "as in a table"}};
    bench b = open_bench(models[0], (recording){0});
    for (int i = 0; i < 4; i++) {
        const bool everywhere = i % 2;
        fd_graph *faulty = graph_copy(&b);
        for (int32_t k = 0; k < faulty->n_node; k++)
            if (fd_ends_with(faulty->nodes[k].name, of[i / 2].node) && (everywhere || faulty->nodes[k].layer == 2))
                faulty->nodes[k].override = of[i / 2].how;
        fd_verdict v = judged(&b, faulty, (recording){.emulated = "f32", .numerics = "unknown"});
        const fd_explanation *e = &v.diagnosis.explanation;
        const fd_remark *reason = v.reasons.n > 0 ? &v.reasons.items[0] : NULL;
        const char *says = of[i / 2].says, *said = everywhere && reason ? reason->text : e->remaining[0].summary;
        cr_expect_eq(v.status, everywhere ? FD_INCOMPLETE : FD_DIVERGED, "%d: %s", i, fd_verdict_status_name(v.status));
        if (everywhere) cr_expect(reason && (says || reason->kind == FD_REASON_MIXED_CLASS), "%d", i);
        if (says) cr_expect(strstr(said, says) && (everywhere || e->named), "%d: %s", i, said);
        fd_verdict_free(&v);
        fd_graph_free(faulty);
    }
    close_model(&b);
}

/* K that was not recorded was rounded to the engine's type before, and may go to another step. */
Test(kept_rounded, a_cache_in_8_bits_is_the_engines_way_where_k_was_not_recorded) {
    for (int m = 0; m < N_MODEL; m++) {
        bench b = open_bench(models[m], (recording){0});
        fd_graph *graph = graph_copy(&b);
        for (int32_t k = 0; k < graph->n_node; k++)
            if (fd_node_is_kv_cache(&graph->nodes[k])) graph->nodes[k].override = in_e4m3;
        recording how = {.emulated = "hf-bf16",
                         .numerics = "unknown",
                         .store = FD_BF16,
                         .tensors = "token_embd,*norm,*attn_v,*attn_out,*proj,*gate,*up,*act,*down,logits"};
        fd_verdict v = judged(&b, graph, how);
        cr_expect_eq(v.status, FD_INCOMPLETE, "%s: %s at %s as %s", models[m], fd_verdict_status_name(v.status),
                     v.divergence.node, v.replay.numerics);
        fd_verdict_free(&v);
        fd_graph_free(graph);
        close_model(&b);
    }
}

/* `nodes`: a suffix. The name is asked for where it can be found: a given scale shows in recorded rows alone. */
typedef struct kept_case {
    const char *nodes;
    fd_override_fn how;
    const char *const *tensors;
    const char *type;
    bool unnamed;
} kept_case;

static fd_verdict judged_with(const bench *b, const kept_case *c, bool everywhere) {
    fd_graph *faulty;
    fd_error err = {0};
    must(fd_graph_clone(b->graph, &faulty, &err), &err);
    for (int32_t k = 0; k < faulty->n_node; k++) {
        fd_node *node = &faulty->nodes[k];
        if (fd_node_is_kv_cache(node) && strstr(node->name, c->nodes) && (everywhere || node->layer == 2))
            node->override = c->how;
    }
    const fd_verdict v =
        judged(b, faulty, (recording){.emulated = "f32", .numerics = "unknown", .tensors = *c->tensors});
    fd_graph_free(faulty);
    return v;
}

Test(kept_rounded, a_cache_kept_in_blocks_or_8_bits_everywhere_is_no_bug_and_in_one_layer_is) {
    static const kept_case cases[] = {
        {"cache_", in_q8_0, &fused, "Q8_0", false},
        {"cache_", in_q8_0_of_floats, &all, "Q8_0", false},
        {"cache_", in_q8_0_by_division, &fused, "Q8_0", false},
        {"cache_", in_e4m3, &all, "(e4m3)", false},
        {"cache_", in_e4m3_with_a_given_scale, &all, "(e4m3) with one scale for all rows", false},
        {"cache_", in_e4m3_with_a_given_scale, &fused, "are kept in 8 bits or fewer", true},
        {"cache_", in_int8, &all, "int8 with one scale a head", false},
        {"cache_", in_int8_a_row, &fused, "K and V are kept rounded to int8 with one scale a row", false},
        {"cache_v", in_int8_a_row, &fused, "int8 with one scale a row", false},
        {"cache_", in_int8_a_step, &fused, "int8 with one scale a step", false},
        {"cache_", in_int8_with_a_given_scale, &all, "int8 with one scale for all rows", false},
        {"cache_", in_int8_with_a_given_scale, &layers, "are kept in 8 bits or fewer", true},
    };
    bench b = open_bench(models[0], (recording){0});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int everywhere = 0; everywhere < 2; everywhere++) {
            fd_verdict v = judged_with(&b, &cases[i], everywhere);
            const fd_explanation *e = &v.diagnosis.explanation;
            cr_expect_eq(v.status, everywhere ? FD_INCOMPLETE : FD_DIVERGED, "%zu: %s", i,
                         fd_verdict_status_name(v.status));
            const char *said = everywhere && v.reasons.n ? v.reasons.items[0].text : e->remaining[0].summary;
            cr_expect(strstr(said, cases[i].type) || (!everywhere && cases[i].unnamed), "%zu: %s", i, said);
            cr_expect(everywhere || e->layer == 2, "%zu: layer %d", i, e->layer);
            fd_verdict_free(&v);
        }
    close_model(&b);
}

/* What is no cache is none: the first position of keys makes no error, and a factor has a direction. */
static void turned_less(const fd_op_args *args) {
    const int64_t width = fd_node_width(args->node), dim = args->node->shape[1];
    float *rows = (float *)args->out + args->pos0 * width;
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * width; i++)
        if (i % dim == 3) rows[i] = rows[i] * 0.8f + 0.05f;
}

/* Nor is what leaves more of them than 8 bits do. */
static void in_four_bits(const fd_op_args *args) {
    const int64_t n = args->n_pos * fd_node_width(args->node);
    float *rows = (float *)args->out + args->pos0 * fd_node_width(args->node);
    const float step = strstr(args->node->name, "cache_v") ? 0.12f : 0.7f;
    run_clean(args);
    for (int64_t i = 0; i < n; i++) rows[i] = rintf(rows[i] / step) * step;
}

Test(kept_rounded, a_bug_of_keys_or_values_in_every_layer_is_no_way_to_keep_them) {
    static const kept_case cases[] = {{"cache_k", turned_less, &fused, "", true},
                                      {"cache_v", turned_less, &fused, "", true},
                                      {"cache_", in_four_bits, &layers, "", true}};
    bench b = open_bench(models[0], (recording){0});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fd_verdict v = judged_with(&b, &cases[i], true);
        cr_expect_eq(v.status, FD_DIVERGED, "%zu: %s", i, fd_verdict_status_name(v.status));
        fd_verdict_free(&v);
    }
    close_model(&b);
}

/* The step after the first shows them right, too: no matter of when a step's own rows are rounded. */
static void in_int8_from_the_third_step_on(const fd_op_args *args) {
    args->pos0 >= N_PREFILL ? in_int8_with_a_given_scale(args) : run_clean(args);
}

Test(kept_rounded, rows_that_are_right_before_are_no_way_to_keep_those_after_them) {
    bench b = open_bench(models[0], (recording){.first_chunk = 2});
    fd_graph *faulty;
    fd_error err = {0};
    must(fd_graph_clone(b.graph, &faulty, &err), &err);
    for (int32_t k = 0; k < faulty->n_node; k++)
        if (fd_node_is_kv_cache(&faulty->nodes[k])) faulty->nodes[k].override = in_int8_from_the_third_step_on;
    fd_verdict v =
        judged(&b, faulty, (recording){.emulated = "f32", .numerics = "unknown", .tensors = layers, .first_chunk = 2});
    cr_expect_eq(v.status, FD_DIVERGED, "%s", fd_verdict_status_name(v.status));
    fd_verdict_free(&v);
    fd_graph_free(faulty);
    close_model(&b);
}

Test(kept_rounded, eight_bit_floating_point_rounds_to_nearest_even_and_ends_at_its_largest) {
    static const struct {
        int32_t type;
        float x, rounded;
    } cases[] = {
        {FD_ROUND_E4M3, 1.0625f, 1},       {FD_ROUND_E4M3, 1.1875f, 1.25f},     {FD_ROUND_E4M3, -500, -448},
        {FD_ROUND_E4M3, 0x1p-9f, 0x1p-9f}, {FD_ROUND_E4M3, 0x1.8p-9f, 0x1p-8f}, {FD_ROUND_E4M3, 0x1p-10f, 0},
        {FD_ROUND_E5M2, 1.125f, 1},        {FD_ROUND_E5M2, 60000, 57344},       {FD_ROUND_E5M2, 0x1p-16f, 0x1p-16f}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float x = cases[i].x;
        fd_round_scaled(&(fd_scaled){.type = cases[i].type, .n_row = 1, .width = 1, .n_head = 1}, &x);
        cr_expect_eq(x, cases[i].rounded, "%a gives %a", cases[i].x, x);
    }
}

Test(kept_rounded, int8_rows_have_a_scale_each) {
    float rows[2][3] = {{254, 2.9f, -5.2f}, {-1.27f, 0.014f, 0}};
    const float rounded[2][3] = {{254, 2, -6}, {-1.27f, 0.01f, 0}};
    fd_round_scaled(&(fd_scaled){.type = FD_ROUND_INT8, .scale = FD_SCALE_ROW, .n_row = 2, .width = 3, .n_head = 1},
                    rows[0]);
    for (int i = 0; i < 6; i++)
        cr_expect_float_eq(rows[i / 3][i % 3], rounded[i / 3][i % 3], 1e-6, "%d: %g", i, (double)rows[i / 3][i % 3]);
}

/* Rows kept with scales that stand nowhere: they are found from the rows, and give them back. */
Test(kept_rounded, a_given_scale_is_found_from_what_was_kept) {
    static const int32_t types[] = {FD_ROUND_E4M3, FD_ROUND_E5M2, FD_ROUND_INT8};
    enum { ROWS = 9, WIDTH = 8 };
    for (int scale = FD_SCALE_FITTED; scale <= FD_SCALE_ELEMENT_FITTED; scale++)
        for (int t = 0; t < 3; t++) {
            float right[ROWS * WIDTH], kept[ROWS * WIDTH], rows[ROWS * WIDTH], given = 1;
            double tau[ROWS * WIDTH] = {0};
            fd_scaled how = {.type = types[t], .n_row = 1, .width = 1, .n_head = 1};
            for (int i = 0; i < ROWS * WIDTH; i++) {
                right[i] = sinf((float)(i * i) / 9) * (i % 5 ? 1 : 0.01f);
                if (scale == FD_SCALE_ELEMENT_FITTED) given = 0.02f * (float)(1 + i % WIDTH);
                if (scale == FD_SCALE_HEAD_FITTED) given = i % WIDTH < 4 ? 0.015f : 0.04f;
                if (scale == FD_SCALE_FITTED) given = 0.017f;
                kept[i] = right[i] / given;
                if (types[t] == FD_ROUND_INT8)
                    kept[i] = rintf(kept[i]) * given;
                else
                    fd_round_scaled(&how, &kept[i]), kept[i] *= given;
            }
            how = (fd_scaled){.type = types[t],
                              .scale = (fd_scale_of)scale,
                              .n_row = ROWS,
                              .width = WIDTH,
                              .n_head = 2,
                              .candidate = kept};
            memcpy(rows, right, sizeof rows);
            fd_round_scaled_bounds(&how, right, tau);
            fd_round_scaled(&how, rows);
            for (int i = 0; i < ROWS * WIDTH; i++)
                cr_expect(fabs((double)rows[i] - (double)kept[i]) <= tau[i] && tau[i] <= 1e-5,
                          "%d of type %d, scale %d: %g, kept %g, bound %g", i, types[t], scale, (double)rows[i],
                          (double)kept[i], tau[i]);
        }
}

Test(kept_rounded, rounding_to_blocks_gives_whole_steps_and_leaves_rows_with_nan) {
    float rows[2][256];
    for (int i = 0; i < 256; i++) rows[0][i] = rows[1][i] = (float)(i - 100) / 7.0f;
    rows[1][3] = NAN;
    fd_dot_round(FD_DOT_Q8_K, rows[0], 2, 256);
    const float step = 155.0f / 7.0f / 127.0f;
    for (int i = 0; i < 256; i++) {
        float x = (float)(i - 100) / 7.0f, q = rows[0][i] / step;
        cr_expect(fabsf(rows[0][i] - x) <= 0.5001f * step && fabsf(q - rintf(q)) < 1e-3f, "element %d: %g of %g", i,
                  (double)rows[0][i], (double)x);
        if (i != 3) cr_expect(rows[1][i] <= x && rows[1][i] >= x, "a row with NaN has no block");
    }
}

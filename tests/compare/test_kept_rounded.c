/* Products and caches that are kept in fewer bits: in every layer that may be how the engine is meant to be, in one it is a bug; and
 * the roundings that are tried as explanations. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "compare/bounds/dot_inputs.h"
#include "compare/diagnose/round_type.h"
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
static void in_e4m3(const fd_op_args *args) {
    int64_t width = fd_node_width(args->node);
    run_clean(args);
    fd_round_type_rows(FD_ROUND_E4M3, (float *)args->out + args->pos0 * width, args->n_pos, width);
}

static void in_int8(const fd_op_args *args) {
    int64_t n_head = args->node->shape[0], dim = args->node->shape[1];
    run_clean(args);
    fd_round_type_rows(FD_ROUND_INT8, (float *)args->out + args->pos0 * n_head * dim, args->n_pos * n_head, dim);
}

static void kept_in_bfloat16(const fd_op_args *args) {
    int64_t n = args->n_pos * fd_node_width(args->node);
    run_clean(args);
    for (int64_t i = 0; i < n; i++) ((float *)args->out)[i] = fd_bf16_to_f32(fd_f32_to_bf16(((float *)args->out)[i]));
}

/* In every layer it may be how the engine is meant to be, in one it is not. */
Test(kept_rounded, products_kept_in_16_bits_everywhere_are_no_bug_and_in_one_layer_are) {
    bench b = open_bench(models[0], (recording){0});
    for (int everywhere = 0; everywhere < 2; everywhere++) {
        fd_graph *faulty;
        fd_error err = {0};
        must(fd_graph_clone(b.graph, &faulty, &err), &err);
        for (int32_t i = 0; i < faulty->n_node; i++)
            if (ends_with(faulty->nodes[i].name, "attn_q") && (everywhere || faulty->nodes[i].layer == 2))
                faulty->nodes[i].override = kept_in_bfloat16;
        fd_verdict v = judged(&b, faulty, (recording){.emulated = "f32", .numerics = "unknown"});
        cr_expect_eq(v.status, everywhere ? FD_INCOMPLETE : FD_DIVERGED, "%d: %s", everywhere,
                     fd_verdict_status_name(v.status));
        if (everywhere) cr_expect(v.reasons.n > 0 && v.reasons.items[0].kind == FD_REASON_MIXED_CLASS);
        fd_verdict_free(&v);
        fd_graph_free(faulty);
    }
    close_model(&b);
}

/* By another exponential than the replay's: some values near the middle between two of binary16 go to the other. */
static void from_a_table(const fd_op_args *args) {
    const float *gate = args->in[0], *up = args->in[1];
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++) {
        float x = fd_dot_round_f16(gate[i]), slightly_more = x * (1 + 0x1p-23f);
        ((float *)args->out)[i] = fd_dot_round_f16(slightly_more / (1 + expf(-x))) * up[i];
    }
}

Test(kept_rounded, an_activation_from_a_table_in_16_bits_everywhere_is_no_bug_and_in_one_layer_is_named) {
    bench b = open_bench(models[0], (recording){0});
    for (int everywhere = 0; everywhere < 2; everywhere++) {
        fd_graph *faulty;
        fd_error err = {0};
        must(fd_graph_clone(b.graph, &faulty, &err), &err);
        for (int32_t i = 0; i < faulty->n_node; i++)
            if (ends_with(faulty->nodes[i].name, "ffn_act") && (everywhere || faulty->nodes[i].layer == 2))
                faulty->nodes[i].override = from_a_table;
        fd_verdict v = judged(&b, faulty, (recording){.emulated = "f32", .numerics = "unknown"});
        const fd_explanation *e = &v.diagnosis.explanation;
        cr_expect_eq(v.status, everywhere ? FD_INCOMPLETE : FD_DIVERGED, "%d: %s", everywhere,
                     fd_verdict_status_name(v.status));
        const char *said = everywhere && v.reasons.n ? v.reasons.items[0].text : e->remaining[0].summary;
        cr_expect(strstr(said, "as in a table") && (everywhere || e->named), "%d: %s", everywhere, said);
        fd_verdict_free(&v);
        fd_graph_free(faulty);
    }
    close_model(&b);
}

Test(kept_rounded, a_cache_kept_in_blocks_or_8_bits_everywhere_is_no_bug_and_in_one_layer_is) {
    static const struct {
        fd_override_fn how;
        const char *type;
    } kept[] = {
        {in_q8_0, "Q8_0"}, {in_q8_0_of_floats, "Q8_0"}, {in_e4m3, "e4m3"}, {in_int8, "int8 with one scale a head"}};
    bench b = open_bench(models[0], (recording){0});
    for (int i = 0; i < 8; i++) {
        bool everywhere = i % 2;
        fd_graph *faulty;
        fd_error err = {0};
        must(fd_graph_clone(b.graph, &faulty, &err), &err);
        for (int32_t k = 0; k < faulty->n_node; k++)
            if (fd_node_is_kv_cache(&faulty->nodes[k]) && (everywhere || faulty->nodes[k].layer == 2))
                faulty->nodes[k].override = kept[i / 2].how;
        recording how = {.emulated = "f32", .numerics = "unknown", .tensors = i < 2 ? fused : all};
        fd_verdict v = judged(&b, faulty, how);
        const fd_explanation *e = &v.diagnosis.explanation;
        cr_expect_eq(v.status, everywhere ? FD_INCOMPLETE : FD_DIVERGED, "%d: %s", i, fd_verdict_status_name(v.status));
        const char *said = everywhere && v.reasons.n ? v.reasons.items[0].text : e->remaining[0].summary;
        cr_expect(strstr(said, kept[i / 2].type), "%d: %s", i, said);
        fd_verdict_free(&v);
        fd_graph_free(faulty);
    }
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
        fd_round_type_rows(cases[i].type, &x, 1, 1);
        cr_expect_eq(x, cases[i].rounded, "%a gives %a", cases[i].x, x);
    }
}

Test(kept_rounded, int8_rows_have_a_scale_each) {
    float rows[2][3] = {{254, 2.9f, -5.2f}, {-1.27f, 0.014f, 0}};
    const float rounded[2][3] = {{254, 2, -6}, {-1.27f, 0.01f, 0}};
    fd_round_type_rows(FD_ROUND_INT8, rows[0], 2, 3);
    for (int i = 0; i < 6; i++)
        cr_expect_float_eq(rows[i / 3][i % 3], rounded[i / 3][i % 3], 1e-6, "%d: %g", i, (double)rows[i / 3][i % 3]);
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

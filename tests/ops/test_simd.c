/* Every twin gives the scalar definition's bits: each instruction set that this machine has, each format, awkward
 * lengths, any cut into ranges. The definitions compiled for those sets (ops without a twin) are held to the same. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>

#include "numerics/contract.h"
#include "tests/ops/op_case.h"

static void expect_scalar_bits(const op_case *c, const char *what) {
    static const int parts[] = {1, 4, 7, 0};
    case_expect_twins(c, FD_NUMERICS_EXACT, parts, what);
}

#define EXPECT_SCALAR_BITS(c) expect_scalar_bits(c, #c)

static const uint32_t float_types[] = {FD_F32, FD_F16, FD_BF16};
static const uint32_t block_types[] = {FD_Q8_0, FD_Q4_0, FD_Q5_0,  FD_Q4_K,   FD_Q6_K,  FD_Q4_1,
                                       FD_Q2_K, FD_Q3_K, FD_NVFP4, FD_IQ4_XS, FD_IQ1_M, FD_TQ1_0};
static const int32_t positions[] = {1, 2, 3, 4, 5, 9};
#define COUNT(a) (sizeof(a) / sizeof *(a))

Test(simd, matmul_equals_scalar_for_float_types_and_any_length) {
    static const int32_t lengths[] = {1, 7, 8, 15, 16, 17, 63, 64, 65, 100, 127, 129, 288, 300};
    for (size_t t = 0; t < COUNT(float_types); t++)
        for (size_t n = 0; n < COUNT(lengths); n++)
            for (size_t p = 0; p < COUNT(positions); p++) {
                char what[96];
                snprintf(what, sizeof what, "%s, %d inputs, %d positions", fd_dtype_get(float_types[t])->name,
                         lengths[n], positions[p]);
                expect_scalar_bits(case_matmul(float_types[t], lengths[n], 11, positions[p], n % 2 ? FD_F32 : -1),
                                   what);
            }
}

Test(simd, matmul_equals_scalar_for_block_types) {
    static const int32_t blocks[] = {1, 2, 3, 5, 8, 9};
    for (size_t t = 0; t < COUNT(block_types); t++)
        for (size_t n = 0; n < COUNT(blocks); n++)
            for (size_t p = 0; p < COUNT(positions); p++) {
                const fd_dtype_info *type = fd_dtype_get(block_types[t]);
                int32_t n_in = blocks[n] * type->block_elements;
                char what[96];
                snprintf(what, sizeof what, "%s, %d inputs, %d positions", type->name, n_in, positions[p]);
                expect_scalar_bits(case_matmul(block_types[t], n_in, 6, positions[p], n % 2 ? FD_F16 : -1), what);
            }
}

Test(simd, matmul_equals_scalar_for_rows_too_long_to_decode_together) {
    EXPECT_SCALAR_BITS(case_matmul(FD_F32, 40000, 3, 3, -1));
    EXPECT_SCALAR_BITS(case_matmul(FD_F16, 40000, 3, 3, -1));
    EXPECT_SCALAR_BITS(case_matmul(FD_Q8_0, 40000, 3, 3, -1));
    EXPECT_SCALAR_BITS(case_matmul(FD_Q6_K, 40192, 3, 3, -1));
    EXPECT_SCALAR_BITS(case_matmul(FD_Q4_K, 16384, 5, 1, -1));
    EXPECT_SCALAR_BITS(case_matmul(FD_Q4_K, 16384, 5, 5, -1));
}

Test(simd, matmul_equals_scalar_for_more_than_one_block_of_positions_and_piece_of_rows) {
    static const int32_t lengths[] = {1023, 1024, 1025, 2048, 3100};
    for (size_t n = 0; n < COUNT(lengths); n++) EXPECT_SCALAR_BITS(case_matmul(FD_F32, lengths[n], 9, 67, FD_F32));
}

Test(simd, matmul_in_binary64_equals_scalar) {
    static const int parts[] = {1, 4, 7, 0};
    static const int32_t lengths[] = {1, 7, 63, 64, 65, 100, 129, 511, 512, 513, 1100};
    static const int32_t blocks[] = {FD_Q8_0, FD_Q4_1, FD_Q4_K, FD_Q6_K};
    for (size_t p = 0; p < COUNT(positions); p++) {
        for (size_t n = 0; n < COUNT(lengths); n++)
            case_expect_f64_twins(
                case_matmul(n % 3 ? FD_F32 : FD_F16, lengths[n], 11, positions[p], n % 2 ? FD_F32 : -1), parts,
                "floats");
        for (size_t t = 0; t < COUNT(blocks); t++)
            case_expect_f64_twins(case_matmul((uint32_t)blocks[t], 768, 6, positions[p], FD_F16), parts, "blocks");
    }
    case_expect_f64_twins(case_matmul(FD_F32, 3100, 9, 67, -1), parts, "more than one block of positions");
    case_expect_f64_twins(case_matmul(FD_F32, 20000, 3, 9, -1), parts, "long rows");
    op_case *c = case_matmul(FD_F32, 100, 5, 3, -1); /* what stands behind a row must not come in */
    c->in[0][100] = INFINITY;
    c->in[0][250] = NAN;
    case_expect_f64_twins(c, parts, "NaN in one position");
}

Test(simd, norm_equals_scalar) {
    static const int32_t lengths[] = {1, 15, 16, 63, 64, 65, 255, 256, 257, 896, 1000};
    for (size_t n = 0; n < COUNT(lengths); n++) {
        EXPECT_SCALAR_BITS(case_norm(FD_F32, lengths[n], 3, 1e-5f));
        EXPECT_SCALAR_BITS(case_norm(FD_F16, lengths[n], 3, 1e-5f));
        EXPECT_SCALAR_BITS(case_head_norm(lengths[n], 5, 3));
    }
}

Test(simd, attention_equals_scalar) {
    static const struct {
        int32_t n_head, n_head_kv, head_dim, pos0, n_pos;
    } shapes[] = {{1, 1, 2, 0, 1},     {4, 2, 16, 0, 5},   {6, 6, 48, 3, 2},    {6, 2, 64, 62, 4},
                  {2, 1, 80, 64, 1},   {3, 1, 100, 0, 66}, {4, 4, 128, 127, 3}, {8, 4, 8, 0, 13},
                  {1, 1, 256, 200, 1}, {4, 2, 7, 30, 3},   {2, 2, 15, 0, 18},   {2, 1, 17, 7, 9},
                  {4, 1, 24, 40, 3},   {2, 2, 31, 0, 17},  {4, 2, 32, 64, 3},   {4, 2, 33, 64, 3}};
    static const fd_op ops[] = {FD_OP_ATTN_SCORES, FD_OP_ATTN_SOFTMAX, FD_OP_ATTN_MIX};
    for (size_t i = 0; i < COUNT(shapes); i++)
        for (size_t o = 0; o < COUNT(ops); o++) {
            char what[96];
            snprintf(what, sizeof what, "%s, shape %zu", fd_op_name(ops[o]), i);
            expect_scalar_bits(case_attention(ops[o], shapes[i].n_head, shapes[i].n_head_kv, shapes[i].head_dim,
                                              shapes[i].pos0, shapes[i].n_pos),
                               what);
        }
}

/* Every product is lost below binary32's smallest number, as -0; the partial sums that a short head has not are 0. */
Test(simd, scores_of_short_heads_add_the_zeros_of_the_tree) {
    static const int32_t lengths[] = {8, 16, 32, 64};
    for (size_t n = 0; n < COUNT(lengths); n++) {
        op_case *c = case_attention(FD_OP_ATTN_SCORES, 2, 1, lengths[n], 5, 2);
        for (int64_t i = 0; i < c->n_in[0]; i++) c->in[0][i] = -1e-30f;
        for (int64_t i = 0; i < c->n_in[1]; i++) c->in[1][i] = 1e-30f;
        expect_scalar_bits(c, "products of -0");
    }
}

Test(simd, attention_with_window_softcap_and_sinks_equals_scalar) {
    static const int32_t windows[] = {1, 2, 7, 64, 65, 1000};
    for (size_t i = 0; i < COUNT(windows); i++)
        for (int32_t n_pos = 1; n_pos <= 71; n_pos += 35) {
            op_case *c = case_attention(FD_OP_ATTN_SCORES, 4, 2, 40, 66, n_pos);
            c->nodes[2].window = windows[i];
            c->nodes[2].softcap = i % 2 ? 5.0f : 0.0f;
            EXPECT_SCALAR_BITS(c);
            c = case_attention(FD_OP_ATTN_SOFTMAX, 4, 2, 40, 66, n_pos);
            case_add_sinks(c, i % 2 ? FD_F32 : FD_F16);
            EXPECT_SCALAR_BITS(c);
        }
}

Test(simd, experts_equal_scalar) {
    static const int32_t lengths[] = {32, 64, 96, 288};
    for (size_t t = 0; t < COUNT(float_types) + 2; t++)
        for (size_t n = 0; n < COUNT(lengths); n++) {
            uint32_t type = t < COUNT(float_types) ? float_types[t] : block_types[t - COUNT(float_types)];
            EXPECT_SCALAR_BITS(case_expert_matmul(type, lengths[n], 11, 3, n % 2, n % 3 ? FD_F32 : -1));
        }
    EXPECT_SCALAR_BITS(case_expert_matmul(FD_Q4_K, 512, 5, 2, true, FD_F16));
    EXPECT_SCALAR_BITS(case_expert_matmul(FD_Q6_K, 40192, 2, 1, false, -1)); /* too long to decode together */
    EXPECT_SCALAR_BITS(case_expert_sum(97, 3));
    EXPECT_SCALAR_BITS(case_expert_weights(FD_GATING_NORMALISED, 1.0f, 9));
    EXPECT_SCALAR_BITS(case_top_k(9));
    EXPECT_SCALAR_BITS(case_unary(FD_OP_SOFTMAX, 100, 3));
}

Test(simd, experts_in_binary64_equal_scalar) {
    static const int parts[] = {1, 4, 7, 0};
    static const int32_t lengths[] = {32, 64, 96, 288, 1056};
    for (size_t t = 0; t < COUNT(float_types) + 2; t++)
        for (size_t n = 0; n < COUNT(lengths); n++) {
            uint32_t type = t < COUNT(float_types) ? float_types[t] : block_types[t - COUNT(float_types)];
            case_expect_f64_twins(
                case_expert_matmul(type, lengths[n], 11, 1 + 4 * (int32_t)n, n % 2, n % 3 ? FD_F32 : -1), parts,
                "experts");
        }
    case_expect_f64_twins(case_expert_matmul(FD_F16, 100, 5, 301, true, FD_F16), parts, "more than one block of items");
    case_expect_f64_twins(case_expert_matmul(FD_F32, 20000, 3, 9, false, -1), parts, "long rows");
}

Test(simd, gated_and_scaled_elements_equal_scalar) {
    EXPECT_SCALAR_BITS(case_elementwise(FD_OP_GELU_MUL, 301, 3));
    EXPECT_SCALAR_BITS(case_elementwise(FD_OP_SWIGLU_CLAMP, 301, 3));
    EXPECT_SCALAR_BITS(case_unary(FD_OP_SCALE, 301, 3));
    EXPECT_SCALAR_BITS(case_unary(FD_OP_SOFTCAP, 301, 3));
}

Test(simd, rope_embed_kv_write_and_elementwise_equal_scalar) {
    static const int32_t lengths[] = {1, 15, 16, 17, 33, 768};
    for (size_t n = 0; n < COUNT(lengths); n++) {
        EXPECT_SCALAR_BITS(case_elementwise(FD_OP_SILU_MUL, lengths[n], 3));
        EXPECT_SCALAR_BITS(case_elementwise(FD_OP_ADD, lengths[n], 3));
        EXPECT_SCALAR_BITS(case_embed(FD_F16, 9, lengths[n], 4));
    }
    EXPECT_SCALAR_BITS(case_embed(FD_Q8_0, 9, 288, 4));
    EXPECT_SCALAR_BITS(case_rope(FD_ROPE_INTERLEAVED, 48, 3, 64, 5, 4));
    EXPECT_SCALAR_BITS(case_rope(FD_ROPE_HALF, 64, 3, 64, 5, 4));
    EXPECT_SCALAR_BITS(case_kv_write(33, 2, 4, 9, 0));
}

Test(simd, exp_equals_scalar_over_its_whole_range) {
    /* gate = -x, so that silu's exp sees every exponent, both ends, subnormal results, infinities and NaN */
    op_case *c = case_elementwise(FD_OP_SILU_MUL, 4096, 64);
    for (int64_t i = 0; i < c->n_in[0]; i++) c->in[0][i] = fd_from_bits32((uint32_t)i * 16411u);
    float ends[] = {-88.72284f, -88.722846f,     103.97208f,       103.97207f, 87.33655f, 87.5f,      100.0f, -0.0f,
                    0.0f,       (float)INFINITY, (float)-INFINITY, (float)NAN, 0x1p-149f, -0x1p-149f, 89.0f,  -89.0f};
    for (size_t i = 0; i < COUNT(ends); i++) c->in[0][i] = ends[i];
    EXPECT_SCALAR_BITS(c);
}

Test(simd, special_values_equal_scalar) {
    static const float specials[] = {-0.0f,     (float)NAN, (float)INFINITY, (float)-INFINITY,
                                     0x1p-140f, 3e38f,      -0x1p-149f};
    for (size_t s = 0; s < COUNT(specials); s++)
        for (int32_t p = 1; p <= 5; p += 4) {
            op_case *c = case_matmul(FD_F32, 100, 5, p, -1);
            for (int64_t i = 0; i < c->n_in[0]; i += s + 1) c->in[0][i] = specials[s];
            EXPECT_SCALAR_BITS(c);
            c = case_attention(FD_OP_ATTN_SOFTMAX, 2, 1, 8, 70, p);
            for (int64_t i = 3; i < c->n_in[0]; i += 37) c->in[0][i] = specials[s];
            EXPECT_SCALAR_BITS(c);
            c = case_attention(FD_OP_ATTN_MIX, 2, 1, 24, 70, p);
            for (int64_t i = 3; i < c->n_in[1]; i += 37) c->in[1][i] = specials[s];
            EXPECT_SCALAR_BITS(c);
        }
}

Test(simd, a_partial_sum_of_minus_zero_survives_the_tail) {
    /* One product rounds to -0 and its lane gets no second element: an added +0 would turn it to +0, and the dot with
     * it. */
    for (int32_t n_pos = 1; n_pos <= 4; n_pos += 3) {
        op_case *c = case_matmul(FD_F32, 65, 4, n_pos, -1);
        for (int64_t i = 0; i < c->n_in[0]; i++) c->in[0][i] = -0x1p-100f;
        for (int64_t i = 0; i < 4 * 65; i++) ((float *)(uintptr_t)c->weights[0].data)[i] = 0x1p-100f;
        float *y = case_run_scalar(c);
        cr_expect_eq(fd_bits32(y[0]), 0x80000000u, "the case shows nothing: %a", (double)y[0]);
        EXPECT_SCALAR_BITS(c);
    }
}

/* ---- the gate can fail ---- */

Test(simd, one_ulp_is_noticed) {
    op_case *c = case_matmul(FD_F32, 288, 8, 2, -1);
    float *a = case_run_scalar(c), *b = case_run_scalar(c);
    b[9] = nextafterf(b[9], INFINITY);
    cr_expect_eq(bits_differ(a, b, c->n_out), 1);
    b[9] = a[9];
    b[3] = 0.0f;
    a[3] = -0.0f;
    cr_expect_eq(bits_differ(a, b, c->n_out), 1, "the sign of zero");
    b[3] = NAN;
    cr_expect_eq(bits_differ(a, b, c->n_out), 1, "NaN");
}

Test(simd, another_order_of_summation_is_noticed) {
    op_case *c = case_matmul(FD_F32, 288, 64, 1, -1);
    float *expected = case_run_scalar(c), *found = case_run_scalar(c);
    for (int64_t o = 0; o < 64; o++) {
        float a[32] = {0}; /* 32 partial sums in place of 64 */
        const float *w = (const float *)c->weights[0].data + o * 288;
        for (int k = 0; k < 288; k++) a[k % 32] = fmaf(w[k], c->in[0][k], a[k % 32]);
        for (int m = 32; m > 1; m /= 2)
            for (int i = 0; i < m / 2; i++) a[i] = a[2 * i] + a[2 * i + 1];
        found[o] = a[0];
    }
    cr_expect(bits_differ(found, expected, 64) > 30);
}

/* One matrix product of each class against the formula written down plainly in binary64: what is rounded, and that
 * nothing else is. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "model/gguf_writer/block_scales.h"
#include "model/gguf/quant.h"
#include "tests/common.h"
#include "tests/emulate/emulate_case.h"

enum { LLAMA, QWEN2 };

static void keep(const float *x, float *out, int64_t n) {
    memcpy(out, x, sizeof *x * (size_t)n);
}

static void as_f16(const float *x, float *out, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = fd_f16_to_f32(fd_f32_to_f16(x[i]));
}

static void as_bf16(const float *x, float *out, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = fd_bf16_to_f32(fd_f32_to_bf16(x[i]));
}

static void as_tf32(const float *x, float *out, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        int exponent = x[i] != 0 ? ilogb((double)x[i]) : 0;
        out[i] = (float)ldexp(nearbyint(ldexp((double)x[i], 10 - exponent)), exponent - 10);
    }
}

/* d = absmax / 127 kept in f16, q = x / d rounded half away from zero. */
static void as_q8_0(const float *x, float *out, int64_t n) {
    for (int64_t at = 0; at < n; at += 32) {
        float largest = 0;
        for (int i = 0; i < 32; i++) largest = fmaxf(largest, fabsf(x[at + i]));
        float d = largest / 127.0f, stored = fd_f16_to_f32(fd_f32_to_f16(d));
        for (int i = 0; i < 32; i++) out[at + i] = d > 0 ? stored * roundf(x[at + i] * (1.0f / d)) : 0;
    }
}

/* 256 to a scale in binary32, the element of largest magnitude becomes -127. */
static void as_q8_k(const float *x, float *out, int64_t n) {
    for (int64_t at = 0; at < n; at += 256) {
        int64_t most = at;
        for (int64_t i = at; i < at + 256; i++)
            if (fabsf(x[i]) > fabsf(x[most])) most = i;
        float inverse = -127.0f / x[most];
        for (int64_t i = at; i < at + 256; i++) out[i] = (1.0f / inverse) * fminf(127, nearbyintf(inverse * x[i]));
    }
}

typedef void (*transform)(const float *x, float *out, int64_t n);

typedef struct product_case {
    int model;
    uint32_t dtype; /* what the weight is replaced with; FD_DTYPE_LIMIT: nothing */
    const char *class_;
    transform weight, activation;
} product_case;

static const product_case cases[] = {
    {LLAMA, FD_DTYPE_LIMIT, "f32", keep, keep},
    {QWEN2, FD_DTYPE_LIMIT, "f32", keep, keep},
    {LLAMA, FD_DTYPE_LIMIT, "tf32", as_tf32, as_tf32},
    {QWEN2, FD_DTYPE_LIMIT, "tf32", as_tf32, as_tf32},
    {LLAMA, FD_DTYPE_LIMIT, "f16", as_f16, as_f16},
    {QWEN2, FD_DTYPE_LIMIT, "f16", as_f16, as_f16},
    {LLAMA, FD_DTYPE_LIMIT, "bf16", as_bf16, as_bf16},
    {QWEN2, FD_DTYPE_LIMIT, "bf16", as_bf16, as_bf16},
    {LLAMA, FD_DTYPE_LIMIT, "q8", keep, as_q8_0},
    {LLAMA, FD_DTYPE_LIMIT, "llama-cpu", keep, as_q8_0},
    {LLAMA, FD_Q4_0, "q8", keep, as_q8_0},
    {LLAMA, FD_Q4_K, "q8", keep, as_q8_k},
    {LLAMA, FD_Q6_K, "q8", keep, as_q8_k},
    {LLAMA, FD_Q5_0, "q8", keep, as_q8_0},
    {LLAMA, FD_Q5_1, "q8", keep, as_q8_0},
    {LLAMA, FD_MXFP4, "q8", keep, as_q8_0},
    {LLAMA, FD_NVFP4, "q8", keep, as_q8_0},
    {LLAMA, FD_Q2_K, "q8", keep, as_q8_k},
    {LLAMA, FD_IQ3_S, "q8", keep, as_q8_k},
    {LLAMA, FD_TQ2_0, "q8", keep, as_q8_k},
    {QWEN2, FD_DTYPE_LIMIT, "q8", keep, as_f16},
    {QWEN2, FD_BF16, "q8", keep, as_bf16},
    {QWEN2, FD_F32, "q8", keep, keep},
    {LLAMA, FD_DTYPE_LIMIT, "f16kv", keep, keep},
};

/* Another weight for blk.0.attn_q, in a clone. Blocks that nothing encodes are random bits with sensible scales. */
static void replace(fd_graph *graph, uint32_t dtype) {
    fd_node *node = &graph->nodes[fd_graph_find(graph, "blk.0.attn_q")];
    fd_weight *w = &graph->weights[node->weight[0]];
    int64_t n = w->n_row * w->n_col;
    uint64_t bytes = (uint64_t)(w->n_row * fd_dtype_row_bytes(dtype, w->n_col));
    unsigned char *data = kept(malloc(bytes));
    if (fd_can_quantize(dtype)) {
        float *values = kept(malloc(sizeof *values * (size_t)n));
        fd_dequantize_row(w->dtype, w->data, values, n);
        fd_quantize_row(dtype, values, data, n);
    } else {
        uint64_t seed = 11; /* Knuth's MMIX */
        for (uint64_t i = 0; i < bytes; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            data[i] = (unsigned char)(seed >> 40);
        }
        blocks_set_deviation(dtype, data, n / fd_dtype_get(dtype)->block_elements, 0.05f);
    }
    *w = (fd_weight){.dtype = dtype, .n_row = w->n_row, .n_col = w->n_col, .data = data, .bytes = bytes};
}

/* The largest |y − formula| in units of what binary32 sums may be off, 2^-24·(n + 2)·Σ|w x|. NaN stays NaN. */
static double worst(const fd_graph *graph, const float *x, const float *y, int32_t n_pos, transform weight,
                    transform activation) {
    const fd_node *node = &graph->nodes[fd_graph_find(graph, "blk.0.attn_q")];
    const fd_weight *w = &graph->weights[node->weight[0]];
    int64_t n = w->n_col;
    float *row = kept(malloc(sizeof *row * (size_t)n)), *xr = kept(malloc(sizeof *xr * (size_t)n));
    float *bias = kept(calloc((size_t)w->n_row, sizeof *bias));
    double most = 0;
    if (node->weight[1] >= 0) {
        const fd_weight *b = &graph->weights[node->weight[1]];
        fd_dequantize_row(b->dtype, b->data, bias, w->n_row);
    }
    for (int32_t p = 0; p < n_pos; p++) {
        activation(x + p * n, xr, n);
        for (int64_t o = 0; o < w->n_row; o++) {
            double sum = (double)bias[o], magnitude = fabs(sum);
            fd_dequantize_row(w->dtype, (const char *)w->data + o * fd_dtype_row_bytes(w->dtype, n), row, n);
            weight(row, row, n);
            for (int64_t i = 0; i < n; i++) {
                sum += (double)row[i] * (double)xr[i];
                magnitude += fabs((double)row[i] * (double)xr[i]);
            }
            double off = fabs((double)y[p * w->n_row + o] - sum) / (0x1p-24 * (double)(n + 2) * magnitude);
            if (isnan(off) || off > most) most = off; /* a NaN stays: nothing is larger */
        }
    }
    return most;
}

Test(emulate_products, equal_the_formula_and_no_other) {
    enum { POSITIONS = 3 };
    static const transform others[] = {keep, as_f16, as_bf16, as_tf32, as_q8_0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const product_case *k = &cases[i];
        emulate_case c = case_open(k->model);
        fd_graph *graph;
        fd_error err = {0};
        cr_assert_eq(fd_graph_clone(c.graph, &graph, &err), FD_OK);
        if (k->dtype != FD_DTYPE_LIMIT) replace(graph, k->dtype);
        float *x = case_node(&c, graph, k->class_, POSITIONS, "blk.0.attn_norm");
        float *y = case_node(&c, graph, k->class_, POSITIONS, "blk.0.attn_q");
        double own = worst(graph, x, y, POSITIONS, k->weight, k->activation);
        cr_expect(own <= 1, "case %zu, %s: %.3g times the bound", i, k->class_, own);
        for (size_t o = 0; o < sizeof others / sizeof *others; o++) {
            bool f16_and_tf32 = (others[o] == as_f16 || others[o] == as_tf32) &&
                                (k->activation == as_f16 || k->activation == as_tf32); /* equal from 2^-14 on */
            if (others[o] == k->activation || f16_and_tf32) continue;
            double other = worst(graph, x, y, POSITIONS, k->weight, others[o]);
            cr_expect(other > 1, "case %zu, %s: activations of another type fit too (%zu)", i, k->class_, o);
        }
        y[7] = NAN;
        cr_expect_not(worst(graph, x, y, POSITIONS, k->weight, k->activation) <= 1, "NaN passes");
        fd_graph_free(graph);
    }
}

/* Elements that rounding would still change. */
static int64_t not_rounded(const float *x, int64_t n, transform round) {
    float *y = kept(malloc(sizeof *y * (size_t)n));
    round(x, y, n);
    return bits_apart(x, y, n);
}

Test(emulate_products, cache_rows_are_what_the_class_keeps) {
    emulate_case c = case_open(LLAMA);
    int64_t n = 5 * fd_node_row_stride(&c.graph->nodes[fd_graph_find(c.graph, "blk.2.cache_k")], 5);
    float *written = case_node(&c, c.graph, "f16kv", 5, "blk.2.attn_k_rope");
    float *cached = case_node(&c, c.graph, "f16kv", 5, "blk.2.cache_k");
    cr_expect_gt(not_rounded(written, n, as_f16), n / 2);
    as_f16(written, written, n);
    cr_expect_eq(bits_apart(written, cached, n), 0);
}

Test(emulate_products, every_tensor_of_a_16_bit_engine_has_16_bits) {
    static const struct {
        const char *class_;
        transform round;
    } engines[] = {{"hf-bf16", as_bf16}, {"hf-f16", as_f16}};
    emulate_case c = case_open(QWEN2);
    for (int e = 0; e < 2; e++)
        for (int32_t i = 0; i < c.graph->n_node; i++) {
            const fd_node *node = &c.graph->nodes[i];
            int64_t n = 4 * fd_node_row_stride(node, 4);
            float *x = case_node(&c, c.graph, engines[e].class_, 4, node->name);
            cr_expect_eq(not_rounded(x, n, engines[e].round), 0, "%s %s", engines[e].class_, node->name);
        }
    float *wide = case_node(&c, c.graph, "bf16", 4, "logits");
    cr_expect_gt(not_rounded(wide, 4 * c.graph->hparams.n_vocab, as_bf16), 0);
}

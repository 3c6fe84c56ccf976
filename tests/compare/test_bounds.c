/* Every op's bound in every candidate class: an engine that rounds so, in whatever order it sums, stays within it; the
 * smallest faults worth finding do not. The engine here is made of real roundings in random orders. */
#include <criterion/criterion.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/bounds.h"
#include "model/quant.h"
#include "numerics/contract.h"
#include "reference_cpu/reference.h"
#include "tests/ops/op_case.h"

static uint64_t state = 1;
static uint64_t draw(void) { /* SplitMix64 */
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* ---- the engine ---- */

static double kernel_u(const fd_numerics_class *c) { /* inside a kernel binary32, stored between two kernels */
    return c->u_op < 0x1p-24 ? c->u_op : 0x1p-24;
}

/* Rounds as a type of that unit roundoff does; 2^-10 is TF32 cut off, and 0 and 2^-53 leave x alone. */
static double q(double x, double u) {
    if (u == 0x1p-24) return (double)(float)x;
    if (u == 0x1p-11) return (double)fd_f16_to_f32(fd_f32_to_f16((float)x));
    if (u == 0x1p-8) return (double)fd_bf16_to_f32(fd_f32_to_bf16((float)x));
    if (u == 0x1p-10) return (double)fd_from_bits32(fd_bits32((float)x) & ~0x1fffu);
    return x;
}

static void shuffle(int32_t *order, int32_t n) {
    for (int32_t i = 0; i < n; i++) order[i] = i;
    if (draw() % 4 == 0) return; /* the natural order is a likely one */
    for (int32_t i = n - 1; i > 0; i--) {
        int32_t j = (int32_t)(draw() % (uint64_t)(i + 1)), other = order[i];
        order[i] = order[j];
        order[j] = other;
    }
}

/* Σ a·b in a random order, in one chain or four. */
static double sum_products(const double *a, const double *b, int32_t n, double u_acc) {
    int32_t order[1024], n_chain = draw() % 2 ? 4 : 1;
    double chain[4] = {0};
    shuffle(order, n);
    for (int32_t i = 0; i < n; i++) {
        double *acc = &chain[i % n_chain];
        *acc = q(*acc + a[order[i]] * b[order[i]], u_acc);
    }
    for (int32_t k = 1; k < n_chain; k++) chain[0] = q(chain[0] + chain[k], u_acc);
    return chain[0];
}

static void matmul_inputs(const fd_numerics_class *c, uint32_t dtype, const double *x, double *out, int32_t n) {
    if (c->q8_activations && fd_dtype_get(dtype)->is_quantised) {
        float narrow[1024];
        char blocks[2048];
        for (int32_t k = 0; k < n; k++) narrow[k] = (float)x[k];
        fd_quantize_row(FD_Q8_0, narrow, blocks, n);
        fd_dequantize_row(FD_Q8_0, blocks, narrow, n);
        for (int32_t k = 0; k < n; k++) out[k] = (double)narrow[k];
        return;
    }
    double u = c->q8_activations && dtype != FD_F32 ? fd_dtype_roundoff(dtype) : c->u_in;
    for (int32_t k = 0; k < n; k++) out[k] = q(x[k], u);
}

static void run_matmul(const fd_op_args *a, const fd_numerics_class *c, double *out) {
    const fd_weight *w = a->weight[0], *bias = a->weight[1];
    int32_t n = (int32_t)w->n_col;
    float row[1024], b[1024] = {0};
    double wide[1024], x[1024];
    double u_w = c->q8_activations && w->dtype != FD_F32 ? 0 : c->u_in;
    double u_acc = w->dtype == FD_F16 ? fmax(c->u_acc, c->u_acc_f16) : c->u_acc;
    if (bias) fd_dequantize_row(bias->dtype, bias->data, b, bias->n_col);
    for (int64_t r = 0; r < a->n_pos; r++) {
        matmul_inputs(c, w->dtype, (const double *)a->in[0] + r * n, x, n);
        for (int64_t o = 0; o < w->n_row; o++) {
            fd_dequantize_row(w->dtype, (const char *)w->data + o * fd_dtype_row_bytes(w->dtype, n), row, n);
            for (int32_t k = 0; k < n; k++) wide[k] = q((double)row[k], u_w);
            double y = q(sum_products(wide, x, n, u_acc), c->u_out);
            out[r * w->n_row + o] = bias ? q(y + q((double)b[o], c->u_out), c->u_out) : y;
        }
    }
}

static void run_norm(const fd_op_args *a, const fd_numerics_class *c, double *out) {
    int64_t n = a->weight[0]->n_col;
    float w[1024];
    fd_dequantize_row(a->weight[0]->dtype, a->weight[0]->data, w, n);
    double u_sum = kernel_u(c);
    for (int64_t r = 0; r < a->n_pos; r++) {
        const double *x = (const double *)a->in[0] + r * n;
        double ss = sum_products(x, x, (int32_t)n, u_sum), scale = q(1 / sqrt(ss / (double)n + a->node->eps), u_sum);
        for (int64_t i = 0; i < n; i++)
            out[r * n + i] = q(q(x[i] * scale, c->u_op) * q((double)w[i], c->u_out), c->u_out);
    }
}

static void run_rope(const fd_op_args *a, const fd_numerics_class *c, double *out) {
    const fd_node *node = a->node;
    int32_t half = node->rope.n_rot / 2, d = node->shape[1];
    memcpy(out, a->in[0], sizeof *out * (size_t)((int64_t)a->n_pos * node->shape[0] * d));
    for (int64_t item = 0; item < (int64_t)a->n_pos * node->shape[0]; item++) {
        int64_t pos = a->pos0 + item / node->shape[0];
        for (int32_t i = 0; i < half; i++) {
            /* the angle in binary32, its frequency multiplied up pair by pair */
            float frequency = 1, step = (float)pow(node->rope.base, -2.0 / node->rope.n_rot);
            for (int32_t k = 0; k < i; k++) frequency = frequency * step;
            double angle = c->u_op < 0x1p-24 ? (double)pos * pow(node->rope.base, -2.0 * i / node->rope.n_rot)
                                             : (double)((float)pos * frequency);
            bool pairs = node->rope.pairing == FD_ROPE_INTERLEAVED;
            int64_t first = item * d + (pairs ? 2 * i : i), second = pairs ? first + 1 : first + half;
            double x = ((const double *)a->in[0])[first], y = ((const double *)a->in[0])[second];
            double co = q(cos(angle), c->u_op), si = q(sin(angle), c->u_op), fast = 0x1p-23 * fmax(angle, 6.28);
            if (c->fast_math) co += draw() % 2 ? fast : -fast, si += draw() % 2 ? fast : -fast;
            out[first] = q(q(x * co, c->u_op) - q(y * si, c->u_op), c->u_out);
            out[second] = q(q(x * si, c->u_op) + q(y * co, c->u_op), c->u_out);
        }
    }
}

/* tanhf is right to an ulp and a half or so in every libm. */
static double capped(double x, double cap, const fd_numerics_class *c) {
    double v = q(x / cap, c->u_op), t = tanh(v);
    return q(q(t + t * kernel_u(c) * (draw() % 2 ? 1 : -1), c->u_op) * cap, c->u_out);
}

static void run_scores(const fd_op_args *a, const fd_numerics_class *c, double *out) {
    const fd_node *nodes = a->graph->nodes;
    int32_t n_head = nodes[0].shape[0], d = nodes[0].shape[1], n_kv_head = nodes[1].shape[0];
    for (int64_t item = 0; item < (int64_t)a->n_pos * n_head; item++)
        for (int64_t t = 0; t < a->n_kv; t++) {
            double x[256], k[256];
            for (int32_t i = 0; i < d; i++) {
                x[i] = q(((const double *)a->in[0])[item * d + i], c->u_attn);
                double cached =
                    ((const double *)a->in[1])[(t * n_kv_head + item % n_head / (n_head / n_kv_head)) * d + i];
                k[i] = q(q(cached, c->u_kv), c->u_attn);
            }
            int32_t own = a->pos0 + (int32_t)(item / n_head);
            bool seen = t <= own && t >= fd_node_first_seen(a->node, own);
            double s = q(q(sum_products(x, k, d, c->u_acc), c->u_op) * (double)a->node->scale, c->u_out);
            if (a->node->softcap > 0) s = capped(s, (double)a->node->softcap, c);
            out[item * a->n_kv + t] = seen ? s : -INFINITY;
        }
}

static void run_softmax(const fd_op_args *a, const fd_numerics_class *c, double *out) {
    int32_t n_head = a->node->shape[0];
    for (int64_t item = 0; item < (int64_t)a->n_pos * n_head; item++) {
        int64_t n = a->pos0 + item / n_head + 1;
        const double *s = (const double *)a->in[0] + item * a->n_kv;
        double max = -INFINITY, sum = 0, u_sum = kernel_u(c), sink = -INFINITY;
        if (a->weight[0]) sink = q((double)((const float *)a->weight[0]->data)[item % n_head], c->u_out);
        max = sink;
        for (int64_t t = 0; t < n; t++) max = fmax(max, s[t]);
        if (a->weight[0]) sum = q(exp(q(sink - max, c->u_op)), c->u_op);
        for (int64_t t = 0; t < n; t++) sum = q(sum + q(exp(q(s[t] - max, c->u_op)), c->u_op), u_sum);
        for (int64_t t = 0; t < a->n_kv; t++)
            out[item * a->n_kv + t] = t < n ? q(q(exp(q(s[t] - max, c->u_op)), c->u_op) / sum, c->u_out) : 0;
    }
}

static void run_mix(const fd_op_args *a, const fd_numerics_class *c, double *out) {
    const fd_node *v_node = &a->graph->nodes[1];
    int32_t n_head = a->node->shape[0], d = a->node->shape[1], n_kv_head = v_node->shape[0];
    for (int64_t item = 0; item < (int64_t)a->n_pos * n_head; item++)
        for (int32_t i = 0; i < d; i++) {
            double p[1024], v[1024];
            int32_t n = (int32_t)(a->pos0 + item / n_head + 1);
            for (int64_t t = 0; t < n; t++) {
                p[t] = q(((const double *)a->in[0])[item * a->n_kv + t], c->u_attn);
                double cached =
                    ((const double *)a->in[1])[(t * n_kv_head + item % n_head / (n_head / n_kv_head)) * d + i];
                v[t] = q(q(cached, c->u_kv), c->u_attn);
            }
            out[item * d + i] = q(sum_products(p, v, n, fmax(c->u_acc, c->u_mix)), c->u_out);
        }
}

/* The cancelling form; llama.cpp's CPU takes it from a table of f16. */
static double gelu(double g, const fd_numerics_class *c) {
    double u = kernel_u(c);
    if (c->q8_activations) g = q(g, 0x1p-11);
    double v = q(0.7978845608028654 * q(g + q(0.044715 * q(g * q(g * g, u), u), u), u), u);
    double y = q(0.5 * g * q(1 + q(tanh(v), u), u), u);
    return c->q8_activations ? q(y, 0x1p-11) : y;
}

static double clamped(double g, double up, const fd_node *node, const fd_numerics_class *c) {
    double limit = (double)node->limit, s;
    g = g > limit ? limit : g;
    up = up > limit ? limit : up < -limit ? -limit : up;
    s = q(1 / (1 + exp(-q((double)node->slope * g, c->u_op))), c->u_op);
    return q(q(g * s, c->u_op) * q(up + 1, c->u_op), c->u_out);
}

static void softmax_of(const double *x, double *out, int64_t n, const fd_numerics_class *c) {
    double max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++) max = fmax(max, x[i]);
    for (int64_t i = 0; i < n; i++) sum = q(sum + q(exp(q(x[i] - max, c->u_op)), c->u_op), kernel_u(c));
    for (int64_t i = 0; i < n; i++) out[i] = q(q(exp(q(x[i] - max, c->u_op)), c->u_op) / sum, c->u_out);
}

static void run_top_k(const fd_op_args *a, double *out) {
    int32_t n = a->graph->nodes[0].shape[0], k = a->node->shape[0];
    for (int32_t row = 0; row < a->n_pos; row++) {
        double *id = out + row * k;
        const double *x = (const double *)a->in[0] + row * n;
        for (int32_t r = 0; r < k; r++) {
            id[r] = -1;
            for (int32_t i = 0; i < n; i++) {
                bool taken = false;
                for (int32_t m = 0; m < r; m++) taken = taken || id[m] == i;
                if (!taken && (id[r] < 0 || x[i] > x[(int32_t)id[r]])) id[r] = i;
            }
        }
    }
}

static void run_expert_weights(const fd_op_args *a, const fd_numerics_class *c, double *out) {
    int32_t n = a->graph->nodes[0].shape[0], k = a->node->shape[0];
    for (int32_t row = 0; row < a->n_pos; row++) {
        double chosen[8], *w = out + row * k, sum = 0;
        for (int32_t r = 0; r < k; r++)
            chosen[r] = ((const double *)a->in[0])[row * n + (int32_t)((const double *)a->in[1])[row * k + r]];
        for (int32_t r = 0; r < k; r++) sum = q(sum + chosen[r], c->u_op);
        if (a->node->gating == FD_GATING_SOFTMAX) softmax_of(chosen, w, k, c);
        for (int32_t r = 0; r < k; r++) {
            if (a->node->gating == FD_GATING_NORMALISED) w[r] = q(chosen[r] / sum, c->u_out);
            if (a->node->gating == FD_GATING_GATHER) w[r] = chosen[r];
            w[r] = q(w[r] * (double)a->node->scale, c->u_out);
        }
    }
}

static void run_expert_matmul(const fd_op_args *a, const fd_numerics_class *c, double *out) {
    int64_t n = a->weight[0]->n_col, k = a->node->shape[0], n_out = a->node->shape[1];
    bool own_rows = a->graph->nodes[0].n_dim == 2;
    for (int64_t item = 0; item < a->n_pos * k; item++) {
        int64_t expert = (int64_t)((const double *)a->in[1])[item];
        fd_weight w = *a->weight[0], b = a->weight[1] ? *a->weight[1] : (fd_weight){0};
        w.n_row = n_out;
        w.data = (const char *)w.data + expert * n_out * fd_dtype_row_bytes(w.dtype, n);
        if (a->weight[1]) b.data = (const char *)b.data + expert * fd_dtype_row_bytes(b.dtype, n_out);
        fd_op_args one = *a;
        one.n_pos = 1;
        one.weight[0] = &w;
        one.weight[1] = a->weight[1] ? &b : NULL;
        one.in[0] = (const double *)a->in[0] + (own_rows ? item : item / k) * n;
        run_matmul(&one, c, out + item * n_out);
    }
}

static void run_expert_sum(const fd_op_args *a, const fd_numerics_class *c, double *out) {
    int64_t n = a->node->shape[0], k = a->graph->nodes[1].shape[0];
    for (int64_t i = 0; i < a->n_pos * n; i++) {
        int64_t row = i / n;
        double sum = 0;
        for (int64_t r = 0; r < k; r++) {
            double x = ((const double *)a->in[0])[(row * k + r) * n + i % n],
                   w = ((const double *)a->in[1])[row * k + r];
            sum = q(sum + q(w * x, c->u_op), c->u_op);
        }
        out[i] = q(sum, c->u_out);
    }
}

static void run_rest(const fd_op_args *a, const fd_numerics_class *c, int64_t n, const double *exact, double *out) {
    for (int64_t i = 0; i < n; i++) {
        const double *x = a->in[0], *y = a->in[1];
        double g = x ? x[i] : 0, u;
        switch (a->node->op) {
        case FD_OP_SILU_MUL:
            u = kernel_u(c);
            out[i] = q(q(g / q(1 + q(exp(-g), u), u), c->u_op) * y[i], c->u_out);
            break;
        case FD_OP_GELU_MUL: out[i] = q(q(gelu(g, c), c->u_op) * y[i], c->u_out); break;
        case FD_OP_SWIGLU_CLAMP: out[i] = clamped(g, y[i], a->node, c); break;
        case FD_OP_SCALE: out[i] = q(g * q((double)a->node->scale, c->u_out), c->u_out); break;
        case FD_OP_SOFTCAP: out[i] = capped(g, (double)a->node->softcap, c); break;
        case FD_OP_ADD: out[i] = q(g + y[i], c->u_out); break;
        case FD_OP_KV_WRITE: out[i] = q(g, c->u_kv); break;
        default: out[i] = q(exact[i], c->u_out); /* EMBED */
        }
    }
}

static void engine(const fd_op_args *a, const fd_numerics_class *c, int64_t n, const double *exact, double *out) {
    const fd_numerics_class inside = fd_numerics_class_inside_attention(c);
    switch (a->node->op) {
    case FD_OP_MATMUL: run_matmul(a, c, out); return;
    case FD_OP_RMS_NORM: run_norm(a, c, out); return;
    case FD_OP_ROPE: run_rope(a, c, out); return;
    case FD_OP_ATTN_SCORES: run_scores(a, &inside, out); return;
    case FD_OP_ATTN_SOFTMAX: run_softmax(a, &inside, out); return;
    case FD_OP_ATTN_MIX: run_mix(a, c, out); return;
    case FD_OP_SOFTMAX:
        for (int64_t row = 0; row < a->n_pos; row++)
            softmax_of((const double *)a->in[0] + row * a->node->shape[0], out + row * a->node->shape[0],
                       a->node->shape[0], c);
        return;
    case FD_OP_TOP_K: run_top_k(a, out); return;
    case FD_OP_EXPERT_WEIGHTS: run_expert_weights(a, c, out); return;
    case FD_OP_EXPERT_MATMUL: run_expert_matmul(a, c, out); return;
    case FD_OP_EXPERT_SUM: run_expert_sum(a, c, out); return;
    default: run_rest(a, c, n, exact, out);
    }
}

/* ---- cases ---- */

/* A case with binary64 inputs, as replay has them; in classes of 16-bit tensors the inputs have that form. */
typedef struct trial {
    op_case *c;
    fd_op_args args;
    double *in[FD_MAX_INPUTS], *tables, *y, *rows, *candidate, *tau;
    int64_t n, width; /* elements, and of a head or a row */
} trial;

/* Every other one with a softcap and a window, or with sinks. */
static op_case *case_of_attention(fd_op op, int kind) {
    op_case *c = case_attention(op, 4, 2, 64, kind * 9, 4);
    if (kind % 2 == 0) return c;
    if (op == FD_OP_ATTN_SOFTMAX) case_add_sinks(c, FD_F32);
    c->nodes[2].softcap = 50.0f;
    c->nodes[2].window = 5;
    return c;
}

static op_case *make_case(fd_op op, int kind) {
    switch (op) {
    case FD_OP_EMBED: return case_embed(kind % 2 ? FD_F16 : FD_Q8_0, 50, 128, 5);
    case FD_OP_RMS_NORM: return case_norm(FD_F32, 256, 3, 1e-5f);
    case FD_OP_MATMUL:
        return case_matmul(kind % 3 == 0   ? FD_Q8_0
                           : kind % 3 == 1 ? FD_F16
                                           : FD_F32,
                           256, 40, 3, kind % 2 ? FD_F32 : -1);
    case FD_OP_ROPE: return case_rope(kind % 2 ? FD_ROPE_HALF : FD_ROPE_INTERLEAVED, 32, 4, 40, kind * 37, 3);
    case FD_OP_KV_WRITE: return case_kv_write(64, 0, 5, 5, 0);
    case FD_OP_ATTN_SCORES:
    case FD_OP_ATTN_SOFTMAX:
    case FD_OP_ATTN_MIX: return case_of_attention(op, kind);
    case FD_OP_SCALE:
    case FD_OP_SOFTCAP: return case_unary(op, 200, 3);
    case FD_OP_SOFTMAX: return case_unary(op, 60, 3);
    case FD_OP_TOP_K: return case_top_k(6);
    case FD_OP_EXPERT_WEIGHTS: return case_expert_weights((fd_gating)(kind % 3), kind % 2 ? 2.5f : 1.0f, 5);
    case FD_OP_EXPERT_MATMUL:
        return case_expert_matmul(kind % 2 ? FD_F16 : FD_Q8_0, 256, 12, 2, kind % 3 == 0, kind % 4 ? FD_F32 : -1);
    case FD_OP_EXPERT_SUM: return case_expert_sum(120, 2);
    default: return case_elementwise(op, 200, 3);
    }
}

static trial open_trial(fd_op op, const fd_numerics_class *class_, int kind) {
    trial t = {.c = make_case(op, kind)};
    t.args = t.c->args;
    for (int i = 0; i < FD_MAX_INPUTS; i++) {
        if (!t.c->in[i]) continue;
        t.in[i] = malloc(sizeof(double) * (size_t)t.c->n_in[i]);
        for (int64_t k = 0; k < t.c->n_in[i]; k++) {
            double spread = exp((double)(draw() % 6)) / 20; /* magnitudes over two decades, as activations have */
            bool as_is = op == FD_OP_ATTN_SOFTMAX || op == FD_OP_ATTN_MIX || op == FD_OP_SOFTMAX ||
                         (i == 1 && (op == FD_OP_EXPERT_WEIGHTS || op == FD_OP_EXPERT_MATMUL));
            t.in[i][k] = q((double)(float)(t.c->in[i][k] * (as_is ? 1 : spread)), class_->u_out);
        }
        t.args.in[i] = t.in[i];
        if (i == 1 && (op == FD_OP_ATTN_SCORES || op == FD_OP_ATTN_MIX))
            t.c->nodes[1].op = FD_OP_KV_WRITE; /* a cache, all positions from 0 */
        else
            t.c->nodes[i].op = FD_OP_ADD;
    }
    if (op == FD_OP_ROPE) {
        int64_t n = (int64_t)t.args.n_kv * t.c->nodes[2].rope.n_rot / 2;
        t.tables = malloc(2 * sizeof(double) * (size_t)n);
        fd_rope_table_f64(&t.c->nodes[2].rope, NULL, 0, t.args.n_kv, t.tables, t.tables + n);
        t.args.rope_cos = t.tables;
        t.args.rope_sin = t.tables + n;
    }
    t.n = fd_node_row_stride(t.args.node, t.args.n_kv) * t.args.n_pos;
    t.width = t.args.node->over_kv      ? t.args.n_kv
              : t.args.node->n_dim == 2 ? t.args.node->shape[1]
                                        : t.args.node->shape[0];
    t.y = malloc(sizeof(double) * (size_t)t.n);
    t.candidate = malloc(sizeof(double) * (size_t)t.n);
    t.tau = malloc(sizeof(double) * (size_t)t.n);
    t.args.out = t.y;
    fd_reference_op(FD_NUMERICS_F64, &t.args);
    engine(&t.args, class_, t.n, t.y, t.candidate);
    return t;
}

static void close_trial(trial *t) {
    for (int i = 0; i < FD_MAX_INPUTS; i++) free(t->in[i]);
    free(t->tables);
    free(t->y);
    free(t->candidate);
    free(t->tau);
    case_free(t->c);
}

static double largest_z(trial *t, const fd_numerics_class *class_) {
    fd_bound_args args = {
        .op = &t->args, .candidate = t->candidate, .stored = FD_F64, .numerics = class_, .n_output = 1e6};
    fd_error err = {0};
    double most = 0;
    cr_assert_eq(fd_bound(&args, t->tau, &err), FD_OK, "%s", err.message);
    for (int64_t i = 0; i < t->n; i++) {
        double z = fd_bound_z(t->candidate[i], t->y[i], t->tau[i]);
        if (!(z <= most)) most = z;
    }
    return most;
}

/* ---- within ---- */

enum { TRIALS = 12 };

Test(bounds, rounding_of_every_class_stays_within_in_every_op) {
    for (int32_t i = 1; fd_numerics_class_at(i); i++)
        for (fd_op op = 0; op < FD_OP_COUNT; op++) {
            const fd_numerics_class *class_ = fd_numerics_class_at(i);
            double most = 0;
            for (int kind = 0; kind < TRIALS; kind++) {
                trial t = open_trial(op, class_, kind);
                double z = largest_z(&t, class_);
                cr_expect(z <= 1, "%s in %s, trial %d: z %.3g", fd_op_name(op), class_->name, kind, z);
                if (!(z <= most)) most = z;
                close_trial(&t);
            }
            if (getenv("FD_TEST_VERBOSE")) fprintf(stderr, "%-10s %-13s z %.3g\n", class_->name, fd_op_name(op), most);
        }
}

/* ---- beyond ---- */

typedef void (*fault_fn)(trial *t, int64_t at);

static void one_percent_off(trial *t, int64_t at) {
    t->candidate[at] *= 1.01;
}
static void head_scaled(trial *t, int64_t at) {
    for (int64_t i = at / t->width * t->width, end = i + t->width; i < end; i++) t->candidate[i] *= 1.01;
}
/* One block of 32 of the element's weight row read as zeros. */
static void block_zeroed(trial *t, int64_t at) {
    const fd_weight *w = t->args.weight[0];
    int64_t row = at / w->n_row, o = at % w->n_row;
    float values[1024];
    fd_dequantize_row(w->dtype, (const char *)w->data + o * fd_dtype_row_bytes(w->dtype, w->n_col), values, w->n_col);
    for (int64_t k = 64; k < 96; k++) t->candidate[at] -= (double)values[k] * t->in[0][row * w->n_col + k];
}
/* An expert that is not among the chosen. */
static void another_expert(trial *t, int64_t at) {
    int64_t row = at / CASE_CHOSEN * CASE_CHOSEN;
    double id = t->candidate[at];
    for (bool taken = true; taken;) {
        id = fmod(id + 1, CASE_EXPERTS);
        taken = false;
        for (int64_t r = row; r < row + CASE_CHOSEN; r++) taken = taken || t->candidate[r] == id;
    }
    t->candidate[at] = id;
}
static void same_expert_twice(trial *t, int64_t at) {
    t->candidate[at] = t->candidate[at / CASE_CHOSEN * CASE_CHOSEN + (at + 1) % CASE_CHOSEN];
}
static void becomes_nan(trial *t, int64_t at) {
    t->candidate[at] = NAN;
}
static void becomes_inf(trial *t, int64_t at) {
    t->candidate[at] = INFINITY;
}

/* The share of places where the fault is seen. */
static double detected(fd_op op, const char *class_name, fault_fn fault) {
    const fd_numerics_class *class_ = fd_numerics_class_find(class_name);
    int64_t n_seen = 0, n_tried = 0;
    for (int kind = 1; kind < 4; kind++) {
        trial t = open_trial(op, class_, kind);
        double *clean = malloc(sizeof *clean * (size_t)t.n);
        memcpy(clean, t.candidate, sizeof *clean * (size_t)t.n);
        for (int64_t at = 0; at < t.n; at += 1 + t.n / 10) {
            if (!isfinite(clean[at]) || (clean[at] == 0 && op != FD_OP_TOP_K)) continue;
            memcpy(t.candidate, clean, sizeof *clean * (size_t)t.n);
            fault(&t, at);
            n_tried++;
            n_seen += !(largest_z(&t, class_) <= 1);
        }
        free(clean);
        close_trial(&t);
    }
    cr_assert(n_tried > 0);
    return (double)n_seen / (double)n_tried;
}

enum { N_COLUMN = 10 };
static const char *const columns[N_COLUMN] = {"f32",       "f16kv", "f16",    "tf32",    "q8",
                                              "llama-cpu", "bf16",  "hf-f16", "hf-bf16", "f16acc"};

typedef struct detection {
    fd_op op;
    fault_fn fault;
    const char *what;
    double at_least[N_COLUMN];
} detection;

Test(bounds, the_smallest_faults_worth_finding_are_beyond) {
    static const detection table[] = {
#include "tests/compare/detections.h"
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        for (int k = 0; k < N_COLUMN; k++) {
            double share = detected(table[i].op, columns[k], table[i].fault);
            if (getenv("FD_TEST_VERBOSE"))
                fprintf(stderr, "%-13s %-16s %-9s %.2f\n", fd_op_name(table[i].op), table[i].what, columns[k], share);
            cr_expect(share >= table[i].at_least[k], "%s, %s in %s: seen %.2f, expected %.2f", fd_op_name(table[i].op),
                      table[i].what, columns[k], share, table[i].at_least[k]);
        }
}

Test(bounds, no_op_is_without_a_smallest_fault) {
    static const detection table[] = {
#include "tests/compare/detections.h"
    };
    for (fd_op op = 0; op < FD_OP_COUNT; op++) {
        bool any = false;
        for (size_t i = 0; i < sizeof table / sizeof *table; i++)
            any |= table[i].op == op && table[i].at_least[0] >= 0.5;
        cr_expect(any, "%s has no row in detections.h", fd_op_name(op));
    }
}

/* Cases large enough for threads to be woken. */
static op_case *make_large(fd_op op) {
    switch (op) {
    case FD_OP_RMS_NORM: return case_norm(FD_F32, 8192, 64, 1e-5f);
    case FD_OP_MATMUL: return case_matmul(FD_Q8_0, 1024, 600, 3, FD_F32);
    case FD_OP_ATTN_SCORES:
    case FD_OP_ATTN_MIX: return case_attention(op, 4, 2, 64, 900, 8);
    case FD_OP_ATTN_SOFTMAX: return case_attention(op, 4, 2, 64, 4000, 8);
    default: return case_elementwise(op, 40000, 3);
    }
}

Test(bounds, every_bit_is_the_same_whatever_the_number_of_threads) {
    static const fd_op ops[] = {FD_OP_RMS_NORM, FD_OP_MATMUL,   FD_OP_ATTN_SCORES, FD_OP_ATTN_SOFTMAX,
                                FD_OP_ATTN_MIX, FD_OP_SILU_MUL, FD_OP_ADD};
    const int most = omp_get_max_threads();
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        op_case *c = make_large(ops[i]);
        fd_op_args args = c->args;
        double *in[FD_MAX_INPUTS] = {NULL, NULL};
        for (int k = 0; k < FD_MAX_INPUTS; k++) {
            if (!c->in[k]) continue;
            in[k] = malloc(sizeof(double) * (size_t)c->n_in[k]);
            for (int64_t e = 0; e < c->n_in[k]; e++) in[k][e] = (double)c->in[k][e];
            args.in[k] = in[k];
            bool cache = k == 1 && (ops[i] == FD_OP_ATTN_SCORES || ops[i] == FD_OP_ATTN_MIX);
            c->nodes[k].op = cache ? FD_OP_KV_WRITE : FD_OP_ADD;
        }
        int64_t n = fd_node_row_stride(args.node, args.n_kv) * args.n_pos;
        double *y = malloc(sizeof *y * (size_t)n), *tau[2];
        args.out = y;
        fd_reference_op(FD_NUMERICS_F64, &args);
        fd_bound_args bound = {
            .op = &args, .stored = FD_F64, .numerics = fd_numerics_class_find("bf16"), .n_output = 1e6};
        fd_error err = {0};
        for (int t = 0; t < 2; t++) {
            tau[t] = malloc(sizeof *y * (size_t)n);
            omp_set_num_threads(t ? 5 : 1);
            cr_assert_eq(fd_bound(&bound, tau[t], &err), FD_OK, "%s", err.message);
        }
        omp_set_num_threads(most);
        cr_expect(memcmp(tau[0], tau[1], sizeof *y * (size_t)n) == 0, "%s", fd_op_name(ops[i]));
        for (int t = 0; t < 2; t++) free(tau[t]);
        for (int k = 0; k < FD_MAX_INPUTS; k++) free(in[k]);
        free(y);
        case_free(c);
    }
}

Test(bounds, a_new_nan_or_inf_is_beyond_in_every_op_and_class) {
    for (int32_t i = 0; fd_numerics_class_at(i); i++)
        for (fd_op op = 0; op < FD_OP_COUNT; op++) {
            cr_expect_eq(detected(op, fd_numerics_class_at(i)->name, becomes_nan), 1.0, "%s", fd_op_name(op));
            cr_expect_eq(detected(op, fd_numerics_class_at(i)->name, becomes_inf), 1.0, "%s", fd_op_name(op));
        }
}

/* The margin decides: a flip between near ties, or another order, is rounding; anything else is not. */
Test(bounds, choices_of_experts_may_differ_where_the_margin_is_small) {
    static const struct {
        double ids[CASE_CHOSEN];
        bool within;
    } table[] = {{{5, 2, 7}, true},  {{2, 5, 7}, true},  {{7, 2, 5}, true},  {{5, 2, 1}, true},  {{5, 1, 7}, false},
                 {{5, 2, 0}, false}, {{5, 5, 7}, false}, {{5, 2, 2}, false}, {{5, 2, 8}, false}, {{5, 2, -1}, false}};
    static const float row[CASE_EXPERTS] = {0.1f, 0.5f, 0.9f, 0,
                                            0,    1.0f, 0,    0.50000006f}; /* 1 and 7 differ by one ulp */
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        op_case *c = case_top_k(1);
        double x[CASE_EXPERTS], e[CASE_EXPERTS], y[CASE_CHOSEN], tau[CASE_CHOSEN], most = 0;
        fd_error err = {0};
        for (int k = 0; k < CASE_EXPERTS; k++) x[k] = (double)row[k], e[k] = 1e-6;
        fd_op_args args = c->args;
        args.in[0] = x;
        args.out = y;
        fd_reference_op(FD_NUMERICS_F64, &args);
        fd_bound_args bound = {.op = &args,
                               .in_error = {e},
                               .candidate = table[i].ids,
                               .stored = FD_F64,
                               .numerics = fd_numerics_class_find("f32"),
                               .n_output = 1e6};
        cr_assert_eq(fd_bound(&bound, tau, &err), FD_OK);
        for (int r = 0; r < CASE_CHOSEN; r++) most = fmax(most, fd_bound_z(table[i].ids[r], y[r], tau[r]));
        cr_expect_eq(most <= 1, table[i].within, "row %zu: z %g", i, most);
        case_free(c);
    }
}

Test(bounds, a_class_that_is_too_strict_is_exceeded) {
    static const struct {
        fd_op op;
        const char *strict, *right;
        int kind;
    } cases[] = {
        {FD_OP_MATMUL, "f32", "f16", 3},
        {FD_OP_MATMUL, "f32", "bf16", 3},
        {FD_OP_MATMUL, "f16", "bf16", 3},
        {FD_OP_MATMUL, "f32", "q8", 3},
        {FD_OP_MATMUL, "f32", "f16acc", 3},
        {FD_OP_MATMUL, "llama-cpu", "llama-cuda", 1}, /* F16 weights */
        {FD_OP_MATMUL, "llama-cpu", "llama-cuda", 2}, /* F32 */
        {FD_OP_ROPE, "llama-cpu", "llama-cuda", 1},
        {FD_OP_ATTN_MIX, "llama-cpu", "llama-cpu-fa", 80}}; /* 720 keys: the chain grows, one rounding does not */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        trial t = open_trial(cases[i].op, fd_numerics_class_find(cases[i].right), cases[i].kind);
        cr_expect(!(largest_z(&t, fd_numerics_class_find(cases[i].strict)) <= 1), "%s as %s in %s", cases[i].right,
                  cases[i].strict, fd_op_name(cases[i].op));
        close_trial(&t);
    }
}

Test(bounds, z_of_special_values) {
    static const struct {
        double c, y, tau, z;
    } table[] = {{1, 1, 0, 0},
                 {1, 2, 0, INFINITY},
                 {1, 3, 4, 0.5},
                 {NAN, NAN, 1, 0},
                 {NAN, 1, 1e30, INFINITY},
                 {1, NAN, 1e30, INFINITY},
                 {-INFINITY, -INFINITY, 1, 0},
                 {-INFINITY, INFINITY, 1, INFINITY},
                 {1, INFINITY, 1, INFINITY}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        cr_expect_eq(fd_bound_z(table[i].c, table[i].y, table[i].tau), table[i].z, "row %zu", i);
    cr_expect(!(fd_bound_z(1, 2, NAN) <= 1), "a bound that is NaN holds nothing");
}

Test(bounds, rounding_what_is_rounded_already_costs_nothing) {
    cr_expect_eq(fd_rounding_error(1.5, 11, 0x1p-24), 0);
    cr_expect_eq(fd_rounding_error(0x1.8p-20, 11, 0x1p-24), 0);                               /* a binary16 subnormal */
    cr_expect_eq(fd_rounding_error(0x1p-26, 11, 0x1p-24), 0x1p-25, "below the smallest one"); /* becomes 0 */
    cr_expect_gt(fd_rounding_error(1 + 0x1p-12, 11, 0x1p-24), 0);
    cr_expect_eq(fd_rounding_error(1 + 0x1p-12, 24, 0x1p-126), 0);
    cr_expect_eq(fd_rounding_error(NAN, 11, 0x1p-24), 0);
    for (int i = 0; i < 10000; i++) {
        float x = (float)ldexp((double)(draw() >> 11) * 0x1p-53 - 0.5, (int)(draw() % 40) - 30);
        double error = fabs((double)fd_f16_to_f32(fd_f32_to_f16(x)) - (double)x);
        if (fabsf(x) < 65504) cr_assert(error <= fd_rounding_error((double)x, 11, 0x1p-24), "%a", (double)x);
    }
}

Test(bounds, lambda_is_what_the_document_says) {
    cr_expect_float_eq(fd_bound_lambda(4096, 1e6), 7.7, 0.05);
    cr_expect(fd_bound_lambda(0, 0) > 3.8);
}

Test(numerics_class, names_are_found_and_unknown_ones_are_not) {
    cr_expect_str_eq(fd_numerics_class_find("q8act")->name, "q8");
    cr_expect_str_eq(fd_numerics_class_find("emulate-hf-f16:7")->name, "hf-f16");
    cr_expect_str_eq(fd_numerics_class_find("emulate-llama-cublas")->name, "f16acc");
    cr_expect_str_eq(fd_numerics_class_find("emulate-llama-cuda:3")->name, "llama-cuda");
    cr_expect_str_eq(fd_numerics_class_find("fast")->name, "f16"); /* the GPU engine\'s */
    cr_expect_null(fd_numerics_class_find(""));
    cr_expect_null(fd_numerics_class_find("f1"));
    cr_expect_null(fd_numerics_class_find("emulate-"));
}

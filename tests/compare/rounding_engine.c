#include "tests/compare/rounding_engine.h"

#include "tests/compare/rounding_ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf/quant.h"
#include "numerics/contract.h"

static uint64_t state = 1;
uint64_t draw(void) { /* SplitMix64 */
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

double rounding_kernel_u(const fd_numerics_class *c) { /* inside a kernel binary32, stored between two kernels */
    return c->u_op < 0x1p-24 ? c->u_op : 0x1p-24;
}

double round_to(double x, double u) {
    if (u == 0x1p-24) return (double)(float)x;
    if (u == 0x1p-11) return (double)fd_f16_to_f32(fd_f32_to_f16((float)x));
    if (u == 0x1p-8) return (double)fd_bf16_to_f32(fd_f32_to_bf16((float)x));
    if (u == 0x1p-10) return (double)fd_from_bits32(fd_bits32((float)x) & ~0x1fffu);
    return x;
}

void rounding_shuffle(int32_t *order, int32_t n) {
    for (int32_t i = 0; i < n; i++) order[i] = i;
    if (draw() % 4 == 0) return; /* the natural order is a likely one */
    for (int32_t i = n - 1; i > 0; i--) {
        int32_t j = (int32_t)(draw() % (uint64_t)(i + 1)), other = order[i];
        order[i] = order[j];
        order[j] = other;
    }
}

/* Σ a·b in a random order, in one chain or four. */
double rounding_sum_products(const double *a, const double *b, int32_t n, double u_acc) {
    int32_t order[1024], n_chain = draw() % 2 ? 4 : 1;
    double chain[4] = {0};
    rounding_shuffle(order, n);
    for (int32_t i = 0; i < n; i++) {
        double *acc = &chain[i % n_chain];
        *acc = round_to(*acc + a[order[i]] * b[order[i]], u_acc);
    }
    for (int32_t k = 1; k < n_chain; k++) chain[0] = round_to(chain[0] + chain[k], u_acc);
    return chain[0];
}

void rounding_matmul_inputs(const fd_numerics_class *c, uint32_t dtype, const double *x, double *out, int32_t n) {
    if (c->q8_activations && fd_dtype_get(dtype)->is_quantised) {
        float narrow[1024] = {0};
        char blocks[2048];
        for (int32_t k = 0; k < n; k++) narrow[k] = (float)x[k];
        fd_quantize_row(FD_Q8_0, narrow, blocks, n);
        fd_dequantize_row(FD_Q8_0, blocks, narrow, n);
        for (int32_t k = 0; k < n; k++) out[k] = (double)narrow[k];
        return;
    }
    double u = c->q8_activations && dtype != FD_F32 ? fd_dtype_roundoff(dtype) : c->u_in;
    for (int32_t k = 0; k < n; k++) out[k] = round_to(x[k], u);
}

void rounding_matmul(const fd_op_args *a, const fd_numerics_class *c, double *out) {
    const fd_weight *w = a->weight[0], *bias = a->weight[1];
    int32_t n = (int32_t)w->n_col;
    float row[1024], b[1024] = {0};
    double wide[1024], x[1024];
    double u_w = c->q8_activations && w->dtype != FD_F32 ? 0 : c->u_in;
    double u_acc = w->dtype == FD_F16 ? fmax(c->u_acc, c->u_acc_f16) : c->u_acc;
    if (bias) fd_dequantize_row(bias->dtype, bias->data, b, bias->n_col);
    for (int64_t r = 0; r < a->n_pos; r++) {
        rounding_matmul_inputs(c, w->dtype, (const double *)a->in[0] + r * n, x, n);
        for (int64_t o = 0; o < w->n_row; o++) {
            fd_dequantize_row(w->dtype, (const char *)w->data + o * fd_dtype_row_bytes(w->dtype, n), row, n);
            for (int32_t k = 0; k < n; k++) wide[k] = round_to((double)row[k], u_w);
            double y = round_to(rounding_sum_products(wide, x, n, u_acc), c->u_out);
            out[r * w->n_row + o] = bias ? round_to(y + round_to((double)b[o], c->u_out), c->u_out) : y;
        }
    }
}

static void run_norm(const fd_op_args *a, const fd_numerics_class *c, double *out) {
    int64_t n = a->weight[0]->n_col;
    float w[1024];
    fd_dequantize_row(a->weight[0]->dtype, a->weight[0]->data, w, n);
    double u_sum = rounding_kernel_u(c);
    for (int64_t r = 0; r < a->n_pos; r++) {
        const double *x = (const double *)a->in[0] + r * n;
        double ss = rounding_sum_products(x, x, (int32_t)n, u_sum),
               scale = round_to(1 / sqrt(ss / (double)n + a->node->eps), u_sum);
        for (int64_t i = 0; i < n; i++)
            out[r * n + i] = round_to(round_to(x[i] * scale, c->u_op) * round_to((double)w[i], c->u_out), c->u_out);
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
            double co = round_to(cos(angle), c->u_op), si = round_to(sin(angle), c->u_op),
                   fast = 0x1p-23 * fmax(angle, 6.28);
            if (c->fast_math) co += draw() % 2 ? fast : -fast, si += draw() % 2 ? fast : -fast;
            out[first] = round_to(round_to(x * co, c->u_op) - round_to(y * si, c->u_op), c->u_out);
            out[second] = round_to(round_to(x * si, c->u_op) + round_to(y * co, c->u_op), c->u_out);
        }
    }
}

/* tanhf is right to an ulp and a half or so in every libm. */
static double capped(double x, double cap, const fd_numerics_class *c) {
    double v = round_to(x / cap, c->u_op), t = tanh(v);
    return round_to(round_to(t + t * rounding_kernel_u(c) * (draw() % 2 ? 1 : -1), c->u_op) * cap, c->u_out);
}

static void run_scores(const fd_op_args *a, const fd_numerics_class *c, double *out) {
    const fd_node *nodes = a->graph->nodes;
    int32_t n_head = nodes[0].shape[0], d = nodes[0].shape[1], n_kv_head = nodes[1].shape[0];
    for (int64_t item = 0; item < (int64_t)a->n_pos * n_head; item++)
        for (int64_t t = 0; t < a->n_kv; t++) {
            double x[256], k[256];
            for (int32_t i = 0; i < d; i++) {
                x[i] = round_to(((const double *)a->in[0])[item * d + i], c->u_attn);
                double cached =
                    ((const double *)a->in[1])[(t * n_kv_head + item % n_head / (n_head / n_kv_head)) * d + i];
                k[i] = round_to(round_to(cached, c->u_kv), c->u_attn);
            }
            int32_t own = a->pos0 + (int32_t)(item / n_head);
            bool seen = t <= own && t >= fd_node_first_seen(a->node, own);
            double s = round_to(round_to(rounding_sum_products(x, k, d, c->u_acc), c->u_op) * (double)a->node->scale,
                                c->u_out);
            if (a->node->softcap > 0) s = capped(s, (double)a->node->softcap, c);
            out[item * a->n_kv + t] = seen ? s : -INFINITY;
        }
}

static void run_softmax(const fd_op_args *a, const fd_numerics_class *c, double *out) {
    int32_t n_head = a->node->shape[0];
    for (int64_t item = 0; item < (int64_t)a->n_pos * n_head; item++) {
        int64_t n = a->pos0 + item / n_head + 1;
        const double *s = (const double *)a->in[0] + item * a->n_kv;
        double max = -INFINITY, sum = 0, u_sum = rounding_kernel_u(c), sink = -INFINITY;
        if (a->weight[0]) sink = round_to((double)((const float *)a->weight[0]->data)[item % n_head], c->u_out);
        max = sink;
        for (int64_t t = 0; t < n; t++) max = fmax(max, s[t]);
        if (a->weight[0]) sum = round_to(exp(round_to(sink - max, c->u_op)), c->u_op);
        for (int64_t t = 0; t < n; t++)
            sum = round_to(sum + round_to(exp(round_to(s[t] - max, c->u_op)), c->u_op), u_sum);
        for (int64_t t = 0; t < a->n_kv; t++)
            out[item * a->n_kv + t] =
                t < n ? round_to(round_to(exp(round_to(s[t] - max, c->u_op)), c->u_op) / sum, c->u_out) : 0;
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
                p[t] = round_to(((const double *)a->in[0])[item * a->n_kv + t], c->u_attn);
                double cached =
                    ((const double *)a->in[1])[(t * n_kv_head + item % n_head / (n_head / n_kv_head)) * d + i];
                v[t] = round_to(round_to(cached, c->u_kv), c->u_attn);
            }
            out[item * d + i] = round_to(rounding_sum_products(p, v, n, fmax(c->u_acc, c->u_mix)), c->u_out);
        }
}

/* The cancelling form; llama.cpp's CPU takes it from a table of f16. */
static double gelu(double g, const fd_numerics_class *c) {
    double u = rounding_kernel_u(c);
    if (c->q8_activations) g = round_to(g, 0x1p-11);
    double v =
        round_to(0.7978845608028654 * round_to(g + round_to(0.044715 * round_to(g * round_to(g * g, u), u), u), u), u);
    double y = round_to(0.5 * g * round_to(1 + round_to(tanh(v), u), u), u);
    return c->q8_activations ? round_to(y, 0x1p-11) : y;
}

static double clamped(double g, double up, const fd_node *node, const fd_numerics_class *c) {
    double limit = (double)node->limit, s;
    g = g > limit ? limit : g;
    up = up > limit ? limit : up < -limit ? -limit : up;
    s = round_to(1 / (1 + exp(-round_to((double)node->slope * g, c->u_op))), c->u_op);
    return round_to(round_to(g * s, c->u_op) * round_to(up + 1, c->u_op), c->u_out);
}

/* Rounded one by one. */
double rounding_dot(const double *a, const double *b, int64_t n, double u) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum = round_to(sum + round_to(a[i] * b[i], u), u);
    return sum;
}

static void run_l2_norm(const fd_op_args *a, const fd_numerics_class *c, double *out) {
    int64_t n = a->node->shape[a->node->n_dim - 1];
    double u = rounding_kernel_u(c);
    for (int64_t row = 0; row < a->n_pos * fd_node_width(a->node) / n; row++) {
        const double *x = (const double *)a->in[0] + row * n;
        double r = round_to(1 / sqrt(rounding_dot(x, x, n, u) + (double)a->node->eps), u);
        for (int64_t i = 0; i < n; i++) out[row * n + i] = round_to(x[i] * r, c->u_out);
    }
}

static void run_rest(const fd_op_args *a, const fd_numerics_class *c, int64_t n, const double *exact, double *out) {
    bool copies = a->node->op == FD_OP_CONCAT || a->node->op == FD_OP_SLICE; /* of inputs that are not as wide */
    for (int64_t i = 0; i < n; i++) {
        const double *x = copies ? NULL : a->in[0], *y = a->in[1];
        double g = x ? x[i] : 0, u;
        switch (a->node->op) {
        case FD_OP_SILU_MUL:
            u = rounding_kernel_u(c);
            out[i] = round_to(round_to(g / round_to(1 + round_to(exp(-g), u), u), c->u_op) * y[i], c->u_out);
            break;
        case FD_OP_GELU_MUL: out[i] = round_to(round_to(gelu(g, c), c->u_op) * y[i], c->u_out); break;
        case FD_OP_SWIGLU_CLAMP: out[i] = clamped(g, y[i], a->node, c); break;
        case FD_OP_SCALE: out[i] = round_to(g * round_to((double)a->node->scale, c->u_out), c->u_out); break;
        case FD_OP_SOFTCAP: out[i] = capped(g, (double)a->node->softcap, c); break;
        case FD_OP_ADD: out[i] = round_to(g + y[i], c->u_out); break;
        case FD_OP_GELU: out[i] = round_to(gelu(g, c), c->u_out); break;
        case FD_OP_RELU_SQUARED: out[i] = round_to(g < 0 ? 0 : g * g, c->u_out); break;
        case FD_OP_SIGMOID:
            u = rounding_kernel_u(c);
            out[i] = round_to(1 / round_to(1 + round_to(exp(-g), u), u), c->u_out);
            break;
        case FD_OP_SILU:
            u = rounding_kernel_u(c);
            out[i] = round_to(g / round_to(1 + round_to(exp(-g), u), u), c->u_out);
            break;
        case FD_OP_SOFTPLUS:
            u = rounding_kernel_u(c);
            out[i] = round_to(log(round_to(1 + round_to(exp(g), u), u)), c->u_out);
            break;
        case FD_OP_MUL: out[i] = round_to(g * y[i], c->u_out); break;
        case FD_OP_MUL_VECTOR:
            out[i] = round_to(
                g * round_to((double)((const float *)a->weight[0]->data)[i % a->weight[0]->n_col], c->u_out), c->u_out);
            break;
        case FD_OP_EXP: out[i] = round_to(round_to(exp(g), rounding_kernel_u(c)), c->u_out); break;
        case FD_OP_KV_WRITE: out[i] = round_to(g, c->u_kv); break;
        default: out[i] = round_to(exact[i], c->u_out); /* EMBED, SLICE, CONCAT */
        }
    }
}

void rounding_engine(const fd_op_args *a, const fd_numerics_class *c, int64_t n, const double *exact, double *out) {
    const fd_numerics_class inside = fd_numerics_class_inside_attention(c);
    switch (a->node->op) {
    case FD_OP_MATMUL: rounding_matmul(a, c, out); return;
    case FD_OP_RMS_NORM: run_norm(a, c, out); return;
    case FD_OP_ROPE: run_rope(a, c, out); return;
    case FD_OP_ATTN_SCORES: run_scores(a, &inside, out); return;
    case FD_OP_ATTN_SOFTMAX: run_softmax(a, &inside, out); return;
    case FD_OP_ATTN_MIX: run_mix(a, c, out); return;
    case FD_OP_ATTN_ALIBI: run_rest(a, &inside, n, exact, out); return;
    case FD_OP_SOFTMAX:
        for (int64_t row = 0; row < a->n_pos; row++)
            rounding_softmax_of((const double *)a->in[0] + row * a->node->shape[0], out + row * a->node->shape[0],
                                a->node->shape[0], c);
        return;
    case FD_OP_TOP_K: rounding_top_k(a, out); return;
    case FD_OP_EXPERT_WEIGHTS: rounding_expert_weights(a, c, out); return;
    case FD_OP_EXPERT_MATMUL: rounding_expert_matmul(a, c, out); return;
    case FD_OP_CONV: rounding_conv(a, c, out); return;
    case FD_OP_SSM_SCAN: rounding_scan(a, c, out); return;
    case FD_OP_TOKEN_SHIFT: rounding_token_shift(a, c, out); return;
    case FD_OP_GATED_DELTA: rounding_delta(a, c, out); return;
    case FD_OP_WKV7: rounding_wkv(a, c, out); return;
    case FD_OP_L2_NORM: run_l2_norm(a, c, out); return;
    case FD_OP_HEAD_MATMUL: rounding_head_matmul(a, c, out); return;
    case FD_OP_EXPERT_SUM: rounding_expert_sum(a, c, out); return;
    default: run_rest(a, c, n, exact, out);
    }
}

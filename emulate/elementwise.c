/* The ops without matrices. `T(…)` in the formulas: rounded to the class's tensor type, where the engine leaves one
 * kernel for the next; the outermost one is the caller's. */
#include <string.h>

#include "emulate/internal.h"
#include "emulate/rounding.h"
#include "model/gguf/quant.h"

/* An op that makes each element of one of x, or of a and b. */
#define MAP(op, formula)                                                                                               \
    fd_code fd_emulate_##op(fd_emulate *e, const fd_op_args *args, fd_error *err) {                                    \
        (void)e, (void)err;                                                                                            \
        const float *in = args->in[0];                                                                                 \
        int64_t n = args->n_pos * fd_node_row_stride(args->node, args->n_kv);                                          \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            const float x = in[i];                                                                                     \
            ((float *)args->out)[i] = formula;                                                                         \
        }                                                                                                              \
        return FD_OK;                                                                                                  \
    }
#define MAP2(op, formula)                                                                                              \
    fd_code fd_emulate_##op(fd_emulate *e, const fd_op_args *args, fd_error *err) {                                    \
        (void)e, (void)err;                                                                                            \
        const float *in = args->in[0], *with = args->in[1];                                                            \
        int64_t n = args->n_pos * fd_node_row_stride(args->node, args->n_kv);                                          \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            const float a = in[i], b = with[i];                                                                        \
            ((float *)args->out)[i] = formula;                                                                         \
        }                                                                                                              \
        return FD_OK;                                                                                                  \
    }

fd_code fd_emulate_embed(fd_emulate *e, const fd_op_args *args, fd_error *err) {
    (void)e, (void)err;
    const fd_weight *table = args->weight[0];
    int64_t n = table->n_col, row_bytes = fd_dtype_row_bytes(table->dtype, n);
    for (int32_t p = 0; p < args->n_pos; p++)
        fd_dequantize_row(table->dtype, (const char *)table->data + args->tokens[p] * row_bytes,
                          (float *)args->out + p * n, n);
    return FD_OK;
}

/* T(x·r)·w with r = 1 / sqrt(mean(x²) + eps) in binary32 in every class, as engines do it. */
fd_code fd_emulate_rms_norm(fd_emulate *e, const fd_op_args *args, fd_error *err) {
    const fd_weight *weight = args->weight[0];
    int64_t n = weight->n_col, rows = args->n_pos * fd_node_row_stride(args->node, args->n_kv) / n;
    float *weights = fd_emulate_reserve(&e->left, sizeof(float) * (size_t)(n * weight->n_row), err);
    if (!weights) return FD_ERR_MEMORY;
    fd_emulate_vectors(e, weight, weights);
    for (int64_t p = 0; p < rows; p++) {
        const float *x = (const float *)args->in[0] + p * n, *w = weights + p % weight->n_row * n;
        float *y = (float *)args->out + p * n;
        float squares = fd_emulate_dot(fd_emulate_order_of(e, FD_OP_RMS_NORM), x, x, n);
        float r = 1.0f / sqrtf(squares * (1.0f / (float)n) + args->node->eps);
        for (int64_t i = 0; i < n; i++) y[i] = fd_round_to(e->class_.tensor, x[i] * r) * w[i];
    }
    return FD_OK;
}

/* T(a·cos) − T(b·sin), T(b·cos) + T(a·sin): four products, no fused multiply-add. */
fd_code fd_emulate_rope(fd_emulate *e, const fd_op_args *args, fd_error *err) {
    (void)err;
    const fd_node *node = args->node;
    fd_emulate_type type = e->class_.tensor;
    int32_t n_head = node->shape[0], dim = node->shape[1], n_pair = node->rope.n_rot / 2;
    int32_t apart = node->rope.pairing == FD_ROPE_HALF ? n_pair : 1, step = node->rope.pairing == FD_ROPE_HALF ? 1 : 2;
    memcpy(args->out, args->in[0], sizeof(float) * (size_t)args->n_pos * (size_t)n_head * (size_t)dim);
    for (int32_t p = 0; p < args->n_pos; p++) {
        const float *cosine = (const float *)args->rope_cos + (int64_t)(args->pos0 + p) * n_pair;
        const float *sine = (const float *)args->rope_sin + (int64_t)(args->pos0 + p) * n_pair;
        for (int32_t h = 0; h < n_head; h++) {
            float *head = (float *)args->out + ((int64_t)p * n_head + h) * dim;
            for (int32_t i = 0; i < n_pair; i++) {
                float *a = head + i * step, *b = a + apart, x = *a, y = *b;
                *a = fd_round_to(type, x * cosine[i]) - fd_round_to(type, y * sine[i]);
                *b = fd_round_to(type, y * cosine[i]) + fd_round_to(type, x * sine[i]);
            }
        }
    }
    return FD_OK;
}

/* A row that a fault sends outside the cache is dropped. */
fd_code fd_emulate_kv_write(fd_emulate *e, const fd_op_args *args, fd_error *err) {
    (void)err;
    int64_t width = fd_node_row_stride(args->node, args->n_kv);
    const fd_emulate_type type = fd_node_is_kv_cache(args->node) ? e->class_.cache : e->class_.tensor;
    for (int32_t p = 0; p < args->n_pos; p++) {
        int64_t slot = (int64_t)args->pos0 + p + args->node->row_offset;
        if (slot < 0 || slot >= args->n_ctx) continue;
        float *row = (float *)args->out + slot * width;
        const bool blocks = args->node->kv_type != FD_F32;
        fd_round_row(blocks ? FD_EMULATE_F32 : type, (const float *)args->in[0] + p * width, row, width);
        if (blocks) fd_round_through(args->node->kv_type, row, width);
    }
    return FD_OK;
}

/* T(gate / (1 + e^-gate))·up with libm's exp. */
MAP2(silu_mul, fd_round_to(e->class_.tensor, a *(1.0f / (1.0f + expf(-a)))) * b)

static float gelu(float x) {
    return 0.5f * x * (1.0f + tanhf(0.797884561f * (x + 0.044715f * x * x * x)));
}

/* The CPU backend's table ends at 10: beyond it the result is the argument, or 0. */
static float gelu_of_table(float x) {
    return x <= -10 ? 0 : x >= 10 ? x : fd_round_f16(gelu(fd_round_f16(x)));
}

static float gelu_of(const fd_emulate *e, float x) {
    return e->class_.product == FD_EMULATE_OF_WEIGHT ? gelu_of_table(x) : gelu(x);
}

MAP(gelu, gelu_of(e, x))

/* Two kernels: relu, then the square. */
MAP(relu_squared, x < 0 ? 0 : x * x)

MAP(sigmoid, 1.0f / (1.0f + expf(-x)))

MAP(silu, x *(1.0f / (1.0f + expf(-x))))

MAP(softplus, x > 20.0f ? x : logf(1.0f + expf(x)))

fd_code fd_emulate_clamp(fd_emulate *e, const fd_op_args *args, fd_error *err) {
    (void)err;
    const float *x = args->in[0];
    float *y = args->out, limit = fd_round_to(e->class_.tensor, args->node->limit);
    int64_t n = args->n_pos * fd_node_row_stride(args->node, args->n_kv);
    for (int64_t i = 0; i < n; i++) y[i] = x[i] > limit ? limit : x[i] < -limit ? -limit : x[i];
    return FD_OK;
}

/* T(½g(1 + tanh …))·up with libm's tanh. llama.cpp's CPU reads GELU from a table: both it and its argument are f16. */
MAP2(gelu_mul, fd_round_to(e->class_.tensor, gelu_of(e, a)) * b)

/* T(g·T(σ(T(slope·g))))·T(u + 1) with g and u clamped. */
fd_code fd_emulate_swiglu_clamp(fd_emulate *e, const fd_op_args *args, fd_error *err) {
    (void)err;
    const float *gate = args->in[0], *up = args->in[1];
    float *y = args->out, limit = args->node->limit;
    fd_emulate_type type = e->class_.tensor;
    int64_t n = args->n_pos * fd_node_row_stride(args->node, args->n_kv);
    for (int64_t i = 0; i < n; i++) {
        float g = gate[i] > limit ? limit : gate[i], u = up[i] > limit ? limit : up[i] < -limit ? -limit : up[i];
        float sigmoid = fd_round_to(type, 1.0f / (1.0f + expf(-fd_round_to(type, args->node->slope * g))));
        y[i] = fd_round_to(type, g * sigmoid) * fd_round_to(type, u + 1.0f);
    }
    return FD_OK;
}

/* The factor is a tensor of one element, of the class's type. */
fd_code fd_emulate_scale(fd_emulate *e, const fd_op_args *args, fd_error *err) {
    (void)err;
    const float *x = args->in[0];
    float *y = args->out, factor = fd_round_to(e->class_.tensor, args->node->scale);
    int64_t n = args->n_pos * fd_node_row_stride(args->node, args->n_kv);
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * factor;
    return FD_OK;
}

/* Three kernels: T(T(tanh(T(x/cap)))·cap). */
MAP(softcap, fd_emulate_capped(e, x, args->node->softcap))

MAP2(add, a + b)

MAP(exp, expf(x))

fd_code fd_emulate_mul(fd_emulate *e, const fd_op_args *args, fd_error *err) {
    (void)e, (void)err;
    const float *a = args->in[0], *b = args->in[1];
    float *y = args->out;
    int64_t width = fd_node_width(args->node), each = width / fd_node_width(fd_emulate_input(args, 1));
    for (int64_t i = 0; i < args->n_pos * width; i++) y[i] = a[i] * b[i / each];
    return FD_OK;
}

/* x·r with r = 1 / sqrt(Σx² + eps) in binary32 in every class. */
fd_code fd_emulate_l2_norm(fd_emulate *e, const fd_op_args *args, fd_error *err) {
    (void)err;
    int64_t n = args->node->shape[args->node->n_dim - 1], rows = args->n_pos * fd_node_width(args->node) / n;
    for (int64_t p = 0; p < rows; p++) {
        const float *x = (const float *)args->in[0] + p * n;
        float squares = fd_emulate_dot(fd_emulate_order_of(e, FD_OP_RMS_NORM), x, x, n);
        float r = 1.0f / sqrtf(squares + args->node->eps);
        for (int64_t i = 0; i < n; i++) ((float *)args->out)[p * n + i] = x[i] * r;
    }
    return FD_OK;
}

/* MATMUL: y = W x + b with both factors rounded as the class says. */
#include <omp.h>

#include "base/clones.h"
#include "emulate/internal.h"
#include "emulate/rounding.h"
#include "model/gguf/quant.h"

/* ---- activations beside the weights' type, as llama.cpp's CPU dots take them ---- */

/* Q8_K: 256 elements, one binary32 scale; the element of largest magnitude becomes -127 (ggml's
 * quantize_row_q8_K_ref, ggml-quants.c: iscale = -127 / max). Written back as binary32: d·q. */
static void round_q8_k(const float *x, float *out, int64_t n) {
    for (int64_t at = 0; at < n; at += 256) {
        float extreme = 0;
        for (int i = 0; i < 256; i++)
            if (!(fabsf(x[at + i]) <= fabsf(extreme))) extreme = x[at + i];
        float inverse = extreme != 0 ? -127.0f / extreme : 0, d = extreme != 0 ? 1.0f / inverse : 0;
        for (int i = 0; i < 256; i++) out[at + i] = d * fminf(127.0f, rintf(inverse * x[at + i]));
    }
}

/* Q8_0's and Q8_1's values. Written back as binary32: d·q. */
static void round_q8_0(const float *x, float *out, int64_t n) {
    for (int64_t at = 0; at < n; at += 32) {
        fd_block_q8_0 block;
        fd_quantize_row(FD_Q8_0, x + at, &block, 32);
        fd_dequantize_row(FD_Q8_0, &block, out + at, 32);
    }
}

/* True when the row becomes Q8_0 blocks in `to`; else it is binary32 there. */
static bool convert(const fd_emulate_class *class_, uint32_t weight_type, const float *x, void *to, int64_t n) {
    bool cuda = class_->product == FD_EMULATE_OF_WEIGHT_CUDA;
    if (class_->product != FD_EMULATE_OF_WEIGHT && !cuda) {
        fd_round_row(class_->product, x, to, n);
        return false;
    }
    switch (weight_type) {
    case FD_Q8_0:
    case FD_Q4_0: fd_quantize_row(FD_Q8_0, x, to, n); return true;
    case FD_F16: fd_round_row(FD_EMULATE_F16, x, to, n); return false;
    case FD_BF16: fd_round_row(FD_EMULATE_BF16, x, to, n); return false;
    }
    const fd_dtype_info *type = fd_dtype_get(weight_type);
    if (!type->is_quantised)
        fd_round_row(cuda ? FD_EMULATE_TF32 : FD_EMULATE_F32, x, to, n);
    else if (type->block_elements == 256 && !cuda)
        round_q8_k(x, to, n);
    else
        round_q8_0(x, to, n);
    return false;
}

/* ---- the dot of two block rows: integers inside a block, binary32 between blocks, in order ---- */

FD_FOR_EACH_CPU static float dot_q8_0(const fd_block_q8_0 *w, const fd_block_q8_0 *x, int64_t n_block) {
    float total = 0;
    for (int64_t b = 0; b < n_block; b++) {
        int32_t sum = 0;
        for (int i = 0; i < 32; i++) sum += w[b].qs[i] * x[b].qs[i];
        total = total + (float)sum * (fd_f16_to_f32(w[b].d) * fd_f16_to_f32(x[b].d));
    }
    return total;
}

FD_FOR_EACH_CPU static float dot_q4_0(const fd_block_q4_0 *w, const fd_block_q8_0 *x, int64_t n_block) {
    float total = 0;
    for (int64_t b = 0; b < n_block; b++) {
        int32_t sum = 0;
        for (int i = 0; i < 16; i++)
            sum += ((w[b].qs[i] & 15) - 8) * x[b].qs[i] + ((w[b].qs[i] >> 4) - 8) * x[b].qs[i + 16];
        total = total + (float)sum * (fd_f16_to_f32(w[b].d) * fd_f16_to_f32(x[b].d));
    }
    return total;
}

static float dot_blocks(const fd_weight *w, const void *row, const void *x) {
    int64_t n_block = w->n_col / 32;
    return w->dtype == FD_Q8_0 ? dot_q8_0(row, x, n_block) : dot_q4_0(row, x, n_block);
}

void fd_emulate_vector(const fd_emulate *e, const fd_weight *weight, float *out) {
    fd_dequantize_row(weight->dtype, weight->data, out, weight->n_col);
    fd_round_row(e->class_.tensor, out, out, weight->n_col);
}

void fd_emulate_vectors(const fd_emulate *e, const fd_weight *weight, float *out) {
    int64_t row_bytes = fd_dtype_row_bytes(weight->dtype, weight->n_col);
    for (int64_t r = 0; r < weight->n_row; r++) {
        fd_weight row = *weight;
        row.data = (const char *)weight->data + r * row_bytes;
        fd_emulate_vector(e, &row, out + r * weight->n_col);
    }
}

/* One row of the product, y[p·n_out], of every position: several at once, the last again where there are fewer. */
static void sums_f16(const fd_emulate *e, const fd_op_args *args, const float *row, const float *x, const float *bias,
                     float *y) {
    const int64_t n_in = args->weight[0]->n_col, n_out = args->weight[0]->n_row;
    for (int32_t p = 0; p < args->n_pos; p += FD_EMULATE_DOTS) {
        const float *of[FD_EMULATE_DOTS];
        float sum[FD_EMULATE_DOTS];
        for (int32_t i = 0; i < FD_EMULATE_DOTS; i++)
            of[i] = x + (p + i < args->n_pos ? p + i : args->n_pos - 1) * n_in;
        fd_emulate_dots_f16(fd_emulate_order_of(e, FD_OP_MATMUL), row, of, n_in, sum);
        for (int32_t i = 0; i < FD_EMULATE_DOTS && p + i < args->n_pos; i++)
            y[(p + i) * n_out] = bias ? sum[i] + *bias : sum[i];
    }
}

fd_code fd_emulate_matmul(fd_emulate *e, const fd_op_args *args, fd_error *err) {
    const fd_weight *w = args->weight[0], *bias = args->weight[1];
    int64_t n_in = w->n_col, n_out = w->n_row, row_bytes = fd_dtype_row_bytes(w->dtype, n_in);
    size_t x_bytes = sizeof(float) * (size_t)n_in; /* Q8_0 blocks need less */
    char *x = fd_emulate_reserve(&e->left, x_bytes * (size_t)args->n_pos, err);
    float *b = fd_emulate_reserve(&e->right, sizeof(float) * (size_t)n_out, err);
    float *rows = fd_emulate_reserve(&e->thread, sizeof(float) * (size_t)n_in * (size_t)e->n_thread, err);
    if (!x || !b || !rows) return FD_ERR_MEMORY;

    bool blocks = false;
    for (int32_t p = 0; p < args->n_pos; p++)
        blocks = convert(&e->class_, w->dtype, (const float *)args->in[0] + p * n_in, x + (size_t)p * x_bytes, n_in);
    if (bias) fd_emulate_vector(e, bias, b);

    float *y = args->out;
    int n_thread = fd_emulate_threads(e, n_out * n_in * args->n_pos);
#pragma omp parallel for num_threads(n_thread) schedule(static)
    for (int64_t o = 0; o < n_out; o++) {
        const char *packed = (const char *)w->data + o * row_bytes;
        float *row = rows + omp_get_thread_num() * n_in;
        if (!blocks) {
            fd_dequantize_row(w->dtype, packed, row, n_in);
            bool tf32 = e->class_.product == FD_EMULATE_OF_WEIGHT_CUDA && w->dtype == FD_F32;
            fd_round_row(tf32 ? FD_EMULATE_TF32 : e->class_.product, row, row, n_in);
        }
        if (!blocks && args->n_pos > 1 && fd_emulate_sums_f16(e, FD_OP_MATMUL, w->dtype)) {
            sums_f16(e, args, row, (const float *)x, bias ? b + o : NULL, y + o);
            continue;
        }
        for (int32_t p = 0; p < args->n_pos; p++) {
            const void *xp = x + (size_t)p * x_bytes;
            float sum =
                blocks ? dot_blocks(w, packed, xp) : fd_emulate_products(e, FD_OP_MATMUL, w->dtype, row, xp, n_in);
            y[p * n_out + o] = bias ? sum + b[o] : sum;
        }
    }
    return FD_OK;
}

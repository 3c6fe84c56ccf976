/* The products of q8act.c, vectorised: activations are quantised once for all rows of the range, a weight row is
 * decoded once for all positions, and the integers' dots of a row come first, eight blocks at a time; then the sums in
 * the contract's order. */
#include <stdlib.h>

#include "reference_cpu/q8act_blocks.h"
#include "reference_cpu/simd.h"
#include "model/weight_rows.h"

void SCALAR(q8act_matmul)(const fd_op_args *args, int64_t begin, int64_t end);
void SCALAR(q8act_expert_matmul)(const fd_op_args *args, int64_t begin, int64_t end);
void SIMD(matmul)(const fd_op_args *args, int64_t begin, int64_t end);
void SIMD(expert_matmul)(const fd_op_args *args, int64_t begin, int64_t end);
void SIMD(q8act_matmul)(const fd_op_args *args, int64_t begin, int64_t end);
void SIMD(q8act_expert_matmul)(const fd_op_args *args, int64_t begin, int64_t end);

/* A row of blocks, and what lies between its steps. */
typedef struct row_scratch {
    fd_q8_w *w;  /* [n_block] */
    int32_t *s;  /* [n_block, 2]: of the first and the last 16 elements */
    float *term; /* [n_block, 2]: a·s of both; without halves the first holds the block's */
    fd_q8_x *x;  /* [n_row_of_x, n_block] */
    void *memory;
} row_scratch;

/* False when there is no memory: the scalar kernel needs none. */
static bool make_scratch(row_scratch *to, int64_t n_block, int64_t n_x) {
    size_t n = (size_t)n_block, w = n * sizeof *to->w, s = n * 2 * sizeof *to->s, t = n * 2 * sizeof *to->term;
    char *at = to->memory = malloc(w + s + t + n * (size_t)n_x * sizeof *to->x);
    if (!at) return false;
    to->w = (fd_q8_w *)at;
    to->s = (int32_t *)(at + w);
    to->term = (float *)(at + w + s);
    to->x = (fd_q8_x *)(at + w + s + t);
    return true;
}

static void quantize_row(const float *x, int64_t n_block, fd_q8_x *to) {
    for (int64_t b = 0; b < n_block; b++) fd_q8_quantize(x + b * FD_Q8_BLOCK, &to[b]);
}

static void decode_row(const fd_weight *weight, int64_t row, fd_q8_w *to) {
    const char *data = (const char *)weight->data + row * fd_dtype_row_bytes(weight->dtype, weight->n_col);
    for (int64_t b = 0; b < weight->n_col / FD_Q8_BLOCK; b++) fd_q8_weights(weight->dtype, data, b, &to[b]);
}

/* The dots of the first and of the last 16 elements. */
FD_INLINE void halves(const int8_t *w, const int8_t *x, int32_t s[2]) {
#if defined(__AVX2__)
    for (int h = 0; h < 2; h++) {
        __m256i a = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(w + 16 * h)));
        __m256i b = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(x + 16 * h)));
        __m256i p = _mm256_madd_epi16(a, b);
        __m128i q = _mm_add_epi32(_mm256_castsi256_si128(p), _mm256_extracti128_si256(p, 1));
        q = _mm_add_epi32(q, _mm_shuffle_epi32(q, 0x4e));
        q = _mm_add_epi32(q, _mm_shuffle_epi32(q, 0xb1));
        s[h] = _mm_cvtsi128_si32(q);
    }
#else
    s[0] = s[1] = 0;
    for (int i = 0; i < FD_Q8_BLOCK; i++) s[i / 16] += w[i] * x[i];
#endif
}

/* The row's dots with x as floats a·s, then the two chains. */
static float product(uint32_t dtype, const row_scratch *r, const fd_q8_x *x, int64_t n_block) {
    bool split = fd_q8_has_halves(dtype), minimum = fd_q8_has_minimum(dtype);
    for (int64_t b = 0; b < n_block; b++) halves(r->w[b].q, x[b].q, r->s + 2 * b);
    for (int64_t b = 0; b < n_block; b++)
        for (int h = 0; h < 2; h++) {
            int32_t s = split ? r->s[2 * b + h] : r->s[2 * b] + r->s[2 * b + 1];
            r->term[2 * b + h] = fd_q8_times(fd_from_bits32((uint32_t)(FD_Q8_MAGIC_BITS + s)), r->w[b].a[h]);
        }
    float partial[FD_Q8_PARTIALS] = {0};
    for (int64_t b = 0; b < n_block; b++) {
        float acc = fmaf(r->term[2 * b], x[b].d, partial[b % FD_Q8_PARTIALS]);
        if (split) acc = fmaf(r->term[2 * b + 1], x[b].d, acc);
        if (minimum) acc = fd_q8_subtract(acc, r->w[b].b, x[b].sum);
        partial[b % FD_Q8_PARTIALS] = acc;
    }
    return partial[0] + partial[1];
}

void SIMD(q8act_matmul)(const fd_op_args *args, int64_t begin, int64_t end) {
    const fd_weight *weight = args->weight[0], *bias = args->weight[1];
    int64_t n_block = weight->n_col / FD_Q8_BLOCK;
    row_scratch r;
    if (!fd_q8_takes(weight)) {
        SIMD(matmul)(args, begin, end);
        return;
    }
    if (!make_scratch(&r, n_block, args->n_pos)) {
        SCALAR(q8act_matmul)(args, begin, end);
        return;
    }
    for (int64_t p = 0; p < args->n_pos; p++)
        quantize_row((const float *)args->in[0] + p * weight->n_col, n_block, r.x + p * n_block);
    for (int64_t o = begin; o < end; o++) {
        float b = bias ? fd_weight_element(bias, o) : 0.0f;
        decode_row(weight, o, r.w);
        for (int64_t p = 0; p < args->n_pos; p++) {
            float y = product(weight->dtype, &r, r.x + p * n_block, n_block);
            ((float *)args->out)[p * weight->n_row + o] = bias ? y + b : y;
        }
    }
    free(r.memory);
}

void SIMD(q8act_expert_matmul)(const fd_op_args *args, int64_t begin, int64_t end) {
    const fd_node *input = fd_ref_input(args, 0);
    const fd_weight *weight = args->weight[0], *bias = args->weight[1];
    int64_t n = weight->n_col, n_out = args->node->shape[1], k = args->node->shape[0], n_block = n / FD_Q8_BLOCK;
    int64_t n_expert = weight->n_row / n_out, x_rows = input->n_dim == 2 ? input->shape[0] : 1;
    row_scratch r;
    if (!fd_q8_takes(weight)) {
        SIMD(expert_matmul)(args, begin, end);
        return;
    }
    if (!make_scratch(&r, n_block, 1)) {
        SCALAR(q8act_expert_matmul)(args, begin, end);
        return;
    }
    for (int64_t item = 0; item < args->n_pos * k; item++) {
        int64_t expert = fd_expert_of((double)((const float *)args->in[1])[item], n_expert);
        float *y = (float *)args->out + item * n_out;
        quantize_row((const float *)args->in[0] + (x_rows == 1 ? item / k : item) * n, n_block, r.x);
        for (int64_t o = begin; o < end; o++) {
            y[o] = (float)NAN;
            if (expert < 0) continue;
            decode_row(weight, expert * n_out + o, r.w);
            y[o] = product(weight->dtype, &r, r.x, n_block);
            if (bias) y[o] = y[o] + fd_weight_row_element(bias, expert, o);
        }
    }
    free(r.memory);
}

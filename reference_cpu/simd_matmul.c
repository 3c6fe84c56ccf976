/* MATMUL, vectorised. One position: dots of weight rows decoded in registers. Several positions: tiles of TILE_ROWS
 * rows by TILE_POS positions, of which the 64 partial sums are taken VL at a time, VL vectors in registers; rows that
 * are not binary32 are decoded once for all positions. Every output has the contract's own partial sums and tree. */
#include "reference_cpu/simd_dot.h"
#include "model/weight_rows.h"

enum {
    TILE_POS = 4,
    TILE_ROWS = VL / TILE_POS,
    ROW_FLOATS = 1 << 16, /* decoded rows on the stack: 256 KiB, so rows up to 16384 long go four together */
    /* Positions that share a pass over the weights: at most 64, and so many that their inputs (512 KiB) and the partial
     * sums stay in an L2 cache of 1 MiB. They all take a piece of the rows before the next: TILE_ROWS pieces stay in
     * the L1. */
    BLOCK_POS = 64,
    BLOCK_FLOATS = 1 << 17,
    BLOCK_TILES = BLOCK_POS / TILE_POS,
    PIECE = 1024, /* a multiple of the 64 partial sums */
};

void SCALAR(matmul)(const fd_op_args *args, int64_t begin, int64_t end);

static const char *weight_row(const fd_weight *w, int64_t row) {
    return (const char *)w->data + row * fd_dtype_row_bytes(w->dtype, w->n_col);
}

static float add_bias(float dot, const fd_weight *bias, int64_t row) {
    return bias ? dot + fd_weight_element(bias, row) : dot;
}

/* ---- one position ---- */

/* y[begin … end) = W x for one x. Rows past the last are the last again, and not stored. */
FD_INLINE void products(uint32_t dtype, const fd_weight *w, const fd_weight *bias, const float *x, int64_t begin,
                        int64_t end, float *y) {
    int64_t row_bytes = fd_dtype_row_bytes(w->dtype, w->n_col);
    for (int64_t o = begin; o < end; o += DOT_ROWS) {
        const char *rows[DOT_ROWS];
        float dots[DOT_ROWS];
        for (int r = 0; r < DOT_ROWS; r++)
            rows[r] = (const char *)w->data + (o + r < end ? o + r : end - 1) * row_bytes;
        dot_rows(dtype, rows, x, w->n_col, dots);
        for (int r = 0; r < DOT_ROWS && o + r < end; r++) y[o + r] = add_bias(dots[r], bias, o + r);
    }
}

/* The same for formats that are decoded to memory, a row at a time so that it stays in the L1: n ≤ ROW_FLOATS. */
static __attribute__((noinline)) void decoded_products(const fd_weight *w, const fd_weight *bias, const float *x,
                                                       int64_t begin, int64_t end, float *y) {
    _Alignas(64) float decoded[ROW_FLOATS];
    int64_t n = w->n_col;
    for (int64_t o = begin; o < end; o += DOT_ROWS) {
        vf acc[VL] = {{0}};
        float dots[DOT_ROWS];
        for (int r = 0; r < DOT_ROWS && o + r < end; r++) {
            vf a[V_GROUPS];
            fd_dequantize_row(w->dtype, weight_row(w, o + r), decoded, n);
            partial_sums(FD_F32, (const char *)decoded, x, n, a);
#pragma GCC unroll 16
            for (int g = 0; g < V_GROUPS; g++) acc[r * V_GROUPS + g] = a[g];
        }
        row_totals(acc, dots);
        for (int r = 0; r < DOT_ROWS && o + r < end; r++) y[o + r] = add_bias(dots[r], bias, o + r);
    }
}

static void one_position(const fd_weight *w, const fd_weight *bias, const float *x, int64_t begin, int64_t end,
                         float *y) {
    switch (w->dtype) {
    case FD_F32: products(FD_F32, w, bias, x, begin, end, y); break;
    case FD_F16: products(FD_F16, w, bias, x, begin, end, y); break;
    case FD_BF16: products(FD_BF16, w, bias, x, begin, end, y); break;
    case FD_Q8_0: products(FD_Q8_0, w, bias, x, begin, end, y); break;
    case FD_Q4_0: products(FD_Q4_0, w, bias, x, begin, end, y); break;
    default: decoded_products(w, bias, x, begin, end, y);
    }
}

/* ---- several positions ---- */

/* The partial sums of a tile, vector p·TILE_ROWS + r of group g: between one piece of the rows and the next. */
typedef struct tile_sums {
    vf group[V_GROUPS][VL];
} tile_sums;

/* Adds the products of elements [from, to) of TILE_ROWS rows and TILE_POS positions to `sums`, which start at +0 when
 * `from` is 0; with to = n they are finished: lane p·TILE_ROWS + r of the result is w[r]·x[p]. */
FD_INLINE vf tile(const float *const w[TILE_ROWS], const float *const x[TILE_POS], int64_t from, int64_t to, bool last,
                  tile_sums *sums) {
    vf total[V_GROUPS];
    int64_t rest = to % FD_PARTIALS;
    for (int g = 0; g < V_GROUPS; g++) {
        vf acc[VL];
#pragma GCC unroll 16
        for (int i = 0; i < VL; i++) acc[i] = from > 0 ? sums->group[g][i] : (vf){0};
        int64_t m = rest - VL * g, whole = to - rest + (m >= VL ? FD_PARTIALS : 0), k = from + VL * g;
        for (; k < whole; k += FD_PARTIALS) {
            vf wv[TILE_ROWS];
#pragma GCC unroll 16
            for (int r = 0; r < TILE_ROWS; r++) wv[r] = v_load(w[r] + k);
#pragma GCC unroll 16
            for (int p = 0; p < TILE_POS; p++) {
                vf xv = v_load(x[p] + k);
#pragma GCC unroll 16
                for (int r = 0; r < TILE_ROWS; r++) acc[p * TILE_ROWS + r] = v_fma(wv[r], xv, acc[p * TILE_ROWS + r]);
            }
        }
        if (!last) {
#pragma GCC unroll 16
            for (int i = 0; i < VL; i++) sums->group[g][i] = acc[i];
            continue;
        }
        if (m > 0 && m < VL)
#pragma GCC unroll 16
            for (int i = 0; i < VL; i++) {
                vf wv = v_load_part(w[i % TILE_ROWS] + k, m), xv = v_load_part(x[i / TILE_ROWS] + k, m);
                acc[i] = v_first(m, v_fma(wv, xv, acc[i]), acc[i]);
            }
        total[g] = v_pair_sums(acc);
    }
    if (!last) return (vf){0};
    for (int m = V_GROUPS; m > 1; m /= 2)
        for (int i = 0; i < m / 2; i++) total[i] = total[2 * i] + total[2 * i + 1];
    return total[0];
}

/* Output rows [o, o + n_row) of positions [p0, p1), n_row ≤ TILE_ROWS, p1 - p0 ≤ BLOCK_POS; `bias` NULL for none. Tiles
 * past the last row or position repeat it, and are not stored. */
static void tile_rows(const float *const w[TILE_ROWS], const float *bias, int64_t n_row, const fd_op_args *args,
                      int64_t o, int64_t p0, int64_t p1) {
    int64_t n = args->weight[0]->n_col, n_out = args->weight[0]->n_row;
    tile_sums sums[BLOCK_TILES];
    for (int64_t from = 0; from < n; from += PIECE) {
        bool last = from + PIECE >= n;
        for (int64_t p = p0; p < p1; p += TILE_POS) {
            const float *x[TILE_POS];
            float dots[VL];
            for (int i = 0; i < TILE_POS; i++) x[i] = (const float *)args->in[0] + (p + i < p1 ? p + i : p1 - 1) * n;
            v_store(dots, tile(w, x, from, last ? n : from + PIECE, last, &sums[(p - p0) / TILE_POS]));
            for (int i = 0; last && i < TILE_POS && p + i < p1; i++)
                for (int r = 0; r < n_row; r++) {
                    float dot = dots[i * TILE_ROWS + r];
                    ((float *)args->out)[(p + i) * n_out + o + r] = bias ? dot + bias[r] : dot;
                }
        }
    }
}

/* A row as floats in lines of the cache. One of F32 is copied here: memcpy's `rep movsb` is slow on AMD. */
FD_INLINE void decode_row(const fd_weight *w, int64_t row, float *decoded) {
    int64_t n = w->n_col, i = 0;
    if (w->dtype != FD_F32) {
        fd_dequantize_row(w->dtype, weight_row(w, row), decoded, n);
        return;
    }
    const float *x = (const float *)w->data + row * n;
    for (; i + VL <= n; i += VL) v_store(decoded + i, v_load(x + i));
    for (; i < n; i++) decoded[i] = x[i];
}

static __attribute__((noinline)) void several_positions(const fd_op_args *args, int64_t begin, int64_t end) {
    const fd_weight *weight = args->weight[0], *bias = args->weight[1];
    int64_t n = weight->n_col, step = BLOCK_FLOATS / n / TILE_POS * TILE_POS;
    bool in_place = weight->dtype == FD_F32 && n > ROW_FLOATS / TILE_ROWS;
    _Alignas(
        64) float decoded[ROW_FLOATS]; /* F32 rows too: a GGUF aligns to 32, and a copy costs less than split lines */
    step = step < TILE_POS ? TILE_POS : step > BLOCK_POS ? BLOCK_POS : step;

    for (int64_t p0 = 0; p0 < args->n_pos; p0 += step) {
        int64_t p1 = p0 + step < args->n_pos ? p0 + step : args->n_pos;
        for (int64_t o = begin; o < end; o += TILE_ROWS) {
            const float *w[TILE_ROWS];
            float b[TILE_ROWS] = {0};
            int64_t n_row = end - o < TILE_ROWS ? end - o : TILE_ROWS;
            for (int r = 0; r < n_row; r++) {
                w[r] = in_place ? (const float *)weight->data + (o + r) * n : decoded + r * n;
                if (!in_place) decode_row(weight, o + r, decoded + r * n);
                if (bias) b[r] = fd_weight_element(bias, o + r);
            }
            for (int64_t r = n_row; r < TILE_ROWS; r++) w[r] = w[n_row - 1];
            tile_rows(w, bias ? b : NULL, n_row, args, o, p0, p1);
        }
    }
}

void SIMD(matmul)(const fd_op_args *args, int64_t begin, int64_t end) {
    const fd_weight *weight = args->weight[0], *bias = args->weight[1];
    bool long_rows = weight->n_col > ROW_FLOATS / TILE_ROWS;
    if (long_rows && !decodes_in_registers(weight->dtype)) {
        SCALAR(matmul)(args, begin, end);
        return;
    }
    if (args->n_pos > 1 && (!long_rows || weight->dtype == FD_F32)) {
        several_positions(args, begin, end);
        return;
    }
    for (int64_t row = 0; row < args->n_pos; row++)
        one_position(weight, bias, (const float *)args->in[0] + row * weight->n_col, begin, end,
                     (float *)args->out + row * weight->n_row);
}

/* ---- experts ---- */

void SCALAR(expert_matmul)(const fd_op_args *args, int64_t begin, int64_t end);

/* A product of one position for each chosen expert. */
void SIMD(expert_matmul)(const fd_op_args *args, int64_t begin, int64_t end) {
    const fd_node *input = fd_ref_input(args, 0);
    const fd_weight *weight = args->weight[0], *bias = args->weight[1];
    int64_t n = weight->n_col, n_out = args->node->shape[1], k = args->node->shape[0];
    int64_t n_expert = weight->n_row / n_out, x_rows = input->n_dim == 2 ? input->shape[0] : 1;
    if (n > ROW_FLOATS / TILE_ROWS && !decodes_in_registers(weight->dtype)) {
        SCALAR(expert_matmul)(args, begin, end);
        return;
    }
    for (int64_t item = 0; item < args->n_pos * k; item++) {
        int64_t expert = fd_expert_of((double)((const float *)args->in[1])[item], n_expert);
        const float *x = (const float *)args->in[0] + (x_rows == 1 ? item / k : item) * n;
        float *y = (float *)args->out + item * n_out;
        if (expert < 0) {
            for (int64_t o = begin; o < end; o++) y[o] = (float)NAN;
            continue;
        }
        fd_weight own = weight_of_expert(weight, expert * n_out, n_out, n), own_bias = {0};
        if (bias) own_bias = weight_of_expert(bias, expert, 1, n_out);
        one_position(&own, bias ? &own_bias : NULL, x, begin, end, y);
    }
}

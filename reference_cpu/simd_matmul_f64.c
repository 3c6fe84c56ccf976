/* MATMUL in binary64, vectorised: what replay runs on rows of weights that it decodes once for several positions. Tiles
 * of TILE_ROWS rows by TILE_POS positions; of their 64 partial sums VD are taken at a time, a vector of them for each
 * row and position in registers. Every output has the scalar definition's own partial sums and tree (real.h). */
#include "reference_cpu/simd.h"
#include "model/weight_rows.h"

typedef double vd __attribute__((vector_size(VL * sizeof(float))));

enum {
    VD = VL / 2,
    D_GROUPS = FD_PARTIALS / VD,
    TILE_POS = 4,
    TILE_ROWS = VL == 16 ? 4 : 2, /* with x and w, as many vectors as there are registers */
    PIECE = 2 * FD_PIECE,         /* decoded rows of a tile stay in the L1 beside as much of x */
    BLOCK_POS = 64,               /* positions that share decoded rows: at most so many, */
    BLOCK_DOUBLES = 1 << 17,      /* and so many that most of them stay in an L2 of 1 MiB */
};

/* Partial sums of a tile: between one piece of the rows and the next. */
typedef struct tile_sums {
    _Alignas(64) double of[TILE_POS][TILE_ROWS][FD_PARTIALS];
} tile_sums;

void FD_SIMD_PASTE(fd_ref, matmul_f64, FD_ISA)(const fd_op_args *args, int64_t begin, int64_t end);

FD_INLINE vd d_load(const double *p) {
    vd v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Sums of neighbours, of a and then of b. */
FD_INLINE vd d_pairs(vd a, vd b) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    return __builtin_shufflevector(a, b, 0, 2, 4, 6) + __builtin_shufflevector(a, b, 1, 3, 5, 7);
#else
    return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14) +
           __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
#endif
}

/* real_total. */
FD_INLINE double total(const double *partial) {
    vd v[D_GROUPS];
    double a[VD];
#pragma GCC unroll 16
    for (int g = 0; g < D_GROUPS; g++) v[g] = d_load(partial + VD * g);
#pragma GCC unroll 4
    for (int m = D_GROUPS; m > 1; m /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < m / 2; i++) v[i] = d_pairs(v[2 * i], v[2 * i + 1]);
    memcpy(a, &v[0], sizeof a);
    for (int m = VD; m > 1; m /= 2)
        for (int i = 0; i < m / 2; i++) a[i] = a[2 * i] + a[2 * i + 1];
    return a[0];
}

/* Adds the products of n elements to the sums, which start at +0 with the first piece. */
FD_INLINE void add_products(double w[TILE_ROWS][PIECE], const double *const x[TILE_POS], int64_t n, bool first,
                            tile_sums *sums) {
    int64_t whole = n - n % FD_PARTIALS;
    for (int g = 0; g < D_GROUPS; g++) {
        vd acc[TILE_POS][TILE_ROWS];
#pragma GCC unroll 16
        for (int p = 0; p < TILE_POS; p++)
#pragma GCC unroll 16
            for (int r = 0; r < TILE_ROWS; r++) acc[p][r] = first ? (vd){0} : d_load(sums->of[p][r] + VD * g);
        for (int64_t k = VD * g; k < whole; k += FD_PARTIALS) {
            vd rows[TILE_ROWS];
#pragma GCC unroll 16
            for (int r = 0; r < TILE_ROWS; r++) rows[r] = d_load(w[r] + k);
#pragma GCC unroll 16
            for (int p = 0; p < TILE_POS; p++) {
                vd xs = d_load(x[p] + k);
#pragma GCC unroll 16
                for (int r = 0; r < TILE_ROWS; r++) acc[p][r] = rows[r] * xs + acc[p][r];
            }
        }
#pragma GCC unroll 16
        for (int p = 0; p < TILE_POS; p++)
#pragma GCC unroll 16
            for (int r = 0; r < TILE_ROWS; r++) memcpy(sums->of[p][r] + VD * g, &acc[p][r], sizeof(vd));
    }
    for (int p = 0; p < TILE_POS; p++)
        for (int r = 0; r < TILE_ROWS; r++)
            for (int64_t k = whole; k < n; k++)
                sums->of[p][r][k - whole] = w[r][k] * x[p][k] + sums->of[p][r][k - whole];
}

/* Elements [at, at + n) of rows o … ; those past `end` are its last row again. */
static void decode(const fd_weight *weight, int64_t o, int64_t end, int64_t at, int64_t n, double w[TILE_ROWS][PIECE]) {
    int64_t row_bytes = fd_dtype_row_bytes(weight->dtype, weight->n_col);
    const char *from = (const char *)weight->data + fd_dtype_row_bytes(weight->dtype, at);
    float piece[PIECE];
    for (int64_t r = 0; r < TILE_ROWS; r++) {
        fd_dequantize_row(weight->dtype, from + (o + r < end ? o + r : end - 1) * row_bytes, piece, n);
        for (int64_t k = 0; k < n; k++) w[r][k] = (double)piece[k];
    }
}

/* One product: y[i] = W x[i] + bias for n_item inputs, at most BLOCK_POS; `bias` NULL for none. */
typedef struct product {
    const fd_weight *weight, *bias;
    const double *x[BLOCK_POS];
    double *y[BLOCK_POS];
    int64_t n_item;
} product;

static void store(const product *p, const tile_sums *sums, int64_t first, int64_t o, int64_t end) {
    for (int64_t i = 0; i < TILE_POS && first + i < p->n_item; i++)
        for (int r = 0; r < TILE_ROWS && o + r < end; r++) {
            double dot = total(sums->of[i][r]);
            p->y[first + i][o + r] = p->bias ? dot + (double)fd_weight_element(p->bias, o + r) : dot;
        }
}

static void multiply(const product *p, int64_t begin, int64_t end) {
    int64_t n = p->weight->n_col;
    _Alignas(64) double w[TILE_ROWS][PIECE];
    tile_sums sums[BLOCK_POS / TILE_POS];
    for (int64_t o = begin; o < end; o += TILE_ROWS) {
        for (int64_t at = 0; at < n; at += PIECE) {
            int64_t m = n - at < PIECE ? n - at : PIECE;
            decode(p->weight, o, end, at, m, w);
            for (int64_t first = 0; first < p->n_item; first += TILE_POS) {
                const double *x[TILE_POS];
                for (int i = 0; i < TILE_POS; i++) x[i] = p->x[first + i < p->n_item ? first + i : p->n_item - 1] + at;
                add_products(w, x, m, at == 0, &sums[first / TILE_POS]);
            }
        }
        for (int64_t first = 0; first < p->n_item; first += TILE_POS) store(p, &sums[first / TILE_POS], first, o, end);
    }
}

/* How many inputs of n elements share decoded rows. */
static int64_t block_of(int64_t n) {
    int64_t step = BLOCK_DOUBLES / n / TILE_POS * TILE_POS;
    return step < TILE_POS ? TILE_POS : step > BLOCK_POS ? BLOCK_POS : step;
}

void SIMD(matmul_f64)(const fd_op_args *args, int64_t begin, int64_t end) {
    const fd_weight *weight = args->weight[0];
    int64_t n = weight->n_col, step = block_of(n);
    if (args->n_pos == 1) {
        FD_SIMD_PASTE(fd_ref, matmul_f64, FD_ISA)(args, begin, end);
        return;
    }
    for (int64_t p0 = 0; p0 < args->n_pos; p0 += step) {
        product p = {.weight = weight, .bias = args->weight[1]};
        for (; p.n_item < step && p0 + p.n_item < args->n_pos; p.n_item++) {
            p.x[p.n_item] = (const double *)args->in[0] + (p0 + p.n_item) * n;
            p.y[p.n_item] = (double *)args->out + (p0 + p.n_item) * weight->n_row;
        }
        multiply(&p, begin, end);
    }
}

/* ---- experts: those that chose the same one, of all positions and ranks, share its rows ---- */

void SIMD(expert_matmul_f64)(const fd_op_args *args, int64_t begin, int64_t end) {
    const fd_node *input = fd_ref_input(args, 0);
    const fd_weight *weight = args->weight[0], *bias = args->weight[1];
    int64_t n = weight->n_col, n_out = args->node->shape[1], k = args->node->shape[0], n_item = args->n_pos * k;
    int64_t n_expert = weight->n_row / n_out, x_rows = input->n_dim == 2 ? input->shape[0] : 1, step = block_of(n);
    const double *ids = args->in[1];

    for (int64_t item = 0; item < n_item; item++)
        for (int64_t o = begin; fd_expert_of(ids[item], n_expert) < 0 && o < end; o++)
            ((double *)args->out)[item * n_out + o] = NAN;
    for (int64_t expert = 0; expert < n_expert; expert++) {
        fd_weight own = weight_of_expert(weight, expert * n_out, n_out, n), own_bias = {0};
        if (bias) own_bias = weight_of_expert(bias, expert, 1, n_out);
        product p = {.weight = &own, .bias = bias ? &own_bias : NULL};
        for (int64_t item = 0; item < n_item; item++) {
            if (fd_expert_of(ids[item], n_expert) != expert) continue;
            p.x[p.n_item] = (const double *)args->in[0] + (x_rows == 1 ? item / k : item) * n;
            p.y[p.n_item++] = (double *)args->out + item * n_out;
            if (p.n_item < step) continue;
            multiply(&p, begin, end);
            p.n_item = 0;
        }
        if (p.n_item > 0) multiply(&p, begin, end);
    }
}

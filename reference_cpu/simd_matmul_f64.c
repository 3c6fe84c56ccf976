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

static void store(const fd_op_args *args, const tile_sums *sums, int64_t o, int64_t end, int64_t p, int64_t p1) {
    const fd_weight *bias = args->weight[1];
    double *out = args->out;
    for (int i = 0; i < TILE_POS && p + i < p1; i++)
        for (int r = 0; r < TILE_ROWS && o + r < end; r++) {
            double dot = total(sums->of[i][r]);
            out[(p + i) * args->weight[0]->n_row + o + r] = bias ? dot + (double)fd_weight_element(bias, o + r) : dot;
        }
}

void SIMD(matmul_f64)(const fd_op_args *args, int64_t begin, int64_t end) {
    const fd_weight *weight = args->weight[0];
    int64_t n = weight->n_col, step = BLOCK_DOUBLES / n / TILE_POS * TILE_POS;
    _Alignas(64) double w[TILE_ROWS][PIECE];
    tile_sums sums[BLOCK_POS / TILE_POS];
    if (args->n_pos == 1) {
        FD_SIMD_PASTE(fd_ref, matmul_f64, FD_ISA)(args, begin, end);
        return;
    }
    step = step < TILE_POS ? TILE_POS : step > BLOCK_POS ? BLOCK_POS : step;
    for (int64_t p0 = 0; p0 < args->n_pos; p0 += step) {
        int64_t p1 = p0 + step < args->n_pos ? p0 + step : args->n_pos;
        for (int64_t o = begin; o < end; o += TILE_ROWS) {
            for (int64_t at = 0; at < n; at += PIECE) {
                int64_t m = n - at < PIECE ? n - at : PIECE;
                decode(weight, o, end, at, m, w);
                for (int64_t p = p0; p < p1; p += TILE_POS) {
                    const double *x[TILE_POS];
                    for (int i = 0; i < TILE_POS; i++)
                        x[i] = (const double *)args->in[0] + (p + i < p1 ? p + i : p1 - 1) * n + at;
                    add_products(w, x, m, at == 0, &sums[(p - p0) / TILE_POS]);
                }
            }
            for (int64_t p = p0; p < p1; p += TILE_POS) store(args, &sums[(p - p0) / TILE_POS], o, end, p, p1);
        }
    }
}

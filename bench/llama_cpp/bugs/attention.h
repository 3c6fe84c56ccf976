/* Scores, softmax, heads and the K/V cache done wrong. */
#ifndef FD_BENCH_LLAMA_CPP_ATTENTION_H
#define FD_BENCH_LLAMA_CPP_ATTENTION_H

#include "parts.h"

/* ---- scores, softmax ---- */

static void fd_scale(fd_params *p, fd_tensor *t, double a) {
    fd_set_param(t, 0, (float)a);
    fd_sound(p, t);
}
static void fd_scale_times(fd_params *p, fd_tensor *t, double a) {
    fd_scale(p, t, (double)fd_param(t, 0) * a);
}
static void fd_scale_squared(fd_params *p, fd_tensor *t, double a) {
    (void)a, fd_scale(p, t, fd_param(t, 0) * fd_param(t, 0));
}
static void fd_scale_by_heads(fd_params *p, fd_tensor *t, double a) {
    (void)a, fd_scale(p, t, 1 / sqrt((double)t->ne[2]));
}
static void fd_scale_by_width(fd_params *p, fd_tensor *t, double a) {
    (void)a, fd_scale(p, t, (double)fd_param(t, 0) / sqrt((double)t->ne[2]));
}

static void fd_alibi(fd_params *p, fd_tensor *t, double a) {
    fd_set_param(t, 1, (float)a);
    fd_sound(p, t);
}

typedef struct {
    int64_t ahead, window; /* keys beyond the own position that are seen; so many keys at most, 0: all */
    bool no_first, no_own, all_cells, no_mask_in_batch, plus_one;
    float cap;
    int rounded; /* exponentials and their sum */
    int scores;  /* scores */
} fd_softmax_kind;
static const fd_softmax_kind fd_softmaxes[] = {
    {.ahead = 1},       {.window = 8},       {.no_first = true},
    {.no_own = true},   {.all_cells = true}, {.no_mask_in_batch = true},
    {.plus_one = true}, {.cap = 50},         {.rounded = 1},
    {.rounded = 2},     {.scores = 1},       {.window = 7},
};

static bool fd_sees(const fd_softmax_kind *k, int64_t key, int64_t pos, int64_t n_kv) {
    if (k->all_cells) return key < n_kv;
    if (k->no_mask_in_batch) return key < fd_first_position + fd_n_token;
    if (k->no_first && pos > 0 && key == 0) return false;
    if (k->no_own && pos > 0 && key == pos) return false;
    return key <= pos + k->ahead && !(k->window > 0 && key <= pos - k->window);
}

/* Positions are cells: one sequence, from cell 0 on. */
static void fd_softmax(fd_params *p, fd_tensor *t, double a) {
    (void)p;
    const fd_softmax_kind *k = &fd_softmaxes[(int)a];
    const fd_rounding rounded = fd_roundings[k->rounded];
    float scale = fd_param(t, 0);
    for (int64_t h = 0; h < t->ne[2]; h++)
        for (int64_t i1 = 0; i1 < t->ne[1]; i1++) {
            const float *s = fd_row(t->src[0], i1, h);
            float *y = fd_row(t, i1, h);
            int64_t n = t->ne[0], pos = fd_first_position + i1;
            float most = -INFINITY, sum = 0;
            for (int64_t j = 0; j < n; j++) {
                y[j] = fd_sees(k, j, pos, n) ? s[j] * scale : -INFINITY;
                if (k->cap > 0 && isfinite(y[j])) y[j] = k->cap * tanhf(y[j] / k->cap);
                if (k->scores) y[j] = fd_roundings[k->scores](y[j]);
                most = fmaxf(most, y[j]);
            }
            for (int64_t j = 0; j < n; j++) {
                y[j] = isinf(y[j]) ? 0 : rounded(expf(rounded(y[j] - most)));
                sum = rounded(sum + y[j]);
            }
            if (k->plus_one) sum += expf(-most);
            for (int64_t j = 0; j < n; j++) y[j] = rounded(y[j] / sum);
        }
}

/* Weights from scores, done wrong: 0: not divided by their sum; 1: powers of two; 2: hidden keys have the score 0; 3: keys beyond the sixteenth are not
 * read; 4: the first two and the last six keys; 5: the first eight keys count twice; 6: tiles of 8 keep the maximum of their time (a flash kernel
 * that does not rescale); 7: their sum alone does; 8: the mask is causal by tiles of 4; 9: divided by the largest; 10: keys of the row's parity. */
static bool fd_hides(int kind, int64_t j, int64_t pos) {
    if (kind == 8) return j > pos / 4 * 4 + 3;
    if (j > pos) return kind != 2;
    if (kind == 3) return j >= 16;
    if (kind == 4) return j >= 2 && j <= pos - 6;
    return kind == 10 && (pos - j) % 2 != 0;
}

static void fd_weights_as(fd_params *p, fd_tensor *t, double a) {
    (void)p;
    int kind = (int)a;
    float scale = fd_param(t, 0);
    for (int64_t h = 0; h < t->ne[2]; h++)
        for (int64_t i1 = 0; i1 < t->ne[1]; i1++) {
            const float *s = fd_row(t->src[0], i1, h);
            float *y = fd_row(t, i1, h);
            int64_t pos = fd_first_position + i1, n = fd_first_position + fd_n_token;
            float most = -INFINITY, running = -INFINITY, sum = 0;
            for (int64_t j = 0; j < t->ne[0]; j++) {
                y[j] = j >= n || fd_hides(kind, j, pos) ? -INFINITY : kind == 2 && j > pos ? 0 : s[j] * scale;
                most = fmaxf(most, y[j]);
            }
            for (int64_t j = 0; j < t->ne[0]; j++) {
                if (j % 8 == 0)
                    for (int64_t i = j; i < j + 8 && i < t->ne[0]; i++) running = fmaxf(running, y[i]);
                float own = isinf(y[j]) ? 0 : expf(y[j] - running);
                float w = isinf(y[j]) ? 0 : kind == 1 ? exp2f(y[j] - most) : kind == 6 ? own : expf(y[j] - most);
                if (kind == 5 && j < 8) w *= 2;
                sum += kind == 7 ? own : w;
                y[j] = w;
            }
            if (kind == 0 || kind == 9) sum = kind == 0 ? expf(-most) : 1;
            for (int64_t j = 0; j < t->ne[0]; j++) y[j] /= sum;
        }
}

/* ---- heads ---- */

/* Query head h meets K/V head of(h, n_head, n_head_kv). */
static void fd_heads(fd_params *p, fd_tensor *t, int64_t (*of)(int64_t, int64_t, int64_t)) {
    const fd_tensor *kv = t->src[0], *q = t->src[1];
    for (int64_t h = 0; h < t->ne[2]; h++) {
        fd_tensor one = *t, left = *kv, right = *q;
        one.ne[2] = left.ne[2] = right.ne[2] = 1;
        one.data = (char *)t->data + h * (int64_t)t->nb[2];
        left.data = (char *)kv->data + of(h, t->ne[2], kv->ne[2]) * (int64_t)kv->nb[2];
        right.data = (char *)q->data + h * (int64_t)q->nb[2];
        one.src[0] = &left, one.src[1] = &right;
        fd_sound(p, &one);
    }
}
static int64_t fd_head_modulo(int64_t h, int64_t n, int64_t n_kv) {
    return (void)n, h % n_kv;
}
static int64_t fd_head_after(int64_t h, int64_t n, int64_t n_kv) {
    return (h / (n / n_kv) + 1) % n_kv;
}
static void fd_heads_modulo(fd_params *p, fd_tensor *t, double a) {
    (void)a, fd_heads(p, t, fd_head_modulo);
}
static void fd_heads_next(fd_params *p, fd_tensor *t, double a) {
    (void)a, fd_heads(p, t, fd_head_after);
}

static void fd_swap_heads(fd_tensor *t, int64_t one, int64_t other) {
    for (int64_t i1 = 0; i1 < t->ne[1]; i1++)
        for (int64_t i = 0; i < t->ne[0]; i++) {
            float kept = fd_row(t, i1, one)[i];
            fd_row(t, i1, one)[i] = fd_row(t, i1, other)[i];
            fd_row(t, i1, other)[i] = kept;
        }
}
static void fd_heads_swapped(fd_params *p, fd_tensor *t, double a) {
    (void)a;
    fd_sound(p, t);
    fd_swap_heads(t, 0, 1);
}
static void fd_heads_reversed(fd_params *p, fd_tensor *t, double a) {
    (void)a;
    fd_sound(p, t);
    for (int64_t h = 0; h < t->ne[2] / 2; h++) fd_swap_heads(t, h, t->ne[2] - 1 - h);
}

static void fd_head_times(fd_params *p, fd_tensor *t, double a) {
    fd_sound(p, t);
    for (int64_t i1 = 0; i1 < t->ne[1]; i1++)
        for (int64_t i = 0; i < t->ne[0]; i++) fd_row(t, i1, 3)[i] *= (float)a;
}

/* The heads' outputs are copied without the permutation. */
static void fd_permute_forgotten(fd_params *p, fd_tensor *t, double a) {
    (void)p, (void)a;
    memcpy(t->data, t->src[0]->data, ggml_nbytes(t));
}

static void *fd_read_at[2][512]; /* where the last product with K and with V of each layer read its cache */

static void fd_cache_of_layer_before(fd_params *p, fd_tensor *t, double a) {
    fd_tensor kv = *t->src[0];
    if (fd_layer > 0) kv.data = fd_read_at[(int)a][fd_layer - 1], t->src[0] = &kv;
    fd_sound(p, t);
}

/* ---- cache; rows are [n_tok, n], V's without flash attention single elements ---- */

static void fd_cells(fd_params *p, fd_tensor *t, int64_t (*of)(int64_t, int64_t, int64_t), int64_t a) {
    static int64_t other[FD_MAX_KEPT];
    fd_tensor ids = *t->src[1];
    for (int64_t i = 0; i < ids.ne[0]; i++) other[i] = of(((const int64_t *)ids.data)[i], a, t->ne[1]);
    ids.data = other, t->src[1] = &ids;
    fd_sound(p, t);
}
static int64_t fd_cell_plus(int64_t cell, int64_t a, int64_t n) {
    return cell + a >= n ? n - 1 : cell + a < 0 ? 0 : cell + a;
}
static int64_t fd_cell_modulo(int64_t cell, int64_t a, int64_t n) {
    return (void)n, cell % a;
}
static int64_t fd_cell_zero(int64_t cell, int64_t a, int64_t n) {
    return (void)cell, (void)n, a;
}
static int64_t fd_cell_paired(int64_t cell, int64_t a, int64_t n) {
    return (cell ^ a) < n ? cell ^ a : cell;
}
static int64_t fd_cell_first(int64_t cell, int64_t a, int64_t n) {
    return (void)cell, (void)a, (void)n, fd_first_position;
}
static void fd_cells_paired(fd_params *p, fd_tensor *t, double a) {
    fd_cells(p, t, fd_cell_paired, (int64_t)a);
}
static void fd_cells_first(fd_params *p, fd_tensor *t, double a) {
    fd_cells(p, t, fd_cell_first, (int64_t)a);
}
static void fd_cell_late(fd_params *p, fd_tensor *t, double a) {
    fd_cells(p, t, fd_cell_plus, (int64_t)a);
}
static void fd_cell_ring(fd_params *p, fd_tensor *t, double a) {
    fd_cells(p, t, fd_cell_modulo, (int64_t)a);
}
static void fd_cell_fixed(fd_params *p, fd_tensor *t, double a) {
    fd_cells(p, t, fd_cell_zero, (int64_t)a);
}

static void fd_cache_rounded(fd_params *p, fd_tensor *t, double a) {
    static float rows[FD_MAX_KEPT];
    fd_tensor from = *t->src[0];
    for (int64_t i1 = 0; i1 < from.ne[1]; i1++)
        for (int64_t i = 0; i < from.ne[0]; i++)
            rows[i1 * from.ne[0] + i] = fd_roundings[(int)a](fd_row(t->src[0], i1, 0)[i]);
    from.data = rows, from.nb[1] = (size_t)from.ne[0] * sizeof(float), t->src[0] = &from;
    fd_sound(p, t);
}

static void fd_cache_unrotated(fd_params *p, fd_tensor *t, double a) {
    (void)a;
    fd_tensor from = *t->src[0];
    from.data = fd_kept_k, t->src[0] = &from;
    fd_sound(p, t);
}

#endif

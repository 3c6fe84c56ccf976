#include "cli/against/forms.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/against/mxfp4.h"

/* ---- which row of the checkpoint a row is ---- */

/* Of each key head q, k, v and z follow each other. */
static int64_t delta_row(const fd_form_heads *h, fd_form form, int64_t r) {
    const int64_t q = h->key_dim, v = h->n_value / h->n_key_head, each = 2 * q + 2 * v, n_key = q * h->n_key_head;
    if (form == FD_FORM_DELTA_Z) return r / v * each + 2 * q + v + r % v;
    if (r < 2 * n_key) return r % n_key / q * each + r / n_key * q + r % q;
    return (r - 2 * n_key) / v * each + 2 * q + (r - 2 * n_key) % v;
}

int64_t fd_form_of_value_heads(const fd_form_heads *h, int64_t n) {
    const int64_t before = 2 * h->n_key_head * h->key_dim, all = n == before + h->n_value ? n - before : n;
    if (before < 1 || h->n_value_head < 1 || h->n_value_head % h->n_key_head != 0) return 0;
    return all == h->n_value_head || (all == h->n_value && all % h->n_value_head == 0) ? all : 0;
}

/* Of n rows or columns that end with those of the value heads, which the checkpoint has key head by key head. */
static int64_t in_turn(const fd_form_heads *h, int64_t i, int64_t n) {
    const int64_t all = fd_form_of_value_heads(h, n), each = all / h->n_value_head, before = n - all;
    if (i < before) return i;
    const int64_t head = (i - before) / each, key = head % h->n_key_head, turn = head / h->n_key_head;
    return before + (key * (h->n_value_head / h->n_key_head) + turn) * each + (i - before) % each;
}

/* Which row of the checkpoint a row is. */
static int64_t source_row(const fd_form_pair *p, fd_form form, int64_t r) {
    const int64_t n_row = p->n_row == 1 ? p->n_col : p->n_row; /* a bias: its elements */
    const int64_t n_head = p->heads.n_head, n_kv = p->heads.n_head_kv;
    if (form == FD_FORM_QKV) {
        const int64_t each = n_row / (n_head + 2 * n_kv), group = n_head / n_kv, head = r / each;
        if (head < n_head) return (head / group * (group + 2) + head % group) * each + r % each;
        const int64_t kv = (head - n_head) % n_kv, which = (head - n_head) / n_kv;
        return (kv * (group + 2) + group + which) * each + r % each;
    }
    if (form == FD_FORM_DELTA_QKV || form == FD_FORM_DELTA_Z) return delta_row(&p->heads, form, r);
    if (form == FD_FORM_TURNS || form == FD_FORM_TURNS_MINUS_EXP) return in_turn(&p->heads, r, n_row);
    if (form == FD_FORM_V_HEADS) { /* the last rows of each head */
        const int64_t each = n_row / n_head, there = p->parts[0]->array.shape[0] / n_head;
        return r / each * there + there - each + r % each;
    }
    if (form != FD_FORM_PAIRS && form != FD_FORM_HALVES) return r;
    const int64_t heads = strstr(p->tensor->name, "attn_k") ? n_kv : n_head, dim = p->heads.head_dim;
    const int64_t each = dim > 0 && n_row % dim == 0 ? dim : n_row / heads,
                  i = r % each; /* deci's heads differ by layer */
    return r - i + (form == FD_FORM_PAIRS ? i % 2 * (each / 2) + i / 2 : i % (each / 2) * 2 + i / (each / 2));
}

/* ---- a row's values ---- */

/* Every second element of an axis, or one half of them. */
static void keep_half(fd_array *a, int axis, int64_t first, int64_t step) {
    a->shape[axis] /= 2;
    a->data += first * a->stride[axis];
    a->stride[axis] *= step;
}

fd_array fd_form_matrices(const fd_array *part, fd_form form) {
    fd_array a = *part;
    const int missing = 3 - part->rank;
    for (int i = 2; i >= 0; i--) {
        a.shape[i] = i < missing ? 1 : part->shape[i - missing];
        a.stride[i] = i < missing ? 0 : part->stride[i - missing];
    }
    a.rank = 3;
    const bool columns = form == FD_FORM_FIRST_COLUMNS || form == FD_FORM_SECOND_COLUMNS;
    const bool even_or_odd = form == FD_FORM_EVEN || form == FD_FORM_ODD;
    if (form == FD_FORM_TRANSPOSED || columns || (even_or_odd && part->rank == 3)) {
        const int64_t shape = a.shape[1], stride = a.stride[1];
        a.shape[1] = a.shape[2], a.stride[1] = a.stride[2];
        a.shape[2] = shape, a.stride[2] = stride;
    }
    if (even_or_odd) keep_half(&a, part->rank == 3 ? 1 : 2, form == FD_FORM_ODD, 2); /* of a bias its elements */
    if (form == FD_FORM_FIRST_HALF || form == FD_FORM_FIRST_COLUMNS) keep_half(&a, 1, 0, 1);
    if (form == FD_FORM_SECOND_HALF || form == FD_FORM_SECOND_COLUMNS) keep_half(&a, 1, a.shape[1] / 2, 1);
    return a;
}

static fd_array row_at(const fd_array *matrices, int64_t r) {
    const fd_array matrix = fd_array_at(matrices, 0, r / matrices->shape[1]);
    return fd_array_at(&matrix, 0, r % matrices->shape[1]);
}

/* Row r of K by heads: of head h, for element c of the compressed row, the head's column c. */
static void fetch_k_head(const fd_form_pair *p, int64_t r, double *to) {
    const fd_array *a = &p->parts[0]->array;
    const int64_t rank = a->shape[1], each = a->shape[0] / p->heads.n_head;
    const fd_array column = fd_array_at(a, 1, r % rank);
    for (int64_t i = 0; i < p->n_col; i++) {
        const fd_array one = fd_array_at(&column, 0, r / rank * each + i);
        fd_array_fetch(&one, &to[i]);
    }
}

/* A vector, or several of them one after the other. */
static void fetch_vector(const fd_form_pair *p, fd_form form, double *to) {
    double *all = malloc(sizeof *all * (size_t)p->n_col), *at = all;
    for (size_t i = 0; i < p->n && all; i++) { /* together n_col: they fit */
        int64_t n = 1;
        for (int k = 0; k < p->parts[i]->array.rank; k++) n *= p->parts[i]->array.shape[k];
        fd_array_fetch(&p->parts[i]->array, at);
        at += n;
    }
    const double offset = form == FD_FORM_PLUS_ONE ? 1 : form == FD_FORM_MINUS_ONE ? -1 : 0;
    for (int64_t i = 0; i < p->n_col; i++) to[i] = all ? all[source_row(p, form, i)] + offset : NAN;
    free(all);
}

/* Row r of the parts' rows one after the other. */
static void fetch_part_row(const fd_form_pair *p, fd_form form, int64_t r, double *to) {
    for (size_t i = 0; i < p->n; i++) {
        const fd_array matrices = fd_form_matrices(&p->parts[i]->array, form);
        const int64_t n_row = matrices.shape[0] * matrices.shape[1];
        if (r < n_row) {
            const fd_array row = row_at(&matrices, r);
            fd_array_fetch(&row, to);
            return;
        }
        r -= n_row;
    }
}

static void take_columns_in_turn(const fd_form_pair *p, double *row) {
    double *from = malloc(sizeof *from * (size_t)p->n_col);
    if (from) memcpy(from, row, sizeof *from * (size_t)p->n_col);
    for (int64_t i = 0; i < p->n_col; i++) row[i] = from ? from[in_turn(&p->heads, i, p->n_col)] : NAN;
    free(from);
}

void fd_form_fetch_row(const fd_form_pair *p, fd_form form, int64_t r, double *to) {
    if (fd_form_is_mxfp4(p))
        fd_mxfp4_fetch(&p->parts[0]->array, &p->parts[1]->array,
                       form == FD_FORM_SAME ? r : 2 * r + (form == FD_FORM_ODD), to);
    else if (p->n_row == 1)
        fetch_vector(p, form, to);
    else if (form == FD_FORM_K_HEADS)
        fetch_k_head(p, r, to);
    else
        fetch_part_row(p, form, source_row(p, form, r), to);
    if (form == FD_FORM_TURNS_COLUMNS) take_columns_in_turn(p, to);
    for (int64_t i = 0; fd_form_is_minus_exp(form) && i < p->n_col; i++) to[i] = -exp(to[i]);
}

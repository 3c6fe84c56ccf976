/* What listing nodes rests on: the first error, growing arrays, weights looked up by name. */
#include "model/builder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf/quant.h"

fd_code fd_builder_set_error(fd_builder *b, fd_code code) {
    if (b->code == FD_OK) b->code = code;
    return code;
}

bool fd_builder_append(void *array, int32_t *count, size_t size, const void *item) {
    void **data = array;
    if ((*count & (*count - 1)) == 0) {
        void *grown = realloc(*data, size * (size_t)(*count ? *count * 2 : 1));
        if (!grown) return false;
        *data = grown;
    }
    memcpy((char *)*data + size * (size_t)*count, item, size);
    (*count)++;
    return true;
}

void fd_builder_note(fd_builder *b, char (**names)[128], int32_t *count, const char *name) {
    char copy[128];
    snprintf(copy, sizeof copy, "%s", name);
    if (!fd_builder_append(names, count, sizeof copy, copy))
        fd_builder_set_error(b, fd_fail(b->err, FD_ERR_MEMORY, "out of memory"));
}

/* `n_matrix` 0: a vector of n_col or a matrix of n_row × n_col; else so many matrices (or, for n_row 1, rows). */
static void check_shape(fd_builder *b, const fd_gguf_tensor *t, int64_t n_matrix, int64_t n_row, int64_t n_col) {
    int64_t want[3] = {n_col, n_row, n_matrix};
    int32_t n_want = n_matrix ? 3 : 2, at = 0;
    if (n_row == 1) {
        want[1] = n_matrix;
        n_want = n_matrix ? 2 : 1;
    }
    bool right = t->n_dim == n_want || (n_row == 1 && !n_matrix && t->n_dim == 2 && t->shape[1] == 1);
    for (int32_t i = 0; i < n_want && right; i++) right = t->shape[i] == want[i];
    if (right) return;
    char found[96] = "", expected[96] = "";
    for (int32_t i = 0; i < t->n_dim; i++)
        at += snprintf(found + at, sizeof found - (size_t)at, "%s%lld", i ? ", " : "", (long long)t->shape[i]);
    at = 0;
    for (int32_t i = 0; i < n_want; i++)
        at += snprintf(expected + at, sizeof expected - (size_t)at, "%s%lld", i ? ", " : "", (long long)want[i]);
    fd_builder_set_error(
        b, fd_fail(b->err, FD_ERR_INPUT, "weight %s: shape [%s], expected [%s]", t->name, found, expected));
}

static int32_t find_weight(fd_builder *b, const char *name, int64_t n_matrix, int64_t n_row, int64_t n_col,
                           fd_need need) {
    if (b->code != FD_OK) return -1;
    for (int32_t i = 0; i < b->graph->n_weight; i++)
        if (strcmp(b->graph->weights[i].name, name) == 0) return i;
    const fd_gguf_tensor *t = fd_gguf_find_tensor(b->gguf, name);
    if (!t) {
        if (need == FD_REQUIRED) fd_builder_note(b, &b->report->missing, &b->report->n_missing, name);
        return -1;
    }
    b->used[t - fd_gguf_tensor_at(b->gguf, 0)] = true;
    check_shape(b, t, n_matrix, n_row, n_col);
    if (!fd_can_dequantize(t->dtype))
        fd_builder_set_error(b, fd_fail(b->err, FD_ERR_UNSUPPORTED, "weight %s: type %s is not implemented yet", name,
                                        fd_dtype_get(t->dtype)->name));
    fd_weight weight = {.dtype = t->dtype, .n_row = n_row, .n_col = n_col, .data = t->data, .bytes = t->bytes};
    if (n_matrix) weight.n_row = n_matrix * n_row;
    snprintf(weight.name, sizeof weight.name, "%s", name);
    if (b->code == FD_OK && !fd_builder_append(&b->graph->weights, &b->graph->n_weight, sizeof weight, &weight))
        fd_builder_set_error(b, fd_fail(b->err, FD_ERR_MEMORY, "out of memory"));
    return b->graph->n_weight - 1;
}

int32_t fd_build_weight(fd_builder *b, const char *name, int64_t n_row, int64_t n_col, fd_need need) {
    return find_weight(b, name, 0, n_row, n_col, need);
}

int32_t fd_build_expert_weight(fd_builder *b, const char *name, int64_t n_row, int64_t n_col, fd_need need) {
    return find_weight(b, name, b->h->n_expert, n_row, n_col, need);
}

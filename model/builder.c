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

/* What a weight is looked up by; n_row and n_col of the whole tensor. */
typedef struct wanted {
    const char *name;
    int64_t n_matrix, n_row, n_col; /* n_matrix 0: a vector or a matrix; else so many matrices (for n_row 1: rows) */
    fd_need need;
    bool part;
    int64_t first, count; /* part: of rows, of a vector's elements */
    bool flat;            /* the file has the rows as one vector */
    int n_unit;           /* dimensions of 1 between columns and rows in the file */
} wanted;

static fd_missing_weight expected_tensor(const wanted *w) {
    fd_missing_weight tensor = {.shape = {w->n_col, w->n_row, w->n_matrix}, .n_dim = w->n_matrix ? 3 : 2};
    snprintf(tensor.name, sizeof tensor.name, "%s", w->name);
    if (w->n_row == 1) {
        tensor.shape[1] = w->n_matrix;
        tensor.n_dim--;
    }
    if (w->flat) {
        tensor.shape[0] = w->n_row * w->n_col;
        tensor.n_dim = 1;
    }
    if (w->n_unit > 0) {
        tensor.shape[1 + w->n_unit] = tensor.shape[1];
        for (int i = 1; i <= w->n_unit; i++) tensor.shape[i] = 1;
        tensor.n_dim += w->n_unit;
    }
    return tensor;
}

static void shape_text(const int64_t *shape, int32_t n_dim, char *to, size_t size) {
    int at = 0;
    for (int32_t i = 0; i < n_dim; i++)
        at += snprintf(to + at, size - (size_t)at, "%s%lld", i ? ", " : "", (long long)shape[i]);
}

static void check_shape(fd_builder *b, const fd_gguf_tensor *t, const wanted *w) {
    const fd_missing_weight want = expected_tensor(w);
    bool right = true; /* dimensions of 1 at the end say nothing */
    for (int32_t i = 0; i < FD_GGUF_MAX_DIM && right; i++)
        right = (i < t->n_dim ? t->shape[i] : 1) == (i < want.n_dim ? want.shape[i] : 1);
    if (right) return;
    char found[96], expected[96];
    shape_text(t->shape, t->n_dim, found, sizeof found);
    shape_text(want.shape, want.n_dim, expected, sizeof expected);
    fd_builder_set_error(
        b, fd_fail(b->err, FD_ERR_INPUT, "weight %s: shape [%s], expected [%s]", t->name, found, expected));
}

static void note_missing(fd_builder *b, const wanted *w) {
    fd_weight_report *r = b->report;
    for (int32_t i = r->n_missing - 1; i >= 0; i--) /* parts of one tensor follow each other */
        if (strcmp(r->missing[i].name, w->name) == 0) return;
    const fd_missing_weight tensor = expected_tensor(w);
    if (!fd_builder_append(&r->missing, &r->n_missing, sizeof tensor, &tensor))
        fd_builder_set_error(b, fd_fail(b->err, FD_ERR_MEMORY, "out of memory"));
}

/* Without "blk.N.", in the list of those that the file is to have. */
static bool is_asked_for(const fd_builder *b, const char *name) {
    int skipped = 0;
    sscanf(name, "blk.%*d.%n", &skipped);
    const size_t size = strlen(name + skipped);
    for (const char *at = b->with; *at; at += strcspn(at, " "), at += strspn(at, " "))
        if (strcspn(at, " ") == size && memcmp(at, name + skipped, size) == 0) return true;
    return false;
}

bool fd_build_has(const fd_builder *b, int32_t layer, const char *name) {
    char full[128];
    if (layer >= 0)
        snprintf(full, sizeof full, "blk.%d.%s", layer, name);
    else
        snprintf(full, sizeof full, "%s", name);
    return fd_gguf_find_tensor(b->gguf, full) || is_asked_for(b, full);
}

static void cut_part(fd_builder *b, const wanted *w, fd_weight *weight) {
    bool vector = weight->n_row == 1;
    int64_t skipped = fd_dtype_row_bytes(weight->dtype, vector ? w->first : weight->n_col) * (vector ? 1 : w->first);
    if (vector && fd_dtype_get(weight->dtype)->block_elements > 1)
        fd_builder_set_error(
            b, fd_fail(b->err, FD_ERR_UNSUPPORTED, "weight %s: a vector of blocks cannot be cut", w->name));
    if (vector)
        weight->n_col = w->count;
    else
        weight->n_row = w->count;
    weight->data = (const char *)weight->data + skipped;
    weight->bytes = (uint64_t)(weight->n_row * fd_dtype_row_bytes(weight->dtype, weight->n_col));
}

static int32_t find_weight(fd_builder *b, const wanted *w) {
    char name[sizeof((fd_weight *)0)->name];
    if (b->code != FD_OK) return -1;
    /* What has not the rows of the file's tensor has not its name: hashes of weights go by name and row. */
    int size = w->part ? snprintf(name, sizeof name, "%s[%lld:%lld]", w->name, (long long)w->first,
                                  (long long)(w->first + w->count))
               : w->flat
                   ? snprintf(name, sizeof name, "%s[%lld, %lld]", w->name, (long long)w->n_row, (long long)w->n_col)
                   : snprintf(name, sizeof name, "%s", w->name);
    if (size >= (int)sizeof name)
        return fd_builder_set_error(b, fd_fail(b->err, FD_ERR_INPUT, "weight %s: its name is too long", w->name)), -1;
    for (int32_t i = 0; i < b->graph->n_weight; i++)
        if (strcmp(b->graph->weights[i].name, name) == 0) return i;
    const fd_gguf_tensor *t = fd_gguf_find_tensor(b->gguf, w->name);
    if (!t) {
        if (w->need == FD_REQUIRED || is_asked_for(b, w->name)) note_missing(b, w);
        return -1;
    }
    b->used[t - fd_gguf_tensor_at(b->gguf, 0)] = true;
    check_shape(b, t, w);
    if (!fd_can_dequantize(t->dtype))
        fd_builder_set_error(b, fd_fail(b->err, FD_ERR_UNSUPPORTED, "weight %s: type %s is not implemented yet",
                                        w->name, fd_dtype_get(t->dtype)->name));
    fd_weight weight = {.dtype = t->dtype, .n_row = w->n_row, .n_col = w->n_col, .data = t->data, .bytes = t->bytes};
    if (w->n_matrix) weight.n_row = w->n_matrix * w->n_row;
    if (w->part && b->code == FD_OK) cut_part(b, w, &weight);
    memcpy(weight.name, name, sizeof weight.name);
    if (b->code == FD_OK && !fd_builder_append(&b->graph->weights, &b->graph->n_weight, sizeof weight, &weight))
        fd_builder_set_error(b, fd_fail(b->err, FD_ERR_MEMORY, "out of memory"));
    return b->graph->n_weight - 1;
}

int32_t fd_build_weight(fd_builder *b, const char *name, int64_t n_row, int64_t n_col, fd_need need) {
    return find_weight(b, &(wanted){.name = name, .n_row = n_row, .n_col = n_col, .need = need});
}

int32_t fd_build_weight_part(fd_builder *b, const char *name, fd_part part, int64_t n_row, int64_t n_col,
                             fd_need need) {
    wanted w = {.name = name, .n_row = part.n_total, .n_col = n_col, .need = need, .part = true, .first = part.first};
    w.count = n_row ? n_row : n_col;
    if (n_row == 0) w.n_row = 1, w.n_col = part.n_total;
    return find_weight(b, &w);
}

int32_t fd_build_flat_rows(fd_builder *b, const char *name, int64_t n_row, int64_t n_col) {
    return find_weight(b, &(wanted){.name = name, .n_row = n_row, .n_col = n_col, .need = FD_REQUIRED, .flat = true});
}

int32_t fd_build_fused_row(fd_builder *b, const char *name, fd_part part, int64_t n_col) {
    return find_weight(b, &(wanted){.name = name,
                                    .n_row = part.n_total,
                                    .n_col = n_col,
                                    .need = FD_REQUIRED,
                                    .part = true,
                                    .first = part.first,
                                    .count = 1,
                                    .n_unit = 2});
}

int32_t fd_build_matrices(fd_builder *b, const char *name, int64_t n_matrix, int64_t n_row, int64_t n_col,
                          fd_need need) {
    return find_weight(b, &(wanted){.name = name, .n_matrix = n_matrix, .n_row = n_row, .n_col = n_col, .need = need});
}

int32_t fd_build_expert_weight(fd_builder *b, const char *name, int64_t n_row, int64_t n_col, fd_need need) {
    return fd_build_matrices(b, name, b->h->n_expert, n_row, n_col, need);
}

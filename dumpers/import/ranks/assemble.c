/* The whole tensor from the ranks' parts: one after the other, or added up. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/import/ranks/internal.h"
#include "model/gguf/quant.h"

/* Rank r's part. */
static fd_code joined_part(const struct fd_ranks *ranks, const fd_joined *j, int32_t r, fd_source_view *out,
                           fd_error *err) {
    FD_TRY(fd_source_view_open(ranks->dumps, j->parts[r], out, err));
    fd_array *array = &out->array;
    if (j->length && array->rank > 0) {
        array->data += j->first * array->stride[array->rank - 1];
        array->shape[array->rank - 1] = j->length;
    }
    return FD_OK;
}

static int64_t product(const int64_t *shape, int from, int to) {
    int64_t n = 1;
    for (int i = from; i < to; i++) n *= shape[i];
    return n;
}

/* Elements of the part into the whole, as blocks: the part's `axis` and what follows it is contiguous there. */
static void place(const double *part, int64_t n_block, int64_t block, int64_t stride, int64_t at, int64_t limit,
                  double *whole) {
    for (int64_t b = 0; b < n_block; b++)
        for (int64_t i = 0; i < block && at + i < limit; i++) whole[b * stride + at + i] = part[b * block + i];
}

fd_array_type fd_joined_type(const struct fd_ranks *ranks, const fd_joined *j) {
    fd_array_type type = fd_source_at(ranks->dumps, j->parts[0])->type;
    if (j->shard == FD_SHARD_REPLICATED) return type; /* read where it lies */
    bool words = type == FD_ARRAY_F16 || type == FD_ARRAY_BF16 || type == FD_ARRAY_U16;
    if (words && j->whole_each) return FD_ARRAY_F32; /* a sum needs more bits than its terms */
    return words || type == FD_ARRAY_F32 ? type : FD_ARRAY_F64;
}

static void store(fd_array_type type, double value, void *out, int64_t at) {
    if (type == FD_ARRAY_F64) ((double *)out)[at] = value;
    if (type == FD_ARRAY_F32) ((float *)out)[at] = (float)value;
    if (type == FD_ARRAY_F16) ((uint16_t *)out)[at] = fd_f32_to_f16((float)value);
    if (type == FD_ARRAY_BF16) ((uint16_t *)out)[at] = fd_f32_to_bf16((float)value);
    if (type == FD_ARRAY_U16) ((uint16_t *)out)[at] = (uint16_t)value;
}

static fd_code fill(const struct fd_ranks *ranks, const fd_joined *j, const int64_t *shape, int rank, double *whole,
                    fd_error *err) {
    const int64_t stride = j->whole_each ? 0 : product(shape, j->axis, rank);
    int64_t at = 0;
    fd_code code = FD_OK;
    for (int32_t r = 0; code == FD_OK && r < ranks->n_rank; r += j->whole_each ? 1 : j->copies) {
        fd_source_view view;
        code = joined_part(ranks, j, r, &view, err);
        if (code != FD_OK) break;
        int64_t n = product(view.array.shape, 0, rank);
        double *part = malloc(sizeof *part * (size_t)(n + 1));
        if (part) fd_array_fetch(&view.array, part);
        if (!part)
            code = fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", fd_source_at(ranks->dumps, j->parts[r])->name);
        else if (j->whole_each)
            for (int64_t i = 0; i < n; i++) whole[i] = r ? whole[i] + part[i] : part[i];
        else {
            int64_t block = product(view.array.shape, j->axis, rank);
            place(part, product(shape, 0, j->axis), block, stride, at, stride, whole);
            at += block;
        }
        free(part);
        fd_source_view_close(&view);
    }
    return code;
}

fd_code fd_joined_view(const struct fd_ranks *ranks, const fd_joined *j, fd_source_view *out, fd_error *err) {
    if (j->shard == FD_SHARD_REPLICATED) return joined_part(ranks, j, j->alone ? 0 : ranks->copies_of, out, err);
    *out = (fd_source_view){0};
    int rank;
    int64_t shape[FD_ARRAY_MAX_RANK];
    fd_joined_shape(ranks, j, &rank, shape);
    int64_t n = product(shape, 0, rank);
    fd_array array = {.type = fd_joined_type(ranks, j), .rank = rank};
    memcpy(array.shape, shape, sizeof array.shape);
    int64_t bytes = fd_array_pack(&array, false);
    double *whole = bytes >= 0 ? calloc((size_t)n + 1, sizeof *whole) : NULL;
    void *stored = whole ? malloc((size_t)bytes + 1) : NULL;
    fd_code code =
        stored ? fill(ranks, j, shape, rank, whole, err)
               : fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", fd_source_at(ranks->dumps, j->parts[0])->name);
    for (int64_t i = 0; code == FD_OK && i < n; i++) store(array.type, whole[i], stored, i);
    free(whole);
    array.data = stored;
    out->array = array;
    out->owned = stored;
    if (code != FD_OK) fd_source_view_close(out);
    return code;
}

/* ---- what values say ---- */

static bool same_bits(double a, double b) {
    return a == b || (isnan(a) && isnan(b));
}

static int positions_of(const fd_joined *j, const fd_array *array) {
    return j->positions >= 0 && j->positions < array->rank ? j->positions : -1;
}

fd_code fd_joined_values(const struct fd_ranks *ranks, const fd_joined *j, fd_rank_values *out, fd_error *err) {
    *out = (fd_rank_values){.equal = true};
    double *first = NULL;
    int32_t *holders = NULL; /* [rows] how many ranks have other than zeros there */
    int64_t n = 0, row = 1, n_row = 0;
    fd_code code = FD_OK;
    for (int32_t r = 0; code == FD_OK && r < ranks->n_rank; r++) {
        fd_source_view view;
        code = joined_part(ranks, j, r, &view, err);
        if (code != FD_OK) break;
        n = product(view.array.shape, 0, view.array.rank);
        row = view.array.rank ? view.array.shape[view.array.rank - 1] : 1;
        n_row = row ? n / row : 0;
        double *part = malloc(sizeof *part * (size_t)(n + 1)), a2 = 0, b2 = 0, d2 = 0;
        if (!holders) holders = calloc((size_t)n_row + 1, sizeof *holders);
        if (!part || !holders) code = fd_fail(err, FD_ERR_MEMORY, "ranks: out of memory");
        if (code == FD_OK) fd_array_fetch(&view.array, part);
        fd_source_view_close(&view);
        for (int64_t i = 0; code == FD_OK && i < n_row; i++) {
            bool any = false;
            for (int64_t k = 0; k < row; k++) any = any || part[i * row + k] != 0;
            holders[i] += any;
        }
        for (int64_t i = 0; code == FD_OK && first && i < n; i++) {
            if (same_bits(first[i], part[i]) && !isfinite(part[i])) continue; /* -inf of masked scores */
            out->equal = out->equal && same_bits(first[i], part[i]);
            a2 += first[i] * first[i];
            b2 += part[i] * part[i];
            d2 += (first[i] - part[i]) * (first[i] - part[i]);
        }
        double difference = d2 > 0 || isnan(d2) ? d2 / (a2 + b2) : 0;
        if (!(difference <= out->difference)) out->difference = difference;
        if (first)
            free(part);
        else
            first = part;
    }
    int64_t some = 0;
    for (int64_t i = 0; code == FD_OK && i < n_row; i++) some += holders[i] > 0 && holders[i] < ranks->n_rank;
    out->rows_of_some = some > 0;
    free(first);
    free(holders);
    return code;
}

int32_t fd_joined_n_row(const struct fd_ranks *ranks, const fd_joined *j) {
    const fd_source_tensor *part = fd_source_at(ranks->dumps, j->parts[0]);
    return j->positions >= 0 ? (int32_t)part->shape[j->positions] : 1;
}

fd_code fd_joined_row(const struct fd_ranks *ranks, const fd_joined *j, int32_t r, int32_t row, double **values,
                      int64_t *n, fd_error *err) {
    fd_source_view view;
    FD_TRY(joined_part(ranks, j, r, &view, err));
    int axis = positions_of(j, &view.array);
    fd_array array = axis < 0 ? view.array : fd_array_at(&view.array, axis, row);
    *n = product(array.shape, 0, array.rank);
    *values = malloc(sizeof **values * (size_t)(*n + 1));
    if (*values) fd_array_fetch(&array, *values);
    fd_source_view_close(&view);
    return *values ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "ranks: out of memory");
}

#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "dumpers/store/weights.h"
#include "model/gguf/quant.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "binary32 values are hashed as they lie in memory");

/* Waking threads costs more than hashing so few elements. */
enum { PARALLEL_ELEMENTS = 1 << 18 };

bool fd_weight_can_hash(const fd_weight *weight) {
    return weight->data && weight->n_row > 0 && weight->n_col > 0 && fd_can_dequantize(weight->dtype);
}

/* `row` [n_col] is scratch; zero [rows of the group] may be NULL. */
static uint64_t hash_group(const fd_weight *w, int32_t rows_per_hash, int64_t group, XXH3_state_t *state, float *row,
                           bool *zero) {
    int64_t row_bytes = fd_dtype_row_bytes(w->dtype, w->n_col), first = group * rows_per_hash;
    int64_t end = first + rows_per_hash < w->n_row ? first + rows_per_hash : w->n_row;
    XXH3_64bits_reset(state);
    for (int64_t r = first; r < end; r++) {
        fd_dequantize_row(w->dtype, (const char *)w->data + r * row_bytes, row, w->n_col);
        XXH3_64bits_update(state, row, sizeof *row * (size_t)w->n_col);
        if (zero) zero[r - first] = fd_row_is_zero(row, w->n_col);
    }
    return XXH3_64bits_digest(state);
}

fd_code fd_weight_hash_at(const fd_weight *weight, int32_t rows_per_hash, int64_t i, uint64_t *out, fd_error *err) {
    float *row = malloc(sizeof *row * (size_t)weight->n_col);
    XXH3_state_t *state = XXH3_createState();
    bool ok = row && state;
    if (ok) *out = hash_group(weight, rows_per_hash, i, state, row, NULL);
    free(row);
    XXH3_freeState(state);
    return ok ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "weight %s: out of memory", weight->name);
}

static void count_zero_rows(const bool *zero, fd_weight_rows *out) {
    out->n_zero_row = out->n_trailing_zero_row = 0;
    for (int64_t r = 0; r < out->n_row; r++) {
        out->n_zero_row += zero[r];
        out->n_trailing_zero_row = zero[r] ? out->n_trailing_zero_row + 1 : 0;
    }
}

fd_code fd_weight_hash(const fd_weight *weight, int32_t rows_per_hash, fd_weight_rows *out, fd_error *err) {
    *out = (fd_weight_rows){.n_row = weight->n_row, .n_col = weight->n_col, .rows_per_hash = rows_per_hash};
    strcpy(out->name, weight->name);
    strncpy(out->dtype, fd_dtype_get(weight->dtype)->name, sizeof out->dtype - 1);
    out->n_hash = (weight->n_row + rows_per_hash - 1) / rows_per_hash;
    out->hashes = malloc(sizeof *out->hashes * (size_t)out->n_hash);
    bool *zero = malloc((size_t)weight->n_row), failed = !out->hashes || !zero;
    bool small = weight->n_row * weight->n_col < PARALLEL_ELEMENTS;
#pragma omp parallel if (!small && !failed) default(none) firstprivate(weight, rows_per_hash, zero) shared(out, failed)
    {
        float *row = malloc(sizeof *row * (size_t)weight->n_col);
        XXH3_state_t *state = XXH3_createState();
        bool ok = row && state && zero && out->hashes;
        if (!ok) {
#pragma omp atomic write
            failed = true;
        }
#pragma omp for schedule(dynamic, 16)
        for (int64_t i = 0; i < out->n_hash; i++)
            if (ok) out->hashes[i] = hash_group(weight, rows_per_hash, i, state, row, zero + i * rows_per_hash);
        free(row);
        XXH3_freeState(state);
    }
    if (!failed) count_zero_rows(zero, out);
    free(zero);
    if (!failed) return FD_OK;
    fd_weight_rows_free(out);
    return fd_fail(err, FD_ERR_MEMORY, "hashes of weight %s: out of memory", weight->name);
}

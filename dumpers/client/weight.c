/* A weight to hashes of its rows. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/client/tracer.h"
#include "model/gguf/quant.h"

/* A weight after it was checked. */
typedef struct matrix {
    const fd_tracer_weight *weight;
    uint32_t dtype;
    int64_t row_stride, col_stride;
    size_t row_bytes; /* from row to row where col_stride is 1; else of an element */
    char *block;      /* rows of device data */
    char *gathered;   /* one row of columns that are apart */
    float *row;       /* [n_col] */
} matrix;

enum { BLOCK_BYTES = 16 << 20 };

static fd_code check_size(const fd_tracer_weight *w, fd_error *err) {
    int64_t elements;
    bool fits = w->n_row >= 1 && w->n_row <= INT32_MAX && w->n_col >= 1 && w->n_col <= INT32_MAX &&
                !__builtin_mul_overflow(w->n_row, w->n_col, &elements) && elements <= INT64_MAX / 64;
    if (!fits)
        return fd_fail(err, FD_ERR_INPUT, "weight %s: %" PRId64 " rows of %" PRId64 ", expected 1 to 2^31-1 each",
                       w->name, w->n_row, w->n_col);
    return w->data ? FD_OK : fd_fail(err, FD_ERR_INPUT, "weight %s: no data", w->name);
}

/* Rows follow one another with gaps or without, or columns do. */
static fd_code check_weight(const fd_tracer_weight *w, matrix *out, fd_error *err) {
    *out = (matrix){.weight = w};
    FD_TRY(fd_tracer_check_name("weight", w->name, sizeof((fd_weight_rows *)0)->name - 1, err));
    FD_TRY(check_size(w, err));
    int dtype = fd_dtype_parse(w->type ? w->type : "F32");
    if (dtype < 0 || !fd_can_dequantize((uint32_t)dtype))
        return fd_fail(err, FD_ERR_INPUT,
                       "weight %s: type %.16s, expected F32, F16, BF16, Q8_0, Q4_0, Q5_0, Q4_K or Q6_K", w->name,
                       w->type);
    const fd_dtype_info *info = fd_dtype_get((uint32_t)dtype);
    int64_t limit = INT64_MAX / 64, row = w->row_stride, col = w->col_stride;
    if (row == 0 && col == 0) row = w->n_col, col = 1;
    bool apart = row >= 1 && col >= 1 && row <= limit / w->n_row && col <= limit / w->n_col &&
                 (row >= (w->n_col - 1) * col + 1 || col >= (w->n_row - 1) * row + 1);
    bool whole =
        !info->is_quantised || (col == 1 && w->n_col % info->block_elements == 0 && row % info->block_elements == 0);
    if (!apart || !whole)
        return fd_fail(err, FD_ERR_INPUT,
                       "weight %s: strides %" PRId64 " and %" PRId64 " of %" PRId64 " rows of %" PRId64
                       " %s, expected %s",
                       w->name, row, col, w->n_row, w->n_col, info->name,
                       whole ? "no two elements on one place" : "whole blocks, the columns without a gap");
    out->dtype = (uint32_t)dtype;
    out->row_stride = row;
    out->col_stride = col;
    out->row_bytes = (size_t)(col == 1 ? row / info->block_elements * info->block_bytes : info->block_bytes);
    return FD_OK;
}

/* Row r, which begins at `from`, into m->row. */
static void widen_row(const matrix *m, const char *from) {
    size_t size = m->row_bytes, step = (size_t)m->col_stride * size;
    for (int64_t c = 0; m->gathered && c < m->weight->n_col; c++)
        memcpy(m->gathered + (size_t)c * size, from + (size_t)c * step, size);
    fd_dequantize_row(m->dtype, m->gathered ? m->gathered : from, m->row, m->weight->n_col);
}

/* From the first byte of row `first` to the last of n rows. */
static size_t bytes_of_rows(const matrix *m, int64_t n) {
    const fd_tracer_weight *w = m->weight;
    if (m->gathered) return (size_t)((n - 1) * m->row_stride + (w->n_col - 1) * m->col_stride + 1) * m->row_bytes;
    return (size_t)(n - 1) * m->row_bytes + (size_t)fd_dtype_row_bytes(m->dtype, w->n_col);
}

static fd_code hash_rows(fd_tracer *tracer, matrix *m, fd_row_hasher *hasher, fd_error *err) {
    const fd_tracer_weight *w = m->weight;
    const size_t row_step = (size_t)(m->gathered ? m->row_stride : 1) * m->row_bytes;
    int64_t at_once = w->n_row;
    if (w->on_device && !m->gathered) { /* columns apart: every row reaches over the whole matrix */
        at_once = BLOCK_BYTES / (int64_t)m->row_bytes;
        at_once = at_once < 1 ? 1 : at_once < w->n_row ? at_once : w->n_row;
    }
    if (w->on_device && !(m->block = malloc(bytes_of_rows(m, at_once))))
        return fd_fail(err, FD_ERR_MEMORY, "weight %s: out of memory", w->name);
    for (int64_t first = 0; first < w->n_row; first += at_once) {
        const char *from = (const char *)w->data + (size_t)first * row_step;
        int64_t n = w->n_row - first < at_once ? w->n_row - first : at_once;
        if (w->on_device) FD_TRY(fd_tracer_fetch(tracer, w->name, from, bytes_of_rows(m, n), w->stream, m->block, err));
        for (int64_t r = 0; r < n; r++) {
            widen_row(m, (w->on_device ? m->block : from) + (size_t)r * row_step);
            fd_row_hasher_add(hasher, m->row);
        }
    }
    return FD_OK;
}

fd_code fd_tracer_hash_weight(fd_tracer *tracer, const fd_tracer_weight *w, fd_weight_rows *out, fd_error *err) {
    matrix m;
    fd_row_hasher hasher;
    FD_TRY(check_weight(w, &m, err));
    FD_TRY(fd_row_hasher_begin(&hasher, w->name, fd_dtype_get(m.dtype)->name, w->n_row, w->n_col, err));
    m.row = malloc(sizeof *m.row * (size_t)w->n_col);
    if (m.col_stride != 1) m.gathered = malloc(m.row_bytes * (size_t)w->n_col);
    fd_code code = m.row && (m.gathered || m.col_stride == 1)
                       ? hash_rows(tracer, &m, &hasher, err)
                       : fd_fail(err, FD_ERR_MEMORY, "weight %s: out of memory", w->name);
    free(m.row);
    free(m.gathered);
    free(m.block);
    if (code == FD_OK)
        *out = fd_row_hasher_end(&hasher);
    else
        fd_row_hasher_abandon(&hasher);
    return code;
}

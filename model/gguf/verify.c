/* Checks a parsed file's content: gaps in its layout, and what its weights' values look like.
 *
 * The values are read once, in pieces spread over the threads; each piece writes only its own row of a table, which is
 * then read in file order. So the report does not depend on the number of threads. */
#include "model/gguf/internal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf/quant.h"

/* A piece of about a million elements takes a fraction of a millisecond: long against the cost of handing it out, short
 * against a tensor. A strip is what stays in the first-level cache; every format's block divides it. */
enum { PIECE_ELEMENTS = 1 << 20, STRIP_ELEMENTS = 2048 };

typedef struct piece {
    size_t tensor; /* index in the file */
    int64_t row0, n_row;
    uint64_t n_nan, n_inf;
    int64_t first_bad;    /* element index in the tensor of the first NaN or Inf, -1: none */
    int64_t last_nonzero; /* row index in the tensor, -1: all rows of the piece are zero */
} piece;

typedef struct report {
    fd_gguf_problem_fn fn;
    void *user;
    size_t count;
} report;

static void problem(report *to, const char *format, ...) FD_PRINTF(2, 3);

static void problem(report *to, const char *format, ...) {
    char message[512];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    to->count++;
    if (to->fn) to->fn(to->user, message);
}

/* ---- layout ---- */

static void check_gaps(const fd_gguf *gguf, report *to) {
    uint64_t expected = 0; /* where the next tensor starts in a file without gaps */
    for (size_t i = 0; i < gguf->n_tensor; i++) {
        const fd_gguf_tensor *tensor = gguf->by_offset[i];
        if (tensor->offset > expected)
            problem(to, "%" PRIu64 " unused bytes before tensor %s", tensor->offset - expected, tensor->name);
        expected = tensor->offset + tensor->bytes;
        /* The parser has placed this tensor inside the file, so only an absurd alignment can overflow here. */
        if (!fd_gguf_align(expected, gguf->alignment, &expected)) return;
    }
    uint64_t data_bytes = gguf->size - gguf->data_offset;
    if (data_bytes > expected) problem(to, "%" PRIu64 " unused bytes after the last tensor", data_bytes - expected);
}

/* ---- values ---- */

static int64_t n_rows(const fd_gguf_tensor *tensor) {
    return tensor->shape[1] * tensor->shape[2] * tensor->shape[3];
}

static bool is_zero(const uint8_t *bytes, int64_t n) {
    uint64_t any = 0;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint64_t word;
        memcpy(&word, bytes + i, sizeof word);
        any |= word;
    }
    for (; i < n; i++) any |= bytes[i];
    return any == 0;
}

/* Notes one strip of a row: values [n] starting at element `at` of the tensor. Returns whether any is not zero. */
static bool scan_strip(const float *values, int64_t n, int64_t at, piece *result) {
    uint32_t any = 0, special = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        bits &= 0x7fffffffu;
        any |= bits;
        special |= (bits >= 0x7f800000u);
    }
    if (special)
        for (int64_t i = 0; i < n; i++) {
            uint32_t bits;
            memcpy(&bits, &values[i], sizeof bits);
            bits &= 0x7fffffffu;
            if (bits < 0x7f800000u) continue;
            if (bits > 0x7f800000u)
                result->n_nan++;
            else
                result->n_inf++;
            if (result->first_bad < 0) result->first_bad = at + i;
        }
    return any != 0;
}

/* F64 is judged before it is rounded to binary32. */
static bool scan_doubles(const uint8_t *from, int64_t n, int64_t at, piece *result) {
    bool any = false;
    for (int64_t i = 0; i < n; i++) {
        double value;
        memcpy(&value, from + i * (int64_t)sizeof value, sizeof value);
        any |= value != 0.0;
        if (value - value == 0.0) continue; /* false for NaN and Inf alone */
        if (value != value)
            result->n_nan++;
        else
            result->n_inf++;
        if (result->first_bad < 0) result->first_bad = at + i;
    }
    return any;
}

static void scan_piece(const fd_gguf_tensor *tensor, piece *result) {
    float values[STRIP_ELEMENTS];
    const int64_t columns = tensor->shape[0], row_bytes = fd_dtype_row_bytes(tensor->dtype, columns);
    const bool decode = fd_can_dequantize(tensor->dtype);
    for (int64_t row = result->row0; row < result->row0 + result->n_row; row++) {
        const uint8_t *from = (const uint8_t *)tensor->data + row * row_bytes;
        bool any = false;
        if (tensor->dtype == FD_F64) {
            any = scan_doubles(from, columns, row * columns, result);
        } else if (decode) {
            for (int64_t column = 0; column < columns; column += STRIP_ELEMENTS) {
                int64_t n = columns - column < STRIP_ELEMENTS ? columns - column : STRIP_ELEMENTS;
                fd_dequantize_row(tensor->dtype, from + fd_dtype_row_bytes(tensor->dtype, column), values, n);
                any |= scan_strip(values, n, row * columns + column, result);
            }
        } else {
            any = !is_zero(from, row_bytes);
        }
        if (any) result->last_nonzero = row;
    }
}

static fd_code cut_into_pieces(const fd_gguf *gguf, piece **out, size_t *n_out, fd_error *err) {
    size_t n = 0, at = 0;
    for (size_t i = 0; i < gguf->n_tensor; i++) {
        const fd_gguf_tensor *tensor = &gguf->tensor[i];
        int64_t rows = tensor->shape[0] < PIECE_ELEMENTS ? PIECE_ELEMENTS / tensor->shape[0] : 1;
        n += (size_t)((n_rows(tensor) - 1) / rows + 1);
    }
    piece *pieces = calloc(n + 1, sizeof *pieces);
    if (!pieces) return fd_fail(err, FD_ERR_MEMORY, "out of memory for %zu pieces of weights", n);
    for (size_t i = 0; i < gguf->n_tensor; i++) {
        const fd_gguf_tensor *tensor = &gguf->tensor[i];
        int64_t rows = tensor->shape[0] < PIECE_ELEMENTS ? PIECE_ELEMENTS / tensor->shape[0] : 1, all = n_rows(tensor);
        for (int64_t row = 0; row < all; row += rows)
            pieces[at++] = (piece){.tensor = i,
                                   .row0 = row,
                                   .n_row = all - row < rows ? all - row : rows,
                                   .first_bad = -1,
                                   .last_nonzero = -1};
    }
    *out = pieces;
    *n_out = n;
    return FD_OK;
}

/* One tensor's pieces [n], in row order, become its problems. */
static void judge(const fd_gguf_tensor *tensor, const piece *pieces, size_t n, report *to) {
    piece sum = {.first_bad = -1, .last_nonzero = -1};
    for (size_t i = 0; i < n; i++) {
        sum.n_nan += pieces[i].n_nan;
        sum.n_inf += pieces[i].n_inf;
        if (sum.first_bad < 0) sum.first_bad = pieces[i].first_bad;
        if (pieces[i].last_nonzero >= 0) sum.last_nonzero = pieces[i].last_nonzero;
    }
    const int64_t rows = n_rows(tensor), columns = tensor->shape[0];
    if (sum.first_bad >= 0)
        problem(to,
                "tensor %s: %" PRIu64 " NaN and %" PRIu64 " Inf among %" PRId64 " values, the first at row %" PRId64
                " column %" PRId64,
                tensor->name, sum.n_nan, sum.n_inf, rows * columns, sum.first_bad / columns, sum.first_bad % columns);
    if (sum.last_nonzero < 0)
        problem(to, "tensor %s: every value is zero", tensor->name);
    else if (sum.last_nonzero < rows - 1)
        problem(to, "tensor %s: the last %" PRId64 " of its %" PRId64 " rows are all zero", tensor->name,
                rows - 1 - sum.last_nonzero, rows);
}

static bool values_are_checked(uint32_t dtype) {
    return fd_can_dequantize(dtype) || !fd_dtype_get(dtype)->is_quantised; /* integers hold neither NaN nor Inf */
}

fd_code fd_gguf_verify(const fd_gguf *gguf, fd_gguf_problem_fn fn, void *user, size_t *n_problem, fd_error *err) {
    report to = {fn, user, 0};
    *n_problem = 0;
    piece *pieces;
    size_t n_piece;
    FD_TRY(cut_into_pieces(gguf, &pieces, &n_piece, err));
    check_gaps(gguf, &to);
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic) if (n_piece > 1)
#endif
    for (size_t i = 0; i < n_piece; i++) scan_piece(&gguf->tensor[pieces[i].tensor], &pieces[i]);

    size_t n_unread = 0, at = 0;
    const char *unread = NULL;
    for (size_t i = 0; i < gguf->n_tensor; i++) {
        size_t first = at;
        while (at < n_piece && pieces[at].tensor == i) at++;
        judge(&gguf->tensor[i], &pieces[first], at - first, &to);
        if (values_are_checked(gguf->tensor[i].dtype)) continue;
        n_unread++;
        unread = fd_dtype_get(gguf->tensor[i].dtype)->name;
    }
    free(pieces);
    *n_problem = to.count;
    if (n_unread)
        return fd_fail(err, FD_ERR_INCOMPLETE, "the values of %zu tensors were not checked: this build cannot read %s",
                       n_unread, unread);
    return FD_OK;
}

/* What a hypothesis does to rows: before an op reads them, and after it wrote them. */
#include <math.h>
#include <string.h>

#include "compare/diagnose/hypothesis.h"
#include "compare/diagnose/round_type.h"
#include "faults/tiles.h"
#include "model/gguf/quant.h"

bool fd_hypothesis_changes_input(const fd_hypothesis *h, const fd_node *node, int slot) {
    if (!fd_hypothesis_may_concern(h, node)) return false;
    switch (h->guess) {
    case FD_GUESS_INPUT: return slot == h->which && h->n != 0;
    case FD_GUESS_INPUT_FACTOR: return slot == h->which;
    case FD_GUESS_INPUT_TAIL:
    case FD_GUESS_PARTIAL:
    case FD_GUESS_TILES: return slot == 0;
    case FD_GUESS_PAGE:
    case FD_GUESS_UNWRITTEN: return slot == 1;
    case FD_GUESS_ROUNDED: return h->which > 0;
    case FD_GUESS_KEYS: return slot == 0 && node->op == FD_OP_ATTN_SOFTMAX;
    default: return false;
    }
}

static bool hidden(const fd_hypothesis *h, int32_t key, int32_t own) {
    switch ((fd_key_rule)h->which) {
    case FD_KEYS_LAST_N: return key <= own - h->n;
    case FD_KEYS_NOT_FIRST_N: return key < h->n && key != own;
    case FD_KEYS_FIRST_N: return key >= h->n && key != own;
    case FD_KEYS_NOT_OWN: return key == own && own > 0;
    case FD_KEYS_CHUNK: return own >= h->n && key > own - h->n;
    case FD_KEYS_SET: return key < 64 && (h->keys >> key & 1) != 0 && !(h->n && key == own);
    }
    return false;
}

/* A row of scores has `width` = n_head · n_kv elements. */
static void hide_keys(const fd_hypothesis *h, float *rows, int32_t pos0, int64_t n_row, int64_t width) {
    int32_t n_kv = pos0 + (int32_t)n_row;
    for (int64_t r = 0; r < n_row; r++)
        for (int64_t i = 0; i < width; i++)
            if (hidden(h, (int32_t)(i % n_kv), pos0 + (int32_t)r)) rows[r * width + i] = -INFINITY;
}

/* A row of weights has `width` = n_head · n_kv elements. */
static void leave_out_tile(const fd_hypothesis *h, float *rows, int32_t pos0, int64_t n_row, int64_t width) {
    int64_t n_kv = pos0 + n_row;
    for (int64_t r = 0; r < n_row; r++) {
        int64_t keys = h->which ? n_kv : pos0 + r + 1;
        for (int64_t i = 0; i < width && keys >= h->n; i++)
            if (i % n_kv >= keys - keys % h->n) rows[r * width + i] = 0;
    }
}

/* A row of weights has `width` = n_head · n_kv elements. */
static void weigh_tiles(const fd_hypothesis *h, float *rows, int32_t pos0, int64_t n_row, int64_t width) {
    int64_t n_kv = pos0 + n_row;
    for (int64_t r = 0; r < n_row; r++)
        for (int64_t head = 0; head < width / n_kv; head++)
            fd_tile_weights((fd_tile_rule)h->which, h->n, rows + r * width + head * n_kv, pos0 + (int32_t)r + 1);
}

/* The rows of a cache. */
static void read_other_page(const fd_hypothesis *h, float *rows, int64_t n_row, int64_t width) {
    int64_t page = (int64_t)h->which * h->n, from = (int64_t)h->other * h->n;
    for (int64_t r = 0; r < h->n && page + r < n_row; r++) {
        float *to = rows + (page + r) * width;
        if (h->other >= 0 && from + r < n_row)
            memcpy(to, rows + (from + r) * width, sizeof *rows * (size_t)width);
        else
            memset(to, 0, sizeof *rows * (size_t)width);
    }
}

/* What has a scale of its own. */
static int64_t heads_of(const fd_hypothesis *h, const fd_node *node) {
    return h->other == FD_ROUND_INT8 && node->n_dim == 2 && !node->over_kv ? node->shape[0] : 1;
}

void fd_hypothesis_input(const fd_hypothesis *h, const fd_node *node, float *rows, int32_t pos0, int64_t n_row,
                         int64_t width) {
    int64_t n = n_row * width;
    if (h->guess == FD_GUESS_ROUNDED)
        fd_round_type_rows(h->other, rows, n_row * heads_of(h, node), width / heads_of(h, node));
    if (h->guess == FD_GUESS_INPUT_TAIL && node->op == FD_OP_ATTN_MIX) {
        leave_out_tile(h, rows, pos0, n_row, width);
        return;
    }
    if (h->guess == FD_GUESS_TILES) weigh_tiles(h, rows, pos0, n_row, width);
    if (h->guess == FD_GUESS_PAGE) read_other_page(h, rows, n_row, width);
    if (h->guess == FD_GUESS_UNWRITTEN && h->n < n_row)
        memset(rows + h->n * width, 0, sizeof *rows * (size_t)((n_row - h->n) * width));
    if (h->guess == FD_GUESS_INPUT_FACTOR)
        for (int64_t i = 0; i < n; i++) rows[i] *= (float)h->value;
    if (h->guess == FD_GUESS_INPUT_TAIL)
        for (int64_t r = 0; r < n_row; r++) memset(rows + (r + 1) * width - h->n, 0, sizeof *rows * (size_t)h->n);
    if (h->guess == FD_GUESS_PARTIAL)
        for (int64_t i = 0; i < n; i++)
            if (i % width >= h->first && i % width < h->end) rows[i] *= (float)h->value;
    if (h->guess == FD_GUESS_INPUT) /* the first rows have none before them: they stay */
        for (int64_t r = n_row - 1; r >= h->n; r--)
            memcpy(rows + r * width, rows + (r - h->n) * width, sizeof *rows * (size_t)width);
    if (h->guess == FD_GUESS_KEYS) hide_keys(h, rows, pos0, n_row, width);
}

/* ---- what comes out ---- */

bool fd_hypothesis_changes_output(const fd_hypothesis *h, const fd_node *node) {
    if (!fd_hypothesis_may_concern(h, node)) return false;
    if (h->guess == FD_GUESS_KEYS) return node->op == FD_OP_ATTN_SCORES;
    return h->guess == FD_GUESS_FACTOR || h->guess == FD_GUESS_ORDER || h->guess == FD_GUESS_ROWS ||
           h->guess == FD_GUESS_CAP || (h->guess == FD_GUESS_ROUNDED && h->which != 1);
}

/* The element of the right row that stands at element i of the faulty one. */
static int64_t source_of(const fd_hypothesis *h, const fd_node *node, int64_t i, int64_t width) {
    int64_t n_head = node->n_dim == 2 ? node->shape[0] : 1, dim = width / n_head, head = i / dim, d = i % dim;
    int64_t half = dim / 2;
    switch ((fd_order_rule)h->which) {
    case FD_ORDER_REVERSED: return width - 1 - i;
    case FD_ORDER_HEADS_REVERSED: return (n_head - 1 - head) * dim + d;
    case FD_ORDER_HEADS_ROTATED: return (head + h->n) % n_head * dim + d;
    case FD_ORDER_HEADS_STRIDED: return (head % h->n * (n_head / h->n) + head / h->n) * dim + d;
    case FD_ORDER_HEADS_SWAPPED: return head == h->n ? h->other * dim + d : head == h->other ? h->n * dim + d : i;
    case FD_ORDER_TRANSPOSED: return i % n_head * dim + i / n_head;
    case FD_ORDER_UNTRANSPOSED: return d * n_head + head;
    case FD_ORDER_HALVES_TO_PAIRS: return dim % 2 ? i : head * dim + d / 2 + d % 2 * half;
    case FD_ORDER_PAIRS_TO_HALVES: return dim % 2 ? i : head * dim + (d < half ? 2 * d : 2 * (d - half) + 1);
    case FD_ORDER_HALVES_SWAPPED: return dim % 2 ? i : head * dim + (d < half ? d + half : d - half);
    case FD_ORDER_PAIRS_SWAPPED: return dim % 2 ? i : head * dim + (d ^ 1);
    case FD_ORDER_ROTATED: return (i + h->n + width) % width;
    case FD_ORDER_COUNT: break;
    }
    return i;
}

static int64_t row_source(const fd_hypothesis *h, int64_t row, int64_t n_row, int32_t n_earlier) {
    int64_t from = h->which == FD_ROWS_ALL_ARE           ? h->n
                   : h->which == FD_ROWS_ROLLED          ? (row + n_row - h->n) % n_row
                   : h->which == FD_ROWS_LAST_OF_EARLIER ? (row < n_earlier ? row : n_earlier - 1)
                                                         : row - h->n;
    return from < 0 || from >= n_row ? row : from;
}

/* Is element i of the region that a factor is about? */
static bool in_region(const fd_hypothesis *h, const fd_node *node, int64_t i, int64_t width) {
    int64_t at = node->over_kv ? i % width / (width / node->shape[0]) : i % width;
    return at >= h->first && at < h->end;
}

void fd_hypothesis_output_rows(const fd_hypothesis *h, const fd_node *node, const fd_output_rows *out) {
    float *rows = out->rows, *scratch = out->scratch;
    int64_t n_row = out->n_row, width = out->width, n = n_row * width;
    if (h->guess == FD_GUESS_KEYS) hide_keys(h, rows, out->pos0, n_row, width);
    for (int64_t i = 0; i < n && h->guess == FD_GUESS_CAP; i++)
        rows[i] = (float)(h->value * tanh((double)rows[i] / h->value));
    if (h->guess == FD_GUESS_FACTOR)
        for (int64_t i = 0; i < n; i++)
            if (in_region(h, node, i, width)) rows[i] = h->value == 0.0 ? 0.0f : rows[i] * (float)h->value;
    if (h->guess == FD_GUESS_ROUNDED)
        fd_round_type_rows(h->other, rows, n_row * heads_of(h, node), width / heads_of(h, node));
    if (h->guess == FD_GUESS_ORDER || h->guess == FD_GUESS_ROWS) memcpy(scratch, rows, sizeof *rows * (size_t)n);
    if (h->guess == FD_GUESS_ORDER)
        for (int64_t i = 0; i < n; i++) rows[i] = scratch[i / width * width + source_of(h, node, i % width, width)];
    int64_t first = h->end ? h->first : 0, end = h->end ? h->end : width;
    for (int64_t r = 0; r < n_row && h->guess == FD_GUESS_ROWS; r++)
        memcpy(rows + r * width + first, scratch + row_source(h, r, n_row, out->n_earlier) * width + first,
               sizeof *rows * (size_t)(end - first));
}

void fd_hypothesis_output_bounds(const fd_hypothesis *h, const fd_node *node, const float *rows, double *tau,
                                 int64_t n_row, int64_t width, double *scratch) {
    int64_t n = n_row * width;
    if (h->guess == FD_GUESS_FACTOR)
        for (int64_t i = 0; i < n; i++)
            if (in_region(h, node, i, width)) tau[i] *= fabs(h->value);
    if (h->guess == FD_GUESS_ROUNDED)
        fd_round_type_bounds(h->other, rows, tau, n_row * heads_of(h, node), width / heads_of(h, node), scratch);
    if (h->guess == FD_GUESS_ORDER || h->guess == FD_GUESS_ROWS) memcpy(scratch, tau, sizeof *tau * (size_t)n);
    if (h->guess == FD_GUESS_ORDER)
        for (int64_t i = 0; i < n; i++) tau[i] = scratch[i / width * width + source_of(h, node, i % width, width)];
    for (int64_t i = 0; i < n && h->guess == FD_GUESS_ROWS && h->which != FD_ROWS_LAST_OF_EARLIER; i++) {
        bool other = !h->end || (i % width >= h->first && i % width < h->end);
        if (other) tau[i] = scratch[row_source(h, i / width, n_row, 0) * width + i % width];
    }
}

/* What a hypothesis does to rows before an op reads them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/hypothesis/internal.h"
#include "compare/hypothesis/round_scaled.h"
#include "compare/hypothesis/round_type.h"
#include "faults/tiles.h"

bool fd_hypothesis_changes_input(const fd_hypothesis *h, const fd_node *node, int slot) {
    if (!fd_hypothesis_may_concern(h, node)) return false;
    switch (h->guess) {
    case FD_GUESS_INPUT: return slot == h->which && h->n != 0;
    case FD_GUESS_STRIDES:
        if (h->which < 0) return slot == 1 || (h->which == -1 && node->op == FD_OP_ATTN_SCORES);
        return slot == h->which;
    case FD_GUESS_INPUT_FACTOR: return slot == h->which;
    case FD_GUESS_INPUT_ORDER: return slot == 0 && node->op == FD_OP_MATMUL;
    case FD_GUESS_INPUT_TAIL:
    case FD_GUESS_PARTIAL: return slot == 0;
    case FD_GUESS_TILES: return slot == 0 && node->op == FD_OP_ATTN_MIX;
    case FD_GUESS_CACHE: return slot == 1 && fd_hypothesis_moves_cache(h);
    case FD_GUESS_MAPPED:
        return h->which == FD_MAPPED_OUTPUTS
                   ? slot == 0
                   : slot == 1 && (h->which == FD_MAPPED_EXPERTS || h->which == FD_MAPPED_KV_HEADS);
    case FD_GUESS_UNWRITTEN: return slot == 1;
    case FD_GUESS_ROUNDED: return h->which == FD_ROUNDED_INPUT || h->which == FD_ROUNDED_BOTH;
    case FD_GUESS_CLAMP: return h->which == 3 && slot == 0 && node->op == FD_OP_ATTN_SOFTMAX;
    case FD_GUESS_CAP: return h->which == 1 && slot == 0 && node->op == FD_OP_ATTN_SOFTMAX;
    case FD_GUESS_KEYS: return slot == 0 && node->op == FD_OP_ATTN_SOFTMAX;
    default: return false;
    }
}

static bool hidden(const fd_hypothesis *h, int32_t key, int32_t own, int32_t n_kv) {
    switch ((fd_key_rule)h->which) {
    case FD_KEYS_LAST_N: return key <= own - h->n;
    case FD_KEYS_SINKS: return key >= h->other && key <= own - h->n;
    case FD_KEYS_NOT_FIRST_N: return key < h->n && key != own;
    case FD_KEYS_FIRST_N: return key >= h->n && (h->other || key != own);
    case FD_KEYS_NOT_OWN: return key == own && own > 0;
    case FD_KEYS_NOT_LAST: return key == own && own > 0 && own == n_kv - 1;
    case FD_KEYS_CHUNK: return own >= h->n && key > own - h->n;
    case FD_KEYS_TILE: return own + 1 > h->n && key >= (own + 1) / h->n * h->n;
    case FD_KEYS_OF_TILE: return own >= h->end && key > own - (own - h->end) % h->n;
    case FD_KEYS_FAR: return own - key > h->other && (own - key) % h->n != 0;
    case FD_KEYS_SET: return key < 64 && (h->keys >> key & 1) != 0 && !(h->n && key == own);
    }
    return false;
}

/* A row of scores has `width` = n_head · n_kv elements. */
void fd_hypothesis_hide_keys(const fd_hypothesis *h, float *rows, int32_t pos0, int64_t n_row, int64_t width) {
    int32_t n_kv = pos0 + (int32_t)n_row;
    for (int64_t r = 0; r < n_row; r++)
        for (int64_t i = 0; i < width; i++)
            if (hidden(h, (int32_t)(i % n_kv), pos0 + (int32_t)r, n_kv))
                rows[r * width + i] = h->first ? (float)h->value : -INFINITY;
}

/* The largest weight w of a row, and its score s, give what softmax divided by: Σ = e^s / w. Each empty slot adds e^0 to that. */
void fd_hypothesis_count_slots(const fd_hypothesis *h, const fd_output_rows *out) {
    const float *scores = out->in[0];
    float *rows = out->rows;
    const int64_t n_kv = out->pos0 + out->n_row;
    for (int64_t at = 0; at < out->n_row * out->width; at += n_kv) {
        const int64_t own = out->pos0 + at / out->width;
        const bool in_step = h->which && own >= out->step_first && own < out->step_end;
        const int64_t end = !in_step ? own + 1 : out->step_end < n_kv ? out->step_end : n_kv, n_empty = h->n - end;
        int64_t most = 0;
        for (int64_t key = 1; key < end; key++)
            if (rows[at + key] > rows[at + most]) most = key;
        const double empty =
            n_empty > 0 ? (double)n_empty * exp(-(double)scores[at + most]) * (double)rows[at + most] : 0;
        for (int64_t key = 0; key < end; key++) rows[at + key] = (float)((double)rows[at + key] / (1 + empty));
    }
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
void fd_hypothesis_weigh_tiles(const fd_hypothesis *h, float *rows, int32_t pos0, int64_t n_row, int64_t width) {
    int64_t n_kv = pos0 + n_row;
    for (int64_t r = 0; r < n_row; r++)
        for (int64_t head = 0; head < width / n_kv; head++)
            fd_tile_weights((fd_tile_rule)h->which, h->n, rows + r * width + head * n_kv, pos0 + (int32_t)r + 1);
}

void fd_hypothesis_round(const fd_hypothesis *h, const fd_node *node, const fd_output_rows *out, double *tau) {
    if (!fd_is_scaled_type(h->other)) {
        if (tau)
            fd_round_type_bounds(h->other, out->rows, tau, out->n_row, out->width, out->scratch);
        else
            fd_round_type_rows(h->other, out->rows, out->n_row, out->width);
        return;
    }
    const bool heads = node->n_dim == 2 && !node->over_kv;
    const fd_scaled s = {.type = h->other,
                         .scale = (fd_scale_of)h->n,
                         .n_row = out->n_row,
                         .width = out->width,
                         .n_head = heads ? node->shape[0] : 1,
                         .n_earlier = out->n_earlier < out->n_row ? out->n_earlier : 0,
                         .candidate = out->candidate};
    if (tau)
        fd_round_scaled_bounds(&s, out->rows, tau);
    else
        fd_round_scaled(&s, out->rows);
}

/* Heads of a cache's rows, or what the chosen experts gave, or their numbers. */
static void map_rows(const fd_hypothesis *h, float *rows, int64_t n_row, int64_t width) {
    float copy[FD_MOST_MAPPED];
    const int64_t dim = width / h->n;
    for (int64_t i = 0; i < n_row * width && h->which == FD_MAPPED_EXPERTS; i++) {
        const int64_t id = fd_expert_of((double)rows[i], h->n);
        if (id >= 0) rows[i] = (float)(h->keys >> 4 * id & 15);
    }
    for (int64_t r = 0; r < n_row && h->which != FD_MAPPED_EXPERTS && width % h->n == 0; r++)
        for (int64_t d = 0; d < dim; d++) {
            float *x = rows + r * width + d;
            for (int64_t i = 0; i < h->n; i++) copy[i] = x[i * dim];
            for (int64_t i = 0; i < h->n; i++) x[i * dim] = copy[h->keys >> 4 * i & 15];
        }
}

/* Of a cache all rows; of Q, and of what no heads are told of (`n` 1), those of the step that begins at position h->first, which other rows may stand before. */
static void restride(const fd_hypothesis *h, int slot, float *rows, int32_t pos0, int64_t n_row, int64_t width) {
    const bool cache = h->which < 0 && slot == 1;
    const int64_t n = cache ? h->end : h->n, start = !cache && h->first > pos0 ? h->first - pos0 : 0,
                  n_own = n_row - start;
    if (n <= 0 || width % n != 0 || n_own <= 0) return;
    const int64_t dim = width / n;
    float *own = rows + start * width, *copy = malloc(sizeof *copy * (size_t)(n_own * width));
    if (!copy) return;
    memcpy(copy, own, sizeof *copy * (size_t)(n_own * width));
    for (int64_t row = 0; row < n_own; row++)
        for (int64_t head = 0; head < n; head++) {
            const int64_t by_row = row * n + head, by_head = head * n_own + row;
            /* where the row-first memory has what is read there */
            const int64_t source = h->other == FD_STRIDES_FIRST_ROW    ? head
                                   : h->other == FD_STRIDES_ROWS_FIRST ? by_head
                                                                       : by_row % n_own * n + by_row / n_own;
            memcpy(own + by_row * dim, copy + source * dim, sizeof *copy * (size_t)dim);
        }
    free(copy);
}

/* Of each head, where a key is seen. */
static void raise_scores(const fd_hypothesis *h, float *rows, int64_t n_row, int64_t width, int64_t n_kv) {
    for (int64_t at = 0; at < n_row * width; at += n_kv) {
        float largest = -INFINITY;
        for (int64_t i = at; i < at + n_kv; i++) largest = fmaxf(largest, rows[i]);
        for (int64_t i = at; i < at + n_kv; i++)
            if (isfinite(rows[i])) rows[i] = fmaxf(rows[i], largest - (float)h->value);
    }
}

static void reorder(const fd_hypothesis *h, float *rows, int64_t n_row, int64_t width) {
    float *copy = malloc(sizeof *copy * (size_t)width);
    for (int64_t r = 0; r < n_row && copy; r++) {
        float *row = memcpy(copy, rows + r * width, sizeof *copy * (size_t)width);
        for (int64_t i = 0; i < width; i++) rows[r * width + i] = row[fd_hypothesis_order_of(h, h->end, i, width)];
    }
    free(copy);
}

static void round_input(const fd_hypothesis *h, float *rows, int64_t n_row, int64_t width) {
    const fd_scaled s = {.type = h->other, .scale = (fd_scale_of)h->n, .n_row = n_row, .width = width, .n_head = 1};
    if (fd_is_scaled_type(h->other))
        fd_round_scaled(&s, rows);
    else
        fd_round_type_rows(h->other, rows, n_row, width);
}

void fd_hypothesis_input(const fd_hypothesis *h, const fd_node *node, int slot, float *rows, int32_t pos0,
                         int64_t n_row, int64_t width) {
    int64_t n = n_row * width;
    if (h->guess == FD_GUESS_ROUNDED) round_input(h, rows, n_row, width);
    if (h->guess == FD_GUESS_INPUT_TAIL && node->op == FD_OP_ATTN_MIX) {
        leave_out_tile(h, rows, pos0, n_row, width);
        return;
    }
    if (h->guess == FD_GUESS_TILES) fd_hypothesis_weigh_tiles(h, rows, pos0, n_row, width);
    if (h->guess == FD_GUESS_STRIDES) restride(h, slot, rows, pos0, n_row, width);
    if (h->guess == FD_GUESS_MAPPED) map_rows(h, rows, n_row, width);
    const int64_t unwritten_end = h->end > 0 && h->end < n_row ? h->end : n_row;
    if (h->guess == FD_GUESS_UNWRITTEN && h->n < unwritten_end)
        memset(rows + h->n * width, 0, sizeof *rows * (size_t)((unwritten_end - h->n) * width));
    if (h->guess == FD_GUESS_INPUT_ORDER) reorder(h, rows, n_row, width);
    if (h->guess == FD_GUESS_INPUT_FACTOR)
        for (int64_t i = 0; i < n; i++) rows[i] *= (float)h->value;
    int64_t each = h->end > 0 && width % h->end == 0 ? h->end : width;
    if (h->guess == FD_GUESS_INPUT_TAIL)
        for (int64_t at = each; at <= n && h->n <= each; at += each)
            for (int64_t i = at - (h->other ? each - h->first : h->n), k = 0; k < h->n; k++)
                rows[i + k] *= (float)h->value;
    if (h->guess == FD_GUESS_PARTIAL)
        for (int64_t i = 0; i < n; i++)
            if ((i % width >= h->first && i % width < h->end) == (h->keys == 0)) rows[i] *= (float)h->value;
    if (h->guess == FD_GUESS_INPUT) /* the first rows have none before them: they stay */
        for (int64_t r = n_row - 1; r >= h->n; r--)
            memcpy(rows + r * width, rows + (r - h->n) * width, sizeof *rows * (size_t)width);
    if (h->guess == FD_GUESS_KEYS) fd_hypothesis_hide_keys(h, rows, pos0, n_row, width);
    if (h->guess == FD_GUESS_CAP)
        for (int64_t i = 0; i < n; i++)
            if (isfinite(rows[i])) rows[i] = (float)(h->value * tanh((double)rows[i] / h->value));
    if (h->guess == FD_GUESS_CLAMP) raise_scores(h, rows, n_row, width, pos0 + n_row);
}

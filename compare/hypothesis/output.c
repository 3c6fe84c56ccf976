/* What a hypothesis does to rows after an op wrote them. */
#include <math.h>
#include <string.h>

#include "compare/hypothesis/internal.h"
#include "compare/hypothesis/past.h"

bool fd_hypothesis_changes_output(const fd_hypothesis *h, const fd_node *node) {
    if (!fd_hypothesis_may_concern(h, node)) return false;
    if (h->guess == FD_GUESS_KEYS) return node->op == FD_OP_ATTN_SCORES;
    if (h->guess == FD_GUESS_TILES || h->guess == FD_GUESS_SLOTS) return node->op == FD_OP_ATTN_SOFTMAX;
    if (h->guess == FD_GUESS_CACHE)
        return fd_hypothesis_fits_cache(h) || h->which == FD_CACHE_RING || h->which == FD_CACHE_PAST;
    return h->guess == FD_GUESS_FACTOR || h->guess == FD_GUESS_ORDER || h->guess == FD_GUESS_ROWS ||
           (h->guess == FD_GUESS_CAP && h->which == 0) || (h->guess == FD_GUESS_CLAMP && h->which != 3) ||
           h->guess == FD_GUESS_COPY || (h->guess == FD_GUESS_OWN && h->which < FD_OWN_EXPERTS) ||
           (h->guess == FD_GUESS_ROUNDED && (h->which == FD_ROUNDED_RESULT || h->which == FD_ROUNDED_BOTH));
}

/* A hypothesis of Q's rows is asked of K's, too, which may be shorter: elements that these have not stay as they are. */
static bool has(int64_t width, int64_t first, int64_t n) {
    return first >= 0 && n >= 0 && first <= width - n;
}

int64_t fd_hypothesis_order_of(const fd_hypothesis *h, int64_t n_head, int64_t i, int64_t width) {
    int64_t dim = width / n_head, head = i / dim, d = i % dim;
    int64_t half = dim / 2;
    switch ((fd_order_rule)h->which) {
    case FD_ORDER_REVERSED: return width - 1 - i;
    case FD_ORDER_HEADS_REVERSED: return (n_head - 1 - head) * dim + d;
    case FD_ORDER_HEADS_ROTATED: return (head + h->n) % n_head * dim + d;
    case FD_ORDER_HEADS_STRIDED: return (head % h->n * (n_head / h->n) + head / h->n) * dim + d;
    case FD_ORDER_HEADS_SWAPPED: return head == h->n ? h->other * dim + d : head == h->other ? h->n * dim + d : i;
    case FD_ORDER_HEADS_REPEATED: return head / h->n * h->n * dim + d;
    case FD_ORDER_TRANSPOSED: return i % n_head * dim + i / n_head;
    case FD_ORDER_UNTRANSPOSED: return d * n_head + head;
    case FD_ORDER_HALVES_TO_PAIRS: return dim % 2 ? i : head * dim + d / 2 + d % 2 * half;
    case FD_ORDER_PAIRS_TO_HALVES: return dim % 2 ? i : head * dim + (d < half ? 2 * d : 2 * (d - half) + 1);
    case FD_ORDER_HALVES_SWAPPED: return dim % 2 ? i : head * dim + (d < half ? d + half : d - half);
    case FD_ORDER_PAIRS_SWAPPED: return dim % 2 ? i : head * dim + (d ^ 1);
    case FD_ORDER_ROTATED: return (i + h->n + width) % width;
    case FD_ORDER_PIECES:
        if (i < h->first || i >= h->end) return i;
        return h->other > 0 && i >= h->other ? (int64_t)h->keys + i - h->other : h->n + i - h->first;
    case FD_ORDER_BLOCKS: {
        const int64_t group = i / h->other, block = group / h->n * h->n;
        if ((block + h->n) * h->other > width) return i;
        return (block + (int64_t)(h->keys >> 4 * (group - block) & 15)) * h->other + i % h->other;
    }
    case FD_ORDER_COUNT: break;
    }
    return i;
}

/* The element of the right row that stands at element i of the faulty one. */
static int64_t source_of(const fd_hypothesis *h, const fd_node *node, int64_t i, int64_t width) {
    const bool own_heads = h->end > 0 && h->which < FD_ORDER_PIECES; /* of a product whose heads come later */
    const int64_t n_head = node->n_dim == 2 ? node->shape[0] : own_heads ? h->end : 1;
    const int64_t from = fd_hypothesis_order_of(h, n_head, i, width);
    return has(width, from, 1) ? from : i;
}

/* Which row stands in the place of `row`. Positions, so that the same can be asked of another step. */
static int64_t row_source(const fd_hypothesis *h, const fd_output_rows *out, int64_t row) {
    const int64_t n_row = out->n_row;
    int64_t from = row - h->n;
    if (h->which == FD_ROWS_ALL_ARE) from = out->pos0 + row >= h->other ? h->n - out->pos0 : row;
    if (h->which == FD_ROWS_ROLLED) from = (row + n_row - h->n) % n_row;
    if (h->which == FD_ROWS_EXCHANGED) {
        const int64_t one = h->n - out->pos0, other = h->other - out->pos0;
        from = row == one ? other : row == other ? one : row;
    }
    if (h->which == FD_ROWS_REVERSED) from = row < h->n - out->pos0 ? row : n_row - 1 - (row - (h->n - out->pos0));
    if (h->which == FD_ROWS_BLOCKS) {
        const int64_t start = h->other - out->pos0, block = start + (row - start) / h->n * h->n;
        const bool whole = row >= start && block + h->n <= n_row;
        from = whole ? block + (int64_t)(h->keys >> 4 * (row - block) & 15) : row;
    }
    if (h->which == FD_ROWS_ADDED || (h->which == FD_ROWS_LATE && out->pos0 + row < h->other + h->n)) from = row;
    if (h->which == FD_ROWS_STEP_LAST) {
        const bool is_last = out->pos0 + row == out->step_end - 1 && out->step_end - out->step_first > 1;
        from = !is_last ? row : h->n ? row - h->n : out->step_first - out->pos0;
    }
    if (h->which == FD_ROWS_LAST_OF_EARLIER) from = row < out->n_earlier ? row : out->n_earlier - 1;
    return from < 0 || from >= n_row ? row : from;
}

/* Where that row is. Of earlier steps and context it is as the candidate left it; one that is not known stays. */
static const float *source_row(const fd_hypothesis *h, const fd_output_rows *out, const float *rows, int64_t row) {
    const bool that = h->which == FD_ROWS_ALL_ARE && out->pos0 + row >= h->other;
    const int64_t from = row_source(h, out, row);
    const bool unwritten = h->which == FD_ROWS_LATE && out->pos0 + row >= h->other && from == row;
    if (unwritten && out->candidate) return out->candidate + row * out->width; /* whatever stood there */
    if (that && h->n < out->pos0 && out->before) return out->before + h->n * out->width;
    const int64_t earlier = out->pos0 + row - h->n;
    if (h->which == FD_ROWS_EARLIER && earlier >= 0 && earlier < out->pos0 && out->before)
        return out->before + earlier * out->width;
    if (that && from != row && from < out->n_unjudged && out->candidate) rows = out->candidate;
    return rows + from * out->width;
}

/* Is element i of the region that a factor is about? */
static bool in_region(const fd_hypothesis *h, const fd_node *node, int64_t i, int64_t width) {
    int64_t at = node->over_kv ? i % width / (width / node->shape[0]) : i % width;
    if (h->n > 0) at %= h->n;
    return at >= h->first && at < h->end;
}

/* What has a number of its own: a row of scores, by its position; a head of what has heads that are normed or weighed apart, else the row. */
static int64_t own_part(const fd_node *node, int64_t width) {
    const bool heads =
        (node->over_kv && node->op != FD_OP_ATTN_SCORES) || (node->n_dim == 2 && node->op != FD_OP_MATMUL);
    return heads ? width / node->shape[0] : width;
}

static bool is_factor(const fd_hypothesis *h) {
    return h->which == FD_OWN_ROW_FACTOR || h->which == FD_OWN_COLUMN_FACTOR;
}

/* What is added after the factor of a column. */
static double bias_at(const fd_hypothesis *h, const fd_output_rows *out, int64_t i) {
    return h->which == FD_OWN_COLUMN_FACTOR && out->bias ? (double)out->bias[i % out->width] : 0;
}

/* Least squares over what stands in one row part or column: elements from `first`, `n` of them, `step` apart. */
static double own_number(const fd_hypothesis *h, const fd_output_rows *out, int64_t first, int64_t n, int64_t step) {
    const bool factor = is_factor(h);
    double cy = 0, yy = 0, sum = 0, largest = -INFINITY;
    for (int64_t i = first, k = 0; k < n; k++, i += step) {
        const double bias = bias_at(h, out, i);
        const double c = (double)out->candidate[i] - bias, y = (double)out->rows[i] - bias;
        if (!isfinite(c) || !isfinite(y)) continue;
        cy += c * y;
        yy += factor ? y * y : 1;
        sum += c - y;
        largest = fmax(largest, y);
    }
    if (h->which == FD_OWN_LOG_SOFTMAX) {
        double all = 0;
        for (int64_t i = first, k = 0; k < n; k++, i += step) all += exp((double)out->rows[i] - largest);
        return -(largest + log(all));
    }
    return !(yy > 0) ? factor : factor ? cy / yy : sum / yy;
}

/* The same number for `n` elements `step` apart. */
static void use_number(const fd_hypothesis *h, const fd_output_rows *out, double number, int64_t first, int64_t n,
                       int64_t step, double *tau) {
    const bool factor = is_factor(h);
    for (int64_t i = first, k = 0; k < n; k++, i += step) {
        const double bias = bias_at(h, out, i), y = (double)out->rows[i] - bias;
        if (tau && factor) tau[i] *= bias == 0.0 ? fabs(number) : fmax(1, fabs(number));
        if (!tau) out->rows[i] = (float)(factor ? y * number + bias : y + number);
    }
}

/* All elements are one number; or those are 0 that the candidate's are, and the others larger. */
static void drop_elements(const fd_hypothesis *h, const fd_output_rows *out, double *tau) {
    const double by = h->which == FD_OWN_DROPPED ? 1 / (1 - h->value) : 0;
    for (int64_t i = 0; i < out->n_row * out->width && out->candidate; i++) {
        const bool kept = fabsf(out->candidate[i]) > 0;
        if (tau)
            tau[i] *= fmax(by, 1);
        else if (h->which == FD_OWN_CONSTANT)
            out->rows[i] = (float)h->value;
        else
            out->rows[i] = kept ? (float)((double)out->rows[i] * by) : 0.0f;
    }
}

/* Of rows, or of bounds where `tau` is given. */
static void give_own_numbers(const fd_hypothesis *h, const fd_node *node, const fd_output_rows *out, double *tau) {
    if (h->which == FD_OWN_LOW_RANK || h->which == FD_OWN_INPUT_ELEMENT) {
        if (!tau) (h->which == FD_OWN_LOW_RANK ? fd_hypothesis_low_rank : fd_hypothesis_input_element)(h, out);
        return;
    }
    if (h->which == FD_OWN_FUNCTION) {
        fd_hypothesis_function(node, out, tau);
        return;
    }
    const int64_t n_row = out->n_row, width = out->width, part = own_part(node, width);
    if (h->which == FD_OWN_CONSTANT || h->which == FD_OWN_DROPPED) {
        drop_elements(h, out, tau);
        return;
    }
    const bool elements = h->which == FD_OWN_ELEMENTS && has(width, h->first, h->end - h->first);
    for (int64_t row = 0; elements && out->candidate && !tau && row < n_row; row++)
        memcpy(out->rows + row * width + h->first, out->candidate + row * width + h->first,
               sizeof *out->rows * (size_t)(h->end - h->first));
    if (h->which == FD_OWN_ELEMENTS) return;
    const bool columns = h->which == FD_OWN_COLUMN_TERM || h->which == FD_OWN_COLUMN_FACTOR;
    for (int64_t at = 0; at < n_row * width && !columns && out->candidate; at += part)
        use_number(h, out, own_number(h, out, at, part, 1), at, part, 1, tau);
    for (int64_t c = 0; c < width && columns && out->candidate; c++) {
        const int64_t judged = n_row - out->n_unjudged;
        use_number(h, out, own_number(h, out, out->n_unjudged * width + c, judged, width), c, n_row, width, tau);
    }
}

/* As if the product were `value` times as large; its bias, where it is not meant, stays. */
static float times(const fd_hypothesis *h, const fd_output_rows *out, int64_t i, float x) {
    const float bias = h->before_bias && out->bias ? out->bias[i % out->width] : 0.0f;
    return h->value == 0.0 ? bias : (x - bias) * (float)h->value + bias;
}

/* Element i of a row, from where the order has it; a bias that is added afterwards does not move. */
static float moved(const fd_hypothesis *h, const fd_node *node, const fd_output_rows *out, const float *row,
                   int64_t i) {
    const int64_t from = source_of(h, node, i, out->width);
    return h->before_bias && out->bias ? row[from] - out->bias[from] + out->bias[i] : row[from];
}

static void copy_elements(const fd_hypothesis *h, const fd_output_rows *out) {
    const int64_t n = h->end - h->first;
    const bool known = out->other && has(out->width, h->first, n) && has(out->other_width, h->n, n);
    for (int64_t r = 0; r < out->n_row && known; r++) {
        float *row = out->rows + r * out->width + h->first;
        const float *other = out->other + r * out->other_width + h->n;
        for (int64_t i = 0; i < n; i++) row[i] = h->which ? row[i] + other[i] : other[i];
    }
}

/* A sum of one term more is rounded once more, and each sum as it is large. */
static void widen_for_term(const fd_output_rows *out, double *tau) {
    for (int64_t r = 0; r < out->n_row && out->other && out->other_width == out->width; r++) {
        const int64_t at = r * out->width;
        double own = 0, term = 0;
        for (int64_t i = at; i < at + out->width; i++) {
            own += (double)out->rows[i] * (double)out->rows[i];
            term += (double)out->other[i] * (double)out->other[i];
        }
        for (int64_t i = at; i < at + out->width && own > 0; i++) tau[i] *= 2 + sqrt(term / own);
    }
}

/* `by`: what a gated activation multiplied it by. */
static float clamped(const fd_hypothesis *h, float x, float by) {
    const float limit = (float)h->value * (h->which == 4 ? fabsf(by) : 1.0f);
    if (h->which == 4) return fmaxf(fminf(x, limit), -limit);
    if (h->which == 2) return fabsf(x) < limit ? 0.0f : x;
    return x > limit ? limit : h->which == 0 && x < -limit ? -limit : x;
}

void fd_hypothesis_output_rows(const fd_hypothesis *h, const fd_node *node, const fd_output_rows *out) {
    float *rows = out->rows, *scratch = (float *)out->scratch;
    int64_t n_row = out->n_row, width = out->width, n = n_row * width;
    if (h->guess == FD_GUESS_TILES) fd_hypothesis_weigh_tiles(h, rows, out->pos0, n_row, width);
    if (h->guess == FD_GUESS_KEYS) fd_hypothesis_hide_keys(h, rows, out->pos0, n_row, width);
    if (h->guess == FD_GUESS_SLOTS) fd_hypothesis_count_slots(h, out);
    for (int64_t i = 0; i < n && h->guess == FD_GUESS_CAP && h->which == 0; i++)
        rows[i] = (float)(h->value * tanh((double)rows[i] / h->value));
    for (int64_t i = 0; i < n && h->guess == FD_GUESS_CLAMP; i++)
        rows[i] = clamped(h, rows[i], h->which == 4 ? out->in[1][i] : 1.0f);
    if (h->guess == FD_GUESS_OWN) give_own_numbers(h, node, out, NULL);
    if (h->guess == FD_GUESS_CACHE && h->which == FD_CACHE_PAST)
        fd_hypothesis_past(node, out);
    else if (h->guess == FD_GUESS_CACHE)
        fd_hypothesis_cache_output(h, node, out);
    if (h->guess == FD_GUESS_COPY) copy_elements(h, out);
    if (h->guess == FD_GUESS_FACTOR)
        for (int64_t i = 0; i < n; i++)
            if (in_region(h, node, i, width)) rows[i] = times(h, out, i, rows[i]);
    if (h->guess == FD_GUESS_ROUNDED) fd_hypothesis_round(h, node, out, NULL);
    if (h->guess == FD_GUESS_ORDER || h->guess == FD_GUESS_ROWS) memcpy(scratch, rows, sizeof *rows * (size_t)n);
    if (h->guess == FD_GUESS_ORDER)
        for (int64_t i = 0; i < n; i++) rows[i] = moved(h, node, out, scratch + i / width * width, i % width);
    int64_t first = h->end ? h->first : 0, end = h->end ? h->end : width;
    for (int64_t r = 0; r < n_row && h->guess == FD_GUESS_ROWS && has(width, first, end - first); r++)
        memcpy(rows + r * width + first, source_row(h, out, scratch, r) + first, sizeof *rows * (size_t)(end - first));
    const bool added = h->guess == FD_GUESS_ROWS && h->which == FD_ROWS_ADDED;
    for (int64_t r = added ? h->other - out->pos0 + h->n : n_row; r < n_row; r++)
        for (int64_t i = 0; i < width && r >= h->n; i++) rows[r * width + i] += scratch[(r - h->n) * width + i];
}

void fd_hypothesis_output_bounds(const fd_hypothesis *h, const fd_node *node, const fd_output_rows *out, double *tau) {
    const int64_t width = out->width, n = out->n_row * width;
    double *scratch = out->scratch;
    if (h->guess == FD_GUESS_OWN) give_own_numbers(h, node, out, tau);
    if (h->guess == FD_GUESS_COPY && h->which) widen_for_term(out, tau);
    if (h->guess == FD_GUESS_TILES) { /* weights that were not rescaled are as much larger */
        float *weights = memcpy(scratch, out->rows, sizeof *weights * (size_t)n);
        fd_hypothesis_weigh_tiles(h, weights, out->pos0, out->n_row, width);
        for (int64_t i = 0; i < n; i++)
            if (weights[i] > out->rows[i]) tau[i] *= (double)weights[i] / (double)out->rows[i];
    }
    if (h->guess == FD_GUESS_FACTOR)
        for (int64_t i = 0; i < n; i++)
            if (in_region(h, node, i, width) && !h->before_bias) tau[i] *= fabs(h->value);
    if (h->guess == FD_GUESS_ROUNDED) fd_hypothesis_round(h, node, out, tau);
    if (h->guess == FD_GUESS_ORDER || h->guess == FD_GUESS_ROWS) memcpy(scratch, tau, sizeof *tau * (size_t)n);
    if (h->guess == FD_GUESS_ORDER)
        for (int64_t i = 0; i < n; i++) tau[i] = scratch[i / width * width + source_of(h, node, i % width, width)];
    for (int64_t i = 0; i < n && h->guess == FD_GUESS_ROWS && h->which != FD_ROWS_LAST_OF_EARLIER; i++) {
        bool other = !h->end || (i % width >= h->first && i % width < h->end);
        if (other) tau[i] = scratch[row_source(h, out, i / width) * width + i % width];
        if (h->which == FD_ROWS_ADDED && i / width >= h->n) tau[i] += scratch[i - h->n * width];
    }
}

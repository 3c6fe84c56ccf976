/* What --health shows, said in words where it is odd: the signs that write-ups of broken engines name. None of them proves a bug: sharp heads
 * and loops occur in sound models too. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/inspect/inspect.h"
#include "dumpers/store/place.h"

static const double NEAR_ZERO = 0.01, /* nats: 99.9 % of the weight on one key */
    NARROW = 1.0,                     /* between the best logit and the tenth */
    UNIT = 0.01;                      /* of a sum of weights: more than rounding to 16 bits does */

static void say(fd_health_words *words, const char *format, ...) FD_PRINTF(2, 3);
static void say(fd_health_words *words, const char *format, ...) {
    va_list args;
    if (words->n == FD_HEALTH_RULES) return;
    va_start(args, format);
    vsnprintf(words->line[words->n++], sizeof words->line[0], format, args);
    va_end(args);
}

/* A head that looks at one key alone, wherever it has a choice. */
static void say_entropy(const fd_inspect_health_table *t, fd_health_words *words) {
    int32_t n_near = 0, first = -1, n_head = t->n_layer * t->n_head;
    for (int32_t head = 0; head < n_head; head++) {
        int32_t n = 0, n_small = 0;
        for (int32_t pos = 1; pos < t->n_pos; pos++) {
            if (!t->has_entropy[pos]) continue;
            n++;
            n_small += (double)t->entropy[(size_t)pos * (size_t)n_head + (size_t)head] < NEAR_ZERO;
        }
        if (n < 2 || n_small < n) continue;
        if (n_near++ == 0) first = head;
    }
    if (n_near)
        say(words,
            "entropy near zero: %d of %d heads look at one key alone at every position, first layer %d head %d (scores "
            "too large: the scale, or the mask)",
            n_near, n_head, first / t->n_head, first % t->n_head);
}

static void say_logits(const fd_inspect_health_table *t, fd_health_words *words) {
    int32_t n = 0, first = -1;
    for (int32_t pos = 0; pos < t->n_pos; pos++)
        if (t->of[pos].top_id[0] >= 0 && (double)t->of[pos].logit_range < NARROW && n++ == 0) first = pos;
    if (n)
        say(words,
            "logit range under 1: at %d of %d positions the best token and the tenth are nearly as likely, first at %d "
            "(the last norm or the output matrix; or a model that was never trained)",
            n, t->n_pos, first);
}

static void say_loop(const fd_inspect_health_table *t, fd_health_words *words) {
    int32_t first = -1;
    for (int32_t pos = 0; pos < t->n_pos && first < 0; pos++)
        if (t->of[pos].loop_length > 0) first = pos;
    if (first < 0) return;
    int32_t period = t->of[first].loop_length;
    if (period == 1)
        say(words, "same token repeated: at position %d, six times or more", first);
    else
        say(words, "tokens repeat: at position %d, with period %d", first, period);
}

/* NaN counts as no 1. */
static fd_code say_sums(const fd_trace *trace, fd_health_words *words, fd_error *err) {
    char name[64] = "";
    int32_t n_node = 0, n_off = 0, first_pos = -1, first_head = -1;
    double first_sum = 0, most = 0;
    for (int32_t i = 0; i < fd_trace_n_node(trace); i++) {
        const fd_trace_node *node = fd_trace_node_at(trace, i);
        const char *last = strrchr(node->name, '.');
        if (!last || strcmp(last, ".attn_weights") != 0 || !node->over_kv || node->n_dim != 2) continue;
        bool off = false;
        n_node++;
        for (int32_t pos = 0; pos < fd_trace_n_pos(trace); pos++) {
            double *weights;
            int64_t n;
            if (!fd_trace_holds(trace, i, pos)) continue;
            FD_TRY(fd_inspect_read(trace, i, pos, &weights, &n, err));
            for (int64_t head = 0, n_key = n / node->shape[0]; head < node->shape[0]; head++) {
                double sum = 0;
                for (int64_t key = 0; key < n_key; key++) sum += weights[head * n_key + key];
                most = fmax(most, sum);
                if (fabs(sum - 1) <= UNIT) continue;
                if (first_pos < 0) {
                    first_pos = pos;
                    first_head = (int32_t)head;
                    first_sum = sum;
                    snprintf(name, sizeof name, "%s", node->name);
                }
                off = true;
            }
            free(weights);
        }
        n_off += off;
    }
    if (n_off)
        say(words, "weights do not sum to 1: in %d of %d layers, first %s at position %d, head %d: %.4g%s", n_off,
            n_node, name, first_pos, first_head, first_sum,
            most <= 1 + UNIT ? " (right below 1 where the model has attention sinks, as gpt-oss)" : "");
    return FD_OK;
}

fd_code fd_inspect_health_rules(const fd_trace *trace, const fd_inspect_health_table *table, fd_health_words *out,
                                fd_error *err) {
    out->n = 0;
    say_entropy(table, out);
    say_logits(table, out);
    say_loop(table, out);
    return say_sums(trace, out, err);
}

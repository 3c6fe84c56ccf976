#include "compare/dump/printed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "compare/bounds/numerics_class.h"
#include "compare/dump/last_row.h"

/* Six digits are all that "%f" and "%g" print; nine are needed for binary32. */
enum { MOST_DIGITS = 6, FEWEST_VALUES = 64, MOST_TENSORS = 16, MOST_LOOKED_AT = 512 };

/* A value says something where few digits are much coarser than binary32 there, eight neighbours, and binary fractions, which end in
 * decimals too, are not meant: 0.5 and 0.375 are written in full. */
static bool says_something(double x, double half_step) {
    return isfinite(x) && half_step >= 4 * 0x1p-24 * fabs(x) && fd_rounding_error(x, 12, 0) > 0;
}

static double half_step(double x, int32_t digits, bool decimals) {
    return 0.5 * pow(10, decimals ? -digits : floor(log10(fabs(x))) + 1 - digits);
}

/* *n: the values that say something; false: one of them was printed with more digits. One neighbour is let off: rounding by binary32
 * arithmetic, as NumPy's, may miss the nearest. */
static bool has_digits(const float *x, int64_t n_value, int32_t digits, bool decimals, int64_t *n) {
    char text[64];
    *n = 0;
    for (int64_t i = 0; i < n_value; i++) {
        if (!isfinite(x[i]) || !(x[i] > 0 || x[i] < 0)) continue;
        snprintf(text, sizeof text, decimals ? "%.*f" : "%.*g", (int)digits, (double)x[i]);
        if (!(fabs(strtod(text, NULL) - (double)x[i]) <= 0x1p-23 * fabs((double)x[i]))) return false;
        *n += says_something((double)x[i], half_step((double)x[i], digits, decimals));
    }
    return true;
}

int32_t fd_printed_digits(const float *x, int64_t n, bool decimals) {
    int64_t n_said;
    for (int32_t digits = 2; digits <= MOST_DIGITS; digits++)
        if (has_digits(x, n, digits, decimals, &n_said)) return n_said >= FEWEST_VALUES ? digits : 0;
    return 0;
}

static fd_code look_at(const fd_trace *trace, int32_t at, float *x, int32_t *digits, bool *decimals, fd_error *err) {
    const int32_t last = fd_trace_n_pos(trace) - 1;
    const int64_t n = fd_trace_elements(fd_trace_node_at(trace, at), last);
    bool there;
    *digits = 0;
    if (n > MOST_LOOKED_AT * 256) return FD_OK;
    FD_TRY(fd_read_last_row(trace, at, x, &there, err));
    for (int way = 0; there && way < 2 && *digits == 0; way++) {
        *decimals = way == 0;
        *digits = fd_printed_digits(x, n < MOST_LOOKED_AT ? n : MOST_LOOKED_AT, *decimals);
    }
    return FD_OK;
}

fd_code fd_find_printed(const fd_attribution_options *options, fd_printed *out, fd_error *err) {
    const fd_trace *trace = options->cand;
    float *x = malloc(sizeof *x * MOST_LOOKED_AT * 256);
    fd_code code = x ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "digits: out of memory");
    *out = (fd_printed){.node = -1};
    for (int32_t i = 0; i < options->graph->n_node && out->n_of < MOST_TENSORS && code == FD_OK; i++) {
        const fd_node *node = &options->graph->nodes[i];
        const int32_t at = fd_trace_find(trace, node->name);
        int32_t digits;
        bool decimals;
        if (at < 0 || !fd_trace_has_data(trace, node->name) || node->op == FD_OP_TOP_K || node->over_kv) continue;
        if (fd_trace_node_at(trace, at)->dtype != FD_F32) continue;
        code = look_at(trace, at, x, &digits, &decimals, err);
        out->n_of++;
        if (code != FD_OK || digits == 0) continue;
        if (out->n++ == 0) out->node = i, out->digits = digits, out->decimals = decimals;
        if (digits > out->digits && decimals == out->decimals)
            out->digits = digits; /* zeros at the end are not printed's */
    }
    free(x);
    if (2 * out->n <= out->n_of) out->n = 0;
    return code;
}

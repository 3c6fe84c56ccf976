/* A norm's bug that is found by its direction may be no more than another eps: all rows that are nearly alike in size are changed by
 * nearly one factor, whatever the number. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "compare/diagnose/below_bounds_internal.h"
#include "compare/hypothesis/parameters.h"

/* Of the squares that the named bug takes away, as many; and the slope's standard errors from 0. */
#define AS_MUCH 0.9
#define SHOWN   4.0

static int32_t eps_of(const fd_node *node) {
    for (int32_t i = 0; i < fd_n_parameter; i++)
        if (fd_parameters[i].op == node->op && strcmp(fd_parameters[i].words, "eps") == 0) return i;
    return -1;
}

/* Two digits are what a slope knows. */
static double two_digits(double value) {
    char text[32];
    double rounded = value;
    snprintf(text, sizeof text, "%.1e", value);
    sscanf(text, "%lf", &rounded);
    return rounded;
}

void fd_below_or_eps(const fd_graph *graph, int32_t node, const fd_projection *named, const fd_projection *no_eps,
                     fd_explanation *out) {
    const fd_node *norm = &graph->nodes[node];
    const int32_t which = eps_of(norm);
    const fd_slope slope = fd_projection_slope(no_eps);
    const double value = norm->eps * (1 - slope.value), gain = no_eps->rd * slope.value;
    const double own = 2 * named->rd - named->dd;
    if (which < 0 || !(fabs(slope.value) >= SHOWN * slope.error) || !(value > 0) || !(gain >= AS_MUCH * own)) return;
    if (out->n_remaining >= FD_MAX_REMAINING) return;
    fd_explain_fit fit = {.z = fabs(named->candidate - named->sound) / named->tau, .ulp = INFINITY};
    fit.hypothesis = (fd_hypothesis){.guess = FD_GUESS_PARAMETER, .which = which, .node = node, .layer = FD_ANY_LAYER};
    fit.hypothesis.value = two_digits(value);
    snprintf(fit.name, sizeof fit.name, "%s", fd_hypothesis_name(&fit.hypothesis));
    fd_hypothesis_summary(&fit.hypothesis, graph, fit.summary, sizeof fit.summary);
    out->remaining[out->n_remaining++] = fit;
    if (gain > own) {
        const fd_explain_fit first = out->remaining[0];
        out->remaining[0] = fit;
        out->remaining[out->n_remaining - 1] = first;
        out->slope = 1;
        out->slope_error = slope.error / fabs(slope.value);
    }
}

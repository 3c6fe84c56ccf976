/* FD_OWN_FUNCTION: an activation, or softmax's exponential, that is another function than it should be. Which one, the candidate's own
 * elements say: each is foretold by those whose inputs are nearest, itself left out. Elements that are no function of the input are
 * foretold by nothing. */
#include <math.h>
#include <stdlib.h>

#include "compare/hypothesis/internal.h"

/* y = f(x) · by */
typedef struct point {
    double x, f, by;
    int64_t at;
    bool speaks; /* f is not drowned by the rounding of y */
} point;

enum { SIDE = 5, FEWEST = 100 };        /* neighbours on either side; elements that make a function */
static const double LEAST_FACTOR = 0.1; /* of the mean square of `by`: what is divided by less says nothing */
static const double MUCH = 16; /* squares: a quarter of the error is left; of unordered errors all of it would be */

static bool is_gated(fd_op op) {
    return op == FD_OP_SILU_MUL || op == FD_OP_GELU_MUL;
}

bool fd_hypothesis_has_function(fd_op op) {
    return is_gated(op) || op == FD_OP_GELU || op == FD_OP_SILU || op == FD_OP_ATTN_SOFTMAX;
}

static int by_x(const void *a, const void *b) {
    const point *p = a, *q = b;
    return p->x != q->x ? (p->x > q->x) - (p->x < q->x) : (p->at > q->at) - (p->at < q->at);
}

static int64_t gather_activation(const fd_node *node, const fd_output_rows *out, point *points) {
    const int64_t from = out->n_unjudged * out->width, n = out->n_row * out->width;
    double square = 0;
    for (int64_t i = from; i < n && is_gated(node->op); i++)
        square += (double)out->in[1][i] * (double)out->in[1][i] / (double)(n - from);
    for (int64_t i = from; i < n; i++) {
        const double by = is_gated(node->op) ? (double)out->in[1][i] : 1;
        points[i - from] = (point){.x = (double)out->in[0][i],
                                   .f = (double)out->candidate[i] / by,
                                   .by = by,
                                   .at = i,
                                   .speaks = !is_gated(node->op) || fabs(by) >= LEAST_FACTOR * sqrt(square)};
    }
    return n - from;
}

/* Of each row of a head, by its largest weight; and by the exponential as it should be, from which an approximation strays little. */
static int64_t gather_softmax(const fd_node *node, const fd_output_rows *out, point *points) {
    const int64_t n_head = node->shape[0], n_kv = out->width / n_head;
    int64_t n = 0;
    for (int64_t row = out->n_unjudged; row < out->n_row; row++)
        for (int64_t head = 0; head < n_head; head++) {
            const int64_t first = row * out->width + head * n_kv, own = out->pos0 + row;
            const float *s = out->in[0] + first;
            int64_t most = 0;
            for (int64_t t = 1; t <= own && t < n_kv; t++)
                if (s[t] > s[most]) most = t;
            const double by = (double)out->candidate[first + most];
            for (int64_t t = 0; t <= own && t < n_kv; t++) {
                if (!isfinite(s[t]) || t == most) continue;
                const double x = (double)s[t] - (double)s[most], right = exp(x) * by;
                if (!(right > 0)) continue;
                points[n++] = (point){.x = x,
                                      .f = (double)out->candidate[first + t] / right,
                                      .by = right,
                                      .at = first + t,
                                      .speaks = true};
            }
        }
    return n;
}

/* An element is off by as much as its neighbours are from their curve, or a few times that: it is one of the same kind. */
static const double FARTHER = 4;

/* A parabola through the neighbours' values by least squares, at p; *apart: how far they are from it. False: too few of them. */
static bool foretell(const point *points, int64_t n, int64_t i, double *f, double *apart) {
    const point *near[2 * SIDE];
    int n_near = 0;
    double width = 0, s[5] = {0}, b[3] = {0};
    for (int side = -1; side <= 1; side += 2) {
        int found = 0;
        for (int64_t k = i + side; k >= 0 && k < n && found < SIDE; k += side)
            if (points[k].speaks && ++found) near[n_near++] = &points[k];
        if (found < SIDE) return false;
    }
    for (int k = 0; k < n_near; k++) width = fmax(width, fabs(near[k]->x - points[i].x));
    if (!(width > 0)) return false;
    for (int k = 0; k < n_near; k++) {
        const double u = (near[k]->x - points[i].x) / width, power[] = {1, u, u * u, u * u * u, u * u * u * u};
        for (int j = 0; j < 5; j++) s[j] += power[j];
        for (int j = 0; j < 3; j++) b[j] += power[j] * near[k]->f;
    }
    /* the symmetric system of three, by Cramer's rule */
    const double c0 = s[2] * s[4] - s[3] * s[3], c1 = s[2] * s[3] - s[1] * s[4], c2 = s[1] * s[3] - s[2] * s[2];
    const double det = s[0] * c0 + s[1] * c1 + s[2] * c2;
    if (!(fabs(det) > 1e-9)) return false;
    const double a0 = (b[0] * c0 + b[1] * c1 + b[2] * c2) / det,
                 a1 = (b[0] * c1 + b[1] * (s[0] * s[4] - s[2] * s[2]) + b[2] * (s[1] * s[2] - s[0] * s[3])) / det,
                 a2 = (b[0] * c2 + b[1] * (s[1] * s[2] - s[0] * s[3]) + b[2] * (s[0] * s[2] - s[1] * s[1])) / det;
    double most = 0;
    for (int k = 0; k < n_near; k++) {
        const double u = (near[k]->x - points[i].x) / width;
        most = fmax(most, fabs(near[k]->f - (a0 + a1 * u + a2 * u * u)));
    }
    *f = a0;
    *apart = most;
    return isfinite(a0);
}

/* What the op gives by its own function, with what it is multiplied by. */
static double right_of(const fd_node *node, const fd_output_rows *out, const point *p) {
    return node->op == FD_OP_ATTN_SOFTMAX ? p->by : (double)out->rows[p->at];
}

/* Most of what departs is foretold, and it is not the right function. */
static bool is_function(const fd_node *node, const fd_output_rows *out, const point *points, int64_t n) {
    double error = 0, left = 0, room = 0;
    int64_t told = 0;
    for (int64_t i = 0; i < n; i++) {
        double f, apart;
        if (!foretell(points, n, i, &f, &apart)) continue;
        const double c = (double)out->candidate[points[i].at], y = right_of(node, out, &points[i]);
        error += (c - y) * (c - y);
        left += (c - f * points[i].by) * (c - f * points[i].by);
        room += apart * apart * points[i].by * points[i].by;
        told++;
    }
    return told >= FEWEST && 10 * told >= 9 * n - 40 * SIDE && error > MUCH * left && error > 4 * room;
}

void fd_hypothesis_function(const fd_node *node, const fd_output_rows *out, double *tau) {
    point *points = out->candidate && out->in[0] && (!is_gated(node->op) || out->in[1])
                        ? malloc(sizeof *points * (size_t)(out->n_row * out->width))
                        : NULL;
    if (!points) return;
    const int64_t n =
        node->op == FD_OP_ATTN_SOFTMAX ? gather_softmax(node, out, points) : gather_activation(node, out, points);
    qsort(points, (size_t)n, sizeof *points, by_x);
    const bool yes = is_function(node, out, points, n);
    const bool largest = yes && node->op == FD_OP_ATTN_SOFTMAX && !tau; /* what the others are set against */
    for (int64_t i = out->n_unjudged * out->width; largest && i < out->n_row * out->width; i++)
        if (out->rows[i] > 0) out->rows[i] = out->candidate[i];
    for (int64_t i = 0; i < n && yes; i++) {
        double f, apart;
        const double c = (double)out->candidate[points[i].at];
        const bool told = foretell(points, n, i, &f, &apart); /* the outermost have no neighbours */
        if (tau && told) tau[points[i].at] += FARTHER * apart * fabs(points[i].by);
        if (!tau) out->rows[points[i].at] = told ? (float)(f * points[i].by) : (float)c;
    }
    free(points);
}

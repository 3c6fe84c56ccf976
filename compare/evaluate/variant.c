#include "compare/evaluate/variant.h"

#include <math.h>
#include <stdlib.h>

#include "numerics/contract.h"

void fd_variant_free(fd_variant *variant) {
    free(variant->memory);
    free(variant->tau);
    *variant = (fd_variant){0};
}

static double z_of(float c, float v, double tau, bool exact) {
    if (c == v || (c != c && v != v)) return 0.0;
    if (!exact && !isfinite(c) && !isfinite(v)) return 0.0;
    if (!isfinite(c) || !isfinite(v) || !(tau > 0.0)) return INFINITY;
    return fabs((double)c - (double)v) / tau;
}

/* Floats in order as integers: neighbours are 1 apart, -0 and +0 are 0 apart. */
static int64_t place_of(float x) {
    uint32_t bits = fd_bits32(x);
    return bits >> 31 ? -(int64_t)(bits & 0x7fffffffu) : (int64_t)bits;
}

static double ulp_of(float c, float v) {
    if (c == v || (c != c && v != v)) return 0.0;
    if (!isfinite(c) || !isfinite(v)) return INFINITY;
    return fabs((double)(place_of(c) - place_of(v)));
}

/* The elements that count, one after another: over_kv rows only up to their own position. */
typedef struct walk {
    int64_t stride, first, n; /* elements [first, n) */
    int32_t pos0, n_kv;
    bool over_kv;
} walk;

static walk walk_of(const fd_explain_request *request, const fd_node *node) {
    const fd_op_args *args = &request->args;
    int64_t stride = fd_node_row_stride(node, args->n_kv);
    return (walk){stride, stride * request->n_unjudged, stride * args->n_pos, args->pos0, args->n_kv, node->over_kv};
}

static bool counts(const walk *w, int64_t i) {
    return !w->over_kv || i % w->n_kv <= w->pos0 + i / w->stride;
}

static double tau_of(const fd_explain_request *request, const fd_variant *variant, int64_t i) {
    return variant->tau ? variant->tau[i] : request->tau ? request->tau[i] : 0.0;
}

/* A name is a strong claim: within τ itself, and nothing else nearer than ten, or than one on the average of several
 * rows. */
enum { CLEARLY_BEYOND = 10, MIN_ROWS_BEYOND = 4 };

bool fd_fit_clearly_beyond(const fd_explain_fit *fit) {
    return !(fit->z <= CLEARLY_BEYOND) || fit->n_row_beyond >= MIN_ROWS_BEYOND;
}

fd_explain_fit fd_variant_fit(const fd_explain_request *request, const fd_node *node, const fd_variant *variant,
                              const float *output) {
    walk w = walk_of(request, node);
    fd_explain_fit fit = {0};
    for (int64_t row = w.first; row < w.n; row += w.stride) {
        double squares = 0.0;
        int64_t n = 0;
        for (int64_t i = row; i < row + w.stride; i++) {
            if (!counts(&w, i)) continue;
            double z = z_of(output[i], variant->rows[i], tau_of(request, variant, i), !request->numerics);
            double ulp = ulp_of(output[i], variant->rows[i]);
            if (!(z <= fit.z)) fit.z = z;
            if (!(ulp <= fit.ulp)) fit.ulp = ulp;
            fit.n_beyond += !(z <= 1.0);
            squares += z * z;
            n++;
        }
        fit.n_row_beyond += !(squares <= (double)n);
    }
    return fit;
}

bool fd_variant_equal(const fd_explain_request *request, const fd_node *node, const fd_variant *a,
                      const fd_variant *b) {
    walk w = walk_of(request, node);
    for (int64_t i = w.first; i < w.n; i++) {
        if (!counts(&w, i) || fd_canonical32(a->rows[i]) == fd_canonical32(b->rows[i])) continue;
        if (!a->tau || !b->tau) return false;
        if (!(fabs((double)a->rows[i] - (double)b->rows[i]) <= 1e-3 * fmin(a->tau[i], b->tau[i]))) return false;
    }
    return true;
}

/* A slow pair is turned by a small angle, which binary32 has to far more bits than a large one, and may be the longest of its head. What
 * takes the pairs for others turns it by a large one: all of a head by the largest error of an angle, times the longest pair. */
static void widen_head(const fd_rope *rope, const float *y, const double *right, double *tau, int32_t n) {
    const int32_t half = rope->n_rot / 2;
    double angle = 0, longest = 0;
    for (int32_t i = 0; i < half; i++) {
        const int32_t a = rope->pairing == FD_ROPE_INTERLEAVED ? 2 * i : i;
        const int32_t b = rope->pairing == FD_ROPE_INTERLEAVED ? a + 1 : i + half;
        const double length = hypot((double)y[a], (double)y[b]);
        if (!(length > 0 && isfinite(length))) continue;
        angle = fmax(angle, fmax(right[a], right[b]) / length);
        longest = fmax(longest, length);
    }
    for (int32_t i = 0; i < n; i++) tau[i] = fmax(tau[i], angle * longest);
}

void fd_variant_widen(const fd_explain_request *request, const fd_node *node, fd_variant *variant,
                      const fd_variant *unmodified) {
    int64_t n = request->args.n_pos * fd_node_row_stride(node, request->args.n_kv);
    if (node->op == FD_OP_TOP_K) return; /* a rank that is right leaves another choice no room */
    for (int64_t i = 0; variant->tau && i < n; i++)
        if (!(variant->tau[i] >= unmodified->tau[i])) variant->tau[i] = unmodified->tau[i];
    const int32_t d = node->op == FD_OP_ROPE && node->n_dim == 2 ? node->shape[1] : 0;
    for (int64_t at = 0; variant->tau && d > 0 && at < n; at += d)
        widen_head(&node->rope, unmodified->rows + at, unmodified->tau + at, variant->tau + at, d);
}

int64_t fd_variant_evidence(const fd_explain_request *request, const fd_node *node, const float *output,
                            const fd_variant *variant, const fd_variant *unmodified) {
    walk w = walk_of(request, node);
    bool cache = node->op == FD_OP_KV_WRITE, exact = !request->numerics, any = w.n - w.first < 2 * w.stride;
    int64_t n = 0;
    for (int64_t i = w.first; i < w.n && !any; i++) any = !(output[i] <= 0 && output[i] >= 0);
    cache &= any && !request->departing_alone; /* where all rows of a batch are zero, none went elsewhere */
    for (int64_t i = w.first; i < w.n; i++) {
        float c = output[i];
        bool hidden = node->op == FD_OP_ATTN_SCORES && c == -INFINITY; /* a window's edge says as much as a number */
        if (!counts(&w, i) || (!isfinite(c) && !hidden) || (cache && c == 0.0f)) continue;
        n += z_of(c, variant->rows[i], tau_of(request, variant, i), exact) <= 1.0 &&
             !(z_of(c, unmodified->rows[i], tau_of(request, unmodified, i), exact) <= 1.0);
    }
    return n;
}

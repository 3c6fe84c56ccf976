/* SOFTMAX, TOP_K, EXPERT_WEIGHTS, EXPERT_MATMUL, EXPERT_SUM: a mixture of experts.
 *
 * The choice of experts is discrete: a margin decides. What it chose is read from the candidate where it was
 * recorded; a choice that was not and that rounding could turn makes everything behind it unknown. */
#include "compare/bounds/internal.h"

/* As ATTN_SOFTMAX (bounds_attention.c): τ = p·(ε + Σ p ε + λ·u·√n + 4u), ε = e + u·(4 + 3|s − m|). `tau` may be `e`. */
static void softmax_row(const fd_bound_work *work, const double *s, const double *e, const double *p, int64_t n,
                        double *tau) {
    double u = work->c->u_op, max = -INFINITY, mean = 0;
    for (int64_t i = 0; i < n; i++) max = fmax(max, s[i]);
    for (int64_t i = 0; i < n; i++) {
        tau[i] = e[i] + u * (4 + 3 * fabs(s[i] - max));
        if (p[i] > 0) mean += p[i] * tau[i];
    }
    double chain = fd_bound_lambda_of(work, n) * sqrt((double)n) * fmin(u, 0x1p-24);
    for (int64_t i = 0; i < n; i++)
        tau[i] = p[i] > 0 ? p[i] * expm1(tau[i] + mean + chain + 4 * u) + 2 * work->c->tiny_out : 0;
}

void fd_bound_softmax(const fd_bound_work *work) {
    int64_t n = work->node->shape[work->node->n_dim - 1];
    for (int64_t at = 0; at < work->op->n_pos * work->stride; at += n)
        softmax_row(work, work->in[0] + at, work->e[0] + at, work->y + at, n, work->tau + at);
}

static bool has(const double *ids, int64_t k, double id) {
    for (int64_t r = 0; r < k; r++)
        if (ids[r] == id) return true;
    return false;
}

static bool repeats_itself(const double *ids, int64_t k) {
    for (int64_t r = 1; r < k; r++)
        if (has(ids, r, ids[r])) return true;
    return false;
}

/* The same experts in another order: which one is written first means nothing, their weights go with them. */
static bool same_set(const double *a, const double *b, int64_t k) {
    for (int64_t r = 0; r < k; r++)
        if (!has(a, k, b[r]) || !has(b, k, a[r])) return false;
    return true;
}

/* Could the two have changed places if both were off by their e? */
static bool close_to(const double *x, const double *e, int64_t a, int64_t b) {
    return a >= 0 && b >= 0 && fabs(x[a] - x[b]) <= e[a] + e[b];
}

static bool any_close_to(const double *x, const double *e, int64_t n, int64_t own) {
    for (int64_t i = 0; i < n; i++)
        if (i != own && close_to(x, e, i, own)) return true;
    return false;
}

/* Replay has zeros where nothing was recorded; no choice of several is one of zeros alone. */
static bool is_recorded(const double *ids, int64_t k) {
    for (int64_t r = 0; r < k; r++)
        if (ids[r] != 0) return true;
    return k == 1;
}

/* Could two groups of elements, one chosen and one not, have changed places? A sum of two is off by twice the largest e
 * of its group at most, whichever two these are. */
static bool groups_close(const fd_node *node, const double *x, const double *e, int64_t n) {
    int64_t each = node->n_group ? n / node->n_group : 0;
    double sum[FD_MAX_GROUPS], off[FD_MAX_GROUPS];
    for (int64_t g = 0; g < node->n_group; g++) {
        double first = -INFINITY, second = -INFINITY;
        off[g] = 0;
        for (int64_t i = g * each; i < (g + 1) * each; i++) {
            second = fmax(second, fmin(first, x[i]));
            first = fmax(first, x[i]);
            off[g] = fmax(off[g], 2 * e[i]);
        }
        sum[g] = first + second;
    }
    for (int64_t a = 0; a < node->n_group; a++) {
        int64_t better = 0, about = 0;
        for (int64_t b = 0; b < node->n_group; b++) {
            bool close = fabs(sum[a] - sum[b]) <= off[a] + off[b];
            better += b != a && sum[b] > sum[a] && !close;
            about += b != a && close;
        }
        if (better < node->n_group_used && better + about >= node->n_group_used) return true;
    }
    return false;
}

/* τ = n, which every id is within, at a rank where the candidate's choice is as good as the replayed one; elsewhere
 * 0. Of a choice that was not recorded: where there may have been another. */
void fd_bound_top_k(const fd_bound_work *work) {
    int64_t n = work->op->graph->nodes[work->node->input[0]].shape[0], k = work->stride;
    for (int64_t row = 0; row < work->op->n_pos; row++) {
        const double *x = work->in[0] + row * n, *e = work->e[0] + row * n, *y = work->y + row * k;
        const double *c = work->args->candidate ? work->args->candidate + row * k : NULL;
        bool recorded = c && is_recorded(c, k), permuted = recorded && same_set(c, y, k);
        bool repeats = recorded && !permuted && repeats_itself(c, k);
        bool other_groups = groups_close(work->node, x, e, n);
        for (int64_t r = 0; r < k; r++) {
            int64_t own = fd_expert_of(y[r], n);
            bool open = recorded
                            ? permuted || (!repeats && (other_groups || close_to(x, e, fd_expert_of(c[r], n), own)))
                            : other_groups || any_close_to(x, e, n, own);
            work->tau[row * k + r] = open ? (double)n : 0;
        }
    }
}

/* An id that is off by half or more may be another one. */
static bool is_unknown(double id_error) {
    return !(id_error < 0.5);
}

void fd_bound_expert_weights(const fd_bound_work *work) {
    int64_t n = work->op->graph->nodes[work->node->input[0]].shape[0], k = work->stride;
    double u = work->c->u_op, scale = fabs((double)work->node->scale);
    for (int64_t row = 0; row < work->op->n_pos; row++) {
        const double *x = work->in[0] + row * n, *e = work->e[0] + row * n, *y = work->y + row * k;
        double *tau = work->tau + row * k, *chosen = work->scratch, *p = chosen + k, sum = 0, errors = 0;
        bool unknown = false;
        for (int64_t r = 0; r < k; r++) {
            int64_t id = fd_expert_of(work->in[1][row * k + r], n);
            unknown = unknown || is_unknown(work->e[1][row * k + r]);
            chosen[r] = id < 0 ? NAN : x[id];
            tau[r] = id < 0 ? NAN : e[id];
            p[r] = fabs(y[r]) / scale;
            sum += chosen[r];
            errors += tau[r];
        }
        if (work->node->gating == FD_GATING_SOFTMAX) softmax_row(work, chosen, tau, p, k, tau);
        /* w = x / Σx: both are off, and k additions and a quotient are rounded */
        for (int64_t r = 0; r < k && work->node->gating == FD_GATING_NORMALISED; r++)
            tau[r] = (tau[r] + p[r] * errors) / sum + p[r] * u * (double)(k + 2);
        for (int64_t r = 0; r < k; r++) tau[r] = unknown ? FD_BOUND_UNKNOWN : tau[r] * scale + u * fabs(y[r]);
    }
}

void fd_bound_expert_matmul(const fd_bound_work *work) {
    const fd_op_args *op = work->op;
    const fd_weight *w = op->weight[0], *bias = op->weight[1];
    int64_t n = w->n_col, k = work->node->shape[0], n_out = work->node->shape[1], n_expert = w->n_row / n_out;
    bool own_rows = op->graph->nodes[work->node->input[0]].n_dim == 2;
    for (int64_t item = 0; item < op->n_pos * k; item++) {
        int64_t expert = fd_expert_of(work->in[1][item], n_expert), at = (own_rows ? item : item / k) * n;
        double *tau = work->tau + item * n_out;
        fd_bound_products part = {.weight = w,
                                  .bias = bias,
                                  .first_row = expert * n_out,
                                  .bias_row = expert,
                                  .n_out = n_out,
                                  .n_pos = 1,
                                  .x = work->in[0] + at,
                                  .e = work->e[0] + at,
                                  .y = work->y + item * n_out,
                                  .tau = tau};
        if (expert >= 0) fd_bound_of_products(work, &part);
        for (int64_t o = 0; o < n_out && (expert < 0 || is_unknown(work->e[1][item])); o++)
            tau[o] = expert < 0 ? NAN : FD_BOUND_UNKNOWN;
    }
}

/* Σ_r w·x: k products and as many additions, each rounded in some engine. */
void fd_bound_expert_sum(const fd_bound_work *work) {
    int64_t n = work->stride, k = work->op->graph->nodes[work->node->input[1]].shape[0];
    double roundings = (double)(k + 1) * work->c->u_op;
    for (int64_t row = 0; row < work->op->n_pos; row++)
        for (int64_t i = 0; i < n; i++) {
            double *tau = &work->tau[row * n + i];
            for (int64_t r = 0; r < k; r++) {
                int64_t at = (row * k + r) * n + i;
                double w = fabs(work->in[1][row * k + r]), x = fabs(work->in[0][at]);
                double e_w = work->e[1][row * k + r], e_x = work->e[0][at];
                *tau += roundings * w * x + w * e_x + e_w * (x + e_x) + work->c->tiny_out;
            }
        }
}

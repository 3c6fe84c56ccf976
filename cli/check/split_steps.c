#include "cli/check/split_steps.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Elements of a row that are compared, spread over the vocabulary. */
enum { MOST_SAMPLES = 4096 };
/* 1 - cosine of rows that are one position's. Logits of neighbouring positions are a hundred times as far apart; engines of 16
 * bits and of int8 blocks come to 1e-4. */
#define NEAR 1e-3

typedef struct rows {
    int32_t n_step, n_pos, n_sample;
    int64_t n_vocab;
    float *of_step, *of_pos; /* [n_step][n_sample], [n_pos][n_sample]: of length 1, or zeros */
} rows;

/* The tensor of that name in step `s`; -1. */
static int64_t of_step(const fd_source *source, const char *name, int32_t s) {
    for (size_t i = 0; i < fd_source_count(source); i++) {
        const fd_source_tensor *t = fd_source_at(source, i);
        if (t->step == s && t->n_same == 1 && strcmp(t->name, name) == 0) return (int64_t)i;
    }
    return -1;
}

const char *fd_cli_last_logits(const fd_import_plan *plan) {
    const int64_t n_vocab = plan->graph ? plan->graph->hparams.n_vocab : 0;
    for (size_t i = 0; plan->guessed_steps && n_vocab && i < fd_source_count(plan->source); i++) {
        const fd_source_tensor *t = fd_source_at(plan->source, i);
        bool every = t->step == 0 && t->n_same == 1 && fd_array_is_float(t->type) && fd_source_elements(t) == n_vocab;
        for (int32_t s = 1; s < plan->n_step && every; s++) {
            const int64_t at = of_step(plan->source, t->name, s);
            every = at >= 0 && fd_source_elements(fd_source_at(plan->source, (size_t)at)) == n_vocab;
        }
        if (every) return t->name;
    }
    return NULL;
}

/* Zeros where a number is none. */
static void put_sample(const double *row, int64_t n_vocab, int32_t n_sample, float *to) {
    double sum = 0;
    for (int32_t i = 0; i < n_sample; i++) sum += row[i * n_vocab / n_sample] * row[i * n_vocab / n_sample];
    const double scale = sum > 0 && isfinite(sum) ? 1 / sqrt(sum) : 0;
    for (int32_t i = 0; i < n_sample; i++) to[i] = scale > 0 ? (float)(scale * row[i * n_vocab / n_sample]) : 0;
}

static void read_steps(const fd_import_plan *plan, const char *name, rows *r, double *row) {
    for (int32_t s = 0; s < r->n_step; s++) {
        fd_source_view view;
        fd_error unread;
        if (fd_source_view_open(plan->source, (size_t)of_step(plan->source, name, s), &view, &unread) != FD_OK)
            continue;
        fd_array_fetch(&view.array, row);
        put_sample(row, r->n_vocab, r->n_sample, r->of_step + (int64_t)s * r->n_sample);
        fd_source_view_close(&view);
    }
}

static void read_positions(const fd_trace *ref, rows *r, double *row, float *logits) {
    const int32_t id = fd_trace_find(ref, "logits");
    for (int32_t p = 0; p < r->n_pos; p++) {
        fd_error unread;
        if (id < 0 || fd_trace_read(ref, id, p, logits, NULL, &unread) != FD_OK) continue;
        for (int64_t i = 0; i < r->n_vocab; i++) row[i] = (double)logits[i];
        put_sample(row, r->n_vocab, r->n_sample, r->of_pos + (int64_t)p * r->n_sample);
    }
}

/* Digits that a step's row and a position's have in common, beyond those of NEAR; 0: they are not near. */
static double fit(const rows *r, int32_t s, int32_t p) {
    const float *a = r->of_step + (int64_t)s * r->n_sample, *b = r->of_pos + (int64_t)p * r->n_sample;
    double dot = 0;
    for (int32_t i = 0; i < r->n_sample; i++) dot += (double)a[i] * (double)b[i];
    const double away = fmax(1 - fabs(dot), 1e-6);
    return away < NEAR ? 1 + log10(NEAR / away) : 0;
}

/* Last positions of the steps whose rows fit best: they rise, and the last is the last token's. Where rows say nothing, late ones: a
 * prefill and single tokens. best [n_step][n_pos]: the fit of steps 0…s when s ends at p. */
static void choose_ends(const rows *r, double *best, int32_t *end) {
    for (int32_t s = 0; s < r->n_step; s++) {
        double before = s == 0 ? 0 : -1; /* the best of the step before, up to p - 1 */
        for (int32_t p = 0; p < r->n_pos; p++) {
            best[(int64_t)s * r->n_pos + p] = before < 0 ? -1 : before + fit(r, s, p);
            if (s > 0) before = fmax(before, best[(int64_t)(s - 1) * r->n_pos + p]);
        }
    }
    for (int32_t s = r->n_step - 1, limit = r->n_pos; s >= 0; limit = end[s--]) {
        end[s] = limit - 1;
        for (int32_t p = limit - 1; p >= 0 && s < r->n_step - 1; p--)
            if (best[(int64_t)s * r->n_pos + p] > best[(int64_t)s * r->n_pos + end[s]]) end[s] = p;
    }
}

static fd_code choose(const fd_import_plan *plan, const rows *r, int32_t *sizes, bool *better, bool *sure,
                      fd_error *err) {
    double *best = malloc(sizeof *best * (size_t)r->n_step * (size_t)r->n_pos);
    int32_t n_guessed = 0, n_chosen = 0;
    if (!best) return fd_fail(err, FD_ERR_MEMORY, "%d steps of %d positions: out of memory", r->n_step, r->n_pos);
    choose_ends(r, best, sizes);
    for (int32_t s = 0; s < r->n_step; s++) {
        n_guessed += fit(r, s, plan->steps[s].pos0 + plan->steps[s].n_pos - 1) > 0;
        n_chosen += fit(r, s, sizes[s]) > 0;
    }
    *better = n_chosen > n_guessed;
    *sure = n_chosen > 0;
    for (int32_t s = r->n_step - 1; s >= 0; s--) sizes[s] -= s > 0 ? sizes[s - 1] : -1;
    free(best);
    return FD_OK;
}

fd_code fd_cli_split_steps(const fd_import_plan *plan, const char *name, const fd_trace *ref, int32_t *sizes,
                           bool *better, bool *sure, fd_error *err) {
    rows r = {.n_step = plan->n_step, .n_pos = plan->n_token, .n_vocab = plan->graph->hparams.n_vocab};
    r.n_sample = r.n_vocab < MOST_SAMPLES ? (int32_t)r.n_vocab : MOST_SAMPLES;
    double *row = malloc(sizeof *row * (size_t)r.n_vocab);
    float *logits = malloc(sizeof *logits * (size_t)r.n_vocab);
    r.of_step = calloc((size_t)r.n_step * (size_t)r.n_sample, sizeof *r.of_step);
    r.of_pos = calloc((size_t)r.n_pos * (size_t)r.n_sample, sizeof *r.of_pos);
    fd_code code = FD_OK;
    if (!row || !logits || !r.of_step || !r.of_pos)
        code = fd_fail(err, FD_ERR_MEMORY, "logits of %d positions: out of memory", r.n_pos);
    if (code == FD_OK) {
        read_steps(plan, name, &r, row);
        read_positions(ref, &r, row, logits);
        code = choose(plan, &r, sizes, better, sure, err);
    }
    free(row);
    free(logits);
    free(r.of_step);
    free(r.of_pos);
    return code;
}

#include "cli/check/split_steps.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Elements of a row that are compared, spread over it; names that are asked, and of layers the first have most that fits. */
enum { MOST_SAMPLES = 4096, MOST_NAMES = 16 };
/* 1 - cosine of rows that are one position's. Logits of neighbouring positions are a hundred times as far apart; engines of 16
 * bits and of int8 blocks come to 1e-4. */
#define NEAR 1e-3

typedef struct rows { /* of one name, and of one node that it may be */
    int32_t n_step, n_pos, n_sample, last_step;
    int64_t width;
    float *of_step, *of_pos; /* [n_step][n_sample], [n_pos][n_sample]: of length 1, or zeros */
    double *row;             /* [width], and the reference's */
    float *ref;
} rows;

typedef struct name_rows {
    const char *name;
    int64_t width;
} name_rows;

/* The tensor of that name in step `s`; -1. */
static int64_t of_step(const fd_source *source, const char *name, int32_t s) {
    for (size_t i = 0; i < fd_source_count(source); i++) {
        const fd_source_tensor *t = fd_source_at(source, i);
        if (t->step == s && t->n_same == 1 && strcmp(t->name, name) == 0) return (int64_t)i;
    }
    return -1;
}

/* Has the name one row in every step that was recorded? */
static bool has_one_row(const fd_import_plan *plan, const fd_source_tensor *t) {
    const int64_t width = fd_source_elements(t);
    if (t->n_same != 1 || !fd_array_is_float(t->type) || !fd_import_is_row(plan->graph, width)) return false;
    for (int32_t s = t->step + 1; s < plan->n_step; s++) {
        const int64_t at = of_step(plan->source, t->name, s);
        if (at < 0 || fd_source_elements(fd_source_at(plan->source, (size_t)at)) != width) return false;
    }
    return true;
}

/* The logits come first, which one node has. names [MOST_NAMES]. */
static int32_t names_of_rows(const fd_import_plan *plan, name_rows *names) {
    const fd_source *source = plan->source;
    const int64_t n_vocab = plan->graph->hparams.n_vocab;
    int32_t n = 0;
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < fd_source_count(source) && n < MOST_NAMES; i++) {
            const fd_source_tensor *t = fd_source_at(source, i);
            const bool logits = fd_source_elements(t) == n_vocab;
            if (t->step != fd_source_at(source, 0)->step || logits != (pass == 0) || !has_one_row(plan, t)) continue;
            names[n++] = (name_rows){t->name, fd_source_elements(t)};
        }
    return n;
}

/* Zeros where a number is none. */
static void put_sample(const rows *r, float *to) {
    double sum = 0;
    for (int32_t i = 0; i < r->n_sample; i++)
        sum += r->row[i * r->width / r->n_sample] * r->row[i * r->width / r->n_sample];
    const double scale = sum > 0 && isfinite(sum) ? 1 / sqrt(sum) : 0;
    for (int32_t i = 0; i < r->n_sample; i++)
        to[i] = scale > 0 ? (float)(scale * r->row[i * r->width / r->n_sample]) : 0;
}

static void read_steps(const fd_import_plan *plan, const char *name, rows *r) {
    memset(r->of_step, 0, sizeof *r->of_step * (size_t)r->n_step * (size_t)r->n_sample);
    for (int32_t s = 0; s < r->n_step; s++) {
        const int64_t at = of_step(plan->source, name, s);
        fd_source_view view;
        fd_error unread;
        if (at < 0 || fd_source_view_open(plan->source, (size_t)at, &view, &unread) != FD_OK) continue;
        fd_array_fetch(&view.array, r->row);
        put_sample(r, r->of_step + (int64_t)s * r->n_sample);
        r->last_step = s;
        fd_source_view_close(&view);
    }
}

static void read_positions(const fd_trace *ref, int32_t node, int32_t from, rows *r) {
    for (int32_t p = from; p < r->n_pos; p++) {
        fd_error unread;
        float *to = r->of_pos + (int64_t)p * r->n_sample;
        memset(to, 0, sizeof *to * (size_t)r->n_sample);
        if (fd_trace_read(ref, node, p, r->ref, NULL, &unread) != FD_OK) continue;
        for (int64_t i = 0; i < r->width; i++) r->row[i] = (double)r->ref[i];
        put_sample(r, to);
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

/* Do its values tell the position? Embeddings of one token, and all that is computed of them alone, are equal wherever it stands. */
static bool is_told_apart(const rows *r, int32_t p) {
    const size_t size = sizeof *r->of_pos * (size_t)r->n_sample;
    const float *own = r->of_pos + (int64_t)p * r->n_sample;
    for (int32_t i = 0; i < r->n_pos; i++)
        if (i != p && memcmp(r->of_pos + (int64_t)i * r->n_sample, own, size) == 0) return false;
    return true;
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

/* ends [n_step]: the best of this name and node; how many rows tell that they are there, and at the plan's own positions. */
static fd_code choose(const fd_import_plan *plan, const rows *r, int32_t *ends, int32_t *n_chosen, int32_t *n_guessed,
                      fd_error *err) {
    double *best = malloc(sizeof *best * (size_t)r->n_step * (size_t)r->n_pos);
    *n_chosen = *n_guessed = 0;
    if (!best) return fd_fail(err, FD_ERR_MEMORY, "%d steps of %d positions: out of memory", r->n_step, r->n_pos);
    choose_ends(r, best, ends);
    for (int32_t s = 0; s < r->n_step; s++) {
        const int32_t guessed = plan->steps[s].pos0 + plan->steps[s].n_pos - 1;
        *n_guessed += fit(r, s, guessed) > 0 && is_told_apart(r, guessed);
        *n_chosen += fit(r, s, ends[s]) > 0 && is_told_apart(r, ends[s]);
    }
    free(best);
    return FD_OK;
}

/* One name beside every node of its width. A node whose last row is another is none that the name may be. */
static fd_code try_name(const fd_import_plan *plan, const name_rows *name, const fd_trace *ref, rows *r, int32_t *most,
                        fd_step_split *out, fd_error *err) {
    int32_t *ends = malloc(sizeof *ends * (size_t)r->n_step), n_chosen, n_guessed;
    if (!ends) return fd_fail(err, FD_ERR_MEMORY, "%d steps: out of memory", r->n_step);
    r->width = name->width;
    r->n_sample = name->width < MOST_SAMPLES ? (int32_t)name->width : MOST_SAMPLES;
    read_steps(plan, name->name, r);
    fd_code code = FD_OK;
    for (int32_t i = 0; i < fd_trace_n_node(ref) && *most < r->n_step && code == FD_OK; i++) {
        const fd_trace_node *node = fd_trace_node_at(ref, i);
        if (node->over_kv || fd_trace_elements(node, 0) != name->width || strcmp(node->op, "kv_write") == 0) continue;
        read_positions(ref, i, r->n_pos - 1, r);
        if (fit(r, r->last_step, r->n_pos - 1) == 0) continue;
        read_positions(ref, i, 0, r);
        code = choose(plan, r, ends, &n_chosen, &n_guessed, err);
        if (code != FD_OK || n_chosen <= *most) continue;
        *most = n_chosen;
        out->sure = true;
        out->better = n_chosen > n_guessed;
        snprintf(out->name, sizeof out->name, "%s", name->name);
        for (int32_t s = 0; s < r->n_step; s++) out->sizes[s] = ends[s] - (s > 0 ? ends[s - 1] : -1);
    }
    free(ends);
    return code;
}

fd_code fd_cli_split_steps(const fd_import_plan *plan, const fd_trace *ref, fd_step_split *out, fd_error *err) {
    name_rows names[MOST_NAMES];
    const int32_t n_name = names_of_rows(plan, names);
    int64_t widest = 1;
    int32_t most = 0, n_recorded = 0;
    for (int32_t i = 0; i < n_name; i++) widest = names[i].width > widest ? names[i].width : widest;
    for (int32_t s = 0; s < plan->n_step; s++) n_recorded += plan->steps[s].recorded;
    const size_t n_sample = widest < MOST_SAMPLES ? (size_t)widest : MOST_SAMPLES;
    rows r = {.n_step = plan->n_step, .n_pos = plan->n_token};
    r.row = malloc(sizeof *r.row * (size_t)widest);
    r.ref = malloc(sizeof *r.ref * (size_t)widest);
    r.of_step = malloc((size_t)r.n_step * n_sample * sizeof *r.of_step);
    r.of_pos = malloc((size_t)r.n_pos * n_sample * sizeof *r.of_pos);
    fd_code code = r.row && r.ref && r.of_step && r.of_pos
                       ? FD_OK
                       : fd_fail(err, FD_ERR_MEMORY, "rows of %d positions: out of memory", r.n_pos);
    out->better = out->sure = false;
    for (int32_t i = 0; i < n_name && most < n_recorded && code == FD_OK; i++)
        code = try_name(plan, &names[i], ref, &r, &most, out, err);
    free(r.row);
    free(r.ref);
    free(r.of_step);
    free(r.of_pos);
    return code;
}

#include "cli/check/doubt_dump.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A few arrays of one shape say nothing of rows: logits of the last token, saved flat. */
enum { FIRST_FEW = 8, FEWEST = 3 };

static bool is_value(const fd_source_tensor *t) {
    return t->step >= 0 && !fd_source_is_tokens(t) && !fd_source_is_weight(t->name) && t->rank > 0;
}

/* ---- rows ---- */

/* Does the array leave a row of the model where its axis `k` counts the rows? */
static bool leaves_row(const fd_source_tensor *t, int k, const fd_graph *graph) {
    return t->shape[k] > 0 && fd_import_is_row(graph, fd_source_elements(t) / t->shape[k]);
}

/* Besides the one axis that is as wide as the model, and those inside one position's row, heads and their elements, where another axis
 * counts rows. */
static bool has_axis(const fd_source_tensor *t, int64_t length, const fd_graph *graph) {
    int n = 0, n_row = 0;
    for (int k = 0; k < t->rank; k++) n += t->shape[k] == length;
    for (int k = 0; k < t->rank; k++) n_row += leaves_row(t, k, graph) && t->shape[k] != length;
    const bool inside = n_row > 0 && !fd_import_is_row(graph, fd_source_elements(t) / length);
    return !inside && n > (length == graph->hparams.n_embd);
}

static size_t count_axis(const fd_source *source, int32_t step, int64_t length, const fd_graph *graph) {
    size_t n = 0;
    for (size_t i = 0; i < fd_source_count(source); i++) {
        const fd_source_tensor *t = fd_source_at(source, i);
        n += t->step == step && is_value(t) && has_axis(t, length, graph);
    }
    return n;
}

typedef struct step_rows {
    int64_t rows;
    bool or_one; /* as many arrays have an axis of 1: the rows of one token, or a batch of one */
} step_rows;

/* The length besides 1 that most arrays of the step have, else 1; 0: no three of four have one. An axis of 1 is the batch's as a rule, and
 * that of all, where whole caches are as long as the run and not as the step. What most have, one of the first few has. */
static step_rows rows_of_step(const fd_source *source, int32_t step, const fd_graph *graph) {
    size_t n = 0, most = 0;
    int64_t rows = 0;
    for (size_t i = 0; i < fd_source_count(source); i++) {
        const fd_source_tensor *t = fd_source_at(source, i);
        if (t->step != step || !is_value(t)) continue;
        for (int k = 0; n < FIRST_FEW && t->rank > 1 && k < t->rank; k++) {
            const size_t with = t->shape[k] == 1 ? 0 : count_axis(source, step, t->shape[k], graph);
            if (with > most) most = with, rows = t->shape[k];
        }
        n++;
    }
    const size_t one = count_axis(source, step, 1, graph);
    if (n >= FEWEST && 4 * most >= 3 * n) return (step_rows){.rows = rows, .or_one = one >= most};
    return (step_rows){.rows = n >= FEWEST && 4 * one >= 3 * n};
}

/* Steps of one token whose arrays are all as wide as the model, [1, n_embd], could have n_embd rows: takes the longest
 * of such steps for one token each, as long as there are more rows than tokens. Where that comes to another number of
 * tokens, all of the longest are meant. */
static void read_as_one_token(step_rows *steps, int32_t n, int64_t n_surplus) {
    int64_t taken = 0;
    for (int64_t longest = n_surplus + 1; longest > 1;) {
        int64_t next = 0;
        for (int32_t s = n - 1; s >= 0; s--) { /* decode steps come last */
            if (!steps[s].or_one || steps[s].rows == 1) continue;
            if (steps[s].rows == longest && longest - 1 <= n_surplus) {
                steps[s].rows = 1;
                n_surplus -= longest - 1;
                if (!taken) taken = longest;
            } else if (steps[s].rows < longest && steps[s].rows > next) {
                next = steps[s].rows;
            }
        }
        longest = next;
    }
    for (int32_t s = 0; s < n && n_surplus != 0; s++)
        if (steps[s].or_one && steps[s].rows == taken) steps[s].rows = 1;
}

/* Are the rows that were counted sequences: [n_batch, n_tok, n], in most arrays? */
static bool counts_sequences(const fd_source *source, int64_t rows) {
    size_t n = 0, n_batch = 0;
    for (size_t i = 0; i < fd_source_count(source); i++) {
        const fd_source_tensor *t = fd_source_at(source, i);
        if (t->step != 0 || !is_value(t)) continue;
        n++;
        n_batch += t->rank >= 3 && t->shape[0] == rows && t->shape[1] > rows;
    }
    return rows > 1 && 2 * n_batch > n;
}

/* Caches that are saved whole grow by the tokens of each step, and end with as many rows as there are tokens. */
static bool counts_caches(const step_rows *steps, int32_t n, int32_t n_token) {
    for (int32_t s = 1; s < n; s++)
        if (steps[s].rows <= steps[s - 1].rows) return false;
    return n > 1 && steps[n - 1].rows == n_token;
}

static void doubt_sum(const fd_source *source, step_rows *steps, int32_t n, int32_t n_token, char *out, size_t size) {
    char text[64] = "";
    size_t at = 0;
    int64_t sum = 0;
    for (int32_t s = 0; s < n; s++) sum += steps[s].rows;
    read_as_one_token(steps, n, sum - n_token);
    sum = 0;
    for (int32_t s = 0; s < n; s++) {
        if (at < sizeof text - 24)
            at += (size_t)snprintf(text + at, sizeof text - at, "%s%lld", s ? " + " : "", (long long)steps[s].rows);
        sum += steps[s].rows;
    }
    if (n == 0 || sum == n_token || counts_caches(steps, n, n_token)) return;
    if (sum == n && sum < n_token) return; /* the last row of each step is enough */
    const int used = snprintf(out, size, "its arrays have %lld row%s", (long long)sum, sum == 1 ? "" : "s");
    const int more = n > 1 ? snprintf(out + used, size - (size_t)used, " (%s%s in %d steps)", text,
                                      at < sizeof text - 24 ? "" : " …", n)
                           : 0;
    snprintf(out + used + more, size - (size_t)(used + more), ", %d token%s given%s", n_token,
             n_token == 1 ? " was" : "s were",
             sum >= 2 * n_token || counts_sequences(source, steps[0].rows)
                 ? ": of a batch, save the rows of one sequence"
             : sum < n_token ? ": give those of the rows alone (--tokens, tokens.txt)"
                             : "");
}

static fd_code doubt_rows(const fd_source *source, int32_t n_token, const fd_graph *graph, char *out, size_t size,
                          fd_error *err) {
    const int32_t n = fd_source_n_step(source);
    step_rows *steps = malloc(sizeof *steps * (size_t)(n + 1));
    if (!steps) return fd_fail(err, FD_ERR_MEMORY, "%d steps: out of memory", n);
    bool known = true;
    for (int32_t s = 0; s < n && known; s++) {
        steps[s] = rows_of_step(source, s, graph);
        known = steps[s].rows > 0;
    }
    if (known) doubt_sum(source, steps, n, n_token, out, size);
    free(steps);
    return FD_OK;
}

/* ---- layers ---- */

typedef struct numbered { /* a name, a number in it cut out */
    char form[280];
    int64_t number;
} numbered;

static int by_form(const void *a, const void *b) {
    const numbered *x = a, *y = b;
    const int order = strcmp(x->form, y->form);
    return order ? order : (x->number > y->number) - (x->number < y->number);
}

static size_t take_numbers(const char *name, numbered *out) {
    size_t n = 0;
    for (const char *p = name; *p; p++) {
        char *end;
        if (!isdigit((unsigned char)*p) || (p > name && isdigit((unsigned char)p[-1]))) continue;
        const int64_t number = strtoll(p, &end, 10);
        if (out) {
            snprintf(out[n].form, sizeof out[n].form, "%.*s\001%s", (int)(p - name), name, end);
            out[n].number = number;
        }
        n++;
    }
    return n;
}

/* Numbers in a row that the form at `first` has, which ends before *end; 0: they begin later than with 1. */
static int64_t count_of_form(const numbered *all, size_t n, size_t first, size_t *end) {
    int64_t count = 1;
    for (*end = first + 1; *end < n && strcmp(all[*end].form, all[first].form) == 0; ++*end)
        count += all[*end].number == all[*end - 1].number + 1;
    return all[first].number > 1 ? 0 : count;
}

/* How many numbers in a row, from 0 or 1 on, most forms of names have; 0 where some form has as many as the model has layers, or one
 * more: transformers' hidden_states begin with the embeddings. */
static int32_t layers_of_forms(const numbered *all, size_t n, int32_t n_layer) {
    int32_t most = 0;
    size_t n_most = 0;
    for (size_t i = 0, end; i < n; i = end) {
        const int64_t count = count_of_form(all, n, i, &end);
        if (count < 2) continue;
        if (count == n_layer || count == n_layer + 1) return 0;
        size_t same = 0;
        for (size_t k = 0, stop; k < n; k = stop) same += count_of_form(all, n, k, &stop) == count;
        if (same > n_most) n_most = same, most = (int32_t)count;
    }
    return 2 * n_most * (size_t)most > n ? most : 0;
}

static fd_code doubt_layers(const fd_source *source, const fd_graph *graph, char *out, size_t size, fd_error *err) {
    const int32_t n_layer = graph->hparams.n_layer;
    size_t n = 0;
    for (size_t i = 0; i < fd_source_count(source); i++) n += take_numbers(fd_source_at(source, i)->name, NULL);
    numbered *all = malloc((n + 1) * sizeof *all);
    if (!all) return fd_fail(err, FD_ERR_MEMORY, "%zu names: out of memory", n);
    n = 0;
    for (size_t i = 0; i < fd_source_count(source); i++) {
        const fd_source_tensor *t = fd_source_at(source, i);
        if (is_value(t) && t->occurrence == 1 && t->step == fd_source_at(source, 0)->step)
            n += take_numbers(t->name, all + n);
    }
    qsort(all, n, sizeof *all, by_form);
    const int32_t found = layers_of_forms(all, n, n_layer);
    if (found > n_layer)
        snprintf(out, size, "its names count %d layers, the model has %d: another model?", found, n_layer);
    free(all);
    return FD_OK;
}

/* ---- values ---- */

/* Where one number that is neither zero nor NaN stands, no more are read. */
static fd_code look_for_values(const fd_source *source, size_t i, bool *zeros, bool *nan, fd_error *err) {
    fd_source_view view;
    FD_TRY(fd_source_view_open(source, i, &view, err));
    const int64_t n = fd_source_elements(fd_source_at(source, i));
    double *values = malloc((size_t)(n + 1) * sizeof *values);
    *zeros = *nan = n > 0;
    if (values) fd_array_fetch(&view.array, values);
    for (int64_t k = 0; values && k < n && (*zeros || *nan); k++) {
        *zeros &= values[k] == 0.0;
        *nan &= isnan(values[k]) != 0;
    }
    free(values);
    fd_source_view_close(&view);
    return values ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", fd_source_at(source, i)->name);
}

/* Of the first step: where later ones alone are NaN, the first NaN is looked for. */
static fd_code doubt_values(const fd_source *source, char *out, size_t size, fd_error *err) {
    const int32_t first = fd_source_at(source, 0)->step;
    size_t n = 0, n_zeros = 0, n_nan = 0;
    for (size_t i = 0; i < fd_source_count(source); i++) {
        bool zeros, nan;
        if (!is_value(fd_source_at(source, i)) || fd_source_at(source, i)->step != first) continue;
        FD_TRY(look_for_values(source, i, &zeros, &nan, err));
        n_zeros += zeros;
        n_nan += nan;
        n++;
    }
    if (2 * n_zeros > n)
        snprintf(out, size, "%zu of its %zu arrays are all zeros: saved before they were computed?", n_zeros, n);
    if (2 * n_nan > n) snprintf(out, size, "%zu of its %zu arrays are NaN and nothing else", n_nan, n);
    return FD_OK;
}

fd_code fd_cli_doubt_dump(const fd_source *source, int32_t n_token, const fd_graph *graph, char *out, size_t size,
                          fd_error *err) {
    out[0] = '\0';
    if (fd_source_trace(source) || fd_source_count(source) == 0) return FD_OK;
    FD_TRY(doubt_rows(source, n_token, graph, out, size, err));
    if (out[0]) return FD_OK;
    FD_TRY(doubt_layers(source, graph, out, size, err));
    return out[0] ? FD_OK : doubt_values(source, out, size, err);
}

/* What ranks show of each other without any reference: copies that differ, rows that no rank or two ranks have. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/import/ranks/internal.h"

/* One position's rows of all ranks. */
typedef struct rank_rows {
    double **of; /* [n_rank] */
    int64_t n;
} rank_rows;

static void free_rows(rank_rows *rows, int32_t n_rank) {
    for (int32_t r = 0; rows->of && r < n_rank; r++) free(rows->of[r]);
    free(rows->of);
    *rows = (rank_rows){0};
}

static fd_code read_rows(const struct fd_ranks *ranks, const fd_joined *j, int32_t row, rank_rows *out, fd_error *err) {
    out->of = calloc((size_t)ranks->n_rank, sizeof *out->of);
    fd_code code = out->of ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "ranks: out of memory");
    for (int32_t r = 0; code == FD_OK && r < ranks->n_rank; r++)
        code = fd_joined_row(ranks, j, r, row, &out->of[r], &out->n, err);
    if (code != FD_OK) free_rows(out, ranks->n_rank);
    return code;
}

/* ||a - b||^2 / (||a||^2 + ||b||^2); values that are the same and not finite take no part. NaN: one is not finite. */
static double difference(const double *a, const double *b, int64_t n) {
    double d2 = 0, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(a[i]) && (a[i] == b[i] || (isnan(a[i]) && isnan(b[i])))) continue;
        d2 += (a[i] - b[i]) * (a[i] - b[i]);
        sum += a[i] * a[i] + b[i] * b[i];
    }
    return d2 == 0 ? 0 : d2 / sum;
}

/* Copies of one tensor are equal in every bit where it was broadcast or gathered, and differ by its type's rounding where
 * each rank computed it again with other kernels: up to a few units, squared. */
static double tolerance(fd_array_type type) {
    return type == FD_ARRAY_BF16 || type == FD_ARRAY_U16 ? 1e-4 : type == FD_ARRAY_F16 ? 1e-6 : 1e-9;
}

static fd_code add(struct fd_ranks *ranks, const fd_rank_finding *finding, fd_error *err) {
    fd_rank_report *report = &ranks->report;
    fd_rank_finding *more = realloc(report->findings, (report->n_finding + 1) * sizeof *more);
    if (!more) return fd_fail(err, FD_ERR_MEMORY, "ranks: out of memory");
    report->findings = more;
    more[report->n_finding++] = *finding;
    return FD_OK;
}

/* "rank 2", "ranks 1 and 3", "ranks 1, 2, 3 and 5 more" */
static void name_ranks(const bool *chosen, int32_t n_rank, char *out, size_t size) {
    int32_t n = 0, said = 0;
    size_t at = 0;
    for (int32_t r = 0; r < n_rank; r++) n += chosen[r];
    at += (size_t)snprintf(out, size, n == 1 ? "rank " : "ranks ");
    for (int32_t r = 0; r < n_rank && said < 4; r++) {
        if (!chosen[r]) continue;
        const char *before = said == 0 ? "" : said == n - 1 ? " and " : ", ";
        at += (size_t)snprintf(out + at, size - at, "%s%d", before, r);
        said++;
    }
    if (said < n) snprintf(out + at, size - at, " and %d more", n - said);
}

/* The largest set of ranks near one of them; true for those. Returns its size. */
static int32_t majority(const struct fd_ranks *ranks, const rank_rows *rows, double limit, bool *in) {
    int32_t best = 0;
    for (int32_t c = 0; c < ranks->n_rank; c++) {
        int32_t n = 0;
        for (int32_t r = 0; r < ranks->n_rank; r++) n += difference(rows->of[c], rows->of[r], rows->n) <= limit;
        if (n <= best) continue;
        best = n;
        for (int32_t r = 0; r < ranks->n_rank; r++) in[r] = difference(rows->of[c], rows->of[r], rows->n) <= limit;
    }
    return best;
}

/* Where the other ranks had this row before: the position before, or the step before. */
static fd_code find_stale(const struct fd_ranks *ranks, const fd_joined *j, const fd_joined *before, int32_t row,
                          const double *stale, int32_t other, bool *found, fd_error *err) {
    double *values = NULL;
    int64_t n = 0, width = 0;
    *found = false;
    const fd_joined *where = row > 0 ? j : before;
    if (!where) return FD_OK;
    FD_TRY(fd_joined_row(ranks, where, other, row > 0 ? row - 1 : fd_joined_n_row(ranks, where) - 1, &values, &n, err));
    double *own = NULL;
    fd_code code = fd_joined_row(ranks, j, other, row, &own, &width, err);
    *found = code == FD_OK && n == width && difference(values, stale, n) == 0;
    free(own);
    free(values);
    return code;
}

/* The same name one step earlier; NULL. */
static const fd_joined *step_before(const struct fd_ranks *ranks, const fd_source *whole, size_t i) {
    const fd_source_tensor *t = fd_source_at(whole, i);
    for (size_t k = i; k-- > 0;) {
        const fd_source_tensor *other = fd_source_at(whole, k);
        if (other->step < t->step - 1) break;
        if (other->step == t->step - 1 && other->occurrence == t->occurrence && strcmp(other->name, t->name) == 0)
            return &ranks->joined[k];
    }
    return NULL;
}

static fd_code check_copies(struct fd_ranks *ranks, const fd_source *whole, size_t i, fd_rank_finding *f,
                            fd_error *err) {
    const fd_joined *j = &ranks->joined[i];
    const double limit = tolerance(fd_source_at(ranks->dumps, j->parts[0])->type);
    bool *in = calloc((size_t)ranks->n_rank, sizeof *in);
    fd_code code = in ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "ranks: out of memory");
    for (int32_t row = 0; code == FD_OK && !f->text[0] && row < fd_joined_n_row(ranks, j); row++) {
        rank_rows rows = {0};
        if ((code = read_rows(ranks, j, row, &rows, err)) != FD_OK) break;
        double largest = 0;
        for (int32_t r = 1; r < ranks->n_rank; r++) {
            double d = difference(rows.of[0], rows.of[r], rows.n);
            if (!(d <= largest)) largest = d;
        }
        if (largest <= limit) {
            if (largest > ranks->report.rounding) ranks->report.rounding = largest;
        } else {
            char names[72], text[160];
            int32_t n = majority(ranks, &rows, limit, in), odd = -1, other = -1;
            for (int32_t r = ranks->n_rank; r-- > 0;) *(in[r] ? &other : &odd) = r;
            bool stale = false;
            if (odd >= 0 && other >= 0)
                code = find_stale(ranks, j, step_before(ranks, whole, i), row, rows.of[odd], other, &stale, err);
            for (int32_t r = 0; r < ranks->n_rank; r++) in[r] = !in[r];
            name_ranks(in, ranks->n_rank, names, sizeof names);
            if (ranks->n_rank > 2 && n == 1)
                snprintf(text, sizeof text, "no two of %d ranks agree, as when no all-reduce ran", ranks->n_rank);
            else if (2 * n > ranks->n_rank)
                snprintf(text, sizeof text, "%s differ%s from the other %d", names, ranks->n_rank - n == 1 ? "s" : "",
                         n);
            else
                snprintf(text, sizeof text, "%s differ%s from rank %d; which is right, only a reference can tell",
                         names, ranks->n_rank - n == 1 ? "s" : "", other);
            f->position = j->pos0 + row;
            f->copies = true;
            f->odd = 2 * n > ranks->n_rank ? odd : -1;
            snprintf(f->text, sizeof f->text, "%s (relative difference %.3g)%s", text, sqrt(largest),
                     stale ? ": stale, it holds what the others had one position before" : "");
        }
        free_rows(&rows, ranks->n_rank);
    }
    free(in);
    return code;
}

/* Ranks that share K/V heads are neighbours. */
static fd_code check_kv(struct fd_ranks *ranks, size_t i, fd_rank_finding *f, fd_error *err) {
    const fd_joined *j = &ranks->joined[i];
    const double limit = tolerance(fd_source_at(ranks->dumps, j->parts[0])->type);
    const int32_t n_shard = ranks->n_rank / j->copies;
    for (int32_t row = 0; !f->text[0] && row < fd_joined_n_row(ranks, j); row++) {
        rank_rows rows = {0};
        FD_TRY(read_rows(ranks, j, row, &rows, err));
        bool in_turn = true;
        int32_t odd = -1;
        for (int32_t r = ranks->n_rank; r-- > 0;) {
            if (!(difference(rows.of[r], rows.of[r / j->copies * j->copies], rows.n) <= limit)) odd = r;
            in_turn = in_turn && difference(rows.of[r], rows.of[r % n_shard], rows.n) <= limit;
        }
        if (odd >= 0) {
            f->position = j->pos0 + row;
            if (in_turn)
                snprintf(f->text, sizeof f->text,
                         "K/V heads are replicated in turn, rank r has those of r %% %d; r / %d is expected: ranks %d "
                         "and %d "
                         "share heads",
                         n_shard, j->copies, odd / j->copies * j->copies, odd);
            else
                snprintf(f->text, sizeof f->text,
                         "rank %d does not have the K/V heads of rank %d, which it should share", odd,
                         odd / j->copies * j->copies);
        }
        free_rows(&rows, ranks->n_rank);
    }
    return FD_OK;
}

/* Every row of the table, and every chosen expert, is one rank's. */
static fd_code check_owners(struct fd_ranks *ranks, size_t i, fd_rank_finding *f, int32_t width, fd_error *err) {
    const fd_joined *j = &ranks->joined[i];
    bool *in = calloc((size_t)ranks->n_rank, sizeof *in);
    fd_code code = in ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "ranks: out of memory");
    for (int32_t row = 0; code == FD_OK && !f->text[0] && row < fd_joined_n_row(ranks, j); row++) {
        rank_rows rows = {0};
        if ((code = read_rows(ranks, j, row, &rows, err)) != FD_OK) break;
        for (int64_t part = 0; !f->text[0] && part + width <= rows.n; part += width) {
            int32_t n = 0;
            for (int32_t r = 0; r < ranks->n_rank; r++) {
                in[r] = false;
                for (int64_t k = 0; k < width; k++) in[r] = in[r] || rows.of[r][part + k] != 0;
                n += in[r];
            }
            if (n == 1) continue;
            char names[96], which[64] = "its token's row";
            name_ranks(in, ranks->n_rank, names, sizeof names);
            if (j->shard == FD_SHARD_EXPERT)
                snprintf(which, sizeof which, "its chosen expert %lld", (long long)(part / width));
            f->position = j->pos0 + row;
            if (n)
                snprintf(f->text, sizeof f->text, "%s all have %s: it is added %d times", names, which, n);
            else
                snprintf(f->text, sizeof f->text, "no rank has %s", which);
        }
        free_rows(&rows, ranks->n_rank);
    }
    free(in);
    return code;
}

fd_code fd_joined_check(struct fd_ranks *ranks, const fd_graph *graph, const fd_source *whole, size_t i,
                        fd_error *err) {
    const fd_joined *j = &ranks->joined[i];
    const fd_source_tensor *t = fd_source_at(whole, i);
    fd_rank_finding f = {.step = t->step, .position = j->pos0, .order = j->node < 0 ? -1 : j->node, .odd = -1};
    const char *name = j->node >= 0 ? graph->nodes[j->node].name : t->name;
    snprintf(f.node, sizeof f.node, "%.63s", name);
    bool owners = j->whole_each && (j->shard == FD_SHARD_VOCABULARY || j->shard == FD_SHARD_EXPERT);
    if (j->shard == FD_SHARD_REPLICATED && j->node >= 0 && graph->nodes[j->node].op == FD_OP_ADD)
        FD_TRY(fd_joined_check_sum(ranks, graph, whole, i, &f, err));
    if (ranks->n_rank > 1 && j->shard == FD_SHARD_REPLICATED && !f.text[0])
        FD_TRY(check_copies(ranks, whole, i, &f, err));
    if (j->shard == FD_SHARD_KV) FD_TRY(check_kv(ranks, i, &f, err));
    if (owners && j->node >= 0) {
        const fd_node *node = &graph->nodes[j->node];
        FD_TRY(check_owners(ranks, i, &f, node->shape[node->n_dim - 1], err));
    }
    return f.text[0] ? add(ranks, &f, err) : FD_OK;
}

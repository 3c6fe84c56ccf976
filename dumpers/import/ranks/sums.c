/* Where the ranks' partial sums and the tensor that was made of them are both there: was each added, and once? */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/import/ranks/internal.h"

/* The joined tensor of a node in a step; NULL. */
static const fd_joined *joined_of(const struct fd_ranks *ranks, const fd_source *whole, int32_t node, int32_t step) {
    for (size_t i = 0; i < whole->n; i++)
        if (ranks->joined[i].node == node && fd_source_at(whole, i)->step == step) return &ranks->joined[i];
    return NULL;
}

/* One position of an addition: the stream, and every rank's partial sum and result. */
typedef struct addition {
    double *stream, **partial, **result; /* [n] each; partial and result [n_rank] */
    int64_t n;
} addition;

static void free_addition(addition *a, int32_t n_rank) {
    for (int32_t r = 0; a->partial && r < n_rank; r++) free(a->partial[r]);
    for (int32_t r = 0; a->result && r < n_rank; r++) free(a->result[r]);
    free(a->stream);
    free(a->partial);
    free(a->result);
}

static fd_code read_addition(const struct fd_ranks *ranks, const fd_joined *sum, const fd_joined *stream,
                             const fd_joined *partial, int32_t row, addition *out, fd_error *err) {
    int64_t n[2];
    *out = (addition){.partial = calloc((size_t)ranks->n_rank, sizeof *out->partial),
                      .result = calloc((size_t)ranks->n_rank, sizeof *out->result)};
    if (!out->partial || !out->result) return fd_fail(err, FD_ERR_MEMORY, "ranks: out of memory");
    FD_TRY(fd_joined_row(ranks, stream, 0, row, &out->stream, &n[0], err));
    for (int32_t r = 0; r < ranks->n_rank; r++) {
        FD_TRY(fd_joined_row(ranks, partial, r, row, &out->partial[r], &n[1], err));
        FD_TRY(fd_joined_row(ranks, sum, r, row, &out->result[r], &out->n, err));
        if (n[0] != out->n || n[1] != out->n)
            return fd_fail(err, FD_ERR_INPUT, "%s: rows of different lengths", fd_source_path(ranks->dumps));
    }
    return FD_OK;
}

/* A reading of the addition: how often the stream and each rank's partial sum count; rank `which` counts otherwise. */
typedef struct reading {
    double stream, partial;
    int32_t which;
    double times;
} reading;

/* ||result - the sum as it is read||² / ||Σ partial||² of rank 0's result. */
static double left(const addition *a, int32_t n_rank, reading as) {
    double d2 = 0, sum2 = 0;
    for (int64_t i = 0; i < a->n; i++) {
        double sum = 0, all = 0;
        for (int32_t r = 0; r < n_rank; r++) {
            sum += (r == as.which ? as.times : as.partial) * a->partial[r][i];
            all += a->partial[r][i];
        }
        double d = a->result[0][i] - as.stream * a->stream[i] - sum;
        d2 += d * d;
        sum2 += all * all;
    }
    return d2 == 0 ? 0 : d2 / sum2;
}

/* Every rank's result is the stream plus its own partial sum; the same number. */
static double unreduced(const addition *a, int32_t n_rank) {
    double d2 = 0, sum2 = 0;
    for (int32_t r = 0; r < n_rank; r++)
        for (int64_t i = 0; i < a->n; i++) {
            double d = a->result[r][i] - a->stream[i] - a->partial[r][i];
            d2 += d * d;
            sum2 += a->partial[r][i] * a->partial[r][i];
        }
    return d2 == 0 ? 0 : d2 / sum2;
}

/* Partial sums are rounded to the tensors' type, and so is the stream, which may be far larger: as copies that are computed
 * again (contradictions.c), and a wrong sum leaves a good part of it. */
static const double rounding_of_sums = 1e-3;

static void explain(const addition *a, int32_t n_rank, const char *name, char *out, size_t size) {
    if (unreduced(a, n_rank) <= rounding_of_sums)
        return (void)snprintf(out, size, "%s was not reduced: each rank adds its own partial sum", name);
    for (int32_t r = 0; r < n_rank; r++) {
        if (left(a, n_rank, (reading){1, 1, r, 0}) <= rounding_of_sums)
            return (void)snprintf(out, size, "rank %d's partial sum of %s is missing", r, name);
        if (left(a, n_rank, (reading){1, 1, r, 2}) <= rounding_of_sums)
            return (void)snprintf(out, size, "rank %d's partial sum of %s is added twice", r, name);
    }
    if (left(a, n_rank, (reading){1, 1.0 / n_rank, -1, 0}) <= rounding_of_sums)
        return (void)snprintf(out, size, "the ranks' partial sums of %s are averaged, not added up", name);
    if (left(a, n_rank, (reading){n_rank, 1, -1, 0}) <= rounding_of_sums)
        return (void)snprintf(out, size, "the stream is added on every rank, %d times, to the partial sums of %s",
                              n_rank, name);
    snprintf(out, size, "it is not the stream plus the ranks' partial sums of %s", name);
}

fd_code fd_joined_check_sum(struct fd_ranks *ranks, const fd_graph *graph, const fd_source *whole, size_t i,
                            fd_rank_finding *f, fd_error *err) {
    const fd_joined *j = &ranks->joined[i];
    const fd_node *node = &graph->nodes[j->node];
    for (int k = 0; k < 2; k++) {
        int32_t step = fd_source_at(whole, i)->step;
        const fd_joined *partial = joined_of(ranks, whole, node->input[k], step);
        const fd_joined *stream = joined_of(ranks, whole, node->input[1 - k], step);
        if (!partial || !stream || partial->shard != FD_SHARD_ROW || !stream->whole_each) continue;
        if (stream->shard == FD_SHARD_ROW) continue;
        if (stream->shard != FD_SHARD_REPLICATED) return FD_OK; /* the embedding's rows, which are not one rank's */
        for (int32_t row = 0; !f->text[0] && row < fd_joined_n_row(ranks, j); row++) {
            addition a = {0};
            fd_code code = read_addition(ranks, j, stream, partial, row, &a, err);
            if (code == FD_OK && !(left(&a, ranks->n_rank, (reading){1, 1, -1, 0}) <= rounding_of_sums)) {
                f->position = j->pos0 + row;
                explain(&a, ranks->n_rank, graph->nodes[partial->node].name, f->text, sizeof f->text);
            }
            free_addition(&a, ranks->n_rank);
            if (code != FD_OK) return code;
        }
    }
    return FD_OK;
}

/* How the tensors that are one are sharded: by sizes (layout.c), by what the ranks hold, by what other layers and
 * steps say. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/import/ranks/internal.h"

/* Which nodes may be sums over ranks: those that a matrix sharded by its inputs makes, or one of which each rank has
 * some rows. Elsewhere ranks that differ contradict each other. */
static bool may_be_summed(const fd_graph *graph, const fd_joined *j) {
    if (j->node < 0) return false;
    const fd_op op = graph->nodes[j->node].op;
    return op == FD_OP_MATMUL || op == FD_OP_EMBED || op == FD_OP_EXPERT_MATMUL || op == FD_OP_EXPERT_SUM;
}

/* A row for each chosen expert: their products, and what is done with each before they are added. */
static bool is_of_experts(const fd_graph *graph, const fd_joined *j) {
    return j->node >= 0 && graph->nodes[j->node].n_dim == 2 && strstr(graph->nodes[j->node].name, ".ffn_moe_");
}

/* Terms of a sum point anywhere: their difference is as large as they are. Copies of which one is a little off are
 * near. */
enum { FAR_APART_INVERSE = 4 };

static fd_shard shard_by_values(const fd_graph *graph, const fd_joined *j, const fd_rank_values *v) {
    if (!v->equal && v->rows_of_some && is_of_experts(graph, j)) return FD_SHARD_EXPERT;
    if (v->equal || !may_be_summed(graph, j)) return FD_SHARD_REPLICATED;
    const fd_op op = graph->nodes[j->node].op;
    if (op == FD_OP_EMBED) return v->rows_of_some ? FD_SHARD_VOCABULARY : FD_SHARD_REPLICATED;
    return v->difference * FAR_APART_INVERSE > 1 ? FD_SHARD_ROW : FD_SHARD_REPLICATED;
}

static bool is_by_row(fd_shard shard) {
    return shard == FD_SHARD_VOCABULARY || shard == FD_SHARD_EXPERT;
}

/* Of one name: what its tensors look like. */
typedef struct ballot {
    const char *name;
    fd_shard by_row; /* FD_SHARD_REPLICATED: none has rows of some ranks */
    int32_t n, n_summed;
} ballot;

static fd_shard elected(const ballot *b) {
    return b->by_row != FD_SHARD_REPLICATED ? b->by_row : 2 * b->n_summed > b->n ? FD_SHARD_ROW : FD_SHARD_REPLICATED;
}

/* Layers and steps vote: where a rank once has a row that others have not, it is so everywhere, though two may have a
 * token; between copies and sums most decide, since a bug of one layer makes its sums equal, or its copies far apart. */
static fd_code vote(fd_joiner *k) {
    const fd_graph *graph = k->options->graph;
    ballot *ballots = malloc(sizeof *ballots * (size_t)(graph->n_node + 1));
    size_t n = 0;
    if (!ballots) return fd_fail(k->err, FD_ERR_MEMORY, "ranks: out of memory");
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < k->whole->n; i++) {
            fd_joined *j = &k->ranks->joined[i];
            if (j->node < 0 || !j->whole_each || j->alone) continue;
            const char *name = fd_joined_suffix(graph, j);
            size_t at = 0;
            while (at < n && strcmp(ballots[at].name, name) != 0) at++;
            if (at == n) ballots[n++] = (ballot){.name = name, .by_row = FD_SHARD_REPLICATED};
            if (pass == 0 && is_by_row(j->shard)) ballots[at].by_row = j->shard;
            if (pass == 0) ballots[at].n++, ballots[at].n_summed += j->shard == FD_SHARD_ROW;
            if (pass == 1) j->shard = elected(&ballots[at]);
        }
    free(ballots);
    return FD_OK;
}

/* Without a map no size is known: the ranks' parts one after the other, and their sum as NAME:sum; --map auto finds out
 * by values which of them is a node. */
static fd_code offer_both(fd_joiner *k, size_t i) {
    fd_joined *j = &k->ranks->joined[i];
    const fd_source_tensor t = k->whole->tensors[i];
    int axis = t.rank - 1;
    if (t.rank == 0) return FD_OK;
    for (int a = 0; a + 1 < t.rank && axis == t.rank - 1; a++) /* heads, before their elements */
        if (t.shape[a] > 1 && t.shape[a] != j->n_pos) axis = a;
    j->whole_each = false;
    j->shard = FD_SHARD_COLUMN;
    j->axis = axis;
    char name[1120];
    snprintf(name, sizeof name, "%s:sum", t.name);
    fd_joined *sum = fd_joiner_add(k, name, &t, j->parts);
    if (!sum) return fd_fail(k->err, FD_ERR_MEMORY, "ranks: out of memory");
    sum->whole_each = true;
    sum->shard = FD_SHARD_ROW;
    return FD_OK;
}

fd_code fd_joiner_find_shards(fd_joiner *k) {
    const fd_graph *graph = k->options->graph;
    for (size_t i = 0, n = k->whole->n; i < n; i++) {
        fd_joined *j = &k->ranks->joined[i];
        fd_rank_values values;
        bool named = j->node >= 0 || j->weight >= 0;
        if (j->alone || (!named && k->options->map)) { /* what the map has no use for is not looked at */
            j->whole_each = true;
            j->shard = FD_SHARD_REPLICATED;
            j->alone = true;
            continue;
        }
        FD_TRY(fd_joined_find_layout(k->ranks, graph, j, k->err));
        if (!j->whole_each) continue;
        FD_TRY(fd_joined_values(k->ranks, j, &values, k->err));
        j->shard = shard_by_values(graph, j, &values);
        if (!named && !values.equal) FD_TRY(offer_both(k, i));
    }
    FD_TRY(vote(k));
    for (size_t i = 0; i < k->whole->n; i++) {
        fd_source_tensor *t = &k->whole->tensors[i];
        fd_joined_shape(k->ranks, &k->ranks->joined[i], &t->rank, t->shape);
        t->type = fd_joined_type(k->ranks, &k->ranks->joined[i]);
    }
    return FD_OK;
}

/* How a tensor is sharded, by sizes: those of the ranks' parts against the one that the graph has. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/import/ranks/internal.h"

const char *fd_shard_name(fd_shard shard) {
    static const char *const names[FD_SHARD_COUNT] = {"replicated", "column", "K/V heads", "row",
                                                      "vocabulary", "expert", "sequence"};
    return names[shard];
}

const char *fd_shard_summary(fd_shard shard) {
    static const char *const words[FD_SHARD_COUNT] = {
        "every rank has it whole",     "each rank has some outputs or heads",      "neighbouring ranks share K/V heads",
        "partial sums, added up",      "each rank has its tokens' rows or logits", "each rank has its experts' rows",
        "each rank has some positions"};
    return words[shard];
}

typedef struct wanted {
    int64_t shape[2], elements; /* of one position, or of a weight; 0: not known */
    bool over_kv;
} wanted;

static wanted what_the_graph_has(const fd_graph *graph, const fd_joined *j, const int64_t *shape, int rank) {
    wanted w = {.elements = 0};
    if (j->node >= 0) {
        const fd_node *node = &graph->nodes[j->node];
        w.over_kv = node->over_kv;
        w.shape[0] = node->shape[0];
        w.shape[1] = node->n_dim < 2 ? 1 : node->over_kv ? shape[rank - 1] : node->shape[1];
    } else if (j->weight >= 0) {
        w.shape[0] = graph->weights[j->weight].n_row;
        w.shape[1] = graph->weights[j->weight].n_col;
    }
    w.elements = w.shape[0] * w.shape[1];
    return w;
}

static int64_t length_of(const struct fd_ranks *ranks, const fd_joined *j, int32_t r, int axis) {
    const fd_source_tensor *part = fd_source_at(ranks->dumps, j->parts[r]);
    return j->length && axis == part->rank - 1 ? j->length : part->shape[axis];
}

static int64_t elements_of(const struct fd_ranks *ranks, const fd_joined *j, int32_t r) {
    const fd_source_tensor *part = fd_source_at(ranks->dumps, j->parts[r]);
    int64_t n = 1;
    for (int i = 0; i < part->rank; i++) n *= length_of(ranks, j, r, i);
    return n;
}

static int64_t sum_along(const struct fd_ranks *ranks, const fd_joined *j, int axis) {
    int64_t n = 0;
    for (int32_t r = 0; r < ranks->n_rank; r++) n += length_of(ranks, j, r, axis);
    return n;
}

static int leading_axis(const fd_source_tensor *part) {
    int axis = 0;
    while (axis + 1 < part->rank && part->shape[axis] == 1) axis++;
    return axis;
}

/* As the map says, or the first axis as long as the step has tokens. */
static int positions_axis(const fd_source_tensor *part, const fd_joined *j, bool over_kv) {
    if (j->map_axis < 0 && part->rank + j->map_axis >= 0) return part->rank + j->map_axis;
    for (int i = 0; j->n_pos > 1 && i < part->rank - over_kv; i++)
        if (part->shape[i] == j->n_pos) return i;
    return -1;
}

/* The axis along which the parts, taken together, have what the graph has: shape[0], shape[1] or their product. */
static int sharded_axis(const struct fd_ranks *ranks, const fd_joined *j, const wanted *w) {
    const fd_source_tensor *part = fd_source_at(ranks->dumps, j->parts[0]);
    const bool token = j->positions < 0 && j->weight < 0 && part->rank > 1 && part->shape[0] == 1;
    for (int i = token ? 1 : 0; i < part->rank; i++) {
        const int64_t n = sum_along(ranks, j, i) / j->copies;
        const bool fits = j->weight >= 0
                              ? i < 2 && n == w->shape[i]
                              : n == w->shape[0] || n == w->elements || (w->shape[1] > 1 && n == w->shape[1]);
        if (i != j->positions && fits) return i;
    }
    return -1;
}

static fd_code no_layout(const struct fd_ranks *ranks, const fd_joined *j, const char *node, const wanted *w,
                         fd_error *err) {
    char text[128], parts[512];
    size_t at = 0;
    for (int32_t r = 0; r < ranks->n_rank && at + 64 < sizeof parts; r++) {
        const fd_source_tensor *part = fd_source_at(ranks->dumps, j->parts[r]);
        at += (size_t)snprintf(parts + at, sizeof parts - at, "%s%s", r ? ", " : "",
                               fd_array_shape_text(part->rank, part->shape, text));
    }
    const fd_source_tensor *part = fd_source_at(ranks->dumps, j->parts[0]);
    return fd_fail(err, FD_ERR_INPUT,
                   "\"%s\" (step %d): the ranks hold %s; no sharding of %s makes the model's %lld x %lld of %s%d "
                   "positions of it",
                   part->name, part->step, parts, node, (long long)w->shape[0], (long long)w->shape[1],
                   j->weight >= 0 ? "a weight, not " : "", j->n_pos);
}

/* Whether each part is the whole of some of the step's positions. */
static bool is_by_sequence(const struct fd_ranks *ranks, const fd_joined *j, int64_t elements) {
    const fd_source_tensor *part = fd_source_at(ranks->dumps, j->parts[0]);
    int axis = leading_axis(part);
    return j->n_pos > 1 && j->weight < 0 && part->rank > 0 && sum_along(ranks, j, axis) == j->n_pos &&
           elements_of(ranks, j, 0) == elements * length_of(ranks, j, 0, axis);
}

fd_code fd_joined_find_layout(const struct fd_ranks *ranks, const fd_graph *graph, fd_joined *j, fd_error *err) {
    const fd_source_tensor *part = fd_source_at(ranks->dumps, j->parts[0]);
    const wanted w = what_the_graph_has(graph, j, part->shape, part->rank);
    const bool weight = j->weight >= 0;
    const int64_t whole = w.elements * (weight ? 1 : j->n_pos);
    const char *name = j->node >= 0 ? graph->nodes[j->node].name : weight ? graph->weights[j->weight].name : "a tensor";
    int64_t sum = 0, rows = 1;
    bool same = true, each = true;
    for (int32_t r = 0; r < ranks->n_rank; r++) {
        const fd_source_tensor *other = fd_source_at(ranks->dumps, j->parts[r]);
        if (other->rank != part->rank || other->type != part->type) return no_layout(ranks, j, name, &w, err);
        const int64_t n = elements_of(ranks, j, r);
        same = same && n == elements_of(ranks, j, 0);
        each = each && n == whole;
        sum += n;
    }
    j->positions = weight ? -1 : positions_axis(part, j, w.over_kv);
    j->copies = 1;
    /* logits of the last position alone, caches, rows of zeros: let one position's size decide */
    if (w.elements && !each && same && sum % ranks->n_rank == 0 && sum / ranks->n_rank == w.elements) each = true;
    if (each || (w.elements == 0 && same)) {
        j->whole_each = true;
        j->axis = part->rank - 1;
        return FD_OK;
    }
    if (part->rank == 0) return no_layout(ranks, j, name, &w, err);
    if (w.elements && is_by_sequence(ranks, j, w.elements)) {
        j->shard = FD_SHARD_SEQUENCE;
        j->axis = j->positions = leading_axis(part);
        return FD_OK;
    }
    for (int i = 0; i < part->rank; i++)
        if (j->positions >= 0 && i == j->positions) rows = part->shape[i];
    j->shard = FD_SHARD_COLUMN;
    if (w.elements && same && rows * w.elements < sum && sum % (rows * w.elements) == 0 &&
        ranks->n_rank % (int32_t)(sum / (rows * w.elements)) == 0) {
        j->copies = (int32_t)(sum / (rows * w.elements));
        j->shard = FD_SHARD_KV;
    }
    j->axis = sharded_axis(ranks, j, &w);
    if (w.elements && j->axis < 0 && sum > rows * w.elements && j->node == graph->n_node - 1) {
        j->axis = part->rank - 1; /* a vocabulary that is padded to a multiple of the ranks */
        j->padding = sum_along(ranks, j, j->axis) - w.elements;
    }
    if (j->node >= 0 && j->node == graph->n_node - 1) j->shard = FD_SHARD_VOCABULARY;
    if (j->axis < 0 || j->padding < 0 || j->padding >= sum_along(ranks, j, j->axis))
        return no_layout(ranks, j, name, &w, err);
    for (int32_t r = 1; r < ranks->n_rank; r++)
        for (int i = 0; i < part->rank; i++)
            if (i != j->axis && length_of(ranks, j, r, i) != length_of(ranks, j, 0, i))
                return no_layout(ranks, j, name, &w, err);
    return FD_OK;
}

void fd_joined_shape(const struct fd_ranks *ranks, const fd_joined *j, int *rank, int64_t *shape) {
    const fd_source_tensor *part = fd_source_at(ranks->dumps, j->parts[0]);
    *rank = part->rank;
    for (int i = 0; i < part->rank; i++) shape[i] = length_of(ranks, j, 0, i);
    if (!j->whole_each && part->rank > 0) shape[j->axis] = sum_along(ranks, j, j->axis) / j->copies - j->padding;
}

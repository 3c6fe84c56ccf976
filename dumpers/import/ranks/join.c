/* Which tensors of the dumps are one, and which node it is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "dumpers/import/propose/propose.h"
#include "dumpers/import/ranks/internal.h"

void fd_ranks_free(struct fd_ranks *ranks) {
    if (!ranks) return;
    for (size_t i = 0; ranks->joined && i < ranks->n_joined; i++) free(ranks->joined[i].parts);
    free(ranks->joined);
    free(ranks->report.kinds);
    free(ranks->report.findings);
    fd_source_close(ranks->dumps);
    free(ranks);
}

const fd_rank_report *fd_ranks_report_of(const fd_source *source) {
    return source->ranks ? &source->ranks->report : NULL;
}

/* ---- groups: the tensors of one name, step and occurrence ---- */

typedef struct member {
    const fd_source_tensor *tensor;
    size_t index, length; /* in the dumps; of its name without the rank */
    int32_t rank;         /* -1: the name has none */
} member;

static int same_group(const member *x, const member *y) {
    if (x->tensor->step != y->tensor->step) return x->tensor->step < y->tensor->step ? -1 : 1;
    size_t n = x->length < y->length ? x->length : y->length;
    int names = memcmp(x->tensor->name, y->tensor->name, n);
    if (names) return names;
    if (x->length != y->length) return x->length < y->length ? -1 : 1;
    return (x->tensor->occurrence > y->tensor->occurrence) - (x->tensor->occurrence < y->tensor->occurrence);
}

static int by_group(const void *a, const void *b) {
    const member *x = a, *y = b;
    int groups = same_group(x, y);
    return groups ? groups : (x->rank > y->rank) - (x->rank < y->rank);
}

/* ---- what a name is ---- */

/* The node or weight that the map makes of the name. */
static void look_up(const fd_joiner *k, const char *name, const fd_source_tensor *t, fd_joined *j) {
    const fd_graph *graph = k->options->graph;
    const fd_name_map *map = k->options->map;
    j->node = j->weight = -1;
    for (size_t r = 0; map && j->node < 0 && j->weight < 0 && r < map->n_rule; r++)
        for (size_t c = 0; c < map->rules[r].n_source && j->node < 0 && j->weight < 0; c++) {
            const fd_name_map_source *source = &map->rules[r].sources[c];
            fd_name_map_capture capture;
            char node[128];
            bool occurs =
                source->occurrence == 0 || t->occurrence == (source->occurrence < 0 ? t->n_same : source->occurrence);
            if (!occurs || !fd_name_map_matches(source->pattern, name, &capture)) continue;
            capture.last = graph->hparams.n_layer - 1;
            if (!fd_name_map_node(&map->rules[r], &capture, node, sizeof node)) continue;
            j->node = fd_graph_find(graph, node);
            j->map_axis = map->rules[r].has_axis ? map->rules[r].axis : 0;
            for (int32_t w = 0; j->node < 0 && w < graph->n_weight; w++)
                if (strcmp(graph->weights[w].name, node) == 0) j->weight = w;
        }
    const char *file = strrchr(name, '/');
    for (int32_t w = 0; j->node < 0 && j->weight < 0 && fd_source_is_weight(name) && w < graph->n_weight; w++)
        if (strcmp(graph->weights[w].name, file ? file + 1 : name) == 0) j->weight = w;
}

/* How vLLM and SGLang name arrays of several products: every rank has its own heads of q, then of k, then of v. */
static const char *ending_of(const fd_fused_part *part) {
    return part->is == 'f' ? "gate_up_proj" : "qkv_proj";
}

/* ---- adding ---- */

fd_joined *fd_joiner_add(fd_joiner *k, const char *name, const fd_source_tensor *t, const size_t *parts) {
    fd_source *whole = k->whole;
    struct fd_ranks *ranks = k->ranks;
    if (whole->n == k->room) {
        size_t room = k->room ? 2 * k->room : 256;
        fd_source_tensor *tensors = realloc(whole->tensors, room * sizeof *tensors);
        if (tensors) whole->tensors = tensors;
        fd_joined *joined = realloc(ranks->joined, room * sizeof *joined);
        if (joined) ranks->joined = joined;
        if (!tensors || !joined) return NULL;
        k->room = room;
    }
    fd_joined *j = &ranks->joined[whole->n];
    *j = (fd_joined){.parts = malloc(sizeof *parts * (size_t)ranks->n_rank), .copies = 1, .positions = -1};
    char *copy = strdup(name);
    if (!j->parts || !copy) {
        free(j->parts);
        free(copy);
        return NULL;
    }
    memcpy(j->parts, parts, sizeof *parts * (size_t)ranks->n_rank);
    whole->tensors[whole->n] = *t;
    whole->tensors[whole->n].name = copy;
    whole->n++;
    ranks->n_joined = whole->n;
    const fd_import_step *step = &k->steps->steps[t->step];
    j->pos0 = step->pos0;
    j->n_pos = step->n_pos;
    look_up(k, name, t, j);
    return j;
}

static fd_code add_group(fd_joiner *k, const member *members, size_t n, size_t *parts) {
    const struct fd_ranks *ranks = k->ranks;
    const fd_source_tensor *t = members[0].tensor;
    char name[1100], full[1120];
    snprintf(name, sizeof name, "%.*s", (int)members[0].length, t->name);
    bool alone = n == 1; /* of no rank, or recorded by one alone */
    for (int32_t r = 0; r < ranks->n_rank; r++) parts[r] = alone ? members[0].index : SIZE_MAX;
    for (size_t i = 0; !alone && i < n; i++)
        if (members[i].rank >= 0) parts[members[i].rank] = members[i].index;
    for (int32_t r = 0; r < ranks->n_rank; r++)
        if (parts[r] == SIZE_MAX)
            return fd_fail(k->err, FD_ERR_INPUT, "%s: \"%s\" (step %d): %zu of %d ranks have it, rank %d does not",
                           fd_source_path(ranks->dumps), name, t->step, n, ranks->n_rank, r);
    const fd_hparams *h = &k->options->graph->hparams;
    const int32_t n_rank = alone ? 1 : ranks->n_rank;
    const fd_name_map_values own = {.of = {[FD_NAME_MAP_HEAD_DIM] = h->head_dim,
                                           [FD_NAME_MAP_N_HEAD] = h->n_head / n_rank,
                                           [FD_NAME_MAP_N_HEAD_KV] = h->n_head_kv < n_rank ? 1 : h->n_head_kv / n_rank,
                                           [FD_NAME_MAP_N_FF] = h->n_ff / n_rank}};
    bool fused = false;
    for (int i = 0; i < FD_FUSED_PART_COUNT; i++) {
        const fd_fused_part *p = &fd_fused_parts[i];
        fd_fused_place place;
        if (!fd_ends_with(name, ending_of(p)) || !fd_fused_part_place(p, &own, &place) || t->rank == 0 ||
            t->shape[t->rank - 1] != place.width)
            continue;
        snprintf(full, sizeof full, "%s:%s", name, p->name);
        fd_joined *j = fd_joiner_add(k, full, t, parts);
        if (!j) return fd_fail(k->err, FD_ERR_MEMORY, "ranks: out of memory");
        j->first = place.first;
        j->length = place.n;
        j->alone = alone;
        fused = true;
    }
    if (fused) return FD_OK;
    fd_joined *j = fd_joiner_add(k, name, t, parts);
    if (j) j->alone = alone;
    return j ? FD_OK : fd_fail(k->err, FD_ERR_MEMORY, "ranks: out of memory");
}

static fd_code add_groups(fd_joiner *k) {
    const fd_source *dumps = k->ranks->dumps;
    size_t count = fd_source_count(dumps);
    member *members = malloc((count + 1) * sizeof *members);
    size_t *parts = malloc(sizeof *parts * (size_t)k->ranks->n_rank);
    fd_code code = members && parts ? FD_OK : fd_fail(k->err, FD_ERR_MEMORY, "ranks: out of memory");
    for (size_t i = 0; code == FD_OK && i < count; i++) {
        members[i] = (member){.tensor = fd_source_at(dumps, i), .index = i};
        members[i].rank = fd_rank_of_tensor(members[i].tensor->name, &members[i].length);
    }
    if (code == FD_OK && count) qsort(members, count, sizeof *members, by_group);
    for (size_t i = 0, end; code == FD_OK && i < count; i = end) {
        for (end = i + 1; end < count && same_group(&members[i], &members[end]) == 0;) end++;
        code = add_group(k, &members[i], end - i, parts);
    }
    free(members);
    free(parts);
    return code;
}

/* ---- the whole ---- */

static fd_code make(fd_joiner *k) {
    fd_source *whole = k->whole;
    const fd_source *dumps = k->ranks->dumps;
    whole->path = strdup(dumps->path);
    whole->tokens_file = dumps->tokens_file ? strdup(dumps->tokens_file) : NULL;
    whole->n_step = dumps->n_step;
    if (!whole->path || (dumps->tokens_file && !whole->tokens_file))
        return fd_fail(k->err, FD_ERR_MEMORY, "ranks: out of memory");
    FD_TRY(add_groups(k));
    FD_TRY(fd_joiner_find_shards(k));
    FD_TRY(fd_joiner_make_report(k));
    return fd_joiner_leave_out_sums(k);
}

fd_code fd_ranks_join(fd_source *dumps, const fd_import_options *options, fd_source **out, fd_error *err) {
    *out = NULL;
    fd_import_plan steps = {0};
    FD_TRY(fd_import_begin_plan(dumps, options, &steps, err));
    fd_source *whole = calloc(1, sizeof *whole);
    if (whole) whole->ranks = calloc(1, sizeof *whole->ranks);
    fd_code code = whole && whole->ranks ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "ranks: out of memory");
    if (code == FD_OK) {
        whole->ranks->dumps = dumps;
        whole->ranks->n_rank = dumps->n_rank;
        fd_joiner k = {.ranks = whole->ranks, .whole = whole, .options = options, .steps = &steps, .err = err};
        code = make(&k);
        if (code != FD_OK) whole->ranks->dumps = NULL; /* the caller's still */
    }
    fd_import_plan_free(&steps);
    if (code == FD_OK)
        *out = whole;
    else
        fd_source_close(whole);
    return code;
}

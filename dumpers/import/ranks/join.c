/* Which tensors of the dumps are one, and which node it is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/import/plan_internal.h"
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

typedef struct joiner {
    struct fd_ranks *ranks;
    fd_source *whole;
    const fd_import_options *options;
    const fd_import_plan *steps; /* tokens and steps alone */
    size_t room;
    fd_error *err;
} joiner;

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
static void look_up(const joiner *k, const char *name, const fd_source_tensor *t, fd_joined *j) {
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

static bool ends_with(const char *name, const char *ending) {
    size_t n = strlen(name), m = strlen(ending);
    return n >= m && strcmp(name + n - m, ending) == 0;
}

/* ---- adding ---- */

static fd_joined *add(joiner *k, const char *name, const fd_source_tensor *t, const size_t *parts) {
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

static fd_code add_group(joiner *k, const member *members, size_t n, size_t *parts) {
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
        if (!ends_with(name, ending_of(p)) || !fd_fused_part_place(p, &own, &place) || t->rank == 0 ||
            t->shape[t->rank - 1] != place.width)
            continue;
        snprintf(full, sizeof full, "%s:%s", name, p->name);
        fd_joined *j = add(k, full, t, parts);
        if (!j) return fd_fail(k->err, FD_ERR_MEMORY, "ranks: out of memory");
        j->first = place.first;
        j->length = place.n;
        j->alone = alone;
        fused = true;
    }
    if (fused) return FD_OK;
    fd_joined *j = add(k, name, t, parts);
    if (j) j->alone = alone;
    return j ? FD_OK : fd_fail(k->err, FD_ERR_MEMORY, "ranks: out of memory");
}

static fd_code add_groups(joiner *k) {
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

/* ---- how they are sharded ---- */

static const char *suffix_of(const fd_graph *graph, const fd_joined *j) {
    const char *name = j->node >= 0 ? graph->nodes[j->node].name : graph->weights[j->weight].name;
    const char *dot = strncmp(name, "blk.", 4) == 0 ? strchr(name + 4, '.') : NULL;
    return dot ? dot + 1 : name;
}

/* Which nodes may be sums over ranks: those that a matrix sharded by its inputs makes, or one of which each rank has some
 * rows. Elsewhere ranks that differ contradict each other. */
static bool may_be_summed(const fd_graph *graph, const fd_joined *j) {
    if (j->node < 0) return false;
    const fd_op op = graph->nodes[j->node].op;
    return op == FD_OP_MATMUL || op == FD_OP_EMBED || op == FD_OP_EXPERT_MATMUL || op == FD_OP_EXPERT_SUM;
}

/* A row for each chosen expert: their products, and what is done with each before they are added. */
static bool is_of_experts(const fd_graph *graph, const fd_joined *j) {
    return j->node >= 0 && graph->nodes[j->node].n_dim == 2 && strstr(graph->nodes[j->node].name, ".ffn_moe_");
}

/* Terms of a sum point anywhere: their difference is as large as they are. Copies of which one is a little off are near. */
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

/* Layers and steps vote: where a rank once has a row that others have not, it is so everywhere, though two may have a token;
 * and what is a copy anywhere is one everywhere, since sums of ranks are never equal. */
static fd_code vote(joiner *k) {
    const fd_graph *graph = k->options->graph;
    struct voted {
        const char *name;
        fd_shard shard;
    } *voted = malloc(sizeof *voted * (size_t)(graph->n_node + 1));
    size_t n = 0;
    if (!voted) return fd_fail(k->err, FD_ERR_MEMORY, "ranks: out of memory");
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < k->whole->n; i++) {
            fd_joined *j = &k->ranks->joined[i];
            if (j->node < 0 || !j->whole_each || j->alone) continue;
            const char *name = suffix_of(graph, j);
            size_t at = 0;
            while (at < n && strcmp(voted[at].name, name) != 0) at++;
            if (at == n) voted[n++] = (struct voted){name, j->shard};
            bool wins = is_by_row(j->shard) || (j->shard == FD_SHARD_REPLICATED && !is_by_row(voted[at].shard));
            if (pass == 0 && wins) voted[at].shard = j->shard;
            if (pass == 1) j->shard = voted[at].shard;
        }
    free(voted);
    return FD_OK;
}

/* Without a map no size is known: the ranks' parts one after the other, and their sum as NAME:sum; --map auto finds out
 * by values which of them is a node. */
static fd_code offer_both(joiner *k, size_t i) {
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
    fd_joined *sum = add(k, name, &t, j->parts);
    if (!sum) return fd_fail(k->err, FD_ERR_MEMORY, "ranks: out of memory");
    sum->whole_each = true;
    sum->shard = FD_SHARD_ROW;
    return FD_OK;
}

static fd_code find_shards(joiner *k) {
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

/* ---- the report ---- */

static int by_order(const void *a, const void *b) {
    const fd_rank_finding *x = a, *y = b;
    return x->step != y->step ? (x->step > y->step) - (x->step < y->step)
                              : (x->order > y->order) - (x->order < y->order);
}
static int by_graph(const void *a, const void *b) {
    const fd_rank_kind *x = a, *y = b;
    return (x->order > y->order) - (x->order < y->order);
}

static fd_code count_kind(fd_rank_report *report, const char *name, const fd_joined *j, fd_error *err) {
    size_t at = 0;
    while (at < report->n_kind && (strcmp(report->kinds[at].name, name) != 0 || report->kinds[at].shard != j->shard))
        at++;
    if (at == report->n_kind) {
        fd_rank_kind *more = realloc(report->kinds, (at + 1) * sizeof *more);
        if (!more) return fd_fail(err, FD_ERR_MEMORY, "ranks: out of memory");
        report->kinds = more;
        more[at] = (fd_rank_kind){.shard = j->shard, .order = j->node >= 0 ? j->node : INT32_MAX};
        snprintf(more[at].name, sizeof more[at].name, "%.63s", name);
        report->n_kind++;
    }
    fd_rank_kind *kind = &report->kinds[at];
    if (j->node >= 0 && j->node < kind->order) kind->order = j->node;
    kind->n++;
    return FD_OK;
}

static fd_code make_report(joiner *k) {
    const fd_graph *graph = k->options->graph;
    fd_rank_report *report = &k->ranks->report;
    report->n_rank = k->ranks->n_rank;
    for (size_t i = 0; i < k->whole->n; i++) {
        const fd_joined *j = &k->ranks->joined[i];
        if (j->alone) continue;
        FD_TRY(fd_joined_check(k->ranks, graph, k->whole, i, k->err));
        if (j->node >= 0 || j->weight >= 0) FD_TRY(count_kind(report, suffix_of(graph, j), j, k->err));
    }
    if (report->n_finding) qsort(report->findings, report->n_finding, sizeof *report->findings, by_order);
    if (report->n_kind) qsort(report->kinds, report->n_kind, sizeof *report->kinds, by_graph);
    return FD_OK;
}

/* A sum of ours is not the engine's, which adds in an order of its own: where the tensor that reads it is there, that one is
 * judged from what comes before, and the sum stays out of the trace, as one that this engine cannot record. */
static bool is_read(const joiner *k, const fd_joined *j) {
    const fd_graph *graph = k->options->graph;
    for (size_t i = 0; i < k->whole->n; i++) {
        const fd_joined *reader = &k->ranks->joined[i];
        if (reader->node < 0 || reader->pos0 != j->pos0) continue;
        const fd_node *node = &graph->nodes[reader->node];
        if (node->input[0] == j->node || node->input[1] == j->node) return true;
    }
    return false;
}

static fd_code leave_out_sums(joiner *k) {
    struct fd_ranks *ranks = k->ranks;
    bool *out = calloc(k->whole->n + 1, sizeof *out);
    if (!out) return fd_fail(k->err, FD_ERR_MEMORY, "ranks: out of memory");
    for (size_t i = 0; i < k->whole->n; i++)
        out[i] = ranks->joined[i].node >= 0 && ranks->joined[i].shard == FD_SHARD_ROW && is_read(k, &ranks->joined[i]);
    size_t kept = 0;
    for (size_t i = 0; i < k->whole->n; i++) {
        const char *name = out[i] ? k->options->graph->nodes[ranks->joined[i].node].name : NULL;
        char *absent = ranks->report.absent;
        size_t at = strlen(absent), size = sizeof ranks->report.absent;
        if (!out[i]) {
            ranks->joined[kept] = ranks->joined[i];
            k->whole->tensors[kept++] = k->whole->tensors[i];
            continue;
        }
        char glob[160];
        snprintf(glob, sizeof glob, "%s%s", strncmp(name, "blk.", 4) == 0 ? "blk.*." : "",
                 suffix_of(k->options->graph, &ranks->joined[i]));
        if (!strstr(absent, glob)) snprintf(absent + at, size - at, "%s%s", at ? " " : "", glob);
        free(ranks->joined[i].parts);
        free(k->whole->tensors[i].name);
    }
    k->whole->n = ranks->n_joined = kept;
    free(out);
    return FD_OK;
}

/* ---- the whole ---- */

static fd_code make(joiner *k) {
    fd_source *whole = k->whole;
    const fd_source *dumps = k->ranks->dumps;
    whole->path = strdup(dumps->path);
    whole->tokens_file = dumps->tokens_file ? strdup(dumps->tokens_file) : NULL;
    whole->n_step = dumps->n_step;
    if (!whole->path || (dumps->tokens_file && !whole->tokens_file))
        return fd_fail(k->err, FD_ERR_MEMORY, "ranks: out of memory");
    FD_TRY(add_groups(k));
    FD_TRY(find_shards(k));
    FD_TRY(make_report(k));
    return leave_out_sums(k);
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
        joiner k = {.ranks = whole->ranks, .whole = whole, .options = options, .steps = &steps, .err = err};
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

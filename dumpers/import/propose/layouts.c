/* The layouts in which engines leave a tensor, each tried against every node. */
#include <stdio.h>
#include <string.h>

#include "dumpers/import/propose/score.h"

typedef struct search { /* for one name */
    const fd_scorer *scorer;
    const size_t *tensors; /* [n] over the steps */
    size_t n;
    const char *slice;
    const char *as; /* "as=bf16": what 16-bit words are taken for; "": the array says */
    fd_ranking *ranking;
    fd_error *err;
} search;

static void close_layout(fd_layout *l) {
    for (int k = 0; k < FD_PROPOSE_POSITIONS; k++)
        if (l->open[k]) fd_import_rows_close(&l->rows[k]);
    fd_name_map_free(l->map);
}

/* Opens the rows of the sampled positions that the tensor holds. */
static fd_code open_rows(const search *s, size_t tensor, fd_layout *l) {
    const fd_scorer *scorer = s->scorer;
    const fd_source_tensor *t = fd_source_at(scorer->plan->source, tensor);
    fd_import_match match = {.tensor = tensor, .step = t->step < 0 ? 0 : t->step};
    FD_TRY(fd_import_place(&l->plan, &match, s->err));
    int rank;
    int64_t shape[FD_ARRAY_MAX_RANK], n = 1;
    fd_import_row_shape(&match, &rank, shape);
    for (int i = 0; i < rank; i++) n *= shape[i];
    l->least = n < l->least ? n : l->least;
    l->most = n > l->most ? n : l->most;
    const fd_import_step *at = &scorer->plan->steps[match.step];
    for (int k = 0; k < scorer->n_pos; k++) {
        int32_t pos = scorer->pos[k];
        if (t->step >= 0 && (pos < at->pos0 || pos >= at->pos0 + at->n_pos)) continue;
        l->matches[k] = match;
        FD_TRY(fd_import_rows_open(&l->plan, &l->matches[k], &l->rows[k], s->err));
        l->open[k] = pos >= l->rows[k].first && pos < l->rows[k].first + l->rows[k].n;
        if (!l->open[k])
            fd_import_rows_close(&l->rows[k]); /* of another position, as with the last token's row alone */
    }
    return FD_OK;
}

static fd_code open_layout(const search *s, const char *reading, const char *ops, fd_layout *l) {
    char text[FD_PROPOSE_MAX_OPS + 32];
    const char *words[] = {s->as, reading, s->slice, ops};
    *l = (fd_layout){
        .plan = *s->scorer->plan, .least = INT64_MAX, .ids = fd_propose_is_ids(s->scorer->plan, s->tensors[0])};
    for (size_t i = 0, at = 0; i < 4; i++) {
        int n = snprintf(l->ops + at, sizeof l->ops - at, "%s%s", at && *words[i] ? " " : "", words[i]);
        if (n < 0 || (size_t)n >= sizeof l->ops - at)
            return fd_fail(s->err, FD_ERR_INPUT, "map auto: operations too long");
        at += (size_t)n;
    }
    snprintf(text, sizeof text, "x -> y %s", l->ops);
    FD_TRY(fd_name_map_parse("auto", text, strlen(text), &l->map, s->err));
    l->plan.map = l->map;
    for (size_t i = 0; i < s->n; i++) FD_TRY(open_rows(s, s->tensors[i], l));
    return FD_OK;
}

/* One layout of the tensors against every node. Arrays that do not fit the layout are no match of it. */
static fd_code try_layout(const search *s, const char *reading, const char *ops, bool only_heads) {
    fd_layout l;
    fd_code code = open_layout(s, reading, ops, &l);
    if (code == FD_OK) fd_scorer_score(s->scorer, &l, only_heads, s->ranking);
    close_layout(&l);
    return code == FD_ERR_INPUT ? FD_OK : code;
}

/* As it is, transposed, and with the pairs of RoPE the other way round in the heads of Q and in those of K. */
static fd_code try_reading(const search *s, const char *reading) {
    const int64_t *of = s->scorer->plan->values.of;
    const long long n_head[] = {of[FD_NAME_MAP_N_HEAD], of[FD_NAME_MAP_N_HEAD_KV]};
    FD_TRY(try_layout(s, reading, "", false));
    FD_TRY(try_layout(s, reading, "transpose", false));
    for (int k = 0; k < 4; k++) {
        char ops[64];
        snprintf(ops, sizeof ops, "reshape=-1 heads=%lld %s", n_head[k / 2], k % 2 ? "deinterleave" : "interleave");
        FD_TRY(try_layout(s, reading, ops, true));
    }
    return FD_OK;
}

static fd_code try_readings(const search *s, const char *const *readings, size_t n) {
    for (size_t i = 0; i < n; i++) FD_TRY(try_reading(s, readings[i]));
    return FD_OK;
}

/* A row for each token, for the last alone, or for the last of each of several calls. An array that is as large as a row may be the last's,
 * whatever its heads are as many as. */
static fd_code try_axes(const search *s, const fd_source_tensor *t, int32_t n_tok) {
    bool found = n_tok == 1;
    if (n_tok == 1) return try_reading(s, ""); /* no axis over positions, or the first */
    for (int axis = -t->rank; axis < 0; axis++) {
        char reading[32];
        snprintf(reading, sizeof reading, "axis=%d", axis);
        if (t->shape[axis + t->rank] != n_tok) continue;
        found = true;
        FD_TRY(try_reading(s, reading));
    }
    const bool one_row = fd_import_is_row(s->scorer->plan->graph, fd_source_elements(t));
    if (found && !one_row) return FD_OK;
    const int64_t rows = t->rank > 1 && !one_row ? t->shape[t->rank - 2] : 1;
    return try_reading(s, rows > 1 && rows < n_tok ? "axis=-2 rows=last" : "rows=last");
}

/* Flat, as many rows as there were calls: the last norm and the logits of an engine that appends each call's to one file. */
static fd_code try_flat_last(const search *s, const fd_source_tensor *t, int32_t n_tok) {
    const fd_graph *graph = s->scorer->plan->graph;
    const int64_t widths[] = {graph->hparams.n_embd, graph->hparams.n_vocab};
    for (size_t i = 0; i < 2; i++) {
        char reading[64];
        snprintf(reading, sizeof reading, "shape=-1,%lld axis=-2 rows=last", (long long)widths[i]);
        if (t->rank == 1 && t->shape[0] % widths[i] == 0 && t->shape[0] / widths[i] < n_tok)
            FD_TRY(try_reading(s, reading));
    }
    return FD_OK;
}

/* Arrays of one dimension: rows of tokens, columns of tokens, attention's heads inside a token and around the tokens. */
static fd_code try_flat(const search *s, const fd_source_tensor *t) {
    static const char *const readings[] = {"shape=n_tok,-1 axis=-2", "shape=-1,n_tok axis=-1",
                                           "shape=n_tok,n_head,-1 axis=-3", "shape=n_head,n_tok,-1 axis=-2",
                                           "shape=n_head_kv,n_tok,-1 axis=-2"};
    return t->rank == 1 ? try_readings(s, readings, sizeof readings / sizeof *readings) : FD_OK;
}

/* The whole K or V cache, with room for more positions than the step has tokens. */
static fd_code try_cache(const search *s, const fd_source_tensor *t) {
    static const char *const flat[] = {"shape=-1,n_head_kv,head_dim axis=-3 rows=cache",
                                       "shape=n_head_kv,-1,head_dim axis=-2 rows=cache",
                                       "shape=n_head_kv,head_dim,-1 axis=-1 rows=cache"};
    const int64_t *of = s->scorer->plan->values.of, row = of[FD_NAME_MAP_N_HEAD_KV] * of[FD_NAME_MAP_HEAD_DIM];
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++) n *= t->shape[i];
    if (t->rank == 1 && n % row == 0) return try_readings(s, flat, sizeof flat / sizeof *flat);
    for (int axis = -t->rank; axis < 0; axis++) {
        char reading[32];
        snprintf(reading, sizeof reading, "axis=%d rows=cache", axis);
        if (t->shape[axis + t->rank] * row == n) FD_TRY(try_reading(s, reading));
    }
    return FD_OK;
}

/* Does some node fit by all positions, or by a part of them? */
static bool fits(const search *s) {
    for (int part = 0; part < FD_PROPOSE_PARTS; part++)
        if (s->ranking->best[part][0].away <= (part ? FD_PROPOSE_PART_FAR : FD_PROPOSE_FAR)) return true;
    return false;
}

/* Rarer readings only where the common ones match nothing. */
static fd_code try_all(const search *s, const fd_source_tensor *longest) {
    FD_TRY(try_axes(s, longest, longest->step < 0 ? 1 : s->scorer->plan->steps[longest->step].n_pos));
    if (longest->step < 0) return FD_OK; /* a trace has its positions first */
    if (!fits(s)) FD_TRY(try_flat(s, longest));
    if (!fits(s)) FD_TRY(try_flat_last(s, longest, s->scorer->plan->steps[longest->step].n_pos));
    return fits(s) ? FD_OK : try_cache(s, longest);
}

fd_code fd_scorer_rank(const fd_scorer *scorer, const size_t *tensors, size_t n, const char *slice, fd_ranking *out,
                       fd_error *err) {
    static const char *const words[] = {"as=bf16", "as=f16"};
    const fd_source_tensor *longest = fd_source_at(scorer->plan->source, tensors[0]);
    search s = {scorer, tensors, n, slice, "", out, err};
    for (int i = 0; i < FD_PROPOSE_PARTS * FD_PROPOSE_KEEP; i++)
        out->best[i / FD_PROPOSE_KEEP][i % FD_PROPOSE_KEEP] = (fd_candidate){.node = -1, .away = 2};
    out->turned = (fd_candidate){.node = -1};
    for (size_t i = 1; i < n; i++) {
        const fd_source_tensor *t = fd_source_at(scorer->plan->source, tensors[i]);
        if (scorer->plan->steps[t->step].n_pos > scorer->plan->steps[longest->step].n_pos) longest = t;
    }
    if (longest->type != FD_ARRAY_U16 || strstr(longest->name, "bf16")) return try_all(&s, longest);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        s.as = words[i];
        FD_TRY(try_all(&s, longest));
    }
    return FD_OK;
}

/* Whose rows are these? */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/weights/internal.h"

bool fd_weight_rows_equal(const fd_weight_rows *a, const fd_weight_rows *b) {
    bool shape = a->n_row == b->n_row && (a->n_col == 0 || b->n_col == 0 || a->n_col == b->n_col);
    return shape && a->rows_per_hash == b->rows_per_hash &&
           memcmp(a->hashes, b->hashes, sizeof *a->hashes * (size_t)a->n_hash) == 0;
}

/* Fewer equal hashes may be chance: rows of padding and unused tokens are often equal. */
enum { FEWEST_ROWS = 8 };

typedef struct place {
    uint64_t hash;
    int64_t at;
} place;

static int by_hash(const void *a, const void *b) {
    const place *x = a, *y = b;
    if (x->hash != y->hash) return x->hash < y->hash ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* Where in `sorted` [n] the hash is, when it is there once. */
static int64_t find(const place *sorted, int64_t n, uint64_t hash) {
    int64_t low = 0, high = n;
    while (low < high) {
        int64_t mid = low + (high - low) / 2;
        if (sorted[mid].hash < hash)
            low = mid + 1;
        else
            high = mid;
    }
    bool once = low < n && sorted[low].hash == hash && (low + 1 == n || sorted[low + 1].hash != hash);
    return once ? sorted[low].at : -1;
}

/* The weight's own rows elsewhere: all at one distance, or in any order. */
static void match_itself(const fd_weight_difference *d, fd_verdict_weights *v) {
    const fd_weight_rows *loaded = d->loaded, *expected = &d->expected;
    if (loaded->rows_per_hash != expected->rows_per_hash) return;
    place *sorted = malloc(sizeof *sorted * (size_t)expected->n_hash);
    if (!sorted) return; /* a remark that is missing, no failure */
    for (int64_t i = 0; i < expected->n_hash; i++) sorted[i] = (place){expected->hashes[i], i};
    qsort(sorted, (size_t)expected->n_hash, sizeof *sorted, by_hash);
    int64_t n_elsewhere = 0, distance = 0;
    bool constant = true;
    for (int64_t i = 0; i < loaded->n_hash; i++) {
        int64_t at = find(sorted, expected->n_hash, loaded->hashes[i]);
        if (at < 0 || at == i) continue;
        if (n_elsewhere++ == 0) distance = at - i;
        constant &= at - i == distance;
    }
    free(sorted);
    if (n_elsewhere < FEWEST_ROWS && n_elsewhere * 2 < loaded->n_hash) return;
    v->match = constant ? FD_MATCH_SHIFTED : FD_MATCH_REORDERED;
    v->n_match = n_elsewhere * loaded->rows_per_hash;
    v->match_late = -distance * loaded->rows_per_hash;
}

static void match_other(const fd_weight_difference *d, const char *whose, fd_verdict_weights *v) {
    v->match = FD_MATCH_OTHER;
    v->n_match = d->loaded->n_row;
    snprintf(v->match_name, sizeof v->match_name, "%.127s", whose);
}

fd_code fd_weights_match_model(const fd_graph *graph, const fd_weight_difference *d, fd_verdict_weights *v,
                               fd_error *err) {
    const fd_weight_rows *loaded = d->loaded;
    for (int32_t i = 0; i < graph->n_weight; i++) {
        const fd_weight *w = &graph->weights[i];
        uint64_t first;
        if (w->n_row != loaded->n_row || (loaded->n_col && w->n_col != loaded->n_col) || !fd_weight_can_hash(w))
            continue;
        FD_TRY(fd_weight_hash_at(w, loaded->rows_per_hash, 0, &first, err));
        if (first != loaded->hashes[0]) continue;
        fd_weight_rows all;
        FD_TRY(fd_weight_hash(w, loaded->rows_per_hash, &all, err));
        bool same = fd_weight_rows_equal(loaded, &all);
        fd_weight_rows_free(&all);
        if (!same) continue;
        match_other(d, w->name, v);
        return FD_OK;
    }
    match_itself(d, v);
    return FD_OK;
}

void fd_weights_match_table(const fd_weight_table *table, const fd_weight_difference *d, fd_verdict_weights *v) {
    for (int32_t i = 0; i < table->n; i++)
        if (fd_weight_rows_equal(d->loaded, &table->rows[i])) {
            match_other(d, table->rows[i].name, v);
            return;
        }
    match_itself(d, v);
}

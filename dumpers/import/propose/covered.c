/* Which layers the names are of: engines often record some alone. */
#include <stdlib.h>
#include <string.h>

#include "dumpers/import/propose/internal.h"

/* Fewer names than these may lack a layer for other reasons. */
enum { FEWEST_NAMES = 3 };

/* The layers of the names that fit the pattern, of [n_layer], and how many. */
static int32_t layers_of(const fd_proposer *p, const char *pattern, bool *set) {
    const int32_t n_layer = p->plan.graph->hparams.n_layer;
    int32_t n = 0;
    memset(set, 0, sizeof *set * (size_t)n_layer);
    for (size_t i = 0; i < p->n; i++) {
        fd_name_map_capture capture;
        if (p->items[i].slice[0] || !fd_name_map_matches(pattern, p->items[i].name, &capture)) continue;
        if (capture.layer < 0 || capture.layer >= n_layer || set[capture.layer]) continue;
        set[capture.layer] = true;
        n++;
    }
    return n;
}

static int32_t first_of(const bool *set) {
    int32_t first = 0;
    while (!set[first]) first++;
    return first;
}

/* Patterns of names that have these very layers. */
static int32_t count_names(const fd_proposer *p, const bool *set, bool *scratch) {
    const size_t size = sizeof *set * (size_t)p->plan.graph->hparams.n_layer;
    int32_t n = 0;
    for (size_t i = 0; i < p->n; i++)
        for (int number = 0; number < 4; number++) {
            char pattern[300];
            const int32_t layer = fd_propose_layer_of(p, p->items[i].name, number, false, pattern, sizeof pattern);
            if (layer < 0 || layer != first_of(set)) continue; /* each pattern once */
            layers_of(p, pattern, scratch);
            n += memcmp(set, scratch, size) == 0;
        }
    return n;
}

/* Have all names of layers, of two layers and more, the layers of `set`? Then a few names say it. */
static bool all_have(const fd_proposer *p, const bool *set, bool *scratch) {
    const size_t size = sizeof *set * (size_t)p->plan.graph->hparams.n_layer;
    for (size_t i = 0; i < p->n; i++)
        for (int number = 0; number < 4; number++) {
            char pattern[300];
            const int32_t layer = fd_propose_layer_of(p, p->items[i].name, number, false, pattern, sizeof pattern);
            if (layer >= 0 && layers_of(p, pattern, scratch) > 1 && memcmp(set, scratch, size) != 0) return false;
        }
    return true;
}

fd_code fd_propose_cover(fd_proposer *p) {
    const size_t n_layer = (size_t)p->plan.graph->hparams.n_layer;
    bool *sets = calloc(2 * n_layer + 1, sizeof *sets), *set = sets, *scratch = sets + n_layer;
    int32_t most = FEWEST_NAMES - 1;
    p->covered = calloc(n_layer + 1, sizeof *p->covered);
    if (!sets || !p->covered) {
        free(sets);
        return fd_fail(p->err, FD_ERR_MEMORY, "map auto: out of memory");
    }
    p->n_covered = (int32_t)n_layer;
    for (size_t i = 0; i < p->n; i++)
        for (int number = 0; number < 4; number++) {
            char pattern[300];
            const int32_t layer = fd_propose_layer_of(p, p->items[i].name, number, false, pattern, sizeof pattern);
            const int32_t n = layer < 0 ? 0 : layers_of(p, pattern, set);
            if (n < 2 || layer != first_of(set) || memcmp(set, p->covered, n_layer) == 0) continue;
            const int32_t n_name = count_names(p, set, scratch);
            if (n_name <= most && (most >= FEWEST_NAMES || !all_have(p, set, scratch))) continue;
            most = n_name;
            p->n_covered = n;
            memcpy(p->covered, set, sizeof *set * n_layer);
        }
    free(sets);
    return FD_OK;
}

bool fd_propose_covers(const fd_proposer *p, const char *pattern) {
    int32_t n = 0;
    bool within = true;
    for (size_t i = 0; i < p->n; i++) {
        fd_name_map_capture capture;
        if (p->items[i].slice[0] || !fd_name_map_matches(pattern, p->items[i].name, &capture)) continue;
        if (capture.layer < 0 || capture.layer >= p->plan.graph->hparams.n_layer) continue;
        within &= p->covered[capture.layer];
        n++;
    }
    return n == p->plan.graph->hparams.n_layer || (within && n == p->n_covered);
}

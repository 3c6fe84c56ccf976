/* Numbers in front of names, where all have one: a folder or an archive a call, "0/layers.3.q", or a counter of what was written,
 * "0042_layers.3.q". */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/import/source_internal.h"

typedef struct fronted { /* a name that begins with a number */
    fd_source_tensor *tensor;
    const char *rest; /* after the sign behind it */
    int32_t number;
    bool folder; /* that sign is a slash */
} fronted;

static bool take_front(fd_source_tensor *t, fronted *out) {
    const size_t n = strspn(t->name, "0123456789");
    if (n == 0 || n > 9 || !strchr("._-/", t->name[n]) || !t->name[n] || !t->name[n + 1]) return false;
    *out = (fronted){t, t->name + n + 1, atoi(t->name), t->name[n] == '/'};
    return t->occurrence == 1;
}

static int by_rest(const void *a, const void *b) {
    const fronted *x = a, *y = b;
    int order = strcmp(x->rest, y->rest);
    if (order == 0) order = (x->tensor->step > y->tensor->step) - (x->tensor->step < y->tensor->step);
    return order ? order : (x->number > y->number) - (x->number < y->number);
}

static int by_number(const void *a, const void *b) {
    const fronted *x = a, *y = b;
    return (x->number > y->number) - (x->number < y->number);
}

/* Names by what follows the number, sorted: how many, how many that come back, how many that have a layer's number themselves, and how often
 * each comes; 0: not all alike. */
typedef struct rests {
    size_t n, n_back, n_layered, each;
} rests;

static rests count_rests(const fronted *all, size_t n) {
    rests of = {0};
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && strcmp(all[end].rest, all[i].rest) == 0;) end++;
        of.each = i == 0 || of.each == end - i ? end - i : 0;
        of.n++;
        of.n_back += end - i > 1;
        of.n_layered += strpbrk(all[i].rest, "0123456789") != NULL;
    }
    return of;
}

static bool are_folders(const fronted *all, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!all[i].folder) return false;
    return true;
}

/* No two have the same: sorted for it, and put back. */
static bool are_counted(fronted *all, size_t n) {
    bool distinct = true;
    qsort(all, n, sizeof *all, by_number);
    for (size_t i = 1; i < n; i++) distinct &= all[i].number != all[i - 1].number;
    qsort(all, n, sizeof *all, by_rest);
    return distinct;
}

static void keep_rest(fronted *f) {
    memmove(f->tensor->name, f->rest, strlen(f->rest) + 1);
}

/* What is written again at each call comes as often as there are calls, where nothing else says them. */
static void take_counters(fronted *all, size_t n, size_t each, bool says_steps) {
    for (size_t i = 0; i < n; i++) {
        if (!says_steps && each > 1)
            all[i].tensor->step = (int32_t)(i % each);
        else
            all[i].tensor->occurrence = FD_SOURCE_BY_INDEX + all[i].number;
    }
}

bool fd_source_numbers_in_front(fd_source_tensor *tensors, size_t n, bool says_steps) {
    size_t n_front = 0, n_value = 0;
    fronted *all = malloc((n + 1) * sizeof *all);
    for (size_t i = 0; all && i < n; i++) {
        if (fd_source_is_weight(tensors[i].name)) continue;
        n_value++;
        n_front += take_front(&tensors[i], &all[n_front]);
    }
    bool steps = false;
    if (all && n_front == n_value && n_front > 1) {
        qsort(all, n_front, sizeof *all, by_rest);
        const rests of = count_rests(all, n_front);
        const bool layered = of.n > 1 && 2 * of.n_layered >= of.n; /* else the number in front may be the layer's */
        const bool folders = are_folders(all, n_front) && !says_steps && 4 * of.n_back >= 3 * of.n;
        const bool counted = !folders && are_counted(all, n_front);
        if (layered && counted) take_counters(all, n_front, of.each, says_steps);
        for (size_t i = 0; layered && folders && i < n_front; i++) all[i].tensor->step = all[i].number;
        for (size_t i = 0; layered && (folders || counted) && i < n_front; i++) keep_rest(&all[i]);
        steps = layered && (folders || (counted && of.each > 1));
    }
    free(all);
    return steps;
}

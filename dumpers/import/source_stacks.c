/* Stacks of all layers: one array [n_layer, …] under a name without a layer's number. A loop over layers that is compiled once leaves them
 * (lax.scan of JAX, and with it MaxText and flax' nn.scan), and so do engines that keep one cache, or stack hidden states. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/import/import.h"
#include "dumpers/import/source_internal.h"

typedef struct stack { /* the tensors of one name, a step each */
    fd_source_tensor **of;
    size_t n;
    int64_t n_part;
} stack;

/* The first axis that is more than a batch of one; -1: none has two others after it, as rows have one. */
static int part_axis(const fd_source_tensor *t) {
    int axis = 0;
    while (axis < t->rank && t->shape[axis] == 1) axis++;
    return axis < t->rank - 2 ? axis : -1;
}

/* Is what follows the axis rows of the model, each position's on one index of an axis or all of one position? `n_pos` of them; 0: not known. */
static bool has_rows(const fd_graph *graph, const fd_source_tensor *t, int axis, int64_t n_pos) {
    const int64_t n = fd_source_elements(t) / t->shape[axis];
    bool rows = n_pos == 0 && fd_import_is_row(graph, n);
    for (int k = axis + 1; k < t->rank; k++)
        rows |= t->shape[k] > 0 && (n_pos == 0 || t->shape[k] == n_pos) && fd_import_is_row(graph, n / t->shape[k]);
    return rows;
}

/* A batch, heads, positions and keys follow: attention of one layer has fewer axes. */
static bool has_scores(const fd_source_tensor *t, int axis, int64_t n_pos) {
    bool positions = n_pos == 0;
    for (int k = axis + 1; k < t->rank; k++) positions |= t->shape[k] == n_pos;
    return axis == 0 && t->rank > 3 && positions;
}

/* In how many names of its step does another number stand in the place of one of the name's? Most of one place. */
static int64_t n_numbered(const fd_source *source, const fd_source_tensor *t) {
    const char *name = t->name;
    int64_t most = 0;
    for (const char *at = name + strcspn(name, "0123456789"); *at; at += strcspn(at, "0123456789")) {
        const size_t front = (size_t)(at - name), digits = strspn(at, "0123456789");
        const char *end = at + digits;
        int64_t n = 0;
        for (size_t i = 0; i < source->n; i++) {
            const char *other = source->tensors[i].name;
            if (source->tensors[i].step != t->step || strncmp(other, name, front) != 0) continue;
            const size_t other_digits = strspn(other + front, "0123456789");
            const bool same = other_digits == digits && memcmp(other + front, at, digits) == 0;
            n += other_digits > 0 && !same && strcmp(other + front + other_digits, end) == 0;
        }
        most = n > most ? n : most;
        at = end;
    }
    return most;
}

/* Behind the word in a name that says that layers follow ("layers", "blk", …), where a sign stands; NULL: there is none. */
static const char *behind_word(const char *name) {
    static const char *const words[] = {"layers", "blocks", "layer", "block", "blk", "h"};
    static const char signs[] = "./_-";
    for (size_t w = 0; w < sizeof words / sizeof *words; w++) {
        const size_t n = strlen(words[w]);
        for (const char *at = strstr(name, words[w]); at; at = strstr(at + 1, words[w]))
            if ((at == name || strchr(signs, at[-1])) && at[n] && strchr(signs, at[n])) return at + n;
    }
    return NULL;
}

/* "layers/attn/q" of layer 3 is "layers/3/attn/q"; "q" is "q.3". */
static void name_part(const char *name, int64_t part, char *out, size_t size) {
    const char *at = behind_word(name);
    if (at)
        snprintf(out, size, "%.*s%c%lld%s", (int)(at - name), name, *at, (long long)part, at);
    else
        snprintf(out, size, "%s.%lld", name, (long long)part);
}

/* "blk.3.attn_q", "layers_3/q": its layer is said. */
static bool says_layer(const char *name) {
    const char *at = behind_word(name);
    return at && isdigit((unsigned char)at[1]);
}

/* Arrays that have a name in each layer begin with these two axes as well: the first is one of sequences. */
static bool is_batch(const fd_source *source, const fd_source_tensor *t, int axis, int64_t n_layer) {
    bool batch = false;
    for (size_t i = 0; i < source->n && !batch; i++) {
        const fd_source_tensor *other = &source->tensors[i];
        batch = other->rank == t->rank && other->step == t->step && part_axis(other) == axis &&
                other->shape[axis] == t->shape[axis] && other->shape[axis + 1] == t->shape[axis + 1] &&
                n_numbered(source, other) + 1 >= n_layer;
    }
    return batch;
}

static bool is_stack(const fd_source *source, const fd_graph *graph, int32_t n_token, stack *s) {
    const int64_t n_layer = graph->hparams.n_layer;
    const fd_source_tensor *first = s->of[0];
    const int axis = part_axis(first);
    s->n_part = axis < 0 ? 0 : first->shape[axis];
    if (n_layer < 2 || (s->n_part != n_layer && s->n_part != n_layer + 1)) return false;
    if (fd_source_is_tokens(first) || fd_source_is_weight(first->name) || says_layer(first->name)) return false;
    for (size_t i = 0; i < s->n; i++) {
        const fd_source_tensor *t = s->of[i];
        if (t->n_same != 1 || !(fd_array_is_float(t->type) || t->type == FD_ARRAY_U16)) return false;
        if (part_axis(t) != axis || t->shape[axis] != s->n_part) return false;
    }
    /* as many positions as layers in every step, or not in every step: the axis is the positions', unless another is */
    const bool may_be_positions = (int64_t)s->n * s->n_part == n_token || s->n < (size_t)source->n_step;
    const int64_t n_pos = may_be_positions ? s->n_part : 0;
    /* names of all layers: of each as many heads as there are layers */
    const int64_t n_other = n_numbered(source, first);
    return n_other + 1 < n_layer && !is_batch(source, first, axis, n_layer) &&
           (has_rows(graph, first, axis, n_pos) || (has_scores(first, axis, n_pos) && n_other == 0));
}

static bool has_name(const fd_source *source, const char *name) {
    for (size_t i = 0; i < source->n; i++)
        if (strcmp(source->tensors[i].name, name) == 0) return true;
    return false;
}

static fd_code add_part(fd_source *source, const fd_source_tensor *whole, int axis, int64_t part, fd_error *err) {
    char name[1200];
    fd_source_tensor t = *whole;
    t.n_part = (int32_t)whole->shape[axis];
    t.part_axis = axis;
    t.part = (int32_t)part;
    t.rank--;
    for (int k = axis; k < t.rank; k++) t.shape[k] = whole->shape[k + 1];
    name_part(whole->name, part, name, sizeof name);
    if (!(t.name = strdup(name))) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", source->path);
    source->tensors[source->n++] = t; /* there is room */
    return FD_OK;
}

static int by_name_and_step(const void *a, const void *b) {
    const fd_source_tensor *x = *(fd_source_tensor *const *)a, *y = *(fd_source_tensor *const *)b;
    const int order = strcmp(x->name, y->name);
    return order ? order : (x->step > y->step) - (x->step < y->step);
}

/* Marks what is a stack; *n_part of all together. */
static fd_code find_stacks(const fd_source *source, const fd_graph *graph, int32_t n_token, bool *marked,
                           size_t *n_part, size_t *n_name, fd_error *err) {
    fd_source_tensor **order = malloc(sizeof *order * (source->n + 1));
    if (!order) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", source->path);
    for (size_t i = 0; i < source->n; i++) order[i] = &source->tensors[i];
    qsort(order, source->n, sizeof *order, by_name_and_step);
    *n_part = *n_name = 0;
    for (size_t i = 0, end; i < source->n; i = end) {
        char name[1200];
        for (end = i + 1; end < source->n && strcmp(order[end]->name, order[i]->name) == 0;) end++;
        stack s = {order + i, end - i, 0};
        if (!is_stack(source, graph, n_token, &s)) continue;
        name_part(order[i]->name, 0, name, sizeof name);
        if (has_name(source, name)) continue;
        for (size_t k = 0; k < s.n; k++) marked[s.of[k] - source->tensors] = true;
        *n_part += s.n * (size_t)s.n_part;
        ++*n_name;
    }
    free(order);
    return FD_OK;
}

static fd_code take_apart(fd_source *source, const bool *marked, size_t n_part, fd_error *err) {
    const size_t n = source->n;
    fd_source_tensor *tensors = realloc(source->tensors, sizeof *tensors * (n + n_part));
    if (!tensors) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", source->path);
    source->tensors = tensors;
    source->room = n + n_part;
    for (size_t i = 0; i < n; i++) {
        const fd_source_tensor whole = source->tensors[i];
        const int axis = part_axis(&whole);
        for (int64_t part = 0; marked[i] && part < whole.shape[axis]; part++)
            FD_TRY(add_part(source, &whole, axis, part, err));
    }
    size_t kept = 0;
    for (size_t i = 0; i < source->n; i++) {
        if (i < n && marked[i])
            free(source->tensors[i].name);
        else
            source->tensors[kept++] = source->tensors[i];
    }
    source->n = kept;
    fd_source_sort(source);
    return FD_OK;
}

fd_code fd_source_unstack(fd_source *source, const fd_graph *graph, int32_t n_token, size_t *n_name, fd_error *err) {
    size_t n_part = 0;
    *n_name = 0;
    if (source->trace || source->ranks || source->by_rank) return FD_OK;
    bool *marked = calloc(source->n + 1, sizeof *marked);
    if (!marked) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", source->path);
    fd_code code = find_stacks(source, graph, n_token, marked, &n_part, n_name, err);
    if (code == FD_OK && n_part > 0) code = take_apart(source, marked, n_part, err);
    free(marked);
    return code;
}

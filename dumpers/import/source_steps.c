/* Steps at the ends of names, "l0_q_3.npy" or "embd_pos3.npy": one name alone does not tell a step from a layer, all of them do. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/import/source_internal.h"

typedef struct ended { /* a name and the number at its end */
    fd_source_tensor *tensor;
    size_t stem; /* its length without the number, the word before it and the sign between */
    int32_t number;
} ended;

/* "_3", "-3", ".3", "_pos3" and "_step_3" at the end; false: none, or nothing stands before it. */
static bool take_end(fd_source_tensor *t, ended *out) {
    static const char *const words[] = {"step", "pos", "tok", "token", "call", "t"};
    size_t end = strlen(t->name), digits = end;
    while (digits > 0 && isdigit((unsigned char)t->name[digits - 1])) digits--;
    if (digits == end || end - digits > 6 || digits == 0) return false;
    size_t at = digits;
    if (strchr("._-=", t->name[at - 1])) at--;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const size_t n = strlen(words[i]);
        if (at > n + 1 && memcmp(t->name + at - n, words[i], n) == 0 && strchr("._-/", t->name[at - n - 1])) {
            at -= n + 1;
            break;
        }
    }
    *out = (ended){t, at, atoi(t->name + digits)};
    return at > 0 && at < digits;
}

static int by_stem(const void *a, const void *b) {
    const ended *x = a, *y = b;
    const size_t n = x->stem < y->stem ? x->stem : y->stem;
    int order = memcmp(x->tensor->name, y->tensor->name, n);
    if (order == 0) order = (x->stem > y->stem) - (x->stem < y->stem);
    return order ? order : (x->number > y->number) - (x->number < y->number);
}

static bool has_number(const ended *e) {
    for (size_t i = 0; i < e->stem; i++)
        if (isdigit((unsigned char)e->tensor->name[i])) return true;
    return false;
}

/* Most names come back with another number, and layers have one of their own. Where a layer's number is the last, names of
 * layers have no other; names that end so by chance ("output_0" of ONNX) come once each. */
static bool count_steps(const ended *all, size_t n) {
    size_t n_stem = 0, n_back = 0, n_layered = 0;
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && all[end].stem == all[i].stem &&
                          memcmp(all[end].tensor->name, all[i].tensor->name, all[i].stem) == 0;)
            end++;
        n_stem++;
        n_back += end - i > 1;
        n_layered += has_number(&all[i]);
    }
    return n_stem > 1 && 4 * n_back >= 3 * n_stem && 2 * n_layered >= n_stem;
}

void fd_source_steps_of_ends(fd_source_tensor *tensors, size_t n) {
    size_t n_ended = 0, n_value = 0;
    ended *all = malloc((n + 1) * sizeof *all);
    for (size_t i = 0; all && i < n; i++) {
        if (fd_source_is_tokens(&tensors[i]) || fd_source_is_weight(tensors[i].name)) continue;
        n_value++;
        if (tensors[i].step == 0 && tensors[i].occurrence == 1) n_ended += take_end(&tensors[i], &all[n_ended]);
    }
    if (all && n_ended == n_value && n_ended > 0) {
        qsort(all, n_ended, sizeof *all, by_stem);
        for (size_t i = 0, steps = count_steps(all, n_ended); steps && i < n_ended; i++) {
            all[i].tensor->step = all[i].number;
            all[i].tensor->name[all[i].stem] = '\0';
        }
    }
    free(all);
}

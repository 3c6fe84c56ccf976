/* Hooks of serving engines record every forward call, a server's warm-up too, and a module that all layers share under the names of all
 * of them (vLLM and SGLang have one rotary_emb, and of some models one act_fn), where the last call's result stays. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "dumpers/import/source_internal.h"

/* Takes away the tensors that are marked. */
static void drop(fd_source *source, const bool *marked) {
    size_t n = 0;
    for (size_t i = 0; i < source->n; i++)
        if (marked[i])
            free(source->tensors[i].name);
        else
            source->tensors[n++] = source->tensors[i];
    source->n = n;
}

static void say(fd_source *source, const char *what) {
    const size_t n = strlen(source->left_out);
    snprintf(source->left_out + n, sizeof source->left_out - n, "%s%s", n ? "; " : "", what);
}

/* ---- sequences ---- */

static bool is_positions(const fd_source_tensor *t) {
    return !fd_array_is_float(t->type) && t->rank == 1 && fd_ends_with(t->name, ".positions");
}

/* The position of the call's first row, and whether the others follow it. */
static fd_code look_at_positions(const fd_source *source, size_t i, double *first, bool *follow, fd_error *err) {
    fd_source_view view;
    FD_TRY(fd_source_view_open(source, i, &view, err));
    const int64_t n = view.array.shape[0];
    double *at = malloc(sizeof *at * (size_t)(n + 1));
    if (at) fd_array_fetch(&view.array, at);
    *first = at && n > 0 ? at[0] : 0;
    *follow = true;
    for (int64_t k = 1; at && k < n; k++) *follow = *follow && at[k] == at[k - 1] + 1;
    const bool done = at != NULL;
    free(at);
    fd_source_view_close(&view);
    return done ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", source->path);
}

/* A sequence begins at position 0: the last one is what was asked for, those before it are a server's warm-up or other requests. */
static fd_code keep_last_sequence(fd_source *source, bool *marked, fd_error *err) {
    int32_t begin = -1;
    for (size_t i = 0; i < source->n; i++) {
        double first;
        bool follow;
        if (!is_positions(&source->tensors[i])) continue;
        FD_TRY(look_at_positions(source, i, &first, &follow, err));
        if (!follow)
            return fd_fail(err, FD_ERR_INPUT,
                           "%s: call %d has rows of several sequences, its positions do not follow one another: record "
                           "one request at a time, or save the rows of one (docs/your-engine.md, served sequences)",
                           source->path, source->tensors[i].step);
        if (first == 0) begin = source->tensors[i].step;
    }
    size_t n = 0;
    for (size_t i = 0; i < source->n; i++) {
        fd_source_tensor *t = &source->tensors[i];
        const bool counted = t->step > 0 || fd_ends_with(t->name, ".input_ids") ||
                             !(fd_source_is_tokens(t) || fd_source_is_weight(t->name));
        marked[i] = counted && t->step < begin;
        n += marked[i];
        if (begin > 0 && t->step >= begin) t->step -= begin;
    }
    if (n > 0) say(source, "calls before the last that begins at position 0, which are other sequences'");
    drop(source, marked);
    return FD_OK;
}

/* ---- modules that layers share ---- */

/* "model.layers.3.self_attn.rotary_emb.1": where the layer's number stands; false: it is no such name. */
static bool find_shared(const char *name, size_t *at, size_t *end, int32_t *layer) {
    static const char *const modules[] = {"rotary_emb", "act_fn"}; /* without weights of their own */
    const char *found = NULL, *digits = strstr(name, "layers.");
    for (size_t i = 0; i < sizeof modules / sizeof *modules && !found; i++) {
        found = strstr(name, modules[i]);
        const char *rest = found ? found + strlen(modules[i]) : "";
        if (found && !(*rest == '\0' || *rest == '.' || *rest == ':')) found = NULL;
    }
    if (!found || !digits || digits > found) return false;
    digits += 7;
    size_t n = strspn(digits, "0123456789");
    if (n == 0 || n > 6 || digits[n] != '.') return false;
    *at = (size_t)(digits - name);
    *end = *at + n;
    *layer = atoi(digits);
    return true;
}

/* The same module's, of another layer, in the same call. */
static bool same_module(const fd_source_tensor *a, const fd_source_tensor *b) {
    size_t at, end, at_b, end_b;
    int32_t layer, layer_b;
    return a->step == b->step && a->occurrence == b->occurrence && find_shared(a->name, &at, &end, &layer) &&
           find_shared(b->name, &at_b, &end_b, &layer_b) && at == at_b && layer != layer_b &&
           memcmp(a->name, b->name, at) == 0 && strcmp(a->name + end, b->name + end_b) == 0;
}

static fd_code same_values(const fd_source *source, size_t i, size_t k, bool *same, fd_error *err) {
    fd_source_view a, b;
    FD_TRY(fd_source_view_open(source, i, &a, err));
    fd_code code = fd_source_view_open(source, k, &b, err);
    if (code == FD_OK) {
        const int64_t n = fd_source_elements(&source->tensors[i]);
        double *x = malloc(sizeof *x * (size_t)(2 * n + 1));
        if (!x) code = fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", source->path);
        *same = x && n > 0 && n == fd_source_elements(&source->tensors[k]);
        if (*same) {
            fd_array_fetch(&a.array, x);
            fd_array_fetch(&b.array, x + n);
            *same = memcmp(x, x + n, sizeof *x * (size_t)n) == 0;
        }
        free(x);
        fd_source_view_close(&b);
    }
    fd_source_view_close(&a);
    return code;
}

/* The highest number of a layer in any name. */
static int32_t last_layer(const fd_source *source) {
    int32_t last = -1;
    for (size_t i = 0; i < source->n; i++) {
        const char *digits = strstr(source->tensors[i].name, "layers.");
        if (digits && isdigit((unsigned char)digits[7]) && atoi(digits + 7) > last) last = atoi(digits + 7);
    }
    return last;
}

/* Values that are another layer's, too, are the last layer's: of the others there are none. A hook for each module has it under the
 * first layer's name alone. */
static fd_code leave_shared(fd_source *source, bool *marked, fd_error *err) {
    const int32_t last = last_layer(source);
    size_t n = 0;
    for (size_t i = 0; i < source->n; i++) {
        size_t at, end, n_other = 0;
        int32_t layer;
        marked[i] = false;
        if (!find_shared(source->tensors[i].name, &at, &end, &layer) || layer == last) continue;
        size_t k = i;
        while (k > 0 && source->tensors[k - 1].step == source->tensors[i].step) k--;
        for (; k < source->n && source->tensors[k].step == source->tensors[i].step && !marked[i]; k++) {
            if (!same_module(&source->tensors[i], &source->tensors[k])) continue;
            n_other++;
            FD_TRY(same_values(source, i, k, &marked[i], err));
        }
        marked[i] |= n_other == 0;
        n += marked[i];
    }
    if (n > 0)
        say(source,
            "modules that all layers share (rotary_emb, act_fn), but for the last layer's, whose result is kept");
    drop(source, marked);
    return FD_OK;
}

fd_code fd_source_leave_out(fd_source *source, fd_error *err) {
    bool *marked = calloc(source->n + 1, sizeof *marked);
    if (!marked) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", source->path);
    fd_code code = keep_last_sequence(source, marked, err);
    if (code == FD_OK) code = leave_shared(source, marked, err);
    free(marked);
    return code;
}

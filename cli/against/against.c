#include "cli/against/against.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/against/forms.h"

enum { SAMPLED_ROWS = 16 }; /* of a tensor that is tried as an explanation, before all of it is */

typedef struct against {
    const fd_gguf *gguf;
    char arch[64];
    fd_form_heads heads;
    fd_checkpoint checkpoint;
    bool *used; /* [checkpoint.n] */
    fd_against_report *report;
    fd_error *err;
} against;

static fd_code add(const against *a, fd_against_list *list, const char *tensor, const char *checkpoint,
                   const char *what) {
    fd_against_finding *grown = realloc(list->items, (list->n + 1) * sizeof *grown);
    if (!grown) return fd_fail(a->err, FD_ERR_MEMORY, "out of memory");
    list->items = grown;
    fd_against_finding *f = &grown[list->n++];
    snprintf(f->tensor, sizeof f->tensor, "%s", tensor);
    snprintf(f->checkpoint, sizeof f->checkpoint, "%s", checkpoint);
    snprintf(f->what, sizeof f->what, "%s", what);
    return FD_OK;
}

static fd_form_pair pair_of(const against *a, const fd_gguf_tensor *t, const fd_checkpoint_tensor *const *parts,
                            size_t n) {
    fd_form_pair p = {t, parts, n, t->shape[1] * t->shape[2] * t->shape[3], t->shape[0], a->heads};
    const fd_array *part = &parts[0]->array;
    const bool floats = fd_dtype_get(t->dtype)->block_elements == 1;
    if (n == 1 && floats && part->rank == 1 && part->shape[0] == p.n_row * p.n_col) { /* rows of a vector */
        p.n_col *= p.n_row;
        p.n_row = 1;
    }
    return p;
}

static fd_code agrees(const against *a, const fd_form_pair *p, fd_form form, double factor, bool *out) {
    fd_form_distance d;
    FD_TRY(fd_form_compare(p, form, factor, SAMPLED_ROWS, &d, a->err));
    *out = d.fits && d.agrees;
    if (!*out) return FD_OK;
    FD_TRY(fd_form_compare(p, form, factor, 0, &d, a->err));
    *out = d.agrees && d.n_row_there == p->n_row;
    return FD_OK;
}

static fd_code try_forms(const against *a, const fd_form_pair *p, fd_form expected, char *what, size_t size) {
    for (fd_form form = 0; form < FD_FORM_COUNT && !*what; form++) {
        bool found = false;
        if (form != expected) FD_TRY(agrees(a, p, form, 1, &found));
        if (found) snprintf(what, size, "is %s, expected %s", fd_form_text(form), fd_form_text(expected));
    }
    return FD_OK;
}

static fd_code try_others(const against *a, const fd_form_pair *p, fd_form expected, char *what, size_t size) {
    const fd_form forms[] = {expected, FD_FORM_SAME};
    for (size_t i = 0; i < a->checkpoint.n && p->n == 1 && !*what; i++) {
        const fd_checkpoint_tensor *other = &a->checkpoint.tensors[i];
        const fd_form_pair pair = pair_of(a, p->tensor, &other, 1);
        for (int k = 0; k < 2 && !*what && other != p->parts[0]; k++) {
            bool found;
            FD_TRY(agrees(a, &pair, forms[k], 1, &found));
            if (found) snprintf(what, size, "holds %s", other->name);
        }
    }
    return FD_OK;
}

/* What would make it agree; else how far it is off. */
static fd_code explain(const against *a, const fd_form_pair *p, fd_form expected, const fd_form_distance *d, char *what,
                       size_t size) {
    bool found = false;
    *what = '\0';
    FD_TRY(try_forms(a, p, expected, what, size));
    if (!*what && d->fits && isfinite(d->factor) && fabs(d->factor - 1) > 0.01 && d->factor != 0) {
        FD_TRY(agrees(a, p, expected, d->factor, &found));
        if (found) snprintf(what, size, "is %.4g times the checkpoint's values", d->factor);
    }
    if (!*what) FD_TRY(try_others(a, p, expected, what, size));
    if (*what) return FD_OK;
    char there[128];
    const fd_array *array = &p->parts[0]->array;
    if (!d->fits || d->n_row_there != p->n_row)
        snprintf(what, size, "%lld rows of %lld, the checkpoint's shape is %s%s", (long long)p->n_row,
                 (long long)p->n_col, fd_array_shape_text(array->rank, array->shape, there),
                 p->n > 1 ? " and more" : "");
    else if (d->n_wrong > 0 && d->n_wrong < d->n_row)
        snprintf(what, size, "%lld of %lld rows differ, the first is row %lld", (long long)d->n_wrong,
                 (long long)d->n_row, (long long)d->first_wrong);
    else
        snprintf(what, size, "other values: they differ by %.2g of their size", d->error);
    return FD_OK;
}

static void note_agreement(fd_against_report *r, const char *name, const fd_form_distance *d) {
    r->n_tensor++;
    r->n_rounded += !d->exact;
    if (d->error <= r->largest_error) return;
    r->largest_error = d->error;
    snprintf(r->largest_tensor, sizeof r->largest_tensor, "%s", name);
}

static fd_code check_parts(const against *a, const fd_gguf_tensor *t, const fd_against_parts *parts) {
    const fd_form_pair p = pair_of(a, t, parts->of, parts->n);
    const fd_form expected = fd_form_expected(a->arch, &p);
    fd_form_distance d;
    char what[256];
    FD_TRY(fd_form_compare(&p, expected, 1, 0, &d, a->err));
    bool words = strcmp(t->name, "token_embd.weight") == 0 || strcmp(t->name, "output.weight") == 0;
    if (d.fits && d.agrees && (d.n_row_there == p.n_row || words)) {
        note_agreement(a->report, t->name, &d);
        if (d.n_row_there == p.n_row) return FD_OK;
        snprintf(what, sizeof what, "%lld rows, the checkpoint has %lld: the vocabulary is %s", (long long)p.n_row,
                 (long long)d.n_row_there, p.n_row > d.n_row_there ? "padded" : "cut");
        return add(a, &a->report->notes, t->name, parts->of[0]->name, what);
    }
    a->report->n_tensor++;
    FD_TRY(explain(a, &p, expected, &d, what, sizeof what));
    return add(a, &a->report->wrong, t->name, parts->of[0]->name, what);
}

static fd_code check_tensor(against *a, const fd_gguf_tensor *t) {
    fd_against_parts parts;
    if (fd_against_is_computed(t->name)) return FD_OK;
    fd_code code = fd_against_find(&a->checkpoint, t->name, &parts, a->err);
    for (size_t i = 0; i < parts.n; i++) a->used[parts.of[i] - a->checkpoint.tensors] = true;
    if (code == FD_OK)
        code = parts.n > 0 ? check_parts(a, t, &parts)
                           : add(a, &a->report->unknown, t->name, "", "no tensor of the checkpoint is known for it");
    free(parts.of);
    return code;
}

/* Without output.weight the embedding is used: the checkpoint's output must be its embedding then. */
static fd_code check_tied(against *a) {
    const fd_gguf_tensor *embd = fd_gguf_find_tensor(a->gguf, "token_embd.weight");
    const fd_checkpoint_tensor *head = fd_checkpoint_find(&a->checkpoint, "lm_head.weight");
    if (!head) head = fd_checkpoint_find(&a->checkpoint, "embed_out.weight");
    if (!head || !embd || fd_gguf_find_tensor(a->gguf, "output.weight")) return FD_OK;
    const fd_form_pair p = pair_of(a, embd, &head, 1);
    fd_form_distance d;
    a->used[head - a->checkpoint.tensors] = true;
    FD_TRY(fd_form_compare(&p, FD_FORM_SAME, 1, 0, &d, a->err));
    if (d.fits && d.agrees) return FD_OK;
    return add(a, &a->report->wrong, "output.weight", head->name,
               "missing, so that the embedding is used again, which the checkpoint's output is not");
}

static fd_code check_unused(const against *a) {
    for (size_t i = 0; i < a->checkpoint.n; i++)
        if (!a->used[i] && !fd_against_is_buffer(a->checkpoint.tensors[i].short_name))
            FD_TRY(add(a, &a->report->wrong, "", a->checkpoint.tensors[i].name, "nothing in the GGUF holds it"));
    return FD_OK;
}

/* The largest number of a key that some architectures have by layer; a hybrid's is 0 where a layer does not attend. */
static int64_t largest(const against *a, const char *name, int64_t fallback) {
    char key[128];
    snprintf(key, sizeof key, "%s.%s", a->arch, name);
    const fd_gguf_kv *kv = fd_gguf_find(a->gguf, key);
    int64_t most = 0, item;
    for (uint64_t i = 0; kv && i < kv->count; i++)
        if (fd_gguf_item_i64(kv, i, &item) && item > most) most = item;
    return kv ? most : fallback;
}

static fd_code read_heads(against *a) {
    fd_string arch;
    char key[128];
    FD_TRY(fd_gguf_get_string(a->gguf, "general.architecture", &arch, a->err));
    snprintf(a->arch, sizeof a->arch, "%.*s", (int)(arch.size < 60 ? arch.size : 60), arch.data ? arch.data : "");
    a->heads.n_head = largest(a, "attention.head_count", 1);
    a->heads.n_head_kv = largest(a, "attention.head_count_kv", a->heads.n_head);
    if (a->heads.n_head_kv == 0) a->heads.n_head_kv = a->heads.n_head;
    const int64_t n_embd = largest(a, "embedding_length", 0);
    snprintf(key, sizeof key, "%s.attention.head_count_kv", a->arch);
    const fd_gguf_kv *by_layer = fd_gguf_find(a->gguf, key);
    if (by_layer && by_layer->type == FD_GGUF_ARRAY)
        a->heads.head_dim = largest(a, "attention.key_length", a->heads.n_head > 0 ? n_embd / a->heads.n_head : 0);
    const struct {
        const char *name;
        int64_t *to;
    } delta[] = {{"ssm.group_count", &a->heads.n_key_head},
                 {"ssm.state_size", &a->heads.key_dim},
                 {"ssm.time_step_rank", &a->heads.n_value_head},
                 {"ssm.inner_size", &a->heads.n_value}};
    for (size_t i = 0; i < sizeof delta / sizeof *delta; i++) {
        snprintf(key, sizeof key, "%s.%s", a->arch, delta[i].name);
        FD_TRY(fd_gguf_get_i64(a->gguf, key, 0, delta[i].to, a->err));
        if (*delta[i].to < 0 || *delta[i].to > 1 << 24) *delta[i].to = 0;
    }
    snprintf(key, sizeof key, "%s.attention.head_count", a->arch);
    if (a->heads.n_head == 0) a->heads.n_head = a->heads.n_head_kv = 1; /* nothing attends */
    if (a->heads.n_head < 1 || a->heads.n_head_kv < 1 || a->heads.n_head % a->heads.n_head_kv != 0)
        return fd_fail(a->err, FD_ERR_INPUT, "key %s: %lld, expected a divisor of head_count", key,
                       (long long)a->heads.n_head_kv);
    return FD_OK;
}

static fd_code check_all(against *a) {
    for (size_t i = 0; i < fd_gguf_n_tensor(a->gguf); i++) {
        const fd_gguf_tensor *t = fd_gguf_tensor_at(a->gguf, i);
        fd_code code = check_tensor(a, t);
        if (code != FD_OK) return fd_error_prefix(a->err, "tensor %s", t->name);
    }
    FD_TRY(check_tied(a));
    return check_unused(a);
}

fd_code fd_against_run(const fd_gguf *gguf, const char *folder, fd_against_report *out, fd_error *err) {
    *out = (fd_against_report){0};
    against a = {.gguf = gguf, .report = out, .err = err};
    FD_TRY(read_heads(&a));
    FD_TRY(fd_checkpoint_open(folder, &a.checkpoint, err));
    a.used = calloc(a.checkpoint.n, sizeof *a.used);
    fd_code code = a.used ? check_all(&a) : fd_fail(err, FD_ERR_MEMORY, "out of memory");
    free(a.used);
    fd_checkpoint_close(&a.checkpoint);
    return code;
}

void fd_against_free(fd_against_report *report) {
    free(report->wrong.items);
    free(report->unknown.items);
    free(report->notes.items);
    *report = (fd_against_report){0};
}

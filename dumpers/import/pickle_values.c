/* The values that a pickle's opcodes make, and the tensors among them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "dumpers/import/pickle_internal.h"

enum { MAX_DEPTH = 16 };

/* A tensor takes about 16 values. One of a byte takes 64 in memory: a pickle of 32 MiB would take 2 GiB. */
enum { VALUES_OF_A_TENSOR = 32 };

int32_t fd_pickle_new(fd_pickle_reader *r, fd_pickle_value value) {
    if (r->n > r->size || r->n >= VALUES_OF_A_TENSOR * (size_t)fd_limit_of(FD_LIMIT_TENSORS)) return -1;
    r->values[r->n] = value;
    return (int32_t)r->n++;
}

int32_t fd_pickle_pop(fd_pickle_reader *r) {
    return r->depth ? r->stack[--r->depth] : -1;
}

const char *fd_pickle_push_id(fd_pickle_reader *r, int32_t id) {
    if (id < 0 || r->depth > r->size)
        return "it makes more values than it has bytes, or 32 for each tensor of --limit tensors";
    r->stack[r->depth++] = id;
    return NULL;
}

const char *fd_pickle_push(fd_pickle_reader *r, fd_pickle_value value) {
    return fd_pickle_push_id(r, fd_pickle_new(r, value));
}

void fd_pickle_add(fd_pickle_reader *r, int32_t container, int32_t key, int32_t item) {
    fd_pickle_value *c = &r->values[container];
    if (r->n_cell > r->size) return; /* each cell took a value off the stack */
    r->cells[r->n_cell] = (fd_pickle_cell){key, item, 0};
    const int32_t number = (int32_t)++r->n_cell;
    if (c->last)
        r->cells[c->last - 1].next = number;
    else
        c->first = number;
    c->last = number;
}

static bool is(fd_pickle_text text, const char *word) {
    return text.length == strlen(word) && memcmp(text.at, word, text.length) == 0;
}

/* Item i of a list; NULL: there is none. */
static const fd_pickle_value *item_of(const fd_pickle_reader *r, int32_t list, int i) {
    int32_t cell = r->values[list].first;
    for (; cell && i > 0; i--) cell = r->cells[cell - 1].next;
    return cell ? &r->values[r->cells[cell - 1].item] : NULL;
}

static int32_t number_of(const fd_pickle_reader *r, const fd_pickle_value *value) {
    return (int32_t)(value - r->values);
}

static fd_pickle_value tensor_of(const fd_pickle_reader *r, int32_t arguments) {
    const fd_pickle_value *storage = item_of(r, arguments, 0), *offset = item_of(r, arguments, 1),
                          *sizes = item_of(r, arguments, 2), *strides = item_of(r, arguments, 3);
    if (!strides || storage->kind != FD_PICKLE_STORAGE || offset->kind != FD_PICKLE_INTEGER ||
        sizes->kind != FD_PICKLE_LIST || strides->kind != FD_PICKLE_LIST)
        return (fd_pickle_value){.kind = FD_PICKLE_OTHER};
    return (fd_pickle_value){.kind = FD_PICKLE_TENSOR,
                             .number = offset->number,
                             .storage = number_of(r, storage),
                             .sizes = number_of(r, sizes),
                             .strides = number_of(r, strides)};
}

const char *fd_pickle_call(fd_pickle_reader *r, int32_t what, int32_t arguments) {
    const fd_pickle_value *f = &r->values[what], *first = item_of(r, arguments, 0);
    const bool torch = f->kind == FD_PICKLE_GLOBAL && is(f->module, "torch._utils");
    if (torch && (is(f->text, "_rebuild_tensor_v2") || is(f->text, "_rebuild_tensor")))
        return fd_pickle_push(r, tensor_of(r, arguments));
    if (torch && is(f->text, "_rebuild_parameter") && first) return fd_pickle_push_id(r, number_of(r, first));
    return fd_pickle_push(r, (fd_pickle_value){.kind = FD_PICKLE_OTHER});
}

static const struct {
    const char *storage;
    fd_array_type type;
} types[] = {
    {"FloatStorage", FD_ARRAY_F32},  {"HalfStorage", FD_ARRAY_F16}, {"BFloat16Storage", FD_ARRAY_BF16},
    {"DoubleStorage", FD_ARRAY_F64}, {"LongStorage", FD_ARRAY_I64}, {"IntStorage", FD_ARRAY_I32},
    {"ShortStorage", FD_ARRAY_I16},  {"CharStorage", FD_ARRAY_I8},  {"ByteStorage", FD_ARRAY_U8},
    {"BoolStorage", FD_ARRAY_BOOL},
};

const char *fd_pickle_storage(fd_pickle_reader *r, int32_t id) {
    fd_pickle_value storage = {.kind = FD_PICKLE_OTHER};
    const fd_pickle_value *word = item_of(r, id, 0), *class = item_of(r, id, 1), *key = item_of(r, id, 2);
    const bool whole = key && word->kind == FD_PICKLE_TEXT && is(word->text, "storage") &&
                       class->kind == FD_PICKLE_GLOBAL && key->kind == FD_PICKLE_TEXT;
    for (size_t i = 0; whole && i < sizeof types / sizeof *types; i++)
        if (is(class->text, types[i].storage))
            storage = (fd_pickle_value){.kind = FD_PICKLE_STORAGE, .number = (int64_t)types[i].type, .text = key->text};
    return fd_pickle_push(r, storage);
}

/* ---- the tensors of an object ---- */

typedef struct listing {
    const fd_pickle_reader *r;
    fd_pickle *out;
    size_t room, visits;
    char path[1024];
} listing;

static bool put_sizes(const fd_pickle_reader *r, int32_t list, int64_t *to, int *n) {
    *n = 0;
    for (int32_t cell = r->values[list].first; cell; cell = r->cells[cell - 1].next) {
        const fd_pickle_value *size = &r->values[r->cells[cell - 1].item];
        if (*n == FD_ARRAY_MAX_RANK || size->kind != FD_PICKLE_INTEGER || size->number < 0) return false;
        to[(*n)++] = size->number;
    }
    return true;
}

static const char *put_tensor(listing *l, const fd_pickle_value *value) {
    const fd_pickle_value *storage = &l->r->values[value->storage];
    fd_pickle_tensor tensor = {.type = (fd_array_type)storage->number, .offset = value->number};
    int n_stride;
    if (!put_sizes(l->r, value->sizes, tensor.shape, &tensor.rank) ||
        !put_sizes(l->r, value->strides, tensor.stride, &n_stride) || n_stride != tensor.rank || tensor.offset < 0 ||
        storage->text.length >= sizeof tensor.storage)
        return "it has a tensor whose sizes and strides make no sense";
    memcpy(tensor.storage, storage->text.at, storage->text.length);
    if (l->out->n == l->room) {
        if (l->room >= (size_t)fd_limit_of(FD_LIMIT_TENSORS)) return "it has more tensors than the limit";
        size_t room = l->room ? 2 * l->room : 64;
        fd_pickle_tensor *items = realloc(l->out->items, room * sizeof *items);
        if (!items) return "out of memory";
        l->out->items = items;
        l->room = room;
    }
    if (!(tensor.name = strdup(l->path))) return "out of memory";
    l->out->items[l->out->n++] = tensor;
    return NULL;
}

/* Appends the key to the path. SGLang's {"value": tensor, …} is the tensor itself. False where it does not fit. */
static bool put_key(listing *l, const fd_pickle_value *key, int index) {
    const size_t at = strlen(l->path), size = sizeof l->path - at;
    char *to = l->path + at;
    const bool text = key && key->kind == FD_PICKLE_TEXT;
    int n;
    if (text && at == 0 && is(key->text, "value")) return true;
    if (text && (key->text.length >= size || memchr(key->text.at, '\0', key->text.length))) return false;
    if (text)
        n = snprintf(to, size, "%s%.*s", at ? "." : "/", (int)key->text.length, key->text.at);
    else if (key && key->kind == FD_PICKLE_INTEGER)
        n = snprintf(to, size, "%s%lld", at ? "." : "/", (long long)key->number);
    else
        n = snprintf(to, size, ".%d", index);
    return n >= 0 && (size_t)n < size;
}

static const char *list_value(listing *l, int32_t id, int depth) {
    const fd_pickle_value *value = &l->r->values[id];
    if (++l->visits > l->r->size + 1 || depth > MAX_DEPTH) return "its lists hold each other";
    if (value->kind == FD_PICKLE_TENSOR) return put_tensor(l, value);
    const char *wrong = NULL;
    int index = 0;
    for (int32_t cell = value->first; cell && !wrong; cell = l->r->cells[cell - 1].next) {
        const fd_pickle_cell *c = &l->r->cells[cell - 1];
        const size_t at = strlen(l->path);
        wrong = put_key(l, c->key < 0 ? NULL : &l->r->values[c->key], index++) ? list_value(l, c->item, depth + 1)
                                                                               : "it has a key that is no name";
        l->path[at] = '\0';
    }
    return wrong;
}

const char *fd_pickle_list(const fd_pickle_reader *r, int32_t object, fd_pickle *out) {
    listing l = {.r = r, .out = out};
    return list_value(&l, object, 0);
}

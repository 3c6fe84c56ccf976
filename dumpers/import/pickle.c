#include "dumpers/import/pickle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "dumpers/import/pickle_internal.h"

/* ---- what opcodes do ----
 * Each returns NULL, or what is wrong. `arg` is the bytes of its operand, the values that it takes (-1: all above the mark), or
 * a kind. */

static const uint8_t *take(fd_pickle_reader *r, uint64_t n) {
    if (n > r->size - r->at) return NULL;
    const uint8_t *start = r->data + r->at;
    r->at += n;
    return start;
}

static bool take_number(fd_pickle_reader *r, int bytes, uint64_t *out) {
    const uint8_t *from = take(r, (uint64_t)bytes);
    *out = 0;
    for (int i = 0; from && i < bytes; i++) *out |= (uint64_t)from[i] << (8 * i);
    return from != NULL;
}

static const char *const ends = "it ends inside", *const empty = "it takes from an empty stack";

static const char *skip(fd_pickle_reader *r, int arg) {
    return take(r, (uint64_t)arg) ? NULL : ends;
}

static const char *push_kind(fd_pickle_reader *r, int arg) {
    return fd_pickle_push(r, (fd_pickle_value){.kind = (fd_pickle_kind)arg});
}

static const char *push_float(fd_pickle_reader *r, int arg) {
    return take(r, (uint64_t)arg) ? push_kind(r, FD_PICKLE_OTHER) : ends;
}

static const char *push_text(fd_pickle_reader *r, int arg) {
    uint64_t length;
    if (!take_number(r, arg, &length)) return ends;
    const uint8_t *text = take(r, length);
    return text ? fd_pickle_push(r, (fd_pickle_value){.kind = FD_PICKLE_TEXT, .text = {(const char *)text, length}})
                : ends;
}

static const char *push_integer(fd_pickle_reader *r, int arg) { /* BININT alone has a sign */
    uint64_t number;
    if (!take_number(r, arg, &number)) return ends;
    int64_t value = arg == 4 ? (int64_t)(int32_t)(uint32_t)number : (int64_t)number;
    return fd_pickle_push(r, (fd_pickle_value){.kind = FD_PICKLE_INTEGER, .number = value});
}

static const char *push_long(fd_pickle_reader *r, int arg) { /* two's complement, little-endian */
    uint64_t length, number = 0;
    if (!take_number(r, arg, &length)) return ends;
    const uint8_t *bytes = take(r, length);
    if (!bytes) return ends;
    if (length > 8) return push_kind(r, FD_PICKLE_OTHER);
    for (uint64_t i = 0; i < length; i++) number |= (uint64_t)bytes[i] << (8 * i);
    if (length > 0 && length < 8 && bytes[length - 1] & 0x80) number |= ~UINT64_C(0) << (8 * length);
    return fd_pickle_push(r, (fd_pickle_value){.kind = FD_PICKLE_INTEGER, .number = (int64_t)number});
}

static const char *push_global(fd_pickle_reader *r, int arg) {
    (void)arg;
    fd_pickle_value value = {.kind = FD_PICKLE_GLOBAL};
    fd_pickle_text *const lines[] = {&value.module, &value.text};
    for (int i = 0; i < 2; i++) {
        const uint8_t *start = r->data + r->at, *end = memchr(start, '\n', r->size - r->at);
        if (!end) return ends;
        *lines[i] = (fd_pickle_text){(const char *)start, (size_t)(end - start)};
        r->at += lines[i]->length + 1;
    }
    return fd_pickle_push(r, value);
}

static const char *global_of_stack(fd_pickle_reader *r, int arg) {
    (void)arg;
    const int32_t name = fd_pickle_pop(r), module = fd_pickle_pop(r);
    if (name < 0 || module < 0) return empty;
    return fd_pickle_push(
        r, (fd_pickle_value){.kind = FD_PICKLE_GLOBAL, .module = r->values[module].text, .text = r->values[name].text});
}

/* The memo: values by number. */
static const char *put(fd_pickle_reader *r, int arg) {
    uint64_t index = r->n_memo;
    if (arg > 0 && !take_number(r, arg, &index)) return ends;
    if (r->depth == 0) return empty;
    if (index > r->size) return "it has a number that is too large";
    while (r->n_memo <= index) r->memo[r->n_memo++] = -1;
    r->memo[index] = r->stack[r->depth - 1];
    return NULL;
}

static const char *get(fd_pickle_reader *r, int arg) {
    uint64_t index;
    if (!take_number(r, arg, &index)) return ends;
    if (index >= r->n_memo || r->memo[index] < 0) return "it asks for a value that it never put away";
    return fd_pickle_push_id(r, r->memo[index]);
}

/* Where the values begin that an opcode takes: of the last `arg`, or those above the mark, which is at *mark. SIZE_MAX: there are not
 * so many. */
static size_t first_of(const fd_pickle_reader *r, int arg, size_t *mark) {
    *mark = SIZE_MAX;
    if (arg >= 0) return r->depth >= (size_t)arg ? r->depth - (size_t)arg : SIZE_MAX;
    for (size_t i = r->depth; i > 0; i--)
        if (r->values[r->stack[i - 1]].kind == FD_PICKLE_MARK) return *mark = i - 1, i;
    return SIZE_MAX;
}

static const char *drop(fd_pickle_reader *r, int arg) {
    size_t mark, first = first_of(r, arg, &mark);
    if (first == SIZE_MAX) return empty;
    r->depth = mark == SIZE_MAX ? first : mark;
    return NULL;
}

/* Puts values into the container below them: one after the other, or a key and a value at a time. */
static const char *add(fd_pickle_reader *r, int arg, bool pairs) {
    size_t mark, first = first_of(r, arg, &mark), below = mark == SIZE_MAX ? first : mark;
    if (first == SIZE_MAX || below == 0) return empty;
    if (pairs && (r->depth - first) % 2) return "it has a key without a value";
    for (size_t i = first; i < r->depth; i += pairs ? 2 : 1)
        fd_pickle_add(r, r->stack[below - 1], pairs ? r->stack[i] : -1, r->stack[i + pairs]);
    r->depth = below;
    return NULL;
}

static const char *append(fd_pickle_reader *r, int arg) {
    return add(r, arg, false);
}

static const char *set_items(fd_pickle_reader *r, int arg) {
    return add(r, arg, true);
}

/* A container of the values above. */
static const char *collect(fd_pickle_reader *r, int arg) {
    size_t mark, first = first_of(r, arg, &mark), below = mark == SIZE_MAX ? first : mark;
    if (first == SIZE_MAX) return empty;
    const int32_t id = fd_pickle_new(r, (fd_pickle_value){.kind = FD_PICKLE_LIST});
    if (id < 0) return "out of memory";
    for (size_t i = first; i < r->depth; i++) fd_pickle_add(r, id, -1, r->stack[i]);
    r->depth = below;
    return fd_pickle_push_id(r, id);
}

static const char *duplicate(fd_pickle_reader *r, int arg) {
    (void)arg;
    return r->depth ? fd_pickle_push_id(r, r->stack[r->depth - 1]) : empty;
}

static const char *make_object(fd_pickle_reader *r, int arg) {
    const char *wrong = drop(r, arg);
    return wrong ? wrong : push_kind(r, FD_PICKLE_OTHER);
}

static const char *call(fd_pickle_reader *r, int arg) {
    (void)arg;
    const int32_t arguments = fd_pickle_pop(r), what = fd_pickle_pop(r);
    return arguments < 0 || what < 0 ? empty : fd_pickle_call(r, what, arguments);
}

static const char *persistent(fd_pickle_reader *r, int arg) {
    (void)arg;
    const int32_t id = fd_pickle_pop(r);
    return id < 0 ? empty : fd_pickle_storage(r, id);
}

static const struct {
    uint8_t code;
    int8_t arg;
    const char *(*run)(fd_pickle_reader *, int arg);
} opcodes[] = {
    {0x80, 1, skip},
    {0x95, 8, skip},
    {'}', FD_PICKLE_DICT, push_kind},
    {']', FD_PICKLE_LIST, push_kind},
    {')', FD_PICKLE_LIST, push_kind},
    {'(', FD_PICKLE_MARK, push_kind},
    {'N', FD_PICKLE_OTHER, push_kind},
    {0x88, FD_PICKLE_OTHER, push_kind},
    {0x89, FD_PICKLE_OTHER, push_kind},
    {0x8f, FD_PICKLE_OTHER, push_kind},
    {'G', 8, push_float},
    {'K', 1, push_integer},
    {'M', 2, push_integer},
    {'J', 4, push_integer},
    {0x8a, 1, push_long},
    {0x8b, 4, push_long},
    {'X', 4, push_text},
    {0x8c, 1, push_text},
    {0x8d, 8, push_text},
    {'U', 1, push_text},
    {'T', 4, push_text},
    {'C', 1, push_text},
    {'B', 4, push_text},
    {0x8e, 8, push_text},
    {'c', 0, push_global},
    {0x93, 0, global_of_stack},
    {'q', 1, put},
    {'r', 4, put},
    {0x94, 0, put},
    {'h', 1, get},
    {'j', 4, get},
    {'t', -1, collect},
    {'l', -1, collect},
    {0x91, -1, collect},
    {0x85, 1, collect},
    {0x86, 2, collect},
    {0x87, 3, collect},
    {'a', 1, append},
    {'e', -1, append},
    {'s', 2, set_items},
    {'u', -1, set_items},
    {0x90, -1, drop},
    {'0', 1, drop},
    {'1', -1, drop},
    {'2', 0, duplicate},
    {'b', 1, drop},
    {0x81, 2, make_object},
    {0x92, 3, make_object},
    {'R', 0, call},
    {'Q', 0, persistent},
};

static const char *run(fd_pickle_reader *r, uint8_t code) {
    for (size_t i = 0; i < sizeof opcodes / sizeof *opcodes; i++)
        if (opcodes[i].code == code) return opcodes[i].run(r, opcodes[i].arg);
    return "it has an opcode that torch.save does not write";
}

/* Runs to the end; the object is then on the stack. */
static const char *run_all(fd_pickle_reader *r) {
    while (r->at < r->size) {
        const uint8_t code = r->data[r->at++];
        if (code == '.') return r->depth == 1 ? NULL : "it leaves no single object";
        const char *wrong = run(r, code);
        if (wrong) return wrong;
    }
    return ends;
}

fd_code fd_pickle_parse(const char *name, const void *data, size_t size, fd_pickle *out, fd_error *err) {
    *out = (fd_pickle){0};
    if (size > (size_t)fd_limit_of(FD_LIMIT_HEADER_BYTES))
        return fd_limit_exceeded(err, FD_LIMIT_HEADER_BYTES, "%s: a pickle of %zu bytes", name, size);
    fd_pickle_reader r = {.data = data, .size = size};
    /* No opcode makes more than one value or puts away more than one, and none is shorter than a byte. */
    r.values = malloc((size + 1) * sizeof *r.values);
    r.cells = malloc((size + 1) * sizeof *r.cells);
    r.stack = malloc((size + 1) * sizeof *r.stack);
    r.memo = malloc((size + 2) * sizeof *r.memo);
    const bool memory = r.values && r.cells && r.stack && r.memo;
    const char *wrong = memory ? run_all(&r) : "out of memory";
    if (!wrong) wrong = fd_pickle_list(&r, r.stack[0], out);
    if (!wrong && out->n == 0) wrong = "it holds no tensor of floats or integers";
    free(r.values);
    free(r.cells);
    free(r.stack);
    free(r.memo);
    if (!wrong) return FD_OK;
    fd_pickle_free(out);
    return fd_fail(err, memory ? FD_ERR_INPUT : FD_ERR_MEMORY,
                   "%s: a PyTorch file whose pickle cannot be read: %s, at byte %zu of %zu", name, wrong, r.at, size);
}

void fd_pickle_free(fd_pickle *pickle) {
    for (size_t i = 0; i < pickle->n; i++) free(pickle->items[i].name);
    free(pickle->items);
    *pickle = (fd_pickle){0};
}

/* Between pickle.c (opcodes) and pickle_values.c (what they make: values, containers, tensors). */
#ifndef FD_DUMPERS_IMPORT_PICKLE_INTERNAL_H
#define FD_DUMPERS_IMPORT_PICKLE_INTERNAL_H

#include "dumpers/import/pickle.h"

typedef enum fd_pickle_kind {
    FD_PICKLE_OTHER, /* a placeholder; may hold items, as a subclass of dict does */
    FD_PICKLE_MARK,
    FD_PICKLE_INTEGER,
    FD_PICKLE_TEXT,
    FD_PICKLE_GLOBAL, /* module, text: a function or class by its name */
    FD_PICKLE_LIST,   /* and tuples */
    FD_PICKLE_DICT,
    FD_PICKLE_STORAGE, /* text: its key; number: an fd_array_type */
    FD_PICKLE_TENSOR   /* storage, number: its offset, sizes, strides */
} fd_pickle_kind;

typedef struct fd_pickle_text { /* in the pickle's bytes, not ended by a zero */
    const char *at;
    size_t length;
} fd_pickle_text;

typedef struct fd_pickle_value {
    fd_pickle_kind kind;
    int64_t number;
    fd_pickle_text text, module;
    int32_t storage, sizes, strides; /* values */
    int32_t first, last;             /* cells of a container, as number + 1; 0: none */
} fd_pickle_value;

typedef struct fd_pickle_cell {
    int32_t key, item; /* values; key -1: of a list */
    int32_t next;      /* as number + 1; 0: the last */
} fd_pickle_cell;

typedef struct fd_pickle_reader {
    const uint8_t *data;
    size_t size, at;
    fd_pickle_value *values; /* [size + 1], as all of these */
    fd_pickle_cell *cells;
    int32_t *stack, *memo;
    size_t n, n_cell, depth, n_memo;
} fd_pickle_reader;

int32_t fd_pickle_new(fd_pickle_reader *r, fd_pickle_value value); /* its number; -1: no room */
int32_t fd_pickle_pop(fd_pickle_reader *r);                        /* -1: empty */
/* These return NULL, or what is wrong. */
const char *fd_pickle_push_id(fd_pickle_reader *r, int32_t id);
const char *fd_pickle_push(fd_pickle_reader *r, fd_pickle_value value);
/* What a call gives: a tensor, a dictionary, else a placeholder. */
const char *fd_pickle_call(fd_pickle_reader *r, int32_t what, int32_t arguments);
/* The storage of a persistent id, ("storage", class, key, device, elements). */
const char *fd_pickle_storage(fd_pickle_reader *r, int32_t id);
/* All tensors that hang on the object, in order. */
const char *fd_pickle_list(const fd_pickle_reader *r, int32_t object, fd_pickle *out);

void fd_pickle_add(fd_pickle_reader *r, int32_t container, int32_t key, int32_t item);

#endif

/* The sizes of a made model, and the values of keys that follow from them. */
#ifndef FD_MODEL_MADE_SIZES_H
#define FD_MODEL_MADE_SIZES_H

#include "model/builder.h"
#include "model/gguf_writer/made_model.h"

typedef enum fd_made_size {
    FD_MADE_LAYERS,
    FD_MADE_EMBD,
    FD_MADE_HEADS,
    FD_MADE_KV,
    FD_MADE_FF,
    FD_MADE_CTX,
    FD_MADE_VOCAB,
    FD_MADE_HEAD,  /* elements of one */
    FD_MADE_INNER, /* of a state-space layer */
    FD_MADE_COUNT
} fd_made_size;

/* In order of preference: the description's keys, its sizes, the architecture's made_keys, the defaults. */
typedef struct fd_made_sizes {
    int64_t n[FD_MADE_COUNT];
} fd_made_sizes;
fd_made_sizes fd_made_sizes_of(const fd_made_model *what, const fd_arch *arch);

/* The key's text in "NAME=VALUE NAME=VALUE"; false when it is not there. */
bool fd_made_text(const char *list, const char *name, char *to, size_t size);

/* A value of made_keys: numbers and names of sizes (layers, embd, heads, kv, ff, ctx, head, inner), joined from left to
 * right by * , / (rounded up), - (no less than 0) and & (the greatest common divisor); several between
 * commas are an array, which ".." at its end continues over the layers by repeating it. "inner/32,0,.." Other text stays
 * as it is. False when `to` is too small. */
bool fd_made_value(const fd_made_sizes *sizes, const char *text, char *to, size_t size);

#endif

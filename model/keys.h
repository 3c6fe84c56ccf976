/* The metadata keys below an architecture's prefix ("llama.rope.freq_base"), and which of them were read.
 *
 * A key that changes the arithmetic and that a graph does not read would make a run wrong without a word. So every read
 * goes through here and marks its key, and fd_keys_check refuses what was not read, by name, unless it is one of the
 * keys that are known to change nothing (model/keys_harmless.c). */
#ifndef FD_MODEL_KEYS_H
#define FD_MODEL_KEYS_H

#include "model/graph.h"

typedef struct fd_keys {
    const fd_gguf *gguf;
    const char *arch; /* the prefix, without its dot */
    bool *read;       /* owned, [fd_gguf_n_kv] */
    fd_error *err;
} fd_keys;

fd_code fd_keys_make(fd_keys *keys, const fd_gguf *gguf, const char *arch, fd_error *err);
void fd_keys_free(fd_keys *keys);

/* Names without the prefix. A key that is missing gives `fallback`; one of another kind of type is FD_ERR_INPUT,
 * named. */
/* NULL when it is missing. */
const fd_gguf_kv *fd_key_find(const fd_keys *keys, const char *name);
/* Within [low, high]; fallback < 0: the key is required. A per-layer array is taken when all its items agree. */
fd_code fd_key_i32(const fd_keys *keys, const char *name, int64_t fallback, int64_t low, int64_t high, int32_t *out);
fd_code fd_key_f64(const fd_keys *keys, const char *name, double fallback, double *out); /* finite */
fd_code fd_key_bool(const fd_keys *keys, const char *name, bool fallback, bool *out);
fd_code fd_key_string(const fd_keys *keys, const char *name, fd_string *out); /* {NULL, 0} when it is missing */

/* FD_ERR_UNSUPPORTED for a key that was not read and may change the arithmetic. `graph` is what the reads led to. */
fd_code fd_keys_check(const fd_keys *keys, const fd_graph *graph);
#endif

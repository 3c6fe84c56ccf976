/* Writes GGUF files: collects metadata and tensors, then writes the file in one go. For models of random weights
 * (made_model.h), and for the tests. */
#ifndef FD_MODEL_GGUF_WRITER_H
#define FD_MODEL_GGUF_WRITER_H

#include "model/gguf/gguf.h"

typedef struct fd_gguf_writer fd_gguf_writer;

/* Put functions copy names and values, and refuse what the reader would refuse (duplicates, unclean names, bad shapes).
 * "general.alignment" (u32) sets the alignment; 32 without it. */
fd_code fd_gguf_writer_new(fd_gguf_writer **out, fd_error *err);
void fd_gguf_writer_free(fd_gguf_writer *writer);
fd_code fd_gguf_put_u32(fd_gguf_writer *writer, const char *key, uint32_t value, fd_error *err);
fd_code fd_gguf_put_f32(fd_gguf_writer *writer, const char *key, float value, fd_error *err);
fd_code fd_gguf_put_bool(fd_gguf_writer *writer, const char *key, bool value, fd_error *err);
fd_code fd_gguf_put_string(fd_gguf_writer *writer, const char *key, const char *value, fd_error *err);
fd_code fd_gguf_put_array(fd_gguf_writer *writer, const char *key, fd_gguf_type item_type, const void *items,
                          uint64_t count, fd_error *err); /* numbers; items in host order */
fd_code fd_gguf_put_strings(fd_gguf_writer *writer, const char *key, const fd_string *items, uint64_t count,
                            fd_error *err);
/* Copies a key-value of another file as it is (any type). */
fd_code fd_gguf_put_kv(fd_gguf_writer *writer, const fd_gguf_kv *kv, fd_error *err);
/* Calls `fill` while writing, so that a large model never has to be in memory: fill writes `bytes` bytes of rows
 * [row0, row0 + n_row) into `to` (a row is shape[0] elements; calls go through the tensor once, in order, in pieces of
 * about FD_GGUF_FILL_BYTES). `data` may be given instead (then fill is NULL); it is borrowed until the write. */
enum { FD_GGUF_FILL_BYTES = 8 << 20 };
typedef fd_code (*fd_gguf_fill_fn)(void *user, int64_t row0, int64_t n_row, void *to, fd_error *err);
fd_code fd_gguf_put_tensor(fd_gguf_writer *writer, const char *name, uint32_t dtype, int32_t n_dim,
                           const int64_t *shape, const void *data, fd_gguf_fill_fn fill, void *user, fd_error *err);
/* Writes to a temporary name next to `path`, syncs and renames: nothing half-written is ever called complete, and
 * nothing is left behind on failure. FD_ERR_IO names the path and the system's reason. An existing `path` must be a
 * regular file. */
fd_code fd_gguf_write(fd_gguf_writer *writer, const char *path, fd_error *err);
/* What the file would hold before its tensors' data, in memory: *data is the caller's to free. */
fd_code fd_gguf_header(fd_gguf_writer *writer, void **data, size_t *size, fd_error *err);
/* Writes to a temporary file, opens it, removes its name and frees the writer. */
fd_code fd_gguf_write_and_open(fd_gguf_writer *writer, fd_gguf **out, fd_error *err);

#endif

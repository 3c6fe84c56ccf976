/* GGUF v2/v3: reading over (data, size), every length and offset checked before use.
 *
 * Layout (little endian): "GGUF" magic, u32 version, u64 tensor count, u64 key-value count, the key-values, the tensor
 * infos {string name, u32 n_dim, u64 shape[n_dim], u32 type, u64 offset}, padding to general.alignment, tensor data.
 * Source: the GGUF specification (ggml project, docs/gguf.md). */
#ifndef FD_MODEL_GGUF_GGUF_H
#define FD_MODEL_GGUF_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"

enum { FD_GGUF_MAX_DIM = 4 };

typedef enum fd_gguf_type { /* ids as in the file */
                            FD_GGUF_U8,
                            FD_GGUF_I8,
                            FD_GGUF_U16,
                            FD_GGUF_I16,
                            FD_GGUF_U32,
                            FD_GGUF_I32,
                            FD_GGUF_F32,
                            FD_GGUF_BOOL,
                            FD_GGUF_STRING,
                            FD_GGUF_ARRAY,
                            FD_GGUF_U64,
                            FD_GGUF_I64,
                            FD_GGUF_F64,
                            FD_GGUF_TYPE_COUNT
} fd_gguf_type;

/* "u32", "string", …; "unknown" for other numbers. */
const char *fd_gguf_type_name(fd_gguf_type type);

typedef struct fd_string { /* borrowed bytes, not NUL-terminated */
    const char *data;
    size_t size;
} fd_string;

typedef struct fd_gguf_kv {
    fd_string key;
    fd_gguf_type type;      /* FD_GGUF_ARRAY for arrays */
    fd_gguf_type item_type; /* of the items; equals type for a scalar */
    uint64_t count;         /* items; 1 for a scalar */
    const void *data;       /* little-endian items as in the file, unaligned; for strings {u64 size, bytes}… */
    size_t size;            /* bytes of `data` */
} fd_gguf_kv;

typedef struct fd_gguf_tensor {
    char name[128];                 /* NUL-terminated; ggml allows 64 bytes, longer ones are an error from 128 on */
    uint32_t dtype;                 /* fd_dtype, always a row of the dtype table */
    int32_t n_dim;                  /* 1…4 */
    int64_t shape[FD_GGUF_MAX_DIM]; /* ggml order: shape[0] is the contiguous one (columns); 1 past n_dim */
    uint64_t offset;                /* from the start of the data section, as in the file */
    uint64_t bytes;                 /* from the dtype table */
    const void *data;               /* inside the mapping; valid until close */
} fd_gguf_tensor;

typedef struct fd_gguf fd_gguf;

/* Maps the file read-only. On success *out owns the mapping. Errors name the path and the offending byte offset; a file
 * that is damaged or cut short is FD_ERR_INPUT, one of another version or byte order FD_ERR_UNSUPPORTED. When another
 * process shortens the file while it is mapped, reading it raises SIGBUS (base/file.h). */
fd_code fd_gguf_open(const char *path, fd_gguf **out, fd_error *err);

/* Parses memory the caller keeps alive and unchanged until fd_gguf_close. Never reads outside [data, data + size). What
 * it accepts is consistent: names unique and free of control bytes, tensors aligned, inside the file and not
 * overlapping. */
fd_code fd_gguf_parse(const void *data, size_t size, fd_gguf **out, fd_error *err);

void fd_gguf_close(fd_gguf *gguf); /* NULL is fine */

uint32_t fd_gguf_version(const fd_gguf *gguf);
uint64_t fd_gguf_alignment(const fd_gguf *gguf);
size_t fd_gguf_file_size(const fd_gguf *gguf);
const void *fd_gguf_file_data(const fd_gguf *gguf); /* the whole mapping */
uint64_t fd_gguf_data_offset(const fd_gguf *gguf);  /* where the data section starts */

size_t fd_gguf_n_kv(const fd_gguf *gguf);
const fd_gguf_kv *fd_gguf_kv_at(const fd_gguf *gguf, size_t i);
const fd_gguf_kv *fd_gguf_find(const fd_gguf *gguf, const char *key); /* NULL when absent */

size_t fd_gguf_n_tensor(const fd_gguf *gguf);
const fd_gguf_tensor *fd_gguf_tensor_at(const fd_gguf *gguf, size_t i);
const fd_gguf_tensor *fd_gguf_find_tensor(const fd_gguf *gguf, const char *name); /* NULL when absent */

/* Scalars. i64: from any integer type; f64: from any integer or float type; bool: from bool only. Missing key:
 * `fallback`. Present with another kind of type or out of range: an error that names key, found type and expected. */
fd_code fd_gguf_get_i64(const fd_gguf *gguf, const char *key, int64_t fallback, int64_t *out, fd_error *err);
fd_code fd_gguf_get_f64(const fd_gguf *gguf, const char *key, double fallback, double *out, fd_error *err);
fd_code fd_gguf_get_bool(const fd_gguf *gguf, const char *key, bool fallback, bool *out, fd_error *err);
/* Borrowed; {NULL, 0} when the key is missing. */
fd_code fd_gguf_get_string(const fd_gguf *gguf, const char *key, fd_string *out, fd_error *err);

/* Item i of a scalar or array, converted; false when i is out of range or the items are not of that kind. Bools count
 * as the integers 0 and 1 (per-layer patterns are stored either way). */
bool fd_gguf_item_i64(const fd_gguf_kv *kv, uint64_t i, int64_t *out);
bool fd_gguf_item_f64(const fd_gguf_kv *kv, uint64_t i, double *out);

/* Walks a string array (or a scalar string): start with *cursor = 0; false at the end. */
bool fd_gguf_next_string(const fd_gguf_kv *kv, size_t *cursor, fd_string *out);

/* One problem found by fd_gguf_verify. */
typedef void (*fd_gguf_problem_fn)(void *user, const char *message);

/* Beyond what parsing already guarantees: unused gaps between or after tensors, non-finite values, all-zero tensors,
 * trailing all-zero rows (the mark of bytes read or written short). Reports each, in file order, from the calling
 * thread; *n_problem counts them. Reads every weight once, with all threads. Types that fd_can_dequantize does not know
 * are checked for zero bytes only; FD_ERR_INCOMPLETE (after everything was reported) says how many tensors that
 * concerns. */
fd_code fd_gguf_verify(const fd_gguf *gguf, fd_gguf_problem_fn report, void *user, size_t *n_problem, fd_error *err);

#endif

/* What the GGUF files of model/ share: the parsed file, names that can be searched, and the value types' table.
 * Only the files of model/gguf and the writer (model/gguf_writer) include this. */
#ifndef FD_MODEL_GGUF_INTERNAL_H
#define FD_MODEL_GGUF_INTERNAL_H

#include "model/gguf/gguf.h"

/* Values are used as they stand in the file, so the host must have the file's byte order. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF values are read in place: little-endian hosts only");

#define FD_GGUF_MAGIC             "GGUF"
#define FD_GGUF_DEFAULT_ALIGNMENT 32u   /* the specification's, when general.alignment is absent */
#define FD_GGUF_MAX_NAME          127   /* bytes of a tensor name, without the NUL */
#define FD_GGUF_MAX_KEY           65535 /* bytes of a key: the specification's limit */

typedef struct fd_gguf_type_info {
    const char *name;   /* "u32", as messages say it */
    uint32_t item_size; /* bytes in the file; 0 for strings and arrays, whose size varies */
} fd_gguf_type_info;

extern const fd_gguf_type_info fd_gguf_types[FD_GGUF_TYPE_COUNT];

typedef struct fd_gguf_name {
    fd_string name; /* borrowed */
    size_t index;   /* of the key-value or tensor */
} fd_gguf_name;

struct fd_gguf {
    const uint8_t *data;
    size_t size;
    bool is_mapped; /* data is our mapping, to be unmapped by close */
    uint32_t version;
    uint64_t alignment;
    uint64_t data_offset;
    fd_gguf_kv *kv; /* [n_kv] in file order */
    size_t n_kv;
    fd_gguf_tensor *tensor; /* [n_tensor] in file order */
    size_t n_tensor;
    fd_gguf_name *kv_by_name;         /* [n_kv] sorted by name */
    fd_gguf_name *tensor_by_name;     /* [n_tensor] sorted by name */
    const fd_gguf_tensor **by_offset; /* [n_tensor] sorted by offset */
};

/* Sorts names [n]; returns the index (into names) of the second of two equal ones, or n when all differ. A sorted array
 * rather than a hash table: a crafted file cannot make it quadratic. */
size_t fd_gguf_sort_names(fd_gguf_name *names, size_t n);

/* The entry called `name`, NULL when there is none. */
const fd_gguf_name *fd_gguf_find_name(const fd_gguf_name *names, size_t n, const char *name);

/* True when a name may stand in a file: no control bytes (a NUL would cut it short in C, a newline would break
 * messages). */
bool fd_gguf_name_is_clean(fd_string name);

/* A name as messages show it: other bytes than printable ASCII as \xNN, long ones cut with "…". */
typedef struct fd_gguf_shown {
    char text[200];
} fd_gguf_shown;
fd_gguf_shown fd_gguf_show(fd_string name);

/* Rounds up to a multiple of `alignment` (a power of two); false when that overflows. */
bool fd_gguf_align(uint64_t at, uint64_t alignment, uint64_t *out);

/* Checks type, dimensions and row size of a tensor already carrying dtype, n_dim and shape [n_dim], fills the rest of
 * shape with 1 and sets `bytes`. The reader and the writer accept the same tensors because both ask here. */
fd_code fd_gguf_size_tensor(fd_gguf_tensor *tensor, fd_error *err);

#endif

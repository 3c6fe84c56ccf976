/* Numbers alone, as fwrite leaves them: the file's name says their type, nothing their shape. */
#ifndef FD_DUMPERS_IMPORT_RAW_H
#define FD_DUMPERS_IMPORT_RAW_H

#include "dumpers/import/array.h"

/* Does the name end as that of raw numbers: .f32 .f16 .bf16 .f64, or .bin .raw, which are f32? */
bool fd_raw_is(const char *path);

/* An array of one axis over `data`, in this machine's byte order. FD_ERR_INPUT where `size` is not whole elements. */
fd_code fd_raw_parse(const char *path, const void *data, size_t size, fd_array *out, fd_error *err);

#endif

/* Zip archives (.npz): the directory at the end, entries stored or deflated, 64-bit sizes. Source: PKWARE's APPNOTE
 * 6.3.9, sections 4.3 and 4.5.3. Everything is checked against the bytes there are: entries that overlap (the way a
 * small archive claims to be a huge one), names that lead out of a folder, sizes that deflate cannot reach, wrong
 * CRCs. */
#ifndef FD_DUMPERS_IMPORT_ZIP_H
#define FD_DUMPERS_IMPORT_ZIP_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct fd_zip fd_zip;

/* Borrows `data`, which must outlive it. `name` is for messages. */
fd_code fd_zip_open(const char *name, const void *data, size_t size, fd_zip **out, fd_error *err);
void fd_zip_close(fd_zip *zip);
size_t fd_zip_count(const fd_zip *zip);
const char *fd_zip_name(const fd_zip *zip, size_t i);
uint64_t fd_zip_bytes(const fd_zip *zip, size_t i); /* uncompressed */

/* The entry's bytes. Stored: a pointer into the archive, *owned NULL. Deflated: *owned is malloc'ed, freed by the
 * caller. */
fd_code fd_zip_extract(const fd_zip *zip, size_t i, const void **data, void **owned, fd_error *err);

#endif

/* A trace as somebody else writes it with HDF5 alone: what a reader may ask for, and no more. */
#ifndef FD_TESTS_TRACE_FOREIGN_TRACE_H
#define FD_TESTS_TRACE_FOREIGN_TRACE_H

#include <hdf5.h>

enum { FOREIGN_N_POS = 4 };

/* A new file with tokens and no tensors. */
hid_t foreign_start_with(const char *path, hid_t access);
hid_t foreign_start(const char *path);

/* Writes tensors/`name` of `type` and returns it open; data NULL: none is written. */
hid_t foreign_add(hid_t file, const char *name, hid_t type, int rank, const hsize_t *dims, hid_t memory,
                  const void *data);

/* [FOREIGN_N_POS, 3] of 0, 1, … */
void foreign_add_ramp(hid_t file, const char *name);

#endif

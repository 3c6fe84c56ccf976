/* Attention's scores of layers with a window: some engines record them before their mask, some after it. Before, keys that the window
 * hides are hidden by the import; after, a key that it should hide and that is seen is the engine's. */
#ifndef FD_DUMPERS_IMPORT_MASKED_H
#define FD_DUMPERS_IMPORT_MASKED_H

#include "dumpers/import/import.h"

/* The first key that a position sees, where `node` is scores; else 0. */
int64_t fd_import_first_key(const fd_import_plan *plan, const char *node, int32_t pos);

/* Does a row of the node's arrays [n] hide a key that the window hides, or one after its own position? One that hides a single key may be the one
 * where the engine's window begins too late, so all rows are asked. */
fd_code fd_import_find_mask(const fd_import_plan *plan, const fd_import_match *matches, size_t n, bool *masked,
                            fd_error *err);

#endif

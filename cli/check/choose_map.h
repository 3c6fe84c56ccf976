/* Which map says what a dump's tensors are. */
#ifndef FD_CLI_CHECK_CHOOSE_MAP_H
#define FD_CLI_CHECK_CHOOSE_MAP_H

#include "dumpers/import/import.h"

/* The map `given` (a built-in map or a file), else the one that the source names, else the built-in map that names the
 * most tensors and at least half of them. *out NULL: none does, and one must be proposed from the values. The caller
 * frees it. `how` is as for a plan; its map is not read. */
fd_code fd_cli_choose_map(const fd_source *source, const char *given, const fd_import_options *how, fd_name_map **out,
                          fd_error *err);

/* A trace whose names are known may have a few arrays of other sizes, of an engine that chooses one expert fewer: that
 * is its bug, and what reads them shows it, so they are left out (how->leave_misfits), and the first is named on stderr.
 * Of another model most have them. */
void fd_cli_leave_few_misfits(const fd_source *source, const fd_name_map *map, fd_import_options *how);

#endif

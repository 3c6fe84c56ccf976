/* Traces with foreign names, for commands that compare: mapped into a temporary trace, so that there is one
 * implementation of mapping. */
#ifndef FD_CLI_IMPORT_MAPPED_TRACE_H
#define FD_CLI_IMPORT_MAPPED_TRACE_H

#include "cli/arguments.h"
#include "dumpers/import/import.h"

/* Names that no line of a map gives a node. */
typedef struct fd_cli_unmatched {
    size_t n;
    char names[128]; /* the first of them: "lm_head, layers.0.resid, …" */
} fd_cli_unmatched;

/* Replaces *trace by its mapped form when `map` (a built-in map or a file; NULL: what its attribute `names` says) asks
 * for one; else leaves it. `graph` may be NULL. What the map leaves over is added to *unmatched and listed on stderr. The temporary file lies in $TMPDIR, else /tmp, and is removed at once. */
fd_code fd_cli_map_trace(const char *map, const fd_graph *graph, fd_trace **trace, fd_cli_unmatched *unmatched,
                         fd_error *err);

/* Writes what `how` says of the source as the trace `path` and opens it, under the source's path and with the names that
 * the source has. Names without a node are added to *unmatched and listed on stderr. */
fd_code fd_cli_write_mapped(const fd_source *source, const fd_import_options *how, const char *path,
                            fd_cli_unmatched *unmatched, fd_trace **mapped, fd_error *err);

/* Nodes that a trace's engine cannot record (`absent` of its info; its map says so) need no --allow-missing; they
 * are still listed. `text` is cut into the globs and must outlive them. */
void fd_cli_allow_absent(fd_cli_globs *globs, char *text);

/* FD_ERR_INPUT unless `names`, which a file says of itself, is a built-in map: a file must not have another one
 * opened. */
fd_code fd_cli_check_names(const char *path, const char *names, fd_error *err);

/* Says on stderr what was left out of the source, and takes stacks of all layers apart (fd_source_unstack), for the tokens of `how` or its own. */
fd_code fd_cli_prepare_source(fd_source *source, const fd_import_options *how, fd_error *err);

/* Lists the plan's unmatched tensors and the map's undecided lines on `to`. */
void fd_cli_list_unmatched(FILE *to, const fd_import_plan *plan);

#endif

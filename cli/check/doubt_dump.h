/* What a dump says by itself against what was given with it: other tokens, another model, values never filled in.
 * Asked where values name little or nothing, for then a user needs the reason more than a map. */
#ifndef FD_CLI_CHECK_DOUBT_DUMP_H
#define FD_CLI_CHECK_DOUBT_DUMP_H

#include "dumpers/import/import.h"
#include "model/graph.h"

/* "its arrays have 9 rows (7 + 1 + 1 in 3 steps), 10 tokens were given" and the like; "" where it says nothing. */
fd_code fd_cli_doubt_dump(const fd_source *source, int32_t n_token, const fd_graph *graph, char *out, size_t size,
                          fd_error *err);

/* Where an array of the first step has the embeddings of tokens, and these are others than the plan's: its name and
 * both, as a sentence; "" where none has. At most sixteen rows are looked at. */
fd_code fd_cli_doubt_tokens(const fd_import_plan *plan, const fd_graph *graph, char *out, size_t size, fd_error *err);

/* FD_ERR_INPUT where raw numbers, which say no type, are all half or twice as many as the model's tensors have. */
fd_code fd_cli_doubt_types(const fd_import_plan *plan, const fd_graph *graph, fd_error *err);

#endif

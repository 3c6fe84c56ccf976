/* Names of transformers' modules with the GGUF's own rows of Q and K, as of an engine that reads the GGUF: which order they are in, values say. */
#ifndef FD_CLI_CHECK_KEPT_ROWS_H
#define FD_CLI_CHECK_KEPT_ROWS_H

#include "dumpers/import/import.h"

/* Does the model's order of rows matter to the map's rules? */
bool fd_cli_may_keep_rows(const fd_name_map *map, const fd_graph *graph);

/* Of most layers that tell, Q and K are nearer to the reference's in the GGUF's order than in a checkpoint's. `how` has the map. */
fd_code fd_cli_keeps_rows(const fd_source *source, const fd_import_options *how, const fd_trace *ref, bool *keeps,
                          fd_error *err);

/* Of a map's text: what turns rows becomes blanks, so that it can be given again. */
void fd_cli_drop_halves(char *map);

#endif

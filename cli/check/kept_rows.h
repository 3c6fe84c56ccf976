/* Names do not say which rows of Q and K an engine has, the GGUF's or a checkpoint's: one with transformers' modules may read the GGUF, one with the
 * GGUF's names may turn them as it loads (tinygrad). Values say. */
#ifndef FD_CLI_CHECK_KEPT_ROWS_H
#define FD_CLI_CHECK_KEPT_ROWS_H

#include "dumpers/import/import.h"

/* Does the GGUF have them in another order than checkpoints? */
bool fd_cli_may_turn_rows(const fd_graph *graph);
/* Has the map rules that turn a checkpoint's? */
bool fd_cli_turns_rows(const fd_name_map *map);

/* Of Q and K of all layers, those that are nearer to the reference's in the GGUF's order less those that are in a checkpoint's. `how` has a map that turns. */
fd_code fd_cli_count_kept_rows(const fd_source *source, const fd_import_options *how, const fd_trace *ref,
                               int32_t *balance, fd_error *err);

/* Of a map's text: what turns rows becomes blanks, so that it can be given again. */
void fd_cli_drop_halves(char *map);

#endif

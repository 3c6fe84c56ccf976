/* The module that looks tokens up multiplies what it found in some versions of an engine, and in others the model does so after it: which, values say. */
#ifndef FD_CLI_CHECK_EMBEDDING_STAGE_H
#define FD_CLI_CHECK_EMBEDDING_STAGE_H

#include "dumpers/import/import.h"

/* Does the model scale its embeddings, so that the map's rule can be of the wrong stage? */
bool fd_cli_may_scale_later(const fd_graph *graph);

/* What the map takes for scaled embeddings has the values of those before. `how` has the map. */
fd_code fd_cli_scales_later(const fd_source *source, const fd_import_options *how, const fd_trace *ref, bool *later,
                            fd_error *err);

/* Of a map's text: rules of scaled embeddings of some architectures become comments, so that it can be given again. */
void fd_cli_drop_scaled(char *map);

#endif

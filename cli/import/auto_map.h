/* A map from values alone (docs/mapping.md): names are compared with the nodes of a right run. Behind a bug of every layer
 * nothing is near to these; then what the names' own values make of one another decides (compare/attribute/own_values.h): the node
 * that a name is, is the one from which the other names follow. */
#ifndef FD_CLI_IMPORT_AUTO_MAP_H
#define FD_CLI_IMPORT_AUTO_MAP_H

#include "dumpers/import/propose/propose.h"

/* `how->graph` is needed; `how->map`: names that it knows are left out, NULL: none. `ref`: a full trace of the model on the
 * same tokens. *text [*size], which the caller frees, has a line for every name that `how->map` leaves over. */
fd_code fd_cli_auto_map(const fd_source *source, const fd_import_options *how, const fd_trace *ref, char **text,
                        size_t *size, fd_proposal *found, fd_error *err);

#endif

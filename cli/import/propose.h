/* firstdiff import --map auto: the model is run on the same tokens, unless a trace of it is given, and a map proposed
 * from it. */
#ifndef FD_CLI_IMPORT_PROPOSE_H
#define FD_CLI_IMPORT_PROPOSE_H

#include "cli/cli.h"
#include "dumpers/import/propose/propose.h"

/* Writes the map to `out`. `ref_path`: a full trace of the model; NULL: the CPU's exact run, kept in a temporary
 * file. */
fd_code fd_cli_propose_map(const fd_source *source, const fd_import_options *options, const fd_cli_model *model,
                           const char *ref_path, FILE *out, fd_proposal *proposal, fd_error *err);

#endif

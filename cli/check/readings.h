/* A name may stand for another stage or layout in another version of an engine, or behind another loader: what it stands for in this dump, values say. */
#ifndef FD_CLI_CHECK_READINGS_H
#define FD_CLI_CHECK_READINGS_H

#include "dumpers/import/import.h"

typedef struct fd_cli_readings {
    bool rows_kept;    /* a checkpoint's names, the GGUF's rows of Q and K */
    bool rows_turned;  /* the GGUF's names, a checkpoint's rows */
    bool scaled_later; /* the embedding's module does not scale */
} fd_cli_readings;

/* Can any of it be so? Then the reference is worth its run. */
bool fd_cli_may_read_otherwise(const fd_name_map *map, const fd_graph *graph);
/* What the values of the source say, on stderr too. `how` has the map. */
fd_code fd_cli_find_readings(const fd_source *source, const fd_import_options *how, const fd_trace *ref,
                             fd_cli_readings *out, fd_error *err);
/* The built-in map becomes one that reads its names so. */
fd_code fd_cli_read_so(const fd_cli_readings *readings, fd_name_map **map, fd_error *err);
/* A map of this text takes the place of `map`. */
fd_code fd_cli_replace_map(fd_name_map **map, const char *name, const char *text, fd_error *err);
/* The built-in map's text, read so; the caller frees it. NULL: out of memory, or no such map. */
char *fd_cli_text_read_so(const char *name, const fd_cli_readings *readings);

#endif

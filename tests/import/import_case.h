/* A folder of arrays, and a trace that is imported from it without the program. */
#ifndef FD_TESTS_IMPORT_IMPORT_CASE_H
#define FD_TESTS_IMPORT_IMPORT_CASE_H

#include "dumpers/import/import.h"
#include "tests/scratch.h"

extern char folder[SCRATCH_PATH]; /* between set_up and tear_down */
extern const fd_graph *model; /* NULL: imports know none */

void set_up(void);
void tear_down(void);

/* NAME.npy of floats 0, 1, 2, … plus `start`; shape "(2, 3)". */
void save(const char *name, const char *shape, int n, float start);
void save_values(const char *name, const char *shape, const float *values, int n);

typedef struct result {
    fd_code code;
    fd_error err;
    fd_trace *trace;
    size_t n_unmatched, n_allowed, n_skipped;
} result;

/* Imports `folder` (or `path`) with the map's text and tokens 0 … n_token - 1. */
result import(const char *path, const char *map_text, int32_t n_token, const int32_t *sizes, int32_t n_size);

/* Element i of a row. */
float at(const fd_trace *trace, const char *node, int32_t pos, int i);

#endif

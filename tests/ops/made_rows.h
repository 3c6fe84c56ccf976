/* The rows of made_models.txt: models of random weights whose logits by llama.cpp are recorded. */
#ifndef FD_TESTS_OPS_MADE_ROWS_H
#define FD_TESTS_OPS_MADE_ROWS_H

#include "model/gguf_writer/made_model.h"

enum { MADE_MAX_ROWS = 400, MADE_SEED = 7 };

typedef struct made_row {
    char arch[32], type[16], keys[512], with[256];
    double limit; /* of the NMSE */
    unsigned crc; /* of the file */
} made_row;

/* How many; -1: the file is not there, or a line is none of a row. */
int made_rows_read(made_row rows[MADE_MAX_ROWS]);
/* The description, whose strings are the row's; FD_ERR_INPUT: no such type can be made. */
fd_code made_row_describe(const made_row *row, fd_made_model *out, fd_error *err);

#endif

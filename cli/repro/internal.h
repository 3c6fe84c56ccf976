/* Between repro.c (what the op read), arrays.c, experts.c and sequence.c (the part of it that the test needs),
 * formulas.c (the op in two languages) and scripts.c (the test). */
#ifndef FD_CLI_REPRO_INTERNAL_H
#define FD_CLI_REPRO_INTERNAL_H

#include "cli/repro/repro.h"

typedef struct fd_repro {
    const fd_graph *graph;
    const fd_node *node;
    const fd_verdict *verdict;
    const char *folder;
    int32_t pos, token;        /* token: fed at pos */
    double *in[FD_MAX_INPUTS]; /* the inputs' rows at `pos`; of a cache all rows up to it. Owned */
    int64_t first, n;          /* elements of the node's row that are tested */
    int64_t head, offset;      /* the part of the row that the op computes by itself, and `first` in it */
    char sizes[512];           /* "N 8", lines of the C program's #define and of the script's constants */
} fd_repro;

/* Writes the arrays of the op's inputs and sets head, offset and sizes. FD_ERR_UNSUPPORTED: no row for the op. */
fd_code fd_repro_write_arrays(fd_repro *repro, fd_error *err);
/* Writes test_op.py, op.c and backend_ops.cpp. */
fd_code fd_repro_write_scripts(const fd_repro *repro, fd_error *err);
fd_code fd_repro_write_backend_ops(const fd_repro *repro, fd_error *err);
/* What the files are about, for a comment of theirs. */
void fd_repro_put_title(FILE *to, const fd_repro *repro, const char *line_break);

fd_code fd_repro_put_array(const fd_repro *repro, const char *name, const double *x, int64_t n_row, int64_t n_col,
                           bool wide, fd_error *err); /* NAME.npy: f64 when `wide`, else f32; n_row 0: one axis */
fd_code fd_repro_open(const fd_repro *repro, const char *name, FILE **out, char path[4096], fd_error *err);
void fd_repro_add_size(fd_repro *repro, const char *name, double value);

/* Columns [from, from + n) of rows [n_row, row_width]. */
typedef struct fd_repro_columns {
    const double *rows;
    int64_t n_row, row_width, from, n;
} fd_repro_columns;
fd_code fd_repro_put_columns(const fd_repro *repro, const char *name, const fd_repro_columns *columns, fd_error *err);
const fd_weight *fd_repro_weight(const fd_repro *repro, int which); /* of the node; NULL: it has none */
/* "w": rows [first, first + n_row) of a weight; n_row 0: row `first` as a vector. */
fd_code fd_repro_put_weight(const fd_repro *repro, const fd_weight *weight, int64_t first, int64_t n_row,
                            fd_error *err);
/* The tested elements stay within one part of `width` elements, the worst one's, which `head` then is. */
void fd_repro_keep_part(fd_repro *repro, int64_t width);

/* ---- one function an op: writes the arrays that the tested elements need ---- */

#define FD_REPRO(name) fd_code fd_repro_write_##name(fd_repro *repro, fd_error *err)
FD_REPRO(matmul); /* arrays.c */
FD_REPRO(head_matmul);
FD_REPRO(rms_norm);
FD_REPRO(layer_norm);
FD_REPRO(l2_norm);
FD_REPRO(rope);
FD_REPRO(one);
FD_REPRO(two);
FD_REPRO(with_vector);
FD_REPRO(embed);
FD_REPRO(slice);
FD_REPRO(concat);
FD_REPRO(cache_row);
FD_REPRO(scores);
FD_REPRO(alibi);
FD_REPRO(softmax);
FD_REPRO(mix);
FD_REPRO(row_softmax); /* experts.c */
FD_REPRO(top_k);
FD_REPRO(expert_weights);
FD_REPRO(expert_matmul);
FD_REPRO(expert_sum);
FD_REPRO(conv); /* sequence.c */
FD_REPRO(token_shift);
FD_REPRO(ssm_scan);
FD_REPRO(gated_delta);
FD_REPRO(wkv7);
#undef FD_REPRO

typedef struct fd_repro_op {
    fd_op op;
    fd_code (*write)(fd_repro *repro, fd_error *err); /* the arrays */
    const char *python; /* body of op(): from load("NAME") and constants to y, all of what `head` holds */
    const char *c;      /* body of op(y): from NAME[] and constants */
    const char *arrays; /* their names, in one line */
} fd_repro_op;
const fd_repro_op *fd_repro_op_of(fd_op op); /* NULL: none */

#endif

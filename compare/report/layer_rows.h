/* A run's layers as rows of a table: how far apart both sides are behind each. */
#ifndef FD_COMPARE_REPORT_LAYER_ROWS_H
#define FD_COMPARE_REPORT_LAYER_ROWS_H

#include "compare/verdict.h"

typedef struct fd_layer_row {
    int32_t layer;       /* -1: a node outside the layers */
    const char *node;    /* the last one of the layer that both sides recorded, else the last; borrowed */
    double z;            /* the largest in the layer; -1: not judged */
    double nmse, cosine; /* of `node`; NaN: not known */
    bool introduced;     /* a node of the layer introduced an error */
} fd_layer_row;

/* In order of execution; malloc'ed, NULL when memory ran out or nothing was replayed (*n 0). */
fd_layer_row *fd_layer_rows(const fd_verdict *verdict, int32_t *n);

#endif

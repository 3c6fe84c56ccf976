/* Between layouts.c, which opens a tensor in every layout, and score.c, which compares it with every node. */
#ifndef FD_DUMPERS_IMPORT_PROPOSE_SCORE_H
#define FD_DUMPERS_IMPORT_PROPOSE_SCORE_H

#include "dumpers/import/propose/internal.h"

typedef struct fd_sample { /* one node of the reference at one position */
    float *values;
    int64_t n;
    double norm;
} fd_sample;

struct fd_scorer {
    const fd_import_plan *plan;
    const fd_trace *ref;
    int32_t n_node;
    int32_t pos[FD_PROPOSE_POSITIONS];
    int n_pos;
    fd_sample *samples; /* [n_node, n_pos] */
};

typedef struct fd_layout {
    fd_name_map *map; /* of one rule */
    fd_import_plan plan;
    fd_import_match matches[FD_PROPOSE_POSITIONS];
    fd_import_rows rows[FD_PROPOSE_POSITIONS];
    bool open[FD_PROPOSE_POSITIONS]; /* the tensor holds that position */
    int64_t least, most;             /* elements of a row over the steps */
    bool ids;                        /* whole numbers: the experts that a router chose, or nothing */
    char ops[FD_PROPOSE_MAX_OPS];
} fd_layout;

/* Of heads, at the sampled positions: the tensor's lengths by a node's. */
typedef struct fd_lengths {
    double least, most;  /* ratios */
    double sum, squares; /* of the node's */
    int64_t n;
} fd_lengths;

/* Does RoPE give the node? */
bool fd_propose_is_turned(const fd_trace_node *node);
/* x: a row of the node's size. */
void fd_lengths_add(fd_lengths *lengths, const fd_sample *ref, const fd_trace_node *node, const double *x);
/* All heads are as long as the node's, but for one factor. */
bool fd_lengths_agree(const fd_lengths *lengths, double *factor);

/* Scores the layout against all nodes; `ranking` keeps the nearest. `only_heads`: against Q and K alone. A row that cannot be
 * read is no match. */
void fd_scorer_score(const fd_scorer *scorer, fd_layout *layout, bool only_heads, fd_ranking *ranking);

#endif

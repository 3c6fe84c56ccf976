/* Weights before ops: the row hashes that a trace holds (dumpers/store/weights.h) against the model's, so that a
 * loader's or a dequantiser's bug is not blamed on the op that reads the weight.
 *
 * With the model, every fault of the table that replaces a weight's bytes is tried on the first weight that differs;
 * hashes are exact, so no tolerance is needed: the fault is named when it alone has them all. */
#ifndef FD_COMPARE_WEIGHTS_WEIGHTS_H
#define FD_COMPARE_WEIGHTS_WEIGHTS_H

#include "compare/verdict.h"

/* The weights as a run loaded them: what its ops are judged with. */
typedef struct fd_loaded_weights {
    fd_graph *graph;         /* the model's with the weights as the run had them; NULL: the model's own. Owned */
    fd_fault_owner **owners; /* [n_owner] of the replaced bytes; owned */
    int32_t n_owner;
    void **rows; /* [n_rows] of weights that were quantised again; owned */
    int32_t n_rows;
    bool *unknown; /* [n_node] reads a weight whose values are unknown; NULL: none does. Owned */
    int32_t n_unknown;
} fd_loaded_weights;
void fd_loaded_weights_free(fd_loaded_weights *loaded); /* frees what it owns, not the struct */

/* Against the model: the candidate's weights first, then the reference's; verdict->weights is filled (and status and
 * divergence are left alone). `cand_loaded` and `ref_loaded` say with what each trace is to be replayed; `ref` may
 * be NULL. */
fd_code fd_weights_against_model(const fd_graph *graph, const fd_trace *ref, const fd_trace *cand, fd_verdict *verdict,
                                 fd_loaded_weights *ref_loaded, fd_loaded_weights *cand_loaded, fd_error *err);

/* Without a model: the traces with each other; nothing can be named. A difference makes the verdict DIVERGED. */
fd_code fd_weights_of_traces(const fd_trace *ref, const fd_trace *cand, fd_verdict *verdict, fd_error *err);

#endif

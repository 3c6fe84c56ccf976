/* Records a run in a trace: forward calls of known tokens, then of greedy ones. */
#ifndef FD_COMPARE_DIFF_RECORD_H
#define FD_COMPARE_DIFF_RECORD_H

#include "dumpers/store/trace.h"

typedef struct fd_recording {
    fd_exec *exec;   /* reset first; its observer is replaced, and removed at the end */
    int32_t *tokens; /* [n_pos] the first n_token are known; greedy choices are added after them */
    int32_t n_token; /* grows by the choices */
    int32_t n_pos;   /* positions to compute; ≥ 1 */
    const fd_trace_step
        *steps; /* [n_step] how the first tokens are split into forward calls, contiguous from position 0;
                                   after them each token is a call. NULL: one prefill of the known tokens */
    int32_t n_step;
    int32_t max_step;   /* the run stops after so many calls; 0: no limit */
    bool golden_logits; /* of the logits fd_golden_thin's are kept; for a trace at FD_TRACE_FINGERPRINT */
    bool whole;         /* a node that is not shown is FD_ERR_INCOMPLETE, a NaN logit FD_ERR_INPUT */
} fd_recording;

/* The caller finishes or abandons the writer. */
fd_code fd_record(fd_recording *run, fd_trace_writer *to, fd_error *err);

#endif

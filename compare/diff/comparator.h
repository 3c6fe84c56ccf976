/* One tensor at one position, of two sides: by fingerprint where both have one that can be compared, else element by
 * element. A side is a row that an executor shows or a row of a trace; traces and lockstep runs both compare here. */
#ifndef FD_COMPARE_DIFF_COMPARATOR_H
#define FD_COMPARE_DIFF_COMPARATOR_H

#include "compare/diff/tensor_diff.h"
#include "dumpers/store/trace.h"

/* Where the elements are: in a trace, else in an observation that holds them; with neither they are unknown. */
typedef struct fd_tensor_side {
    uint32_t dtype;                    /* of the elements, as stored or shown */
    const fd_fingerprint *fingerprint; /* NULL: unknown, or not comparable with the other side's */
    const fd_trace *trace;             /* NULL: live */
    int32_t node, pos;                 /* node: in the trace */
    const fd_observation *live;        /* data not NULL */
    int32_t row;
} fd_tensor_side;

/* The row of a trace. With `fingerprints` it has its fingerprint, if there is one of these elements. */
fd_tensor_side fd_side_of_trace(const fd_trace *trace, int32_t node, int32_t pos, bool fingerprints);

typedef enum fd_look_result { FD_LOOK_SAME, FD_LOOK_DIFFERS, FD_LOOK_UNKNOWN } fd_look_result;

typedef struct fd_look {
    fd_look_result result; /* unknown: a side has neither a comparable fingerprint nor the elements */
    bool by_fingerprint;
    bool has_diff;
    fd_tensor_diff diff; /* when has_diff */
} fd_look;

/* Room for the elements of both sides; {0} is empty. */
typedef struct fd_comparator {
    void *block[2]; /* made on demand, owned */
    size_t bytes[2];
} fd_comparator;
void fd_comparator_free(fd_comparator *comparator);

/* True when both sides have fingerprints of the same kind of bits: look->result is then SAME or DIFFERS. */
bool fd_compare_fingerprints(const fd_tensor_side *ref, const fd_tensor_side *cand, fd_look *look);

/* Compares elements. look->has_diff stays false when a side has none. Elements that agree although their fingerprints
 * differ are FD_ERR_INPUT: the trace that contradicts itself is named. */
fd_code fd_compare_elements(fd_comparator *comparator, const fd_tensor_side *ref, const fd_tensor_side *cand,
                            fd_look *look, fd_error *err);

/* By fingerprint, else by elements. */
fd_code fd_compare_tensors(fd_comparator *comparator, const fd_tensor_side *ref, const fd_tensor_side *cand,
                           fd_look *look, fd_error *err);

#endif

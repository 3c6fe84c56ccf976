/* Two aligned traces and what is needed to look at one tensor of both. Used inside compare/ only. */
#ifndef FD_COMPARE_DIFF_TRACE_PAIR_H
#define FD_COMPARE_DIFF_TRACE_PAIR_H

#include "compare/diff/align.h"

enum { FD_PAIR_BLOCK = 1 << 18 };

typedef struct fd_trace_pair {
    const fd_trace *ref, *cand; /* borrowed */
    fd_alignment align;
    void *ref_data, *cand_data; /* a block of elements as stored, [FD_PAIR_BLOCK] bytes; made on demand, owned */
    size_t memory;              /* bytes that lists made for a comparison may take; what remains is small */
} fd_trace_pair;

typedef enum fd_look_result { FD_LOOK_SAME, FD_LOOK_DIFFERS, FD_LOOK_UNKNOWN } fd_look_result;

typedef struct fd_look {
    fd_look_result result;
    bool by_fingerprint;
    bool has_diff;
    fd_tensor_diff diff; /* when has_diff */
} fd_look;

fd_code fd_trace_pair_open(const fd_trace *ref, const fd_trace *cand, fd_trace_pair *out, fd_error *err);
void fd_trace_pair_close(fd_trace_pair *pair);

/* Compares one node at one position: by fingerprint where both hash the same kind of bits under the same contract,
 * else element by element; unknown when a side lacks what it takes. Fails when a file cannot be read. */
fd_code fd_trace_pair_look(fd_trace_pair *pair, const fd_node_pair *node, int32_t pos, fd_look *out, fd_error *err);

/* True when the two fingerprints can be compared (the same kind of bits under the same contract): *out is then SAME or
 * DIFFERS. */
bool fd_trace_pair_prints(const fd_trace_pair *pair, const fd_node_pair *node, int32_t pos, fd_look_result *out);

/* Reads both sides' elements and compares them; look->has_diff stays false when a side has none. A tensor whose
 * elements agree although its fingerprints differ is FD_ERR_INPUT: one of the files contradicts itself (named). */
fd_code fd_trace_pair_values(fd_trace_pair *pair, const fd_node_pair *node, int32_t pos, fd_look *look, fd_error *err);

/* The pair whose reference node is named so; NULL when there is none. */
const fd_node_pair *fd_trace_pair_find(const fd_trace_pair *pair, const char *name);

#endif

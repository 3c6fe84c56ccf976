#include "compare/diff/trace_pair.h"

#include <string.h>

fd_code fd_trace_pair_open(const fd_trace *ref, const fd_trace *cand, fd_trace_pair *out, fd_error *err) {
    *out = (fd_trace_pair){.ref = ref, .cand = cand, .memory = SIZE_MAX};
    return fd_align_traces(ref, cand, &out->align, err);
}

void fd_trace_pair_close(fd_trace_pair *pair) {
    fd_alignment_free(&pair->align);
    fd_comparator_free(&pair->comparator);
    *pair = (fd_trace_pair){0};
}

const fd_node_pair *fd_trace_pair_find(const fd_trace_pair *pair, const char *name) {
    for (int32_t i = 0; i < pair->align.n_pair; i++)
        if (strcmp(fd_trace_node_at(pair->ref, pair->align.pairs[i].ref)->name, name) == 0)
            return &pair->align.pairs[i];
    return NULL;
}

bool fd_trace_pair_fingerprints(const fd_trace_pair *pair, const fd_node_pair *node, int32_t pos, fd_look *look) {
    if (!pair->align.same_contract) return false;
    fd_tensor_side ref = fd_side_of_trace(pair->ref, node->ref, pos, true);
    fd_tensor_side cand = fd_side_of_trace(pair->cand, node->cand, pos, true);
    return fd_compare_fingerprints(&ref, &cand, look);
}

fd_code fd_trace_pair_values(fd_trace_pair *pair, const fd_node_pair *node, int32_t pos, fd_look *look, fd_error *err) {
    fd_tensor_side ref = fd_side_of_trace(pair->ref, node->ref, pos, true);
    fd_tensor_side cand = fd_side_of_trace(pair->cand, node->cand, pos, true);
    return fd_compare_elements(&pair->comparator, &ref, &cand, look, err);
}

fd_code fd_trace_pair_look(fd_trace_pair *pair, const fd_node_pair *node, int32_t pos, fd_look *out, fd_error *err) {
    *out = (fd_look){.result = FD_LOOK_DIFFERS};
    if (!node->same_shape) return FD_OK;
    bool same_contract = pair->align.same_contract;
    fd_tensor_side ref = fd_side_of_trace(pair->ref, node->ref, pos, same_contract);
    fd_tensor_side cand = fd_side_of_trace(pair->cand, node->cand, pos, same_contract);
    return fd_compare_tensors(&pair->comparator, &ref, &cand, out, err);
}

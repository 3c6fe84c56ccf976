#include "compare/replay/infer.h"

#include <string.h>

#include "numerics/contract.h"

const char *fd_class_source_name(fd_class_source source) {
    return source == FD_CLASS_GIVEN ? "given" : source == FD_CLASS_RECORDED ? "recorded" : "inferred";
}

const fd_numerics_class *fd_class_of_trace(const fd_trace *trace) {
    const fd_trace_info *info = fd_trace_get_info(trace);
    const fd_numerics_class *found = fd_numerics_class_find(info->numerics);
    /* another version of the contract is another order of the same binary32 sums */
    if (found && found->exact && info->contract != FD_CONTRACT_VERSION) found = fd_numerics_class_find("f32");
    if (found && strcmp(found->name, "f32") == 0 && strcmp(info->kv_type, "f16") == 0)
        found = fd_numerics_class_find("f16kv");
    return found;
}

/* In its own class a node's largest z is about a half (one rounding of the output, half of the ulp allowed for it), and
 * 0.6 was the most that the emulated engines showed; a class that is four times too strict can just stay below 1. */
#define COMFORTABLE_Z 0.7

static fd_code count_beyond(const fd_attribution_options *options, const fd_numerics_class *class_, int32_t *n_node,
                            int32_t *n_beyond, fd_error *err) {
    fd_attribution_options how = *options;
    fd_attribution found;
    *n_node = *n_beyond = 0;
    how.ref = NULL; /* what was inherited says nothing about the class */
    how.numerics = class_;
    how.sample = true;
    fd_code code = fd_attribute_errors(&how, &found, err);
    for (int32_t i = 0; code == FD_OK && i < options->graph->n_node; i++) {
        *n_node += found.z[i] != -1;
        *n_beyond += found.z[i] != -1 && !(found.z[i] <= COMFORTABLE_Z);
    }
    fd_attribution_free(&found);
    return code;
}

/* Unit roundoff of the type in which most of the trace's tensors are stored: an engine that keeps them in 16 bits rounds
 * every result to 16 bits. */
static double stored_roundoff(const fd_trace *trace) {
    int32_t n = 0, n_f16 = 0, n_bf16 = 0;
    for (int32_t i = 0; i < fd_trace_n_node(trace); i++) {
        const fd_trace_node *node = fd_trace_node_at(trace, i);
        n += node->has_data;
        n_f16 += node->has_data && node->dtype == FD_F16;
        n_bf16 += node->has_data && node->dtype == FD_BF16;
    }
    uint32_t most = 2 * n_bf16 > n ? FD_BF16 : 2 * n_f16 > n ? FD_F16 : FD_F32;
    return fd_dtype_roundoff(most);
}

/* Scores or weights in the trace have left the kernel: attention is not fused. */
static bool shows_attention(const fd_attribution_options *options) {
    for (int32_t i = 0; i < options->graph->n_node; i++) {
        const fd_node *node = &options->graph->nodes[i];
        if (node->op != FD_OP_ATTN_SCORES && node->op != FD_OP_ATTN_SOFTMAX) continue;
        int32_t at = fd_trace_find(options->cand, node->name);
        if (at >= 0 && fd_trace_node_at(options->cand, at)->has_data) return true;
    }
    return false;
}

fd_code fd_infer_class(const fd_attribution_options *options, const fd_numerics_class **out, fd_error *err) {
    enum { MOST = 16, NODES_OF_A_BUG = 50 };
    const fd_numerics_class *tried[MOST] = {NULL}, *same_type = NULL;
    int32_t beyond[MOST], n = 0, n_node = 0, least = INT32_MAX;
    double stored = stored_roundoff(options->cand);
    bool done = false, shown = shows_attention(options);
    for (int32_t i = 0; fd_numerics_class_at(i) && n < MOST && !done; i++) {
        const fd_numerics_class *class_ = fd_numerics_class_at(i);
        if (class_->exact || class_->u_out < 0x1p-24) continue; /* claimed by a trace, never guessed */
        if (class_->fused_attention && shown) continue;
        if (stored > 0x1p-24 && class_->u_out > stored) continue; /* the trace keeps more than such an engine has */
        FD_TRY(count_beyond(options, class_, &n_node, &beyond[n], err));
        if (beyond[n] < least) least = beyond[n];
        done = beyond[n] == 0 && class_->u_out >= stored;
        tried[n++] = class_;
    }
    *out = tried[0];
    for (int32_t i = n - 1; i >= 0; i--) {
        if (beyond[i] > least + n_node / NODES_OF_A_BUG) continue;
        *out = tried[i];
        if (tried[i]->u_out >= stored) same_type = tried[i];
    }
    /* finer classes fit as well where the 16 bits of the trace hide what they would have kept */
    if (same_type) *out = same_type;
    return FD_OK;
}

#include "compare/diff/align.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int64_t flat_length(fd_tensor_shape shape) {
    int64_t n = 1;
    for (int32_t i = 0; i < shape.n_dim; i++) n *= shape.dims[i];
    return n;
}

bool fd_same_shape(fd_tensor_shape a, fd_tensor_shape b) {
    if (a.over_kv != b.over_kv) return false;
    if (a.n_dim == b.n_dim) return memcmp(a.dims, b.dims, sizeof *a.dims * (size_t)a.n_dim) == 0;
    /* A tensor over key positions changes its length with the position: flat and not flat cannot be told apart. */
    if (a.over_kv || (a.n_dim != 1 && b.n_dim != 1)) return false;
    return flat_length(a) == flat_length(b);
}

static fd_equality same_text(const char *a, const char *b) {
    if (!a[0] || !b[0]) return FD_EQUALITY_UNKNOWN;
    return strcmp(a, b) == 0 ? FD_EQUAL : FD_UNEQUAL;
}

static void align_positions(const fd_trace *ref, const fd_trace *cand, fd_alignment *out) {
    int32_t n_ref = fd_trace_n_pos(ref), n_cand = fd_trace_n_pos(cand);
    out->n_pos = n_ref < n_cand ? n_ref : n_cand;
    out->first_token_differs = out->n_pos;
    const int32_t *a = fd_trace_tokens(ref), *b = fd_trace_tokens(cand);
    for (int32_t p = 0; a && b && p < out->n_pos; p++) {
        if (a[p] != b[p]) {
            out->first_token_differs = p;
            return;
        }
    }
}

fd_code fd_align_traces(const fd_trace *ref, const fd_trace *cand, fd_alignment *out, fd_error *err) {
    int32_t n_ref = fd_trace_n_node(ref), n_cand = fd_trace_n_node(cand);
    int32_t expected = 0; /* most traces have the same nodes in the same order */
    *out = (fd_alignment){0};
    bool *taken = calloc((size_t)n_cand + 1, sizeof *taken);
    out->pairs = calloc((size_t)n_ref + 1, sizeof *out->pairs);
    out->only_ref = calloc((size_t)n_ref + 1, sizeof *out->only_ref);
    out->only_cand = calloc((size_t)n_cand + 1, sizeof *out->only_cand);
    if (!taken || !out->pairs || !out->only_ref || !out->only_cand) {
        free(taken);
        fd_alignment_free(out);
        return fd_fail(err, FD_ERR_MEMORY, "alignment of %d and %d nodes: out of memory", n_ref, n_cand);
    }
    for (int32_t i = 0; i < n_ref; i++) {
        const fd_trace_node *node = fd_trace_node_at(ref, i);
        bool next = expected < n_cand && strcmp(fd_trace_node_at(cand, expected)->name, node->name) == 0;
        int32_t j = next ? expected : fd_trace_find(cand, node->name);
        if (j < 0) {
            out->only_ref[out->n_only_ref++] = i;
            continue;
        }
        taken[j] = true;
        expected = j + 1;
        const fd_trace_node *partner = fd_trace_node_at(cand, j);
        bool same_shape = fd_same_shape((fd_tensor_shape){node->n_dim, node->shape, node->over_kv},
                                        (fd_tensor_shape){partner->n_dim, partner->shape, partner->over_kv});
        out->pairs[out->n_pair++] = (fd_node_pair){i, j, same_shape};
    }
    for (int32_t j = 0; j < n_cand; j++)
        if (!taken[j]) out->only_cand[out->n_only_cand++] = j;
    free(taken);

    align_positions(ref, cand, out);
    const fd_trace_info *a = fd_trace_get_info(ref), *b = fd_trace_get_info(cand);
    out->same_model = same_text(a->model_hash, b->model_hash);
    out->same_arch = same_text(a->arch, b->arch);
    out->same_contract = same_text(a->numerics, b->numerics) == FD_EQUAL && a->contract == b->contract;
    return FD_OK;
}

void fd_alignment_free(fd_alignment *alignment) {
    free(alignment->pairs);
    free(alignment->only_ref);
    free(alignment->only_cand);
    *alignment = (fd_alignment){0};
}

/* Levenshtein distance; node names are shorter than 64. */
static int32_t edit_distance(const char *a, const char *b) {
    int32_t row[64];
    int32_t n = (int32_t)strnlen(b, 63);
    for (int32_t j = 0; j <= n; j++) row[j] = j;
    for (int32_t i = 1; a[i - 1]; i++) {
        int32_t diagonal = row[0];
        row[0] = i;
        for (int32_t j = 1; j <= n; j++) {
            int32_t change = diagonal + (a[i - 1] != b[j - 1]);
            int32_t step = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            diagonal = row[j];
            row[j] = change < step ? change : step;
        }
    }
    return row[n];
}

void fd_nearest_nodes(const fd_trace *trace, const char *name, char *to, size_t size) {
    enum { MOST = 3 };
    struct {
        int32_t node, distance;
    } best[MOST];
    int32_t n_best = 0;
    for (int32_t i = 0; i < fd_trace_n_node(trace); i++) {
        int32_t distance = edit_distance(name, fd_trace_node_at(trace, i)->name);
        if (n_best == MOST && best[MOST - 1].distance <= distance) continue;
        int32_t at = n_best < MOST ? n_best++ : MOST - 1;
        for (; at > 0 && best[at - 1].distance > distance; at--) best[at] = best[at - 1];
        best[at].node = i;
        best[at].distance = distance;
    }
    size_t used = 0;
    if (size) to[0] = '\0';
    for (int32_t i = 0; i < n_best && used < size; i++)
        used += (size_t)snprintf(to + used, size - used, "%s%s", i ? ", " : "",
                                 fd_trace_node_at(trace, best[i].node)->name);
}

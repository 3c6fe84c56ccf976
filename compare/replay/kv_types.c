/* In which types K and V are kept: as the trace, or the question, says. */
#include "compare/replay/kv_types.h"

#include <math.h>
#include <stdlib.h>

#include "compare/replay/internal.h"
#include "model/gguf/quant.h"

/* What a class has of its own it rounds by itself: binary16 is of the classes that keep a cache so. */
static uint32_t beside_class(const fd_numerics_class *c, uint32_t type) {
    return type == FD_F16 || (type == FD_BF16 && !(c->u_kv < 0x1p-8)) ? FD_F32 : type;
}

void fd_kept_types(const fd_numerics_class *numerics, const fd_trace *trace, const char *said, uint32_t *k,
                   uint32_t *v) {
    fd_error none;
    if (fd_kv_types_parse(said ? said : fd_trace_get_info(trace)->kv_type, k, v, &none) != FD_OK) *k = *v = FD_F32;
    *k = beside_class(numerics, *k);
    *v = beside_class(numerics, *v);
}

void fd_replay_read_kv_types(fd_replay *replay) {
    fd_kept_types(replay->o.numerics, replay->o.trace, replay->o.kv_type, &replay->k_type, &replay->v_type);
}

uint32_t fd_replay_kv_type(const fd_replay *replay, const fd_node *node) {
    const fd_op reader =
        node->op == FD_OP_KV_WRITE ? replay->o.graph->nodes[replay->last_reader[node->id]].op : node->op;
    return fd_kept_type_of(reader, replay->k_type, replay->v_type);
}

fd_code fd_replay_quantise_rows(const fd_replay *replay, uint32_t type, double *rows, int64_t n_row, int64_t n,
                                fd_error *err) {
    int64_t bytes = fd_dtype_row_bytes(type, n);
    if (bytes < 0)
        return fd_fail(err, FD_ERR_INPUT, "%s: K/V type \"%s\", but rows of %lld elements are no whole blocks",
                       fd_trace_path(replay->o.trace), fd_dtype_get(type)->name, (long long)n);
    float *x = malloc(sizeof *x * (size_t)n);
    void *blocks = malloc((size_t)bytes);
    bool ran = x && blocks;
    for (int64_t r = 0; ran && r < n_row; r++) {
        double *row = rows + r * n;
        bool finite = true;
        for (int64_t i = 0; i < n; i++) {
            x[i] = (float)row[i];
            finite &= isfinite(x[i]) != 0;
        }
        if (!finite) continue; /* a block has no NaN: the candidate's own is the finding */
        fd_quantize_row(type, x, blocks, n);
        fd_dequantize_row(type, blocks, x, n);
        for (int64_t i = 0; i < n; i++) row[i] = (double)x[i];
    }
    free(x);
    free(blocks);
    return ran ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "replay: out of memory");
}

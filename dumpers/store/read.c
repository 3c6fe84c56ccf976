#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/store/place.h"
#include "dumpers/store/reader.h"
#include "model/gguf/quant.h"

const char *fd_trace_path(const fd_trace *trace) {
    return trace->path;
}
bool fd_trace_set_path(fd_trace *trace, const char *path) {
    char *copy = strdup(path);
    if (!copy) return false;
    free(trace->path);
    trace->path = copy;
    return true;
}
void fd_trace_set_source(fd_trace *trace, int32_t node, const char *name) {
    snprintf(trace->nodes[node].source, sizeof trace->nodes[node].source, "%s", name);
}

void fd_trace_set_saved_as(fd_trace *trace, int32_t node, const char *name) {
    snprintf(trace->nodes[node].saved_as, sizeof trace->nodes[node].saved_as, "%s", name);
}

const fd_trace_info *fd_trace_get_info(const fd_trace *trace) {
    return &trace->info;
}
int32_t fd_trace_n_pos(const fd_trace *trace) {
    return trace->n_pos;
}
const int32_t *fd_trace_tokens(const fd_trace *trace) {
    return trace->tokens;
}
int32_t fd_trace_n_step(const fd_trace *trace) {
    return trace->n_step;
}
const fd_trace_step *fd_trace_steps(const fd_trace *trace) {
    return trace->steps;
}
int32_t fd_trace_n_node(const fd_trace *trace) {
    return trace->n_node;
}
const fd_trace_node *fd_trace_node_at(const fd_trace *trace, int32_t i) {
    return &trace->nodes[i];
}

int32_t fd_trace_find(const fd_trace *trace, const char *name) {
    int32_t low = 0, high = trace->n_node;
    while (low < high) {
        int32_t middle = low + (high - low) / 2, order = strcmp(trace->nodes[trace->by_name[middle]].name, name);
        if (order == 0) return trace->by_name[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return -1;
}

bool fd_trace_has_data(const fd_trace *trace, const char *name) {
    int32_t node = fd_trace_find(trace, name);
    return node >= 0 && trace->nodes[node].has_data;
}

static bool inside(const fd_trace *trace, int32_t node, int32_t pos) {
    return node >= 0 && node < trace->n_node && pos >= 0 && pos < trace->n_pos;
}

const fd_fingerprint *fd_trace_fingerprint(const fd_trace *trace, int32_t node, int32_t pos) {
    if (!trace->fingerprints || !inside(trace, node, pos)) return NULL;
    const fd_fingerprint *f = fd_trace_table_row(trace, trace->fingerprints, pos);
    return f && (f[node].lo || f[node].hi) ? &f[node] : NULL;
}

const fd_trace_stats *fd_trace_stats_at(const fd_trace *trace, int32_t node, int32_t pos) {
    if (!trace->stats || !inside(trace, node, pos)) return NULL;
    const fd_trace_stats *stats = fd_trace_table_row(trace, trace->stats, pos);
    return stats && !isnan(stats[node].n_nan) ? &stats[node] : NULL; /* counts are numbers wherever it was recorded */
}

const fd_trace_health *fd_trace_health_at(const fd_trace *trace, int32_t pos) {
    return trace->health && pos >= 0 && pos < trace->n_pos ? &trace->health[pos] : NULL;
}

static const float *per_head(const fd_trace *trace, const float *table, int32_t pos, int32_t *n_layer,
                             int32_t *n_head) {
    *n_layer = trace->n_layer;
    *n_head = trace->n_head;
    if (!table || pos < 0 || pos >= trace->n_pos) return NULL;
    return table + (size_t)pos * (size_t)trace->n_layer * (size_t)trace->n_head;
}

const float *fd_trace_entropy(const fd_trace *trace, int32_t pos, int32_t *n_layer, int32_t *n_head) {
    return per_head(trace, trace->entropy, pos, n_layer, n_head);
}

const float *fd_trace_sink(const fd_trace *trace, int32_t pos, int32_t *n_layer, int32_t *n_head) {
    return per_head(trace, trace->sink, pos, n_layer, n_head);
}

/* ---- tensors ---- */

int32_t fd_trace_step_of(const fd_trace *trace, int32_t pos) {
    int32_t low = 0, high = trace->n_step;
    while (high - low > 1) {
        const int32_t middle = low + (high - low) / 2;
        if (trace->steps[middle].pos0 <= pos)
            low = middle;
        else
            high = middle;
    }
    return low;
}

int32_t fd_trace_rows_of_call(const fd_trace *trace, int32_t pos) {
    return trace->n_step > 0 ? trace->steps[fd_trace_step_of(trace, pos)].n_pos : 1;
}

/* Is `pos` one of the last `n` positions of its step? */
static bool is_at_end(const fd_trace *trace, int32_t pos, int32_t n) {
    const fd_trace_step *step = &trace->steps[fd_trace_step_of(trace, pos)];
    return pos >= step->pos0 + step->n_pos - n;
}

/* Why position `pos` of the node cannot be read; NULL when it can, all of it or in part. */
static const char *absent(const fd_trace *trace, int32_t node, int32_t pos) {
    const fd_trace_set *set = &trace->sets[node];
    if (!trace->nodes[node].has_data && !trace->nodes[node].partial)
        return "the trace does not hold this tensor's elements";
    bool always = trace->info.level < FD_TRACE_FULL; /* it is then in every step (fd_trace_options.always) */
    if (trace->level[pos] < FD_TRACE_FULL && !always) return "its step was recorded below the level full";
    if (trace->fingerprints && !fd_trace_fingerprint(trace, node, pos)) return "it was not recorded at this position";
    if (pos < set->first || (hsize_t)(pos - set->first) >= set->shape.dim[0]) return "the dataset has no such position";
    if (trace->nodes[node].last_rows > 0 && !is_at_end(trace, pos, trace->nodes[node].last_rows))
        return "of its step the last rows alone were recorded";
    if (trace->nodes[node].over_kv && set->shape.dim[set->shape.rank - 1] < (hsize_t)pos + 1)
        return "the dataset ends before this position's last key";
    return NULL;
}

bool fd_trace_holds(const fd_trace *trace, int32_t node, int32_t pos) {
    return inside(trace, node, pos) && trace->nodes[node].has_data && !absent(trace, node, pos);
}

/* Widens n elements that stand at the end of the output buffer to its beginning: element i is read before anything
 * later overwrites it, because an output element is at least as wide as an input element. */
static void widen(uint32_t dtype, const char *in, int64_t n, float *out32, double *out64) {
    for (int64_t i = 0; i < n; i++) {
        uint16_t half;
        float value;
        if (dtype == FD_F32) {
            memcpy(&value, in + (size_t)i * 4, 4);
        } else {
            memcpy(&half, in + (size_t)i * 2, 2);
            value = dtype == FD_F16 ? fd_f16_to_f32(half) : fd_bf16_to_f32(half);
        }
        if (out32)
            out32[i] = value;
        else
            out64[i] = (double)value;
    }
}

static fd_code read_row(const fd_trace *trace, int32_t node_id, int32_t pos, float *out32, double *out64,
                        fd_error *err) {
    const fd_trace_node *node = &trace->nodes[node_id];
    int64_t n = fd_trace_elements(node, pos);
    size_t stored = fd_element_bytes(node->dtype), wanted = out32 ? 4 : 8;
    char *at = (out32 ? (char *)out32 : (char *)out64) + (size_t)n * (wanted - stored);
    FD_TRY(fd_trace_read_part(trace, node_id, pos, 0, n, at, err));
    if (stored < wanted) widen(node->dtype, at, n, out32, out64);
    return FD_OK;
}

fd_code fd_trace_read(const fd_trace *trace, int32_t node, int32_t pos, float *out32, double *out64, fd_error *err) {
    if (!inside(trace, node, pos))
        return fd_fail(err, FD_ERR_INPUT, "%s: node %d, position %d: the trace has %d nodes and %d positions",
                       trace->path, node, pos, trace->n_node, trace->n_pos);
    const char *why = absent(trace, node, pos);
    if (why)
        return fd_fail(err, FD_ERR_INCOMPLETE, "%s: %s at position %d: %s", trace->path, trace->nodes[node].name, pos,
                       why);
    if (out32 && trace->nodes[node].dtype == FD_F64)
        return fd_fail(err, FD_ERR_INPUT, "%s: %s: binary64 elements, not to be read as binary32", trace->path,
                       trace->nodes[node].name);
    return read_row(trace, node, pos, out32, out64, err);
}

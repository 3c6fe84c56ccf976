#include "cli/inspect/gather.h"

#include <math.h>
#include <stdlib.h>

/* The ranges of all axes; keys as of the last selected position. */
static fd_code resolve(const fd_trace *trace, const fd_trace_node *node, const fd_slice *slice,
                       fd_range ranges[FD_SLICE_MAX_AXIS], fd_error *err) {
    int32_t n_pos = fd_trace_n_pos(trace);
    bool inside = fd_slice_resolve(slice, 0, n_pos, &ranges[0]) && ranges[0].count > 0;
    for (int32_t i = 0; inside && i < node->n_dim; i++) {
        int64_t last = ranges[0].first + (ranges[0].count - 1) * ranges[0].step;
        int64_t length = node->over_kv && i == node->n_dim - 1 ? last + 1 : node->shape[i];
        inside = fd_slice_resolve(slice, i + 1, length, &ranges[i + 1]) && ranges[i + 1].count > 0;
    }
    if (inside) return FD_OK;
    return fd_fail(err, FD_ERR_INPUT, "%s: the slice selects nothing of it", node->name);
}

/* One position's row into `to`, axis by axis. */
static double *copy_axis(const fd_trace_node *node, const fd_range *ranges, int32_t axis, int64_t n_key,
                         const double *from, double *to) {
    if (axis >= node->n_dim || axis >= FD_SLICE_MAX_AXIS - 1) {
        *to = *from;
        return to + 1;
    }
    int64_t stride = 1;
    for (int32_t i = axis + 1; i < node->n_dim && i < FD_SLICE_MAX_AXIS - 1; i++)
        stride *= node->over_kv && i == node->n_dim - 1 ? n_key : node->shape[i];
    for (int64_t k = 0; k < ranges[axis].count; k++) {
        int64_t at = ranges[axis].first + k * ranges[axis].step;
        if (node->over_kv && axis == node->n_dim - 1 && at >= n_key)
            *to++ = NAN;
        else
            to = copy_axis(node, ranges, axis + 1, n_key, from + at * stride, to);
    }
    return to;
}

fd_code fd_inspect_gather(const fd_trace *trace, int32_t node, const fd_slice *slice, fd_gathered *out, fd_error *err) {
    const fd_trace_node *info = fd_trace_node_at(trace, node);
    fd_range ranges[FD_SLICE_MAX_AXIS];
    *out = (fd_gathered){.n = 1};
    FD_TRY(resolve(trace, info, slice, ranges, err));
    for (int32_t i = 0; i <= info->n_dim; i++) {
        out->n *= ranges[i].count;
        if (i >= slice->n_axis || !slice->axes[i].is_index) out->shape[out->rank++] = ranges[i].count;
    }
    out->data = malloc(sizeof *out->data * (size_t)out->n);
    if (!out->data)
        return fd_fail(err, FD_ERR_MEMORY, "%s: %lld elements: out of memory", info->name, (long long)out->n);
    double *to = out->data;
    for (int64_t k = 0; k < ranges[0].count; k++) {
        int32_t pos = (int32_t)(ranges[0].first + k * ranges[0].step);
        double *row;
        int64_t n;
        fd_code code = fd_inspect_read(trace, node, pos, &row, &n, err);
        if (code != FD_OK) {
            fd_gathered_free(out);
            return code;
        }
        to = copy_axis(info, ranges + 1, 0, pos + 1, row, to);
        free(row);
    }
    return FD_OK;
}

void fd_gathered_free(fd_gathered *gathered) {
    free(gathered->data);
    *gathered = (fd_gathered){0};
}

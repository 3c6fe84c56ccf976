/* Names of layers whose values decide nothing, and how long they are beside a node's in the right run: directions are lost behind a
 * bug, but what a branch adds is still shorter than the stream that it is added to, and a norm as long as its weight makes it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/import/propose/internal.h"

typedef struct lengths { /* of rows that both have */
    double own, right;   /* sums of squares; a number that is none makes them none */
} lengths;

static void add_row(lengths *l, const double *row, const float *ref, int64_t width) {
    for (int64_t i = 0; i < width; i++) {
        l->own += row[i] * row[i];
        l->right += (double)ref[i] * (double)ref[i];
    }
}

/* A file's: its rows, in whatever order their elements lie, are the last positions of its step. */
static bool add_file(const fd_proposer *p, size_t tensor, int32_t node, float *ref, int64_t width, lengths *l) {
    const fd_source_tensor *t = fd_source_at(p->source, tensor);
    const fd_import_step *step = &p->plan.steps[t->step];
    const int64_t n = fd_source_elements(t), rows = n / width;
    fd_source_view view;
    fd_error unread;
    double *values = malloc(sizeof *values * (size_t)(n + 1));
    bool read = values && rows * width == n && rows <= step->n_pos;
    if (read && fd_source_view_open(p->source, tensor, &view, &unread) == FD_OK) {
        fd_array_fetch(&view.array, values);
        fd_source_view_close(&view);
        for (int64_t r = 0; r < rows && read; r++) {
            read = fd_trace_read(p->ref, node, step->pos0 + step->n_pos - (int32_t)(rows - r), ref, NULL, &unread) ==
                   FD_OK;
            if (read) add_row(l, values + r * width, ref, width);
        }
    }
    free(values);
    return read;
}

/* A trace's. */
static bool add_trace(const fd_proposer *p, const fd_source_tensor *t, int32_t node, float *ref, int64_t width,
                      lengths *l) {
    const fd_trace *trace = fd_source_trace(p->source);
    const bool fits = !t->over_kv && fd_trace_elements(fd_trace_node_at(trace, (int32_t)t->file), 0) == width;
    double *row = malloc(sizeof *row * (size_t)(width + 1));
    fd_error unread;
    for (int32_t pos = t->first; row && fits && pos < fd_trace_n_pos(trace); pos++)
        if (fd_trace_read(trace, (int32_t)t->file, pos, NULL, row, &unread) == FD_OK &&
            fd_trace_read(p->ref, node, pos, ref, NULL, &unread) == FD_OK)
            add_row(l, row, ref, width);
    free(row);
    return fits;
}

/* How far the lengths of one name are from the node's; INFINITY. Rows over the keys grow: they have no length to compare. */
static double off_of(const fd_proposer *p, const fd_proposed *item, int32_t node) {
    const fd_source_tensor *t = fd_source_at(p->source, item->tensors[0]);
    if (fd_trace_node_at(p->ref, node)->over_kv) return INFINITY;
    const int64_t width = fd_trace_elements(fd_trace_node_at(p->ref, node), 0);
    float *ref = malloc(sizeof *ref * (size_t)(width + 1));
    lengths l = {0};
    const bool read =
        ref && width > 0 &&
        (t->step < 0 ? add_trace(p, t, node, ref, width, &l) : add_file(p, item->tensors[0], node, ref, width, &l));
    free(ref);
    return read && l.own > 0 && l.right > 0 ? fabs(log(l.own / l.right)) / 2 : INFINITY;
}

double fd_propose_length_off(const fd_proposer *p, const char *pattern, const char *tail) {
    double off = 0;
    int32_t n_layer = 0;
    for (size_t i = 0; i < p->n; i++) {
        fd_name_map_capture capture;
        char name[96];
        if (p->items[i].slice[0] || !fd_name_map_matches(pattern, p->items[i].name, &capture)) continue;
        snprintf(name, sizeof name, "blk.%d%s", capture.layer, tail);
        const int32_t node = fd_trace_find(p->ref, name);
        if (node < 0) return INFINITY;
        off += off_of(p, &p->items[i], node);
        n_layer++;
    }
    return n_layer ? off / n_layer : INFINITY;
}

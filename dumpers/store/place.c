#include "dumpers/store/place.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "dumpers/store/reader.h"

fd_placed fd_trace_place(const fd_trace *trace, int32_t node) {
    fd_trace_set *set = &trace->sets[node];
    if (!set->placed) return FD_PLACED_NOT;
    if (set->chunks) return FD_PLACED;
    size_t limit = trace->memory / 8, used = *trace->places_bytes;
    int64_t n = fd_h5_chunk_count(&set->shape, &set->layout, (int64_t)(limit / sizeof *set->chunks));
    if (n < 0) return FD_PLACED_NOT;
    size_t bytes = (size_t)n * sizeof *set->chunks;
    if (bytes > limit - (used < limit ? used : limit)) return used > 0 ? FD_PLACED_FULL : FD_PLACED_NOT;
    set->chunks = n == 1 ? &set->only : malloc(bytes + 1);
    if (set->chunks && fd_h5_find_chunks(&trace->bytes, &set->shape, &set->layout, set->chunks)) {
        if (n != 1) *trace->places_bytes += bytes;
        set->n_chunk = n;
        return FD_PLACED;
    }
    fd_trace_set_forget(set);
    set->placed = false; /* the library may know better */
    return FD_PLACED_NOT;
}

void fd_trace_forget_places(const fd_trace *trace) {
    for (int32_t i = 0; trace->sets && i < trace->n_node; i++) fd_trace_set_forget(&trace->sets[i]);
    *trace->places_bytes = 0;
}

bool fd_trace_any_chunk(const fd_trace *trace, const fd_trace_set *set) {
    int64_t n = fd_h5_chunk_count(&set->shape, &set->layout, 1 << 16);
    if (set->layout.address == FD_H5_NOWHERE) return false;
    if (n < 0) return true; /* too many to look at for what is a courtesy: an unwritten one reads as its fill value */
    fd_h5_chunk only, *chunks = n == 1 ? &only : malloc((size_t)n * sizeof *chunks + 1);
    bool any = !chunks || !fd_h5_find_chunks(&trace->bytes, &set->shape, &set->layout, chunks);
    for (int64_t i = 0; !any && i < n; i++) any = chunks[i].address != FD_H5_NOWHERE;
    if (chunks != &only) free(chunks);
    return any;
}

/* ---- the grid of chunks ---- */

static hsize_t chunks_along(const fd_trace_set *set, int dim) {
    return (set->shape.dim[dim] + set->layout.chunk[dim] - 1) / set->layout.chunk[dim];
}

int64_t fd_trace_columns(const fd_trace *trace, int32_t node) {
    const fd_trace_set *set = &trace->sets[node];
    int64_t n = 1;
    for (int i = 1; i < set->shape.rank; i++) n *= (int64_t)chunks_along(set, i);
    return n;
}

int32_t fd_trace_chunk_end(const fd_trace *trace, int32_t node, int32_t pos) {
    const fd_trace_set *set = &trace->sets[node];
    hsize_t row = (hsize_t)(pos - set->first), end = (row / set->layout.chunk[0] + 1) * set->layout.chunk[0];
    if (end > set->shape.dim[0]) end = set->shape.dim[0];
    return set->first + (int32_t)end;
}

/* Bytes of one position in one chunk. */
static uint64_t slab_bytes(const fd_trace_set *set) {
    uint64_t n = set->layout.element_bytes;
    for (int i = 1; i < set->shape.rank; i++) n *= set->layout.chunk[i];
    return n;
}

bool fd_trace_region_of(const fd_trace *trace, int32_t node, int32_t pos, int32_t n, int64_t column,
                        fd_trace_region *out) {
    const fd_trace_set *set = &trace->sets[node];
    int last = set->shape.rank - 1;
    hsize_t row = (hsize_t)(pos - set->first), along = chunks_along(set, last);
    *out = (fd_trace_region){0, 0};
    /* keys beyond the last of these positions are padding */
    if (trace->nodes[node].over_kv && (hsize_t)column % along * set->layout.chunk[last] >= (hsize_t)pos + (hsize_t)n)
        return true;
    uint64_t chunk =
        set->chunks[(int64_t)(row / set->layout.chunk[0]) * fd_trace_columns(trace, node) + column].address;
    if (chunk == FD_H5_NOWHERE) return false;
    uint64_t slab = slab_bytes(set);
    *out = (fd_trace_region){chunk + row % set->layout.chunk[0] * slab, (uint64_t)n * slab};
    return true;
}

void fd_trace_view_close(fd_trace_view *view) {
    fd_file_unmap(view->data, view->n);
    *view = (fd_trace_view){0};
}

const void *fd_trace_view_at(const fd_trace *trace, fd_trace_view *view, uint64_t address, size_t n) {
    enum { ALIGN = 64 << 10 }; /* of pages of any size */
    uint64_t size = trace->bytes.size, at = address / ALIGN * ALIGN;
    if (n > FD_TRACE_VIEW || address > size || n > size - address) return NULL;
    if (view->data && address >= view->at && address + n <= view->at + view->n)
        return view->data + (address - view->at);
    fd_trace_view_close(view);
    size_t most = size - at < FD_TRACE_VIEW + ALIGN ? (size_t)(size - at) : FD_TRACE_VIEW + ALIGN;
    const char *data = fd_file_map_part(trace->bytes.fd, trace->path, at, most);
    if (!data) return NULL;
    *view = (fd_trace_view){data, at, most};
    return data + (address - at);
}

void fd_trace_span_close(fd_trace_span *span) {
    free(span->data);
    *span = (fd_trace_span){0};
}

const void *fd_trace_span_at(const fd_trace *trace, fd_trace_span *span, uint64_t address, size_t n) {
    enum { GAP = 16 << 10 }; /* bytes of others' between two tensors of a row */
    uint64_t end = span->at + span->n, size = trace->bytes.size;
    if (n > FD_TRACE_SPAN || address > size || n > size - address) return NULL;
    if (!span->data && !(span->data = malloc(FD_TRACE_SPAN))) return NULL;
    if (address >= span->at && address + n <= end) return span->data + (address - span->at);
    bool goes_on = address >= span->at && address <= end + GAP;
    size_t most = size - address < FD_TRACE_SPAN ? (size_t)(size - address) : FD_TRACE_SPAN;
    span->at = address;
    span->n = goes_on ? most : n;
    if (fd_h5_bytes_read(&trace->bytes, address, span->n, span->data)) return span->data;
    span->n = 0;
    return NULL;
}

bool fd_trace_same_places(const fd_trace *a, int32_t node_a, const fd_trace *b, int32_t node_b) {
    const fd_trace_set *x = &a->sets[node_a], *y = &b->sets[node_b];
    if (!x->chunks || !y->chunks || x->layout.filters.any || y->layout.filters.any || x->first != y->first ||
        x->shape.rank != y->shape.rank || a->nodes[node_a].dtype != b->nodes[node_b].dtype ||
        a->nodes[node_a].over_kv != b->nodes[node_b].over_kv)
        return false;
    /* one block has no cuts along positions; its length there may differ */
    bool blocks = x->layout.index == FD_H5_CONTIGUOUS && y->layout.index == FD_H5_CONTIGUOUS;
    for (int i = 0; i < x->shape.rank; i++)
        if ((x->shape.dim[i] != y->shape.dim[i] && i > 0) ||
            (x->layout.chunk[i] != y->layout.chunk[i] && !(i == 0 && blocks)))
            return false;
    return true;
}

/* ---- reading ---- */

/* Where element e of a position's unpadded tensor lies, in which chunk, and how many follow it there. Filtered chunks'
 * places are those of their elements once they are inflated. */
static bool locate(const fd_trace *trace, int32_t node, int32_t pos, int64_t e, const fd_h5_chunk **in,
                   uint64_t *address, int64_t *run) {
    const fd_trace_set *set = &trace->sets[node];
    int last = set->shape.rank - 1;
    hsize_t length = trace->nodes[node].over_kv ? (hsize_t)pos + 1 : set->shape.dim[last];
    hsize_t line = (hsize_t)e / length, at[FD_H5_MAX_RANK] = {(hsize_t)(pos - set->first)};
    at[last] = (hsize_t)e % length;
    for (int i = last - 1; i > 0; i--) {
        at[i] = line % set->shape.dim[i];
        line /= set->shape.dim[i];
    }
    hsize_t chunk = 0, inside = 0, left = set->layout.chunk[last] - at[last] % set->layout.chunk[last];
    *run = (int64_t)(length - at[last] < left ? length - at[last] : left);
    for (int i = 0; i <= last; i++) {
        chunk = chunk * chunks_along(set, i) + at[i] / set->layout.chunk[i];
        inside = inside * set->layout.chunk[i] + at[i] % set->layout.chunk[i];
    }
    *in = &set->chunks[chunk];
    *address = (set->layout.filters.any ? 0 : (*in)->address) + inside * set->layout.element_bytes;
    return (*in)->address != FD_H5_NOWHERE;
}

/* Elements lie in many short runs where rows are cut along keys: a call for each would cost more than its copy. */
static bool copy_bytes(const fd_trace *trace, fd_trace_view *view, uint64_t address, size_t n, void *out) {
    const void *there = fd_trace_view_at(trace, view, address, n);
    if (there) memcpy(out, there, n);
    return there || fd_h5_bytes_read(&trace->bytes, address, n, out);
}

bool fd_trace_read_placed(const fd_trace *trace, fd_trace_view *view, int32_t node, int32_t pos, int64_t first,
                          int64_t n, void *out) {
    const fd_trace_set *set = &trace->sets[node];
    const fd_h5_chunk *in, *next_in, *open = NULL; /* open: the chunk that `piece` is */
    bool filtered = set->layout.filters.any, ok = true;
    size_t size = set->layout.element_bytes;
    fd_h5_piece *piece = NULL;
    fd_h5_bytes from = trace->bytes;
    if (!set->chunks) return false;
    for (char *to = out; ok && n > 0;) {
        uint64_t address, next;
        int64_t run, more;
        if (!locate(trace, node, pos, first, &in, &address, &run)) break;
        /* lines that follow one another are read together */
        while (run < n && locate(trace, node, pos, first + run, &next_in, &next, &more) &&
               next == address + (uint64_t)run * size && (!filtered || next_in == in))
            run += more;
        if (run > n) run = n;
        if (filtered && in != open) {
            if (piece) fd_h5_inflated_end(trace->inflated, piece);
            piece = fd_h5_inflated_begin(trace->inflated, &set->layout, set->shape.rank, *in, &from);
            open = in;
        }
        if (filtered)
            ok = piece && fd_h5_bytes_read(&from, address, (size_t)run * size, to);
        else
            ok = copy_bytes(trace, view, address, (size_t)run * size, to);
        to += (size_t)run * size;
        first += run;
        n -= run;
    }
    if (piece) fd_h5_inflated_end(trace->inflated, piece);
    return ok && n <= 0;
}

/* 16-bit elements as they are stored, others in this machine's form. */
static bool read_block(const fd_trace *trace, int32_t node, fd_h5_shape start, fd_h5_shape count, void *out) {
    char path[FD_TRACE_PATH];
    uint32_t dtype = trace->nodes[node].dtype;
    fd_h5_block block = {.object = fd_tensor_path(trace->nodes[node].name, path),
                         .type = dtype == FD_F32   ? &fd_h5_f32
                                 : dtype == FD_F64 ? &fd_h5_f64
                                                   : &fd_h5_words,
                         .shape = trace->sets[node].shape,
                         .start = start,
                         .count = count};
    return fd_h5_reader_rows(trace->reader, &block, out);
}

/* Through the library: the whole row at once, else line by line. */
static bool read_by_library(const fd_trace *trace, int32_t node_at, int32_t pos, int64_t first, int64_t n, char *out) {
    const fd_trace_node *node = &trace->nodes[node_at];
    const fd_trace_set *set = &trace->sets[node_at];
    int last = set->shape.rank - 1;
    fd_h5_shape start = {set->shape.rank, {(hsize_t)(pos - set->first)}}, count = {set->shape.rank, {1}};
    for (int i = 1; i <= last; i++) count.dim[i] = set->shape.dim[i];
    if (node->over_kv) count.dim[last] = (hsize_t)pos + 1;
    if (first == 0 && n == fd_trace_elements(node, pos)) return read_block(trace, node_at, start, count, out);
    hsize_t length = count.dim[last];
    while (n > 0) {
        hsize_t line = (hsize_t)first / length, column = (hsize_t)first % length;
        for (int i = last - 1; i > 0; i--) {
            start.dim[i] = line % set->shape.dim[i];
            line /= set->shape.dim[i];
            count.dim[i] = 1;
        }
        start.dim[last] = column;
        count.dim[last] = length - column < (hsize_t)n ? length - column : (hsize_t)n;
        if (!read_block(trace, node_at, start, count, out)) return false;
        out += count.dim[last] * fd_element_bytes(node->dtype);
        first += (int64_t)count.dim[last];
        n -= (int64_t)count.dim[last];
    }
    return true;
}

fd_code fd_trace_read_part(const fd_trace *trace, int32_t node, int32_t pos, int64_t first, int64_t n, void *out,
                           fd_error *err) {
    if (fd_trace_place(trace, node) == FD_PLACED_FULL) {
        fd_trace_forget_places(trace);
        fd_trace_place(trace, node);
    }
    if (fd_trace_read_placed(trace, trace->view, node, pos, first, n, out)) return FD_OK;
    if (read_by_library(trace, node, pos, first, n, out)) return FD_OK;
    return fd_h5_reader_fail(trace->reader, err, FD_ERR_INPUT, "%s: tensors/%s: position %d cannot be read",
                             trace->path, trace->nodes[node].name, pos);
}

/* Compressed rows: what HDF5's own filters would make of a chunk, made by helpers, so that several are at work
 * at once and the thread that calls HDF5 only stores bytes. */
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "dumpers/observe/writer.h"

bool fd_trace_compresses(const fd_trace_writer *writer, const fd_node *node) {
    /* rows along keys are several chunks each, the last of them partly outside the row: left to HDF5 */
    return writer->plan.options.compress && writer->plan.in_file[node->id] && !node->over_kv;
}

/* HDF5's shuffle: the first bytes of all elements, then the second ones, … */
static void shuffle(const char *from, size_t n, size_t size, char *to) {
    for (size_t b = 0; b < size; b++)
        for (size_t i = 0; i < n; i++) to[b * n + i] = from[i * size + b];
}

static uint32_t *sizes_of(const fd_trace_writer *writer, fd_trace_record *r) {
    size_t shown = fd_element_bytes(writer->plan.dtype);
    return (uint32_t *)(void *)(r->data + (size_t)(r->n_pos * r->row_elements) * shown);
}

void fd_trace_compress(const fd_trace_writer *writer, fd_trace_record *r) {
    size_t size = fd_element_bytes(writer->plan.stored), n = (size_t)r->row_elements, bytes = n * size;
    uint32_t *sizes = sizes_of(writer, r);
    memset(sizes, 0, (size_t)r->n_pos * sizeof *sizes);
    if (bytes > 1u << 30) return;
    uLong most = compressBound((uLong)bytes);
    char *shuffled = malloc(bytes), *compressed = malloc(most);
    for (int32_t row = 0; shuffled && compressed && row < r->n_pos; row++) {
        char *data = r->data + (size_t)row * bytes;
        uLongf length = most;
        shuffle(data, n, size, shuffled);
        if (compress2((Bytef *)compressed, &length, (const Bytef *)shuffled, (uLong)bytes, 1) != Z_OK || length > bytes)
            continue;
        memcpy(data, compressed, length);
        sizes[row] = (uint32_t)length;
    }
    free(shuffled);
    free(compressed);
}

uint32_t fd_trace_compressed_bytes(const fd_trace_writer *writer, fd_trace_record *r, int32_t row) {
    return sizes_of(writer, r)[row];
}

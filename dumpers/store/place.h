/* Where a trace's elements lie in its file, for reading them without HDF5 and from several threads.
 *
 * A dataset is *placed* when its bytes are those of memory, or become them by the filters that dumpers/hdf5/filters.h
 * knows: little-endian, in a complete file, in a layout that dumpers/hdf5/object.h and index.h know. Everything else is
 * read by the library. What is read either way is the same. */
#ifndef FD_DUMPERS_STORE_PLACE_H
#define FD_DUMPERS_STORE_PLACE_H

#include "dumpers/store/trace.h"

typedef enum fd_placed {
    FD_PLACED,
    FD_PLACED_NOT,  /* read it with the library */
    FD_PLACED_FULL, /* no room for its list of chunks within the trace's memory: fd_trace_forget_places, and again */
} fd_placed;

/* Loads where the node's chunks lie, unless that is known. Not while other threads read from the trace. */
fd_placed fd_trace_place(const fd_trace *trace, int32_t node);
void fd_trace_forget_places(const fd_trace *trace);

/* True when the trace should hold the node's elements at this position. */
bool fd_trace_holds(const fd_trace *trace, int32_t node, int32_t pos);

/* A stretch of the file in memory, which moves to what is asked for. One thread's; zeros at first. Large tensors are
 * compared in the system's cache in half the time of copying them out of it, and rows cut along keys are many short runs
 * there. A file that is cut short meanwhile raises SIGBUS (base/file.h). */
typedef struct fd_trace_view {
    const char *data;
    uint64_t at;
    size_t n;
} fd_trace_view;
enum { FD_TRACE_VIEW = 4 << 20 }; /* bytes: far more to look at than mapping costs, little memory for each thread */
/* Bytes [address, address + n) until the view moves; NULL: n > FD_TRACE_VIEW, the file has not all of them, or they
 * cannot be mapped. */
const void *fd_trace_view_at(const fd_trace *trace, fd_trace_view *view, uint64_t address, size_t n);
void fd_trace_view_close(fd_trace_view *view);

/* A stretch of the file that was copied. One thread's; zeros at first. Small tensors that lie one behind another come
 * with one read of them all: they lie in small pages of the system's cache, and mapping and unmapping each takes longer
 * than copying it into a second-level cache, which two of these fit. */
enum { FD_TRACE_SPAN = 128 << 10 };
typedef struct fd_trace_span {
    char *data; /* [FD_TRACE_SPAN]; NULL at first */
    uint64_t at;
    size_t n;
} fd_trace_span;
/* As fd_trace_view_at; NULL: n > FD_TRACE_SPAN, the file has not all of them, or no memory. */
const void *fd_trace_span_at(const fd_trace *trace, fd_trace_span *span, uint64_t address, size_t n);
void fd_trace_span_close(fd_trace_span *span);

/* Elements [first, first + n) of one position's unpadded tensor, of the type the node says (16-bit ones are not
 * widened, unlike fd_trace_read). Reads placed ones from the file, others through the library. */
fd_code fd_trace_read_part(const fd_trace *trace, int32_t node, int32_t pos, int64_t first, int64_t n, void *out,
                           fd_error *err);
/* The same for placed nodes alone, from any thread that has a view; false: ask fd_trace_read_part. */
bool fd_trace_read_placed(const fd_trace *trace, fd_trace_view *view, int32_t node, int32_t pos, int64_t first,
                          int64_t n, void *out);

/* ---- for nodes of same places ---- */

/* Chunks cut a position's padded tensor into `columns`; in each, positions of one row of chunks are one region. */
int64_t fd_trace_columns(const fd_trace *trace, int32_t node);
/* One past the last position that lies in the same row of chunks as `pos`. */
int32_t fd_trace_chunk_end(const fd_trace *trace, int32_t node, int32_t pos);
typedef struct fd_trace_region {
    uint64_t address, bytes; /* in the file; bytes 0: nothing of these positions lies in this column */
} fd_trace_region;
/* Where [pos, pos + n), which lie in one row of chunks, have their part of a column; false when it was never
 * written. */
bool fd_trace_region_of(const fd_trace *trace, int32_t node, int32_t pos, int32_t n, int64_t column,
                        fd_trace_region *out);
/* True when two placed nodes without filters are cut alike, so that equal bytes, column by column, are equal tensors. */
bool fd_trace_same_places(const fd_trace *a, int32_t node_a, const fd_trace *b, int32_t node_b);

#endif

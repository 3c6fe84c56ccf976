/* Rows on their way to known places of the file, past HDF5. A request is a task of the queue: the order of requests is
 * free, because none of their rows counts before its step's row in /steps. */
#ifndef FD_DUMPERS_STORE_WRITE_REQUEST_H
#define FD_DUMPERS_STORE_WRITE_REQUEST_H

#include "dumpers/store/store.h"

/* A place in a list of rows. */
typedef struct fd_row_iterator {
    const fd_store_rows *rows;
    size_t i, n;
    int32_t row; /* of rows[i] */
} fd_row_iterator;

bool fd_rows_ended(const fd_row_iterator *at);
int32_t fd_rows_pos(const fd_row_iterator *at);
const char *fd_rows_data(const fd_row_iterator *at);
void fd_rows_step(fd_row_iterator *at, int32_t n);
/* How far the rows from here on follow one another, not beyond `limit`. */
int32_t fd_rows_reach(fd_row_iterator at, int32_t limit);

/* Rows [pos, end) of the chunks whose first row is `from`; those of [fill, pos) were not recorded. */
typedef struct fd_write_span {
    int32_t from, fill, pos, end;
    int32_t n_column; /* chunks */
} fd_write_span;

typedef struct fd_chunk_address {
    uint64_t address; /* in the file */
    bool fresh;       /* nothing was written there: [from, pos) is fill */
} fd_chunk_address;

typedef struct fd_write_request {
    fd_queue_task task;
    fd_h5_target *target;
    fd_write_ahead ahead;
    fd_tensor_form form;
    size_t row_bytes; /* of one row in one chunk */
    size_t n_span, n_chunk, n_rows;
    fd_write_span *spans;
    fd_chunk_address *chunks; /* of the spans' columns, in order */
    fd_store_rows *rows;      /* of the spans, in order; what they point to stays where it is */
} fd_write_request;

/* A request with room for so much, to be filled and submitted; NULL: out of memory. */
fd_write_request *fd_new_write_request(size_t n_span, size_t n_chunk, size_t n_rows);

#endif

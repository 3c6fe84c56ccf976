/* The file of a trace while it is written. It grows under a name of its own, PATH.PID.part, and takes its place at PATH
 * when it is whole: what lay there before is untouched until then.
 *
 * Most files hold one trace, and fd_trace_create makes them. A file of several traces, a group each, is made here:
 *
 *     fd_trace_file_create(path, &file, err);
 *     options.file = file, options.group = "prompt/0";      // for each trace, one after another:
 *     fd_trace_create(&options, …); … fd_trace_finish(…);
 *     fd_h5_put_string(file->id, "schema", …);              // the root's attributes are the caller's
 *     fd_trace_file_finish(file, err);
 *
 * and fd_trace_open_group reads one of them. */
#ifndef FD_DUMPERS_STORE_FILE_H
#define FD_DUMPERS_STORE_FILE_H

#include "dumpers/hdf5/driver.h"
#include "dumpers/store/trace.h"

typedef struct fd_trace_file {
    char *path, *part;
    hid_t id;            /* -1: not open */
    fd_h5_target target; /* knows what the disk refused */
    bool growing;        /* it still has the name `part` */
    bool exclusive;
    int lock; /* exclusive: a descriptor of the file at `path`, locked; -1: not there yet */
} fd_trace_file;

/* An empty file. FD_ERR_IO when it cannot be made, or something else than a regular file lies at `path`. */
fd_code fd_trace_file_create(const char *path, fd_trace_file **out, fd_error *err);
/* The same, and the path is its own while it is written: another exclusive one there is refused, and a file that
 * takes its place meanwhile is left alone. Where the file system knows no locks there are none. */
fd_code fd_trace_file_create_exclusive(const char *path, fd_trace_file **out, fd_error *err);
/* Copies a closed file to `part` and opens the copy in plain mode: datasets may be added to it. */
fd_code fd_trace_file_begin_copy(fd_trace_file *file, fd_error *err);
/* Opens the file, which must be closed or whole, for HDF5's single-writer mode, and moves it to its path: from here on
 * datasets only grow, and a killed program leaves a file that opens. */
fd_code fd_trace_file_publish(fd_trace_file *file, fd_error *err);
/* Opens a closed file at its path in plain mode, in which attributes can be written. */
bool fd_trace_file_reopen(fd_trace_file *file);
/* True when all of it reached the disk. A closed file is fine. */
bool fd_trace_file_close(fd_trace_file *file);
/* Closes the file, moves it to its path if it is not there yet, and frees it in every case. */
fd_code fd_trace_file_finish(fd_trace_file *file, fd_error *err);
/* Closes and frees it; a file that still grows is removed. NULL is fine. */
void fd_trace_file_abandon(fd_trace_file *file);

#endif

/* Golden files: a trace for each of several prompts, in groups prompts/0000, prompts/0001, … of one file (schema
 * firstdiff-golden 2, docs/trace-format.md). Each trace holds the fingerprint of every tensor and the logits' elements.
 *
 * Reading: fd_golden_open, then fd_golden_prompt for each.
 *
 * Writing: create, then for each prompt fd_golden_options, fd_trace_create, the run, fd_trace_finish; finish. */
#ifndef FD_DUMPERS_STORE_GOLDEN_H
#define FD_DUMPERS_STORE_GOLDEN_H

#include "dumpers/store/file.h"

/* Options of a trace of n_pos positions that a golden is made of, in a file of its own. */
fd_trace_options fd_golden_options(const char *path, int32_t n_pos);

/* The same for the next prompt of a golden file. `group` [16] receives the group's name and must outlive the writer. */
fd_trace_options fd_golden_prompt_options(fd_trace_file *file, int32_t n_pos, int32_t prompt, char group[16]);

typedef struct fd_golden_size {
    int32_t n_prompt;
    int32_t n_pos; /* of the longest prompt's run */
} fd_golden_size;

/* Puts the finished golden in its place and frees `file` in every case. */
fd_code fd_golden_finish(fd_trace_file *file, fd_golden_size size, fd_error *err);

/* True when the file says that it is a golden, of whatever version. */
bool fd_golden_is_one(const char *path);

typedef struct fd_golden fd_golden; /* an open file */

/* FD_ERR_INPUT for a file that is no golden, and for a golden of an older version; the message then says how to
 * record it again. */
fd_code fd_golden_open(const char *path, fd_golden **out, fd_golden_size *size, fd_error *err);
/* The trace of one prompt, from 0; it is closed before the golden. */
fd_code fd_golden_prompt(const fd_golden *golden, int32_t prompt, fd_trace **out, fd_error *err);
void fd_golden_close(fd_golden *golden); /* NULL is fine */

/* The trace of one prompt that keeps the file open itself. */
fd_code fd_golden_open_prompt(const char *path, int32_t prompt, fd_trace **out, fd_error *err);

#endif

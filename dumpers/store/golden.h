/* Golden files: a trace for each of several prompts, in groups prompts/0000, prompts/0001, … of one file (schema
 * firstdiff-golden 2, docs/trace-format.md). Each trace holds the fingerprint of every tensor and elements of the logits:
 * all of them, or fd_golden_thin's.
 *
 * Reading: fd_golden_open, then fd_golden_prompt for each.
 *
 * Writing: create, then for each prompt fd_golden_prompt_options, fd_trace_create, the run, fd_trace_finish; finish. */
#ifndef FD_DUMPERS_STORE_GOLDEN_H
#define FD_DUMPERS_STORE_GOLDEN_H

#include "dumpers/store/file.h"

/* Options of a trace of n_pos positions that a golden is made of, in a file of its own. */
fd_trace_options fd_golden_options(const char *path, int32_t n_pos);

/* The same for the next prompt of a golden file. `group` [16] receives the group's name and must outlive the writer. */
fd_trace_options fd_golden_prompt_options(fd_trace_file *file, int32_t n_pos, int32_t prompt, char group[16]);

/* Logits of a large vocabulary would be most of a golden: 600 KB a position of 152,000. A row of more than
 * FD_GOLDEN_MOST_LOGITS keeps 512 of them, 16 evenly spread runs of 32 ids, and the ten largest: 3 KB, compressed. Their
 * distance is that of the row to 6 % (√(2/512)), and the fingerprint has every bit. */
enum { FD_GOLDEN_MOST_LOGITS = 2048, FD_GOLDEN_LOGIT_RUNS = 16, FD_GOLDEN_LOGIT_RUN = 32, FD_GOLDEN_MOST_CLASSES = 32 };
static inline bool fd_golden_thins(int64_t n_vocab) {
    return n_vocab > FD_GOLDEN_MOST_LOGITS;
}
/* Such a row: what is not kept becomes NaN. top: of this row. */
void fd_golden_thin(float *logits, int64_t n_vocab, const fd_top_logits *top);

/* How far from the exact logits sound runs of other numerics were when the golden was recorded. */
typedef struct fd_golden_tolerances {
    char names[256]; /* of classes, "f16 q8 hf-bf16"; "": none was measured */
    int32_t n_class;
    int32_t n_run;                       /* of each prompt */
    double nmse[FD_GOLDEN_MOST_CLASSES]; /* of the position that was farthest off, in any of them */
} fd_golden_tolerances;
/* The index of the class `name`; -1: not measured. */
int32_t fd_golden_tolerance_find(const fd_golden_tolerances *tolerances, const char *name);

typedef struct fd_golden_size {
    int32_t n_prompt;
    int32_t n_pos; /* of the longest prompt's run */
} fd_golden_size;

/* Puts the finished golden in its place and frees `file` in every case. measured: NULL, nothing was. */
fd_code fd_golden_finish(fd_trace_file *file, fd_golden_size size, const fd_golden_tolerances *measured, fd_error *err);

/* True when the file says that it is a golden, of whatever version. */
bool fd_golden_is_one(const char *path);

typedef struct fd_golden fd_golden; /* an open file */

/* FD_ERR_INPUT for a file that is no golden, and for a golden of an older version; the message then says how to
 * record it again. */
fd_code fd_golden_open(const char *path, fd_golden **out, fd_golden_size *size, fd_error *err);
/* What was measured when it was recorded; borrowed. */
const fd_golden_tolerances *fd_golden_measured(const fd_golden *golden);
/* The trace of one prompt, from 0; it is closed before the golden. */
fd_code fd_golden_prompt(const fd_golden *golden, int32_t prompt, fd_trace **out, fd_error *err);
void fd_golden_close(fd_golden *golden); /* NULL is fine */

/* The trace of one prompt that keeps the file open itself. */
fd_code fd_golden_open_prompt(const char *path, int32_t prompt, fd_trace **out, fd_error *err);

#endif

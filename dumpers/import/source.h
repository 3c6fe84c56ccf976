/* What a foreign engine left: the list of its tensors by name and step, and their elements one tensor at a time.
 *
 * A source is a folder of .npy, .npz, .safetensors and PyTorch files (any depth), one such file, or a trace with foreign
 * names. Files are mapped when their tensor is read and unmapped after it, so memory is bounded by one tensor. */
#ifndef FD_DUMPERS_IMPORT_SOURCE_H
#define FD_DUMPERS_IMPORT_SOURCE_H

#include "dumpers/import/array.h"
#include "dumpers/store/trace.h"

typedef struct fd_source_tensor {
    char *name;         /* without step and occurrence */
    int32_t step;       /* forward call, from 0; -1: rows are positions from `first` on (a trace) */
    int32_t occurrence; /* 1, 2, … among the tensors of that name in the step */
    int32_t n_same;     /* how many there are */
    fd_array_type type;
    int rank;
    int64_t shape[FD_ARRAY_MAX_RANK]; /* a trace: [n_pos, …] */
    int32_t first;
    bool over_kv;                    /* a trace: the last axis holds pos + 1 elements at position pos */
    size_t file;                     /* which file, or node of the trace */
    size_t item;                     /* which entry of it */
    int32_t n_part, part, part_axis; /* of the entry's n_part along an axis it is this one; n_part 0: the whole */
} fd_source_tensor;

typedef struct fd_source fd_source;

/* FD_ERR_INPUT for what cannot be read, names the file; .pt, .pth, .pkl and .pickle that are no archives (pickles, which run code) are
 * refused with advice. */
fd_code fd_source_open(const char *path, fd_source **out, fd_error *err);
void fd_source_close(fd_source *source);

int64_t fd_source_elements(const fd_source_tensor *tensor);
const char *fd_source_path(const fd_source *source);
size_t fd_source_count(const fd_source *source);
const fd_source_tensor *fd_source_at(const fd_source *source, size_t i); /* by step, name, occurrence */
int32_t fd_source_n_step(const fd_source *source);
/* The built-in map whose names it has: the trace's attribute `names`, "transformers" for the debugger's folder; else
 * NULL. */
const char *fd_source_names(const fd_source *source);
/* What was left out of it, in words; NULL: nothing. */
const char *fd_source_left_out(const fd_source *source);
/* The trace that it reads; NULL for files. Borrowed. */
const fd_trace *fd_source_trace(const fd_source *source);
/* An integer tensor named tokens, input_ids, ….input_ids or inp_tokens…. */
bool fd_source_is_tokens(const fd_source_tensor *tensor);
/* A name that ends in .weight or .bias. */
bool fd_source_is_weight(const char *name);
/* Token ids that the source itself holds (tokens.txt, or such a tensor):
 * malloc'ed, *n 0 when there are none. */
fd_code fd_source_tokens(const fd_source *source, int32_t **tokens, int32_t *n, fd_error *err);

/* A tensor's elements; released after use. Not for a trace, whose rows fd_trace_read gives. */
typedef struct fd_source_view {
    fd_array array;
    const void *mapped;
    void *owned;
    size_t mapped_bytes;
} fd_source_view;
fd_code fd_source_view_open(const fd_source *source, size_t i, fd_source_view *out, fd_error *err);
void fd_source_view_close(fd_source_view *view);

#endif

/* Shared by source.c (opening, order), source_tokens.c, source_files.c (files), source_folder.c (folders),
 * source_name.c (what a name says), source_steps.c and source_fronts.c (what names together say), source_stacks.c (layers in one array),
 * source_served.c (what hooks of serving engines leave) and source_hooks.c (names of hooks of transformers). */
#ifndef FD_DUMPERS_IMPORT_SOURCE_INTERNAL_H
#define FD_DUMPERS_IMPORT_SOURCE_INTERNAL_H

#include "dumpers/import/safetensors.h"
#include "dumpers/import/source.h"
#include "dumpers/import/torch.h"

typedef enum fd_source_kind {
    FD_SOURCE_NPY,
    FD_SOURCE_NPZ,
    FD_SOURCE_SAFETENSORS,
    FD_SOURCE_TORCH,
    FD_SOURCE_RAW
} fd_source_kind;

/* A file, and an archive's directory, which is parsed once: the first of them stay open. */
enum { FD_SOURCE_OPEN_ARCHIVES = 64 };
typedef struct fd_source_file {
    char *path;
    fd_source_kind kind;
    fd_source_view view; /* of the whole file while it is open, else empty */
    fd_zip *zip;         /* of an .npz, or of torch.save */
    fd_pickle torch;
    fd_safetensors tensors;
} fd_source_file;

struct fd_source {
    char *path;
    fd_source_tensor *tensors;
    size_t n, room;
    fd_source_file *files;
    size_t n_file, n_open;
    size_t n_pickle;   /* .pt and the like that were passed over */
    char *pickle;      /* the first of them */
    char *tokens_file; /* tokens.txt; NULL */
    bool debugger;     /* transformers' model debugger wrote it */
    bool raw;          /* numbers without a header are taken: no other array is there */
    bool says_steps;   /* some name has a step in front: numbers at the ends of names are none */
    int32_t n_step;
    char left_out[200]; /* what fd_source_leave_out took away; "": nothing */
    fd_trace *trace;    /* NULL: files */
    bool by_rank;       /* names hold a rank, which goes to their end: "q-3:rank1" */
    int32_t n_rank;
    struct fd_ranks *ranks; /* tensors are put together from other sources' (import/ranks/); NULL; owned */
};

/* Adds the tensors of one file, or of a folder and those in it. */
fd_code fd_source_add_file(fd_source *source, const char *path, const char *name, fd_error *err);
fd_code fd_source_add_folder(fd_source *source, const char *path, fd_error *err);
void fd_source_file_free(fd_source_file *file); /* what it owns */
/* Adds a tensor under what `name` says of step and occurrence. `*tensor` may be changed until the next call. */
fd_code fd_source_add(fd_source *source, const char *name, const fd_source_tensor *tensor, fd_error *err);

/* Where every name ends in a number that counts calls or positions ("l0_q_3", "embd_pos3"), it becomes the step
 * (source_steps.c). */
void fd_source_steps_of_ends(fd_source_tensor *tensors, size_t n);

/* Where every name begins with a number that is no layer's, "0/l3_q" of a call or "0042_l3_q" of a counter, it becomes the step or the order of
 * what has one name, and is taken from the name. Is it known now which steps there are (source_fronts.c)? */
bool fd_source_numbers_in_front(fd_source_tensor *tensors, size_t n, bool says_steps);

/* A module of transformers with a word behind it, "model.layers.0.mlp.input", "….self_attn.output.1", as the map has it: "….mlp:in",
 * "….self_attn.1" (source_hooks.c). */
void fd_source_hook_name(char *name, size_t size);

/* By step, name, occurrence. */
void fd_source_sort(fd_source *source);

/* Takes away what a serving engine's hooks recorded of other sequences, and under the names of other layers; of sorted tensors
 * (source_served.c). */
fd_code fd_source_leave_out(fd_source *source, fd_error *err);

enum { FD_SOURCE_MAX_STEPS = 1 << 20 };

/* Added to an occurrence that is not counted from 1, but in any rising order. */
enum { FD_SOURCE_BY_INDEX = 1 << 30 };

/* Splits "s3.NAME#2" into step 3, NAME, occurrence 2; without them: step -1, 1. "prefill/NAME" is step 0, "decode_3/NAME" one after
 * all prefills. SGLang's
 * "step=3___rank=0___name=q___layer_id=1" gives "q-1", rank 2's "q-1:rank2", and its dump_index + FD_SOURCE_BY_INDEX
 * the occurrence. `out` [size] receives the name. False when it does not fit or nothing is left. */
bool fd_source_split_name(const char *name, char *out, size_t size, int32_t *step, int32_t *occurrence);
/* The debugger's file name (…_outputs, …_outputs_1, …_inputs_args_0, …_inputs_kwargs_hidden_states) as "PATH",
 * "PATH:out1", "PATH:in", "PATH:in.attention_mask"; the model's class in front is dropped. */
bool fd_source_debugger_name(const char *file, char *out, size_t size);

#endif

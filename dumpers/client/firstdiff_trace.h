/* firstdiff_trace.h — record what your engine computes, for `firstdiff compare`.
 *
 *     fd_tracer *trace = fd_tracer_open(NULL, NULL);            // NULL: the file that $FIRSTDIFF_TRACE names, or no trace
 *     fd_tracer_put_weight_f32(trace, "blk.0.attn_q.weight", w, n_out, n_in);  // once loaded: finds a loader's bugs first
 *     fd_tracer_step(trace, tokens, n_tokens);                  // one forward call: the tokens it is fed
 *     fd_tracer_put_f32(trace, "blk.0.attn_norm", x, n_tokens, n_embd);  // as soon as it is computed
 *     …
 *     if (fd_tracer_close(trace, message, sizeof message)) fprintf(stderr, "%s\n", message);
 *
 * C11 and later, C++11 and later; it includes no other header of firstdiff. Link with -lfirstdiff_trace
 * (pkg-config firstdiff_trace). The names of tensors and their shapes are those of docs/trace-format.md; other names
 * are welcome.
 *
 * What it promises to the program that calls it:
 *
 * - It never ends the program, prints, raises a signal that the program sees, or changes errno, the floating-point
 *   environment or the locale. A failure (a full disk, a bad name) turns the trace off; the first one is kept and
 *   fd_tracer_close returns it. Every call after that, every call after close, and every call with a NULL tracer does
 *   nothing and is cheap.
 * - Host data is copied before a put returns. Device data is copied in stream order: what the stream computes after the
 *   put does not change what is recorded, and the caller may reuse the buffer as it would with its own next kernel.
 * - All functions may be called from several threads at once; the order of steps is the caller's.
 * - A step that has ended is written and flushed by a thread of the library's, so that the calls do no more than copy. A
 *   killed program leaves a file that opens, holds whole steps and says how far it got: it loses the step that goes on and
 *   those that the thread has not reached, at most eight. With fd_tracer_options.synchronous the calls write themselves, and a step is
 *   flushed before the next one begins. At exit, and in fd_tracer_close, the thread finishes what it was given.
 * - After fork the child's calls do nothing; the file is the parent's.
 *
 * A step is held in memory until it ends (fd_tracer_options.memory limits that, and what is on its way to the file). */
#ifndef FIRSTDIFF_TRACE_H
#define FIRSTDIFF_TRACE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fd_tracer fd_tracer;

typedef enum fd_tracer_dtype {
    FD_TRACER_F32 = 1,
    FD_TRACER_F64,
    FD_TRACER_F16,
    FD_TRACER_BF16,
    FD_TRACER_I8,  /* stored as binary32, which holds it exactly */
    FD_TRACER_I32  /* stored as binary64, likewise */
} fd_tracer_dtype;

/* Brings `bytes` bytes at the device address `device` to `host`; 0 when they are there. It must see what `stream` has
 * computed so far. Called during the put. */
typedef int (*fd_tracer_copy)(void *user, void *host, const void *device, size_t bytes, void *stream);

/* Zero is a default for each: fd_tracer_options options = {0}. Strings are UTF-8 and copied. */
typedef struct fd_tracer_options {
    const char *engine;     /* "myengine 0.3": who wrote the trace */
    const char *numerics;   /* where it rounds: "f32", "f16", "bf16", "q8", … (docs/verdicts.md); NULL: inferred */
    const char *kv_type;    /* element type of the K/V cache: "f32", "f16" */
    const char *device;     /* "NVIDIA H100" */
    const char *model_file; /* the GGUF: its hash is recorded, so that traces of different models are told apart. All of
                               it is read once, when the trace is opened */
    const char *prompt;
    size_t memory; /* bytes that are held back before they are written; 0: 1 GiB. A call waits while there are more */
    fd_tracer_copy copy;    /* for data on a device; NULL: CUDA, loaded when first needed */
    void *copy_user;
    int synchronous; /* not 0: no thread, the calls write (so they do where HDF5 is not built for threads) */
} fd_tracer_options;

enum { FD_TRACER_MAX_DIM = 6 };

/* A tensor, or some positions of one. */
typedef struct fd_tracer_tensor {
    const char *name;   /* 1 to 63 bytes of UTF-8, without '/' and '..' */
    fd_tracer_dtype dtype;
    const void *data;   /* element [0, 0, …] */
    int n_dim;          /* 1 to FD_TRACER_MAX_DIM */
    int64_t shape[FD_TRACER_MAX_DIM];  /* the first dimension is the position; a batch axis of 1 may stand before it */
    int64_t stride[FD_TRACER_MAX_DIM]; /* in elements, positive, no two elements on one place; all 0: row-major */
    int64_t first, count; /* positions [first, first + count), counted from the first token of the trace; count 0: those of
                             the step. Positions of earlier steps are passed over, so a whole K/V cache may be given */
    int over_kv;        /* not 0: the last dimension runs over key positions from 0 (scores and weights of attention; implied
                           by names that end in .attn_scores, .attn_alibi or .attn_weights). Keys after a row's own
                           position are not looked at */
    int on_device;      /* not 0: `data` is a device address, to be copied in the order of `stream` */
    void *stream;       /* cudaStream_t; NULL: the default stream */
} fd_tracer_tensor;

/* A weight, as the engine holds it when it computes. */
typedef struct fd_tracer_weight {
    const char *name; /* as in the GGUF, "blk.3.attn_q.weight": 1 to 191 bytes, else as the name of a tensor */
    const char *type; /* of what lies at `data`, as the GGUF calls it: "F32", "F16", "BF16", or blocks as ggml lays them
                         out, "Q8_0", "Q4_0", "Q5_0", "Q4_K", "Q6_K"; NULL: "F32" */
    const void *data; /* row 0 */
    int64_t n_row, n_col; /* row r makes output r (of an embedding: it is token r's); a norm's or bias's vector is one
                             row; experts' matrices follow one another */
    int64_t row_stride, col_stride; /* in elements, positive; both 0: row-major without gaps. A matrix that is held as
                                       [in, out] has the strides 1 and n_row. Blocks: whole ones, col_stride 1 */
    int on_device;    /* as in fd_tracer_tensor, but the call waits until the data was copied */
    void *stream;
} fd_tracer_weight;

/* Starts a trace at `path`; NULL: at the path in the environment variable FIRSTDIFF_TRACE, and without one NULL is
 * returned, with which every call does nothing. `options` may be NULL. A trace that cannot be started is returned
 * turned off: fd_tracer_error says why. A file at `path` is replaced, unless it is the trace of a run that still goes
 * on. */
fd_tracer *fd_tracer_open(const char *path, const fd_tracer_options *options);

/* Begins a forward call that feeds `count` ≥ 1 tokens, at the positions after those fed so far; ends the one before. */
int fd_tracer_step(fd_tracer *tracer, const int32_t *tokens, int32_t count);

/* Records a tensor of this step. Parts may come in any order; a row given twice holds what came last. All puts return
 * 0, or not 0 when the trace is turned off. */
int fd_tracer_put(fd_tracer *tracer, const fd_tracer_tensor *tensor);

/* The usual case: [n_row, n_column] in host memory, contiguous, one row for each position of the step. */
int fd_tracer_put_f32(fd_tracer *tracer, const char *name, const float *data, int64_t n_row, int64_t n_column);

/* Records hashes of a weight's dequantised rows, at most 32 KiB: `firstdiff compare --model` then looks for a loader's
 * bug in them before it looks at any tensor. Best before the first step, while the file is empty: later it is copied, once
 * for all weights between two steps. They are in the file when the next step has ended, or the trace is closed. A name that
 * comes again stands for the last. Leave out what the engine changed on purpose (rounded when it loaded, norms kept as
 * 1 + w): it differs from the file, and is reported. Blocks are dequantised here; pass an engine's own result as F32. */
int fd_tracer_put_weight(fd_tracer *tracer, const fd_tracer_weight *weight);

/* The usual case: [n_row, n_column] in host memory, row-major. */
int fd_tracer_put_weight_f32(fd_tracer *tracer, const char *name, const float *data, int64_t n_row, int64_t n_column);

/* Attention scores or weights of a step, [n_row, n_head, n_key] in host memory, contiguous; n_key reaches at least to
 * the last row's own position. */
int fd_tracer_put_attention(fd_tracer *tracer, const char *name, const float *data, int64_t n_row, int64_t n_head,
                            int64_t n_key);

/* The first failure as text, NULL while there is none (and for NULL). Valid as long as the program runs. */
const char *fd_tracer_error(const fd_tracer *tracer);

/* Ends the last step, marks the trace as complete and frees what it used. 0, or not 0 and the first failure in
 * `message` (cut to `size` bytes; may be NULL). A second close returns the same. */
int fd_tracer_close(fd_tracer *tracer, char *message, size_t size);

#ifdef __cplusplus
}
#endif
#endif

/* The forms in which a converter writes a checkpoint's tensor, and how near a GGUF's tensor is to one of them. */
#ifndef FD_CLI_AGAINST_FORMS_H
#define FD_CLI_AGAINST_FORMS_H

#include "cli/against/names.h"
#include "model/gguf/gguf.h"

typedef enum fd_form {
    FD_FORM_SAME,
    FD_FORM_PAIRS,      /* rows of each head so that RoPE turns neighbours where the checkpoint turns halves */
    FD_FORM_HALVES,     /* the other way round */
    FD_FORM_QKV,        /* Q of all heads, then K, then V, where the checkpoint has them by K/V head */
    FD_FORM_TRANSPOSED, /* inputs by outputs in the checkpoint */
    FD_FORM_PLUS_ONE,   /* the checkpoint's norms multiply by 1 + w */
    FD_FORM_MINUS_ONE,
    FD_FORM_MINUS_EXP, /* the checkpoint has the logarithm of minus it */
    FD_FORM_K_HEADS,   /* of each head of kv_b the rows of K, transposed; the rows of V */
    FD_FORM_V_HEADS,
    FD_FORM_EVEN, /* rows 0, 2, 4 … of gate and up in turn: the gate's; up's. Of their biases: elements */
    FD_FORM_ODD,
    FD_FORM_DELTA_QKV, /* by key head the checkpoint has rows of q, k, v and z: q of all heads, then k, then v; z */
    FD_FORM_DELTA_Z,
    FD_FORM_COUNT
} fd_form;

const char *fd_form_text(fd_form form); /* "as the checkpoint has it", "with rows of neighbouring pairs" */

/* What converters for llama.cpp do with this tensor ("blk.0.attn_q.weight") of an architecture. */
fd_form fd_form_expected(const char *arch, const char *tensor);

typedef struct fd_form_heads {
    int64_t n_head, n_head_kv;
    int64_t n_key_head, key_dim, n_value; /* of the gated delta rule; n_value: of all heads. 0: the model has none */
} fd_form_heads;

/* A tensor of the GGUF and what it is made of. */
typedef struct fd_form_pair {
    const fd_gguf_tensor *tensor;
    const fd_checkpoint_tensor *const *parts; /* [n], each a vector or a matrix */
    size_t n;
    int64_t n_row, n_col; /* of the tensor; a vector is one row */
    fd_form_heads heads;
} fd_form_pair;

/* Whether the shapes of both sides allow the form; the rows that the checkpoint's parts make in it; row r of them. */
bool fd_form_fits(const fd_form_pair *pair, fd_form form);
int64_t fd_form_rows_there(const fd_form_pair *pair, fd_form form);
void fd_form_fetch_row(const fd_form_pair *pair, fd_form form, int64_t r, double *to);
bool fd_form_is_mxfp4(const fd_form_pair *pair); /* its parts are blocks and their scales */

/* ---- distance.c ---- */

typedef struct fd_form_distance {
    bool fits;              /* the shapes do */
    bool exact;             /* every bit */
    bool agrees;            /* within what the type rounds */
    double error;           /* root mean square of the difference to that of the values */
    double factor;          /* by which the checkpoint's values come nearest */
    int64_t n_row_there;    /* that the checkpoint has */
    int64_t n_row, n_wrong; /* rows compared, and how many of them do not agree */
    int64_t first_wrong;
} fd_form_distance;

/* Rows that both have, of at most `most` rows spread over the tensor (0: all), the checkpoint's values times factor. */
fd_code fd_form_compare(const fd_form_pair *pair, fd_form form, double factor, int64_t most, fd_form_distance *out,
                        fd_error *err);

#endif

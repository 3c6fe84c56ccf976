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
    FD_FORM_EVEN, /* outputs 0, 2, 4 … of gate and up in turn: the gate's; up's. The checkpoint has MXFP4's rows, or */
    FD_FORM_ODD,  /* [experts, inputs, outputs], or a bias */
    FD_FORM_FIRST_HALF, /* of each expert's rows, the gate's before up's */
    FD_FORM_SECOND_HALF,
    FD_FORM_FIRST_COLUMNS, /* the same of [experts, inputs, outputs], transposed */
    FD_FORM_SECOND_COLUMNS,
    FD_FORM_DELTA_QKV, /* by key head the checkpoint has rows of q, k, v and z: q of all heads, then k, then v; z */
    FD_FORM_DELTA_Z,
    FD_FORM_TURNS, /* the first value head of each key head, then the second …; rows of q and k before them stay */
    FD_FORM_TURNS_MINUS_EXP,
    FD_FORM_TURNS_COLUMNS, /* the columns that read these heads */
    FD_FORM_COUNT
} fd_form;

const char *fd_form_text(fd_form form); /* "as the checkpoint has it", "with rows of neighbouring pairs" */

typedef struct fd_form_heads {
    int64_t n_head, n_head_kv, head_dim; /* the largest of all layers; head_dim: where these differ, else 0 */
    int64_t n_key_head, key_dim;         /* of the gated delta rule; 0: the model has none */
    int64_t n_value_head, n_value;       /* n_value: of all heads */
} fd_form_heads;

/* A tensor of the GGUF and what it is made of. */
typedef struct fd_form_pair {
    const fd_gguf_tensor *tensor;
    const fd_checkpoint_tensor *const *parts; /* [n], each a vector or a matrix */
    size_t n;
    int64_t n_row, n_col; /* of the tensor; a vector is one row */
    fd_form_heads heads;
} fd_form_pair;

/* What converters for llama.cpp do with this tensor of an architecture. */
fd_form fd_form_expected(const char *arch, const fd_form_pair *pair);

/* Whether the shapes of both sides allow the form; the rows that the checkpoint's parts make in it; row r of them. */
bool fd_form_fits(const fd_form_pair *pair, fd_form form);
int64_t fd_form_rows_there(const fd_form_pair *pair, fd_form form);
bool fd_form_is_mxfp4(const fd_form_pair *pair); /* its parts are blocks and their scales */

/* ---- form_rows.c ---- */

void fd_form_fetch_row(const fd_form_pair *pair, fd_form form, int64_t r, double *to);
/* A part as matrices [experts or 1, rows, columns] of the tensor that the form makes of it. */
fd_array fd_form_matrices(const fd_array *part, fd_form form);
/* Rows or columns of the value heads' part: all that do not belong to q and k. */
int64_t fd_form_of_value_heads(const fd_form_heads *heads, int64_t n);

static inline bool fd_form_is_minus_exp(fd_form form) {
    return form == FD_FORM_MINUS_EXP || form == FD_FORM_TURNS_MINUS_EXP;
}

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

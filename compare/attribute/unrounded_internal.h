/* One reading of the run: which tensors are handed on unrounded, and what the ops leave then. */
#ifndef FD_COMPARE_ATTRIBUTE_UNROUNDED_INTERNAL_H
#define FD_COMPARE_ATTRIBUTE_UNROUNDED_INTERNAL_H

#include "compare/attribute/rounded_weights.h"
#include "compare/attribute/unrounded.h"

typedef struct fd_reading {
    bool *of;             /* [n_node] tensors that are read unrounded, of whole kinds; owned */
    bool rounds_products; /* before the same op adds a bias to them, or takes their scale */
    double left;          /* share of what the recorded inputs leave: of the middle row */
    fd_row_errors errors;
} fd_reading;

struct fd_unrounded {
    fd_attribution_options o;
    fd_rounded_weights weights; /* as the engine holds them */
    fd_numerics_class rounds_products;
    fd_row_errors recorded; /* what the recorded inputs leave */
    bool *kind;             /* [n_node] the readers that are asked about */
    bool *rows;             /* [n_pos] and in which rows */
    double *shares;         /* room for all of them */
    fd_product_memo *memo;
    fd_reading stream; /* fd_unrounded_stream's; of NULL: not looked for yet; left: of the mean kind of tensors */
};

fd_code fd_reading_new(const fd_unrounded *u, fd_reading *out, fd_error *err);
fd_code fd_reading_copy(const fd_unrounded *u, const fd_reading *from, fd_reading *out, fd_error *err);
void fd_reading_free(fd_reading *reading);

/* May the tensor be handed on otherwise than recorded? */
bool fd_reading_may_take(const fd_unrounded *u, int32_t node);
/* All tensors of that kind. */
void fd_reading_set_kind(const fd_unrounded *u, int32_t node, bool unrounded, fd_reading *reading);

/* Fills ->errors and ->left, of the readers that are asked about. */
fd_code fd_reading_measure(fd_unrounded *u, fd_reading *reading, fd_error *err);

/* The middle row's share, of the readers' rows or of those of `node` alone (-1: all); *n: of how many rows. Rows that the reading leaves as they
 * were say nothing of it, where others differ: the first layer's norm reads the embeddings, which a table rounds, and of two layers would be
 * half of the readers. */
double fd_reading_share(const fd_unrounded *u, const fd_row_errors *errors, int32_t node, int32_t *n);

/* Of what an op leaves in squares, row by row, when it is replayed from other inputs. Where these are the ones that were read, a rounding
 * less is left: the middle row of sound engines (torch.compile, ONNX Runtime, fused epilogues) had 0.07 to 0.91 of what it has with the
 * recorded ones. Where they are not, a rounding that nobody made is added: 1.1 and more. A bug in the op adds to both, which takes the share
 * to 1. */
#define FD_SHOWN_SHARE 0.95

/* At most that share is left, less than in `errors`, and no layer says otherwise: then `errors` are the reading's. */
void fd_reading_take(const fd_unrounded *u, const fd_reading *reading, double most, fd_row_errors *errors, bool *taken);

/* The readers are those of the kind of `node` (-1: all). */
void fd_unrounded_ask(fd_unrounded *u, int32_t node);
/* Rows of steps of one token, or of the others; both: all. */
void fd_unrounded_ask_steps(fd_unrounded *u, bool single, bool several);

#endif

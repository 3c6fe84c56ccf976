/* Rounding of a K/V cache to few bits with a scale: 8-bit floating point, or integers. The scale is the largest value of what shares it over
 * the type's largest number, or one that an engine was given, which is then fitted to what it recorded. */
#ifndef FD_COMPARE_HYPOTHESIS_ROUND_SCALED_H
#define FD_COMPARE_HYPOTHESIS_ROUND_SCALED_H

#include <stdbool.h>
#include <stdint.h>

typedef enum fd_scale_of {
    FD_SCALE_NONE, /* 1 */
    FD_SCALE_HEAD, /* of a row */
    FD_SCALE_ROW,
    FD_SCALE_STEP,
    FD_SCALE_FITTED, /* one for all rows; one for each head; one for each element of a row */
    FD_SCALE_HEAD_FITTED,
    FD_SCALE_ELEMENT_FITTED,
} fd_scale_of;

typedef struct fd_scaled {
    int32_t type; /* round_type.h: FD_ROUND_E4M3 and what follows it */
    fd_scale_of scale;
    int64_t n_row, width, n_head;
    int64_t n_earlier;      /* leading rows that are not the step's */
    const float *candidate; /* [n_row, width] what scales are fitted to; NULL: nothing is fitted, and rows stay */
} fd_scaled;

/* Is it a type that this file knows? */
bool fd_is_scaled_type(int32_t type);

/* In place. Rows whose scale would be 0, NaN or infinite stay. */
void fd_round_scaled(const fd_scaled *s, float *rows);

/* tau [n_row, width]: of the rows as they are, then of the rounded ones. Only a value near the middle between two steps may go to
 * either. */
void fd_round_scaled_bounds(const fd_scaled *s, const float *rows, double *tau);

const char *fd_scale_name(fd_scale_of scale); /* " with one scale a head"; "" */

#endif

/* Some rows of a weight, and what the candidate made of them: is it what the file's weights give, or quantised ones? */
#ifndef FD_COMPARE_WEIGHTS_REQUANTISED_SAMPLE_H
#define FD_COMPARE_WEIGHTS_REQUANTISED_SAMPLE_H

#include "compare/weights/requantise.h"
#include "compare/weights/requantised.h"

enum { FD_REQUANTISED_MOST_X = 16 };

typedef struct fd_requantised_sample {
    const fd_weight *weight; /* borrowed */
    int64_t n_row, n_x;      /* rows of the weight; rows that they are multiplied with, of an embedding 0 */
    float *rows, *x;         /* [n_row, n_col], [n_x, n_col]; owned */
    double *plain, *left;    /* [n] what the file's rows give, and the candidate less that; owned */
    int64_t n;
    double size;  /* Σ of plain, squared */
    double *wide; /* [n_col, FD_REQUANTISED_MOST_X] x the other way round, 0 where there is none; owned */
} fd_requantised_sample;

/* *known: the candidate recorded what the node gives, and what it reads, or what gives that row by row. Freed with
 * fd_requantised_sample_free in any case. */
fd_code fd_requantised_sample_open(const fd_requantised_options *options, int32_t node, fd_requantised_sample *out,
                                   bool *known, fd_error *err);
void fd_requantised_sample_free(fd_requantised_sample *sample);

/* What is left is binary32's rounding: the weight is the file's. */
bool fd_requantised_sample_is_right(const fd_requantised_sample *sample);

typedef struct fd_requantised_slope {
    double slope, error; /* error INFINITY: it changes nothing here, or memory ran out */
    double file, before,
        after; /* Σ of squares left: by the file's rows, by these kept in the grid's type, by the grid's */
} fd_requantised_slope;
fd_requantised_slope fd_requantised_slope_of(const fd_requantised_sample *sample, const fd_requantisation *q);

/* The same of a few rows, before all are asked. */
bool fd_requantised_may_fit(const fd_requantised_sample *sample, const fd_requantisation *q);

/* 1, or 0, as near as the rows tell. */
bool fd_requantised_fits(const fd_requantised_slope *s);
bool fd_requantised_refuted(const fd_requantised_slope *s);

#endif

/* Numbers that engines have, of which a fitted one is a little off: digits, powers, multiples of the file's, one over a root. */
#ifndef FD_COMPARE_EXPLAIN_SIMPLE_NUMBERS_H
#define FD_COMPARE_EXPLAIN_SIMPLE_NUMBERS_H

/* A round number may be further from a fitted one. */
#define FD_NEAR_ROUND 0.15

/* x with so many significant digits. */
double fd_with_digits(double x, int digits);

/* What the number may be, simple ones first: the n_round round ones, as a digit, a power of two or a simple multiple of the right one; few
 * digits, one over the root of a whole number; at last itself. How many. */
enum { FD_MOST_SIMPLE_NUMBERS = 16 };
int fd_simple_numbers(double x, double right, double to[FD_MOST_SIMPLE_NUMBERS], int *n_round);

/* The numbers that a fitted one may stand for: one over a root where a digit is further away, a power of ten that is near, few digits, itself
 * at last; how many. */
enum { FD_MOST_SIMPLE = 6 };
int fd_solve_simple(double x, double to[FD_MOST_SIMPLE]);

#endif

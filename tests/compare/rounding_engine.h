/* An engine made of real roundings in random orders: what the bound of every op must hold for. It shares no code
 * with the bounds, and none with the reference's ops. */
#ifndef FD_TESTS_COMPARE_ROUNDING_ENGINE_H
#define FD_TESTS_COMPARE_ROUNDING_ENGINE_H

#include "compare/bounds/numerics_class.h"
#include "exec/exec.h"

/* The same numbers in every run of the program. */
uint64_t draw(void);

/* Rounds as a type of that unit roundoff does; 2^-10 is TF32 cut off, and 0 and 2^-53 leave x alone. */
double round_to(double x, double u);

/* Computes the op's n elements as an engine of that class might. Inputs are binary64; `exact` has the op's binary64
 * result, from which ops of a single rounding start. */
void rounding_engine(const fd_op_args *a, const fd_numerics_class *c, int64_t n, const double *exact, double *out);

#endif

/* The numbers that an op of the graph has: what an engine may have another value of. One table, so that a new op's
 * parameter is one line. */
#ifndef FD_COMPARE_HYPOTHESIS_PARAMETERS_H
#define FD_COMPARE_HYPOTHESIS_PARAMETERS_H

#include "model/graph.h"

typedef struct fd_parameter {
    const char *name;  /* of the explanation: "other_eps" */
    const char *words; /* "eps" */
    fd_op op;
    size_t at; /* in fd_node */
    enum { FD_PARAMETER_F32, FD_PARAMETER_F64, FD_PARAMETER_I32 } type;
    bool whole_only; /* tried as 1, 2, 3, …, or what else is usual, not solved for */
} fd_parameter;

extern const fd_parameter fd_parameters[];
extern const int32_t fd_n_parameter;

double fd_parameter_of(const fd_parameter *parameter, const fd_node *node);
void fd_parameter_set(const fd_parameter *parameter, fd_node *node, double value);

#endif

/* A class that rounds what products read to steps gives a row to its last bits or is off by a thousandth: one value on the other side of a
 * step moves all of it. So no hypothesis but the right one, in the engine's own class, gives rows to their last bits, however small the
 * bug is beside what such steps leave, and whatever the bounds have room for. */
#ifndef FD_COMPARE_CLASS_BY_REPETITION_H
#define FD_COMPARE_CLASS_BY_REPETITION_H

#include "compare/diagnose/diagnose.h"

/* The class in which *which of explanation->nearest, of the finding that is asked about, gives rows to their last bits, two or more; else the
 * first in which it leaves a quarter and is the name; NULL: in none. */
fd_code fd_find_class_by_repetition(const fd_diagnose_options *ask, const fd_explanation *explanation,
                                    const fd_numerics_class **out, fd_hypothesis *which, fd_error *err);

#endif

/* Another class than the one that was inferred, whose engine may have left what departs. */
#ifndef FD_COMPARE_FIND_RIVAL_H
#define FD_COMPARE_FIND_RIVAL_H

#include "compare/comparison.h"

/* A class that nothing refutes and that gives all that departs; *rival NULL: there is none. */
fd_code fd_find_rival(fd_comparison *comparison, const fd_class_evidence *evidence, const fd_attribution *of,
                      const fd_numerics_class **rival, fd_error *err);

#endif

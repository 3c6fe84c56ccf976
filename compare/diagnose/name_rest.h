/* After the first finding has been named: is it the only bug? Replay judges every node on the candidate's own inputs, so a
 * second bug is not hidden by the first; what the first one's name explains elsewhere is the same bug again. */
#ifndef FD_COMPARE_DIAGNOSE_NAME_REST_H
#define FD_COMPARE_DIAGNOSE_NAME_REST_H

#include "compare/diagnose/name.h"

/* `options` as for the finding that `first` explains, `judgement` the one it is from. A node belongs to the first cause whose
 * fault gives its values; one that none explains is asked about itself. Unnamed ones are one cause in all layers. */
fd_code fd_name_rest(const fd_name_options *options, const fd_judgement *judgement, const fd_explanation *first,
                     fd_rest *out, fd_error *err);

#endif

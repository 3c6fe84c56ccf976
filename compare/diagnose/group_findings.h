/* After the first finding has been diagnosed: is it the only bug? Replay judges every node on the candidate's own
 * inputs, so the first bug does not hide a second; what the first one's name explains elsewhere is the same bug
 * again. */
#ifndef FD_COMPARE_DIAGNOSE_GROUP_FINDINGS_H
#define FD_COMPARE_DIAGNOSE_GROUP_FINDINGS_H

#include "compare/diagnose/diagnose.h"

/* `options` as for the finding that `first` explains, `attribution` the one it is from. A node belongs to the first
 * cause whose fault gives its values; one that none explains is diagnosed itself. Unnamed ones are one cause in all
 * layers. Where `first` is one weight of another layer's and a second tensor shows that all are, it becomes that. */
fd_code fd_group_findings(const fd_diagnose_options *options, const fd_attribution *attribution, fd_explanation *first,
                          fd_causes *out, fd_error *err);

#endif

/* The sentences of a verdict: what its reasons and notes say. */
#ifndef FD_COMPARE_REPORT_REMARKS_H
#define FD_COMPARE_REPORT_REMARKS_H

#include "compare/verdict.h"

enum { FD_REMARK_SIZE = 448 };

/* One of the verdict's reasons or notes; returns `to`. */
const char *fd_remark_text(const fd_verdict *verdict, const fd_remark *remark, char to[FD_REMARK_SIZE]);

/* What speaks for another class than the one inferred; "": nothing. Returns `to`. */
const char *fd_class_evidence_text(const fd_class_evidence *evidence, char to[FD_REMARK_SIZE]);

/* Reason i, note i of those that were kept; "" past them. For messages; returns `to`. */
const char *fd_reason_text(const fd_verdict *verdict, int32_t i, char to[FD_REMARK_SIZE]);
const char *fd_note_text(const fd_verdict *verdict, int32_t i, char to[FD_REMARK_SIZE]);

#endif

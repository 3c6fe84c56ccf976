/* Matrices of a checkpoint in MXFP4, as gpt-oss has them: NAME_blocks, bytes [experts, rows, blocks, 16], and
 * NAME_scales, bytes [experts, rows, blocks]. Of a byte the low half is the element before the high one's; a block's 32
 * elements are times 2^(scale - 127).
 * Source: OCP, Microscaling Formats 1.0, 2023; OpenAI's reference code, gpt_oss/torch/weights.py. */
#ifndef FD_CLI_AGAINST_MXFP4_H
#define FD_CLI_AGAINST_MXFP4_H

#include "dumpers/import/array.h"

bool fd_is_mxfp4(const fd_array *blocks, const fd_array *scales);
int64_t fd_mxfp4_rows(const fd_array *blocks); /* of all experts together */
int64_t fd_mxfp4_width(const fd_array *blocks);
/* Row r of these; all NAN without memory. */
void fd_mxfp4_fetch(const fd_array *blocks, const fd_array *scales, int64_t r, double *to);

#endif

/* EMBED: rows of the table, dequantised. */
#ifndef FD_KERNELS_ELEMENTWISE_EMBED_H
#define FD_KERNELS_ELEMENTWISE_EMBED_H

#include "kernels/formats/pack.h"
#include "kernels/launch_context.h"

#ifdef __cplusplus
extern "C" {
#endif

/* out [n_tok, n_col] = table[tokens[r]]; tokens [n_tok] in device memory, each in [0, table->n_row). */
fd_code fd_launch_embed(const fd_launch_context *ctx, const fd_device_matrix *table, const int32_t *tokens,
                        int32_t n_tok, float *out, fd_error *err);

#ifdef __cplusplus
}
#endif
#endif

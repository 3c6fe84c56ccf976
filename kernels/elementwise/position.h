/* ADD_POSITION, ADD_VECTOR, MUL_VECTOR, ATTN_ALIBI, ATTN_TEMPERATURE: what a row is added or multiplied by, most of it by its
 * position. All pointers are device memory. */
#ifndef FD_KERNELS_ELEMENTWISE_POSITION_H
#define FD_KERNELS_ELEMENTWISE_POSITION_H

#include "kernels/launch_context.h"
#include "kernels/matvec/matvec.h"

#ifdef __cplusplus
extern "C" {
#endif

/* out [n_tok, n_col] = x + the table's row *pos0 + r; NaN where the table has no such row. */
fd_code fd_launch_add_position(const fd_launch_context *ctx, const fd_device_matrix *table, const float *x,
                               const int32_t *pos0, int32_t n_tok, float *out, fd_error *err);

/* out [n_tok, n] = x + vector. */
fd_code fd_launch_add_vector(const fd_launch_context *ctx, const float *vector, const float *x, int64_t n,
                             int32_t n_tok, float *out, fd_error *err);

/* out [n_tok, n] = x · vector. */
fd_code fd_launch_mul_vector(const fd_launch_context *ctx, const float *vector, const float *x, int64_t n,
                             int32_t n_tok, float *out, fd_error *err);

/* out [n_tok, n_head, n_kv] = scores + slope·(t − p) up to the row's own position p, 0 past it. */
fd_code fd_launch_attn_alibi(const fd_launch_context *ctx, float max_bias, int32_t n_head, int32_t n_kv,
                             const float *scores, const int32_t *pos0, int32_t n_tok, float *out, fd_error *err);

/* out [n_tok, n] = x times the temperature of its position, *pos0 + r + first. */
typedef struct fd_attn_temperature_rows {
    float scale;
    int32_t length, first;
    const float *x; /* [n_tok, n] */
    const int32_t *pos0;
    int64_t n;
    int32_t n_tok;
    float *out;
} fd_attn_temperature_rows;
fd_code fd_launch_attn_temperature(const fd_launch_context *ctx, const fd_attn_temperature_rows *in, fd_error *err);

#ifdef __cplusplus
}
#endif
#endif

/* Attention on the host, as the contract says: what the kernels' checks compare with. */
#ifndef FD_TESTS_HOST_ATTENTION_H
#define FD_TESTS_HOST_ATTENTION_H

#include <stdbool.h>
#include <stdint.h>

typedef struct heads {
    int32_t n_head, n_head_kv, head_dim;
    bool halves; /* the cache is in binary16 */
} heads;

/* Row `own` of a batch, all heads: scores and weights [n_head, n_kv], out [n_head, head_dim]; cache [≥ n_kv, n_head_kv,
 * head_dim], its values as they are read. */
void host_scores(heads h, const float *q, const float *cache, int32_t own, int32_t n_kv, float scale, float *out);
void host_softmax(int32_t n_head, const float *scores, int32_t own, int32_t n_kv, float *out);
void host_mix(heads h, const float *weights, const float *cache, int32_t own, int32_t n_kv, float *out);

/* n elements as a cache of such heads keeps them, in place. */
void host_round_cached(heads h, float *x, int64_t n);

#endif

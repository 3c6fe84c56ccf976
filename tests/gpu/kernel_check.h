/* The parts of kernel_check: each compares one family of kernels with the contract computed on the host. */
#ifndef FD_TESTS_GPU_KERNEL_CHECK_H
#define FD_TESTS_GPU_KERNEL_CHECK_H

#include "tests/gpu/gpu_case.h"

void check_comparison(gpu_test *test); /* the comparison itself can fail, and the data tell orders apart */
void check_matmul(gpu_test *test);
void check_matvec_fused(gpu_test *test);
void check_rows(gpu_test *test);      /* embed, norm, rope, K/V write, ops by element */
void check_more_rows(gpu_test *test); /* LayerNorm, positions, ALiBi, ungated activations */
void check_many_rows(gpu_test *test); /* what several nodes of a prompt share a kernel for */
void check_experts(gpu_test *test);
void check_recurrent(gpu_test *test); /* states over a cache, convolutions */
void check_heads(gpu_test *test);     /* parts of heads, choices in groups, wide heads */
void check_q8(gpu_test *test);        /* products of q8act, against blocks made on the host from the dequantised rows */
void check_few_f16(gpu_test *test);   /* products of few tokens by halves, within bounds */
void check_replay_products(gpu_test *test); /* of replay, against the CPU's */
void check_attention(gpu_test *test);
void check_attention_decode(gpu_test *test);
void check_sample(gpu_test *test);
void check_summary(gpu_test *test); /* fingerprints, statistics, entropy, best logits */
void check_fast(gpu_test *test);    /* against binary64, within bounds */
void check_fast_attention(gpu_test *test);
void check_fast_turns(gpu_test *test); /* RoPE inside of its attention */

#endif

/* Products of engines that round their factors, and perhaps the products, while the rest is binary32 (test_mixed_classes.c): ops that
 * stand in for a graph's own. */
#ifndef FD_TESTS_COMPARE_MIXED_PRODUCTS_H
#define FD_TESTS_COMPARE_MIXED_PRODUCTS_H

#include "exec/exec.h"

void bf16_factors(const fd_op_args *args);
void f16_factors(const fd_op_args *args);
void tf32_factors(const fd_op_args *args);         /* but for single rows and matrices of some shapes */
void bf16_of_several_rows(const fd_op_args *args); /* single rows are plain */
void f16_of_several_rows(const fd_op_args *args);
void tf32_of_several_rows(const fd_op_args *args);    /* of matrices of all shapes, and of attention */
void tf32_cut_factors(const fd_op_args *args);        /* the same, or cut off where matrices are not wide */
void f16_sums_of_single_rows(const fd_op_args *args); /* beside binary16 weights, as ggml's CUDA kernels */
void bf16_products(const fd_op_args *args);
void bf16_activations(const fd_op_args *args); /* and products; weights are as they were */
void f16_activations(const fd_op_args *args);
void int8_rows(const fd_op_args *args);      /* activations, one scale a row */
void int8_blocks_64(const fd_op_args *args); /* one scale for so many elements */
void int8_blocks_128(const fd_op_args *args);
void int8_blocks_of_bf16(
    const fd_op_args *args);                 /* of 32, activations rounded to bfloat16 before; results in bfloat16 */
void bf16_rope(const fd_op_args *args);      /* what it reads and what it gives */
void bf16_attention(const fd_op_args *args); /* scores from K times their scale, and the sum of V */
void int8_both(const fd_op_args *args);      /* weights too */
void int8_products(const fd_op_args *args);  /* activations and weights, one scale a row; results in bfloat16 */
void fp8_products(const fd_op_args *args);   /* the same in e4m3 */
void fp8_factors(const fd_op_args *args);    /* results as they are */
void int8_batch(const fd_op_args *args);     /* one scale for the whole batch, and a zero point */
void int8_tensors(const fd_op_args *args);   /* and one for the whole matrix: ONNX Runtime's quantize_dynamic */
void off_by_scales(const fd_op_args *args);  /* weights' blocks of 32 with scales in bfloat16 */

/* One row in int8, with one scale. */
void in_int8(float *row, int64_t n);

#endif

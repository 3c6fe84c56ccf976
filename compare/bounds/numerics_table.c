/* The classes, in order of strictness. */
#include <stddef.h>

#include "compare/bounds/numerics_class.h"
#include "compare/bounds/roundoffs.h"

#define F32_OPS .u_op = U32, .u_out = U32, .tiny_out = TINY32
/* Every tensor between kernels is of 16 bits; products sum in binary32. */
#define TENSORS(u, tiny)                                                                                               \
    .u_in = (u), .u_attn = (u), .tiny_in = (tiny), .u_acc = U32, .u_op = (u), .u_out = (u), .tiny_out = (tiny),        \
    .u_kv = (u)

/* What ggml's CPU kernels round before a product, a replay repeats. */
#define GGML_CPU .replays_inputs = true, .u_acc = U32, F32_OPS

/* With a scale in binary32 for so many elements. */
#define INT8_BLOCKS(n) GGML_CPU, .own_attention = true, .own_block = (n)

/* What is rounded before a product with weights follows from the factors alone. */
#define REPEATED_ALL(u, tiny)     .replays_inputs = true, .u_factor = (u), .tiny_in = (tiny), .u_acc = U32, F32_OPS
#define REPEATED_FACTORS(u, tiny) REPEATED_ALL(u, tiny), .own_attention = true
/* Autocast, and engines that cast where they multiply: the rest may be of 32 bits or not. */
#define MIXED(u, tiny) REPEATED_FACTORS(u, tiny), .u_attn = (u), .u_kv = (u), .u_shown = (u)

/* The step of a row whose largest element is four to five times its root mean square, by √12. */
#define INT8_ROWS REPEATED_FACTORS(0x1p-5, TINY32), .int8_rows = true

static const fd_numerics_class table[] = {
    {.name = "exact", .summary = "the numerics contract, bit for bit", .exact = true},
    {.name = "f64", .summary = "binary64 throughout", .u_acc = U64, .u_op = U64, .u_out = U64},
    {.name = "f32", .summary = "binary32, any order of sums", .u_acc = U32, F32_OPS},
    {.name = "ggml-cpu-f32kv",
     .summary = "factors in the weights' dot type just as ggml's CPU kernels make them, else binary32",
     GGML_CPU},
    {.name = "ggml-cuda-f32kv",
     .summary = "products as ggml's CUDA kernels make them, else binary32",
     GGML_CPU,
     .cuda_kernels = true,
     .fast_math = true},
    {.name = "int8-f32kv",
     .summary = "activations in int8 blocks of 32 with scales in binary32, else binary32",
     INT8_BLOCKS(32)},
    /* As runq.c quantises what it reads, whatever the blocks of the weights are. */
    {.name = "int8-64-f32kv", .summary = "int8-f32kv with blocks of 64", INT8_BLOCKS(64)},
    {.name = "int8-128-f32kv", .summary = "int8-f32kv with blocks of 128", INT8_BLOCKS(128)},
    {.name = "int8-rows", .summary = "activations in int8 with one scale a row, else binary32", INT8_ROWS},
    {.name = "w8a8",
     .summary = "activations and weights in int8 with one scale a row, else binary32",
     INT8_ROWS,
     .int8_weights = true},
    {.name = "f16-f32kv",
     .summary = "binary32 with both factors of products in binary16",
     REPEATED_FACTORS(UF16, TINYF16)},
    {.name = "bf16-f32kv",
     .summary = "binary32 with both factors of products in bfloat16",
     REPEATED_FACTORS(UBF16, TINY32)},
    /* Tensor cores for prompts, vector products for single rows (replay/several_rows.h). */
    {.name = "f16-gemm",
     .summary = "binary32 with both factors of products of several rows in binary16",
     REPEATED_FACTORS(UF16, TINYF16),
     .several_rows = true},
    {.name = "bf16-gemm",
     .summary = "binary32 with both factors of products of several rows in bfloat16",
     REPEATED_FACTORS(UBF16, TINY32),
     .several_rows = true},
    /* cuBLAS with TF32 allowed. */
    {.name = "tf32-gemm",
     .summary = "binary32 with both factors of products of several rows in TF32",
     REPEATED_FACTORS(UF16, TINY32),
     .all_products = true,
     .several_rows = true},
    {.name = "tf32-gemm-eager",
     .summary = "tf32-gemm with those of attention's scores and weighted sum in TF32 too",
     REPEATED_ALL(UF16, TINY32),
     .all_products = true,
     .several_rows = true},
    {.name = "f16kv", .summary = "binary32 with a binary16 K/V cache", .u_acc = U32, F32_OPS, .u_kv = UF16},
    {.name = "ggml-cpu-f16kv",
     .summary = "ggml-cpu-f32kv with a binary16 K/V cache and attention in binary32",
     GGML_CPU,
     .own_attention = true,
     .u_kv = UF16},
    {.name = "int8-f16kv", .summary = "int8-f32kv with a binary16 K/V cache", INT8_BLOCKS(32), .u_kv = UF16},
    {.name = "int8-64-f16kv", .summary = "int8-64-f32kv with a binary16 K/V cache", INT8_BLOCKS(64), .u_kv = UF16},
    {.name = "int8-128-f16kv", .summary = "int8-128-f32kv with a binary16 K/V cache", INT8_BLOCKS(128), .u_kv = UF16},
    {.name = "int8-rows-f16kv", .summary = "int8-rows with a binary16 K/V cache", INT8_ROWS, .u_kv = UF16},
    {.name = "w8a8-f16kv", .summary = "w8a8 with a binary16 K/V cache", INT8_ROWS, .int8_weights = true, .u_kv = UF16},
    {.name = "ggml-cpu",
     .summary = "ggml-cpu-f32kv with a binary16 K/V cache and its factors in binary16",
     GGML_CPU,
     .u_kv = UF16},
    {.name = "ggml-cuda",
     .summary = "products as ggml's CUDA kernels make them, a binary16 K/V cache, else binary32",
     GGML_CPU,
     .cuda_kernels = true,
     .fast_math = true,
     .u_kv = UF16},
    {.name = "f16-attention",
     .summary = "binary32 with a binary16 K/V cache and its factors in binary16",
     GGML_CPU,
     .plain_products = true,
     .u_kv = UF16},
    /* As llama-cpu-fa below, with what goes into products repeated. */
    {.name = "ggml-cpu-fa",
     .summary = "ggml-cpu with flash attention: sums of V in binary16",
     GGML_CPU,
     .sums_in_turn = true,
     .u_mix = UF16,
     .u_kv = UF16},
    {.name = "ggml-cuda-fa",
     .summary = "ggml-cuda with flash attention: sums of V in binary16",
     GGML_CPU,
     .cuda_kernels = true,
     .fast_math = true,
     .u_mix = UF16,
     .u_kv = UF16},
    {.name = "f16",
     .summary = "binary16 factors, binary32 sums and tensors",
     .u_in = UF16,
     .u_attn = UF16,
     .tiny_in = TINYF16,
     .u_acc = U32,
     F32_OPS,
     .u_kv = UF16},
    {.name = "mixed-f16",
     .summary = "binary16 factors, binary32 sums, some tensors of binary16 as recorded",
     MIXED(UF16, TINYF16)},
    /* 10 explicit bits. cuBLAS rounds to nearest even, and leaves some shapes, single rows among them, in binary32. */
    {.name = "tf32",
     .summary = "TF32 factors of products, of all or of some shapes, binary32 sums and tensors",
     .either = true,
     .u_in = UF16,
     .u_attn = UF16,
     .tiny_in = TINY32,
     .u_acc = U32,
     F32_OPS},
    /* Tensor cores given raw binary32 cut the rest off: twice the error of rounding, with a mean. ggml's CUDA kernels do it where a few
     * rows meet binary32 weights, leave single rows in binary32, hand many to cuBLAS, and are compiled with -use_fast_math. */
    {.name = "tf32-cut",
     .summary = "TF32 factors that are cut off, of all products or of some shapes, binary32 sums and tensors",
     .either = true,
     .in_truncates = true,
     .fast_math = true,
     .u_in = 2 * UF16,
     .u_attn = 2 * UF16,
     .tiny_in = TINY32,
     .u_acc = U32,
     F32_OPS},
    {.name = "q8",
     .summary = "activations in the weights' dot type (int8 blocks), else binary32",
     .q8_activations = true,
     .u_acc = U32,
     F32_OPS},
    {.name = "llama-cpu",
     .summary = "int8 activations, binary16 attention factors and K/V",
     .q8_activations = true,
     .u_attn = UF16,
     .tiny_in = TINYF16,
     .u_acc = U32,
     F32_OPS,
     .u_kv = UF16},
    /* Our GPU engine's fast numerics where a single token's products are of int8 blocks: a prompt's are of binary16
     * factors, dequantised weights among them, whose errors are smaller than a block's. */
    {.name = "fast-int8",
     .summary = "int8 activations beside quantised weights, else binary16 factors, and binary16 K/V",
     .q8_activations = true,
     .u_in = UF16,
     .u_attn = UF16,
     .tiny_in = TINYF16,
     .u_acc = U32,
     F32_OPS,
     .u_kv = UF16},
    /* ggml's CPU kernel of flash attention keeps the running sum of e^(s − max)·v in binary16 where V is binary16
     * and the batch has fewer than 64 tokens (ggml_compute_forward_flash_attn_ext_f16_one_chunk, llama.cpp). */
    {.name = "llama-cpu-fa",
     .summary = "llama-cpu with flash attention: sums of V in binary16",
     .q8_activations = true,
     .u_attn = UF16,
     .tiny_in = TINYF16,
     .u_acc = U32,
     .u_mix = UF16,
     F32_OPS,
     .u_kv = UF16},
    /* ggml's CUDA backend with its own kernels (mmq, mmvq, mmf, mmvf) and cuBLAS for what they leave: beside
     * quantised weights int8 blocks, beside binary16 ones cuBLAS with compute type 16F, binary32 ones TF32; scores
     * ask for binary32, which is TF32 in cuBLAS, the mix does not. Compiled with -use_fast_math. */
    {.name = "llama-cuda",
     .summary = "int8 activations, TF32 and binary16 factors, binary16 sums beside binary16, fast sin",
     .q8_activations = true,
     .in_truncates = true,
     .fast_math = true,
     .u_in = 2 * UF16,
     .u_attn = 2 * UF16,
     .tiny_in = TINYF16,
     .u_acc = U32,
     .u_acc_f16 = UF16,
     .u_mix = UF16,
     F32_OPS,
     .u_kv = UF16},
    {.name = "bf16",
     .summary = "bfloat16 factors, binary32 sums and tensors",
     .u_in = UBF16,
     .u_attn = UBF16,
     .tiny_in = TINY32,
     .u_acc = U32,
     F32_OPS,
     .u_kv = UBF16},
    {.name = "mixed-bf16",
     .summary = "bfloat16 factors, binary32 sums, some tensors of bfloat16 as recorded",
     MIXED(UBF16, TINY32)},
    /* OpenVINO's CPU plugin beside weights of 8 bits or fewer, as it runs where nothing is said: activations become int8 on the way in. */
    {.name = "int8-bf16",
     .summary = "activations in int8 blocks of 32 of bfloat16, some tensors of bfloat16 as recorded",
     INT8_BLOCKS(32),
     .u_attn = UBF16,
     .tiny_in = TINY32,
     .u_kv = UBF16,
     .u_shown = UBF16},
    /* PyTorch's scaled_dot_product_attention with 16-bit tensors: scores, exponentials and sums in binary32; e^(s −
     * max) rounded to the tensors' type before it is multiplied with V. */
    {.name = "hf-f16-fa",
     .summary = "binary16 tensors, binary32 sums and inside of attention",
     .fused_attention = true,
     TENSORS(UF16, TINYF16)},
    {.name = "hf-f16", .summary = "binary16 tensors, binary32 sums", TENSORS(UF16, TINYF16)},
    {.name = "hf-bf16-fa",
     .summary = "bfloat16 tensors, binary32 sums and inside of attention",
     .fused_attention = true,
     TENSORS(UBF16, TINY32)},
    {.name = "hf-bf16", .summary = "bfloat16 tensors, binary32 sums", TENSORS(UBF16, TINY32)},
    {.name = "f16acc",
     .summary = "binary16 factors and sums, binary32 tensors",
     .u_in = UF16,
     .u_attn = UF16,
     .tiny_in = TINYF16,
     .u_acc = UF16,
     F32_OPS,
     .u_kv = UF16},
};
enum { N_CLASS = sizeof table / sizeof *table };

const fd_numerics_class *fd_numerics_class_at(int32_t i) {
    return i >= 0 && i < N_CLASS ? &table[i] : NULL;
}

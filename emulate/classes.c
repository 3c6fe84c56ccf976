/* The table of candidate classes: one precision at a time, then what real engines combine. */
#include "emulate/emulate.h"

#include <stdio.h>
#include <string.h>

#define F32  FD_EMULATE_F32
#define TF32 FD_EMULATE_TF32
#define F16  FD_EMULATE_F16
#define BF16 FD_EMULATE_BF16

static const fd_emulate_class table[] = {
    {.name = "f32", .summary = "binary32, summed in some other order"},
    {.name = "tf32",
     .summary = "tensor cores on binary32: factors rounded to 10 bits of mantissa",
     .product = TF32,
     .attention = TF32},
    {.name = "f16", .summary = "factors rounded to f16, sums in binary32", .product = F16, .attention = F16},
    {.name = "bf16", .summary = "factors rounded to bf16, sums in binary32", .product = BF16, .attention = BF16},
    {.name = "f16acc",
     .summary = "factors and sums in f16 (cuBLAS compute type 16F)",
     .product = F16,
     .attention = F16,
     .f16_sum = true},
    {.name = "q8",
     .summary = "activations quantised to the weights' dot type, Q8_0 beside blocks of 32",
     .product = FD_EMULATE_OF_WEIGHT},
    {.name = "f16kv", .summary = "binary32 with K and V kept in f16", .cache = F16},
    /* ggml's CPU backend: quantised activations; K and V in f16, and the other factor of their products too. */
    {.name = "llama-cpu",
     .summary = "llama.cpp on a CPU: q8 activations, f16 K and V",
     .product = FD_EMULATE_OF_WEIGHT,
     .attention = F16,
     .cache = F16,
     .own_angles = true},
    /* ggml-cuda's own kernels, and cuBLAS with compute type 16F where both factors are f16. */
    {.name = "llama-cuda",
     .summary = "llama.cpp on CUDA: q8 activations, f16 sums beside f16, TF32 beside f32, f16 K and V",
     .product = FD_EMULATE_OF_WEIGHT_CUDA,
     .attention = F16,
     .cache = F16,
     .f16_sum_of_f16 = true,
     .own_angles = true,
     .batch_kernels = true},
    /* ggml-cuda built with GGML_CUDA_FORCE_CUBLAS: weights dequantised to f16, compute type 16F. */
    {.name = "llama-cublas",
     .summary = "llama.cpp on cuBLAS: f16 factors and sums, f16 K and V",
     .product = F16,
     .attention = F16,
     .cache = F16,
     .f16_sum = true,
     .own_angles = true,
     .batch_kernels = true},
    /* transformers with torch_dtype, eager attention: each kernel computes in binary32 and stores 16 bits. */
    {.name = "hf-bf16",
     .summary = "transformers in bf16: every tensor between kernels is bf16",
     .product = BF16,
     .attention = BF16,
     .tensor = BF16,
     .cache = BF16,
     .own_angles = true,
     .batch_kernels = true},
    {.name = "hf-f16",
     .summary = "transformers in f16: every tensor between kernels is f16",
     .product = F16,
     .attention = F16,
     .tensor = F16,
     .cache = F16,
     .own_angles = true,
     .batch_kernels = true},
};

int32_t fd_emulate_class_count(void) {
    return (int32_t)(sizeof table / sizeof *table);
}

const fd_emulate_class *fd_emulate_class_at(int32_t i) {
    return &table[i];
}

static const fd_emulate_class *find(const char *name, size_t size) {
    for (int32_t i = 0; i < fd_emulate_class_count(); i++)
        if (strlen(table[i].name) == size && memcmp(table[i].name, name, size) == 0) return &table[i];
    return NULL;
}

const fd_emulate_class *fd_emulate_class_find(const char *name) {
    return find(name, strlen(name));
}

fd_code fd_emulate_parse(const char *text, size_t size, fd_emulate_options *options, fd_error *err) {
    const char *colon = memchr(text, ':', size);
    size_t name = colon ? (size_t)(colon - text) : size;
    options->class_ = find(text, name);
    options->seed = 0;
    if (!options->class_) {
        char known[256] = "";
        size_t at = 0;
        for (int32_t i = 0; i < fd_emulate_class_count() && at < sizeof known; i++)
            at += (size_t)snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "", table[i].name);
        return fd_fail(err, FD_ERR_INPUT, "emulated class \"%.*s\": unknown; known: %s", (int)name, text, known);
    }
    if (!colon) return FD_OK;
    size_t digits = size - name - 1;
    for (size_t i = 0; i < digits; i++)
        if (colon[1 + i] < '0' || colon[1 + i] > '9') digits = 0;
    if (digits < 1 || digits > 18)
        return fd_fail(err, FD_ERR_INPUT, "emulated class %s: seed \"%.*s\", expected 1 to 18 digits",
                       options->class_->name, (int)(size - name - 1), colon + 1);
    for (size_t i = 0; i < digits; i++) options->seed = options->seed * 10 + (uint64_t)(colon[1 + i] - '0');
    return FD_OK;
}

#include "tests/gpu/gpu_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf_writer/block_scales.h"
#include "engine/engine.h"
#include "engine/pack_weight.h"
#include "model/gguf/quant.h"
#include "numerics/contract.h"

void gpu_must(fd_code code, const fd_error *err) {
    if (code == FD_OK) return;
    printf("FAIL: %s\n", err->message);
    exit(1);
}

static void must(cudaError_t status, const char *what) {
    fd_error err = {0};
    gpu_must(fd_cuda_check(status, what, &err), &err);
}

void gpu_open(gpu_test *test) {
    char why[256];
    struct cudaDeviceProp prop;
    *test = (gpu_test){.random = 0x243f6a8885a308d3u};
    if (!fd_engine_available(why, sizeof why)) {
        printf("SKIPPED: %s\n", why);
        exit(FD_GPU_SKIPPED);
    }
    must(cudaSetDevice(0), "device 0");
    must(cudaGetDeviceProperties(&prop, 0), "device 0");
    test->queue.n_sm = prop.multiProcessorCount;
    test->queue.max_shared = prop.sharedMemPerBlockOptin;
    test->queue.has_clusters = prop.major >= 9;
    must(cudaStreamCreateWithFlags(&test->queue.stream, cudaStreamNonBlocking), "stream");
    printf("device: %s, %d multiprocessors\n", prop.name, prop.multiProcessorCount);
}

int gpu_close(gpu_test *test) {
    must(cudaStreamDestroy(test->queue.stream), "stream");
    gpu_release(test);
    free(test->device), free(test->host);
    printf("%d cases, %d failed\n", test->n_case, test->n_failed);
    return test->n_failed != 0 || test->n_case == 0;
}

static void *own(void *memory, void ***list, size_t *n) {
    void **grown = realloc(*list, (*n + 1) * sizeof **list);
    if (!memory || !grown) {
        printf("FAIL: out of memory\n");
        exit(1);
    }
    *list = grown;
    return grown[(*n)++] = memory;
}

static void *device_memory(gpu_test *test, size_t bytes) {
    void *device;
    must(cudaMalloc(&device, bytes), "allocation");
    return own(device, &test->device, &test->n_device);
}

float *gpu_upload(gpu_test *test, const void *host, size_t bytes) {
    void *device = device_memory(test, bytes);
    must(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), "upload");
    return device;
}

void *gpu_upload_cache(gpu_test *test, const float *host, size_t n, bool halves) {
    if (!halves) return gpu_upload(test, host, n * sizeof *host);
    uint16_t *of = gpu_host(test, n * sizeof *of);
    fd_quantize_row(FD_F16, host, of, (int64_t)n);
    return gpu_upload(test, of, n * sizeof *of);
}

float *gpu_poisoned(gpu_test *test, size_t n) {
    void *device = device_memory(test, n * sizeof(float));
    must(cudaMemset(device, 0xff, n * sizeof(float)), "poison");
    must(cudaDeviceSynchronize(), "poison");
    return device;
}

void *gpu_host(gpu_test *test, size_t bytes) {
    return own(calloc(1, bytes ? bytes : 1), &test->host, &test->n_host);
}

float *gpu_floats(gpu_test *test, size_t n) {
    return gpu_host(test, n * sizeof(float));
}

float *gpu_random_floats(gpu_test *test, size_t n) {
    float *x = gpu_floats(test, n);
    gpu_fill(test, x, n);
    return gpu_upload(test, x, n * sizeof *x);
}

void gpu_release(gpu_test *test) {
    for (size_t i = 0; i < test->n_device; i++) must(cudaFree(test->device[i]), "free");
    for (size_t i = 0; i < test->n_host; i++) free(test->host[i]);
    test->n_device = test->n_host = 0;
}

void gpu_download(gpu_test *test, const float *device, float *host, size_t n) {
    must(cudaStreamSynchronize(test->queue.stream), "kernel");
    must(cudaMemcpy(host, device, n * sizeof *host, cudaMemcpyDeviceToHost), "download");
}

void gpu_download_cache(gpu_test *test, const void *device, float *host, size_t n, bool halves) {
    if (!halves) {
        gpu_download(test, device, host, n);
        return;
    }
    uint16_t *of = malloc(n * sizeof *of);
    if (!of) exit(2);
    must(cudaStreamSynchronize(test->queue.stream), "kernel");
    must(cudaMemcpy(of, device, n * sizeof *of, cudaMemcpyDeviceToHost), "download");
    fd_dequantize_row(FD_F16, of, host, (int64_t)n);
    free(of);
}

/* SplitMix64 (Steele, Lea, Flood 2014). */
uint32_t gpu_random_bits(gpu_test *test) {
    uint64_t z = test->random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)(z >> 32 ^ z);
}

float gpu_random(gpu_test *test) {
    uint32_t bits = gpu_random_bits(test);
    if (bits % 257 == 0) return bits & 0x10000 ? -0.0f : 0.0f;
    if (bits % 251 == 0) return fd_from_bits32(bits >> 10 & 0x3fffff); /* subnormal */
    float mantissa = (float)(int32_t)(bits & 0xffffff) / 8388608.0f - 1.0f;
    return ldexpf(mantissa, (int)(bits >> 24) % 12 - 8);
}

void gpu_fill(gpu_test *test, float *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = gpu_random(test);
}

void gpu_fill_uniform(gpu_test *test, float *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = (float)(int32_t)gpu_random_bits(test) * 0x1p-31f;
}

float gpu_rounded_f16(float x) {
    return fd_f16_to_f32(fd_f32_to_f16(x));
}

const uint32_t gpu_weight_types[GPU_WEIGHT_TYPES] = {
    FD_F32,    FD_F16,   FD_BF16,  FD_Q8_0,    FD_Q4_0,   FD_Q4_1,  FD_Q5_0,    FD_Q5_1,  FD_Q2_K,
    FD_Q3_K,   FD_Q4_K,  FD_Q5_K,  FD_Q6_K,    FD_IQ4_NL, FD_MXFP4, FD_NVFP4,   FD_IQ2_S, /* layouts */
    FD_IQ4_XS, FD_IQ1_S, FD_IQ1_M, FD_IQ2_XXS, FD_IQ2_XS, FD_IQ3_S, FD_IQ3_XXS, FD_TQ1_0, FD_TQ2_0,
    FD_F64,    FD_I8,    FD_I16,   FD_I32,     FD_I64,
};

/* Every bit pattern of the integers, and scales that are finite binary16 numbers of either sign, zero and subnormal
 * too. */
static void random_blocks(gpu_test *test, uint32_t dtype, uint8_t *to, size_t bytes) {
    size_t block = (size_t)fd_dtype_get(dtype)->block_bytes;
    for (size_t i = 0; i < bytes; i++) to[i] = (uint8_t)gpu_random_bits(test);
    for (uint8_t *b = to; b < to + bytes; b += block) {
        const float d = gpu_random(test), dmin = gpu_random(test);
        block_set_scales(dtype, b, d, dmin);
    }
}

/* Numbers of `dtype` that are no blocks and that nothing encodes: finite. */
static void random_numbers(gpu_test *test, uint32_t dtype, uint8_t *to, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) to[i] = (uint8_t)gpu_random_bits(test);
    for (size_t i = 0; dtype == FD_F64 && i < bytes; i += sizeof(double)) {
        const double value = (double)gpu_random(test) * (1.0 + 0x1p-30);
        memcpy(to + i, &value, sizeof value);
    }
}

void *gpu_random_weight(gpu_test *test, uint32_t dtype, int64_t n_row, int64_t n_col, float **dequantised) {
    int64_t row_bytes = fd_dtype_row_bytes(dtype, n_col);
    if (row_bytes < 0) {
        printf("FAIL: a shape that type %u cannot have\n", (unsigned)dtype);
        exit(1);
    }
    uint8_t *file = gpu_host(test, (size_t)(row_bytes * n_row));
    float *rows = gpu_floats(test, (size_t)(n_row * n_col));
    if (fd_dtype_get(dtype)->is_quantised) {
        random_blocks(test, dtype, file, (size_t)(row_bytes * n_row));
    } else if (!fd_can_quantize(dtype)) {
        random_numbers(test, dtype, file, (size_t)(row_bytes * n_row));
    } else {
        gpu_fill(test, rows, (size_t)(n_row * n_col));
        for (int64_t r = 0; r < n_row; r++) fd_quantize_row(dtype, rows + r * n_col, file + r * row_bytes, n_col);
    }
    for (int64_t r = 0; r < n_row; r++) fd_dequantize_row(dtype, file + r * row_bytes, rows + r * n_col, n_col);
    *dequantised = rows;
    return file;
}

fd_device_matrix gpu_upload_weight(gpu_test *test, uint32_t dtype, int64_t n_row, int64_t n_col,
                                   const void *file_rows) {
    int64_t packed = fd_packed_row_bytes(dtype, n_col), row_bytes = fd_dtype_row_bytes(dtype, n_col);
    char *host = gpu_host(test, (size_t)(packed * n_row));
    for (int64_t r = 0; r < n_row; r++)
        fd_pack_weight_row(dtype, n_col, (const char *)file_rows + r * row_bytes, host + r * packed);
    fd_device_matrix matrix = {.data = gpu_upload(test, host, (size_t)(packed * n_row)),
                               .dtype = dtype,
                               .n_row = n_row,
                               .n_col = n_col,
                               .row_bytes = packed,
                               .scale_offset = fd_packed_scale_offset(dtype, n_col)};
    return matrix;
}

size_t gpu_differing(const float *expected, const float *found, size_t n, size_t *first) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        if (fd_canonical32(expected[i]) == fd_canonical32(found[i])) continue;
        if (count++ == 0) *first = i;
    }
    return count;
}

void gpu_expect_equal(gpu_test *test, const char *name, const float *expected, const float *found, size_t n) {
    size_t first = 0, count = gpu_differing(expected, found, n, &first);
    test->n_case++;
    if (count == 0) return;
    test->n_failed++;
    printf("FAIL %s: %zu of %zu elements differ, first %zu: expected %.9g (%08x), found %.9g (%08x)\n", name, count, n,
           first, (double)expected[first], (unsigned)fd_bits32(expected[first]), (double)found[first],
           (unsigned)fd_bits32(found[first]));
}

void gpu_expect(gpu_test *test, const char *name, bool holds) {
    test->n_case++;
    if (holds) return;
    test->n_failed++;
    printf("FAIL %s\n", name);
}

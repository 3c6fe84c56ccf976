/* Shared by the GPU tests: a device or a skip, buffers that fail loudly, and a comparison by bits.
 *
 * Plain programs, not Criterion's: compute-sanitizer follows one process. Exit status 0 all equal, 1 a difference or a
 * CUDA error, 77 no device (CTest counts it as skipped). */
#ifndef FD_TESTS_GPU_CASE_H
#define FD_TESTS_GPU_CASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/formats/pack.h"
#include "kernels/launch_context.h"

enum { FD_GPU_SKIPPED = 77 };

typedef struct gpu_test {
    fd_launch_context queue;
    int32_t n_case, n_failed;
    uint64_t random;
    void **device, **host; /* what gpu_release frees */
    size_t n_device, n_host;
} gpu_test;

/* Opens device 0 and a stream. Without a device: prints why and exits 77. */
void gpu_open(gpu_test *test);
/* Prints the count; the program's exit status. */
int gpu_close(gpu_test *test);

/* Stops the program with the message when a call failed. */
void gpu_must(fd_code code, const fd_error *err);

/* Memory that the test owns until gpu_release. */
float *gpu_upload(gpu_test *test, const void *host, size_t bytes); /* device copy */
void *gpu_upload_cache(gpu_test *test, const float *host, size_t n,
                       bool halves);                /* n elements, of binary16 or binary32 */
float *gpu_poisoned(gpu_test *test, size_t n);      /* device, n floats that are all NaN: what stays unwritten shows */
void *gpu_host(gpu_test *test, size_t bytes);       /* zeros */
float *gpu_floats(gpu_test *test, size_t n);        /* zeros, on the host */
float *gpu_random_floats(gpu_test *test, size_t n); /* device, gpu_fill's */
void gpu_release(gpu_test *test);

void gpu_download(gpu_test *test, const float *device, float *host, size_t n); /* after the stream's work */
void gpu_download_cache(gpu_test *test, const void *device, float *host, size_t n, bool halves);

/* Random values that a sum's order matters for: normal, over many binades; now and then a zero, a subnormal. */
float gpu_random(gpu_test *test);
uint32_t gpu_random_bits(gpu_test *test);
void gpu_fill(gpu_test *test, float *x, size_t n);
void gpu_fill_uniform(gpu_test *test, float *x, size_t n); /* in ±1 */
float gpu_rounded_f16(float x);

/* The weight types of all device layouts (fd_packed_type), then those that share one of these. */
enum { GPU_LAYOUTS = 17, GPU_WEIGHT_TYPES = 31 };
extern const uint32_t gpu_weight_types[GPU_WEIGHT_TYPES];

/* n_row × n_col of `dtype` as a file holds it, random, and its rows in binary32; both are the test's. */
void *gpu_random_weight(gpu_test *test, uint32_t dtype, int64_t n_row, int64_t n_col, float **dequantised);
/* Packed and uploaded. */
fd_device_matrix gpu_upload_weight(gpu_test *test, uint32_t dtype, int64_t n_row, int64_t n_col, const void *file_rows);

/* Counts the elements whose bits differ (every NaN is the same NaN). */
size_t gpu_differing(const float *expected, const float *found, size_t n, size_t *first);
/* One case: prints a line when it failed. */
void gpu_expect_equal(gpu_test *test, const char *name, const float *expected, const float *found, size_t n);
void gpu_expect(gpu_test *test, const char *name, bool holds);

#endif

/* For the programs here that measure a GPU: a device or a skip, a clock on a stream, the rate of a plain copy. */
#ifndef FD_BENCH_GPU_H
#define FD_BENCH_GPU_H

#include <cuda_runtime_api.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/launch_context.h"

/* Ends the program where the CUDA runtime fails: its text behind the program's name, status 2. */
static inline void cuda(cudaError_t status) {
    if (status == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, cudaGetErrorString(status));
    exit(2);
}

/* Device 0 and a stream of its own on it; ends the program with status 77 where there is no device. `name` gets the
 * device's. */
static inline fd_launch_context gpu_or_skip(char name[256]) {
    struct cudaDeviceProp properties;
    fd_launch_context queue = {0};
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
        printf("SKIPPED: no CUDA device\n");
        exit(77);
    }
    cuda(cudaSetDevice(0));
    cuda(cudaGetDeviceProperties(&properties, 0));
    queue.n_sm = properties.multiProcessorCount;
    queue.max_shared = properties.sharedMemPerBlockOptin;
    queue.has_clusters = properties.major >= 9;
    cuda(cudaStreamCreateWithFlags(&queue.stream, cudaStreamNonBlocking));
    snprintf(name, 256, "%s", properties.name);
    return queue;
}

/* What a stream does between start and stop. */
typedef struct gpu_clock {
    cudaStream_t stream;
    cudaEvent_t begin, end;
} gpu_clock;

static inline gpu_clock gpu_clock_on(cudaStream_t stream) {
    gpu_clock clock = {.stream = stream};
    cuda(cudaEventCreate(&clock.begin));
    cuda(cudaEventCreate(&clock.end));
    return clock;
}

static inline void gpu_clock_start(const gpu_clock *clock) {
    cuda(cudaEventRecord(clock->begin, clock->stream));
}

/* Seconds, once all of it is done. */
static inline double gpu_clock_stop(const gpu_clock *clock) {
    float ms;
    cuda(cudaEventRecord(clock->end, clock->stream));
    cuda(cudaEventSynchronize(clock->end));
    cuda(cudaEventElapsedTime(&ms, clock->begin, clock->end));
    return 1e-3 * (double)ms;
}

static inline void gpu_clock_free(const gpu_clock *clock) {
    cuda(cudaEventDestroy(clock->begin));
    cuda(cudaEventDestroy(clock->end));
}

/* GB/s, read and written, of n copies of so many bytes between two places in the device's memory. */
static inline double gpu_copy_rate(const gpu_clock *clock, const void *from, void *to, size_t bytes, int n) {
    gpu_clock_start(clock);
    for (int i = 0; i < n; i++) cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, clock->stream));
    return 2e-9 * (double)bytes * n / gpu_clock_stop(clock);
}

#endif

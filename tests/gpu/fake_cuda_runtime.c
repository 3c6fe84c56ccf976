#include "tests/gpu/fake_cuda_runtime.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

fake_cuda fake;

typedef struct header { /* before each allocation */
    uint64_t size;
    char unused[248];
} header;

static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;

static cudaError_t take(void **to, size_t size) {
    uint64_t whole = (size + 255) / 256 * 256;
    *to = NULL;
    if (fake.fail_alloc > 0 && --fake.fail_alloc == 0) return cudaErrorMemoryAllocation;
    if (fake.taken + whole > fake.free_bytes) return cudaErrorMemoryAllocation;
    header *block = calloc(1, sizeof *block + whole); /* untouched pages cost nothing */
    if (!block) return cudaErrorMemoryAllocation;
    block->size = whole;
    fake.taken += whole;
    fake.n_alloc++;
    if (fake.taken > fake.peak) fake.peak = fake.taken;
    *to = block + 1;
    return cudaSuccess;
}

cudaError_t __wrap_cudaMalloc(void **to, size_t size) {
    pthread_mutex_lock(&counting);
    cudaError_t status = take(to, size);
    pthread_mutex_unlock(&counting);
    return status;
}

cudaError_t __wrap_cudaFree(void *data) {
    if (!data) return cudaSuccess;
    header *block = (header *)data - 1;
    pthread_mutex_lock(&counting);
    fake.taken -= block->size;
    fake.n_alloc--;
    pthread_mutex_unlock(&counting);
    free(block);
    return cudaSuccess;
}

cudaError_t __wrap_cudaMallocHost(void **to, size_t size) {
    *to = malloc(size);
    pthread_mutex_lock(&counting);
    fake.n_pinned += *to != NULL;
    pthread_mutex_unlock(&counting);
    return *to ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t __wrap_cudaFreeHost(void *data) {
    pthread_mutex_lock(&counting);
    fake.n_pinned -= data != NULL;
    pthread_mutex_unlock(&counting);
    free(data);
    return cudaSuccess;
}

cudaError_t __wrap_cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    *free_bytes = fake.free_bytes - fake.taken;
    *total = fake.free_bytes;
    return cudaSuccess;
}

cudaError_t __wrap_cudaGetDeviceCount(int *n) {
    *n = fake.n_device > 1 ? fake.n_device : 1;
    return cudaSuccess;
}

cudaError_t __wrap_cudaDeviceCanAccessPeer(int *reaches, int device, int other) {
    (void)device, (void)other;
    *reaches = !fake.no_peers;
    return cudaSuccess;
}

cudaError_t __wrap_cudaDeviceEnablePeerAccess(int other, unsigned flags) {
    (void)other, (void)flags;
    return cudaSuccess;
}

cudaError_t __wrap_cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device) {
    memset(prop, 0, sizeof *prop);
    prop->uuid.bytes[0] = (char)device;
    strcpy(prop->name, "no device");
    prop->major = 9;
    prop->multiProcessorCount = FAKE_CUDA_SM;
    prop->sharedMemPerBlockOptin = 227 << 10;
    return cudaSuccess;
}

cudaError_t __wrap_cudaDriverGetVersion(int *version) {
    *version = 13000;
    return cudaSuccess;
}

static _Thread_local int current_device;

cudaError_t __wrap_cudaSetDevice(int device) {
    if (device < 0 || device >= (fake.n_device > 1 ? fake.n_device : 1)) return cudaErrorInvalidDevice;
    current_device = device;
    return cudaSuccess;
}

cudaError_t __wrap_cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
    (void)kind;
    memcpy(to, from, size);
    return cudaSuccess;
}

cudaError_t __wrap_cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind,
                                   cudaStream_t stream) {
    (void)stream;
    return __wrap_cudaMemcpy(to, from, size, kind);
}

cudaError_t __wrap_cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                                     size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
    (void)kind, (void)stream;
    for (size_t i = 0; i < height; i++) memcpy((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width);
    return cudaSuccess;
}

cudaError_t __wrap_cudaMemset(void *to, int value, size_t size) {
    memset(to, value, size);
    return cudaSuccess;
}

cudaError_t __wrap_cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t stream) {
    (void)stream;
    return __wrap_cudaMemset(to, value, size);
}

cudaError_t __wrap_cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    (void)flags;
    *stream = NULL;
    return cudaSuccess;
}

cudaError_t __wrap_cudaStreamSynchronize(cudaStream_t stream) {
    (void)stream;
    return cudaSuccess;
}

cudaError_t __wrap_cudaStreamQuery(cudaStream_t stream) {
    (void)stream;
    return fake.stuck ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t __wrap_cudaEventQuery(cudaEvent_t event) {
    (void)event;
    return fake.stuck ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t __wrap_cudaStreamDestroy(cudaStream_t stream) {
    (void)stream;
    return cudaSuccess;
}

cudaError_t __wrap_cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    (void)flags;
    *event = NULL;
    return cudaSuccess;
}

cudaError_t __wrap_cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    (void)event, (void)stream;
    return cudaSuccess;
}

cudaError_t __wrap_cudaEventSynchronize(cudaEvent_t event) {
    (void)event;
    return cudaSuccess;
}

cudaError_t __wrap_cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    (void)stream, (void)event, (void)flags;
    return cudaSuccess;
}

cudaError_t __wrap_cudaGetLastError(void) {
    return cudaSuccess;
}

cudaError_t __wrap_cudaGetDevice(int *device) {
    *device = current_device;
    return cudaSuccess;
}

/* The compute capability is asked for alone: the properties' one. */
cudaError_t __wrap_cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    (void)device;
    *value = 9;
    return attribute == cudaDevAttrComputeCapabilityMajor ? cudaSuccess : cudaErrorInvalidValue;
}

/* Of the driver only cuTensorMapEncodeTiled is asked for, whose map no kernel reads here. */
static int encode_nothing(void) {
    return 0;
}

cudaError_t __wrap_cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                                    unsigned long long flags,
                                                    enum cudaDriverEntryPointQueryResult *status) {
    (void)version, (void)flags;
    if (strcmp(symbol, "cuTensorMapEncodeTiled") != 0) return cudaErrorInvalidValue;
    *(int (**)(void))function = encode_nothing;
    *status = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}

cudaError_t __wrap_cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value) {
    (void)function, (void)attribute, (void)value;
    return cudaSuccess;
}

cudaError_t __wrap_cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *function, int block,
                                                                          size_t shared, unsigned flags) {
    (void)function, (void)block, (void)shared, (void)flags;
    *n = 1;
    return cudaSuccess;
}

cudaError_t __wrap_cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **arguments) {
    (void)config, (void)function, (void)arguments;
    __atomic_fetch_add(&fake.n_launch, 1, __ATOMIC_RELAXED);
    return cudaSuccess;
}

#include "fake_cuda_driver.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct thing {
    enum { FILL, COPY, EVENT } kind;
    float *x;
    size_t n;
    float value;
    const void *from;
    void *to, *event, *stream;
} thing;

static thing things[1 << 16];
static size_t n_thing, n_done;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
int fake_copies, fake_pinned, fake_pushed, fake_failure;

static void add(thing what) {
    pthread_mutex_lock(&lock);
    things[n_thing++ % (1 << 16)] = what;
    pthread_mutex_unlock(&lock);
}

void fake_fill(float *x, size_t n, float value, void *stream) {
    add((thing){.kind = FILL, .x = x, .n = n, .value = value, .stream = stream});
}

static int take(int failure) {
    if (fake_failure != failure) return 0;
    fake_failure = 0;
    return 700;
}

int cuCtxGetCurrent(void **context) {
    *context = fake_failure == -1 ? NULL : (void *)&lock;
    return 0;
}
int cuCtxPushCurrent_v2(void *context) {
    return fake_pushed++, context == (void *)&lock ? 0 : 201;
}
int cuCtxPopCurrent_v2(void **context) {
    return fake_pushed--, *context = &lock, 0;
}
int cuMemHostAlloc(void **host, size_t bytes, unsigned flags) {
    int failed = take(3);
    *host = failed || flags != 1 ? NULL : malloc(bytes);
    fake_pinned += *host != NULL;
    return failed;
}
int cuMemFreeHost(void *host) {
    return fake_pinned--, free(host), 0;
}
int cuMemcpyDtoHAsync_v2(void *host, unsigned long long device, size_t bytes, void *stream) {
    if (take(1)) return 1;
    fake_copies++;
    add((thing){.kind = COPY, .to = host, .from = (const void *)(uintptr_t)device, .n = bytes, .stream = stream});
    return 0;
}
int cuEventCreate(void **event, unsigned flags) {
    return *event = malloc(1), flags == 2 ? 0 : 1;
}
int cuEventDestroy_v2(void *event) {
    return free(event), 0;
}
int cuEventRecord(void *event, void *stream) {
    return add((thing){.kind = EVENT, .event = event, .stream = stream}), 0;
}
int cuStreamIsCapturing(void *stream, int *status) {
    return (void)stream, *status = fake_failure == -2, 0;
}
int cuGetErrorName(int error, const char **name) {
    return *name = error == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_INVALID_VALUE", 0;
}

/* Everything up to the last record of the event; one stream is as good as another here, as long as its order is
 * kept. */
int cuEventSynchronize(void *event) {
    pthread_mutex_lock(&lock);
    size_t end = n_done;
    for (size_t i = n_done; i < n_thing; i++)
        if (things[i].kind == EVENT && things[i].event == event) end = i + 1;
    for (; n_done < end; n_done++) {
        thing *t = &things[n_done];
        for (size_t i = 0; t->kind == FILL && i < t->n; i++) t->x[i] = t->value;
        if (t->kind == COPY) {
            memcpy(t->to, t->from, t->n);
            fake_copies--;
        }
    }
    pthread_mutex_unlock(&lock);
    return take(2);
}

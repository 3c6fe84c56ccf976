/* Data on a device. The copy to pinned memory goes into the caller's stream, after what computes the data and before
 * what overwrites it, and an event after the copy says when it is done. No call waits for it before the step ends.
 * After that the device address is not used again.
 *
 * The functions are the CUDA driver's own, found in the libcuda that the program has loaded: its interface is stable
 * over toolkit versions, every program that uses CUDA has it, and a cudaStream_t is a CUstream. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/client/blocks.h"

typedef struct cuda_api { /* CUresult and the handles as in cuda.h */
    int (*cuCtxGetCurrent)(void **context);
    int (*cuCtxPushCurrent)(void *context);
    int (*cuCtxPopCurrent)(void **context);
    int (*cuMemHostAlloc)(void **host, size_t bytes, unsigned flags);
    int (*cuMemFreeHost)(void *host);
    int (*cuMemcpyDtoHAsync)(void *host, unsigned long long device, size_t bytes, void *stream);
    int (*cuEventCreate)(void **event, unsigned flags);
    int (*cuEventDestroy)(void *event);
    int (*cuEventRecord)(void *event, void *stream);
    int (*cuEventSynchronize)(void *event);
    int (*cuStreamIsCapturing)(void *stream, int *status);
    int (*cuGetErrorName)(int error, const char **name);
} cuda_api;

/* A copy under way. */
typedef struct pending {
    fd_tracer_view view; /* its data lies in pinned memory */
    char name[64];
    void *event, *context;
} pending;

typedef struct slab {
    char *base;
    size_t size, used;
    struct slab *next;
} slab;

struct fd_tracer_device {
    cuda_api cuda;
    pending *list; /* [n] in order of the puts */
    size_t n, room, bytes;
    void **events; /* [n_event] not in use */
    size_t n_event, event_room;
    void *context; /* of the slabs and events */
    slab *slabs;
};

enum {
    SLAB = 16 << 20,
    MOST_PINNED = 256 << 20, /* then the copies under way are waited for */
    PORTABLE = 1,            /* CU_MEMHOSTALLOC_PORTABLE */
    NO_TIMING = 2,           /* CU_EVENT_DISABLE_TIMING */
};

static fd_code load(cuda_api *api, fd_error *err) {
    static const char *const names[] = {"cuCtxGetCurrent",    "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2",
                                        "cuMemHostAlloc",     "cuMemFreeHost",       "cuMemcpyDtoHAsync_v2",
                                        "cuEventCreate",      "cuEventDestroy_v2",   "cuEventRecord",
                                        "cuEventSynchronize", "cuStreamIsCapturing", "cuGetErrorName"};
    _Static_assert(sizeof names / sizeof *names == sizeof(cuda_api) / sizeof(void *), "a name for each function");
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL); /* kept open */
    if (!library) return fd_fail(err, FD_ERR_DEVICE, "data on a device, but libcuda.so.1 was not found");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *found = dlsym(library, names[i]);
        if (!found) return fd_fail(err, FD_ERR_DEVICE, "libcuda.so.1 has no %s", names[i]);
        memcpy((char *)api + i * sizeof found, &found, sizeof found);
    }
    return FD_OK;
}

static fd_code refuse(const cuda_api *cuda, int error, const char *name, const char *what, fd_error *err) {
    const char *text = NULL;
    cuda->cuGetErrorName(error, &text);
    return fd_fail(err, FD_ERR_DEVICE, "tensor %s: %s: %s", name, what, text ? text : "unknown CUDA error");
}

/* ---- the caller's own copy ---- */

static fd_code take_by_callback(fd_tracer *tracer, const fd_tracer_view *view, void *stream, fd_error *err) {
    fd_tracer_blocks blocks = fd_tracer_blocks_of(view);
    size_t size = fd_tracer_bytes_of(view->source), bytes = (size_t)blocks.block * size;
    char *host = malloc(bytes * (size_t)blocks.n_block);
    if (!host) return fd_fail(err, FD_ERR_MEMORY, "tensor %s: out of memory", view->name);
    fd_code code = FD_OK;
    for (int64_t b = 0; code == FD_OK && b < blocks.n_block; b++) {
        const char *from = view->data + (size_t)fd_tracer_block_offset(&blocks, b) * size;
        int failed = tracer->options.copy(tracer->options.copy_user, host + (size_t)b * bytes, from, bytes, stream);
        if (failed) code = fd_fail(err, FD_ERR_DEVICE, "tensor %s: the copy function returned %d", view->name, failed);
    }
    fd_tracer_view there = fd_tracer_blocks_view(view, &blocks, host);
    if (code == FD_OK) code = fd_tracer_take(tracer, &there, err);
    free(host);
    return code;
}

/* ---- CUDA ---- */

static fd_code pin(struct fd_tracer_device *device, size_t bytes, const char *name, char **out, fd_error *err) {
    bytes = (bytes + 255) / 256 * 256;
    for (slab *s = device->slabs; s; s = s->next)
        if (s->size - s->used >= bytes) {
            *out = s->base + s->used;
            s->used += bytes;
            return FD_OK;
        }
    slab *fresh = calloc(1, sizeof *fresh);
    if (!fresh) return fd_fail(err, FD_ERR_MEMORY, "tensor %s: out of memory", name);
    void *base;
    fresh->size = bytes > SLAB ? bytes : SLAB;
    int error = device->cuda.cuMemHostAlloc(&base, fresh->size, PORTABLE);
    if (error) {
        free(fresh);
        return refuse(&device->cuda, error, name, "no pinned memory", err);
    }
    fresh->base = *out = base;
    fresh->used = bytes;
    fresh->next = device->slabs;
    device->slabs = fresh;
    return FD_OK;
}

static fd_code order_copy(struct fd_tracer_device *device, const fd_tracer_view *view, const fd_tracer_blocks *blocks,
                          char *host, void *stream, void **event, fd_error *err) {
    const cuda_api *cuda = &device->cuda;
    size_t size = fd_tracer_bytes_of(view->source), bytes = (size_t)blocks->block * size;
    int error = 0;
    for (int64_t b = 0; error == 0 && b < blocks->n_block; b++) {
        const char *from = view->data + (size_t)fd_tracer_block_offset(blocks, b) * size;
        error = cuda->cuMemcpyDtoHAsync(host + (size_t)b * bytes, (unsigned long long)(uintptr_t)from, bytes, stream);
    }
    if (error) return refuse(cuda, error, view->name, "cannot be copied from the device", err);
    if (device->n_event > 0)
        *event = device->events[--device->n_event];
    else
        error = cuda->cuEventCreate(event, NO_TIMING);
    if (error == 0) error = cuda->cuEventRecord(*event, stream);
    return error ? refuse(cuda, error, view->name, "no event after its copy", err) : FD_OK;
}

/* CUDA, loaded when first needed, and a stream that a copy can go into. */
static fd_code use_cuda(fd_tracer *tracer, const char *name, void *stream, void **context, fd_error *err) {
    int capturing = 0;
    *context = NULL;
    if (!tracer->device) {
        cuda_api api = {0};
        FD_TRY(load(&api, err));
        tracer->device = calloc(1, sizeof *tracer->device);
        if (!tracer->device) return fd_fail(err, FD_ERR_MEMORY, "tensor %s: out of memory", name);
        tracer->device->cuda = api;
    }
    struct fd_tracer_device *device = tracer->device;
    if (device->cuda.cuCtxGetCurrent(context) != 0 || !*context)
        return fd_fail(err, FD_ERR_DEVICE, "tensor %s: on a device, but this thread has no CUDA context", name);
    if (device->cuda.cuStreamIsCapturing(stream, &capturing) == 0 && capturing)
        return fd_fail(err, FD_ERR_DEVICE,
                       "tensor %s: its stream is being captured into a graph, expected one that runs", name);
    if (!device->context) device->context = *context;
    return FD_OK;
}

static fd_code take_by_cuda(fd_tracer *tracer, const fd_tracer_view *view, void *stream, fd_error *err) {
    void *context;
    FD_TRY(use_cuda(tracer, view->name, stream, &context, err));
    struct fd_tracer_device *device = tracer->device;
    fd_tracer_blocks blocks = fd_tracer_blocks_of(view);
    size_t bytes = (size_t)(blocks.block * blocks.n_block) * fd_tracer_bytes_of(view->source);
    if (device->n > 0 && device->bytes + bytes > MOST_PINNED) FD_TRY(fd_tracer_collect(tracer, err));
    if (device->n == device->room) {
        size_t room = device->room ? 2 * device->room : 256;
        pending *list = realloc(device->list, room * sizeof *list);
        if (!list) return fd_fail(err, FD_ERR_MEMORY, "tensor %s: out of memory", view->name);
        device->list = list;
        device->room = room;
    }
    char *host = NULL;
    pending *p = &device->list[device->n];
    FD_TRY(pin(device, bytes, view->name, &host, err));
    FD_TRY(order_copy(device, view, &blocks, host, stream, &p->event, err));
    p->view = fd_tracer_blocks_view(view, &blocks, host);
    p->context = context;
    strcpy(p->name, view->name);
    device->bytes += bytes;
    device->n++;
    return FD_OK;
}

fd_code fd_tracer_take_device(fd_tracer *tracer, const fd_tracer_view *view, void *stream, fd_error *err) {
    return tracer->options.copy ? take_by_callback(tracer, view, stream, err) : take_by_cuda(tracer, view, stream, err);
}

static bool keep_event(struct fd_tracer_device *device, void *event) {
    if (device->n_event == device->event_room) {
        size_t room = device->event_room ? 2 * device->event_room : 256;
        void **events = realloc(device->events, room * sizeof *events);
        if (!events) return false;
        device->events = events;
        device->event_room = room;
    }
    device->events[device->n_event++] = event;
    return true;
}

fd_code fd_tracer_collect(fd_tracer *tracer, fd_error *err) {
    struct fd_tracer_device *device = tracer->device;
    fd_code code = FD_OK;
    if (!device || device->n == 0) return FD_OK;
    void *popped;
    for (size_t i = 0; i < device->n; i++) {
        pending *p = &device->list[i];
        device->cuda.cuCtxPushCurrent(p->context); /* this may be another thread than the put's */
        int error = device->cuda.cuEventSynchronize(p->event);
        if (!keep_event(device, p->event)) device->cuda.cuEventDestroy(p->event);
        device->cuda.cuCtxPopCurrent(&popped);
        p->view.name = p->name;
        if (code != FD_OK) continue;
        code = error ? refuse(&device->cuda, error, p->name, "its copy from the device failed", err)
                     : fd_tracer_take(tracer, &p->view, err);
    }
    device->n = device->bytes = 0;
    for (slab *s = device->slabs; s; s = s->next) s->used = 0;
    return code;
}

static fd_code fetch_by_cuda(fd_tracer *tracer, const char *name, const char *from, size_t bytes, void *stream,
                             char *host, fd_error *err) {
    void *context;
    char *pinned;
    FD_TRY(use_cuda(tracer, name, stream, &context, err));
    FD_TRY(fd_tracer_collect(tracer, err)); /* its memory is needed */
    struct fd_tracer_device *device = tracer->device;
    fd_code code = pin(device, bytes < SLAB ? bytes : SLAB, name, &pinned, err);
    for (size_t at = 0; code == FD_OK && at < bytes; at += SLAB) {
        const size_t n = bytes - at < SLAB ? bytes - at : SLAB;
        const fd_tracer_view view = {.name = name, .source = FD_TRACER_I8, .data = from + at};
        const fd_tracer_blocks whole = {.block = (int64_t)n, .n_block = 1};
        void *event;
        code = order_copy(device, &view, &whole, pinned, stream, &event, err);
        if (code != FD_OK) break;
        int error = device->cuda.cuEventSynchronize(event);
        if (!keep_event(device, event)) device->cuda.cuEventDestroy(event);
        if (error) code = refuse(&device->cuda, error, name, "its copy from the device failed", err);
        if (!error) memcpy(host + at, pinned, n);
    }
    for (slab *s = device->slabs; s; s = s->next) s->used = 0;
    return code;
}

fd_code fd_tracer_fetch(fd_tracer *tracer, const char *name, const void *device, size_t bytes, void *stream, char *host,
                        fd_error *err) {
    const fd_tracer_options *o = &tracer->options;
    if (!o->copy) return fetch_by_cuda(tracer, name, device, bytes, stream, host, err);
    int failed = o->copy(o->copy_user, host, device, bytes, stream);
    return failed ? fd_fail(err, FD_ERR_DEVICE, "tensor %s: the copy function returned %d", name, failed) : FD_OK;
}

bool fd_tracer_device_has(const fd_tracer *tracer, const char *name) {
    const struct fd_tracer_device *device = tracer->device;
    for (size_t i = 0; device && i < device->n; i++)
        if (strcmp(device->list[i].name, name) == 0) return true;
    return false;
}

void fd_tracer_device_free(fd_tracer *tracer) {
    struct fd_tracer_device *device = tracer->device;
    if (!device) return;
    void *popped;
    bool current = device->context && device->cuda.cuCtxPushCurrent(device->context) == 0;
    for (size_t i = 0; i < device->n; i++) { /* a copy into memory that is freed must have ended */
        device->cuda.cuEventSynchronize(device->list[i].event);
        device->cuda.cuEventDestroy(device->list[i].event);
    }
    for (size_t i = 0; i < device->n_event; i++) device->cuda.cuEventDestroy(device->events[i]);
    for (slab *s = device->slabs, *next; s; s = next) {
        next = s->next;
        device->cuda.cuMemFreeHost(s->base);
        free(s);
    }
    if (current) device->cuda.cuCtxPopCurrent(&popped);
    free(device->events);
    free(device->list);
    free(device);
    tracer->device = NULL;
}

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dumpers/client/tracer.h"

#define PUBLIC __attribute__((visibility("default")))

/* What open returns when there is no memory for a tracer of its own. */
static fd_tracer no_memory = {.lock = PTHREAD_MUTEX_INITIALIZER,
                              .off = true,
                              .closed = true,
                              .failure = {FD_ERR_MEMORY, "the trace could not be started: out of memory"}};

/* Closes the files and frees everything but the tracer itself, which calls after close look at. */
static void give_back(fd_tracer *tracer) {
    fd_tracer_gathered *step = &tracer->step;
    fd_tracer_stop_writing(tracer);
    fd_tracer_close_file(tracer);
    fd_tracer_device_free(tracer);
    for (int32_t i = 0; i < step->n_set; i++) fd_tracer_drop_rows(&step->sets[i]);
    free(step->sets);
    free(step->tokens);
    free(tracer->path);
    for (int i = 0; i < 6; i++) free(tracer->texts[i]);
    memset(tracer->texts, 0, sizeof tracer->texts);
    *step = (fd_tracer_gathered){0};
    tracer->path = NULL;
}

static int turn_off(fd_tracer *tracer, const fd_error *err) {
    fd_tracer_host host;
    fd_tracer_note_failure(tracer, err);
    fd_tracer_enter(&host, false);
    give_back(tracer);
    fd_tracer_leave(&host);
    return tracer->failure.code;
}

/* ---- open ---- */

static bool copy_text(fd_tracer *tracer, int at, const char **text) {
    if (!*text) return true;
    *text = tracer->texts[at] = strdup(*text);
    return *text != NULL;
}

/* Absolute, because the host may change its directory while the trace grows. */
static bool set_path(fd_tracer *tracer, const char *path) {
    char here[PATH_MAX];
    if (path[0] == '/')
        tracer->path = strdup(path);
    else if (!getcwd(here, sizeof here) || asprintf(&tracer->path, "%s/%s", here, path) < 0)
        tracer->path = NULL;
    return tracer->path != NULL;
}

static fd_code start(fd_tracer *tracer, const char *path, const fd_tracer_options *options, fd_error *err) {
    if (options) tracer->options = *options;
    const char **texts[] = {&tracer->options.engine, &tracer->options.numerics,   &tracer->options.kv_type,
                            &tracer->options.device, &tracer->options.model_file, &tracer->options.prompt};
    bool ok = true;
    for (int i = 0; i < 6; i++) ok = ok && copy_text(tracer, i, texts[i]);
    if (!ok || !set_path(tracer, path)) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", path);
    if (!path[0]) return fd_fail(err, FD_ERR_INPUT, "trace: no file name");
    return fd_tracer_create(tracer, err);
}

PUBLIC fd_tracer *fd_tracer_open(const char *path, const fd_tracer_options *options) {
    if (!path) path = secure_getenv("FIRSTDIFF_TRACE");
    if (!path) return NULL;
    int saved = errno;
    fd_tracer *tracer = calloc(1, sizeof *tracer);
    if (!tracer) {
        errno = saved;
        return &no_memory;
    }
    fd_tracer_host host;
    fd_error err = {0};
    pthread_mutex_init(&tracer->lock, NULL);
    fd_tracer_register(tracer);
    pthread_mutex_lock(&tracer->lock);
    fd_tracer_enter(&host, true);
    fd_tracer_watch_exit();
    if (start(tracer, path, options, &err) != FD_OK) turn_off(tracer, &err);
    fd_tracer_leave(&host);
    pthread_mutex_unlock(&tracer->lock);
    errno = saved;
    return tracer;
}

/* ---- steps and puts ---- */

static bool works(const fd_tracer *tracer) {
    return tracer && !atomic_load_explicit(&tracer->off, memory_order_acquire);
}

/* What an idle tracer's calls return. */
static int idle(const fd_tracer *tracer) {
    return !tracer ? 0 : tracer->failure.code ? tracer->failure.code : FD_ERR_INPUT;
}

static fd_code end_step(fd_tracer *tracer, fd_error *err) {
    FD_TRY(fd_tracer_collect(tracer, err));
    return fd_tracer_end(tracer, err);
}

PUBLIC int fd_tracer_step(fd_tracer *tracer, const int32_t *tokens, int32_t count) {
    if (!works(tracer)) return idle(tracer);
    fd_tracer_host host;
    fd_error err = {0};
    int result = 0;
    pthread_mutex_lock(&tracer->lock);
    fd_tracer_enter(&host, false);
    if (!works(tracer))
        result = idle(tracer);
    else if (end_step(tracer, &err) != FD_OK || fd_tracer_begin(tracer, tokens, count, &err) != FD_OK)
        result = turn_off(tracer, &err);
    fd_tracer_leave(&host);
    pthread_mutex_unlock(&tracer->lock);
    return result;
}

static fd_code take_device(fd_tracer *tracer, const fd_tracer_view *view, void *stream, fd_error *err) {
    fd_tracer_host host;
    fd_tracer_enter(&host, false);
    fd_code code = fd_tracer_take_device(tracer, view, stream, err);
    fd_tracer_leave(&host);
    return code;
}

/* A row that is given twice holds what came last. */
static fd_code take_host(fd_tracer *tracer, const fd_tracer_view *view, fd_error *err) {
    fd_tracer_host host;
    if (fd_tracer_device_has(tracer, view->name)) {
        fd_tracer_enter(&host, false);
        fd_code code = fd_tracer_collect(tracer, err);
        fd_tracer_leave(&host);
        FD_TRY(code);
    }
    return fd_tracer_take(tracer, view, err);
}

static fd_code put(fd_tracer *tracer, const fd_tracer_tensor *tensor, fd_error *err) {
    fd_tracer_view view;
    if (!tensor) return fd_fail(err, FD_ERR_INPUT, "a put without a tensor");
    if (!tracer->step.in_step)
        return fd_fail(err, FD_ERR_INPUT, "tensor %.63s: put before the first fd_tracer_step",
                       tensor->name ? tensor->name : "");
    FD_TRY(fd_tracer_check(tensor, tracer->step.pos0, tracer->step.n_tok, &view, err));
    return tensor->on_device ? take_device(tracer, &view, tensor->stream, err) : take_host(tracer, &view, err);
}

PUBLIC int fd_tracer_put(fd_tracer *tracer, const fd_tracer_tensor *tensor) {
    if (!works(tracer)) return idle(tracer);
    fd_error err;
    int saved = errno, cancel, result = 0;
    err.code = FD_OK;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    pthread_mutex_lock(&tracer->lock);
    if (!works(tracer))
        result = idle(tracer);
    else if (put(tracer, tensor, &err) != FD_OK)
        result = turn_off(tracer, &err);
    pthread_mutex_unlock(&tracer->lock);
    pthread_setcancelstate(cancel, NULL);
    errno = saved;
    return result;
}

PUBLIC int fd_tracer_put_f32(fd_tracer *tracer, const char *name, const float *data, int64_t n_row, int64_t n_column) {
    fd_tracer_tensor tensor = {
        .name = name, .dtype = FD_TRACER_F32, .data = data, .n_dim = 2, .shape = {n_row, n_column}};
    return fd_tracer_put(tracer, &tensor);
}

static fd_code put_weight(fd_tracer *tracer, const fd_tracer_weight *weight, fd_error *err) {
    fd_weight_rows rows;
    if (!weight) return fd_fail(err, FD_ERR_INPUT, "a put without a weight");
    FD_TRY(fd_tracer_hash_weight(tracer, weight, &rows, err));
    return fd_tracer_hand_over_weight(tracer, &rows, err);
}

PUBLIC int fd_tracer_put_weight(fd_tracer *tracer, const fd_tracer_weight *weight) {
    if (!works(tracer)) return idle(tracer);
    fd_tracer_host host;
    fd_error err = {0};
    int result = 0;
    pthread_mutex_lock(&tracer->lock);
    fd_tracer_enter(&host, false);
    fesetenv(FE_DFL_ENV); /* a host that flushes denormals must not change what is hashed */
    if (!works(tracer))
        result = idle(tracer);
    else if (put_weight(tracer, weight, &err) != FD_OK)
        result = turn_off(tracer, &err);
    fd_tracer_leave(&host);
    pthread_mutex_unlock(&tracer->lock);
    return result;
}

PUBLIC int fd_tracer_put_weight_f32(fd_tracer *tracer, const char *name, const float *data, int64_t n_row,
                                    int64_t n_column) {
    fd_tracer_weight weight = {.name = name, .data = data, .n_row = n_row, .n_col = n_column};
    return fd_tracer_put_weight(tracer, &weight);
}

PUBLIC int fd_tracer_put_attention(fd_tracer *tracer, const char *name, const float *data, int64_t n_row,
                                   int64_t n_head, int64_t n_key) {
    fd_tracer_tensor tensor = {
        .name = name, .dtype = FD_TRACER_F32, .data = data, .n_dim = 3, .shape = {n_row, n_head, n_key}, .over_kv = 1};
    return fd_tracer_put(tracer, &tensor);
}

/* ---- the end ---- */

PUBLIC const char *fd_tracer_error(const fd_tracer *tracer) {
    if (!tracer || !atomic_load_explicit(&tracer->off, memory_order_acquire) || tracer->failure.code == FD_OK)
        return NULL;
    return tracer->failure.message;
}

static fd_code finish(fd_tracer *tracer, fd_error *err) {
    FD_TRY(end_step(tracer, err));
    return fd_tracer_complete(tracer, err);
}

PUBLIC int fd_tracer_close(fd_tracer *tracer, char *message, size_t size) {
    if (message && size > 0) message[0] = '\0';
    if (!tracer) return 0;
    fd_tracer_host host;
    fd_error err = {0};
    pthread_mutex_lock(&tracer->lock);
    fd_tracer_enter(&host, false);
    if (!tracer->closed) {
        if (works(tracer) && finish(tracer, &err) != FD_OK) turn_off(tracer, &err);
        atomic_store(&tracer->off, true);
        give_back(tracer);
        tracer->closed = true;
    }
    int result = tracer->failure.code;
    if (result && message && size > 0) {
        size_t n = strnlen(tracer->failure.message, size - 1);
        memcpy(message, tracer->failure.message, n);
        message[n] = '\0';
    }
    fd_tracer_leave(&host);
    pthread_mutex_unlock(&tracer->lock);
    return result;
}

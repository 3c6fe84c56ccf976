/* The thread that writes. The calls check and copy; what they have gathered of a step goes to a tracer of its own, the
 * file's, which a thread of the library's takes through the same functions as a caller would that writes by itself. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/client/tracer.h"

/* Steps on their way to the file: as many as a killed program loses beside the one that goes on. */
enum { MOST_STEPS = 8 };

/* Rows of one step. */
typedef struct part {
    struct part *next;
    int64_t pos0, n_tok;
    int32_t *tokens; /* owned, [n_tok] */
    bool ends;       /* the step is whole with it */
    size_t bytes;
    int32_t n_set;
    fd_tracer_set sets[]; /* [n_set] all that there are so far; those with rows own them */
} part;

struct fd_tracer_beside {
    fd_tracer *caller; /* learns of failures */
    fd_tracer file;    /* of the thread */
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t work, room;
    part *first, *last;
    size_t bytes;         /* of parts that are not written */
    int n_step;           /* whose end is among them */
    bool end, complete;   /* when all is written */
    bool running;         /* of the caller */
};

static void free_part(part *p) {
    for (int32_t i = 0; i < p->n_set; i++) fd_tracer_drop_rows(&p->sets[i]);
    free(p->tokens);
    free(p);
}

/* ---- the thread ---- */

static bool adopt(fd_tracer *file, part *p, fd_error *err) {
    if (p->n_set > file->room) {
        fd_tracer_set *grown = realloc(file->sets, (size_t)p->n_set * sizeof *grown);
        if (!grown) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", file->path), false;
        file->sets = grown;
        file->room = p->n_set;
    }
    for (int32_t i = 0; i < p->n_set; i++) {
        fd_tracer_set *from = &p->sets[i], *to = &file->sets[i];
        if (i >= file->n_set) {
            *to = *from;
            to->rows = NULL;
            to->held = NULL;
            to->prints = NULL;
            file->n_set = i + 1;
        }
        if (!from->rows) continue;
        to->rows = from->rows;
        to->held = from->held;
        from->rows = NULL;
        from->held = NULL;
        if (!to->prints && !(to->prints = calloc((size_t)p->n_tok, sizeof *to->prints)))
            return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", file->path), false;
    }
    return true;
}

static fd_code write_part(fd_tracer *file, part *p, fd_error *err) {
    if (!file->in_step) FD_TRY(fd_tracer_begin(file, p->tokens, (int32_t)p->n_tok, err));
    if (!adopt(file, p, err)) return err->code;
    return p->ends ? fd_tracer_end(file, err) : fd_tracer_write_held(file, err);
}

/* Nobody but the thread is in HDF5 with this file. */
static fd_code guarded(fd_tracer *file, part *p, fd_error *err) {
    fd_tracer_host host;
    fd_tracer_enter(&host, true);
    fd_code code = p ? write_part(file, p, err) : fd_tracer_complete(file, err);
    fd_tracer_leave(&host);
    return code;
}

static part *next_part(struct fd_tracer_beside *b) {
    pthread_mutex_lock(&b->lock);
    while (!b->first && !b->end) pthread_cond_wait(&b->work, &b->lock);
    part *p = b->first;
    if (p) b->first = p->next;
    if (!b->first) b->last = NULL;
    pthread_mutex_unlock(&b->lock);
    return p;
}

static void *write_parts(void *user) {
    struct fd_tracer_beside *b = user;
    fd_error err = {0};
    fesetenv(FE_DFL_ENV);
    for (part *p; (p = next_part(b));) {
        if (err.code == FD_OK && guarded(&b->file, p, &err) != FD_OK) fd_tracer_note_failure(b->caller, &err);
        pthread_mutex_lock(&b->lock);
        b->bytes -= p->bytes;
        b->n_step -= p->ends;
        pthread_cond_broadcast(&b->room);
        pthread_mutex_unlock(&b->lock);
        free_part(p);
    }
    if (err.code == FD_OK && b->complete && guarded(&b->file, NULL, &err) != FD_OK)
        fd_tracer_note_failure(b->caller, &err);
    fd_tracer_host host;
    fd_tracer_enter(&host, true);
    fd_tracer_shut(&b->file);
    fd_tracer_leave(&host);
    return NULL;
}

/* ---- the caller ---- */

fd_tracer *fd_tracer_file(fd_tracer *tracer) {
    return tracer->beside ? &tracer->beside->file : tracer;
}

void fd_tracer_beside_open(fd_tracer *tracer) {
    hbool_t safe = false;
    if (tracer->options.synchronous || H5is_library_threadsafe(&safe) < 0 || !safe) return;
    struct fd_tracer_beside *b = calloc(1, sizeof *b);
    if (!b) return;
    b->caller = tracer;
    b->file.path = tracer->path;
    b->file.part = tracer->part;
    b->file.options = tracer->options;
    b->file.file = b->file.tokens = b->file.steps = b->file.fingerprints = -1;
    b->file.lock_file = b->file.target.fd = -1;
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->work, NULL);
    pthread_cond_init(&b->room, NULL);
    tracer->beside = b;
}

fd_code fd_tracer_beside_start(fd_tracer *tracer, fd_error *err) {
    struct fd_tracer_beside *b = tracer->beside;
    sigset_t all, before;
    if (!b) return FD_OK;
    sigfillset(&all); /* signals are the host's threads' to take */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&b->thread, NULL, write_parts, b);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    b->running = error == 0;
    return error == 0 ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "%s: no thread to write it: %s", tracer->path, strerror(error));
}

size_t fd_tracer_most_held(const fd_tracer *tracer) {
    enum { DEFAULT_MEMORY = 1 << 30 };
    size_t memory = tracer->options.memory ? tracer->options.memory : DEFAULT_MEMORY;
    return tracer->beside ? memory / 2 : memory; /* the other half is for what is on its way */
}

fd_code fd_tracer_hand_over(fd_tracer *tracer, bool ends, fd_error *err) {
    struct fd_tracer_beside *b = tracer->beside;
    size_t n = (size_t)tracer->n_set, tokens = (size_t)tracer->n_tok * sizeof(int32_t);
    part *p = malloc(sizeof *p + n * sizeof *p->sets);
    if (p) *p = (part){.pos0 = tracer->pos0, .n_tok = tracer->n_tok, .ends = ends, .bytes = tracer->held_bytes};
    if (!p || !(p->tokens = malloc(tokens))) {
        free(p);
        return fd_fail(err, FD_ERR_MEMORY, "a step of %d tensors: out of memory", (int)n);
    }
    memcpy(p->tokens, tracer->step_tokens, tokens);
    p->n_set = tracer->n_set;
    for (size_t i = 0; i < n; i++) {
        fd_tracer_set *set = &tracer->sets[i];
        p->sets[i] = *set;
        set->rows = NULL;
        set->held = NULL;
    }
    tracer->held_bytes = 0;
    size_t most = fd_tracer_most_held(tracer);
    pthread_mutex_lock(&b->lock);
    while ((b->bytes > 0 && b->bytes + p->bytes > most) || b->n_step == MOST_STEPS) pthread_cond_wait(&b->room, &b->lock);
    if (b->last)
        b->last->next = p;
    else
        b->first = p;
    b->last = p;
    b->bytes += p->bytes;
    b->n_step += p->ends;
    pthread_cond_signal(&b->work);
    pthread_mutex_unlock(&b->lock);
    return FD_OK;
}

void fd_tracer_beside_end(fd_tracer *tracer, bool complete) {
    struct fd_tracer_beside *b = tracer->beside;
    if (!b || !b->running) return;
    pthread_mutex_lock(&b->lock);
    b->end = true;
    b->complete = complete;
    pthread_cond_signal(&b->work);
    pthread_mutex_unlock(&b->lock);
    pthread_join(b->thread, NULL);
    b->running = false;
}

void fd_tracer_beside_free(fd_tracer *tracer) {
    struct fd_tracer_beside *b = tracer->beside;
    if (!b) return;
    fd_tracer_host host;
    fd_tracer_beside_end(tracer, false);
    fd_tracer_enter(&host, true);
    fd_tracer_shut(&b->file); /* the thread did, where there was one */
    fd_tracer_leave(&host);
    for (int32_t i = 0; i < b->file.n_set; i++) {
        fd_tracer_drop_rows(&b->file.sets[i]);
        free(b->file.sets[i].prints);
    }
    free(b->file.sets);
    free(b->file.step_tokens);
    pthread_mutex_destroy(&b->lock);
    pthread_cond_destroy(&b->work);
    pthread_cond_destroy(&b->room);
    free(b);
    tracer->beside = NULL;
}

/* ---- fork ---- */

void fd_tracer_beside_before_fork(fd_tracer *tracer) {
    if (tracer->beside) pthread_mutex_lock(&tracer->beside->lock);
}

void fd_tracer_beside_in_parent(fd_tracer *tracer) {
    if (tracer->beside) pthread_mutex_unlock(&tracer->beside->lock);
}

/* The thread is the parent's. HDF5 still has the file open here, and the driver drops what it writes. */
void fd_tracer_beside_in_child(fd_tracer *tracer) {
    if (!tracer->beside) return;
    fd_h5_target *target = &tracer->beside->file.target;
    if (target->error == 0) target->error = ECANCELED;
    tracer->beside = NULL;
}

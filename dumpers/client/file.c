/* The file's life. HDF5's single-writer mode, in which a killed writer leaves a whole file, cannot add datasets, and
 * which tensors there are is known only when they come. So a step that brings a new one works on a copy, `part`, in
 * plain mode, and the finished copy takes the file's place: nearly always that is the first step alone. At any moment
 * the file at `path` is whole and has every finished step. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dumpers/hdf5/disk_room.h"
#include "dumpers/client/tracer.h"

static fd_code refuse(fd_tracer *tracer, const char *what, fd_error *err) {
    return fd_h5_target_fail(&tracer->target, err, "%s: %s", tracer->path, what);
}

/* ---- one writer a file ---- */

/* A lock of the open file description: HDF5's readers use flock, which it does not concern. Where the file system knows
 * no locks there is none. */
static bool lock(int fd) {
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fcntl(fd, F_OFD_SETLK, &whole) == 0 || (errno != EAGAIN && errno != EACCES);
}

static fd_code check_free(const fd_tracer *tracer, fd_error *err) {
    struct stat there;
    if (stat(tracer->path, &there) != 0) return FD_OK;
    if (!S_ISREG(there.st_mode))
        return fd_fail(err, FD_ERR_IO, "%s: is not a regular file, expected a file or a free name", tracer->path);
    const char *model = tracer->options.model_file;
    struct stat of_model;
    if (model && stat(model, &of_model) == 0 && of_model.st_dev == there.st_dev && of_model.st_ino == there.st_ino)
        return fd_fail(err, FD_ERR_INPUT, "%s: is the model, expected another file to write", tracer->path);
    int fd = open(tracer->path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return fd_fail(err, FD_ERR_IO, "%s: %s", tracer->path, strerror(errno));
    bool is_free = lock(fd);
    close(fd);
    return is_free ? FD_OK : fd_fail(err, FD_ERR_IO, "%s: another trace is being written there", tracer->path);
}

/* Moves `part` to `path`; what lies there must still be the file that this tracer put there. */
static fd_code put_in_place(fd_tracer *tracer, fd_error *err) {
    struct stat ours, there;
    bool same = tracer->lock_file < 0 || stat(tracer->path, &there) != 0 ||
                (fstat(tracer->lock_file, &ours) == 0 && ours.st_ino == there.st_ino && ours.st_dev == there.st_dev);
    if (!same) return fd_fail(err, FD_ERR_IO, "%s: another file has taken the trace's place", tracer->path);
    int fd = open(tracer->part, O_RDWR | O_CLOEXEC);
    bool locked = fd >= 0 && lock(fd);
    if (!locked || rename(tracer->part, tracer->path) != 0) {
        fd_fail(err, FD_ERR_IO, "%s: cannot put the trace there: %s", tracer->path, strerror(errno));
        if (fd >= 0) close(fd);
        return err->code;
    }
    if (tracer->lock_file >= 0) close(tracer->lock_file);
    tracer->lock_file = fd;
    return FD_OK;
}

/* ---- the empty file ---- */

static hid_t make_list(hid_t file, const char *name, hid_t type, const char *about) {
    hsize_t none = 0, unlimited = H5S_UNLIMITED, chunk = 1024;
    hid_t space = H5Screate_simple(1, &none, &unlimited), create = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(create, 1, &chunk);
    H5Pset_obj_track_times(create, false);
    hid_t set = H5Dcreate2(file, name, type, space, H5P_DEFAULT, create, H5P_DEFAULT);
    if (set >= 0) fd_h5_put_string(set, "description", about);
    fd_h5_release(create);
    fd_h5_release(space);
    return set;
}

static bool put_attributes(const fd_tracer *tracer, hid_t file, const char *model_hash) {
    const fd_tracer_options *o = &tracer->options;
    fd_trace_info info = {0};
    const char *model = o->model_file ? strrchr(o->model_file, '/') : NULL;
    if (o->model_file) snprintf(info.model_name, sizeof info.model_name, "%s", model ? model + 1 : o->model_file);
    snprintf(info.producer, sizeof info.producer, "%s", o->engine ? o->engine : "");
    snprintf(info.numerics, sizeof info.numerics, "%s", o->numerics ? o->numerics : "");
    snprintf(info.kv_type, sizeof info.kv_type, "%s", o->kv_type ? o->kv_type : "");
    snprintf(info.device, sizeof info.device, "%s", o->device ? o->device : "");
    snprintf(info.model_hash, sizeof info.model_hash, "%s", model_hash);
    fd_trace_now(info.started);
    bool ok = fd_h5_put_string(file, "schema", FD_TRACE_SCHEMA) && fd_h5_put_int(file, "version", FD_TRACE_VERSION) &&
              fd_h5_put_int(file, "contract", 0) && fd_h5_put_string(file, "level", "full") &&
              fd_h5_put_int(file, "complete", 0) && (!o->prompt || fd_h5_put_string(file, "prompt", o->prompt));
    for (size_t i = 0; ok && i < fd_info_field_count; i++)
        ok = fd_h5_put_string(file, fd_info_fields[i].name, (const char *)&info + fd_info_fields[i].offset);
    return ok;
}

static bool fill_empty(fd_tracer *tracer, const char *model_hash) {
    hid_t step = fd_step_row_type(), packed = H5Tcopy(step);
    H5Tpack(packed);
    tracer->tokens = make_list(tracer->file, "tokens", H5T_STD_I32LE, "token fed at each position");
    tracer->steps = make_list(tracer->file, "steps", packed, "forward calls; kind 0 prefill, 1 decode; level 2 full");
    fd_h5_release(packed);
    fd_h5_release(step);
    hid_t create = H5Pcreate(H5P_GROUP_CREATE);
    H5Pset_link_creation_order(create, H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED);
    hid_t group = H5Gcreate2(tracer->file, "tensors", H5P_DEFAULT, create, H5P_DEFAULT);
    fd_h5_release(create);
    bool ok =
        tracer->tokens >= 0 && tracer->steps >= 0 && group >= 0 && put_attributes(tracer, tracer->file, model_hash);
    fd_h5_release(group);
    return ok;
}

static bool close_file(fd_tracer *tracer) {
    bool ok = tracer->file < 0 || H5Fclose(tracer->file) >= 0; /* strong close: the datasets go with it */
    tracer->file = tracer->tokens = tracer->steps = tracer->fingerprints = -1;
    for (int32_t i = 0; i < tracer->n_set; i++) tracer->sets[i].id = -1;
    return ok && tracer->target.error == 0;
}

fd_code fd_tracer_create(fd_tracer *tracer, fd_error *err) {
    char model_hash[48] = "";
    FD_TRY(check_free(tracer, err));
    if (tracer->options.model_file) FD_TRY(fd_tracer_hash_file(tracer->options.model_file, model_hash, err));
    unlink(tracer->part); /* of a process with our id that was killed here */
    hid_t access = fd_h5_target_access(&tracer->target);
    tracer->file = H5Fcreate(tracer->part, H5F_ACC_EXCL, H5P_DEFAULT, access);
    fd_h5_release(access);
    tracer->growing = tracer->file >= 0;
    if (tracer->file < 0 || !fill_empty(tracer, model_hash) || !close_file(tracer))
        return refuse(tracer, "cannot create the trace", err);
    tracer->growing = false;
    fd_code code = put_in_place(tracer, err);
    if (code != FD_OK) unlink(tracer->part);
    return code;
}

/* ---- growing ---- */

static bool copy_bytes(int from, int to) {
    enum { PIECE = 1 << 20 };
    char *piece = malloc(PIECE);
    ssize_t n = piece ? 1 : -1;
    while (n > 0) {
        n = read(from, piece, PIECE);
        for (ssize_t done = 0; n > 0 && done < n;) {
            ssize_t put = write(to, piece + done, (size_t)(n - done));
            if (put <= 0) n = -1;
            done += put;
        }
    }
    free(piece);
    return n == 0;
}

static fd_code copy_file(const fd_tracer *tracer, fd_error *err) {
    struct stat there;
    int from = open(tracer->path, O_RDONLY | O_CLOEXEC);
    int to = from < 0 ? -1 : open(tracer->part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    fd_code code = FD_OK;
    if (to >= 0 && fstat(from, &there) == 0) code = fd_disk_room(to, tracer->path, there.st_size, err);
    if (code == FD_OK && (to < 0 || !copy_bytes(from, to)))
        code = fd_fail(err, FD_ERR_IO, "%s: cannot be copied to add a tensor: %s", tracer->path, strerror(errno));
    if (to >= 0 && close(to) != 0 && code == FD_OK)
        code = fd_fail(err, FD_ERR_IO, "%s: cannot be copied to add a tensor: %s", tracer->path, strerror(errno));
    if (from >= 0) close(from);
    if (code != FD_OK && to >= 0) unlink(tracer->part);
    return code;
}

static bool open_file(fd_tracer *tracer, const char *path, unsigned flags) {
    hid_t access = fd_h5_target_access(&tracer->target);
    tracer->file = H5Fopen(path, H5F_ACC_RDWR | flags, access);
    fd_h5_release(access);
    return tracer->file >= 0 && fd_tracer_open_sets(tracer);
}

fd_code fd_tracer_grow(fd_tracer *tracer, fd_error *err) {
    if (tracer->growing) return FD_OK;
    if (!close_file(tracer)) return refuse(tracer, "cannot be closed to add a tensor", err);
    FD_TRY(copy_file(tracer, err));
    tracer->growing = true;
    return open_file(tracer, tracer->part, 0) ? FD_OK : refuse(tracer, "cannot be opened to add a tensor", err);
}

/* ---- the end of a step ---- */

static bool append(hid_t set, hid_t type, int64_t at, int64_t n, const hsize_t rest[2], int rank, const void *rows) {
    hsize_t start[3] = {(hsize_t)at}, count[3] = {(hsize_t)n}, extent[3] = {(hsize_t)(at + n)};
    for (int d = 1; d < rank; d++) extent[d] = count[d] = rest[d - 1];
    return H5Dset_extent(set, extent) >= 0 && fd_h5_write_block(set, type, rank, start, count, rows);
}

static bool append_prints(const fd_tracer *tracer) {
    size_t n_set = (size_t)tracer->n_set, n_tok = (size_t)tracer->n_tok;
    if (n_set == 0) return true;
    fd_fingerprint *table = calloc(n_tok * n_set, sizeof *table);
    if (!table) return false;
    for (size_t i = 0; i < n_set; i++)
        for (size_t r = 0; r < n_tok && tracer->sets[i].prints; r++) table[r * n_set + i] = tracer->sets[i].prints[r];
    hsize_t rest[] = {n_set, 2};
    bool ok = append(tracer->fingerprints, H5T_NATIVE_UINT64, tracer->pos0, tracer->n_tok, rest, 3, table);
    free(table);
    return ok;
}

/* The row in /steps is what makes a step count: it follows in a flush of its own, when all else is on its way. */
static bool append_step(const fd_tracer *tracer) {
    bool decode = tracer->n_tok == 1 && tracer->pos0 > 0;
    fd_step_row row = {(int32_t)tracer->pos0, (int32_t)tracer->n_tok, decode ? FD_STEP_DECODE : FD_STEP_PREFILL,
                       FD_TRACE_FULL};
    hid_t type = fd_step_row_type();
    bool ok = append(tracer->steps, type, tracer->n_step, 1, NULL, 1, &row);
    fd_h5_release(type);
    return ok;
}

static bool flush(const fd_tracer *tracer) {
    return H5Fflush(tracer->file, H5F_SCOPE_LOCAL) >= 0 && tracer->target.error == 0;
}

fd_code fd_tracer_commit(fd_tracer *tracer, fd_error *err) {
    if (tracer->file < 0) FD_TRY(fd_tracer_grow(tracer, err));
    int64_t prints = tracer->n_tok * tracer->n_set * (int64_t)sizeof(fd_fingerprint);
    if (tracer->growing) prints += tracer->pos0 * tracer->n_set * (int64_t)sizeof(fd_fingerprint);
    FD_TRY(fd_disk_room(tracer->target.fd, tracer->path, prints + tracer->n_tok * 4 + (1 << 18), err));
    if ((tracer->growing && !fd_tracer_write_graph(tracer)) ||
        !append(tracer->tokens, H5T_NATIVE_INT32, tracer->pos0, tracer->n_tok, NULL, 1, tracer->step_tokens) ||
        !append_prints(tracer) || !flush(tracer) || !append_step(tracer) || !flush(tracer))
        return refuse(tracer, "cannot write a step", err);
    if (!tracer->growing) return FD_OK;
    if (!close_file(tracer) || !open_file(tracer, tracer->part, H5F_ACC_SWMR_WRITE))
        return refuse(tracer, "cannot open the trace for single-writer use", err);
    FD_TRY(put_in_place(tracer, err));
    tracer->growing = false;
    return FD_OK;
}

/* ---- the end ---- */

fd_code fd_tracer_complete(fd_tracer *tracer, fd_error *err) {
    char now[32];
    fd_trace_now(now);
    bool ok = true;
    if (tracer->file >= 0) {
        FD_TRY(fd_disk_room(tracer->target.fd, tracer->path, 1 << 18, err));
        ok = fd_tracer_even_out(tracer) && flush(tracer);
    }
    if (!close_file(tracer) || !ok) return refuse(tracer, "cannot complete the trace", err);
    hid_t access = fd_h5_target_access(&tracer->target);
    tracer->file = H5Fopen(tracer->path, H5F_ACC_RDWR, access);
    fd_h5_release(access);
    ok = tracer->file >= 0 && fd_h5_put_string(tracer->file, "finished", now) && flush(tracer) &&
         fd_h5_put_int(tracer->file, "complete", 1);
    bool closed = close_file(tracer);
    return ok && closed ? FD_OK : refuse(tracer, "cannot complete the trace", err);
}

void fd_tracer_shut(fd_tracer *tracer) {
    close_file(tracer);
    if (tracer->growing) unlink(tracer->part);
    tracer->growing = false;
    if (tracer->lock_file >= 0) close(tracer->lock_file);
    tracer->lock_file = -1;
}

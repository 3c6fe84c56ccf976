#include "dumpers/hdf5/h5.h"

#include <assert.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the lock ---- */

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static _Thread_local int depth; /* how often this thread holds it */

void fd_h5_lock(void) {
    pthread_mutex_lock(&lock);
    depth++;
}

void fd_h5_unlock(void) {
    depth--;
    pthread_mutex_unlock(&lock);
}

void fd_h5_renew_lock(void) {
    lock = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
    depth = 0;
}

#ifdef FD_CHECK_HDF5_LOCK
static atomic_bool program_ends;

static void note_end(void) {
    program_ends = true;
}

static void watch_end(void) {
    atexit(note_end); /* before HDF5's own, which is registered when it is first called */
}

void fd_h5_assert_locked(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_end);
    assert(depth > 0 || program_ends);
}
#else
void fd_h5_assert_locked(void) {}
#endif

/* ---- calls ---- */

fd_h5_guard fd_h5_begin(void) {
    fd_h5_guard guard = {NULL, NULL};
    fd_h5_lock();
    H5Eget_auto2(H5E_DEFAULT, &guard.print, &guard.data);
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    return guard;
}

void fd_h5_end(fd_h5_guard guard) {
    H5Eclear2(H5E_DEFAULT); /* a thread that ends with errors in its stack keeps HDF5 from closing */
    H5Eset_auto2(H5E_DEFAULT, guard.print, guard.data);
    fd_h5_unlock();
}

/* Walking upward starts at the innermost record, the one that knows the system's own error text. */
static herr_t take_innermost(unsigned n, const H5E_error2_t *record, void *user) {
    char *text = user;
    if (n == 0 && record->desc) snprintf(text, 512, "%s", record->desc);
    return 0;
}

void fd_h5_reason(char out[512]) {
    out[0] = '\0';
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take_innermost, out);
    for (char *p = out; *p; p++)
        if (*p == '\n') *p = ' ';
}

fd_code fd_h5_fail(fd_error *err, fd_code code, const char *format, ...) {
    char reason[512], message[512];
    fd_h5_reason(reason);
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return reason[0] ? fd_fail(err, code, "%s: HDF5: %s", message, reason) : fd_fail(err, code, "%s", message);
}

void fd_h5_release(hid_t id) {
    if (id < 0) return;
    hid_t stack = H5Eget_num(H5E_DEFAULT) > 0 ? H5Eget_current_stack() : -1;
    H5Idec_ref(id);
    if (stack >= 0) H5Eset_current_stack(stack);
}

bool fd_h5_has(hid_t group, const char *name) {
    return H5Lexists(group, name, H5P_DEFAULT) > 0 && H5Oexists_by_name(group, name, H5P_DEFAULT) > 0;
}

typedef struct link_list {
    fd_h5_link *links;
    char *names; /* one after another, each with its NUL */
    size_t n, limit, room, used, name_room;
} link_list;

static uint64_t address_of(const H5L_info_t *info) {
    uint64_t address = 0;
    if (info->type != H5L_TYPE_HARD) return UINT64_MAX;
#if H5_VERSION_GE(1, 12, 0) /* the address is the token's first bytes, little-endian */
    for (size_t i = 0; i < 8; i++) address |= (uint64_t)info->u.token.__data[i] << (8 * i);
#else
    address = info->u.address;
#endif
    return address;
}

static bool make_room(void **block, size_t *room, size_t needed, size_t each) {
    if (needed <= *room) return true;
    size_t more = 2 * needed + 64;
    void *grown = realloc(*block, more * each);
    if (!grown) return false;
    *block = grown;
    *room = more;
    return true;
}

static herr_t take_link(hid_t group, const char *name, const H5L_info_t *info, void *user) {
    (void)group;
    link_list *list = user;
    size_t bytes = strlen(name) + 1;
    void *links = list->links, *names = list->names;
    bool room = list->n < list->limit && make_room(&links, &list->room, list->n + 1, sizeof *list->links);
    room = room && make_room(&names, &list->name_room, list->used + bytes, 1);
    list->links = links;
    list->names = names;
    if (!room) return -1;
    memcpy(list->names + list->used, name, bytes);
    list->links[list->n++].address = address_of(info);
    list->used += bytes;
    return 0;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const fd_h5_link *)a)->name, ((const fd_h5_link *)b)->name);
}

/* One pass: asking for the number of links walks the group once more, and for the i-th name sorts all of them. In the
 * file's own order: for any other HDF5 1.10 makes a table first, and crashes when a damaged group does not fill it. */
fd_h5_link *fd_h5_links(hid_t group, size_t limit, size_t *n) {
    link_list list = {.limit = limit};
    hsize_t at = 0;
    bool listed = H5Literate(group, H5_INDEX_NAME, H5_ITER_NATIVE, &at, take_link, &list) >= 0;
    fd_h5_link *out = listed ? malloc(list.n * sizeof *out + list.used + 1) : NULL;
    *n = out ? list.n : 0;
    const char *name = out ? memcpy(out + list.n, list.names ? list.names : "", list.used) : NULL;
    for (size_t i = 0; i < *n; i++, name += strlen(name) + 1) out[i] = (fd_h5_link){name, list.links[i].address};
    bool sorted = true;
    for (size_t i = 1; sorted && i < *n; i++) sorted = by_name(&out[i - 1], &out[i]) < 0;
    if (!sorted) qsort(out, *n, sizeof *out, by_name);
    free(list.links);
    free(list.names);
    return out;
}

bool fd_h5_shape_of(hid_t dataset, fd_h5_shape *shape) {
    hid_t space = H5Dget_space(dataset);
    shape->rank = space < 0 ? -1 : H5Sget_simple_extent_ndims(space);
    bool ok = shape->rank >= 1 && shape->rank <= FD_H5_MAX_RANK && H5Sget_simple_extent_type(space) == H5S_SIMPLE &&
              H5Sget_simple_extent_dims(space, shape->dim, NULL) >= 0;
    fd_h5_release(space);
    return ok;
}

const char *fd_h5_shape_text(const fd_h5_shape *shape, char out[128]) {
    if (shape->rank < 1 || shape->rank > FD_H5_MAX_RANK) {
        snprintf(out, 128, "rank %d", shape->rank);
        return out;
    }
    size_t at = 0;
    for (int i = 0; i < shape->rank; i++)
        at += (size_t)snprintf(out + at, 128 - at, "%s%llu", i ? ", " : "[", (unsigned long long)shape->dim[i]);
    snprintf(out + at, 128 - at, "]");
    return out;
}

/* Both directions differ in one call. */
static bool transfer(hid_t dataset, hid_t type, int rank, const hsize_t *start, const hsize_t *count, void *in,
                     const void *out) {
    hid_t file = H5Dget_space(dataset);
    hid_t memory = H5Screate_simple(rank, count, NULL);
    bool done = file >= 0 && memory >= 0 && H5Sselect_hyperslab(file, H5S_SELECT_SET, start, NULL, count, NULL) >= 0 &&
                (in ? H5Dread(dataset, type, memory, file, H5P_DEFAULT, in)
                    : H5Dwrite(dataset, type, memory, file, H5P_DEFAULT, out)) >= 0;
    fd_h5_release(memory);
    fd_h5_release(file);
    return done;
}

bool fd_h5_read_block(hid_t dataset, hid_t type, int rank, const hsize_t *start, const hsize_t *count, void *out) {
    return transfer(dataset, type, rank, start, count, out, NULL);
}

bool fd_h5_write_block(hid_t dataset, hid_t type, int rank, const hsize_t *start, const hsize_t *count,
                       const void *data) {
    return transfer(dataset, type, rank, start, count, NULL, data);
}

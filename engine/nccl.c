#include "engine/nccl.h"

#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/gather/gather.h"

/* The part of NCCL's interface that is used here, so that building needs no header of it: names, order of parameters,
 * structs and values of the enumerations as in NVIDIA's nccl.h of NCCL 2.14 and later. */
enum { SUCCESS = 0, IN_PROGRESS = 7, BYTES = 1, CONFIG_MAGIC = (int)0xcafebeef, CONFIG_RELEASE = 21400 };
typedef struct unique_id {
    char bytes[128];
} unique_id;
/* As far as release 2.14 had it: `size` and `release` tell the library that no more fields follow. */
typedef struct config {
    size_t size;
    unsigned magic, release;
    int blocking;
} config;
typedef int (*get_version_fn)(int *version);
typedef int (*get_id_fn)(unique_id *id);
typedef int (*init_fn)(void **comm, int n, unique_id id, int rank, config *config);
typedef int (*destroy_fn)(void *comm);
typedef int (*get_error_fn)(void *comm, int *status);
typedef int (*all_gather_fn)(const void *part, void *whole, size_t count, int type, void *comm, cudaStream_t stream);
typedef int (*broadcast_fn)(const void *from, void *to, size_t count, int type, int root, void *comm,
                            cudaStream_t stream);
typedef int (*group_fn)(void);
typedef const char *(*words_fn)(int status);

enum { STAGING_BYTES = 16 << 20 }; /* a prompt's rows are gathered in pieces of this size */

struct fd_nccl {
    fd_peers *peers;
    void *comm;
    bool lost;
    char release[24];
    get_version_fn get_version;
    get_id_fn get_id;
    init_fn init;
    destroy_fn destroy;
    get_error_fn get_error;
    all_gather_fn all_gather;
    broadcast_fn broadcast;
    group_fn group_start, group_end;
    words_fn words;
};

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- waiting ---- */

/* ncclCommAbort, which would end the kernels that wait, waits itself for the graphs that hold them, and these are waited for on the
 * device. So nothing is ended here: the process ends, and the device with it. */
static fd_code check(fd_nccl *n, int status, const char *what, fd_error *err) {
    if (status == SUCCESS || status == IN_PROGRESS) return FD_OK;
    n->lost = true;
    return fd_fail(err, FD_ERR_IO, "NCCL %s: %s: %s (NCCL_DEBUG=WARN shows more)", n->release, what, n->words(status));
}

/* A wait that began at `began` goes on. */
static fd_code look(fd_nccl *n, double began, const char *what, fd_error *err) {
    const double waited = seconds() - began;
    int status = SUCCESS;
    if (n->lost) return fd_fail(err, FD_ERR_IO, "NCCL %s: %s: a gather failed before", n->release, what);
    if (n->get_error(n->comm, &status) != SUCCESS) status = SUCCESS + 1;
    FD_TRY(check(n, status, what, err));
    if (!(waited <= n->peers->wait_seconds)) {
        n->lost = true;
        return fd_fail(err, FD_ERR_IO,
                       "NCCL %s: %s: rank %d has waited %.0f s for the other %d rank%s: one of them is stuck or gone "
                       "(FIRSTDIFF_WAIT_SECONDS sets how long to wait)",
                       n->release, what, n->peers->rank, waited, n->peers->n - 1, n->peers->n > 2 ? "s" : "");
    }
    if (waited > 0.02)
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    else
        sched_yield();
    return FD_OK;
}

/* The communicator does not block: a call returns while connections are still being made. */
static fd_code complete(fd_nccl *n, int status, const char *what, fd_error *err) {
    const double began = seconds();
    FD_TRY(check(n, status, what, err));
    while (status == IN_PROGRESS) {
        FD_TRY(look(n, began, what, err));
        if (n->get_error(n->comm, &status) != SUCCESS) status = SUCCESS + 1;
        FD_TRY(check(n, status, what, err));
    }
    return FD_OK;
}

fd_code fd_nccl_wait(fd_nccl *n, cudaStream_t stream, cudaEvent_t event, const char *what, fd_error *err) {
    const double began = seconds();
    for (;;) {
        cudaError_t status = event ? cudaEventQuery(event) : cudaStreamQuery(stream);
        if (status != cudaErrorNotReady) return fd_cuda_check(status, what, err);
        FD_TRY(look(n, began, what, err));
    }
}

/* ---- gathering ---- */

size_t fd_nccl_staging_bytes(size_t widest_row) {
    return widest_row > STAGING_BYTES ? widest_row : STAGING_BYTES;
}

static int64_t first_of(const fd_nccl *n, const fd_nccl_rows *rows, int32_t rank) {
    return fd_peers_first(n->peers, rank, rows->n_item);
}

/* One process's share of so many rows, in bytes. */
static size_t share_bytes(const fd_nccl *n, const fd_nccl_rows *rows, int32_t rank, int64_t n_row) {
    return (size_t)(n_row * (first_of(n, rows, rank + 1) - first_of(n, rows, rank))) * rows->item_bytes;
}

/* Shares of n_row rows, one after the other in `to`. */
static fd_code gather_shares(fd_nccl *n, const fd_nccl_rows *rows, const char *part, int64_t n_row, char *to,
                             cudaStream_t stream, fd_error *err) {
    const int32_t n_rank = n->peers->n;
    if (n->lost) return fd_fail(err, FD_ERR_IO, "NCCL %s: %s: a gather failed before", n->release, rows->name);
    if (rows->n_item % n_rank == 0)
        return complete(n, n->all_gather(part, to, share_bytes(n, rows, 0, n_row), BYTES, n->comm, stream), rows->name,
                        err);
    FD_TRY(check(n, n->group_start(), rows->name, err));
    int failed = SUCCESS;
    for (int32_t r = 0; r < n_rank; r++) {
        const size_t bytes = share_bytes(n, rows, r, n_row);
        int status = n->broadcast(part, to, bytes, BYTES, r, n->comm, stream);
        if (status != SUCCESS && status != IN_PROGRESS) failed = status;
        to += bytes;
    }
    const int ended = n->group_end(); /* in any case: a group left open takes all later calls */
    return complete(n, failed != SUCCESS ? failed : ended, rows->name, err);
}

/* From shares, one after the other, to whole rows. */
static fd_code put_in_place(const fd_nccl *n, const fd_nccl_rows *rows, const char *shares, int64_t n_row, char *to,
                            cudaStream_t stream, fd_error *err) {
    const size_t row = (size_t)rows->n_item * rows->item_bytes;
    for (int32_t r = 0; r < n->peers->n; r++) {
        const size_t width = share_bytes(n, rows, r, 1);
        if (width > 0)
            FD_TRY(fd_cuda_check(cudaMemcpy2DAsync(to + (size_t)first_of(n, rows, r) * rows->item_bytes, row, shares,
                                                   width, width, (size_t)n_row, cudaMemcpyDeviceToDevice, stream),
                                 rows->name, err));
        shares += width * (size_t)n_row;
    }
    return FD_OK;
}

fd_code fd_nccl_gather(fd_nccl *n, const fd_nccl_rows *rows, cudaStream_t stream, fd_error *err) {
    const size_t row = (size_t)rows->n_item * rows->item_bytes;
    const char *part = rows->part;
    char *whole = rows->whole;
    if (rows->n_row == 1) return gather_shares(n, rows, part, 1, whole, stream, err); /* they lie in place */
    const int64_t most = (int64_t)(rows->staging->size / row);
    for (int64_t done = 0, k; done < rows->n_row; done += k) {
        k = rows->n_row - done < most ? rows->n_row - done : most;
        FD_TRY(gather_shares(n, rows, part, k, rows->staging->data, stream, err));
        FD_TRY(put_in_place(n, rows, rows->staging->data, k, whole, stream, err));
        part += share_bytes(n, rows, n->peers->rank, k);
        whole += row * (size_t)k;
    }
    return FD_OK;
}

/* ---- opening ---- */

static bool find_functions(fd_nccl *n, char *why, size_t room) {
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL); /* it stays: its code may be in use elsewhere */
    if (!library) {
        snprintf(why, room, "%s", dlerror());
        return false;
    }
    const struct {
        const char *name;
        void *to; /* POSIX gives functions as object pointers */
    } symbols[] = {{"ncclGetVersion", &n->get_version},      {"ncclGetUniqueId", &n->get_id},
                   {"ncclCommInitRankConfig", &n->init},     {"ncclCommDestroy", &n->destroy},
                   {"ncclCommGetAsyncError", &n->get_error}, {"ncclAllGather", &n->all_gather},
                   {"ncclBroadcast", &n->broadcast},         {"ncclGroupStart", &n->group_start},
                   {"ncclGroupEnd", &n->group_end},          {"ncclGetErrorString", &n->words}};
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
        if (!(*(void **)symbols[i].to = dlsym(library, symbols[i].name))) {
            snprintf(why, room, "libnccl.so.2 has no %s: release 2.14 or later is needed", symbols[i].name);
            return false;
        }
    return true;
}

/* What each process says of itself before any of them starts NCCL. */
typedef struct card {
    int32_t version; /* 0: no NCCL */
    char gpu[16];
    unique_id id; /* of the first process */
} card;

static fd_code fill(fd_nccl *n, card *own, char *why, size_t room, fd_error *err) {
    const char *wanted = getenv("FIRSTDIFF_NCCL");
    struct cudaDeviceProp properties;
    int device, version = 0;
    if (wanted && strcmp(wanted, "0") == 0) {
        snprintf(why, room, "FIRSTDIFF_NCCL=0");
        return FD_OK;
    }
    FD_TRY(fd_cuda_check(cudaGetDevice(&device), "device", err));
    FD_TRY(fd_cuda_check(cudaGetDeviceProperties(&properties, device), "device", err));
    memcpy(own->gpu, &properties.uuid, sizeof own->gpu);
    if (!find_functions(n, why, room)) return FD_OK;
    if (n->get_version(&version) != SUCCESS || (n->peers->rank == 0 && n->get_id(&own->id) != SUCCESS)) {
        snprintf(why, room, "NCCL cannot be started (NCCL_DEBUG=WARN shows more)");
        return FD_OK;
    }
    own->version = version;
    snprintf(n->release, sizeof n->release, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    return FD_OK;
}

/* Whether all can, by what all have said: the same answer in each. */
static bool all_can(const card *cards, int32_t n, char *why, size_t room) {
    for (int32_t r = 0; r < n; r++) {
        if (cards[r].version == 0) {
            if (!*why) snprintf(why, room, "rank %d cannot use NCCL", r);
            return false;
        }
        if (cards[r].version != cards[0].version) {
            snprintf(why, room, "ranks 0 and %d have NCCL releases %d and %d", r, cards[0].version, cards[r].version);
            return false;
        }
        for (int32_t q = 0; q < r; q++)
            if (memcmp(cards[q].gpu, cards[r].gpu, sizeof cards[r].gpu) == 0) {
                snprintf(why, room, "ranks %d and %d share a GPU", q, r);
                return false;
            }
    }
    return true;
}

/* The first gather of each kind makes connections and takes memory, neither of which a graph's capture allows. */
static fd_code gather_once(fd_nccl *n, fd_error *err) {
    fd_block room = {0};
    FD_TRY(fd_device_alloc(&room, 256 * (FD_MAX_RANKS + 1), "NCCL", err));
    fd_code code = FD_OK;
    for (int even = 0; even < 2 && code == FD_OK; even++) {
        const fd_nccl_rows rows = {room.data, room.data, 1, n->peers->n + 1 - even, 256, NULL, "the first gather"};
        code = fd_nccl_gather(n, &rows, NULL, err);
        if (code == FD_OK) code = fd_nccl_wait(n, NULL, NULL, rows.name, err);
    }
    if (!n->lost) fd_device_free(&room);
    return code;
}

fd_code fd_nccl_open(fd_peers *peers, fd_nccl **out, char *why, size_t room, fd_error *err) {
    card cards[FD_MAX_RANKS] = {0};
    config nonblocking = {sizeof nonblocking, (unsigned)CONFIG_MAGIC, CONFIG_RELEASE, 0};
    fd_nccl *n = calloc(1, sizeof *n);
    *out = NULL;
    *why = '\0';
    if (!n) return fd_fail(err, FD_ERR_MEMORY, "NCCL: out of memory");
    n->peers = peers;
    fd_code code = fill(n, &cards[peers->rank], why, room, err);
    const fd_shared_rows all = {cards, 1, peers->n, sizeof *cards, "each process's GPU"};
    if (code == FD_OK) code = peers->gather(peers, &all, err);
    if (code != FD_OK || !all_can(cards, peers->n, why, room)) {
        free(n);
        return code;
    }
    code = complete(n, n->init(&n->comm, peers->n, cards[0].id, peers->rank, &nonblocking), "starting", err);
    if (code == FD_OK) code = gather_once(n, err);
    if (code == FD_OK) *out = n; /* else it is lost */
    return code;
}

void fd_nccl_close(fd_nccl *n) {
    if (!n) return;
    if (n->comm) (void)n->destroy(n->comm);
    free(n);
}

bool fd_nccl_lost(const fd_nccl *n) {
    return n && n->lost;
}

const char *fd_nccl_release(const fd_nccl *n) {
    return n->release;
}

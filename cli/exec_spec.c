/* Executors from specs: "gpu:exact", "gpu:fast", "cpu:exact+fault=rope_pairing@3". */
#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>

#include "cli/ranks.h"
#include "emulate/emulate.h"
#include "faults/faults.h"
#include "reference_cpu/reference.h"
#ifdef FD_HAVE_CUDA
#include "engine/engine.h"
#endif

#define GPUS "+gpus="

static bool spec_is(const char *s, size_t size, const char *text) {
    return strlen(text) == size && memcmp(s, text, size) == 0;
}

#ifdef FD_HAVE_CUDA
/* Of processes that mpirun started each takes one: of those that are named, else of the machine's, in turn. */
static void take_one(fd_engine_devices *gpus) {
    if (fd_cli_n_rank() == 1) return;
    int32_t n = gpus->n ? gpus->n : fd_engine_n_device();
    int32_t at = n ? fd_cli_local_rank() % n : 0;
    gpus->id[0] = gpus->n ? gpus->id[at] : at;
    gpus->n = 1;
}

/* The GPUs of a spec: what "+gpus=" names; none where it says nothing. */
static fd_code gpus_of(const char *spec, fd_engine_devices *out, fd_error *err) {
    char text[128];
    const char *at = strstr(spec, GPUS);
    *out = (fd_engine_devices){0};
    if (!at) take_one(out);
    if (!at) return FD_OK;
    at += strlen(GPUS);
    snprintf(text, sizeof text, "%.*s", (int)strcspn(at, "+"), at);
    FD_TRY(fd_engine_parse_devices(text, out, err));
    for (int32_t i = 0; i < out->n; i++)
        for (int32_t k = 0; k < i; k++)
            if (out->id[i] == out->id[k])
                return fd_fail(err, FD_ERR_INPUT, "GPUs \"%s\": GPU %d stands there twice", text, out->id[i]);
    take_one(out);
    return FD_OK;
}

/* The numerics of a spec "gpu:…". */
static fd_numerics gpu_numerics(const char *spec, size_t size) {
    return spec_is(spec, size, "gpu:fast")    ? FD_NUMERICS_FAST
           : spec_is(spec, size, "gpu:q8act") ? FD_NUMERICS_Q8ACT
                                              : FD_NUMERICS_EXACT;
}
#endif

fd_code fd_cli_check_gpu(fd_error *err) {
#ifdef FD_HAVE_CUDA
    char why[256];
    return fd_engine_available(why, sizeof why) ? FD_OK : fd_fail(err, FD_ERR_DEVICE, "%s", why);
#else
    return fd_fail(err, FD_ERR_UNSUPPORTED, "this build has no GPU engine: nvcc was not found when it was built");
#endif
}

/* Applies each "+fault=…" and "+cache-type=…" of the rest to a clone of the graph. Several faults share the clone;
 * their owners chain. */
typedef struct owners {
    fd_fault_owner *item[8];
    int32_t n;
} owners;

static fd_code apply_changes(const char *rest, const fd_graph *graph, fd_cli_exec *out, fd_error *err) {
    owners *all = out->fault_owner;
    while (*rest) {
        const bool is_type = strncmp(rest, "+cache-type=", 12) == 0;
        if (strncmp(rest, GPUS, strlen(GPUS)) == 0) { /* new_exec reads it */
            rest += 1 + strcspn(rest + 1, "+");
            continue;
        }
        if (!is_type && strncmp(rest, "+fault=", 7) != 0)
            return fd_fail(err, FD_ERR_INPUT,
                           "executor \"…%s\": expected +fault=NAME[@layer], +cache-type=TYPE or +gpus=N|LIST", rest);
        rest += is_type ? 12 : 7;
        size_t size = strcspn(rest, "+");
        char spec[96];
        if (size >= sizeof spec) return fd_fail(err, FD_ERR_INPUT, "executor \"…%s\": name too long", rest);
        memcpy(spec, rest, size);
        spec[size] = '\0';
        rest += size;
        if (!out->graph) FD_TRY(fd_graph_clone(graph, &out->graph, err));
        if (is_type) {
            FD_TRY(fd_graph_set_kv_types(out->graph, spec, err));
            continue;
        }
        if (all->n == (int32_t)(sizeof all->item / sizeof *all->item))
            return fd_fail(err, FD_ERR_INPUT, "fault %s: at most %d faults at once", spec, all->n);
        FD_TRY(fd_fault_apply(spec, out->graph, &all->item[all->n], err));
        all->n++;
        size_t at = strlen(out->fault);
        snprintf(out->fault + at, sizeof out->fault - at, "%s%s", at ? "+" : "", spec);
    }
    return FD_OK;
}

static fd_code new_exec(const char *spec, size_t size, const fd_graph *graph, int32_t n_ctx, int32_t n_seq,
                        int32_t n_thread, fd_exec **out, fd_error *err) {
    FD_TRY(fd_cli_ranks_join(err));
    if (strstr(spec, GPUS) && strncmp(spec, "gpu:", 4) != 0)
        return fd_fail(err, FD_ERR_INPUT, "executor \"%.*s\" runs on no GPU: gpus goes with the backend gpu", (int)size,
                       spec);
    if (fd_cli_peers() && n_thread == 0) n_thread = fd_cli_ranks_n_thread();
    static const fd_numerics on_cpu[] = {FD_NUMERICS_EXACT, FD_NUMERICS_Q8ACT, FD_NUMERICS_F64};
    for (size_t i = 0; i < sizeof on_cpu / sizeof *on_cpu; i++) {
        char name[32];
        snprintf(name, sizeof name, "cpu:%s", fd_numerics_name(on_cpu[i]));
        if (!spec_is(spec, size, name)) continue;
        fd_reference_options options = {.n_ctx = n_ctx, .n_seq = n_seq, .n_thread = n_thread, .peers = fd_cli_peers()};
        options.numerics = on_cpu[i];
        return fd_reference_new(graph, &options, out, err);
    }
    static const char emulate[] = "cpu:emulate-";
    if (fd_cli_peers() && strncmp(spec, emulate, strlen(emulate)) == 0)
        return fd_fail(err, FD_ERR_UNSUPPORTED,
                       "executor \"%.*s\": processes of mpirun share cpu:exact, cpu:q8act, cpu:f64 and the GPU's",
                       (int)size, spec);
    if (size >= strlen(emulate) && memcmp(spec, emulate, strlen(emulate)) == 0) {
        fd_emulate_options options = {.n_ctx = n_ctx, .n_thread = n_thread};
        if (n_seq > 1)
            return fd_fail(err, FD_ERR_UNSUPPORTED, "executor \"%.*s\": %d sequences, but it holds one", (int)size,
                           spec, n_seq);
        FD_TRY(fd_emulate_parse(spec + strlen(emulate), size - strlen(emulate), &options, err));
        return fd_emulate_new(graph, &options, out, err);
    }
    if (spec_is(spec, size, "cpu:fast"))
        return fd_fail(err, FD_ERR_UNSUPPORTED,
                       "executor cpu:fast: fast numerics are the GPU's (gpu:fast); cpu:emulate-f16 rounds as they do");
    if (spec_is(spec, size, "gpu:exact") || spec_is(spec, size, "gpu:q8act") || spec_is(spec, size, "gpu:fast")) {
        FD_TRY(fd_graph_check_gpu(graph, err));
        if (fd_cli_check_gpu(err) != FD_OK) return fd_error_prefix(err, "executor %.*s", (int)size, spec);
#ifdef FD_HAVE_CUDA
        fd_engine_options options = {.n_ctx = n_ctx, .n_seq = n_seq, .peers = fd_cli_peers()};
        options.numerics = gpu_numerics(spec, size);
        FD_TRY(gpus_of(spec, &options.devices, err));
        return fd_engine_new(graph, &options, out, err);
#endif
    }
    return fd_fail(
        err, FD_ERR_INPUT,
        "executor \"%.*s\": unknown; known: cpu:exact, cpu:q8act, cpu:f64, cpu:emulate-CLASS, gpu:exact, gpu:q8act, "
        "gpu:fast",
        (int)size, spec);
}

fd_code fd_cli_exec_open(const char *spec, const fd_graph *graph, int32_t n_ctx, int32_t n_thread, fd_cli_exec *out,
                         fd_error *err) {
    return fd_cli_exec_open_many(spec, graph, n_ctx, 1, n_thread, out, err);
}

fd_code fd_cli_exec_open_many(const char *spec, const fd_graph *graph, int32_t n_ctx, int32_t n_seq, int32_t n_thread,
                              fd_cli_exec *out, fd_error *err) {
    memset(out, 0, sizeof *out);
    out->fault_owner = calloc(1, sizeof(owners));
    if (!out->fault_owner) return fd_fail(err, FD_ERR_MEMORY, "out of memory");
    size_t size = strcspn(spec, "+");
    fd_code code = apply_changes(spec + size, graph, out, err);
    if (code == FD_OK)
        code = new_exec(spec, size, out->graph ? out->graph : graph, n_ctx, n_seq, n_thread, &out->exec, err);
    if (code != FD_OK) fd_cli_exec_close(out);
    return code;
}

void fd_cli_exec_memory(const char *spec, const fd_graph *graph, int32_t n_ctx, int32_t n_seq, char *to, size_t size) {
    to[0] = '\0';
#ifdef FD_HAVE_CUDA
    char why[256];
    fd_error ignored = {0};
    uint64_t free_bytes;
    fd_engine_memory memory;
    fd_engine_devices gpus;
    fd_engine_size of = {.n_ctx = n_ctx, .n_seq = n_seq, .numerics = gpu_numerics(spec, strcspn(spec, "+"))};
    if (strncmp(spec, "gpu:", 4) != 0 || gpus_of(spec, &gpus, &ignored) != FD_OK ||
        !fd_engine_available(why, sizeof why))
        return;
    const bool apart = fd_cli_n_rank() > 1;
    for (int32_t r = 0, n = gpus.n ? gpus.n : 1; r < n; r++) {
        fd_rank_of rank = apart ? (fd_rank_of){fd_cli_rank(), fd_cli_n_rank(), true} : (fd_rank_of){r, n, false};
        if (fd_engine_memory_free(gpus.id[r], &free_bytes, &of.n_sm, &ignored) != FD_OK ||
            fd_engine_memory_of_rank(graph, &of, rank, &memory, &ignored) != FD_OK ||
            fd_engine_memory_total(&memory) > free_bytes) {
            to[0] = '\0';
            return;
        }
        size_t at = strlen(to);
        if (n > 1) at += (size_t)snprintf(to + at, size - at, "\n  GPU %d: ", gpus.id[r]);
        if (at >= size) return;
        fd_engine_memory_text(&memory, &of, free_bytes, to + at, size - at);
    }
#else
    (void)spec, (void)graph, (void)n_ctx, (void)n_seq, (void)size;
#endif
}

void fd_cli_exec_close(fd_cli_exec *exec) {
    owners *all = exec->fault_owner;
    fd_exec_free(exec->exec);
    fd_graph_free(exec->graph);
    for (int32_t i = 0; all && i < all->n; i++) fd_fault_owner_free(all->item[i]);
    free(all);
    memset(exec, 0, sizeof *exec);
}

fd_code fd_cli_spec(const char *backend, const char *numerics, const char *faults, char spec[256], fd_error *err) {
    size_t at = (size_t)snprintf(spec, 256, "%s:%s", backend, numerics);
    for (const char *p = faults; p && *p && at < 256;) {
        size_t size = strcspn(p, "+");
        at += (size_t)snprintf(spec + at, 256 - at, "+fault=%.*s", (int)size, p);
        p += size + (p[size] == '+');
    }
    if (at >= 256)
        return fd_fail(err, FD_ERR_INPUT, "executor %.40s:%.40s with fault %.60s…: too long", backend, numerics,
                       faults ? faults : "");
    return FD_OK;
}

fd_code fd_cli_exec_choose(fd_cli_exec_choice choice, const fd_graph *graph, fd_cli_exec *out, fd_error *err) {
    char spec[256];
    FD_TRY(fd_cli_spec(choice.backend, choice.numerics, choice.fault, spec, err));
    return fd_cli_exec_open(spec, graph, choice.n_ctx, choice.n_thread, out, err);
}

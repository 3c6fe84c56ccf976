#include "cli/compare/replay.h"

#include <string.h>

#include "cli/ranks.h"
#include "compare/compare_model.h"
#include "compare/products/together.h"
#include "reference_cpu/reference.h"
#ifdef FD_HAVE_CUDA
#include "engine/products/products.h"
#endif

bool fd_cli_is_replay_gpu(const char *arg, struct argp_state *state) {
    bool gpu = strcmp(arg, "gpu") == 0;
    if (!gpu && strcmp(arg, "cpu") != 0) argp_error(state, "--replay %s: expected cpu or gpu", arg);
    return gpu;
}

fd_code fd_cli_check_replay(bool on_gpu, fd_error *err) {
    if (!on_gpu || fd_cli_check_gpu(err) == FD_OK) return FD_OK;
    return fd_error_prefix(err, "--replay gpu");
}

/* What is identical is not replayed: *out stays NULL, as with the CPU. */
static fd_code open_device(bool on_gpu, const fd_graph *graph, const fd_verdict *verdict, fd_products **out,
                           fd_error *err) {
    *out = NULL;
    FD_TRY(fd_cli_check_replay(on_gpu, err));
#ifdef FD_HAVE_CUDA
    if (!on_gpu || verdict->status == FD_IDENTICAL || fd_engine_products_new(graph, out, err) == FD_OK) return FD_OK;
    return fd_error_prefix(err, "--replay gpu");
#else
    (void)graph, (void)verdict;
    return FD_OK;
#endif
}

static void close_device(fd_products *device) {
#ifdef FD_HAVE_CUDA
    fd_engine_products_free(device);
#else
    (void)device;
#endif
}

fd_code fd_cli_replay(const fd_cli_model *model, const fd_trace *ref, const fd_trace *cand, const char *class_name,
                      bool on_gpu, fd_verdict *verdict, fd_error *err) {
    fd_compare_model_options how = {
        .graph = model->graph, .ref = ref, .cand = cand, .op = fd_reference_op, .tokenizer = model->tokenizer};
    char known[512];
    fd_products *device;
    fd_products_peers together;
    if (class_name) {
        how.numerics = fd_numerics_class_find(class_name);
        if (!how.numerics)
            return fd_fail(err, FD_ERR_INPUT, "--candidate %s: unknown class; known: %s", class_name,
                           fd_numerics_class_names(known, sizeof known));
    }
    FD_TRY(open_device(on_gpu, model->graph, verdict, &device, err));
    fd_cli_progress progress = fd_cli_progress_start("", 0);
    how.device = device;
    if (!device && fd_cli_peers()) {
        fd_products_together(fd_cli_peers(), how.op, &together);
        how.device = &together.products;
    }
    how.progress = fd_cli_progress_stage_callback;
    how.progress_user = &progress;
    fd_code code = fd_compare_with_model(&how, verdict, err);
    fd_cli_progress_end(&progress);
    close_device(device);
    return code;
}

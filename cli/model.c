/* What several commands need: a model with its tokenizer, errors, colours. */
#include "cli/cli.h"
#include "cli/ranks.h"

#include <stdlib.h>
#include <string.h>

#include "cli/guard.h"
#include "dumpers/store/trace.h"

enum { MODEL_HASH = 48 };

int fd_cli_fail(const char *command, const fd_error *err) {
    if (fd_cli_rank() > 0)
        fprintf(stderr, "firstdiff %s: rank %d: %s\n", command, fd_cli_rank(), err->message);
    else
        fprintf(stderr, "firstdiff %s: %s\n", command, err->message);
    return fd_exit_status(err->code);
}

fd_code fd_cli_model_open(const char *path, fd_cli_model *out, fd_error *err) {
    memset(out, 0, sizeof *out);
    FD_TRY(fd_gguf_open(path, &out->gguf, err));
    fd_code code = fd_graph_build(out->gguf, &out->graph, NULL, err);
    if (code != FD_OK) {
        fd_error_prefix(err, "%s", path);
        fd_cli_model_close(out);
        return code;
    }
    fd_tokenizer_from_gguf(out->gguf, &out->tokenizer, &out->tokenizer_error);
    out->hash = calloc(1, MODEL_HASH);
    if (out->hash) return FD_OK;
    fd_cli_model_close(out);
    return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", path);
}

const char *fd_cli_model_hash(const fd_cli_model *model) {
    if (!model->hash[0]) fd_model_hash(fd_gguf_file_data(model->gguf), fd_gguf_file_size(model->gguf), model->hash);
    return model->hash;
}

void fd_cli_model_close(fd_cli_model *model) {
    fd_tokenizer_free(model->tokenizer);
    fd_graph_free(model->graph);
    fd_gguf_close(model->gguf);
    free(model->hash);
    memset(model, 0, sizeof *model);
}

fd_code fd_cli_check_trace_model(const fd_cli_model *model, const char *path, const struct fd_trace *trace,
                                 fd_error *err) {
    const fd_trace_info *info = fd_trace_get_info(trace);
    if (!info->model_hash[0] || strcmp(info->model_hash, fd_cli_model_hash(model)) == 0) return FD_OK;
    return fd_fail(err, FD_ERR_INPUT, "%s was recorded from another model: %s (%s), but %s has %s",
                   fd_trace_path(trace), info->model_name, info->model_hash, path, fd_cli_model_hash(model));
}

void fd_cli_set_context_of(const fd_cli_model *model, const fd_trace *trace) {
    int32_t n_ctx = fd_trace_n_pos(trace);
    for (int32_t i = 0; i < fd_trace_n_node(trace); i++) {
        const char *factors = strstr(fd_trace_node_at(trace, i)->params, "factors=");
        if (factors) n_ctx = strncmp(factors, "factors=long", 12) == 0 ? INT32_MAX : 1;
    }
    fd_graph_set_context(model->graph, n_ctx);
}

static void put_colour(FILE *stream, const char *escape) {
    fd_cli_raw(stream, escape, strlen(escape));
}

fd_report_colour fd_cli_colour(FILE *stream) {
    return fd_cli_is_terminal(stream) && !getenv("NO_COLOR") ? put_colour : NULL;
}

/* firstdiff inspect GOLDEN.h5: whose golden it is, and its prompts. */
#include "cli/inspect/inspect.h"
#include "cli/output.h"
#include "dumpers/store/golden.h"

static void print_head(const char *path, const fd_trace *first, const fd_golden_tolerances *measured,
                       int32_t n_prompt) {
    const fd_trace_info *info = fd_trace_get_info(first);
    printf("%s: golden of %d prompt%s\n", path, n_prompt, n_prompt == 1 ? "" : "s");
    printf("  %-12s %s\n", "producer", info->producer);
    printf("  %-12s %s (contract %d)\n", "numerics", info->numerics, info->contract);
    printf("  %-12s %s on %s\n", "backend", info->backend, info->device);
    printf("  %-12s %s: %s\n", "model", info->arch, info->model_name);
    printf("  %-12s %s\n", "model hash", info->model_hash);
    printf("  %-12s %d, fingerprints at every position\n", "tensors", fd_trace_n_node(first));
    if (measured->n_class) printf("  %-12s of %s\n", "tolerances", measured->names);
}

static json_t *head_json(const fd_trace *first, json_t *prompts) {
    const fd_trace_info *info = fd_trace_get_info(first);
    return json_pack("{s:s, s:s, s:i, s:s, s:s, s:s, s:s, s:i, s:o}", "producer", info->producer, "numerics",
                     info->numerics, "contract", info->contract, "backend", info->backend, "device", info->device,
                     "model", info->model_name, "model_hash", info->model_hash, "tensors", fd_trace_n_node(first),
                     "prompts", prompts);
}

static void show_prompt(const fd_trace *trace, int32_t prompt, json_t *list) {
    int32_t n_prompt = fd_trace_n_step(trace) ? fd_trace_steps(trace)[0].n_pos : 0, n_pos = fd_trace_n_pos(trace);
    const char *text = fd_trace_get_info(trace)->prompt;
    if (list)
        json_array_append_new(list, json_pack("{s:i, s:s?, s:i, s:i}", "prompt", prompt + 1, "text", text,
                                              "prompt_tokens", n_prompt, "positions", n_pos));
    else if (text && text[0])
        printf("  prompt %-5d %3d + %d positions  %s\n", prompt + 1, n_prompt, n_pos - n_prompt, text);
    else {
        enum { MOST = 8 };
        printf("  prompt %-5d %3d + %d positions  tokens", prompt + 1, n_prompt, n_pos - n_prompt);
        for (int32_t i = 0; i < n_prompt && i < MOST; i++) printf("%c%d", i ? ',' : ' ', fd_trace_tokens(trace)[i]);
        printf(n_prompt > MOST ? ",…\n" : "\n");
    }
}

fd_code fd_inspect_golden(const char *path, bool json, fd_error *err) {
    fd_golden_size size;
    fd_golden *golden;
    FD_TRY(fd_golden_open(path, &golden, &size, err));
    json_t *list = json ? json_array() : NULL, *root = NULL;
    fd_code code = FD_OK;
    for (int32_t i = 0; code == FD_OK && i < size.n_prompt; i++) {
        fd_trace *trace;
        if ((code = fd_golden_prompt(golden, i, &trace, err)) != FD_OK) break;
        if (i == 0 && json) root = head_json(trace, list);
        if (i == 0 && !json) print_head(path, trace, fd_golden_measured(golden), size.n_prompt);
        show_prompt(trace, i, list);
        fd_trace_close(trace);
    }
    fd_golden_close(golden);
    if (code != FD_OK) {
        json_decref(root ? root : list);
        return code;
    }
    if (json) return fd_cli_print_json(root, err);
    printf("next        firstdiff inspect '%s#1' shows the trace of prompt 1\n", path);
    return FD_OK;
}

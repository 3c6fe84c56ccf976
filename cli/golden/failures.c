/* firstdiff golden check: the prompts that diverged, as text and as JUnit, whatever a result is. */
#include <stdlib.h>

#include "cli/golden/golden.h"
#include "compare/report/report.h"

void fd_golden_prompt_name(const fd_golden_prompt *p, int32_t i, char *to, size_t size) {
    if (p->text)
        snprintf(to, size, "prompt %d: %.60s", i + 1, p->text);
    else
        snprintf(to, size, "prompt %d: %d tokens", i + 1, p->n_prompt);
}

void fd_golden_print_failures(const fd_golden *golden, fd_golden_failure_fn failure, const void *results) {
    int32_t n_failed = 0;
    for (int32_t i = 0; i < golden->n_prompt; i++) {
        char name[128], message[1024];
        if (!failure(results, i, message, sizeof message)) continue;
        fd_golden_prompt_name(&golden->prompts[i], i, name, sizeof name);
        printf("DIVERGED    %s\n            %s\n", name, message);
        n_failed++;
    }
    if (n_failed) printf("%d of %d prompts diverged\n", n_failed, golden->n_prompt);
}

fd_code fd_golden_write_junit(const char *path, const fd_golden *golden, fd_golden_failure_fn failure,
                              const void *results, fd_error *err) {
    fd_junit_case *cases = calloc((size_t)golden->n_prompt, sizeof *cases);
    FILE *file;
    if (!cases) return fd_fail(err, FD_ERR_MEMORY, "out of memory");
    for (int32_t i = 0; i < golden->n_prompt; i++) {
        fd_golden_prompt_name(&golden->prompts[i], i, cases[i].name, sizeof cases[i].name);
        if (failure(results, i, cases[i].message, sizeof cases[i].message)) cases[i].result = FD_JUNIT_FAILED;
    }
    fd_code code = fd_cli_output_open(path, &file, err);
    if (code == FD_OK) {
        fd_junit_write(file, "firstdiff golden", cases, golden->n_prompt);
        code = fd_cli_output_close(file, path, err);
    }
    free(cases);
    return code;
}

/* firstdiff golden record --tolerances: how far sound runs of other numerics are from the exact logits. They are runs
 * of the emulated classes, which round where a production engine of that class does, in orders of summation of their
 * own. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/golden/golden.h"
#include "cli/record.h"
#include "compare/diff/golden_near.h"
#include "emulate/emulate.h"

enum { RUNS = 4 }; /* orders of summation */

static fd_code add_class(const char *name, int size, fd_golden_tolerances *out, fd_error *err) {
    char word[64];
    size_t at = strlen(out->names);
    snprintf(word, sizeof word, "%.*s", size, name);
    if (!fd_emulate_class_find(word)) {
        fd_emulate_options unused;
        FD_TRY(fd_emulate_parse(word, strlen(word), &unused, err)); /* its message names the known ones */
    }
    if (fd_golden_tolerance_find(out, word) >= 0) return FD_OK;
    if (out->n_class == FD_GOLDEN_MOST_CLASSES) return fd_fail(err, FD_ERR_INPUT, "more than %d classes", out->n_class);
    snprintf(out->names + at, sizeof out->names - at, "%s%s", at ? " " : "", word);
    out->n_class++;
    return FD_OK;
}

fd_code fd_golden_tolerances_parse(const char *list, fd_golden_tolerances *out, fd_error *err) {
    *out = (fd_golden_tolerances){.n_run = RUNS};
    if (list && strcmp(list, "all") == 0)
        for (int32_t i = 0; i < fd_emulate_class_count(); i++)
            FD_TRY(add_class(fd_emulate_class_at(i)->name, 31, out, err));
    else
        for (int size; list && *list; list += size + (int)strspn(list + size, ", ")) {
            size = (int)strcspn(list, ", ");
            if (add_class(list, size, out, err) != FD_OK) return fd_error_prefix(err, "--tolerances");
        }
    return FD_OK;
}

static fd_code run_class(const fd_golden_measuring *how, const fd_trace *baseline, const char *name, int32_t seed,
                         double *worst, fd_error *err) {
    char numerics[96];
    fd_cli_exec exec;
    fd_golden_near found;
    snprintf(numerics, sizeof numerics, "emulate-%s:%d", name, seed);
    fd_cli_exec_choice choice = {"cpu", numerics, NULL, how->n_pos, how->n_thread};
    FD_TRY(fd_cli_exec_choose(choice, how->model->graph, &exec, err));
    fd_code code = fd_golden_check_near(exec.exec, baseline, INFINITY, &found, err);
    fd_cli_exec_close(&exec);
    FD_TRY(code);
    if (!found.near)
        return fd_fail(err, FD_ERR_INPUT,
                       "--tolerances: this model leaves the range of %s: its logits are NaN at position %d", name,
                       found.pos);
    if (found.worst > *worst) *worst = found.worst;
    return FD_OK;
}

fd_code fd_golden_measure(const fd_golden_measuring *how, fd_golden_tolerances *out, fd_error *err) {
    fd_trace *baseline;
    fd_recording run = {
        .tokens = how->tokens, .n_token = how->n_token, .n_pos = how->n_pos, .golden_logits = true, .whole = true};
    if (out->n_class == 0) return FD_OK;
    FD_TRY(fd_cli_record_temporary(how->model, how->exact, fd_golden_options(NULL, how->n_pos), &run, &baseline, err));
    const char *name = out->names;
    fd_code code = FD_OK;
    for (int32_t i = 0; i < out->n_class && code == FD_OK; i++) {
        char word[64];
        int size = (int)strcspn(name, " ");
        snprintf(word, sizeof word, "%.*s", size, name);
        for (int32_t seed = 1; seed <= RUNS && code == FD_OK; seed++)
            code = run_class(how, baseline, word, seed, &out->nmse[i], err);
        name += size + (int)strspn(name + size, " ");
    }
    fd_trace_close(baseline);
    return code;
}

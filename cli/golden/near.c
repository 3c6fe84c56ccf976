/* firstdiff golden check --numerics NAME: one prompt in numerics that are not the golden's, or run by another engine,
 * logits within a tolerance. */
#include "cli/golden/golden.h"
#include "compare/diff/golden_near.h"

const char *fd_golden_limit_text(const fd_golden_limit *limit, char to[96]) {
    if (limit->class_[0])
        snprintf(to, 96, "%g times the farthest of %d %s runs a prompt, measured when recorded",
                 FD_GOLDEN_MEASURED_FACTOR, limit->n_run, limit->class_);
    else
        snprintf(to, 96, "%s", limit->given ? "as given" : "fixed, not measured");
    return to;
}

static void conclude(const fd_golden_near *r, const fd_trace *golden, int32_t prompt, const fd_golden_limit *limit,
                     fd_golden_outcome *out, fd_golden_totals *totals) {
    char text[96];
    totals->n_pos += r->n_pos;
    totals->n_flip += r->n_flip;
    if (totals->limit.nmse == 0 || r->worst * totals->limit.nmse > totals->worst * limit->nmse) {
        totals->worst = r->worst;
        totals->limit = *limit;
    }
    out->failed = !r->near;
    const char *plural = r->n_flip == 1 ? "" : "s", *verb = r->n_flip == 1 ? "s" : "";
    int at = snprintf(out->message, sizeof out->message, "logits of position %d: NMSE %.3g, expected at most %.3g (%s)",
                      r->pos, r->worst, limit->nmse, fd_golden_limit_text(limit, text));
    if (r->n_flip)
        snprintf(out->message + at, sizeof out->message - (size_t)at, "; %d greedy token%s differ%s", r->n_flip, plural,
                 verb);
    out->json = json_pack("{s:i, s:s?, s:i, s:b, s:i, s:i, s:f, s:s}", "prompt", prompt + 1, "text",
                          fd_trace_get_info(golden)->prompt, "positions", r->n_pos, "near", r->near, "position", r->pos,
                          "greedy_differ", r->n_flip, "limit", limit->nmse, "limit_is",
                          limit->class_[0] ? "measured"
                          : limit->given   ? "given"
                                           : "fixed");
    /* JSON has no NaN: a distance that is none is left out */
    if (out->json && r->worst == r->worst) json_object_set_new(out->json, "nmse", json_real(r->worst));
}

fd_code fd_golden_check_logits(fd_exec *exec, const fd_trace *golden, int32_t prompt, const fd_golden_limit *limit,
                               fd_golden_outcome *out, fd_golden_totals *totals, fd_error *err) {
    fd_golden_near r;
    FD_TRY(fd_golden_check_near(exec, golden, limit->nmse, &r, err));
    conclude(&r, golden, prompt, limit, out, totals);
    return FD_OK;
}

/* A flip of the best token is no error of its own, but what another engine computed after it was not looked at. */
fd_code fd_golden_check_run(const fd_trace *run, const fd_trace *golden, int32_t prompt, const fd_golden_limit *limit,
                            fd_golden_outcome *out, fd_golden_totals *totals, fd_error *err) {
    fd_golden_near r;
    FD_TRY(fd_golden_check_trace(run, golden, limit->nmse, &r, err));
    conclude(&r, golden, prompt, limit, out, totals);
    if (out->failed) return FD_OK;
    const char *path = fd_trace_path(run);
    if (r.n_pos == 0)
        return fd_fail(err, FD_ERR_INCOMPLETE, "%s: it holds logits of none of the golden's positions", path);
    if (r.parted >= 0)
        return fd_fail(err, FD_ERR_INCOMPLETE,
                       "%s: logits of %d positions are near, but token %d is %d, the golden's %d: feed the engine the "
                       "golden's tokens (firstdiff inspect GOLDEN.h5#%d)",
                       path, r.n_pos, r.parted, fd_trace_tokens(run)[r.parted], fd_trace_tokens(golden)[r.parted],
                       prompt + 1);
    return FD_OK;
}

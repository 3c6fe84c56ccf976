/* firstdiff golden check --numerics NAME: one prompt in numerics that are not the golden's, logits within a
 * tolerance. */
#include "cli/golden/golden.h"
#include "compare/diff/golden_near.h"

fd_code fd_golden_check_logits(fd_exec *exec, const fd_trace *golden, int32_t prompt, double limit,
                               fd_golden_outcome *out, fd_golden_totals *totals, fd_error *err) {
    fd_golden_near r;
    FD_TRY(fd_golden_check_near(exec, golden, limit, &r, err));
    totals->n_flip += r.n_flip;
    if (r.worst > totals->worst) totals->worst = r.worst;
    out->failed = !r.near;
    const char *plural = r.n_flip == 1 ? "" : "s", *verb = r.n_flip == 1 ? "s" : "";
    int at = snprintf(out->message, sizeof out->message, "logits of position %d: NMSE %.3g, expected at most %.3g",
                      r.pos, r.worst, limit);
    if (r.n_flip)
        snprintf(out->message + at, sizeof out->message - (size_t)at, "; %d greedy token%s differ%s", r.n_flip, plural,
                 verb);
    out->json =
        json_pack("{s:i, s:s?, s:i, s:b, s:i, s:i}", "prompt", prompt + 1, "text", fd_trace_get_info(golden)->prompt,
                  "positions", fd_trace_n_pos(golden), "near", r.near, "position", r.pos, "greedy_differ", r.n_flip);
    /* JSON has no NaN: a distance that is none is left out */
    if (out->json && r.worst == r.worst) json_object_set_new(out->json, "nmse", json_real(r.worst));
    return FD_OK;
}

/* firstdiff golden check: one prompt, every bit. */
#include "cli/golden/golden.h"
#include "compare/diff/golden.h"
#include "compare/report/line.h"

static void describe_result(const fd_golden_result *r, bool thinned, char *to, size_t size) {
    size_t at = 0;
    char was[40], is[40];
    to[0] = '\0';
    if (r->kind == FD_GOLDEN_TENSOR || r->kind == FD_GOLDEN_LOGITS)
        at += (size_t)snprintf(to, size, "%s differs at step %d, position %d; %lld tensors before it identical",
                               r->node, r->step, r->pos, (long long)r->n_same);
    if (r->logits_differ && at < size) {
        fd_value_text((double)r->logit_golden, was, sizeof was);
        fd_value_text((double)r->logit_now, is, sizeof is);
        at += (size_t)snprintf(to + at, size - at, "; logit %d at position %d: golden %s, now %s (%s%lld differ)",
                               r->logit_id, r->logit_pos, was, is, thinned ? "at least " : "",
                               (long long)r->n_logit_differ);
    } else if (r->kind == FD_GOLDEN_TENSOR && at < size) {
        at += (size_t)snprintf(to + at, size - at, "; the logits of that step are identical");
    }
    if (r->choice_differs && at < size)
        snprintf(to + at, size - at, "%sgreedy token: golden %d, now %d", at ? "; " : "", r->choice_golden,
                 r->choice_now);
}

fd_code fd_golden_check_exact(fd_exec *exec, const fd_trace *golden, int32_t prompt, fd_golden_outcome *out,
                              fd_golden_totals *totals, fd_error *err) {
    static const char *const kinds[] = {"identical", "tensor", "logits", "choice"};
    fd_golden_result r;
    FD_TRY(fd_golden_check(exec, golden, &r, err));
    totals->n_pos += fd_trace_n_pos(golden);
    totals->n_same += r.n_same;
    out->failed = r.kind != FD_GOLDEN_SAME;
    describe_result(&r, fd_trace_node_at(golden, fd_trace_n_node(golden) - 1)->partial, out->message,
                    sizeof out->message);
    out->json = json_pack("{s:i, s:s?, s:i, s:s, s:I}", "prompt", prompt + 1, "text", fd_trace_get_info(golden)->prompt,
                          "positions", fd_trace_n_pos(golden), "result", kinds[r.kind], "identical_before",
                          (json_int_t)r.n_same);
    if (out->failed)
        json_object_update_new(out->json, json_pack("{s:s, s:i, s:i, s:s}", "node", r.node, "step", r.step, "position",
                                                    r.pos, "message", out->message));
    return FD_OK;
}

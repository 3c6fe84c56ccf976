#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "compare/report/remarks.h"
#include "compare/report/report.h"

static void put_escaped(FILE *to, const char *text) {
    fd_character c;
    for (const char *s = text, *end = text + strlen(text); s < end; s += c.n) {
        c = fd_text_next(s, (size_t)(end - s));
        switch (*s) {
        case '&': fputs("&amp;", to); break;
        case '<': fputs("&lt;", to); break;
        case '>': fputs("&gt;", to); break;
        case '"': fputs("&quot;", to); break;
        case '\n': fputs("&#10;", to); break;
        case '\t': fputs("&#9;", to); break;
        default: c.shown ? fwrite(s, 1, c.n, to) : fwrite("\xef\xbf\xbd", 1, 3, to);
        }
    }
}

void fd_junit_write(FILE *to, const char *suite, const fd_junit_case *cases, int32_t n_case) {
    int32_t count[3] = {0};
    for (int32_t i = 0; i < n_case; i++) count[cases[i].result]++;
    fprintf(to, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n  <testsuite name=\"");
    put_escaped(to, suite);
    fprintf(to, "\" tests=\"%d\" failures=\"%d\" errors=\"%d\">\n", n_case, count[FD_JUNIT_FAILED],
            count[FD_JUNIT_ERROR]);
    for (int32_t i = 0; i < n_case; i++) {
        fprintf(to, "    <testcase classname=\"");
        put_escaped(to, suite);
        fprintf(to, "\" name=\"");
        put_escaped(to, cases[i].name);
        if (cases[i].result == FD_JUNIT_PASSED) {
            fprintf(to, "\"/>\n");
            continue;
        }
        const char *element = cases[i].result == FD_JUNIT_FAILED ? "failure" : "error";
        fprintf(to, "\">\n      <%s message=\"", element);
        put_escaped(to, cases[i].message);
        fprintf(to, "\"/>\n    </testcase>\n");
    }
    fprintf(to, "  </testsuite>\n</testsuites>\n");
}

void fd_report_junit(FILE *to, const fd_verdict *v) {
    enum { MODEL, TOKENS, WEIGHTS, TENSORS, COMPLETENESS, N };
    fd_junit_case cases[N] = {
        {.name = "model"}, {.name = "tokens"}, {.name = "weights"}, {.name = "tensors"}, {.name = "completeness"}};
    const fd_divergence *d = &v->divergence;
    if (d->kind == FD_DIVERGED_TOKENS) {
        cases[TOKENS].result = FD_JUNIT_FAILED;
        fd_report_headline(v, cases[TOKENS].message, sizeof cases[TOKENS].message);
    } else if (d->kind != FD_NO_DIVERGENCE && d->kind != FD_DIVERGED_WEIGHTS) {
        cases[TENSORS].result = FD_JUNIT_FAILED;
        fd_report_headline(v, cases[TENSORS].message, sizeof cases[TENSORS].message);
    }
    if (v->weights.n_differ) {
        cases[WEIGHTS].result = FD_JUNIT_FAILED;
        fd_report_headline(v, cases[WEIGHTS].message, sizeof cases[WEIGHTS].message);
    }
    if (v->counts.n_compared == 0 && cases[TENSORS].result == FD_JUNIT_PASSED) {
        cases[TENSORS].result = FD_JUNIT_ERROR;
        snprintf(cases[TENSORS].message, sizeof cases[TENSORS].message, "no tensor was compared");
    }
    bool other_model =
        v->ref.model_hash[0] && v->cand.model_hash[0] && strcmp(v->ref.model_hash, v->cand.model_hash) != 0;
    if (other_model) {
        cases[MODEL].result = FD_JUNIT_ERROR;
        snprintf(cases[MODEL].message, sizeof cases[MODEL].message, "the sides ran different models: %s against %s",
                 v->ref.model_hash, v->cand.model_hash);
    }
    if (v->reasons.n) {
        char reason[FD_REMARK_SIZE], *message = cases[COMPLETENESS].message;
        size_t at = 0, size = sizeof cases[COMPLETENESS].message;
        cases[COMPLETENESS].result = FD_JUNIT_ERROR;
        for (int32_t i = 0; i < v->reasons.n && i < FD_MAX_REMARKS && at < size; i++)
            at += (size_t)snprintf(message + at, size - at, "%s%s", i ? "; " : "", fd_reason_text(v, i, reason));
    }
    char suite[1200];
    snprintf(suite, sizeof suite, "firstdiff %s against %s", v->cand.label, v->ref.label);
    fd_junit_write(to, suite, cases, N);
}

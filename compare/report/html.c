/* One page that needs nothing else: what happened in one sentence, the verdict as text, and, where ops were replayed,
 * what page/ draws of them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "compare/report/page.h"
#include "compare/report/report.h"

/* Text from files: nothing of it may become markup. */
static void put_text(FILE *to, const char *text) {
    fd_character c;
    for (const char *s = text, *end = text + strlen(text); s < end; s += c.n) {
        c = fd_text_next(s, (size_t)(end - s));
        if (*s == '&')
            fputs("&amp;", to);
        else if (*s == '<')
            fputs("&lt;", to);
        else if (*s == '>')
            fputs("&gt;", to);
        else
            c.shown ? fwrite(s, 1, c.n, to) : fwrite("?", 1, 1, to);
    }
}

/* The JSON report as a JavaScript value; what could end the script stands in strings alone. */
static fd_code put_report(FILE *to, const fd_verdict *v, fd_error *err) {
    char *text = NULL;
    size_t size;
    FILE *json = open_memstream(&text, &size);
    if (!json) return fd_fail(err, FD_ERR_MEMORY, "HTML report: out of memory");
    fd_code code = fd_report_json(json, v, err);
    if (fclose(json) != 0 && code == FD_OK) code = fd_fail(err, FD_ERR_MEMORY, "HTML report: out of memory");
    fputs("const report=", to);
    for (size_t i = 0; code == FD_OK && i < size; i++)
        if (strchr("<>&", text[i]) && text[i])
            fprintf(to, "\\u%04x", text[i]);
        else
            fputc(text[i], to);
    fputs(";\n", to);
    free(text);
    return code;
}

static void put_fact(FILE *to, const char *name, const char *value, const char *more) {
    if (!value[0]) return;
    fprintf(to, "<div><dt>%s</dt><dd>", name);
    put_text(to, value);
    fputs("<small>", to);
    put_text(to, more);
    fputs("</small></dd></div>\n", to);
}

/* The figures to see first. */
static void put_facts(FILE *to, const fd_verdict *v) {
    const fd_explanation *e = &v->diagnosis.explanation;
    char text[64], more[400] = "";
    fd_logits_summary s = fd_measure_logits(&v->measures);
    fputs("<dl class=\"facts\">\n", to);
    if (v->dump.n) {
        const fd_misrecorded_kind *kind = &v->dump.kinds[0];
        snprintf(more, sizeof more, "%s%s%s%s", kind->holds[0] ? "it has the values of " : "in layers ",
                 kind->holds[0] ? kind->holds : kind->layers, kind->holds[0] && kind->n_node > 1 ? ", in layers " : "",
                 kind->holds[0] && kind->n_node > 1 ? kind->layers : "");
        put_fact(to, "look at", kind->node, more);
    }
    if (v->replay.finding[0]) {
        put_fact(to, "first wrong tensor", v->divergence.node, v->divergence.op);
        snprintf(text, sizeof text, isinf(v->replay.z) ? "beyond any rounding" : "z %.3g", v->replay.z);
        put_fact(to, "off by", text, isinf(v->replay.z) ? "z inf" : "times what rounding allows");
    } else if (v->replay.noisiest_z >= 0) {
        snprintf(text, sizeof text, "z %.2g", v->replay.noisiest_z);
        snprintf(more, sizeof more, "at %s; noise is z ≤ 1", v->replay.noisiest);
        put_fact(to, "largest rounding", text, more);
    }
    if (v->diagnosis.done && e->named) {
        snprintf(more, sizeof more, "residual z %.3g with this bug", e->remaining[0].z);
        put_fact(to, "bug", e->remaining[0].name, more);
    }
    if (s.n_pos) {
        snprintf(text, sizeof text, "%.3g nats", s.mean_kl);
        snprintf(more, sizeof more, "the same best token at %d of %d positions", s.n_same_best, s.n_pos);
        put_fact(to, "KL divergence", text, more);
    }
    snprintf(text, sizeof text, "%lld", (long long)v->replay.n_tensor);
    snprintf(more, sizeof more, "%lld within rounding, %lld %s, %lld wrong", (long long)v->replay.n_noise,
             (long long)(v->replay.n_inherited + v->replay.n_amplifier),
             v->replay.n_introduced ? "inherited" : "inherit rounding", (long long)v->replay.n_introduced);
    put_fact(to, "tensors judged", text, more);
    snprintf(more, sizeof more, "the candidate's class (%s)", v->replay.source);
    put_fact(to, "rounding", v->replay.numerics, more);
    fputs("</dl>\n", to);
}

static fd_code put_picture(FILE *to, const fd_verdict *v, fd_error *err) {
    put_facts(to, v);
    fprintf(to,
            "<section><h2>Every tensor</h2><p class=\"note\">%d tensors at %d positions, each by its worst; layers "
            "down, ops across, in order of execution. Click one, or move with the arrow keys.%s</p>\n<ul "
            "class=\"legend\" id=\"legend\"></ul><div id=\"map\"></div></section>\n"
            "<div id=\"parts\"></div>\n",
            v->map.n_node, v->map.n_pos,
            v->replay.n_introduced > 0 ? " The bold frame is the first that is wrong." : "");
    fputs("<script>\n", to);
    fd_code code = put_report(to, v, err);
    fd_page_data(to, v);
    fputs(fd_page_script(), to);
    fputs("</script>\n", to);
    return code;
}

static void put_head(FILE *to, const fd_verdict *v) {
    static const char *const classes[] = {"IDENTICAL", "DIVERGED", "INCOMPLETE", "NOISE", "CHECK_DUMP"};
    static const char *const marks[] = {"✓ IDENTICAL", "✕ DIVERGED", "? INCOMPLETE", "✓ NOISE", "? CHECK THE DUMP"};
    char headline[1024], sentence[512];
    fd_report_headline(v, headline, sizeof headline);
    fd_report_sentence(v, sentence, sizeof sentence);
    fputs("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
          "<meta name=\"color-scheme\" content=\"light dark\">\n<title>",
          to);
    put_text(to, sentence);
    fputs(" · firstdiff</title>\n<style>\n", to);
    fputs(fd_page_style(), to);
    fprintf(to, "</style></head><body>\n<header><span class=\"status %s\">%s</span>\n<p class=\"lede\">",
            classes[v->status], marks[v->status]);
    put_text(to, sentence);
    fprintf(to, "</p>\n<h1 class=\"%s\">", classes[v->status]);
    put_text(to, headline);
    fputs("</h1></header>\n<main>\n", to);
}

fd_code fd_report_html(FILE *to, const fd_verdict *v, fd_error *err) {
    char *text = NULL;
    size_t size;
    fd_code code = FD_OK;
    FILE *report = open_memstream(&text, &size);
    if (!report) return fd_fail(err, FD_ERR_MEMORY, "HTML report: out of memory");
    fd_report_text(report, v, false);
    if (fclose(report) != 0) {
        free(text);
        return fd_fail(err, FD_ERR_MEMORY, "HTML report: out of memory");
    }
    put_head(to, v);
    if (v->map.n_node)
        code = put_picture(to, v, err);
    else
        fputs("<p>No op was replayed: every bit agrees, or no model was given, or the candidate holds no "
              "elements.</p>\n",
              to);
    fputs("<section><h2>The whole verdict, and how to reproduce it</h2>\n<p class=\"note\">The line “next” is the "
          "command to type now.</p><pre class=\"wrap\">",
          to);
    put_text(to, text);
    fputs("</pre></section>\n</main>\n<footer>Made by firstdiff " FD_VERSION
          ". This page needs no network.</footer>\n</body></html>\n",
          to);
    free(text);
    if (code != FD_OK) return code;
    return ferror(to) ? fd_fail(err, FD_ERR_IO, "HTML report: writing failed") : FD_OK;
}

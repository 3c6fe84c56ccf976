#include "cli/github.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/report/report.h"

static bool runs_there(void) {
    const char *there = getenv("GITHUB_ACTIONS");
    return there && strcmp(there, "true") == 0;
}

/* A workflow command ends at its line's end; in a property also at , and :. */
static void put_escaped(const char *text, bool property) {
    for (const unsigned char *s = (const unsigned char *)text; *s; s++)
        if (*s == '%' || *s < 0x20 || (property && (*s == ',' || *s == ':')))
            fprintf(stderr, "%%%02X", *s);
        else
            fputc(*s, stderr);
}

void fd_cli_github_annotate(bool failed, const char *title, const char *message) {
    if (!runs_there()) return;
    fprintf(stderr, "::%s title=", failed ? "error" : "notice");
    put_escaped(title, true);
    fputs("::", stderr);
    put_escaped(message, false);
    fputc('\n', stderr);
}

void fd_cli_github_summarise(const char *title, const char *text) {
    const char *path = getenv("GITHUB_STEP_SUMMARY");
    FILE *to = runs_there() && path ? fopen(path, "a") : NULL;
    if (!to) return;
    fputs("### ", to);
    for (const char *p = title; *p; p++) fputc(strchr("<>&`", *p) ? ' ' : *p, to);
    fputs("\n\n```text\n", to);
    for (const char *p = text; *p; p++) fputc(*p == '`' ? '\'' : *p, to); /* nothing ends the block */
    fputs("```\n\n", to);
    fclose(to);
}

void fd_cli_github_verdict(const char *command, const fd_verdict *verdict) {
    char title[64], sentence[512], headline[1024], message[1600], *text = NULL;
    size_t size;
    if (!runs_there()) return;
    fd_report_sentence(verdict, sentence, sizeof sentence);
    fd_report_headline(verdict, headline, sizeof headline);
    snprintf(title, sizeof title, "firstdiff %s", command);
    snprintf(message, sizeof message, "%s\n%s", sentence, headline);
    fd_cli_github_annotate(fd_verdict_exit_status(verdict) != 0, title, message);
    FILE *to = open_memstream(&text, &size);
    if (!to) return;
    fd_report_text(to, verdict, false);
    if (fclose(to) == 0) fd_cli_github_summarise(sentence, text);
    free(text);
}

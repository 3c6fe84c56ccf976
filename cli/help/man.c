/* firstdiff man: manual pages, made of the commands' own tables of options. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

enum { MAX_GROUP = 9 };

/* Text of ours as roff: nothing of it is a request or an escape. */
static void put_roff(const char *text, size_t size) {
    bool line_begins = true;
    for (size_t i = 0; i < size; i++) {
        if (line_begins && (text[i] == '.' || text[i] == '\'')) fputs("\\&", stdout);
        line_begins = text[i] == '\n';
        if (text[i] == '\\')
            fputs("\\e", stdout);
        else if (text[i] == '-')
            fputs("\\-", stdout);
        else
            putchar(text[i]);
    }
}

static void put_text(const char *text) {
    put_roff(text, strlen(text));
}

static void put_option(const struct argp_option *o) {
    bool has_letter = o->key > 32 && o->key < 127;
    fputs(".TP\n.B ", stdout);
    if (has_letter) printf("\\-%c", o->key);
    if (has_letter && o->name) fputs(", ", stdout);
    if (o->name) fputs("\\-\\-", stdout);
    if (o->name) put_text(o->name);
    if (o->arg) fputs(o->name ? "=\\fI" : " \\fI", stdout);
    if (o->arg) put_text(o->arg);
    fputs(o->arg ? "\\fR\n" : "\n", stdout);
    if (o->doc) put_text(o->doc);
    putchar('\n');
}

/* Those of one group: --help, too, goes by groups, wherever an option comes from. */
static void put_options(const struct argp *argp, int group) {
    for (const struct argp_child *child = argp->children; child && child->argp; child++)
        put_options(child->argp, group);
    for (const struct argp_option *o = argp->options; o && (o->name || o->key || o->doc); o++)
        if (o->group == group && !(o->flags & (OPTION_HIDDEN | OPTION_DOC))) put_option(o);
}

static void put_example(const fd_cli_command *command) {
    if (!command->example) return;
    fputs(".SH EXAMPLE\n.nf\n", stdout);
    put_text(command->example);
    fputs("\n.fi\n", stdout);
}

static void put_head(const char *name, const char *upper, const char *summary) {
    printf(".TH %s 1 \"\" \"firstdiff " FD_VERSION "\" \"firstdiff\"\n.SH NAME\n", upper);
    put_text(name);
    fputs(" \\- ", stdout);
    put_text(summary);
    putchar('\n');
}

static void put_command(const fd_cli_command *command) {
    char name[48], upper[48];
    const struct argp *argp = command->argp;
    snprintf(name, sizeof name, "firstdiff-%s", command->name);
    snprintf(upper, sizeof upper, "%s", name);
    for (char *p = upper; *p; p++)
        if (*p >= 'a' && *p <= 'z') *p = (char)(*p - 'a' + 'A');
    put_head(name, upper, command->summary);
    fputs(".SH SYNOPSIS\n", stdout);
    for (const char *line = argp ? argp->args_doc : ""; line;) {
        size_t size = strcspn(line, "\n");
        printf(".B firstdiff %s\n", command->name);
        fputs(argp ? "[OPTION...] " : "[COMMAND|SHELL]", stdout);
        put_roff(line, size);
        fputs("\n.br\n", stdout);
        line = line[size] ? line + size + 1 : NULL;
    }
    put_example(command);
    if (!argp) return;
    const char *rest = strchr(argp->doc, '\v');
    fputs(".SH DESCRIPTION\n", stdout);
    put_roff(argp->doc, rest ? (size_t)(rest - argp->doc) : strlen(argp->doc));
    fputs("\n.SH OPTIONS\n", stdout);
    for (int group = 0; group <= MAX_GROUP; group++) put_options(argp, group);
    if (rest) fputs(".SH NOTES\n", stdout);
    if (rest) put_text(rest + 1);
    fputs("\n.SH SEE ALSO\n.BR firstdiff (1)\n", stdout);
}

static void put_program(const fd_cli_command *commands, size_t n) {
    put_head("firstdiff", "FIRSTDIFF", "the first tensor where two runs of a language model diverge");
    fputs(".SH SYNOPSIS\n.B firstdiff\n.I COMMAND\n[OPTION...]\n.SH COMMANDS\n", stdout);
    for (size_t i = 0; i < n; i++) {
        printf(".TP\n.B %s\n", commands[i].name);
        put_text(commands[i].summary);
        putchar('\n');
    }
    fputs(".SH EXIT STATUS\n0 no divergence, 1 diverged, 2 unusable input or usage, 3 incomplete.\n.SH SEE ALSO\n",
          stdout);
    for (size_t i = 0; i < n; i++)
        if (commands[i].argp) printf(".BR firstdiff\\-%s (1)%s\n", commands[i].name, i + 1 < n ? "," : "");
}

int fd_cmd_man(int argc, char **argv) {
    size_t n;
    const fd_cli_command *commands = fd_cli_commands(&n);
    bool help = argc == 2 && strcmp(argv[1], "--help") == 0, list = argc == 2 && strcmp(argv[1], "--list") == 0;
    if (help) printf("Usage: firstdiff man [COMMAND|--list]\nPrints a manual page, or which there are.\n");
    for (size_t i = 0; list && i < n; i++)
        if (commands[i].argp) printf("%s\n", commands[i].name);
    if (help || list) return FD_EXIT_SAME;
    if (argc == 1) put_program(commands, n);
    for (size_t i = 0; argc == 2 && i < n; i++)
        if (strcmp(commands[i].name, argv[1]) == 0) {
            put_command(&commands[i]);
            return FD_EXIT_SAME;
        }
    if (argc == 1) return FD_EXIT_SAME;
    fprintf(stderr, "firstdiff man: %s: unknown; expected one command\n", argv[1]);
    return FD_EXIT_UNUSABLE;
}

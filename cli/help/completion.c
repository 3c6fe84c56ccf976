/* firstdiff completion: scripts for shells, made of the commands' own tables of options. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

typedef void (*on_option)(const char *command, const struct argp_option *option);

static void each_option(const char *command, const struct argp *argp, on_option put) {
    for (const struct argp_child *child = argp->children; child && child->argp; child++)
        each_option(command, child->argp, put);
    for (const struct argp_option *o = argp->options; o && (o->name || o->key || o->doc); o++)
        if (o->name && !(o->flags & (OPTION_HIDDEN | OPTION_DOC))) put(command, o);
}

/* "cpu|gpu": one of these words; "NAME|FILE" and "1,2,3" are not. */
static bool is_choice(const char *arg) {
    return arg && strchr(arg, '|') && arg[strspn(arg, "abcdefghijklmnopqrstuvwxyz0123456789|")] == '\0';
}

static void put_words(const char *choice) {
    for (const char *p = choice; *p; p++) putchar(*p == '|' ? ' ' : *p);
}

/* The first sentence of a description, without what shells' quotes would end. */
static void put_short(const char *doc) {
    size_t n = strcspn(doc, ";:(");
    const char *stop = strstr(doc, ". ");
    if (stop && (size_t)(stop - doc) < n) n = (size_t)(stop - doc);
    while (n > 0 && doc[n - 1] == ' ') n--;
    for (size_t i = 0; i < n; i++) putchar(strchr("'\"[]\\`$", doc[i]) ? ' ' : doc[i]);
}

/* ---- bash ---- */

static void bash_name(const char *command, const struct argp_option *o) {
    (void)command;
    printf(" --%s%s", o->name, o->arg ? "=" : "");
}

static void bash_choice(const char *command, const struct argp_option *o) {
    if (!is_choice(o->arg)) return;
    printf("    %s:--%s) words=\"", command, o->name);
    put_words(o->arg);
    printf("\" ;;\n");
}

static void put_bash(const fd_cli_command *commands, size_t n) {
    printf("# bash completion of firstdiff; made by `firstdiff completion bash`\n"
           "_firstdiff() {\n"
           "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]} words=\n"
           "  COMPREPLY=()\n"
           "  if [ \"$word\" = = ]; then word=; elif [ \"$before\" = = ]; then before=${COMP_WORDS[COMP_CWORD-2]}; fi\n"
           "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n    words=\"--help --version");
    for (size_t i = 0; i < n; i++) printf(" %s", commands[i].name);
    printf("\"\n    COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n    return\n  fi\n"
           "  case $command:$before in\n");
    for (size_t i = 0; i < n; i++)
        if (commands[i].argp) each_option(commands[i].name, commands[i].argp, bash_choice);
    printf("  esac\n  if [ -z \"$words\" ] && [[ $word == -* ]]; then\n    case $command in\n");
    for (size_t i = 0; i < n; i++) {
        if (!commands[i].argp) continue;
        printf("    %s) words=\"--help --usage", commands[i].name);
        each_option(commands[i].name, commands[i].argp, bash_name);
        printf("\" ;;\n");
    }
    printf("    esac\n  fi\n"
           "  [ -n \"$words\" ] && COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
           "  [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace\n"
           "}\ncomplete -o default -F _firstdiff firstdiff\n");
}

/* ---- zsh ---- */

static void zsh_option(const char *command, const struct argp_option *o) {
    (void)command;
    printf(" \\\n      '--%s%s[", o->name, o->arg ? "=" : "");
    put_short(o->doc ? o->doc : "");
    printf("]");
    if (is_choice(o->arg)) {
        printf(":%s:(", o->name);
        put_words(o->arg);
        printf(")");
    } else if (o->arg) {
        printf(":%s:_files", o->name);
    }
    printf("'");
}

static void put_zsh(const fd_cli_command *commands, size_t n) {
    printf("#compdef firstdiff\n# made by `firstdiff completion zsh`\n"
           "_firstdiff() {\n  local -a commands\n  commands=(\n");
    for (size_t i = 0; i < n; i++) {
        printf("    '%s:", commands[i].name);
        put_short(commands[i].summary);
        printf("'\n");
    }
    printf("  )\n  if (( CURRENT == 2 )); then\n    _describe command commands\n    return\n  fi\n"
           "  local command=$words[2]\n  shift words\n  (( CURRENT-- ))\n  case $command in\n");
    for (size_t i = 0; i < n; i++) {
        if (!commands[i].argp) continue;
        printf("    %s) _arguments '--help[how to use it]'", commands[i].name);
        each_option(commands[i].name, commands[i].argp, zsh_option);
        printf(" \\\n      '*:file:_files' ;;\n");
    }
    printf("  esac\n}\n_firstdiff \"$@\"\n");
}

/* ---- fish ---- */

static void fish_option(const char *command, const struct argp_option *o) {
    printf("complete -c firstdiff -n '__fish_seen_subcommand_from %s' -l %s", command, o->name);
    if (o->key > 32 && o->key < 127) printf(" -s %c", o->key);
    if (is_choice(o->arg)) {
        printf(" -x -a '");
        put_words(o->arg);
        printf("'");
    } else if (o->arg) {
        printf(" -r");
    }
    printf(" -d '");
    put_short(o->doc ? o->doc : "");
    printf("'\n");
}

static void put_fish(const fd_cli_command *commands, size_t n) {
    printf("# fish completion of firstdiff; made by `firstdiff completion fish`\n");
    for (size_t i = 0; i < n; i++) {
        printf("complete -c firstdiff -n __fish_use_subcommand -f -a %s -d '", commands[i].name);
        put_short(commands[i].summary);
        printf("'\n");
    }
    for (size_t i = 0; i < n; i++)
        if (commands[i].argp) each_option(commands[i].name, commands[i].argp, fish_option);
}

int fd_cmd_completion(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*put)(const fd_cli_command *commands, size_t n);
    } shells[] = {{"bash", put_bash}, {"zsh", put_zsh}, {"fish", put_fish}};
    size_t n;
    const fd_cli_command *commands = fd_cli_commands(&n);
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        printf("Usage: firstdiff completion bash|zsh|fish\nPrints a script for the shell.\n");
        return FD_EXIT_SAME;
    }
    for (size_t i = 0; argc == 2 && i < sizeof shells / sizeof *shells; i++)
        if (strcmp(shells[i].name, argv[1]) == 0) {
            shells[i].put(commands, n);
            return FD_EXIT_SAME;
        }
    fprintf(stderr, "firstdiff completion: expected one shell: bash, zsh or fish\n");
    return FD_EXIT_UNUSABLE;
}

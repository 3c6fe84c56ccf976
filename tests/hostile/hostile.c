/* Mutants of files through the commands: hostile FIRSTDIFF FOLDER FIRST N FILE… [-- FILE…]
 *
 * Writes N mutants of the files before --, numbered from FIRST on, into FOLDER one after another, and runs on each the commands
 * that read its kind. Every run must end within 10 seconds of processor time (240 on the clock), of itself, with a status of 0 to 3, below 1 GiB, and write
 * nothing that a terminal would obey. A mutant that does not is kept as FOLDER/finding-NUMBER.SUFFIX. Prints the counts;
 * The first GGUF among the files is the model of the traces and goldens. $FD_HOSTILE_PROMPTED, a GGUF with a tokenizer, runs
 * the prompts. $FD_HOSTILE_COMMAND, one of the commands' words ("compare"), runs no other; $FD_HOSTILE_TURNS=3 runs three of a
 * mutant's commands, and of the next mutant's the three after them. Status 1 when there was a finding, or when no mutant of HDF5
 * had a checksum to mend. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "mutate.h"
#include "quiet.h"

enum { MAX_ARGS = 12, SECONDS = 10, PATIENCE = 240, MAX_KB = 1 << 20 };

typedef struct base {
    const char *path, *suffix;
    uint8_t *data;
    size_t size;
    mutator *mutator;
} base;

/* MUTANT, BASE, OTHER (foreign tensors), TRACE, MAP, MODEL, PROMPTED and OUT stand for files; commands with one that is not there are left out. */
static const struct {
    const char *suffix, *args[MAX_ARGS];
} commands[] = {
    {"h5", {"inspect", "MUTANT"}},
    {"h5", {"inspect", "MUTANT", "--health"}},
    {"h5", {"inspect", "MUTANT", "--with", "BASE"}},
    {"h5", {"compare", "MUTANT", "BASE"}},
    {"h5", {"compare", "BASE", "MUTANT", "--json"}},
    {"h5", {"import", "MUTANT", "-o", "OUT"}},
    {"h5", {"golden", "check", "MODEL", "MUTANT"}},
    {"h5", {"check", "MODEL", "MUTANT", "--json"}},
    {"h5", {"diff", "MODEL", "--b", "trace:MUTANT"}},
    {"npy", {"import", "MUTANT", "--map", "MAP", "--tokens", "1,2", "-o", "OUT"}},
    {"npz", {"import", "MUTANT", "--map", "MAP", "--tokens", "1,2", "-o", "OUT"}},
    {"safetensors", {"import", "MUTANT", "--map", "MAP", "--tokens", "1,2", "-o", "OUT"}},
    {"map", {"import", "OTHER", "--map", "MUTANT", "--tokens", "1,2", "-o", "OUT"}},
    {"json", {"compare", "TRACE", "TRACE", "--since", "MUTANT"}},
    {"jsonl", {"run", "PROMPTED", "--prompts-file", "MUTANT", "-n", "1", "-q"}},
    {"ids", {"import", "OTHER", "--map", "MAP", "--tokens-file", "MUTANT", "-o", "OUT"}},
    {"gguf", {"model", "MUTANT"}},
    {"gguf", {"run", "MUTANT", "--tokens", "1,2", "-n", "1", "-q", "-o", "OUT"}},
    {"gguf", {"check", "MUTANT", "TRACE"}},
};

typedef struct counts {
    long runs, by_status[4], findings;
    long walls; /* runs that said that the library failed */
} counts;

static const char *firstdiff, *folder, *other, *trace, *map, *model, *prompted;
static char trace_mutant[1040] = "trace:", *const mutant_path = trace_mutant + 6; /* the same with and without it */
static char out_path[1024], log_path[1024];

static uint8_t *read_file(const char *path, size_t *size) {
    FILE *f = fopen(path, "rb");
    struct stat there;
    if (!f || fstat(fileno(f), &there) != 0) return NULL;
    uint8_t *data = malloc((size_t)there.st_size + 1);
    *size = fread(data, 1, (size_t)there.st_size, f);
    data[*size] = 0;
    fclose(f);
    return data;
}

static bool write_file(const char *path, const uint8_t *data, size_t size) {
    FILE *f = fopen(path, "wb");
    bool ok = f && fwrite(data, 1, size, f) == size;
    return f && fclose(f) == 0 && ok;
}

static void finding(counts *c, const base *b, uint64_t number, const char *const *args, const char *what) {
    char kept[1200];
    size_t size;
    uint8_t *data = read_file(mutant_path, &size);
    snprintf(kept, sizeof kept, "%s/finding-%llu.%s", folder, (unsigned long long)number, b->suffix);
    if (data) write_file(kept, data, size);
    free(data);
    c->findings++;
    printf("%s: %s", kept, what);
    for (int i = 0; args[i]; i++) printf(" %s", args[i]);
    printf(" (mutant %llu of %s)\n", (unsigned long long)number, b->path);
    fflush(stdout);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void run(counts *c, const base *b, uint64_t number, const char *const *args) {
    const char *argv[MAX_ARGS + 2] = {firstdiff};
    for (int i = 0; args[i]; i++) {
        argv[1 + i] = strcmp(args[i], "MUTANT") == 0         ? mutant_path
                      : strcmp(args[i], "trace:MUTANT") == 0 ? trace_mutant
                      : strcmp(args[i], "BASE") == 0         ? b->path
                      : strcmp(args[i], "OTHER") == 0        ? other
                      : strcmp(args[i], "TRACE") == 0        ? trace
                      : strcmp(args[i], "MAP") == 0          ? map
                      : strcmp(args[i], "MODEL") == 0        ? model
                      : strcmp(args[i], "PROMPTED") == 0     ? prompted
                      : strcmp(args[i], "OUT") == 0          ? out_path
                                                             : args[i];
        if (!argv[1 + i]) return;
    }
    pid_t child = fork();
    if (child == 0) {
        int log = open(log_path, O_WRONLY | O_CREAT | O_TRUNC, 0600), none = open("/dev/null", O_RDONLY);
        dup2(none, 0);
        dup2(log, 1);
        dup2(log, 2);
        setenv("OMP_NUM_THREADS", "1", 1);
        execv(firstdiff, (char *const *)argv);
        _exit(127);
    }
    int status = 0;
    struct rusage used = {0};
    double began = now();
    pid_t ended = 0;
    while ((ended = wait4(child, &status, WNOHANG, &used)) == 0 && now() - began < PATIENCE)
        nanosleep(&(struct timespec){0, 300000}, NULL);
    if (ended == 0) {
        kill(child, SIGKILL);
        wait4(child, &status, 0, &used);
    }
    c->runs++;
    size_t size = 0;
    uint8_t *said = read_file(log_path, &size);
    char what[128];
    double took = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec);
    if (ended == 0 || took >= SECONDS) {
        finding(c, b, number, argv, "no end within 10 s");
    } else if (WIFSIGNALED(status)) {
        snprintf(what, sizeof what, "signal %d", WTERMSIG(status));
        finding(c, b, number, argv, what);
    } else if (WEXITSTATUS(status) > 3) {
        snprintf(what, sizeof what, "status %d", WEXITSTATUS(status));
        finding(c, b, number, argv, what);
    } else {
        c->by_status[WEXITSTATUS(status)]++;
        if (used.ru_maxrss > MAX_KB)
            finding(c, b, number, argv, "more than 1 GiB");
        else if (said && first_obeyed((char *)said, size))
            finding(c, b, number, argv, "control characters");
    }
    if (said && strstr((char *)said, "the HDF5 library failed")) c->walls++;
    free(said);
    unlink(out_path);
}

/* Runs the commands that read the mutant. */
static void run_all(counts *c, const base *b, uint64_t number) {
    const char *only = getenv("FD_HOSTILE_COMMAND"), *turns = getenv("FD_HOSTILE_TURNS");
    size_t chosen[sizeof commands / sizeof *commands], n = 0;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(commands[i].suffix, b->suffix) == 0 && (!only || strcmp(only, commands[i].args[0]) == 0))
            chosen[n++] = i;
    size_t most = turns ? strtoul(turns, NULL, 10) : n, first = turns ? number * most : 0;
    for (size_t i = 0; i < n && i < most; i++) run(c, b, number, commands[chosen[(first + i) % n]].args);
}

static const char *suffix_of(const char *path) {
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : "";
}

int main(int argc, char **argv) {
    if (argc < 6) return 2;
    firstdiff = argv[1];
    folder = argv[2];
    prompted = getenv("FD_HOSTILE_PROMPTED");
    uint64_t first = strtoull(argv[3], NULL, 10), n = strtoull(argv[4], NULL, 10);
    int n_file = argc - 5, n_base = n_file;
    base *bases = calloc((size_t)n_file, sizeof *bases);
    size_t summed = 0;
    bool any_h5 = false;
    mkdir(folder, 0700);
    for (int i = 0; i < n_file; i++) {
        base *b = &bases[i];
        if (strcmp(argv[5 + i], "--") == 0) {
            n_base = i;
            continue;
        }
        *b = (base){.path = argv[5 + i], .suffix = suffix_of(argv[5 + i])};
        b->data = read_file(b->path, &b->size);
        if (!b->data) {
            fprintf(stderr, "%s: %s\n", b->path, strerror(errno));
            return 2;
        }
        b->mutator = mutator_new(b->data, b->size);
        if (i < n_base && strcmp(b->suffix, "h5") == 0) {
            any_h5 = true;
            summed += mutator_blocks(b->mutator);
        }
        if (strstr(b->path, "stats.h5")) trace = b->path;
        if (!model && strcmp(b->suffix, "gguf") == 0) model = b->path;
        if (!map && strcmp(b->suffix, "map") == 0) map = b->path;
        if ((!other || strstr(b->path, "plain")) &&
            (strcmp(b->suffix, "npz") == 0 || strcmp(b->suffix, "safetensors") == 0))
            other = b->path;
    }
    snprintf(out_path, sizeof out_path, "%s/out-%ld.h5", folder, (long)getpid());
    snprintf(log_path, sizeof log_path, "%s/log-%ld", folder, (long)getpid());
    counts c = {0};
    double began = now();
    for (uint64_t k = first; k < first + n; k++) {
        const base *b = &bases[k % (uint64_t)n_base];
        size_t size;
        uint8_t *mutant = mutator_make(b->mutator, k, &size);
        snprintf(mutant_path, sizeof trace_mutant - 6, "%s/mutant-%ld.%s", folder, (long)getpid(), b->suffix);
        if (!write_file(mutant_path, mutant, size)) return 2;
        free(mutant);
        run_all(&c, b, k);
        unlink(mutant_path);
    }
    unlink(log_path);
    printf(
        "%llu mutants of %d files (%zu blocks with a checksum), %ld runs in %.0f s: status 0 %ld, 1 %ld, 2 %ld, 3 %ld; "
        "the wall held %ld times; %ld findings\n",
        (unsigned long long)n, n_base, summed, c.runs, now() - began, c.by_status[0], c.by_status[1], c.by_status[2],
        c.by_status[3], c.walls, c.findings);
    for (int i = 0; i < n_file; i++) {
        if (bases[i].mutator) mutator_free(bases[i].mutator);
        free(bases[i].data);
    }
    free(bases);
    if (any_h5 && summed == 0) printf("no block of HDF5 with a checksum was found: nothing was mended\n");
    return c.findings > 0 || (any_h5 && summed == 0 && c.runs == 0);
}

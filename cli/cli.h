/* Shared by the commands: opening a model, prompts, executor specs. The only folder that prints and sets exit statuses.
 * Options are parsed with glibc's argp in every command (`--help`, `--usage` for free). */
#ifndef FD_CLI_CLI_H
#define FD_CLI_CLI_H

#include <argp.h>
#include <stdio.h>

#include "compare/report/report.h"
#include "exec/exec.h"
#include "model/tokenizer/tokenizer.h"

enum { FD_EXIT_SAME = 0, FD_EXIT_DIVERGED = 1, FD_EXIT_UNUSABLE = 2, FD_EXIT_INCOMPLETE = 3 };

/* The commands: argv[0] is "firstdiff run" and so on; each returns the exit status. Its argp is the one place that
 * describes its options: --help, man pages and completion are made of it. */
int fd_cmd_run(int argc, char **argv);
int fd_cmd_diff(int argc, char **argv);
int fd_cmd_compare(int argc, char **argv);
int fd_cmd_inspect(int argc, char **argv);
int fd_cmd_golden(int argc, char **argv);
int fd_cmd_model(int argc, char **argv);
int fd_cmd_sweep(int argc, char **argv);
int fd_cmd_import(int argc, char **argv);
int fd_cmd_make_model(int argc, char **argv);
int fd_cmd_check(int argc, char **argv);
int fd_cmd_bisect(int argc, char **argv);
int fd_cmd_man(int argc, char **argv);
int fd_cmd_completion(int argc, char **argv);
extern const struct argp fd_cmd_run_argp, fd_cmd_diff_argp, fd_cmd_compare_argp, fd_cmd_inspect_argp,
    fd_cmd_golden_argp, fd_cmd_model_argp, fd_cmd_sweep_argp, fd_cmd_import_argp, fd_cmd_check_argp, fd_cmd_bisect_argp,
    fd_cmd_make_model_argp;

typedef struct fd_cli_command {
    const char *name;
    int (*run)(int argc, char **argv);
    bool shared;      /* several processes of mpirun may run it together (cli/ranks.h) */
    bool limits_spin; /* fd_cli_limit_openmp_spin before it begins; compare decides itself */
    const char *summary;
    const struct argp *argp;
    const char *example; /* lines of a shell; --help shows them first */
} fd_cli_command;
const fd_cli_command *fd_cli_commands(size_t *n);

/* Limits how long libgomp's threads spin at a barrier before they sleep; commands that run or replay a model call it
 * first. On a busy machine (CI) they spin on the very core that the thread they wait for needs: measured with both
 * of 2 cores taken, 9.1 s against 0.4 s for a 16-token trace; idle, no difference. libgomp reads its settings when
 * it is loaded, so the program starts itself again with the arguments kept, which takes 1 ms. Does nothing when the
 * user set GOMP_SPINCOUNT or OMP_WAIT_POLICY. */
void fd_cli_keep_arguments(int argc, char **argv);
void fd_cli_limit_openmp_spin(void);

/* For verdicts, before threads begin: explanations make and free matrices by the hundred, and the kernel zeroes pages that
 * come back: 2.9 of 7.5 s of CPU on four layers of llama-8B, 0.7 of 5.2 s when freed memory is kept. */
void fd_cli_keep_freed_memory(void);

/* Prints "firstdiff COMMAND: message" on stderr and returns the exit status of err->code. */
int fd_cli_fail(const char *command, const fd_error *err);

/* A GGUF with its graph and, when it has one, its tokenizer. */
typedef struct fd_cli_model {
    fd_gguf *gguf;
    fd_graph *graph;
    fd_tokenizer *tokenizer; /* NULL: the file has none; `tokenizer_error` says why */
    fd_error tokenizer_error;
    char *hash; /* [48] owned; empty until fd_cli_model_hash is asked */
} fd_cli_model;
fd_code fd_cli_model_open(const char *path, fd_cli_model *out, fd_error *err);
void fd_cli_model_close(fd_cli_model *model);
/* fd_model_hash of the file. The first call reads all of it, which a run that records nothing need not do. */
const char *fd_cli_model_hash(const fd_cli_model *model);

/* FD_ERR_INPUT when the trace says it was recorded from another model than the one opened from `path`. */
struct fd_trace;
fd_code fd_cli_check_trace_model(const fd_cli_model *model, const char *path, const struct fd_trace *trace,
                                 fd_error *err);

/* LongRoPE's factors as the trace was recorded with; of a trace that does not say, by its positions. */
void fd_cli_set_context_of(const fd_cli_model *model, const struct fd_trace *trace);

/* -p TEXT | --tokens 1,2,3 | --prompt-file F, one of them. Add fd_cli_prompt_argp as an argp child whose input is an
 * fd_cli_prompt. */
typedef struct fd_cli_prompt {
    const char *text, *tokens, *file;
    bool whole; /* the text has its BOS already: tokenizing adds no special token */
} fd_cli_prompt;
extern const struct argp fd_cli_prompt_argp;
/* The prompt's ids (malloc'ed), checked against the vocabulary. *text receives the prompt's text (malloc'ed; NULL for
 * --tokens). FD_ERR_INPUT when none or several were given, or it is empty. */
fd_code fd_cli_prompt_ids(const fd_cli_prompt *prompt, const fd_cli_model *model, int32_t **ids, int32_t *n_id,
                          char **text, fd_error *err);
/* The text of -p or --prompt-file, malloc'ed; FD_ERR_INPUT where neither or both are given. */
fd_code fd_cli_prompt_text(const fd_cli_prompt *prompt, char **text, size_t *size, fd_error *err);
/* "1,2,3" or "1 2 3" to ids (malloc'ed), each checked against n_vocab; the message names the bad item. */
fd_code fd_cli_parse_ids(const char *list, int32_t n_vocab, int32_t **ids, int32_t *n_id, fd_error *err);
/* The ids of such a list, else those in the file `path`; *ids NULL when both are NULL. */
fd_code fd_cli_token_list(const char *list, const char *path, int32_t n_vocab, int32_t **ids, int32_t *n_id,
                          fd_error *err);

/* An executor from a spec: "cpu:exact", "gpu:exact", "cpu:f64", "cpu:emulate-CLASS[:SEED]", each may end in
 * "+fault=NAME[@layer]" (several allowed), "+cache-type=q8_0" or "=q8_0/q4_0" (fd_graph_set_kv_types), or
 * "+gpus=0,1" (engine/engine.h).
 * Owns the changed graph copy. trace:FILE is handled by cmd_diff. */
typedef struct fd_cli_exec {
    fd_exec *exec;
    fd_graph *graph;   /* the clone with changes; NULL without any */
    void *fault_owner; /* fd_fault_owner */
    char fault[128];   /* "rope_pairing@2", "" for none */
} fd_cli_exec;
fd_code fd_cli_exec_open(const char *spec, const fd_graph *graph, int32_t n_ctx, int32_t n_thread, fd_cli_exec *out,
                         fd_error *err);
/* The same with caches for n_seq sequences of n_ctx positions each (exec/exec.h). */
fd_code fd_cli_exec_open_many(const char *spec, const fd_graph *graph, int32_t n_ctx, int32_t n_seq, int32_t n_thread,
                              fd_cli_exec *out, fd_error *err);
void fd_cli_exec_close(fd_cli_exec *exec);
/* FD_ERR_UNSUPPORTED: built without the GPU engine; FD_ERR_DEVICE: there is no CUDA device. */
fd_code fd_cli_check_gpu(fd_error *err);
/* What the executor of `spec` will take of a device's memory, and what is free: a line without its end; "" on the
 * CPU, and where it does not fit or cannot be told, for then opening it fails and says more. */
void fd_cli_exec_memory(const char *spec, const fd_graph *graph, int32_t n_ctx, int32_t n_seq, char *to, size_t size);

/* The spec of --backend, --numerics and --fault: "cpu", "exact", "x@1+y" gives "cpu:exact+fault=x@1+fault=y".
 * `faults` may be NULL. */
fd_code fd_cli_spec(const char *backend, const char *numerics, const char *faults, char spec[256], fd_error *err);
/* The executor of such a choice; `fault` may be NULL. */
typedef struct fd_cli_exec_choice {
    const char *backend, *numerics, *fault;
    int32_t n_ctx, n_thread;
} fd_cli_exec_choice;
fd_code fd_cli_exec_choose(fd_cli_exec_choice choice, const fd_graph *graph, fd_cli_exec *out, fd_error *err);

/* Seconds of a clock that only goes forward. */
double fd_cli_seconds(void);

/* A progress line on stderr ("decode 17/32, 8 s left", rewritten in place on a terminal, else a line every 2 s) for
 * anything that takes over two seconds; nothing before that. */
typedef struct fd_cli_progress {
    const char *what;
    int64_t done, total;
    double started, stage, printed; /* stage: when what is counted now began */
    bool shown;
} fd_cli_progress;
fd_cli_progress fd_cli_progress_start(const char *what, int64_t total);
void fd_cli_progress_to(fd_cli_progress *progress, int64_t done);
void fd_cli_progress_end(fd_cli_progress *progress);
/* The same as a callback of compare/: `user` is the fd_cli_progress. */
void fd_cli_progress_callback(void *user, int64_t done, int64_t total);
/* The same where something else may be counted than before. */
void fd_cli_progress_stage_callback(void *user, const char *what, int64_t done, int64_t total);

/* Colours only on a terminal and without NO_COLOR; NULL: none. */
fd_report_colour fd_cli_colour(FILE *stream);

#endif

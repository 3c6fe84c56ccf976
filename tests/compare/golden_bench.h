/* Goldens of made runs. */
#ifndef FD_TESTS_COMPARE_GOLDEN_BENCH_H
#define FD_TESTS_COMPARE_GOLDEN_BENCH_H

#include <hdf5.h>

#include "dumpers/store/golden.h"
#include "tests/compare/fake_run.h"

enum { N_PROMPT = 4, N_GENERATE = 3, N_POS = N_PROMPT + N_GENERATE - 1 };

extern const fake_options clean_run;

fd_trace_info clean_info(void);
fd_code record_fake(const char *path, const fake_options *run, fd_trace_info info, fd_error *err);

/* A golden of a clean run, changed by `edit` if that is not NULL. */
fd_trace *golden_of(fd_trace_info info, void (*edit)(hid_t file));
fd_trace *golden_of_clean(void);

/* Edits: a logit of position 1, a generated token; the first logit of position 1 is NaN, or all are, as of a position without. */
void other_logit(hid_t file);
void other_token(hid_t file);
void without_first_logit(hid_t file);
void without_logits(hid_t file);

#endif

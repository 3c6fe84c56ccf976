/* Is the prompt that a trace was recorded with what the model's chat template gives? */
#ifndef FD_CLI_COMPARE_CHAT_PROMPT_H
#define FD_CLI_COMPARE_CHAT_PROMPT_H

#include "cli/cli.h"
#include "compare/verdict.h"

/* Renders the messages in a file (cli/chat.h) and compares their tokens with those of the trace's prefill. Where they
 * part *verdict is a divergence of tokens, the template for a reference, and *differs is true: nothing else needs to be
 * looked at, for an engine that is fed other tokens writes other text. A token of -1: the prompt ends there. */
fd_code fd_cli_check_chat_prompt(const fd_cli_model *model, const char *messages, const fd_trace *candidate,
                                 fd_verdict *verdict, bool *differs, fd_error *err);

#endif

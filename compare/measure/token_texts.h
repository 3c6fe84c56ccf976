/* The texts of the tokens that measures speak of. */
#ifndef FD_COMPARE_MEASURE_TOKEN_TEXTS_H
#define FD_COMPARE_MEASURE_TOKEN_TEXTS_H

#include "compare/measure/measures.h"
#include "model/tokenizer/tokenizer.h"

/* The text of to->token: what is not shown, and a line break, as escapes; cut at a character's end. "" for no token. */
void fd_token_text_read(const fd_tokenizer *tokenizer, fd_token_text *to);

/* Fills measures->texts. FD_ERR_MEMORY alone. */
fd_code fd_measures_name_tokens(const fd_tokenizer *tokenizer, fd_measures *measures, fd_error *err);

#endif

/* The texts of the tokens that measures speak of. */
#ifndef FD_COMPARE_MEASURE_TOKEN_TEXTS_H
#define FD_COMPARE_MEASURE_TOKEN_TEXTS_H

#include "compare/measure/measures.h"
#include "model/tokenizer/tokenizer.h"

/* Fills measures->texts. FD_ERR_MEMORY alone. */
fd_code fd_measures_name_tokens(const fd_tokenizer *tokenizer, fd_measures *measures, fd_error *err);

#endif

/* Tokens that end a turn. Files rarely name them by key (only one eos), so they are known by their texts, as in
 * llama.cpp; whatever type the file gives them, they are control tokens. */
#include <string.h>

#include "model/tokenizer/internal.h"

/* clang-format off */
static const char *const TEXTS[] = {
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>", "<EOT>",
    "_<EOT>", "<|return|>", "<|call|>", "<end_of_utterance>", "<\uFF5Cend\u2581of\u2581sentence\uFF5C>", "</s>",
    "<eos>", "<turn|>", "<|tool_response>", "[EOT]", "[EOS]", "[e~[", "<|flush|>", "<|calls|>",
};
/* clang-format on */
enum { N_TEXT = sizeof TEXTS / sizeof TEXTS[0] };

/* Where all of these are in the vocabulary, one text ends nothing: the message's end in formats whose turns end
 * otherwise (gpt-oss, Solar), a mark of HTML in Gemma 4. */
static const struct exception {
    const char *text, *beside[2];
    fd_token_type type;
} EXCEPTIONS[] = {
    {"<|end|>", {"<|return|>", "<|call|>"}, FD_TOKEN_USER_DEFINED},
    {"<|end|>", {"<|return|>", "<|calls|>"}, FD_TOKEN_USER_DEFINED},
    {"<|end|>", {"<|flush|>", "<|call|>"}, FD_TOKEN_USER_DEFINED},
    {"<|end|>", {"<|flush|>", "<|calls|>"}, FD_TOKEN_USER_DEFINED},
    {"</s>", {"<|tool_response>", "<|tool_response>"}, FD_TOKEN_NORMAL},
};

static int text_of(fd_string token) {
    for (int k = 0; k < N_TEXT; k++)
        if (strlen(TEXTS[k]) == token.size && memcmp(TEXTS[k], token.data, token.size) == 0) return k;
    return -1;
}

static int32_t token_of(const int32_t *tokens, const char *text) {
    return tokens[text_of((fd_string){text, strlen(text)})];
}

void fd_find_ends(fd_tokenizer *tokenizer, const fd_vocab *vocab) {
    int32_t tokens[N_TEXT];
    for (int k = 0; k < N_TEXT; k++) tokens[k] = -1;
    for (int32_t i = 0; i < vocab->n_token; i++) {
        int k = text_of(vocab->tokens[i]);
        if (k < 0) continue;
        tokens[k] = i;
        tokenizer->is_end[i] = true;
        tokenizer->types[i] = FD_TOKEN_CONTROL;
    }
    for (size_t e = 0; e < sizeof EXCEPTIONS / sizeof EXCEPTIONS[0]; e++) {
        const struct exception *x = &EXCEPTIONS[e];
        int32_t token = token_of(tokens, x->text);
        if (token < 0 || token_of(tokens, x->beside[0]) < 0 || token_of(tokens, x->beside[1]) < 0) continue;
        tokenizer->is_end[token] = false;
        tokenizer->types[token] = (uint8_t)x->type;
    }
    if (vocab->eos >= 0) tokenizer->is_end[vocab->eos] = true;
}

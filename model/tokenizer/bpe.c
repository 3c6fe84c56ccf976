/* BPE: a pre-tokeniser cuts the text into words, and inside a word neighbouring pieces join in the order of the file's
 * list of merges, from single bytes up. Where the pre-tokeniser marks spaces, as SentencePiece's vocabularies do, it is
 * from characters up, and a character that no token covers is given byte by byte.
 *
 * Elsewhere the file writes bytes as printable characters (GPT-2's table): bytes 33…126, 161…172 and 174…255 as the character of
 * that number, the other 68 in rising order as U+0100…U+0143. Here everything is turned back into bytes at creation. */
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer/internal.h"

static int byte_of_character(unsigned c) {
    if ((c >= 33 && c <= 126) || (c >= 161 && c <= 172) || (c >= 174 && c <= 255)) return (int)c;
    if (c < 256 || c > 256 + 67) return -1;
    unsigned k = c - 256; /* the k-th byte that is not printable: 0…32, then 127…160, then 173 */
    return k < 33 ? (int)k : k < 67 ? (int)(k - 33 + 127) : 173;
}

/* Bytes of a text written in that table, at most text.size; false when it holds another character. */
static bool decode(fd_string text, char *to, size_t *size) {
    *size = 0;
    for (size_t i = 0; i < text.size;) {
        const unsigned char *s = (const unsigned char *)text.data + i;
        size_t n = fd_utf8_length(text.data + i, text.size - i);
        if (n != 1 && n != 2) return false;
        int byte = byte_of_character(n == 1 ? s[0] : (s[0] & 0x1fu) << 6 | (s[1] & 0x3fu));
        if (byte < 0) return false;
        to[(*size)++] = (char)byte;
        i += n;
    }
    return true;
}

static bool marks_spaces(const fd_tokenizer *tokenizer) {
    return tokenizer->pre_flags & FD_PRE_MARKS_SPACES;
}

/* As pieces have it, at most text.size bytes; false: no piece, as no text can hold it. */
static bool piece_bytes(const fd_tokenizer *tokenizer, fd_string text, char *to, size_t *size) {
    if (!marks_spaces(tokenizer)) return decode(text, to, size);
    memcpy(to, text.data, text.size);
    *size = text.size;
    return true;
}

static size_t rule_slot(const fd_tokenizer *tokenizer, int32_t left, int32_t right) {
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t mask = tokenizer->n_rule_slot - 1;
    /* Multiplying by 2^64/golden ratio spreads neighbouring numbers over the high bits (Knuth, 6.4). */
    size_t slot = (size_t)(pair * 0x9e3779b97f4a7c15u >> 32) & mask;
    for (;; slot = (slot + 1) & mask) {
        const fd_merge_rule *rule = &tokenizer->rules[slot];
        if (rule->left < 0 || (rule->left == left && rule->right == right)) return slot;
    }
}

/* The vocabulary's pieces and the tokens' bytes. A text that is not in the byte table (most control tokens) can only be
 * met as a special token and keeps its text. */
static fd_code build_tokens(fd_tokenizer *tokenizer, const fd_vocab *vocab, int32_t *token_of_piece, fd_error *err) {
    size_t at = 0;
    for (int32_t token = 0; token < vocab->n_token; token++) {
        fd_string text = vocab->tokens[token];
        uint8_t type = tokenizer->types[token];
        size_t size;
        tokenizer->starts[token] = at;
        bool decoded = text.size > 0 && piece_bytes(tokenizer, text, tokenizer->bytes + at, &size);
        if (decoded) {
            int32_t piece;
            FD_TRY(fd_piece_map_add(&tokenizer->pieces, tokenizer->bytes + at, size, &piece, err));
            token_of_piece[piece] = token;
        }
        if (marks_spaces(tokenizer)) {
            FD_TRY(fd_marked_token_text(text, token, type, tokenizer->bytes + at, &size, err));
        } else if (!decoded || type == FD_TOKEN_CONTROL || type == FD_TOKEN_UNKNOWN || type == FD_TOKEN_USER_DEFINED) {
            size = text.size;
            if (size) memcpy(tokenizer->bytes + at, text.data, size);
        }
        at += size;
    }
    tokenizer->starts[vocab->n_token] = at;
    return FD_OK;
}

/* One line "left right" of the list. Lines that cannot be a merge of bytes are passed over, as they never apply. */
static fd_code add_rule(fd_tokenizer *tokenizer, fd_string line, int32_t rank, char *scratch, fd_error *err) {
    const char *space = line.size > 1 ? memchr(line.data + 1, ' ', line.size - 1) : NULL;
    if (!space)
        return fd_fail(err, FD_ERR_INPUT, "tokenizer.ggml.merges: item %d: found \"%.*s\", expected \"left right\"",
                       rank, (int)(line.size < 64 ? line.size : 64), line.data ? line.data : "");
    size_t left_size, right_size;
    fd_string left = {line.data, (size_t)(space - line.data)};
    fd_string right = {space + 1, line.size - left.size - 1};
    if (right.size == 0 || !piece_bytes(tokenizer, left, scratch, &left_size) ||
        !piece_bytes(tokenizer, right, scratch + left_size, &right_size))
        return FD_OK;
    fd_merge_rule rule = {.rank = rank};
    FD_TRY(fd_piece_map_add(&tokenizer->pieces, scratch, left_size, &rule.left, err));
    FD_TRY(fd_piece_map_add(&tokenizer->pieces, scratch + left_size, right_size, &rule.right, err));
    FD_TRY(fd_piece_map_add(&tokenizer->pieces, scratch, left_size + right_size, &rule.piece, err));
    fd_merge_rule *slot = &tokenizer->rules[rule_slot(tokenizer, rule.left, rule.right)];
    if (slot->left < 0) *slot = rule; /* of equal pairs the first, better one counts */
    return FD_OK;
}

static fd_code build_rules(fd_tokenizer *tokenizer, const fd_vocab *vocab, fd_error *err) {
    size_t longest = 0;
    for (int64_t i = 0; i < vocab->n_merge; i++)
        if (vocab->merges[i].size > longest) longest = vocab->merges[i].size;
    tokenizer->n_rule_slot = 64;
    while (tokenizer->n_rule_slot < 2 * (size_t)vocab->n_merge) tokenizer->n_rule_slot *= 2;
    tokenizer->rules = malloc(tokenizer->n_rule_slot * sizeof *tokenizer->rules);
    char *scratch = malloc(longest + 1);
    if (!tokenizer->rules || !scratch) {
        free(scratch);
        return fd_fail(err, FD_ERR_MEMORY, "tokenizer: no memory for %lld merges", (long long)vocab->n_merge);
    }
    memset(tokenizer->rules, 0xff, tokenizer->n_rule_slot * sizeof *tokenizer->rules); /* left = -1: empty */
    fd_code code = FD_OK;
    for (int64_t i = 0; i < vocab->n_merge && code == FD_OK; i++)
        code = add_rule(tokenizer, vocab->merges[i], (int32_t)i, scratch, err);
    free(scratch);
    return code;
}

fd_code fd_bpe_build(fd_tokenizer *tokenizer, const fd_vocab *vocab, fd_error *err) {
    if (vocab->n_merge < 0 || vocab->n_merge > INT32_MAX / 8)
        return fd_fail(err, FD_ERR_INPUT, "tokenizer.ggml.merges: found %lld items, expected 0 to %d",
                       (long long)vocab->n_merge, INT32_MAX / 8);
    const char *pre = tokenizer->kind->pre          ? tokenizer->kind->pre
                      : vocab->pre && vocab->pre[0] ? vocab->pre
                                                    : "default";
    FD_TRY(fd_pre_new(pre, &tokenizer->pre, err));
    tokenizer->pre_flags = fd_pre_flags(pre);
    /* Pieces: at most one a token, three a merge and the 256 bytes; those that are no token stay -1. */
    size_t most = (size_t)vocab->n_token + 3 * (size_t)vocab->n_merge + 256;
    tokenizer->token_of_piece = malloc(most * sizeof *tokenizer->token_of_piece);
    if (!tokenizer->token_of_piece) return fd_fail(err, FD_ERR_MEMORY, "tokenizer: no memory for %zu pieces", most);
    memset(tokenizer->token_of_piece, 0xff, most * sizeof *tokenizer->token_of_piece);
    FD_TRY(build_tokens(tokenizer, vocab, tokenizer->token_of_piece, err));
    if (marks_spaces(tokenizer)) fd_list_byte_tokens(tokenizer);
    for (int byte = 0; byte < 256 && !marks_spaces(tokenizer); byte++) {
        char raw = (char)byte;
        int32_t piece;
        FD_TRY(fd_piece_map_add(&tokenizer->pieces, &raw, 1, &piece, err));
        tokenizer->token_of_byte[byte] = tokenizer->token_of_piece[piece];
    }
    return build_rules(tokenizer, vocab, err);
}

static bool bpe_pair(const void *user, const fd_merge_symbol *left, const fd_merge_symbol *right, double *key,
                     int32_t *piece) {
    const fd_tokenizer *tokenizer = user;
    const fd_merge_rule *rule = &tokenizer->rules[rule_slot(tokenizer, left->piece, right->piece)];
    if (rule->left < 0) return false;
    *key = rule->rank;
    *piece = rule->piece;
    return true;
}

static fd_code encode_word(const fd_tokenizer *tokenizer, const char *word, size_t size, fd_merge *merge, fd_ids *ids,
                           fd_error *err) {
    if (tokenizer->pre_flags &
        (word[0] == '\n' ? FD_PRE_IGNORES_MERGES | FD_PRE_WHOLE_NEWLINES : FD_PRE_IGNORES_MERGES)) {
        int32_t piece = fd_piece_map_find(&tokenizer->pieces, word, size);
        if (piece >= 0 && tokenizer->token_of_piece[piece] >= 0)
            return fd_ids_push(ids, tokenizer->token_of_piece[piece], err);
    }
    fd_merge_clear(merge);
    for (size_t i = 0, n; i < size; i += n) {
        n = marks_spaces(tokenizer) ? fd_utf8_length(word + i, size - i) : 1;
        if (n == 0) n = 1; /* a byte that is no UTF-8 */
        FD_TRY(fd_merge_push(merge, i, n, fd_piece_map_find(&tokenizer->pieces, word + i, n), err));
    }
    FD_TRY(fd_merge_run(merge, bpe_pair, tokenizer, err));
    for (int32_t i = size ? 0 : -1; i >= 0; i = merge->symbols[i].right) {
        const fd_merge_symbol *symbol = &merge->symbols[i];
        int32_t token = symbol->piece >= 0 ? tokenizer->token_of_piece[symbol->piece] : -1;
        if (token >= 0)
            FD_TRY(fd_ids_push(ids, token, err));
        else
            FD_TRY(fd_push_bytes(tokenizer, word + symbol->start, symbol->size, ids, err));
    }
    return FD_OK;
}

fd_code fd_bpe_encode(const fd_tokenizer *tokenizer, const char *text, size_t size, bool after_special, fd_merge *merge,
                      fd_ids *ids, fd_error *err) {
    (void)after_special;
    char *marked = NULL;
    if (marks_spaces(tokenizer)) FD_TRY(fd_mark_spaces(text, size, false, &marked, &size, err));
    if (marked) text = marked;
    size_t *ends = NULL, n_piece = 0, start = 0;
    fd_code code = fd_pre_split(tokenizer->pre, text, size, &ends, &n_piece, err);
    for (size_t i = 0; i < n_piece && code == FD_OK; start = ends[i++])
        code = encode_word(tokenizer, text + start, ends[i] - start, merge, ids, err);
    free(ends);
    free(marked);
    return code;
}

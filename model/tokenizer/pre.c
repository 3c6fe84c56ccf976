#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/tokenizer/pre.h"

#include <pcre2.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_REGEX = 6 };

/* clang-format off */
/* White space as Unicode has it, for use inside a class. Not \s: PCRE2 also counts U+180E, which left White_Space with
 * Unicode 6.3 and which the tokenizers' own engines do not count. */
#define WS "\\t-\\r \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
/* All but the last of a run of white space before a word; the last goes with the word (" ?\p{L}+") or stands alone. */
#define WS_TAIL "[" WS "]+(?![^" WS "])|[" WS "]+"
#define RUN_OF(n) "[" WS "]{" n "}(?![^" WS "])"

/* The expressions are those of the models' own tokenizer files (pre_tokenizer), as llama.cpp names them. */
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" WS "\\p{L}\\p{N}]+|" WS_TAIL
#define CONTRACTED "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
#define CL100K(digits)                                                                                                 \
    CONTRACTED "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits                                                                   \
    "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n]*|[" WS "]*[\\r\\n]+|" WS_TAIL
/* A word in capitals, or none, then small letters; letters without case count as both. */
#define NO_SMALL "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define NO_CAPITAL "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(after)                                                                                                   \
    "[^\\r\\n\\p{L}\\p{N}]?" NO_SMALL "*" NO_CAPITAL "+" after                                                         \
    "|[^\\r\\n\\p{L}\\p{N}]?" NO_SMALL "+" NO_CAPITAL "*" after
#define CASED_WORDS(after, digits)                                                                                     \
    CASED(after) "|" digits "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n/]*|[" WS "]*[\\r\\n]+|" WS_TAIL
#define CONTRACTION "(?:" CONTRACTED ")?"
/* The same of letters that are not Chinese characters. */
#define CASED_NO_HAN                                                                                                   \
    "[^\\r\\n\\p{L}\\p{N}]?(?:(?!\\p{Han})" NO_SMALL ")*(?:(?!\\p{Han})" NO_CAPITAL ")+" CONTRACTION                      \
    "|[^\\r\\n\\p{L}\\p{N}]?(?:(?!\\p{Han})" NO_SMALL ")+(?:(?!\\p{Han})" NO_CAPITAL ")*" CONTRACTION
/* All up to white space or the sentence's punctuation: | . , ! ? ( ) … 。 ， 、 । ۔ ، */
#define BLOOM " ?[^(" WS "|.,!?\\x{2026}\\x{3002}\\x{FF0C}\\x{3001}\\x{964}\\x{6D4}\\x{60C})]+"
#define CJK "[\\x{4E00}-\\x{9FA5}\\x{800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+"

/* deepseek-llm lists its letters: cased ones, but not the class \p{L&} of any Unicode version. */
#define DEEPSEEK_LETTERS                                                                                               \
    "A-Za-z\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}\\x{1C4}-\\x{293}"                    \
    "\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37B}-\\x{37D}\\x{37F}\\x{386}\\x{388}-\\x{38A}\\x{38C}"     \
    "\\x{38E}-\\x{3A1}\\x{3A3}-\\x{3F5}\\x{3F7}-\\x{481}\\x{48A}-\\x{52F}\\x{531}-\\x{556}\\x{10A0}-\\x{10C5}"         \
    "\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{1CBF}\\x{1D00}-\\x{1D2B}"                  \
    "\\x{1D6B}-\\x{1D77}\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}"                  \
    "\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}\\x{1F59}\\x{1F5B}\\x{1F5D}\\x{1F5F}-\\x{1F7D}\\x{1F80}-\\x{1FB4}"          \
    "\\x{1FB6}-\\x{1FBC}\\x{1FBE}\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}\\x{1FD0}-\\x{1FD3}\\x{1FD6}-\\x{1FDB}"         \
    "\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}\\x{2102}\\x{2107}\\x{210A}-\\x{2113}\\x{2115}"          \
    "\\x{2119}-\\x{211D}\\x{2124}\\x{2126}\\x{2128}\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}\\x{2139}"                    \
    "\\x{213C}-\\x{213F}\\x{2145}-\\x{2149}\\x{214E}\\x{2183}\\x{2184}\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}"          \
    "\\x{2CEB}-\\x{2CEE}\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}"                   \
    "\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}\\x{FB13}-\\x{FB17}"                  \
    "\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}\\x{104B0}-\\x{104D3}\\x{104D8}-\\x{104FB}"            \
    "\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}\\x{118A0}-\\x{118DF}\\x{1E900}-\\x{1E943}"

static const struct pre_row {
    const char *names; /* separated by spaces, one space before and after each */
    bool ignores_merges, adds_bos;
    const char *regex[MAX_REGEX + 1];
} PRE_ROWS[] = {
    {" gpt-2 phi-2 mpt olmo jais roberta-bpe exaone4 trillion "
     "granite-docling gigachat a.x-4.0 mellum modern-bert ", false, false, {GPT2}},
    {" llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 ", true, true, {CL100K("\\p{N}{1,3}")}},
    {" dbrx smaug-bpe chatglm-bpe glm4 ", false, false, {CL100K("\\p{N}{1,3}")}},
    {" qwen2 stablelm2 megrez deepseek-r1-qwen hunyuan kormo solar-open grok-2 ", false, false, {CL100K("\\p{N}")}},
    {" starcoder refact command-r smollm codeshell exaone minerva-7b ", false, false, {"\\p{N}", GPT2}},
    {" deepseek-coder ", false, false,
     {"[\\r\\n]", "[" WS "]?\\p{L}+", "[" WS "]?\\p{P}+", CJK, "\\p{N}"}},
    {" deepseek-llm ", false, false,
     {"[\\r\\n]", "[" WS "]?[" DEEPSEEK_LETTERS "]+",
      "[" WS "]?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3000}-\\x{3002}]+", "[" WS "]+$",
      CJK, "\\p{N}+"}},
    {" deepseek-v3 hunyuan-dense joyai-llm ", false, false,
     {"\\p{N}{1,3}", "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{30FF}]+",
      "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
      "| ?[\\p{P}\\p{S}]+[\\r\\n]*|[" WS "]*[\\r\\n]+|" WS_TAIL}},
    {" gpt-4o llama4 kanana2 minimax-m2 ", false, false, {CASED_WORDS(CONTRACTION, "\\p{N}{1,3}")}},
    {" tekken ", true, false, {CASED_WORDS("", "\\p{N}")}},
    {" bloom poro-chat gpt3-finnish ", false, false, {BLOOM}},
    {" viking ", false, false, {BLOOM, "\\p{N}"}},
    {" seed-coder ", false, false,
     {CONTRACTED "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
      "| ?[^" WS "\\p{L}\\p{N}\\r\\n]+|[" WS "]*[\\r\\n]+|" WS_TAIL}},
    {" bailingmoe bailingmoe2 llada-moe ", false, false,
     {"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
      "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n]*|[" WS "]*[\\r\\n]|" WS_TAIL}},
    {" qwen35 ", false, false,
     {CONTRACTED "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
      "| ?[^" WS "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|[" WS "]*[\\r\\n]+|" WS_TAIL}},
    {" exaone-moe ", false, false,
     {CONTRACTED "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}"
      "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n/]?|[" WS "]*[\\r\\n]|" WS_TAIL}},
    {" jais-2 ", false, false, /* runs of white space are cut into powers of two */
     {CONTRACTED "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
      "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n]*|[" WS "]*[\\r\\n]+"
      "|" RUN_OF("512") "|" RUN_OF("256") "|" RUN_OF("128") "|" RUN_OF("64") "|" RUN_OF("32") "|" RUN_OF("16")
      "|" RUN_OF("8") "|" RUN_OF("4") "|" RUN_OF("1,2") "|[" WS "]"}},
    {" kimi-k2 ", false, false,
     {"\\p{Han}+|" CASED_NO_HAN "|\\p{N}{1,3}"
      "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n]*|[" WS "]*[\\r\\n]+|" WS_TAIL}},
    {" glm5 ", true, false, {CL100K("\\p{N}{1,3}")}},
    {" falcon ", false, false, {"[\\p{P}$+<=>^~|`]+", GPT2, "[0-9][0-9][0-9]"}},
    {" default ", false, false, {"[\\p{P}$+<=>^~|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
};
/* clang-format on */
enum { N_PRE_ROW = sizeof PRE_ROWS / sizeof PRE_ROWS[0] };

struct fd_pre {
    const struct pre_row *row;
    pcre2_code *code[MAX_REGEX];
    int n_regex;
};

static const struct pre_row *find_row(const char *name) {
    char padded[66];
    int n = snprintf(padded, sizeof padded, " %s ", name);
    if (n <= 2 || n >= (int)sizeof padded || strchr(name, ' ')) return NULL;
    for (size_t i = 0; i < N_PRE_ROW; i++)
        if (strstr(PRE_ROWS[i].names, padded)) return &PRE_ROWS[i];
    return NULL;
}

bool fd_pre_adds_bos(const char *name) {
    const struct pre_row *row = find_row(name);
    return row && row->adds_bos;
}

bool fd_pre_ignores_merges(const fd_pre *pre) {
    return pre->row->ignores_merges;
}

void fd_pre_free(fd_pre *pre) {
    if (!pre) return;
    for (int i = 0; i < pre->n_regex; i++) pcre2_code_free(pre->code[i]);
    free(pre);
}

fd_code fd_pre_new(const char *name, fd_pre **out, fd_error *err) {
    *out = NULL;
    const struct pre_row *row = find_row(name);
    if (!row) {
        char known[1200] = "";
        for (size_t i = 0, at = 0; i < N_PRE_ROW; i++)
            at += (size_t)snprintf(known + at, sizeof known - at, "%s", PRE_ROWS[i].names + (i > 0));
        return fd_fail(err, FD_ERR_UNSUPPORTED, "tokenizer.ggml.pre: found \"%.64s\", expected one of%s", name, known);
    }
    fd_pre *pre = calloc(1, sizeof *pre);
    if (!pre) return fd_fail(err, FD_ERR_MEMORY, "pre-tokeniser %s: no memory", name);
    pre->row = row;
    for (; row->regex[pre->n_regex]; pre->n_regex++) {
        int code = 0;
        PCRE2_SIZE at = 0;
        pcre2_code *regex = pcre2_compile((PCRE2_SPTR)row->regex[pre->n_regex], PCRE2_ZERO_TERMINATED,
                                          PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY, &code, &at, NULL);
        if (!regex) {
            char text[128] = "";
            pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof text);
            fd_pre_free(pre);
            return fd_fail(err, FD_ERR_UNSUPPORTED, "pre-tokeniser %s: PCRE2 refuses its expression at %zu: %s", name,
                           at, text);
        }
        pcre2_jit_compile(regex,
                          PCRE2_JIT_COMPLETE); /* where there is no JIT, the interpreter gives the same matches */
        pre->code[pre->n_regex] = regex;
    }
    *out = pre;
    return FD_OK;
}

size_t fd_utf8_length(const char *data, size_t size) {
    const unsigned char *s = (const unsigned char *)data;
    if (s[0] < 0x80) return 1;
    size_t n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || size < n) return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if (s[0] == 0xe0 && s[1] < 0xa0) return 0; /* overlong                */
    if (s[0] == 0xed && s[1] > 0x9f) return 0; /* surrogates              */
    if (s[0] == 0xf0 && s[1] < 0x90) return 0; /* overlong                */
    if (s[0] == 0xf4 && s[1] > 0x8f) return 0; /* past U+10FFFF           */
    return n;
}

typedef struct ends_list {
    size_t *data;
    size_t n, capacity;
} ends_list;

static bool push_end(ends_list *list, size_t end) {
    if (list->n == list->capacity) {
        size_t capacity = 2 * list->capacity + 64;
        size_t *data = realloc(list->data, capacity * sizeof *data);
        if (!data) return false;
        list->data = data;
        list->capacity = capacity;
    }
    list->data[list->n++] = end;
    return true;
}

/* Cuts [start, end) into matches and what lies between them. Each piece is a subject of its own: a look-ahead does not
 * see past it. */
static fd_code split_piece(const pcre2_code *code, pcre2_match_data *match, pcre2_match_context *context,
                           const char *text, size_t start, size_t end, ends_list *to, fd_error *err) {
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(match);
    size_t size = end - start, done = 0;
    while (done < size) {
        int found = pcre2_match(code, (PCRE2_SPTR)(text + start), size, done, PCRE2_NO_UTF_CHECK, match, context);
        if (found == PCRE2_ERROR_NOMATCH) break;
        if (found < 0) {
            char message[128] = "";
            pcre2_get_error_message(found, (PCRE2_UCHAR *)message, sizeof message);
            return fd_fail(err, FD_ERR_INPUT, "text at byte %zu: pre-tokeniser: %s", start + done, message);
        }
        if (span[0] > done && !push_end(to, start + span[0])) goto no_memory;
        if (!push_end(to, start + span[1])) goto no_memory; /* no expression matches the empty string */
        done = span[1];
    }
    if (done == size || push_end(to, end)) return FD_OK;
no_memory:
    return fd_fail(err, FD_ERR_MEMORY, "pre-tokeniser: no memory for %zu pieces", to->n);
}

/* `text` is valid UTF-8. */
static fd_code split_valid(const fd_pre *pre, const char *text, size_t size, ends_list *list, fd_error *err) {
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    pcre2_jit_stack *stack = pcre2_jit_stack_create(32 << 10, 16 << 20, NULL); /* grows as a long piece needs it */
    fd_code code = FD_OK;
    if (!match || !context || !stack || (size && !push_end(list, size)))
        code = fd_fail(err, FD_ERR_MEMORY, "pre-tokeniser: no memory to match %zu bytes", size);
    else
        pcre2_jit_stack_assign(context, NULL, stack);
    for (int r = 0; r < pre->n_regex && code == FD_OK; r++) {
        ends_list next = {0};
        size_t start = 0;
        for (size_t i = 0; i < list->n && code == FD_OK; start = list->data[i++])
            code = split_piece(pre->code[r], match, context, text, start, list->data[i], &next, err);
        free(list->data);
        *list = next;
    }
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(match);
    return code;
}

fd_code fd_pre_split(const fd_pre *pre, const char *text, size_t size, size_t **ends, size_t *n_piece, fd_error *err) {
    *ends = NULL;
    *n_piece = 0;
    size_t n_bad = 0;
    for (size_t i = 0, n; i < size; i += n ? n : 1) n_bad += !(n = fd_utf8_length(text + i, size - i));
    char *stand_in = NULL; /* the text with U+FFFD, three bytes, for each bad byte */
    if (n_bad) {
        stand_in = malloc(size + 2 * n_bad);
        if (!stand_in) return fd_fail(err, FD_ERR_MEMORY, "pre-tokeniser: no memory for %zu bytes", size + 2 * n_bad);
        for (size_t i = 0, to = 0, n; i < size; i += n ? n : 1, to += n ? n : 3) {
            n = fd_utf8_length(text + i, size - i);
            memcpy(stand_in + to, n ? text + i : "\xEF\xBF\xBD", n ? n : 3);
        }
    }
    ends_list list = {0};
    fd_code code = split_valid(pre, n_bad ? stand_in : text, size + 2 * n_bad, &list, err);
    free(stand_in);
    if (code == FD_OK && !list.data && !push_end(&list, 0))
        code = fd_fail(err, FD_ERR_MEMORY, "pre-tokeniser: no memory");
    if (code != FD_OK) {
        free(list.data);
        return code;
    }
    if (size == 0) list.n = 0;
    /* Back to offsets in the text itself: pieces end between characters, in both. */
    for (size_t i = 0, at = 0, piece = 0, n; n_bad && i < size; i += n ? n : 1) {
        n = fd_utf8_length(text + i, size - i);
        at += n ? n : 3;
        if (list.data[piece] == at) list.data[piece++] = i + (n ? n : 1);
    }
    *ends = list.data;
    *n_piece = list.n;
    return FD_OK;
}

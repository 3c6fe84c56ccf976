#include "model/tokenizer/pre_table.h"

#include <stdio.h>
#include <string.h>

#include "model/tokenizer/pre.h"

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
/* deepseek-v3's words: one sign of ASCII before Latin letters, or one character that is no sign before any letters. */
#define SIGNED_WORDS                                                                                                   \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"                     \
    "| ?[\\p{P}\\p{S}]+[\\r\\n]*|[" WS "]*[\\r\\n]+|" WS_TAIL
/* Numbers in threes counted from the right, as numbers are written; only a number's first group looks ahead, so that
 * long ones take linear time. tiny_aya: unless more of a word follows. superbpe: what is left of a number stays with what
 * stands before it. afmoe: a number's first group stays with all the text before it, as llama.cpp has it. */
#define TINY_AYA_THREES                                                                                                \
    "(?<!\\d)\\d{1,3}(?=(?:\\d{3})*+(?![\\p{L}\\p{M}\\p{N}\\p{Pc}]))|\\G(?<=\\d)\\d{3}"
#define SUPERBPE_THREES "\\G(?<=\\d)\\d{3}|\\d{3}(?=(?:\\d{3})*+(?!\\d))"
#define AFMOE_THREES "\\P{N}*+(?:(?<!\\p{N})\\p{N}{1,2}(?=(?:\\p{N}{3})*+(?!\\p{N}))|\\p{N}{3}|\\z)"
/* afmoe: scripts that put no spaces between words. That all from U+4E00 to U+FAFF counts as such is llama.cpp's: its
 * range of compatibility ideographs begins with U+8C48, to which U+F900 is normalised. */
#define UNSPACED                                                                                                       \
    "[\\x{4E00}-\\x{FAFF}\\x{3400}-\\x{4DBF}\\x{3040}-\\x{30FF}\\x{FF65}-\\x{FF9F}\\x{2F00}-\\x{2FDF}"                     \
    "\\x{E40}-\\x{EFF}\\x{1780}-\\x{17FF}\\x{1000}-\\x{109F}\\x{1100}-\\x{11FF}]+"
#define YOUTU_SCRIPTS                                                                                                  \
    "[\\x{AC00}-\\x{D7A3}\\x{3131}-\\x{318E}]+|[\\x{FF01}\\x{2026}\\x{201C}\\x{201D}\\x{2018}\\x{2019}\\x{2014}"         \
    "\\x{FF1A}\\x{FF1B}\\x{FF0C}\\x{3001}-\\x{303F}\\x{FE30}-\\x{FE4F}]+|[\\x{3105}-\\x{312F}]+"                           \
    "|[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{30FF}]+"
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

static const fd_pre_row ROWS[] = {
    {" gpt-2 phi-2 mpt olmo jais roberta-bpe exaone4 trillion "
     "granite-docling gigachat a.x-4.0 mellum modern-bert ", 0, {GPT2}},
    {" llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 ", FD_PRE_IGNORES_MERGES | FD_PRE_ADDS_BOS, {CL100K("\\p{N}{1,3}")}},
    {" dbrx smaug-bpe chatglm-bpe ", 0, {CL100K("\\p{N}{1,3}")}},
    {" qwen2 stablelm2 megrez deepseek-r1-qwen hunyuan kormo solar-open grok-2 f2llmv2 ", 0, {CL100K("\\p{N}")}},
    {" starcoder refact command-r smollm codeshell exaone minerva-7b mellum2 ", 0, {"\\p{N}", GPT2}},
    {" deepseek-coder ", 0,
     {"[\\r\\n]", "[" WS "]?\\p{L}+", "[" WS "]?\\p{P}+", CJK, "\\p{N}"}},
    {" deepseek-llm ", 0,
     {"[\\r\\n]", "[" WS "]?[" DEEPSEEK_LETTERS "]+",
      "[" WS "]?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3000}-\\x{3002}]+", "[" WS "]+$",
      CJK, "\\p{N}+"}},
    {" deepseek-v3 hunyuan-dense joyai-llm ", 0,
     {"\\p{N}{1,3}", "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{30FF}]+",
      SIGNED_WORDS}},
    {" gpt-4o llama4 kanana2 minimax-m2 ", 0, {CASED_WORDS(CONTRACTION, "\\p{N}{1,3}")}},
    {" tekken ", FD_PRE_IGNORES_MERGES | FD_PRE_ADDS_BOS, {CASED_WORDS("", "\\p{N}")}},
    {" bloom poro-chat gpt3-finnish ", 0, {BLOOM}},
    {" viking ", 0, {BLOOM, "\\p{N}"}},
    {" seed-coder ", 0,
     {CONTRACTED "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
      "| ?[^" WS "\\p{L}\\p{N}\\r\\n]+|[" WS "]*[\\r\\n]+|" WS_TAIL}},
    {" bailingmoe bailingmoe2 llada-moe ", 0,
     {"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
      "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n]*|[" WS "]*[\\r\\n]|" WS_TAIL}},
    {" qwen35 ", 0,
     {CONTRACTED "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
      "| ?[^" WS "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|[" WS "]*[\\r\\n]+|" WS_TAIL}},
    {" exaone-moe ", 0,
     {CONTRACTED "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}"
      "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n/]?|[" WS "]*[\\r\\n]|" WS_TAIL}},
    {" jais-2 ", 0, /* runs of white space are cut into powers of two */
     {CONTRACTED "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
      "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n]*|[" WS "]*[\\r\\n]+"
      "|" RUN_OF("512") "|" RUN_OF("256") "|" RUN_OF("128") "|" RUN_OF("64") "|" RUN_OF("32") "|" RUN_OF("16")
      "|" RUN_OF("8") "|" RUN_OF("4") "|" RUN_OF("1,2") "|[" WS "]"}},
    {" kimi-k2 ", 0,
     {"\\p{Han}+|" CASED_NO_HAN "|\\p{N}{1,3}"
      "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n]*|[" WS "]*[\\r\\n]+|" WS_TAIL}},
    {" glm4 glm5 ", FD_PRE_IGNORES_MERGES, {CL100K("\\p{N}{1,3}")}},
    {" minicpm5 ", FD_PRE_IGNORES_MERGES, {"\\p{N}{1,3}", CL100K("\\p{N}+")}},
    {" ufakzeka ", 0,
     {"[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n]*|[" WS "]*[\\r\\n]+|" WS_TAIL}},
    {" youtu ", FD_PRE_IGNORES_MERGES, {YOUTU_SCRIPTS, CASED_WORDS(CONTRACTION, "\\p{N}")}},
    {" tiny_aya ", 0, {TINY_AYA_THREES, CASED_WORDS(CONTRACTION, "\\p{N}{1,3}")}},
    {" superbpe ", 0, {"\\p{N}+", SUPERBPE_THREES}},
    {" afmoe ", 0, {AFMOE_THREES, UNSPACED, SIGNED_WORDS}},
    {" gemma4 ", FD_PRE_MARKS_SPACES | FD_PRE_WHOLE_NEWLINES | FD_PRE_ALWAYS_ADDS_BOS, {"\\n+"}},
    {" sarvam-moe ", FD_PRE_MARKS_SPACES, {"\\n+"}},
    {" falcon ", 0, {"[\\p{P}$+<=>^~|`]+", GPT2, "[0-9][0-9][0-9]"}},
    {" default ", 0, {"[\\p{P}$+<=>^~|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
};
/* clang-format on */
enum { N_ROW = sizeof ROWS / sizeof ROWS[0] };

static const fd_pre_row *find_row(const char *name) {
    char padded[66];
    int n = snprintf(padded, sizeof padded, " %s ", name);
    if (n <= 2 || n >= (int)sizeof padded || strchr(name, ' ')) return NULL;
    for (size_t i = 0; i < N_ROW; i++)
        if (strstr(ROWS[i].names, padded)) return &ROWS[i];
    return NULL;
}

unsigned fd_pre_flags(const char *name) {
    const fd_pre_row *row = find_row(name);
    return row ? row->flags : 0;
}

fd_code fd_pre_row_of(const char *name, const fd_pre_row **row, fd_error *err) {
    *row = find_row(name);
    if (*row) return FD_OK;
    char known[1200] = "";
    for (size_t i = 0, at = 0; i < N_ROW; i++)
        at += (size_t)snprintf(known + at, sizeof known - at, "%s", ROWS[i].names + (i > 0));
    return fd_fail(err, FD_ERR_UNSUPPORTED, "tokenizer.ggml.pre: found \"%.64s\", expected one of%s", name, known);
}

/* Pickles as torch.save writes them, byte by byte: what they hold, and what is refused. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "dumpers/import/pickle.h"

#define TEXT(LENGTH, WORD) "X" LENGTH "\0\0\0" WORD
/* 2 × 2 elements, in rows of 3, from element 1 on of the float storage KEY */
#define TENSOR_OF(STORAGE, KEY, SIZE)                                                                                  \
    "ctorch._utils\n_rebuild_tensor_v2\n((" TEXT("\7", "storage") "ctorch\n" STORAGE "\n" TEXT("\1", KEY)              \
        TEXT("\3", "cpu") "K\6tQ"                                                                                      \
                          "K\1" SIZE "K\2\x86"                                                                         \
                          "K\3"                                                                                        \
                          "K\1\x86"                                                                                    \
                          "\x89"                                                                                       \
                          "ccollections\nOrderedDict\n)RtR"
#define TENSOR(KEY) TENSOR_OF("FloatStorage", KEY, "K\2")

typedef struct sample {
    const char *bytes;
    size_t size;
    const char *said; /* the names, in order; or what is wrong */
} sample;
#define SAMPLE(BYTES, SAID)                                                                                            \
    { "\x80\2" BYTES, sizeof("\x80\2" BYTES) - 1, SAID }

static fd_code parse(const sample *s, fd_pickle *out, fd_error *err) {
    char *exact = malloc(s->size); /* so that a sanitizer sees what is read beyond it */
    cr_assert(exact);
    memcpy(exact, s->bytes, s->size);
    fd_code code = fd_pickle_parse("x.pt", exact, s->size, out, err);
    free(exact);
    return code;
}

Test(pickle, tensors_are_named_by_their_way_through_lists_and_dictionaries) {
    static const sample samples[] = {
        SAMPLE(TENSOR("0") ".", "|"),
        SAMPLE("}(" TEXT("\1", "a") TENSOR("0") TEXT("\1", "t") "(" TENSOR("1") "Ntu.", "/a|/t.0|"),
        SAMPLE("}q\1" TEXT("\1", "a") "}" TEXT("\1", "b") TENSOR("0") "ss.", "/a.b|"),
        SAMPLE("}(" TEXT("\5", "value") TENSOR("0") TEXT("\4", "meta") "}u.", "|"),
        SAMPLE("}(K\7" TENSOR("0") "q\1" TEXT("\1", "b") "h\1u.", "/7|/b|"),
        SAMPLE("(" TENSOR("0") "N" TENSOR("1") "t.", ".0|.2|"),
        SAMPLE("ctorch._utils\n_rebuild_parameter\n(" TENSOR("0") "\x88NtR.", "|"),
        SAMPLE("cmy.module\nOutput\n)R(" TEXT("\1", "h") TENSOR("0") "u}b.",
               "/h|"), /* a class of one's own that is a dictionary */
        SAMPLE("](cos\nsystem\n" TEXT("\4", "true") "\x85R" TENSOR("0") "e.", ".1|"), /* which nobody calls */
    };
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        fd_pickle found;
        fd_error err = {0};
        char names[128] = "";
        cr_assert_eq(parse(&samples[i], &found, &err), FD_OK, "%zu: %s", i, err.message);
        for (size_t k = 0; k < found.n; k++) {
            const fd_pickle_tensor *t = &found.items[k];
            strcat(strcat(names, t->name), "|");
            cr_expect(t->type == FD_ARRAY_F32 && t->rank == 2 && t->offset == 1, "%zu", i);
            cr_expect(t->shape[0] == 2 && t->shape[1] == 2 && t->stride[0] == 3 && t->stride[1] == 1, "%zu", i);
            cr_expect(strcmp(t->storage, "0") == 0 || strcmp(t->storage, "1") == 0, "%s", t->storage);
        }
        cr_expect_str_eq(names, samples[i].said, "%zu", i);
        fd_pickle_free(&found);
    }
}

Test(pickle, what_is_no_tensor_or_no_pickle_is_refused) {
    static const sample samples[] = {
        SAMPLE("", "ends inside"),
        SAMPLE(TENSOR("0"), "ends inside"),
        SAMPLE("X\xff\xff\xff\x7f"
               "ab.",
               "ends inside"),
        SAMPLE("X\1\0", "ends inside"),
        SAMPLE("cos\nsystem", "ends inside"),
        SAMPLE("R.", "empty stack"),
        SAMPLE("Q.", "empty stack"),
        SAMPLE("t.", "empty stack"),
        SAMPLE("\x87.", "empty stack"),
        SAMPLE("Na.", "empty stack"),
        SAMPLE("}(Nu.", "a key without a value"),
        SAMPLE("h\5.", "never put away"),
        SAMPLE("Nr\xff\xff\xff\xff.", "too large"),
        SAMPLE("\xff.", "opcode that torch.save does not write"),
        SAMPLE("i.", "opcode that torch.save does not write"), /* INST, which would call */
        SAMPLE("NN.", "no single object"),
        SAMPLE("N.", "no tensor"),
        SAMPLE("cos\nsystem\n" TEXT("\4", "true") "\x85R.", "no tensor"),
        SAMPLE(TENSOR_OF("ComplexFloatStorage", "0", "K\2") ".", "no tensor"),
        SAMPLE(TENSOR_OF("FloatStorage", "0", "J\xff\xff\xff\xff") ".", "make no sense"),
        SAMPLE("]q\1h\1a.", "hold each other"),
    };
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        fd_pickle found;
        fd_error err = {0};
        cr_expect_eq(parse(&samples[i], &found, &err), FD_ERR_INPUT, "%zu", i);
        cr_expect(strstr(err.message, samples[i].said) && strstr(err.message, "x.pt"), "%zu: %s", i, err.message);
    }
}

/* Fifteen lists, each of which holds the one before twice: 32,768 ways to one tensor. */
Test(pickle, few_bytes_do_not_become_much_memory) {
    const size_t size = 40000; /* each byte an empty list, which takes 64 in memory */
    uint8_t *data = malloc(size);
    memset(data, ']', size);
    data[0] = 0x80;
    data[1] = 2;
    fd_pickle pickle;
    fd_error err = {0};
    cr_assert_eq(fd_limit_set("tensors=1000", &err), FD_OK);
    cr_expect_eq(fd_pickle_parse("x.pt", data, size, &pickle, &err), FD_ERR_INPUT);
    cr_expect(strstr(err.message, "--limit tensors"), "%s", err.message);
    free(data);
}

Test(pickle, few_bytes_do_not_become_many_tensors) {
    uint8_t bytes[512];
    const char tensor[] = "\x80\2" TENSOR("0");
    size_t n = sizeof tensor - 1;
    memcpy(bytes, tensor, n);
    for (uint8_t i = 0; i < 15; i++) {
        const uint8_t twice[] = {'q', i, '0', ']', '(', 'h', i, 'h', i, 'e'};
        memcpy(bytes + n, twice, sizeof twice);
        n += sizeof twice;
    }
    bytes[n++] = '.';
    fd_pickle found;
    fd_error err = {0};
    cr_expect_eq(fd_pickle_parse("x.pt", bytes, n, &found, &err), FD_ERR_INPUT);
    cr_expect(strstr(err.message, "hold each other"), "%s", err.message);
}

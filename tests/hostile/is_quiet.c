/* is_quiet FILE…: status 1 and the place when one of them has something that a terminal would obey. */
#include <stdio.h>
#include <stdlib.h>

#include "quiet.h"

int main(int argc, char **argv) {
    static char text[1 << 22];
    int loud = 0;
    for (int i = 1; i < argc; i++) {
        FILE *f = fopen(argv[i], "rb");
        if (!f) return 2;
        size_t n = fread(text, 1, sizeof text, f);
        fclose(f);
        const char *at = first_obeyed(text, n);
        if (!at) continue;
        printf("%s: byte %zu is 0x%02x\n", argv[i], (size_t)(at - text), (unsigned char)*at);
        loud = 1;
    }
    return loud;
}

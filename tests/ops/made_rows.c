#include "tests/ops/made_rows.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* "with:a,b" asks for weights, anything else is a key. */
static void take_option(made_row *row, char *option) {
    bool with = strncmp(option, "with:", 5) == 0;
    char *to = with ? row->with : row->keys, *from = with ? option + 5 : option;
    for (char *at = from; with && *at; at++)
        if (*at == ',') *at = ' ';
    strcat(strcat(to, *to ? " " : ""), from);
}

int made_rows_read(made_row rows[MADE_MAX_ROWS]) {
    FILE *file = fopen(FD_SOURCE_DIR "/tests/ops/made_models.txt", "r");
    char line[1024], *word, *rest;
    int n = 0;
    while (file && n >= 0 && fgets(line, sizeof line, file)) {
        int at = 0;
        if (line[0] == '#') continue;
        made_row row = {.limit = NAN};
        if (n == MADE_MAX_ROWS ||
            sscanf(line, "%31s %15s %lf %x %n", row.arch, row.type, &row.limit, &row.crc, &at) != 4) {
            n = -1;
            break;
        }
        for (word = strtok_r(line + at, " \n", &rest); word; word = strtok_r(NULL, " \n", &rest))
            take_option(&row, word);
        rows[n++] = row;
    }
    if (file) fclose(file);
    return file ? n : -1;
}

fd_code made_row_describe(const made_row *row, fd_made_model *out, fd_error *err) {
    int dtype = fd_dtype_parse(row->type);
    *out = (fd_made_model){
        .arch = row->arch, .seed = MADE_SEED, .dtype = (uint32_t)dtype, .keys = {row->keys}, .with = row->with};
    if (dtype >= 0 && fd_can_make((uint32_t)dtype)) return FD_OK;
    return fd_fail(err, FD_ERR_INPUT, "made_models.txt: type \"%s\" cannot be made", row->type);
}

/* Between map_parse.c (lines), map_words.c (the words that name operations) and map_ops.c (what they do). */
#ifndef FD_DUMPERS_IMPORT_MAP_INTERNAL_H
#define FD_DUMPERS_IMPORT_MAP_INTERNAL_H

#include "dumpers/import/map.h"

typedef struct fd_name_map_operation {
    const char *name;
    bool (*take)(const char *text, fd_name_map_op *op); /* what follows "="; NULL: nothing may */
} fd_name_map_operation;
extern const fd_name_map_operation fd_name_map_operations[FD_NAME_MAP_OPERATION_COUNT];
extern const char *const fd_name_map_variables[FD_NAME_MAP_VARIABLE_COUNT];

/* Adds what the word says to the rule; returns NULL, or what is wrong with the word. */
const char *fd_name_map_take_operation(const char *word, fd_name_map_rule *rule);

#endif

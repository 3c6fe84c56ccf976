/* Between map_parse.c (lines) and map_words.c (the words that name operations). */
#ifndef FD_DUMPERS_IMPORT_MAP_INTERNAL_H
#define FD_DUMPERS_IMPORT_MAP_INTERNAL_H

#include "dumpers/import/map.h"

/* Adds what the word says to the rule; returns NULL, or what is wrong with the word. */
const char *fd_name_map_take_operation(const char *word, fd_name_map_rule *rule);

#endif

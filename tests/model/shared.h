/* Data that is not part of the repository: looked for in $FD_SHARED, else beside the source tree. */
#ifndef FD_TESTS_MODEL_SHARED_H
#define FD_TESTS_MODEL_SHARED_H

#include <stddef.h>

/* Paths of the files FOLDER/…SUFFIX of the shared data, sorted; *n of them, 0 when the folder is not there. */
char **shared_files(const char *folder, const char *suffix, size_t *n);
void shared_free(char **files, size_t n);

#endif

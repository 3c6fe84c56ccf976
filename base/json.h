/* JSON from elsewhere, before a parser makes a tree of it: "{}," takes three bytes in the text, and 240 in the tree. */
#ifndef FD_BASE_JSON_H
#define FD_BASE_JSON_H

#include <stddef.h>

#include "base/status.h"

/* FD_ERR_INPUT, with the limit's name, where the tree would take more than the limit json-memory; `name` begins the
 * message. */
fd_code fd_json_fits(const char *name, const char *text, size_t size, fd_error *err);

#endif

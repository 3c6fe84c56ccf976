/* A child process behind which code runs that a hostile file may crash or hang: the HDF5 library.
 *
 * Parent and child share one page of memory and nothing else. The parent writes a request into it, calls, and reads the
 * answer; a call that the child does not survive returns false, and every later one too. A call costs two switches of
 * processes, 10 to 100 microseconds: many questions go into one.
 *
 * The child has this process's memory as it was at fd_wall_start, and none of its descriptors. It ends with fd_wall_stop, or a second after its parent is gone. */
#ifndef FD_DUMPERS_HDF5_WALL_H
#define FD_DUMPERS_HDF5_WALL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

typedef struct fd_wall fd_wall;

/* Answers the request in `page`, in the child. `state` is one pointer that the child keeps between calls, NULL at
 * first. */
typedef void (*fd_wall_serve)(void *page, void **state);

/* Forks. `page_bytes` is the page's size, zeros at first and taken from memory as it is touched. Other threads may
 * run, but none may hold a lock that `serve` needs. FD_ERR_IO or FD_ERR_MEMORY when the system has no process or memory
 * left. */
fd_code fd_wall_start(size_t page_bytes, fd_wall_serve serve, fd_wall **out, fd_error *err);

/* The page. The child may still write to it when it is compromised: what is checked is copied first. */
void *fd_wall_page(const fd_wall *wall);

/* Has the request in the page answered. False: the child is dead, killed perhaps because it took more than
 * `seconds` of processor time. From one thread at a time. */
bool fd_wall_call(fd_wall *wall, double seconds);

/* Why the child is dead: "signal 11 (Segmentation fault)"; NULL while it lives. */
const char *fd_wall_death(const fd_wall *wall);

/* Ends the child and frees the page; NULL is fine. */
void fd_wall_stop(fd_wall *wall);

/* ---- in the child ---- */

/* From here on `bytes` more of memory can be had. */
void fd_wall_limit_memory(size_t bytes);
/* From here on no file, process or connection can be opened, by limits and, on Linux, a filter of system calls. */
void fd_wall_confine(void);

#endif

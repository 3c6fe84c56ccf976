/* The compiler makes a version of a hot function for each instruction set and the loader picks one. No bit depends on
 * the choice: nothing is reordered or contracted. Sanitized builds keep one version: their runtimes are not ready when
 * the loader asks. */
#ifndef FD_BASE_CLONES_H
#define FD_BASE_CLONES_H

#include <stdint.h> /* any header of the C library says whether it is glibc */

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) &&                           \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && defined(__OPTIMIZE__)
#define FD_FOR_EACH_CPU __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FD_FOR_EACH_CPU
#endif

#endif

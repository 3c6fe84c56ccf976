/* Whether this is a build for fuzzing in-process (tests/fuzz, OSS-Fuzz). A fuzzer changes bytes and cannot make the
 * checksums over them right again: in such a build they are not looked at, or nothing behind them would be reached. */
#ifndef FD_BASE_FUZZED_H
#define FD_BASE_FUZZED_H

#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION /* the name that fuzzers agreed on */
enum { FD_FUZZED = 1 };
#else
enum { FD_FUZZED = 0 };
#endif

#endif

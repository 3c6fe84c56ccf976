/* A CUDA driver without a device, built as libcuda.so.1: device memory is host memory, and a stream is a list of things
 * to do that are done, in order, as late as can be: when somebody waits for an event behind them. Whoever looks at a
 * device buffer without waiting sees what was there before, and whoever waits too long sees what came after. */
#ifndef FD_TESTS_TRACE_FAKE_CUDA_DRIVER_H
#define FD_TESTS_TRACE_FAKE_CUDA_DRIVER_H

#include <stddef.h>

/* Puts a kernel into the stream: n floats at x become `value`. */
void fake_fill(float *x, size_t n, float value, void *stream);
/* Copies under way and pinned bytes allocated; contexts pushed and not popped. */
extern int fake_copies, fake_pinned, fake_pushed;
/* Make the next call fail: 1 the copy, 2 the event's wait, 3 pinned memory; -1: no context in this thread; -2:
 * capturing. */
extern int fake_failure;

#endif

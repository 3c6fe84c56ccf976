/* Attention that goes over its keys in tiles, or in parts that are put together afterwards, and does that wrong. All of it
 * can be said of softmax's weights, which such a kernel never writes: what it mixes is the values by other weights. */
#ifndef FD_FAULTS_TILES_H
#define FD_FAULTS_TILES_H

#include <stdint.h>

typedef enum fd_tile_rule {
    /* flash attention: when the running maximum grows, earlier tiles are not rescaled … */
    FD_TILES_OUTPUT_STALE, /* in the output */
    FD_TILES_SUM_STALE,    /* in the sum that it is divided by */
    FD_TILES_BOTH_STALE,
    FD_TILES_BOTH_BY_TWO, /* … or are in both, by 2^x for e^x */
    /* or a key is mixed in twice: */
    FD_TILES_EDGE_TWICE,     /* the first of every tile but the first, which the one before has, too */
    FD_TILES_OWN_TWICE,      /* the row's own, which is a tile by itself */
    FD_TILES_FIRST_TWICE,    /* the first, with which the running state begins */
    FD_TILES_OWN_UNMIXED,    /* or softmax counts it and the sum over V leaves it out: the row's own */
    FD_TILES_LAST_UNCOUNTED, /* the last tile, which is not whole, is mixed in but left out of the sum */
    /* split K/V: every part has a softmax of its own, and the parts' outputs are … */
    FD_TILES_AVERAGED, /* averaged: their sums do not weigh them */
    FD_TILES_ADDED,
    FD_TILES_UNSCALED,    /* added, sums too, each off its own maximum, and divided */
    FD_TILES_FIRST_SUM,   /* right, but divided by the first part's sum */
    FD_TILES_FIRST_ALONE, /* left out, but for the first part's */
    FD_TILE_RULE_COUNT
} fd_tile_rule;

/* "flash_output_not_rescaled" */
const char *fd_tile_rule_name(fd_tile_rule rule);

/* Of so many parts less this many each has n / parts keys, rounded up, and the last one the rest. */
enum { FD_PARTS_ROUNDED_UP = 64 };

/* Makes of one row's softmax weights of keys 0 to n - 1 those that the kernel mixes by. `tile` > 0: keys a tile or part;
 * below 0: that many parts of the row's keys, as even as they can be, or below -FD_PARTS_ROUNDED_UP with its rule. */
void fd_tile_weights(fd_tile_rule rule, int32_t tile, float *weights, int32_t n);

#endif

/* Checkpoints for cli/against: made of random models in the form that transformers has, to be changed and compared. */
#ifndef FD_TESTS_CHECKPOINT_H
#define FD_TESTS_CHECKPOINT_H

#include "cli/against/against.h"
#include "model/gguf_writer/made_model.h"

enum { MAX_ITEMS = 200 };

typedef struct checkpoint_item {
    char name[128];
    int64_t n_row, n_col; /* n_row 0: a vector */
    float *data;
    char shape[64]; /* "2,8,4,16"; "": rows and columns, or a vector */
    bool bytes;     /* no floats */
} checkpoint_item;

typedef struct checkpoint {
    checkpoint_item items[MAX_ITEMS];
    int n;
} checkpoint;

/* One more tensor, to be filled; n_row 0: a vector. */
checkpoint_item *checkpoint_add(checkpoint *c, const char *name, int64_t n_row, int64_t n_col);
checkpoint_item *checkpoint_find(checkpoint *c, const char *name);
int64_t checkpoint_rows(const checkpoint_item *item); /* 1 of a vector */

typedef struct scene {
    checkpoint c;
    fd_gguf *gguf;
    fd_against_report report;
} scene;

/* The checkpoint of a model in F32, and the model in `dtype`. */
scene *scene_stage(const char *arch, uint32_t dtype, bool tied);
/* Writes the checkpoint and compares: s->report. */
void scene_play(scene *s);
void scene_end(scene *s);
/* Plays and ends it: exactly one finding, of that tensor, whose text holds `what`. */
void scene_expect_one(scene *s, const char *tensor, const char *what);

#endif

#include "compare/diff/rendezvous.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { REF, CAND, SIDES };

typedef struct observer_side {
    fd_rendezvous *m;
    int side;
} observer_side;

/* The meeting point of the two threads. Only the side whose turn it is runs; the other waits, either for a step to
 * begin or in its observer with the tensor it shows. */
struct fd_rendezvous {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int turn;
    const fd_observation *shown[SIDES]; /* what a side waits with; NULL once it may go on */
    bool done[SIDES];                   /* its forward call has returned */
    bool stop;                          /* both are to end: a divergence, or a failure */
    bool quit;                          /* the candidate's thread is to end */
    int32_t round;                      /* forward calls begun */
    fd_batch batch[SIDES];
    fd_code code[SIDES];
    fd_error error[SIDES];
    fd_exec *exec[SIDES];
    fd_lockstep_comparator *comparator;
    observer_side sides[SIDES];
    pthread_t thread;
    bool has_thread;
};

static void pass_turn(fd_rendezvous *m, int to) {
    m->turn = to;
    pthread_cond_broadcast(&m->changed);
}

/* Both show a tensor, or the other side has no more of them. Nodes are in one order on both sides, so the lower id is
 * the one the other side has skipped. */
static fd_code meet(fd_rendezvous *m, int side, fd_error *err) {
    int other = !side;
    const fd_observation *mine = m->shown[side], *theirs = m->shown[other];
    fd_code code;
    if (!theirs || mine->node->id < theirs->node->id) {
        m->shown[side] = NULL;
        code = fd_lockstep_unmatched(m->comparator, mine, side == REF, err);
    } else if (theirs->node->id < mine->node->id) {
        m->shown[other] = NULL;
        code = fd_lockstep_unmatched(m->comparator, theirs, other == REF, err);
    } else {
        m->shown[REF] = m->shown[CAND] = NULL;
        code = fd_lockstep_compare(m->comparator, side == REF ? mine : theirs, side == REF ? theirs : mine, err);
    }
    if (code != FD_OK) {
        m->stop = true;
        m->shown[REF] = m->shown[CAND] = NULL;
    }
    return code;
}

static fd_code show_tensor(void *user, const fd_observation *observation, fd_error *err) {
    observer_side *me = user;
    fd_rendezvous *m = me->m;
    int side = me->side, other = !side;
    fd_code code = FD_OK;
    pthread_mutex_lock(&m->lock);
    m->shown[side] = m->stop ? NULL : observation;
    while (code == FD_OK && m->shown[side]) {
        if (!m->shown[other] && !m->done[other]) {
            pass_turn(m, other);
            while (m->turn != side) pthread_cond_wait(&m->changed, &m->lock);
        } else {
            code = meet(m, side, err);
        }
    }
    if (code == FD_OK && m->stop) code = FD_STOP;
    pthread_mutex_unlock(&m->lock);
    return code;
}

/* Runs one forward call of a side whose turn it is, then hands the turn over. Called with the lock held. */
static void run_side(fd_rendezvous *m, int side) {
    if (!m->stop) {
        pthread_mutex_unlock(&m->lock);
        fd_code code = fd_exec_forward(m->exec[side], &m->batch[side], &m->error[side]);
        pthread_mutex_lock(&m->lock);
        m->code[side] = code;
        if (code != FD_OK) m->stop = true;
    }
    m->done[side] = true;
    /* The other side may be waiting with a tensor that gets no answer any more. */
    if (m->stop) m->shown[!side] = NULL;
    pass_turn(m, !side);
}

static void *candidate_thread(void *user) {
    fd_rendezvous *m = user;
    pthread_mutex_lock(&m->lock);
    for (int32_t round = 1;; round++) {
        while (!m->quit && !(m->round == round && m->turn == CAND)) pthread_cond_wait(&m->changed, &m->lock);
        if (m->quit) break;
        run_side(m, CAND);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

/* The reference runs in the caller's thread. */
static void forward_both(fd_rendezvous *m) {
    pthread_mutex_lock(&m->lock);
    for (int side = 0; side < SIDES; side++) {
        m->shown[side] = NULL;
        m->done[side] = false;
        m->code[side] = FD_OK;
    }
    m->turn = REF;
    m->round++;
    run_side(m, REF);
    while (!m->done[CAND]) pthread_cond_wait(&m->changed, &m->lock);
    pthread_mutex_unlock(&m->lock);
}

fd_code fd_rendezvous_forward(fd_rendezvous *m, const fd_batch *ref_batch, const fd_batch *cand_batch,
                              const char *ref_label, const char *cand_label, fd_error *err) {
    m->batch[REF] = *ref_batch;
    m->batch[CAND] = *cand_batch;
    forward_both(m);
    for (int side = 0; side < SIDES; side++) {
        if (m->code[side] == FD_OK || m->code[side] == FD_STOP) continue;
        *err = m->error[side];
        return fd_error_prefix(err, "%s", side == REF ? ref_label : cand_label);
    }
    return m->code[REF] == FD_STOP || m->code[CAND] == FD_STOP ? FD_STOP : FD_OK;
}

static fd_code check_graphs(const fd_graph *a, const fd_graph *b, fd_error *err) {
    if (a->n_node != b->n_node)
        return fd_fail(err, FD_ERR_INPUT, "lockstep: graphs of %d and %d nodes are not of one model", a->n_node,
                       b->n_node);
    for (int32_t i = 0; i < a->n_node; i++)
        if (strcmp(a->nodes[i].name, b->nodes[i].name) != 0)
            return fd_fail(err, FD_ERR_INPUT, "lockstep: node %d is %s on one side, %s on the other", i,
                           a->nodes[i].name, b->nodes[i].name);
    return FD_OK;
}

fd_code fd_rendezvous_open(fd_exec *ref, fd_exec *cand, fd_lockstep_comparator *comparator, fd_rendezvous **out,
                           fd_error *err) {
    *out = NULL;
    FD_TRY(check_graphs(ref->graph, cand->graph, err));
    fd_rendezvous *m = calloc(1, sizeof *m);
    if (!m) return fd_fail(err, FD_ERR_MEMORY, "lockstep: out of memory");
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->changed, NULL);
    m->comparator = comparator;
    m->exec[REF] = ref;
    m->exec[CAND] = cand;
    for (int side = 0; side < SIDES; side++) {
        m->sides[side] = (observer_side){m, side};
        fd_exec_set_observer(m->exec[side], (fd_observer){.observe = show_tensor, .user = &m->sides[side]});
    }
    m->has_thread = pthread_create(&m->thread, NULL, candidate_thread, m) == 0;
    if (!m->has_thread) {
        fd_rendezvous_close(m);
        return fd_fail(err, FD_ERR_MEMORY, "lockstep: no thread for the candidate");
    }
    *out = m;
    return FD_OK;
}

void fd_rendezvous_close(fd_rendezvous *m) {
    if (!m) return;
    if (m->has_thread) {
        pthread_mutex_lock(&m->lock);
        m->quit = true;
        pthread_cond_broadcast(&m->changed);
        pthread_mutex_unlock(&m->lock);
        pthread_join(m->thread, NULL);
    }
    for (int side = 0; side < SIDES; side++) fd_exec_set_observer(m->exec[side], (fd_observer){0});
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

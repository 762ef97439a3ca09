/* What goes wrong with hosts and paths; see sim_kernel.h. */
#include <errno.h>

#include "sim_kernel.h"
#include "sim_memory.h"

enum { RETRANSMISSION_S = 925 }; /* Linux's tcp_retries2: unanswered for so long, a connection is given up */

static struct sim_file *file_at(size_t index) {
    return &sim_kernel.file_chunks[index / SIM_FILES_A_CHUNK][index % SIM_FILES_A_CHUNK];
}

static bool is_between(const struct sim_file *file, const struct sim_host *one, const struct sim_host *other) {
    return file->is_open && file->kind == SIM_STREAM && file->state == SIM_CONNECTED && file->peer &&
           file->host == one && file->peer->host == other;
}

/* ---- silence ---- */

static bool hears_nothing(const struct sim_file *file) {
    const struct sim_kernel *k = &sim_kernel;
    const struct sim_host *a = file->host, *b = file->peer->host;
    return !b->is_up || file->is_forgotten ||
           (k->blocked_until_us && (k->blocked_until_us[a->index * k->host_count + b->index] > k->now_us ||
                                    k->blocked_until_us[b->index * k->host_count + a->index] > k->now_us));
}

static void on_given_up(void *subject, uint64_t token) {
    struct sim_file *file = subject;
    (void)token;
    if (file->is_open && file->state == SIM_CONNECTED && hears_nothing(file)) {
        sim_tcp_break(file, ETIMEDOUT);
    }
}

static void watch_silence(struct sim_file *file, int64_t until_us) {
    int64_t patience_us =
        file->keep_alive_us < RETRANSMISSION_S * SIM_S ? file->keep_alive_us : RETRANSMISSION_S * SIM_S;
    if (sim_kernel.now_us + patience_us < until_us) {
        sim_post(sim_kernel.now_us + patience_us, on_given_up, file, 0);
    }
}

/* ---- hosts ---- */

void sim_trouble_kill(struct sim_host *host) {
    while (host->files) {
        sim_file_close(host->files);
    }
}

void sim_trouble_vanish(struct sim_host *host) {
    host->is_up = false;
    for (struct sim_file *file = host->files; file; file = file->next) {
        file->queue_first = file->queue_last = NULL;
        file->out_end = true; /* so that closing says nothing */
        file->in_len = file->in_arrived = 0;
        if (file->kind == SIM_STREAM && file->peer && file->peer->is_open) {
            file->peer->has_unheard = false;
            watch_silence(file->peer, INT64_MAX);
        }
    }
    sim_trouble_kill(host);
}

static void on_answer_of_a_stranger(void *subject, uint64_t token) {
    struct sim_file *file = subject;
    (void)token;
    sim_tcp_break(file, ECONNRESET);
}

void sim_trouble_return(struct sim_host *host) {
    host->is_up = true;
    for (size_t i = 0; i < sim_kernel.file_count; i++) {
        struct sim_file *file = file_at(i);
        if (file->host == host && !file->is_open && file->peer && is_between(file->peer, file->peer->host, host)) {
            int64_t wait_us = file->peer->has_unheard ? sim_random_between(&sim_kernel.random, SIM_S / 5, 10 * SIM_S)
                                                      : sim_random_between(&sim_kernel.random, SIM_S, 60 * SIM_S);
            sim_post(sim_kernel.now_us + wait_us, on_answer_of_a_stranger, file->peer, 0);
        }
    }
}

/* ---- paths ---- */

void sim_trouble_block(const struct sim_host *from, const struct sim_host *to, int64_t until_us) {
    struct sim_kernel *k = &sim_kernel;
    int64_t *blocked = &k->blocked_until_us[from->index * k->host_count + to->index];
    *blocked = until_us > *blocked ? until_us : *blocked;
    for (size_t i = 0; i < k->file_count; i++) {
        struct sim_file *file = file_at(i);
        if (is_between(file, from, to) || is_between(file, to, from)) {
            watch_silence(file, until_us);
        }
    }
}

void sim_trouble_forget(const struct sim_host *one, const struct sim_host *other, bool refuses) {
    for (size_t i = 0; i < sim_kernel.file_count; i++) {
        struct sim_file *file = file_at(i);
        if (is_between(file, one, other) || is_between(file, other, one)) {
            file->is_forgotten = true;
            file->is_refused = refuses;
            watch_silence(file, INT64_MAX);
        }
    }
}

void sim_trouble_reset(const struct sim_host *host, uint64_t choice) {
    struct sim_file *chosen = NULL;
    size_t count = 0;
    for (struct sim_file *file = host->files; file; file = file->next) {
        if (file->kind == SIM_STREAM && file->state == SIM_CONNECTED && file->peer && file->peer->host != host &&
            choice % ++count == 0) {
            chosen = file;
        }
    }
    if (chosen) {
        sim_tcp_break(chosen->peer, ECONNRESET);
        sim_tcp_break(chosen, ECONNRESET);
    }
}

/* Agents of one job on an etcd in memory, for etcd3_sim_test.c: the real seats (etcd3_seat.h) and offices
 * (etcd3_office.h), the requests that are between them and etcd, and a judge. */
#ifndef RENDEZVOUS_ETCD3_SIM_TEST_SUPPORT_H
#define RENDEZVOUS_ETCD3_SIM_TEST_SUPPORT_H

#include "rendezvous/etcd3_fake_test_support.h"
#include "rendezvous/etcd3_office.h"
#include "rendezvous/etcd3_seat.h"

enum {
    AGENTS = 5,
    LAST_CALL_MS = 5000,
    TOLD_MAX = 512,
    LEASES_MAX = 512,
    LATE_MAX = 64,
    BODY_BYTES_MAX = ETCD3_TRANSACTION_BYTES_MAX,
};

enum ask { ASK_GRANT, ASK_STAND, ASK_LOOK, ASK_BEAT, ASK_WRITE, ASK_READ, ASK_TELL, ASKS };

/* A request of an agent's, or of its office's (READ, TELL). */
struct request {
    bool is_asked, is_answered;
    int64_t lease_id, epoch; /* of who asks */
    int64_t generation;      /* of the etcd that has carried it out */
    struct buf body;
    int status;
    struct etcd3_reply reply; /* pairs point into the etcd, but for READ: into sim.pairs when it is delivered */
};

struct agent {
    struct etcd3_seat seat;
    struct request requests[ASKS];
    int64_t watched[2]; /* the next revision of the leader's key, and of its letters; 0: no watch */
    struct etcd3_office *office;
    int64_t office_watched;
    bool beats, wants, is_member;
    uint64_t pid, last_round, identity_count;
    uint32_t rank, size;
    int64_t member_epoch;
    int64_t generation; /* of the etcd where its leader is */
};

/* A world, as the first who was told it has heard. */
struct told {
    int64_t epoch, generation;
    uint64_t round;
    uint32_t size;
    uint64_t ranks; /* taken */
};

struct sim {
    uint64_t seed, random;
    uint64_t calm; /* the more, the rarer is trouble */
    bool traces;
    int64_t now_ms, generation;
    struct fake_etcd etcd;
    bool leases[LEASES_MAX];
    int64_t lease_count;
    struct agent agents[AGENTS];
    struct request late[LATE_MAX]; /* given up, and carried out all the same */
    enum ask late_asks[LATE_MAX];
    size_t late_count;
    struct told told[TOLD_MAX];
    size_t told_count;
    uint64_t pids;
    struct etcd3_pair pairs[FAKE_EVENTS_MAX];
    unsigned long long worlds, leaders;
};

extern struct sim sim;

/* ---- chance, and what is said of it ---- */

uint64_t sim_draw(uint64_t below);
int sim_number_of(const struct agent *agent);
void sim_trace(const char *format, ...) __attribute__((format(printf, 1, 2)));
void sim_violate(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* ---- requests ---- */

void sim_ask(struct agent *agent, enum ask ask);
void sim_drop_request(struct request *request);
/* etcd has it: its answer is in the request. */
void sim_carry_out(struct request *request, enum ask ask);
bool sim_is_alive(int64_t lease_id);

/* ---- agents ---- */

void sim_begin_agent(struct agent *agent);
/* It is no more; its lease goes on until it expires. */
void sim_end_agent(struct agent *agent);
/* Does what its seat says. */
void sim_act(struct agent *agent, unsigned actions);
void sim_hear_pair(struct agent *agent, const struct etcd3_pair *pair);
void sim_send(struct agent *agent, const struct coordinator_message *message);
void sim_send_join(struct agent *agent);
/* What its office has to tell is on its way. */
void sim_settle_office(struct agent *agent);

#endif

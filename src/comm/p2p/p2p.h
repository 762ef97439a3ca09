/* Messages between two processes of a context, matched by group, lane and tag, over whatever link there is between the
 * two: a ring in shared memory on one host, TCP between hosts. Both muster_send()/muster_receive() and the schedules
 * of collectives that are not all in one host's memory (comm/hierarchy/executor.h) are made of these.
 *
 * Who moves the bytes: whoever waits brings everything forward (p2p_progress()), under one lock. Links are made when
 * first needed. The context's monitor thread watches one descriptor, p2p_descriptor(), and calls p2p_attend() when it
 * is readable: that accepts peers, finishes connections, notices deaths, passes notices on, and, where there are
 * neighbours in shared memory, rings the bell when sockets have news for a caller who sleeps. (Where there are none,
 * the caller sleeps on the sockets.) Whoever stops looking while there is more to move that no event will tell of rings
 * the bell, too: another thread that sleeps goes on with it.
 *
 * The files it is made of are listed in p2p_impl.h; the wire format is in docs/formats/wire.md and comm/p2p/wire.h. */
#ifndef COMM_P2P_H
#define COMM_P2P_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/host/bell.h"
#include "comm/host/interface.h"
#include "comm/host/link_plan.h"
#include "comm/host/memory.h"
#include "comm/p2p/tls.h"

struct p2p;

enum p2p_lane { P2P_MESSAGES = 0, P2P_COLLECTIVES = 1, P2P_LANE_COUNT = 2 };

#define P2P_ANY_PEER UINT32_MAX

/* What one peer may have sent that nobody has asked for yet, per lane; beyond it the sender waits. */
#define P2P_UNEXPECTED_BYTES_MAX ((size_t)1 << 20)
/* Bytes that go out with a message's first frame, before the receiver has said that it is ready. */
#define P2P_EAGER_BYTES ((size_t)64 << 10)
#define P2P_EAGER_FAR_BYTES ((size_t)256 << 10) /* of the program's messages to other hosts */
#define P2P_CONTACT_BYTES_MAX ((size_t)512)
#define P2P_SENTENCE_MAX ((size_t)512)          /* of a notice, terminator included */
#define P2P_STREAMS_MAX 8u                      /* connections of one link */
#define P2P_ADOPTED_BYTES_MAX ((size_t)1 << 30) /* of sends that nobody waits for, and that p2p keeps a copy of */

/* ---- life ---- */

/* A process of the same host that is reached through rings in the shared segment. */
struct p2p_neighbour {
    uint32_t peer;
    int32_t pid;
    struct comm_bell *bell; /* borrowed */
};

/* What spreads to everybody, once, over all links: a peer's death, or the failure of a group. */
enum p2p_notice_kind { P2P_NOTICE_PEER_DEAD = 1, P2P_NOTICE_GROUP_FAILED = 2 };
/* Whom a failure is put down to. */
struct p2p_blamed {
    uint32_t number; /* its rank in the root group, plus one; 0: nobody */
    int32_t pid;     /* 0: not known */
};
struct p2p_notice {
    enum p2p_notice_kind kind;
    uint32_t subject; /* the dead peer, or the group's id */
    uint32_t origin;  /* the peer that found out */
    int32_t code;     /* MUSTER_EPEER, MUSTER_EABORTED, MUSTER_EMISMATCH ... */
    uint64_t spared;  /* of a group: calls up to this number may still end well; 0: none */
    struct p2p_blamed blamed;
    char sentence[P2P_SENTENCE_MAX];
};

/* Who can want to connect to this process: of the network; of its network namespace; nobody (all peers are neighbours).
 */
enum p2p_reach { P2P_REACH_NETWORK, P2P_REACH_LOOPBACK, P2P_REACH_NOBODY };

/* Which messages to other hosts go without a copy (MSG_ZEROCOPY); MUSTER_TCP_ZERO_COPY. */
struct p2p_zero_copy {
    size_t bytes_min; /* of a message; 0: none goes so */
    bool always;      /* also where the kernel copies all the same: for tests and measurements */
};

struct p2p_config {
    uint32_t rank, size;    /* in the root group */
    struct comm_bell *bell; /* this process's; borrowed */

    /* The processes of this host, this one included, in the order of their local numbers; copied. rings: that part of
     * the shared segment, p2p_rings_bytes(neighbour_count) zeroed and 64-byte aligned; borrowed; NULL: no shared
     * memory, all peers are reached by TCP. */
    void *rings;
    const struct p2p_neighbour *neighbours;
    uint32_t neighbour_count, local;
    struct memory *memory; /* of muster_alloc(); borrowed; NULL: none */
    bool may_read_peers;   /* cross-memory attach is allowed by the user; whether by the kernel is found out here */

    enum p2p_reach reach;
    struct interface_wish interfaces; /* which TCP may use; interface_wish_from_env() */
    uint32_t stream_count;            /* connections per link; 0: chosen by where the peer is */
    const struct link_plan *plans;    /* of links to other hosts; borrowed; the first that fits counts */
    size_t plan_count;
    uint32_t lost_after_ms;         /* a peer whose kernel answers nothing for so long is given up; 0: 180 s */
    const char *lost_after_name;    /* what has set it, for sentences; borrowed; NULL: nothing */
    uint32_t path_lost_after_ms;    /* the same of one of several paths, while another works; 0: 30 s */
    struct tls *tls;                /* borrowed; NULL: TCP without TLS */
    struct p2p_zero_copy zero_copy; /* TLS: none */

    /* Fetches what p2p_contact() gave on `peer` (from the store; may block up to deadline_ns). Called by the thread
     * that posts, without locks. */
    int (*contact)(void *context, uint32_t peer, int64_t deadline_ns, uint8_t out[P2P_CONTACT_BYTES_MAX],
                   size_t *out_len);
    /* Something new happened to the job: found here, or told by a peer. Called once per peer and per group, by whatever
     * thread found out, without p2p's lock; p2p has already failed the requests concerned and passed the notice to all
     * links. The context marks its groups, tells its neighbours through the segment, and rings bells. */
    void (*notice)(void *context, const struct p2p_notice *notice);
    const char *(*host_name)(void *context, uint32_t peer); /* for sentences; NULL: they name no host */
    void *context;
};

/* "0", "1M", "256K,always". Pure. The second: from the environment, nothing where that says nothing. MUSTER_EINVAL. */
int p2p_zero_copy_parse(const char *text, struct p2p_zero_copy *out);
int p2p_zero_copy_from_env(struct p2p_zero_copy *out);
/* Sets lost_after_ms and lost_after_name: MUSTER_HOLD_TIMEOUT; 30 s at most where the others go on without a silent
 * peer, so that giving it up helps (MUSTER_LOST_KEY). */
void p2p_hold_from_env(struct p2p_config *config);

/* Bytes of the rings of one host's processes. Pages are touched when first used. */
size_t p2p_rings_bytes(uint32_t neighbour_count);

/* Opens the listening socket, if there is to be one. MUSTER_ESYSTEM, MUSTER_EINVAL (no interface fits the wish),
 * MUSTER_ENOMEM. */
int p2p_create(const struct p2p_config *config, struct p2p **out);
/* Before p2p_free(): ends sends that p2p has adopted (p2p_let_go()). Goes on with those that a receiver has asked for:
 * on another host as long as that is not given up, at most P2P_DELIVER_MS; on this one until nothing has moved for
 * P2P_NEIGHBOUR_MS. Waits at most P2P_GOODBYE_MS for others to ask. Only the monitor may be inside meanwhile, and
 * tells of deaths. NULL is accepted. */
void p2p_deliver(struct p2p *p2p);
/* Says goodbye on all links, also on those that are being made and have been greeted on; waits (at most P2P_GOODBYE_MS)
 * until the kernels of the peers have the last bytes, whether the peers run or not, and closes. Where nothing has
 * failed and a peer's kernel has no room, since the peer reads nothing, or is silent, but not given up, it waits for
 * that: at most P2P_DELIVER_MS. No request may be pending and no other thread inside. NULL is accepted. */
#define P2P_GOODBYE_MS 1000
#define P2P_DELIVER_MS 300000
#define P2P_NEIGHBOUR_MS 10000
void p2p_free(struct p2p *p2p);

/* What peers need in order to connect, to be put into this process's record in the store: addresses, port and the
 * secret that they must present. */
size_t p2p_contact(const struct p2p *p2p, uint8_t out[P2P_CONTACT_BYTES_MAX]);

/* For the monitor thread: the descriptor (an epoll one) to be watched for POLLIN, level-triggered, and what to call
 * then. p2p_attend() does not block. */
int p2p_descriptor(const struct p2p *p2p);
void p2p_attend(struct p2p *p2p);

/* Keeps a connection to `peer`, of which nothing but its end and notices are expected: the leader of each host watches
 * the leader of the next, so that every death reaches every host. Does not wait for it. */
int p2p_watch(struct p2p *p2p, uint32_t peer, int64_t deadline_ns);

/* Waits until that connection, and the one that `before` keeps to this process, are there, or their peers gone, or the
 * deadline has passed (then MUSTER_ETIMEOUT; else what comm_wait() gives). A ring that was whole once tells everybody
 * of the first death in it, whoever leaves because of that. */
int p2p_await_watches(struct p2p *p2p, struct comm_waiter *waiter, uint32_t next, uint32_t before, int64_t deadline_ns);

/* Spreads what this process found out: the death of a neighbour, an abort. A second one about the same subject is
 * ignored. notice() is not called for it. Any thread; does not block. */
void p2p_spread(struct p2p *p2p, const struct p2p_notice *notice);

/* A request ends a moment before the hook `notice` hears of the death behind that. Returns when it has heard of all
 * deaths by which requests have ended so far. Not from the hook. */
void p2p_await_notices(struct p2p *p2p);

/* ---- messages ---- */

struct p2p_envelope {
    uint32_t group; /* id */
    uint8_t lane;
    uint32_t peer;
    uint64_t tag;         /* of the user; of a collective: P2P_TAG() */
    uint64_t fingerprint; /* must be equal on both sides (type of a message; comm_call_fingerprint()) */
    bool is_blocking;     /* of a send: its caller does nothing else until it is done */
    /* Of a receive from anybody: who might send, this process may be among them; borrowed until it is done. */
    const uint32_t *members;
    uint32_t member_count;
};

/* Tags of the lane P2P_COLLECTIVES: a call's number, then whatever tells its messages apart. The numbers of one group
 * need to differ among 2^24 calls. */
#define P2P_TAG_CALL_SHIFT 40
#define P2P_TAG(call, rest) ((uint64_t)(call) << P2P_TAG_CALL_SHIFT | (rest))

/* Takes the bytes of a message in place of its buffer, as they come: [offset, offset + bytes) of it, in no particular
 * order, each byte once; offset and bytes are multiples of 8, but for the message's end. Under p2p's lock: no calls of
 * p2p. */
typedef void p2p_consume(void *context, size_t offset, const void *data, size_t bytes);

/* Embedded in the caller's memory; must stay there until done. All fields are p2p's; read them when it is done. */
struct p2p_request {
    struct p2p_envelope envelope; /* of a receive from P2P_ANY_PEER: who it was, once done */
    void *buffer;
    p2p_consume *consume;
    void *consume_context;
    size_t bytes;                      /* of a receive: room; once done, bytes that came */
    size_t moved;                      /* so far */
    size_t allotted;                   /* of a send: given to streams so far */
    int status;                        /* once done: 0 or a negative code */
    char *detail;                      /* once done with an error: owned, freed by p2p_request_done() */
    _Atomic uint32_t done;             /* load with acquire */
    uint32_t id;                       /* by which frames name it */
    uint32_t peer_id;                  /* the other side's */
    uint64_t source, source_withdrawn; /* of a receive that is read out of a neighbour's memory */
    struct memory_place source_place;  /* if that is shared; then source is not used */
    bool is_shared;
    uint32_t held_count; /* of a send: writes whose memory the kernel still reads */
    uint8_t state;       /* enum request_state of p2p_state.h */
    bool is_send;
    bool has_tail;   /* of a send: its last bytes wait until the kernel has given back the others */
    bool is_adopted; /* a send that is p2p's own: p2p_adopt.c */
    struct p2p_request *next, *previous;
};

/* Post. Return 0 or a negative code (nothing was posted). Any thread. A link is made first where there is none
 * (deadline_ns bounds the look-up of the peer's contact); the calls do not wait for it. */
int p2p_send(struct p2p *p2p, struct p2p_request *request, const struct p2p_envelope *envelope, const void *buffer,
             size_t bytes, int64_t deadline_ns);
int p2p_receive(struct p2p *p2p, struct p2p_request *request, const struct p2p_envelope *envelope, void *buffer,
                size_t bytes, int64_t deadline_ns);
/* The same, each piece handed to consume(). */
int p2p_receive_consume(struct p2p *p2p, struct p2p_request *request, const struct p2p_envelope *envelope,
                        p2p_consume *consume, void *context, size_t bytes, int64_t deadline_ns);

/* Messages of the group (lane P2P_MESSAGES) that have come from the peer, or from any, and wait for a receive: the
 * first of each link, at most `max`. Returns how many. */
struct p2p_arrived {
    uint32_t peer;
    uint64_t tag;
};
size_t p2p_list_arrived(struct p2p *p2p, uint32_t group, uint32_t peer, struct p2p_arrived *out, size_t max);

/* Short cuts for blocking calls. A short message to a neighbour that nothing is in front of: sent at once. false: it
 * takes p2p_send(), which also says what is wrong. *out_ns: when, by the monotonic clock. */
bool p2p_send_short(struct p2p *p2p, const struct p2p_envelope *envelope, const void *buffer, size_t bytes,
                    int64_t *out_ns);

/* What a receive that was not posted has got. */
struct p2p_short {
    size_t bytes;
    int64_t end_ns; /* by the monotonic clock */
};
struct p2p_link;
/* Might a short message come from `peer`, for a receive of up to `bytes`? NULL: it takes p2p_receive(). *out_ns: now.
 */
struct p2p_link *p2p_expect_short(struct p2p *p2p, uint32_t peer, size_t bytes, int64_t *out_ns);
/* Looks for it, for as long as the waiter would spin (or yield, where ranks outnumber the cores), and brings other
 * things forward meanwhile. true: it is in `buffer`. false: it takes p2p_receive(); nothing has happened to the
 * message. */
bool p2p_receive_short(struct p2p *p2p, struct comm_waiter *waiter, struct p2p_link *link,
                       const struct p2p_envelope *envelope, void *buffer, size_t bytes, struct p2p_short *out);

/* A group, and how sentences name it and its ranks. */
struct p2p_group_info {
    uint32_t id;
    const char *name;        /* borrowed, until p2p_end_group() */
    const uint32_t *members; /* likewise: the peer of each rank */
    uint32_t member_count;   /* 0: they are not known */
};

/* Says which call of the group this process is in: what comes, or has come, for the same call with another fingerprint
 * makes p2p_wait() fail with MUSTER_EMISMATCH, whatever step it belongs to. */
int p2p_begin_call(struct p2p *p2p, const struct p2p_group_info *info, uint64_t call, uint64_t fingerprint);

/* Tells `peer`, for which this process has long waited, which call of the group it is in: perhaps the peer waits in
 * another one. Any thread; does not block. */
void p2p_tell_call(struct p2p *p2p, uint32_t id, uint32_t peer);

/* For how long the kernel of `peer` has acknowledged nothing, where it should have; 0: it answers, or nothing is known.
 * Any thread; does not block. */
int64_t p2p_silence_ms(struct p2p *p2p, uint32_t peer);

/* The group of these peers is freed here: messages of it that have come, or will come, are dropped, so that their
 * senders have room for those of other groups; the others are told neither to wait for more nor to send any. Any
 * thread; does not block. */
void p2p_end_group(struct p2p *p2p, uint32_t id, const uint32_t *members, uint32_t member_count);
/* The same is seen of a neighbour, which has written all that it sends: ends receives that wait for more from it, and
 * sends that it has not taken. Any thread; does not block. */
void p2p_peer_left(struct p2p *p2p, uint32_t id, uint32_t peer);

/* Moves what can be moved without blocking. true: something moved. Any thread. */
bool p2p_progress(struct p2p *p2p);
/* Has a neighbour begun to send to this process? Costs a look at a cache line that is seldom written. Any thread. */
bool p2p_is_called(const struct p2p *p2p);
/* Moves as p2p_progress() does, for the idle() of a waiter that sleeps on the bell's futex, where there are neighbours:
 * if somebody sleeps, or is about to, sees to it that the bell is rung when sockets have news. */
bool p2p_idle(struct p2p *p2p);

/* Waits until all are done, by the waiter (whose idle() need not be p2p_idle(): the same is done here). The
 * first error of any of them, with its detail, MUSTER_ETIMEOUT (without one), or what stopped() says; then those not
 * done are withdrawn, so that their memory may go. */
int p2p_wait(struct p2p *p2p, struct comm_waiter *waiter, struct p2p_request *const *requests, size_t request_count,
             int64_t deadline_ns);
/* Waits until ready() says so. It is called after each look at the links, by this thread, without locks, and may post.
 * Returns as comm_wait() does; withdraws nothing. */
int p2p_wait_until(struct p2p *p2p, struct comm_waiter *waiter, bool (*ready)(void *argument), void *argument,
                   int64_t deadline_ns);
/* Takes back those that are not done, so that their memory may go. For requests of a group that has failed, or whose
 * deadline has passed: the other sides hear of that. */
void p2p_withdraw(struct p2p *p2p, struct p2p_request *const *requests, size_t request_count);

/* Nobody waits for the request any more: afterwards its memory, and its buffer, may go. Nobody need have failed. A
 * receive is taken back; if its message has begun to come, that is lost. A send that is not done goes on: p2p adopts
 * it, with a copy of its buffer. Does not wait for the other side. MUSTER_ELIMIT, MUSTER_ENOMEM: the send cannot be
 * adopted and has been taken back; its receiver hears nothing of that. Any thread. */
int p2p_let_go(struct p2p *p2p, struct p2p_request *request);
/* The same with all messages of the group, which is about to be freed here. Sends that cannot be adopted are taken
 * back: their receivers will hear that this process has left. Waits until the first bytes of all sends are on their
 * way; takes back the rest when nothing has moved for P2P_GOODBYE_MS. */
void p2p_let_go_group(struct p2p *p2p, uint32_t id);

/* Frees what a request holds that is done. */
void p2p_forget(struct p2p_request *request);

/* The first error among requests that are all done, if `code` is not one already; frees what they hold. */
int p2p_collect(struct p2p_request *const *requests, size_t request_count, int code);

/* Gives the status (with its detail in this thread) of a request that is done, and what it holds. */
int p2p_request_done(struct p2p_request *request);

#endif

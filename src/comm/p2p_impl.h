/* What the files of p2p share. Everything here is guarded by p2p.lock unless it says otherwise. */
#ifndef COMM_P2P_IMPL_H
#define COMM_P2P_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/buf.h"
#include "base/status.h"
#include "base/ticks.h"
#include "comm/link.h"
#include "comm/p2p.h"
#include "comm/wire.h"

enum {
    P2P_STAGING_BYTES = 16 << 10, /* of a stream: short frames are read together */
    P2P_BOUNCE_BYTES = 256 << 10, /* what is to be consumed passes through here: it stays in the second-level cache */
    P2P_PIECE_BYTES = 256 << 10,  /* of a long message, in one frame */
    P2P_HEADER_COST = 128,        /* what a frame's own memory counts as, in credit */
    P2P_CONTROL_BYTES_MAX = 1 << 20,   /* frames without payload that wait for the socket */
    P2P_STRANGERS_MAX = 64,            /* connections that have not shown the secret yet; one more ends the oldest */
    P2P_GREETING_MS = 10000,           /* in which they must */
    P2P_DIAL_MS = 10000,               /* for one address to answer; then the next is tried */
    P2P_EXPLAIN_MS = 500,              /* for others to tell why a peer is gone that cannot be connected to */
    P2P_LAST_BYTES_MS = 100,           /* for the end of the connections to a peer that others call dead */
    P2P_READ_MEMORY_BYTES = 32 << 10,  /* from here on a neighbour's message is read out of its memory */
    P2P_READ_SHARED_BYTES = 128 << 10, /* the same out of memory that both have mapped */
    P2P_GROUPS_MAX = 65536,            /* known at a time */
    P2P_DIRECT_LINKS = 4,              /* so many sockets are looked at one by one; more by epoll */
    P2P_REASON_MAX = 128,
    P2P_CALLS_KEPT = 16 /* past calls of a group whose fingerprints are compared with late messages */
};

enum request_state {
    REQUEST_NEW,
    REQUEST_QUEUED,  /* send: waits for credit or the stream */
    REQUEST_OFFERED, /* send: its first frame is going out or has gone; the rest waits for the receiver */
    REQUEST_CLEARED, /* send: the rest is given to streams, piece by piece */
    REQUEST_FLOWING, /* send: all of it is given to streams */
    REQUEST_POSTED,  /* receive: no message yet */
    REQUEST_FILLING, /* receive: its message is coming */
    REQUEST_READING, /* receive: its message is read out of the sender's memory */
    REQUEST_DONE
};

struct p2p_list {
    struct p2p_request *first, *last;
};

/* A message that nobody has asked for yet, with the part that came with its first frame. */
struct p2p_arrival {
    struct p2p_arrival *next, *previous;
    struct p2p_link *link;
    struct wire_frame frame;
    uint64_t address, withdrawn; /* if it may be read from the sender's memory */
    struct memory_place place;   /* if that is shared */
    uint64_t ticket;             /* order of arrival over all links: for receives from anybody */
    size_t have;                 /* of frame.payload */
    uint8_t data[];
};

enum payload_target { PAYLOAD_DISCARD, PAYLOAD_REQUEST, PAYLOAD_ARRIVAL, PAYLOAD_SMALL };

/* One connection. The first of a link carries everything, further ones only pieces of long messages; watches carry
 * notices. */
struct p2p_stream {
    struct link *io; /* owned */
    struct p2p_link *link;
    uint8_t index;
    bool is_watch, said_goodbye, is_blocked /* by the socket */, is_polled_for_out;
    bool is_doomed; /* it cannot finish the frame that it has begun */
    bool is_broken; /* cannot be written to any more: what is left to read tells why */
    bool is_being_read;
    int error_number; /* of the write that failed */

    /* coming in */
    uint8_t *staging; /* owned, P2P_STAGING_BYTES */
    size_t staged_at, staged;
    struct wire_frame in;
    size_t in_left, in_offset; /* payload: to come; where the next byte belongs in the message */
    enum payload_target target;
    struct p2p_request *in_request;
    struct p2p_arrival *in_arrival;
    uint8_t carry[8]; /* the beginning of an element whose end has not come */
    size_t carry_count;
    uint8_t small[WIRE_NOTICE_BYTES_MAX];
    size_t small_count;

    /* going out */
    struct buf control; /* whole frames without message data; go between others */
    uint8_t header[WIRE_HEADER_BYTES + WIRE_SHARED_BYTES];
    size_t header_at, header_bytes; /* a frame is under way while header_bytes > 0 */
    const uint8_t *payload;
    size_t payload_left;
    uint8_t *payload_copy; /* owned: rest of a frame whose request was withdrawn */
    struct p2p_request *out_request;
    struct p2p_stream *next_blocked, *next_open, *previous_open;
};

/* Credit of one lane, in bytes since the beginning, modulo 2^32. */
struct p2p_credit {
    uint32_t sent, returned;    /* to the peer */
    uint32_t came, taken, told; /* from it */
};

enum link_state { LINK_NEW, LINK_DIALLING, LINK_OPEN, LINK_LEFT /* said goodbye */, LINK_FAILED };

struct short_box; /* p2p_short.c */

struct p2p_link {
    uint32_t peer;
    enum link_state state;
    bool is_ring, is_mine /* we dialled */, may_read_memory, is_leaving /* goodbye on the first connection */;
    bool said_goodbye;            /* on any connection: their ends are no death */
    bool is_watching, is_watched; /* the watch from here, or there, has been made */
    bool is_dying;                /* others call it dead: so does this process when all its bytes are read ... */
    bool owes_notice;             /* ... and tells the hook then */
    uint32_t told_by;             /* the peer that found out */
    int64_t dying_until_ns;
    uint8_t stream_count; /* wanted */
    uint8_t streams_open;
    struct p2p_stream *streams[P2P_STREAMS_MAX]; /* owned */
    struct p2p_stream *watches[2];               /* owned: dialled here, dialled there */
    struct wire_contact contact;                 /* valid if has_contact */
    bool has_contact;
    struct p2p_credit credit[P2P_LANE_COUNT];
    struct p2p_list queue[P2P_LANE_COUNT]; /* sends, not begun */
    struct p2p_list offered, cleared;      /* sends; FLOWING ones are in `offered` */
    struct p2p_list posted, filling;       /* receives */
    struct p2p_list reading;               /* receives that are read out of the peer's memory */
    struct p2p_arrival *arrivals, *arrivals_last;
    uint32_t interest; /* requests in the lists above */
    struct p2p_link *next_active, *previous_active;
    bool is_active;
    int code;       /* of a failed link */
    char *sentence; /* owned */

    /* Short messages of neighbours; short_in and short_out in the shared segment, NULL: none. */
    struct short_box *short_in, *short_out;
    size_t short_slot_bytes;
    struct comm_bell *short_bell; /* the peer's */
    uint32_t short_sent, short_seen_taken;
    _Atomic uint32_t short_came; /* taken out here; written with the lock, read by p2p_receive_short() without */
};

/* An outgoing connection that is not ready. */
struct p2p_dial {
    struct p2p_dial *next;
    struct p2p_link *link;
    enum wire_purpose purpose;
    uint8_t stream;
    uint32_t address; /* which of the contact's is tried */
    int fd;           /* until it is connected; -1: between two addresses */
    struct link *io;  /* owned; from then on */
    bool is_cancelled;
    bool is_refused; /* by all addresses: others may tell why, until the deadline */
    uint8_t hello[WIRE_HELLO_BYTES], answer[WIRE_HELLO_BYTES];
    size_t hello_sent, answer_have;
    int64_t deadline_ns;
    int last_error;
    char last_reason[P2P_REASON_MAX]; /* where that does not say it */
};

/* An incoming connection that has not shown the secret. */
struct p2p_stranger {
    struct link *io; /* owned; NULL: a free place */
    uint8_t hello[WIRE_HELLO_BYTES];
    size_t have;
    int64_t deadline_ns;
};

struct p2p_group {
    uint32_t id; /* any number: ids are unique in the job, not dense */
    bool is_used;
    bool has_failed;
    bool has_ended;  /* freed here: nobody will receive */
    uint64_t spared; /* of a failed one: its calls up to this number go on; 0: none */
    int code;
    char *sentence; /* owned */
    uint32_t call;  /* number of the call that runs, modulo 2^24; valid if fingerprint != 0 */
    uint64_t fingerprint;
    uint32_t past_calls[P2P_CALLS_KEPT];
    uint64_t past_fingerprints[P2P_CALLS_KEPT];
    uint32_t past_at;
    /* what a peer has told of a call that this process has not begun; none if the fingerprint is 0 */
    uint32_t told_call, told_by;
    uint64_t told_fingerprint;
};

struct pending_notice {
    struct pending_notice *next;
    struct p2p_notice notice;
};

struct p2p {
    struct p2p_config config; /* its arrays are our own */
    pthread_mutex_t lock;
    _Atomic uint32_t visitors; /* the monitor wants the lock: callers who spin let it through */

    struct p2p_link **links; /* by peer; NULL: none yet */
    bool has_failures;       /* some group has failed or some peer is dead */
    bool has_ended_groups;   /* p2p_end_group() */
    bool is_leaving;         /* p2p_free(): who goes now goes after us */
    uint32_t dying_count;    /* links */
    uint8_t *is_dead;        /* by peer: told already */
    struct p2p_link *active; /* links with interest */
    uint32_t active_count;
    struct p2p_list any;        /* receives from anybody */
    struct p2p_stream *blocked; /* streams with output that the socket did not take */
    struct p2p_stream *open;    /* all streams with a socket, watches excepted */
    struct p2p_stream *closed;  /* freed when the lock is released: callers may be in the middle of them */
    uint32_t open_count;
    struct p2p_group *groups; /* open addressing by id: group_count places, a power of 2, at most half of them used */
    uint32_t group_count, groups_used;
    uint64_t tickets; /* given to arrivals */
    uint32_t next_id;
    uint32_t completed; /* requests that became done in this round: then the bell is rung */
    uint32_t looks;
    struct ticks_clock clock; /* for short messages */
    uint8_t *bounce;          /* owned, P2P_BOUNCE_BYTES; made when first needed */

    struct p2p_ring_table *rings; /* NULL: none */
    uint32_t *local_of;           /* by place in config.neighbours: unused when rings is NULL */
    bool is_crowded;              /* the neighbours outnumber the cores */

    struct pending_notice *notices, **notices_end; /* for the hook, once the lock is released */

    /* attending */
    int listener, timer, attend_epoll, data_epoll;
    int bell_event; /* eventfd of a bell that no neighbour rings: sleepers wait on data_epoll, which has it; -1: none */
    bool is_armed;
    int64_t timer_ns, listener_pause_ns; /* 0: not set */
    struct wire_contact contact;         /* ours */
    struct p2p_stranger strangers[P2P_STRANGERS_MAX];
    struct p2p_dial *dials;
};

/* ---- p2p.c ---- */

/* Takes a request that is not done out of wherever it is, so that its memory may go. */
void request_withdraw(struct p2p *p2p, struct p2p_request *request);

void p2p_lock(struct p2p *p2p);
/* Releases the lock, then rings for what was completed and hands out notices. */
void p2p_unlock(struct p2p *p2p);
/* Writes what streams have not taken before. true: something moved. */
bool p2p_flush_blocked(struct p2p *p2p);

/* ---- p2p_match.c ---- */

void list_append(struct p2p_list *list, struct p2p_request *request);
void list_remove(struct p2p_list *list, struct p2p_request *request);
struct p2p_request *list_find(const struct p2p_list *list, uint32_t id);

/* The request is done. detail: NULL or a sentence, copied. */
void request_finish(struct p2p *p2p, struct p2p_request *request, int status, const char *detail);
/* Puts the request into one of the link's lists, or takes it out, and counts. */
void link_put(struct p2p *p2p, struct p2p_link *link, struct p2p_list *list, struct p2p_request *request);
void link_take(struct p2p *p2p, struct p2p_link *link, struct p2p_list *list, struct p2p_request *request);

/* The posted receive that a message is for, taken out of its list; NULL: none yet. */
struct p2p_request *match_message(struct p2p *p2p, struct p2p_link *link, const struct wire_frame *frame);
/* The earliest message that the receive is for, taken out of its list; NULL: none yet. */
struct p2p_arrival *match_receive(struct p2p *p2p, struct p2p_link *link, const struct p2p_request *request);
/* Do message and receive fit together? If not the request is finished with MUSTER_EMISMATCH. */
bool match_fits(struct p2p *p2p, struct p2p_request *request, const struct wire_frame *frame, uint32_t peer);
void arrival_append(struct p2p_link *link, struct p2p_arrival *arrival);
void arrival_remove(struct p2p_link *link, struct p2p_arrival *arrival);

/* ---- p2p_groups.c ---- */

/* The group's entry; NULL: there is none. Valid until the next one is made. */
struct p2p_group *p2p_group_find(const struct p2p *p2p, uint32_t id);
/* The same, made if need be. NULL: out of memory, or too many. */
struct p2p_group *p2p_group_get(struct p2p *p2p, uint32_t id);
/* Ends all requests of the group but those of spared calls, now and from now on. false: it had failed before, and
 * spared no more. */
bool p2p_group_fail(struct p2p *p2p, uint32_t id, int code, const char *sentence, uint64_t spared);
/* Has the group failed, as far as messages of this lane and tag go? */
bool p2p_group_refuses(const struct p2p_group *group, uint8_t lane, uint64_t tag);
/* Will nobody receive the message any more, because its group has failed or was freed? It may not keep room. */
bool p2p_group_is_over(const struct p2p *p2p, const struct wire_frame *frame);
/* Does the message contradict the call that the group is in, or was in? Then the group fails, and everybody is told. */
bool p2p_group_contradicts(struct p2p *p2p, const struct p2p_link *link, const struct wire_frame *frame);
/* A peer has told in which call it waits for this process. */
void p2p_group_hears(struct p2p *p2p, const struct p2p_link *link, const struct wire_frame *frame);
/* Sends a notice over all links but `from`. */
void notice_forward(struct p2p *p2p, const struct p2p_notice *notice, const struct p2p_link *from);
/* Tells a peer that has just connected what everybody else knows already. */
void notice_tell_all(struct p2p *p2p, struct p2p_stream *stream);
/* What a peer has told. */
void notice_take(struct p2p *p2p, struct p2p_link *from, const struct p2p_notice *notice);
/* Queues it for the hook. */
void notice_report(struct p2p *p2p, const struct p2p_notice *notice);
/* This process found out that the peer is dead. */
void peer_found_dead(struct p2p *p2p, uint32_t peer, int code, const char *sentence);

/* ---- p2p_send.c ---- */

static inline uint32_t credit_left(const struct p2p_credit *credit) {
    return (uint32_t)P2P_UNEXPECTED_BYTES_MAX - (credit->sent - credit->returned);
}

void stream_control(struct p2p *p2p, struct p2p_stream *stream, const struct wire_frame *frame, const void *payload);
/* Writes what the stream takes. false: nothing moved. May fail the link. */
bool stream_flush(struct p2p *p2p, struct p2p_stream *stream);
/* Starts what can be started on all streams. */
bool link_flush(struct p2p *p2p, struct p2p_link *link);
void link_cleared(struct p2p *p2p, struct p2p_link *link, const struct wire_frame *frame);
void link_finished(struct p2p *p2p, struct p2p_link *link, const struct wire_frame *frame);
/* The request's memory goes: what a stream has begun of it is copied. */
void stream_disown(struct p2p_stream *stream, const struct p2p_request *request);
void link_tell_credit(struct p2p *p2p, struct p2p_link *link, uint8_t lane);

/* ---- p2p_read.c ---- */

/* Reads what there is, within bounds. false: nothing moved. May fail the link. */
bool stream_read(struct p2p *p2p, struct p2p_stream *stream);
/* Forgets messages of the group that nobody will receive, so that the peer has room for those of others. */
void arrivals_drop(struct p2p *p2p, struct p2p_link *link, uint32_t group);
/* A receive has found its message among the arrivals; frees that. */
void arrival_deliver(struct p2p *p2p, struct p2p_link *link, struct p2p_request *request, struct p2p_arrival *arrival);
bool link_read_memory(struct p2p *p2p, struct p2p_link *link);
/* A message that has come as a whole: frame->payload == frame->bytes, which lie at `data`. */
void message_take(struct p2p *p2p, struct p2p_link *link, const struct wire_frame *frame, const void *data);

/* ---- p2p_links.c ---- */

/* The link to a peer, made if need be: a ring, or a connection that is being made. Called with the lock, which it may
 * release for the look-up of the contact. */
int link_open(struct p2p *p2p, uint32_t peer, int64_t deadline_ns, struct p2p_link **out);
/* The entry alone. NULL: out of memory. */
struct p2p_link *link_entry(struct p2p *p2p, uint32_t peer);
/* Takes `io` (also on failure). */
int stream_open(struct p2p *p2p, struct p2p_link *link, struct link *io, uint8_t index, bool is_watch, bool is_mine);
void stream_close(struct p2p *p2p, struct p2p_stream *stream);
void link_free(struct p2p *p2p, struct p2p_link *link);

/* ---- p2p_end.c ---- */

/* The link is of no more use: everything on it ends with `code` and the sentence, and everybody is told. */
void link_fail(struct p2p *p2p, struct p2p_link *link, int code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* The peer's connection ended without goodbye. error_number 0: it closed. */
void link_lost(struct p2p *p2p, struct p2p_link *link, int error_number);
/* The peer is called dead: the link fails with the sentence as soon as all is read that the peer has sent. */
void link_bury(struct p2p *p2p, struct p2p_link *link, const char *sentence);
/* It is time: fails all links whose peers are dying and whose connections have not ended in time. */
void links_bury_late(struct p2p *p2p, int64_t now_ns);
/* The peer has said goodbye on the first connection: the link ends when all others have ended, too. */
void link_left(struct p2p *p2p, struct p2p_link *link);
/* The peer has said goodbye, and no connection is left. */
void link_depart(struct p2p *p2p, struct p2p_link *link);
/* "rank 3 on host a", for sentences. Returns out. */
enum { P2P_PEER_NAME_MAX = 96 };
char *link_peer_name(const struct p2p *p2p, const struct p2p_link *link, char out[P2P_PEER_NAME_MAX]);
/* Nothing more will come on the stream. error_number 0: the peer has closed it. */
void stream_ended(struct p2p *p2p, struct p2p_stream *stream, int error_number);
/* Nothing can be written to the stream any more. */
void stream_break(struct p2p *p2p, struct p2p_stream *stream, int error_number);
void stream_say_goodbye(struct p2p *p2p, struct p2p_stream *stream);
void link_close_streams(struct p2p *p2p, struct p2p_link *link);

/* ---- p2p_attend.c ---- */

/* What an event is about. */
enum attend_subject { ON_LISTENER, ON_TIMER, ON_DATA, ON_STRANGER, ON_DIAL, ON_STREAM };

int attend_create(struct p2p *p2p);
void attend_destroy(struct p2p *p2p);
/* epoll_ctl() on what the monitor waits for; object: of the subject, aligned to 8 bytes. */
int attend_watch(struct p2p *p2p, int operation, int fd, uint32_t events, enum attend_subject subject, void *object);
int64_t attend_deadline_ns(int64_t ms);
/* Options that every connection gets. */
void attend_tune(int fd);
/* One turn of p2p_attend(), with the lock. */
void attend_turn(struct p2p *p2p);
/* After a deadline has been set or passed. */
void attend_set_timer(struct p2p *p2p);
void attend_add(struct p2p *p2p, struct p2p_stream *stream);
void attend_remove(struct p2p *p2p, struct p2p_stream *stream);
/* Someone is about to sleep: the bell is to be rung when a socket has news. */
void attend_arm(struct p2p *p2p);

/* ---- p2p_greet.c ---- */

int dial_start(struct p2p *p2p, struct p2p_link *link, enum wire_purpose purpose, uint8_t stream);
/* Ends the dials of a link. */
void dial_cancel(struct p2p *p2p, const struct p2p_link *link);
/* The peer has said goodbye: that is why it cannot be connected to. */
void dial_explain(struct p2p *p2p, struct p2p_link *link);
/* Is a connection being made from here? */
bool dial_is_under_way(const struct p2p *p2p);
/* Frees those that have come to an end. */
void dial_sweep(struct p2p *p2p);
/* Something has happened at a connection that is being made, at a stranger's, at the listener. */
void greet_dialled(struct p2p *p2p, struct p2p_dial *dial);
void greet_stranger(struct p2p *p2p, struct p2p_stranger *stranger);
void greet_accept(struct p2p *p2p);
/* Ends what is not finished: those whose time is up, or all. */
void greet_end_late(struct p2p *p2p, int64_t now_ns);
void greet_end_all(struct p2p *p2p);

/* ---- p2p_rings.c ---- */

int rings_create(struct p2p *p2p);
void rings_destroy(struct p2p *p2p);
/* This process's place among the neighbours' of `peer`, or UINT32_MAX. */
uint32_t rings_local(const struct p2p *p2p, uint32_t peer);
int rings_open(struct p2p *p2p, struct p2p_link *link);
/* Opens links that neighbours have begun to use, and moves bytes. */
bool rings_progress(struct p2p *p2p);

/* ---- p2p_short.c ---- */

/* Of one box, in the shared segment: zeroed, aligned to 64 bytes. slot_bytes: a multiple of 64. */
size_t short_box_bytes(size_t slot_bytes);
/* Puts the message into the peer's box, if it is short and its turn has come. The caller rings link->short_bell. */
bool short_put(struct p2p_link *link, const struct p2p_envelope *envelope, const void *buffer, size_t bytes);
/* Takes what lies in our box; the second up to message number `count`. true: something moved. May fail the link. */
bool short_take(struct p2p *p2p, struct p2p_link *link);
bool short_take_until(struct p2p *p2p, struct p2p_link *link, uint32_t count);

#endif

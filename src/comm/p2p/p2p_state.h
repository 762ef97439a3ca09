/* What p2p keeps: requests' states, streams, links, groups, and the whole. Everything here is guarded by p2p.lock
 * unless it says otherwise. Which file does what with it is in p2p_impl.h. */
#ifndef COMM_P2P_STATE_H
#define COMM_P2P_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/buf.h"
#include "base/ticks.h"
#include "comm/p2p/link.h"
#include "comm/p2p/p2p.h"
#include "comm/p2p/wire.h"

enum {
    P2P_STAGING_BYTES = 16 << 10, /* of a stream: short frames are read together */
    P2P_BOUNCE_BYTES = 256 << 10, /* what is to be consumed passes through here: it stays in the second-level cache */
    P2P_PIECE_BYTES = 256 << 10,  /* of a long message, in one frame */
    P2P_HEADER_COST = 128,        /* what a frame's own memory counts as, in credit */
    P2P_CONTROL_BYTES_MAX = 1 << 20,   /* frames without payload that wait for the socket */
    P2P_STRANGERS_MAX = 64,            /* connections that have not shown the secret yet; one more ends the oldest */
    P2P_GREETING_MS = 10000,           /* in which they must */
    P2P_DIAL_MS = 10000,               /* for one address to answer; then the next is tried */
    P2P_REDIAL_MS = 500,               /* after the last of them, before the first is tried again */
    P2P_INTRODUCE_MS = 100,            /* for who leaves and others to say who they are, where that is under way */
    P2P_EXPLAIN_MS = 500,              /* for others to tell why a peer is gone that cannot be connected to */
    P2P_PATH_LOST_AFTER_MS = 30000,    /* without any answer one of several paths is given up */
    P2P_SILENT_MS = 3000,              /* shorter silences are not spoken of */
    P2P_TELL_SILENCE_MS = 15000,       /* then it is told whose answers are missing; and again ... */
    P2P_TELL_AGAIN_MS = 60000,         /* ... each time so much later */
    P2P_LAST_BYTES_MS = 100,           /* for the end of the connections to a peer that others call dead */
    P2P_READ_MEMORY_BYTES = 32 << 10,  /* from here on a neighbour's message is read out of its memory */
    P2P_READ_SHARED_BYTES = 128 << 10, /* the same out of memory that both have mapped */
    P2P_GROUPS_MAX = 65536,            /* known at a time */
    P2P_DIRECT_LINKS = 4,              /* so many sockets are looked at one by one; more by epoll */
    P2P_REASON_MAX = 128,
    P2P_ELEMENT_BYTES = 8, /* what is consumed begins and ends at multiples */
    P2P_CALLS_KEPT = 16    /* past calls of a group whose fingerprints are compared with late messages */
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

/* A write whose memory the kernel has been given: p2p_zero_copy.c. */
struct p2p_held {
    struct p2p_request *request; /* NULL: it was taken back */
    bool is_out;
};

/* One connection. The first of a link carries everything, further ones only pieces of long messages; watches carry
 * notices. */
struct p2p_stream {
    struct link *io; /* owned */
    struct p2p_link *link;
    struct net_address_key local; /* the address of its socket, by which paths are told apart */
    char peer_address[NET_ADDRESS_TEXT_MAX];
    uint8_t index;
    bool is_watch, said_goodbye, is_blocked /* by the socket */, is_polled_for_out;
    int doom; /* why it cannot go on (MUSTER_ENOMEM, MUSTER_ELIMIT): the link fails at the next flush; 0: it can */
    bool is_broken; /* cannot be written to any more: what is left to read tells why */
    bool is_being_read;
    int error_number;                  /* of the write that failed */
    int64_t silent_ns;                 /* since then nothing has been answered; 0: something has: p2p_silence.c */
    int64_t alone_ns;                  /* the same, while another path of the link answers */
    uint32_t pause_ms, usual_pause_ms; /* at most, before the kernel sends again; 0: the usual, or not known */

    /* coming in */
    uint8_t *staging; /* owned, P2P_STAGING_BYTES */
    size_t staged_at, staged;
    struct wire_frame in;
    size_t in_left, in_offset; /* payload: to come; where the next byte belongs in the message */
    enum payload_target target;
    struct p2p_request *in_request;
    struct p2p_arrival *in_arrival;
    uint8_t carry[P2P_ELEMENT_BYTES]; /* the beginning of an element whose end has not come */
    size_t carry_count;
    uint8_t small[WIRE_NOTICE_BYTES_MAX];
    size_t small_count;

    /* going out; how fast, where there are several paths: p2p_paths.c */
    uint64_t sent, acknowledged; /* bytes since it began; at measured_ns */
    int64_t measured_ns;
    double bytes_per_s; /* 0: not known */
    bool was_busy;      /* at measured_ns */
    struct buf control; /* whole frames without message data; go between others */
    uint8_t header[WIRE_HEADER_BYTES + WIRE_SHARED_BYTES];
    size_t header_at, header_bytes; /* a frame is under way while header_bytes > 0 */
    const uint8_t *payload;
    size_t payload_left;
    uint8_t *payload_copy; /* owned: rest of a frame whose request has ended */
    struct p2p_request *out_request;

    /* writes that the kernel holds memory of: p2p_zero_copy.c */
    bool may_hold;                  /* the socket can */
    bool may_be_held;               /* the frame under way is of such a message, and not its tail */
    struct p2p_held *held;          /* owned, a ring by number; made when first needed */
    uint32_t held_first, held_next; /* numbers, modulo 2^32 */
    uint32_t held_count;            /* of these: not given back */

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
    uint32_t silence_told; /* times, of this silence */
    uint8_t stream_count;  /* wanted */
    uint8_t streams_open;
    struct p2p_stream *streams[P2P_STREAMS_MAX]; /* owned */
    struct p2p_stream *watches[2];               /* owned: dialled here, dialled there */
    struct wire_contact contact;                 /* valid if has_contact */
    bool has_contact;
    uint8_t first_address;             /* of the contact's: of the first connection, if it was made here */
    uint8_t paths[WIRE_ADDRESSES_MAX]; /* of the contact's addresses: one for each pair of interfaces */
    uint8_t path_count;                /* 0: only one is known */
    bool has_paths;                    /* its connections are on several */
    bool copies_all;                   /* zero-copy sends have turned out to be of no use, or impossible */
    struct p2p_credit credit[P2P_LANE_COUNT];
    struct p2p_list queue[P2P_LANE_COUNT]; /* sends, not begun */
    struct p2p_list offered, cleared;      /* sends; FLOWING ones are in `offered` */
    struct p2p_list posted, filling;       /* receives */
    struct p2p_list reading;               /* receives that are read out of the peer's memory */
    struct p2p_arrival *arrivals, *arrivals_last;
    uint32_t interest; /* requests in the lists above */
    uint32_t *left;    /* owned: groups that the peer has freed, and this process has not */
    uint32_t left_count, left_max;
    struct p2p_link *next_active, *previous_active;
    bool is_active;
    int code;       /* of a failed link */
    char *sentence; /* owned */
    struct p2p_blamed blamed;

    /* Short messages of neighbours; short_in and short_out in the shared segment, NULL: none. */
    struct short_box *short_in, *short_out;
    size_t short_slot_bytes;
    struct comm_bell *short_bell; /* the peer's */
    uint32_t short_sent, short_seen_taken;
    _Atomic uint32_t short_came; /* taken out here; written with the lock, read by p2p_receive_short() without */
};

/* All connections of a link, watches included, are numbered; NULL: there is none of that number. */
#define P2P_CONNECTIONS_MAX (P2P_STREAMS_MAX + 2)
static inline struct p2p_stream *link_connection(const struct p2p_link *link, size_t number) {
    return number < P2P_STREAMS_MAX ? link->streams[number] : link->watches[number - P2P_STREAMS_MAX];
}

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
    bool is_paused;  /* nobody has answered: until the deadline */
    uint8_t hello[WIRE_HELLO_BYTES], answer[WIRE_HELLO_BYTES];
    size_t hello_sent, answer_have;
    int64_t began_ns, tried_ns; /* the dial; the address */
    int64_t deadline_ns;
    uint32_t told; /* times, that nobody answers */
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
    struct p2p_blamed blamed;
    char *sentence;   /* owned */
    uint32_t *untold; /* owned: of an ended group, the members that are to be told when there is a connection */
    uint32_t untold_count;
    struct p2p_group_info info; /* as of the last call */
    char *kept_name;            /* owned: info.name, of a group that is freed here */
    uint64_t call;              /* number of the call that runs; valid if fingerprint != 0 */
    uint64_t fingerprint;
    uint64_t past_calls[P2P_CALLS_KEPT];
    uint64_t past_fingerprints[P2P_CALLS_KEPT];
    uint32_t past_at;
    /* what a peer has told of a call that this process has not begun; none if the fingerprint is 0 */
    uint32_t told_call /* modulo 2^24 */, told_by;
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
    size_t untold_count;     /* of all groups */
    bool is_ending;          /* p2p_deliver(), or p2p_free(), has begun: who goes now may well go because of us */
    bool is_leaving;         /* it says goodbye */
    uint32_t dying_count;    /* links */
    uint8_t *is_dead;        /* by peer: told already */
    struct p2p_link *active; /* links with interest */
    uint32_t active_count;
    struct p2p_list any;                 /* receives from anybody */
    size_t adopted_count, adopted_bytes; /* sends that nobody waits for */
    struct p2p_stream *blocked;          /* streams with output that the socket did not take */
    struct p2p_stream *open;             /* all streams with a socket, watches excepted */
    struct p2p_stream *closed;           /* freed when the lock is released: callers may be in the middle of them */
    uint32_t open_count;
    struct p2p_group *groups; /* open addressing by id: group_count places, a power of 2, at most half of them used */
    uint32_t group_count, groups_used;
    uint64_t tickets; /* given to arrivals */
    uint32_t next_id;
    uint32_t completed; /* requests that became done in this round: then the bell is rung */
    bool is_reading;    /* messages are being read out of neighbours' memory; as of the last round, or receive */
    bool leaves_more;   /* whoever has the lock has moved something, and there is more: then the bell is rung */
    bool owes_credit;   /* to some peer that has no room left, as far as it knows */
    bool owes_notices;  /* to some peer: they are written before the lock is released */
    uint32_t looks;
    struct ticks_clock clock;  /* for short messages */
    uint64_t zero_copy_writes; /* so far */
    uint8_t *bounce;           /* owned, P2P_BOUNCE_BYTES; made when first needed */

    struct p2p_ring_table *rings; /* NULL: none */
    uint32_t *local_of;           /* by place in config.neighbours: unused when rings is NULL */
    bool is_crowded;              /* the neighbours outnumber the cores */

    struct pending_notice *notices, **notices_end; /* for the hook, once the lock is released */
    uint32_t handing_out;                          /* threads that are just telling the hook of some */

    /* attending */
    int listener, timer, attend_epoll, data_epoll;
    int bell_event; /* eventfd of a bell that no neighbour rings: sleepers wait on data_epoll, which has it; -1: none */
    bool is_armed;
    int64_t timer_ns, listener_pause_ns; /* 0: not set */
    int64_t silence_ns;                  /* when connections are looked at for answers; 0: nothing is unanswered */
    bool has_written;                    /* to some socket, since the lock was taken */
    struct wire_contact contact;         /* ours */
    struct p2p_stranger strangers[P2P_STRANGERS_MAX];
    struct p2p_dial *dials;
};

#endif

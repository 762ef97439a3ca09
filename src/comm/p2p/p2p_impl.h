/* What the files of p2p give to each other, file by file; what they keep is in p2p_state.h. Everything here is called
 * with p2p.lock unless it says otherwise. Where a change belongs:
 *
 * - posting and waiting: p2p.c (making, the lock, freeing), p2p_post.c (posting, taking back), p2p_adopt.c (what nobody
 *   waits for), p2p_progress.c (moving what can be moved, waiting);
 * - sending: p2p_send.c (frames of messages, writing), p2p_zero_copy.c (without a copy);
 * - receiving: p2p_read.c (reading, frames), p2p_message.c (messages that begin, or wait for their receives),
 *   p2p_match.c (which receive), p2p_place.c (payload to its place), p2p_flow.c (credit, word to the sender);
 * - past the sockets, on one host: p2p_rings.c, p2p_short.c (short messages, without frames), p2p_read_memory.c (long
 *   ones, out of the sender's memory);
 * - links: p2p_links.c (making), p2p_paths.c (over several interfaces), p2p_greet.c (connections that begin), p2p_end.c
 * (their ends, and who is to blame), p2p_silence.c (peers that answer no more), p2p_left.c (peers that leave a group,
 * and stay);
 * - failures of groups, and notices: p2p_groups.c;
 * - what the monitor's thread does: p2p_attend.c. */
#ifndef COMM_P2P_IMPL_H
#define COMM_P2P_IMPL_H

#include "base/status.h"
#include "comm/p2p/p2p_state.h"

/* ---- p2p.c ---- */

void p2p_lock(struct p2p *p2p);
/* Releases the lock, then rings for what was completed and hands out notices. */
void p2p_unlock(struct p2p *p2p);
/* Warns that this process, which leaves, waits for a peer. */
void p2p_tell_late(const struct p2p *p2p, uint32_t peer);

/* ---- p2p_post.c ---- */

/* Takes a request that is not done out of wherever it is, so that its memory may go. */
void request_withdraw(struct p2p *p2p, struct p2p_request *request);
/* The list of the link that it is in. */
struct p2p_list *request_list(struct p2p_link *link, const struct p2p_request *request);

/* ---- p2p_progress.c ---- */

/* Writes what streams have not taken before. true: something moved. */
bool p2p_flush_blocked(struct p2p *p2p);
/* One round over all that may move. true: something moved. */
bool p2p_move(struct p2p *p2p);
/* Is there something to move that no event will tell of? Then a thread that sleeps must look. */
static inline bool p2p_has_more(const struct p2p *p2p) {
    return p2p->blocked || p2p->is_reading || p2p->owes_credit;
}

/* ---- p2p_match.c ---- */

void list_append(struct p2p_list *list, struct p2p_request *request);
void list_remove(struct p2p_list *list, struct p2p_request *request);
/* `with` takes the place of `request`, whose members it has. */
void list_replace(struct p2p_list *list, const struct p2p_request *request, struct p2p_request *with);
struct p2p_request *list_find(const struct p2p_list *list, uint32_t id);

/* The request is done; one that was adopted is freed. detail: NULL or a sentence, copied. */
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
bool p2p_group_fail(struct p2p *p2p, const struct p2p_notice *notice);
/* Has the group failed, as far as messages of this lane and tag go? */
bool p2p_group_refuses(const struct p2p_group *group, uint8_t lane, uint64_t tag);
/* Will nobody receive the message any more, because its group has failed or was freed? It may not keep room. */
bool p2p_group_is_over(const struct p2p *p2p, const struct wire_frame *frame);
/* "rank 3", "rank 3 (root rank 5)", or "root rank 5" of a group whose members are not known. Returns out. */
enum { P2P_MEMBER_NAME_MAX = 48 };
char *p2p_name_member(const struct p2p *p2p, uint32_t id, uint32_t peer, char out[P2P_MEMBER_NAME_MAX]);
/* Does the message contradict the call that the group is in, or was in? Then the group fails, and everybody is told. */
bool p2p_group_contradicts(struct p2p *p2p, const struct p2p_link *link, const struct wire_frame *frame);
/* A peer has told in which call it waits for this process. */
void p2p_group_hears(struct p2p *p2p, const struct p2p_link *link, const struct wire_frame *frame);
/* Sends a notice over all links but `from`. */
void notice_forward(struct p2p *p2p, const struct p2p_notice *notice, const struct p2p_link *from);
/* Writes those that wait on any stream. A host that takes a tenth of the job with it makes hundreds of notices, which
 * everybody passes on: what comes in one turn goes out in one write a stream. */
void notices_write(struct p2p *p2p);
/* Tells a peer that has just connected what everybody else knows already. */
void notice_tell_all(struct p2p *p2p, struct p2p_stream *stream);
/* What a peer has told. */
void notice_take(struct p2p *p2p, struct p2p_link *from, const struct p2p_notice *notice);
/* Queues it for the hook. */
void notice_report(struct p2p *p2p, const struct p2p_notice *notice);
/* This process found out that the peer is dead. */
void peer_found_dead(struct p2p *p2p, uint32_t peer, int code, const char *sentence);

/* ---- p2p_send.c ---- */

/* A frame without message data: written in the next round, or with the next message. */
void stream_control(struct p2p *p2p, struct p2p_stream *stream, const struct wire_frame *frame, const void *payload);
/* Writes what the stream takes. false: nothing moved. May fail the link. */
bool stream_flush(struct p2p *p2p, struct p2p_stream *stream);
/* Starts what can be started on all streams. */
bool link_flush(struct p2p *p2p, struct p2p_link *link);
/* What the receiver of a message has said: the rest may come; all of it has been read. */
void link_cleared(struct p2p *p2p, struct p2p_link *link, const struct wire_frame *frame);
void link_finished(struct p2p *p2p, struct p2p_link *link, const struct wire_frame *frame);
/* The request's memory goes: what a stream has begun of it is copied. */
void stream_disown(struct p2p_stream *stream, struct p2p_request *request);

/* ---- p2p_zero_copy.c ---- */

/* The connection is new: may the kernel hold memory of what is written to it? */
void zero_copy_open(const struct p2p *p2p, struct p2p_stream *stream);
/* The receiver of the message is ready: is the rest to go without a copy? */
bool zero_copy_suits(const struct p2p *p2p, const struct p2p_link *link, const struct p2p_request *request);
/* Where in the message the next piece must end. */
size_t zero_copy_end(const struct p2p_request *request);
/* Is nothing left of it but the tail, whose time has not come? */
bool zero_copy_awaits(const struct p2p_request *request);
/* As link_kind.write(), of the frame under way: without a copy, if that is allowed. */
ssize_t zero_copy_write(struct p2p *p2p, struct p2p_stream *stream, const struct iovec *parts, int part_count);
/* Takes what the kernel has given back. true: there was something. *out_has_freed: the tail of a message may go. */
bool zero_copy_reap(const struct p2p *p2p, struct p2p_stream *stream, bool *out_has_freed);
/* The peer's kernel holds memory of what has just come: ours acknowledges it now. */
void zero_copy_acknowledge(const struct p2p_stream *stream);
/* The request's memory goes, whatever the kernel does with it. */
void zero_copy_disown(struct p2p_stream *stream, struct p2p_request *request);

/* ---- p2p_flow.c ---- */

/* What may still be sent of a lane. */
static inline uint32_t credit_left(const struct p2p_credit *credit) {
    return (uint32_t)P2P_UNEXPECTED_BYTES_MAX - (credit->sent - credit->returned);
}
/* The peer says so many bytes it has taken. Its frames and its short messages come two ways: this may be older than
 * what is known. */
static inline void credit_hear(struct p2p_credit *credit, uint32_t taken) {
    if ((int32_t)(taken - credit->returned) > 0) {
        credit->returned = taken;
    }
}
/* Counts a message that has come. false: more has come than there is room for; the link has failed. */
bool credit_count(struct p2p *p2p, struct p2p_link *link, const struct wire_frame *frame);
/* Tells those that cannot send before they are told; when there is nothing else to do. true: there were some. */
bool credit_tell_owed(struct p2p *p2p);
/* The message takes no room any more. */
void credit_give_back(struct p2p *p2p, struct p2p_link *link, const struct wire_frame *frame);
/* Tells the peer how much room it has, if that is worth a frame: any other frame tells it, too. */
void credit_tell(struct p2p *p2p, struct p2p_link *link, uint8_t lane);
/* The rest of the message that the frame began may come, for the request `id`; from `offset` on, if more has been read
 * out of the sender's memory than the sender knows. */
void link_send_clear(struct p2p *p2p, struct p2p_link *link, const struct wire_frame *frame, uint32_t id,
                     uint64_t offset);
/* The message that the peer's request `id` sends has been read out of its memory. */
void link_send_finished(struct p2p *p2p, struct p2p_link *link, uint8_t lane, uint32_t id);

/* ---- p2p_read.c ---- */

/* Reads what there is, within bounds. false: nothing moved. May fail the link. */
bool stream_read(struct p2p *p2p, struct p2p_stream *stream);
/* Takes what the kernel has given back of memory that it was to send from, and sends what waits for that. false: there
 * was nothing. May fail the link. */
bool stream_take_back(struct p2p *p2p, struct p2p_stream *stream);

/* ---- p2p_message.c ---- */

/* A header of that kind has come: chooses where the payload goes, for a message's first frame and for its pieces. */
void message_begins(struct p2p *p2p, struct p2p_stream *stream);
void message_continues(struct p2p_stream *stream);
/* A part of it has come: perhaps the last. */
void message_finish_if_whole(struct p2p *p2p, struct p2p_link *link, struct p2p_request *request);
/* A message that has come as a whole: frame->payload == frame->bytes, which lie at `data`. */
void message_take(struct p2p *p2p, struct p2p_link *link, const struct wire_frame *frame, const void *data);
/* All of a first frame has come that says where the message may be read. */
void arrival_offered(struct p2p *p2p, struct p2p_link *link, struct p2p_arrival *arrival);
/* A receive has found its message among the arrivals; frees that. */
void arrival_deliver(struct p2p *p2p, struct p2p_link *link, struct p2p_request *request, struct p2p_arrival *arrival);
/* Forgets messages of the group that nobody will receive, so that the peer has room for those of others. */
void arrivals_drop(struct p2p *p2p, struct p2p_link *link, uint32_t group);

/* ---- p2p_place.c ---- */

/* `n` bytes of the stream's payload that lie at `data` (which may be their place already). */
void payload_deliver(struct p2p_stream *stream, const uint8_t *data, size_t n);
/* Hands data that lies anywhere to the request's consumer, which may expect it where elements lie. */
void payload_hand_out(const struct p2p_request *request, size_t offset, const uint8_t *data, size_t n);
/* Is there p2p->bounce? Made when first asked for. false: out of memory. */
bool payload_has_bounce(struct p2p *p2p);

/* ---- p2p_read_memory.c ---- */

/* The receive's message is read out of the peer's memory from now on. */
void link_start_reading(struct p2p *p2p, struct p2p_link *link, struct p2p_request *request,
                        const struct p2p_arrival *arrival);
/* Reads a part of the first such message of the link. false: there is none. */
bool link_read_memory(struct p2p *p2p, struct p2p_link *link);

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

/* ---- p2p_paths.c ---- */

/* The peer's contact is known: chooses on which pairs of interfaces the link will have how many connections. */
void paths_choose(const struct p2p *p2p, struct p2p_link *link);
/* Which of the contact's addresses a further connection goes to. */
uint32_t path_address(const struct p2p_link *link, uint8_t stream);
/* The connection has been made. */
void path_note(struct p2p_link *link, struct p2p_stream *stream);
/* A long message begins, after none was under way: the time in between says nothing of how fast its connections are. */
void paths_begin(struct p2p_link *link);
/* This connection could take the next piece: should it? Else the one of the link that should. */
struct p2p_stream *path_for_piece(const struct p2p_link *link, struct p2p_stream *stream);
/* Of what size. */
size_t path_piece(const struct p2p_stream *stream);
/* Bytes that have been written and the peer's kernel has not acknowledged. */
uint64_t stream_queued(const struct p2p_stream *stream);

/* ---- p2p_end.c ---- */

/* The link is of no more use: everything on it ends with `code` and the sentence, and everybody is told. */
void link_fail(struct p2p *p2p, struct p2p_link *link, int code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* The peer's connection ended without goodbye. error_number 0: it closed. reason: where that does not say it, else
 * NULL. address: of the peer, where its link has several paths; else "". */
void link_lost(struct p2p *p2p, struct p2p_link *link, int error_number, const char *reason, const char *address);
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

/* All that has come on any connection of the link. */
void link_read_out(struct p2p *p2p, struct p2p_link *link);

/* ---- p2p_left.c ---- */

/* Will nothing more of the group come from the peer, since it has freed that, or all of its groups? */
bool link_has_left(const struct p2p_link *link, uint32_t id);
/* Would the peer drop a message of that envelope? */
static inline bool link_takes_no_more(const struct p2p_link *link, const struct p2p_envelope *envelope) {
    return link->state == LINK_LEFT ||
           (link->left_count > 0 && envelope->lane == P2P_MESSAGES && link_has_left(link, envelope->group));
}
/* The peer has freed the group, and all that it had sent before has been read: ends receives that wait for more, and
 * sends that it will not take. */
void link_leaves_group(struct p2p *p2p, struct p2p_link *link, uint32_t id);
/* The sentence about a peer that has left. Returns out. */
char *left_describe(const struct p2p *p2p, const struct p2p_link *link, char out[P2P_SENTENCE_MAX]);
/* Of a receive from anybody: have all members left who might send? Then *out says so. */
bool left_by_all(const struct p2p *p2p, const struct p2p_envelope *envelope, char out[P2P_SENTENCE_MAX]);
/* Some peer has left: ends receives from anybody that nobody is left for. */
void left_check_any(struct p2p *p2p);
/* The group is freed here: tells its members on other hosts, now or when there is a connection to them. */
void left_tell_members(struct p2p *p2p, struct p2p_group *group, const uint32_t *members, uint32_t member_count);
/* That connection has been made: tells what waits for it. */
void left_tell_new(struct p2p *p2p, struct p2p_stream *stream);
/* The group is freed here: who has left it is of no interest any more. */
void left_forget(struct p2p *p2p, uint32_t id);

/* ---- p2p_attend.c ---- */

/* What an event is about. */
enum attend_subject { ON_LISTENER, ON_TIMER, ON_DATA, ON_STRANGER, ON_DIAL, ON_STREAM };

int attend_create(struct p2p *p2p);
void attend_destroy(struct p2p *p2p);
/* epoll_ctl() on what the monitor waits for; object: of the subject, aligned to 8 bytes. */
int attend_watch(struct p2p *p2p, int operation, int fd, uint32_t events, enum attend_subject subject, void *object);
/* Before `fd` is closed or watched for another object. Closing alone does not end it where a child that the program has
 * forked holds the socket as well: events would go on coming, for what has been freed. -1 with errno. */
int attend_forget(struct p2p *p2p, int fd);
int64_t attend_deadline_ns(int64_t ms);
/* The listener can be watched no more: whoever wants to connect is refused at once. */
void attend_stop_listening(struct p2p *p2p, int error_number);
/* Options that every connection gets. */
void attend_tune(const struct p2p *p2p, int fd);
/* One turn of p2p_attend(), with the lock. */
void attend_turn(struct p2p *p2p);
/* After a deadline has been set or passed. Where no timer can be set all deadlines have passed. */
void attend_set_timer(struct p2p *p2p);
/* -1 with errno: not all of its events will come; attend_remove() it. */
int attend_add(struct p2p *p2p, struct p2p_stream *stream);
void attend_remove(struct p2p *p2p, struct p2p_stream *stream);
/* Someone is about to sleep: the bell is to be rung when a socket has news. */
void attend_arm(struct p2p *p2p);

/* ---- p2p_silence.c ---- */

/* For how long a silent peer is waited for. */
int64_t silence_lost_after_ns(const struct p2p *p2p);
/* Has nothing that was sent on the connection, a socket's, been answered for so long? Asked often. */
bool silence_is_lost(const struct p2p *p2p, struct p2p_stream *stream, int64_t now_ns);
/* Something has been written: connections are looked at from now on, and those broken whose peers are lost. */
void silence_watch(struct p2p *p2p);
/* It is time for a look: p2p.silence_ns. */
void silence_look(struct p2p *p2p, int64_t now_ns);
/* "nothing was acknowledged for 180 s": why the connection has ended, or ends. */
void silence_describe(const struct p2p *p2p, const struct p2p_stream *stream, int error_number,
                      char out[P2P_REASON_MAX]);
/* Says that the peer `what` ("does not answer") since then, and until when it is waited for: after a while, and then
 * now and again. told: how many times it has been said. */
void silence_tell_wait(const struct p2p *p2p, const struct p2p_link *link, const char *what, int64_t since_ns,
                       int64_t now_ns, uint32_t *told);
/* Has the kernel sent something that nobody has answered? (In the header for tests, as are the next two.) */
struct tcp_info;
bool silence_is_unanswered(const struct tcp_info *info);
/* Since when; 0: all is answered. since_ns: what the look before gave. */
int64_t silence_since_ns(const struct tcp_info *info, int64_t since_ns, int64_t now_ns);
/* How long the kernel may pause at most before it sends again; 0: as usual. silent_for_ns: 0: all is answered. */
uint32_t silence_pause_ms(const struct tcp_info *info, int64_t silent_for_ns);

/* ---- p2p_greet.c ---- */

int dial_start(struct p2p *p2p, struct p2p_link *link, enum wire_purpose purpose, uint8_t stream);
/* Ends the dials of a link. */
void dial_cancel(struct p2p *p2p, const struct p2p_link *link);
/* The peer has said goodbye: that is why it cannot be connected to. */
void dial_explain(struct p2p *p2p, struct p2p_link *link);
/* This process leaves: what it has to say follows each greeting that has been sent, without waiting for the answer, so
 * that the peer's kernel has all of it even if the peer is stopped. */
void dial_leave(struct p2p *p2p);
/* Frees those that have come to an end. */
void dial_sweep(struct p2p *p2p);
/* Something has happened at a connection that is being made, at a stranger's, at the listener. */
void greet_dialled(struct p2p *p2p, struct p2p_dial *dial);
void greet_stranger(struct p2p *p2p, struct p2p_stranger *stranger);
void greet_accept(struct p2p *p2p);
/* Is a connection being made, from here or from there, on which nobody has said who it is? */
bool greet_is_under_way(const struct p2p *p2p);
/* Ends what is not finished: those whose time is up (for error_number, as ETIMEDOUT), or all. */
void greet_end_late(struct p2p *p2p, int64_t now_ns, int error_number);
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

/* For tests: agents of a served coordinator as seen from outside, each a socket and what has come on it. All in the
 * thread of the server's loop: nobody sleeps. Ends the test where nothing happens for twenty seconds. */
#ifndef RENDEZVOUS_COORDINATOR_TALK_TEST_SUPPORT_H
#define RENDEZVOUS_COORDINATOR_TALK_TEST_SUPPORT_H

#include "rendezvous/coordinator/coordinator_served_test_support.h"

enum { TALK_INPUT_BYTES_MAX = 64 * 1024 };

struct talker {
    int fd;
    struct buf in;
    struct coordinator_message heard; /* its slices live in `frame` */
    uint8_t frame[COORDINATOR_FRAME_BYTES_MAX];
};

struct coordinator_server_options talk_options(uint32_t min_nodes, uint32_t max_nodes);
void talk_start(struct served *f, uint32_t min_nodes, uint32_t max_nodes);
int talk_set_up(void **out);
int talk_tear_down(void **state);
/* `last`: the last byte of the loopback address that it calls from. */
void talk_call(const struct served *f, struct talker *agent, uint8_t last);
void talk_hang_up(struct talker *agent);
void talk_send(const struct talker *agent, const void *bytes, size_t len);
void talk_say(const struct talker *agent, const struct coordinator_message *message);
void talk_say_kind(const struct talker *agent, enum coordinator_kind kind, const char *text);
/* Waits until `fd` can be read or the server has something to do, which it then does. True for the former. */
bool talk_serve_once(struct served *f, int fd);
/* What has come; false at the end of the connection. */
bool talk_receive(struct served *f, struct talker *agent);
/* The next message. */
const struct coordinator_message *talk_hear(struct served *f, struct talker *agent, enum coordinator_kind expected);
void talk_expect_end(struct served *f, struct talker *agent);
bool talk_has_text(const struct talker *agent, const char *part);
struct coordinator_message talk_join_of(unsigned number, const char *addr, uint32_t min_nodes, uint32_t max_nodes);
void talk_join_again(const struct talker *agent, unsigned number, const char *addr, uint32_t nodes, uint64_t round);
/* Connects, and joins a job of `min` to `max` nodes. */
void talk_join_some(const struct served *f, struct talker *agent, unsigned number, uint32_t min, uint32_t max);
void talk_join(const struct served *f, struct talker *agent, unsigned number, uint32_t nodes);
/* A job of `count` agents in its first round. */
void talk_form(struct served *f, struct talker *agents, uint32_t count);
struct coordinator_view talk_look(const struct served *f);
/* Until so many are members. */
void talk_serve_until_members(struct served *f, size_t count);

#define TALK_TEST(name) cmocka_unit_test_setup_teardown(name, talk_set_up, talk_tear_down)

#endif

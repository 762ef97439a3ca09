/* MUSTER_DEBUG: what was chosen (INFO), and each call (DETAIL), on stderr; without it warnings alone, with OFF nothing.
 * The lines go through base/log.h. */
#ifndef COMM_DEBUG_H
#define COMM_DEBUG_H

#include <stdbool.h>
#include <stdint.h>

struct context;
struct muster_group;
struct comm_call;

/* Reads the variable and, where the program has no place for log lines, sends them to stderr. Once a context. Returns
 * true for DETAIL. */
bool debug_start(uint32_t rank);

/* The job as this rank sees it, once it is known; a group that has been made; a failure. */
void debug_context(const struct context *context);
void debug_group(const struct muster_group *group);
void debug_failure(const struct muster_group *group);

/* A call that has ended. Only with DETAIL. */
struct message_note;
void debug_call(const struct muster_group *group, const struct comm_call *call, uint64_t sequence, int64_t duration_ns,
                int status);
void debug_message(const struct message_note *note, int64_t duration_ns);

#endif

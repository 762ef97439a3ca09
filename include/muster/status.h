/* Result codes of every muster call, and the sentence that explains the last failure.
 *
 * A call returns 0 or one of the negative codes below. When it fails, the same thread can ask for the
 * detail: one sentence that names the operation, the peer or file concerned and what to do about it. */
#ifndef MUSTER_STATUS_H
#define MUSTER_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

/* One table: code, value, text. The enum and muster_strerror() are both derived from it. */
#define MUSTER_STATUS_TABLE(X)                                                                                         \
    X(MUSTER_OK, 0, "success")                                                                                         \
    X(MUSTER_EINVAL, -1, "invalid argument")                                                                           \
    X(MUSTER_ENOMEM, -2, "out of memory")                                                                              \
    X(MUSTER_ESYSTEM, -3, "system call failed")                                                                        \
    X(MUSTER_ETIMEOUT, -4, "timed out")                                                                                \
    X(MUSTER_ECONNECT, -5, "connection failed")                                                                        \
    X(MUSTER_ERESOLVE, -6, "name does not resolve")                                                                    \
    X(MUSTER_EPROTOCOL, -7, "peer broke the protocol")                                                                 \
    X(MUSTER_ECLOSED, -8, "closed")                                                                                    \
    X(MUSTER_ELIMIT, -9, "limit exceeded")                                                                             \
    X(MUSTER_ENOENT, -10, "not found")                                                                                 \
    X(MUSTER_ECANCELED, -11, "canceled")                                                                               \
    X(MUSTER_EUNSUPPORTED, -12, "not supported here")                                                                  \
    X(MUSTER_ECORRUPT, -13, "data is damaged")                                                                         \
    X(MUSTER_EGROUP, -14, "process group has failed")                                                                  \
    X(MUSTER_EPEER, -15, "a peer process is gone")                                                                     \
    X(MUSTER_EMISMATCH, -16, "ranks made different calls")                                                             \
    X(MUSTER_EABORTED, -17, "aborted")

enum muster_status {
#define MUSTER_STATUS_ENUM(name, value, text) name = (value),
    MUSTER_STATUS_TABLE(MUSTER_STATUS_ENUM)
#undef MUSTER_STATUS_ENUM
};

/* Longest detail kept, terminator included; a longer one is cut. */
#define MUSTER_DETAIL_MAX 1024

/* The text for `code`, or "unknown status". Static; never NULL. Any thread. */
const char *muster_strerror(int code);

/* The detail of the last failed call of this thread, or "" when there was none. Valid until the next
 * failing call of the same thread. Never NULL. Questions that give a value and no code (muster_group_rank(),
 * muster_work_done() ...) do not count: whatever they are asked, they leave the detail alone, and may be asked in the
 * sentence about a failure. */
const char *muster_detail(void);

/* For functions that a program gives to the library (muster/store.h): makes `sentence` (copied, cut at
 * MUSTER_DETAIL_MAX; NULL: "") this thread's detail, and returns `code`. */
int muster_fail(int code, const char *sentence);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif

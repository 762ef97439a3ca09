/* What Muster's agents of a static job tell each other through their store, beside PyTorch's keys (docs/rendezvous.md,
 * "The static backend"). All keys are behind "<run id>/". */
#ifndef RENDEZVOUS_STATIC_KEYS_H
#define RENDEZVOUS_STATIC_KEYS_H

#include <stdbool.h>
#include <string.h>

#include "base/printable.h"
#include "base/str.h"
#include "store/wire/slice.h"

enum { STATIC_KEY_MAX = 512 };

#define STATIC_KEYS "muster/"                  /* all of them begin so: they outlive an attempt */
#define STATIC_KEY_NODE "muster/node/"         /* + rank: what that node says, below */
#define STATIC_KEY_PROTOCOL "muster/protocol/" /* + rank: the number of its protocol; told before it says "here" */
#define STATIC_KEY_WATCHER                                                                                             \
    "muster/watcher/"                     /* + rank: written on the connection on which it waits for the host's word */
#define STATIC_KEY_NAME "muster/name/"    /* + rank: "host-b (pid 12)": its agent, for people */
#define STATIC_KEY_ASKED "muster/asked/"  /* + rank: "3": the host asks this rank's agent for the third that came */
#define STATIC_KEY_STAYS "muster/stays/"  /* + rank: "3 NAME": its answer */
#define STATIC_KEY_PLACE "muster/place/"  /* + rank: "3": the third has it now; "3 NAME": it is refused, NAME stays */
#define STATIC_KEY_ROUND "muster/round"   /* the host's word: static_round_word(), or one of these three */
#define STATIC_KEY_FAILED "muster/failed" /* the failure for good that counts (failures.h) */
#define STATIC_KEY_NNODES "muster/nnodes" /* how many nodes there are to be, says the first that comes */
#define STATIC_KEY_DIFFER "muster/nnodes_differ" /* "2 3": that number, and the first other one that a node has */

#define STATIC_WORD_FAILED "failed"  /* STATIC_KEY_FAILED says why */
#define STATIC_WORD_LATE "late "     /* + who has not come in time */
#define STATIC_WORD_DIFFER "differ " /* + what STATIC_KEY_DIFFER holds */

/* The number of a value; 0 where there is none. */
static inline int64_t static_number_of(struct kv_slice value) {
    char text[24] = "";
    int64_t number = 0;
    if (value.len < sizeof text) {
        memcpy(text, value.data, value.len);
    }
    return str_parse_i64(text, &number) ? number : 0;
}

/* The number that a value begins with; what follows its blank, up to the size, goes into `rest`, cleaned for people. */
static inline int64_t static_number_and_rest(struct kv_slice value, char *rest, size_t size) {
    const uint8_t *blank = value.len > 0 ? memchr(value.data, ' ', value.len) : NULL;
    size_t number_len = blank ? (size_t)(blank - value.data) : value.len;
    size_t rest_len = blank ? value.len - number_len - 1 : 0;
    rest_len = rest_len < size ? rest_len : size - 1;
    if (rest_len > 0) {
        memcpy(rest, blank + 1, rest_len);
        printable_clean(rest, rest_len, false);
    }
    rest[rest_len] = '\0';
    return static_number_of((struct kv_slice){.data = value.data, .len = number_len});
}

/* Of the two numbers of STATIC_KEY_DIFFER the one that is not `own`; 0: these are no two numbers. */
static inline int64_t static_other_nnodes(struct kv_slice both, int64_t own) {
    const uint8_t *blank = both.data ? memchr(both.data, ' ', both.len) : NULL;
    if (!blank) {
        return 0;
    }
    size_t first_len = (size_t)(blank - both.data);
    int64_t first = static_number_of((struct kv_slice){.data = both.data, .len = first_len});
    int64_t other = static_number_of((struct kv_slice){.data = blank + 1, .len = both.len - first_len - 1});
    return first > 0 && other > 0 ? (first != own ? first : other) : 0;
}

enum static_says_what {
    STATIC_SAYS_HERE,  /* "here 2": the second agent of this rank. The host hears of changes alone, so each says another
                        */
    STATIC_SAYS_BROKE, /* "broke 3": a worker of attempt 3 has failed */
    STATIC_SAYS_READY, /* "ready 4": none of its workers runs, attempt 4 may begin */
    STATIC_SAYS_DONE,  /* "done": its workers have succeeded */
};

struct static_says {
    enum static_says_what what;
    uint64_t round; /* or what else is counted */
};

enum { STATIC_SAYS_SIZE = 32 };
static inline const char *static_says_write(const struct static_says *says, char out[STATIC_SAYS_SIZE]) {
    static const char *const words[] = {"here", "broke", "ready", "done"};
    (void)str_format(out, STATIC_SAYS_SIZE, "%s %llu", words[says->what], (unsigned long long)says->round);
    return out;
}

static inline bool static_says_read(struct kv_slice value, struct static_says *out) {
    static const char *const words[] = {"here ", "broke ", "ready ", "done "};
    for (int i = 0; i < 4; i++) {
        size_t len = strlen(words[i]);
        if (value.len > len && memcmp(value.data, words[i], len) == 0) {
            struct kv_slice number = {.data = value.data + len, .len = value.len - len};
            *out = (struct static_says){.what = (enum static_says_what)i, .round = (uint64_t)static_number_of(number)};
            return true;
        }
    }
    return false;
}

#endif

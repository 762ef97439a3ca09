/* The record of a failure; see cause.h. */
#include "rendezvous/round/cause.h"

#include <jansson.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"

static json_t *text_of(const char *text) {
    json_t *value = json_string(text);
    return value ? value : json_string("");
}

char *rdzv_cause_write(const struct rdzv_cause *cause) {
    json_t *object =
        json_pack("{s:o, s:I, s:I, s:I, s:i, s:I, s:b, s:b, s:o, s:o}", "host", text_of(cause->host), "rank",
                  (json_int_t)cause->rank, "local_rank", (json_int_t)cause->local_rank, "pid", (json_int_t)cause->pid,
                  "wait_status", cause->wait_status, "time", (json_int_t)cause->time_s, "final", cause->is_final,
                  "told", cause->is_told, "how", text_of(cause->how), "words", text_of(cause->words));
    if (object && cause->age_us >= 0) {
        (void)json_object_set_new(object, "age_us", json_integer(cause->age_us));
    }
    if (object && cause->is_victim) {
        (void)json_object_set_new(object, "victim", json_true());
    }
    char *text = object ? json_dumps(object, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;
    json_decref(object);
    return text;
}

/* The second half of them. */
static void forget_first_words(char *words) {
    size_t len = strlen(words), from = len - len / 2;
    while (((unsigned char)words[from] & 0xc0) == 0x80) {
        from++;
    }
    memmove(words, words + from, len - from + 1);
}

char *rdzv_cause_write_within(const struct rdzv_cause *cause, size_t bytes_max) {
    struct rdzv_cause shorter = *cause;
    char *text = rdzv_cause_write(&shorter);
    while (text && strlen(text) > bytes_max && shorter.words[0] != '\0') {
        forget_first_words(shorter.words);
        free(text);
        text = rdzv_cause_write(&shorter);
    }
    return text;
}

/* As much as fits; no sequence of UTF-8 is cut through. `is_line`: it becomes part of one, without control characters
 * (those of 0x80 to 0x9f are two bytes in UTF-8). */
static void take_text(char *out, size_t size, const char *text, bool is_line) {
    size_t len = strlen(text);
    if (len >= size) {
        for (len = size - 1; len > 0 && ((unsigned char)text[len] & 0xc0) == 0x80; len--) {
        }
    }
    memcpy(out, text, len);
    out[len] = '\0';
    for (size_t i = 0; is_line && i < len; i++) {
        unsigned char byte = (unsigned char)out[i], next = (unsigned char)out[i + 1];
        bool is_wide = byte == 0xc2 && next >= 0x80 && next <= 0x9f;
        if (byte < 0x20 || byte == 0x7f || is_wide) {
            out[i] = '?';
            out[i + is_wide] = '?';
        }
    }
}

/* Older agents tell none. Whatever is none counts as not known. */
static int64_t read_age(const json_t *object) {
    const json_t *age = json_object_get(object, "age_us");
    json_int_t us = json_is_integer(age) ? json_integer_value(age) : -1;
    return us <= RDZV_CAUSE_AGE_MAX_US ? us : -1;
}

int rdzv_cause_read(const char *text, size_t len, struct rdzv_cause *out) {
    json_t *object = len <= RDZV_CAUSE_JSON_MAX ? json_loadb(text, len, 0, NULL) : NULL;
    const char *host = NULL, *how = NULL, *words = NULL;
    json_int_t rank = -1, local_rank = -1, pid = -1, time_s = 0;
    int wait_status = 0, is_final = 0, is_told = 0;
    int rc = json_unpack(object, "{s:s, s:I, s:I, s:I, s:i, s:I, s:b, s:b, s:s, s:s}", "host", &host, "rank", &rank,
                         "local_rank", &local_rank, "pid", &pid, "wait_status", &wait_status, "time", &time_s, "final",
                         &is_final, "told", &is_told, "how", &how, "words", &words);
    bool is_sound = rc == 0 && rank >= 0 && rank <= INT32_MAX && local_rank >= 0 && local_rank <= INT32_MAX &&
                    pid >= 0 && wait_status != 0;
    if (is_sound) {
        *out = (struct rdzv_cause){.rank = (uint32_t)rank,
                                   .local_rank = (uint32_t)local_rank,
                                   .pid = pid,
                                   .wait_status = wait_status,
                                   .time_s = time_s,
                                   .age_us = read_age(object),
                                   .is_victim = json_is_true(json_object_get(object, "victim")),
                                   .is_final = is_final,
                                   .is_told = is_told};
        take_text(out->host, sizeof out->host, host, true);
        take_text(out->how, sizeof out->how, how, true);
        take_text(out->words, sizeof out->words, words, false);
    }
    json_decref(object);
    return is_sound ? MUSTER_OK : status_fail(MUSTER_ECORRUPT, "a node's record of a failure is not understood");
}

int64_t rdzv_cause_early_ms(int wait_status) {
    enum { SIGKILL_EARLY_MS = 100, SIGNAL_EARLY_MS = 4 };
    int number = WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0;
    bool may_follow = number == 0 || number == SIGABRT || number == SIGTERM;
    return number == SIGKILL ? SIGKILL_EARLY_MS : may_follow ? 0 : SIGNAL_EARLY_MS;
}

struct rdzv_death rdzv_cause_death(const struct rdzv_cause *cause, int64_t now_ms) {
    return (struct rdzv_death){.is_known = cause->age_us >= 0,
                               .is_victim = cause->is_victim,
                               .at_ms = now_ms - cause->age_us / 1000,
                               .early_ms = rdzv_cause_early_ms(cause->wait_status)};
}

bool rdzv_death_is_older(const struct rdzv_death *death, const struct rdzv_death *first) {
    if (death->is_victim != first->is_victim) {
        return first->is_victim;
    }
    if (!death->is_known || !first->is_known) {
        return false;
    }
    int64_t older_ms = first->at_ms - death->at_ms;
    if (death->early_ms > first->early_ms) {
        return older_ms >= -death->early_ms;
    }
    return older_ms > (death->early_ms < first->early_ms ? first->early_ms : RDZV_DEATH_UNSURE_MS);
}

void rdzv_death_refine(struct rdzv_death *death, const struct rdzv_death *again) {
    death->is_victim = again->is_victim;
    death->early_ms = again->early_ms;
    if (death->is_known && again->is_known && again->at_ms < death->at_ms) {
        death->at_ms = again->at_ms;
    }
}

const char *rdzv_cause_describe(const struct rdzv_cause *cause, char out[RDZV_CAUSE_TEXT_MAX]) {
    (void)str_format(out, RDZV_CAUSE_TEXT_MAX, "rank %u (pid %lld) on host %s: %s", cause->rank, (long long)cause->pid,
                     cause->host, cause->how);
    return out;
}

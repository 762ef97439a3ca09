/* Words for what happens to members; see coordinator_impl.h. Pure: text alone. */
#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "rendezvous/coordinator/coordinator_impl.h"

enum {
    ADDR_BYTES_MAX = 128,
    TAIL_BYTES_MAX = 48 + COORDINATOR_BUDGET_TEXT_SIZE, /* how many were omitted, and what was charged */
    SENTENCE_BYTES_MAX = 512
};

struct kv_slice coordinator_text_clip(struct kv_slice text, size_t max) {
    if (text.len > max) {
        for (text.len = max; text.len > 0 && (text.data[text.len] & 0xc0) == 0x80; text.len--) {
        }
    }
    return text;
}

void coordinator_news_add(struct coordinator_news *news, const struct coordinator_member *member, const char *what,
                          struct kv_slice why) {
    char sentence[SENTENCE_BYTES_MAX];
    struct kv_slice addr = coordinator_text_clip(member->addr, ADDR_BYTES_MAX);
    why = coordinator_text_clip(why, COORDINATOR_WHY_BYTES_MAX);
    (void)str_format(sentence, sizeof sentence, "%snode %.*s (pid %lld) %s%s%.*s", news->len > 0 ? "; " : "",
                     (int)addr.len, (const char *)addr.data, (long long)member->pid, what, why.len > 0 ? ": " : "",
                     (int)why.len, why.len > 0 ? (const char *)why.data : "");
    size_t len = strlen(sentence);
    if (news->len + len > sizeof news->text - TAIL_BYTES_MAX) {
        news->omitted_count++;
        return;
    }
    memcpy(news->text + news->len, sentence, len);
    news->len += len;
}

struct kv_slice coordinator_news_text(const struct coordinator_news *news, char out[COORDINATOR_TEXT_BYTES_MAX]) {
    memcpy(out, news->text, news->len);
    out[news->len] = '\0';
    if (news->omitted_count > 0) {
        (void)str_format(out + news->len, COORDINATOR_TEXT_BYTES_MAX - news->len, "; and %zu more",
                         news->omitted_count);
    }
    return kv_slice_text(out);
}

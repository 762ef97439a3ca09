/* Words for what happens to members; see coordinator_impl.h. Pure: text alone. */
#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "rendezvous/coordinator_impl.h"

enum { ADDR_BYTES_MAX = 128, WHY_BYTES_MAX = 256, OMITTED_BYTES_MAX = 48, SENTENCE_BYTES_MAX = 512 };

/* The first bytes of a text, no sequence of UTF-8 cut through. */
static int clipped_len(struct kv_slice text, size_t max) {
    size_t len = text.len;
    if (len > max) {
        for (len = max; len > 0 && (text.data[len] & 0xc0) == 0x80; len--) {
        }
    }
    return (int)len;
}

void coordinator_news_add(struct coordinator_news *news, const struct coordinator_member *member, const char *what,
                          struct kv_slice why) {
    char sentence[SENTENCE_BYTES_MAX];
    (void)str_format(sentence, sizeof sentence, "%snode %.*s (pid %lld) %s%s%.*s", news->len > 0 ? "; " : "",
                     clipped_len(member->addr, ADDR_BYTES_MAX), (const char *)member->addr.data, (long long)member->pid,
                     what, why.len > 0 ? ": " : "", clipped_len(why, WHY_BYTES_MAX),
                     why.len > 0 ? (const char *)why.data : "");
    size_t len = strlen(sentence);
    if (news->len + len > sizeof news->text - OMITTED_BYTES_MAX) {
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

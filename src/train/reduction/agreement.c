/* Comparing what ranks say of themselves; see agreement.h. */
#include "train/reduction/agreement.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <muster/collective.h>

#include "base/fnv.h"
#include "base/status.h"
#include "base/str.h"

#define OPTION_MARK "option "
#define REFUSAL_MARK "refused: "

const char *agreement_truth(bool value) {
    return value ? "true" : "false";
}

static uint64_t hash_of(const struct buf *text) {
    return fnv_bytes(FNV_BEGIN, buf_bytes(text), text->len);
}

/* The line that `at` begins, without its end; "nothing" at the end of the text. */
static void line_of(const char *at, const char *end, char *out, size_t max) {
    if (at >= end) {
        (void)memcpy(out, "nothing", sizeof "nothing");
        return;
    }
    const char *stop = memchr(at, '\n', (size_t)(end - at));
    size_t length = (size_t)((stop ? stop : end) - at);
    length = length < max ? length : max - 1;
    memcpy(out, at, length);
    out[length] = '\0';
}

static bool is_refusal(const char *line) {
    return strncmp(line, REFUSAL_MARK, sizeof REFUSAL_MARK - 1) == 0;
}

static int tell_refusal(uint32_t rank, const char *line) {
    return status_fail(MUSTER_EMISMATCH, "rank %u cannot take part: %s", rank, line + sizeof REFUSAL_MARK - 1);
}

static int tell_difference(const char *zero, size_t zero_length, const char *other, size_t other_length,
                           uint32_t rank) {
    size_t line = 0, at = 0;
    while (at < zero_length && at < other_length && zero[at] == other[at]) {
        at++;
        line = zero[at - 1] == '\n' ? at : line;
    }
    char mine[AGREEMENT_LINE_MAX], theirs[AGREEMENT_LINE_MAX];
    line_of(zero + line, zero + zero_length, mine, sizeof mine);
    line_of(other + line, other + other_length, theirs, sizeof theirs);
    if (is_refusal(mine)) {
        return tell_refusal(0, mine);
    }
    if (is_refusal(theirs)) {
        return tell_refusal(rank, theirs);
    }
    size_t mark = sizeof OPTION_MARK - 1, value = strcspn(mine, ":") + sizeof ": " - 1;
    if (strncmp(mine, OPTION_MARK, mark) == 0 && value <= strlen(mine) && strncmp(mine, theirs, value) == 0) {
        return status_fail(MUSTER_EMISMATCH,
                           "the ranks have different options: %.*s is %s on rank %u, and %s on rank 0",
                           (int)(value - mark) - 2, mine + mark, theirs + value, rank, mine + value);
    }
    return status_fail(MUSTER_EMISMATCH,
                       "the ranks registered different models: rank %u has \"%s\" where rank 0 has \"%s\"", rank,
                       theirs, mine);
}

/* Copies the text of rank `root` to all. */
static int share_text(struct muster_group *group, const struct buf *own, uint32_t root, size_t length, char **out) {
    if (length > AGREEMENT_BYTES_MAX) {
        return status_fail(MUSTER_EPROTOCOL, "rank %u describes its model in %zu bytes", root, length);
    }
    char *text = malloc(length);
    if (!text) {
        return status_fail(MUSTER_ENOMEM, "no memory for the model of rank %u", root);
    }
    if (muster_group_rank(group) == root) {
        memcpy(text, buf_bytes(own), length);
    }
    int status = muster_broadcast(group, text, length, MUSTER_UINT8, root, NULL);
    if (status != MUSTER_OK) {
        free(text);
        return status;
    }
    *out = text;
    return MUSTER_OK;
}

static int compare_texts(struct muster_group *group, const struct buf *own, uint32_t rank, size_t zero_length,
                         size_t other_length) {
    char *zero = NULL, *other = NULL;
    int status = share_text(group, own, 0, zero_length, &zero);
    if (status == MUSTER_OK) {
        status = share_text(group, own, rank, other_length, &other);
    }
    if (status == MUSTER_OK) {
        status = tell_difference(zero, zero_length, other, other_length, rank);
    }
    free(zero);
    free(other);
    return status;
}

int agreement_compare(struct muster_group *group, const struct buf *text) {
    uint32_t rank = muster_group_rank(group), size = muster_group_size(group);
    uint64_t *marks = calloc(size, 2 * sizeof *marks); /* hash and length of every rank's text */
    if (!marks) {
        return status_fail(MUSTER_ENOMEM, "no memory to compare the models of %u ranks", size);
    }
    marks[2 * (size_t)rank] = hash_of(text);
    marks[2 * (size_t)rank + 1] = text->len;
    int status = muster_all_gather(group, marks + 2 * (size_t)rank, marks, 2, MUSTER_INT64, NULL);
    for (uint32_t other = 1; status == MUSTER_OK && other < size; other++) {
        if (memcmp(marks, marks + 2 * (size_t)other, 2 * sizeof *marks) != 0) {
            status = compare_texts(group, text, other, marks[1], marks[2 * (size_t)other + 1]);
        }
    }
    free(marks);
    return status;
}

int agreement_refuse(struct muster_group *group, int status) {
    struct buf text;
    char detail[MUSTER_DETAIL_MAX];
    const struct muster_failure failure = status_failure();
    (void)str_copy(detail, sizeof detail, muster_detail());
    buf_init(&text, AGREEMENT_BYTES_MAX);
    if (buf_printf(&text, REFUSAL_MARK "%s\n", detail) == MUSTER_OK) {
        (void)agreement_compare(group, &text);
    }
    buf_done(&text);
    return status_restore(status, detail, &failure);
}

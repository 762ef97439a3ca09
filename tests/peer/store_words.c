/* Lines of words; see store_words.h. */
#include "store_words.h"

#include <stdlib.h>
#include <string.h>

#include <muster/status.h>

enum { RUN_MIN = 64 }; /* shorter values are written out */

bool words_split(char *line, struct words *out) {
    line[strcspn(line, "\n")] = '\0';
    out->count = 0;
    for (char *word; (word = strsep(&line, "\t")) != NULL;) {
        if (out->count == WORDS_MAX) {
            return false;
        }
        out->list[out->count++] = word;
    }
    return true;
}

static void refuse(const char *word) {
    (void)fprintf(stderr, "'%.100s' is not understood\n", word);
    exit(2);
}

static struct kv_slice run_of(const char *word) {
    unsigned long long count = 0;
    unsigned byte = 0;
    if (sscanf(word, "*%llu:%2x", &count, &byte) != 2) {
        refuse(word);
    }
    uint8_t *bytes = malloc(count + 1);
    if (!bytes) {
        refuse(word);
    }
    memset(bytes, (int)byte, count);
    return kv_slice_of(bytes, count);
}

struct kv_slice words_value(char *word) {
    if (word[0] == '*') {
        return run_of(word);
    }
    size_t len = strlen(word) / 2;
    uint8_t *bytes = (uint8_t *)word;
    if (word[0] != '=' || strlen(word) % 2 == 0) {
        refuse(word);
    }
    for (size_t i = 0; i < len; i++) {
        char pair[3] = {word[1 + 2 * i], word[2 + 2 * i], '\0'};
        char *end = NULL;
        bytes[i] = (uint8_t)strtoul(pair, &end, 16); /* behind what is still to be read */
        if (*end != '\0') {
            refuse(word);
        }
    }
    return kv_slice_of(bytes, len);
}

int64_t words_number(const char *word) {
    char *end = NULL;
    int64_t number = strtoll(word, &end, 10);
    if (end == word || *end != '\0') {
        refuse(word);
    }
    return number;
}

static bool is_run(struct kv_slice value) {
    return value.len > RUN_MIN && memcmp(value.data, value.data + 1, value.len - 1) == 0;
}

void words_print_value(struct kv_slice value) {
    if (is_run(value)) {
        (void)printf("\t*%zu:%02x", value.len, value.data[0]);
        return;
    }
    (void)printf("\t=");
    for (size_t i = 0; i < value.len; i++) {
        (void)printf("%02x", value.data[i]);
    }
}

void words_print_status(int code) {
    if (code) {
        (void)printf("%d\t%s", code, muster_detail());
    } else {
        (void)printf("0");
    }
}

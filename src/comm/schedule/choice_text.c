/* The table of algorithms as text (docs/formats/choice.md). Pure. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <muster/status.h>

#include "base/status.h"
#include "base/str.h"
#include "comm/schedule/choice.h"

enum { FIELDS_MIN = 6, FIELDS_MAX = 7, FIELD_BYTES_MAX = 32 };

/* Words separated by blanks; spaces in names are written as underscores. */
struct fields {
    size_t count;
    char text[FIELDS_MAX][FIELD_BYTES_MAX];
};

/* `limit` of the text as it is shown in messages, whatever bytes it consists of. */
static const char *printable(char *text) {
    for (char *at = text; *at != '\0'; at++) {
        *at = *at < ' ' || *at > '~' ? '?' : *at;
    }
    return text;
}

static int split(const char *line, size_t bytes, unsigned number, struct fields *out) {
    *out = (struct fields){0};
    for (size_t at = 0; at < bytes;) {
        if (line[at] == ' ' || line[at] == '\t' || line[at] == '\r') {
            at++;
            continue;
        }
        if (line[at] == '#') {
            break;
        }
        size_t length = 0;
        while (at + length < bytes && !memchr(" \t\r#", line[at + length], 4)) {
            length++;
        }
        if (out->count == FIELDS_MAX || length >= FIELD_BYTES_MAX) {
            return status_fail(MUSTER_EINVAL, "line %u: more than %d words, or a word of more than %d bytes", number,
                               FIELDS_MAX, FIELD_BYTES_MAX - 1);
        }
        memcpy(out->text[out->count], line + at, length);
        (void)printable(out->text[out->count++]);
        at += length;
    }
    return 0;
}

/* Is `word` this name, with its spaces written as underscores? */
static bool is_named(const char *word, const char *name) {
    size_t at = 0;
    while (name[at] != '\0' && word[at] == (name[at] == ' ' ? '_' : name[at])) {
        at++;
    }
    return name[at] == '\0' && word[at] == '\0';
}

/* "*", "N", "N-" or "N-M". */
static bool range_read(const char *text, uint64_t most, uint64_t *out_min, uint64_t *out_max) {
    *out_min = 0;
    *out_max = most;
    if (strcmp(text, "*") == 0) {
        return true;
    }
    const char *rest = str_read_bytes(text, out_min);
    if (rest && *rest == '\0') {
        *out_max = *out_min;
    } else if (rest && rest[0] == '-' && rest[1] != '\0') {
        rest = str_read_bytes(rest + 1, out_max);
    } else if (rest && rest[0] == '-') {
        rest++;
    }
    return rest && *rest == '\0' && *out_min <= *out_max && *out_max <= most;
}

static bool operation_read(const char *text, enum comm_operation *out) {
#define OPERATION_LINE(name, value, its_text)                                                                          \
    if (is_named(text, its_text)) {                                                                                    \
        *out = name;                                                                                                   \
        return true;                                                                                                   \
    }
    COMM_OPERATION_TABLE(OPERATION_LINE)
#undef OPERATION_LINE
    return false;
}

static bool medium_read(const char *text, enum choice_medium *out) {
#define MEDIUM_LINE(name, value, its_text)                                                                             \
    if (is_named(text, its_text)) {                                                                                    \
        *out = name;                                                                                                   \
        return true;                                                                                                   \
    }
    CHOICE_MEDIUM_TABLE(MEDIUM_LINE)
#undef MEDIUM_LINE
    return false;
}

static bool algorithm_read(const char *text, uint32_t *out) {
#define ALGORITHM_LINE(name, value, its_text)                                                                          \
    if (is_named(text, its_text)) {                                                                                    \
        *out = name;                                                                                                   \
        return true;                                                                                                   \
    }
    CHOICE_ALGORITHM_TABLE(ALGORITHM_LINE)
#undef ALGORITHM_LINE
    return false;
}

static const char *const load_names[] = {[CHOICE_ANY_LOAD] = "*", [CHOICE_FITS] = "fits", [CHOICE_CROWDED] = "crowded"};

static bool load_read(const char *text, enum choice_load *out) {
    for (int load = CHOICE_ANY_LOAD; load <= CHOICE_CROWDED; load++) {
        if (strcmp(text, load_names[load]) == 0) {
            *out = (enum choice_load)load;
            return true;
        }
    }
    return false;
}

static int rule_read(const struct fields *fields, unsigned number, struct choice_rule *out) {
    uint64_t ranks_min = 0, ranks_max = 0;
    const char *rest = "";
    const char *expected = fields->count < FIELDS_MIN                          ? "6 or 7 words"
                           : !operation_read(fields->text[0], &out->operation) ? "an operation"
                           : !medium_read(fields->text[1], &out->medium)       ? "private, shared or messages"
                           : !range_read(fields->text[2], UINT32_MAX, &ranks_min, &ranks_max) ? "numbers of ranks"
                           : !load_read(fields->text[3], &out->load)                          ? "fits, crowded or *"
                           : !range_read(fields->text[4], UINT64_MAX, &out->bytes_min, &out->bytes_max) ? "bytes"
                           : !algorithm_read(fields->text[5], &out->algorithm)                          ? "an algorithm"
                                                                                                        : NULL;
    if (expected) {
        return status_fail(MUSTER_EINVAL, "line %u: expected %s", number, expected);
    }
    out->ranks_min = (uint32_t)ranks_min;
    out->ranks_max = (uint32_t)ranks_max;
    out->piece_bytes = 0;
    if (fields->count == FIELDS_MAX) {
        rest = str_read_bytes(fields->text[6], &out->piece_bytes);
    }
    if (!rest || *rest != '\0') {
        return status_fail(MUSTER_EINVAL, "line %u: expected the bytes of a piece", number);
    }
    if (!choice_is_possible(out->operation, out->medium, out->algorithm)) {
        return status_fail(MUSTER_EINVAL, "line %u: %s by %s has no %s algorithm", number,
                           comm_operation_name(out->operation), choice_medium_name(out->medium),
                           choice_algorithm_name(out->algorithm));
    }
    return 0;
}

static int link_read(const char *line, size_t bytes, unsigned number, struct choice *out) {
    if (out->link_count == CHOICE_LINKS_MAX) {
        return status_fail(MUSTER_EINVAL, "line %u: more than %u links", number, CHOICE_LINKS_MAX);
    }
    int status = link_plan_parse(line, bytes, &out->links[out->link_count++]);
    return status ? status_prefix(status, "line %u", number) : 0;
}

static int rule_line_read(const char *line, size_t bytes, unsigned number, struct choice *out) {
    struct fields fields;
    int status = split(line, bytes, number, &fields);
    if (status != 0 || fields.count == 0) {
        return status;
    }
    if (out->rule_count == CHOICE_RULES_MAX) {
        return status_fail(MUSTER_EINVAL, "line %u: more than %u rules", number, CHOICE_RULES_MAX);
    }
    return rule_read(&fields, number, &out->rules[out->rule_count++]);
}

int choice_parse(const char *text, size_t bytes, struct choice *out) {
    out->rule_count = out->link_count = 0;
    unsigned number = 0;
    if (bytes > CHOICE_FILE_BYTES_MAX) {
        return status_fail(MUSTER_EINVAL, "more than %zu bytes", CHOICE_FILE_BYTES_MAX);
    }
    for (size_t begin = 0, end; begin < bytes; begin = end + 1) {
        const char *newline = memchr(text + begin, '\n', bytes - begin);
        end = newline ? (size_t)(newline - text) : bytes;
        bool is_link = link_plan_is_line(text + begin, end - begin);
        int status = (is_link ? link_read : rule_line_read)(text + begin, end - begin, ++number, out);
        if (status != 0) {
            return status;
        }
    }
    return 0;
}

/* ---- writing ---- */

struct word {
    char text[2 * FIELD_BYTES_MAX];
};

static struct word name_write(const char *name) {
    struct word word = {{0}};
    for (size_t i = 0; name[i] != '\0' && i + 1 < sizeof word.text; i++) {
        word.text[i] = name[i] == ' ' ? '_' : name[i];
    }
    return word;
}

static struct word number_write(uint64_t value) {
    struct word word;
    unsigned power = 0;
    while (value > 0 && value % 1024 == 0 && power < 3) {
        value /= 1024;
        power++;
    }
    (void)snprintf(word.text, sizeof word.text, "%" PRIu64 "%.1s", value, &"\0KMG"[power]);
    return word;
}

static struct word range_write(uint64_t min, uint64_t max, uint64_t most) {
    struct word word = {"*"};
    if (min == max) {
        return number_write(min);
    }
    if (max < most) {
        (void)snprintf(word.text, sizeof word.text, "%.24s-%.24s", number_write(min).text, number_write(max).text);
    } else if (min > 0) {
        (void)snprintf(word.text, sizeof word.text, "%.24s-", number_write(min).text);
    }
    return word;
}

bool choice_rule_format(const struct choice_rule *rule, char *out, size_t max) {
    bool has_piece = rule->piece_bytes > 0;
    int length =
        snprintf(out, max, "%-17s %-8s %-6s %-7s %-11s %s%s%s\n", name_write(comm_operation_name(rule->operation)).text,
                 name_write(choice_medium_name(rule->medium)).text,
                 range_write(rule->ranks_min, rule->ranks_max, UINT32_MAX).text, load_names[rule->load],
                 range_write(rule->bytes_min, rule->bytes_max, UINT64_MAX).text,
                 name_write(choice_algorithm_name(rule->algorithm)).text, has_piece ? " " : "",
                 has_piece ? number_write(rule->piece_bytes).text : "");
    return length > 0 && (size_t)length < max;
}

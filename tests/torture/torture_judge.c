/* Was a run as it must be? See torture.h. */
#include "torture.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

void torture_fail(const char *what) {
    perror(what);
    exit(2);
}

void torture_path(const struct torture *t, const char *name, char out[TEXT_MAX]) {
    if (snprintf(out, TEXT_MAX, "%s/%s", t->folder, name) >= TEXT_MAX) {
        errno = ENAMETOOLONG;
        torture_fail(name);
    }
}

/* The size of a file of the run, and its first bytes in `text`. */
static size_t read_text(const struct torture *t, const char *name, char text[TEXT_MAX]) {
    char path[TEXT_MAX];
    torture_path(t, name, path);
    FILE *file = fopen(path, "r");
    size_t n = file ? fread(text, 1, TEXT_MAX - 1, file) : 0;
    text[n] = '\0';
    if (file) {
        (void)fclose(file);
    }
    return n;
}

/* One write, so that lanes do not mix their lines. */
void torture_fault(struct torture *t, unsigned long n, const char *what) {
    char report[TEXT_MAX], error[TEXT_MAX], text[8 * TEXT_MAX];
    (void)read_text(t, "report", report);
    (void)read_text(t, "stderr", error);
    FILE *out = fmemopen(text, sizeof text, "w");
    if (!out) {
        torture_fail("fmemopen");
    }
    (void)fprintf(out, "FAULT at n = %lu: %s\n  %s  stderr begins: %s\n", n, what, report[0] ? report : "\n", error);
    (void)fprintf(out, "  again: FAIL_KIND=%s FAIL_AT=%lu FAIL_FOREVER=%d FAIL_FROM=%s FAIL_SPEECH=%d LD_PRELOAD=%s",
                  t->kind, n, t->forever, t->libraries ? "all" : "program", t->forever, t->preload);
    for (char *const *word = t->command; *word; word++) {
        (void)fprintf(out, " '%s'", *word);
    }
    (void)fprintf(out, "\n");
    (void)fclose(out);
    text[sizeof text - 1] = '\0';
    if (write(STDOUT_FILENO, text, strlen(text)) < 0) {
        torture_fail("stdout");
    }
    (void)atomic_fetch_add(&t->tally->faults, 1);
}

unsigned torture_empty_folder(const char *path, bool kept, char found[TEXT_MAX]) {
    DIR *folder = opendir(path);
    unsigned files = 0;
    if (!folder) {
        return 0;
    }
    const struct dirent *entry = NULL;
    while ((entry = readdir(folder)) != NULL) {
        char inner[TEXT_MAX];
        struct stat seen;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
            snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name) >= (int)sizeof inner || lstat(inner, &seen)) {
            continue;
        }
        unsigned held = S_ISDIR(seen.st_mode) ? torture_empty_folder(inner, kept, found) : S_ISREG(seen.st_mode);
        if ((!kept || held == 0) && !found[0]) {
            (void)snprintf(found, TEXT_MAX, "%s", inner);
        }
        files += held;
        (void)(S_ISDIR(seen.st_mode) ? rmdir(inner) : unlink(inner));
    }
    (void)closedir(folder);
    return files;
}

/* The same for TMPDIR: what begins with the kept name may hold files. */
void torture_empty_tmp(const struct torture *t, char found[TEXT_MAX]) {
    char tmp[TEXT_MAX], inner[TEXT_MAX];
    torture_path(t, "tmp", tmp);
    DIR *folder = t->kept ? opendir(tmp) : NULL;
    const struct dirent *entry = NULL;
    while (folder && (entry = readdir(folder)) != NULL) {
        if (strncmp(entry->d_name, t->kept, strlen(t->kept)) == 0 &&
            snprintf(inner, sizeof inner, "%s/%s", tmp, entry->d_name) < (int)sizeof inner &&
            torture_empty_folder(inner, true, found) > 0) {
            (void)rmdir(inner);
        }
    }
    if (folder) {
        (void)closedir(folder);
    }
    (void)torture_empty_folder(tmp, false, found);
}

static unsigned long count_lines(const struct torture *t) {
    char path[TEXT_MAX];
    unsigned long lines = 0;
    torture_path(t, "stdout", path);
    FILE *file = fopen(path, "r");
    for (int c; file && (c = fgetc(file)) != EOF;) {
        lines += c == '\n';
    }
    if (file) {
        (void)fclose(file);
    }
    return lines;
}

/* The failures that were dealt out, each under its place in the code. False: none, the run was untouched. */
static bool note_places(const struct torture *t, bool *gave_up) {
    char path[TEXT_MAX], line[TEXT_MAX];
    bool touched = false;
    torture_path(t, "report", path);
    FILE *report = fopen(path, "r");
    while (report && fgets(line, sizeof line, report)) {
        const char *place = strstr(line, ": ");
        touched = true;
        *gave_up = *gave_up || strncmp(line, "gave up", 7) == 0;
        if (place && strncmp(line, "reached", 7) == 0) {
            (void)fputs(place + 2, t->places);
        }
    }
    if (report) {
        (void)fclose(report);
    }
    return touched;
}

/* Was stderr itself what failed? Not in "forever", where it is spared. */
static bool is_speechless(const struct torture *t) {
    char text[TEXT_MAX];
    (void)read_text(t, "report", text);
    return !t->forever && strstr(text, "write") != NULL;
}

enum outcome torture_judge(struct torture *t, unsigned long n, int status) {
    char text[TEXT_MAX], found[TEXT_MAX] = "", what[2 * TEXT_MAX] = "";
    bool gave_up = false, touched = note_places(t, &gave_up);
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    torture_empty_tmp(t, found);
    if (code >= 0) {
        (void)atomic_fetch_add(&t->tally->statuses[code], 1);
    }
    (void)atomic_fetch_add(&t->tally->gave_up, gave_up);
    if (code < 0) {
        (void)snprintf(what, sizeof what, "ended by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    } else if (!touched && code != t->status) {
        (void)snprintf(what, sizeof what, "exit status %d without any failure dealt out", code);
    } else if (found[0] && !gave_up) {
        (void)snprintf(what, sizeof what, "left %s behind (exit status %d)", found, code);
    } else if (code != 0 && !gave_up && !is_speechless(t) && read_text(t, "stderr", text) == 0) {
        (void)snprintf(what, sizeof what, "exit status %d without a word", code);
    } else if (code == 0 && count_lines(t) < t->lines) {
        (void)snprintf(what, sizeof what, "exit status 0 with %lu lines printed", count_lines(t));
    } else if (read_text(t, "stdout", text) > 0 && strstr(text, "Test failed with exception")) {
        (void)snprintf(what, sizeof what, "%s", text); /* cmocka caught the signal */
    }
    if (what[0]) {
        torture_fault(t, n, what);
        return touched ? OUTCOME_FAULT : OUTCOME_UNTOUCHED;
    }
    return touched ? OUTCOME_FINE : OUTCOME_UNTOUCHED;
}

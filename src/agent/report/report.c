/* torchelastic's failure summary; see report.h. The layout is a fact that log readers rely on; the lines "status" and
 * "stderr" are ours and come last in an entry. */
#include "agent/report/report.h"

#include <assert.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent/report/report_alike.h"
#include "agent/report/report_order.h"
#include "agent/report/report_peers.h"
#include "agent/report/report_text.h"
#include "agent/report/signal_name.h"
#include "base/printable.h"
#include "base/status.h"
#include "base/str.h"

enum { BORDER_MAX = 60 };

static const char no_traceback_text[] = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html";

void report_host(char out[REPORT_HOST_SIZE]) {
    char name[REPORT_HOST_SIZE] = "localhost";
    if (gethostname(name, sizeof name) != 0) {
        memcpy(name, "localhost", sizeof "localhost");
    }
    (void)str_format(out, REPORT_HOST_SIZE, "%s", name);
}

/* ---- torchelastic's part of an entry ---- */

static int append_time(struct buf *out, int64_t time_s) {
    time_t t = (time_t)time_s;
    struct tm local;
    char text[32] = "<N/A>";
    if (localtime_r(&t, &local)) {
        (void)strftime(text, sizeof text, "%Y-%m-%d_%H:%M:%S", &local);
    }
    return buf_append(out, text, strlen(text));
}

/* The lines of a traceback are indented by two, the first excepted; a plain message is not. */
static int append_message(struct buf *out, const struct report_entry *entry) {
    const char *text = entry->message;
    size_t left = strlen(text);
    bool cut = left > REPORT_MESSAGE_BYTES_MAX;
    left = cut ? REPORT_MESSAGE_BYTES_MAX : left;
    int code = MUSTER_OK;
    while (code == 0) {
        const char *newline = memchr(text, '\n', left);
        size_t length = newline ? (size_t)(newline - text) : left;
        code = report_text_clean(out, text, length, REPORT_MESSAGE_BYTES_MAX);
        if (!newline) {
            break;
        }
        code = code == 0 ? buf_printf(out, "\n%s", entry->message_is_traceback ? "  " : "") : code;
        text += length + 1;
        left -= length + 1;
    }
    return code == 0 && cut ? buf_printf(out, "\n  ... (cut)") : code;
}

static bool speaks_native(const struct report *report) {
    return report->native && !report->plain;
}

/* Nothing was recorded, and the last lines of stderr are all that tells the cause: an exception that @record lets pass
 * (one that is no Exception, as torch.distributed.checkpoint raises), a script without @record. */
static bool leads_with_stderr(const struct report_entry *entry, size_t index, const struct report *report) {
    bool is_recorded = entry->message && entry->message[0] != '\0';
    return !is_recorded && !WIFSIGNALED(entry->wait_status) && !entry->stopped_by_us && !report->plain &&
           entry->stderr_tail && entry->stderr_tail_bytes > 0 && index < REPORT_TAILS_MAX;
}

static int append_traceback(struct buf *out, size_t index, const struct report_entry *entry,
                            const struct report *report) {
    if (entry->message && entry->message[0] != '\0') {
        return append_message(out, entry);
    }
    if (WIFSIGNALED(entry->wait_status)) {
        const char *name = signal_name(WTERMSIG(entry->wait_status));
        return buf_printf(out, "Signal %d (%s) received by PID %lld", WTERMSIG(entry->wait_status),
                          name ? name : "<N/A>", (long long)entry->pid);
    }
    if (leads_with_stderr(entry, index, report)) {
        return buf_printf(out, "none was recorded; what %s says last may be the cause",
                          entry->tail_has_stdout ? "its output" : "stderr");
    }
    return speaks_native(report) ? buf_printf(out, "none was recorded")
                                 : buf_append(out, no_traceback_text, sizeof no_traceback_text - 1);
}

static int append_entry(struct buf *out, size_t index, const struct report_entry *entry, const struct report *report) {
    const char *name = WIFSIGNALED(entry->wait_status) ? signal_name(WTERMSIG(entry->wait_status)) : NULL;
    int code = buf_printf(out, "[%zu]:\n  time      : ", index);
    code = code == 0 ? append_time(out, entry->time_s) : code;
    code = code == 0 ? buf_printf(out,
                                  "\n  host      : %s\n  rank      : %u (local_rank: %u)\n  exitcode  : %d (pid: %lld) "
                                  "%s%s%s\n  error_file: %s\n  traceback : ",
                                  entry->host ? entry->host : report->host, entry->rank, entry->local_rank,
                                  report_exit_code(entry->wait_status), (long long)entry->pid, name ? " (" : "",
                                  name ? name : "", name ? ")" : "", entry->error_file ? entry->error_file : "<N/A>")
                     : code;
    return code == 0 ? append_traceback(out, index, entry, report) : code;
}

/* ---- our part ---- */

/* Signals that a program's own fault raises: the launcher sends none of them. */
static bool is_fault(int number) {
    return number == SIGSEGV || number == SIGBUS || number == SIGFPE || number == SIGILL || number == SIGABRT ||
           number == SIGSYS || number == SIGTRAP || number == SIGPIPE;
}

/* Why a process that was killed by `number` was. */
static int append_reason(const struct report_entry *entry, int number, struct buf *out) {
    if (entry->oom_killed) {
        return buf_printf(out, ": the out-of-memory killer ended it (memory limit of the cgroup, or of the machine)");
    }
    if (entry->cpu_limit_s > 0) {
        return buf_printf(out, ": it had used up the processor time that a process may take here (ulimit -t: %u s)",
                          entry->cpu_limit_s);
    }
    if (entry->stuck) {
        return buf_printf(out, ": it hung in the kernel (uninterruptible sleep, D state)");
    }
    if (entry->failed_first) {
        return buf_printf(out, " while it was ending after an error of its own");
    }
    if (entry->stopped_by_us) {
        return is_fault(number) ? buf_printf(out, " after the launcher had told it to stop") : MUSTER_OK;
    }
    if (entry->timer_expired) {
        return buf_printf(out, ": its watchdog timer ran out");
    }
    if (entry->guardian_lost) {
        return buf_printf(out, ": the launcher's guardian process, which held it, was killed");
    }
    return number == SIGKILL
               ? buf_printf(out, "; not by the launcher (if memory was short, the kernel's log names the process)")
               : MUSTER_OK;
}

static int append_killed(const struct report_entry *entry, struct buf *out) {
    int number = WTERMSIG(entry->wait_status);
    const char *name = signal_name(number), *words = signal_words(number);
    bool by_us = (entry->stopped_by_us || entry->failed_first) && !is_fault(number);
    const char *by = by_us ? "stopped by the launcher with " : "killed by ";
    int code = name ? buf_printf(out, "%s%s", by, name) : buf_printf(out, "%ssignal %d", by, number);
    if (code == 0 && words && !by_us) {
        code = buf_printf(out, " (%s)", words);
    }
    if (code == 0 && WCOREDUMP(entry->wait_status)) {
        code = buf_printf(out, ", core dumped");
    }
    return code == 0 ? append_reason(entry, number, out) : code;
}

/* Codes to which shells, exec wrappers and the dynamic linker have given a meaning. */
static int append_code_hint(const struct report_entry *entry, int exit_code, struct buf *out) {
    static const char unloadable[] = "error while loading shared libraries";
    if (exit_code == 127 && entry->stderr_tail &&
        memmem(entry->stderr_tail, entry->stderr_tail_bytes, unloadable, sizeof unloadable - 1)) {
        return buf_printf(out, " (the program could not be loaded: a shared library is missing)");
    }
    if (exit_code == 126) {
        return buf_printf(out, " (shells: the command cannot be executed)");
    }
    if (exit_code == 127) {
        return buf_printf(out, " (shells: command not found)");
    }
    const char *name = exit_code > 128 ? signal_name(exit_code - 128) : NULL;
    return name ? buf_printf(out, " (shells: a command was killed by %s)", name) : MUSTER_OK;
}

int report_describe_status(const struct report_entry *entry, struct buf *out) {
    if (entry->status) {
        return buf_printf(out, "%s", entry->status);
    }
    if (WIFSIGNALED(entry->wait_status)) {
        return append_killed(entry, out);
    }
    int exit_code = WEXITSTATUS(entry->wait_status);
    int code = buf_printf(out, "exited with code %d", exit_code);
    code = code == 0 ? append_code_hint(entry, exit_code, out) : code;
    if (code == 0 && entry->stopped_by_us) {
        code = buf_printf(out, " after the launcher had told it to stop");
    }
    return code;
}

static size_t count_lines(const char *text, size_t bytes) {
    size_t lines = bytes > 0 && text[bytes - 1] != '\n';
    for (size_t i = 0; i < bytes; i++) {
        lines += text[i] == '\n';
    }
    return lines;
}

static int append_tail(struct buf *out, const struct report_entry *entry) {
    const char *text = entry->stderr_tail, *name = entry->tail_has_stdout ? "output" : "stderr";
    size_t bytes = entry->stderr_tail_bytes, lines = count_lines(text, bytes);
    int code = lines == 1 ? buf_printf(out, "\n  %s    : its last line", name)
                          : buf_printf(out, "\n  %s    : its last %zu lines", name, lines);
    while (code == 0 && bytes > 0) {
        const char *newline = memchr(text, '\n', bytes);
        size_t length = newline ? (size_t)(newline - text) : bytes;
        code = buf_append(out, "\n    ", 5);
        code = code == 0 ? report_text_clean(out, text, length, REPORT_LINE_BYTES_MAX) : code;
        length += newline != NULL;
        text += length;
        bytes -= length;
    }
    return code;
}

/* A recorded traceback is, as a rule, what the program printed last, too: its last line is looked for. */
static bool repeats_message(const struct report_entry *entry) {
    const char *message = entry->message ? entry->message : "";
    size_t end = strlen(message);
    while (end > 0 && message[end - 1] == '\n') {
        end--;
    }
    size_t start = end;
    while (start > 0 && message[start - 1] != '\n') {
        start--;
    }
    return end > start && memmem(entry->stderr_tail, entry->stderr_tail_bytes, message + start, end - start);
}

/* What would have helped; or the commonest reason why an agent outside an activated environment (cron, systemd) starts
 * nothing. */
static int append_hint(struct buf *out, const struct report_entry *entry, const struct report *report) {
    if (report->native) {
        bool tells = entry->message || entry->stopped_by_us || entry->oom_killed || entry->status;
        return tells ? MUSTER_OK
                     : buf_printf(out, "\n  hint      : a C program that calls muster_record_start() (muster/record.h) "
                                       "in its main() shows here where it crashed");
    }
    static const char no_torch[] = "No module named 'torch'";
    const char *tail = entry->stderr_tail ? entry->stderr_tail : "";
    bool is_it = memmem(tail, entry->stderr_tail ? entry->stderr_tail_bytes : 0, no_torch, sizeof no_torch - 1) ||
                 (entry->message && strstr(entry->message, no_torch));
    return is_it ? buf_printf(out, "\n  hint      : the workers' Python has no torch: activate the virtual environment "
                                   "that has it, or set PYTHON_EXEC to that one's bin/python")
                 : MUSTER_OK;
}

static int append_additions(struct buf *out, size_t index, const struct report_entry *entry,
                            const struct report *report) {
    const bool leads = leads_with_stderr(entry, index, report);
    int code = leads ? append_tail(out, entry) : MUSTER_OK;
    if (code == 0 && entry->error_file_problem) {
        code = buf_printf(out, "\n  note      : the error file cannot be used: %s", entry->error_file_problem);
    }
    if (code != 0 || report->plain) {
        return code;
    }
    code = buf_printf(out, "\n  status    : ");
    code = code == 0 ? report_describe_status(entry, out) : code;
    if (code == 0 && entry->last_call) {
        code = buf_printf(out, "\n  last call : %s", entry->last_call);
    }
    if (code == 0 && entry->stderr_tail && entry->stderr_tail_bytes > 0 && !entry->stopped_by_us &&
        index < REPORT_TAILS_MAX && !leads && !repeats_message(entry)) {
        code = append_tail(out, entry);
    }
    if (code == 0 && index == 0) {
        code = append_hint(out, entry, report);
    }
    return code;
}

/* ---- the block ---- */

static size_t widest_line(const struct buf *text) {
    const char *at = (const char *)buf_bytes(text);
    size_t left = text->len, widest = 0;
    while (left > 0) {
        const char *newline = memchr(at, '\n', left);
        size_t length = newline ? (size_t)(newline - at) : left, width = report_text_width(at, length);
        widest = width > widest ? width : widest;
        length += newline != NULL;
        at += length;
        left -= length;
    }
    return widest;
}

/* Borders are as wide as the longest line of torchelastic's own text: our lines do not change them. */
static int find_width(const struct report *report, const struct report_entry *const *sorted, size_t *out) {
    struct buf text;
    buf_init(&text, 2 * REPORT_MESSAGE_BYTES_MAX + 16384);
    int code = buf_printf(&text, "%s FAILED", report->name);
    size_t width = widest_line(&text);
    for (size_t i = 0; code == 0 && i < report->count && width < BORDER_MAX; i++) {
        buf_clear(&text);
        code = append_entry(&text, i, sorted[i], report);
        size_t wide = widest_line(&text);
        width = wide > width ? wide : width;
    }
    buf_done(&text);
    *out = width < BORDER_MAX ? width : BORDER_MAX;
    return code;
}

static int append_whole_entry(struct buf *out, size_t index, const struct report_entry *entry,
                              const struct report *report) {
    int code = append_entry(out, index, entry, report);
    code = code == 0 ? append_additions(out, index, entry, report) : code;
    return code == 0 ? buf_append(out, "\n", 1) : code;
}

static int append_notes(const char *lines, struct buf *out) {
    int code = MUSTER_OK;
    for (size_t length; code == 0 && (length = strcspn(lines, "\n")) > 0; lines += length + (lines[length] == '\n')) {
        code = buf_printf(out, "  note      : ");
        code = code == 0 ? report_text_clean(out, lines, length, REPORT_LINE_BYTES_MAX) : code;
        code = code == 0 ? buf_append(out, "\n", 1) : code;
    }
    return code;
}

/* Plain: all of them, as torchelastic has it. */
static int append_others(const struct report *report, const struct report_entry *const *sorted, struct buf *out) {
    size_t *as = calloc(report->count, sizeof *as);
    int code = as ? MUSTER_OK : status_fail(MUSTER_ENOMEM, "no memory for the failure report");
    if (code == 0 && !report->plain) {
        report_find_alike(sorted, report->count, as);
    }
    for (size_t i = 1; code == 0 && i < report->count; i++) {
        code = as[i] == 0 ? append_whole_entry(out, i, sorted[i], report) : MUSTER_OK;
    }
    code = code == 0 ? report_append_alike(sorted, report->count, as, out) : code;
    free(as);
    return code;
}

static int append_block(const struct report *report, const struct report_entry *const *sorted, struct buf *out) {
    size_t width = 0;
    int code = find_width(report, sorted, &width);
    char thick[BORDER_MAX + 1] = "", thin[BORDER_MAX + 1] = "";
    memset(thick, '=', width);
    memset(thin, '-', width);
    code = code == 0 ? buf_printf(out, "%s\n%s FAILED\n%s\nFailures:\n", thick, report->name, thin) : code;
    code = code == 0 ? append_others(report, sorted, out) : code;
    if (code == 0 && report->count == 1) {
        code = buf_printf(out, "  <NO_OTHER_FAILURES>\n");
    }
    code = code == 0 ? buf_printf(out, "%s\nRoot Cause (first observed failure):\n", thin) : code;
    code = code == 0 ? append_whole_entry(out, 0, sorted[0], report) : code;
    code = code == 0 && !report->plain ? report_append_peers(report, sorted[0], out) : code;
    code = code == 0 && !report->plain && report->circumstances ? append_notes(report->circumstances, out) : code;
    return code == 0 ? buf_printf(out, "%s\n", thick) : code;
}

int report_format(const struct report *report, struct buf *out) {
    assert(report->count > 0);
    const struct report_entry **sorted = calloc(report->count, sizeof *sorted);
    if (!sorted) {
        return status_fail(MUSTER_ENOMEM, "no memory for the failure report");
    }
    size_t root = report_root(report), others = 1;
    sorted[0] = &report->entries[root];
    for (size_t i = 0; i < report->count; i++) {
        if (i != root) {
            sorted[others++] = &report->entries[i];
        }
    }
    report_sort(sorted + 1, report->count - 1);
    size_t begin = out->len;
    int code = append_block(report, sorted, out);
    /* Programs' names, messages and error files come from outside. */
    printable_clean((char *)buf_bytes(out) + begin, out->len - begin, true);
    free(sorted);
    return code;
}

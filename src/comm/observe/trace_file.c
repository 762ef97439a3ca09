/* The trace file: its state, its buffer, its beginning and its end. What is recorded: trace.c, trace.h.
 *
 * The state is per process by nature (a trace is of a process) and all of it is here. The file has one event a line, so
 * that a file which a SIGKILL cut short loses no more than its last line; docs/profiling.md has the fields. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "comm/observe/trace.h"
#include "comm/observe/trace_impl.h"

enum { STATE_UNKNOWN, STATE_OFF, STATE_ON };
enum { HOST_BYTES_MAX = 64, CLOCK_BYTES_MAX = 96, FILE_TRIES_MAX = 100 };

_Atomic int trace_state;

static struct {
    pthread_mutex_t lock;
    int fd; /* -1: not open */
    pid_t process;
    int64_t rank, world_size; /* -1: not known */
    size_t used;
    int64_t oldest_ns, written_bytes;
    size_t lane_count;
    char host[HOST_BYTES_MAX], clock[CLOCK_BYTES_MAX];
    char failure[256]; /* why the trace was given up, or "" */
} recorder = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1, .rank = -1, .world_size = -1};
static char lanes[TRACE_LANES_MAX][MUSTER_TRACE_NAME_MAX]; /* names of groups */
static char buffer[TRACE_BUFFER_BYTES];

/* ---- the file; the lock is held ---- */

/* Who asked for a trace hears that there is none, also before the process has a group, and with it a place for lines.
 */
static void say_failure(void) {
    char line[sizeof recorder.failure + 64];
    if (log_has_sink()) {
        log_warning("no trace from now on: %s", recorder.failure);
    } else if (str_format(line, sizeof line, "muster: no trace from now on: %s\n", recorder.failure)) {
        ssize_t ignored = write(STDERR_FILENO, line, strlen(line));
        (void)ignored;
    }
}

static void give_up(const char *what, int error_number) {
    (void)str_format(recorder.failure, sizeof recorder.failure, "%.150s: %s", what, strerror(error_number));
    say_failure();
    atomic_store(&trace_state, STATE_OFF);
    if (recorder.fd >= 0) {
        close(recorder.fd);
        recorder.fd = -1;
    }
}

static void write_out(void) {
    int error_number = recorder.fd >= 0 ? file_write_all(recorder.fd, buffer, recorder.used, 0) : 0;
    if (error_number != 0) {
        give_up("the trace file cannot be written", error_number);
    }
    recorder.written_bytes += (int64_t)recorder.used;
    recorder.used = 0;
}

/* The last line, which alone has no comma behind it: the file is now a JSON array. */
static void close_file(const char *why) {
    static struct trace_line line;
    trace_line_begin(&line, "muster_trace_end", 'M', recorder.process, recorder.process);
    trace_line_put(&line, ",\"args\":{\"why\":\"%s\"}}\n]\n", why);
    if (recorder.used + line.length > sizeof buffer) {
        write_out();
    }
    memcpy(buffer + recorder.used, line.bytes, line.length);
    recorder.used += line.length;
    write_out();
    if (recorder.fd >= 0) {
        close(recorder.fd);
        recorder.fd = -1;
    }
    atomic_store(&trace_state, STATE_OFF);
}

/* Takes the event whose args, if any, are closed. `at_ns`: about now. */
static void append_locked(struct trace_line *line, int64_t at_ns) {
    trace_line_end(line);
    if (recorder.fd < 0) {
        return;
    }
    if (recorder.written_bytes + (int64_t)recorder.used + TRACE_LINE_BYTES_MAX > TRACE_FILE_BYTES_MAX) {
        close_file("the limit of a trace file has been reached");
        return;
    }
    if (recorder.used + line->length > sizeof buffer) {
        write_out();
    }
    recorder.oldest_ns = recorder.used > 0 ? recorder.oldest_ns : at_ns;
    memcpy(buffer + recorder.used, line->bytes, line->length);
    recorder.used += line->length;
    if (at_ns - recorder.oldest_ns >= TRACE_FLUSH_MS * CLOCK_NS_PER_MS) {
        write_out();
    }
}

/* ---- starting and ending ---- */

/* Processes with equal text read the same CLOCK_MONOTONIC: one boot of one kernel, one time namespace. */
static void describe_clock(char out[CLOCK_BYTES_MAX]) {
    char boot[40] = "unknown", space[32] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, boot, sizeof boot - 1);
    if (fd >= 0) {
        close(fd);
    }
    boot[n > 0 ? (size_t)n : strlen(boot)] = '\0';
    boot[strcspn(boot, "\n")] = '\0';
    n = readlink("/proc/self/ns/time", space, sizeof space - 1);
    space[n > 0 ? n : 0] = '\0';
    (void)str_format(out, CLOCK_BYTES_MAX, "%s %s", boot, space);
}

/* Who writes this file and by which clock; a later line of this name replaces it. */
static void append_header_locked(void) {
    struct trace_line line;
    int64_t now_ns = clock_monotonic_ns();
    trace_line_begin(&line, "muster_trace", 'M', recorder.process, recorder.process);
    trace_line_put(&line, ",\"args\":{\"version\":1,\"rank\":%" PRId64 ",\"world_size\":%" PRId64 ",\"process\":%d",
                   recorder.rank, recorder.world_size, (int)recorder.process);
    trace_line_text(&line, "host", recorder.host);
    trace_line_text(&line, "clock", recorder.clock);
    trace_line_put(&line, ",\"monotonic_ns\":%" PRId64 ",\"realtime_us\":%" PRId64 "}", now_ns, clock_realtime_us());
    append_locked(&line, now_ns);
    char label[HOST_BYTES_MAX + 64];
    (void)str_format(label, sizeof label, "rank %" PRId64 " (%s, process %d)", recorder.rank, recorder.host,
                     (int)recorder.process);
    trace_line_name(&line, "process_name", recorder.process, recorder.process, label);
    append_locked(&line, now_ns);
}

static int64_t number_of_environment(const char *name) {
    const char *text = getenv(name);
    int64_t value;
    return text != NULL && str_parse_i64(text, &value) && value >= 0 ? value : -1;
}

/* FOLDER/rank-00003.HOST.PROCESS.json, with a number behind it where an earlier process had the same. */
static int open_file(const char *folder) {
    char path[4096], who[32] = "process";
    if (recorder.rank >= 0) {
        (void)str_format(who, sizeof who, "rank-%05" PRId64, recorder.rank);
    }
    if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
        return -1;
    }
    for (int i = 0; i < FILE_TRIES_MAX; i++) {
        char again[8] = "";
        if (i > 0) {
            (void)str_format(again, sizeof again, ".%d", i);
        }
        if (!str_format(path, sizeof path, "%s/%s.%s.%d%s.json", folder, who, recorder.host, (int)recorder.process,
                        again)) {
            errno = ENAMETOOLONG;
            return -1;
        }
        int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOCTTY, 0666);
        if (fd >= 0 || errno != EEXIST) {
            return fd;
        }
    }
    return -1;
}

/* A forked child is another process: it leaves the file alone. */
static void forget_in_child(void) {
    atomic_store(&trace_state, STATE_OFF);
    recorder.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    if (recorder.fd >= 0) {
        close(recorder.fd);
        recorder.fd = -1;
    }
    recorder.used = 0;
}

static void start_locked(const char *folder) {
    recorder.process = getpid();
    if (recorder.rank < 0) {
        recorder.rank = number_of_environment("RANK");
        recorder.world_size = number_of_environment("WORLD_SIZE");
    }
    if (gethostname(recorder.host, sizeof recorder.host - 1) != 0 || recorder.host[0] == '\0') {
        (void)str_copy(recorder.host, sizeof recorder.host, "unknown");
    }
    for (char *p = recorder.host; *p != '\0'; p++) {
        *p = *p == '/' ? '_' : *p;
    }
    describe_clock(recorder.clock);
    recorder.fd = open_file(folder);
    if (recorder.fd < 0) {
        int error_number = errno;
        char what[160];
        (void)str_format(what, sizeof what, "MUSTER_TRACE=%.100s: no file can be made there", folder);
        give_up(what, error_number);
        return;
    }
    (void)pthread_atfork(NULL, NULL, forget_in_child);
    memcpy(buffer, "[\n", 2);
    recorder.used = 2;
    recorder.oldest_ns = clock_monotonic_ns();
    append_header_locked();
    write_out();
    if (recorder.fd >= 0) {
        atomic_store(&trace_state, STATE_ON);
    }
}

bool trace_start(void) {
    (void)pthread_mutex_lock(&recorder.lock);
    if (atomic_load(&trace_state) == STATE_UNKNOWN) {
        const char *folder = getenv("MUSTER_TRACE");
        if (folder == NULL || folder[0] == '\0') {
            atomic_store(&trace_state, STATE_OFF);
        } else {
            start_locked(folder);
        }
    }
    (void)pthread_mutex_unlock(&recorder.lock);
    return atomic_load(&trace_state) == STATE_ON;
}

void trace_rank(uint32_t rank, uint32_t world_size) {
    (void)pthread_mutex_lock(&recorder.lock);
    bool is_news = recorder.rank != rank || recorder.world_size != world_size;
    recorder.rank = rank;
    recorder.world_size = world_size;
    if (is_news && recorder.fd >= 0) {
        append_header_locked();
    }
    (void)pthread_mutex_unlock(&recorder.lock);
    (void)trace_enabled();
}

int trace_flush(void) {
    (void)pthread_mutex_lock(&recorder.lock);
    if (recorder.fd >= 0) {
        write_out();
    }
    int code = recorder.failure[0] == '\0' ? MUSTER_OK : MUSTER_ESYSTEM;
    (void)pthread_mutex_unlock(&recorder.lock);
    return code;
}

int trace_fail(void) {
    (void)pthread_mutex_lock(&recorder.lock);
    int code = status_fail(MUSTER_ESYSTEM, "%s", recorder.failure);
    (void)pthread_mutex_unlock(&recorder.lock);
    return code;
}

__attribute__((destructor)) static void end_at_exit(void) {
    (void)pthread_mutex_lock(&recorder.lock);
    if (recorder.fd >= 0) {
        close_file("the process has ended");
    }
    (void)pthread_mutex_unlock(&recorder.lock);
}

int64_t trace_process(void) {
    return recorder.process;
}

void trace_append(struct trace_line *line, int64_t at_ns) {
    (void)pthread_mutex_lock(&recorder.lock);
    append_locked(line, at_ns);
    (void)pthread_mutex_unlock(&recorder.lock);
}

int64_t trace_lane_of_group(const char *group) {
    size_t lane = 0;
    (void)pthread_mutex_lock(&recorder.lock);
    while (lane < recorder.lane_count && strncmp(lanes[lane], group, MUSTER_TRACE_NAME_MAX - 1) != 0) {
        lane++;
    }
    if (lane == TRACE_LANES_MAX) {
        lane--;
    } else if (lane == recorder.lane_count) {
        struct trace_line line;
        char label[MUSTER_TRACE_NAME_MAX + 16];
        recorder.lane_count++;
        (void)str_format(lanes[lane], MUSTER_TRACE_NAME_MAX, "%.*s", MUSTER_TRACE_NAME_MAX - 1, group);
        (void)str_format(label, sizeof label, "group %s", lanes[lane]);
        trace_line_name(&line, "thread_name", recorder.process, LANE_FIRST + (int64_t)lane, label);
        append_locked(&line, clock_monotonic_ns());
    }
    (void)pthread_mutex_unlock(&recorder.lock);
    return LANE_FIRST + (int64_t)lane;
}

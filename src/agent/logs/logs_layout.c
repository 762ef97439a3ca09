/* Directories, prefixes and routes; see logs_layout.h. */
#include "agent/logs/logs_layout.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/guardian/empty_folders.h"
#include "base/file.h"
#include "base/status.h"
#include "base/str.h"
#include "base/system/random.h"

/* ---- routes ---- */

bool logs_without_files(const struct launch_config *config) {
    return config->log_dir && strcmp(config->log_dir, "/dev/null") == 0;
}

static bool map_has(const struct launch_stream_map *map, uint32_t local_rank, enum logs_stream stream) {
    unsigned bit = stream == LOGS_STDOUT ? LAUNCH_STREAM_STDOUT : LAUNCH_STREAM_STDERR;
    unsigned value = map->all;
    if (map->is_map) {
        value = local_rank < sizeof map->by_rank ? map->by_rank[local_rank] : LAUNCH_STREAM_NONE;
    }
    return (value & bit) != 0;
}

static bool is_hidden(const struct launch_config *config, uint32_t local_rank) {
    if (!config->local_ranks_filtered || (logs_without_files(config) && !config->merge_logs)) {
        return false;
    }
    for (size_t i = 0; i < config->local_ranks_filter_count; i++) {
        if (config->local_ranks_filter[i] == local_rank) {
            return false;
        }
    }
    return true;
}

/* Only where both streams go the same way, and neither into a file of its own. */
static bool shares_stderrs_pipe(const struct launch_config *config, uint32_t local_rank,
                                const struct logs_consoles *consoles) {
    struct logs_route route = logs_route_of(config, LOGS_STDERR, local_rank, consoles);
    return consoles->are_one && route.into_pipe && route.pipe_to_console && !route.pipe_to_file;
}

struct logs_route logs_route_of(const struct launch_config *config, enum logs_stream stream, uint32_t local_rank,
                                const struct logs_consoles *consoles) {
    bool files = !logs_without_files(config), hidden = is_hidden(config, local_rank);
    bool tee = files && map_has(&config->tee, local_rank, stream);
    bool redirect = files && map_has(&config->redirects, local_rank, stream);
    bool tail = stream == LOGS_STDERR && config->stderr_tail_lines > 0;
    if (tee && !hidden) {
        return (struct logs_route){.into_pipe = true,
                                   .pipe_to_file = true,
                                   .pipe_to_console = true,
                                   .pipe_prefixed = true,
                                   .pipe_keeps_tail = tail};
    }
    if (tee || redirect) {
        return (struct logs_route){.into_file = true};
    }
    if (hidden) {
        return tail ? (struct logs_route){.into_pipe = true, .pipe_keeps_tail = true}
                    : (struct logs_route){.into_null = true};
    }
    if (stream == LOGS_STDOUT && shares_stderrs_pipe(config, local_rank, consoles)) {
        return (struct logs_route){.with_stderr = true};
    }
    if (config->merge_logs) {
        return (struct logs_route){
            .into_pipe = true, .pipe_to_console = true, .pipe_prefixed = true, .pipe_keeps_tail = tail};
    }
    if (tail && !consoles->stderr_is_terminal) {
        return (struct logs_route){.into_pipe = true, .pipe_to_console = true, .pipe_keeps_tail = true};
    }
    return (struct logs_route){0};
}

/* ---- directories ---- */

static int fail_directory(int error_number, const char *path) {
    const char *advice = error_number == ENOSPC || error_number == EDQUOT
                             ? "make room there, choose another place with --log-dir, or write no files with --log-dir "
                               "/dev/null"
                             : "choose another place with --log-dir, or write no files with --log-dir /dev/null";
    return status_fail(MUSTER_ESYSTEM, "cannot create log directory %s: %s; %s", path, strerror(error_number), advice);
}

static int make_directory(const char *path, mode_t mode) {
    return mkdir(path, mode) == 0 ? MUSTER_OK : fail_directory(errno, path);
}

/* mkdir -p; a component that exists is fine when it leads to a directory. */
static int make_path(const char *path, mode_t mode) {
    char *copy = strdup(path);
    if (!copy) {
        return status_fail(MUSTER_ENOMEM, "no memory for the name of a log directory");
    }
    int code = MUSTER_OK;
    for (char *slash = copy + 1; code == 0 && *copy != '\0'; slash++) {
        slash = slash + strcspn(slash, "/");
        char separator = *slash;
        *slash = '\0';
        struct stat st;
        if (mkdir(copy, mode) != 0 && (errno != EEXIST || stat(copy, &st) != 0 || !S_ISDIR(st.st_mode))) {
            code = fail_directory(errno == EEXIST ? ENOTDIR : errno, copy);
        }
        *slash = separator;
        if (separator == '\0') {
            break;
        }
    }
    free(copy);
    return code;
}

/* mkdtemp with eight random characters: <folder>/<stem>_xxxxxxxx, mode 0700. */
static int make_unique(const char *folder, const char *stem, char **out) {
    enum { RANDOM_CHARACTERS = 8, TRIES = 100 };
    static const char alphabet[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    for (int i = 0; i < TRIES; i++) {
        uint8_t noise[RANDOM_CHARACTERS];
        char name[RANDOM_CHARACTERS + 1] = {0};
        if (random_fill(noise, sizeof noise) != 0) {
            return status_fail_errno(errno, "cannot get random bytes for the name of the log directory");
        }
        for (int k = 0; k < RANDOM_CHARACTERS; k++) {
            name[k] = alphabet[noise[k] % (sizeof alphabet - 1)];
        }
        char *path = str_format_new("%s/%s_%s", folder, stem, name);
        if (!path) {
            return status_fail(MUSTER_ENOMEM, "no memory for the name of a log directory");
        }
        if (mkdir(path, 0700) == 0) {
            *out = path;
            return MUSTER_OK;
        }
        int error_number = errno;
        int code = error_number == EEXIST ? 0 : fail_directory(error_number, path);
        free(path);
        if (code != 0) {
            return code;
        }
    }
    return status_fail(MUSTER_ESYSTEM, "%s holds every name tried for a new log directory", folder);
}

/* A run id may hold anything; a directory name may not. */
static char *name_of_run(const char *run_id) {
    enum { NAME_BYTES_MAX = 200 };
    char *name = strndup(run_id ? run_id : "", NAME_BYTES_MAX);
    for (char *p = name; p && *p != '\0'; p++) {
        *p = *p == '/' ? '_' : *p;
    }
    return name;
}

int logs_layout_create_run(const struct launch_config *config, char **run_directory, char **made_base) {
    struct stat st;
    const char *base = config->log_dir;
    *made_base = NULL;
    *run_directory = NULL;
    if (base && base[0] != '\0') {
        if (stat(base, &st) == 0 && !S_ISDIR(st.st_mode)) {
            return status_fail(MUSTER_EINVAL, "log_dir: %s is a file; --log-dir must name a directory", base);
        }
        int code = make_path(base, 0777);
        if (code != 0) {
            return code;
        }
    } else {
        int code = make_unique(file_temporary_folder(), "torchelastic", made_base);
        if (code != 0) {
            return code;
        }
        base = *made_base;
    }
    char *name = name_of_run(config->run_id);
    int code = name ? make_unique(base, name, run_directory)
                    : status_fail(MUSTER_ENOMEM, "no memory for the name of a log directory");
    free(name);
    if (code != 0 && *made_base) {
        (void)rmdir(*made_base);
        free(*made_base);
        *made_base = NULL;
    }
    return code;
}

/* Frees the name attempt_<n> by renaming what has it. */
static int move_aside(const char *path, uint64_t old_round) {
    enum { COPIES_MAX = 1000 };
    for (unsigned copy = 1; copy <= COPIES_MAX; copy++) {
        char *aside = copy == 1 ? str_format_new("%s.round_%llu", path, (unsigned long long)old_round)
                                : str_format_new("%s.round_%llu.%u", path, (unsigned long long)old_round, copy);
        if (!aside) {
            return status_fail(MUSTER_ENOMEM, "no memory for the name of a log directory");
        }
        struct stat st;
        bool taken = lstat(aside, &st) == 0;
        int moved = taken ? -1 : rename(path, aside), error_number = errno;
        free(aside);
        if (moved == 0) {
            return MUSTER_OK;
        }
        if (!taken) {
            return status_fail_errno(error_number, "cannot keep the log directory %s of the last round", path);
        }
    }
    return status_fail(MUSTER_ELIMIT, "too many log directories like %s", path);
}

static int make_ranks(const char *attempt, uint32_t nproc) {
    for (uint32_t rank = 0; rank < nproc; rank++) {
        char *path = str_format_new("%s/%u", attempt, rank);
        int code = path ? make_directory(path, 0777) : status_fail(MUSTER_ENOMEM, "no memory for a log directory");
        free(path);
        if (code != 0) {
            return code;
        }
    }
    return MUSTER_OK;
}

int logs_layout_create_attempt(const char *run_directory, uint32_t restart_count, uint64_t old_round, uint32_t nproc,
                               char **attempt_directory) {
    char *path = str_format_new("%s/attempt_%u", run_directory, restart_count);
    if (!path) {
        return status_fail(MUSTER_ENOMEM, "no memory for the name of a log directory");
    }
    struct stat st;
    int code = lstat(path, &st) == 0 ? move_aside(path, old_round) : MUSTER_OK;
    /* The run directory is recreated when a cleaner of temporary files took it during a long job. */
    code = code == 0 ? make_path(run_directory, 0700) : code;
    code = code == 0 ? make_directory(path, 0777) : code;
    code = code == 0 ? make_ranks(path, nproc) : code;
    if (code != 0) {
        free(path);
        return code;
    }
    *attempt_directory = path;
    return MUSTER_OK;
}

/* What empty_folders_remove() does, by the names that were given, for want of a descriptor. */
static void remove_named(const char *run_directory, uint32_t attempts, uint32_t nproc) {
    char path[PATH_MAX];
    for (uint32_t attempt = 0; attempt < attempts; attempt++) {
        for (uint32_t rank = 0; rank < nproc; rank++) {
            if (str_format(path, sizeof path, "%s/attempt_%u/%u", run_directory, attempt, rank)) {
                (void)rmdir(path);
            }
        }
        if (str_format(path, sizeof path, "%s/attempt_%u", run_directory, attempt)) {
            (void)rmdir(path);
        }
    }
    (void)rmdir(run_directory);
}

void logs_layout_remove_empty(const char *base, const char *run_directory, uint32_t attempts, uint32_t nproc) {
    if (!empty_folders_remove(base, LOGS_LEVELS)) {
        remove_named(run_directory, attempts, nproc);
        (void)rmdir(base);
    }
}

/* ---- prefixes ---- */

struct prefix_values {
    const char *role;
    char rank[12];
    char local_rank[12];
    char host_name[HOST_NAME_MAX + 1];
};

static const char *find_value(const struct prefix_values *values, const char *name, size_t length) {
    const struct {
        const char *name, *value;
    } known[] = {{"role_name", values->role},
                 {"rank", values->rank},
                 {"local_rank", values->local_rank},
                 {"hostname", values->host_name}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strlen(known[i].name) == length && memcmp(known[i].name, name, length) == 0) {
            return known[i].value;
        }
    }
    return NULL;
}

static size_t identifier_length(const char *text) {
    size_t n = 0;
    while (text[n] == '_' || isalpha((unsigned char)text[n]) || (n > 0 && isdigit((unsigned char)text[n]))) {
        n++;
    }
    return n;
}

/* One "$..." at `text`: what it stands for, and its length in *used. NULL: it stays. */
static const char *expand(const struct prefix_values *values, const char *text, size_t *used) {
    if (text[1] == '$') {
        *used = 2;
        return "$";
    }
    bool braced = text[1] == '{';
    const char *name = text + 1 + braced;
    size_t length = identifier_length(name);
    if (length == 0 || (braced && name[length] != '}')) {
        return NULL;
    }
    *used = 1 + length + (braced ? 2 : 0);
    return find_value(values, name, length);
}

void logs_prefix(const char *template, const char *role, uint32_t global_rank, uint32_t local_rank,
                 char out[LOGS_PREFIX_SIZE]) {
    if (!template || template[0] == '\0') {
        (void)snprintf(out, LOGS_PREFIX_SIZE, "[%s%u]:", role, local_rank);
        return;
    }
    struct prefix_values values = {.role = role};
    (void)snprintf(values.rank, sizeof values.rank, "%u", global_rank);
    (void)snprintf(values.local_rank, sizeof values.local_rank, "%u", local_rank);
    (void)gethostname(values.host_name, sizeof values.host_name - 1);
    size_t at = 0;
    while (*template != '\0') {
        size_t used = 1;
        const char *value = *template == '$' ? expand(&values, template, &used) : NULL;
        const char *piece = value ? value : template;
        size_t length = value ? strlen(value) : used;
        if (at + length >= LOGS_PREFIX_SIZE) {
            break;
        }
        memcpy(out + at, piece, length);
        at += length;
        template += used;
    }
    out[at] = '\0';
}

/* What a world of many ranks costs on one machine, and how soon it knows of deaths:
 *
 *     ranks_bench [--ranks N] [--hosts K | --tcp] [--kill PERCENT] [--seed S] [--check]
 *
 * Forks N processes (1,024 unless told otherwise) that meet in a store of their own, on one host's memory; on K hosts
 * (MUSTER_HOST_ID, so TCP between them); or, with --tcp, each as a host of its own (MUSTER_SHM=0). All begin at once.
 * It prints how long the group, the first barrier and the first all_reduce of 4 bytes took until the last rank had
 * them, what a rank holds then (memory, descriptors, connections), and how many operations it asked of the store.
 *
 * Then it kills --kill percent of the ranks at one moment (10; 0: none), while all others wait in a barrier that these
 * never entered. Each survivor's call must fail with a sentence that names one of the dead. It prints after how long,
 * and how long it then takes until all survivors have freed the group and ended.
 *
 * --check compares what can be counted with its limits (never times), and exits with 1 if one is passed.
 *
 * Ranks end with this process, whatever ends it. Nothing is left behind: there are no names in any file system. */
#include <dirent.h>
#include <errno.h>
#include <getopt.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <muster/muster.h>

#include "ranks_count.h"

enum {
    RANKS_MAX = 4096,
    PATIENCE_S = 120,    /* for all of it: then everything is ended */
    SETTLE_MS = 300,     /* after the last rank has said that it enters the barrier: until all sleep in it */
    MEMORY_SAMPLES = 32, /* ranks whose memory is read: the kernel walks all of a process's pages for it */
    SENTENCE_BYTES = 512,
    DESCRIPTORS_SPARE = 64, /* of this process, beside its ranks */
};

/* What can be counted, and does not grow with the number of ranks. Connections: those by which hosts hear of each
 * other's deaths. Descriptors, this process's own and the store's among them: 32 ranks of one host watch 31 others
 * each. */
enum { STORE_OPERATIONS_MAX = 9, DESCRIPTORS_MAX = 48, CONNECTIONS_MAX = 2 };

enum phase {
    PHASE_BORN = 1,
    PHASE_GROUP,
    PHASE_BARRIER,
    PHASE_REDUCED,
    PHASE_DOOMED,
    PHASE_TOLD,
    PHASE_ENDED,
    PHASE_COUNT
};

struct rank_note {
    _Atomic int64_t at_ns[PHASE_COUNT];
    uint32_t operations, descriptors, connections;
    _Atomic int64_t failed_ns;
    int code;
    char sentence[SENTENCE_BYTES];
};

/* Shared by all processes of the benchmark. */
struct board {
    _Atomic uint32_t gate; /* the phase that ranks may begin */
    _Atomic uint32_t arrived[PHASE_COUNT];
    _Atomic uint32_t has_failed;
    uint8_t is_victim[RANKS_MAX];
    struct rank_note notes[];
};

struct settings {
    uint32_t ranks, hosts, kill_percent, seed;
    bool tcp, check;
};

static struct board *board;
static pid_t pids[RANKS_MAX];
static pid_t store_pid;

static int64_t now_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void pause_ms(long ms) {
    const struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    (void)nanosleep(&pause, NULL);
}

/* ---- the board ---- */

static void wake(_Atomic uint32_t *word) {
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static void await_at_least(_Atomic uint32_t *word, uint32_t wanted) {
    for (uint32_t seen; (seen = atomic_load(word)) < wanted;) {
        (void)syscall(SYS_futex, word, FUTEX_WAIT, seen, NULL, NULL, 0);
    }
}

static void stamp(uint32_t rank, enum phase phase) {
    atomic_store(&board->notes[rank].at_ns[phase], now_ns());
}

/* Stamped before. */
static void arrive(enum phase phase) {
    (void)atomic_fetch_add(&board->arrived[phase], 1);
}

static void stamp_and_arrive(uint32_t rank, enum phase phase) {
    stamp(rank, phase);
    arrive(phase);
}

static void open_gate(enum phase phase) {
    atomic_store(&board->gate, phase);
    wake(&board->gate);
}

/* ---- a rank ---- */

_Noreturn static void fail(uint32_t rank, const char *what) {
    (void)fprintf(stderr, "ranks_bench: rank %u: %s: %s\n", rank, what, muster_detail());
    atomic_store(&board->has_failed, 1);
    _exit(1);
}

/* Descriptors that are open, and those of them that are connected by TCP. */
static void count_descriptors(uint32_t *out_all, uint32_t *out_connected) {
    DIR *folder = opendir("/proc/self/fd");
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        struct sockaddr_storage peer = {0};
        socklen_t bytes = sizeof peer;
        int fd = (int)strtol(entry->d_name, NULL, 10);
        if (entry->d_name[0] == '.' || fd == dirfd(folder)) {
            continue;
        }
        ++*out_all;
        *out_connected += getpeername(fd, (struct sockaddr *)&peer, &bytes) == 0 && peer.ss_family != AF_UNIX ? 1 : 0;
    }
    if (folder) {
        (void)closedir(folder);
    }
}

static void note_failure(struct rank_note *note, int code) {
    note->code = code;
    (void)snprintf(note->sentence, sizeof note->sentence, "%s", muster_detail());
    atomic_store(&note->failed_ns, now_ns());
}

static void set_host(const struct settings *settings, uint32_t rank) {
    char name[32];
    if (settings->tcp) {
        (void)setenv("MUSTER_SHM", "0", 1);
    } else if (settings->hosts > 1) {
        (void)snprintf(name, sizeof name, "host-%u", rank * settings->hosts / settings->ranks);
        (void)setenv("MUSTER_HOST_ID", name, 1);
    }
}

static int first_all_reduce(struct muster_group *group, uint32_t size) {
    int32_t one = 1, sum = 0;
    int code = muster_all_reduce(group, &one, &sum, 1, MUSTER_INT32, MUSTER_OP_SUM, NULL);
    return code == MUSTER_OK && sum != (int32_t)size ? MUSTER_ECORRUPT : code;
}

/* Enters a barrier that cannot end, or waits to be killed. */
static void be_doomed(struct muster_group *group, uint32_t rank) {
    await_at_least(&board->gate, PHASE_DOOMED);
    stamp_and_arrive(rank, PHASE_DOOMED);
    while (board->is_victim[rank]) {
        (void)pause();
    }
    note_failure(&board->notes[rank], muster_barrier(group, NULL));
    stamp_and_arrive(rank, PHASE_TOLD);
    await_at_least(&board->gate, PHASE_TOLD);
}

_Noreturn static void be_rank(const struct settings *settings, uint32_t rank, uint16_t port) {
    struct muster_store_options options = MUSTER_STORE_OPTIONS_INIT;
    struct muster_store *store = NULL;
    struct muster_group *group = NULL;
    struct rank_note *note = &board->notes[rank];
    set_host(settings, rank);
    options.host = "127.0.0.1";
    options.port = port;
    if (muster_store_open_tcp(&options, &store) != MUSTER_OK) {
        fail(rank, "open the store");
    }
    stamp_and_arrive(rank, PHASE_BORN);
    await_at_least(&board->gate, PHASE_GROUP);
    if (muster_group_create_store(store, rank, settings->ranks, NULL, &group) != MUSTER_OK) {
        fail(rank, "make the group");
    }
    stamp(rank, PHASE_GROUP);
    note->operations = ranks_store_operations();
    count_descriptors(&note->descriptors, &note->connections);
    arrive(PHASE_GROUP);
    await_at_least(&board->gate, PHASE_BARRIER);
    if (muster_barrier(group, NULL) != MUSTER_OK) {
        fail(rank, "barrier");
    }
    stamp_and_arrive(rank, PHASE_BARRIER);
    await_at_least(&board->gate, PHASE_REDUCED);
    if (first_all_reduce(group, settings->ranks) != MUSTER_OK) {
        fail(rank, "all_reduce");
    }
    stamp_and_arrive(rank, PHASE_REDUCED);
    await_at_least(&board->gate, PHASE_DOOMED);
    if (settings->kill_percent > 0) {
        be_doomed(group, rank);
    }
    muster_group_free(group);
    muster_store_close(store);
    stamp_and_arrive(rank, PHASE_ENDED);
    _exit(0);
}

/* ---- all of them ---- */

static void be_mortal(void) {
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)alarm(PATIENCE_S);
}

static void end_all(const struct settings *settings) {
    for (uint32_t rank = 0; rank < settings->ranks; rank++) {
        if (pids[rank] > 0) {
            (void)kill(pids[rank], SIGKILL);
        }
    }
    for (uint32_t rank = 0; rank < settings->ranks; rank++) {
        if (pids[rank] > 0) {
            (void)waitpid(pids[rank], NULL, 0);
        }
    }
    if (store_pid > 0) {
        (void)kill(store_pid, SIGKILL);
        (void)waitpid(store_pid, NULL, 0);
    }
}

_Noreturn static void give_up(const struct settings *settings, const char *what) {
    (void)fprintf(stderr, "ranks_bench: %s\n", what);
    end_all(settings);
    exit(1);
}

/* Until `count` ranks have reached the phase. */
static void await_phase(const struct settings *settings, enum phase phase, uint32_t count) {
    int64_t until_ns = now_ns() + PATIENCE_S * INT64_C(1000000000);
    while (atomic_load(&board->arrived[phase]) < count) {
        if (atomic_load(&board->has_failed)) {
            give_up(settings, "a rank has failed");
        }
        if (now_ns() > until_ns) {
            give_up(settings, "ranks do not come forward");
        }
        pause_ms(2);
    }
}

/* A process of its own serves the store: this one has no thread when it forks. */
static uint16_t start_store(void) {
    int port_pipe[2];
    uint16_t port = 0;
    if (pipe(port_pipe) != 0) {
        return 0;
    }
    store_pid = fork();
    if (store_pid == 0) {
        struct muster_store_options options = MUSTER_STORE_OPTIONS_INIT;
        struct muster_store *store = NULL;
        be_mortal();
        options.is_host = true;
        options.bind_host = "127.0.0.1";
        port = muster_store_open_tcp(&options, &store) == MUSTER_OK ? muster_store_port(store) : 0;
        (void)!write(port_pipe[1], &port, sizeof port);
        for (;;) {
            (void)pause();
        }
    }
    (void)!read(port_pipe[0], &port, sizeof port);
    (void)close(port_pipe[0]);
    (void)close(port_pipe[1]);
    return port;
}

static void start_ranks(const struct settings *settings, uint16_t port) {
    for (uint32_t rank = 0; rank < settings->ranks; rank++) {
        pids[rank] = fork();
        if (pids[rank] == 0) {
            be_mortal();
            be_rank(settings, rank, port);
        }
        if (pids[rank] < 0) {
            give_up(settings, "cannot fork so many ranks");
        }
    }
}

/* ---- measuring ---- */

/* Opens a gate, and says after how many seconds the last rank had passed it. */
static double time_phase(const struct settings *settings, enum phase phase) {
    int64_t begin_ns = now_ns(), end_ns = begin_ns;
    open_gate(phase);
    await_phase(settings, phase, settings->ranks);
    for (uint32_t rank = 0; rank < settings->ranks; rank++) {
        int64_t at_ns = atomic_load(&board->notes[rank].at_ns[phase]);
        end_ns = at_ns > end_ns ? at_ns : end_ns;
    }
    return (double)(end_ns - begin_ns) / 1e9;
}

/* KiB of one line of /proc/PID/smaps_rollup, added up over lines that begin with `name`. */
static uint64_t memory_kib(pid_t pid, const char *name) {
    char path[64], line[256];
    uint64_t sum = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/smaps_rollup", (int)pid);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) {
        unsigned long long kib = 0;
        char *colon = strchr(line, ':');
        if (strncmp(line, name, strlen(name)) == 0 && colon && sscanf(colon + 1, "%llu", &kib) == 1) {
            sum += kib;
        }
    }
    if (file) {
        (void)fclose(file);
    }
    return sum;
}

static void print_memory(const struct settings *settings) {
    uint64_t pss = 0, private = 0, count = 0;
    uint32_t step = settings->ranks > MEMORY_SAMPLES ? settings->ranks / MEMORY_SAMPLES : 1;
    for (uint32_t rank = 0; rank < settings->ranks; rank += step) {
        pss += memory_kib(pids[rank], "Pss:");
        private += memory_kib(pids[rank], "Private_");
        count++;
    }
    printf("memory a rank           %8.0f KiB PSS, %.0f KiB private\n", (double)pss / (double)count,
           (double)private / (double)count);
}

struct counts {
    uint32_t least, median, most;
};

static int compare_u32(const void *left, const void *right) {
    const uint32_t *a = left, *b = right;
    return (*a > *b) - (*a < *b);
}

static struct counts count_of(const struct settings *settings, uint32_t (*of)(const struct rank_note *note)) {
    static uint32_t values[RANKS_MAX];
    for (uint32_t rank = 0; rank < settings->ranks; rank++) {
        values[rank] = of(&board->notes[rank]);
    }
    qsort(values, settings->ranks, sizeof *values, compare_u32);
    return (struct counts){values[0], values[settings->ranks / 2], values[settings->ranks - 1]};
}

static uint32_t operations_of(const struct rank_note *note) {
    return note->operations;
}

static uint32_t descriptors_of(const struct rank_note *note) {
    return note->descriptors;
}

/* That to the store is not counted. */
static uint32_t connections_of(const struct rank_note *note) {
    return note->connections - 1;
}

/* false: the most is above the limit, and that is to be checked. */
static bool print_counts(const struct settings *settings, const char *what,
                         uint32_t (*of)(const struct rank_note *note), uint32_t most) {
    struct counts counts = count_of(settings, of);
    bool is_well = counts.most <= most;
    printf("%-23s %8u to %u, median %u%s\n", what, counts.least, counts.most, counts.median,
           settings->check && !is_well ? "   <- too many" : "");
    return is_well || !settings->check;
}

/* ---- killing ---- */

static uint32_t choose_victims(const struct settings *settings) {
    uint32_t wanted = settings->ranks * settings->kill_percent / 100, chosen = 0;
    unsigned seed = settings->seed;
    while (chosen < wanted) {
        uint32_t rank = (uint32_t)rand_r(&seed) % settings->ranks;
        chosen += board->is_victim[rank] ? 0 : 1;
        board->is_victim[rank] = 1;
    }
    return chosen;
}

/* Does the sentence name a rank that was killed? */
static bool names_a_victim(const struct settings *settings, const char *sentence) {
    for (const char *at = sentence; (at = strstr(at, "rank ")); at++) {
        char *end = NULL;
        unsigned long rank = strtoul(at + 5, &end, 10);
        if (end != at + 5 && rank < settings->ranks && board->is_victim[rank]) {
            return true;
        }
    }
    return false;
}

static double seconds_of(uint32_t us) {
    return (double)us / 1e6;
}

static bool print_survivors(const struct settings *settings, int64_t killed_ns, uint32_t survivors) {
    static uint32_t delays_us[RANKS_MAX];
    uint32_t count = 0, wrong = 0, an_example = 0;
    for (uint32_t rank = 0; rank < settings->ranks; rank++) {
        const struct rank_note *note = &board->notes[rank];
        if (board->is_victim[rank]) {
            continue;
        }
        delays_us[count++] = (uint32_t)((atomic_load(&note->failed_ns) - killed_ns) / 1000);
        if (note->code != MUSTER_EPEER || !names_a_victim(settings, note->sentence)) {
            wrong++;
            an_example = rank;
        }
    }
    qsort(delays_us, count, sizeof *delays_us, compare_u32);
    printf("survivors know after    %8.3f s, median %.3f, first %.3f\n", seconds_of(delays_us[survivors - 1]),
           seconds_of(delays_us[survivors / 2]), seconds_of(delays_us[0]));
    if (wrong > 0) {
        printf("%u survivors name no dead rank; rank %u: %s: %s\n", wrong, an_example,
               muster_strerror(board->notes[an_example].code), board->notes[an_example].sentence);
    }
    return wrong == 0;
}

static bool kill_some(const struct settings *settings) {
    uint32_t victims = choose_victims(settings), survivors = settings->ranks - victims;
    open_gate(PHASE_DOOMED);
    await_phase(settings, PHASE_DOOMED, settings->ranks);
    pause_ms(SETTLE_MS);
    int64_t begin_ns = now_ns();
    for (uint32_t rank = 0; rank < settings->ranks; rank++) {
        if (board->is_victim[rank]) {
            (void)kill(pids[rank], SIGKILL);
        }
    }
    int64_t killed_ns = now_ns();
    await_phase(settings, PHASE_TOLD, survivors);
    int64_t told_ns = now_ns();
    open_gate(PHASE_TOLD);
    await_phase(settings, PHASE_ENDED, survivors);
    int64_t ended_ns = now_ns();
    printf("killed %4u ranks in    %8.3f s\n", victims, (double)(killed_ns - begin_ns) / 1e9);
    bool is_well = print_survivors(settings, begin_ns, survivors);
    printf("and have left after     %8.3f s more\n", (double)(ended_ns - told_ns) / 1e9);
    return is_well;
}

static bool measure(const struct settings *settings) {
    bool is_well = true;
    await_phase(settings, PHASE_BORN, settings->ranks);
    printf("group on all ranks      %8.3f s\n", time_phase(settings, PHASE_GROUP));
    print_memory(settings);
    printf("first barrier           %8.3f s\n", time_phase(settings, PHASE_BARRIER));
    printf("first all_reduce of 4 B %8.3f s\n", time_phase(settings, PHASE_REDUCED));
    is_well &= print_counts(settings, "store operations", operations_of, STORE_OPERATIONS_MAX);
    is_well &= print_counts(settings, "descriptors", descriptors_of, DESCRIPTORS_MAX);
    is_well &= print_counts(settings, "connections", connections_of, CONNECTIONS_MAX);
    (void)fflush(stdout);
    if (settings->kill_percent > 0) {
        return kill_some(settings) && is_well;
    }
    open_gate(PHASE_DOOMED);
    await_phase(settings, PHASE_ENDED, settings->ranks);
    return is_well;
}

/* ---- the command line ---- */

static uint32_t number_of(const char *text, uint32_t least, uint32_t most) {
    char *end = NULL;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || value < least || value > most) {
        (void)fprintf(stderr, "ranks_bench: '%s' is no number from %u to %u\n", text, least, most);
        exit(2);
    }
    return (uint32_t)value;
}

static struct settings parse(int argc, char **argv) {
    static const struct option options[] = {{"ranks", required_argument, NULL, 'r'},
                                            {"hosts", required_argument, NULL, 'h'},
                                            {"tcp", no_argument, NULL, 't'},
                                            {"kill", required_argument, NULL, 'k'},
                                            {"seed", required_argument, NULL, 's'},
                                            {"check", no_argument, NULL, 'c'},
                                            {NULL, 0, NULL, 0}};
    struct settings settings = {.ranks = 1024, .hosts = 1, .kill_percent = 10, .seed = 1};
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (option) {
        case 'r':
            settings.ranks = number_of(optarg, 2, RANKS_MAX);
            break;
        case 'h':
            settings.hosts = number_of(optarg, 1, RANKS_MAX);
            break;
        case 't':
            settings.tcp = true;
            break;
        case 'k':
            settings.kill_percent = number_of(optarg, 0, 99);
            break;
        case 's':
            settings.seed = number_of(optarg, 0, UINT32_MAX);
            break;
        case 'c':
            settings.check = true;
            break;
        default:
            exit(2);
        }
    }
    return settings;
}

int main(int argc, char **argv) {
    struct settings settings = parse(argc, argv);
    size_t bytes = sizeof *board + settings.ranks * sizeof *board->notes;
    board = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED) {
        perror("ranks_bench: shared memory");
        return 1;
    }
    be_mortal();
    printf("%u ranks, %s\n", settings.ranks,
           settings.tcp         ? "each a host of its own"
           : settings.hosts > 1 ? "on several hosts"
                                : "on one host");
    (void)fflush(stdout);
    uint16_t port = start_store();
    if (port == 0) {
        give_up(&settings, "there is no store");
    }
    start_ranks(&settings, port);
    bool is_well = measure(&settings);
    end_all(&settings);
    return is_well ? 0 : 1;
}

/* What a sharded checkpoint costs beside the least that a disk and memory ask for:
 *
 *     muster run --standalone --nproc-per-node=2 --no-python checkpoint_bench [--mib N] [--rounds N] [--plain-first]
 * FOLDER
 *
 * N MiB of state, of which every rank has its share. In each round the ranks, all at once,
 *     save      muster_checkpoint_save() of it;
 *     direct    write as many bytes with O_DIRECT in pieces of 8 MiB, one file a rank, and fsync;
 *     load      muster_checkpoint_load_newest() into memory that was never touched, from a disk whose cache is empty
 *               (cold) and again (warm);
 *     plain     read() of the same parts into such memory, likewise.
 * With --plain-first the plain reads come first: the disk of a virtual machine serves what was read before sooner.
 * Each is begun by a barrier and ends when the last rank has finished. Rank 0 prints a line for each round:
 * milliseconds of save, direct, cold load, cold plain, warm load, warm plain. bench/checkpoint makes a table of them,
 * beside what PyTorch does. */
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <muster/checkpoint.h>
#include <muster/collective.h>

enum { WRITE_BYTES = 8 << 20, READ_BYTES = 1 << 20, TENSORS = 8, PATH_BYTES = 4096 };

struct bench {
    struct muster_group *group;
    const char *folder;
    uint32_t rank, size;
    bool plain_first;
    size_t bytes; /* of this rank */
    float *values;
    char record[PATH_BYTES], map[PATH_BYTES], part[PATH_BYTES]; /* this rank's part, of the newest checkpoint */
};

static _Noreturn void give_up(const char *what) {
    (void)fprintf(stderr, "checkpoint_bench: %s\n", what);
    _exit(1);
}

static void check(int status, const char *what) {
    if (status != MUSTER_OK) {
        (void)fprintf(stderr, "checkpoint_bench: %s: %s: %s\n", what, muster_strerror(status), muster_detail());
        _exit(1);
    }
}

static void check_call(bool is_good, const char *what) {
    if (!is_good) {
        perror(what);
        _exit(1);
    }
}

static double now_ms(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

/* Fresh pages: the first touch of each costs what it costs. */
static void *reserve(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check_call(memory != MAP_FAILED, "mmap");
    return memory;
}

/* ---- what is measured ---- */

/* A tensor of all ranks is cut into a chunk for each. */
struct description {
    struct muster_tensor tensors[TENSORS];
    struct muster_checkpoint_chunk chunks[TENSORS];
    char names[TENSORS][16];
    struct muster_checkpoint_state state;
};

static void describe(const struct bench *bench, float *values, struct description *out) {
    size_t count = bench->bytes / TENSORS / sizeof *values;
    for (size_t i = 0; i < TENSORS; i++) {
        (void)snprintf(out->names[i], sizeof out->names[i], "layer%zu", i);
        out->tensors[i] = (struct muster_tensor){
            .name = out->names[i], .type = MUSTER_FLOAT32, .dim_count = 1, .shape = {count * bench->size}};
        out->chunks[i] = (struct muster_checkpoint_chunk){i, count * bench->rank, count, values + i * count};
    }
    out->state =
        (struct muster_checkpoint_state)MUSTER_CHECKPOINT_STATE(out->tensors, TENSORS, out->chunks, TENSORS, NULL, 0);
}

static void save(struct bench *bench, int64_t step) {
    struct description own;
    describe(bench, bench->values, &own);
    check(muster_checkpoint_save(bench->group, bench->folder, step, &own.state, NULL), "save");
}

static void write_direct(const struct bench *bench) {
    char path[PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/direct-%" PRIu32, bench->folder, bench->rank);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0666);
    check_call(file >= 0, path);
    for (size_t done = 0; done < bench->bytes; done += WRITE_BYTES) {
        check_call(write(file, (const char *)bench->values + done, WRITE_BYTES) == WRITE_BYTES, "write");
    }
    check_call(fsync(file) == 0, "fsync");
    (void)close(file);
}

static void remove_direct(const struct bench *bench) {
    char path[PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/direct-%" PRIu32, bench->folder, bench->rank);
    (void)unlink(path);
}

static void load(struct bench *bench) {
    struct description own;
    float *values = reserve(bench->bytes);
    describe(bench, values, &own);
    check(muster_checkpoint_load_newest(bench->group, bench->folder, &own.state, NULL, NULL), "load");
    for (size_t i = 0; i < bench->bytes / sizeof *values; i += 4096) {
        if (values[i] != bench->values[i]) {
            give_up("what was loaded is not what was saved");
        }
    }
    (void)munmap(values, bench->bytes);
}

static void read_plainly(const struct bench *bench) {
    char *values = reserve(bench->bytes);
    int file = open(bench->part, O_RDONLY | O_CLOEXEC);
    check_call(file >= 0, bench->part);
    for (size_t done = 0; done < bench->bytes; done += READ_BYTES) {
        check_call(read(file, values + done, READ_BYTES) == READ_BYTES, "read");
    }
    (void)close(file);
    (void)munmap(values, bench->bytes);
}

/* ---- one round ---- */

static void meet(const struct bench *bench) {
    check(muster_barrier(bench->group, NULL), "barrier");
}

static double slowest(const struct bench *bench, double begin_ms) {
    double took_ms = now_ms() - begin_ms;
    check(muster_all_reduce(bench->group, &took_ms, &took_ms, 1, MUSTER_FLOAT64, MUSTER_OP_MAX, NULL), "all_reduce");
    return took_ms;
}

/* The next read of this rank's part comes from the disk. */
static void forget_cache(const struct bench *bench) {
    int file = open(bench->part, O_RDONLY | O_CLOEXEC);
    check_call(file >= 0 && posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0, bench->part);
    (void)close(file);
}

static void name_files(struct bench *bench, int64_t step) {
    char text[1024];
    (void)snprintf(bench->record, sizeof bench->record, "%s/checkpoint-%" PRId64 ".json", bench->folder, step);
    FILE *file = fopen(bench->record, "re");
    check_call(file != NULL, bench->record);
    size_t count = fread(text, 1, sizeof text - 1, file);
    (void)fclose(file);
    text[count] = '\0';
    const char *token = strstr(text, "\"token\": \"");
    if (!token) {
        give_up("a record without a token");
    }
    token += strlen("\"token\": \"");
    (void)snprintf(bench->map, sizeof bench->map, "%s/checkpoint-%" PRId64 "-%.16s.json", bench->folder, step, token);
    (void)snprintf(bench->part, sizeof bench->part, "%s/checkpoint-%" PRId64 "-%.16s-%" PRIu32 ".safetensors",
                   bench->folder, step, token, bench->rank);
}

/* Not in a save that is measured: the other side removes its file out of sight, too. What the disk gives back is
 * written to again, by both. */
static void remove_checkpoint(const struct bench *bench) {
    if (bench->rank == 0) {
        (void)unlink(bench->record);
        (void)unlink(bench->map);
    }
    (void)unlink(bench->part);
}

static void play(struct bench *bench, int64_t step) {
    double took_ms[6], begin_ms;
    meet(bench);
    begin_ms = now_ms();
    save(bench, step);
    took_ms[0] = slowest(bench, begin_ms);
    name_files(bench, step);
    meet(bench);
    begin_ms = now_ms();
    write_direct(bench);
    took_ms[1] = slowest(bench, begin_ms);
    remove_direct(bench);
    forget_cache(bench);
    read_plainly(bench); /* a disk of a virtual machine may be in its host's cache from now on: for all alike */
    for (int warm = 0; warm < 2; warm++) {
        for (int turn = 0; turn < 2; turn++) {
            bool plain = (turn == 0) == bench->plain_first;
            if (!warm) {
                forget_cache(bench);
            }
            meet(bench);
            begin_ms = now_ms();
            if (plain) {
                read_plainly(bench);
            } else {
                load(bench);
            }
            took_ms[2 + 2 * warm + (plain ? 1 : 0)] = slowest(bench, begin_ms);
        }
    }
    remove_checkpoint(bench);
    if (bench->rank == 0) {
        printf("%.1f %.1f %.1f %.1f %.1f %.1f\n", took_ms[0], took_ms[1], took_ms[2], took_ms[3], took_ms[4],
               took_ms[5]);
        (void)fflush(stdout);
    }
}

static size_t positive(const char *text) {
    char *end = NULL;
    unsigned long value = strtoul(text, &end, 10);
    if (value == 0 || value > 1UL << 20 || *end != '\0') {
        give_up("a number >= 1 is needed");
    }
    return value;
}

int main(int argc, char **argv) {
    static const struct option options[] = {{"mib", required_argument, NULL, 'm'},
                                            {"rounds", required_argument, NULL, 'r'},
                                            {"plain-first", no_argument, NULL, 'p'},
                                            {NULL, 0, NULL, 0}};
    struct bench bench = {.rank = 0};
    size_t mib = 1024, rounds = 1;
    int option = 0;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'p') {
            bench.plain_first = true;
        } else if (option == 'm' || option == 'r') {
            *(option == 'm' ? &mib : &rounds) = positive(optarg);
        } else {
            return 2;
        }
    }
    if (optind != argc - 1) {
        give_up("checkpoint_bench [--mib N] [--rounds N] [--plain-first] FOLDER");
    }
    bench.folder = argv[optind];
    check(muster_group_create_env(NULL, &bench.group), "group");
    bench.rank = muster_group_rank(bench.group);
    bench.size = muster_group_size(bench.group);
    bench.bytes = (mib << 20) / bench.size / WRITE_BYTES * WRITE_BYTES;
    if (bench.bytes == 0) {
        give_up("each rank needs 8 MiB at least");
    }
    bench.values = reserve(bench.bytes);
    (void)madvise(bench.values, bench.bytes, MADV_HUGEPAGE); /* the disk takes long runs of memory sooner */
    for (size_t i = 0; i < bench.bytes / sizeof *bench.values; i++) {
        bench.values[i] = (float)(i + bench.rank);
    }
    for (size_t round = 0; round < rounds; round++) {
        play(&bench, (int64_t)round + 1);
    }
    muster_group_free(bench.group);
    return 0;
}

/* What PMIx's library is told of the job: sizes, nodes, ranks and where each is. Open MPI asks for most of it. */
#include <errno.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/mpi/pmix_host_impl.h"
#include "base/buf.h"
#include "base/status.h"
#include "base/str.h"

static void add_number(struct pmix_list *list, const char *key, uint32_t number) {
    pmix_list_add(list, key, &number, PMIX_TYPE_UINT32);
}

static void add_small(struct pmix_list *list, const char *key, uint32_t number) {
    uint16_t small = (uint16_t)number;
    pmix_list_add(list, key, &small, PMIX_TYPE_UINT16);
}

static void add_process(struct pmix_list *all, const struct pmix_host *host, size_t node, uint32_t rank) {
    const struct mpi_node *where = &host->options.nodes[node];
    struct pmix_list one = pmix_list_new(&host->library);
    struct pmix_array array;
    pmix_list_rank(&one, "pmix.rank", rank);
    pmix_list_rank(&one, "pmix.grank", rank);
    pmix_list_rank(&one, "pmix.apprank", rank);
    add_number(&one, "pmix.appnum", 0);
    add_small(&one, "pmix.lrank", rank - where->base);
    add_small(&one, "pmix.nrank", rank - where->base);
    add_number(&one, "pmix.nodeid", (uint32_t)node);
    pmix_list_text(&one, "pmix.hname", where->host);
    int status = pmix_list_array(&one, &array);
    all->status = all->status ? all->status : status;
    pmix_list_add(all, "pmix.pdata", &array, PMIX_TYPE_DATA_ARRAY);
}

typedef int text_fn(const struct mpi_node *nodes, size_t count, struct buf *out);

static int peers_text(const struct mpi_node *nodes, size_t count, struct buf *out) {
    (void)count;
    return mpi_layout_peers(nodes, out);
}

/* "raw:": the library's own notation for lists that are not compressed. */
static void add_list(struct pmix_list *list, const char *key, const char *head, text_fn *write,
                     const struct mpi_node *nodes, size_t count) {
    struct buf text;
    buf_init(&text, MPI_LAYOUT_TEXT_MAX);
    int code = buf_printf(&text, "%s", head);
    code = code ? code : write(nodes, count, &text);
    code = code ? code : buf_append(&text, "", 1);
    if (code) {
        list->status = PMIX_FAILED;
    } else {
        pmix_list_text(list, key, (const char *)buf_bytes(&text));
    }
    buf_done(&text);
}

static void add_job(struct pmix_list *list, const struct pmix_host *host) {
    const struct pmix_host_options *o = &host->options;
    const struct mpi_node *own = &o->nodes[o->node];
    char space_folder[sizeof host->folder + 8];
    bool yes = true;
    (void)str_format(space_folder, sizeof space_folder, "%s/job", host->folder);
    pmix_list_text(list, "pmix.jobid", host->space);
    add_number(list, "pmix.univ.size", o->world_size);
    add_number(list, "pmix.job.size", o->world_size);
    add_number(list, "pmix.app.size", o->world_size);
    add_number(list, "pmix.max.size", o->world_size);
    add_number(list, "pmix.job.napps", 1);
    pmix_list_rank(list, "pmix.offset", 0);
    add_number(list, "pmix.num.nodes", (uint32_t)o->node_count);
    add_list(list, "pmix.nmap", "raw:", mpi_layout_hosts, o->nodes, o->node_count);
    add_list(list, "pmix.pmap", "raw:", mpi_layout_ranks, o->nodes, o->node_count);
    add_list(list, "pmix.nlist", "", mpi_layout_hosts, o->nodes, o->node_count);
    add_list(list, "pmix.anlmap", "", mpi_layout_mapping, o->nodes, o->node_count);
    add_list(list, "pmix.lpeers", "", peers_text, own, 1);
    add_number(list, "pmix.local.size", own->count);
    add_number(list, "pmix.node.size", own->count);
    pmix_list_rank(list, "pmix.lldr", own->base);
    add_number(list, "pmix.nodeid", (uint32_t)o->node);
    pmix_list_text(list, "pmix.hname", own->host);
    pmix_list_text(list, "pmix.tmpdir", host->folder);
    pmix_list_text(list, "pmix.nsdir", space_folder);
    pmix_list_add(list, "pmix.tdir.rmclean", &yes, PMIX_TYPE_BOOL);
}

/* ---- what the library does on its thread is waited for ---- */

struct waiting {
    sem_t done;
    int status;
};

static void on_done(int status, void *ctx) {
    struct waiting *waiting = ctx;
    waiting->status = status;
    (void)sem_post(&waiting->done);
}

static int await(const struct pmix_host *host, struct waiting *waiting, int status, const char *what) {
    if (status == PMIX_OK) {
        while (sem_wait(&waiting->done) != 0 && errno == EINTR) {
        }
        status = waiting->status;
    }
    (void)sem_destroy(&waiting->done);
    return status == PMIX_OK || status == PMIX_DONE_ALREADY
               ? 0
               : status_fail(MUSTER_ESYSTEM, "PMIx: %s: %s", what, host->library.error_string(status));
}

static int register_client(struct pmix_host *host, uint32_t rank) {
    struct pmix_process process = {.rank = rank};
    struct waiting waiting = {0};
    memcpy(process.space, host->space, sizeof process.space);
    (void)sem_init(&waiting.done, 0, 0);
    int status = host->library.register_client(&process, geteuid(), getegid(), NULL, on_done, &waiting);
    return await(host, &waiting, status, "register a rank");
}

static int make_folder(const struct pmix_host *host) {
    enum { PRIVATE = 0700 };
    char path[sizeof host->folder + 8];
    (void)str_format(path, sizeof path, "%s/job", host->folder);
    return mkdir(path, PRIVATE) == 0 ? 0 : status_fail_errno(errno, "make the folder %.200s", path);
}

int pmix_job_register(struct pmix_host *host) {
    const struct pmix_host_options *o = &host->options;
    struct pmix_list list = pmix_list_new(&host->library);
    struct pmix_array array;
    struct waiting waiting = {0};
    add_job(&list, host);
    for (size_t node = 0; node < o->node_count; node++) {
        for (uint32_t i = 0; i < o->nodes[node].count; i++) {
            add_process(&list, host, node, o->nodes[node].base + i);
        }
    }
    int status = pmix_list_array(&list, &array);
    int code = status ? status_fail(MUSTER_ENOMEM, "PMIx: describe the job: %s", host->library.error_string(status))
                      : make_folder(host);
    if (code == 0) {
        (void)sem_init(&waiting.done, 0, 0);
        status = host->library.register_space(host->space, (int)o->nodes[o->node].count, array.array, array.size,
                                              on_done, &waiting);
        code = await(host, &waiting, status, "register the job");
    }
    for (uint32_t i = 0; i < o->nodes[o->node].count && code == 0; i++) {
        code = register_client(host, o->nodes[o->node].base + i);
    }
    return code;
}

/* Killing by level and by tree; see reaper.h. */
#include "agent/guardian/reaper.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/guardian/reaper_proc.h"

/* Descendants frozen in one pass; the pass is repeated, so more only take longer. A descriptor each. */
enum { TREE_MAX = 256, SCAN_MAX = 16384 };

bool reaper_collect(reaper_death *on_death, void *ctx) {
    for (;;) {
        int wait_status = 0;
        pid_t pid = waitpid(-1, &wait_status, WNOHANG);
        if (pid > 0) {
            on_death(ctx, pid, wait_status);
        } else if (pid == 0) {
            return false;
        } else if (errno != EINTR) {
            return true;
        }
    }
}

/* Nobody but us reaps our children, so the answer stays true. */
bool reaper_is_child(pid_t pid) {
    siginfo_t info;
    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

static bool visit_kill(void *ctx, pid_t pid, pid_t parent) {
    (void)parent;
    size_t *count = ctx;
    if (reaper_is_child(pid)) {
        (void)kill(pid, SIGKILL);
        ++*count;
    }
    return true;
}

size_t reaper_kill_children(void) {
    size_t count = 0;
    (void)reaper_proc_children(visit_kill, &count);
    return count;
}

struct sparing {
    reaper_spares *spares;
    void *ctx;
    size_t count;
};

static bool visit_kill_but(void *ctx, pid_t pid, pid_t parent) {
    struct sparing *sparing = ctx;
    return sparing->spares(sparing->ctx, pid) || visit_kill(&sparing->count, pid, parent);
}

size_t reaper_kill_children_but(reaper_spares *spares, void *ctx) {
    struct sparing sparing = {spares, ctx, 0};
    (void)reaper_proc_children(visit_kill_but, &sparing);
    return sparing.count;
}

struct any_child {
    pid_t pid;
};

static bool visit_any(void *ctx, pid_t pid, pid_t parent) {
    (void)parent;
    ((struct any_child *)ctx)->pid = pid;
    return false;
}

pid_t reaper_any_child(void) {
    struct any_child any = {0};
    (void)reaper_proc_children(visit_any, &any);
    return any.pid;
}

bool reaper_has_children(void) {
    siginfo_t info;
    return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

/* One process of the tree under the caller. */
struct tree_node {
    pid_t pid;
    int pidfd; /* -1 for the caller itself */
};

struct tree_link {
    pid_t pid, parent;
};

struct tree {
    struct tree_node nodes[TREE_MAX];
    size_t node_count;
    struct tree_link links[SCAN_MAX]; /* what /proc said */
    size_t link_count;
};

static bool visit_link(void *ctx, pid_t pid, pid_t parent) {
    struct tree *tree = ctx;
    if (pid != getpid() && tree->link_count < SCAN_MAX) {
        tree->links[tree->link_count++] = (struct tree_link){pid, parent};
    }
    return tree->link_count < SCAN_MAX;
}

static int pidfd_open_of(pid_t pid) {
    return (int)syscall(SYS_pidfd_open, pid, 0U);
}

static bool pidfd_signal(int pidfd, int signal_number) {
    return syscall(SYS_pidfd_send_signal, pidfd, signal_number, NULL, 0U) == 0;
}

/* Is the number of this node still the process that was proven to be ours? */
static bool node_holds(const struct tree_node *node) {
    return node->pidfd < 0 || pidfd_signal(node->pidfd, 0);
}

/* Proves that `pid` is a child of `parent`, one of ours, and signals it (0: not). The pidfd is opened first and found
 * alive last, so everything read from /proc in between was about its process; the parent's number is checked likewise.
 */
static bool node_prove(const struct tree_node *parent, pid_t pid, int signal_number, struct tree_node *out) {
    int pidfd = pidfd_open_of(pid);
    if (pidfd < 0) {
        return false;
    }
    if (reaper_proc_parent(pid) != parent->pid || !node_holds(parent) || !pidfd_signal(pidfd, signal_number)) {
        (void)close(pidfd);
        return false;
    }
    *out = (struct tree_node){pid, pidfd};
    return true;
}

/* Breadth first, so that a parent that is stopped bears no more children before its children are looked at. */
static void tree_grow(struct tree *tree, int signal_number, const pid_t spared[2]) {
    for (size_t at = 0; at < tree->node_count; at++) {
        for (size_t i = 0; i < tree->link_count && tree->node_count < TREE_MAX; i++) {
            pid_t pid = tree->links[i].pid;
            if (tree->links[i].parent == tree->nodes[at].pid && pid != spared[0] && pid != spared[1] &&
                node_prove(&tree->nodes[at], pid, signal_number, &tree->nodes[tree->node_count])) {
                tree->node_count++;
            }
        }
    }
}

/* The caller's tree, each process signalled as it is found (0: not). NULL: no memory. */
static struct tree *tree_create(int signal_number, const pid_t spared[2]) {
    struct tree *tree = malloc(sizeof *tree); /* too large for a stack */
    if (!tree) {
        return NULL;
    }
    tree->nodes[0] = (struct tree_node){getpid(), -1};
    tree->node_count = 1;
    tree->link_count = 0;
    if (reaper_has_children()) { /* else no look at each process of the machine */
        (void)reaper_proc_scan(visit_link, tree);
    }
    tree_grow(tree, signal_number, spared);
    return tree;
}

void reaper_signal(pid_t pid, int pidfd, int signal_number) {
    if (pidfd >= 0) {
        (void)pidfd_signal(pidfd, signal_number);
    } else if (reaper_is_child(pid)) {
        (void)kill(pid, signal_number);
    }
}

struct visiting {
    reaper_visit *visit;
    void *ctx;
};

static bool visit_direct(void *ctx, pid_t pid, pid_t parent) {
    const struct visiting *visiting = ctx;
    (void)parent;
    visiting->visit(visiting->ctx, pid, -1);
    return true;
}

void reaper_visit_descendants(reaper_visit *visit, void *ctx) {
    struct tree *tree = tree_create(0, (const pid_t[2]){0, 0});
    size_t node_count = tree ? tree->node_count : 1;
    for (size_t i = 1; i < node_count; i++) {
        visit(ctx, tree->nodes[i].pid, tree->nodes[i].pidfd);
        (void)close(tree->nodes[i].pidfd);
    }
    free(tree);
    if (node_count == 1) { /* none, or no pidfds */
        struct visiting visiting = {visit, ctx};
        (void)reaper_proc_children(visit_direct, &visiting);
    }
}

size_t reaper_kill_descendants(pid_t spared, pid_t also_spared) {
    struct tree *tree = tree_create(SIGSTOP, (const pid_t[2]){spared, also_spared});
    if (!tree) {
        return 0;
    }
    for (size_t i = 1; i < tree->node_count; i++) {
        (void)pidfd_signal(tree->nodes[i].pidfd, SIGKILL);
        (void)close(tree->nodes[i].pidfd);
    }
    size_t killed_count = tree->node_count - 1;
    free(tree);
    return killed_count;
}

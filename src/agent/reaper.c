/* Killing by level and by tree; see reaper.h. */
#include "agent/reaper.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/reaper_proc.h"

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

/* Asks the kernel, not /proc. Nobody but us reaps our children, so the answer stays true. */
static bool is_child(pid_t pid) {
    siginfo_t info;
    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

static bool visit_kill(void *ctx, pid_t pid, pid_t parent) {
    (void)parent;
    size_t *count = ctx;
    if (is_child(pid)) {
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

/* Proves that `pid` is a child of `parent`, one of ours, and stops it. The pidfd is opened first and found alive
 * last, so everything read from /proc in between was about its process; the parent's number is checked likewise. */
static bool node_freeze(const struct tree_node *parent, pid_t pid, struct tree_node *out) {
    int pidfd = pidfd_open_of(pid);
    if (pidfd < 0) {
        return false;
    }
    if (reaper_proc_parent(pid) != parent->pid || !node_holds(parent) || !pidfd_signal(pidfd, SIGSTOP)) {
        (void)close(pidfd);
        return false;
    }
    *out = (struct tree_node){pid, pidfd};
    return true;
}

/* Breadth first, so that a parent is stopped, and bears no more children, before its children are looked at. */
static void tree_freeze(struct tree *tree) {
    for (size_t at = 0; at < tree->node_count; at++) {
        for (size_t i = 0; i < tree->link_count && tree->node_count < TREE_MAX; i++) {
            if (tree->links[i].parent == tree->nodes[at].pid &&
                node_freeze(&tree->nodes[at], tree->links[i].pid, &tree->nodes[tree->node_count])) {
                tree->node_count++;
            }
        }
    }
}

size_t reaper_kill_descendants(void) {
    struct tree *tree = malloc(sizeof *tree); /* too large for a stack */
    if (!tree) {
        return 0;
    }
    tree->nodes[0] = (struct tree_node){getpid(), -1};
    tree->node_count = 1;
    tree->link_count = 0;
    (void)reaper_proc_scan(visit_link, tree);
    tree_freeze(tree);
    for (size_t i = 1; i < tree->node_count; i++) {
        (void)pidfd_signal(tree->nodes[i].pidfd, SIGKILL);
        (void)close(tree->nodes[i].pidfd);
    }
    size_t killed_count = tree->node_count - 1;
    free(tree);
    return killed_count;
}

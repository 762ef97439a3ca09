/* Slurm's compressed lists of host names: "gpu[001-004,7],login,rack[1-2]n[01-03]".
 *
 * An item may have several groups in brackets; the last one varies fastest. A range keeps the zeros of its first number
 * (008-011). Pure; nothing is expanded but the host that is asked for, so a short text that stands for a million hosts
 * costs no memory. */
#ifndef BASE_HOSTLIST_H
#define BASE_HOSTLIST_H

#include <stddef.h>

#define HOSTLIST_BYTES_MAX ((size_t)1 << 17) /* of the text: as long as one variable of the environment can be */
#define HOSTLIST_HOSTS_MAX ((size_t)1 << 20) /* that it stands for */
#define HOSTLIST_HOST_MAX 256                /* bytes of a name, terminator included */
#define HOSTLIST_GROUPS_MAX 8                /* in brackets, of one item */

/* How many hosts `text` stands for, at least one. MUSTER_EINVAL: it is no such list; MUSTER_ELIMIT: beyond a limit. */
int hostlist_count(const char *text, size_t *out);

/* Host number `index`, counted from 0 in the list's order. MUSTER_EINVAL also for an index beyond the end. */
int hostlist_get(const char *text, size_t index, char out[HOSTLIST_HOST_MAX]);

#endif

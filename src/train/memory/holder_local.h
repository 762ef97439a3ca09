/* Memory that this process itself holds, where no launcher does: descriptors by name, of the whole process, until it
 * ends. Any thread. */
#ifndef TRAIN_HOLDER_LOCAL_H
#define TRAIN_HOLDER_LOCAL_H

/* `fd` is duplicated. MUSTER_ELIMIT (names, descriptors), MUSTER_ENOMEM, MUSTER_ESYSTEM. */
int holder_local_put(const char *name, int fd);

/* *out_fd: the caller's. MUSTER_ENOENT, MUSTER_ELIMIT, MUSTER_ESYSTEM. */
int holder_local_get(const char *name, int *out_fd);

void holder_local_drop(const char *name);

#endif

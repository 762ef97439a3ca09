/* Traces: what a rank computed, and when its collectives waited and moved bytes, as Chrome trace files (Perfetto and
 * chrome://tracing open them).
 *
 * With MUSTER_TRACE=FOLDER in its environment a process writes one file there (docs/profiling.md); `muster trace merge
 * FOLDER` joins the files of all ranks on one clock. Without it the calls below cost a load and a branch. Collectives
 * and DDP's buckets are recorded by the library; the program marks its own work with these calls.
 *
 * Names are copied, cut at MUSTER_TRACE_NAME_MAX - 1 bytes. Any thread may call; not from signal handlers. A child that
 * is forked does not write to its parent's trace. None of the calls fails: a trace that cannot be written is given up
 * (with MUSTER_DEBUG=INFO a line on stderr says why), and the program goes on. */
#ifndef MUSTER_TRACE_H
#define MUSTER_TRACE_H

#include <stdbool.h>

#include <muster/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

#define MUSTER_TRACE_NAME_MAX 64

/* Is this process being traced? Saves the work of making a name when it is not. */
bool muster_trace_enabled(void);

/* Begins a mark on this thread, and ends the one that this thread began last. Marks nest:
 *
 *     muster_trace_begin("step");
 *     muster_trace_begin("forward");
 *     forward(model, batch);
 *     muster_trace_end();
 *     // ...
 *     muster_trace_end(); */
void muster_trace_begin(const char *name);
void muster_trace_end(void);

/* A moment on this thread ("epoch 3", "snapshot written"). */
void muster_trace_instant(const char *name);

/* Hands everything recorded so far to the kernel, so that even a SIGKILL cannot lose it. Done by the library at least
 * every 100 ms of activity, when a group fails or is freed, and at exit. 0, or MUSTER_ESYSTEM when the trace had to be
 * given up. Blocks as writing a file does. */
int muster_trace_flush(void);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif

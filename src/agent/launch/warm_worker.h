/* The Python program of a warm process (warm_worker.py), for the interpreter's -c. */
#ifndef AGENT_WARM_WORKER_H
#define AGENT_WARM_WORKER_H

extern const char warm_worker_program[];

#endif

/* The Python program of a preload server (preload_*.py), for the interpreter's -c. */
#ifndef AGENT_PRELOAD_SERVER_H
#define AGENT_PRELOAD_SERVER_H

extern const char preload_server_program[];

#endif

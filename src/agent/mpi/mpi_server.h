/* The MPI server: a process of the agent's that lives as long as one attempt, and tells the MPI programs of this node
 * who they are: by PMI-1 (pmi_server.h), and by PMIx (pmix_server.h). It is a process of its own because what it hears
 * comes from workers, and because PMIx's library has threads and failures of its own. The guardian holds it
 * (guardian_companion() in guardian/guardian.h), and ends it by SIGTERM when the workers have ended.
 *
 * Its descriptor GUARDIAN_GIVEN_FD is the socket to the agent (mpi_wire.h); its stderr is the agent's. */
#ifndef AGENT_MPI_SERVER_H
#define AGENT_MPI_SERVER_H

/* Its command line: this very program, and a word that is no subcommand. */
#define MPI_SERVER_PROGRAM "/proc/self/exe"
#define MPI_SERVER_WORD "muster-mpi-server"

/* First thing in main() of a program that is an agent: where it was started by that, this call is the server, and does
 * not return. */
void mpi_server_main(int argc, char **argv);

#endif

/* See pmix_library.h. */
#include "agent/mpi/pmix_library.h"

#include "base/library.h"
#include "base/status.h"

int pmix_library_open(struct pmix_library *out) {
    const char *reason = NULL;
    void *library = library_open(PMIX_LIBRARY, &reason);
    if (!library) {
        return status_fail(MUSTER_EUNSUPPORTED,
                           "PMIx's library cannot be opened (%s): install it (libpmix2 of Debian and Ubuntu, pmix of "
                           "Fedora), or name the folder of one in LD_LIBRARY_PATH",
                           reason);
    }
#define FIND(name, member) library_find(library, name, &out->member, sizeof out->member)
    bool has_all = FIND("PMIx_server_init", init) && FIND("PMIx_server_finalize", finalize) &&
                   FIND("PMIx_server_register_nspace", register_space) &&
                   FIND("PMIx_server_deregister_nspace", deregister_space) &&
                   FIND("PMIx_server_register_client", register_client) && FIND("PMIx_server_setup_fork", setup_fork) &&
                   FIND("PMIx_server_dmodex_request", dmodex_request) &&
                   FIND("PMIx_Register_event_handler", register_events) && FIND("PMIx_Info_list_start", list_start) &&
                   FIND("PMIx_Info_list_add", list_add) && FIND("PMIx_Info_list_convert", list_convert) &&
                   FIND("PMIx_Info_list_release", list_release) && FIND("PMIx_Error_string", error_string);
#undef FIND
    return has_all ? 0
                   : status_fail(MUSTER_EUNSUPPORTED, PMIX_LIBRARY " is older than OpenPMIx 4.2: install a newer one");
}

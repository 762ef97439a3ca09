/* Attributes that PMIx's library is given, in an array that it makes itself. */
#include "agent/mpi/pmix_host_impl.h"

struct pmix_list pmix_list_new(const struct pmix_library *library) {
    struct pmix_list list = {.library = library, .list = library->list_start()};
    list.status = list.list ? PMIX_OK : PMIX_FAILED;
    return list;
}

void pmix_list_add(struct pmix_list *list, const char *key, const void *value, enum pmix_type type) {
    list->status = list->status ? list->status : list->library->list_add(list->list, key, value, (uint16_t)type);
}

void pmix_list_text(struct pmix_list *list, const char *key, const char *text) {
    pmix_list_add(list, key, text, PMIX_TYPE_STRING);
}

void pmix_list_rank(struct pmix_list *list, const char *key, uint32_t rank) {
    pmix_list_add(list, key, &rank, PMIX_TYPE_RANK);
}

int pmix_list_array(struct pmix_list *list, struct pmix_array *out) {
    *out = (struct pmix_array){0};
    list->status = list->status ? list->status : list->library->list_convert(list->list, out);
    if (list->list) {
        list->library->list_release(list->list);
    }
    return list->status;
}

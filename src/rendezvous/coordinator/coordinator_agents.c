/* Lists of connections; see coordinator_server_impl.h. */
#include <assert.h>
#include <stdlib.h>

#include "rendezvous/coordinator/coordinator_server_impl.h"

void coordinator_agents_append(struct agents *list, struct agent *agent) {
    agent->previous = list->last;
    agent->next = NULL;
    *(list->last ? &list->last->next : &list->first) = agent;
    list->last = agent;
    list->count++;
}

void coordinator_agents_take_out(struct agents *list, struct agent *agent) {
    assert(list->count > 0 && (agent->previous || list->first == agent) && (agent->next || list->last == agent));
    *(agent->previous ? &agent->previous->next : &list->first) = agent->next;
    *(agent->next ? &agent->next->previous : &list->last) = agent->previous;
    list->count--;
}

void coordinator_agents_insert(struct agents *list, struct agent *agent) {
    struct agent *before = list->last;
    while (before && before->deadline_ms > agent->deadline_ms) {
        before = before->previous;
    }
    agent->previous = before;
    agent->next = before ? before->next : list->first;
    *(agent->next ? &agent->next->previous : &list->last) = agent;
    *(before ? &before->next : &list->first) = agent;
    list->count++;
}

void coordinator_agents_free(struct coordinator_server *server, struct agent *agent) {
    coordinator_knock_stop(agent);
    coordinator_status_clients_forget(&server->status_clients, &agent->status_client);
    coordinator_resend_done(&agent->resend);
    tls_stream_free(agent->tls);
    buf_done(&agent->plain);
    free(agent);
}

void coordinator_agents_forget(struct coordinator_server *server, struct agent *agent) {
    coordinator_agents_take_out(&server->joined, agent);
    coordinator_agents_free(server, agent);
}

/* How a job ends; see job_end.h. */
#include "rendezvous/round/job_end.h"

/* Of the nodes that keep no records, so many have come to the barrier. Which ones, nobody says. */
static uint32_t mute_done(const struct job_end_view *view) {
    return view->arrived > view->recorded_done ? view->arrived - view->recorded_done : 0;
}

enum job_end_verdict job_end_judge(const struct job_end_view *view) {
    uint32_t mute = mute_done(view);
    /* A node without records that falls silent is one of those in the barrier, as long as there are enough of them: it
     * blocks on the barrier there, and its heartbeats stop. */
    uint32_t excused = view->missing_done + (mute < view->missing_mute ? mute : view->missing_mute);
    if (view->missing > 0 && excused >= view->missing) {
        return JOB_END_GO_ON;
    }
    return view->closed ? JOB_END_FAILED : JOB_END_REFORM;
}

bool job_end_can_reform(const struct job_end_view *view) {
    uint32_t left = view->world_size > view->arrived ? view->world_size - view->arrived : 0;
    return view->arrived == 0 || left + view->reserve >= view->min_nodes;
}

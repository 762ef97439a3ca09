/* All of libmuster. Each header can be included by itself, in C11 and in C++11; initializers (MUSTER_..._INIT) name no
 * members, which older C++ does not know: they hold all of them in order. */
#ifndef MUSTER_MUSTER_H
#define MUSTER_MUSTER_H

#include <muster/checkpoint.h>
#include <muster/collective.h>
#include <muster/ddp.h>
#include <muster/failure.h>
#include <muster/fsdp.h>
#include <muster/group.h>
#include <muster/memory.h>
#include <muster/optimizer.h>
#include <muster/record.h>
#include <muster/sampler.h>
#include <muster/schedule.h>
#include <muster/snapshot.h>
#include <muster/state.h>
#include <muster/status.h>
#include <muster/stop.h>
#include <muster/store.h>
#include <muster/syncbn.h>
#include <muster/trace.h>
#include <muster/types.h>
#include <muster/version.h>
#include <muster/virtual_ranks.h>
#include <muster/work.h>

#endif

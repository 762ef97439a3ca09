/* What the reader and the writer of pickled states share; private to them. */
#ifndef RENDEZVOUS_PICKLE_IMPL_H
#define RENDEZVOUS_PICKLE_IMPL_H

#include "base/formats/unpickle.h"
#include "rendezvous/torch/state.h"

/* Those that are written; base/formats/unpickle.c reads more. */
enum pickle_opcode {
    OP_MARK = 0x28,
    OP_EMPTY_TUPLE = 0x29,
    OP_STOP = 0x2e,
    OP_SHORT_BINBYTES = 0x43,
    OP_BININT = 0x4a,
    OP_BININT1 = 0x4b,
    OP_BININT2 = 0x4d,
    OP_NONE = 0x4e,
    OP_REDUCE = 0x52,
    OP_BUILD = 0x62,
    OP_BINGET = 0x68,
    OP_LONG_BINGET = 0x6a,
    OP_SETITEMS = 0x75,
    OP_EMPTY_DICT = 0x7d,
    OP_PROTO = 0x80,
    OP_NEWOBJ = 0x81,
    OP_TUPLE1 = 0x85,
    OP_TUPLE2 = 0x86,
    OP_TUPLE3 = 0x87,
    OP_NEWTRUE = 0x88,
    OP_NEWFALSE = 0x89,
    OP_LONG1 = 0x8a,
    OP_SHORT_BINUNICODE = 0x8c,
    OP_EMPTY_SET = 0x8f,
    OP_ADDITEMS = 0x90,
    OP_STACK_GLOBAL = 0x93,
    OP_MEMOIZE = 0x94,
};

enum { PICKLE_PROTOCOL_WRITTEN = 4, PICKLE_BATCH = 1000 };

#define PICKLE_MODULE "torch.distributed.elastic.rendezvous.dynamic_rendezvous"

/* What a class of a state is for. */
enum pickle_role {
    PICKLE_STATE,
    PICKLE_NODE,
    PICKLE_DATETIME,
    PICKLE_TIMEZONE,
    PICKLE_TIMEDELTA,
};

/* Fills an empty `out` from a tree. MUSTER_ECORRUPT, MUSTER_ELIMIT, MUSTER_ENOMEM. */
int pickle_tree_state(const struct unpickled *tree, struct rdzv_state *out);

#endif

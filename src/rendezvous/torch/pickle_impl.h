/* Opcodes and names shared by the pickle reader and writer; private to them. */
#ifndef RENDEZVOUS_PICKLE_IMPL_H
#define RENDEZVOUS_PICKLE_IMPL_H

#define PICKLE_OPCODES(X)                                                                                              \
    X(MARK, 0x28)                                                                                                      \
    X(EMPTY_TUPLE, 0x29)                                                                                               \
    X(STOP, 0x2e)                                                                                                      \
    X(POP, 0x30)                                                                                                       \
    X(BINBYTES, 0x42)                                                                                                  \
    X(SHORT_BINBYTES, 0x43)                                                                                            \
    X(BININT, 0x4a)                                                                                                    \
    X(BININT1, 0x4b)                                                                                                   \
    X(BININT2, 0x4d)                                                                                                   \
    X(NONE, 0x4e)                                                                                                      \
    X(REDUCE, 0x52)                                                                                                    \
    X(BINUNICODE, 0x58)                                                                                                \
    X(BUILD, 0x62)                                                                                                     \
    X(GLOBAL, 0x63)                                                                                                    \
    X(BINGET, 0x68)                                                                                                    \
    X(LONG_BINGET, 0x6a)                                                                                               \
    X(BINPUT, 0x71)                                                                                                    \
    X(LONG_BINPUT, 0x72)                                                                                               \
    X(SETITEM, 0x73)                                                                                                   \
    X(TUPLE, 0x74)                                                                                                     \
    X(SETITEMS, 0x75)                                                                                                  \
    X(EMPTY_DICT, 0x7d)                                                                                                \
    X(PROTO, 0x80)                                                                                                     \
    X(NEWOBJ, 0x81)                                                                                                    \
    X(TUPLE1, 0x85)                                                                                                    \
    X(TUPLE2, 0x86)                                                                                                    \
    X(TUPLE3, 0x87)                                                                                                    \
    X(NEWTRUE, 0x88)                                                                                                   \
    X(NEWFALSE, 0x89)                                                                                                  \
    X(LONG1, 0x8a)                                                                                                     \
    X(SHORT_BINUNICODE, 0x8c)                                                                                          \
    X(BINUNICODE8, 0x8d)                                                                                               \
    X(EMPTY_SET, 0x8f)                                                                                                 \
    X(ADDITEMS, 0x90)                                                                                                  \
    X(STACK_GLOBAL, 0x93)                                                                                              \
    X(MEMOIZE, 0x94)                                                                                                   \
    X(FRAME, 0x95)

enum pickle_opcode {
#define PICKLE_OPCODE_ENUM(name, code) OP_##name = (code),
    PICKLE_OPCODES(PICKLE_OPCODE_ENUM)
#undef PICKLE_OPCODE_ENUM
};

enum { PICKLE_PROTOCOL_MAX = 5, PICKLE_PROTOCOL_WRITTEN = 4, PICKLE_BATCH = 1000 };

#define PICKLE_MODULE "torch.distributed.elastic.rendezvous.dynamic_rendezvous"

#endif

/* A model of the rules in p2p_end.c, for every order of events that chance gives: ranks on a ring of watches with some
 * further links, more of which are made meanwhile; one rank dies, and whoever knows the cause tells it and may leave at
 * any time. However the news travel, no survivor may ever blame anybody but the one that died, and all must learn of
 * it. And where nobody dies, and ranks leave as they like, nobody is blamed. Each rule is then broken in turn: the
 * model must find out, or it would prove nothing.
 *
 * No code of p2p runs here: p2p_end_test.c and group_hosts_test.c try that. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>
#include <string.h>

enum { RANKS_MAX = 6, CONNECTIONS = 2 /* of a link: a watch, a stream */, TOKENS_MAX = 64, STEPS_MAX = 10000 };
enum { NOBODY = -1 };

/* What comes over a connection. */
enum token_kind { TOKEN_CAUSE, TOKEN_GOODBYE, TOKEN_END };
struct token {
    enum token_kind kind;
    int cause;
};

/* One direction of a connection: what was written and not read yet. */
struct channel {
    bool exists;
    struct token tokens[TOKENS_MAX];
    int first, count;
};

enum rule {
    RULE_NONE,
    RULE_GOODBYE,    /* who leaves says so */
    RULE_TELL_FIRST, /* it has told the cause before */
    RULE_FINISH,     /* it says both also on connections that it was just making */
    RULE_EXPLAIN,    /* who cannot be connected to is blamed only when nothing more is under way */
    RULE_COUNT
};

struct model {
    int size, victim; /* NOBODY: all leave in good order */
    enum rule broken;
    uint64_t chance;
    struct channel channels[RANKS_MAX][RANKS_MAX][CONNECTIONS]; /* from, to */
    bool is_being_made[RANKS_MAX][RANKS_MAX];                   /* the stream: the first has called, not heard */
    bool said_goodbye[RANKS_MAX][RANKS_MAX];                    /* the first to the second */
    bool is_gone[RANKS_MAX];
    int cause[RANKS_MAX];
    int refused[RANKS_MAX]; /* whom it could not connect to */
};

static uint32_t draw(struct model *model, uint32_t below) {
    model->chance = model->chance * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(model->chance >> 33) % below;
}

static void put(struct model *model, int from, int to, int connection, enum token_kind kind, int cause) {
    struct channel *channel = &model->channels[from][to][connection];
    bool can_write = connection == 0 || !model->is_being_made[from][to] || kind == TOKEN_END;
    if (channel->exists && !model->is_gone[to] && can_write) {
        assert_true(channel->count < TOKENS_MAX);
        channel->tokens[(channel->first + channel->count++) % TOKENS_MAX] = (struct token){kind, cause};
    }
}

static void put_everywhere(struct model *model, int from, enum token_kind kind, int cause) {
    for (int to = 0; to < model->size; to++) {
        for (int connection = 0; connection < CONNECTIONS; connection++) {
            put(model, from, to, connection, kind, cause);
        }
    }
}

/* The answer has come: the stream is used from both sides now. */
static void finish_making(struct model *model, int from, int to) {
    if (model->is_being_made[from][to]) {
        model->is_being_made[from][to] = false;
        if (model->cause[from] != NOBODY && model->broken != RULE_TELL_FIRST) {
            put(model, from, to, 1, TOKEN_CAUSE, model->cause[from]);
        }
    }
}

/* The first cause that a rank hears of is the one that it tells. */
static void learn(struct model *model, int rank, int cause) {
    if (model->cause[rank] == NOBODY) {
        model->cause[rank] = cause;
        if (model->broken != RULE_TELL_FIRST) {
            put_everywhere(model, rank, TOKEN_CAUSE, cause);
        }
    }
}

static void leave(struct model *model, int rank) {
    for (int to = 0; to < model->size && model->broken != RULE_FINISH; to++) {
        finish_making(model, rank, to);
    }
    if (model->broken != RULE_GOODBYE) {
        put_everywhere(model, rank, TOKEN_GOODBYE, 0);
    }
    put_everywhere(model, rank, TOKEN_END, 0);
    model->is_gone[rank] = true;
}

static void read_one(struct model *model, int from, int to, int connection) {
    struct channel *channel = &model->channels[from][to][connection];
    struct token token = channel->tokens[channel->first];
    channel->first = (channel->first + 1) % TOKENS_MAX;
    channel->count--;
    if (token.kind == TOKEN_CAUSE) {
        learn(model, to, token.cause);
    } else if (token.kind == TOKEN_GOODBYE) {
        model->said_goodbye[from][to] = true;
    } else if (!model->said_goodbye[from][to]) {
        learn(model, to, from);
    }
}

static bool is_quiet(const struct model *model) {
    for (int from = 0; from < model->size; from++) {
        for (int to = 0; to < model->size; to++) {
            for (int connection = 0; connection < CONNECTIONS; connection++) {
                if (!model->is_gone[to] && model->channels[from][to][connection].count > 0) {
                    return false;
                }
            }
        }
    }
    return true;
}

/* A rank that knows of nothing needs another one, with which it has no connection: there will be one, or there will
 * not, if the other has gone. */
static void connect_ranks(struct model *model, int rank, int peer) {
    if (!model->channels[rank][peer][1].exists && model->refused[rank] == NOBODY) {
        if (model->is_gone[peer]) { /* where nobody dies, a program that is right needs nobody who has left */
            model->refused[rank] = model->victim == NOBODY ? NOBODY : peer;
        } else {
            model->channels[rank][peer][1].exists = model->channels[peer][rank][1].exists = true;
            model->is_being_made[rank][peer] = true;
            if (model->cause[peer] != NOBODY && model->broken != RULE_TELL_FIRST) {
                put(model, peer, rank, 1, TOKEN_CAUSE, model->cause[peer]); /* who comes late is told */
            }
        }
    }
}

static void step(struct model *model) {
    int rank = (int)draw(model, (uint32_t)model->size), peer = (int)draw(model, (uint32_t)model->size);
    int connection = (int)draw(model, CONNECTIONS);
    if (model->is_gone[rank] || rank == peer) {
        return;
    }
    if (model->channels[peer][rank][connection].count > 0) {
        read_one(model, peer, rank, connection);
    } else if ((model->cause[rank] != NOBODY || model->victim == NOBODY) && draw(model, 4) == 0) {
        leave(model, rank);
        return;
    } else if (model->is_being_made[rank][peer]) {
        finish_making(model, rank, peer);
    } else if (model->cause[rank] == NOBODY && draw(model, 2) == 0) {
        connect_ranks(model, rank, peer);
    }
    if (model->refused[rank] != NOBODY && (model->broken == RULE_EXPLAIN || is_quiet(model)) &&
        !model->said_goodbye[model->refused[rank]][rank]) {
        learn(model, rank, model->refused[rank]);
    }
}

/* true: every survivor has blamed the victim, if there is one. */
static bool run(uint64_t seed, enum rule broken) {
    struct model model;
    memset(&model, 0, sizeof model);
    model.chance = seed;
    model.broken = broken;
    model.size = 3 + (int)draw(&model, RANKS_MAX - 2);
    model.victim = draw(&model, 4) == 0 ? NOBODY : (int)draw(&model, (uint32_t)model.size);
    for (int rank = 0; rank < model.size; rank++) {
        int next = (rank + 1) % model.size;
        model.cause[rank] = model.refused[rank] = NOBODY;
        model.channels[rank][next][0].exists = model.channels[next][rank][0].exists = true;
        for (int peer = 0; peer < rank; peer++) {
            bool has_stream = draw(&model, 3) == 0;
            model.channels[rank][peer][1].exists = model.channels[peer][rank][1].exists = has_stream;
        }
    }
    if (model.victim != NOBODY) {
        put_everywhere(&model, model.victim, TOKEN_END, 0);
        model.is_gone[model.victim] = true;
    }
    for (int i = 0; i < STEPS_MAX; i++) {
        step(&model);
    }
    bool right = true;
    for (int rank = 0; rank < model.size; rank++) {
        right = right && (rank == model.victim || model.cause[rank] == model.victim);
    }
    return right;
}

enum { RUNS = 10000 };

static void nobody_else_is_ever_blamed(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= RUNS; seed++) {
        if (!run(seed, RULE_NONE)) {
            fail_msg("seed %u", (unsigned)seed);
        }
    }
}

static void each_rule_is_needed(void **state) {
    (void)state;
    for (int rule = RULE_NONE + 1; rule < RULE_COUNT; rule++) {
        uint64_t seed = 1;
        while (seed <= RUNS && run(seed, (enum rule)rule)) {
            seed++;
        }
        if (seed > RUNS) {
            fail_msg("rule %d makes no difference", rule);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_else_is_ever_blamed),
        cmocka_unit_test(each_rule_is_needed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

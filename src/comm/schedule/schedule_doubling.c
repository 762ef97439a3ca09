/* Schedules in which ranks exchange with the rank that differs in one bit of the number. P is the size, n the bytes of
 * the whole buffer in all_reduce, of one block elsewhere; bytes are those that the busiest rank sends, or receives if
 * more.
 *
 * Sizes that are no power of 2 are folded. With p the power of 2 below P, the first 2(P-p) ranks form pairs. In a first
 * step the odd one (the guest) hands its data to the even one (the host). It takes no part in what follows, and gets
 * the result in a last step. The p that remain are numbered anew, in order.
 *
 * Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005,
 * sections 4.1 to 4.5; Rabenseifner, "Optimization of collective reduction operations", 2004. Pure. */
#include "comm/schedule/schedule_impl.h"

struct fold {
    uint32_t power;  /* p */
    uint32_t pairs;  /* P - p */
    uint32_t number; /* of this rank, or of its host, among the p */
    bool is_guest, is_host;
};

static struct fold fold_of(const struct schedule *schedule) {
    struct fold fold = {.power = 1};
    while (fold.power <= schedule->size / 2) {
        fold.power *= 2;
    }
    fold.pairs = schedule->size - fold.power;
    bool is_paired = schedule->rank < 2 * fold.pairs;
    fold.number = is_paired ? schedule->rank / 2 : schedule->rank - fold.pairs;
    fold.is_guest = is_paired && schedule->rank % 2 == 1;
    fold.is_host = is_paired && !fold.is_guest;
    return fold;
}

/* The rank that has a number among the p; for p, the size: the ranks of numbers [a, b) and their guests are those
 * of [rank_of(a), rank_of(b)). */
static uint32_t rank_of(const struct fold *fold, uint32_t number) {
    return number < fold->pairs ? 2 * number : number + fold->pairs;
}

static size_t begin_of(const struct schedule *schedule, const struct fold *fold, uint32_t number) {
    return blocks_begin(&schedule->blocks, rank_of(fold, number));
}

static void step_over(struct schedule *schedule, const struct fold *fold) {
    for (uint32_t bit = 1; bit < fold->power; bit *= 2) {
        schedule->step++;
    }
}

/* ---- all_reduce by recursive doubling ---- */

/* log2 p steps (2 more if folded), n log2 p bytes (n more); scratch n.
 *
 * Both sides of an exchange compute the same sum, lower number's operand first; so do, by induction, all ranks whose
 * numbers agree above that bit, and in the end all.
 *
 * A step's sum cannot be written where the operand is still being sent from: sums go to the receive buffer and to
 * scratch in turns, so that the last one lands in the receive buffer. */
void schedule_doubling_all_reduce(struct schedule *schedule) {
    struct fold fold = fold_of(schedule);
    size_t count = schedule->call->count;
    struct schedule_place send = schedule_at(SCHEDULE_SEND, 0), receive = schedule_at(SCHEDULE_RECEIVE, 0);
    struct schedule_place scratch = schedule_at(SCHEDULE_SCRATCH, 0), sum = send;
    uint32_t exchanges = 0;
    for (uint32_t bit = 1; bit < fold.power; bit *= 2) {
        exchanges++;
    }
    if (fold.is_guest) {
        schedule_send(schedule, schedule->rank - 1, send, count);
        schedule->step += 1 + exchanges;
        schedule_receive(schedule, schedule->rank - 1, receive, count);
        return;
    }
    bool to_receive = exchanges % 2 == 1;
    if (fold.is_host) { /* nothing is sent in this step: the result may lie on the input */
        sum = to_receive ? scratch : receive;
        schedule_receive_reduce(schedule, schedule->rank + 1, sum, send, count, false);
    } else if (schedule->in_place && to_receive) {
        to_receive = false; /* one copy at the end */
    }
    schedule->step += fold.pairs > 0;
    for (uint32_t bit = 1; bit < fold.power; bit *= 2, schedule->step++, to_receive = !to_receive) {
        uint32_t partner = fold.number ^ bit, peer = rank_of(&fold, partner);
        struct schedule_place next = to_receive ? receive : scratch;
        schedule_send(schedule, peer, sum, count);
        schedule_receive_reduce(schedule, peer, next, sum, count, partner < fold.number);
        sum = next;
    }
    if (sum.buffer == SCHEDULE_SCRATCH) {
        schedule->step--;
        schedule_copy(schedule, receive, sum, count);
        schedule->step++;
    }
    if (fold.is_host) {
        schedule_send(schedule, schedule->rank + 1, receive, count);
    }
}

/* ---- all_gather by recursive doubling ---- */

/* log2 p steps (2 more if folded), (P-1)n bytes (a host sends up to (P+2(p-1))n). Any counts. */
void schedule_doubling_all_gather(struct schedule *schedule) {
    struct fold fold = fold_of(schedule);
    struct block own = blocks_at(&schedule->blocks, schedule->rank);
    struct schedule_place send = schedule_at(SCHEDULE_SEND, 0), all = schedule_at(SCHEDULE_RECEIVE, 0);
    if (fold.is_guest) {
        schedule_send(schedule, schedule->rank - 1, send, own.count);
        schedule->step++;
        step_over(schedule, &fold);
        schedule_receive(schedule, schedule->rank - 1, all, schedule->blocks.total);
        return;
    }
    if (fold.is_host) {
        struct block guest = blocks_after(&schedule->blocks, own);
        schedule_receive(schedule, guest.index, schedule_at(SCHEDULE_RECEIVE, guest.begin), guest.count);
    }
    schedule_keep(schedule, schedule_at(SCHEDULE_RECEIVE, own.begin), send, own.count);
    schedule->step++;
    for (uint32_t bit = 1; bit < fold.power; bit *= 2, schedule->step++) {
        uint32_t low = fold.number & ~(bit - 1), other = low ^ bit;
        size_t begin = begin_of(schedule, &fold, low), end = begin_of(schedule, &fold, low + bit);
        size_t other_begin = begin_of(schedule, &fold, other), other_end = begin_of(schedule, &fold, other + bit);
        uint32_t peer = rank_of(&fold, fold.number ^ bit);
        schedule_send(schedule, peer, schedule_at(SCHEDULE_RECEIVE, begin), end - begin);
        schedule_receive(schedule, peer, schedule_at(SCHEDULE_RECEIVE, other_begin), other_end - other_begin);
    }
    if (fold.is_host) {
        schedule_send(schedule, schedule->rank + 1, all, schedule->blocks.total);
    }
}

/* ---- by recursive halving ---- */

/* What halving cuts: elements [begin(a), begin(b)) belong to numbers [a, b). */
typedef size_t cut(const struct schedule *schedule, const struct fold *fold, uint32_t number);

/* After the step of a bit a rank holds the sums, over the ranks that agree with it below that bit, of what belongs to
 * the numbers that agree with it from that bit up. Operands are read from `source` in the first step and from where the
 * sums are afterwards: in the buffer `sums`, the last one in `last`, whose offset 0 is where its element begins. Lower
 * number's operand first; each element's last sum is one rank's alone. */
static void halve(struct schedule *schedule, const struct fold *fold, cut *begin, enum schedule_buffer source,
                  enum schedule_buffer sums, const struct schedule_place *last) {
    for (uint32_t bit = fold->power / 2; bit > 0; bit /= 2, schedule->step++) {
        uint32_t kept = fold->number & ~(bit - 1), given = kept ^ bit, partner = fold->number ^ bit;
        size_t kept_begin = begin(schedule, fold, kept), given_begin = begin(schedule, fold, given);
        size_t kept_end = begin(schedule, fold, kept + bit), given_end = begin(schedule, fold, given + bit);
        uint32_t peer = rank_of(fold, partner);
        struct schedule_place at = bit == 1 && last ? *last : schedule_at(sums, kept_begin);
        schedule_send(schedule, peer, schedule_at(source, given_begin), given_end - given_begin);
        schedule_receive_reduce(schedule, peer, at, schedule_at(source, kept_begin), kept_end - kept_begin,
                                partner < fold->number);
        source = sums;
    }
}

/* log2 p steps (2 more if folded), (P-1)n bytes (a host receives up to (P+2(p-1))n); scratch up to nP. Any counts. */
void schedule_halving_reduce_scatter(struct schedule *schedule) {
    struct fold fold = fold_of(schedule);
    struct block own = blocks_at(&schedule->blocks, schedule->rank);
    struct schedule_place receive = schedule_at(SCHEDULE_RECEIVE, 0), send = schedule_at(SCHEDULE_SEND, 0);
    size_t total = schedule->blocks.total;
    if (fold.is_guest) {
        schedule_send(schedule, schedule->rank - 1, send, total);
        schedule->step++;
        step_over(schedule, &fold);
        schedule_receive(schedule, schedule->rank - 1, receive, own.count);
        return;
    }
    if (fold.is_host) {
        schedule_receive_reduce(schedule, schedule->rank + 1, schedule_at(SCHEDULE_SCRATCH, 0), send, total, false);
    }
    schedule->step += fold.pairs > 0;
    halve(schedule, &fold, begin_of, fold.is_host ? SCHEDULE_SCRATCH : SCHEDULE_SEND, SCHEDULE_SCRATCH,
          fold.is_host ? NULL : &receive);
    if (fold.is_host) {
        struct block guest = blocks_after(&schedule->blocks, own);
        schedule_send(schedule, guest.index, schedule_at(SCHEDULE_SCRATCH, guest.begin), guest.count);
        schedule_copy(schedule, receive, schedule_at(SCHEDULE_SCRATCH, own.begin), own.count);
    }
}

static size_t part_begin(const struct schedule *schedule, const struct fold *fold, uint32_t number) {
    struct blocks parts = blocks_parted(fold->power, schedule->call->count);
    return blocks_begin(&parts, number);
}

/* 2 log2 p steps (2 more if folded), 2n(p-1)/p bytes (n more): recursive halving, then doubling back. */
void schedule_rabenseifner_all_reduce(struct schedule *schedule) {
    struct fold fold = fold_of(schedule);
    size_t count = schedule->call->count;
    struct schedule_place send = schedule_at(SCHEDULE_SEND, 0), receive = schedule_at(SCHEDULE_RECEIVE, 0);
    if (fold.is_guest) {
        schedule_send(schedule, schedule->rank - 1, send, count);
        schedule->step++;
        step_over(schedule, &fold);
        step_over(schedule, &fold);
        schedule_receive(schedule, schedule->rank - 1, receive, count);
        return;
    }
    if (fold.is_host) {
        schedule_receive_reduce(schedule, schedule->rank + 1, receive, send, count, false);
    }
    schedule->step += fold.pairs > 0;
    halve(schedule, &fold, part_begin, fold.is_host ? SCHEDULE_RECEIVE : SCHEDULE_SEND, SCHEDULE_RECEIVE, NULL);
    for (uint32_t bit = 1; bit < fold.power; bit *= 2, schedule->step++) {
        uint32_t low = fold.number & ~(bit - 1), other = low ^ bit;
        size_t begin = part_begin(schedule, &fold, low), end = part_begin(schedule, &fold, low + bit);
        size_t other_begin = part_begin(schedule, &fold, other);
        size_t other_end = part_begin(schedule, &fold, other + bit);
        uint32_t peer = rank_of(&fold, fold.number ^ bit);
        schedule_send(schedule, peer, schedule_at(SCHEDULE_RECEIVE, begin), end - begin);
        schedule_receive(schedule, peer, schedule_at(SCHEDULE_RECEIVE, other_begin), other_end - other_begin);
    }
    if (fold.is_host) {
        schedule_send(schedule, schedule->rank + 1, receive, count);
    }
}

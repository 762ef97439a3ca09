/* The lines that `muster doctor` takes: its own words, and those of `muster run`. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "cli/doctor/doctor_options.h"

enum { WORDS_MAX = 24 };

/* `line`: words with blanks between. */
static int parse(const char *line, struct doctor_options *out) {
    static char words[512];
    char *argv[WORDS_MAX], *rest = words;
    int argc = 0;
    assert_true(str_copy(words, sizeof words, line));
    for (char *word; (word = strsep(&rest, " ")) != NULL;) {
        argv[argc++] = word;
    }
    status_clear();
    return doctor_options_parse(argc, argv, out);
}

static void lines_of_run_are_understood(void **state) {
    (void)state;
    static const struct {
        const char *line;
        uint32_t nodes;
        const char *host; /* of the first endpoint; NULL: none */
        int port;
        bool json;
    } rows[] = {
        {"doctor", 0, NULL, 0, false},
        {"doctor --nnodes 2 --rdzv-endpoint h", 2, "h", 29400, false},
        {"doctor --nnodes=2:4 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=h:1 --json train.py --lr 1", 4,
         "h", 1, true},
        {"doctor --standalone --nproc_per_node 2 --max-restarts 3 train.py", 0, NULL, 0, false},
        {"doctor --standalone --nnodes=1 -m train", 1, NULL, 0, false},
        {"doctor --nnodes 2 --node-rank 1 --master-addr m --master-port 5 train.py", 2, "m", 5, false},
        {"doctor --nnodes 2 --master-addr fd00::1 -r 3 -t 3 train.py", 2, "fd00::1", 29500, false},
        {"doctor --nnodes 2 --rdzv-backend etcd-v2 --rdzv-endpoint http://e:2379 train.py", 1, NULL, 0, false},
        /* what stands behind the script, or is a value, is not ours */
        {"doctor train.py --json --nnodes=7", 0, NULL, 0, false},
        {"doctor --no-python echo --only nonsense", 0, NULL, 0, false},
        {"doctor -- --json", 0, NULL, 0, false},
        {"doctor --mpi --json true", 0, NULL, 0, true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct doctor_options found;
        if (parse(rows[i].line, &found) != 0) {
            fail_msg("%s: %s", rows[i].line, muster_detail());
        }
        assert_int_equal(found.node_count, rows[i].nodes);
        assert_int_equal(found.wants_json, rows[i].json);
        assert_int_equal(found.endpoints.count, rows[i].host != NULL);
        if (rows[i].host != NULL) {
            assert_string_equal(found.endpoints.list[0].host, rows[i].host);
            assert_int_equal(found.endpoints.list[0].port, rows[i].port);
        }
    }
}

static void wrong_lines_are_told(void **state) {
    (void)state;
    static const char *const rows[][2] = {
        {"doctor --fast", "unrecognized arguments: --fast"},
        {"doctor --nnode=2 --rdzv-endpoint h train.py --x", NULL}, /* a unique beginning of a name */
        {"doctor --max-restarts=x train.py", "invalid int value: 'x'"},
        {"doctor --nnodes=0", "a number from 1 to 1024"},
        {"doctor --nnodes=2", "--nnodes needs --rdzv-endpoint"},
        {"doctor --rdzv-endpoint", "expected one argument"},
        {"doctor –nnodes=2 --rdzv-endpoint=h", "begins with an en dash"},
        {"doctor --only", "--only needs a value"},
        {"doctor --rdzv-endpoint a:b", "port number"},
        {"doctor --only nodes,network --standalone train.py", "need --nnodes"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct doctor_options found;
        int code = parse(rows[i][0], &found);
        assert_int_equal(code, rows[i][1] != NULL ? MUSTER_EINVAL : 0);
        if (rows[i][1] != NULL && strstr(muster_detail(), rows[i][1]) == NULL) {
            fail_msg("%s: %s", rows[i][0], muster_detail());
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_of_run_are_understood),
        cmocka_unit_test(wrong_lines_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

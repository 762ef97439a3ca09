/* Later checks and rewrites of `muster run`: each rule of torchrun, and the sentence that a user gets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "cli/command/variables_test_support.h"
#include "cli/run/run_config.h"
#include "cli/run/run_devices.h"
#include "cli/run/run_rdzv.h"

#define WORDS_MAX 32

static char log_text[LOG_TEXT_MAX];

static void keep_log(enum log_level level, const char *file, int line, const char *text) {
    (void)file;
    (void)line;
    if (level >= LOG_LEVEL_WARNING) {
        (void)str_copy(log_text, sizeof log_text, text);
    }
}

/* `text`: words separated by blanks. The script is this test's own binary, which exists. */
static int build_with(const char *text, const char *const *variables, const char *root, struct launch_config *out) {
    static char words[512];
    static char script[] = "-";
    char *argv[WORDS_MAX];
    int argc = 0;
    assert_true(str_copy(words, sizeof words, text));
    char *rest = words;
    for (char *word; text[0] != '\0' && (word = strsep(&rest, " ")) != NULL;) {
        argv[argc++] = word;
    }
    argv[argc++] = script;
    struct options options;
    struct run_machine machine = {.lookup = variables_lookup, .ctx = (void *)(uintptr_t)variables, .root = root};
    launch_config_init(out);
    log_text[0] = '\0';
    status_clear();
    if (options_parse(argc, argv, variables_lookup, machine.ctx, &options) != OPTIONS_OK) {
        fail_msg("%s: %s", text, muster_detail());
    }
    return run_config_build(&options, &machine, out);
}

static const char *const plain[] = {"PYTHON_EXEC=/bin/sh", NULL};

static int build(const char *text, struct launch_config *out) {
    return build_with(text, plain, "/nonexistent", out);
}

static void assert_rejected(const char *text, const char *in_message) {
    struct launch_config config;
    if (build(text, &config) >= 0) {
        fail_msg("%s is accepted", text);
    }
    if (strstr(muster_detail(), in_message) == NULL) {
        fail_msg("'%s' is not in '%s'", in_message, muster_detail());
    }
    launch_config_done(&config);
}

static void assert_accepted(const char *text, struct launch_config *out) {
    if (build(text, out) != 0) {
        fail_msg("%s: %s", text, muster_detail());
    }
}

static void one_static_node_becomes_standalone(void **state) {
    (void)state;
    struct launch_config config;
    assert_accepted("--rdzv-id=mine", &config);
    assert_true(config.rdzv.standalone);
    assert_int_equal(config.rdzv.backend, RDZV_BACKEND_C10D);
    assert_string_equal(config.endpoint, "localhost:0");
    assert_int_equal(strlen(config.run_id), 36);
    assert_int_equal(config.run_id[14], '4');
    assert_ptr_equal(config.rdzv.run_id, config.run_id);
    launch_config_done(&config);
    assert_accepted("--master-port=1234", &config);
    assert_false(config.rdzv.standalone);
    assert_int_equal(config.rdzv.backend, RDZV_BACKEND_STATIC);
    assert_string_equal(config.endpoint, "127.0.0.1:1234");
    assert_string_equal(config.run_id, "none");
    launch_config_done(&config);
}

static void standalone_overrides(void **state) {
    (void)state;
    struct launch_config config;
    assert_accepted("--standalone --rdzv-backend=nosuch --rdzv-endpoint=h:99999 --rdzv-id=x", &config);
    assert_string_equal(config.backend_name, "c10d");
    assert_string_equal(config.endpoint, "localhost:0");
    launch_config_done(&config);
}

static void nodes(void **state) {
    (void)state;
    struct launch_config config;
    assert_accepted("--nnodes=2:4 --rdzv-backend=c10d --rdzv-endpoint=h", &config);
    assert_int_equal(config.rdzv.min_nodes, 2);
    assert_int_equal(config.rdzv.max_nodes, 4);
    launch_config_done(&config);
    assert_rejected("--nnodes=1:2:3", "nnodes=1:2:3 is not in \"MIN:MAX\" format");
    assert_rejected("--nnodes=3:2", "got min_nodes=3, max_nodes=2");
    assert_rejected("--nnodes=0", "min_nodes must be > 0");
    assert_rejected("--nnodes=1:", "is not a number of nodes");
    assert_rejected("--nnodes=65537", "at most 65536 nodes");
}

static void static_endpoints(void **state) {
    (void)state;
    struct launch_config config;
    assert_accepted("--nnodes=2 --node-rank=1", &config);
    assert_string_equal(config.endpoint, "127.0.0.1:29500");
    assert_int_equal(config.rdzv.node_rank, 1);
    launch_config_done(&config);
    assert_rejected("--rdzv-endpoint=foo", "port is missing in endpoint: foo");
    assert_rejected("--master-port=99999", "0 to 65535");
    assert_rejected("--nnodes=2 --node-rank=2", "the ranks are 0 to 1");
    assert_rejected("--rdzv-backend=c10d --rdzv-endpoint=host:99999", "--rdzv-endpoint: ");
    assert_rejected("--rdzv-backend=c10d --rdzv-endpoint=a:1,b:1", "for --rdzv-backend=muster");
    assert_rejected("--rdzv-endpoint=a:1,b:1", "for --rdzv-backend=muster");
    assert_rejected("--rdzv-backend=muster --rdzv-endpoint=a:1,a:1",
                    "--rdzv-endpoint: the endpoint 'a:1' is in the list twice");
    assert_accepted("--rdzv-backend=muster --rdzv-endpoint=a:1,b:1", &config);
    assert_string_equal(config.endpoint, "a:1,b:1");
    launch_config_done(&config);
}

static void backends(void **state) {
    (void)state;
    assert_rejected("--rdzv-backend=c10", "did you mean c10d?");
    assert_rejected("--rdzv-backend=c10", "is not registered");
    assert_rejected("--rdzv-backend=etcd-v4", "did you mean etcd-v2?");
    assert_rejected("--rdzv-backend=etcd-v2 --rdzv-endpoint=a,,b", "an endpoint is empty");
    assert_rejected("--rdzv-backend=etcd-v2 --rdzv-endpoint=a:2379,b:x", "--rdzv-endpoint: ");
    assert_rejected("--rdzv-backend=", "is not registered");
}

static void an_etcd_has_several_endpoints(void **state) {
    (void)state;
    struct launch_config config;
    assert_accepted("--rdzv-backend=etcd-v2 --rdzv-endpoint=a:2379,[::1]:2380,c", &config);
    assert_int_equal(config.rdzv.backend, RDZV_BACKEND_ETCD_V2);
    assert_string_equal(config.rdzv.endpoint, "a:2379,[::1]:2380,c");
    launch_config_done(&config);
}

static void settings_of_an_etcd_with_its_v3_api(void **state) {
    struct launch_config config;
    struct rdzv_conf conf;
    (void)state;
    assert_accepted("--rdzv-backend=etcd-v3 --rdzv-endpoint=https://a:2379,b:2379 --spares=1", &config);
    assert_int_equal(config.rdzv.backend, RDZV_BACKEND_ETCD_V3);
    launch_config_done(&config);
    assert_int_equal(
        run_rdzv_conf_parse("cacert=ca.pem,cert=c.pem,key=k.pem,user=u,password_file=p,topology=r1,ca_cert=other",
                            RDZV_BACKEND_ETCD_V3, &conf),
        0);
    assert_string_equal(conf.etcd.ca_file, "ca.pem");
    assert_string_equal(conf.etcd.cert_file, "c.pem");
    assert_string_equal(conf.etcd.key_file, "k.pem");
    assert_string_equal(conf.etcd.user, "u");
    assert_string_equal(conf.etcd.password_file, "p");
    assert_string_equal(conf.etcd.prefix, "/muster");
    assert_string_equal(conf.topology, "r1");
    assert_int_equal(run_rdzv_conf_parse("etcd_prefix=/x", RDZV_BACKEND_ETCD_V3, &conf), 0);
    assert_string_equal(conf.etcd.prefix, "/x");
    assert_rejected("--survivors=continue --nnodes=1:2 --rdzv-backend=etcd-v3 --rdzv-endpoint=h", "c10d or static");
}

static void write_file(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void an_etcd_is_not_half_protected(void **state) {
    struct launch_config config;
    char folder[] = "/tmp/muster-run-config-XXXXXX", words[512], plain_file[64], both_file[64];
    static const char etcd3[] = "--rdzv-backend=etcd-v3 --rdzv-endpoint=";
    static const struct {
        const char *endpoint, *conf, *why; /* P: a file with a certificate; B: one with its key, too */
    } wrong[] = {
        {"a:2379", "cacert=P", "--rdzv-conf cacert: certificates are used with https alone"},
        {"https://a:2379,http://b", "cert=B", "--rdzv-conf cert: certificates"},
        {"https://a", "key=P", "key=P is the key of a certificate that is not given: cert=FILE"},
        {"https://a", "cert=P", "no key is in that file, so it must be in another: key=FILE"},
        {"https://a", "cert=/nowhere/c", "--rdzv-conf cert=/nowhere/c: No such file"},
        {"https://a", "cert=P,key=/nowhere/k", "--rdzv-conf key=/nowhere/k: No such file"},
        {"https://a", "cacert=/", "--rdzv-conf cacert=/: it is not a file"},
        {"https://a", "cert=/dev/zero", "--rdzv-conf cert=/dev/zero: it is not a file"},
        {"a", "user=u", "user=u: a user needs password_file=FILE"},
        {"a", "password_file=P", "password_file=P: whose?"},
        {"/tmp", "read_timeout=1", "there is no host in it"},
        {"https://", "read_timeout=1", "there is no host in it"},
        {"a:0", "read_timeout=1", "port 0"},
        {"::1", "read_timeout=1", "write [::1]"},
    };
    (void)state;
    assert_non_null(mkdtemp(folder));
    assert_true(str_format(plain_file, sizeof plain_file, "%s/P", folder));
    assert_true(str_format(both_file, sizeof both_file, "%s/B", folder));
    write_file(plain_file, "-----BEGIN CERTIFICATE-----\n");
    write_file(both_file, "-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n");
    assert_int_equal(chdir(folder), 0);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_true(str_format(words, sizeof words, "%s%s --rdzv-conf=%s", etcd3, wrong[i].endpoint, wrong[i].conf));
        assert_rejected(words, wrong[i].why);
    }
    assert_true(str_format(words, sizeof words, "%shttps://a,b --rdzv-conf=cacert=P,cert=B", etcd3));
    assert_accepted(words, &config);
    launch_config_done(&config);
    assert_accepted("--rdzv-backend=etcd-v3 --rdzv-endpoint=https://a --rdzv-conf=cert=P,key=B", &config);
    launch_config_done(&config);
    /* torchrun's backends take what does not fit together, as it does. */
    assert_accepted("--rdzv-backend=etcd-v2 --rdzv-endpoint=a --rdzv-conf=ssl_cert_key=k", &config);
    assert_non_null(strstr(log_text, "ssl_cert_key has no effect without protocol=https"));
    launch_config_done(&config);
    assert_rejected("--rdzv-backend=etcd --rdzv-endpoint=a --rdzv-conf=protocol=https,cacert=/nowhere/c",
                    "cacert=/nowhere/c: No such file");
    assert_int_equal(unlink(plain_file), 0);
    assert_int_equal(unlink(both_file), 0);
    assert_int_equal(chdir("/"), 0);
    assert_int_equal(rmdir(folder), 0);
}

static void settings_of_an_etcd(void **state) {
    (void)state;
    struct rdzv_conf conf;
    const char *names = "protocol=HTTPS,ca_cert=ca.pem,ssl_cert=c.pem,ssl_cert_key=k.pem,cacert=x,cert=y,key=z";
    assert_int_equal(run_rdzv_conf_parse(names, RDZV_BACKEND_ETCD_V2, &conf), 0);
    assert_true(conf.etcd.https);
    assert_string_equal(conf.etcd.ca_file, "ca.pem");
    assert_string_equal(conf.etcd.cert_file, "c.pem");
    assert_string_equal(conf.etcd.key_file, "k.pem");
    assert_int_equal(run_rdzv_conf_parse("protocol=http,join_timeout=9", RDZV_BACKEND_ETCD_V2, &conf), 0);
    assert_false(conf.etcd.https);
    assert_int_equal(conf.join_timeout_ms, 9000);
    assert_int_equal(run_rdzv_conf_parse(names, RDZV_BACKEND_ETCD, &conf), 0);
    assert_string_equal(conf.etcd.ca_file, "x");
    assert_string_equal(conf.etcd.cert_file, "y");
    assert_string_equal(conf.etcd.key_file, "z");
    assert_string_equal(conf.etcd.prefix, "/torchelastic/p2p");
    assert_int_equal(run_rdzv_conf_parse("etcd_prefix=/x,timeout=7,last_call_timeout=2", RDZV_BACKEND_ETCD, &conf), 0);
    assert_string_equal(conf.etcd.prefix, "/x");
    assert_int_equal(conf.static_timeout_ms, 7000);
    assert_int_equal(conf.last_call_timeout_ms, 2000);
    assert_int_equal(run_rdzv_conf_parse("protocol=ftp", RDZV_BACKEND_ETCD_V2, &conf), MUSTER_EINVAL);
}

static void empty_run_id_is_drawn(void **state) {
    (void)state;
    struct launch_config config;
    assert_accepted("--rdzv-backend=c10d --rdzv-id=", &config);
    assert_true(strlen(config.run_id) > 2);
    assert_int_equal(strspn(config.run_id, "0123456789"), strlen(config.run_id));
    assert_non_null(strstr(log_text, config.run_id));
    launch_config_done(&config);
}

static void rendezvous_settings(void **state) {
    (void)state;
    struct rdzv_conf conf;
    assert_int_equal(run_rdzv_conf_parse("", RDZV_BACKEND_C10D, &conf), 0);
    assert_int_equal(conf.join_timeout_ms, 600000);
    assert_int_equal(conf.is_host, -1);
    assert_false(conf.last_call_given);
    assert_int_equal(run_rdzv_conf_parse(" join_timeout = 7 ,last_call_timeout=1,close_timeout=2,heartbeat_timeout=3,"
                                         "keep_alive_interval=4,keep_alive_max_attempt=5,read_timeout=6,is_host=YES,"
                                         "store_type=File",
                                         RDZV_BACKEND_C10D, &conf),
                     0);
    assert_int_equal(conf.join_timeout_ms, 7000);
    assert_int_equal(conf.last_call_timeout_ms, 1000);
    assert_true(conf.last_call_given);
    assert_int_equal(conf.close_timeout_ms, 2000);
    assert_int_equal(conf.heartbeat_timeout_ms, 3000);
    assert_int_equal(conf.keep_alive_interval_ms, 4000);
    assert_int_equal(conf.keep_alive_max_attempt, 5);
    assert_int_equal(conf.read_timeout_ms, 6000);
    assert_int_equal(conf.is_host, 1);
    assert_true(conf.store_is_file);
    assert_int_equal(conf.max_membership_changes, RDZV_UNLIMITED);
    assert_int_equal(run_rdzv_conf_parse("max_membership_changes=0,max_preemptions=12,restart_window=600",
                                         RDZV_BACKEND_MUSTER, &conf),
                     0);
    assert_int_equal(conf.max_membership_changes, 0);
    assert_int_equal(conf.max_preemptions, 12);
    assert_int_equal(conf.restart_window_ms, 600000);
    assert_int_equal(run_rdzv_conf_parse("timeout=5,join_timeout=x", RDZV_BACKEND_STATIC, &conf), 0);
    assert_int_equal(conf.static_timeout_ms, 5000);
    assert_int_equal(run_rdzv_conf_parse("is_host=x,is_host=f", RDZV_BACKEND_C10D, &conf), 0); /* the last one counts */
    assert_int_equal(conf.is_host, 0);
}

static void secrets(void **state) {
    (void)state;
    static const char *const with_secret[] = {"PYTHON_EXEC=/bin/sh", "MUSTER_SECRET=0123456789abcdef", NULL};
    static const char *const with_empty[] = {"PYTHON_EXEC=/bin/sh", "MUSTER_SECRET=", NULL};
    struct launch_config config;
    assert_accepted("--rdzv-backend=muster --rdzv-endpoint=h", &config);
    assert_null(config.rdzv.secret);
    launch_config_done(&config);
    assert_int_equal(build_with("--rdzv-backend=muster --rdzv-endpoint=h", with_secret, "", &config), 0);
    assert_int_equal(config.rdzv.secret->len, 16);
    assert_memory_equal(config.rdzv.secret->bytes, "0123456789abcdef", 16);
    launch_config_done(&config);
    /* One node alone needs none: it listens on loopback. */
    assert_int_equal(build_with("--standalone", with_secret, "", &config), 0);
    assert_null(config.rdzv.secret);
    launch_config_done(&config);
    assert_int_equal(build_with("--rdzv-backend=muster --rdzv-endpoint=h", with_empty, "", &config), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "MUSTER_SECRET is set and empty"));
    launch_config_done(&config);
    assert_int_equal(build_with("--rdzv-backend=etcd-v3 --rdzv-endpoint=h", with_secret, "", &config), 0);
    assert_int_equal(config.rdzv.secret->len, 16);
    launch_config_done(&config);
    assert_int_equal(build_with("--rdzv-backend=c10d --rdzv-endpoint=h", with_secret, "", &config), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "MUSTER_SECRET: nodes of --rdzv-backend=c10d cannot prove"));
    launch_config_done(&config);
    assert_int_equal(
        build_with("--rdzv-backend=muster --rdzv-endpoint=h --rdzv-conf=secret_file=/x", with_secret, "", &config),
        MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "leave out one"));
    launch_config_done(&config);
    assert_accepted("--rdzv-backend=muster --rdzv-endpoint=h --rdzv-conf=allow=10.0.0.0/8+fd00::/8", &config);
    assert_int_equal(config.rdzv.conf.allow.count, 2);
    launch_config_done(&config);
    assert_rejected("--rdzv-backend=muster --rdzv-endpoint=h --rdzv-conf=allow=10.0.0.1/8", "--rdzv-conf allow: ");
    assert_rejected("--nnodes=2 --rdzv-conf=secret_file=/x", "--rdzv-conf secret_file: nodes of --rdzv-backend=static");
    assert_rejected("--rdzv-backend=muster --rdzv-endpoint=h --rdzv-conf=secret_file=/nowhere/x", "from /nowhere/x");
}

static void tls_for_agents(void **state) {
    (void)state;
    struct launch_config config;
    assert_accepted("--rdzv-backend=muster --rdzv-endpoint=h --rdzv-conf=tls_cert=/c,tls_key=/k,tls_ca=/a", &config);
    assert_string_equal(config.rdzv.conf.tls.cert_file, "/c");
    assert_string_equal(config.rdzv.conf.tls.key_file, "/k");
    assert_string_equal(config.rdzv.conf.tls.ca_file, "/a");
    launch_config_done(&config);
    assert_rejected("--rdzv-backend=muster --rdzv-endpoint=h --rdzv-conf=tls_cert=/c,tls_key=/k",
                    "tls_ca is not given");
    assert_rejected("--rdzv-backend=muster --rdzv-endpoint=h --rdzv-conf=tls_ca=/a", "is not given");
    assert_rejected("--rdzv-backend=c10d --rdzv-endpoint=h --rdzv-conf=tls_cert=/c,tls_key=/k,tls_ca=/a",
                    "--rdzv-conf tls_ca: nodes of --rdzv-backend=c10d do not use TLS");
}

static void rendezvous_settings_rejected(void **state) {
    (void)state;
    struct rdzv_conf conf;
    static const char *const wrong[][2] = {
        {"foo", "'foo' must have a value specified"},
        {"a=", "'a' must have a value specified"},
        {"=1", "a key is empty"},
        {"a=1,", "a key is empty"},
        {"join_timeout=1.5", "valid integer"},
        {"join_timeout=0", "must be positive"},
        {"read_timeout=-1", "must be positive"},
        {"join_timeout=1000000001", "at most"},
        {"is_host=maybe", "valid boolean"},
        {"store_type=udp", "Invalid store type"},
        {"min_nodes=2", "has an option of its own"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(run_rdzv_conf_parse(wrong[i][0], RDZV_BACKEND_C10D, &conf), MUSTER_EINVAL);
        assert_non_null(strstr(muster_detail(), wrong[i][1]));
    }
    assert_int_equal(run_rdzv_conf_parse("max_preemptions=-1", RDZV_BACKEND_MUSTER, &conf), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "must be positive, or 0"));
    assert_int_equal(run_rdzv_conf_parse("restart_window=0", RDZV_BACKEND_MUSTER, &conf), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "must be positive"));
}

static void unknown_settings_are_warned_about(void **state) {
    (void)state;
    struct rdzv_conf conf;
    log_text[0] = '\0';
    assert_int_equal(run_rdzv_conf_parse("join_timeot=3", RDZV_BACKEND_C10D, &conf), 0);
    assert_non_null(strstr(log_text, "did you mean join_timeout?"));
    log_text[0] = '\0';
    assert_int_equal(run_rdzv_conf_parse("rank=0,join_timeout=3", RDZV_BACKEND_C10D, &conf), 0);
    assert_string_equal(log_text, "");
    assert_int_equal(run_rdzv_conf_parse("max_preemptions=x", RDZV_BACKEND_C10D, &conf), 0);
    assert_string_equal(log_text,
                        "--rdzv-conf: max_preemptions has no effect with --rdzv-backend=c10d; it is for muster, "
                        "etcd-v3");
    assert_int_equal(run_rdzv_conf_parse("protocol=https", RDZV_BACKEND_C10D, &conf), 0);
    assert_non_null(strstr(log_text, "protocol has no effect with --rdzv-backend=c10d; it is for etcd-v2, etcd"));
    assert_int_equal(run_rdzv_conf_parse("topology=r1", RDZV_BACKEND_ETCD_V2, &conf), 0);
    assert_non_null(strstr(log_text, "topology has no effect with --rdzv-backend=etcd-v2"));
    struct launch_config config;
    assert_accepted("--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=h --rdzv-conf=timeout=60 --use-env", &config);
    assert_string_equal(log_text, "");
    launch_config_done(&config);
    assert_string_equal(conf.topology, "");
}

static void ignored_protections_are_errors(void **state) {
    (void)state;
    struct launch_config config;
    struct rdzv_conf conf;
    assert_int_equal(run_rdzv_conf_parse("secert_file=/x", RDZV_BACKEND_MUSTER, &conf), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "did you mean secret_file?"));
    assert_int_equal(run_rdzv_conf_parse("secret=x", RDZV_BACKEND_C10D, &conf), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "did you mean secret_file?"));
    assert_int_equal(run_rdzv_conf_parse("tls-cert=/x", RDZV_BACKEND_C10D, &conf), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "did you mean tls_cert, tls_key or tls_ca?"));
    assert_int_equal(run_rdzv_conf_parse("protocol=https", RDZV_BACKEND_ETCD_V3, &conf), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "--rdzv-endpoint=https://"));
    assert_accepted("--rdzv-backend=muster --rdzv-endpoint=h --rdzv-conf=allow=10.0.0.0/8", &config);
    assert_non_null(strstr(log_text, "allow has no effect without a secret"));
    launch_config_done(&config);
}

static void restart_backoff(void **state) {
    (void)state;
    struct launch_config config;
    assert_accepted("", &config);
    assert_int_equal(config.restart_backoff_ms, 30000);
    launch_config_done(&config);
    assert_accepted("--restart-backoff=0", &config);
    assert_int_equal(config.restart_backoff_ms, 0);
    launch_config_done(&config);
    assert_accepted("--restart-backoff=1.5", &config);
    assert_int_equal(config.restart_backoff_ms, 1500);
    launch_config_done(&config);
    assert_rejected("--restart-backoff=-1", "0 (no pause) to 3600 seconds");
    assert_rejected("--restart-backoff=nan", "0 (no pause) to 3600 seconds");
    assert_rejected("--restart-backoff=3601", "0 (no pause) to 3600 seconds");
}

static void preemption(void **state) {
    (void)state;
    struct launch_config config;
    assert_accepted("", &config);
    assert_int_equal(config.preempt_signal, 0);
    assert_int_equal(config.preempt_grace_ms, 25000);
    assert_false(config.preempt_term_now);
    launch_config_done(&config);
    assert_accepted("--preempt-term=now", &config);
    assert_true(config.preempt_term_now);
    launch_config_done(&config);
    assert_accepted("--preempt-signal=SIGTERM --preempt-grace=120", &config);
    assert_int_equal(config.preempt_signal, SIGTERM);
    assert_int_equal(config.preempt_grace_ms, 120000);
    launch_config_done(&config);
    assert_rejected("--preempt-signal=SIGKILL", "that can be handled");
    assert_rejected("--preempt-signal=USR1", "--preempt-signal=USR1: a signal");
    assert_rejected("--preempt-grace=0", "1 to 86400 seconds");
    assert_rejected("--preempt-grace=86401", "1 to 86400 seconds");
}

static void counts_and_times(void **state) {
    (void)state;
    struct launch_config config;
    assert_accepted("--max-restarts=99999999999 --shutdown-timeout=2 --monitor-interval=5", &config);
    assert_int_equal(config.max_restarts, INT32_MAX);
    assert_int_equal(config.shutdown_timeout_ms, 2000);
    assert_int_equal(config.stderr_tail_lines, 20);
    launch_config_done(&config);
    assert_rejected("--max-restarts=-1", "max_restarts must be >= 0");
    assert_rejected("--monitor-interval=0", "above 0");
    assert_rejected("--monitor-interval=nan", "above 0");
    assert_rejected("--shutdown-timeout=-1", "shutdown_timeout must be non-negative, got -1");
    assert_rejected("--stderr-tail=-1", "0 to 1000");
    assert_rejected("--event-log-handler=consol", "did you mean console?");
    assert_rejected("--logs-specs=xx", "torchrun.logs_specs[xx]");
}

static void shutdown_timeout_variable(void **state) {
    (void)state;
    struct launch_config config;
    static const char *const five[] = {"PYTHON_EXEC=/bin/sh", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=5", NULL};
    static const char *const wrong[] = {"PYTHON_EXEC=/bin/sh", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=x", NULL};
    assert_int_equal(build_with("", five, "", &config), 0);
    assert_int_equal(config.shutdown_timeout_ms, 5000);
    launch_config_done(&config);
    assert_int_equal(build_with("--shutdown-timeout=1", wrong, "", &config), 0);
    launch_config_done(&config);
    assert_int_equal(build_with("", wrong, "", &config), MUSTER_EINVAL);
    launch_config_done(&config);
}

static void survivors(void **state) {
    (void)state;
    struct launch_config config;
    static const char *const on[] = {"PYTHON_EXEC=/bin/sh", "MUSTER_SURVIVORS=continue", NULL};
    static const char *const wrong[] = {"PYTHON_EXEC=/bin/sh", "MUSTER_SURVIVORS=contineu", NULL};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(build_with(i == 0 ? "--survivors=continue" : "", i == 0 ? plain : on, "", &config), 0);
        assert_true(config.survivors_continue);
        assert_true(config.rdzv.survivors_continue);
        launch_config_done(&config);
    }
    assert_int_equal(build_with("", wrong, "", &config), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "stop or continue"));
    launch_config_done(&config);
    assert_rejected("--survivors=continue --nnodes=1:2 --rdzv-backend=muster --rdzv-endpoint=h", "c10d or static");
    assert_accepted("--survivors=continue --nnodes=1:2 --rdzv-backend=c10d --rdzv-endpoint=h", &config);
    launch_config_done(&config);
}

static void mpi(void **state) {
    (void)state;
    struct launch_config config;
    static const char *const variables[][2] = {{"PET_MPI=auto", ""}, {"PET_MPI=", ""}, {"PET_MPI=pmix", "--mpi=pmi1"}};
    static const enum launch_mpi by_variable[] = {LAUNCH_MPI_AUTO, LAUNCH_MPI_NONE, LAUNCH_MPI_PMI1};
    static const struct {
        const char *option;
        enum launch_mpi mode;
    } options[] = {{"", LAUNCH_MPI_NONE},           {"--mpi", LAUNCH_MPI_AUTO},      {"--mpi=auto", LAUNCH_MPI_AUTO},
                   {"--mpi=pmi1", LAUNCH_MPI_PMI1}, {"--mpi=none", LAUNCH_MPI_NONE}, {"--mpi=pmix", LAUNCH_MPI_PMIX}};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        assert_accepted(options[i].option, &config);
        assert_int_equal(config.mpi, options[i].mode);
        launch_config_done(&config);
    }
    for (size_t i = 0; i < sizeof by_variable / sizeof *by_variable; i++) {
        const char *const environment[] = {"PYTHON_EXEC=/bin/sh", variables[i][0], NULL};
        assert_int_equal(build_with(variables[i][1], environment, "", &config), 0);
        assert_int_equal(config.mpi, by_variable[i]);
        launch_config_done(&config);
    }
    static const char *const wrong[] = {"PYTHON_EXEC=/bin/sh", "PET_MPI=pmi2", NULL};
    assert_int_equal(build_with("", wrong, "", &config), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "auto, pmi1, pmix or none"));
    launch_config_done(&config);
}

static void spares(void **state) {
    (void)state;
    struct launch_config config;
    const char *native = "--nnodes=1:2 --rdzv-backend=muster --rdzv-endpoint=h";
    char line[128];
    assert_accepted(native, &config);
    assert_false(config.rdzv.limits_spares);
    assert_false(config.has_spares);
    launch_config_done(&config);
    for (int count = 0; count < 3; count++) {
        (void)snprintf(line, sizeof line, "%s --spares=%d", native, count);
        assert_accepted(line, &config);
        assert_true(config.rdzv.limits_spares);
        assert_int_equal(config.rdzv.max_spares, count);
        assert_int_equal(config.has_spares, count > 0);
        launch_config_done(&config);
    }
    assert_rejected("--nnodes=1:2 --rdzv-backend=muster --rdzv-endpoint=h --spares=-1", "a number of nodes");
    assert_rejected("--nnodes=1:2 --rdzv-backend=muster --rdzv-endpoint=h --spares=x", "a number of nodes");
    assert_rejected("--nnodes=1:2 --rdzv-backend=c10d --rdzv-endpoint=h --spares=1", "needs --rdzv-backend=muster");
}

static void omp_threads(void **state) {
    (void)state;
    struct launch_config config;
    static const char *const set[] = {"PYTHON_EXEC=/bin/sh", "OMP_NUM_THREADS=", NULL};
    assert_accepted("--nproc-per-node=2", &config);
    assert_true(config.omp_defaulted);
    assert_non_null(strstr(log_text, "OMP_NUM_THREADS"));
    launch_config_done(&config);
    assert_accepted("--nproc-per-node=2 --no-python /bin/sh", &config); /* may start Python */
    assert_non_null(strstr(log_text, "OMP_NUM_THREADS"));
    launch_config_done(&config);
    assert_accepted("--nproc-per-node=2 --no-python /bin/true", &config);
    assert_true(config.omp_defaulted);
    assert_null(strstr(log_text, "OMP_NUM_THREADS"));
    launch_config_done(&config);
    assert_accepted("--nproc-per-node=1", &config);
    assert_false(config.omp_defaulted);
    launch_config_done(&config);
    assert_int_equal(build_with("--nproc-per-node=2", set, "", &config), 0);
    assert_false(config.omp_defaulted);
    launch_config_done(&config);
}

static void switches(void **state) {
    (void)state;
    struct launch_config config;
    static const char *const on[] = {"PYTHON_EXEC=/bin/sh", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1",
                                     "TORCH_ELASTIC_WORKER_IDENTICAL=1", NULL};
    assert_accepted("--numa-binding=core-complex --virtual-local-rank --merge-logs --event-log-handler=console",
                    &config);
    assert_true(config.rdzv.share_store);
    assert_false(config.rdzv.identical_workers);
    assert_int_equal(config.numa, LAUNCH_NUMA_CORE_COMPLEX);
    assert_false(config.survivors_continue);
    assert_true(config.virtual_local_rank);
    assert_true(config.merge_logs);
    assert_int_equal(config.events, LAUNCH_EVENTS_CONSOLE);
    launch_config_done(&config);
    assert_int_equal(build_with("", on, "", &config), 0);
    assert_false(config.rdzv.share_store);
    assert_true(config.rdzv.identical_workers);
    assert_int_equal(config.rdzv.local_world_size, 1);
    launch_config_done(&config);
}

static void stream_maps(void **state) {
    (void)state;
    struct launch_stream_map map;
    assert_int_equal(run_stream_map_parse("-r", "3", &map), 0);
    assert_false(map.is_map);
    assert_int_equal(map.all, LAUNCH_STREAM_BOTH);
    assert_int_equal(run_stream_map_parse("-r", "0:3,9:1,0:2", &map), 0);
    assert_true(map.is_map);
    assert_int_equal(map.by_rank[0], LAUNCH_STREAM_STDERR);
    assert_int_equal(map.by_rank[9], LAUNCH_STREAM_STDOUT);
    assert_int_equal(map.by_rank[1], LAUNCH_STREAM_NONE);
    static const char *const wrong[] = {"", "4", "5", "33", "10:1", "0:1,", "0:4", "a", ",0:1", "0:1;1:1", "0:1 "};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(run_stream_map_parse("-r", wrong[i], &map), MUSTER_EINVAL);
    }
}

static void assert_filters(const char *text, size_t count, const char *const *expected) {
    struct launch_strings list = {0};
    assert_int_equal(run_filters_parse(text, &list), 0);
    assert_int_equal(list.count, count);
    for (size_t i = 0; i < count; i++) {
        assert_string_equal(list.items[i], expected[i]);
    }
    launch_strings_done(&list);
}

static void line_filters(void **state) {
    (void)state;
    assert_filters("", 1, (const char *const[]){""});
    assert_filters("a,b", 2, (const char *const[]){"a", "b"});
    assert_filters("a,,b", 1, (const char *const[]){"a,b"});
    assert_filters(",,,", 2, (const char *const[]){",", ""});
    assert_filters(",", 2, (const char *const[]){"", ""});
}

static void ranks_filter(void **state) {
    (void)state;
    struct launch_config config;
    assert_accepted("--local-ranks-filter=2,0,-1", &config);
    assert_true(config.local_ranks_filtered);
    assert_int_equal(config.local_ranks_filter_count, 2);
    assert_int_equal(config.local_ranks_filter[0], 2);
    launch_config_done(&config);
    assert_rejected("--local-ranks-filter=0,", "comma-separated list of integers");
}

static void log_dir_must_not_be_a_file(void **state) {
    (void)state;
    struct launch_config config;
    char file[] = "/tmp/muster_run_config_XXXXXX";
    char text[64];
    int fd = mkstemp(file);
    assert_true(fd >= 0);
    (void)str_format(text, sizeof text, "--log-dir=%s", file);
    assert_rejected(text, "is a file");
    (void)str_format(text, sizeof text, "--log-dir=%s/below", file);
    assert_rejected(text, "Not a directory");
    (void)close(fd);
    (void)unlink(file);
    assert_accepted("--log-dir=/dev/null", &config);
    assert_string_equal(config.log_dir, "/dev/null");
    launch_config_done(&config);
    assert_accepted("--log-dir=", &config);
    assert_null(config.log_dir);
    launch_config_done(&config);
}

/* Devices: a folder that stands for / with as many GPUs as the driver and /dev show. */
struct machine_folder {
    char path[32];
};

#define AMD_TOPOLOGY "/sys/class/kfd/kfd/topology"
#define AMD_NODES AMD_TOPOLOGY "/nodes"

static void make_folder(const char *root, const char *path) {
    char full[128];
    (void)str_format(full, sizeof full, "%s%s", root, path);
    assert_int_equal(mkdir(full, 0700), 0);
}

static int make_machine(void **state) {
    static struct machine_folder folder;
    assert_true(str_copy(folder.path, sizeof folder.path, "/tmp/muster_gpus_XXXXXX"));
    assert_non_null(mkdtemp(folder.path));
    static const char *const folders[] = {"/dev",         "/dev/nvidia0",   "/dev/nvidia1",
                                          "/dev/nvidia2", "/dev/nvidiactl", "/dev/nvidia-uvm"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        make_folder(folder.path, folders[i]);
    }
    *state = &folder;
    return 0;
}

static int remove_machine(void **state) {
    const struct machine_folder *folder = *state;
    static const char *const folders[] = {
        "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev", ""};
    char full[128];
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        (void)str_format(full, sizeof full, "%s%s", folder->path, folders[i]);
        assert_int_equal(rmdir(full), 0);
    }
    return 0;
}

static uint32_t count_with(const char *root, const char *visible) {
    char variable[128];
    (void)str_format(variable, sizeof variable, "CUDA_VISIBLE_DEVICES=%s", visible ? visible : "");
    const char *const variables[] = {visible ? variable : "X=", NULL};
    struct run_machine machine = {.lookup = variables_lookup, .ctx = (void *)(uintptr_t)variables, .root = root};
    return run_devices_count(&machine);
}

static void gpus_are_counted_as_cuda_does(void **state) {
    const struct machine_folder *folder = *state;
    assert_int_equal(count_with("/nonexistent", NULL), 0);
    assert_int_equal(count_with("/nonexistent", "0"), 0);
    assert_int_equal(count_with(folder->path, NULL), 3);
    assert_int_equal(count_with(folder->path, ""), 0);
    assert_int_equal(count_with(folder->path, "-1"), 0);
    assert_int_equal(count_with(folder->path, "2, 0"), 2);
    assert_int_equal(count_with(folder->path, "0,7,1"), 1);
    assert_int_equal(count_with(folder->path, "1,1"), 0);
    assert_int_equal(count_with(folder->path, "GPU-8932f937,MIG-1"), 2);
    assert_int_equal(count_with(folder->path, "99999999999999999999"), 0);
}

static void make_file(const char *root, const char *path, const char *text) {
    char full[128];
    (void)str_format(full, sizeof full, "%s%s", root, path);
    FILE *file = fopen(full, "we");
    assert_true(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

/* /dev/kfd, a processor and three GPUs in the topology; a container was given two of them. */
static const char *const amd_folders[] = {"/dev",           "/dev/dri",           "/sys",         "/sys/class",
                                          "/sys/class/kfd", "/sys/class/kfd/kfd", AMD_TOPOLOGY,   AMD_NODES,
                                          AMD_NODES "/0",   AMD_NODES "/1",       AMD_NODES "/2", AMD_NODES "/3"};
static const char *const amd_files[][2] = {{"/dev/kfd", ""},
                                           {"/dev/dri/renderD128", ""},
                                           {"/dev/dri/renderD130", ""},
                                           {AMD_NODES "/0/properties", "cpu_cores_count 64\nsimd_count 0\n"},
                                           {AMD_NODES "/1/properties", "simd_count 440\ndrm_render_minor 128\n"},
                                           {AMD_NODES "/2/properties", "simd_count 440\ndrm_render_minor 129\n"},
                                           {AMD_NODES "/3/properties", "simd_count 440\ndrm_render_minor 130\n"}};

static uint32_t count_amd_with(const char *root, const char *variable) {
    const char *const variables[] = {variable, NULL};
    struct run_machine machine = {.lookup = variables_lookup, .ctx = (void *)(uintptr_t)variables, .root = root};
    return run_devices_count(&machine);
}

static void gpus_of_amd_are_counted(void **state) {
    char root[] = "/tmp/muster_gpus_XXXXXX", full[160];
    (void)state;
    assert_non_null(mkdtemp(root));
    for (size_t i = 0; i < sizeof amd_folders / sizeof *amd_folders; i++) {
        make_folder(root, amd_folders[i]);
    }
    for (size_t i = 0; i < sizeof amd_files / sizeof *amd_files; i++) {
        make_file(root, amd_files[i][0], amd_files[i][1]);
    }
    assert_int_equal(count_amd_with(root, "X="), 2);
    assert_int_equal(count_amd_with(root, "HIP_VISIBLE_DEVICES=1"), 1);
    assert_int_equal(count_amd_with(root, "ROCR_VISIBLE_DEVICES="), 0);
    assert_int_equal(count_amd_with(root, "CUDA_VISIBLE_DEVICES=0,1,2"), 2);
    for (size_t i = 0; i < sizeof amd_files / sizeof *amd_files; i++) {
        (void)str_format(full, sizeof full, "%s%s", root, amd_files[i][0]);
        assert_int_equal(unlink(full), 0);
    }
    for (size_t i = sizeof amd_folders / sizeof *amd_folders; i-- > 0;) {
        (void)str_format(full, sizeof full, "%s%s", root, amd_folders[i]);
        assert_int_equal(rmdir(full), 0);
    }
    assert_int_equal(rmdir(root), 0);
}

static void workers_per_node(void **state) {
    const struct machine_folder *folder = *state;
    const char *const none[] = {NULL};
    struct run_machine with = {.lookup = variables_lookup, .ctx = (void *)(uintptr_t)none, .root = folder->path};
    struct run_machine without = {.lookup = variables_lookup, .ctx = (void *)(uintptr_t)none, .root = "/nonexistent"};
    uint32_t count = 0;
    assert_int_equal(run_nproc_parse(&with, "gpu", &count), 0);
    assert_int_equal(count, 3);
    assert_int_equal(run_nproc_parse(&with, "auto", &count), 0);
    assert_int_equal(count, 3);
    assert_int_equal(run_nproc_parse(&with, "cpu", &count), 0);
    assert_int_equal(count, run_processors_count());
    assert_int_equal(run_nproc_parse(&without, "auto", &count), 0);
    assert_non_null(strstr(log_text, "no GPU was found"));
    assert_int_equal(count, run_processors_count());
    static const char *const wrong[][2] = {{"gpu", "Cuda is not available"},
                                           {"xpu", "Xpu is not available"},
                                           {"gpus", "did you mean gpu?"},
                                           {"0", "at least one"},
                                           {"-3", "at least one"},
                                           {"4097", "at most 4096"},
                                           {"1.5", "Unsupported nproc_per_node value: '1.5'"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(run_nproc_parse(&without, wrong[i][0], &count), MUSTER_EINVAL);
        assert_non_null(strstr(muster_detail(), wrong[i][1]));
    }
}

int main(void) {
    log_set_sink(keep_log);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_static_node_becomes_standalone),
        cmocka_unit_test(standalone_overrides),
        cmocka_unit_test(nodes),
        cmocka_unit_test(static_endpoints),
        cmocka_unit_test(backends),
        cmocka_unit_test(an_etcd_has_several_endpoints),
        cmocka_unit_test(an_etcd_is_not_half_protected),
        cmocka_unit_test(settings_of_an_etcd),
        cmocka_unit_test(settings_of_an_etcd_with_its_v3_api),
        cmocka_unit_test(empty_run_id_is_drawn),
        cmocka_unit_test(rendezvous_settings),
        cmocka_unit_test(secrets),
        cmocka_unit_test(tls_for_agents),
        cmocka_unit_test(rendezvous_settings_rejected),
        cmocka_unit_test(unknown_settings_are_warned_about),
        cmocka_unit_test(ignored_protections_are_errors),
        cmocka_unit_test(restart_backoff),
        cmocka_unit_test(preemption),
        cmocka_unit_test(counts_and_times),
        cmocka_unit_test(shutdown_timeout_variable),
        cmocka_unit_test(survivors),
        cmocka_unit_test(mpi),
        cmocka_unit_test(spares),
        cmocka_unit_test(omp_threads),
        cmocka_unit_test(switches),
        cmocka_unit_test(stream_maps),
        cmocka_unit_test(line_filters),
        cmocka_unit_test(ranks_filter),
        cmocka_unit_test(log_dir_must_not_be_a_file),
        cmocka_unit_test_setup_teardown(gpus_are_counted_as_cuda_does, make_machine, remove_machine),
        cmocka_unit_test(gpus_of_amd_are_counted),
        cmocka_unit_test_setup_teardown(workers_per_node, make_machine, remove_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

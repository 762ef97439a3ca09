/* Synchronised batch norm: PyTorch's values on one rank, and on several the values of one process over the whole batch.
 *
 * Recorded with PyTorch 2.13 (torch.nn.BatchNorm2d; weight, bias and running statistics as set below). */
#include <muster/syncbn.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <muster/collective.h>

#include "comm/group/ranks_test_support.h"

static const float recorded_x[72] = {
    6.68465996F,  4.03777409F,   -0.423842669F, -0.402758598F, 7.03883886F,  2.46277118F,  2.73856497F,  0.125172377F,
    3.78153658F,  2.9620645F,    0.294625282F,  1.53836441F,   -48.0241547F, -50.8388176F, -51.1697922F, -51.5646706F,
    -44.4402733F, -47.5559502F,  -50.6728973F,  -51.9301186F,  -50.2593269F, -51.2035294F, -49.7100029F, -50.2996559F,
    2.12520313F,  4.55846739F,   2.88332105F,   -1.06099033F,  5.96586466F,  3.98807621F,  3.49843764F,  6.4940629F,
    2.47666335F,  1.53522265F,   6.39609337F,   2.6416688F,    -46.1538811F, -49.424099F,  -48.1264076F, -54.8062706F,
    -50.2957878F, -48.2065926F,  -48.9037285F,  -53.2782364F,  -53.6306114F, -50.4132576F, -51.0519028F, -53.3954659F,
    4.63358402F,  3.81928372F,   3.43246937F,   5.1796174F,    3.34605432F,  3.33353424F,  0.725512981F, 1.35833299F,
    2.00539494F,  -0.996554375F, -1.72702408F,  3.50825262F,   -48.0456429F, -46.7012863F, -49.7133255F, -51.277565F,
    -48.1631432F, -49.0604324F,  -48.1010056F,  -54.7018166F,  -52.9280319F, -46.0154228F, -48.2675667F, -48.1508484F};
static const float recorded_y[72] = {
    1.53889704F,    0.659687519F,  -0.822316587F, -0.81531316F,  1.65654373F,   0.13652274F,   0.228132471F,
    -0.639951646F,  0.574573755F,  0.30237177F,   -0.583664894F, -0.170535147F, 0.836526394F,  2.58018684F,
    2.78522277F,    3.02984691F,   -1.38365853F,  0.546477556F,  2.47740054F,   3.2562387F,    2.22119713F,
    2.80612278F,    1.8808955F,    2.24618053F,   0.0243936051F, 0.832644939F,  0.276215732F,  -1.03395629F,
    1.30013657F,    0.643179536F,  0.480537474F,  1.47558689F,   0.141137272F,  -0.171578735F, 1.44304454F,
    0.195946723F,   -0.322092682F, 1.70378029F,   0.89987123F,   5.03799152F,   2.24378443F,   0.949545145F,
    1.38141513F,    4.0913868F,    4.30967999F,   2.31655598F,   2.71219134F,   4.16400957F,   0.857596219F,
    0.587112129F,   0.458624959F,  1.03897083F,   0.429920703F,  0.425761938F,  -0.440537989F, -0.230335742F,
    -0.0154027855F, -1.01255286F,  -1.25519109F,  0.483797699F,  0.849838138F,  0.0170203466F, 1.88295376F,
    2.85198736F,    0.922628582F,  1.4784919F,    0.884134889F,  4.97328281F,   3.87443781F,   -0.407866448F,
    0.987318099F,   0.915012121F};
static const float recorded_dy[72] = {
    -0.517564476F, -0.775365829F, 0.506116092F,  0.481721997F,  -0.406538486F,  1.16012001F,   0.330169261F,
    0.721572161F,  1.18550372F,   0.359321982F,  -0.40358299F,  -0.904838681F,  0.652799726F,  0.310243428F,
    0.411356807F,  0.647586584F,  1.09046412F,   -0.804795802F, -0.0640866756F, 0.828549504F,  1.13120043F,
    -0.927338123F, 0.759667218F,  -1.98437381F,  0.126051709F,  0.0603490062F,  -0.567702115F, -1.09596348F,
    0.489602715F,  0.496949464F,  -0.436526656F, -1.12867749F,  0.841664374F,   -0.62112993F,  1.44624913F,
    0.447272182F,  -0.652265966F, -2.03443456F,  1.19310594F,   1.16699183F,    1.1823895F,    0.518285453F,
    1.28963923F,   0.741176128F,  0.315007865F,  -1.41387415F,  0.760460615F,   -0.103273712F, -1.85926747F,
    0.0540577881F, -1.7766757F,   -0.443727046F, -0.425195634F, 0.149472669F,   0.552158773F,  -0.61658448F,
    0.475853324F,  1.53785956F,   0.769753397F,  1.57641125F,   -1.42877197F,   -1.18347049F,  1.27634847F,
    0.839730144F,  -1.16362977F,  -0.852559328F, 1.09847355F,   -0.145947322F,  -1.98819017F,  0.554882526F,
    0.348228008F,  0.00169539009F};
static const float recorded_dx[72] = {
    -0.0911201611F, -0.24312827F,  0.0706561357F, 0.0630819276F,  -0.0453593507F, 0.360281438F,  0.0915147588F,
    0.155991077F,   0.401783228F,  0.106802955F,  -0.213499591F,  -0.348811686F,  -0.38536486F,  -0.140534207F,
    -0.199337348F,  -0.341103435F, -0.698028922F, 0.512177348F,   0.0894373059F,  -0.448973179F, -0.655826211F,
    0.63036412F,    -0.432030678F, 1.27471387F,   0.00833251607F, 0.047526218F,   -0.203098923F, -0.477480114F,
    0.22540307F,    0.178247213F,  -0.144101679F, -0.298891574F,  0.254849225F,   -0.254651666F, 0.553958595F,
    0.127982706F,   0.401437461F,  1.29557884F,   -0.718895078F,  -0.625302911F,  -0.687114835F, -0.299920082F,
    -0.769688129F,  -0.379222423F, -0.111130908F, 0.922610521F,   -0.416970551F,  0.145265922F,  -0.588224292F,
    0.0269002616F,  -0.590909898F, -0.104335137F, -0.144159138F,  0.0464130379F,  0.114771962F,  -0.257577598F,
    0.121520855F,   0.399006069F,  0.125548527F,  0.524776936F,   0.904400647F,   0.736858368F,  -0.752071917F,
    -0.463462114F,  0.741508961F,  0.559202313F,  -0.660565495F,  0.186841503F,   1.30753887F,   -0.347985715F,
    -0.193864256F,  0.0194571726F};
static const float recorded_dweight[2] = {-6.13646412F, -1.6307168F};
static const float recorded_dbias[2] = {1.78889048F, 2.37127018F};
static const float recorded_running_mean[2] = {1.18043971F, -22.9902267F};
static const float recorded_running_variance[2] = {2.32437491F, 1.05303872F};
static const float recorded_evaluated[72] = {
    2.95771527F,  1.65562105F,   -0.539201736F, -0.528829753F, 3.13194823F, 0.880822957F, 1.01649547F,   -0.269122332F,
    1.52956903F,  1.12644255F,   -0.185762614F, 0.426075459F,  38.5928345F, 42.7071114F,  43.1909065F,   43.7681122F,
    33.3541679F,  37.9084473F,   42.4645805F,   44.3022995F,   41.860054F,  43.2402229F,  41.0570908F,   41.9190025F,
    0.714761615F, 1.91176808F,   1.08770597F,   -0.852636576F, 2.60411525F, 1.63117301F,  1.3903029F,    2.86395407F,
    0.887656987F, 0.42452991F,   2.81575942F,   0.968828857F,  35.8590012F, 40.6391754F,  38.7423019F,   48.5064545F,
    41.9133492F,  38.8595085F,   39.8785324F,   46.2728806F,   46.7879601F, 42.0850563F,  43.0185852F,   46.4442406F,
    1.94872057F,  1.54813814F,   1.35785091F,   2.21733308F,   1.3153404F,  1.30918133F,  0.0262058694F, 0.337511808F,
    0.655823827F, -0.820938349F, -1.18028152F,  1.39513123F,   38.6242447F, 36.6591606F,  41.0619469F,   43.3484421F,
    38.7959976F,  40.1075935F,   38.7051697F,   48.3537712F,   45.7609787F, 35.6566124F,  38.9486389F,   38.7780266F};

enum { N = 3, CHANNELS = 2, PLANE = 12, VALUES = N * CHANNELS * PLANE };
static const float weight[CHANNELS] = {0.75F, -1.5F}, bias[CHANNELS] = {0.25F, 2.0F};
static const float first_mean[CHANNELS] = {1, -20}, first_variance[CHANNELS] = {2, 0.5F};

/* One rounding of float32. */
#define EPSILON 5.9604644775390625e-8

/* What a layer and its gradients are, for a batch of any size: the definition in float64, naively. */
struct reference {
    double mean[CHANNELS], variance[CHANNELS], weight_gradient[CHANNELS], bias_gradient[CHANNELS];
    double y[64 * CHANNELS * PLANE], dx[64 * CHANNELS * PLANE];
    double y_bound[64 * CHANNELS * PLANE], dx_bound[64 * CHANNELS * PLANE];
};

/* Bounds: y = (x - centre) * scale + shift, each operation and each of the three constants rounded once, and the
 * product is at most |y| + |shift|: 5 roundings. dx likewise, from its three terms. Twice that, since the recorded
 * values of PyTorch have roundings of their own. */
static void reference_channel(struct reference *r, const float *x, const float *dy, size_t n, size_t c) {
    double count = (double)(n * PLANE), sum_dy = 0, product = 0;
    r->mean[c] = r->variance[c] = 0;
    for (size_t i = 0; i < n * PLANE; i++) {
        r->mean[c] += (double)x[(i / PLANE * CHANNELS + c) * PLANE + i % PLANE] / count;
    }
    for (size_t i = 0; i < n * PLANE; i++) {
        size_t at = (i / PLANE * CHANNELS + c) * PLANE + i % PLANE;
        double difference = (double)x[at] - r->mean[c];
        r->variance[c] += difference * difference / count;
        sum_dy += (double)dy[at];
        product += (double)dy[at] * difference;
    }
    double deviation = 1 / sqrt(r->variance[c] + 1e-5), scale = deviation * (double)weight[c];
    r->weight_gradient[c] = product * deviation;
    r->bias_gradient[c] = sum_dy;
    for (size_t i = 0; i < n * PLANE; i++) {
        size_t at = (i / PLANE * CHANNELS + c) * PLANE + i % PLANE;
        double difference = (double)x[at] - r->mean[c], slope = product / count * deviation * deviation;
        r->y[at] = difference * scale + (double)bias[c];
        r->dx[at] = ((double)dy[at] - sum_dy / count - difference * slope) * scale;
        r->y_bound[at] = 10 * EPSILON * (fabs(r->y[at]) + fabs((double)bias[c]));
        r->dx_bound[at] =
            10 * EPSILON * fabs(scale) * (fabs((double)dy[at]) + fabs(sum_dy / count) + fabs(difference * slope));
    }
}

static bool near(double found, double expected, double bound) {
    return fabs(found - expected) <= bound;
}

static bool same_bits(const void *left, const void *right, size_t bytes) {
    return memcmp(left, right, bytes) == 0;
}

struct layer {
    float mean[CHANNELS], variance[CHANNELS];
    int64_t tracked;
    struct muster_syncbn *syncbn;
};

static void layer_make(struct rank *rank, struct muster_group *group, double momentum, struct layer *layer) {
    memcpy(layer->mean, first_mean, sizeof first_mean);
    memcpy(layer->variance, first_variance, sizeof first_variance);
    layer->tracked = 0;
    struct muster_syncbn_options options = MUSTER_SYNCBN_OPTIONS_INIT;
    options.channels = CHANNELS;
    options.weight = weight;
    options.bias = bias;
    options.running_mean = layer->mean;
    options.running_variance = layer->variance;
    options.batches_tracked = &layer->tracked;
    options.momentum = momentum;
    rank_check_code(rank, muster_syncbn_create(group, &options, &layer->syncbn), MUSTER_OK);
}

static int compare_with_pytorch(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct layer layer;
    layer_make(rank, group, 0.1, &layer);
    float y[VALUES], dx[VALUES], weight_gradient[CHANNELS], bias_gradient[CHANNELS];
    rank_check_code(rank, muster_syncbn_forward(layer.syncbn, recorded_x, N, PLANE, y), MUSTER_OK);
    memcpy(dx, recorded_dy, sizeof dx); /* dx may be dy */
    rank_check_code(rank, muster_syncbn_backward(layer.syncbn, recorded_x, dx, dx, weight_gradient, bias_gradient),
                    MUSTER_OK);
    static struct reference r;
    for (size_t c = 0; c < CHANNELS; c++) {
        reference_channel(&r, recorded_x, recorded_dy, N, c);
        /* PyTorch adds up 36 terms in float32 or better. */
        double bound = 40 * EPSILON * 36;
        rank_check(rank, near((double)weight_gradient[c], (double)recorded_dweight[c], bound));
        rank_check(rank, near((double)bias_gradient[c], (double)recorded_dbias[c], bound));
        rank_check(rank, near((double)layer.mean[c], (double)recorded_running_mean[c],
                              4 * EPSILON * fabs((double)recorded_running_mean[c])));
        rank_check(rank, near((double)layer.variance[c], (double)recorded_running_variance[c],
                              8 * EPSILON * fabs((double)recorded_running_variance[c])));
    }
    rank_check(rank, layer.tracked == 1);
    for (size_t i = 0; i < VALUES; i++) {
        rank_check(rank, near((double)y[i], r.y[i], r.y_bound[i]));
        rank_check(rank, near((double)dx[i], r.dx[i], r.dx_bound[i]));
        /* PyTorch takes x * scale + (bias - mean * scale): its rounding grows with the mean, at most 53 here. */
        rank_check(rank, near((double)y[i], (double)recorded_y[i], r.y_bound[i] + 53 * 4 * EPSILON));
        rank_check(rank, near((double)dx[i], (double)recorded_dx[i], r.dx_bound[i] + 53 * 4 * EPSILON));
    }
    rank_check_code(rank, muster_syncbn_evaluate(layer.syncbn, recorded_x, N, PLANE, y), MUSTER_OK);
    for (size_t i = 0; i < VALUES; i++) {
        rank_check(rank, near((double)y[i], (double)recorded_evaluated[i],
                              8 * EPSILON * (fabs((double)recorded_evaluated[i]) + 120)));
    }
    muster_syncbn_free(layer.syncbn);
    muster_group_free(group);
    return 0;
}

static void one_rank_is_pytorch(void **state) {
    (void)state;
    ranks_run(1, compare_with_pytorch, NULL);
}

/* ---- several ranks ---- */

static float noise(uint32_t *seed) {
    *seed = *seed * 1664525U + 1013904223U;
    return (float)(*seed >> 8) / (float)(1 << 23) - 1;
}

/* Images 0 ... total-1 are the whole batch; rank r has shares[r] of them, in order. */
struct split {
    size_t shares[4];
};

static void make_batch(float *x, float *dy, size_t total) {
    uint32_t seed = 7;
    for (size_t i = 0; i < total * CHANNELS * PLANE; i++) {
        x[i] = noise(&seed) * 3 + (i / PLANE % CHANNELS == 0 ? 1.0F : 400.0F);
        dy[i] = noise(&seed);
    }
}

static int compare_with_whole_batch(struct rank *rank, void *argument) {
    const struct split *split = argument;
    size_t total = 0, before = 0;
    for (uint32_t other = 0; other < rank->size; other++) {
        before += other < rank->rank ? split->shares[other] : 0;
        total += split->shares[other];
    }
    static float x[64 * CHANNELS * PLANE], dy[64 * CHANNELS * PLANE], y[64 * CHANNELS * PLANE],
        dx[64 * CHANNELS * PLANE];
    make_batch(x, dy, total);
    static struct reference r;
    for (size_t c = 0; c < CHANNELS; c++) {
        reference_channel(&r, x, dy, total, c);
    }
    struct muster_group *group = rank_group(rank, NULL);
    struct layer layer;
    layer_make(rank, group, 0.25, &layer);
    size_t mine = split->shares[rank->rank], offset = before * CHANNELS * PLANE;
    float gradients[2][CHANNELS];
    for (int round = 0; round < 2; round++) {
        rank_check_code(rank, muster_syncbn_forward(layer.syncbn, x + offset, mine, PLANE, y), MUSTER_OK);
        rank_check_code(rank,
                        muster_syncbn_backward(layer.syncbn, x + offset, dy + offset, dx, gradients[0], gradients[1]),
                        MUSTER_OK);
        for (size_t i = 0; i < mine * CHANNELS * PLANE; i++) {
            rank_check(rank, near((double)y[i], r.y[offset + i], r.y_bound[offset + i]));
            rank_check(rank, near((double)dx[i], r.dx[offset + i], r.dx_bound[offset + i]));
        }
    }
    rank_check_code(
        rank, muster_all_reduce(group, gradients, gradients, 2 * CHANNELS, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL), 0);
    double unbiased = (double)(total * PLANE) / (double)(total * PLANE - 1);
    for (size_t c = 0; c < CHANNELS; c++) {
        /* Each rank's share and each sum of shares is rounded to float32, at most at 3 * |dy| * values. */
        double bound = 2 * 4 * EPSILON * 3 * (double)(total * PLANE);
        rank_check(rank, near((double)gradients[0][c], r.weight_gradient[c], bound));
        rank_check(rank, near((double)gradients[1][c], r.bias_gradient[c], bound));
        double mean = (double)first_mean[c] * 0.5625 + r.mean[c] * 0.4375; /* two batches, 1/4 each */
        double variance = (double)first_variance[c] * 0.5625 + r.variance[c] * unbiased * 0.4375;
        rank_check(rank, near((double)layer.mean[c], mean, 4 * EPSILON * 400));
        rank_check(rank, near((double)layer.variance[c], variance, 4 * EPSILON * 10));
    }
    struct layer everybody[4];
    rank_check_code(rank, muster_all_gather(group, &layer, everybody, sizeof layer, MUSTER_UINT8, NULL), MUSTER_OK);
    rank_check(rank, same_bits(everybody[0].mean, layer.mean, sizeof layer.mean));
    rank_check(rank, same_bits(everybody[0].variance, layer.variance, sizeof layer.variance));
    muster_syncbn_free(layer.syncbn);
    muster_group_free(group);
    return 0;
}

static void ranks_are_one_process(void **state) {
    (void)state;
    struct split cases[] = {{{8, 8}}, {{13, 2}}, {{0, 5}}, {{1, 0}}, {{3, 20, 9}}, {{5, 0, 0, 31}}};
    const uint32_t sizes[] = {2, 2, 2, 2, 3, 4};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ranks_run(sizes[i], compare_with_whole_batch, &cases[i]);
    }
}

static int try_wrong_use(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct layer layer;
    layer_make(rank, group, -1, &layer); /* the average over all batches */
    float x[CHANNELS] = {1, 2}, y[CHANNELS];
    rank_check_code(rank, muster_syncbn_backward(layer.syncbn, x, x, y, NULL, NULL), MUSTER_EINVAL);
    rank_check_code(rank, muster_syncbn_forward(layer.syncbn, x, rank->rank == 1, 1, y), MUSTER_EINVAL);
    rank_check(rank, strstr(muster_detail(), "1 values a channel") != NULL);
    rank_check_code(rank, muster_syncbn_forward(layer.syncbn, x, 1, 1, y), MUSTER_OK);
    rank_check(rank, layer.tracked == 1 && layer.mean[0] == 1 && layer.variance[0] == 0); /* first batch: weight 1 */
    muster_syncbn_free(layer.syncbn);
    struct muster_syncbn_options options = MUSTER_SYNCBN_OPTIONS_INIT;
    rank_check_code(rank, muster_syncbn_create(group, &options, &layer.syncbn), MUSTER_EINVAL); /* no channels */
    rank_check(rank, strstr(muster_detail(), "0 channels") && strstr(muster_detail(), "1 to 1048576 channels"));
    options.size = 0;
    rank_check_code(rank, muster_syncbn_create(group, &options, &layer.syncbn), MUSTER_EINVAL);
    rank_check(rank, strstr(muster_detail(), "MUSTER_SYNCBN_OPTIONS_INIT"));
    options.size = sizeof options;
    options.channels = 1;
    options.running_mean = x;
    rank_check_code(rank, muster_syncbn_create(group, &options, &layer.syncbn), MUSTER_EINVAL);
    options.running_variance = y;
    options.momentum = -1;
    rank_check_code(rank, muster_syncbn_create(group, &options, &layer.syncbn), MUSTER_EINVAL);
    options = (struct muster_syncbn_options)MUSTER_SYNCBN_OPTIONS_INIT;
    options.channels = 1;
    rank_check_code(rank, muster_syncbn_create(group, &options, &layer.syncbn), MUSTER_OK);
    rank_check_code(rank, muster_syncbn_evaluate(layer.syncbn, x, 1, 1, y), MUSTER_EINVAL);
    rank_check_code(rank, muster_syncbn_forward(layer.syncbn, x, 1, 2, y), MUSTER_OK); /* no weight, no statistics */
    rank_check(rank, near((double)y[0], -1, 1e-4) && near((double)y[1], 1, 1e-4));
    muster_syncbn_free(layer.syncbn);
    muster_syncbn_free(NULL);
    muster_group_free(group);
    return 0;
}

static void wrong_use_is_refused(void **state) {
    (void)state;
    ranks_run(2, try_wrong_use, NULL);
}

static int lose_a_peer(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct layer layer;
    layer_make(rank, group, 0.1, &layer);
    float y[VALUES];
    rank_check_code(rank, muster_syncbn_forward(layer.syncbn, recorded_x, N, PLANE, y), MUSTER_OK);
    if (rank->rank == 1) {
        rank_mark(rank, 1);
        rank_await_signal(rank, 1); /* never: killed here */
    }
    rank_check_code(rank, muster_syncbn_backward(layer.syncbn, recorded_x, recorded_dy, y, NULL, NULL), MUSTER_EPEER);
    rank_check(rank, strstr(muster_detail(), "batch norm, backward: ") != NULL);
    muster_syncbn_free(layer.syncbn);
    muster_group_free(group);
    return 0;
}

static void a_lost_peer_is_told(void **state) {
    (void)state;
    struct ranks *ranks = ranks_start(2, lose_a_peer, NULL, NULL);
    ranks_await(ranks, 1, 1);
    ranks_kill(ranks, 1);
    assert_int_equal(ranks_wait(ranks, 0), 0);
    ranks_free(ranks);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_is_pytorch),
        cmocka_unit_test(ranks_are_one_process),
        cmocka_unit_test(wrong_use_is_refused),
        cmocka_unit_test(a_lost_peer_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

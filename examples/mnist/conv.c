/* See conv.h. A oneDNN primitive is made in three steps: memory descriptors (where a weight's is left open, "any",
 * oneDNN chooses its layout), a primitive descriptor, the primitive. The two versions of the interface differ in these
 * steps alone: the functions from here to "Convolution" hide that. */
#include "conv.h"

#include <stdlib.h>

#include <oneapi/dnnl/dnnl.h>

#include "fail.h"

#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        dnnl_status_t check_status = (call);                                                                           \
        if (check_status != dnnl_success) {                                                                            \
            fail("oneDNN: %s: status %d", #call, (int)check_status);                                                   \
        }                                                                                                              \
    } while (0)

static const dnnl_dims_t STRIDE = {1, 1}, PADDING = {0, 0};

#if DNNL_VERSION_MAJOR >= 3

static const dnnl_dims_t DILATION = {0, 0};

typedef const_dnnl_memory_desc_t layout_reference;
#define LAYOUT(layout) (layout)

static dnnl_memory_desc_t layout_create(int dims_count, const dnnl_dims_t dims, dnnl_format_tag_t tag) {
    dnnl_memory_desc_t layout;
    CHECK(dnnl_memory_desc_create_with_tag(&layout, dims_count, dims, dnnl_f32, tag));
    return layout;
}

static void layout_done(dnnl_memory_desc_t *layout) {
    CHECK(dnnl_memory_desc_destroy(*layout));
}

static dnnl_primitive_desc_t describe_forward(dnnl_engine_t engine, layout_reference x, layout_reference weight,
                                              layout_reference bias, layout_reference y) {
    dnnl_primitive_desc_t description;
    CHECK(dnnl_convolution_forward_primitive_desc_create(&description, engine, dnnl_forward_training,
                                                         dnnl_convolution_direct, x, weight, bias, y, STRIDE, DILATION,
                                                         PADDING, PADDING, NULL));
    return description;
}

static dnnl_primitive_desc_t describe_backward_weights(dnnl_engine_t engine, layout_reference x,
                                                       layout_reference weight, layout_reference bias,
                                                       layout_reference y, dnnl_primitive_desc_t forward) {
    dnnl_primitive_desc_t description;
    CHECK(dnnl_convolution_backward_weights_primitive_desc_create(&description, engine, dnnl_convolution_direct, x,
                                                                  weight, bias, y, STRIDE, DILATION, PADDING, PADDING,
                                                                  forward, NULL));
    return description;
}

static dnnl_primitive_desc_t describe_backward_data(dnnl_engine_t engine, layout_reference x, layout_reference weight,
                                                    layout_reference y, dnnl_primitive_desc_t forward) {
    dnnl_primitive_desc_t description;
    CHECK(dnnl_convolution_backward_data_primitive_desc_create(&description, engine, dnnl_convolution_direct, x, weight,
                                                               y, STRIDE, DILATION, PADDING, PADDING, forward, NULL));
    return description;
}

#else

typedef const dnnl_memory_desc_t *layout_reference;
#define LAYOUT(layout) (&(layout))

static dnnl_memory_desc_t layout_create(int dims_count, const dnnl_dims_t dims, dnnl_format_tag_t tag) {
    dnnl_memory_desc_t layout;
    CHECK(dnnl_memory_desc_init_by_tag(&layout, dims_count, dims, dnnl_f32, tag));
    return layout;
}

static void layout_done(dnnl_memory_desc_t *layout) {
    (void)layout;
}

static dnnl_primitive_desc_t describe(dnnl_engine_t engine, const dnnl_convolution_desc_t *wanted,
                                      dnnl_primitive_desc_t forward) {
    dnnl_primitive_desc_t description;
    CHECK(dnnl_primitive_desc_create(&description, wanted, NULL, engine, forward));
    return description;
}

static dnnl_primitive_desc_t describe_forward(dnnl_engine_t engine, layout_reference x, layout_reference weight,
                                              layout_reference bias, layout_reference y) {
    dnnl_convolution_desc_t wanted;
    CHECK(dnnl_convolution_forward_desc_init(&wanted, dnnl_forward_training, dnnl_convolution_direct, x, weight, bias,
                                             y, STRIDE, PADDING, PADDING));
    return describe(engine, &wanted, NULL);
}

static dnnl_primitive_desc_t describe_backward_weights(dnnl_engine_t engine, layout_reference x,
                                                       layout_reference weight, layout_reference bias,
                                                       layout_reference y, dnnl_primitive_desc_t forward) {
    dnnl_convolution_desc_t wanted;
    CHECK(dnnl_convolution_backward_weights_desc_init(&wanted, dnnl_convolution_direct, x, weight, bias, y, STRIDE,
                                                      PADDING, PADDING));
    return describe(engine, &wanted, forward);
}

static dnnl_primitive_desc_t describe_backward_data(dnnl_engine_t engine, layout_reference x, layout_reference weight,
                                                    layout_reference y, dnnl_primitive_desc_t forward) {
    dnnl_convolution_desc_t wanted;
    CHECK(dnnl_convolution_backward_data_desc_init(&wanted, dnnl_convolution_direct, x, weight, y, STRIDE, PADDING,
                                                   PADDING));
    return describe(engine, &wanted, forward);
}

#endif

/* ---- Convolution ---- */

/* Weights in oneDNN's own layout, and the copy that converts between it and OIHW. */
struct converter {
    dnnl_memory_t plain;  /* OIHW; points at the caller's array during a call */
    dnnl_memory_t packed; /* oneDNN's memory */
    dnnl_primitive_t copy;
};

struct conv {
    struct conv_shape shape;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    /* Point at the caller's arrays during a call. dx is like x, dy like y, dbias like bias. */
    dnnl_memory_t x, y, bias;
    dnnl_primitive_t forward, backward_weights, backward_data; /* the last NULL for one input channel */
    struct converter weight_forward, weight_backward, dweight;
};

static dnnl_memory_t memory_create(dnnl_engine_t engine, layout_reference layout, void *where) {
    dnnl_memory_t memory;
    CHECK(dnnl_memory_create(&memory, layout, engine, where));
    return memory;
}

static dnnl_primitive_t primitive_create(const_dnnl_primitive_desc_t description) {
    dnnl_primitive_t primitive;
    CHECK(dnnl_primitive_create(&primitive, description));
    return primitive;
}

/* From `plain` to `packed`, or the other way. */
static struct converter converter_create(dnnl_engine_t engine, layout_reference plain, layout_reference packed,
                                         int packs) {
    struct converter converter = {.plain = memory_create(engine, plain, DNNL_MEMORY_NONE),
                                  .packed = memory_create(engine, packed, DNNL_MEMORY_ALLOCATE)};
    dnnl_primitive_desc_t description;
    CHECK(dnnl_reorder_primitive_desc_create(&description, packs ? plain : packed, engine, packs ? packed : plain,
                                             engine, NULL));
    converter.copy = primitive_create(description);
    CHECK(dnnl_primitive_desc_destroy(description));
    return converter;
}

static void converter_done(struct converter *converter) {
    if (converter->copy != NULL) {
        CHECK(dnnl_primitive_destroy(converter->copy));
        CHECK(dnnl_memory_destroy(converter->plain));
        CHECK(dnnl_memory_destroy(converter->packed));
    }
}

static void compile(struct conv *conv) {
    const struct conv_shape *s = &conv->shape;
    /* oneDNN names dimensions in the order N, C, H, W whatever the layout; the tag says which is fastest. */
    dnnl_dims_t x_dims = {s->batch, s->in_channels, s->in_side, s->in_side};
    dnnl_dims_t y_dims = {s->batch, s->out_channels, s->out_side, s->out_side};
    dnnl_dims_t weight_dims = {s->out_channels, s->in_channels, CONV_KERNEL, CONV_KERNEL};
    dnnl_dims_t bias_dims = {s->out_channels};
    dnnl_memory_desc_t x = layout_create(4, x_dims, dnnl_nhwc), y = layout_create(4, y_dims, dnnl_nhwc);
    dnnl_memory_desc_t bias = layout_create(1, bias_dims, dnnl_x);
    dnnl_memory_desc_t plain = layout_create(4, weight_dims, dnnl_oihw);
    dnnl_memory_desc_t any = layout_create(4, weight_dims, dnnl_format_tag_any);

    conv->x = memory_create(conv->engine, LAYOUT(x), DNNL_MEMORY_NONE);
    conv->y = memory_create(conv->engine, LAYOUT(y), DNNL_MEMORY_NONE);
    conv->bias = memory_create(conv->engine, LAYOUT(bias), DNNL_MEMORY_NONE);

    dnnl_primitive_desc_t forward = describe_forward(conv->engine, LAYOUT(x), LAYOUT(any), LAYOUT(bias), LAYOUT(y));
    conv->forward = primitive_create(forward);
    layout_reference packed = dnnl_primitive_desc_query_md(forward, dnnl_query_weights_md, 0);
    conv->weight_forward = converter_create(conv->engine, LAYOUT(plain), packed, 1);

    dnnl_primitive_desc_t backward =
        describe_backward_weights(conv->engine, LAYOUT(x), LAYOUT(any), LAYOUT(bias), LAYOUT(y), forward);
    conv->backward_weights = primitive_create(backward);
    packed = dnnl_primitive_desc_query_md(backward, dnnl_query_diff_weights_md, 0);
    conv->dweight = converter_create(conv->engine, LAYOUT(plain), packed, 0);
    CHECK(dnnl_primitive_desc_destroy(backward));

    if (s->in_channels > 1) {
        backward = describe_backward_data(conv->engine, LAYOUT(x), LAYOUT(any), LAYOUT(y), forward);
        conv->backward_data = primitive_create(backward);
        packed = dnnl_primitive_desc_query_md(backward, dnnl_query_weights_md, 0);
        conv->weight_backward = converter_create(conv->engine, LAYOUT(plain), packed, 1);
        CHECK(dnnl_primitive_desc_destroy(backward));
    }
    CHECK(dnnl_primitive_desc_destroy(forward));
    layout_done(&x);
    layout_done(&y);
    layout_done(&bias);
    layout_done(&plain);
    layout_done(&any);
}

struct conv *conv_create(struct conv_shape shape) {
    struct conv *conv = allocate(1, sizeof *conv);
    conv->shape = shape;
    CHECK(dnnl_engine_create(&conv->engine, dnnl_cpu, 0));
    CHECK(dnnl_stream_create(&conv->stream, conv->engine, dnnl_stream_default_flags));
    compile(conv);
    return conv;
}

void conv_free(struct conv *conv) {
    if (conv == NULL) {
        return;
    }
    converter_done(&conv->weight_forward);
    converter_done(&conv->weight_backward);
    converter_done(&conv->dweight);
    CHECK(dnnl_primitive_destroy(conv->forward));
    CHECK(dnnl_primitive_destroy(conv->backward_weights));
    if (conv->backward_data != NULL) {
        CHECK(dnnl_primitive_destroy(conv->backward_data));
    }
    CHECK(dnnl_memory_destroy(conv->x));
    CHECK(dnnl_memory_destroy(conv->y));
    CHECK(dnnl_memory_destroy(conv->bias));
    CHECK(dnnl_stream_destroy(conv->stream));
    CHECK(dnnl_engine_destroy(conv->engine));
    free(conv);
}

/* oneDNN's memories know no const; which argument is an input is the primitive's affair. */
static void point(dnnl_memory_t memory, const float *array) {
    CHECK(dnnl_memory_set_data_handle(memory, (void *)(size_t)array));
}

static void run(struct conv *conv, dnnl_primitive_t primitive, const dnnl_exec_arg_t *arguments, int count) {
    CHECK(dnnl_primitive_execute(primitive, conv->stream, count, arguments));
    CHECK(dnnl_stream_wait(conv->stream));
}

static void convert(struct conv *conv, struct converter *converter, const float *plain, int packs) {
    point(converter->plain, plain);
    dnnl_exec_arg_t arguments[] = {{DNNL_ARG_FROM, packs ? converter->plain : converter->packed},
                                   {DNNL_ARG_TO, packs ? converter->packed : converter->plain}};
    run(conv, converter->copy, arguments, 2);
}

void conv_forward(struct conv *conv, const float *x, const float *weight, const float *bias, float *y) {
    convert(conv, &conv->weight_forward, weight, 1);
    point(conv->x, x);
    point(conv->bias, bias);
    point(conv->y, y);
    dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, conv->x},
                                   {DNNL_ARG_WEIGHTS, conv->weight_forward.packed},
                                   {DNNL_ARG_BIAS, conv->bias},
                                   {DNNL_ARG_DST, conv->y}};
    run(conv, conv->forward, arguments, 4);
}

void conv_backward_weights(struct conv *conv, const float *x, const float *dy, float *dweight, float *dbias) {
    point(conv->x, x);
    point(conv->bias, dbias);
    point(conv->y, dy);
    dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, conv->x},
                                   {DNNL_ARG_DIFF_DST, conv->y},
                                   {DNNL_ARG_DIFF_WEIGHTS, conv->dweight.packed},
                                   {DNNL_ARG_DIFF_BIAS, conv->bias}};
    run(conv, conv->backward_weights, arguments, 4);
    convert(conv, &conv->dweight, dweight, 0);
}

void conv_backward_data(struct conv *conv, const float *dy, const float *weight, float *dx) {
    convert(conv, &conv->weight_backward, weight, 1);
    point(conv->x, dx);
    point(conv->y, dy);
    dnnl_exec_arg_t arguments[] = {
        {DNNL_ARG_DIFF_SRC, conv->x}, {DNNL_ARG_WEIGHTS, conv->weight_backward.packed}, {DNNL_ARG_DIFF_DST, conv->y}};
    run(conv, conv->backward_data, arguments, 3);
}

/* The kernels of batch normalisation, as kernels_template.h, whose head says what CODE, KERNEL, PART, FIRST and STEP
 * are. No thread waits for another one: what the next kernel needs, this one has finished. Each sum has one order of
 * additions, whatever the GPU.
 *
 * x, y and gradients are [images, channels, plane]. A sum over a channel's values is made of slices: slice s has the
 * values s, s + slices, ... of images * plane. `in` and `out` of fold are [slices, width] and [groups, width], where
 * width is two sums a channel: first all of one kind, then all of the other. kept: mean - centre of each channel, then
 * 1 / sqrt(variance + eps) of each, then the number of values. lines: centre, scale, shift and slope of each channel,
 * as struct syncbn_line of train/norm/syncbn_math.h. The arithmetic is that of train/norm/syncbn.c.
 *
 * Pointers that may be NULL: centre (0), values, weight (1), bias (0), running_mean, tracked, both gradients. */

#ifndef CODE /* nobody includes it */
#define CODE(...)
#endif

/* NOLINTBEGIN(readability-function-size): the parameters of a kernel are all that it knows */

CODE(
    /* Sums of a, and of a * (b - centre). values: where to write how many there are. */
    KERNEL void muster_norm_sums(double *out, double *values, const float *a, const float *b, const float *centre,
                                 unsigned long long images, unsigned long long channels, unsigned long long plane,
                                 unsigned long long slices) {
        for (unsigned long long i = FIRST; i < channels * slices; i += STEP) {
            unsigned long long channel = plane > 1 ? i / slices : i % channels; /* neighbours read neighbours */
            unsigned long long slice = plane > 1 ? i % slices : i / channels;
            unsigned long long image = plane > 0 ? slice / plane : images;
            unsigned long long at = plane > 0 ? slice % plane : 0;
            unsigned long long images_on = plane > 0 ? slices / plane : 0;
            unsigned long long on = plane > 0 ? slices % plane : 0;
            double middle = centre ? (double)centre[channel] : 0;
            double sum = 0;
            double product = 0;
            while (image < images) {
                unsigned long long place = (image * channels + channel) * plane + at;
                double value = (double)a[place];
                sum += value;
                product += value * ((double)b[place] - middle);
                at += on;
                image += images_on + (at >= plane ? 1 : 0);
                at -= at >= plane ? plane : 0;
            }
            out[slice * 2 * channels + channel] = sum;
            out[slice * 2 * channels + channels + channel] = product;
            if (i == 0 && values) {
                *values = (double)images * (double)plane;
            }
        }
    })

CODE(KERNEL void muster_norm_fold(double *out, const double *in, unsigned long long width, unsigned long long slices,
                                  unsigned long long groups) {
    for (unsigned long long i = FIRST; i < width * groups; i += STEP) {
        double sum = 0;
        for (unsigned long long slice = i / width; slice < slices; slice += groups) {
            sum += in[slice * width + i % width];
        }
        out[i] = sum;
    }
})

CODE(KERNEL void muster_norm_count(long long *tracked, unsigned long long count) {
    for (unsigned long long i = FIRST; i < count; i += STEP) {
        tracked[i] += 1;
    }
})

/* sums: of x and of x * x, and the number of values, of all ranks. tracked: this batch included. */
CODE(KERNEL void muster_norm_statistics(const double *sums, double *kept, float *centre, float *lines,
                                        const float *weight, const float *bias, float *running_mean,
                                        float *running_variance, const long long *tracked, unsigned long long channels,
                                        double eps, double momentum) {
    double count = sums[2 * channels];
    double part = momentum < 0 && tracked ? 1 / (double)*tracked : momentum;
    for (unsigned long long c = FIRST; c < channels; c += STEP) {
        double mean = sums[c] / count;
        double variance = sums[channels + c] / count - mean * mean;
        variance = variance > 0 ? variance : 0;
        float middle = (float)mean;
        double rest = mean - (double)middle;
        double deviation = 1 / sqrt(variance + eps);
        double scale = deviation * (weight ? (double)weight[c] : 1);
        centre[c] = middle;
        kept[c] = rest;
        kept[channels + c] = deviation;
        lines[4 * c] = middle;
        lines[4 * c + 1] = (float)scale;
        lines[4 * c + 2] = (float)((bias ? (double)bias[c] : 0) - rest * scale);
        if (running_mean) {
            double unbiased = variance * (count / (count - 1));
            running_mean[c] = (float)((1 - part) * (double)running_mean[c] + part * mean);
            running_variance[c] = (float)((1 - part) * (double)running_variance[c] + part * unbiased);
        }
        if (c == 0) {
            kept[2 * channels] = count;
        }
    }
})

CODE(KERNEL void muster_norm_evaluation(float *lines, const float *running_mean, const float *running_variance,
                                        const float *weight, const float *bias, unsigned long long channels,
                                        double eps) {
    for (unsigned long long c = FIRST; c < channels; c += STEP) {
        double scale = (weight ? (double)weight[c] : 1) / sqrt((double)running_variance[c] + eps);
        lines[4 * c] = running_mean[c];
        lines[4 * c + 1] = (float)scale;
        lines[4 * c + 2] = bias ? bias[c] : 0;
    }
})

/* sums: of dy and of dy * (x - centre), of this rank; afterwards of dy * (x - mean). */
CODE(KERNEL void muster_norm_gradients(double *sums, const double *kept, float *weight_gradient, float *bias_gradient,
                                       unsigned long long channels) {
    for (unsigned long long c = FIRST; c < channels; c += STEP) {
        double product = sums[channels + c] - sums[c] * kept[c];
        sums[channels + c] = product;
        if (weight_gradient) {
            weight_gradient[c] = (float)(product * kept[channels + c]);
        }
        if (bias_gradient) {
            bias_gradient[c] = (float)sums[c];
        }
    }
})

/* sums: as gradients leaves them, of all ranks. */
CODE(KERNEL void muster_norm_slopes(float *lines, const double *sums, const double *kept, const float *centre,
                                    const float *weight, unsigned long long channels) {
    double count = kept[2 * channels];
    for (unsigned long long c = FIRST; c < channels; c += STEP) {
        double deviation = kept[channels + c];
        double mean = sums[c] / count;
        double slope = sums[channels + c] / count * deviation * deviation;
        lines[4 * c] = centre[c];
        lines[4 * c + 1] = (float)(deviation * (weight ? (double)weight[c] : 1));
        lines[4 * c + 2] = (float)(mean - kept[c] * slope);
        lines[4 * c + 3] = (float)slope;
    }
})

/* Divisions of 32 bits are several times as fast. */
CODE(
    PART unsigned long long channel_of(unsigned long long i, unsigned long long count, unsigned long long channels,
                                       unsigned long long plane) {
        return count <= 0xffffffff ? (unsigned)i / (unsigned)plane % (unsigned)channels : i / plane % channels;
    }

    KERNEL void muster_norm_apply(float *y, const float *x, const float *lines, unsigned long long count,
                                  unsigned long long channels, unsigned long long plane) {
        for (unsigned long long i = FIRST; i < count; i += STEP) {
            const float *line = lines + 4 * channel_of(i, count, channels, plane);
            y[i] = (x[i] - line[0]) * line[1] + line[2];
        }
    }

    KERNEL void muster_norm_apply_backward(float *dx, const float *x, const float *dy, const float *lines,
                                           unsigned long long count, unsigned long long channels,
                                           unsigned long long plane) {
        for (unsigned long long i = FIRST; i < count; i += STEP) {
            const float *line = lines + 4 * channel_of(i, count, channels, plane);
            dx[i] = (dy[i] - line[2] - (x[i] - line[0]) * line[3]) * line[1];
        }
    })

/* NOLINTEND(readability-function-size) */

/* See product.h. The only file that knows whose products they are. */
#include "product.h"

#include <stddef.h>
#include <stdlib.h>

#include "fail.h"

#ifdef EXAMPLE_ONEDNN

#include <oneapi/dnnl/dnnl.h>

extern void omp_set_num_threads(int count); /* omp.h belongs to a compiler, not to oneDNN */

static void multiply(struct product shape, struct factor a, struct factor b, float *c, int stride) {
    dnnl_status_t status =
        dnnl_sgemm(a.is_transposed ? 'T' : 'N', b.is_transposed ? 'T' : 'N', shape.rows, shape.columns, shape.inner,
                   shape.scale, a.values, a.stride, b.values, b.stride, shape.add ? 1 : 0, c, stride);
    if (status != dnnl_success) {
        fail("oneDNN: a product of %d x %d x %d: status %d", shape.rows, shape.inner, shape.columns, (int)status);
    }
}

/* Gradients of weights (a^T b) have a long inner dimension. oneDNN 2.7 is up to a sixth faster with a part of it at a
 * time: 7.3 and 6.3 ms for 1,536 x 1,024 x 384. */
void product(struct product shape, struct factor a, struct factor b, float *c, int stride) {
    enum { PART = 512 };
    bool in_parts = a.is_transposed && !b.is_transposed;
    for (int left = shape.inner; left > 0; left -= shape.inner) {
        shape.inner = in_parts && left > PART ? PART : left;
        multiply(shape, a, b, c, stride);
        shape.add = true;
        a.values += (size_t)shape.inner * (size_t)a.stride;
        b.values += (size_t)shape.inner * (size_t)b.stride;
    }
}

void product_set_threads(bool always_one) {
    if (always_one || getenv("OMP_NUM_THREADS") == NULL) {
        omp_set_num_threads(1);
    }
}

#else

#include <cblas.h>

void product(struct product shape, struct factor a, struct factor b, float *c, int stride) {
    cblas_sgemm(CblasRowMajor, a.is_transposed ? CblasTrans : CblasNoTrans, b.is_transposed ? CblasTrans : CblasNoTrans,
                shape.rows, shape.columns, shape.inner, shape.scale, a.values, a.stride, b.values, b.stride,
                shape.add ? 1 : 0, c, stride);
}

void product_set_threads(bool always_one) {
    if (always_one || (getenv("OPENBLAS_NUM_THREADS") == NULL && getenv("OMP_NUM_THREADS") == NULL)) {
        openblas_set_num_threads(1);
    }
}

#endif

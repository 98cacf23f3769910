#include "kernels/update.h"

#include "base/floats.h"

#include <math.h>

/* NaN stays NaN, as in MXNet. */
#define CLIP(x, most) ((x) > (most) ? (most) : (x) < -(most) ? -(most) : (x))

/* Declares the rates as local variables, so that loops keep them in registers. Without clipping,
 * the limit is infinite and lr * rescale is one factor, as in MXNet's SGD. */
#define RATES(u)                                                                                   \
    const float lr = (u)->rates[HVD_LEARNING_RATE], wd = (u)->rates[HVD_WEIGHT_DECAY],             \
                mu = (u)->rates[HVD_MOMENTUM], rescale = (u)->rates[HVD_RESCALE],                  \
                limit = (u)->rates[HVD_CLIP], most = limit < 0 ? INFINITY : limit;                 \
    float *restrict w = (u)->weights + at

#define SGD_RATES(u)                                                                               \
    RATES(u);                                                                                      \
    const float decay = lr * wd, before = limit < 0 ? 1 : rescale,                                 \
                after = limit < 0 ? lr * rescale : lr

SIMD static void sgd(const hvd_update *u, const float *restrict gradient, size_t at, size_t n) {
    SGD_RATES(u);
    (void)mu;
    for (size_t i = 0; i < n; i++) {
        float g = before * gradient[i];
        w[i] = w[i] + (-(decay * w[i]) - after * CLIP(g, most));
    }
}

SIMD static void sgd_momentum(const hvd_update *u, const float *restrict gradient, size_t at,
                              size_t n) {
    SGD_RATES(u);
    float *restrict v = u->states[0] + at;
    for (size_t i = 0; i < n; i++) {
        float g = before * gradient[i];
        v[i] = mu * v[i] - decay * w[i] - after * CLIP(g, most);
        w[i] = w[i] + v[i];
    }
}

SIMD static void nag(const hvd_update *u, const float *restrict gradient, size_t at, size_t n) {
    RATES(u);
    float *restrict v = u->states[0] + at;
    for (size_t i = 0; i < n; i++) {
        float g = rescale * gradient[i], h = CLIP(g, most), old = mu * v[i];
        w[i] = w[i] - old + (mu + 1) * (old - lr * (h + wd * w[i]));
        v[i] = old - lr * (h + wd * w[i]);
    }
}

SIMD static void adam(const hvd_update *u, const float *restrict gradient, size_t at, size_t n) {
    RATES(u);
    const float beta2 = u->rates[HVD_BETA2], epsilon = u->rates[HVD_EPSILON];
    float *restrict m = u->states[0] + at, *restrict v = u->states[1] + at;
    for (size_t i = 0; i < n; i++) {
        float g = gradient[i] * rescale + w[i] * wd, h = CLIP(g, most);
        m[i] = mu * m[i] + (1 - mu) * h;
        v[i] = beta2 * v[i] + (1 - beta2) * h * h;
        w[i] = w[i] - lr * m[i] / (sqrtf(v[i]) + epsilon);
    }
}

static const struct row {
    int states;
    void (*apply)(const hvd_update *u, const float *gradient, size_t at, size_t n);
} ROWS[HVD_RULES] = {
    [HVD_SGD] = {0, sgd},
    [HVD_SGD_MOMENTUM] = {1, sgd_momentum},
    [HVD_NAG] = {1, nag},
    [HVD_ADAM] = {2, adam},
};

void update_apply(const hvd_update *u, const float *gradient, size_t at, size_t n) {
    ROWS[u->rule].apply(u, gradient, at, n);
}

int update_states(int rule) { return ROWS[rule].states; }

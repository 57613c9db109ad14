/* What a step computes between its matrix products, one pass over memory each.

   Compiled for one model on one machine by build.py, which defines HEADS, KV_HEADS and HEAD_SIZE (a
   multiple of LANES). All numbers are float32. A token's result depends on its own row and on the keys and
   values it may see, never on how many other tokens run: the same token gives the same bits in any batch. A
   loop takes several threads only from a size at which they gain more than waking them costs. */

#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
int has_threads(void) { return 1; }
#else
static int omp_get_thread_num(void) { return 0; }
int has_threads(void) { return 0; }
#endif

#define LANES 16 /* numbers a vector instruction takes; where it takes fewer, the compiler uses several */
#define GROUP (HEADS / KV_HEADS)
#define ROW ((HEADS + 2 * KV_HEADS) * HEAD_SIZE) /* a token's queries, keys and values */
#define TILE (LANES * HEAD_SIZE)                 /* the keys, or the values, of LANES tokens of one head */
#define BOTH (2 * TILE)                          /* the keys, then the values */
#define STRIDE (KV_HEADS * BOTH)                 /* from a tile to the next tokens' */
#define HALF (HEAD_SIZE / 2)
#define PARTS (HEAD_SIZE / LANES)
#define LEAST -87.0f /* e to this is nearly the smallest float32 of full precision */

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t mask __attribute__((vector_size(4 * LANES)));

static inline vec larger(vec a, vec b) {
    mask first = a > b;
    return (vec)(((mask)a & first) | ((mask)b & ~first));
}

/* e to the x, x up to 88, to the last bit or two, and NaN of NaN: 2^n times a polynomial. The library's
   function would be called number by number. */
static inline float exponential(float x) {
    x = x < LEAST ? LEAST : x;
    float n = __builtin_rintf(x * 1.44269504f);
    float r = x - n * 0.693145752f - n * 1.42860677e-6f; /* x - n ln 2, ln 2 in two parts */
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720, p = p * r + 1.0f / 120, p = p * r + 1.0f / 24, p = p * r + 1.0f / 6;
    p = p * r + 0.5f, p = p * r + 1.0f, p = p * r + 1.0f;
    float power = n + 12582912.0f; /* 3 * 2^22: n in the lowest bits, where C says what becomes of a NaN, too */
    uint32_t bits;
    memcpy(&bits, &power, sizeof bits);
    bits = (bits + 127) << 23; /* a float's exponent: 2^n */
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

/* x += delta (unless NULL); y = x over its root mean square, times gain. All [n, width]. */
void add_rms_norm(float *restrict x, const float *restrict delta, const float *restrict gain, float *restrict y,
              int64_t n, int64_t width, float eps, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (n > 64)
    for (int64_t i = 0; i < n; i++) {
        float *a = x + i * width, *b = y + i * width, sum = 0;
        if (delta)
            for (int64_t j = 0; j < width; j++) a[j] += delta[i * width + j];
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < width; j++) sum += a[j] * a[j];
        float scale = 1.0f / sqrtf(sum / width + eps);
        for (int64_t j = 0; j < width; j++) b[j] = a[j] * scale * gain[j];
    }
}

/* y = SiLU(gate) * up. both: [n, 2 size], gate then up; y: [n, size]. */
void silu_and_mul(const float *restrict both, float *restrict y, int64_t n, int64_t size, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (n > 16)
    for (int64_t i = 0; i < n; i++) {
        const float *g = both + i * 2 * size, *up = g + size;
        for (int64_t j = 0; j < size; j++) {
            float x = g[j] < LEAST ? LEAST : g[j]; /* either gives less than 1e-35 */
            y[i * size + j] = x / (1.0f + exponential(-x)) * up[j];
        }
    }
}

/* One head's pairs (d, d + HALF) rotated by its position's angles, times scale. The tables are rotary.py's:
   the sine carries the sign, minus in the first half. */
static inline void rotate(const float *restrict x, const float *restrict cos, const float *restrict sin,
                        float scale, float *restrict y) {
    for (int d = 0; d < HALF; d++) {
        y[d] = (x[d] * cos[d] + x[d + HALF] * sin[d]) * scale;
        y[d + HALF] = (x[d + HALF] * cos[d + HALF] + x[d] * sin[d + HALF]) * scale;
    }
}

/* The heads of one group for one token, over the `seen` tokens that `held` has: [tiles, KV_HEADS, BOTH], of
   which this group's head is the first. Scores, softmax (its largest first, then the exponentials), values.
   Keys lie across (LANES tokens' first number, then their second), so that as many scores grow at once; values
   lie along. The next tile, at the end the first of `next`, is fetched bit by bit while one is computed: a
   batch's keys and values are too many for the caches. scores: room for [GROUP, tiles, LANES]. */
static void attend(const float *restrict queries, const float *restrict cos, const float *restrict sin,
                   const float *restrict held, const float *next, int64_t seen, float *restrict scores,
                   float *restrict y) {
    const int64_t tiles = (seen + LANES - 1) / LANES, length = tiles * LANES;
    float q[GROUP][HEAD_SIZE], share[GROUP];
    vec top[GROUP];
    for (int g = 0; g < GROUP; g++) {
        rotate(queries + g * HEAD_SIZE, cos, sin, 1.0f / sqrtf(HEAD_SIZE), q[g]);
        top[g] = (vec){} - INFINITY;
    }
    for (int64_t b = 0; b < tiles; b++) {
        const float *soon = b + 1 < tiles ? held + (b + 1) * STRIDE : next;
        const vec *k = (const vec *)(held + b * STRIDE);
        vec even[GROUP] = {}, odd[GROUP] = {}; /* two sums a head: neither waits for the other */
        for (int d = 0; d < HEAD_SIZE; d += 2) {
            for (int j = 0; j < 4; j++) __builtin_prefetch(soon + (2 * d + j) * LANES); /* in the end, all BOTH */
            for (int g = 0; g < GROUP; g++) even[g] += q[g][d] * k[d], odd[g] += q[g][d + 1] * k[d + 1];
        }
        for (int g = 0; g < GROUP; g++) {
            vec sum = even[g] + odd[g];
            for (int64_t j = seen - b * LANES; j < LANES; j++) sum[j] = -INFINITY; /* nobody's, in the last tile */
            top[g] = larger(sum, top[g]);
            memcpy(scores + g * length + b * LANES, &sum, sizeof sum);
        }
    }
    for (int g = 0; g < GROUP; g++) {
        float *s = scores + g * length, most = top[g][0], sum = 0;
        for (int j = 1; j < LANES; j++) most = top[g][j] > most ? top[g][j] : most;
        for (int64_t j = 0; j < length; j++) s[j] = exponential(s[j] - most);
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < length; j++) sum += s[j];
        share[g] = 1.0f / sum;
    }
    vec sum[GROUP][PARTS] = {};
    for (int64_t j = 0; j < seen; j++) {
        const vec *v = (const vec *)(held + j / LANES * STRIDE + TILE + j % LANES * HEAD_SIZE);
        for (int g = 0; g < GROUP; g++)
            for (int part = 0; part < PARTS; part++) sum[g][part] += scores[g * length + j] * v[part];
    }
    for (int g = 0; g < GROUP; g++)
        for (int part = 0; part < PARTS; part++) {
            vec out = sum[g][part] * share[g];
            memcpy(y + g * HEAD_SIZE + part * LANES, &out, sizeof out);
        }
}

/* One layer's attention: rotate and store every token's keys, store its values, then attend for the tokens
   asked for (all n, if asked is NULL): the last layer needs only those that are sampled.

   qkv: [n, ROW]; cos, sin: [context, HEAD_SIZE]; position, slot: [n]; held: [slots, tiles, KV_HEADS, BOTH], 64
   bytes aligned; scores: [threads, GROUP, tiles * LANES]; asked: [m]; y: [m, HEADS * HEAD_SIZE]. */
void attention(const float *restrict qkv, const float *restrict cos, const float *restrict sin,
               const int64_t *restrict position, const int64_t *restrict slot, float *held, float *scores,
               const int64_t *restrict asked, float *restrict y, int64_t n, int64_t m, int64_t tiles,
               int threads) {
#pragma omp parallel num_threads(threads) if (n > 4)
    {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < KV_HEADS; j++) {
                const int64_t at = position[i], lane = at % LANES;
                const float *k = qkv + i * ROW + (HEADS + j) * HEAD_SIZE, *v = k + KV_HEADS * HEAD_SIZE;
                float *tile = held + (slot[i] * tiles + at / LANES) * STRIDE + j * BOTH;
                float rotated[HEAD_SIZE];
                rotate(k, cos + at * HEAD_SIZE, sin + at * HEAD_SIZE, 1.0f, rotated);
                for (int d = 0; d < HEAD_SIZE; d++) tile[d * LANES + lane] = rotated[d];
                memcpy(tile + TILE + lane * HEAD_SIZE, v, sizeof rotated);
            }
#pragma omp for schedule(dynamic, 16)
        for (int64_t group = 0; group < m * KV_HEADS; group++) {
            const int64_t next = group + 1 < m * KV_HEADS ? group + 1 : group;
            const int64_t i = asked ? asked[group / KV_HEADS] : group / KV_HEADS, at = position[i];
            const int64_t after = asked ? asked[next / KV_HEADS] : next / KV_HEADS;
            attend(qkv + i * ROW + group % KV_HEADS * GROUP * HEAD_SIZE, cos + at * HEAD_SIZE,
                   sin + at * HEAD_SIZE, held + slot[i] * tiles * STRIDE + group % KV_HEADS * BOTH,
                   held + slot[after] * tiles * STRIDE + next % KV_HEADS * BOTH, at + 1,
                   scores + omp_get_thread_num() * GROUP * tiles * LANES, y + group * GROUP * HEAD_SIZE);
        }
    }
}

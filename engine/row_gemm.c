/* Float32 matrix products of a few rows, as MLX's CPU backend asks for them through cblas_sgemm.
 *
 * Decoding multiplies one row (plain) or a block of rows (verify) by every weight matrix, and is bound by
 * reading the weights: here they are read once, whatever the number of rows, and fetched ahead of their use.
 * Each output is summed in an order that depends on the length of its sum alone, not on how many rows come
 * with it or on its place among them, so a row's bytes are the same alone and in a block. Zeros appended to
 * a sum change nothing. Products of other kinds go on to the BLAS given to row_gemm_init.
 */
#include <stddef.h>
#include <string.h>

enum { ROW_MAJOR = 101, NO_TRANSPOSE = 111, TRANSPOSE = 112 };
enum {
    MAX_ROWS = 8,
    LANES = 8,
    /* Columns of the result that a group of rows works through before the next group reads them from cache. */
    PANEL = 8,
    /* Rows of one group: as many as leave registers for the weights. */
    GROUP = 4,
    /* Widest result of a product with an untransposed b, which is read once per GROUP rows: attention's. */
    MAX_STRIP = 512,
    /* Multiplications below which waking a second thread costs more than it saves. */
    WORTH_THREADS = 2500000,
    /* Parts per thread: one whose core is taken by something else leaves its parts to the others. */
    PARTS_PER_THREAD = 4,
};

typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef void (*sgemm)(int, int, int, int, int, int, float, const float *, int, const float *, int, float, float *,
                      int);
typedef struct {
    int rows, columns, depth, lda, ldb, ldc;
    float alpha, beta;
    const float *a, *b;
    float *c;
} product;

#define INLINE static inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 8")

static sgemm next_sgemm;
static int threads = 1;

void row_gemm_init(sgemm next, int thread_count)
{
    next_sgemm = next;
    threads = thread_count;
}

INLINE lanes load(const float *p, int count)
{
    lanes v = {0};
    if (count == LANES)
        return *(const lanes *)p;
    memcpy(&v, p, (size_t)count * sizeof *p);
    return v;
}

INLINE float sum(lanes v)
{
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

INLINE void store(const product *p, int row, int column, float value)
{
    float *out = p->c + (size_t)row * p->ldc + column;
    *out = p->beta == 0 ? p->alpha * value : p->alpha * value + p->beta * *out;
}

/* Adds the products of `count` places of each row of a and of b, from place k on. */
INLINE void add_products(const product *p, const float *a, const float *b, int k, const int count,
                         lanes acc[GROUP][PANEL], const int rows, const int columns)
{
    lanes weights[PANEL];
    UNROLLED for (int j = 0; j < columns; j++) {
        const float *at = b + (size_t)j * p->ldb + k;
        __builtin_prefetch(at + (size_t)PANEL * p->ldb);
        weights[j] = load(at, count);
    }
    UNROLLED for (int i = 0; i < rows; i++) {
        const lanes x = load(a + (size_t)i * p->lda + k, count);
        UNROLLED for (int j = 0; j < columns; j++)
            acc[i][j] += x * weights[j];
    }
}

/* `rows` x `columns` outputs at (row, column) of c = a b^T, one accumulator each. */
INLINE void dots(const product *p, int row, int column, const int rows, const int columns)
{
    const float *a = p->a + (size_t)row * p->lda, *b = p->b + (size_t)column * p->ldb;
    lanes acc[GROUP][PANEL] = {{{0}}};
    int k = 0;
    for (; k + LANES <= p->depth; k += LANES)
        add_products(p, a, b, k, LANES, acc, rows, columns);
    if (k < p->depth)
        add_products(p, a, b, k, p->depth - k, acc, rows, columns);
    UNROLLED for (int i = 0; i < rows; i++)
        UNROLLED for (int j = 0; j < columns; j++)
            store(p, row + i, column + j, sum(acc[i][j]));
}

INLINE void panel_of_dots(const product *p, int row, int column, int end, const int rows, const int columns)
{
    for (; column + columns <= end; column += columns)
        dots(p, row, column, rows, columns);
    for (; column < end; column++)
        dots(p, row, column, rows, 1);
}

/* Columns [first, last) of c = a b^T. */
static void multiply_transposed(const product *p, int first, int last)
{
    for (int column = first; column < last; column += PANEL) {
        const int end = last - column < PANEL ? last : column + PANEL;
        for (int row = 0; row < p->rows; row += GROUP) {
            switch (p->rows - row) {
            case 1: panel_of_dots(p, row, column, end, 1, 8); break;
            case 2: panel_of_dots(p, row, column, end, 2, 4); break;
            case 3: panel_of_dots(p, row, column, end, 3, 4); break;
            default: panel_of_dots(p, row, column, end, 4, 2);
            }
        }
    }
}

/* `rows` x `columns` outputs at (row, column) of c = a b, `columns` at most LANES, summed along b's rows. */
INLINE void strip(const product *p, int row, int column, const int rows, const int columns)
{
    lanes acc[GROUP] = {{0}};
    for (int k = 0; k < p->depth; k++) {
        const lanes values = load(p->b + (size_t)k * p->ldb + column, columns);
        UNROLLED for (int i = 0; i < rows; i++)
            acc[i] += p->a[(size_t)(row + i) * p->lda + k] * values;
    }
    UNROLLED for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++)
            store(p, row + i, column + j, acc[i][j]);
}

INLINE void strips(const product *p, int row, const int rows)
{
    int column = 0;
    for (; column + LANES <= p->columns; column += LANES)
        strip(p, row, column, rows, LANES);
    if (column < p->columns)
        strip(p, row, column, rows, p->columns - column);
}

/* c = a b. */
static void multiply(const product *p)
{
    for (int row = 0; row < p->rows; row += GROUP) {
        switch (p->rows - row) {
        case 1: strips(p, row, 1); break;
        case 2: strips(p, row, 2); break;
        case 3: strips(p, row, 3); break;
        default: strips(p, row, 4);
        }
    }
}

void cblas_sgemm(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float *a,
                 int lda, const float *b, int ldb, float beta, float *c, int ldc)
{
    const product p = {m, n, k, lda, ldb, ldc, alpha, beta, a, b, c};
    const int is_ours = order == ROW_MAJOR && transpose_a == NO_TRANSPOSE && m <= MAX_ROWS;

    if (is_ours && transpose_b == NO_TRANSPOSE && n <= MAX_STRIP) {
        multiply(&p);
    } else if (is_ours && transpose_b == TRANSPOSE) {
        const int panels = (n + PANEL - 1) / PANEL;
        const int parts = (double)m * n * k < WORTH_THREADS ? 1 : threads * PARTS_PER_THREAD;
#pragma omp parallel for num_threads(threads) if (parts > 1) schedule(dynamic)
        for (int part = 0; part < parts; part++) {
            const int first = panels * part / parts * PANEL, last = panels * (part + 1) / parts * PANEL;
            multiply_transposed(&p, first, last < n ? last : n);
        }
    } else {
        next_sgemm(order, transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    }
}

/* Float32 matrix products of a few rows, as MLX's CPU backend asks for them through cblas_sgemm.
 *
 * Decoding multiplies one row (plain) or a block of rows (verify) by every weight matrix, and is bound by
 * reading the weights: here they are read once, whatever the number of rows, and fetched ahead of their use.
 * Each output is summed in an order that depends on the length of its sum alone, not on how many rows come
 * with it or on its place among them, so a row's bytes are the same alone and in a block. Zeros appended to
 * a sum change nothing. Products of other kinds go on to the BLAS given to row_gemm_init.
 *
 * A matrix made known with row_gemm_narrow is read from a copy in bytes instead: a quarter of the traffic,
 * for weights that need not be exact, as a drafter's.
 */
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { ROW_MAJOR = 101, NO_TRANSPOSE = 111, TRANSPOSE = 112 };
enum {
    MAX_ROWS = 8,
    LANES = 8,
    /* Columns of the result, which are rows of a transposed b, between a use of weights and a fetch. */
    PANEL = 8,
    /* Widest result of a product with an untransposed b, whose columns are strided: attention's. */
    MAX_STRIP = 512,
    /* Multiplications below which waking a second thread costs more than it saves. */
    WORTH_THREADS = 1500000,
    /* Parts per thread: one whose core is taken by something else leaves its parts to the others. */
    PARTS_PER_THREAD = 4,
    /* Places of a row that one vector of a narrow copy holds. */
    GROUP = 4 * LANES,
    /* Matrices with a narrow copy, at most; a head of a few layers has a few dozen. */
    MAX_NARROW = 256,
};

typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t bytes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef void (*sgemm)(int, int, int, int, int, int, float, const float *, int, const float *, int, float, float *,
                      int);
typedef struct {
    int rows, columns, depth, lda, ldb, ldc;
    float alpha, beta;
    const float *a, *b;
    float *c;
} product;
/* A copy of b [columns, depth]. Bits 8t to 8t + 7 of lane l of vector g of row j are a whole number from -127
 * to 127, which scales[j] times is about b[j][GROUP g + LANES t + l]. `b` is written last, since a product may
 * be looking for it. */
typedef struct {
    _Atomic(const float *) b;
    int columns, depth;
    const bytes *rows;
    const float *scales;
} narrow_copy;

#define INLINE static inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 8")

static sgemm next_sgemm;
static int threads = 1;
static narrow_copy copies[MAX_NARROW];
/* How many of them have ever been in use. */
static atomic_int num_copies;

void row_gemm_init(sgemm next, int thread_count)
{
    next_sgemm = next;
    threads = thread_count;
}

/* From now on products of a few rows by b^T read this copy of b. Returns 0 when there is no room for it. */
int row_gemm_narrow(const float *b, int columns, int depth, const int32_t *rows, const float *scales)
{
    for (narrow_copy *copy = copies; copy < copies + MAX_NARROW; copy++) {
        if (copy->b != NULL)
            continue;
        copy->columns = columns;
        copy->depth = depth;
        copy->rows = (const bytes *)rows;
        copy->scales = scales;
        copy->b = b;
        if (copy - copies >= num_copies)
            num_copies = (int)(copy - copies) + 1;
        return 1;
    }
    return 0;
}

/* Products that start from now on read b itself. */
void row_gemm_forget(const float *b)
{
    for (narrow_copy *copy = copies; copy < copies + num_copies; copy++)
        if (copy->b == b)
            copy->b = NULL;
}

static const narrow_copy *find_narrow(const product *p)
{
    for (const narrow_copy *copy = copies; copy < copies + num_copies; copy++)
        if (copy->b == p->b && copy->columns == p->columns && copy->depth == p->depth && p->ldb == p->depth)
            return copy;
    return NULL;
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

/* Adds the products of `count` places of the rows of a and `columns` rows of b, from place k on. */
INLINE void add_products(const product *p, const float *b, int k, const int count,
                         lanes acc[MAX_ROWS][PANEL], const int rows, const int columns)
{
    lanes weights[PANEL];
    UNROLLED for (int j = 0; j < columns; j++) {
        const float *at = b + (size_t)j * p->ldb + k;
        __builtin_prefetch(at + (size_t)PANEL * p->ldb);
        weights[j] = load(at, count);
    }
    UNROLLED for (int i = 0; i < rows; i++) {
        const lanes x = load(p->a + (size_t)i * p->lda + k, count);
        UNROLLED for (int j = 0; j < columns; j++)
            acc[i][j] += x * weights[j];
    }
}

/* `rows` x `columns` outputs from `column` on of c = a b^T, one accumulator each. */
INLINE void dots(const product *p, int column, const int rows, const int columns)
{
    const float *b = p->b + (size_t)column * p->ldb;
    lanes acc[MAX_ROWS][PANEL] = {{{0}}};
    int k = 0;
    for (; k + LANES <= p->depth; k += LANES)
        add_products(p, b, k, LANES, acc, rows, columns);
    if (k < p->depth)
        add_products(p, b, k, p->depth - k, acc, rows, columns);
    UNROLLED for (int i = 0; i < rows; i++)
        UNROLLED for (int j = 0; j < columns; j++)
            store(p, i, column + j, sum(acc[i][j]));
}

/* Adds the products of places [k, k + GROUP) of the rows of a, or those up to depth, and of a narrow copy. */
INLINE void add_narrow_products(const product *p, const bytes *row, int stride, int k, lanes acc[MAX_ROWS][PANEL],
                                const int rows, const int columns)
{
    bytes packed[PANEL];
    UNROLLED for (int j = 0; j < columns; j++) {
        const bytes *at = row + (size_t)j * stride;
        __builtin_prefetch(at + (size_t)PANEL * stride);
        packed[j] = *at;
    }
    UNROLLED for (int t = 0; t < 4; t++) {
        const int left = p->depth - k - t * LANES;
        if (left <= 0)
            break;
        lanes weights[PANEL];
        UNROLLED for (int j = 0; j < columns; j++)
            weights[j] = __builtin_convertvector(packed[j] << (24 - 8 * t) >> 24, lanes);
        UNROLLED for (int i = 0; i < rows; i++) {
            const float *from = p->a + (size_t)i * p->lda + k + t * LANES;
            const lanes x = load(from, left < LANES ? left : LANES);
            UNROLLED for (int j = 0; j < columns; j++)
                acc[i][j] += x * weights[j];
        }
    }
}

/* As dots, from a narrow copy of b. */
INLINE void narrow_dots(const product *p, const narrow_copy *copy, int column, const int rows, const int columns)
{
    const int stride = (p->depth + GROUP - 1) / GROUP;
    const bytes *row = copy->rows + (size_t)column * stride;
    lanes acc[MAX_ROWS][PANEL] = {{{0}}};
    for (int g = 0; g < stride; g++)
        add_narrow_products(p, row + g, stride, g * GROUP, acc, rows, columns);
    UNROLLED for (int i = 0; i < rows; i++)
        UNROLLED for (int j = 0; j < columns; j++)
            store(p, i, column + j, copy->scales[column + j] * sum(acc[i][j]));
}

INLINE void row_of_dots(const product *p, int first, int last, const int rows, const int columns)
{
    int column = first;
    for (; column + columns <= last; column += columns)
        dots(p, column, rows, columns);
    for (; column < last; column++)
        dots(p, column, rows, 1);
}

INLINE void row_of_narrow_dots(const product *p, const narrow_copy *copy, int first, int last, const int rows,
                               const int columns)
{
    int column = first;
    for (; column + columns <= last; column += columns)
        narrow_dots(p, copy, column, rows, columns);
    for (; column < last; column++)
        narrow_dots(p, copy, column, rows, 1);
}

/* Columns [first, last) of c = a b^T, as many at once as the registers hold accumulators for. */
static void multiply_transposed(const product *p, int first, int last)
{
    switch (p->rows) {
    case 1: row_of_dots(p, first, last, 1, 8); break;
    case 2: row_of_dots(p, first, last, 2, 4); break;
    case 3: row_of_dots(p, first, last, 3, 4); break;
    case 4: row_of_dots(p, first, last, 4, 2); break;
    case 5: row_of_dots(p, first, last, 5, 2); break;
    case 6: row_of_dots(p, first, last, 6, 2); break;
    case 7: row_of_dots(p, first, last, 7, 1); break;
    default: row_of_dots(p, first, last, MAX_ROWS, 1);
    }
}

/* As multiply_transposed; the packed weights need registers too. */
static void multiply_narrow(const product *p, const narrow_copy *copy, int first, int last)
{
    switch (p->rows) {
    case 1: row_of_narrow_dots(p, copy, first, last, 1, 4); break;
    case 2: row_of_narrow_dots(p, copy, first, last, 2, 4); break;
    case 3: row_of_narrow_dots(p, copy, first, last, 3, 2); break;
    case 4: row_of_narrow_dots(p, copy, first, last, 4, 2); break;
    case 5: row_of_narrow_dots(p, copy, first, last, 5, 2); break;
    case 6: row_of_narrow_dots(p, copy, first, last, 6, 1); break;
    case 7: row_of_narrow_dots(p, copy, first, last, 7, 1); break;
    default: row_of_narrow_dots(p, copy, first, last, MAX_ROWS, 1);
    }
}

/* `rows` x `columns` outputs from `column` on of c = a b, `columns` at most LANES, summed along b's rows. */
INLINE void strip(const product *p, int column, const int rows, const int columns)
{
    lanes acc[MAX_ROWS] = {{0}};
    for (int k = 0; k < p->depth; k++) {
        const lanes values = load(p->b + (size_t)k * p->ldb + column, columns);
        UNROLLED for (int i = 0; i < rows; i++)
            acc[i] += p->a[(size_t)i * p->lda + k] * values;
    }
    UNROLLED for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++)
            store(p, i, column + j, acc[i][j]);
}

INLINE void strips(const product *p, const int rows)
{
    int column = 0;
    for (; column + LANES <= p->columns; column += LANES)
        strip(p, column, rows, LANES);
    if (column < p->columns)
        strip(p, column, rows, p->columns - column);
}

/* c = a b. */
static void multiply(const product *p)
{
    switch (p->rows) {
    case 1: strips(p, 1); break;
    case 2: strips(p, 2); break;
    case 3: strips(p, 3); break;
    case 4: strips(p, 4); break;
    case 5: strips(p, 5); break;
    case 6: strips(p, 6); break;
    case 7: strips(p, 7); break;
    default: strips(p, MAX_ROWS);
    }
}

void cblas_sgemm(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float *a,
                 int lda, const float *b, int ldb, float beta, float *c, int ldc)
{
    const product p = {m, n, k, lda, ldb, ldc, alpha, beta, a, b, c};
    const int is_ours = order == ROW_MAJOR && transpose_a == NO_TRANSPOSE && m >= 1 && m <= MAX_ROWS;

    if (is_ours && transpose_b == NO_TRANSPOSE && n <= MAX_STRIP) {
        multiply(&p);
    } else if (is_ours && transpose_b == TRANSPOSE) {
        const narrow_copy *copy = find_narrow(&p);
        const int panels = (n + PANEL - 1) / PANEL;
        const int parts = (double)m * n * k < WORTH_THREADS ? 1 : threads * PARTS_PER_THREAD;
#pragma omp parallel for num_threads(threads) if (parts > 1) schedule(dynamic)
        for (int part = 0; part < parts; part++) {
            const int first = panels * part / parts * PANEL, last = panels * (part + 1) / parts * PANEL;
            if (copy == NULL)
                multiply_transposed(&p, first, last < n ? last : n);
            else
                multiply_narrow(&p, copy, first, last < n ? last : n);
        }
    } else {
        next_sgemm(order, transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    }
}

/* MD5 (RFC 1321), of several messages at once. */
#include "smallfiles.h"

#define LANES 8
typedef uint32_t lanes __attribute__((vector_size(4 * LANES)));

typedef struct {
    message *of; /* NULL: nothing to do */
    const uint8_t *at;
    size_t left;
    int ending;
    uint8_t end[128]; /* the last bytes with the padding */
} lane;

static const uint32_t FIRST[4] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476};
/* floor(abs(sin(i + 1)) * 2**32) */
static const uint32_t SINES[64] = {
    0xd76aa478, 0xe8c7b756, 0x242070db, 0xc1bdceee, 0xf57c0faf, 0x4787c62a, 0xa8304613, 0xfd469501,
    0x698098d8, 0x8b44f7af, 0xffff5bb1, 0x895cd7be, 0x6b901122, 0xfd987193, 0xa679438e, 0x49b40821,
    0xf61e2562, 0xc040b340, 0x265e5a51, 0xe9b6c7aa, 0xd62f105d, 0x02441453, 0xd8a1e681, 0xe7d3fbc8,
    0x21e1cde6, 0xc33707d6, 0xf4d50d87, 0x455a14ed, 0xa9e3e905, 0xfcefa3f8, 0x676f02d9, 0x8d2a4c8a,
    0xfffa3942, 0x8771f681, 0x6d9d6122, 0xfde5380c, 0xa4beea44, 0x4bdecfa9, 0xf6bb4b60, 0xbebfbc70,
    0x289b7ec6, 0xeaa127fa, 0xd4ef3085, 0x04881d05, 0xd9d4d039, 0xe6db99e5, 0x1fa27cf8, 0xc4ac5665,
    0xf4292244, 0x432aff97, 0xab9423a7, 0xfc93a039, 0x655b59c3, 0x8f0ccc92, 0xffeff47d, 0x85845dd1,
    0x6fa87e4f, 0xfe2ce6e0, 0xa3014314, 0x4e0811a1, 0xf7537e82, 0xbd3af235, 0x2ad7d2bb, 0xeb86d391,
};
static const uint8_t SHIFTS[4][4] = {{7, 12, 17, 22}, {5, 9, 14, 20}, {4, 11, 16, 23}, {6, 10, 15, 21}};

#define ROTATED(x, n) ((x) << (n) | (x) >> (32 - (n)))
#define ROUND(choose, word, number)                                                                                    \
    for (int i = 0; i < 16; i++) {                                                                                     \
        int n = SHIFTS[number][i & 3];                                                                                 \
        sum = a + (choose) + words[(word) & 15] + SINES[16 * number + i];                                              \
        a = d, d = c, c = b;                                                                                           \
        b += ROTATED(sum, n);                                                                                          \
    }
#define DEFINE_BLOCK(name, type)                                                                                       \
    static void name(type state[4], const type words[16])                                                             \
    {                                                                                                                  \
        type a = state[0], b = state[1], c = state[2], d = state[3], sum;                                              \
        _Pragma("GCC unroll 16") ROUND(d ^ (b & (c ^ d)), i, 0);                                                       \
        _Pragma("GCC unroll 16") ROUND(c ^ (d & (b ^ c)), 5 * i + 1, 1);                                               \
        _Pragma("GCC unroll 16") ROUND(b ^ c ^ d, 3 * i + 5, 2);                                                       \
        _Pragma("GCC unroll 16") ROUND(c ^ (b | ~d), 7 * i, 3);                                                        \
        state[0] += a, state[1] += b, state[2] += c, state[3] += d;                                                    \
    }
DEFINE_BLOCK(block_of_one, uint32_t)
DEFINE_BLOCK(block_of_lanes, lanes)

static uint32_t word_at(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void put_word(uint8_t *p, uint32_t word)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(word >> 8 * i);
}

static void pad(lane *l)
{
    size_t whole = l->left < 56 ? 64 : 128;
    uint64_t bits = (uint64_t)l->of->size * 8;
    if (l->left)
        memcpy(l->end, l->at, l->left);
    memset(l->end + l->left, 0, whole - l->left);
    l->end[l->left] = 0x80;
    for (int i = 0; i < 8; i++)
        l->end[whole - 8 + (size_t)i] = (uint8_t)(bits >> 8 * i);
    l->at = l->end, l->left = whole, l->ending = 1;
}

/* Each lane takes the next message when it is done with one. */
void md5(message *messages, size_t count)
{
    static const uint8_t nothing[64];
    lane all[LANES] = {0};
    lanes state[4] = {0}, words[16];
    size_t next = 0;
    for (;;) {
        int active = 0, last = 0;
        for (int l = 0; l < LANES; l++) {
            lane *one = all + l;
            if (one->of == NULL && next < count) {
                *one = (lane){.of = messages + next, .at = messages[next].data, .left = messages[next].size};
                next++;
                for (int k = 0; k < 4; k++)
                    state[k][l] = FIRST[k];
            }
            if (one->of != NULL) {
                active++, last = l;
                if (!one->ending && one->left < 64)
                    pad(one);
            }
        }
        if (!active)
            return;
        if (active == 1) {
            lane *one = all + last;
            uint32_t its[4], its_words[16];
            for (int k = 0; k < 4; k++)
                its[k] = state[k][last];
            for (; one->left >= 64; one->at += 64, one->left -= 64) {
                for (int i = 0; i < 16; i++)
                    its_words[i] = word_at(one->at + 4 * i);
                block_of_one(its, its_words);
            }
            for (int k = 0; k < 4; k++)
                state[k][last] = its[k];
        } else {
            for (int l = 0; l < LANES; l++) {
                const uint8_t *from = all[l].of == NULL ? nothing : all[l].at;
                for (int i = 0; i < 16; i++)
                    words[i][l] = word_at(from + 4 * i);
                if (all[l].of != NULL)
                    all[l].at += 64, all[l].left -= 64;
            }
            block_of_lanes(state, words);
        }
        for (int l = 0; l < LANES; l++)
            if (all[l].of != NULL && all[l].ending && all[l].left == 0) {
                for (int k = 0; k < 4; k++)
                    put_word(all[l].of->sum + 4 * k, state[k][l]);
                all[l].of = NULL;
            }
    }
}

PyObject *sum_of(const message *m)
{
    return PyBytes_FromStringAndSize((const char *)m->sum, 16);
}

PyObject *md5_all(PyObject *self, PyObject *given)
{
    (void)self;
    PyObject *list = PySequence_Fast(given, "a list of bytes"), *result = NULL;
    Py_ssize_t count = list == NULL ? 0 : PySequence_Fast_GET_SIZE(list);
    message *messages = list == NULL ? NULL : PyMem_Calloc((size_t)count + 1, sizeof(message));
    if (messages == NULL) {
        Py_XDECREF(list);
        return list == NULL ? NULL : PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < count && !PyErr_Occurred(); i++) {
        char *data = NULL;
        Py_ssize_t size = 0;
        if (PyBytes_AsStringAndSize(PySequence_Fast_GET_ITEM(list, i), &data, &size) == 0)
            messages[i] = (message){.data = (const uint8_t *)data, .size = (size_t)size};
    }
    if (!PyErr_Occurred()) {
        Py_BEGIN_ALLOW_THREADS
        md5(messages, (size_t)count);
        Py_END_ALLOW_THREADS
        result = PyList_New(count);
    }
    for (Py_ssize_t i = 0; result != NULL && i < count; i++) {
        PyObject *sum = sum_of(messages + i);
        if (sum == NULL)
            Py_CLEAR(result);
        else
            PyList_SET_ITEM(result, i, sum);
    }
    PyMem_Free(messages);
    Py_DECREF(list);
    return result;
}

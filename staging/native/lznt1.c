/*
 * LZNT1 ([MS-XCA] 2.5) for staging files. Plain C99; the interpreter lock is released while working.
 *
 * Data is cut into chunks of 4096 bytes, each compressed by itself: a 16 bit header (bit 15: compressed, bits
 * 14-12: 3, bits 11-0: length of the chunk with its header minus 3), then groups of a flag byte and eight
 * elements, least significant flag first: 0 a literal byte, 1 a 16 bit token whose upper bits are the distance
 * minus 1 and whose lower bits are the length minus 3. At position p of the chunk, the distance has the least
 * number of bits, but at least 4, that can say p - 1.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define CHUNK 4096
#define HASH_BITS 12
#define HASH_SIZE (1 << HASH_BITS)
#define MAX_CHAIN 16
#define NICE_LENGTH 64
#define LAZY_LENGTH 16
#define ROOM(n) ((n) + 2 * (((n) + CHUNK - 1) / CHUNK))

/* number of length bits for a token at position p (1 <= p < 4096) of the chunk */
static unsigned char length_bits[CHUNK];

static void init_length_bits(void)
{
    for (int p = 0; p < CHUNK; p++) {
        int bits = 12;
        for (int q = p - 1; q >= 16; q >>= 1)
            bits--;
        length_bits[p] = (unsigned char)bits;
    }
}

typedef struct {
    uint16_t head[HASH_SIZE]; /* position + 1 of the latest entry, 0: none */
    uint16_t prev[CHUNK];     /* position + 1 of the entry before */
} matcher;

static inline uint32_t hash3(const uint8_t *p)
{
    uint32_t v = (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16;
    return (v * 0x9E3779B1u) >> (32 - HASH_BITS);
}

static inline size_t common(const uint8_t *a, const uint8_t *b, size_t limit)
{
    size_t n = 0;
    while (n + 8 <= limit) {
        uint64_t x, y;
        memcpy(&x, a + n, 8);
        memcpy(&y, b + n, 8);
        if (x != y) {
#if defined(__GNUC__) && defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
            return n + (size_t)(__builtin_ctzll(x ^ y) >> 3);
#else
            break;
#endif
        }
        n += 8;
    }
    while (n < limit && a[n] == b[n])
        n++;
    return n;
}

/* the longest match for position pos, at least 3 and more than `best`; 0 when there is none */
static inline size_t longest(const matcher *m, const uint8_t *in, size_t n, size_t pos, size_t best, int chain,
                             size_t *distance)
{
    size_t limit = n - pos, most = ((size_t)1 << length_bits[pos]) + 2, found = 0;
    if (limit > most)
        limit = most;
    if (limit < 3 || best >= limit)
        return 0;
    if (best < 2)
        best = 2;
    const uint8_t *here = in + pos;
    for (uint32_t at = m->head[hash3(here)]; at != 0 && chain-- > 0; at = m->prev[at - 1]) {
        const uint8_t *there = in + (at - 1);
        if (there[best] != here[best] || there[0] != here[0])
            continue;
        size_t length = common(there, here, limit);
        if (length > best) {
            best = found = length;
            *distance = pos - (at - 1);
            if (length == limit || length >= NICE_LENGTH)
                break;
        }
    }
    return found;
}

static inline void insert(matcher *m, const uint8_t *in, size_t n, size_t pos)
{
    if (pos + 3 <= n) {
        uint32_t h = hash3(in + pos);
        m->prev[pos] = m->head[h];
        m->head[h] = (uint16_t)(pos + 1);
    }
}

/* compresses one chunk (1 <= n <= CHUNK) to at most n bytes; 0 when that does not make it smaller */
static size_t compress_chunk(matcher *m, const uint8_t *in, size_t n, uint8_t *out)
{
    size_t pos = 0, o = 0, flag_at = 0, have = 0, distance = 0;
    int bit = 8;
    memset(m->head, 0, sizeof m->head);
    while (pos < n) {
        if (bit == 8) {
            /* room for a flag byte and eight tokens, or the careful way at the end: one element at a time */
            if (o + 1 >= n)
                return 0;
            flag_at = o++;
            out[flag_at] = 0;
            bit = 0;
        }
        if (have == 0)
            have = longest(m, in, n, pos, 0, MAX_CHAIN, &distance);
        insert(m, in, n, pos);
        if (have >= 3) {
            size_t next_distance = 0, next = 0;
            if (have < LAZY_LENGTH && pos + 1 < n)
                next = longest(m, in, n, pos + 1, have, MAX_CHAIN / 2, &next_distance);
            if (next > have) { /* a longer match begins one byte later: a literal first */
                if (o + 1 > n)
                    return 0;
                out[o++] = in[pos++];
                have = next;
                distance = next_distance;
            } else {
                if (o + 2 > n)
                    return 0;
                uint32_t token = (uint32_t)((distance - 1) << length_bits[pos]) | (uint32_t)(have - 3);
                out[o++] = (uint8_t)token;
                out[o++] = (uint8_t)(token >> 8);
                out[flag_at] |= (uint8_t)(1 << bit);
                for (size_t end = pos + have, i = pos + 1; i < end; i++)
                    insert(m, in, n, i);
                pos += have;
                have = 0;
            }
        } else {
            if (o + 1 > n)
                return 0;
            out[o++] = in[pos++];
            have = 0;
        }
        bit++;
    }
    return o < n ? o : 0;
}

static size_t compress_all(matcher *m, const uint8_t *in, size_t n, uint8_t *out)
{
    size_t o = 0;
    for (size_t start = 0; start < n; start += CHUNK) {
        size_t size = n - start < CHUNK ? n - start : CHUNK;
        size_t length = compress_chunk(m, in + start, size, out + o + 2);
        uint32_t header = 0xB000;
        if (length == 0) {
            memcpy(out + o + 2, in + start, size);
            length = size;
            header = 0x3000;
        }
        header |= (uint32_t)(length - 1);
        out[o] = (uint8_t)header;
        out[o + 1] = (uint8_t)(header >> 8);
        o += 2 + length;
    }
    return o;
}

/* decompresses the body of one chunk into at most CHUNK bytes (room for CHUNK must be there); -1: damaged */
static int expand_chunk(const uint8_t *in, size_t n, uint8_t *out)
{
    size_t i = 0, o = 0;
    while (i < n) {
        unsigned flags = in[i++];
        if (flags == 0 && n - i >= 8 && CHUNK - o >= 8) {
            memcpy(out + o, in + i, 8);
            i += 8;
            o += 8;
            continue;
        }
        for (int bit = 0; bit < 8 && i < n; bit++, flags >>= 1) {
            if (!(flags & 1)) {
                if (o >= CHUNK)
                    return -1;
                out[o++] = in[i++];
                continue;
            }
            if (n - i < 2 || o == 0 || o >= CHUNK)
                return -1;
            unsigned token = (unsigned)in[i] | (unsigned)in[i + 1] << 8, bits = length_bits[o];
            size_t distance = (token >> bits) + 1, length = (token & ((1u << bits) - 1)) + 3;
            i += 2;
            if (distance > o || length > CHUNK - o)
                return -1;
            uint8_t *to = out + o;
            const uint8_t *from = to - distance;
            o += length;
            if (distance >= 8 && CHUNK - o >= 8) {
                uint8_t *end = to + length; /* writes at most 7 bytes past the end, inside the chunk */
                do {
                    memcpy(to, from, 8);
                    to += 8;
                    from += 8;
                } while (to < end);
            } else if (distance == 1) {
                memset(to, *from, length);
            } else {
                while (length--)
                    *to++ = *from++;
            }
        }
    }
    return (int)o;
}

enum { OK = 0, BAD_CHUNK = -1, BAD_SIGNATURE = -2, TOO_BIG = -3 };

/*
 * Decompresses whole chunks from in[*used..n) as long as they are complete and, unless `scan`, `room` leaves
 * space for a full one. A zero header (an end marker some writers leave) is skipped.
 */
static int expand(const uint8_t *in, size_t n, size_t *used, uint8_t *out, size_t room, size_t *made)
{
    size_t i = *used, o = 0;
    int status = OK;
    while (n - i >= 2) {
        unsigned header = (unsigned)in[i] | (unsigned)in[i + 1] << 8;
        if (header == 0) {
            i += 2;
            continue;
        }
        if ((header & 0x7000) != 0x3000) {
            status = BAD_SIGNATURE;
            break;
        }
        size_t length = (header & 0xFFF) + 1;
        if (n - i - 2 < length || room - o < CHUNK)
            break;
        if (header & 0x8000) {
            int size = expand_chunk(in + i + 2, length, out + o);
            if (size < 0) {
                status = BAD_CHUNK;
                break;
            }
            o += (size_t)size;
        } else {
            memcpy(out + o, in + i + 2, length);
            o += length;
        }
        i += 2 + length;
    }
    *used = i;
    *made = o;
    return status;
}

static PyObject *py_compress(PyObject *self, PyObject *arg)
{
    Py_buffer view;
    (void)self;
    if (PyObject_GetBuffer(arg, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    if (view.len > PY_SSIZE_T_MAX / 2) {
        PyBuffer_Release(&view);
        return PyErr_NoMemory();
    }
    size_t n = (size_t)view.len;
    PyObject *result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)ROOM(n));
    matcher *m = result ? PyMem_RawMalloc(sizeof *m) : NULL;
    if (m == NULL) {
        Py_XDECREF(result);
        PyBuffer_Release(&view);
        return PyErr_NoMemory();
    }
    size_t made;
    uint8_t *out = (uint8_t *)PyBytes_AS_STRING(result);
    Py_BEGIN_ALLOW_THREADS
    made = compress_all(m, view.buf, n, out);
    Py_END_ALLOW_THREADS
    PyMem_RawFree(m);
    PyBuffer_Release(&view);
    _PyBytes_Resize(&result, (Py_ssize_t)made);
    return result;
}

static PyObject *py_expand(PyObject *self, PyObject *args)
{
    Py_buffer view;
    Py_ssize_t start, room;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*nn:expand", &view, &start, &room))
        return NULL;
    if (start < 0 || start > view.len || room < CHUNK) {
        PyBuffer_Release(&view);
        PyErr_SetString(PyExc_ValueError, "LZNT1: start or room out of range");
        return NULL;
    }
    PyObject *result = PyBytes_FromStringAndSize(NULL, room);
    if (result == NULL) {
        PyBuffer_Release(&view);
        return NULL;
    }
    size_t used = (size_t)start, made = 0;
    uint8_t *out = (uint8_t *)PyBytes_AS_STRING(result);
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = expand(view.buf, (size_t)view.len, &used, out, (size_t)room, &made);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    if (status != OK) {
        Py_DECREF(result);
        PyErr_Format(PyExc_ValueError, "LZNT1: %s at byte %zu",
                     status == BAD_CHUNK ? "damaged chunk" : "no chunk header", used);
        return NULL;
    }
    if (_PyBytes_Resize(&result, (Py_ssize_t)made) < 0)
        return NULL;
    return Py_BuildValue("(Nn)", result, (Py_ssize_t)used);
}

static PyMethodDef methods[] = {
    {"compress", py_compress, METH_O, "compress(data) -> bytes"},
    {"expand", py_expand, METH_VARARGS,
     "expand(data, start, room) -> (bytes, used): decompresses complete chunks while there is room for 4096 bytes"},
    {NULL, NULL, 0, NULL},
};

static int module_exec(PyObject *module)
{
    (void)module;
    init_length_bits();
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_lznt1", "LZNT1 in C, see staging.lznt1", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__lznt1(void)
{
    return PyModuleDef_Init(&definition);
}

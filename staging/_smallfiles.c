/*
 * Small files, many at a time, for staging/smallfiles.py. Plain C11 of Linux; the interpreter lock is released while
 * working.
 *
 * A name is one component in a folder that the caller holds open: nothing here takes a path, and no call follows a
 * symbolic link. What is changed is open here and was made here; what is said of a file is read from its descriptor.
 * Each item of a batch has a result of its own: what was asked for, or a number of errno(3), after which nothing is left
 * of it. Who gets an error does that item in the ordinary way.
 */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

#ifndef SYS_openat2
#define SYS_openat2 437
#endif
#define RESOLVE (0x01 | 0x02 | 0x04 | 0x08) /* NO_XDEV, NO_MAGICLINKS, NO_SYMLINKS, BENEATH */
#define STATX_WANTED (STATX_BASIC_STATS | STATX_BTIME)
#define OBJECT_ID "user.frs.object_id"
#define NEW_FILE (O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC)
#define BLOCK 0x10000 /* a block of that size which holds only zeros is left a hole */
#define SECOND 1000000000LL

/* -- tests exchange names before each call that takes one -- */

static PyObject *watcher;

static void about_to(const char *call)
{
    if (watcher == NULL)
        return;
    PyGILState_STATE state = PyGILState_Ensure();
    if (watcher != NULL) {
        PyObject *done = PyObject_CallFunction(watcher, "s", call);
        if (done == NULL)
            PyErr_WriteUnraisable(watcher);
        Py_XDECREF(done);
    }
    PyGILState_Release(state);
}

static PyObject *watch(PyObject *self, PyObject *callable)
{
    (void)self;
    PyObject *before = watcher;
    watcher = callable == Py_None ? NULL : Py_NewRef(callable);
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

/* -- MD5 (RFC 1321), of several messages at once -- */

#define LANES 8
typedef uint32_t lanes __attribute__((vector_size(4 * LANES)));

typedef struct {
    const uint8_t *data;
    size_t size;
    uint8_t sum[16];
} message;

typedef struct {
    message *of; /* NULL: nothing to do */
    const uint8_t *at;
    size_t left;
    int ending;
    uint8_t end[128]; /* the last bytes with the padding */
} lane;

static const uint32_t FIRST[4] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476};
static uint32_t SINES[64]; /* floor(abs(sin(i + 1)) * 2**32) */
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
static void md5(message *messages, size_t count)
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

/* -- what is common to all calls -- */

typedef struct {
    int error;
    int fd;
    int plain;
    const char *name, *other;
    PyObject *whole; /* bytes that are filled here */
    const uint8_t *head, *data, *tail, *object_id;
    size_t head_size, size, tail_size;
    long long mtime_ns;
    unsigned int mode, uid, gid;
    struct statx found;
} item;

typedef struct {
    PyObject *list; /* a list or tuple of tuples, which outlives the work */
    Py_ssize_t count;
    item *items;
} batch;

static int begin(batch *b, PyObject *given)
{
    b->items = NULL;
    b->list = PySequence_Fast(given, "a list of items");
    if (b->list == NULL)
        return 0;
    b->count = PySequence_Fast_GET_SIZE(b->list);
    b->items = PyMem_Calloc((size_t)b->count + 1, sizeof(item));
    if (b->items == NULL) {
        PyErr_NoMemory();
        Py_DECREF(b->list);
        return 0;
    }
    for (Py_ssize_t i = 0; i < b->count; i++)
        b->items[i].fd = -1;
    return 1;
}

static PyObject *end(batch *b, PyObject *result)
{
    for (Py_ssize_t i = 0; i < b->count; i++)
        Py_XDECREF(b->items[i].whole);
    PyMem_Free(b->items);
    Py_DECREF(b->list);
    return result;
}

/* The name of an entry: one component. Raises ValueError. */
static const char *name_of(PyObject *given)
{
    char *name;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(given, &name, &size) < 0)
        return NULL;
    if (size == 0 || strlen(name) != (size_t)size || strchr(name, '/') || !strcmp(name, ".") || !strcmp(name, "..")) {
        PyErr_SetString(PyExc_ValueError, "not the name of an entry");
        return NULL;
    }
    return name;
}

static PyObject *at(batch *b, Py_ssize_t i)
{
    PyObject *one = PySequence_Fast_GET_ITEM(b->list, i);
    if (!PyTuple_Check(one)) {
        PyErr_SetString(PyExc_TypeError, "an item is a tuple");
        return NULL;
    }
    return one;
}

static PyObject *fingerprint(const struct statx *s)
{
    long long birth = s->stx_mask & STATX_BTIME ? s->stx_btime.tv_sec * SECOND + s->stx_btime.tv_nsec : 0;
    return Py_BuildValue("KKLKLLIIII", (unsigned long long)makedev(s->stx_dev_major, s->stx_dev_minor),
                         (unsigned long long)s->stx_ino, birth, (unsigned long long)s->stx_size,
                         s->stx_mtime.tv_sec * SECOND + s->stx_mtime.tv_nsec,
                         s->stx_ctime.tv_sec * SECOND + s->stx_ctime.tv_nsec, (unsigned int)s->stx_mode,
                         (unsigned int)s->stx_uid, (unsigned int)s->stx_gid, (unsigned int)s->stx_nlink);
}

static int look(int fd, struct statx *found)
{
    return statx(fd, "", AT_EMPTY_PATH, STATX_WANTED, found) ? errno : 0;
}

/* Whether there are no extended attributes but the object ID that say anything of a file. */
static int is_plain(int fd)
{
    char names[1024];
    ssize_t size = flistxattr(fd, names, sizeof names);
    if (size < 0)
        return errno == ENOTSUP;
    for (const char *name = names; name < names + size; name += strlen(name) + 1)
        if ((!strncmp(name, "user.", 5) && strcmp(name, OBJECT_ID)) || !strncmp(name, "system.posix_acl_", 17) ||
            !strncmp(name, "trusted.frs.", 12))
            return 0;
    return 1;
}

static int write_all(int fd, const uint8_t *data, size_t size, off_t offset)
{
    while (size) {
        ssize_t n = pwrite(fd, data, size, offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno;
        data += n, size -= (size_t)n, offset += n;
    }
    return 0;
}

static int read_all(int fd, uint8_t *data, size_t size)
{
    off_t offset = 0;
    while (size) {
        ssize_t n = pread(fd, data, size, offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? errno : ESTALE; /* it became shorter */
        data += n, size -= (size_t)n, offset += n;
    }
    return 0;
}

/* Results of a batch: `one` makes that of an item without an error. */
static PyObject *results(batch *b, PyObject *(*one)(item *))
{
    PyObject *list = PyList_New(b->count);
    for (Py_ssize_t i = 0; list != NULL && i < b->count; i++) {
        PyObject *result = b->items[i].error ? PyLong_FromLong(b->items[i].error) : one(b->items + i);
        if (result == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, result);
    }
    return list;
}

/* -- installing -- */

static int make(item *e)
{
    static const uint8_t zeros[BLOCK];
    int error = 0;
    if (ftruncate(e->fd, (off_t)e->size))
        return errno;
    for (size_t from = 0; from < e->size && !error; from += BLOCK) {
        size_t size = e->size - from < BLOCK ? e->size - from : BLOCK;
        if (memcmp(e->data + from, zeros, size))
            error = write_all(e->fd, e->data + from, size, (off_t)from);
    }
    if (error)
        return error;
    struct timespec times[2] = {{e->mtime_ns / SECOND, e->mtime_ns % SECOND}, {e->mtime_ns / SECOND, e->mtime_ns % SECOND}};
    if (fsetxattr(e->fd, OBJECT_ID, e->object_id, 16, 0))
        return errno;
    if ((error = look(e->fd, &e->found)))
        return error;
    if ((e->found.stx_uid != e->uid || e->found.stx_gid != e->gid) && fchown(e->fd, e->uid, e->gid))
        return errno;
    if (fchmod(e->fd, e->mode) || futimens(e->fd, times))
        return errno;
    return is_plain(e->fd) ? 0 : ENOTSUP;
}

/* What was written is closed before it comes into the tree: else closing it would be an event there. */
static int held(int folder, item *e)
{
    struct statx written;
    int error = look(e->fd, &written);
    close(e->fd);
    about_to("openat");
    e->fd = openat(folder, e->name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (error || e->fd < 0)
        return error ? error : errno;
    if ((error = look(e->fd, &e->found)))
        return error;
    return e->found.stx_ino == written.stx_ino && e->found.stx_dev_major == written.stx_dev_major &&
                   e->found.stx_dev_minor == written.stx_dev_minor
               ? 0
               : ESTALE;
}

static void build_all(int folder, batch *b, int durable)
{
    for (item *e = b->items; e < b->items + b->count; e++) {
        about_to("openat");
        e->fd = openat(folder, e->name, NEW_FILE, 0600);
        e->error = e->fd < 0 ? errno : make(e);
        if (!e->error && durable) /* all are under way before the first is waited for */
            sync_file_range(e->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
    }
    for (item *e = b->items; e < b->items + b->count; e++) {
        if (!e->error && durable && fsync(e->fd))
            e->error = errno;
        int made = e->fd >= 0;
        if (!e->error)
            e->error = held(folder, e);
        if (e->error && e->fd >= 0)
            close(e->fd);
        if (e->error && made) {
            about_to("unlinkat");
            unlinkat(folder, e->name, 0);
        }
    }
}

static PyObject *open_with_fingerprint(item *e)
{
    return Py_BuildValue("iN", e->fd, fingerprint(&e->found));
}

static PyObject *build(PyObject *self, PyObject *args)
{
    int folder, durable;
    PyObject *given;
    batch b;
    (void)self;
    if (!PyArg_ParseTuple(args, "iOp:build", &folder, &given, &durable) || !begin(&b, given))
        return NULL;
    for (Py_ssize_t i = 0; i < b.count; i++) {
        item *e = b.items + i;
        PyObject *one = at(&b, i), *name;
        const char *data, *object_id;
        Py_ssize_t whole, from, size, id_size;
        if (one == NULL || !PyArg_ParseTuple(one, "Sy#nny#LIII", &name, &data, &whole, &from, &size, &object_id,
                                             &id_size, &e->mtime_ns, &e->mode, &e->uid, &e->gid) ||
            (e->name = name_of(name)) == NULL)
            return end(&b, NULL);
        if (from < 0 || size < 0 || from > whole || size > whole - from || id_size != 16 || e->mtime_ns < 0 ||
            e->mode & ~0777U) {
            PyErr_SetString(PyExc_ValueError, "build: out of range");
            return end(&b, NULL);
        }
        e->data = (const uint8_t *)data + from, e->size = (size_t)size, e->object_id = (const uint8_t *)object_id;
    }
    Py_BEGIN_ALLOW_THREADS
    build_all(folder, &b, durable);
    Py_END_ALLOW_THREADS
    return end(&b, results(&b, open_with_fingerprint));
}

static PyObject *only_fingerprint(item *e)
{
    return fingerprint(&e->found);
}

static PyObject *place(PyObject *self, PyObject *args)
{
    int from, to;
    PyObject *given;
    batch b;
    (void)self;
    if (!PyArg_ParseTuple(args, "iiO:place", &from, &to, &given) || !begin(&b, given))
        return NULL;
    for (Py_ssize_t i = 0; i < b.count; i++) {
        item *e = b.items + i;
        PyObject *one = at(&b, i), *name, *other;
        if (one == NULL || !PyArg_ParseTuple(one, "iSS", &e->fd, &name, &other) || (e->name = name_of(name)) == NULL ||
            (e->other = name_of(other)) == NULL)
            return end(&b, NULL);
    }
    Py_BEGIN_ALLOW_THREADS
    for (item *e = b.items; e < b.items + b.count; e++) {
        about_to("renameat2");
        if (renameat2(from, e->name, to, e->other, RENAME_NOREPLACE))
            e->error = errno;
        else if (look(e->fd, &e->found))
            memset(&e->found, 0, sizeof e->found); /* it is there all the same */
    }
    Py_END_ALLOW_THREADS
    return end(&b, results(&b, only_fingerprint));
}

static PyObject *close_all(PyObject *self, PyObject *given)
{
    (void)self;
    PyObject *list = PySequence_Fast(given, "a list of descriptors");
    Py_ssize_t count = list == NULL ? 0 : PySequence_Fast_GET_SIZE(list);
    int *fds = list == NULL ? NULL : PyMem_Calloc((size_t)count + 1, sizeof(int));
    if (fds == NULL) {
        Py_XDECREF(list);
        return list == NULL ? NULL : PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < count && !PyErr_Occurred(); i++)
        fds[i] = (int)PyLong_AsLong(PySequence_Fast_GET_ITEM(list, i));
    Py_DECREF(list);
    if (PyErr_Occurred()) {
        PyMem_Free(fds);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count; i++)
        close(fds[i]);
    Py_END_ALLOW_THREADS
    PyMem_Free(fds);
    Py_RETURN_NONE;
}

/* -- whole files of a folder of the agent's own -- */

static PyObject *sum_of(const message *m)
{
    return PyBytes_FromStringAndSize((const char *)m->sum, 16);
}

static PyObject *md5_all(PyObject *self, PyObject *given)
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

static PyObject *read_names(PyObject *self, PyObject *args)
{
    int folder;
    Py_ssize_t most;
    PyObject *given;
    batch b;
    (void)self;
    if (!PyArg_ParseTuple(args, "iOn:read", &folder, &given, &most) || !begin(&b, given))
        return NULL;
    for (Py_ssize_t i = 0; i < b.count; i++)
        if ((b.items[i].name = name_of(PySequence_Fast_GET_ITEM(b.list, i))) == NULL)
            return end(&b, NULL);
    Py_BEGIN_ALLOW_THREADS
    for (item *e = b.items; e < b.items + b.count; e++) {
        about_to("openat");
        e->fd = openat(folder, e->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        e->error = e->fd < 0 ? errno : look(e->fd, &e->found);
        if (!e->error && (!S_ISREG(e->found.stx_mode) || e->found.stx_size > (unsigned long long)most))
            e->error = EFBIG;
    }
    Py_END_ALLOW_THREADS
    for (item *e = b.items; e < b.items + b.count; e++)
        if (!e->error && (e->whole = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)e->found.stx_size)) == NULL) {
            PyErr_Clear();
            e->error = ENOMEM;
        }
    Py_BEGIN_ALLOW_THREADS
    for (item *e = b.items; e < b.items + b.count; e++) {
        if (!e->error)
            e->error = read_all(e->fd, (uint8_t *)PyBytes_AS_STRING(e->whole), (size_t)e->found.stx_size);
        if (e->fd >= 0)
            close(e->fd);
    }
    Py_END_ALLOW_THREADS
    PyObject *list = PyList_New(b.count);
    for (Py_ssize_t i = 0; list != NULL && i < b.count; i++) {
        PyObject *one = b.items[i].error ? PyLong_FromLong(b.items[i].error) : Py_NewRef(b.items[i].whole);
        if (one == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, one);
    }
    return end(&b, list);
}

/* -- staging -- */

struct open_how_64 {
    uint64_t flags, mode, resolve;
};

static int open_beneath(int folder, const char *name, int flags)
{
    struct open_how_64 how = {.flags = (uint64_t)(unsigned int)(flags | O_NOFOLLOW | O_CLOEXEC), .resolve = RESOLVE};
    about_to("openat2");
    return (int)syscall(SYS_openat2, folder, name, &how, sizeof how);
}

static int open_to_read(int folder, const char *name)
{
    int flags = O_RDONLY | O_NONBLOCK | O_NOCTTY;
    int fd = open_beneath(folder, name, flags | O_NOATIME);
    return fd < 0 && errno == EPERM ? open_beneath(folder, name, flags) : fd;
}

/* Whether somebody has the file open for writing: then no lease is given. It is given back at once. */
static int is_written(int fd)
{
    fcntl(fd, F_SETSIG, SIGURG); /* which is ignored */
    if (fcntl(fd, F_SETLEASE, F_RDLCK))
        return errno == EAGAIN;
    fcntl(fd, F_SETLEASE, F_UNLCK);
    return 0;
}

static void open_one(int folder, item *e, unsigned long long most)
{
    about_to("statx");
    if (statx(folder, e->name, AT_SYMLINK_NOFOLLOW, STATX_WANTED, &e->found)) {
        e->error = errno;
        return;
    }
    if (!S_ISREG(e->found.stx_mode) || e->found.stx_size > most) {
        e->error = EFBIG;
        return;
    }
    e->fd = open_to_read(folder, e->name);
    e->error = e->fd < 0 ? errno : look(e->fd, &e->found);
    if (!e->error && (!S_ISREG(e->found.stx_mode) || e->found.stx_size > most))
        e->error = EFBIG;
    if (!e->error && is_written(e->fd))
        e->error = EBUSY;
    if (!e->error && !is_plain(e->fd))
        e->error = ENOTSUP;
    if (e->error && e->fd >= 0)
        close(e->fd);
}

static PyObject *opened(item *e)
{
    return Py_BuildValue("iNK", e->fd, fingerprint(&e->found), (unsigned long long)e->found.stx_blocks * 512);
}

static PyObject *open_names(PyObject *self, PyObject *args)
{
    int folder;
    Py_ssize_t most;
    PyObject *given;
    batch b;
    (void)self;
    if (!PyArg_ParseTuple(args, "iOn:open", &folder, &given, &most) || !begin(&b, given))
        return NULL;
    for (Py_ssize_t i = 0; i < b.count; i++)
        if ((b.items[i].name = name_of(PySequence_Fast_GET_ITEM(b.list, i))) == NULL)
            return end(&b, NULL);
    Py_BEGIN_ALLOW_THREADS
    for (item *e = b.items; e < b.items + b.count; e++)
        open_one(folder, e, (unsigned long long)most);
    Py_END_ALLOW_THREADS
    return end(&b, results(&b, opened));
}

/* Reads files between a head and a tail of each, and sums all of it. */
static void read_streams(batch *b, message *messages)
{
    size_t count = 0;
    for (item *e = b->items; e < b->items + b->count; e++) {
        if (e->error)
            continue;
        uint8_t *to = (uint8_t *)PyBytes_AS_STRING(e->whole);
        memcpy(to, e->head, e->head_size);
        e->error = read_all(e->fd, to + e->head_size, e->size);
        memcpy(to + e->head_size + e->size, e->tail, e->tail_size);
        if (!e->error && !is_plain(e->fd)) /* since it was opened, perhaps without another ctime */
            e->error = ENOTSUP;
        if (!e->error)
            e->error = look(e->fd, &e->found);
        if (!e->error)
            messages[count++] = (message){.data = to, .size = e->head_size + e->size + e->tail_size};
    }
    md5(messages, count);
}

static PyObject *streams(PyObject *self, PyObject *given)
{
    batch b;
    (void)self;
    if (!begin(&b, given))
        return NULL;
    message *messages = PyMem_Calloc((size_t)b.count + 1, sizeof(message)), *m = messages;
    PyObject *list = NULL;
    int wrong = messages == NULL;
    if (wrong)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < b.count && !wrong; i++) {
        item *e = b.items + i;
        PyObject *one = at(&b, i);
        const char *head, *tail;
        Py_ssize_t head_size, size, tail_size;
        if (one == NULL || !PyArg_ParseTuple(one, "iy#ny#", &e->fd, &head, &head_size, &size, &tail, &tail_size)) {
            wrong = 1;
        } else if (size < 0 || size > PY_SSIZE_T_MAX / 4 || head_size > PY_SSIZE_T_MAX / 4 ||
                   tail_size > PY_SSIZE_T_MAX / 4) {
            PyErr_SetString(PyExc_ValueError, "streams: out of range");
            wrong = 1;
        } else {
            e->head = (const uint8_t *)head, e->head_size = (size_t)head_size;
            e->tail = (const uint8_t *)tail, e->tail_size = (size_t)tail_size, e->size = (size_t)size;
            e->whole = PyBytes_FromStringAndSize(NULL, head_size + size + tail_size);
            wrong = e->whole == NULL;
        }
    }
    if (!wrong) {
        Py_BEGIN_ALLOW_THREADS
        read_streams(&b, messages);
        Py_END_ALLOW_THREADS
        list = PyList_New(b.count);
    }
    for (Py_ssize_t i = 0; list != NULL && i < b.count; i++) {
        item *e = b.items + i;
        PyObject *one = e->error ? PyLong_FromLong(e->error)
                                 : Py_BuildValue("NON", sum_of(m++), e->whole, fingerprint(&e->found));
        if (one == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, one);
    }
    PyMem_Free(messages);
    return end(&b, list);
}

static PyObject *nothing(item *e)
{
    (void)e;
    return PyLong_FromLong(0);
}

static PyObject *write_names(PyObject *self, PyObject *args)
{
    int folder;
    PyObject *given;
    batch b;
    (void)self;
    if (!PyArg_ParseTuple(args, "iO:write", &folder, &given) || !begin(&b, given))
        return NULL;
    for (Py_ssize_t i = 0; i < b.count; i++) {
        item *e = b.items + i;
        PyObject *one = at(&b, i), *name;
        const char *head, *data;
        Py_ssize_t head_size, size;
        if (one == NULL || !PyArg_ParseTuple(one, "Sy#y#", &name, &head, &head_size, &data, &size) ||
            (e->name = name_of(name)) == NULL)
            return end(&b, NULL);
        e->head = (const uint8_t *)head, e->head_size = (size_t)head_size;
        e->data = (const uint8_t *)data, e->size = (size_t)size;
    }
    Py_BEGIN_ALLOW_THREADS
    for (item *e = b.items; e < b.items + b.count; e++) {
        about_to("openat");
        e->fd = openat(folder, e->name, NEW_FILE, 0600);
        if (e->fd < 0) {
            e->error = errno;
            continue;
        }
        e->error = write_all(e->fd, e->head, e->head_size, 0);
        if (!e->error)
            e->error = write_all(e->fd, e->data, e->size, (off_t)e->head_size);
        close(e->fd);
        if (e->error) {
            about_to("unlinkat");
            unlinkat(folder, e->name, 0);
        }
    }
    Py_END_ALLOW_THREADS
    return end(&b, results(&b, nothing));
}

/* Gives open files their object IDs; those that have other names, too, share their attributes and get none. */
static PyObject *mark(PyObject *self, PyObject *given)
{
    batch b;
    (void)self;
    if (!begin(&b, given))
        return NULL;
    for (Py_ssize_t i = 0; i < b.count; i++) {
        item *e = b.items + i;
        PyObject *one = at(&b, i);
        const char *object_id;
        Py_ssize_t size;
        if (one == NULL || !PyArg_ParseTuple(one, "iy#", &e->fd, &object_id, &size))
            return end(&b, NULL);
        if (size != 16) {
            PyErr_SetString(PyExc_ValueError, "an object ID has 16 bytes");
            return end(&b, NULL);
        }
        e->object_id = (const uint8_t *)object_id;
    }
    Py_BEGIN_ALLOW_THREADS
    for (item *e = b.items; e < b.items + b.count; e++) {
        e->error = look(e->fd, &e->found);
        if (!e->error && e->found.stx_nlink == 1 && fsetxattr(e->fd, OBJECT_ID, e->object_id, 16, 0))
            e->error = errno;
        if (!e->error)
            e->error = look(e->fd, &e->found);
    }
    Py_END_ALLOW_THREADS
    return end(&b, results(&b, only_fingerprint));
}

static PyMethodDef methods[] = {
    {"watch", watch, METH_O, "watch(callable | None): for tests, called before each system call on a name"},
    {"md5", md5_all, METH_O, "md5(list of bytes) -> list of digests"},
    {"read", read_names, METH_VARARGS, "read(folder, names, most) -> list of bytes | errno"},
    {"build", build, METH_VARARGS,
     "build(folder, [(name, data, from, size, object ID, mtime in ns, mode, uid, gid)], durable) -> "
     "list of (fd, fingerprint) | errno: makes new files"},
    {"place", place, METH_VARARGS,
     "place(folder, other folder, [(fd, name, other name)]) -> list of fingerprints | errno: renames to free names"},
    {"close", close_all, METH_O, "close(descriptors)"},
    {"open", open_names, METH_VARARGS,
     "open(folder, names, most) -> list of (fd, fingerprint, bytes on disk) | errno: regular files that nobody writes to "
     "and that have no attributes but the object ID"},
    {"mark", mark, METH_O, "mark([(fd, object ID)]) -> list of fingerprints | errno"},
    {"streams", streams, METH_O,
     "streams([(fd, head, size, tail)]) -> list of (MD5, head + content + tail, fingerprint afterwards) | errno"},
    {"write", write_names, METH_VARARGS, "write(folder, [(name, head, data)]) -> list of errno: makes new files"},
    {NULL, NULL, 0, NULL},
};

static int module_exec(PyObject *module)
{
    (void)module;
    static const uint32_t sines[64] = {
        0xd76aa478, 0xe8c7b756, 0x242070db, 0xc1bdceee, 0xf57c0faf, 0x4787c62a, 0xa8304613, 0xfd469501,
        0x698098d8, 0x8b44f7af, 0xffff5bb1, 0x895cd7be, 0x6b901122, 0xfd987193, 0xa679438e, 0x49b40821,
        0xf61e2562, 0xc040b340, 0x265e5a51, 0xe9b6c7aa, 0xd62f105d, 0x02441453, 0xd8a1e681, 0xe7d3fbc8,
        0x21e1cde6, 0xc33707d6, 0xf4d50d87, 0x455a14ed, 0xa9e3e905, 0xfcefa3f8, 0x676f02d9, 0x8d2a4c8a,
        0xfffa3942, 0x8771f681, 0x6d9d6122, 0xfde5380c, 0xa4beea44, 0x4bdecfa9, 0xf6bb4b60, 0xbebfbc70,
        0x289b7ec6, 0xeaa127fa, 0xd4ef3085, 0x04881d05, 0xd9d4d039, 0xe6db99e5, 0x1fa27cf8, 0xc4ac5665,
        0xf4292244, 0x432aff97, 0xab9423a7, 0xfc93a039, 0x655b59c3, 0x8f0ccc92, 0xffeff47d, 0x85845dd1,
        0x6fa87e4f, 0xfe2ce6e0, 0xa3014314, 0x4e0811a1, 0xf7537e82, 0xbd3af235, 0x2ad7d2bb, 0xeb86d391,
    };
    memcpy(SINES, sines, sizeof sines);
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_smallfiles", "Small files, see staging.smallfiles", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__smallfiles(void)
{
    return PyModuleDef_Init(&definition);
}

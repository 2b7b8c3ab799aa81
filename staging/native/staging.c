/* Opens and reads files of the tree that are to be staged. */
#include "smallfiles.h"
#include <signal.h>
#include <sys/syscall.h>

#ifndef SYS_openat2
#define SYS_openat2 437
#endif
#define RESOLVE (0x01 | 0x02 | 0x04 | 0x08) /* NO_XDEV, NO_MAGICLINKS, NO_SYMLINKS, BENEATH */

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

PyObject *open_names(PyObject *self, PyObject *args)
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

PyObject *streams(PyObject *self, PyObject *given)
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

/* Gives open files their object IDs; those that have other names, too, share their attributes and get none. */
PyObject *mark(PyObject *self, PyObject *given)
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

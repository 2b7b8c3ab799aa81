/* Makes files beside the tree, and gives them their names in it. */
#include "smallfiles.h"

#define BLOCK 0x10000 /* a block of that size which holds only zeros is left a hole */

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

PyObject *build(PyObject *self, PyObject *args)
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

PyObject *place(PyObject *self, PyObject *args)
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

PyObject *close_all(PyObject *self, PyObject *given)
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

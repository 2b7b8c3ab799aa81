/* Batches of items, and what is done with one file, by its descriptor. */
#include "smallfiles.h"
#include <sys/sysmacros.h>

/* -- tests exchange names before each call that takes one -- */

static PyObject *watcher;

void about_to(const char *call)
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

PyObject *watch(PyObject *self, PyObject *callable)
{
    (void)self;
    PyObject *before = watcher;
    watcher = callable == Py_None ? NULL : Py_NewRef(callable);
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

/* -- items -- */

int begin(batch *b, PyObject *given)
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

PyObject *end(batch *b, PyObject *result)
{
    for (Py_ssize_t i = 0; i < b->count; i++)
        Py_XDECREF(b->items[i].whole);
    PyMem_Free(b->items);
    Py_DECREF(b->list);
    return result;
}

/* The name of an entry: one component. Raises ValueError. */
const char *name_of(PyObject *given)
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

PyObject *at(batch *b, Py_ssize_t i)
{
    PyObject *one = PySequence_Fast_GET_ITEM(b->list, i);
    if (!PyTuple_Check(one)) {
        PyErr_SetString(PyExc_TypeError, "an item is a tuple");
        return NULL;
    }
    return one;
}

/* Results of a batch: `one` makes that of an item without an error. */
PyObject *results(batch *b, PyObject *(*one)(item *))
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

/* -- files -- */

PyObject *fingerprint(const struct statx *s)
{
    long long birth = s->stx_mask & STATX_BTIME ? s->stx_btime.tv_sec * SECOND + s->stx_btime.tv_nsec : 0;
    return Py_BuildValue("KKLKLLIIII", (unsigned long long)makedev(s->stx_dev_major, s->stx_dev_minor),
                         (unsigned long long)s->stx_ino, birth, (unsigned long long)s->stx_size,
                         s->stx_mtime.tv_sec * SECOND + s->stx_mtime.tv_nsec,
                         s->stx_ctime.tv_sec * SECOND + s->stx_ctime.tv_nsec, (unsigned int)s->stx_mode,
                         (unsigned int)s->stx_uid, (unsigned int)s->stx_gid, (unsigned int)s->stx_nlink);
}

PyObject *only_fingerprint(item *e)
{
    return fingerprint(&e->found);
}

int look(int fd, struct statx *found)
{
    return statx(fd, "", AT_EMPTY_PATH, STATX_WANTED, found) ? errno : 0;
}

/* Whether there are no extended attributes but the object ID that say anything of a file. */
int is_plain(int fd)
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

int write_all(int fd, const uint8_t *data, size_t size, off_t offset)
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

int read_all(int fd, uint8_t *data, size_t size)
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

/* Whole files of a folder of the agent's own, such as staging files. */
#include "smallfiles.h"

PyObject *read_names(PyObject *self, PyObject *args)
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

static PyObject *nothing(item *e)
{
    (void)e;
    return PyLong_FromLong(0);
}

PyObject *write_names(PyObject *self, PyObject *args)
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

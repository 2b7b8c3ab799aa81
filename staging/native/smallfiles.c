/* The module staging._smallfiles: its functions, which are in the other files of this folder. */
#include "smallfiles.h"

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

static PyModuleDef_Slot slots[] = {
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_smallfiles", "Small files, see staging.smallfiles", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__smallfiles(void)
{
    return PyModuleDef_Init(&definition);
}

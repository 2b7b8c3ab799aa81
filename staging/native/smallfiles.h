/*
 * Small files, many at a time, for staging/smallfiles.py: what the parts have in common. Plain C11 of Linux; the
 * interpreter lock is released while working.
 *
 * A name is one component in a folder that the caller holds open: nothing here takes a path, and no call follows a
 * symbolic link. What is changed is open here and was made here; what is said of a file is read from its descriptor.
 * Each item of a batch has a result of its own: what was asked for, or a number of errno(3), after which nothing is left
 * of it. Who gets an error does that item in the ordinary way.
 */
#ifndef FRS_SMALLFILES_H
#define FRS_SMALLFILES_H

#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#define OBJECT_ID "user.frs.object_id"
#define NEW_FILE (O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC)
#define STATX_WANTED (STATX_BASIC_STATS | STATX_BTIME)
#define SECOND 1000000000LL

/* The names of a module's parts are seen by its other parts, and by nothing else. */
#pragma GCC visibility push(hidden)

typedef struct {
    int error;
    int fd;
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

typedef struct {
    const uint8_t *data;
    size_t size;
    uint8_t sum[16];
} message;

/* batch.c */
int begin(batch *b, PyObject *given);
PyObject *end(batch *b, PyObject *result);
PyObject *at(batch *b, Py_ssize_t i);
PyObject *results(batch *b, PyObject *(*one)(item *));
const char *name_of(PyObject *given);
PyObject *fingerprint(const struct statx *s);
PyObject *only_fingerprint(item *e);
void about_to(const char *call);
int look(int fd, struct statx *found);
int is_plain(int fd);
int write_all(int fd, const uint8_t *data, size_t size, off_t offset);
int read_all(int fd, uint8_t *data, size_t size);

/* md5.c */
void md5(message *messages, size_t count);
PyObject *sum_of(const message *m);

/* What Python calls; smallfiles.c says what each takes and gives. */
PyObject *watch(PyObject *self, PyObject *callable);
PyObject *md5_all(PyObject *self, PyObject *given);
PyObject *build(PyObject *self, PyObject *args);
PyObject *place(PyObject *self, PyObject *args);
PyObject *close_all(PyObject *self, PyObject *given);
PyObject *open_names(PyObject *self, PyObject *args);
PyObject *streams(PyObject *self, PyObject *given);
PyObject *mark(PyObject *self, PyObject *given);
PyObject *read_names(PyObject *self, PyObject *args);
PyObject *write_names(PyObject *self, PyObject *args);

#pragma GCC visibility pop

#endif

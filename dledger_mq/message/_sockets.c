/* What a server does for each connection that is ready at the same time as others: one system call, and some numbers.
 *
 *     receive_frames   what sockets have, each as a frame if that is all        (broker/net/lone_reads.py)
 *     send_each        bytes to sockets, to each its own                        (broker/net/shared_writes.py)
 *
 * The calls are made one after the other without the interpreter in between. Neither waits, nor decides on an error: its
 * number is what is returned for that socket. What is received is hostile, and taken for a frame only if its own numbers
 * and the count of bytes say the same. Elsewhere than on Linux, where no server is, they decline everything.
 */
#include "_compiled.h"

#ifdef __linux__

#include <errno.h>
#include <sys/socket.h>

enum { FRAME_LENGTH_BYTES = 4, FRAME_HEAD_BYTES = 8, SERIALIZE_TYPE_MAX = 1, SOCKETS_MAX = 1024 };

/* Descriptors out of a list; DECLINED: they are too many, or no descriptors. */
static enum outcome descriptors_of(PyObject *list, int *descriptors, Py_ssize_t *count)
{
    if (!PyList_Check(list) || PyList_Size(list) > SOCKETS_MAX)
        return DECLINED;
    *count = PyList_Size(list);
    for (Py_ssize_t at = 0; at < *count; at++) {
        int64_t descriptor;
        enum outcome outcome = number_of(PyList_GetItem(list, at), 0, INT32_MAX, &descriptor);
        if (outcome != DONE)
            return outcome;
        descriptors[at] = (int)descriptor;
    }
    return DONE;
}

/* receive_frames. */

struct limits {
    int64_t frame_bytes_max, header_bytes_max;
};

/* What one socket had: a frame if it is one and no more, else bytes. */
static PyObject *frame_or_bytes(struct text data, const struct limits *limits, PyObject *make_frame)
{
    if (data.size < FRAME_HEAD_BYTES)
        return PyBytes_FromStringAndSize(data.start, data.size);
    int64_t length = (uint32_t)read_int32(data.start), head = (uint32_t)read_int32(data.start + FRAME_LENGTH_BYTES);
    int64_t header_bytes = head & 0xFFFFFF, type = head >> 24;
    if (length + FRAME_LENGTH_BYTES != data.size || data.size > limits->frame_bytes_max ||
        header_bytes > length - FRAME_LENGTH_BYTES || header_bytes > limits->header_bytes_max ||
        type > SERIALIZE_TYPE_MAX)
        return PyBytes_FromStringAndSize(data.start, data.size);
    PyObject *type_object = PyLong_FromLongLong(type);
    PyObject *header = PyBytes_FromStringAndSize(data.start + FRAME_HEAD_BYTES, (Py_ssize_t)header_bytes);
    PyObject *body = PyBytes_FromStringAndSize(data.start + FRAME_HEAD_BYTES + header_bytes,
                                               data.size - FRAME_HEAD_BYTES - (Py_ssize_t)header_bytes);
    PyObject *frame = NULL;
    if (type_object != NULL && header != NULL && body != NULL)
        frame = PyObject_CallFunctionObjArgs(make_frame, type_object, header, body, NULL);
    Py_XDECREF(type_object);
    Py_XDECREF(header);
    Py_XDECREF(body);
    return frame;
}

PyObject *receive_frames(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *list, *make_frame;
    Py_ssize_t piece_bytes, room_bytes;
    struct limits limits;
    long long frame_bytes_max, header_bytes_max;
    if (!PyArg_ParseTuple(arguments, "OnnLLO", &list, &piece_bytes, &room_bytes, &frame_bytes_max, &header_bytes_max,
                          &make_frame))
        return NULL;
    limits = (struct limits){frame_bytes_max, header_bytes_max};
    int descriptors[SOCKETS_MAX];
    ssize_t counts[SOCKETS_MAX];
    Py_ssize_t count = 0, received = 0, used_bytes = 0;
    enum outcome outcome = piece_bytes > 0 && room_bytes >= piece_bytes ? descriptors_of(list, descriptors, &count) : DECLINED;
    if (outcome != DONE)
        return concluded(outcome, NULL);
    char *room = PyMem_Malloc((size_t)room_bytes);
    if (room == NULL)
        return PyErr_NoMemory();
    PyThreadState *state = PyEval_SaveThread();
    for (; received < count && room_bytes - used_bytes >= piece_bytes; received++) {
        do
            counts[received] = recv(descriptors[received], room + used_bytes, (size_t)piece_bytes, MSG_DONTWAIT);
        while (counts[received] < 0 && errno == EINTR);
        if (counts[received] < 0)
            counts[received] = -errno;
        else
            used_bytes += counts[received];
    }
    PyEval_RestoreThread(state);
    PyObject *found = PyList_New(0);
    outcome = found == NULL ? FAILED : DONE;
    const char *start = room;
    for (Py_ssize_t at = 0; outcome == DONE && at < received; at++) {
        if (counts[at] < 0) {
            outcome = append_new(found, PyLong_FromLong(-(long)counts[at]));
        } else {
            outcome = append_new(found, frame_or_bytes((struct text){start, counts[at]}, &limits, make_frame));
            start += counts[at];
        }
    }
    PyMem_Free(room);
    return concluded(outcome, found);
}

/* send_each. */

PyObject *send_each(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *list, *pieces;
    if (!PyArg_ParseTuple(arguments, "OO", &list, &pieces))
        return NULL;
    int descriptors[SOCKETS_MAX];
    struct text texts[SOCKETS_MAX];
    ssize_t counts[SOCKETS_MAX];
    Py_ssize_t count;
    enum outcome outcome = descriptors_of(list, descriptors, &count);
    if (outcome == DONE && (!PyList_Check(pieces) || PyList_Size(pieces) != count))
        outcome = DECLINED;
    for (Py_ssize_t at = 0; outcome == DONE && at < count; at++)
        outcome = bytes_of(PyList_GetItem(pieces, at), &texts[at]);
    /* While others run, nobody may change the list: its bytes live as long as it holds them. */
    PyObject *held = outcome == DONE ? PyList_AsTuple(pieces) : NULL;
    if (outcome == DONE && held == NULL)
        outcome = FAILED;
    if (outcome != DONE)
        return concluded(outcome, NULL);
    PyThreadState *state = PyEval_SaveThread();
    for (Py_ssize_t at = 0; at < count; at++) {
        do
            counts[at] = send(descriptors[at], texts[at].start, (size_t)texts[at].size, MSG_DONTWAIT | MSG_NOSIGNAL);
        while (counts[at] < 0 && errno == EINTR);
        if (counts[at] < 0)
            counts[at] = -errno;
    }
    PyEval_RestoreThread(state);
    PyObject *sent = PyList_New(0);
    outcome = sent == NULL ? FAILED : DONE;
    for (Py_ssize_t at = 0; outcome == DONE && at < count; at++)
        outcome = append_new(sent, PyLong_FromLongLong(counts[at]));
    Py_DECREF(held);
    return concluded(outcome, sent);
}

#else

PyObject *receive_frames(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(arguments))
{
    Py_RETURN_NONE;
}

PyObject *send_each(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(arguments))
{
    Py_RETURN_NONE;
}

#endif

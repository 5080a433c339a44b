/* What a pull by properties does for each record that it looks at, with nothing but its bytes.
 *
 *     asked_values    the values of some properties of some records   (broker/store/reading.py)
 *
 * It returns None for whatever is not usual, and for whatever is wrong. The records were checked when they were
 * appended; still each number in them is compared with what is left before anything is read by it.
 */
#include "_compiled.h"

/* Find the properties of a plain record. */
static enum outcome cut_properties(struct text record, struct text *properties)
{
    if (record.size < RECORD_BYTES_MIN || read_int32(record.start) != record.size ||
        read_int32(record.start + 4) != RECORD_MAGIC || read_int32(record.start + 36) & UNUSUAL_FLAGS)
        return DECLINED;
    int32_t body_bytes = read_int32(record.start + RECORD_HEAD_BYTES - 4);
    if (body_bytes < 0 || body_bytes > record.size - RECORD_BYTES_MIN)
        return DECLINED;
    const char *topic = record.start + RECORD_HEAD_BYTES + body_bytes;
    Py_ssize_t left = record.size - RECORD_BYTES_MIN - body_bytes; /* without both lengths */
    Py_ssize_t topic_bytes = (unsigned char)topic[0];
    if (topic_bytes > left)
        return DECLINED;
    *properties = (struct text){topic + 1 + topic_bytes + 2, left - topic_bytes};
    return read_int16(properties->start - 2) == properties->size ? DONE : DECLINED;
}

/* The value of the last pair that begins with a mark and does not end with it; None: there is none. */
static PyObject *value_of(struct text properties, struct text mark)
{
    const char *at = properties.start, *end = at + properties.size;
    struct text value = {NULL, 0};
    while (end - at > mark.size) {
        const char *pair_end = memchr(at, PAIR_END, (size_t)(end - at));
        if (pair_end == NULL)
            pair_end = end;
        if (pair_end - at > mark.size && memcmp(at, mark.start, (size_t)mark.size) == 0)
            value = (struct text){at + mark.size, pair_end - at - mark.size};
        if (pair_end == end)
            break;
        at = pair_end + 1;
    }
    if (value.start == NULL)
        Py_RETURN_NONE;
    return PyBytes_FromStringAndSize(value.start, value.size);
}

static enum outcome add_row(struct text record, PyObject *marks, Py_ssize_t count, PyObject *rows)
{
    struct text properties, mark;
    enum outcome outcome = cut_properties(record, &properties);
    PyObject *row = outcome == DONE ? PyList_New(0) : NULL;
    if (outcome == DONE && row == NULL)
        outcome = FAILED;
    for (Py_ssize_t place = 0; outcome == DONE && place < count; place++) {
        outcome = bytes_of(PyTuple_GetItem(marks, place), &mark);
        if (outcome == DONE)
            outcome = append_new(row, value_of(properties, mark));
    }
    if (outcome == DONE)
        return append_new(rows, row);
    Py_XDECREF(row);
    return outcome;
}

PyObject *asked_values(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *records, *marks;
    if (!PyArg_ParseTuple(arguments, "O!O!:asked_values", &PyList_Type, &records, &PyTuple_Type, &marks))
        return NULL;
    Py_ssize_t count = PyTuple_Size(marks);
    PyObject *rows = PyList_New(0);
    enum outcome outcome = rows == NULL ? FAILED : DONE;
    for (Py_ssize_t place = 0; outcome == DONE && place < PyList_Size(records); place++) {
        Py_buffer buffer;
        if (PyObject_GetBuffer(PyList_GetItem(records, place), &buffer, PyBUF_SIMPLE) < 0) {
            outcome = FAILED;
            break;
        }
        outcome = add_row((struct text){buffer.buf, buffer.len}, marks, count, rows);
        PyBuffer_Release(&buffer);
    }
    return concluded(outcome, rows);
}

/* What a pull by properties does for each record that it looks at, with nothing but its bytes.
 *
 *     asked_values    the values of some properties of the records of some units   (broker/store/judging.py)
 *
 * It returns None for whatever is not usual, and for whatever is wrong. The records were checked when they were
 * appended; still each number in them is compared with what is left before anything is read by it.
 */
#include "_compiled.h"

enum {
    HELD_MAX = 16 /* records that are found before the first of them is read: they lie far from each other */
};

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
    PyObject *row = outcome == DONE ? PyTuple_New(count) : NULL;
    if (outcome == DONE && row == NULL)
        outcome = FAILED;
    for (Py_ssize_t place = 0; outcome == DONE && place < count; place++) {
        outcome = bytes_of(PyTuple_GetItem(marks, place), &mark);
        if (outcome == DONE) {
            PyObject *value = value_of(properties, mark);
            if (value == NULL || PyTuple_SetItem(row, place, value) < 0) /* which takes the reference */
                outcome = FAILED;
        }
    }
    if (outcome == DONE)
        return append_new(rows, untracked(row));
    Py_XDECREF(row);
    return outcome;
}

/* Where the looking stands. */
struct look {
    PyObject *positions, *stretches;
    Py_ssize_t number; /* of the stretch; -1 before the first */
    int64_t start;     /* of the stretch */
    const char *unit, *end;
    bool is_over; /* a record is not there */
};

/* A record, and what keeps its bytes where they are. */
struct held {
    Py_buffer buffer;
    struct text record;
};

/* Go on to the last stretch that begins at a position or before, if there is one. */
static enum outcome go_to(struct look *look, int64_t position)
{
    Py_ssize_t count = PyList_Size(look->stretches);
    if (count > PyList_Size(look->positions))
        return DECLINED;
    while (look->number + 1 < count) {
        int64_t next;
        enum outcome outcome = number_of(PyList_GetItem(look->positions, look->number + 1), 0, INT64_MAX, &next);
        if (outcome != DONE)
            return outcome;
        if (next > position)
            break;
        look->start = next;
        look->number++;
    }
    return DONE;
}

/* Find the record of the next unit, or that it is not there. */
static enum outcome hold_next(struct look *look, struct held *held)
{
    int64_t position = read_int64(look->unit), size = read_int32(look->unit + 8);
    if (position < look->start || size < 0) /* they ascend, if they are what they should be */
        return DECLINED;
    enum outcome outcome = go_to(look, position);
    if (outcome != DONE)
        return outcome;
    look->is_over = look->number < 0;
    if (look->is_over)
        return DONE;
    if (PyObject_GetBuffer(PyList_GetItem(look->stretches, look->number), &held->buffer, PyBUF_SIMPLE) < 0)
        return FAILED;
    int64_t first = position - look->start;
    look->is_over = size > held->buffer.len || first > held->buffer.len - size;
    if (look->is_over) {
        PyBuffer_Release(&held->buffer);
        return DONE;
    }
    held->record = (struct text){(const char *)held->buffer.buf + first, size};
    look->unit += UNIT_BYTES;
    return DONE;
}

/* Let the processor fetch what will be read of a record: its head, and its end, where properties are. */
static void fetch(struct text record)
{
#ifdef __GNUC__
    if (record.size >= RECORD_BYTES_MIN) {
        __builtin_prefetch(record.start);
        __builtin_prefetch(record.start + RECORD_HEAD_BYTES - 1);
        __builtin_prefetch(record.start + record.size - RECORD_BYTES_MIN);
        __builtin_prefetch(record.start + record.size - 1);
    }
#else
    (void)record;
#endif
}

/* Add the rows of the next records, up to the first that is not there. */
static enum outcome add_rows(struct look *look, PyObject *marks, Py_ssize_t count, PyObject *rows)
{
    struct held some[HELD_MAX];
    int held_count = 0;
    enum outcome outcome = DONE;
    while (held_count < HELD_MAX && look->unit < look->end) {
        outcome = hold_next(look, &some[held_count]);
        if (outcome != DONE || look->is_over)
            break;
        fetch(some[held_count++].record);
    }
    for (int place = 0; place < held_count; place++) {
        if (outcome == DONE)
            outcome = add_row(some[place].record, marks, count, rows);
        PyBuffer_Release(&some[place].buffer);
    }
    return outcome;
}

PyObject *asked_values(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer units;
    PyObject *marks;
    struct look look = {.number = -1};
    if (!PyArg_ParseTuple(arguments, "y*O!O!O!:asked_values", &units, &PyList_Type, &look.positions, &PyList_Type,
                          &look.stretches, &PyTuple_Type, &marks))
        return NULL;
    look.unit = units.buf;
    look.end = look.unit + units.len / UNIT_BYTES * UNIT_BYTES;
    PyObject *rows = PyList_New(0);
    enum outcome outcome = rows == NULL ? FAILED : DONE;
    while (outcome == DONE && look.unit < look.end && !look.is_over)
        outcome = add_rows(&look, marks, PyTuple_Size(marks), rows);
    PyBuffer_Release(&units);
    return concluded(outcome, rows);
}

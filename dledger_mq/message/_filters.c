/* What a pull by properties does for each record that it looks at, with nothing but its bytes.
 *
 *     judged_records    which records of some units a condition wants            (broker/store/judging.py)
 *     asked_values      the values of some properties of the records of some units
 *
 * They return None for whatever is not usual, and for whatever is wrong. The records were checked when they were
 * appended; still each number in them is compared with what is left before anything is read by it.
 */
#include "_compiled.h"

enum {
    HELD_MAX = 16, /* records that are found before the first of them is read: they lie far from each other */
    MARKS_MAX = 512 /* of a filter */
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

static PyObject *new_value(struct text value)
{
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
            PyObject *value = new_value(value_of(properties, mark));
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

/* Find the next records, up to the first that is not there; `count` of them are held, whatever comes of it. */
static enum outcome hold_some(struct look *look, struct held some[HELD_MAX], int *count)
{
    *count = 0;
    while (*count < HELD_MAX && look->unit < look->end) {
        enum outcome outcome = hold_next(look, &some[*count]);
        if (outcome != DONE)
            return outcome;
        if (look->is_over)
            break;
        fetch(some[(*count)++].record);
    }
    return DONE;
}

/* Add the rows of the next records. */
static enum outcome add_rows(struct look *look, PyObject *marks, Py_ssize_t count, PyObject *rows)
{
    struct held some[HELD_MAX];
    int held_count;
    enum outcome outcome = hold_some(look, some, &held_count);
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

/* Verdicts, as they are found. */
struct judged {
    struct properties asked;
    struct text condition;
    Py_ssize_t count;        /* of the records that were looked at */
    PyObject *wanted, *open; /* their numbers */
};

/* Judge the next records. */
static enum outcome judge_some(struct look *look, struct judged *judged)
{
    struct held some[HELD_MAX];
    int held_count;
    enum outcome outcome = hold_some(look, some, &held_count);
    for (int place = 0; place < held_count; place++) {
        enum verdict verdict = UNDECIDED;
        if (outcome == DONE && cut_properties(some[place].record, &judged->asked.text) == DONE)
            verdict = verdict_of(&judged->asked, judged->condition);
        if (outcome == DONE && (verdict == IS_TRUE || verdict == UNDECIDED))
            outcome = append_new(verdict == IS_TRUE ? judged->wanted : judged->open,
                                 PyLong_FromSsize_t(judged->count));
        judged->count++;
        PyBuffer_Release(&some[place].buffer);
    }
    return outcome;
}

static enum outcome read_marks(PyObject *tuple, struct text marks[MARKS_MAX], struct properties *asked)
{
    asked->marks = marks;
    asked->mark_count = PyTuple_Size(tuple);
    enum outcome outcome = asked->mark_count <= MARKS_MAX ? DONE : DECLINED;
    for (Py_ssize_t place = 0; outcome == DONE && place < asked->mark_count; place++)
        outcome = bytes_of(PyTuple_GetItem(tuple, place), &marks[place]);
    return outcome;
}

PyObject *judged_records(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer units;
    PyObject *marks, *condition, *result = NULL;
    struct text texts[MARKS_MAX];
    struct look look = {.number = -1};
    struct judged judged = {.count = 0};
    if (!PyArg_ParseTuple(arguments, "y*O!O!O!S:judged_records", &units, &PyList_Type, &look.positions, &PyList_Type,
                          &look.stretches, &PyTuple_Type, &marks, &condition))
        return NULL;
    look.unit = units.buf;
    look.end = look.unit + units.len / UNIT_BYTES * UNIT_BYTES;
    judged.wanted = PyList_New(0);
    judged.open = PyList_New(0);
    enum outcome outcome = judged.wanted == NULL || judged.open == NULL ? FAILED : DONE;
    if (outcome == DONE)
        outcome = read_marks(marks, texts, &judged.asked);
    if (outcome == DONE)
        outcome = bytes_of(condition, &judged.condition);
    while (outcome == DONE && look.unit < look.end && !look.is_over)
        outcome = judge_some(&look, &judged);
    PyBuffer_Release(&units);
    if (outcome == DONE) {
        result = Py_BuildValue("nOO", judged.count, judged.wanted, judged.open);
        if (result == NULL)
            outcome = FAILED;
    }
    Py_XDECREF(judged.wanted);
    Py_XDECREF(judged.open);
    return concluded(outcome, result);
}

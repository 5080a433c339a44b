/* What a leader does for each send that comes together with others like it.
 *
 *     cut_frames    frames out of what was received                               (dledger_mq/remoting/frame.py)
 *     read_sends    requests whose headers follow a pattern, as staged messages   (broker/server/handlers/send_bursts.py)
 *     join_answers  their answers                                                 (dledger_mq/remoting/replies.py)
 *
 * read_sends takes them in order up to the first that differs in anything but its four numbers and texts; that one,
 * whatever it is, is for others to read. What was received comes from a client and is hostile: each number in it is
 * compared with what is left before anything is read by it.
 */
#include "_compiled.h"

enum {
    SEGMENTS = 5,             /* the bytes between which the four values stand */
    VALUES = 4,
    PROPERTIES_BYTES_MAX = 32767,
    QUEUE_DIGITS_MAX = 9,     /* what fits in 32 and 64 bits whatever the digits */
    BORN_DIGITS_MAX = 18
};

enum value { OPAQUE = 'o', QUEUE = 'q', BORN = 'b', KEY = 'k' };

/* cut_frames. */

enum { FRAME_LENGTH_BYTES = 4, FRAME_HEAD_BYTES = 8, SERIALIZE_TYPE_MAX = 1 };

struct limits {
    int64_t frame_bytes_max, header_bytes_max;
};

/* Make the frame at the beginning of what is left, and go on behind it; DECLINED: it is not there whole, or impossible. */
static enum outcome cut_frame(struct text *left, const struct limits *limits, PyObject *make_frame, PyObject *frames,
                              int64_t *need_bytes)
{
    int64_t length = (uint32_t)read_int32(left->start), head = (uint32_t)read_int32(left->start + FRAME_LENGTH_BYTES);
    int64_t header_bytes = head & 0xFFFFFF, type = head >> 24;
    if (length + FRAME_LENGTH_BYTES > limits->frame_bytes_max || header_bytes > length - FRAME_LENGTH_BYTES ||
        header_bytes > limits->header_bytes_max || type > SERIALIZE_TYPE_MAX) {
        *need_bytes = -1;
        return DECLINED;
    }
    int64_t frame_bytes = FRAME_LENGTH_BYTES + length;
    if (frame_bytes > left->size) {
        *need_bytes = frame_bytes;
        return DECLINED;
    }
    PyObject *type_object = PyLong_FromLongLong(type);
    PyObject *header = PyBytes_FromStringAndSize(left->start + FRAME_HEAD_BYTES, (Py_ssize_t)header_bytes);
    PyObject *body = PyBytes_FromStringAndSize(left->start + FRAME_HEAD_BYTES + header_bytes,
                                               (Py_ssize_t)(frame_bytes - FRAME_HEAD_BYTES - header_bytes));
    PyObject *frame = NULL;
    if (type_object != NULL && header != NULL && body != NULL)
        frame = PyObject_CallFunctionObjArgs(make_frame, type_object, header, body, NULL);
    Py_XDECREF(type_object);
    Py_XDECREF(header);
    Py_XDECREF(body);
    left->start += frame_bytes;
    left->size -= (Py_ssize_t)frame_bytes;
    return append_new(frames, frame);
}

PyObject *cut_frames(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *data, *make_frame;
    Py_ssize_t position;
    long long frame_bytes_max, header_bytes_max;
    struct text left;
    if (!PyArg_ParseTuple(arguments, "OnLLO", &data, &position, &frame_bytes_max, &header_bytes_max, &make_frame))
        return NULL;
    struct limits limits = {frame_bytes_max, header_bytes_max};
    enum outcome outcome = bytes_of(data, &left);
    if (outcome == DONE && (position < 0 || position > left.size))
        outcome = DECLINED;
    PyObject *frames = outcome == DONE ? PyList_New(0) : NULL;
    if (outcome == DONE && frames == NULL)
        outcome = FAILED;
    int64_t need_bytes = FRAME_HEAD_BYTES;
    if (outcome == DONE) {
        const char *start = left.start;
        left = (struct text){start + position, left.size - position};
        while (outcome == DONE && left.size >= FRAME_HEAD_BYTES)
            outcome = cut_frame(&left, &limits, make_frame, frames, &need_bytes);
        if (outcome == DECLINED && need_bytes >= 0)
            outcome = DONE; /* the last one is not there whole */
        position = left.start - start;
    }
    PyObject *result = outcome == DONE ? Py_BuildValue("(OnL)", frames, position, (long long)need_bytes) : NULL;
    Py_XDECREF(frames);
    return concluded(outcome == DONE && result == NULL ? FAILED : outcome, result);
}

/* read_sends. */

struct pattern {
    struct text segments[SEGMENTS];
    const char *order;
};

/* The values of one header. */
struct values {
    int64_t opaque, queue, born;
    struct text key;
};

static bool take_bytes(struct text *left, struct text wanted)
{
    if (left->size < wanted.size || memcmp(left->start, wanted.start, (size_t)wanted.size) != 0)
        return false;
    left->start += wanted.size;
    left->size -= wanted.size;
    return true;
}

/* A number as JSON writes it, without a sign. */
static bool take_digits(struct text *left, int digits_max, int64_t *number)
{
    int64_t value = 0;
    int count = 0;
    while (count < left->size && count < digits_max && left->start[count] >= '0' && left->start[count] <= '9')
        value = value * 10 + (left->start[count++] - '0');
    if (count == 0 || (count > 1 && left->start[0] == '0'))
        return false;
    left->start += count;
    left->size -= count;
    *number = value;
    return true;
}

/* A text in which every byte stands for itself: printable ASCII without what JSON escapes. */
static bool take_key(struct text *left, struct text *key)
{
    Py_ssize_t count = 0;
    while (count < left->size && left->start[count] >= ' ' && left->start[count] <= '~' &&
           left->start[count] != '"' && left->start[count] != '\\')
        count++;
    *key = (struct text){left->start, count};
    left->start += count;
    left->size -= count;
    return count > 0;
}

static bool is_like(struct text header, const struct pattern *pattern, struct values *values)
{
    for (int at = 0; at < VALUES; at++) {
        if (!take_bytes(&header, pattern->segments[at]))
            return false;
        bool is_taken = false;
        switch (pattern->order[at]) {
        case OPAQUE:
            is_taken = take_digits(&header, BORN_DIGITS_MAX, &values->opaque) && values->opaque <= INT32_MAX;
            break;
        case QUEUE:
            is_taken = take_digits(&header, QUEUE_DIGITS_MAX, &values->queue);
            break;
        case BORN:
            is_taken = take_digits(&header, BORN_DIGITS_MAX, &values->born);
            break;
        case KEY:
            is_taken = take_key(&header, &values->key);
            break;
        }
        if (!is_taken)
            return false;
    }
    return take_bytes(&header, pattern->segments[VALUES]) && header.size == 0;
}

static enum outcome pattern_of(PyObject *segments, PyObject *order, struct pattern *pattern)
{
    struct text text;
    enum outcome outcome = bytes_of(order, &text);
    if (outcome == DONE && (text.size != VALUES || !PyTuple_Check(segments) || PyTuple_Size(segments) != SEGMENTS))
        outcome = DECLINED;
    /* Each value is there once, so all of them are set when a header was read. */
    for (const char *each = "oqbk"; outcome == DONE && *each; each++)
        if (memchr(text.start, *each, VALUES) == NULL)
            outcome = DECLINED;
    for (int at = 0; outcome == DONE && at < SEGMENTS; at++)
        outcome = bytes_of(PyTuple_GetItem(segments, at), &pattern->segments[at]);
    pattern->order = text.start;
    return outcome;
}

/* What all sends share, and how much of them is wanted. */
struct burst {
    struct pattern pattern;
    struct text beginning, ending; /* of their properties, around the key */
    PyObject *tag_hash, *keys, *queues, *flags, *flag, *born_host, *zero;
    Py_ssize_t count_max, header_bytes_max, body_bytes_max;
    int64_t room_bytes, besides_bytes, size_bytes;
};

/* The columns that are made. */
enum { MESSAGES, ENDS, KEYS, OPAQUES, COLUMNS };

/* Add a send to the columns; DECLINED: it has no queue, or no room in a record. */
static enum outcome add_send(PyObject **columns, struct burst *burst, const struct values *values, PyObject *body,
                             Py_ssize_t body_bytes)
{
    Py_ssize_t properties_bytes = burst->beginning.size + values->key.size + burst->ending.size;
    if (properties_bytes > PROPERTIES_BYTES_MAX)
        return DECLINED;
    PyObject *queue_id = PyLong_FromLongLong(values->queue);
    PyObject *queue_end = queue_id == NULL ? NULL : PyObject_GetItem(burst->queues, queue_id);
    Py_XDECREF(queue_id);
    if (queue_end == NULL)
        return FAILED;
    if (queue_end == Py_None) {
        Py_DECREF(queue_end);
        return DECLINED;
    }
    PyObject *key = PyBytes_FromStringAndSize(values->key.start, values->key.size);
    PyObject *properties = PyBytes_FromStringAndSize(NULL, properties_bytes);
    if (properties != NULL)
        write_text(write_text(write_text(PyBytes_AsString(properties), burst->beginning), values->key), burst->ending);
    PyObject *born = PyLong_FromLongLong(values->born);
    PyObject *folded = key == NULL ? NULL : untracked(PyTuple_Pack(3, burst->tag_hash, key, burst->keys));
    PyObject *message = NULL;
    if (properties != NULL && born != NULL && folded != NULL)
        message = PyTuple_Pack(10, queue_end, body, properties, burst->flags, born, burst->born_host, burst->flag,
                               burst->zero, burst->zero, folded);
    Py_DECREF(queue_end);
    Py_XDECREF(properties);
    Py_XDECREF(born);
    Py_XDECREF(folded);
    burst->size_bytes += burst->besides_bytes + body_bytes + properties_bytes;
    enum outcome outcome = append_new(columns[MESSAGES], message);
    if (outcome == DONE)
        outcome = append_new(columns[ENDS], PyLong_FromLongLong(burst->size_bytes));
    if (outcome == DONE)
        outcome = append_new(columns[OPAQUES], PyLong_FromLongLong(values->opaque));
    if (outcome == DONE && PyList_Append(columns[KEYS], key) < 0)
        outcome = FAILED;
    Py_XDECREF(key);
    return outcome;
}

/* Read a frame's header and body; DECLINED: they are no plain send like the others. */
static enum outcome take_frame(PyObject *frame, const struct names *names, struct burst *burst, PyObject **columns)
{
    int64_t type;
    struct text header, body;
    struct values values = {0};
    PyObject *type_object = PyObject_GetAttr(frame, names->serialize_type);
    PyObject *header_object = type_object == NULL ? NULL : PyObject_GetAttr(frame, names->header);
    PyObject *body_object = header_object == NULL ? NULL : PyObject_GetAttr(frame, names->body);
    enum outcome outcome = body_object == NULL ? FAILED : number_of(type_object, 0, 0, &type);
    if (outcome == DONE)
        outcome = bytes_of(header_object, &header);
    if (outcome == DONE)
        outcome = bytes_of(body_object, &body);
    if (outcome == DONE && (header.size > burst->header_bytes_max || body.size == 0 ||
                            body.size > burst->body_bytes_max || !is_like(header, &burst->pattern, &values)))
        outcome = DECLINED;
    if (outcome == DONE)
        outcome = add_send(columns, burst, &values, body_object, body.size);
    Py_XDECREF(type_object);
    Py_XDECREF(header_object);
    Py_XDECREF(body_object);
    return outcome;
}

PyObject *read_sends(PyObject *module, PyObject *arguments)
{
    PyObject *frames, *segments, *order, *shape;
    Py_ssize_t first;
    struct burst burst = {0};
    if (!PyArg_ParseTuple(arguments, "OnOOO!OOOOnnnLL", &frames, &first, &segments, &order,
                          &PyTuple_Type, &shape, &burst.queues, &burst.flags, &burst.flag, &burst.born_host,
                          &burst.count_max, &burst.header_bytes_max, &burst.body_bytes_max, &burst.room_bytes,
                          &burst.besides_bytes))
        return NULL;
    if (!PyList_Check(frames) || first < 0 || PyTuple_Size(shape) != 4)
        Py_RETURN_NONE;
    enum outcome outcome = pattern_of(segments, order, &burst.pattern);
    if (outcome == DONE)
        outcome = bytes_of(PyTuple_GetItem(shape, 0), &burst.beginning);
    if (outcome == DONE)
        outcome = bytes_of(PyTuple_GetItem(shape, 1), &burst.ending);
    if (outcome != DONE)
        return concluded(outcome, NULL);
    burst.tag_hash = PyTuple_GetItem(shape, 2);
    burst.keys = PyTuple_GetItem(shape, 3);
    burst.zero = PyLong_FromLong(0);
    PyObject *columns[COLUMNS] = {NULL}, *result = PyTuple_New(COLUMNS);
    outcome = result == NULL || burst.zero == NULL ? FAILED : DONE;
    for (int column = 0; column < COLUMNS && outcome == DONE; column++) {
        columns[column] = PyList_New(0);
        if (columns[column] == NULL || PyTuple_SetItem(result, column, columns[column]) < 0)
            outcome = FAILED;
    }
    /* The queues may run Python code: so the list is asked for its size each time. */
    for (Py_ssize_t at = first; outcome == DONE && at < PyList_Size(frames); at++) {
        if (at - first >= burst.count_max || burst.size_bytes >= burst.room_bytes)
            break;
        PyObject *frame = PyList_GetItem(frames, at);
        Py_INCREF(frame);
        outcome = take_frame(frame, PyModule_GetState(module), &burst, columns);
        Py_DECREF(frame);
    }
    Py_XDECREF(burst.zero);
    return concluded(outcome == DECLINED ? DONE : outcome, result);
}

/* join_answers. */

enum { ANSWER_SEGMENTS = 5, NUMBER_CHARS_MAX = 20, RECORD_PARTS = 7 };

/* The bytes before, between and after an answer's numbers, and all of them together. */
struct answer {
    struct text segments[ANSWER_SEGMENTS];
    Py_ssize_t bytes;
};

static char *write_decimal(char *at, int64_t number)
{
    char digits[NUMBER_CHARS_MAX];
    int count = 0;
    do
        digits[count++] = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    while (count > 0)
        *at++ = digits[--count];
    return at;
}

static char *write_hexadecimal(char *at, int64_t number)
{
    for (int shift = 60; shift >= 0; shift -= 4)
        *at++ = "0123456789ABCDEF"[number >> shift & 0xF];
    return at;
}

/* Write the answer to the send that a record was made of; the room has been seen to. */
static enum outcome write_answer(char **at, const struct answer *answer, PyObject *record, PyObject *opaque_object)
{
    int64_t queue_id, queue_offset, physical_offset, opaque;
    if (!PyTuple_CheckExact(record) || PyTuple_Size(record) != RECORD_PARTS)
        return DECLINED;
    PyObject *key = PyTuple_GetItem(record, 0);
    if (!PyTuple_Check(key) || PyTuple_Size(key) != 2)
        return DECLINED;
    enum outcome outcome = number_of(PyTuple_GetItem(key, 1), 0, INT64_MAX, &queue_id);
    if (outcome == DONE)
        outcome = number_of(PyTuple_GetItem(record, 1), 0, INT64_MAX, &queue_offset);
    if (outcome == DONE)
        outcome = number_of(PyTuple_GetItem(record, 2), 0, INT64_MAX, &physical_offset);
    if (outcome == DONE)
        outcome = number_of(opaque_object, 0, INT64_MAX, &opaque);
    if (outcome != DONE)
        return outcome;
    char *start = *at, *header = start + FRAME_HEAD_BYTES;
    char *end = write_hexadecimal(write_text(header, answer->segments[0]), physical_offset);
    end = write_decimal(write_text(end, answer->segments[1]), queue_id);
    end = write_decimal(write_text(end, answer->segments[2]), queue_offset);
    end = write_decimal(write_text(end, answer->segments[3]), opaque);
    end = write_text(end, answer->segments[4]);
    write_int32(write_int32(start, FRAME_LENGTH_BYTES + (end - header)), end - header);
    *at = end;
    return DONE;
}

PyObject *join_answers(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *segments, *records, *opaques;
    struct answer answer = {.bytes = FRAME_HEAD_BYTES + ANSWER_SEGMENTS * NUMBER_CHARS_MAX};
    if (!PyArg_ParseTuple(arguments, "OOO", &segments, &records, &opaques))
        return NULL;
    if (!PyTuple_Check(segments) || PyTuple_Size(segments) != ANSWER_SEGMENTS || !PyList_Check(records) ||
        !PyList_Check(opaques) || PyList_Size(records) != PyList_Size(opaques))
        Py_RETURN_NONE;
    enum outcome outcome = DONE;
    for (int at = 0; outcome == DONE && at < ANSWER_SEGMENTS; at++) {
        outcome = bytes_of(PyTuple_GetItem(segments, at), &answer.segments[at]);
        if (outcome == DONE && answer.segments[at].size > INT16_MAX)
            outcome = DECLINED;
        if (outcome == DONE)
            answer.bytes += answer.segments[at].size;
    }
    Py_ssize_t count = PyList_Size(records);
    if (outcome == DONE && count > INT32_MAX)
        outcome = DECLINED;
    if (outcome != DONE)
        return concluded(outcome, NULL);
    char *room = PyMem_Malloc((size_t)(count * answer.bytes) + 1), *end = room;
    if (room == NULL)
        return PyErr_NoMemory();
    /* Nothing here runs Python code: the lists stay as they are. */
    for (Py_ssize_t at = 0; outcome == DONE && at < count; at++)
        outcome = write_answer(&end, &answer, PyList_GetItem(records, at), PyList_GetItem(opaques, at));
    PyObject *result = outcome == DONE ? PyBytes_FromStringAndSize(room, end - room) : NULL;
    PyMem_Free(room);
    return concluded(outcome == DONE && result == NULL ? FAILED : outcome, result);
}

/* What a leader does for each send that comes together with others like it.
 *
 *     cut_frames    frames out of what was received                               (dledger_mq/remoting/frame.py)
 *     read_sends    requests whose headers follow a pattern, as staged messages   (broker/server/handlers/send_bursts.py)
 *     join_answers  their answers                                                 (dledger_mq/remoting/replies.py)
 *     each_answer   the same, each by itself                                      (dledger_mq/remoting/replies.py)
 *
 * read_sends takes them in order up to the first that differs from all patterns in anything but its four numbers and
 * texts; that one, whatever it is, is for others to read. What was received comes from a client and is hostile: each
 * number in it is compared with what is left before anything is read by it.
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

/* What all sends share whose headers follow one pattern. Its objects are borrowed from a tuple, which is held. */
struct kind {
    struct pattern pattern;
    struct text beginning, ending; /* of their properties, around the key */
    PyObject *tag_hash, *keys, *queues, *flags, *flag;
    int64_t besides_bytes;
};

enum { KINDS_MAX = 64, KIND_PARTS = 7 };

/* What all sends share, and how much of them is wanted. */
struct burst {
    struct kind kinds[KINDS_MAX];
    int kind_count, last; /* the kind of the send before: mostly the next one is of it, too */
    PyObject *born_hosts, *zero;
    Py_ssize_t count_max, header_bytes_max, body_bytes_max;
    int64_t room_bytes, size_bytes;
};

/* The columns that are made. */
enum { MESSAGES, ENDS, KEYS, OPAQUES, COLUMNS };

/* The born host of the send at a place: all have one, or each its own. Borrowed. */
static PyObject *born_host_at(const struct burst *burst, Py_ssize_t at)
{
    return PyBytes_Check(burst->born_hosts) ? burst->born_hosts : PyList_GetItem(burst->born_hosts, at);
}

/* Add a send to the columns; DECLINED: it has no queue, or no room in a record. */
static enum outcome add_send(PyObject **columns, struct burst *burst, const struct kind *kind,
                             const struct values *values, PyObject *body, Py_ssize_t body_bytes, Py_ssize_t at)
{
    Py_ssize_t properties_bytes = kind->beginning.size + values->key.size + kind->ending.size;
    if (properties_bytes > PROPERTIES_BYTES_MAX)
        return DECLINED;
    PyObject *queue_id = PyLong_FromLongLong(values->queue);
    PyObject *queue_end = queue_id == NULL ? NULL : PyObject_GetItem(kind->queues, queue_id);
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
        write_text(write_text(write_text(PyBytes_AsString(properties), kind->beginning), values->key), kind->ending);
    PyObject *born = PyLong_FromLongLong(values->born);
    PyObject *folded = key == NULL ? NULL : untracked(PyTuple_Pack(3, kind->tag_hash, key, kind->keys));
    PyObject *born_host = born_host_at(burst, at), *message = NULL;
    if (properties != NULL && born != NULL && folded != NULL && born_host != NULL)
        message = PyTuple_Pack(10, queue_end, body, properties, kind->flags, born, born_host, kind->flag, burst->zero,
                               burst->zero, folded);
    Py_DECREF(queue_end);
    Py_XDECREF(properties);
    Py_XDECREF(born);
    Py_XDECREF(folded);
    burst->size_bytes += kind->besides_bytes + body_bytes + properties_bytes;
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

/* The kind that a header is of, with its values; NULL: none. */
static const struct kind *kind_of(struct text header, struct burst *burst, struct values *values)
{
    for (int tried = 0; tried < burst->kind_count; tried++) {
        int at = (burst->last + tried) % burst->kind_count;
        if (is_like(header, &burst->kinds[at].pattern, values)) {
            burst->last = at;
            return &burst->kinds[at];
        }
    }
    return NULL;
}

/* Read a frame's header and body; DECLINED: they are no plain send like the others. */
static enum outcome take_frame(PyObject *frame, Py_ssize_t at, const struct names *names, struct burst *burst,
                               PyObject **columns)
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
    const struct kind *kind = NULL;
    if (outcome == DONE && header.size <= burst->header_bytes_max && body.size > 0 && body.size <= burst->body_bytes_max)
        kind = kind_of(header, burst, &values);
    if (outcome == DONE)
        outcome = kind == NULL ? DECLINED : add_send(columns, burst, kind, &values, body_object, body.size, at);
    Py_XDECREF(type_object);
    Py_XDECREF(header_object);
    Py_XDECREF(body_object);
    return outcome;
}

static enum outcome read_kind(PyObject *parts, struct kind *kind)
{
    if (!PyTuple_Check(parts) || PyTuple_Size(parts) != KIND_PARTS)
        return DECLINED;
    PyObject *shape = PyTuple_GetItem(parts, 2);
    if (!PyTuple_Check(shape) || PyTuple_Size(shape) != 4)
        return DECLINED;
    enum outcome outcome = pattern_of(PyTuple_GetItem(parts, 0), PyTuple_GetItem(parts, 1), &kind->pattern);
    if (outcome == DONE)
        outcome = bytes_of(PyTuple_GetItem(shape, 0), &kind->beginning);
    if (outcome == DONE)
        outcome = bytes_of(PyTuple_GetItem(shape, 1), &kind->ending);
    kind->tag_hash = PyTuple_GetItem(shape, 2);
    kind->keys = PyTuple_GetItem(shape, 3);
    kind->queues = PyTuple_GetItem(parts, 3);
    kind->flags = PyTuple_GetItem(parts, 4);
    kind->flag = PyTuple_GetItem(parts, 5);
    if (outcome == DONE)
        outcome = number_of(PyTuple_GetItem(parts, 6), 0, INT32_MAX, &kind->besides_bytes);
    return outcome;
}

/* Kinds out of a tuple, which holds all that they have. */
static enum outcome read_kinds(PyObject *kinds, struct burst *burst)
{
    enum outcome outcome = PyTuple_Size(kinds) <= KINDS_MAX ? DONE : DECLINED;
    for (Py_ssize_t at = 0; outcome == DONE && at < PyTuple_Size(kinds); at++)
        outcome = read_kind(PyTuple_GetItem(kinds, at), &burst->kinds[burst->kind_count++]);
    return outcome;
}

PyObject *read_sends(PyObject *module, PyObject *arguments)
{
    PyObject *frames, *kinds;
    Py_ssize_t first;
    long long room_bytes, size_bytes;
    struct burst burst;
    burst.kind_count = burst.last = 0;
    if (!PyArg_ParseTuple(arguments, "OnO!OnnnLL", &frames, &first, &PyTuple_Type, &kinds, &burst.born_hosts,
                          &burst.count_max, &burst.header_bytes_max, &burst.body_bytes_max, &room_bytes, &size_bytes))
        return NULL;
    burst.room_bytes = room_bytes;
    burst.size_bytes = size_bytes;
    if (!PyList_Check(frames) || first < 0 || !(PyBytes_Check(burst.born_hosts) || PyList_Check(burst.born_hosts)))
        Py_RETURN_NONE;
    enum outcome outcome = read_kinds(kinds, &burst);
    if (outcome != DONE)
        return concluded(outcome, NULL);
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
        outcome = take_frame(frame, at, PyModule_GetState(module), &burst, columns);
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

/* The bytes of answers; DECLINED: they are not five, or too long. */
static enum outcome answer_of(PyObject *segments, struct answer *answer)
{
    answer->bytes = FRAME_HEAD_BYTES + ANSWER_SEGMENTS * NUMBER_CHARS_MAX;
    if (!PyTuple_Check(segments) || PyTuple_Size(segments) != ANSWER_SEGMENTS)
        return DECLINED;
    enum outcome outcome = DONE;
    for (int at = 0; outcome == DONE && at < ANSWER_SEGMENTS; at++) {
        outcome = bytes_of(PyTuple_GetItem(segments, at), &answer->segments[at]);
        if (outcome == DONE && answer->segments[at].size > INT16_MAX)
            outcome = DECLINED;
        if (outcome == DONE)
            answer->bytes += answer->segments[at].size;
    }
    return outcome;
}

/* Records and the opaque numbers of as many requests. */
static enum outcome are_as_many(PyObject *records, PyObject *opaques)
{
    if (!PyList_Check(records) || !PyList_Check(opaques) || PyList_Size(records) != PyList_Size(opaques) ||
        PyList_Size(records) > INT32_MAX)
        return DECLINED;
    return DONE;
}

PyObject *join_answers(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *segments, *records, *opaques;
    struct answer answer;
    if (!PyArg_ParseTuple(arguments, "OOO", &segments, &records, &opaques))
        return NULL;
    enum outcome outcome = are_as_many(records, opaques);
    if (outcome == DONE)
        outcome = answer_of(segments, &answer);
    if (outcome != DONE)
        return concluded(outcome, NULL);
    Py_ssize_t count = PyList_Size(records);
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

PyObject *each_answer(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *segments, *records, *opaques;
    struct answer answer;
    if (!PyArg_ParseTuple(arguments, "OOO", &segments, &records, &opaques))
        return NULL;
    enum outcome outcome = are_as_many(records, opaques);
    if (outcome == DONE)
        outcome = answer_of(segments, &answer);
    if (outcome != DONE)
        return concluded(outcome, NULL);
    char *room = PyMem_Malloc((size_t)answer.bytes);
    PyObject *result = room == NULL ? PyErr_NoMemory() : PyList_New(0);
    outcome = result == NULL ? FAILED : DONE;
    for (Py_ssize_t at = 0; outcome == DONE && at < PyList_Size(records); at++) {
        char *end = room;
        outcome = write_answer(&end, &answer, PyList_GetItem(records, at), PyList_GetItem(opaques, at));
        if (outcome == DONE)
            outcome = append_new(result, PyBytes_FromStringAndSize(room, end - room));
    }
    PyMem_Free(room);
    return concluded(outcome, result);
}

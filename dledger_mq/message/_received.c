/* What a client does for each message that a pull brought.
 *
 *     received_messages    the messages themselves, of plain records   (dledger_mq/client/pulled_messages.py)
 *
 * It returns None for whatever is not plain, and for whatever is wrong. Each number in the bytes is compared with what is
 * left before anything is read by it.
 */
#include "_compiled.h"

enum {
    COMPRESSED_FLAG = 0x1,
    NAMES_KEPT = 16,  /* of the properties of a record, by their places */
    TEXT_BYTES = 32,  /* of an offset message id */
    HOST_BYTES = 8
};

/* What was asked for, and what makes a message of it. */
struct asked {
    PyObject *topic, *queue, *tags, *sum_up, *make, *no_keys;
    struct text topic_piece;
    int64_t queue_id, offset, next_offset;
};

/* The names that the records had so far, by the place of each among the properties: most records have the same. */
struct name {
    struct text text;
    PyObject *object;
};

/* What the properties of a record say. Borrowed, but for `pairs`. */
struct labels {
    PyObject *pairs, *unique_key, *tags, *keys;
};

static PyObject *text_object(struct text text)
{
    return PyUnicode_DecodeUTF8(text.start, text.size, NULL);
}

/* FAILED is also what is no UTF-8; whoever calls tells it from the rest. */
static enum outcome name_object(struct name *names, int place, struct text text, PyObject **object)
{
    if (place >= NAMES_KEPT) {
        *object = text_object(text);
        return *object == NULL ? FAILED : DONE;
    }
    struct name *name = &names[place];
    if (name->object == NULL || !is_equal(name->text, text)) {
        PyObject *made = text_object(text);
        if (made == NULL)
            return FAILED;
        PyUnicode_InternInPlace(&made);
        Py_XDECREF(name->object);
        name->object = made;
        name->text = text;
    }
    *object = Py_NewRef(name->object);
    return DONE;
}

static enum outcome read_pair(struct text pair, struct name *names, int place, struct labels *labels)
{
    const char *mark = memchr(pair.start, '\x01', (size_t)pair.size);
    if (mark == NULL || mark == pair.start || mark + 1 == pair.start + pair.size)
        return DECLINED; /* no property; only whether it is UTF-8 would matter */
    struct text name = {pair.start, mark - pair.start};
    struct text text = {mark + 1, pair.start + pair.size - mark - 1};
    PyObject *key, *value;
    if (name_object(names, place, name, &key) != DONE)
        return FAILED;
    value = text_object(text);
    int result = value == NULL ? -1 : PyDict_SetItem(labels->pairs, key, value);
    Py_DECREF(key);
    Py_XDECREF(value);
    if (result < 0)
        return FAILED;
    if (name.size == 8 && memcmp(name.start, "UNIQ_KEY", 8) == 0)
        labels->unique_key = value;
    else if (name.size == 4 && memcmp(name.start, "TAGS", 4) == 0)
        labels->tags = value;
    else if (name.size == 4 && memcmp(name.start, "KEYS", 4) == 0)
        labels->keys = value;
    return DONE;
}

static enum outcome read_labels(struct text properties, struct name *names, struct labels *labels)
{
    const char *at = properties.start, *end = properties.start + properties.size;
    labels->pairs = PyDict_New();
    if (labels->pairs == NULL)
        return FAILED;
    for (int place = 0; at < end; place++) {
        const char *mark = memchr(at, PAIR_END, (size_t)(end - at));
        const char *pair_end = mark == NULL ? end : mark;
        enum outcome outcome = read_pair((struct text){at, pair_end - at}, names, place < NAMES_KEPT ? place : NAMES_KEPT, labels);
        if (outcome != DONE)
            return outcome;
        at = pair_end + 1;
    }
    return DONE;
}

static PyObject *message_id(const char *host, uint64_t physical_offset)
{
    static const char digits[] = "0123456789ABCDEF";
    char text[TEXT_BYTES];
    for (int place = 0; place < HOST_BYTES; place++) {
        text[2 * place] = digits[(unsigned char)host[place] >> 4];
        text[2 * place + 1] = digits[(unsigned char)host[place] & 0xF];
    }
    for (int place = TEXT_BYTES - 1; place >= 2 * HOST_BYTES; place--, physical_offset >>= 4)
        text[place] = digits[physical_offset & 0xF];
    return PyUnicode_FromStringAndSize(text, TEXT_BYTES);
}

/* Sum up a body and compare; DECLINED: it is damaged. */
static enum outcome check_body(const struct asked *asked, PyObject *body, int32_t crc)
{
    int64_t sum;
    PyObject *summed = PyObject_CallFunctionObjArgs(asked->sum_up, body, NULL);
    enum outcome outcome = number_of(summed, 0, UINT32_MAX, &sum);
    Py_XDECREF(summed);
    return outcome != DONE ? outcome : (sum & 0x7FFFFFFF) == crc ? DONE : DECLINED;
}

static PyObject *keys_of(const struct asked *asked, PyObject *keys)
{
    if (keys == NULL)
        return Py_NewRef(asked->no_keys);
    PyObject *list = PyUnicode_Split(keys, NULL, -1);
    PyObject *tuple = list == NULL ? NULL : PyList_AsTuple(list);
    Py_XDECREF(list);
    return tuple;
}

/* Make a message of a record that was checked. */
static PyObject *make_message(const struct asked *asked, const char *record, PyObject *body, const struct labels *labels)
{
    PyObject *id = message_id(record + 64, (uint64_t)read_int64(record + 28));
    PyObject *keys = keys_of(asked, labels->keys);
    PyObject *message = NULL, *arguments = NULL;
    if (id != NULL && keys != NULL)
        arguments = Py_BuildValue("(OOOLLOOOOOiLLi)", asked->topic, body, asked->queue, (long long)read_int64(record + 20),
                                  (long long)read_int64(record + 28), id, labels->unique_key ? labels->unique_key : id,
                                  labels->tags ? labels->tags : Py_None, keys, labels->pairs, (int)read_int32(record + 16),
                                  (long long)read_int64(record + 40), (long long)read_int64(record + 56),
                                  (int)read_int32(record + 72));
    if (arguments != NULL)
        message = PyObject_Call(asked->make, arguments, NULL);
    Py_XDECREF(arguments);
    Py_XDECREF(id);
    Py_XDECREF(keys);
    return message;
}

/* Read one record, of `size` bytes that are there, and append its message if it is wanted. */
static enum outcome read_record(const struct asked *asked, const char *record, int64_t size, struct name *names, PyObject *messages)
{
    int64_t body_bytes = read_int32(record + RECORD_HEAD_BYTES - 4), queue_offset = read_int64(record + 20);
    const char *topic = record + RECORD_HEAD_BYTES + body_bytes;
    if (read_int32(record + 4) != RECORD_MAGIC || read_int32(record + 12) != asked->queue_id || body_bytes < 0 ||
        read_int32(record + 36) & (COMPRESSED_FLAG | 0x10 | 0x20) || read_int64(record + 28) < 0 ||
        RECORD_HEAD_BYTES + body_bytes + asked->topic_piece.size + 2 > size ||
        !is_equal((struct text){topic, asked->topic_piece.size}, asked->topic_piece))
        return DECLINED;
    const char *text = topic + asked->topic_piece.size + 2;
    struct text properties = {text, record + size - text};
    if ((uint16_t)read_int16(text - 2) != properties.size)
        return DECLINED;
    PyObject *body = PyBytes_FromStringAndSize(record + RECORD_HEAD_BYTES, (Py_ssize_t)body_bytes);
    enum outcome outcome = body == NULL ? FAILED : check_body(asked, body, read_int32(record + 8));
    if (outcome == DONE && queue_offset >= asked->offset) {
        struct labels labels = {0};
        outcome = read_labels(properties, names, &labels);
        if (outcome == FAILED && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
            PyErr_Clear();
            outcome = DECLINED;
        }
        int wanted = outcome != DONE ? 0 : asked->tags == Py_None ? 1 : labels.tags ? PySet_Contains(asked->tags, labels.tags) : 0;
        if (wanted < 0)
            outcome = FAILED;
        else if (wanted)
            outcome = append_new(messages, make_message(asked, record, body, &labels));
        Py_XDECREF(labels.pairs);
    }
    Py_XDECREF(body);
    return outcome;
}

static enum outcome read_records(const struct asked *asked, struct text records, PyObject *messages)
{
    struct name names[NAMES_KEPT] = {{{NULL, 0}, NULL}};
    enum outcome outcome = DONE;
    int64_t last = -1;
    const char *at = records.start, *end = records.start + records.size;
    while (outcome == DONE && at < end) {
        int64_t size = end - at < RECORD_BYTES_MIN ? -1 : read_int32(at);
        if (size < RECORD_BYTES_MIN || size > end - at) {
            outcome = DECLINED;
            break;
        }
        int64_t queue_offset = read_int64(at + 20);
        outcome = last < queue_offset && queue_offset < asked->next_offset ? read_record(asked, at, size, names, messages)
                                                                         : DECLINED;
        last = queue_offset;
        at += size;
    }
    for (int place = 0; place < NAMES_KEPT; place++)
        Py_XDECREF(names[place].object);
    return outcome;
}

PyObject *received_messages(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    struct asked asked;
    struct text records;
    PyObject *bytes, *piece, *queue_id, *offset, *next_offset, *messages = NULL;
    if (!PyArg_ParseTuple(arguments, "OOOOOOOOOO:received_messages", &bytes, &piece, &queue_id, &offset, &next_offset,
                          &asked.topic, &asked.queue, &asked.tags, &asked.sum_up, &asked.make))
        return NULL;
    asked.no_keys = PyTuple_New(0);
    enum outcome outcome = asked.no_keys == NULL ? FAILED : bytes_of(bytes, &records);
    if (outcome == DONE)
        outcome = bytes_of(piece, &asked.topic_piece);
    if (outcome == DONE)
        outcome = number_of(queue_id, INT32_MIN, INT32_MAX, &asked.queue_id);
    if (outcome == DONE)
        outcome = number_of(offset, INT64_MIN, INT64_MAX, &asked.offset);
    if (outcome == DONE)
        outcome = number_of(next_offset, INT64_MIN, INT64_MAX, &asked.next_offset);
    if (outcome == DONE && asked.tags != Py_None && !PyAnySet_Check(asked.tags))
        outcome = DECLINED;
    if (outcome == DONE) {
        messages = PyList_New(0);
        outcome = messages == NULL ? FAILED : read_records(&asked, records, messages);
    }
    Py_XDECREF(asked.no_keys);
    return concluded(outcome, messages);
}

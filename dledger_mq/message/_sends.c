/* What a leader does for each message that is sent, with nothing but its bytes.
 *
 *     read_batch      the items of a batch whose properties are plain         (broker/service/shapes.py)
 *     batch_keys      their unique keys alone                                 (broker/service/shapes.py)
 *     batch_records   these items as records, but for their places and time   (broker/store/entry_bodies.py)
 *     place_records   such records as those of an entry                       (broker/store/entry_bodies.py)
 *     encode_records  staged messages as the records of an entry              (broker/store/entry_bodies.py)
 *
 * All return None for whatever is not usual, and for whatever is wrong, and have changed nothing then.
 *
 * The bytes of a batch come from a client and are hostile. Each number in them is compared with what is left before
 * anything is read by it; lengths are compared by subtraction from what is left, so that no sum overflows. What is
 * written is compared with the room that is left, record by record, since callbacks run in between.
 */
#include "_compiled.h"

enum {
    ITEM_HEAD_BYTES = 20,      /* size, magic, crc, flag, body length */
    ITEM_BYTES_MIN = 22,       /* and the length of the properties */
    PROPERTIES_BYTES_MAX = 32767,
    TOPIC_FIELD_BYTES_MAX = 128,
    PROPERTIES_LENGTH_BYTES = 2,
    HOST_BYTES = 8
};

#define NAME_END '\x01'

/* read_batch. */

struct item {
    int32_t flag;
    struct text body, properties;
};

/* Cut the first item off what is left of a batch. */
static enum outcome cut_item(struct text *left, struct item *item)
{
    if (left->size < ITEM_BYTES_MIN)
        return DECLINED;
    int32_t size = read_int32(left->start);
    if (size < ITEM_BYTES_MIN || size > left->size)
        return DECLINED;
    item->flag = read_int32(left->start + 12);
    int32_t body_bytes = read_int32(left->start + 16);
    if (body_bytes < 0 || body_bytes > size - ITEM_BYTES_MIN)
        return DECLINED;
    item->body = (struct text){left->start + ITEM_HEAD_BYTES, body_bytes};
    const char *body_end = item->body.start + body_bytes;
    if (read_int16(body_end) != size - ITEM_BYTES_MIN - body_bytes)
        return DECLINED;
    item->properties = (struct text){body_end + 2, size - ITEM_BYTES_MIN - body_bytes};
    left->start += size;
    left->size -= size;
    return DONE;
}

/* Properties around the value of the first UNIQ_KEY. */
struct cut {
    struct text before, key, rest;
};

static enum outcome cut_key(struct text properties, struct cut *cut)
{
    const char *mark = find(properties, KEY_MARK, KEY_MARK_BYTES);
    if (mark == NULL)
        return DECLINED;
    const char *end = properties.start + properties.size, *key = mark + KEY_MARK_BYTES;
    const char *key_end = memchr(key, PAIR_END, (size_t)(end - key));
    if (key_end == NULL || key_end == key || (mark > properties.start && mark[-1] != PAIR_END))
        return DECLINED;
    if (memchr(key, NAME_END, (size_t)(key_end - key)) != NULL)
        return DECLINED;
    cut->before = (struct text){properties.start, mark - properties.start};
    cut->key = (struct text){key, key_end - key};
    cut->rest = (struct text){key_end + 1, end - key_end - 1};
    return DONE;
}

/* The shape that was asked for last; it holds for what has the same bytes around its key. */
struct shape {
    PyObject *object;           /* of which the others are parts; NULL at first */
    struct text before, rest;   /* in the batch */
    struct text beginning, ending;
    PyObject *tag_hash, *keys;
};

static enum outcome ask_shape(PyObject *shape_of, const struct cut *cut, struct shape *shape)
{
    Py_CLEAR(shape->object);
    PyObject *found = PyObject_CallFunction(
        shape_of, "y#y#", cut->before.start, cut->before.size, cut->rest.start, cut->rest.size);
    if (found == NULL)
        return FAILED;
    shape->object = found;
    if (found == Py_None)
        return DECLINED;
    if (!PyTuple_Check(found) || PyTuple_Size(found) != 4) {
        PyErr_SetString(PyExc_TypeError, "a shape has four parts");
        return FAILED;
    }
    shape->before = cut->before;
    shape->rest = cut->rest;
    enum outcome outcome = bytes_of(PyTuple_GetItem(found, 0), &shape->beginning);
    if (outcome == DONE)
        outcome = bytes_of(PyTuple_GetItem(found, 1), &shape->ending);
    shape->tag_hash = PyTuple_GetItem(found, 2);
    shape->keys = PyTuple_GetItem(found, 3);
    return outcome;
}

/* The properties as they stand in the record; NULL: there is no memory. */
static PyObject *stored_properties(const struct shape *shape, struct text key)
{
    Py_ssize_t size = shape->beginning.size + key.size + shape->ending.size;
    PyObject *stored = PyBytes_FromStringAndSize(NULL, size);
    if (stored != NULL)
        write_text(write_text(write_text(PyBytes_AsString(stored), shape->beginning), key), shape->ending);
    return stored;
}

/* Flags, bodies, properties as stored, unique keys, what the fold needs. */
enum { FLAGS, BODIES, PROPERTIES, KEYS, FOLDED, COLUMNS };

static enum outcome add_item(PyObject **columns, const struct item *item, const struct shape *shape, struct text key)
{
    if (append_new(columns[FLAGS], PyLong_FromLong(item->flag)) != DONE)
        return FAILED;
    if (append_new(columns[BODIES], PyBytes_FromStringAndSize(item->body.start, item->body.size)) != DONE)
        return FAILED;
    if (append_new(columns[PROPERTIES], stored_properties(shape, key)) != DONE)
        return FAILED;
    PyObject *text = PyBytes_FromStringAndSize(key.start, key.size);
    if (text == NULL)
        return FAILED;
    enum outcome outcome = append_new(columns[FOLDED], untracked(PyTuple_Pack(3, shape->tag_hash, text, shape->keys)));
    if (outcome == DONE && PyList_Append(columns[KEYS], text) < 0)
        outcome = FAILED;
    Py_DECREF(text);
    return outcome;
}

/* Cut the next item off, find its key, and have its shape at hand. */
static enum outcome next_item(struct text *left, PyObject *shape_of, struct shape *shape, struct item *item, struct cut *cut)
{
    if (cut_item(left, item) != DONE || cut_key(item->properties, cut) != DONE)
        return DECLINED;
    if (shape->object == NULL || !is_equal(cut->before, shape->before) || !is_equal(cut->rest, shape->rest)) {
        enum outcome outcome = ask_shape(shape_of, cut, shape);
        if (outcome != DONE)
            return outcome;
    }
    return cut->key.size > PROPERTIES_BYTES_MAX - shape->beginning.size - shape->ending.size ? DECLINED : DONE;
}

static enum outcome read_items(struct text left, Py_ssize_t items_max, PyObject *shape_of, struct shape *shape,
                               PyObject **columns)
{
    struct item item;
    struct cut cut;
    if (left.size == 0)
        return DECLINED;
    for (Py_ssize_t count = 0; left.size > 0; count++) {
        if (count == items_max)
            return DECLINED;
        enum outcome outcome = next_item(&left, shape_of, shape, &item, &cut);
        if (outcome != DONE)
            return outcome;
        if (add_item(columns, &item, shape, cut.key) != DONE)
            return FAILED;
    }
    return DONE;
}

PyObject *read_batch(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *data, *shape_of;
    Py_ssize_t items_max;
    struct text left;
    struct shape shape = {0};
    if (!PyArg_ParseTuple(arguments, "SnO", &data, &items_max, &shape_of))
        return NULL;
    if (bytes_of(data, &left) != DONE)
        Py_RETURN_NONE;
    PyObject *columns[COLUMNS] = {NULL}, *result = PyTuple_New(COLUMNS);
    enum outcome outcome = result == NULL ? FAILED : DONE;
    for (int column = 0; column < COLUMNS && outcome == DONE; column++) {
        columns[column] = PyList_New(0);
        if (columns[column] == NULL || PyTuple_SetItem(result, column, columns[column]) < 0)
            outcome = FAILED;
    }
    if (outcome == DONE)
        outcome = read_items(left, items_max, shape_of, &shape, columns);
    Py_XDECREF(shape.object);
    return concluded(outcome, result);
}

/* batch_keys. */

static enum outcome find_keys(struct text left, Py_ssize_t items_max, PyObject *shape_of, struct shape *shape,
                              PyObject *keys)
{
    struct item item;
    struct cut cut;
    if (left.size == 0)
        return DECLINED;
    for (Py_ssize_t count = 0; left.size > 0; count++) {
        if (count == items_max)
            return DECLINED;
        enum outcome outcome = next_item(&left, shape_of, shape, &item, &cut);
        if (outcome == DONE && shape->keys != Py_None)
            outcome = DECLINED;
        if (outcome != DONE)
            return outcome;
        if (append_new(keys, PyBytes_FromStringAndSize(cut.key.start, cut.key.size)) != DONE)
            return FAILED;
    }
    return DONE;
}

PyObject *batch_keys(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *data, *shape_of;
    Py_ssize_t items_max;
    struct text left;
    struct shape shape = {0};
    if (!PyArg_ParseTuple(arguments, "SnO", &data, &items_max, &shape_of))
        return NULL;
    if (bytes_of(data, &left) != DONE)
        Py_RETURN_NONE;
    PyObject *keys = PyList_New(0);
    enum outcome outcome = keys == NULL ? FAILED : find_keys(left, items_max, shape_of, &shape, keys);
    Py_XDECREF(shape.object);
    return concluded(outcome, keys);
}

/* encode_records. */

/* A staged message, taken apart; all objects are borrowed from its tuple. */
struct message {
    PyObject *queue_end, *body_object, *properties_object, *folded;
    struct text body, properties, host;
    int64_t sys_flag, born_ms, flag, times, prepared;
};

static enum outcome take_apart(PyObject *tuple, struct message *message)
{
    if (tuple == NULL)
        return FAILED;
    if (!PyTuple_CheckExact(tuple) || PyTuple_Size(tuple) != 10)
        return DECLINED;
    message->queue_end = PyTuple_GetItem(tuple, 0);
    message->body_object = PyTuple_GetItem(tuple, 1);
    message->properties_object = PyTuple_GetItem(tuple, 2);
    message->folded = PyTuple_GetItem(tuple, 9);
    enum outcome outcome = bytes_of(message->body_object, &message->body);
    if (outcome == DONE)
        outcome = bytes_of(message->properties_object, &message->properties);
    if (outcome == DONE)
        outcome = number_of(PyTuple_GetItem(tuple, 3), 0, INT32_MAX, &message->sys_flag);
    if (outcome == DONE)
        outcome = number_of(PyTuple_GetItem(tuple, 4), INT64_MIN, INT64_MAX, &message->born_ms);
    if (outcome == DONE)
        outcome = bytes_of(PyTuple_GetItem(tuple, 5), &message->host);
    if (outcome == DONE)
        outcome = number_of(PyTuple_GetItem(tuple, 6), INT32_MIN, INT32_MAX, &message->flag);
    if (outcome == DONE)
        outcome = number_of(PyTuple_GetItem(tuple, 7), INT32_MIN, INT32_MAX, &message->times);
    if (outcome == DONE)
        outcome = number_of(PyTuple_GetItem(tuple, 8), INT64_MIN, INT64_MAX, &message->prepared);
    if (outcome == DONE &&
        (message->host.size != HOST_BYTES || (message->sys_flag & UNUSUAL_FLAGS) ||
         message->properties.size > PROPERTIES_BYTES_MAX))
        outcome = DECLINED;
    return outcome;
}

/* The end of a queue. Its object is borrowed from a message, and NULL in an empty place. */
struct queue {
    PyObject *end;
    PyObject *key, *topic_field_object; /* owned */
    struct text topic_field;
    int64_t id, next_offset;
    bool has_moved;
};

/* Ends of queues that messages went into lately, each in the place that its address says. */
enum { QUEUES = 64, ADDRESS_STEP = 16 };

struct queues {
    const struct names *names;
    struct queue places[QUEUES];
};

/* Write down the offset that the next message of the queue gets. */
static enum outcome note_next_offset(struct queue *queue, const struct names *names)
{
    if (!queue->has_moved)
        return DONE;
    PyObject *next_offset = PyLong_FromLongLong(queue->next_offset);
    if (next_offset == NULL)
        return FAILED;
    int result = PyObject_SetAttr(queue->end, names->next_offset, next_offset);
    Py_DECREF(next_offset);
    queue->has_moved = false;
    return result < 0 ? FAILED : DONE;
}

static void leave_queue(struct queue *queue)
{
    queue->end = NULL;
    Py_CLEAR(queue->key);
    Py_CLEAR(queue->topic_field_object);
}

static enum outcome enter_queue(PyObject *end, const struct names *names, struct queue *queue)
{
    queue->end = end;
    queue->key = PyObject_GetAttr(end, names->key);
    if (queue->key == NULL)
        return FAILED;
    queue->topic_field_object = PyObject_GetAttr(end, names->topic_field);
    PyObject *next_offset = queue->topic_field_object == NULL ? NULL : PyObject_GetAttr(end, names->next_offset);
    if (next_offset == NULL)
        return FAILED;
    enum outcome outcome = number_of(next_offset, 0, INT64_MAX - INT32_MAX, &queue->next_offset);
    Py_DECREF(next_offset);
    if (outcome == DONE && (!PyTuple_Check(queue->key) || PyTuple_Size(queue->key) != 2))
        outcome = DECLINED;
    if (outcome == DONE)
        outcome = number_of(PyTuple_GetItem(queue->key, 1), INT32_MIN, INT32_MAX, &queue->id);
    if (outcome == DONE)
        outcome = bytes_of(queue->topic_field_object, &queue->topic_field);
    if (outcome == DONE && (queue->topic_field.size == 0 || queue->topic_field.size > TOPIC_FIELD_BYTES_MAX))
        outcome = DECLINED;  /* a topic as long as that stands in a V2 record */
    return outcome;
}

/* Find the end of a queue. It holds until the next one is looked for. */
static enum outcome find_queue(PyObject *end, struct queues *queues, struct queue **found)
{
    struct queue *queue = &queues->places[(uintptr_t)end / ADDRESS_STEP % QUEUES];
    *found = queue;
    if (queue->end == end)
        return DONE;
    if (note_next_offset(queue, queues->names) != DONE)
        return FAILED;
    leave_queue(queue);
    return enter_queue(end, queues->names, queue);
}

/* Forget all ends; what has moved is written down if all went well. */
static enum outcome leave_queues(struct queues *queues, enum outcome outcome)
{
    for (int place = 0; place < QUEUES; place++) {
        if (outcome == DONE)
            outcome = note_next_offset(&queues->places[place], queues->names);
        leave_queue(&queues->places[place]);
    }
    return outcome;
}

static enum outcome size_of(const struct message *message, const struct queue *queue, int64_t *size)
{
    int64_t besides = RECORD_HEAD_BYTES + queue->topic_field.size + PROPERTIES_LENGTH_BYTES + message->properties.size;
    if (message->body.size > INT32_MAX - besides)
        return DECLINED;
    *size = besides + message->body.size;
    return DONE;
}

/* Add up the records of all messages, and see that all of them are usual. Nothing is changed. */
static enum outcome measure(PyObject *messages, struct queues *queues, Py_ssize_t *total)
{
    struct message message;
    struct queue *queue;
    Py_ssize_t count = PyTuple_Size(messages);
    *total = 0;
    for (Py_ssize_t place = 0; place < count; place++) {
        int64_t size;
        enum outcome outcome = take_apart(PyTuple_GetItem(messages, place), &message);
        if (outcome == DONE)
            outcome = find_queue(message.queue_end, queues, &queue);
        if (outcome == DONE)
            outcome = size_of(&message, queue, &size);
        if (outcome != DONE)
            return outcome;
        if (size > INT32_MAX - *total)
            return DECLINED;
        *total += (Py_ssize_t)size;
    }
    return DONE;
}

/* What all records of an entry share. */
struct stamp {
    PyObject *store_ms_object, *crc32, *fold;
    int64_t store_ms;
    struct text store_host;
};

static enum outcome body_crc(const struct stamp *stamp, PyObject *body, int64_t *crc)
{
    PyObject *found = PyObject_CallFunctionObjArgs(stamp->crc32, body, NULL);
    if (found == NULL)
        return FAILED;
    unsigned long long value = PyLong_AsUnsignedLongLongMask(found);
    Py_DECREF(found);
    if (value == (unsigned long long)-1 && PyErr_Occurred())
        return FAILED;
    *crc = (int64_t)(value & 0x7FFFFFFF);
    return DONE;
}

static void write_record(char *at, const struct message *message, const struct queue *queue,
                         const struct stamp *stamp, int64_t size, int64_t physical_offset, int64_t crc)
{
    at = write_int32(at, size);
    at = write_int32(at, RECORD_MAGIC);
    at = write_int32(at, crc);
    at = write_int32(at, queue->id);
    at = write_int32(at, message->flag);
    at = write_int64(at, queue->next_offset);
    at = write_int64(at, physical_offset);
    at = write_int32(at, message->sys_flag);
    at = write_int64(at, message->born_ms);
    at = write_text(at, message->host);
    at = write_int64(at, stamp->store_ms);
    at = write_text(at, stamp->store_host);
    at = write_int32(at, message->times);
    at = write_int64(at, message->prepared);
    at = write_int32(at, message->body.size);
    at = write_text(at, message->body);
    at = write_text(at, queue->topic_field);
    at = write_big_endian(at, (uint64_t)message->properties.size, PROPERTIES_LENGTH_BYTES);
    write_text(at, message->properties);
}

/* Make what the fold needs of a record. */
static PyObject *parsed_record(const struct message *message, const struct queue *queue, const struct stamp *stamp,
                               int64_t size, int64_t physical_offset)
{
    PyObject *record = NULL, *folded = message->folded;
    if (folded == Py_None)
        folded = PyObject_CallFunctionObjArgs(stamp->fold, message->properties_object, NULL);
    else
        Py_INCREF(folded);
    PyObject *queue_offset = PyLong_FromLongLong(queue->next_offset);
    PyObject *at = PyLong_FromLongLong(physical_offset);
    PyObject *bytes = PyLong_FromLongLong(size);
    if (folded != NULL && queue_offset != NULL && at != NULL && bytes != NULL)
        record = untracked(
            PyTuple_Pack(7, queue->key, queue_offset, at, bytes, stamp->store_ms_object, Py_False, folded));
    Py_XDECREF(folded);
    Py_XDECREF(queue_offset);
    Py_XDECREF(at);
    Py_XDECREF(bytes);
    return record;
}

/* Say that something is as it cannot be, unless nobody keeps to the rules. */
static enum outcome changed(void)
{
    PyErr_SetString(PyExc_RuntimeError, "a message changed while it was encoded");
    return FAILED;
}

/* Encode messages that were measured, into a room of that size. */
static enum outcome encode_all(PyObject *messages, struct queues *queues, const struct stamp *stamp,
                               int64_t physical_offset, char *at, Py_ssize_t room, PyObject *records)
{
    struct message message;
    struct queue *queue;
    Py_ssize_t count = PyTuple_Size(messages);
    for (Py_ssize_t place = 0; place < count; place++) {
        int64_t size, crc;
        enum outcome outcome = take_apart(PyTuple_GetItem(messages, place), &message);
        if (outcome == DONE)
            outcome = find_queue(message.queue_end, queues, &queue);
        if (outcome == DONE)
            outcome = size_of(&message, queue, &size);
        if (outcome != DONE)
            return outcome == FAILED ? FAILED : changed();
        if (size > room)
            return changed();
        if (body_crc(stamp, message.body_object, &crc) != DONE)
            return FAILED;
        write_record(at, &message, queue, stamp, size, physical_offset, crc);
        if (append_new(records, parsed_record(&message, queue, stamp, size, physical_offset)) != DONE)
            return FAILED;
        at += size;
        room -= (Py_ssize_t)size;
        physical_offset += size;
        queue->next_offset++;
        queue->has_moved = true;
    }
    return room == 0 ? DONE : changed();
}

PyObject *encode_records(PyObject *module, PyObject *arguments)
{
    PyObject *list, *store_host;
    long long first_offset;
    struct stamp stamp;
    Py_ssize_t total;
    if (!PyArg_ParseTuple(arguments, "O!LOSOO", &PyList_Type, &list, &first_offset, &stamp.store_ms_object,
                          &store_host, &stamp.crc32, &stamp.fold))
        return NULL;
    enum outcome outcome = number_of(stamp.store_ms_object, INT64_MIN, INT64_MAX, &stamp.store_ms);
    if (outcome == DONE)
        outcome = bytes_of(store_host, &stamp.store_host);
    if (outcome == DONE && (stamp.store_host.size != HOST_BYTES || first_offset < 0))
        outcome = DECLINED;
    if (outcome != DONE)
        return concluded(outcome, NULL);
    PyObject *messages = PyList_AsTuple(list);  /* which stays as it is, whatever the callbacks do */
    if (messages == NULL)
        return NULL;
    struct queues queues = {.names = PyModule_GetState(module)};
    PyObject *result = NULL, *body = NULL, *records = NULL;
    outcome = measure(messages, &queues, &total);
    if (outcome == DONE && total > INT64_MAX - first_offset)
        outcome = DECLINED;
    if (outcome == DONE) {
        body = PyBytes_FromStringAndSize(NULL, total);
        records = PyList_New(0);
        outcome = body == NULL || records == NULL ? FAILED : DONE;
    }
    if (outcome == DONE)
        outcome = encode_all(messages, &queues, &stamp, first_offset, PyBytes_AsString(body), total, records);
    if (outcome == DONE) {
        result = PyTuple_Pack(2, body, records);
        outcome = result == NULL ? FAILED : DONE;
    }
    outcome = leave_queues(&queues, outcome);
    Py_XDECREF(body);
    Py_XDECREF(records);
    Py_DECREF(messages);
    return concluded(outcome, result);
}

/* batch_records. */

/* What all records of a batch share. */
struct batch {
    PyObject *crc32;
    struct text topic_field, born_host, store_host;
    int64_t queue_id, sys_flag, born_ms;
};

/* The CRC of an item's body; `crc32` sees the bytes where they are. */
static enum outcome item_crc(const struct batch *batch, struct text body, int64_t *crc)
{
    PyObject *view = PyMemoryView_FromMemory((char *)body.start, body.size, PyBUF_READ);
    if (view == NULL)
        return FAILED;
    PyObject *found = PyObject_CallFunctionObjArgs(batch->crc32, view, NULL);
    Py_DECREF(view);
    if (found == NULL)
        return FAILED;
    unsigned long long value = PyLong_AsUnsignedLongLongMask(found);
    Py_DECREF(found);
    if (value == (unsigned long long)-1 && PyErr_Occurred())
        return FAILED;
    *crc = (int64_t)(value & 0x7FFFFFFF);
    return DONE;
}

/* Write an item as a record without places and store time. */
static char *write_item(char *at, const struct batch *batch, const struct item *item, const struct shape *shape,
                        struct text key, int64_t size, int64_t crc)
{
    at = write_int32(at, size);
    at = write_int32(at, RECORD_MAGIC);
    at = write_int32(at, crc);
    at = write_int32(at, batch->queue_id);
    at = write_int32(at, item->flag);
    at = write_int64(write_int64(at, 0), 0);
    at = write_int32(at, batch->sys_flag);
    at = write_int64(at, batch->born_ms);
    at = write_text(at, batch->born_host);
    at = write_int64(at, 0);
    at = write_text(at, batch->store_host);
    at = write_int64(write_int32(at, 0), 0);
    at = write_int32(at, item->body.size);
    at = write_text(at, item->body);
    at = write_text(at, batch->topic_field);
    Py_ssize_t properties_bytes = shape->beginning.size + key.size + shape->ending.size;
    at = write_big_endian(at, (uint64_t)properties_bytes, PROPERTIES_LENGTH_BYTES);
    return write_text(write_text(write_text(at, shape->beginning), key), shape->ending);
}

/* The size of an item's record; it is no larger than the item itself, what the broker adds, and the topic. */
static int64_t record_size(const struct batch *batch, const struct item *item, const struct shape *shape, struct text key)
{
    return (int64_t)RECORD_HEAD_BYTES + item->body.size + batch->topic_field.size + PROPERTIES_LENGTH_BYTES +
           shape->beginning.size + key.size + shape->ending.size;
}

/* Add up the records of all items. */
static enum outcome measure_items(const struct batch *batch, struct text left, PyObject *shape_of, struct shape *shape,
                                  Py_ssize_t *total)
{
    struct item item;
    struct cut cut;
    *total = 0;
    if (left.size == 0)
        return DECLINED;
    while (left.size > 0) {
        enum outcome outcome = next_item(&left, shape_of, shape, &item, &cut);
        if (outcome != DONE)
            return outcome;
        int64_t size = record_size(batch, &item, shape, cut.key);
        if (size > INT32_MAX - *total)
            return DECLINED;
        *total += (Py_ssize_t)size;
    }
    return DONE;
}

/* Write all items, into a room that was measured for them. */
static enum outcome write_items(const struct batch *batch, struct text left, PyObject *shape_of, struct shape *shape,
                                char *at, Py_ssize_t room)
{
    struct item item;
    struct cut cut;
    while (left.size > 0) {
        int64_t crc;
        enum outcome outcome = next_item(&left, shape_of, shape, &item, &cut);
        if (outcome != DONE)
            return outcome == FAILED ? FAILED : changed();
        int64_t size = record_size(batch, &item, shape, cut.key);
        if (size > room)
            return changed();
        if (item_crc(batch, item.body, &crc) != DONE)
            return FAILED;
        at = write_item(at, batch, &item, shape, cut.key, size, crc);
        room -= (Py_ssize_t)size;
    }
    return room == 0 ? DONE : changed();
}

PyObject *batch_records(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *data, *shape_of, *queue_id, *topic_field, *sys_flag, *born_ms, *born_host, *store_host, *result = NULL;
    struct text left;
    struct shape shape = {0};
    struct batch batch;
    Py_ssize_t total;
    if (!PyArg_ParseTuple(arguments, "SOOSOOSSO", &data, &shape_of, &queue_id, &topic_field, &sys_flag, &born_ms,
                          &born_host, &store_host, &batch.crc32))
        return NULL;
    enum outcome outcome = bytes_of(data, &left);
    if (outcome == DONE)
        outcome = bytes_of(topic_field, &batch.topic_field);
    if (outcome == DONE)
        outcome = bytes_of(born_host, &batch.born_host);
    if (outcome == DONE)
        outcome = bytes_of(store_host, &batch.store_host);
    if (outcome == DONE)
        outcome = number_of(queue_id, 0, INT32_MAX, &batch.queue_id);
    if (outcome == DONE)
        outcome = number_of(sys_flag, 0, INT32_MAX, &batch.sys_flag);
    if (outcome == DONE)
        outcome = number_of(born_ms, 0, INT64_MAX, &batch.born_ms);
    if (outcome == DONE && (batch.topic_field.size == 0 || batch.topic_field.size > TOPIC_FIELD_BYTES_MAX ||
                            batch.born_host.size != HOST_BYTES || batch.store_host.size != HOST_BYTES ||
                            (batch.sys_flag & UNUSUAL_FLAGS)))
        outcome = DECLINED;
    if (outcome == DONE)
        outcome = measure_items(&batch, left, shape_of, &shape, &total);
    if (outcome == DONE) {
        result = PyBytes_FromStringAndSize(NULL, total);
        outcome = result == NULL ? FAILED
                                 : write_items(&batch, left, shape_of, &shape, PyBytes_AsString(result), total);
    }
    Py_XDECREF(shape.object);
    return concluded(outcome, result);
}

/* place_records. */

enum { QUEUE_OFFSET_AT = 20, PHYSICAL_OFFSET_AT = 28, STORE_MS_AT = 56, OFFSET_BYTES = 8 };

/* Count the records of all runs, and add up their bytes. */
static enum outcome measure_runs(PyObject *runs, PyObject *starts, Py_ssize_t *count, Py_ssize_t *total)
{
    *count = *total = 0;
    for (Py_ssize_t place = 0; place < PyTuple_Size(runs); place++) {
        struct text left;
        int64_t start;
        enum outcome outcome = bytes_of(PyTuple_GetItem(runs, place), &left);
        if (outcome == DONE)
            outcome = number_of(PyTuple_GetItem(starts, place), 0, INT64_MAX - INT32_MAX, &start);
        if (outcome != DONE)
            return outcome;
        if (left.size > INT32_MAX - *total)
            return DECLINED;
        *total += left.size;
        for (; left.size > 0; *count += 1) {
            int32_t size = left.size < RECORD_BYTES_MIN ? 0 : read_int32(left.start);
            if (size < RECORD_BYTES_MIN || size > left.size)
                return DECLINED;
            left.start += size;
            left.size -= size;
        }
    }
    return DONE;
}

/* Copy runs that were measured, and write down where each record stands. */
static enum outcome place_runs(PyObject *runs, PyObject *starts, int64_t physical_offset, int64_t store_ms, char *at,
                               char *place_at)
{
    for (Py_ssize_t place = 0; place < PyTuple_Size(runs); place++) {
        struct text run;
        int64_t queue_offset;
        if (bytes_of(PyTuple_GetItem(runs, place), &run) != DONE ||
            number_of(PyTuple_GetItem(starts, place), 0, INT64_MAX, &queue_offset) != DONE)
            return FAILED;
        char *record = at;
        at = write_text(at, run);
        for (; record < at; queue_offset++) {
            int32_t size = read_int32(record);
            write_int64(record + QUEUE_OFFSET_AT, queue_offset);
            write_int64(record + PHYSICAL_OFFSET_AT, physical_offset);
            write_int64(record + STORE_MS_AT, store_ms);
            place_at = write_int64(place_at, physical_offset);
            physical_offset += size;
            record += size;
        }
    }
    return DONE;
}

PyObject *place_records(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *list, *numbers, *body = NULL, *places = NULL, *result = NULL;
    long long first_offset, store_ms;
    Py_ssize_t count, total;
    if (!PyArg_ParseTuple(arguments, "O!O!LL", &PyList_Type, &list, &PyList_Type, &numbers, &first_offset, &store_ms))
        return NULL;
    PyObject *runs = PyList_AsTuple(list), *starts = PyList_AsTuple(numbers);
    enum outcome outcome = runs == NULL || starts == NULL ? FAILED : DONE;
    if (outcome == DONE && (PyTuple_Size(runs) != PyTuple_Size(starts) || first_offset < 0))
        outcome = DECLINED;
    if (outcome == DONE)
        outcome = measure_runs(runs, starts, &count, &total);
    if (outcome == DONE && total > INT64_MAX - first_offset)
        outcome = DECLINED;
    if (outcome == DONE) {
        body = PyBytes_FromStringAndSize(NULL, total);
        places = PyBytes_FromStringAndSize(NULL, count * OFFSET_BYTES);
        outcome = body == NULL || places == NULL
                      ? FAILED
                      : place_runs(runs, starts, first_offset, store_ms, PyBytes_AsString(body),
                                   PyBytes_AsString(places));
    }
    if (outcome == DONE) {
        result = PyTuple_Pack(2, body, places);
        outcome = result == NULL ? FAILED : DONE;
    }
    Py_XDECREF(body);
    Py_XDECREF(places);
    Py_XDECREF(runs);
    Py_XDECREF(starts);
    return concluded(outcome, result);
}

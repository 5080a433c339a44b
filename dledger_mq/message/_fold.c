/* What every replica does for each record of an entry.
 *
 *     parse_records  an entry's body as the fold's view of its records   (broker/store/parse.py)
 *     fold_usual     records into the consume queues and columns of keys (broker/store/state.py)
 *     fold_entry     both at once, if all is usual: no object for a record (broker/store/state.py)
 *
 * An entry's bytes are what a leader wrote and a CRC32C covers. They are read as if they were hostile all the same: each
 * number is compared with what is left before anything is read by it.
 */
#include "_compiled.h"

enum {
    QUEUE_ID_AT = 12, QUEUE_OFFSET_AT = 20, PHYSICAL_OFFSET_AT = 28, SYS_FLAG_AT = 36, STORE_MS_AT = 56,
    BODY_LENGTH_AT = 84
};

/* parse_records. */

struct head {
    int32_t size, queue_id;
    int64_t queue_offset, physical_offset, store_ms;
    struct text before, key, rest;  /* behind the body: up to the key's mark, its value, and what stands behind its end */
};

/* Cut the first record off what is left of a body. */
static enum outcome cut_record(struct text *left, struct head *head)
{
    const char *at = left->start;
    if (left->size < RECORD_BYTES_MIN)
        return DECLINED;
    head->size = read_int32(at);
    if (head->size < RECORD_BYTES_MIN || head->size > left->size)
        return DECLINED;
    if (read_int32(at + 4) != RECORD_MAGIC || (read_int32(at + SYS_FLAG_AT) & UNUSUAL_FLAGS))
        return DECLINED;
    int32_t body_bytes = read_int32(at + BODY_LENGTH_AT);
    if (body_bytes < 0 || body_bytes > head->size - RECORD_HEAD_BYTES)
        return DECLINED;
    head->queue_id = read_int32(at + QUEUE_ID_AT);
    head->queue_offset = read_int64(at + QUEUE_OFFSET_AT);
    head->physical_offset = read_int64(at + PHYSICAL_OFFSET_AT);
    head->store_ms = read_int64(at + STORE_MS_AT);
    const char *start = at + RECORD_HEAD_BYTES + body_bytes, *end = at + head->size;
    const char *mark = find((struct text){start, end - start}, KEY_MARK, KEY_MARK_BYTES);
    if (mark == NULL)
        return DECLINED;
    const char *key = mark + KEY_MARK_BYTES, *key_end = memchr(key, PAIR_END, (size_t)(end - key));
    if (key_end == NULL)
        return DECLINED;
    head->before = (struct text){start, mark - start};
    head->key = (struct text){key, key_end - key};
    head->rest = (struct text){key_end + 1, end - key_end - 1};
    left->start += head->size;
    left->size -= head->size;
    return DONE;
}

/* A shape that was asked for; it holds for what has the same bytes around its key. */
struct known {
    PyObject *object;           /* owned, of which the others are parts; NULL at first */
    struct text before, rest;   /* in the body */
    PyObject *topic, *tag_hash, *keys;
    struct text topic_text;
    int64_t key_bytes;
};

/* The key of a queue, which records share: topic and queue id. */
struct queue_key {
    PyObject *object;           /* owned; NULL at first */
    struct text topic;          /* in it */
    int32_t id;
};

enum { SHAPES = 8, QUEUE_KEYS = 64 };

struct parsing {
    PyObject *find_shape;
    struct known shapes[SHAPES];
    unsigned last, next;        /* places of the shape that was found last, and of the one that goes next */
    struct queue_key queue_keys[QUEUE_KEYS];
    PyObject *store_ms_object;  /* owned; NULL at first */
    int64_t store_ms;
};

static bool has_shape(const struct known *known, const struct head *head)
{
    return known->object != NULL && is_equal(known->rest, head->rest) && is_equal(known->before, head->before);
}

static enum outcome ask_shape(struct parsing *parsing, const struct head *head, struct known *known)
{
    Py_CLEAR(known->object);
    PyObject *found = PyObject_CallFunction(parsing->find_shape, "y#y#", head->before.start, head->before.size,
                                            head->rest.start, head->rest.size);
    if (found == NULL)
        return FAILED;
    known->object = found;
    if (!PyTuple_CheckExact(found) || PyTuple_Size(found) != 4) {
        Py_CLEAR(known->object);
        return DECLINED;
    }
    known->before = head->before;
    known->rest = head->rest;
    known->topic = PyTuple_GetItem(found, 0);
    known->tag_hash = PyTuple_GetItem(found, 2);
    known->keys = PyTuple_GetItem(found, 3);
    enum outcome outcome = bytes_of(known->topic, &known->topic_text);
    if (outcome == DONE)
        outcome = number_of(PyTuple_GetItem(found, 1), 0, INT32_MAX, &known->key_bytes);
    if (outcome != DONE)
        Py_CLEAR(known->object);
    return outcome;
}

/* Find the shape of a record. It holds until the next one is looked for. */
static enum outcome find_shape(struct parsing *parsing, const struct head *head, struct known **found)
{
    *found = &parsing->shapes[parsing->last];
    if (has_shape(*found, head))
        return DONE;
    for (unsigned place = 0; place < SHAPES; place++) {
        if (has_shape(&parsing->shapes[place], head)) {
            parsing->last = place;
            *found = &parsing->shapes[place];
            return DONE;
        }
    }
    parsing->last = parsing->next;
    parsing->next = (parsing->next + 1) % SHAPES;
    *found = &parsing->shapes[parsing->last];
    return ask_shape(parsing, head, *found);
}

/* The key of a record's queue, borrowed; NULL: there is no memory. */
static PyObject *queue_key_of(struct parsing *parsing, const struct head *head, const struct known *known)
{
    struct queue_key *key = &parsing->queue_keys[(uint32_t)head->queue_id % QUEUE_KEYS];
    if (key->object != NULL && key->id == head->queue_id && is_equal(key->topic, known->topic_text))
        return key->object;
    Py_CLEAR(key->object);
    PyObject *id = PyLong_FromLong(head->queue_id);
    if (id == NULL)
        return NULL;
    key->object = untracked(PyTuple_Pack(2, known->topic, id));
    Py_DECREF(id);
    key->id = head->queue_id;
    key->topic = known->topic_text;  /* which lives as long as the tuple does */
    return key->object;
}

/* The store time of a record, borrowed; NULL: there is no memory. */
static PyObject *store_ms_of(struct parsing *parsing, const struct head *head)
{
    if (parsing->store_ms_object == NULL || parsing->store_ms != head->store_ms) {
        Py_CLEAR(parsing->store_ms_object);
        parsing->store_ms_object = PyLong_FromLongLong(head->store_ms);
        parsing->store_ms = head->store_ms;
    }
    return parsing->store_ms_object;
}

/* Make what the fold needs of a record. */
static PyObject *parsed_record(struct parsing *parsing, const struct head *head, const struct known *known)
{
    PyObject *record = NULL, *properties = NULL;
    PyObject *queue_key = queue_key_of(parsing, head, known), *store_ms = store_ms_of(parsing, head);
    PyObject *key = PyBytes_FromStringAndSize(head->key.start, head->key.size);
    PyObject *queue_offset = PyLong_FromLongLong(head->queue_offset);
    PyObject *at = PyLong_FromLongLong(head->physical_offset);
    PyObject *size = PyLong_FromLong(head->size);
    if (key != NULL)
        properties = untracked(PyTuple_Pack(3, known->tag_hash, key, known->keys));
    if (queue_key != NULL && store_ms != NULL && queue_offset != NULL && at != NULL && size != NULL && properties != NULL)
        record = untracked(PyTuple_Pack(7, queue_key, queue_offset, at, size, store_ms, Py_False, properties));
    Py_XDECREF(key);
    Py_XDECREF(queue_offset);
    Py_XDECREF(at);
    Py_XDECREF(size);
    Py_XDECREF(properties);
    return record;
}

static enum outcome parse_all(struct parsing *parsing, struct text left, int64_t physical_offset, PyObject *records)
{
    struct head head;
    struct known *known;
    while (left.size > 0) {
        if (cut_record(&left, &head) != DONE || head.physical_offset != physical_offset)
            return DECLINED;
        enum outcome outcome = find_shape(parsing, &head, &known);
        if (outcome != DONE)
            return outcome;
        if (head.key.size != known->key_bytes)
            return DECLINED;
        if (append_new(records, parsed_record(parsing, &head, known)) != DONE)
            return FAILED;
        if (head.size > INT64_MAX - physical_offset)
            return DECLINED;
        physical_offset += head.size;
    }
    return DONE;
}

static void leave_parsing(struct parsing *parsing)
{
    for (int place = 0; place < SHAPES; place++)
        Py_XDECREF(parsing->shapes[place].object);
    for (int place = 0; place < QUEUE_KEYS; place++)
        Py_XDECREF(parsing->queue_keys[place].object);
    Py_XDECREF(parsing->store_ms_object);
}

PyObject *parse_records(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *body;
    long long first_offset;
    struct text left;
    struct parsing parsing = {0};
    if (!PyArg_ParseTuple(arguments, "OLO", &body, &first_offset, &parsing.find_shape))
        return NULL;
    if (bytes_of(body, &left) != DONE)
        Py_RETURN_NONE;
    PyObject *records = PyList_New(0);
    enum outcome outcome = records == NULL ? FAILED : parse_all(&parsing, left, first_offset, records);
    leave_parsing(&parsing);
    return concluded(outcome, records);
}

/* fold_usual. */

/* A record, taken apart; all objects are borrowed from its tuple. */
struct record {
    PyObject *key, *physical_offset_object, *uniq_key, *more;
    int64_t queue_offset, physical_offset, size, store_ms, tag_hash;
};

static enum outcome take_record(PyObject *tuple, struct record *record)
{
    if (tuple == NULL)
        return FAILED;
    if (!PyTuple_CheckExact(tuple) || PyTuple_Size(tuple) != 7)
        return DECLINED;
    PyObject *properties = PyTuple_GetItem(tuple, 6);
    if (PyTuple_GetItem(tuple, 5) != Py_False || !PyTuple_CheckExact(properties) || PyTuple_Size(properties) != 3)
        return DECLINED;
    record->key = PyTuple_GetItem(tuple, 0);
    record->physical_offset_object = PyTuple_GetItem(tuple, 2);
    record->uniq_key = PyTuple_GetItem(properties, 1);
    record->more = PyTuple_GetItem(properties, 2);
    enum outcome outcome = number_of(PyTuple_GetItem(tuple, 1), 0, INT64_MAX - 1, &record->queue_offset);
    if (outcome == DONE)
        outcome = number_of(record->physical_offset_object, INT64_MIN, INT64_MAX, &record->physical_offset);
    if (outcome == DONE)
        outcome = number_of(PyTuple_GetItem(tuple, 3), 0, INT32_MAX, &record->size);
    if (outcome == DONE)
        outcome = number_of(PyTuple_GetItem(tuple, 4), INT64_MIN, INT64_MAX, &record->store_ms);
    if (outcome == DONE)
        outcome = number_of(PyTuple_GetItem(properties, 0), INT64_MIN, INT64_MAX, &record->tag_hash);
    return outcome;
}

/* A queue that records went into lately. */
struct queue {
    PyObject *object, *tail, *key_seed;  /* owned; NULL in an empty place */
    int64_t max_offset, put_bytes;
    bool has_moved;
};

/* Such queues, each in the place that its address says. */
enum { QUEUES = 64, ADDRESS_STEP = 16 };

struct folding {
    const struct names *names;
    PyObject *by_key, *texts, *seeds, *offsets, *add_others;
    int64_t latest_ms;
    PyObject *last_key;                  /* of the record before, borrowed */
    struct queue *last_queue;
    struct queue places[QUEUES];
};

static enum outcome set_number(PyObject *object, PyObject *name, int64_t number)
{
    PyObject *value = PyLong_FromLongLong(number);
    if (value == NULL)
        return FAILED;
    int result = PyObject_SetAttr(object, name, value);
    Py_DECREF(value);
    return result < 0 ? FAILED : DONE;
}

/* Write down how far a queue has come. */
static enum outcome note_queue(struct queue *queue, const struct names *names)
{
    if (!queue->has_moved)
        return DONE;
    queue->has_moved = false;
    if (set_number(queue->object, names->max_offset, queue->max_offset) != DONE)
        return FAILED;
    return set_number(queue->object, names->put_bytes, queue->put_bytes);
}

static void leave_queue(struct queue *queue)
{
    Py_CLEAR(queue->object);
    Py_CLEAR(queue->tail);
    Py_CLEAR(queue->key_seed);
}

static enum outcome number_attribute(PyObject *object, PyObject *name, int64_t *number)
{
    PyObject *value = PyObject_GetAttr(object, name);
    enum outcome outcome = number_of(value, 0, INT64_MAX - INT32_MAX, number);
    Py_XDECREF(value);
    return outcome;
}

/* Take a queue apart, in an empty place; it is left as it is. */
static enum outcome enter_queue(PyObject *object, const struct names *names, struct queue *queue)
{
    Py_INCREF(object);
    queue->object = object;
    PyObject *special = PyObject_GetAttr(object, names->special);
    if (special == NULL)
        return FAILED;
    bool is_usual = special == Py_False;
    Py_DECREF(special);
    if (!is_usual)
        return DECLINED;
    queue->tail = PyObject_GetAttr(object, names->tail);
    queue->key_seed = queue->tail == NULL ? NULL : PyObject_GetAttr(object, names->key_seed);
    if (queue->key_seed == NULL)
        return FAILED;
    if (!PyByteArray_CheckExact(queue->tail))
        return DECLINED;
    enum outcome outcome = number_attribute(object, names->max_offset, &queue->max_offset);
    if (outcome == DONE)
        outcome = number_attribute(object, names->put_bytes, &queue->put_bytes);
    return outcome;
}

/* Find the queue of a record. It holds until the next one is looked for. */
static enum outcome find_queue(struct folding *folding, PyObject *key, struct queue **found)
{
    if (key == folding->last_key) {
        *found = folding->last_queue;
        return DONE;
    }
    PyObject *object = PyDict_GetItemWithError(folding->by_key, key);
    if (object == NULL)
        return PyErr_Occurred() ? FAILED : DECLINED;
    struct queue *queue = &folding->places[(uintptr_t)object / ADDRESS_STEP % QUEUES];
    if (queue->object != object) {
        if (note_queue(queue, folding->names) != DONE)
            return FAILED;
        leave_queue(queue);
        enum outcome outcome = enter_queue(object, folding->names, queue);
        if (outcome != DONE) {
            leave_queue(queue);
            return outcome;
        }
    }
    folding->last_key = key;
    folding->last_queue = *found = queue;
    return DONE;
}

static enum outcome add_unit(struct queue *queue, const struct record *record)
{
    Py_ssize_t size = PyByteArray_Size(queue->tail);
    if (PyByteArray_Resize(queue->tail, size + UNIT_BYTES) < 0)
        return FAILED;
    char *at = PyByteArray_AsString(queue->tail) + size;
    at = write_int64(at, record->physical_offset);
    at = write_int32(at, record->size);
    write_int64(at, record->tag_hash);
    queue->max_offset++;
    queue->put_bytes += record->size;
    queue->has_moved = true;
    return DONE;
}

static enum outcome add_keys(const struct folding *folding, const struct queue *queue, const struct record *record)
{
    if (record->uniq_key != Py_None &&
        (PyList_Append(folding->texts, record->uniq_key) < 0 || PyList_Append(folding->seeds, queue->key_seed) < 0 ||
         PyList_Append(folding->offsets, record->physical_offset_object) < 0))
        return FAILED;
    if (record->more == Py_None)
        return DONE;
    PyObject *nothing = PyObject_CallFunctionObjArgs(folding->add_others, record->more, queue->key_seed,
                                                     record->physical_offset_object, NULL);
    if (nothing == NULL)
        return FAILED;
    Py_DECREF(nothing);
    return DONE;
}

/* Fold one record; DECLINED: nothing of it was folded. */
static enum outcome fold_record(struct folding *folding, PyObject *tuple)
{
    struct record record;
    struct queue *queue;
    enum outcome outcome = take_record(tuple, &record);
    if (outcome == DONE)
        outcome = find_queue(folding, record.key, &queue);
    if (outcome != DONE)
        return outcome;
    if (record.queue_offset != queue->max_offset || record.store_ms > folding->latest_ms ||
        queue->put_bytes > INT64_MAX - record.size)
        return DECLINED;
    outcome = add_unit(queue, &record);
    return outcome == DONE ? add_keys(folding, queue, &record) : outcome;
}

PyObject *fold_usual(PyObject *module, PyObject *arguments)
{
    PyObject *list;
    long long latest_ms;
    struct folding folding = {.names = PyModule_GetState(module)};
    if (!PyArg_ParseTuple(arguments, "O!O!LO!O!O!O", &PyList_Type, &list, &PyDict_Type, &folding.by_key, &latest_ms,
                          &PyList_Type, &folding.texts, &PyList_Type, &folding.seeds, &PyList_Type, &folding.offsets,
                          &folding.add_others))
        return NULL;
    folding.latest_ms = latest_ms;
    PyObject *records = PyList_AsTuple(list);  /* which stays as it is, whatever the callback does */
    if (records == NULL)
        return NULL;
    Py_ssize_t count = PyTuple_Size(records), place = 0;
    enum outcome outcome = DONE;
    while (place < count && (outcome = fold_record(&folding, PyTuple_GetItem(records, place))) == DONE)
        place++;
    for (int each = 0; each < QUEUES; each++) {
        if (outcome != FAILED)
            outcome = note_queue(&folding.places[each], folding.names);
        leave_queue(&folding.places[each]);
    }
    Py_DECREF(records);
    return outcome == FAILED ? NULL : PyLong_FromSsize_t(place);
}

/* fold_entry. */

enum { ENTRY_QUEUES = 256, ENTRY_SLOTS = 1024, RECORDS_AT_FIRST = 64, KEY_BYTES_MAX = 128 };

/* A record of an entry, as far as it is needed once the whole entry was found to be usual. */
struct plain {
    const char *key;            /* in the body */
    int32_t key_bytes, size;
    int64_t physical_offset, tag_hash;
    int queue;                  /* its place among those of the entry */
};

/* A queue of an entry. */
struct entry_queue {
    PyObject *topic, *object, *tail; /* owned */
    struct text topic_text;
    int32_t id;
    int64_t max_offset, put_bytes, count;
    uint32_t key_seed;
    char *unit_at;              /* where its next unit is written */
};

struct entry {
    const struct names *names;
    PyObject *by_key;
    struct parsing parsing;
    int64_t store_ms, texts_bytes;
    struct plain *records;
    Py_ssize_t count, room;
    struct entry_queue queues[ENTRY_QUEUES];
    int queue_count;
    int16_t slots[ENTRY_SLOTS]; /* 0 for none, else a queue's place and 1 */
};

/* Take a queue in, of which nothing is changed yet. */
static enum outcome add_queue(struct entry *entry, const struct known *known, int32_t id)
{
    int64_t seed;
    if (entry->queue_count == ENTRY_QUEUES)
        return DECLINED;
    struct entry_queue *queue = &entry->queues[entry->queue_count++];
    Py_INCREF(known->topic);
    *queue = (struct entry_queue){.topic = known->topic, .topic_text = known->topic_text, .id = id};
    PyObject *number = PyLong_FromLong(id);
    PyObject *key = number == NULL ? NULL : PyTuple_Pack(2, known->topic, number);
    Py_XDECREF(number);
    if (key == NULL)
        return FAILED;
    PyObject *object = PyDict_GetItemWithError(entry->by_key, key);
    Py_DECREF(key);
    if (object == NULL)
        return PyErr_Occurred() ? FAILED : DECLINED;
    Py_INCREF(object);
    queue->object = object;
    PyObject *special = PyObject_GetAttr(object, entry->names->special);
    if (special == NULL)
        return FAILED;
    Py_DECREF(special);
    if (special != Py_False)
        return DECLINED;
    queue->tail = PyObject_GetAttr(object, entry->names->tail);
    if (queue->tail == NULL)
        return FAILED;
    if (!PyByteArray_CheckExact(queue->tail))
        return DECLINED;
    enum outcome outcome = number_attribute(object, entry->names->max_offset, &queue->max_offset);
    if (outcome == DONE)
        outcome = number_attribute(object, entry->names->put_bytes, &queue->put_bytes);
    if (outcome == DONE)
        outcome = number_attribute(object, entry->names->key_seed, &seed);
    if (outcome == DONE)
        queue->key_seed = (uint32_t)seed;
    return outcome;
}

/* Find the queue of a record, or take it in. */
static enum outcome queue_of(struct entry *entry, const struct known *known, int32_t id, int *found)
{
    uint32_t slot = (uint32_t)id * 31 + (uint32_t)known->topic_text.size;
    for (;; slot++) {
        int16_t *held = &entry->slots[slot % ENTRY_SLOTS];
        if (*held == 0) {
            *found = entry->queue_count;
            enum outcome outcome = add_queue(entry, known, id);
            *held = (int16_t)entry->queue_count;
            return outcome;
        }
        const struct entry_queue *queue = &entry->queues[*held - 1];
        if (queue->id == id && is_equal(queue->topic_text, known->topic_text)) {
            *found = *held - 1;
            return DONE;
        }
    }
}

static enum outcome add_plain(struct entry *entry, const struct head *head, const struct known *known)
{
    int place = 0;
    const struct plain *last = entry->count ? &entry->records[entry->count - 1] : NULL;
    if (head->key.size != known->key_bytes || head->key.size > KEY_BYTES_MAX || known->keys != Py_None)
        return DECLINED;
    if (last != NULL && entry->queues[last->queue].topic == known->topic &&
        entry->queues[last->queue].id == head->queue_id) {
        place = last->queue;
    } else {
        enum outcome outcome = queue_of(entry, known, head->queue_id, &place);
        if (outcome != DONE)
            return outcome;
    }
    struct entry_queue *queue = &entry->queues[place];
    if (head->queue_offset != queue->max_offset + queue->count || queue->put_bytes > INT64_MAX - head->size)
        return DECLINED;
    if (entry->count == entry->room) {
        Py_ssize_t room = entry->room ? 2 * entry->room : RECORDS_AT_FIRST;
        struct plain *records = PyMem_Realloc(entry->records, (size_t)room * sizeof *records);
        if (records == NULL) {
            PyErr_NoMemory();
            return FAILED;
        }
        entry->records = records;
        entry->room = room;
    }
    int64_t tag_hash;
    enum outcome outcome = number_of(known->tag_hash, INT64_MIN, INT64_MAX, &tag_hash);
    if (outcome != DONE)
        return outcome;
    entry->records[entry->count++] = (struct plain){
        head->key.start, (int32_t)head->key.size, head->size, head->physical_offset, tag_hash, place};
    entry->texts_bytes += head->key.size;
    queue->count++;
    queue->put_bytes += head->size;
    return DONE;
}

/* Read all records, and see that all of them are usual. Nothing is changed. */
static enum outcome read_entry(struct entry *entry, struct text left, int64_t physical_offset)
{
    struct head head;
    struct known *known;
    if (left.size == 0)
        return DECLINED;
    int64_t begun_ms = entry->store_ms;
    while (left.size > 0) {
        if (cut_record(&left, &head) != DONE || head.physical_offset != physical_offset)
            return DECLINED;
        if (entry->count == 0)
            entry->store_ms = head.store_ms;
        if (head.store_ms != entry->store_ms || head.store_ms < begun_ms)
            return DECLINED;
        enum outcome outcome = find_shape(&entry->parsing, &head, &known);
        if (outcome == DONE)
            outcome = add_plain(entry, &head, known);
        if (outcome != DONE)
            return outcome;
        if (head.size > INT64_MAX - physical_offset)
            return DECLINED;
        physical_offset += head.size;
    }
    return DONE;
}

/* Numbers and texts as msgpack has them, in the fewest bytes. */

static char *pack_count(char *at, uint64_t count, const unsigned char marks[3])
{
    if (count <= 0xFF && marks[0]) {
        *at++ = (char)marks[0];
        return write_big_endian(at, count, 1);
    }
    bool is_short = count <= 0xFFFF;
    *at++ = (char)marks[is_short ? 1 : 2];
    return write_big_endian(at, count, is_short ? 2 : 4);
}

static char *pack_array(char *at, Py_ssize_t count)
{
    static const unsigned char marks[3] = {0, 0xDC, 0xDD};
    if (count > 15)
        return pack_count(at, (uint64_t)count, marks);
    *at = (char)(0x90 | count);
    return at + 1;
}

static char *pack_text(char *at, struct text text)
{
    static const unsigned char marks[3] = {0xC4, 0xC5, 0xC6};
    return write_text(pack_count(at, (uint64_t)text.size, marks), text);
}

static char *pack_number(char *at, int64_t number)
{
    static const unsigned char marks[3] = {0xCC, 0xCD, 0xCE};
    if (number <= 0x7F) {
        *at = (char)number;
        return at + 1;
    }
    if (number <= UINT32_MAX)
        return pack_count(at, (uint64_t)number, marks);
    *at++ = (char)0xCF;
    return write_int64(at, number);
}

enum { NUMBER_PACKED_MAX = 9, TEXT_HEAD_MAX = 5, ARRAY_HEAD_MAX = 5 };

/* Store time, keys and places, as a snapshot has them; NULL: there is no memory. */
static PyObject *packed_row(const struct entry *entry)
{
    Py_ssize_t most = 1 + NUMBER_PACKED_MAX + 2 * ARRAY_HEAD_MAX + entry->texts_bytes +
                      entry->count * (TEXT_HEAD_MAX + NUMBER_PACKED_MAX);
    char *row = PyMem_Malloc((size_t)most);
    if (row == NULL)
        return PyErr_NoMemory();
    char *at = pack_array(row, 3);
    at = pack_array(pack_number(at, entry->store_ms), entry->count);
    for (Py_ssize_t place = 0; place < entry->count; place++)
        at = pack_text(at, (struct text){entry->records[place].key, entry->records[place].key_bytes});
    at = pack_array(at, entry->count);
    for (Py_ssize_t place = 0; place < entry->count; place++)
        at = pack_number(at, entry->records[place].physical_offset);
    PyObject *packed = PyBytes_FromStringAndSize(row, at - row);
    PyMem_Free(row);
    return packed;
}

/* CRC32C, a table of what each byte makes of it. */

#define CRC32C_POLYNOMIAL 0x82F63B78u /* reversed */

static uint32_t crc32c_steps[4][256];

void set_up_crc32c(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? CRC32C_POLYNOMIAL : 0);
        crc32c_steps[0][byte] = crc;
    }
    for (int behind = 1; behind < 4; behind++)
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t crc = crc32c_steps[behind - 1][byte];
            crc32c_steps[behind][byte] = crc >> 8 ^ crc32c_steps[0][crc & 0xFF];
        }
}

static uint32_t crc32c_of(struct text text, uint32_t crc)
{
    const unsigned char *at = (const unsigned char *)text.start, *end = at + text.size;
    crc = ~crc;
    for (; end - at >= 4; at += 4) {
        crc ^= (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        crc = crc32c_steps[3][crc & 0xFF] ^ crc32c_steps[2][crc >> 8 & 0xFF] ^ crc32c_steps[1][crc >> 16 & 0xFF] ^
              crc32c_steps[0][crc >> 24];
    }
    for (; at < end; at++)
        crc = crc >> 8 ^ crc32c_steps[0][(crc ^ *at) & 0xFF];
    return ~crc;
}

/* What is told of an entry, in columns; see compiled.py. */
enum { UNITS, HASHES, TEXTS, CELLS, TAGS, LOWS, ROW, ENTRY_COLUMNS };

static char *put_number(char *at, uint32_t number)
{
    memcpy(at, &number, NUMBER_BYTES);
    return at + NUMBER_BYTES;
}

/* Python's own hash of some bytes. */
static enum outcome hash_of(struct text text, uint64_t *hash)
{
    PyObject *object = PyBytes_FromStringAndSize(text.start, text.size);
    if (object == NULL)
        return FAILED;
    Py_hash_t found = PyObject_Hash(object);
    Py_DECREF(object);
    *hash = (uint64_t)(int64_t)found;
    return DONE;
}

/* Fill the columns of keys. */
static enum outcome fill_columns(const struct entry *entry, PyObject **columns)
{
    char *at[ENTRY_COLUMNS];
    for (int column = 0; column < ROW; column++)
        at[column] = PyBytes_AsString(columns[column]);
    for (Py_ssize_t place = 0; place < entry->count; place++) {
        const struct plain *record = &entry->records[place];
        struct text key = {record->key, record->key_bytes};
        uint64_t hash;
        if (hash_of(key, &hash) != DONE)
            return FAILED;
        uint32_t crc = crc32c_of(key, entry->queues[record->queue].key_seed);
        at[UNITS] = write_int32(at[UNITS], crc);
        at[UNITS] = write_int64(at[UNITS], record->physical_offset);
        at[UNITS] = write_int64(at[UNITS], entry->store_ms);
        at[HASHES] = put_number(at[HASHES], crc);
        at[TEXTS] = write_text(at[TEXTS], key);
        at[CELLS] = put_number(at[CELLS], (uint32_t)hash);
        at[TAGS] = put_number(at[TAGS], (uint32_t)(hash >> 32));
        at[LOWS] = put_number(at[LOWS], (uint32_t)record->physical_offset);
    }
    return DONE;
}

static enum outcome make_columns(const struct entry *entry, PyObject **columns)
{
    const Py_ssize_t sizes[ROW] = {entry->count * UNIT_BYTES,   entry->count * NUMBER_BYTES, entry->texts_bytes,
                                   entry->count * NUMBER_BYTES, entry->count * NUMBER_BYTES, entry->count * NUMBER_BYTES};
    for (int column = 0; column < ROW; column++)
        if ((columns[column] = PyBytes_FromStringAndSize(NULL, sizes[column])) == NULL)
            return FAILED;
    columns[ROW] = packed_row(entry);
    return columns[ROW] == NULL ? FAILED : fill_columns(entry, columns);
}

/* Append the units of all records to their queues. */
static enum outcome add_units(struct entry *entry)
{
    for (int place = 0; place < entry->queue_count; place++) {
        struct entry_queue *queue = &entry->queues[place];
        Py_ssize_t size = PyByteArray_Size(queue->tail);
        if (PyByteArray_Resize(queue->tail, size + queue->count * UNIT_BYTES) < 0)
            return FAILED;
        queue->unit_at = PyByteArray_AsString(queue->tail) + size;
    }
    for (Py_ssize_t place = 0; place < entry->count; place++) {
        const struct plain *record = &entry->records[place];
        struct entry_queue *queue = &entry->queues[record->queue];
        char *at = write_int64(queue->unit_at, record->physical_offset);
        at = write_int32(at, record->size);
        queue->unit_at = write_int64(at, record->tag_hash);
    }
    for (int place = 0; place < entry->queue_count; place++) {
        struct entry_queue *queue = &entry->queues[place];
        if (set_number(queue->object, entry->names->max_offset, queue->max_offset + queue->count) != DONE ||
            set_number(queue->object, entry->names->put_bytes, queue->put_bytes) != DONE)
            return FAILED;
    }
    return DONE;
}

static void leave_entry(struct entry *entry)
{
    for (int place = 0; place < entry->queue_count; place++) {
        Py_XDECREF(entry->queues[place].topic);
        Py_XDECREF(entry->queues[place].object);
        Py_XDECREF(entry->queues[place].tail);
    }
    leave_parsing(&entry->parsing);
    PyMem_Free(entry->records);
    PyMem_Free(entry);
}

PyObject *fold_entry(PyObject *module, PyObject *arguments)
{
    PyObject *body, *find_shape, *by_key, *result = NULL, *columns[ENTRY_COLUMNS] = {NULL};
    long long first_offset, latest_ms;
    struct text left;
    if (!PyArg_ParseTuple(arguments, "OLOO!L", &body, &first_offset, &find_shape, &PyDict_Type, &by_key, &latest_ms))
        return NULL;
    if (bytes_of(body, &left) != DONE || latest_ms < 0 || first_offset < 0)
        Py_RETURN_NONE;
    struct entry *entry = PyMem_Calloc(1, sizeof *entry);
    if (entry == NULL)
        return PyErr_NoMemory();
    entry->names = PyModule_GetState(module);
    entry->by_key = by_key;
    entry->parsing.find_shape = find_shape;
    entry->store_ms = latest_ms;
    enum outcome outcome = read_entry(entry, left, first_offset);
    if (outcome == DONE)
        outcome = make_columns(entry, columns);
    if (outcome == DONE)
        outcome = add_units(entry);
    if (outcome == DONE) {
        long long last = entry->records[entry->count - 1].physical_offset;
        result = Py_BuildValue("nLLOOOOOOO", entry->count, (long long)entry->store_ms, last, columns[UNITS],
                               columns[HASHES], columns[TEXTS], columns[CELLS], columns[TAGS], columns[LOWS],
                               columns[ROW]);
        outcome = result == NULL ? FAILED : DONE;
    }
    for (int column = 0; column < ENTRY_COLUMNS; column++)
        Py_XDECREF(columns[column]);
    leave_entry(entry);
    return concluded(outcome, result);
}

/* What every replica does for each record of an entry.
 *
 *     parse_records  an entry's body as the fold's view of its records   (broker/store/parse.py)
 *     fold_usual     records into the consume queues and columns of keys (broker/store/state.py)
 *     chain          numbered keys into chains, by their hashes          (broker/store/key_index.py, chained_sends.py)
 *     chained_keys   which of some keys stand in such a chain            (broker/store/chained_sends.py)
 *
 * An entry's bytes are what a leader wrote and a CRC32C covers. They are read as if they were hostile all the same: each
 * number is compared with what is left before anything is read by it.
 */
#include "_compiled.h"

enum {
    QUEUE_ID_AT = 12, QUEUE_OFFSET_AT = 20, PHYSICAL_OFFSET_AT = 28, SYS_FLAG_AT = 36, STORE_MS_AT = 56,
    BODY_LENGTH_AT = 84,
    NUMBER_BYTES = 4
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
    for (int place = 0; place < SHAPES; place++)
        Py_XDECREF(parsing.shapes[place].object);
    for (int place = 0; place < QUEUE_KEYS; place++)
        Py_XDECREF(parsing.queue_keys[place].object);
    Py_XDECREF(parsing.store_ms_object);
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

/* chain. */

/* Make each number the newest of its chain; `before` gets the one before it. */
static enum outcome fill_chains(const Py_buffer *cells, const Py_buffer *hashes, uint32_t number, char *before)
{
    size_t cell_count = (size_t)cells->len / NUMBER_BYTES;
    if (cell_count == 0 || cell_count & (cell_count - 1) || (size_t)cells->len % NUMBER_BYTES)
        return DECLINED;
    const char *at = hashes->buf, *end = at + hashes->len;
    for (; at < end; at += NUMBER_BYTES, number++, before += NUMBER_BYTES) {
        uint32_t hashed;
        memcpy(&hashed, at, NUMBER_BYTES);
        char *cell = (char *)cells->buf + (hashed & (cell_count - 1)) * NUMBER_BYTES;
        memcpy(before, cell, NUMBER_BYTES);
        memcpy(cell, &number, NUMBER_BYTES);
    }
    return DONE;
}

PyObject *chain(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *cells, *result = NULL;
    long long first;
    Py_buffer view, hashes;
    if (!PyArg_ParseTuple(arguments, "OLy*", &cells, &first, &hashes))
        return NULL;
    Py_ssize_t count = hashes.len / NUMBER_BYTES;
    enum outcome outcome = first < 0 || first > UINT32_MAX - count || hashes.len % NUMBER_BYTES ? DECLINED : DONE;
    if (outcome == DONE) {
        result = PyBytes_FromStringAndSize(NULL, hashes.len);
        outcome = result != NULL && PyObject_GetBuffer(cells, &view, PyBUF_WRITABLE) == 0 ? DONE : FAILED;
    }
    if (outcome == DONE) {
        outcome = fill_chains(&view, &hashes, (uint32_t)first, PyBytes_AsString(result));
        PyBuffer_Release(&view);
    }
    PyBuffer_Release(&hashes);
    return concluded(outcome, result);
}

/* chained_keys. */

/* Chains of keys that are held in tables; all objects are borrowed. */
struct chains {
    const struct names *names;
    const char *cells;
    size_t cell_count;
    int64_t first, count, numbers; /* of the oldest key, of all, and what numbers are taken modulo */
    PyObject *tables;
    int64_t table_keys, steps_max;
};

/* Read a number of a table's column. */
static enum outcome number_in(PyObject *table, PyObject *name, int64_t place, uint32_t *number)
{
    Py_buffer view;
    PyObject *column = PyObject_GetAttr(table, name);
    int result = column == NULL ? -1 : PyObject_GetBuffer(column, &view, PyBUF_SIMPLE);
    Py_XDECREF(column);
    if (result < 0)
        return FAILED;
    bool is_there = place < view.len / NUMBER_BYTES;
    if (is_there)
        memcpy(number, (const char *)view.buf + place * NUMBER_BYTES, NUMBER_BYTES);
    PyBuffer_Release(&view);
    return is_there ? DONE : DECLINED;
}

/* Look at one key of a chain: has it that tag, and if not, what number has the key before it? */
static enum outcome look_at(const struct chains *chains, int64_t at, uint32_t tag, bool *is_it, uint32_t *before)
{
    uint32_t found;
    PyObject *table = PySequence_GetItem(chains->tables, (Py_ssize_t)(at / chains->table_keys));
    if (table == NULL)
        return FAILED;
    int64_t place = at % chains->table_keys;
    enum outcome outcome = number_in(table, chains->names->tags, place, &found);
    *is_it = outcome == DONE && found == tag;
    if (outcome == DONE && !*is_it)
        outcome = number_in(table, chains->names->before, place, before);
    Py_DECREF(table);
    return outcome;
}

/* Say whether a key with that hash may be held. */
static enum outcome may_be_held(const struct chains *chains, uint64_t hash, bool *answer)
{
    uint32_t number, tag = (uint32_t)(hash >> 32);
    int64_t end = chains->count;
    memcpy(&number, chains->cells + (hash & (chains->cell_count - 1)) * NUMBER_BYTES, NUMBER_BYTES);
    *answer = true;
    for (int64_t step = 0; step < chains->steps_max; step++) {
        int64_t at = (number % chains->numbers + chains->numbers - chains->first) % chains->numbers;
        *answer = at < end;
        if (!*answer)
            return DONE;
        bool is_it;
        enum outcome outcome = look_at(chains, at, tag, &is_it, &number);
        if (outcome != DONE || is_it)
            return outcome;
        end = at;
    }
    return DONE;
}

static enum outcome find_keys(const struct chains *chains, PyObject *keys, PyObject *found)
{
    Py_ssize_t count = PyTuple_Size(keys);
    for (Py_ssize_t place = 0; place < count; place++) {
        bool is_likely;
        PyObject *key = PyTuple_GetItem(keys, place);
        if (!PyBytes_CheckExact(key))
            return DECLINED;
        Py_hash_t hash = PyObject_Hash(key);
        if (hash == -1)
            return FAILED;
        enum outcome outcome = may_be_held(chains, (uint64_t)(int64_t)hash, &is_likely);
        if (outcome != DONE)
            return outcome;
        if (is_likely && PyList_Append(found, key) < 0)
            return FAILED;
    }
    return DONE;
}

static bool are_usual(const struct chains *chains)
{
    return chains->cell_count && !(chains->cell_count & (chains->cell_count - 1)) && chains->numbers > 0 &&
           chains->numbers <= (int64_t)1 << 32 && chains->first >= 0 && chains->first < chains->numbers &&
           chains->table_keys > 0;
}

PyObject *chained_keys(PyObject *module, PyObject *arguments)
{
    PyObject *list, *cells, *result = NULL;
    long long first, count, numbers, table_keys, steps_max;
    Py_buffer view;
    struct chains chains = {.names = PyModule_GetState(module)};
    if (!PyArg_ParseTuple(arguments, "O!OLLLOLL", &PyList_Type, &list, &cells, &first, &count, &numbers, &chains.tables,
                          &table_keys, &steps_max))
        return NULL;
    PyObject *keys = PyList_AsTuple(list);
    if (keys == NULL)
        return NULL;
    if (PyObject_GetBuffer(cells, &view, PyBUF_SIMPLE) < 0) {
        Py_DECREF(keys);
        return NULL;
    }
    chains.cells = view.buf;
    chains.cell_count = (size_t)view.len % NUMBER_BYTES ? 0 : (size_t)view.len / NUMBER_BYTES;
    chains.first = first;
    chains.count = count;
    chains.numbers = numbers;
    chains.table_keys = table_keys;
    chains.steps_max = steps_max;
    enum outcome outcome = are_usual(&chains) ? DONE : DECLINED;
    if (outcome == DONE) {
        result = PyList_New(0);
        outcome = result == NULL ? FAILED : find_keys(&chains, keys, result);
    }
    PyBuffer_Release(&view);
    Py_DECREF(keys);
    return concluded(outcome, result);
}

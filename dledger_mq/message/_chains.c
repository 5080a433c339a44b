/* Chains of keys, by their hashes.
 *
 *     chain          numbered keys into chains, by their hashes  (broker/store/key_index.py, chained_sends.py)
 *     chained_keys   which of some keys stand in such a chain    (broker/store/chained_sends.py)
 */
#include "_compiled.h"

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

/* chained_keys.
 *
 * With millions of keys their cells and columns are in none of the processor's caches, and a broker looks each key of a
 * send up. So all keys of a call go together, step by step: what a step needs of memory is asked for before any of it is
 * waited for.
 */

/* The columns of a table, taken when first needed. */
struct columns {
    Py_buffer tags, before;
    bool has_tags, has_before;
};

/* Chains of keys that are held in tables; all objects are borrowed. */
struct chains {
    const struct names *names;
    const char *cells;
    size_t cell_count;
    int64_t first, count, numbers; /* of the oldest key, of all, and what numbers are taken modulo */
    PyObject *tables;
    int64_t table_keys, steps_max;
    struct columns **columns; /* of each table; NULL: not taken */
    Py_ssize_t table_count;
};

/* A key that may be held, as far as it was looked for. */
struct sought {
    Py_ssize_t place; /* among the keys that were asked for */
    uint32_t tag;
    int64_t at; /* the key of its chain to look at, counted from the oldest of all */
    const char *tag_at, *before_at; /* its tag, and the number of the key before it, which the cell has at first */
};

/* Go to the key before, unless the chain ends there: all keys of a chain stand before that end. */
static bool go_to_before(const struct chains *chains, struct sought *sought, int64_t end)
{
    uint32_t number;
    memcpy(&number, sought->before_at, NUMBER_BYTES);
    sought->at = (number % chains->numbers + chains->numbers - chains->first) % chains->numbers;
    return sought->at < end;
}

static bool take_column(PyObject *table, PyObject *name, Py_buffer *view)
{
    PyObject *column = PyObject_GetAttr(table, name);
    bool is_taken = column != NULL && PyObject_GetBuffer(column, view, PyBUF_SIMPLE) == 0;
    Py_XDECREF(column);
    return is_taken;
}

static bool take_columns(const struct chains *chains, Py_ssize_t number)
{
    PyObject *table = PySequence_GetItem(chains->tables, number);
    if (table == NULL)
        return false;
    struct columns *columns = chains->columns[number] = PyMem_Calloc(1, sizeof *columns);
    if (columns == NULL) {
        PyErr_NoMemory();
        Py_DECREF(table);
        return false;
    }
    columns->has_tags = take_column(table, chains->names->tags, &columns->tags);
    columns->has_before = columns->has_tags && take_column(table, chains->names->before, &columns->before);
    Py_DECREF(table);
    return columns->has_before;
}

static void give_back(struct columns *columns)
{
    if (columns == NULL)
        return;
    if (columns->has_tags)
        PyBuffer_Release(&columns->tags);
    if (columns->has_before)
        PyBuffer_Release(&columns->before);
    PyMem_Free(columns);
}

/* Find where the columns have the key to look at, and ask the memory for it. */
static enum outcome ask_for(struct chains *chains, struct sought *sought)
{
    int64_t number = sought->at / chains->table_keys, place = sought->at % chains->table_keys;
    if (number >= chains->table_count) {
        PyErr_SetString(PyExc_IndexError, "fewer tables than their keys need");
        return FAILED;
    }
    if (chains->columns[number] == NULL && !take_columns(chains, (Py_ssize_t)number))
        return FAILED;
    const struct columns *columns = chains->columns[number];
    if (place >= columns->tags.len / NUMBER_BYTES || place >= columns->before.len / NUMBER_BYTES)
        return DECLINED;
    sought->tag_at = (const char *)columns->tags.buf + place * NUMBER_BYTES;
    sought->before_at = (const char *)columns->before.buf + place * NUMBER_BYTES;
    __builtin_prefetch(sought->tag_at);
    __builtin_prefetch(sought->before_at);
    return DONE;
}

/* Read the hashes of keys, and begin their chains; `left` gets how many have one. */
static enum outcome begin_chains(const struct chains *chains, PyObject *keys, struct sought *sought, Py_ssize_t *left)
{
    Py_ssize_t count = PyTuple_Size(keys);
    for (Py_ssize_t place = 0; place < count; place++) {
        PyObject *key = PyTuple_GetItem(keys, place);
        if (!PyBytes_CheckExact(key))
            return DECLINED;
        Py_hash_t hash = PyObject_Hash(key);
        if (hash == -1)
            return FAILED;
        uint64_t bits = (uint64_t)(int64_t)hash;
        const char *cell = chains->cells + (bits & (chains->cell_count - 1)) * NUMBER_BYTES;
        __builtin_prefetch(cell);
        sought[place] = (struct sought){.place = place, .tag = (uint32_t)(bits >> 32), .before_at = cell};
    }
    *left = 0;
    for (Py_ssize_t place = 0; place < count; place++)
        if (go_to_before(chains, &sought[place], chains->count))
            sought[(*left)++] = sought[place];
    return DONE;
}

/* Note at the places of keys whether they may be held: these are found, or their chains are too long to be sure. */
static enum outcome walk_chains(struct chains *chains, struct sought *sought, Py_ssize_t left, char *are_likely)
{
    for (int64_t step = 0; step < chains->steps_max && left; step++) {
        for (Py_ssize_t one = 0; one < left; one++) {
            enum outcome outcome = ask_for(chains, &sought[one]);
            if (outcome != DONE)
                return outcome;
        }
        Py_ssize_t go_on = 0;
        for (Py_ssize_t one = 0; one < left; one++) {
            struct sought each = sought[one];
            if (memcmp(each.tag_at, &each.tag, NUMBER_BYTES) == 0)
                are_likely[each.place] = 1;
            else if (go_to_before(chains, &each, each.at))
                sought[go_on++] = each;
        }
        left = go_on;
    }
    for (Py_ssize_t one = 0; one < left; one++)
        are_likely[sought[one].place] = 1;
    return DONE;
}

static enum outcome find_keys(struct chains *chains, PyObject *keys, PyObject *found)
{
    Py_ssize_t left, count = PyTuple_Size(keys);
    struct sought *sought = PyMem_Calloc((size_t)count + 1, sizeof *sought);
    char *are_likely = PyMem_Calloc((size_t)count + 1, 1);
    enum outcome outcome = FAILED;
    if (sought == NULL || are_likely == NULL)
        PyErr_NoMemory();
    else
        outcome = begin_chains(chains, keys, sought, &left);
    if (outcome == DONE)
        outcome = walk_chains(chains, sought, left, are_likely);
    for (Py_ssize_t place = 0; outcome == DONE && place < count; place++)
        if (are_likely[place] && PyList_Append(found, PyTuple_GetItem(keys, place)) < 0)
            outcome = FAILED;
    PyMem_Free(sought);
    PyMem_Free(are_likely);
    return outcome;
}

/* Look for keys with room for the columns of all tables. */
static enum outcome find_in_tables(struct chains *chains, PyObject *keys, PyObject *found)
{
    chains->table_count = PySequence_Size(chains->tables);
    if (chains->table_count < 0)
        return FAILED;
    chains->columns = PyMem_Calloc((size_t)chains->table_count + 1, sizeof *chains->columns);
    if (chains->columns == NULL) {
        PyErr_NoMemory();
        return FAILED;
    }
    enum outcome outcome = find_keys(chains, keys, found);
    for (Py_ssize_t number = 0; number < chains->table_count; number++)
        give_back(chains->columns[number]);
    PyMem_Free(chains->columns);
    return outcome;
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
        outcome = result == NULL ? FAILED : find_in_tables(&chains, keys, result);
    }
    PyBuffer_Release(&view);
    Py_DECREF(keys);
    return concluded(outcome, result);
}

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

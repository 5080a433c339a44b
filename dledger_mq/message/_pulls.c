/* What a pull does for each unit of its queue that it looks at.
 *
 *     chosen_runs    which records it gives, those back to back as one   (broker/store/reading.py)
 *
 * It returns None for whatever is not usual.
 */
#include "_compiled.h"

/* What a pull wants, and how much of it. */
struct wanted {
    PyObject *tag_hashes; /* a set, or None for all */
    int64_t count_max, bytes_max;
    int64_t known_hash; /* the last that was looked up, if there was any */
    bool is_known, is_in;
};

/* What was chosen so far. */
struct chosen {
    PyObject *runs;
    int64_t start, end; /* of the run that may go on; -1 before the first */
    int64_t total, count, examined, first, last;
};

static enum outcome is_wanted(struct wanted *wanted, int64_t tag_hash, bool *answer)
{
    if (wanted->tag_hashes == Py_None) {
        *answer = true;
        return DONE;
    }
    if (!wanted->is_known || wanted->known_hash != tag_hash) {
        PyObject *hash = PyLong_FromLongLong(tag_hash);
        int found = hash == NULL ? -1 : PySet_Contains(wanted->tag_hashes, hash);
        Py_XDECREF(hash);
        if (found < 0)
            return FAILED;
        wanted->known_hash = tag_hash;
        wanted->is_known = true;
        wanted->is_in = found;
    }
    *answer = wanted->is_in;
    return DONE;
}

static enum outcome end_run(struct chosen *chosen)
{
    if (chosen->start < 0)
        return DONE;
    PyObject *start = PyLong_FromLongLong(chosen->start), *end = PyLong_FromLongLong(chosen->end);
    PyObject *run = start && end ? PyTuple_Pack(2, start, end) : NULL;
    Py_XDECREF(start);
    Py_XDECREF(end);
    return append_new(chosen->runs, untracked(run));
}

/* Choose records until the next one would be too much. */
static enum outcome choose(struct chosen *chosen, struct wanted *wanted, const char *unit, const char *end)
{
    for (; unit < end; unit += UNIT_BYTES) {
        int64_t found_at = read_int64(unit), size = read_int32(unit + 8);
        bool is_in;
        if (found_at < 0 || size < 0 || found_at > INT64_MAX - size)
            return DECLINED;
        enum outcome outcome = is_wanted(wanted, read_int64(unit + 12), &is_in);
        if (outcome != DONE)
            return outcome;
        if (is_in) {
            chosen->total += size; /* of fewer than 2**32 units */
            if (chosen->count && (chosen->count >= wanted->count_max || chosen->total > wanted->bytes_max))
                break;
            chosen->count++;
            if (found_at == chosen->end) {
                chosen->end += size;
            } else {
                outcome = end_run(chosen);
                if (outcome != DONE)
                    return outcome;
                chosen->start = found_at;
                chosen->end = found_at + size;
            }
        }
        chosen->last = found_at;
        if (!chosen->examined++)
            chosen->first = found_at;
    }
    return end_run(chosen);
}

PyObject *chosen_runs(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer units;
    PyObject *count_max, *bytes_max, *result = NULL;
    struct wanted wanted = {.is_known = false};
    struct chosen chosen = {.start = -1, .end = -1, .first = -1, .last = -1};
    if (!PyArg_ParseTuple(arguments, "y*OOO:chosen_runs", &units, &wanted.tag_hashes, &count_max, &bytes_max))
        return NULL;
    enum outcome outcome = number_of(count_max, INT64_MIN, INT64_MAX, &wanted.count_max);
    if (outcome == DONE)
        outcome = number_of(bytes_max, INT64_MIN, INT64_MAX, &wanted.bytes_max);
    if (outcome == DONE && wanted.tag_hashes != Py_None && !PyAnySet_Check(wanted.tag_hashes))
        outcome = DECLINED;
    if (outcome == DONE && units.len % UNIT_BYTES)
        outcome = DECLINED;
    chosen.runs = outcome == DONE ? PyList_New(0) : NULL;
    if (outcome == DONE)
        outcome = chosen.runs == NULL
                      ? FAILED
                      : choose(&chosen, &wanted, units.buf, (const char *)units.buf + units.len);
    if (outcome == DONE) {
        result = Py_BuildValue("(OLLLL)", chosen.runs, (long long)chosen.count, (long long)chosen.examined,
                               (long long)chosen.first, (long long)chosen.last);
        if (result == NULL)
            outcome = FAILED;
    }
    Py_XDECREF(chosen.runs);
    PyBuffer_Release(&units);
    return concluded(outcome, result);
}

/* What the files of the compiled stage share: names of attributes, bytes, and how a function ends.
 *
 * CPython's stable ABI, 3.11 and later: one build for all of them.
 */
#ifndef DLEDGER_COMPILED_H
#define DLEDGER_COMPILED_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum {
    RECORD_HEAD_BYTES = 88,    /* of a V1 record with IPv4 hosts, up to its body */
    RECORD_BYTES_MIN = 91,     /* and the lengths of its topic and properties */
    UNIT_BYTES = 20,           /* of a consume queue: physical offset, size of the record, tag hash */
    NUMBER_BYTES = 4           /* of columns of numbers, in this machine's order */
};

#define RECORD_MAGIC ((int32_t)-626843481)
#define UNUSUAL_FLAGS (0x4 | 0x10 | 0x20) /* prepared; born and store host of IPv6 */
#define KEY_MARK "UNIQ_KEY\x01"
#define KEY_MARK_BYTES 9
#define PAIR_END '\x02'

/* Attributes that are looked up: the state of the module. */
struct names {
    PyObject *key, *topic_field, *next_offset;                   /* of a QueueEnd */
    PyObject *tail, *max_offset, *put_bytes, *key_seed, *special; /* of a ConsumeQueue */
    PyObject *tags, *before;                                      /* of a ChainedTable */
    PyObject *serialize_type, *header, *body;                     /* of a Frame */
};

/* Outcomes of a step. */
enum outcome { FAILED = -1, DECLINED = 0, DONE = 1 };

struct text {
    const char *start;
    Py_ssize_t size;
};

/* Bytes. */

static inline int32_t read_int32(const char *at)
{
    const unsigned char *bytes = (const unsigned char *)at;
    uint32_t value = (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
    int32_t result;
    memcpy(&result, &value, sizeof result);
    return result;
}

static inline int16_t read_int16(const char *at)
{
    const unsigned char *bytes = (const unsigned char *)at;
    uint16_t value = (uint16_t)(bytes[0] << 8 | bytes[1]);
    int16_t result;
    memcpy(&result, &value, sizeof result);
    return result;
}

static inline int64_t read_int64(const char *at)
{
    uint64_t value = (uint64_t)(uint32_t)read_int32(at) << 32 | (uint32_t)read_int32(at + 4);
    int64_t result;
    memcpy(&result, &value, sizeof result);
    return result;
}

static inline char *write_big_endian(char *at, uint64_t value, int count)
{
    for (int place = count - 1; place >= 0; place--, value >>= 8)
        at[place] = (char)(value & 0xFF);
    return at + count;
}

static inline char *write_int32(char *at, int64_t value)
{
    return write_big_endian(at, (uint64_t)value, 4);
}

static inline char *write_int64(char *at, int64_t value)
{
    return write_big_endian(at, (uint64_t)value, 8);
}

static inline char *write_text(char *at, struct text text)
{
    memcpy(at, text.start, (size_t)text.size);
    return at + text.size;
}

static inline bool is_equal(struct text one, struct text other)
{
    return one.size == other.size && memcmp(one.start, other.start, (size_t)one.size) == 0;
}

/* Where a mark begins; NULL: it is not there. */
static inline const char *find(struct text text, const char *mark, Py_ssize_t mark_bytes)
{
    const char *at = text.start, *end = text.start + text.size;
    while (end - at >= mark_bytes) {
        at = memchr(at, mark[0], (size_t)(end - at - mark_bytes + 1));
        if (at == NULL)
            return NULL;
        if (memcmp(at, mark, (size_t)mark_bytes) == 0)
            return at;
        at++;
    }
    return NULL;
}

/* The bytes of an object; DECLINED: it is none of type bytes. They live as long as it does. */
static inline enum outcome bytes_of(PyObject *object, struct text *text)
{
    char *start;
    if (object == NULL)
        return FAILED;
    if (!PyBytes_CheckExact(object))
        return DECLINED;
    if (PyBytes_AsStringAndSize(object, &start, &text->size) < 0)
        return FAILED;
    text->start = start;
    return DONE;
}

/* A number within bounds; DECLINED: it is none, or beyond them. */
static inline enum outcome number_of(PyObject *object, int64_t least, int64_t most, int64_t *number)
{
    int overflow;
    if (object == NULL)
        return FAILED;
    if (!PyLong_Check(object))
        return DECLINED;
    long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (value == -1 && PyErr_Occurred())
        return FAILED;
    if (overflow || value < least || value > most)
        return DECLINED;
    *number = value;
    return DONE;
}

/* Append to a list, taking over the reference; FAILED as well if there is nothing to append. */
static inline enum outcome append_new(PyObject *list, PyObject *item)
{
    if (item == NULL)
        return FAILED;
    int result = PyList_Append(list, item);
    Py_DECREF(item);
    return result < 0 ? FAILED : DONE;
}

/* A tuple that the garbage collector need not visit: no cycle goes through numbers and texts, or tuples of them. */
static inline PyObject *untracked(PyObject *tuple)
{
    if (tuple != NULL)
        PyObject_GC_UnTrack(tuple);
    return tuple;
}

/* What a function returns to Python: NULL with an exception, None, or the result; frees a result that is of no use. */
static inline PyObject *concluded(enum outcome outcome, PyObject *result)
{
    if (outcome == DONE)
        return result;
    Py_XDECREF(result);
    if (outcome == FAILED)
        return NULL;
    Py_RETURN_NONE;
}

void set_up_crc32c(void);

/* Conditions on properties; see _conditions.c. */

enum verdict { IS_FALSE = 0, IS_TRUE = 1, IS_UNKNOWN, UNREADABLE, UNDECIDED };

/* The properties of a record, and the names, each with the separator behind it, that a condition looks for. */
struct properties {
    struct text text;
    const struct text *marks;
    Py_ssize_t mark_count;
};

struct text value_of(struct text properties, struct text mark);
enum verdict verdict_of(const struct properties *looked_at, struct text condition);

/* The functions; see compiled.py. */

PyObject *read_batch(PyObject *module, PyObject *arguments);
PyObject *batch_keys(PyObject *module, PyObject *arguments);
PyObject *batch_records(PyObject *module, PyObject *arguments);
PyObject *place_records(PyObject *module, PyObject *arguments);
PyObject *encode_records(PyObject *module, PyObject *arguments);
PyObject *cut_frames(PyObject *module, PyObject *arguments);
PyObject *read_sends(PyObject *module, PyObject *arguments);
PyObject *join_answers(PyObject *module, PyObject *arguments);
PyObject *each_answer(PyObject *module, PyObject *arguments);
PyObject *receive_frames(PyObject *module, PyObject *arguments);
PyObject *send_each(PyObject *module, PyObject *arguments);
PyObject *parse_records(PyObject *module, PyObject *arguments);
PyObject *fold_usual(PyObject *module, PyObject *arguments);
PyObject *fold_entry(PyObject *module, PyObject *arguments);
PyObject *chain(PyObject *module, PyObject *arguments);
PyObject *chained_keys(PyObject *module, PyObject *arguments);
PyObject *asked_values(PyObject *module, PyObject *arguments);
PyObject *judged_records(PyObject *module, PyObject *arguments);
PyObject *chosen_runs(PyObject *module, PyObject *arguments);
PyObject *received_messages(PyObject *module, PyObject *arguments);
PyObject *record_columns(PyObject *module, PyObject *arguments);
PyObject *property_json(PyObject *module, PyObject *arguments);
PyObject *property_values(PyObject *module, PyObject *arguments);

#endif

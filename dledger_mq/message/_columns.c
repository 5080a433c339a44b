/* What the pipeline does for each record that it makes columns of, with nothing but its bytes.
 *
 *     record_columns     where records and their parts stand, and their numbers   (pipeline/scan/records.py)
 *     property_json      their properties as JSON                                 (pipeline/scan/properties.py)
 *     property_values    one property of each                                     (pipeline/scan/properties.py)
 *
 * They return None for whatever is not usual, and for whatever is wrong. Each number in the bytes is compared with what
 * is left before anything is read by it.
 */
#include "_compiled.h"

#define RECORD_MAGIC_V2 ((int32_t)-626843477)

enum {
    FRONT_BYTES = 48, /* the fields before the born host */
    BACK_BYTES = 16,  /* those from the reconsume times to the length of the body */
    HOST_BYTES = 8,
    WIDE_HOST_BYTES = 20,
    WIDE_BORN_HOST = 0x10,
    WIDE_STORE_HOST = 0x20,
    PAIRS_MAX = 64, /* of one record; more are not usual */
    TEXT_MAX = INT32_MAX
};

/* The columns of places, in this order, and the store times behind them. */
enum place { START, BODY_START, TOPIC_AT, TOPIC_START, TOPIC_END, END, STORE_HOST_AT, STORE_MS, PLACES };

struct columns {
    int64_t *places; /* column by column */
    char *front, *back;
    Py_ssize_t count;
};

/* Take one record apart; false: it is not whole, or no record. */
static bool take_apart(const char *data, int64_t start, int64_t size, const struct columns *columns, Py_ssize_t row)
{
    const char *record = data + start;
    int32_t magic = read_int32(record + 4), sys_flag = read_int32(record + 36);
    if (magic != RECORD_MAGIC && magic != RECORD_MAGIC_V2)
        return false;
    int64_t width = magic == RECORD_MAGIC ? 1 : 2, end = start + size;
    int64_t store_ms_at = start + FRONT_BYTES + (sys_flag & WIDE_BORN_HOST ? WIDE_HOST_BYTES : HOST_BYTES);
    int64_t store_host_at = store_ms_at + 8;
    int64_t back_at = store_host_at + (sys_flag & WIDE_STORE_HOST ? WIDE_HOST_BYTES : HOST_BYTES);
    int64_t body_start = back_at + BACK_BYTES;
    if (body_start + 3 > end)
        return false;
    int64_t body_bytes = read_int32(data + body_start - 4), topic_at = body_start + body_bytes;
    int64_t topic_start = topic_at + width;
    if (body_bytes < 0 || topic_start + 2 > end)
        return false;
    const unsigned char *octets = (const unsigned char *)data;
    int64_t topic_bytes = width == 1 ? octets[topic_at] : octets[topic_at] << 8 | octets[topic_at + 1];
    int64_t topic_end = topic_start + topic_bytes;
    if (topic_bytes == 0 || topic_end + 2 > end || topic_end + 2 + (octets[topic_end] << 8 | octets[topic_end + 1]) != end)
        return false;
    const int64_t places[PLACES] = {
        [START] = start,         [BODY_START] = body_start,       [TOPIC_AT] = topic_at,
        [TOPIC_START] = topic_start, [TOPIC_END] = topic_end,     [END] = end,
        [STORE_HOST_AT] = store_host_at, [STORE_MS] = read_int64(data + store_ms_at),
    };
    for (int place = 0; place < PLACES; place++)
        columns->places[place * columns->count + row] = places[place];
    memcpy(columns->front + row * FRONT_BYTES, record, FRONT_BYTES);
    memcpy(columns->back + row * BACK_BYTES, data + back_at, BACK_BYTES);
    return true;
}

/* Count the records of spans, along their sizes; -1: they do not fill them. */
static Py_ssize_t count_records(const char *data, int64_t data_bytes, const int64_t *bounds, Py_ssize_t spans)
{
    Py_ssize_t count = 0;
    int64_t before = 0;
    for (Py_ssize_t span = 0; span < spans; span++) {
        int64_t at = bounds[2 * span], end = bounds[2 * span + 1];
        if (at < before || end > data_bytes)
            return -1;
        while (at < end) {
            int64_t size = end - at < RECORD_BYTES_MIN ? -1 : read_int32(data + at);
            if (size < RECORD_BYTES_MIN || size > end - at)
                return -1;
            count++;
            at += size;
        }
        before = at;
    }
    return count;
}

PyObject *record_columns(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer data, bounds;
    PyObject *places = NULL, *front = NULL, *back = NULL, *result = NULL;
    enum outcome outcome = DECLINED;
    if (!PyArg_ParseTuple(arguments, "y*y*:record_columns", &data, &bounds))
        return NULL;
    Py_ssize_t spans = bounds.len / (Py_ssize_t)(2 * sizeof(int64_t)), row = 0;
    Py_ssize_t count = bounds.len % (Py_ssize_t)(2 * sizeof(int64_t)) ? -1 : count_records(data.buf, data.len, bounds.buf, spans);
    if (count < 0)
        goto done;
    outcome = FAILED;
    places = PyBytes_FromStringAndSize(NULL, count * PLACES * (Py_ssize_t)sizeof(int64_t));
    front = PyBytes_FromStringAndSize(NULL, count * FRONT_BYTES);
    back = PyBytes_FromStringAndSize(NULL, count * BACK_BYTES);
    if (places == NULL || front == NULL || back == NULL)
        goto done;
    struct columns columns = {(int64_t *)(void *)PyBytes_AsString(places), PyBytes_AsString(front),
                              PyBytes_AsString(back), count};
    for (Py_ssize_t span = 0; span < spans; span++) {
        int64_t at = ((const int64_t *)bounds.buf)[2 * span], end = ((const int64_t *)bounds.buf)[2 * span + 1];
        while (at < end) {
            int64_t size = read_int32((const char *)data.buf + at);
            if (!take_apart(data.buf, at, size, &columns, row++)) {
                outcome = DECLINED;
                goto done;
            }
            at += size;
        }
    }
    result = PyTuple_Pack(3, places, front, back);
    outcome = result == NULL ? FAILED : DONE;
done:
    Py_XDECREF(places);
    Py_XDECREF(front);
    Py_XDECREF(back);
    PyBuffer_Release(&data);
    PyBuffer_Release(&bounds);
    return concluded(outcome, result);
}

/* The properties of one record. */
struct pairs {
    struct text names[PAIRS_MAX], values[PAIRS_MAX];
    int count;
    bool is_ascii, has_quotes; /* quotes and backslashes, which JSON escapes */
};

/* The end of a name or value: any byte below 32, of which all but the separators are not usual; NULL: there is none. */
static const char *end_of(const char *at, const char *end, struct pairs *pairs)
{
    unsigned char all = 0;
    for (; at < end; at++) {
        unsigned char octet = (unsigned char)*at;
        all |= octet;
        if (octet < 32) {
            pairs->is_ascii &= all < 128;
            return at;
        }
        if (octet == '"' || octet == '\\')
            pairs->has_quotes = true;
    }
    return NULL;
}

/* Cut properties into pairs; false: they are not usual: a part is missing or empty, there is a control character, or a
 * name comes twice. */
static bool cut_pairs(struct text properties, struct pairs *pairs)
{
    const char *at = properties.start, *end = at + properties.size;
    pairs->count = 0;
    pairs->is_ascii = true;
    pairs->has_quotes = false;
    while (at < end) {
        if (pairs->count == PAIRS_MAX)
            return false;
        const char *name_end = end_of(at, end, pairs);
        if (name_end == NULL || name_end == at || *name_end != '\x01')
            return false;
        const char *value_end = end_of(name_end + 1, end, pairs);
        if (value_end == NULL || value_end == name_end + 1 || *value_end != PAIR_END)
            return false;
        struct text name = {at, name_end - at};
        for (int earlier = 0; earlier < pairs->count; earlier++)
            if (is_equal(pairs->names[earlier], name))
                return false;
        pairs->names[pairs->count] = name;
        pairs->values[pairs->count++] = (struct text){name_end + 1, value_end - name_end - 1};
        at = value_end + 1;
    }
    return true;
}

static char *write_escaped(char *at, struct text text, bool has_quotes)
{
    if (!has_quotes)
        return write_text(at, text);
    for (Py_ssize_t place = 0; place < text.size; place++) {
        if (text.start[place] == '"' || text.start[place] == '\\')
            *at++ = '\\';
        *at++ = text.start[place];
    }
    return at;
}

static char *write_json(char *at, const struct pairs *pairs)
{
    *at++ = '{';
    for (int place = 0; place < pairs->count; place++) {
        if (place)
            *at++ = ',';
        *at++ = '"';
        at = write_escaped(at, pairs->names[place], pairs->has_quotes);
        memcpy(at, "\":\"", 3);
        at = write_escaped(at + 3, pairs->values[place], pairs->has_quotes);
        *at++ = '"';
    }
    *at++ = '}';
    return at;
}

/* Whether bytes are UTF-8; FAILED for want of memory. */
static enum outcome check_text(const char *start, Py_ssize_t size)
{
    PyObject *text = PyUnicode_DecodeUTF8(start, size, "strict");
    if (text != NULL) {
        Py_DECREF(text);
        return DONE;
    }
    if (!PyErr_ExceptionMatches(PyExc_UnicodeDecodeError))
        return FAILED;
    PyErr_Clear();
    return DECLINED;
}

/* What stands between two columns of places in some bytes. */
struct slices {
    Py_buffer data, begins, ends;
    Py_ssize_t count;
};

static enum outcome check_slices(struct slices *slices, int64_t *total)
{
    const int64_t *begins = slices->begins.buf, *ends = slices->ends.buf;
    if (slices->begins.len != slices->ends.len || slices->begins.len % (Py_ssize_t)sizeof(int64_t))
        return DECLINED;
    slices->count = slices->begins.len / (Py_ssize_t)sizeof(int64_t);
    *total = 0;
    for (Py_ssize_t row = 0; row < slices->count; row++) {
        if (begins[row] < 0 || ends[row] < begins[row] || ends[row] > slices->data.len)
            return DECLINED;
        *total += ends[row] - begins[row];
        if (*total > TEXT_MAX)
            return DECLINED;
    }
    return DONE;
}

static struct text slice(const struct slices *slices, Py_ssize_t row)
{
    int64_t begin = ((const int64_t *)slices->begins.buf)[row], end = ((const int64_t *)slices->ends.buf)[row];
    return (struct text){(const char *)slices->data.buf + begin, (Py_ssize_t)(end - begin)};
}

static void release_slices(struct slices *slices)
{
    PyBuffer_Release(&slices->data);
    PyBuffer_Release(&slices->begins);
    PyBuffer_Release(&slices->ends);
}

PyObject *property_json(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    struct slices slices;
    struct pairs pairs;
    int64_t total;
    PyObject *offsets = NULL, *text = NULL, *result = NULL;
    if (!PyArg_ParseTuple(arguments, "y*y*y*:property_json", &slices.data, &slices.begins, &slices.ends))
        return NULL;
    enum outcome outcome = check_slices(&slices, &total);
    if (outcome == DONE) {
        /* A pair has four bytes or more, and gets four marks for two; each other byte may be escaped. */
        int64_t most = 2 * total + total / 2 + 2 * (int64_t)slices.count;
        outcome = most > TEXT_MAX ? DECLINED : DONE;
        if (outcome == DONE) {
            offsets = PyBytes_FromStringAndSize(NULL, (slices.count + 1) * (Py_ssize_t)sizeof(int32_t));
            text = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)most);
            outcome = offsets == NULL || text == NULL ? FAILED : DONE;
        }
    }
    if (outcome == DONE) {
        int32_t *ends = (int32_t *)(void *)PyBytes_AsString(offsets);
        char *start = PyBytes_AsString(text), *at = start;
        bool is_ascii = true;
        ends[0] = 0;
        for (Py_ssize_t row = 0; row < slices.count && outcome == DONE; row++) {
            if (!cut_pairs(slice(&slices, row), &pairs)) {
                outcome = DECLINED;
                break;
            }
            is_ascii &= pairs.is_ascii;
            at = write_json(at, &pairs);
            ends[row + 1] = (int32_t)(at - start);
        }
        if (outcome == DONE && !is_ascii)
            outcome = check_text(start, at - start);
        if (outcome == DONE)
            result = Py_BuildValue("(Oy#)", offsets, start, (Py_ssize_t)(at - start));
        if (outcome == DONE && result == NULL)
            outcome = FAILED;
    }
    Py_XDECREF(offsets);
    Py_XDECREF(text);
    release_slices(&slices);
    return concluded(outcome, result);
}

PyObject *property_values(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    struct slices slices;
    struct pairs pairs;
    struct text name;
    int64_t total;
    PyObject *offsets = NULL, *text = NULL, *valid = NULL, *result = NULL;
    if (!PyArg_ParseTuple(arguments, "y*y*y*y#:property_values", &slices.data, &slices.begins, &slices.ends, &name.start,
                          &name.size))
        return NULL;
    enum outcome outcome = check_slices(&slices, &total);
    if (outcome == DONE) {
        offsets = PyBytes_FromStringAndSize(NULL, (slices.count + 1) * (Py_ssize_t)sizeof(int32_t));
        valid = PyBytes_FromStringAndSize(NULL, (slices.count + 7) / 8);
        text = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total);
        outcome = offsets == NULL || valid == NULL || text == NULL ? FAILED : DONE;
    }
    if (outcome == DONE) {
        int32_t *ends = (int32_t *)(void *)PyBytes_AsString(offsets);
        unsigned char *bits = (unsigned char *)PyBytes_AsString(valid);
        char *start = PyBytes_AsString(text), *at = start;
        memset(bits, 0, (size_t)(slices.count + 7) / 8);
        ends[0] = 0;
        for (Py_ssize_t row = 0; row < slices.count && outcome == DONE; row++) {
            struct text properties = slice(&slices, row);
            if (!cut_pairs(properties, &pairs)) {
                outcome = DECLINED;
                break;
            }
            if (!pairs.is_ascii)
                outcome = check_text(properties.start, properties.size);
            for (int pair = 0; pair < pairs.count; pair++) {
                if (!is_equal(pairs.names[pair], name))
                    continue;
                at = write_text(at, pairs.values[pair]);
                bits[row / 8] |= (unsigned char)(1 << row % 8);
            }
            ends[row + 1] = (int32_t)(at - start);
        }
        if (outcome == DONE)
            result = Py_BuildValue("(OOy#)", valid, offsets, start, (Py_ssize_t)(at - start));
        if (outcome == DONE && result == NULL)
            outcome = FAILED;
    }
    Py_XDECREF(offsets);
    Py_XDECREF(valid);
    Py_XDECREF(text);
    release_slices(&slices);
    return concluded(outcome, result);
}

/* Verdicts on the properties of a record, by a condition as it is laid out in bytes (dledger_mq/filters/layout.py).
 *
 * It evaluates as the Python condition does, part by part in the same order; where a part is not for this code to say,
 * nor is the whole. A layout is our own, and is read as if it were not.
 */
#include "_compiled.h"

enum {
    DEPTH_MAX = 64,       /* filters are nested less */
    PART_HEAD_BYTES = 5,  /* what it is, and its bytes */
    NAME_BYTES = 2,       /* the place of a name among the marks */
    DIGITS_MAX = 9        /* any number of so many digits has 32 bits */
};

/* The value of the last pair that begins with a mark and does not end with it; its start is NULL: there is none. */
struct text value_of(struct text properties, struct text mark)
{
    const char *at = properties.start, *end = at + properties.size;
    struct text value = {NULL, 0};
    while (end - at > mark.size) {
        const char *pair_end = memchr(at, PAIR_END, (size_t)(end - at));
        if (pair_end == NULL)
            pair_end = end;
        if (pair_end - at > mark.size && memcmp(at, mark.start, (size_t)mark.size) == 0)
            value = (struct text){at + mark.size, pair_end - at - mark.size};
        if (pair_end == end)
            break;
        at = pair_end + 1;
    }
    return value;
}

/* Read a whole number; UNREADABLE: it is none. UNDECIDED: it is too long for this code. */
static enum verdict read_number(struct text value, int32_t *number)
{
    bool has_sign = value.start[0] == '-' || value.start[0] == '+';
    const char *at = value.start + has_sign, *end = value.start + value.size;
    if (end - at > DIGITS_MAX)
        return UNDECIDED;
    if (at == end)
        return UNREADABLE;
    int32_t found = 0;
    for (; at < end; at++) {
        if (*at < '0' || *at > '9')
            return UNREADABLE;
        found = found * 10 + (*at - '0');
    }
    *number = value.start[0] == '-' ? -found : found;
    return IS_TRUE;
}

static enum verdict compared(char kind, struct text value, struct text constant)
{
    int32_t number;
    if (constant.size != 4)
        return UNDECIDED;
    enum verdict verdict = read_number(value, &number);
    if (verdict != IS_TRUE)
        return verdict;
    int32_t bound = read_int32(constant.start);
    switch (kind) {
    case '<':
        return number < bound;
    case '{':
        return number <= bound;
    case '>':
        return number > bound;
    case '}':
        return number >= bound;
    default:
        return number == bound;
    }
}

/* Whether a value is one of some texts, each behind its length. */
static enum verdict is_among(struct text value, struct text texts)
{
    const char *at = texts.start, *end = at + texts.size;
    while (end - at >= 2) {
        struct text text = {at + 2, (uint16_t)read_int16(at)};
        if (text.size > end - text.start)
            return UNDECIDED;
        if (is_equal(value, text))
            return IS_TRUE;
        at = text.start + text.size;
    }
    return at == end ? IS_FALSE : UNDECIDED;
}

/* A part that looks at the value of one name. */
static enum verdict look_at(const struct properties *looked_at, char kind, struct text content)
{
    if (content.size < NAME_BYTES)
        return UNDECIDED;
    Py_ssize_t name = (uint16_t)read_int16(content.start);
    if (name >= looked_at->mark_count)
        return UNDECIDED;
    struct text value = value_of(looked_at->text, looked_at->marks[name]);
    struct text rest = {content.start + NAME_BYTES, content.size - NAME_BYTES};
    if (kind == 'N')
        return value.start == NULL;
    if (value.start == NULL)
        return IS_UNKNOWN;
    switch (kind) {
    case 'V':
        return IS_FALSE;
    case '=':
        return is_equal(value, rest);
    case 'I':
        return is_among(value, rest);
    case '<':
    case '{':
    case '>':
    case '}':
    case '#':
        return compared(kind, value, rest);
    default:
        return UNDECIDED;
    }
}

/* Cut off the first part; its kind is '?' if it does not stand there whole. */
static char next_part(struct text *parts, struct text *content)
{
    if (parts->size < PART_HEAD_BYTES)
        return '?';
    Py_ssize_t size = read_int32(parts->start + 1);
    if (size < PART_HEAD_BYTES || size > parts->size)
        return '?';
    char kind = parts->start[0];
    *content = (struct text){parts->start + PART_HEAD_BYTES, size - PART_HEAD_BYTES};
    *parts = (struct text){parts->start + size, parts->size - size};
    return kind;
}

static enum verdict judge(const struct properties *looked_at, struct text *parts, int depth)
{
    struct text content = {NULL, 0};
    char kind = next_part(parts, &content);
    if (depth >= DEPTH_MAX || kind == '?')
        return UNDECIDED;
    if (kind == '!') {
        enum verdict found = judge(looked_at, &content, depth + 1);
        return found == IS_TRUE ? IS_FALSE : found == IS_FALSE ? IS_TRUE : found;
    }
    if (kind != '&' && kind != '|')
        return look_at(looked_at, kind, content);
    enum verdict ends_it = kind == '|' ? IS_TRUE : IS_FALSE, verdict = kind == '|' ? IS_FALSE : IS_TRUE;
    while (content.size > 0) {
        enum verdict found = judge(looked_at, &content, depth + 1);
        if (found == ends_it || found == UNREADABLE || found == UNDECIDED)
            return found;
        if (found == IS_UNKNOWN)
            verdict = IS_UNKNOWN;
    }
    return verdict;
}

enum verdict verdict_of(const struct properties *looked_at, struct text condition)
{
    return judge(looked_at, &condition, 0);
}

/* Inner loops over lines of JSON: values of a field without decoding the lines, and rows of bytes in another order.
 *
 * A line is handled only if orjson would accept it and find the same value. The function stops at the first other line:
 * the caller decodes all lines in Python, which raises all errors. See _native.c, native.py.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <stdint.h>
#include <string.h>

#include "_native_json.h"

#define MOST_DEPTH 200 /* of nested objects and lists; orjson reads deeper ones, too */
#define MOST_DIGITS 19 /* of an integer that surely fits into 64 bits without a sign */
#define MOST_NUMBER 64 /* bytes of a number */
#define BUFFER_SHIFT 40 /* bits of an offset in a place of a row; above it is the number of the buffer */
#define ONES 0x0101010101010101u
#define HIGHS 0x8080808080808080u

typedef const unsigned char *Bytes;

/* A position in a line. */
typedef struct {
    Bytes at;
    Bytes end;
} Cursor;

static uint64_t
row_bound(const Py_buffer *array, Py_ssize_t place)
{
    uint64_t value;
    memcpy(&value, (const char *)array->buf + place * 8, 8);
    return value;
}

static void
skip_space(Cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\r' || *c->at == '\n')) {
        c->at++;
    }
}

static int
take(Cursor *c, unsigned char byte)
{
    if (c->at < c->end && *c->at == byte) {
        c->at++;
        return 1;
    }
    return 0;
}

static int
is_digit(unsigned char byte)
{
    return byte >= '0' && byte <= '9';
}

/* Returns the number of bytes of the character of UTF-8 at a position, which has several bytes; 0 if it is not valid. */
static int
wide_character(Bytes at, Bytes end)
{
    static const unsigned char least[] = {0x80, 0xA0, 0x80, 0x90, 0x80}, most[] = {0xBF, 0xBF, 0x9F, 0xBF, 0x8F};
    unsigned char lead = *at;
    int size = lead >= 0xC2 && lead < 0xE0 ? 2 : lead >= 0xE0 && lead < 0xF0 ? 3 : lead >= 0xF0 && lead < 0xF5 ? 4 : 0;
    int second = lead == 0xE0 ? 1 : lead == 0xED ? 2 : lead == 0xF0 ? 3 : lead == 0xF4 ? 4 : 0;
    if (size == 0 || end - at < size || at[1] < least[second] || at[1] > most[second]) {
        return 0;
    }
    for (int i = 2; i < size; i++) {
        if (at[i] < 0x80 || at[i] > 0xBF) {
            return 0;
        }
    }
    return size;
}

/* Reads four hexadecimal digits; returns -1 if there are none. */
static int
code_unit(Bytes at, Bytes end)
{
    int value = 0;
    if (end - at < 4) {
        return -1;
    }
    for (int i = 0; i < 4; i++) {
        unsigned char byte = at[i] | 0x20;
        int digit = is_digit(at[i]) ? at[i] - '0' : byte >= 'a' && byte <= 'f' ? byte - 'a' + 10 : -1;
        if (digit < 0) {
            return -1;
        }
        value = value * 16 + digit;
    }
    return value;
}

/* Moves over an escape, from the byte after its backslash. */
static int
skip_escape(Cursor *c)
{
    if (c->at == c->end) {
        return 0;
    }
    if (*c->at != 'u') {
        return strchr("\"\\/bfnrt", *c->at) != NULL && *c->at++ != 0;
    }
    int first = code_unit(++c->at, c->end);
    if (first < 0 || (first >= 0xDC00 && first < 0xE000)) {
        return 0;
    }
    c->at += 4;
    if (first < 0xD800 || first >= 0xE000) {
        return 1;
    }
    if (c->end - c->at < 6 || c->at[0] != '\\' || c->at[1] != 'u') {
        return 0;
    }
    int second = code_unit(c->at + 2, c->end);
    c->at += 6;
    return second >= 0xDC00 && second < 0xE000;
}

/* Moves over a string, from the byte after its first quote. `escaped` is set if it has an escape. */
static int
skip_string(Cursor *c, int *escaped)
{
    for (;;) {
        while (c->end - c->at >= 8) { /* eight plain characters of ASCII at once */
            uint64_t word;
            memcpy(&word, c->at, 8);
            uint64_t quote = word ^ (ONES * '"'), slash = word ^ (ONES * '\\');
            uint64_t special = ((quote - ONES) & ~quote) | ((slash - ONES) & ~slash) | ((word - ONES * 0x20) & ~word);
            if ((special | word) & HIGHS) {
                break;
            }
            c->at += 8;
        }
        if (c->at == c->end || *c->at < 0x20) {
            return 0;
        }
        if (*c->at == '"') {
            c->at++;
            return 1;
        }
        if (*c->at == '\\') {
            c->at++;
            *escaped = 1;
            if (!skip_escape(c)) {
                return 0;
            }
        }
        else if (*c->at < 0x80) {
            c->at++;
        }
        else {
            int size = wide_character(c->at, c->end);
            if (size == 0) {
                return 0;
            }
            c->at += size;
        }
    }
}

static Py_ssize_t
skip_digits(Cursor *c)
{
    Bytes start = c->at;
    while (c->at < c->end && is_digit(*c->at)) {
        c->at++;
    }
    return c->at - start;
}

static int
skip_number(Cursor *c)
{
    Bytes start = c->at;
    int negative = take(c, '-');
    Bytes first = c->at;
    Py_ssize_t whole = skip_digits(c);
    if (whole == 0 || (whole > 1 && *first == '0')) {
        return 0;
    }
    int is_integer = 1;
    if (take(c, '.')) {
        is_integer = 0;
        if (skip_digits(c) == 0) {
            return 0;
        }
    }
    if (take(c, 'e') || take(c, 'E')) {
        is_integer = 0;
        (void)(take(c, '+') || take(c, '-'));
        Py_ssize_t digits = skip_digits(c);
        if (digits == 0 || digits > 2) {
            return 0;
        }
    }
    return c->at - start <= MOST_NUMBER && (!is_integer || whole + negative <= MOST_DIGITS);
}

static int
skip_word(Cursor *c, const char *word, Py_ssize_t size)
{
    if (c->end - c->at < size || memcmp(c->at, word, (size_t)size) != 0) {
        return 0;
    }
    c->at += size;
    return 1;
}

static int skip_value(Cursor *c, int depth);

/* Moves over the members of an object or a list, from the byte after its bracket. */
static int
skip_members(Cursor *c, int depth, unsigned char close, int named)
{
    int escaped = 0;
    skip_space(c);
    if (take(c, close)) {
        return 1;
    }
    do {
        skip_space(c);
        if (named) {
            if (!take(c, '"') || !skip_string(c, &escaped)) {
                return 0;
            }
            skip_space(c);
            if (!take(c, ':')) {
                return 0;
            }
            skip_space(c);
        }
        if (!skip_value(c, depth)) {
            return 0;
        }
        skip_space(c);
    } while (take(c, ','));
    return take(c, close);
}

static int
skip_value(Cursor *c, int depth)
{
    int escaped = 0;
    if (c->at == c->end || depth > MOST_DEPTH) {
        return 0;
    }
    switch (*c->at) {
    case '"':
        c->at++;
        return skip_string(c, &escaped);
    case '{':
        c->at++;
        return skip_members(c, depth + 1, '}', 1);
    case '[':
        c->at++;
        return skip_members(c, depth + 1, ']', 0);
    case 't':
        return skip_word(c, "true", 4);
    case 'f':
        return skip_word(c, "false", 5);
    case 'n':
        return skip_word(c, "null", 4);
    default:
        return skip_number(c);
    }
}

/* The value of a field; both bounds are NULL if it is missing. */
typedef struct {
    Bytes start;
    Bytes stop;
    int plain; /* whether it is text without escapes */
} Value;

/* Finds a field of the object that a line holds: the last one of its name. Returns whether the line is JSON. */
static int
find_field(Cursor *c, Bytes name, Py_ssize_t name_size, Value *found)
{
    found->start = found->stop = NULL;
    found->plain = 0;
    skip_space(c);
    if (!take(c, '{')) {
        if (!skip_value(c, 0)) {
            return 0;
        }
        skip_space(c);
        return c->at == c->end;
    }
    skip_space(c);
    if (!take(c, '}')) {
        do {
            int escaped = 0;
            skip_space(c);
            if (!take(c, '"')) {
                return 0;
            }
            Bytes start = c->at;
            if (!skip_string(c, &escaped) || escaped) { /* an escape may spell the name */
                return 0;
            }
            int wanted = c->at - 1 - start == name_size && memcmp(start, name, (size_t)name_size) == 0;
            skip_space(c);
            if (!take(c, ':')) {
                return 0;
            }
            skip_space(c);
            start = c->at;
            int is_text = take(c, '"');
            if (!(is_text ? skip_string(c, &escaped) : skip_value(c, 1))) {
                return 0;
            }
            if (wanted) {
                found->start = start;
                found->stop = c->at;
                found->plain = is_text && !escaped;
            }
            skip_space(c);
        } while (take(c, ','));
        if (!take(c, '}')) {
            return 0;
        }
    }
    skip_space(c);
    return c->at == c->end;
}

PyObject *
find_fields(PyObject *Py_UNUSED(self), PyObject *args)
{
    Py_buffer data, starts, stops, name, bounds;
    if (!PyArg_ParseTuple(args, "y*y*y*y*w*", &data, &starts, &stops, &name, &bounds)) {
        return NULL;
    }
    Py_ssize_t total = (starts.len < stops.len ? starts.len : stops.len) / 8, count = 0;
    total = bounds.len / 16 < total ? bounds.len / 16 : total;
    Bytes bytes = data.buf;
    int plain = 1;
    Py_BEGIN_ALLOW_THREADS
    for (; count < total; count++) {
        uint64_t start = row_bound(&starts, count), stop = row_bound(&stops, count);
        if (start > stop || stop > (uint64_t)data.len) {
            break;
        }
        Cursor c = {bytes + start, bytes + stop};
        Value found;
        if (!find_field(&c, name.buf, name.len, &found)) {
            break;
        }
        uint64_t pair[2] = {0, 0};
        if (found.start != NULL) {
            pair[0] = (uint64_t)(found.start - bytes);
            pair[1] = (uint64_t)(found.stop - bytes);
        }
        memcpy((char *)bounds.buf + count * 16, pair, 16);
        plain = plain && found.plain;
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&data);
    PyBuffer_Release(&starts);
    PyBuffer_Release(&stops);
    PyBuffer_Release(&name);
    PyBuffer_Release(&bounds);
    return Py_BuildValue("(nN)", count, PyBool_FromLong(plain));
}

/* Bytes objects, as their addresses and sizes. */
typedef struct {
    const char *data;
    uint64_t size;
} Buffer;

/* Returns the buffers of a tuple of bytes objects; NULL with an error. */
static Buffer *
buffers_of(PyObject *objects, Py_ssize_t count)
{
    Buffer *found = PyMem_Malloc((size_t)(count ? count : 1) * sizeof(Buffer));
    if (found == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *data = PyTuple_GetItem(objects, i);
        found[i].data = data == NULL ? NULL : PyBytes_AsString(data);
        if (found[i].data == NULL) {
            PyMem_Free(found);
            return NULL;
        }
        found[i].size = (uint64_t)PyBytes_Size(data);
    }
    return found;
}

/* Returns the bytes that rows take together; -1 if one is outside of its buffer. */
static Py_ssize_t
joined_size(const Buffer *buffers, Py_ssize_t count, const Py_buffer *starts, const Py_buffer *lengths, Py_ssize_t total,
            Py_ssize_t around)
{
    Py_ssize_t size = 0;
    for (Py_ssize_t row = 0; row < total; row++) {
        uint64_t start = row_bound(starts, row), length = row_bound(lengths, row), buffer = start >> BUFFER_SHIFT;
        start &= ((uint64_t)1 << BUFFER_SHIFT) - 1;
        if (buffer >= (uint64_t)count || start > buffers[buffer].size || length > buffers[buffer].size - start ||
            (Py_ssize_t)length > PY_SSIZE_T_MAX - size - around) {
            return -1;
        }
        size += (Py_ssize_t)length + around;
    }
    return size;
}

PyObject *
join_rows(PyObject *Py_UNUSED(self), PyObject *args)
{
    PyObject *objects, *made = NULL;
    Py_buffer starts, lengths, before, after;
    if (!PyArg_ParseTuple(args, "O!y*y*y*y*", &PyTuple_Type, &objects, &starts, &lengths, &before, &after)) {
        return NULL;
    }
    Py_ssize_t count = PyTuple_Size(objects), total = (starts.len < lengths.len ? starts.len : lengths.len) / 8;
    Buffer *buffers = buffers_of(objects, count);
    if (buffers != NULL) {
        Py_ssize_t size = joined_size(buffers, count, &starts, &lengths, total, before.len + after.len);
        made = size < 0 ? NULL : PyBytes_FromStringAndSize(NULL, size);
        if (size < 0) {
            PyErr_SetString(PyExc_ValueError, "a row is outside of its buffer");
        }
    }
    if (made != NULL) {
        char *into = PyBytes_AsString(made); /* no other thread has the object yet */
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t row = 0; row < total; row++) {
            uint64_t start = row_bound(&starts, row), length = row_bound(&lengths, row);
            memcpy(into, before.buf, (size_t)before.len);
            into += before.len;
            memcpy(into, buffers[start >> BUFFER_SHIFT].data + (start & (((uint64_t)1 << BUFFER_SHIFT) - 1)), length);
            into += length;
            memcpy(into, after.buf, (size_t)after.len);
            into += after.len;
        }
        Py_END_ALLOW_THREADS
    }
    PyMem_Free(buffers);
    PyBuffer_Release(&starts);
    PyBuffer_Release(&lengths);
    PyBuffer_Release(&before);
    PyBuffer_Release(&after);
    return made;
}

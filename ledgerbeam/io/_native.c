/* Inner loops of ledgerbeam.io that are too slow in interpreted Python.
 *
 * Each function handles the common case only and stops before any other: the caller continues in Python, which raises
 * all errors. No buffer is kept after a call, no file is mapped, and the GIL is released around system calls. native.py
 * documents the functions. Their limits are checked here again.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#define _FILE_OFFSET_BITS 64
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* O_PATH */
#endif
#include <Python.h>

#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "_native_json.h"

#ifndef O_PATH
#define O_PATH O_RDONLY
#endif

#define TAR_BLOCK 512
#define TAR_PEEK 4096 /* greatest size of one read of a scan */

#define GROUP 32 /* greatest number of members of a sample that is compared here */

#define MOST_SAMPLE (8 << 20) /* greatest size of a sample that is read here, in bytes */
#define LEAD 2048 /* bytes before a sample that are read too: headers of the previous sample */

#define MOST_LINE (8 << 20) /* greatest size of a line that is read here, in bytes */
#define WIDE 19 /* digits of the shortest integer beyond 64 bits */
#define BATCH 64 /* system calls each time the GIL is released */

/* Fills a buffer from a file. Returns the number of bytes: fewer than requested at the end of the file, and after an
 * error or an interrupt by a signal. */
static Py_ssize_t
read_fully(int fd, char *into, Py_ssize_t size, int64_t position)
{
    Py_ssize_t filled = 0;
    while (filled < size && position <= INT64_MAX - filled) {
        ssize_t got = pread(fd, into + filled, (size_t)(size - filled), (off_t)(position + filled));
        if (got <= 0) {
            break;
        }
        filled += got;
    }
    return filled;
}

static void
store_u64(char *array, Py_ssize_t place, uint64_t value)
{
    memcpy(array + place * 8, &value, 8);
}

static uint64_t
load_u64(const char *array, Py_ssize_t place)
{
    uint64_t value;
    memcpy(&value, array + place * 8, 8);
    return value;
}

/* ---- tar ---- */

/* Reads `count` octal digits and the NUL or blank after them. Returns 0 for any other content. */
static int
octal(const unsigned char *field, int count, uint64_t *value)
{
    uint64_t sum = 0;
    for (int i = 0; i < count; i++) {
        unsigned digit = (unsigned)field[i] - '0';
        if (digit > 7) {
            return 0;
        }
        sum = sum * 8 + digit;
    }
    *value = sum;
    return field[count] == 0 || field[count] == ' ';
}

/* Returns whether a header is complete by itself and has a correct checksum. Sets its size, which has at most 33 bits. */
static int
plain_header(const unsigned char *header, uint64_t *size)
{
    uint64_t told;
    unsigned sum = 8 * ' ';
    unsigned char kind = header[156];
    if (!octal(header + 124, 11, size) || !octal(header + 148, 6, &told)) {
        return 0;
    }
    if (kind != 0 && strchr("xXgLKS", kind) != NULL) {
        return 0;
    }
    if (*size > 0 && kind >= '1' && kind <= '6') { /* links, devices, folders and pipes have no payload */
        return 0;
    }
    for (int i = 0; i < TAR_BLOCK; i++) {
        sum += header[i];
    }
    for (int i = 148; i < 156; i++) {
        sum -= header[i];
    }
    return sum == told;
}

/* Rounds a size up to whole blocks. */
static uint64_t
padded(uint64_t size)
{
    return (size + TAR_BLOCK - 1) & ~(uint64_t)(TAR_BLOCK - 1);
}

/* Results of a scan. */
typedef struct {
    char *headers;
    char *sizes;
    Py_ssize_t room;
    Py_ssize_t count;
} Found;

/* Walks headers in bytes from `offset` on. Returns the offset of the next header, which may be past the end. Stops
 * early if the results are full, and at a header that is not plain, which sets `odd`. */
static uint64_t
chase(const unsigned char *data, uint64_t length, uint64_t offset, Found *found, int *odd)
{
    uint64_t size;
    while (found->count < found->room && offset <= length && length - offset >= TAR_BLOCK) {
        if (!plain_header(data + offset, &size)) {
            *odd = 1;
            break;
        }
        memcpy(found->headers + found->count * TAR_BLOCK, data + offset, TAR_BLOCK);
        store_u64(found->sizes, found->count, size);
        found->count++;
        offset += TAR_BLOCK + padded(size);
    }
    return offset;
}

static Found
room_of(const Py_buffer *headers, const Py_buffer *sizes)
{
    Py_ssize_t blocks = headers->len / TAR_BLOCK, entries = sizes->len / 8;
    Found found = {headers->buf, sizes->buf, blocks < entries ? blocks : entries, 0};
    return found;
}

static PyObject *
scan_file_headers(PyObject *Py_UNUSED(self), PyObject *args)
{
    int fd;
    long long position;
    Py_ssize_t peek;
    Py_buffer headers, sizes;
    unsigned char chunk[TAR_PEEK];
    if (!PyArg_ParseTuple(args, "iLnw*w*", &fd, &position, &peek, &headers, &sizes)) {
        return NULL;
    }
    Found found = room_of(&headers, &sizes);
    peek = peek < TAR_BLOCK ? TAR_BLOCK : peek > TAR_PEEK ? TAR_PEEK : peek;
    int odd = 0;
    Py_BEGIN_ALLOW_THREADS
    while (!odd && found.count < found.room && position >= 0) {
        Py_ssize_t got = read_fully(fd, (char *)chunk, peek, position);
        if (got < TAR_BLOCK) {
            break;
        }
        uint64_t step = chase(chunk, (uint64_t)got, 0, &found, &odd); /* less than 2**34 */
        if (step > (uint64_t)(INT64_MAX - position)) {
            break;
        }
        position += (int64_t)step;
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&headers);
    PyBuffer_Release(&sizes);
    return PyLong_FromSsize_t(found.count);
}

static PyObject *
scan_bytes_headers(PyObject *Py_UNUSED(self), PyObject *args)
{
    Py_buffer data, headers, sizes;
    Py_ssize_t offset;
    int odd = 0;
    if (!PyArg_ParseTuple(args, "y*nw*w*", &data, &offset, &headers, &sizes)) {
        return NULL;
    }
    Found found = room_of(&headers, &sizes);
    if (offset >= 0) {
        Py_BEGIN_ALLOW_THREADS
        chase(data.buf, (uint64_t)data.len, (uint64_t)offset, &found, &odd);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&headers);
    PyBuffer_Release(&sizes);
    return PyLong_FromSsize_t(found.count);
}

/* Returns the length of the key of a name, up to the first dot of its base name. 0 if it has no dot or is hidden; -1 for
 * names whose key has another rule. */
static Py_ssize_t
key_length(const char *name, Py_ssize_t length)
{
    Py_ssize_t base = length;
    while (base > 0 && name[base - 1] != '/') {
        base--;
    }
    if (length >= 2 && name[0] == '_' && name[1] == '_') {
        return -1;
    }
    const char *dot = memchr(name + base, '.', (size_t)(length - base));
    return dot == NULL || dot == name + base ? 0 : dot - name;
}

/* Returns whether all bytes of a name after its key are ASCII without capital letters. */
static int
is_lower(const char *name, Py_ssize_t key, Py_ssize_t length)
{
    for (Py_ssize_t i = key; i < length; i++) {
        if ((name[i] >= 'A' && name[i] <= 'Z') || (unsigned char)name[i] > 127) {
            return 0;
        }
    }
    return 1;
}

static PyObject *
group_names(PyObject *Py_UNUSED(self), PyObject *args)
{
    PyObject *names;
    Py_buffer regular, starts;
    const char *run[GROUP]; /* names of the current sample */
    Py_ssize_t lengths[GROUP], members = 0, key = 0, count = 0;
    int odd = 0;
    if (!PyArg_ParseTuple(args, "O!y*w*", &PyList_Type, &names, &regular, &starts)) {
        return NULL;
    }
    Py_ssize_t total = PyList_Size(names), room = starts.len / 8;
    odd = total > regular.len || total > room;
    for (Py_ssize_t i = 0; i < total && !odd; i++) {
        if (!((const char *)regular.buf)[i]) {
            continue;
        }
        Py_ssize_t length;
        PyObject *item = PyList_GetItem(names, i);
        const char *name = item == NULL ? NULL : PyUnicode_AsUTF8AndSize(item, &length);
        if (name == NULL) { /* surrogate escapes */
            PyErr_Clear();
            odd = 1;
            break;
        }
        Py_ssize_t own = key_length(name, length);
        odd = own < 0 || (own > 0 && !is_lower(name, own, length));
        if (own <= 0) {
            continue;
        }
        if (members == 0 || own != key || memcmp(name, run[0], (size_t)key) != 0) {
            store_u64(starts.buf, count++, (uint64_t)i);
            key = own;
            members = 0;
        }
        for (Py_ssize_t j = 0; j < members; j++) {
            odd = odd || (lengths[j] == length && memcmp(run[j], name, (size_t)length) == 0);
        }
        odd = odd || members == GROUP;
        if (!odd) {
            run[members] = name;
            lengths[members++] = length;
        }
    }
    PyBuffer_Release(&regular);
    PyBuffer_Release(&starts);
    if (odd) {
        Py_RETURN_NONE;
    }
    return PyLong_FromSsize_t(count);
}

/* A member of a sample: its raw name, up to the NUL or 100 bytes, and its content. */
typedef struct {
    const char *name;
    Py_ssize_t length;
    Py_ssize_t key; /* length of the key in the name */
    const char *content;
    Py_ssize_t size;
} Item;

/* Parses the header of a file that is complete by itself, with a plain key and an extension in lower case in its name.
 * Returns 0 for all other headers. */
static int
plain_item(const char *header, Item *item, uint64_t *size)
{
    if (header[156] != '0' || header[345] != 0 || !plain_header((const unsigned char *)header, size)) {
        return 0;
    }
    const char *end = memchr(header, 0, 100);
    item->name = header;
    item->length = end == NULL ? 100 : end - header;
    item->key = key_length(item->name, item->length);
    return item->key > 0 && is_lower(item->name, item->key, item->length);
}

static int
same_key(const Item *one, const Item *other)
{
    return one->key == other->key && memcmp(one->name, other->name, (size_t)one->key) == 0;
}

/* Bytes of a file from `base` on, in reused memory. */
typedef struct {
    int fd;
    char *data;
    Py_ssize_t room;
    int64_t base;
} Window;

/* Returns whether whole members of another key fill the range before a sample. Headers before the window are read one
 * by one. */
static int
follows_another(const Window *window, int64_t position, int64_t start, const Item *own)
{
    char block[TAR_BLOCK];
    Item item;
    for (int members = 0; members < GROUP && position < start; members++) {
        const char *header = position >= window->base ? window->data + (position - window->base) : block;
        uint64_t size;
        if (start - position < TAR_BLOCK ||
            (header == block && read_fully(window->fd, block, TAR_BLOCK, position) != TAR_BLOCK) ||
            !plain_item(header, &item, &size) || size > (uint64_t)(start - position - TAR_BLOCK)) {
            return 0;
        }
        position += TAR_BLOCK + (int64_t)padded(size);
        if (position == start) {
            return !same_key(&item, own);
        }
    }
    return 0;
}

/* Finds the members of a sample in `size` bytes, and checks the header after them. Returns their number; 0 unless they are
 * one whole sample, whose members have the same key and different names. */
static Py_ssize_t
find_items(const char *data, Py_ssize_t size, Item *items)
{
    Py_ssize_t count = 0, at = 0;
    uint64_t stored;
    Item after;
    while (at < size && count < GROUP) {
        Item *item = &items[count];
        if (size - at < TAR_BLOCK || !plain_item(data + at, item, &stored) ||
            stored > (uint64_t)(size - at - TAR_BLOCK) || !same_key(item, items)) {
            return 0;
        }
        for (Py_ssize_t i = 0; i < count; i++) {
            if (items[i].length == item->length && memcmp(items[i].name, item->name, (size_t)item->length) == 0) {
                return 0;
            }
        }
        item->content = data + at + TAR_BLOCK;
        item->size = (Py_ssize_t)stored;
        at += TAR_BLOCK + (Py_ssize_t)padded(stored);
        count++;
    }
    return at == size && plain_item(data + size, &after, &stored) && !same_key(&after, items) ? count : 0;
}

/* Returns the length of the common part of two names before their last dot; 0 if it differs or nothing follows the dot. */
static Py_ssize_t
stem_length(const Item *items)
{
    Py_ssize_t stem = items[0].length - 1;
    while (items[0].name[stem] != '.') { /* the key ends at a dot */
        stem--;
    }
    Py_ssize_t other = items[1].length - 1;
    while (items[1].name[other] != '.') {
        other--;
    }
    return stem == other && memcmp(items[0].name, items[1].name, (size_t)stem) == 0 && stem + 1 < items[0].length &&
                   stem + 1 < items[1].length
               ? stem
               : 0;
}

/* Creates a sample from members. NULL, perhaps without an error, if a name is not UTF-8. */
static PyObject *
sample_of(const Item *items, Py_ssize_t count, Py_ssize_t key, PyTypeObject *kind)
{
    newfunc make = (newfunc)PyType_GetSlot(kind, Py_tp_new);
    PyObject *nothing = PyTuple_New(0), *name = PyUnicode_DecodeUTF8(items[0].name, key, NULL);
    PyObject *sample = nothing == NULL || name == NULL ? NULL : make(kind, nothing, NULL);
    int good = sample != NULL && PyObject_SetAttrString(sample, "key", name) == 0;
    for (Py_ssize_t i = 0; i < count && good; i++) {
        PyObject *extension = PyUnicode_DecodeUTF8(items[i].name + key + 1, items[i].length - key - 1, NULL);
        PyObject *content = PyBytes_FromStringAndSize(items[i].content, items[i].size);
        good = extension != NULL && content != NULL && PyDict_SetItem(sample, extension, content) == 0;
        Py_XDECREF(extension);
        Py_XDECREF(content);
    }
    Py_XDECREF(nothing);
    Py_XDECREF(name);
    if (!good) {
        Py_CLEAR(sample);
        if (PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) { /* surrogate escapes */
            PyErr_Clear();
        }
    }
    return sample;
}

/* Reads the sample in [start, stop); the previous one starts at `before`. NULL, perhaps without an error, unless it is one
 * whole sample of plain files. */
static PyObject *
read_sample(Window *window, uint64_t before, uint64_t start, uint64_t stop, int by_stem, PyTypeObject *kind)
{
    Item items[GROUP];
    Py_ssize_t count = 0;
    if (before >= start || start >= stop || stop - start > MOST_SAMPLE || stop > INT64_MAX - TAR_BLOCK) {
        return NULL;
    }
    Py_ssize_t lead = start - before < LEAD ? (Py_ssize_t)(start - before) : LEAD;
    Py_ssize_t size = (Py_ssize_t)(stop - start), whole = lead + size + TAR_BLOCK;
    if (whole > window->room) {
        free(window->data);
        window->data = malloc((size_t)whole);
        window->room = window->data == NULL ? 0 : whole;
    }
    if (window->data == NULL) {
        return PyErr_NoMemory();
    }
    window->base = (int64_t)start - lead;
    Py_BEGIN_ALLOW_THREADS
    if (read_fully(window->fd, window->data, whole, window->base) == whole) {
        count = find_items(window->data + lead, size, items);
        count = count > 0 && follows_another(window, (int64_t)before, (int64_t)start, items) ? count : 0;
    }
    Py_END_ALLOW_THREADS
    if (count == 0) {
        return NULL;
    }
    Py_ssize_t stem = by_stem && count == 2 ? stem_length(items) : 0;
    return sample_of(items, count, stem > 0 ? stem : items[0].key, kind);
}

static PyObject *
read_samples(PyObject *Py_UNUSED(self), PyObject *args)
{
    Window window = {-1, NULL, 0, 0};
    Py_buffer bounds;
    Py_ssize_t most;
    int by_stem, going = 1;
    PyTypeObject *kind;
    if (!PyArg_ParseTuple(args, "iy*npO!", &window.fd, &bounds, &most, &by_stem, &PyType_Type, &kind)) {
        return NULL;
    }
    PyObject *found = NULL;
    if (PyType_IsSubtype(kind, &PyDict_Type)) {
        found = PyList_New(0);
    } else {
        PyErr_SetString(PyExc_TypeError, "expected a subclass of dict");
    }
    for (Py_ssize_t i = 0; found != NULL && going && most > 0 && i + 2 < bounds.len / 8; i += 3) {
        uint64_t before = load_u64(bounds.buf, i), start = load_u64(bounds.buf, i + 1);
        uint64_t stop = load_u64(bounds.buf, i + 2);
        PyObject *sample = read_sample(&window, before, start, stop, by_stem, kind);
        going = sample != NULL && PyList_Append(found, sample) == 0;
        most -= (Py_ssize_t)(going ? stop - start : 0);
        Py_XDECREF(sample);
    }
    free(window.data);
    PyBuffer_Release(&bounds);
    if (PyErr_Occurred()) {
        Py_CLEAR(found);
    }
    return found;
}

/* ---- lines ---- */

static PyObject *
find_newlines(PyObject *Py_UNUSED(self), PyObject *args)
{
    int fd;
    long long position, stop;
    Py_buffer scratch, ends;
    if (!PyArg_ParseTuple(args, "iLLw*w*", &fd, &position, &stop, &scratch, &ends)) {
        return NULL;
    }
    Py_ssize_t room = ends.len / 8, count = 0;
    Py_BEGIN_ALLOW_THREADS
    while (position >= 0 && position < stop && scratch.len > 0 && count < room) {
        Py_ssize_t wanted = stop - position < scratch.len ? (Py_ssize_t)(stop - position) : scratch.len;
        Py_ssize_t got = read_fully(fd, scratch.buf, wanted, position);
        const char *at = scratch.buf, *end = at + got;
        while (at < end && count < room) {
            const char *newline = memchr(at, '\n', (size_t)(end - at));
            at = newline == NULL ? end : newline + 1;
            if (newline != NULL) {
                store_u64(ends.buf, count++, (uint64_t)(position + (at - (const char *)scratch.buf)));
            }
        }
        position += at - (const char *)scratch.buf;
        if (got < wanted) {
            break;
        }
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&scratch);
    PyBuffer_Release(&ends);
    return Py_BuildValue("(nL)", count, position);
}

static int
is_digit(char byte)
{
    return byte >= '0' && byte <= '9';
}

/* Returns whether the digits [first, stop) of JSON text are an integer that may need more than 64 bits. */
static int
is_wide(const char *bytes, Py_ssize_t size, Py_ssize_t first, Py_ssize_t stop)
{
    char before = first > 0 ? bytes[first - 1] : ' ';
    char after = stop < size ? bytes[stop] : ' ';
    int is_whole = before != '.' && after != '.' && after != 'e' && after != 'E';
    return is_whole && (stop - first > WIDE || before == '-');
}

/* Returns whether JSON text seems to have an integer beyond 64 bits. */
static int
has_wide(const char *bytes, Py_ssize_t size)
{
    Py_ssize_t first = 0; /* possible start of a run of digits; the byte before it is not a digit */
    while (size - first >= WIDE) {
        Py_ssize_t last = first + WIDE - 1; /* if it is not a digit, no long run starts at or before it */
        while (last >= first && is_digit(bytes[last])) {
            last--;
        }
        if (last >= first) {
            first = last + 1;
            continue;
        }
        Py_ssize_t stop = first + WIDE;
        while (stop < size && is_digit(bytes[stop])) {
            stop++;
        }
        if (is_wide(bytes, size, first, stop)) {
            return 1;
        }
        first = stop;
    }
    return 0;
}

/* Creates an empty bytes object for the line [start, stop) and the newline before it. NULL, perhaps without an error, if
 * the range cannot be a line. */
static PyObject *
room_for(uint64_t start, uint64_t stop)
{
    /* The memory is allocated before the read, and a damaged offset can have any value. */
    if (stop <= start || stop > INT64_MAX || stop - start > MOST_LINE) {
        return NULL;
    }
    return PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(stop - start + (start > 0)));
}

/* Reads a line and the newline before it. Returns whether both are complete and the only newline of the line is its last
 * byte. */
static int
fill_line(int fd, char *line, Py_ssize_t size, uint64_t start)
{
    Py_ssize_t lead = start > 0;
    if (read_fully(fd, line, size, (int64_t)start - lead) != size || (lead && line[0] != '\n')) {
        return 0;
    }
    return memchr(line + lead, '\n', (size_t)(size - lead)) == line + size - 1;
}

static PyObject *
read_lines(PyObject *Py_UNUSED(self), PyObject *args)
{
    int fd, wide = 0;
    Py_buffer starts, stops;
    Py_ssize_t first, most;
    if (!PyArg_ParseTuple(args, "iy*y*nn", &fd, &starts, &stops, &first, &most)) {
        return NULL;
    }
    Py_ssize_t total = (starts.len < stops.len ? starts.len : stops.len) / 8;
    PyObject *found = PyList_New(0);
    int going = found != NULL && first >= 0;
    while (going && first < total && most > 0) {
        PyObject *lines[BATCH];
        char *raw[BATCH];
        uint64_t begins[BATCH];
        Py_ssize_t sizes[BATCH], asked = 0, filled = 0;
        for (; asked < BATCH && asked < total - first && most > 0; asked++) {
            begins[asked] = load_u64(starts.buf, first + asked);
            lines[asked] = room_for(begins[asked], load_u64(stops.buf, first + asked));
            if (lines[asked] == NULL) {
                going = 0;
                break;
            }
            raw[asked] = PyBytes_AsString(lines[asked]);
            sizes[asked] = PyBytes_Size(lines[asked]);
            most -= sizes[asked];
        }
        /* No other thread has the objects yet, so they can be filled without the GIL. */
        Py_BEGIN_ALLOW_THREADS
        while (filled < asked && fill_line(fd, raw[filled], sizes[filled], begins[filled])) {
            wide = wide || has_wide(raw[filled], sizes[filled]);
            filled++;
        }
        Py_END_ALLOW_THREADS
        going = going && filled == asked;
        for (Py_ssize_t i = 0; i < asked; i++) {
            if (i < filled && found != NULL && PyList_Append(found, lines[i]) < 0) {
                Py_CLEAR(found);
                going = 0;
            }
            Py_DECREF(lines[i]);
        }
        first += asked;
    }
    PyBuffer_Release(&starts);
    PyBuffer_Release(&stops);
    if (PyErr_Occurred()) {
        Py_CLEAR(found);
    }
    return found == NULL ? NULL : Py_BuildValue("(NN)", found, PyBool_FromLong(wide));
}

/* ---- files ---- */

/* Writes a number as decimal text before `end`, and returns its start. At most 20 bytes; six times as fast as snprintf. */
static char *
decimal(int64_t number, char *end)
{
    uint64_t rest = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    do {
        *--end = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest > 0);
    if (number < 0) {
        *--end = '-';
    }
    return end;
}

/* Appends the size of a file, and its modification time in nanoseconds as decimal text, to two lists. Returns 0 if the
 * time has more than 64 bits, -1 with an error. */
static int
add_description(const struct stat *file, PyObject *sizes, PyObject *versions)
{
    char text[24], *end = text + sizeof text;
    int64_t seconds = file->st_mtim.tv_sec;
    if (seconds > INT64_MAX / 1000000000 - 1 || seconds < INT64_MIN / 1000000000 + 1) {
        return 0;
    }
    char *begin = decimal(seconds * 1000000000 + file->st_mtim.tv_nsec, end);
    PyObject *size = PyLong_FromLongLong((long long)file->st_size);
    PyObject *version = PyUnicode_FromStringAndSize(begin, end - begin);
    int added = size != NULL && version != NULL && PyList_Append(sizes, size) == 0 &&
                PyList_Append(versions, version) == 0;
    Py_XDECREF(size);
    Py_XDECREF(version);
    return added ? 1 : -1;
}

/* Describes up to BATCH files of a folder from `first` on. Returns their number, up to the first name that is not a file
 * or cannot be described; -1 with an error. */
static Py_ssize_t
stat_some(int folder, PyObject *names, Py_ssize_t first, PyObject *sizes, PyObject *versions)
{
    PyObject *encoded[BATCH];
    char *raw[BATCH];
    struct stat files[BATCH];
    Py_ssize_t asked = 0, answered = 0, added = 0, total = PyList_Size(names);
    int bad = 0;
    for (; asked < BATCH && first + asked < total; asked++) {
        PyObject *name = PyList_GetItem(names, first + asked);
        encoded[asked] = name == NULL ? NULL : PyUnicode_EncodeFSDefault(name);
        if (encoded[asked] == NULL) {
            bad = 1;
            break;
        }
        if (PyBytes_AsStringAndSize(encoded[asked], &raw[asked], NULL) < 0) { /* a NUL inside */
            Py_DECREF(encoded[asked]);
            bad = 1;
            break;
        }
    }
    if (!bad) {
        Py_BEGIN_ALLOW_THREADS
        while (answered < asked && fstatat(folder, raw[answered], &files[answered], 0) == 0 &&
               S_ISREG(files[answered].st_mode)) {
            answered++;
        }
        Py_END_ALLOW_THREADS
    }
    for (Py_ssize_t i = 0; i < asked; i++) {
        Py_DECREF(encoded[i]);
    }
    for (int good = 1; good == 1 && added < answered;) {
        good = add_description(&files[added], sizes, versions);
        bad = bad || good < 0;
        added += good == 1;
    }
    return bad ? -1 : added;
}

static PyObject *
stat_files(PyObject *Py_UNUSED(self), PyObject *args)
{
    PyObject *encoded, *names, *sizes, *versions, *result = NULL;
    int folder;
    if (!PyArg_ParseTuple(args, "O&O!", PyUnicode_FSConverter, &encoded, &PyList_Type, &names)) {
        return NULL;
    }
    sizes = PyList_New(0);
    versions = PyList_New(0);
    const char *raw = PyBytes_AsString(encoded);
    Py_BEGIN_ALLOW_THREADS
    folder = open(raw, O_PATH | O_DIRECTORY | O_CLOEXEC);
    Py_END_ALLOW_THREADS
    Py_DECREF(encoded);
    Py_ssize_t done = 0, some = sizes == NULL || versions == NULL ? -1 : 0;
    while (folder >= 0 && some >= 0 && done < PyList_Size(names)) {
        some = stat_some(folder, names, done, sizes, versions);
        done += some > 0 ? some : 0;
        if (some < BATCH) {
            break;
        }
    }
    if (folder >= 0) {
        close(folder);
    }
    if (some >= 0) {
        result = PyTuple_Pack(2, sizes, versions);
    }
    Py_XDECREF(sizes);
    Py_XDECREF(versions);
    return result;
}

static PyObject *
holds_wide(PyObject *Py_UNUSED(self), PyObject *args)
{
    Py_buffer data;
    if (!PyArg_ParseTuple(args, "y*", &data)) {
        return NULL;
    }
    int found = has_wide(data.buf, data.len);
    PyBuffer_Release(&data);
    return PyBool_FromLong(found);
}

static PyObject *
holds_null(PyObject *Py_UNUSED(self), PyObject *line)
{
    Py_ssize_t size = PyBytes_Size(line);
    const char *bytes = PyBytes_AsString(line);
    if (bytes == NULL) {
        return NULL;
    }
    int found = 0;
    for (Py_ssize_t i = 0; i + 3 < size; i++) { /* without a branch, so that the compiler vectorizes the loop */
        found |= (bytes[i] == 'n') & (bytes[i + 1] == 'u') & (bytes[i + 2] == 'l') & (bytes[i + 3] == 'l');
    }
    return PyBool_FromLong(found);
}

/* ---- tokens ---- */

/* Copies integers, each into a wider or an equal type. */
#define WIDEN(FROM, TO)                                                                                                \
    do {                                                                                                               \
        const FROM *in = (const FROM *)from;                                                                           \
        TO *out = (TO *)to;                                                                                            \
        for (int64_t i = 0; i < count; i++) {                                                                          \
            out[i] = (TO)in[i];                                                                                        \
        }                                                                                                              \
    } while (0)

/* Copies tokens. A kind is the size of a number in bytes, negative for signed numbers. */
static int
copy_range(const char *from, int from_kind, char *to, int to_kind, int64_t count)
{
    if (from_kind == to_kind) {
        memcpy(to, from, (size_t)count * (size_t)abs(to_kind));
        return 1;
    }
    switch (from_kind * 100 - to_kind) {
    case 1 * 100 + 4: WIDEN(uint8_t, int32_t); return 1;
    case 1 * 100 + 8: WIDEN(uint8_t, int64_t); return 1;
    case 2 * 100 + 4: WIDEN(uint16_t, int32_t); return 1;
    case 2 * 100 + 8: WIDEN(uint16_t, int64_t); return 1;
    case -4 * 100 + 8: WIDEN(int32_t, int64_t); return 1;
    default: return 0;
    }
}

static PyObject *
copy_tokens(PyObject *Py_UNUSED(self), PyObject *args)
{
    Py_buffer tokens, ranges, into, places;
    int from_kind, to_kind;
    if (!PyArg_ParseTuple(args, "y*w*(ii)y*y*", &tokens, &into, &from_kind, &to_kind, &ranges, &places)) {
        return NULL;
    }
    Py_ssize_t count = places.len / 8;
    int64_t width = abs(from_kind), room = abs(to_kind);
    int good = width > 0 && room > 0 && ranges.len == 2 * places.len;
    good = good && (uintptr_t)tokens.buf % (uintptr_t)width == 0 && (uintptr_t)into.buf % (uintptr_t)room == 0;
    if (good) {
        int64_t held = tokens.len / width, most = into.len / room;
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; good && i < count; i++) {
            int64_t start = (int64_t)load_u64(ranges.buf, i), stop = (int64_t)load_u64(ranges.buf, count + i);
            int64_t place = (int64_t)load_u64(places.buf, i);
            good = 0 <= start && start <= stop && stop <= held && 0 <= place && place <= most &&
                   stop - start <= most - place &&
                   copy_range((const char *)tokens.buf + start * width, from_kind, (char *)into.buf + place * room,
                              to_kind, stop - start);
        }
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&tokens);
    PyBuffer_Release(&ranges);
    PyBuffer_Release(&into);
    PyBuffer_Release(&places);
    return PyBool_FromLong(good);
}

/* ---- message of a crash ---- */

static char last_words[4096];
static size_t last_words_size;

static void
say_last_words(int Py_UNUSED(number))
{
    ssize_t said = write(2, last_words, last_words_size);
    (void)said;
    _exit(1);
}

static PyObject *
say_before_end(PyObject *Py_UNUSED(self), PyObject *words)
{
    Py_ssize_t size = PyBytes_Size(words);
    const char *bytes = PyBytes_AsString(words);
    if (bytes == NULL) {
        return NULL;
    }
    last_words_size = (size_t)size < sizeof(last_words) ? (size_t)size : sizeof(last_words);
    memcpy(last_words, bytes, last_words_size);
    struct sigaction action;
    memset(&action, 0, sizeof(action));
    action.sa_handler = say_last_words;
    const int numbers[] = {SIGABRT, SIGBUS, SIGSEGV};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        if (sigaction(numbers[i], &action, NULL) != 0) {
            return PyErr_SetFromErrno(PyExc_OSError);
        }
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"scan_file_headers", scan_file_headers, METH_VARARGS, NULL},
    {"scan_bytes_headers", scan_bytes_headers, METH_VARARGS, NULL},
    {"group_names", group_names, METH_VARARGS, NULL},
    {"read_samples", read_samples, METH_VARARGS, NULL},
    {"find_newlines", find_newlines, METH_VARARGS, NULL},
    {"read_lines", read_lines, METH_VARARGS, NULL},
    {"stat_files", stat_files, METH_VARARGS, NULL},
    {"holds_wide", holds_wide, METH_VARARGS, NULL},
    {"holds_null", holds_null, METH_O, NULL},
    {"say_before_end", say_before_end, METH_O, NULL},
    {"find_fields", find_fields, METH_VARARGS, NULL},
    {"join_rows", join_rows, METH_VARARGS, NULL},
    {"copy_tokens", copy_tokens, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_native", "Compiled inner loops; see native.py.", 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__native(void)
{
    return PyModuleDef_Init(&module);
}
